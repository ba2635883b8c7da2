"""Tensors by name in the published layout of safetensors.

Eight bytes say how long the header is; then come the header in JSON, and the elements, one tensor
after the other.
Written and read here, as the layout is simpler than a dependency: any reader of safetensors reads
what is written. Tensors are read as windows on the bytes, which stay where they are.
"""

from __future__ import annotations

import ctypes
import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ingot.errors import ArtifactError

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 64
_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def has_name(dtype: torch.dtype) -> bool:
    """Whether tensors of this dtype can be written."""
    return dtype in _NAMES


def dumped(tensors: Mapping[str, Tensor]) -> Iterator[Any]:
    """The bytes of tensors of a CPU, piece by piece, windows on them where they are contiguous.

    Those of larger elements come first, so that all are aligned as their elements want.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, end = {}, 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGNMENT)
    yield _LENGTH.pack(len(text)) + text
    for name in names:
        yield from bytes_of(tensors[name])


def bytes_of(tensor: Tensor) -> Iterator[Any]:
    """The bytes of a tensor of a CPU, if it has any: a window on it where it is contiguous."""
    whole = tensor.contiguous()
    count = whole.numel() * whole.element_size()
    if count:
        memory = memoryview((ctypes.c_char * count).from_address(whole.data_ptr())).cast("B")
        yield memory if tensor.is_contiguous() else bytes(memory)  # a copy dies with this step


def windows(content: memoryview, where: str) -> dict[str, Tensor]:
    """The tensors in these bytes, which must be writable; they keep them alive.

    Raises ArtifactError, which says `where`, for bytes that are not in the layout.
    """
    try:
        return dict(_windows(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as why:
        raise ArtifactError(f"{where}: the weights cannot be read: {why}") from None


def _windows(content: memoryview) -> Iterator[tuple[str, Tensor]]:
    (length,) = _LENGTH.unpack_from(content)
    start = _LENGTH.size + length
    if start > len(content):
        raise ValueError("the header is longer than the file")
    header = json.loads(bytes(content[_LENGTH.size : start]))
    for name, row in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, (begin, end) = _DTYPES[row["dtype"]], row["shape"], row["data_offsets"]
        count = math.prod(shape)
        lies_inside = 0 <= begin <= end <= len(content) - start
        if not lies_inside or min(shape, default=0) < 0 or count * dtype.itemsize != end - begin:
            raise ValueError(f"the place of {name!r} is not as large as its shape")
        if count == 0:
            yield name, torch.empty(shape, dtype=dtype)
            continue
        at = start + begin
        if at % dtype.itemsize:  # by another writer
            piece = bytearray(content[at : start + end])
            yield name, torch.frombuffer(piece, dtype=dtype).view(shape)
            continue
        flat = torch.frombuffer(content, dtype=dtype, count=count, offset=at)
        yield name, flat.view(shape)
