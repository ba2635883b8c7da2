"""The file of an artifact: a head, and sections of bytes with their checksums.

=========  =================================================================================
8 bytes    MAGIC
u32        FORMAT, little-endian as all numbers
u32        the length of the table of sections
32 bytes   SHA-256 of that table
table      `kept.format.packed` of ((name, offset, length, SHA-256 of the section), ...)
sections   each at a multiple of ALIGNMENT
=========  =================================================================================

A file is written apart and then renamed, so that a reader finds the whole of it. It is mapped into
memory, not read: of weights that nobody uses nothing is loaded. A section is compared with its
checksum before anything in it is looked at.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from ingot.errors import ArtifactError
from ingot.kept.format import packed, unpacked
from ingot.kept.names import NotKept

MAGIC = b"\x89INGOT\r\n"
FORMAT = 2
"""Of the sections, and of the description of programs in them (see `runtime/description.py`);
another one where an older Ingot would misread a file."""

ALIGNMENT = 64
_HEAD = struct.Struct("<8sII32s")

Chunks = Iterable[Any]
"""Pieces of a section, each an object with bytes in it."""


def write(path: str | os.PathLike[str], sections: Mapping[str, Chunks]) -> None:
    """Writes a file of these sections, in place of what is there. Raises OSError."""
    path = os.fspath(path)
    part = f"{path}.{secrets.token_hex(8)}.part"
    rows = []
    for name in sections:
        rows.append((name, 0, 0, b"\0" * 32))
    table_bytes = len(packed(tuple(rows)))
    try:
        with open(part, "wb") as file:
            file.seek(_HEAD.size + table_bytes)
            for k, (name, chunks) in enumerate(sections.items()):
                file.write(b"\0" * (-file.tell() % ALIGNMENT))
                start, digest = file.tell(), hashlib.sha256()
                for chunk in chunks:
                    digest.update(chunk)
                    file.write(chunk)
                rows[k] = (name, start, file.tell() - start, digest.digest())
            table = packed(tuple(rows))
            assert len(table) == table_bytes
            file.seek(0)
            file.write(_HEAD.pack(MAGIC, FORMAT, len(table), hashlib.sha256(table).digest()))
            file.write(table)
        os.replace(part, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


class Container:
    """A file that `write` made, mapped privately: what is written to its memory stays here.

    Raises ArtifactError for a file that is none, is damaged or is of another format, and OSError
    where it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with open(self.path, "rb") as file:
            head = file.read(_HEAD.size)
            if head[: len(MAGIC)] != MAGIC:
                raise self.refused("it is no artifact that ingot.export has written")
            if len(head) < _HEAD.size:
                raise self.refused("it ends too early: copy it again")
            _, number, count, digest = _HEAD.unpack(head)
            if number != FORMAT:
                raise self.refused(
                    f"it has format {number}, and this Ingot reads format {FORMAT}: export it again"
                )
            table = file.read(count)
            if hashlib.sha256(table).digest() != digest:
                raise self.damaged("the table of sections")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._rows = {}
        for name, *row in self.unpacked(table):
            self._rows[name] = row

    def refused(self, why: str) -> ArtifactError:
        return ArtifactError(f"ingot.load: {self.path}: {why}")

    def damaged(self, what: str) -> ArtifactError:
        return self.refused(f"{what} is damaged (the checksum differs): copy it again")

    def unpacked(self, content: bytes) -> Any:
        """The value that is packed in some bytes of the file."""
        try:
            return unpacked(content)
        except NotKept as reason:
            raise self.refused(f"{reason}; it may need another torch or Ingot") from None

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def section(self, name: str, check: bool = True) -> memoryview:
        """The bytes of a section, which keep the file mapped."""
        if name not in self._rows:
            raise self.refused(f"it lacks the section {name!r}")
        start, length, digest = self._rows[name]
        content = memoryview(self._map)[start : start + length]
        if len(content) != length:
            raise self.refused("it ends too early: copy it again")
        if check and hashlib.sha256(content).digest() != digest:
            raise self.damaged(f"the section {name!r}")
        return content
