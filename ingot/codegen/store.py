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
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from ingot.codegen.private_folder import opened

log = logging.getLogger("ingot")

MOST_BYTES = 1 << 26  # of one file
ABANDONED = 3600.0  # seconds after which a file that is half written is nobody's
KINDS = {
    "programs": "programs for CPUs",
    "llvm": "object files of CPU kernels",
    "cpp": "object files of CPU kernels in C++",
    "triton": "GPU binaries",
    "tuned": "times measured on GPUs",
    "package": "digests of Ingot's own files",
    "varied": "sizes that were seen to vary",
}
"""What the stores are called (see `store_in`), and what lies in each."""

_ENTRY = re.compile(r"[0-9a-f]{64}\.code")
_PARTIAL = re.compile(r"\.[0-9a-f]{32}\.part")
_DIGEST_BYTES = hashlib.sha256().digest_size


class Damaged(Exception):
    """A file of the store does not hold what was put there; the text says how that is seen."""


class Entry(NamedTuple):
    """A file of a store: when it was last used, in seconds since the epoch, its name and its
    bytes."""

    last_used: float
    name: str
    size: int

    @property
    def key(self) -> str:
        return self.name.partition(".")[0]


class Listing(NamedTuple):
    """What a folder holds.

    `entries` are the store's files, the longest unused first; `partial` those that are half
    written, by a process that runs or was killed; `foreign` the names of what is none of these.
    """

    entries: tuple[Entry, ...] = ()
    partial: tuple[Entry, ...] = ()
    foreign: tuple[str, ...] = ()


class Counts:
    """What a store did in this process. Threads may count at once.

    `found` and `made` are how often something was found, and was put there; `not_kept` how often it
    was not kept, by the reasons.
    """

    def __init__(self) -> None:
        self.found = self.made = 0
        self.not_kept: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add_found(self) -> None:
        with self._lock:
            self.found += 1

    def add_made(self) -> None:
        with self._lock:
            self.made += 1

    def add_not_kept(self, reason: str) -> None:
        with self._lock:
            self.not_kept[reason] += 1


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
        self.folder = folder
        self.most_files, self.most_bytes = most_files, most_bytes
        self.counts = Counts()
        # how many files, and bytes, may be written before they are counted again
        self._room, self._room_bytes = 0, 0
        self._complaints: set[str] = set()
        with suppress(OSError):  # there is no working directory
            self.folder = folder and folder.absolute()

    @property
    def is_open(self) -> bool:
        """Whether anything may be kept."""
        return self.folder is not None

    def get(self, key: str) -> bytes | None:
        """What was put under this key, or None. A damaged file is removed."""
        if self.folder is None:
            return None
        name = _name(key)
        try:
            with opened(self.folder) as folder:
                whole = _read(folder, name)
                if whole is None:
                    self._complain(f"a file in {self.folder} is none of Ingot's")
                    return None
                content = whole[_DIGEST_BYTES:]
                if _checksum(key, content) == whole[:_DIGEST_BYTES]:
                    self.counts.add_found()
                    return content
                self._complain(f"a file in {self.folder} is damaged, and is made again")
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError as problem:
            self._complain(f"compiled code is not kept in {self.folder}", _reason(problem))
        return None

    def put(self, key: str, content: bytes) -> bool:
        """Keep these bytes; returns whether they are kept."""
        if self.folder is None:
            return False
        name = _name(key)
        try:
            if len(content) > MOST_BYTES - _DIGEST_BYTES:
                raise OSError(f"more than {MOST_BYTES >> 20} MiB in one piece")
            whole = _checksum(key, content) + content
            with opened(self.folder, make=True) as folder:
                self._make_room(folder, len(whole))
                _write(folder, name, whole)
        except OSError as problem:
            self.counts.add_not_kept(_reason(problem))
            self._complain(f"compiled code is not kept in {self.folder}", _reason(problem))
            return False
        self.counts.add_made()
        return True

    def has(self, key: str) -> bool:
        """Whether there is a file under this key, whatever it holds."""
        return self.folder is not None and (self.folder / _name(key)).is_file()

    # -- for people, who ask what is there ---------------------------------------------------------

    def listing(self) -> Listing:
        """What is in the folder, which may be missing. Raises OSError where it cannot be read, or
        is not the user's own."""
        if self.folder is None:
            return Listing()
        try:
            with opened(self.folder) as folder:
                return _listing(folder)
        except FileNotFoundError:
            return Listing()

    def peek(self, key: str) -> bytes:
        """What was put under this key, which does not count as a use of it. Raises Damaged, and
        OSError for what cannot be read."""
        if self.folder is None:
            raise FileNotFoundError(key)
        with opened(self.folder) as folder:
            whole = _read(folder, _name(key), is_use=False)
        if whole is None:
            raise Damaged("it is not as Ingot writes files")
        content = whole[_DIGEST_BYTES:]
        if _checksum(key, content) != whole[:_DIGEST_BYTES]:
            raise Damaged("its checksum is not that of what it holds")
        return content

    def remove(self, entries: Sequence[Entry]) -> list[Entry]:
        """Remove files of the store's; returns those that were there. Raises OSError as `listing`
        does, and where one cannot be removed."""
        removed: list[Entry] = []
        if self.folder is None or not entries:
            return removed
        with opened(self.folder) as folder:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed by another process
                    if _is_own(os.stat(entry.name, dir_fd=folder, follow_symlinks=False)):
                        os.unlink(entry.name, dir_fd=folder)
                        removed.append(entry)
        return removed

    # -- how it is done ----------------------------------------------------------------------------

    def _make_room(self, folder: int, size: int) -> None:
        if self._room <= 0 or self._room_bytes < size:
            listing = _listing(folder)
            _remove_abandoned(folder, listing.partial)
            entries = list(listing.entries)
            total = sum(map(attrgetter("size"), entries))
            if len(entries) >= self.most_files or total + size > self.most_bytes:
                most = self.most_files // 2, min(self.most_bytes // 2, self.most_bytes - size)
                while entries and (len(entries) > most[0] or total > most[1]):
                    oldest = entries.pop(0)
                    total -= oldest.size
                    with suppress(FileNotFoundError):  # removed by another process
                        os.unlink(oldest.name, dir_fd=folder)
            self._room = self.most_files - len(entries)
            self._room_bytes = self.most_bytes - total
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


