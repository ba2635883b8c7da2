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
