"""What the parts of a shared library's driver share: constants of the module, and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ingot.errors import ExportError

_CODES = {
    **dict.fromkeys((torch.int8, torch.int16, torch.int32, torch.int64), 0),
    **dict.fromkeys((torch.uint8, torch.uint16, torch.uint32, torch.uint64), 1),
    **dict.fromkeys((torch.float16, torch.float32, torch.float64), 2),
    torch.bfloat16: 4,
    **dict.fromkeys((torch.complex64, torch.complex128), 5),
    torch.bool: 6,
}


def dtype_number(dtype: torch.dtype) -> int:
    """DLPack's code, bits and lanes of a dtype, as the 32 bits that they are."""
    if dtype not in _CODES:
        raise ExportError(f"ingot.export: DLPack has no {dtype}, which a library would take")
    return _CODES[dtype] | 8 * dtype.itemsize << 8 | 1 << 16


class Tables:
    """Constants of the module, each there once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[Any, str] = {}

    def add(self, name: str, text: str) -> None:
        """A text with a name."""
        content = text.encode() + b"\0"
        escaped = "".join(f"\\{byte:02x}" for byte in content)
        self.lines.append(f'@{name} = private constant [{len(content)} x i8] c"{escaped}"')

    def text(self, text: str) -> str:
        return self._named(text, lambda name: self.add(name, text))

    def numbers(self, numbers: Iterable[int]) -> str:
        """An array of integers."""
        row = tuple(numbers)

        def add(name: str) -> None:
            listed = ", ".join(map("i64 {}".format, row))
            self.lines.append(f"@{name} = private constant [{len(row)} x i64] [{listed}]")

        return self._named(row, add)

    def _named(self, key: Any, add: Callable[[str], None]) -> str:
        if key not in self._known:
            name = f"table{len(self._known)}"
            add(name)
            self._known[key] = f"@{name}"
        return self._known[key]
