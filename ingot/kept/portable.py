"""The cache as one file, to be carried to other machines: `ingot.save_cache`, `ingot.load_cache`.

The file is a magic and the version of the format, then the entries, then how many they were. An
entry is its kind, its key, its length, a checksum of all three and the content, and the content.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ingot.codegen.store import KINDS, MOST_BYTES, Damaged, Listing, Store, cache_folder
from ingot.errors import CacheError

_MAGIC = b"ingot's cache\n"
_VERSION = 1
_HEAD = struct.Struct("<14sI")
_ENTRY = struct.Struct("<16s32sI32s")
"""Kind, key, length, checksum. One without a kind ends the file: its length is the count."""


class Piece(NamedTuple):
    """What one file of the cache holds."""

    kind: str
    key: str
    content: bytes

    def head(self) -> bytes:
        kind, key, length = self.kind.encode(), bytes.fromhex(self.key), len(self.content)
        return _ENTRY.pack(kind, key, length, self.checksum())

    def checksum(self) -> bytes:
        facts = f"{self.kind}\n{self.key}\n{len(self.content)}\n".encode()
        return hashlib.sha256(facts + self.content).digest()


def save_cache(
    path: str | os.PathLike[str],
    *,
    kinds: Iterable[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> int:
    """Write what the cache of compiled code holds into one file; returns how many pieces it has.

    The file is written apart and renamed, so that `path` is replaced as a whole or not at all.

    kinds: those that are saved, of "programs", "llvm", "cpp", "triton", "tuned" and "package";
        None: all.
    folder: a cache's folder, in place of the one that `INGOT_CACHE_DIR` names.

    Raises ValueError for another kind, `CacheError`, which is a ValueError too, where the cache
    cannot be read, and OSError where the file cannot be written. What is damaged is left out.
    """
    target = Path(path).absolute()
    partial = target.with_name(f".{secrets.token_hex(16)}.part")
    try:
        with open(partial, "xb") as file:
            count = _write(file, _pieces(stores_of(kinds, folder)))
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    return count


def load_cache(
    path: str | os.PathLike[str],
    *,
    kinds: Iterable[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> int:
    """Put what a file of `save_cache` holds into the cache of compiled code; returns how many
    pieces were put there.

    All of the file is checked before any of it is put anywhere. What was made by another version,
    or for another processor, lies under keys that nobody here asks for. The code in the file is
    run, so it is to be trusted as a program is: a checksum shows damage, and no malice.

    kinds: those that are loaded, of "programs", "llvm", "cpp", "triton", "tuned" and "package";
        None: all.
    folder: a cache's folder, in place of the one that `INGOT_CACHE_DIR` names.

    Raises `CacheError`, which is a ValueError, for a file that is damaged, of another version or
    none of Ingot's, and where nothing is kept; OSError where the file cannot be read.
    """
    stores, count = stores_of(kinds, folder), 0
    for store in stores.values():
        listing_of(store)  # of a folder of somebody else's
    with open(path, "rb") as file:
        for _ in _read(file, os.fspath(path)):  # nothing is put before all of it was seen
            pass
        file.seek(0)
        for piece in _read(file, os.fspath(path)):
            if piece.kind in stores:
                count += stores[piece.kind].put(piece.key, piece.content)
    return count


def stores_of(
    kinds: Iterable[str] | None = None, folder: str | os.PathLike[str] | None = None
) -> dict[str, Store]:
    """The stores of a cache by their kinds. Raises ValueError for a kind that there is not, and
    CacheError where nothing is kept."""
    chosen = list(KINDS if kinds is None else kinds)
    for kind in chosen:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of the cache; there are {', '.join(KINDS)}")
    root = cache_folder() if folder is None else Path(folder)
    if root is None:
        raise CacheError("nothing is kept: INGOT_CACHE_DIR is empty, or there is no home folder")
    stores = {}
    for kind in chosen:
        stores[kind] = Store(root / kind)
    return stores


def _pieces(stores: dict[str, Store]) -> Iterator[Piece]:
    """What stores hold, the longest unused first, so that these go first where it is loaded."""
    for kind, store in stores.items():
        for entry in listing_of(store).entries:
            with contextlib.suppress(OSError, Damaged):  # it is gone, or of no use
                yield Piece(kind, entry.key, store.peek(entry.key))


def listing_of(store: Store) -> Listing:
    """What a store's folder holds. Raises CacheError where it cannot be used."""
    try:
        return store.listing()
    except OSError as problem:
        raise CacheError(f"the cache in {store.folder} cannot be used: {problem}") from problem


def _write(file: BinaryIO, pieces: Iterable[Piece]) -> int:
    count = 0
    file.write(_HEAD.pack(_MAGIC, _VERSION))
    for piece in pieces:
        file.write(piece.head())
        file.write(piece.content)
        count += 1
    file.write(_end(count))
    return count


def _read(file: BinaryIO, path: str) -> Iterator[Piece]:
    """The pieces of a file, each one checked. Raises CacheError at the first that is damaged."""
    head = file.read(_HEAD.size)
    if not head.startswith(_MAGIC) or len(head) < _HEAD.size:
        raise CacheError(f"{path} is no file of ingot.save_cache")
    version = _HEAD.unpack(head)[1]
    if version != _VERSION:
        raise CacheError(
            f"{path} has version {version} of the format, and this Ingot reads version {_VERSION}: "
            "save it with the same version"
        )
    count = 0
    while True:
        head = file.read(_ENTRY.size)
        if head == _end(count):
            break
        yield _read_piece(head, file, path)
        count += 1
    if file.read(1):
        raise CacheError(f"{path} is damaged: it does not end behind its last piece")


def _end(count: int) -> bytes:
    """What follows so many pieces."""
    return _ENTRY.pack(b"", bytes(32), count, bytes(32))


def _read_piece(head: bytes, file: BinaryIO, path: str) -> Piece:
    """A piece of this head, whose content comes next in the file."""
    if len(head) < _ENTRY.size:
        raise CacheError(f"{path} is damaged: it ends too early")
    name, key, length, checksum = _ENTRY.unpack(head)
    kind = name.rstrip(b"\0").decode("ascii", "replace")
    if kind not in KINDS or length > MOST_BYTES:
        raise CacheError(f"{path} is damaged: a piece has a kind or size that there is not")
    piece = Piece(kind, key.hex(), file.read(length))
    if len(piece.content) != length or piece.checksum() != checksum:
        raise CacheError(f"{path} is damaged: the checksum of a piece is not that of its content")
    return piece
