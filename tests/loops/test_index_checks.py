"""What a kernel raises for an index out of range is what eager raises: the class, and the text but for the index.

Behind an op with an effect, which would have it again, nothing is run again in eager: the kernel's own error comes out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from tests.effectful_ops import noted


def along(x: Tensor, i: Tensor, d: int) -> Tensor:
    """An index of the same rank."""
    sizes = [1] * x.dim()
    sizes[d] = -1
    return i.long().reshape(sizes).expand([*x.shape[:d], i.numel(), *x.shape[d + 1 :]])


def rows(x: Tensor, i: Tensor, d: int) -> Tensor:
    return x.new_ones([*x.shape[:d], i.numel(), *x.shape[d + 1 :]])


def at(x: Tensor, i: Tensor, d: int) -> Tensor:
    return x[(slice(None),) * d + (i,)]


CALLS: dict[str, Callable[[Tensor, Tensor, int], Any]] = {
    "index_select": lambda x, i, d: x.index_select(d, i),
    "gather": lambda x, i, d: x.gather(d, along(x, i, d)),
    "take_along_dim": lambda x, i, d: x.take_along_dim(along(x, i, d), d),
    "getitem": at,
    "getitem of two": lambda x, i, d: x[i, i % 2] if x.dim() > 1 else x[i],
    "getitem behind one": lambda x, i, d: x[i % 2, ..., i] if x.dim() > 1 else x[i],
    "embedding": lambda x, i, d: F.embedding(i, x),
    "index_put": lambda x, i, d: x.index_put((i,), x.new_ones(())),
    "index_put, accumulating": lambda x, i, d: x.index_put((i,), x.new_ones(()), accumulate=True),
    "setitem": lambda x, i, d: x.clone().__setitem__((slice(None),) * d + (i,), 1),
    "put": lambda x, i, d: x.put(i, x.new_ones(i.shape)),
    "put, accumulating": lambda x, i, d: x.put(i, x.new_ones(i.shape), accumulate=True),
    "index_add": lambda x, i, d: x.index_add(d, i, rows(x, i, d)),
    "index_add with alpha": lambda x, i, d: x.index_add(d, i, rows(x, i, d), alpha=2),
    "index_copy": lambda x, i, d: x.index_copy(d, i, rows(x, i, d)),
    "index_fill": lambda x, i, d: x.index_fill(d, i, 3),
    "index_reduce": lambda x, i, d: x.index_reduce(d, i, rows(x, i, d), "amax"),
    "index_reduce of means": lambda x, i, d: x.index_reduce(d, i, rows(x, i, d), "mean"),
    "index_reduce without self": lambda x, i, d: x.index_reduce(d, i, rows(x, i, d), "prod", include_self=False),
    "scatter": lambda x, i, d: x.scatter(d, along(x, i, d), 3),
    "scatter of a tensor": lambda x, i, d: x.scatter(d, along(x, i, d), rows(x, i, d)),
    "scatter_add": lambda x, i, d: x.scatter_add(d, along(x, i, d), rows(x, i, d)),
    "scatter_reduce": lambda x, i, d: x.scatter_reduce(d, along(x, i, d), rows(x, i, d), "mean"),
    "index_reduce of index_select": lambda x, i, d: x.index_reduce(d, i, x.index_select(d, i), "mean"),
    "index_add of gather": lambda x, i, d: x.index_add(d, i, x.gather(d, along(x, i, d))),
    "index_copy of getitem": lambda x, i, d: x.index_copy(d, i, at(x, i, d)),
    "scatter of index_select": lambda x, i, d: x.scatter(d, along(x, i, d), x.index_select(d, i)),
}
SHAPES = [((5,), 0), ((5, 4), 0), ((4, 5), 1), ((2, 5, 3), 1), ((2, 3, 5), 2)]
INDICES = [[7], [-1], [-6, 0], [1, 5], [0, 1]]


def outcome(function: Callable[..., Any], *args: Any) -> str:
    try:
        function(*args)
    except Exception as error:
        text = str(error).partition("\n")[0]
        text = re.sub(r"index -?\d+ is out", "index out", text)
        text = re.sub(r"an? index on|index -?\d+ on", "an index on", text)
        return f"{type(error).__name__}: {re.sub(', id=.*', '', text)}"
    return "nothing"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("call", CALLS)
def test_an_index_out_of_range(call: str, dtype: torch.dtype) -> None:
    """For each shape, dimension, type of index and index: an error as in eager, or none."""

    def differs(x: Tensor, d: int, i: Tensor) -> Any:
        def program(x: Tensor, i: Tensor) -> Any:
            noted(x)
            return CALLS[call](x, i, d), x + 1

        with torch.no_grad():
            expected = outcome(program, x, i)
            found = outcome(ingot.compile(program), x, i)
        return () if found == expected else (tuple(x.shape), d, i, found, expected)

    found = []
    for (shape, d), of, index in itertools.product(SHAPES, (torch.int64, torch.int32), INDICES):
        x = torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape)
        found.append(differs(x, d, torch.tensor(index, dtype=of)))
    assert [case for case in found if case] == []
