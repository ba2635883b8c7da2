"""Custom ops write in place where nobody reads the old value afterwards."""

from __future__ import annotations

import pytest
import torch

import ingot
from tests.writing_ops import listed, ops, scale, several


def _local(x):
    y = x + 1
    scale(y)
    return y


def _argument(x):
    scale(x)
    return x + 1


def _view_of_an_argument(x):
    scale(x[1])
    scale(x.t()[:2])


def _caches(x):
    keys, values = x.view(2, -1).unbind(0)
    several(keys, values * 2, values)


def _in_a_list(x):
    y = x * 2
    listed([x, y], 3)
    return y


def _itself(x):
    return ops.scale_(x, 2.0)


def _read_before(x):
    total = x.sum()
    scale(x)
    return total


def _read_afterwards(x):
    y = x + 1
    scale(y)
    z = y * 2
    scale(y)
    return y + z


def _uninitialized(x):
    y = torch.empty_like(x)
    several(x, x, y)
    return y


def _old_value_returned(x):
    y = x.sin()
    z = y.clone()
    scale(z)
    return y, z


def _copied_and_returned(x):
    scale(x)
    return x.clone()


KERNELS = {
    _local: 1,
    _argument: 1,
    _view_of_an_argument: 0,
    _caches: 1,
    _in_a_list: 1,
    _itself: 0,
    _read_before: 1,
    _read_afterwards: 3,
    _uninitialized: 0,
    _old_value_returned: 1,  # it writes both
    _copied_and_returned: 1,
}
"""The kernels beside the calls: those of the program, and of copies that are needed."""


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", KERNELS, ids=lambda p: p.__name__[1:])
def test_copies_are_made_where_they_are_needed(program, dynamic):
    x = torch.rand(4, 6)
    report = ingot.explain(ingot.compile(program, dynamic=dynamic))(x.clone())
    assert not report.breaks
    kinds = [kernel.kind for kernel in report.kernels]
    assert kinds.count("fused") == KERNELS[program], kinds
    mine, its = x.clone(), x.clone()
    found, expected = ingot.compile(program, dynamic=dynamic)(mine), program(its)
    torch.testing.assert_close((found, mine), (expected, its))


def _cache(x, at, rows):
    x.index_copy_(0, at, rows)
    return x.sum(0)


def _placed(x, at, rows):
    x[at] = rows
    return x * 2


def _read_before_it_is_written(x, at, rows):
    before = x.sum()
    x[at] = rows
    return before


def _made_of_itself(x, at, rows):
    x[at] = x.flip(0)[: len(at)] + rows
    return x.sum()


def _old_and_new(x, at, rows):
    return x.index_copy(0, at, rows), x * 2


def _new_value_alone(x, at, rows):
    return (x + 1).index_copy(0, at, rows)


def _twice(x, at, rows):
    x[at] = rows
    y = x.sum()
    x[at] = rows * 2
    return y


SCATTERS = {
    _cache: False,
    _placed: False,
    _read_before_it_is_written: True,
    _made_of_itself: True,
    _old_and_new: False,
    _new_value_alone: False,
    _twice: False,
}
"""Programs that write rows at places which a tensor names, and whether they need memory of
the size of all rows beside inputs and results."""


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", SCATTERS, ids=lambda p: p.__name__[1:])
def test_rows_are_replaced_where_they_lie(program, dynamic):
    x, at, rows = torch.rand(512, 40), torch.tensor([3, 500]), torch.rand(2, 40)
    mine, its = x.clone(), x.clone()
    compiled = ingot.compile(program, dynamic=dynamic)
    found, expected = compiled(mine, at, rows), program(its, at, rows)
    torch.testing.assert_close((found, mine), (expected, its))
    report = ingot.explain(ingot.compile(program, dynamic=dynamic))(x.clone(), at, rows)
    assert not report.breaks
    if dynamic is None:  # of sizes that are symbols, a copy may be made
        assert ((report.arena_bytes or 0) >= x.nbytes) is SCATTERS[program], report.arena_bytes


def test_an_index_out_of_range_is_an_error():
    x, rows = torch.rand(8, 4), torch.rand(1, 4)
    compiled = ingot.compile(_cache)
    compiled(x, torch.tensor([2]), rows)
    before = x.clone()
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([8]), rows)
    assert torch.equal(x, before)