def _read(folder: int, name: str, is_use: bool = True) -> bytes | None:
    """What a file holds; None for what is none of the store's. It is touched where this is a
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
        if is_use:
            with suppress(OSError):
                os.utime(handle)
        return file.read(MOST_BYTES)


def _write(folder: int, name: str, whole: bytes) -> None:
    """Put a file in the place of one of the store's, or where there is none."""
    with suppress(FileNotFoundError):
        if not _is_own(os.stat(name, dir_fd=folder, follow_symlinks=False)):
            raise OSError("a file there is none of Ingot's")
    partial = f".{os.urandom(16).hex()}.part"
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


def _listing(folder: int) -> Listing:
    """What a folder holds."""
    entries: list[Entry] = []
    partial: list[Entry] = []
    foreign: list[str] = []
    with os.scandir(folder) as found:
        for each in found:
            name, is_partial = each.name, _PARTIAL.fullmatch(each.name)
            with suppress(FileNotFoundError):  # removed by another process
                facts = each.stat(follow_symlinks=False)
                if not (is_partial or _ENTRY.fullmatch(name)) or not _is_own(facts):
                    foreign.append(name)
                    continue
                entry = Entry(facts.st_mtime, name, facts.st_size)
                (partial if is_partial else entries).append(entry)
    return Listing(tuple(sorted(entries)), tuple(sorted(partial)), tuple(sorted(foreign)))


def _remove_abandoned(folder: int, partial: Iterable[Entry]) -> None:
    """Remove what writers that died have left."""
    for entry in partial:
        if entry.last_used < time.time() - ABANDONED:
            with suppress(FileNotFoundError):
                os.unlink(entry.name, dir_fd=folder)


def _checksum(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + content).digest()


@cache
def store_in(name: str) -> Store:
    """The store of this name, one of `KINDS`, in the cache's folder."""
    folder = cache_folder()
    return Store(folder and folder / name)


def cache_folder() -> Path | None:
    """The folder that INGOT_CACHE_DIR names: by default one in the user's own cache; None if it is
    empty, and nothing is kept."""
    folder = os.environ.get("INGOT_CACHE_DIR")
    if folder is None:
        folder = _users_cache()
    return Path(folder) if folder else None


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
