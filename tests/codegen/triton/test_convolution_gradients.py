"""Training of convolutions on a GPU: all images lie channels-last, forward and backward, and the
gradients of small depthwise ones are kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.codegen.triton.module import available
from ingot.loops.ir import Library
from tests.codegen.triton.interpreting import INTERPRETED, draw, interpreted, run_interpreted
from tests.long import long

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

if not INTERPRETED:

    @long
    def test_under_the_interpreter() -> None:
        run_interpreted(__file__)


from tests.codegen.triton.interpreter import planned_training, run

aten = torch.ops.aten
HALVES = 4e-3  # the part of a sum of float16 that rounding takes, a few times over


def wanted(*shape: int, seed: int = 0) -> Tensor:
    return draw(*shape, seed=seed).requires_grad_()


def block(x: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """Of a mobile network: a wide pixel convolution, a depthwise one, a narrow one."""
    x = x.half()
    y = F.silu(F.conv2d(x, first.half()))
    y = F.silu(F.conv2d(y, second.half(), None, 2, 1, 1, second.shape[0]))
    return F.conv2d(y, third.half())


def block_operands() -> tuple[Tensor, ...]:
    return wanted(2, 8, 6, 6), wanted(16, 8, 1, 1), wanted(16, 1, 3, 3), wanted(8, 16, 1, 1)


def test_images_and_their_gradients_have_one_layout() -> None:
    """And no kernel only converts one, but those that come from outside."""
    _, forward, backward = planned_training(block, *block_operands())
    seen = 0
    for plan in (forward, backward):
        for node in plan.graph.nodes:
            if not isinstance(node, Library):
                continue
            assert node.function in (aten.convolution.default, aten.convolution_backward.default)
            for view in node.args[:2]:
                assert view.strides[1].constant == 1, node
                seen += 1
    assert seen == 2 * 2 + 2 * (2 + 2 + 1)  # a depthwise one's images are a kernel's, both ways


CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((3, 3), {"padding": 1}),
    "3x3 without margin": ((3, 3), {}),
    "3x3 stride 2": ((3, 3), {"padding": 1, "stride": 2}),
    "3x3 stride 3": ((3, 3), {"padding": 1, "stride": 3}),
    "2x2 stride 3, which leaves gaps": ((2, 2), {"stride": 3}),
    "3x3 dilation 2": ((3, 3), {"padding": 2, "dilation": 2}),
    "1x3": ((1, 3), {"padding": (0, 1), "stride": (2, 1)}),
    "stride 2, dilation 3": ((3, 2), {"padding": (3, 1), "stride": 2, "dilation": (3, 1)}),
}


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_depthwise(name: str, dtype: torch.dtype) -> None:
    window, settings = CASES[name]

    def fn(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x.to(dtype), weight.to(dtype), groups=weight.shape[0], **settings).float()

    x = draw(2, 6, 7, 8).to(memory_format=torch.channels_last).requires_grad_()
    bound = 1e-6 if dtype is torch.float32 else HALVES
    assert_gradients(fn, x, wanted(6, 1, *window, seed=1), bound=bound)


@interpreted
def test_a_block() -> None:
    assert_gradients(block, *block_operands(), bound=HALVES)


@interpreted
def test_pooling_and_transposed_convolutions() -> None:
    def fn(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        y = F.max_pool2d(F.conv2d(x.half(), first.half(), None, 1, 1).relu(), 3, 2, 1)
        return F.conv_transpose2d(y, second.half(), stride=2)

    operands = wanted(2, 4, 8, 8), wanted(8, 4, 3, 3), wanted(8, 4, 2, 2)
    assert_gradients(fn, *operands, bound=HALVES)


POOLS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "3x3 stride 2": ((2, 3, 8, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "side by side": ((2, 3, 8, 9), {"kernel_size": 2}),
    "gaps": ((2, 3, 8, 9), {"kernel_size": 2, "stride": 3}),
    "dilation": ((2, 3, 9, 9), {"kernel_size": (3, 2), "stride": 1, "dilation": (2, 3)}),
    "ceil": ((2, 3, 8, 9), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    "one image": ((3, 8, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "volumes": ((1, 2, 4, 5, 6), {"kernel_size": 2, "stride": 1, "padding": 1}),
}


@interpreted
@pytest.mark.parametrize("name", POOLS)
def test_the_largest_of_windows(name: str) -> None:
    """Whole numbers, so that elements are equal, and a part that is -inf."""
    shape, settings = POOLS[name]
    pool = F.max_pool3d if len(shape) == 5 else F.max_pool2d

    def fn(x: Tensor) -> Tensor:
        return pool(x.half(), **settings)

    x = (draw(*shape) * 2).round()
    x[..., :4, :4] = -torch.inf
    assert_gradients(fn, x.requires_grad_(), bound=HALVES)


def assert_gradients(fn: Callable[..., Tensor], *args: Tensor, bound: float) -> None:
    """The plans give what eager does, but for a part `bound` of it, and lay it out so."""
    expected = fn(*args)
    tangent = torch.randn_like(expected)
    parts, forward, backward = planned_training(fn, *args)
    inputs = [a.detach() for a in args]
    result, *kept = run(forward, inputs)
    places = {"input": inputs, "output": [result], "kept": kept}
    found = run(backward, [*(places[s.role][s.position] for s in parts.saved), tangent])
    gradients = torch.autograd.grad(expected, args, tangent)
    for actual, right in zip([result, *found], [expected, *gradients], strict=True):
        assert torch.equal(actual.isinf(), right.isinf())
        difference = (actual - right).double().nan_to_num(nan=0.0)
        assert difference.norm() < bound * right.double().nan_to_num(neginf=0.0).norm()
        assert actual.stride() == right.stride()
