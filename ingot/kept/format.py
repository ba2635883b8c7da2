"""Plain values as bytes: numbers, texts, tuples and lists of these, and what torch's types are
made of.

Each value is a letter and what belongs to it. Nothing that is read is run: a function stands there
by its name, and only those of torch, Ingot and Python's library are found.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.kept.names import NotKept, name_of, named

_INT, _FLOAT, _COUNT = struct.Struct("<q"), struct.Struct("<d"), struct.Struct("<I")
_MOST_BYTES = 1 << 16
"""Of a tensor that is kept with a program."""


class Named:
    """Stands for a function or class in what is packed, by its name."""

    __slots__ = ("thing",)

    def __init__(self, thing: Any) -> None:
        self.thing = thing


def packed(value: Any) -> bytes:
    """The bytes of a value. Raises NotKept for one that has none."""
    pieces: list[bytes] = []
    _pack(value, pieces.append)
    return b"".join(pieces)


def _pack(value: Any, write: Callable[[bytes], None]) -> None:
    kind = type(value)
    pack = _PACK.get(kind)
    if pack is not None:
        pack(value, write)
    elif isinstance(value, type):
        write(b"N" + _text(name_of(value)))
    else:
        raise NotKept(f"a {kind.__name__} is part of it")


def _pack_items(value: Sequence[Any], write: Callable[[bytes], None]) -> None:
    write((b"L" if type(value) is list else b"U") + _COUNT.pack(len(value)))
    for item in value:
        pack = _PACK.get(type(item), _pack)
        pack(item, write)


def _text(text: str) -> bytes:
    whole = text.encode("utf-8", "surrogatepass")
    return _COUNT.pack(len(whole)) + whole


def _pack_int(value: int, write: Callable[[bytes], None]) -> None:
    if -(1 << 63) <= value < 1 << 63:
        write(b"i" + _INT.pack(value))
    else:
        write(b"I" + _text(hex(value)))


def _pack_tensor(tensor: torch.Tensor, write: Callable[[bytes], None]) -> None:
    is_plain = tensor.layout is torch.strided and not tensor.requires_grad
    is_plain = is_plain and tensor.device.type == "cpu" and tensor.is_contiguous()
    if not is_plain or tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
        raise NotKept("a tensor that is not plain is part of it")
    size = tensor.numel() * tensor.element_size()
    if size > _MOST_BYTES:
        raise NotKept(f"a constant tensor of {size} bytes is part of it")
    write(b"t")
    _pack((tensor.dtype, tuple(tensor.shape)), write)
    data = tensor.reshape(-1).view(torch.uint8) if size else tensor.new_empty(0, dtype=torch.uint8)
    write(_COUNT.pack(size) + bytes(data.tolist()))


_PACK: dict[type, Callable[[Any, Callable[[bytes], None]], None]] = {
    **dict.fromkeys((tuple, list, torch.Size), _pack_items),
    torch.Tensor: _pack_tensor,
    type(None): lambda value, write: write(b"n"),
    bool: lambda value, write: write(b"T" if value else b"F"),
    int: _pack_int,
    float: lambda value, write: write(b"f" + _FLOAT.pack(value)),
    complex: lambda value, write: write(b"c" + _FLOAT.pack(value.real) + _FLOAT.pack(value.imag)),
    str: lambda value, write: write(b"s" + _text(value)),
    bytes: lambda value, write: write(b"b" + _COUNT.pack(len(value)) + value),
    Named: lambda value, write: write(b"N" + _text(name_of(value.thing))),
    torch.dtype: lambda value, write: write(b"d" + _text(str(value))),
    torch.layout: lambda value, write: write(b"d" + _text(str(value))),
    torch.memory_format: lambda value, write: write(b"d" + _text(str(value))),
    torch.device: lambda value, write: write(b"D" + _text(str(value))),
}


def unpacked(content: bytes) -> Any:
    """The value of these bytes. Raises NotKept for bytes that are none of `packed`'s."""
    try:
        value, end = _unpack(memoryview(content), 0)
    except (IndexError, KeyError, ValueError, AttributeError, TypeError, struct.error) as error:
        raise NotKept(f"it cannot be read: {error}") from error
    if end != len(content):
        raise NotKept("it cannot be read: there is more than a value")
    return value


def _unpack(content: memoryview, at: int) -> tuple[Any, int]:
    kind = content[at]
    at += 1
    if kind in _WORDS:
        return _WORDS[kind], at
    if kind == _ORD["i"]:
        return _INT.unpack_from(content, at)[0], at + 8
    if kind == _ORD["f"]:
        return _FLOAT.unpack_from(content, at)[0], at + 8
    if kind == _ORD["c"]:
        parts = _FLOAT.unpack_from(content, at)[0], _FLOAT.unpack_from(content, at + 8)[0]
        return complex(*parts), at + 16
    if kind == _ORD["t"]:
        return _unpack_tensor(content, at)
    (count,) = _COUNT.unpack_from(content, at)
    at += 4
    if kind in _SEQUENCES:
        items = []
        for _ in range(count):
            item, at = _unpack(content, at)
            items.append(item)
        return _SEQUENCES[kind](items), at
    whole = bytes(content[at : at + count])
    if len(whole) != count:
        raise ValueError("it ends too early")
    return _TEXTS[kind](whole), at + count


def _unpack_tensor(content: memoryview, at: int) -> tuple[torch.Tensor, int]:
    (dtype, sizes), at = _unpack(content, at)
    (count,) = _COUNT.unpack_from(content, at)
    at += 4
    tensor = torch.empty(sizes, dtype=dtype, device="cpu")
    if tensor.numel() * tensor.element_size() != count or at + count > len(content):
        raise ValueError("a tensor of another size")
    if count:
        data = torch.frombuffer(bytearray(content[at : at + count]), dtype=torch.uint8)
        tensor.view(-1).view(torch.uint8).copy_(data)
    return tensor, at + count


def _of_torch(name: str) -> Any:
    thing = getattr(torch, name.removeprefix("torch."))
    if not isinstance(thing, (torch.dtype, torch.layout, torch.memory_format)):
        raise ValueError(f"{name} is no dtype, layout or memory format")
    return thing


def _decoded(whole: bytes) -> str:
    return whole.decode("utf-8", "surrogatepass")


_ORD = dict(zip("ifct", b"ifct"))
_WORDS = {ord("n"): None, ord("T"): True, ord("F"): False}
_SEQUENCES: dict[int, Callable[[list[Any]], Any]] = {ord("U"): tuple, ord("L"): list}
_TEXTS: dict[int, Callable[[bytes], Any]] = {
    ord("s"): _decoded,
    ord("b"): bytes,
    ord("I"): lambda whole: int(_decoded(whole), 16),
    ord("d"): lambda whole: _of_torch(_decoded(whole)),
    ord("D"): lambda whole: torch.device(_decoded(whole)),
    ord("N"): lambda whole: named(_decoded(whole)),
}
