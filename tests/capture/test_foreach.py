"""Operations of lists of tensors: one graph, eager's results, structure and effects."""

from __future__ import annotations

import pytest
import torch

import ingot
from tests.oracle import Close, assert_call, assert_near

SHAPES = [(4, 3), (5,), (), (2, 1, 3)]
UNARY = """
abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg
reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
""".split()


def lists(count: int) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        [torch.rand(shape, generator=generator) * 0.8 + 0.1 for shape in SHAPES]
        for _ in range(count)
    ]


def assert_foreach(fn, *args):
    """`fn` compiled as one graph does what it does in eager."""
    assert_call(ingot.compile(fn, fullgraph=True), fn, *args, numbers=Close(2e-5, 1e-5))


@pytest.mark.parametrize("name", [f"_foreach_{name}{end}" for name in UNARY for end in ("", "_")])
def test_of_one_list(name):
    assert_foreach(lambda xs: getattr(torch, name)(xs), lists(1)[0])


@pytest.mark.parametrize("end", ["", "_"])
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "pow", "clamp_min", "clamp_max", "maximum", "minimum"]
)
def test_of_two(name, end):
    function = getattr(torch, f"_foreach_{name}{end}")
    xs, ys = lists(2)
    assert_foreach(lambda xs, ys: function(xs, ys), xs, ys)
    assert_foreach(lambda xs: function(xs, 0.5), lists(1)[0])
    assert_foreach(lambda xs: function(xs, [0.5, 2.0, 3.0, 0.25]), lists(1)[0])


@pytest.mark.parametrize("end", ["", "_"])
def test_with_a_factor(end):
    xs, ys, zs = lists(3)
    add, lerp = getattr(torch, f"_foreach_add{end}"), getattr(torch, f"_foreach_lerp{end}")
    assert_foreach(lambda xs, ys: add(xs, ys, alpha=0.3), xs, ys)
    assert_foreach(lambda xs, ys: lerp(xs, ys, 0.7), *lists(2))
    assert_foreach(lambda xs, ys, zs: lerp(xs, ys, zs), *lists(3))
    for name in ("addcmul", "addcdiv"):
        function = getattr(torch, f"_foreach_{name}{end}")
        assert_foreach(lambda xs, ys, zs, function=function: function(xs, ys, zs), *lists(3))
        assert_foreach(lambda xs, ys, zs, function=function: function(xs, ys, zs, 0.3), *lists(3))
        assert_foreach(
            lambda xs, ys, zs, function=function: function(xs, ys, zs, value=0.3), *lists(3)
        )
        assert_foreach(
            lambda xs, ys, zs, function=function: function(xs, ys, zs, [1.0, 2.0, 3.0, 4.0]),
            *lists(3),
        )


def test_the_rest():
    assert_foreach(lambda xs: torch._foreach_pow(2.0, xs), lists(1)[0])
    assert_foreach(lambda xs: torch._foreach_norm(xs), lists(1)[0])
    assert_foreach(lambda xs: torch._foreach_norm(xs, ord=float("inf")), lists(1)[0])
    assert_foreach(lambda xs: torch._foreach_norm(xs, 1.0, dtype=torch.float64), lists(1)[0])
    assert_foreach(lambda xs: torch._foreach_zero_(xs), lists(1)[0])
    assert_foreach(lambda xs, ys: torch._foreach_copy_(xs, ys), *lists(2))
    assert_foreach(lambda xs: torch._foreach_mul(xs, torch.tensor(3.0)), lists(1)[0])


def test_what_is_returned_in_place_is_the_list_itself():
    def fn(xs):
        return torch._foreach_add_(xs, 1) is xs

    assert ingot.compile(fn, fullgraph=True)(lists(1)[0]) == fn(lists(1)[0])


def test_a_number_that_is_not_known():
    def fn(xs, ys, t):
        scales = [t.item() / 4.0, -t.item()]
        torch._foreach_addcdiv_(xs[:2], ys[:2], ys[:2], scales)
        torch._foreach_addcmul_(xs[:2], ys[:2], ys[:2], scales)
        torch._foreach_mul_(xs, scales[0])
        torch._foreach_sub_(xs, ys, alpha=scales[1])
        return torch._foreach_lerp(xs, ys, scales[0])

    xs, ys = lists(2)
    compiled = ingot.compile(fn, fullgraph=True)
    for value in (0.5, 1.5, -3.0):
        t = torch.tensor(value)
        mine, its = [x.clone() for x in xs], [x.clone() for x in xs]
        assert_near(compiled(mine, ys, t), fn(its, ys, t))
        assert_near(mine, its)


def test_errors_are_eagers():
    def fn(xs, ys):
        return torch._foreach_add(xs, ys)

    xs, ys = lists(2)
    with pytest.raises(RuntimeError) as expected:
        fn(xs, ys[:2])
    with pytest.raises(RuntimeError) as found:
        ingot.compile(fn)(xs, ys[:2])
    assert str(found.value) == str(expected.value)


def test_groups_by_dtype():
    def fn(xs, ys):
        groups = torch._C._group_tensors_by_device_and_dtype([xs, ys, []], True)
        return {key: (lists, where) for key, (lists, where) in groups.items()}

    xs = [torch.ones(2), torch.ones(3, dtype=torch.float64), torch.ones(4)]
    ys = [x * 2 for x in xs]
    found, expected = ingot.compile(fn, fullgraph=True)(xs, ys), fn(xs, ys)
    assert found.keys() == expected.keys()
    for key in expected:
        assert_near(found[key], expected[key])
