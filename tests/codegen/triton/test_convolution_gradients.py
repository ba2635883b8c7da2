"""Training of convolutions on a GPU: all images lie channels-last, forward and backward, and the
gradients of small depthwise ones are kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.codegen import loop_text
from ingot.codegen.triton import write_kernel
from ingot.codegen.triton.module import Gpu, available, build
from ingot.loops import depthwise, show
from ingot.loops.ir import Library
from ingot.loops.lowering.values import exprs
from ingot.schedule.kernel import Kernel
from ingot.schedule.plan import LibraryStep
from tests.codegen.triton.interpreting import INTERPRETED, draw, interpreted, run_interpreted
from tests.long import long

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

if not INTERPRETED:

    @long
    def test_under_the_interpreter() -> None:
        run_interpreted(__file__)


from tests.codegen.triton.interpreter import planned, planned_training, run

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
    assert seen == 2 * 2 + 2 * (2 + 2)  # a depthwise one is kernels', both ways


CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((3, 3), {"padding": 1}),
    "3x3 without margin": ((3, 3), {}),
    "3x3 stride 2": ((3, 3), {"padding": 1, "stride": 2}),
    "3x3 stride 3": ((3, 3), {"padding": 1, "stride": 3}),
    "2x2 stride 3, which leaves gaps": ((2, 2), {"stride": 3}),
    "3x3 dilation 2": ((3, 3), {"padding": 2, "dilation": 2}),
    "1x3": ((1, 3), {"padding": (0, 1), "stride": (2, 1)}),
    "3x3 steps differ": ((3, 3), {"padding": (0, 2), "stride": (1, 2)}),
    "5x5": ((5, 5), {"padding": 2}),
    "5x5 stride 2": ((5, 5), {"padding": 2, "stride": 2}),
    "5x5 stride 3, wide margin": ((5, 5), {"padding": 4, "stride": 3}),
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


SUMMED_DOWN: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "strips of rows": ((1, 6, 30, 5), 3, {"padding": 1}),
    "several blocks of columns": ((2, 6, 4, 40), 5, {"padding": 2}),
    "several turns": ((9, 33, 3, 9), 3, {"padding": 1}),
    "fewer images than parts, and a bias": ((1, 40, 5, 5), 5, {"stride": 2}),
}


@interpreted
@pytest.mark.parametrize("name", SUMMED_DOWN)
def test_depthwise_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight's gradient, of which few blocks of threads run at a time."""
    monkeypatch.setattr(depthwise, "PROGRAMS", {25: 8})
    shape, window, settings = SUMMED_DOWN[name]

    def fn(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, groups=weight.shape[0], **settings)

    x = draw(*shape).to(memory_format=torch.channels_last).requires_grad_()
    weight = wanted(shape[1], 1, window, window, seed=1)
    assert_gradients(fn, x, weight, wanted(shape[1], seed=2), bound=1e-6)


