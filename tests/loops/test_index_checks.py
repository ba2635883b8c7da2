"""What a kernel raises for an index out of range is what eager raises: the class, and the text but
for the index.

Behind an op with an effect, which would have it again, nothing is run again in eager: the kernel's
own error comes out.
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
    "index_reduce without self": lambda x, i, d: x.index_reduce(
        d, i, rows(x, i, d), "prod", include_self=False
    ),
    "scatter": lambda x, i, d: x.scatter(d, along(x, i, d), 3),
    "scatter of a tensor": lambda x, i, d: x.scatter(d, along(x, i, d), rows(x, i, d)),
    "scatter_add": lambda x, i, d: x.scatter_add(d, along(x, i, d), rows(x, i, d)),
    "scatter_reduce": lambda x, i, d: x.scatter_reduce(d, along(x, i, d), rows(x, i, d), "mean"),
    "index_reduce of index_select": lambda x, i, d: x.index_reduce(
        d, i, x.index_select(d, i), "mean"
    ),
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


@pytest.mark.parametrize("call", CALLS)
def test_an_index_that_the_program_makes_and_a_size_that_comes_to_be_too_small(call: str) -> None:
    """Rows of each width, whole ones and a part of each."""

    def program(x: Tensor) -> Any:
        i = torch.arange(6).flip(0)
        return CALLS[call](x, i, 0), CALLS[call](x[:, 1:].clone(), i, 0)

    for width in (2, 6, 40):
        compiled = ingot.compile(program)
        for rows_ in (7, 6, 5, 2, 9):
            x = torch.arange(float(rows_ * 2 * width)).reshape(rows_, 2, width)
            with torch.no_grad():
                assert outcome(compiled, x) == outcome(program, x), (width, rows_)


# -- within the program's handlers, behind a write to an argument ----------------------------------

WRITES: dict[str, Callable[[Tensor], Any]] = {
    "mul_": lambda v: v.mul_(2),
    "data": lambda v: v.data.mul_(2),
    "copy_": lambda v: v.copy_(torch.arange(3.0)),
    "setitem": lambda v: v.__setitem__(0, 7.0),
    "of a sum": lambda v: v.sub_(v.sum()),
    "twice": lambda v: v.mul_(2).add_(1),
}
READS: dict[str, Callable[[Tensor], Any]] = {
    "nothing": lambda v: 0,
    "gather": lambda v: v.gather(0, torch.zeros(3, dtype=torch.long)),
    "gather what is known only then": lambda v: v.gather(0, (v * 0).long()),
    "sum": lambda v: (v + 1).sum(),
    "index of it": lambda v: v[[2, 1]],
}
FAILING: dict[str, Callable[[Tensor], Any]] = {
    "a list": lambda v: torch.zeros(3)[[2, 3]],
    "a tensor": lambda v: torch.zeros(3)[torch.arange(3) + 1],
    "of what was written": lambda v: v[torch.tensor([3])],
    "by what was written": lambda v: torch.zeros(3)[(v * 0 + 3).long()],
    "scatter": lambda v: torch.zeros(3).scatter(0, torch.tensor([5]), 1.0),
    "nothing fails": lambda v: v[torch.tensor([1])],
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", READS)
def test_an_error_is_handled_behind_a_write(write: str, read: str) -> None:
    """It is found before the argument is written for real, so that eager can do all of it."""

    def result(failing: str, again: bool, wrap: Callable[..., Any]) -> Any:
        def program(v: Tensor) -> Any:
            WRITES[write](v)
            seen = READS[read](v)
            try:
                found: Any = FAILING[failing](v)
            except Exception as error:
                found = type(error).__name__, str(error)
            if again:
                v.add_(3)
            return seen, found

        v = torch.arange(3.0) - 1
        with torch.no_grad():
            function = wrap(program)
            return [function(v), v.clone(), function(v), v]

    for failing, again in itertools.product(FAILING, (False, True)):
        expected = result(failing, again, lambda function: function)
        assert str(result(failing, again, ingot.compile)) == str(expected), failing
