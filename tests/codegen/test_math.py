"""Vector math over the floats' whole range, thinner than `python -m tests.codegen.sweep_math` does
it."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch

import ingot
from ingot.codegen.llvm.module import compile_kernels
from ingot.codegen.llvm.target import named
from ingot.loops import ops
from tests.codegen.harness import flat, launch
from tests.codegen.sweep_math import BINARY, UNARY, Worst, pairs, single_arguments, sweep, units


@pytest.mark.parametrize("name", UNARY)
def test_functions_are_as_accurate_as_eagers(name: str) -> None:
    found = sweep(UNARY[name], single_arguments(every=65521, start=17, near=40))
    assert found.passes, found
    assert found.is_native


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_are_as_accurate_as_eagers(name: str) -> None:
    found = sweep(BINARY[name], pairs(20_000))
    assert found.passes, found
    assert found.is_native


def test_units_in_the_last_place() -> None:
    exact = torch.tensor(
        [1.0, 1.0, 2.0, 0.0, torch.inf, torch.nan, 1.0, 2.0**128], dtype=torch.float64
    )
    found = torch.tensor(
        [1.0, 1.0 + 2**-23, 2.0 - 2**-23, 2.0**-149, torch.inf, torch.nan, torch.nan, 3.4028235e38]
    )
    assert units(found, exact).tolist() == [0, 1, 0.5, 1, 0, 0, torch.inf, 1]
    assert str(Worst(1.5, (0.1,))) == "1.5 at 0.1"


@pytest.mark.parametrize("name", ["exp", "exp2", "sigmoid"])
def test_what_is_masked_vanishes(name: str) -> None:
    """(How long it takes is in `benchmarks.sweep`.)"""
    function = getattr(torch, name)
    far = torch.inf if name == "sigmoid" else -torch.inf
    masked = torch.where(torch.arange(1 << 10) % 3 == 0, far, torch.randn(1 << 10))
    with torch.no_grad():
        torch.testing.assert_close(
            ingot.compile(lambda x: function(x) + 1)(masked), function(masked) + 1
        )


def test_huge_angles_are_looked_after_once() -> None:
    """However many sines a kernel takes, and however many copies of each, one function calls the C
    library's."""

    def calls(function: Callable[[torch.Tensor], torch.Tensor]) -> int:
        return (
            ingot.explain(ingot.compile(function))(torch.randn(1000))
            .stage("assembly")
            .count("sinf")
        )

    assert calls(lambda x: x.sin()) == calls(lambda x: x.sin() + (2 * x).sin() * (3 * x).sin()) > 0


@pytest.mark.parametrize("name", ["sqrt", "rsqrt"])
def test_roots_are_those_of_the_instruction(name: str) -> None:
    """Also where they are made of an estimate: on processors whose instruction is slow."""
    bits = torch.arange(-(2**31), 2**31, 4093).to(torch.int32)
    edges = torch.tensor([0, 1, 0x7FFFFF, 0x197FFFFF, 0x19800000, 0x7F7FFFFF, 0x7F800000, -(2**31)])
    x = torch.cat([bits, edges.to(torch.int32), torch.zeros(9, dtype=torch.int32)])
    x = x.view(torch.float32)
    out = torch.empty_like(x)
    kernel = flat(len(x), [torch.float32], torch.float32, lambda x: ops.apply(name, x))
    assert launch(kernel, [x, out], [(0, len(x))]) == 0
    with numpy.errstate(all="ignore"):
        exact = numpy.sqrt(x.numpy())
        if name == "rsqrt":
            exact = numpy.float32(1) / exact
    numpy.testing.assert_array_equal(out.numpy(), exact)
    assert out[x == 0].signbit().tolist() == x[x == 0].signbit().tolist()
    for target, count in (("avx512", 4), ("zen4", 0), ("avx2", 0)):
        compiled = compile_kernels([kernel], [], target=named(target), load=False)
        assert compiled.assembly().count("vrsqrt14ps") >= count
        assert count or "vrsqrt14ps" not in compiled.assembly()