def depthwise_steps(size: int, **settings: Any) -> list[str]:
    """Of the backward of a depthwise convolution alone: the kernels that sum up the weight's
    gradient, and the library's calls."""

    def fn(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, groups=weight.shape[0], **settings)

    x = draw(2, 32, 12, 12).to(memory_format=torch.channels_last).requires_grad_()
    _, forward, backward = planned_training(fn, x, wanted(32, 1, size, size))
    steps = []
    for step in (*forward.steps, *backward.steps):
        if isinstance(step, LibraryStep):
            steps.append(str(step.node.function))
        elif isinstance(step.kernel, Kernel) and step.kernel.depthwise is not None:
            steps.append("summed down")
    return steps


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [3, 5])
def test_no_library_is_asked_for_small_depthwise_windows(size: int, stride: int) -> None:
    assert depthwise_steps(size, padding=size // 2, stride=stride) == ["summed down"]


@pytest.mark.parametrize(
    ("size", "settings"), [(3, {"dilation": 2}), (2, {}), (4, {}), (7, {"padding": 3})], ids=str
)
def test_the_library_has_other_weights_gradients(size: int, settings: dict[str, Any]) -> None:
    assert depthwise_steps(size, **settings)[-1] == "aten.convolution_backward.default"


@interpreted
@pytest.mark.parametrize("images", [0, 1, 5])
def test_images_whose_number_varies(images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depthwise, "PROGRAMS", {25: 4})

    def fn(x: Tensor, weight: Tensor) -> Any:
        settings = [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 6, [False, True, True]
        return aten.convolution_backward(x.sin(), x, weight, *settings)[1:]

    x, weight = draw(3, 6, 5, 4).to(memory_format=torch.channels_last), draw(6, 1, 3, 3)
    plan = planned(fn, x, weight, dynamic=True)
    assert not any(isinstance(step, LibraryStep) for step in plan.steps)
    x = draw(images, 6, 5, 4).to(memory_format=torch.channels_last)
    for found, right in zip(run(plan, [x, weight]), fn(x, weight), strict=True):
        torch.testing.assert_close(found, right)


def sums_of(images: int, channels: int, size: int, window: int, dtype: torch.dtype) -> Kernel:
    """The kernel that sums up the gradient of a weight."""

    def fn(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x.to(dtype), weight.to(dtype), None, 1, window // 2, 1, channels)

    x = torch.empty(images, channels, size, size, device="meta")
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.empty(channels, 1, window, window, device="meta").requires_grad_()
    _, _, backward = planned_training(fn, x, weight)
    (kernel,) = (k for k in backward.kernels if isinstance(k, Kernel) and k.depthwise)
    return kernel


@pytest.mark.parametrize("gpu", [Gpu("cuda", 90), Gpu("cuda", 100), Gpu("hip", "gfx942")], ids=str)
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled under the interpreter")
def test_sums_compile(gpu: Gpu) -> None:
    binary = build(write_kernel(sums_of(64, 40, 14, 5, torch.bfloat16)), gpu)
    assert binary.threads == 2 * gpu.warp_size
    assert not re.search(r"st\.local|ScratchSize: [1-9]", binary.assembly)


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled under the interpreter")
def test_sums_of_more_elements_than_32_bits_count() -> None:
    written = write_kernel(sums_of(1 << 20, 40, 14, 3, torch.float16))
    assert not written.short
    assert "mul.wide" in build(written, Gpu("cuda", 90)).assembly


def test_sums_are_the_reduction_that_they_mean() -> None:
    """The text of the loop graph runs, and gives what eager does."""

    def fn(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, None, 2, 1, 1, 6)

    x = draw(2, 6, 5, 7).to(memory_format=torch.channels_last).requires_grad_()
    weight, tangent = wanted(6, 1, 3, 3), draw(2, 6, 3, 4)
    _, _, backward = planned_training(fn, x, weight)
    tangent = tangent.to(memory_format=torch.channels_last)
    given = {x.shape: x.detach(), weight.shape: weight.detach(), tangent.shape: tangent}
    inputs = [
        given[torch.Size([n.constant for n in backward.graph.buffers[name].sizes])]
        for name in backward.graph.inputs
    ]
    found = loop_text.function(*show.text_and_names(backward.graph))(*inputs)
    expected = torch.autograd.grad(fn(x, weight), (x, weight), tangent)
    for actual, right in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, right)


@pytest.mark.parametrize("images", [1, 3, 200])
@pytest.mark.parametrize("channels", [3, 32, 1152])
@pytest.mark.parametrize("size", [1, 7, 112])
def test_parts_hold_all_pieces(size: int, channels: int, images: int) -> None:
    sizes = exprs((images, channels, size, size))
    piece, parts = depthwise.parts_of(sizes, 25)
    pieces = images * -(-size // piece.rows) * -(-size // piece.columns)
    assert 1 <= parts <= pieces
    assert piece.rows >= min(size, depthwise.SHORTEST)
    assert parts * -(-channels // (depthwise.TILE // piece.columns)) <= max(1056, pieces)


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
