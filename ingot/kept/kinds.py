"""What people are told of a file of the cache, by its kind, and whether it can be unpacked.

Each kind of `codegen.store.KINDS` has a row in `READERS`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import NamedTuple

from ingot.codegen.store import KINDS, Damaged, Store

Read = Callable[[bytes], str]


class Reader(NamedTuple):
    """`tell` says in a line what a file holds, `unpack` does so when it has unpacked all of it.
    Either raises where it finds something else."""

    tell: Read
    unpack: Read


def told(store: Store, kind: str, key: str) -> str:
    """What can be told of a file. Raises Damaged, and OSError where it cannot be read."""
    return _read(READERS[kind].tell, store.peek(key))


def unpacked_text(store: Store, kind: str, key: str) -> str:
    """The same of a file that can be unpacked. Raises Damaged for one that cannot, too."""
    return _read(READERS[kind].unpack, store.peek(key))


def _read(read: Read, content: bytes) -> str:
    try:
        return read(content)
    except Exception as problem:  # of any kind: it may hold anything
        raise Damaged(f"it cannot be unpacked: {problem}") from problem


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# -- programs --------------------------------------------------------------------------------------


def _tell_program(content: bytes) -> str:
    from ingot.kept.contents import read_contents

    contents = read_contents(content)
    kernels = _counted(contents.kernels, "kernel")
    text = f"{contents.function}  {contents.where}  {kernels}"
    if contents.is_ours:
        return text
    return f"{text}, of torch {contents.torch}"


def _unpack_program(content: bytes) -> str:
    from ingot.kept.contents import count_of, read_contents
    from ingot.kept.format import unpacked

    contents = read_contents(content)
    if contents.is_ours:
        description, code, *_ = unpacked(contents.program)
        if count_of(code) != contents.kernels or not isinstance(description, tuple):
            raise ValueError("its kernels are not those that it names")
        _, objects, images = code
        list(map(_tell_object, objects))
        for image, *_ in images:
            if not image:
                raise ValueError("it has a kernel without an image")
    return _tell_program(content)


# -- the others ------------------------------------------------------------------------------------

_ELF, _MACH_O = b"\x7fELF\x02", b"\xcf\xfa\xed\xfe"
_SECTIONS = struct.Struct("<Q10xHHH")  # of an ELF header, from byte 40


def _tell_object(content: bytes) -> str:
    """An object file is told by its header."""
    if content.startswith(_MACH_O):
        return "Mach-O"
    if not content.startswith(_ELF):
        raise ValueError("it is no object file of 64 bits")
    start, size, count, _ = _SECTIONS.unpack_from(content, 40)
    if start + size * count > len(content):
        raise ValueError("its sections end behind it")
    return f"{count} sections"


def _tell_binary(content: bytes) -> str:
    from ingot.codegen.triton.module import Binary

    facts, _, images = content.partition(b"\n")
    binary, size = Binary.unpacked(content), json.loads(facts)[-1]
    if len(images) < size or not binary.image:
        raise ValueError("its image ends too early")
    return f"{binary.function}  {binary.threads} threads"


def _tell_times(content: bytes) -> str:
    times = json.loads(content)
    if not isinstance(times, list) or not {*map(type, times)} <= {float, type(None)}:
        raise ValueError("it is no list of times")
    return _counted(len(times), "time")


def _tell_package(content: bytes) -> str:
    if len(content) != 32:
        raise ValueError("it is no digest")
    return content.hex()[:12]


def _tell_names(content: bytes) -> str:
    from ingot.kept.varied import names_in

    observed, speculative = names_in(content)
    return ", ".join((*observed, *speculative))


READERS: dict[str, Reader] = {
    "programs": Reader(_tell_program, _unpack_program),
    "llvm": Reader(_tell_object, _tell_object),
    "cpp": Reader(_tell_object, _tell_object),
    "triton": Reader(_tell_binary, _tell_binary),
    "tuned": Reader(_tell_times, _tell_times),
    "package": Reader(_tell_package, _tell_package),
    "varied": Reader(_tell_names, _tell_names),
}
assert READERS.keys() == KINDS.keys()
