"""Compiled code that outlives its process: one file for each piece, in a folder that is the user's
own.

A file is its checksum and what it holds. It is written apart and then renamed, so that whoever
reads it finds the whole of it or nothing, however many processes write. Nothing is read, written
over or deleted but regular files of the user's that are named as the store names them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from ingot.codegen.private_folder import opened

log = logging.getLogger("ingot")

MOST_BYTES = 1 << 26  # of one file
ABANDONED = 3600.0  # seconds after which a file that is half written is nobody's
_ENTRY = re.compile(r"[0-9a-f]{64}\.code")
_PARTIAL = re.compile(r"\.[0-9a-f]{32}\.part")
_DIGEST_BYTES = hashlib.sha256().digest_size


class Store:
    """Bytes by their keys, which are SHA-256 digests in hexadecimal, in `folder`.

    What cannot be read or written is as if it was not there, and the log says why, once for each
    reason. `folder` may be None, and must otherwise be the user's, and nobody else's (see
    `private_folder`). Where it has more than `most_files`, or `most_bytes`, it loses those that
    nobody used for the longest time, down to half of this.
    """

    def __init__(
        self, folder: Path | None, most_files: int = 4096, most_bytes: int = 1 << 29
    ) -> None:
        self._folder = folder
        self._most_files, self._most_bytes = most_files, most_bytes
        # how many files, and bytes, may be written before they are counted again
        self._room, self._room_bytes = 0, 0
        self._complaints: set[str] = set()
        with suppress(OSError):  # there is no working directory
            self._folder = folder and folder.absolute()

    @property
    def is_open(self) -> bool:
        """Whether anything may be kept."""
        return self._folder is not None

    def get(self, key: str) -> bytes | None:
        """What was put under this key, or None. A damaged file is removed."""
        if self._folder is None:
            return None
        name = _name(key)
        try:
            with opened(self._folder) as folder:
                whole = _read(folder, name)
                if whole is None:
                    self._complain(f"a file in {self._folder} is none of Ingot's")
                    return None
                content = whole[_DIGEST_BYTES:]
                if _checksum(key, content) == whole[:_DIGEST_BYTES]:
                    return content
                self._complain(f"a file in {self._folder} is damaged, and is made again")
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError as problem:
            self._complain(f"compiled code is not kept in {self._folder}", _reason(problem))
        return None

    def put(self, key: str, content: bytes) -> None:
        if self._folder is None:
            return
        name = _name(key)
        try:
            if len(content) > MOST_BYTES - _DIGEST_BYTES:
                raise OSError(f"more than {MOST_BYTES >> 20} MiB in one piece")
            whole = _checksum(key, content) + content
            with opened(self._folder, make=True) as folder:
                self._make_room(folder, len(whole))
                _write(folder, name, whole)
        except OSError as problem:
            self._complain(f"compiled code is not kept in {self._folder}", _reason(problem))

    def _make_room(self, folder: int, size: int) -> None:
        if self._room <= 0 or self._room_bytes < size:
            entries = sorted(_entries(folder))
            total = sum(map(attrgetter("size"), entries))
            if len(entries) >= self._most_files or total + size > self._most_bytes:
                most = self._most_files // 2, min(self._most_bytes // 2, self._most_bytes - size)
                while entries and (len(entries) > most[0] or total > most[1]):
                    oldest = entries.pop(0)
                    total -= oldest.size
                    with suppress(FileNotFoundError):  # removed by another process
                        os.unlink(oldest.name, dir_fd=folder)
            self._room = self._most_files - len(entries)
            self._room_bytes = self._most_bytes - total
        self._room -= 1
        self._room_bytes -= size

    def _complain(self, *texts: str) -> None:
        """Log it, unless it was said before."""
        complaint = ": ".join(texts)
        if complaint not in self._complaints:
            self._complaints.add(complaint)
            log.warning("%s", complaint)


def _reason(problem: OSError) -> str:
    """Why something failed, without the names of single files."""
    return problem.strerror or str(problem)


def _name(key: str) -> str:
    name = f"{key}.code"
    if not _ENTRY.fullmatch(name):
        raise ValueError(f"{key!r} is no SHA-256 digest")
    return name


def _is_own(status: os.stat_result) -> bool:
    """Whether it is a file that nobody but the user can have written."""
    writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not writable


def _read(folder: int, name: str) -> bytes | None:
    """What a file holds; None for what is none of the store's. It is touched, since it is of
    use."""
    if not _is_own(os.stat(name, dir_fd=folder, follow_symlinks=False)):
        return None  # opening a device can have effects
    handle = os.open(
        name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
    )
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not _is_own(status) or status.st_size > MOST_BYTES:
            return None
        with suppress(OSError):
            os.utime(handle)
        return file.read(MOST_BYTES)


def _write(folder: int, name: str, whole: bytes) -> None:
    """Put a file in the place of one of the store's, or where there is none."""
    with suppress(FileNotFoundError):
        if not _is_own(os.stat(name, dir_fd=folder, follow_symlinks=False)):
            raise OSError("a file there is none of Ingot's")
    partial = f".{secrets.token_hex(16)}.part"
    handle = os.open(
        partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    try:
        with open(handle, "wb") as file:
            file.write(whole)
        os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial, dir_fd=folder)
        raise


class _Entry(NamedTuple):
    last_used: float
    name: str
    size: int


def _entries(folder: int) -> Iterator[_Entry]:
    """The store's files. Those of writers that died are removed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            is_partial = _PARTIAL.fullmatch(entry.name)
            if not is_partial and not _ENTRY.fullmatch(entry.name):
                continue
            with suppress(FileNotFoundError):
                facts = entry.stat(follow_symlinks=False)
                if not _is_own(facts):
                    continue
                if not is_partial:
                    yield _Entry(facts.st_mtime, entry.name, facts.st_size)
                elif facts.st_mtime < time.time() - ABANDONED:
                    os.unlink(entry.name, dir_fd=folder)


def _checksum(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + content).digest()


@cache
def store_in(name: str) -> Store:
    """The store of this name in the folder that INGOT_CACHE_DIR names.

    By default that is one in the user's own cache; if it is empty, nothing is kept.
    """
    folder = os.environ.get("INGOT_CACHE_DIR")
    if folder is None:
        folder = _users_cache()
    return Store(Path(folder) / name if folder else None)


def _users_cache() -> str:
    """Ingot's folder among those of what can be made again; empty if the user has no home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    home = ""
    if os.environ.get("HOME", "~"):
        home = os.path.expanduser("~")
    if os.path.isabs(named):
        caches = named
    else:
        caches = os.path.join(home, ".cache")
    if os.path.isabs(caches):
        return os.path.join(caches, "ingot")
    return ""
