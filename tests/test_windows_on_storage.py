"""as_strided of tensors that the program makes, writes by parts, and writes through the window;
eager is the oracle."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot

BASES: dict[str, Callable[[Tensor], Tensor]] = {
    "computed": lambda a: a * 2,
    "clone of rows": lambda a: a[1:].clone(),
    "clone of a row": lambda a: a[2].clone(),
    "clone of a column": lambda a: a[:, 1].clone(),
    "clone of a transposed": lambda a: a.t().clone(),
    "contiguous of a transposed": lambda a: a.t().contiguous(),
    "clone of a computed row": lambda a: (a * 2)[1].clone(),
    "contiguous of computed columns": lambda a: (a * 2)[:, 1:3].contiguous(),
    "reshaped with a copy": lambda a: a.t().reshape(-1),
    "computed transposed": lambda a: a.t() * 2,
    "flipped": lambda a: a.flip(0),
    "joined": lambda a: torch.cat([a[2:], a[:1]]),
    "expanded": lambda a: a[:1].expand(3, 4).clone(),
    "filled": lambda a: torch.full((3, 4), 2.0),
    "sum": lambda a: a.sum(1),
    "other dtype": lambda a: a.double(),
    "in place": lambda a: a.mul(2).add_(1),
    "out": lambda a: torch.clamp(a, 0, 5, out=torch.empty_like(a)),
    "given": lambda a: a,
    "reshaped": lambda a: (a * 2).view(2, -1),
    "given with an offset": lambda a: a,
    "a view of computed rows": lambda a: (a * 2)[1:],
    "a view of a computed column": lambda a: (a * 2)[:, 1],
}
WRITES: dict[str, Callable[[Tensor], Any]] = {
    "nothing": lambda b: None,
    "all": lambda b: b.mul_(0.5),
    "unsqueezed": lambda b: b.unsqueeze(0).mul_(0.5),
    "rows": lambda b: b[1:].add_(1),
    "transposed": lambda b: b.transpose(0, -1).mul_(0.5),
    "filled": lambda b: b.fill_(7),
    "copied": lambda b: b.copy_(b.flip(0)),
    "a window": lambda b: b.as_strided((2,), (1,)).add_(10),
    "copied steps": lambda b: b.copy_(torch.cat([b, b, b])[::3]),
    "copied transposed": lambda b: b.copy_(
        torch.arange(2.0 * b.numel())[::2].view(b.shape[::-1]).transpose(0, -1)
    ),
}
WINDOWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda b: b.as_strided(b.shape, b.stride()),
    "front": lambda b: b.as_strided((2,), (1,)),
    "gaps": lambda b: b.as_strided((2,), (2,)),
    "other rank": lambda b: b.as_strided((1, 2, 1), (5, 1, 1)),
    "from an offset": lambda b: b.as_strided((2,), (1,), b.storage_offset() + 1),
    "from the first": lambda b: b.as_strided((2,), (1,), 0),
}
USES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "read": lambda w, b: (w + 1, b + 1),
    "returned": lambda w, b: (w, b),
    "written": lambda w, b: (w.mul_(3), b),
    "written and read": lambda w, b: (w.mul_(3) + b.sum(), b * 1),
    "written by parts": lambda w, b: (w[..., :1].zero_(), b, w),
}


def differing(base: str, written: str) -> list[str]:
    """Which windows and uses of them do not give eager's values."""
    different = []
    for k, (window, use) in enumerate(itertools.product(WINDOWS, USES)):
        at, read = WINDOWS[window], USES[use]
        late = k % 2 == 1  # the window is made behind the write, else it is there before

        def program(a: Tensor, at: Any = at, read: Any = read, late: bool = late) -> Any:
            b = BASES[base](a)
            w = None if late else at(b)
            WRITES[written](b)
            return read(at(b) if late else w, b), a

        expected, found = program(_given(base)), ingot.compile(program)(_given(base))
        if not _same(expected, found):
            different.append(f"{window}, {use}, {'late' if late else 'early'}")
        ingot.reset()
    return different


def _given(base: str) -> Tensor:
    first = 4 if base == "given with an offset" else 0
    return torch.arange(16.0 + first)[first:].view(4, 4)


def _same(expected: Any, found: Any) -> bool:
    if isinstance(expected, tuple):
        return all(map(_same, expected, found))
    return torch.equal(expected, found) and expected.stride() == found.stride()


@pytest.mark.parametrize("case", list(itertools.product(BASES, WRITES)), ids=" and ".join)
def test_windows(case):
    assert not differing(*case)
