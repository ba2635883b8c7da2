"""An object file that has nothing but bytes under one name, for a linker.

ELF for 64 bits, little-endian: a header, the section `.rodata` with the bytes, a table of two
symbols, two tables of names, and the headers of these sections. The bytes are written as they come,
so that gigabytes of weights need no memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, BinaryIO

MACHINES = {"x86_64": 62, "aarch64": 183}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NAMES = b"\0.rodata\0.symtab\0.strtab\0.shstrtab\0"
_ALIGNMENT = 64
_HIDDEN = 2


def write_object(file: BinaryIO, machine: str, name: str, chunks: Iterable[Any]) -> None:
    """Writes an object file for a machine whose symbol `name` is where the bytes begin."""
    file.write(b"\0" * _ALIGNMENT)  # of the header, which is written last
    for chunk in chunks:
        file.write(chunk)
    end = file.tell()
    texts = b"\0" + name.encode() + b"\0"
    symbols = bytes(_SYMBOL.size) + _SYMBOL.pack(1, 1 << 4 | 1, _HIDDEN, 1, 0, end - _ALIGNMENT)
    rows = [
        (0, 0, 0, 0, 0, 0, 0, 0),
        (_name(".rodata"), 1, 2, _ALIGNMENT, end - _ALIGNMENT, 0, 0, 64),
    ]
    for title, kind, content, link, info in (
        (".symtab", 2, symbols, 3, 1),
        (".strtab", 3, texts, 0, 0),
        (".shstrtab", 3, _NAMES, 0, 0),
    ):
        file.write(b"\0" * (-file.tell() % 8))
        rows.append((_name(title), kind, 0, file.tell(), len(content), link, info, 8))
        file.write(content)
    file.write(b"\0" * (-file.tell() % 8))
    start = file.tell()
    for title_at, kind, flags, offset, size, link, info, alignment in rows:
        entry = _SYMBOL.size if kind == 2 else 0
        file.write(
            _SECTION.pack(title_at, kind, flags, 0, offset, size, link, info, alignment, entry)
        )
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = (1, MACHINES[machine], 1, 0, 0, start, 0, _HEADER.size, 0, 0, _SECTION.size, len(rows))
    file.seek(0)
    file.write(_HEADER.pack(identity, *header, len(rows) - 1))


def _name(title: str) -> int:
    """Where the name of a section is in the table of names."""
    return _NAMES.index(title.encode() + b"\0")
