"""Compiled code that outlives its process: one file for each piece, in a folder that is the user's own.

A file is its checksum and what it holds. It is written apart and then renamed, so that whoever reads it finds the whole
of it or nothing, however many processes write.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

log = logging.getLogger("ingot")

MOST_FILES = 4096  # a folder with more loses those that nobody used for the longest time, down to half of this
_SUFFIX = ".code"


class Store:
    """Bytes by their keys, in `folder`. What cannot be read or written is as if it was not there; `folder` may be
    None, and must otherwise belong to the user, and to no one else."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder if folder is not None and _is_private(folder) else None
        self._room: int | None = None  # how many files may be written before they are counted again

    def get(self, key: str) -> bytes | None:
        """What was put under this key, or None. A damaged file is removed."""
        if self._folder is None:
            return None
        path = self._folder / (key + _SUFFIX)
        try:
            whole = path.read_bytes()
        except OSError:
            return None
        size = hashlib.sha256().digest_size
        content = whole[size:]
        if _checksum(key, content) != whole[:size]:
            log.warning("%s is damaged, and is made again", path)
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return content

    def put(self, key: str, content: bytes) -> None:
        if self._folder is None:
            return
        try:
            self._make_room(self._folder)
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
                try:
                    file.write(_checksum(key, content) + content)
                    file.close()
                    os.replace(file.name, self._folder / (key + _SUFFIX))
                except OSError:
                    os.unlink(file.name)
                    raise
        except OSError as problem:
            log.warning("compiled code is not kept: %s", problem)
            self._folder = None

    def _make_room(self, folder: Path) -> None:
        if not self._room:
            files = sorted(folder.iterdir(), key=_last_use)
            dead = files[: len(files) - MOST_FILES // 2] if len(files) >= MOST_FILES else []
            for path in dead:
                path.unlink(missing_ok=True)
            self._room = MOST_FILES - len(files) + len(dead)
        self._room -= 1


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed by another process
        return 0.0


def _checksum(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + content).digest()


def _is_private(folder: Path) -> bool:
    """Whether a folder is there, or can be made, that nobody else can write into."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as problem:
        log.warning("compiled code is not kept: %s", problem)
        return False
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        log.warning("compiled code is not kept: others may write into %s", folder)
        return False
    return True


@cache
def store_in(name: str) -> Store:
    """The store of this name in the folder that INGOT_CACHE_DIR names, by default one in the user's own cache; if it
    is empty, nothing is kept."""
    given = os.environ.get("INGOT_CACHE_DIR")
    if given is None:
        try:
            given = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        except RuntimeError:  # the user has no home
            return Store(None)
        given = str(Path(given) / "ingot")
    return Store(Path(given) / name if given else None)
