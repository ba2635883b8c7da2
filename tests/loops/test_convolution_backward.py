"""Gradients of convolutions of channels-last images against eager's: as contractions, of its values
and layouts."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.compiler import Compiler
from ingot.explain.measure import error
from ingot.loops.ir import Contraction, Library
from ingot.schedule.plan import LibraryStep
from tests.loops.test_convolution import last
from tests.loops.test_lowering import assert_lowered, t

aten = torch.ops.aten


class Case(NamedTuple):
    images: tuple[int, ...]
    results: int
    window: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    transposed: bool = False

    def arguments(self) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Any, ...]]:
        """The result's gradient, the images and the weight; the other arguments of both ops but for
        the bias."""
        x, sizes = last(t(*self.images)), (self.results, self.images[1])
        weight = t(*(sizes[::-1] if self.transposed else sizes), *self.window)
        settings = (self.stride, self.padding, self.dilation, self.transposed, (0, 0), 1)
        result = aten.convolution(x, weight, None, *settings)
        return (last(t(*result.shape)), x, weight), settings


CASES = {
    "3x3": Case((2, 9, 6, 7), 8),
    "few_pixels": Case((1, 9, 3, 4), 16),
    "1x1": Case((2, 9, 6, 7), 8, (1, 1), padding=(0, 0)),
    "1x1_strided": Case((2, 9, 7, 6), 8, (1, 1), (2, 3), (0, 0)),
    "strided": Case((2, 9, 7, 8), 8, stride=(2, 2)),
    "strided_few_pixels": Case((2, 9, 7, 8), 40, stride=(2, 2)),
    "strided_unevenly": Case((2, 9, 11, 9), 8, (5, 2), (3, 2), (2, 0)),
    "steps_over_elements": Case((1, 9, 11, 13), 8, (2, 3), (3, 4), (0, 1)),
    "patches": Case((1, 9, 12, 8), 8, (2, 2), (2, 2), (0, 0)),
    "without_padding": Case((1, 9, 8, 7), 8, padding=(0, 0)),
    "much_padding": Case((1, 9, 4, 5), 8, (2, 3), padding=(3, 4)),
    "dilated": Case((1, 9, 9, 8), 8, padding=(2, 1), dilation=(2, 1)),
    "dilated_and_strided": Case((1, 9, 13, 11), 8, (3, 3), (2, 3), (2, 3), (3, 2)),
    "transposed": Case((1, 8, 5, 6), 9, transposed=True),
    "transposed_patches": Case((1, 8, 5, 6), 9, (2, 2), (2, 2), (0, 0), transposed=True),
    "transposed_few_pixels": Case((1, 20, 3, 4), 9, (2, 3), (2, 1), (0, 1), transposed=True),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_contractions(name: str) -> None:
    tensors, settings = CASES[name].arguments()

    def gradients(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        bias = [grad.shape[1]]
        return aten.convolution_backward(grad, x, weight, bias, *settings, [True, True, True])

    graph = assert_lowered(gradients, *tensors)
    assert not [node for node in graph.nodes if isinstance(node, Library)]
    assert sum(isinstance(node, Contraction) for node in graph.nodes) >= 2


@pytest.mark.parametrize("name", ["3x3", "few_pixels", "strided"])
@pytest.mark.parametrize("mask", [(True, False, False), (False, True, False), (False, False, True)])
def test_gradients_that_are_not_wanted_are_not_computed(name: str, mask: tuple[bool, ...]) -> None:
    tensors, settings = CASES[name].arguments()

    def gradient(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        bias = [grad.shape[1]]
        return aten.convolution_backward(grad, x, weight, bias, *settings, mask)[mask.index(True)]

    graph = assert_lowered(gradient, *tensors)
    assert any(isinstance(node, Contraction) for node in graph.nodes) is not mask[2]


@pytest.mark.parametrize("name", ["patches", "3x3"])
def test_a_gradient_that_is_computed_in_another_order(name: str) -> None:
    (grad, x, weight), settings = CASES[name].arguments()
    channels, *image = grad.shape[1:]

    def gradients(rows: Tensor, x: Tensor, weight: Tensor) -> Any:
        grad = rows.exp().transpose(1, 2).unflatten(2, image)
        return aten.convolution_backward(
            grad, x, weight, [channels], *settings, [False, True, True]
        )[1:]

    assert_lowered(
        gradients, grad.flatten(2).transpose(1, 2).contiguous(), x, weight, tolerance=2e-6
    )


def test_the_gradient_of_a_transposed_convolution_is_in_memory_once() -> None:
    """With the zeros around it that both products read: nobody needs it without them."""
    (grad, x, weight), settings = CASES["transposed"].arguments()

    def gradients(grad: Tensor, kept: Tensor, x: Tensor, weight: Tensor) -> Any:
        masked = torch.where(kept > 0, grad, 0.0)
        images, _, _ = aten.convolution_backward(
            masked, x, weight, None, *settings, [True, False, False]
        )
        _, of_weight, bias = aten.convolution_backward(
            masked, x, weight, [9], *settings, [False, True, True]
        )
        return images, of_weight, bias

    graph = assert_lowered(gradients, grad, t(*grad.shape), x, weight)
    assert sum(isinstance(node, Contraction) for node in graph.nodes) == 2
    sizes = [[s.constant for s in b.sizes] for b in graph.buffers.values() if b.role == "temporary"]
    assert [1, 9, 5, 6] not in sizes and sizes.count([1, 9, 7, 8]) == 1


LEFT_TO_THE_LIBRARY = {
    "contiguous": lambda g, x, w: (g.contiguous(), x.contiguous(), w),
    "float64": lambda g, x, w: (g.double(), x.double(), w.double()),
    "one_pixel": lambda g, x, w: (last(t(1, 8, 1, 1)), last(t(1, 9, 1, 1)), w),
}


@pytest.mark.parametrize("name", LEFT_TO_THE_LIBRARY)
def test_others_are_called(name: str) -> None:
    tensors, settings = CASES["3x3"].arguments()
    fn = lambda *given: aten.convolution_backward(*given, [8], *settings, [True, True, False])[:2]  # noqa: E731
    graph = assert_lowered(fn, *LEFT_TO_THE_LIBRARY[name](*tensors), tolerance=2e-6)
    assert [node for node in graph.nodes if isinstance(node, Library)]


def network(*middle: nn.Module) -> nn.Module:
    ends = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 1)
    return nn.Sequential(ends[0], nn.BatchNorm2d(16), nn.ReLU(), *middle, ends[1])


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


# With how many of the last convolution's gradients the library may compute, beside those of the
# images that the network is given, which have few channels.
NETWORKS = {
    "plain": (lambda: network(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()), 0),
    "residual": (lambda: network(Residual(), Residual()), 0),
    "pooled": (lambda: network(nn.MaxPool2d(2), Residual(), nn.AvgPool2d(2),
        nn.Upsample(scale_factor=2)), 1),
    "strided": (lambda: network(nn.Conv2d(16, 16, 3, 2, 1), nn.SiLU(),
        nn.ConvTranspose2d(16, 16, 2, 2)), 1),
}  # fmt: skip


def gradients_of(model: nn.Module, call: Any, x: Tensor) -> list[Tensor]:
    parameters = [x, *model.parameters()]
    return list(torch.autograd.grad(call(x).sin().sum(), parameters))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    """Forward and backward share a layout; the gradients of all parameters are as near to float64
    as eager's."""
    torch.manual_seed(0)
    make, most = NETWORKS[name]
    model = make()
    compiled = ingot.compile(copy.deepcopy(model), fullgraph=True)
    x = torch.randn(2, 3, 16, 16, requires_grad=True)
    exact = gradients_of(
        double := copy.deepcopy(model).double(), double, x.detach().double().requires_grad_()
    )
    eager = gradients_of(model, model, x)
    found = gradients_of(compiled, compiled, x)  # type: ignore[arg-type]
    assert [g.stride() for g in found] == [g.stride() for g in eager]
    assert error(found, exact) <= max(1.2 * error(eager, exact), 4 * torch.finfo(torch.float32).eps)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    forward = compiler.compilations[-1]
    backward = forward.backward
    assert backward is not None and backward.skipped is None and backward.log.plan is not None
    called = [
        op
        for s in backward.log.plan.steps
        if isinstance(s, LibraryStep)
        for op in s.node.origin.ops
    ]
    assert len(called) <= 1 + most


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    torch.manual_seed(0)
    model = network(Residual())
    compiled = ingot.compile(model)
    x = torch.randn(2, 3, 40, 32, requires_grad=True)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(gradients_of(model, compiled, x))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0][1:], other[1:]))


class Heads(nn.Module):
    """Two results; the backward of each reads the result itself."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = network(Residual())
        self.heads = nn.ModuleList([nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(8, 8, 1)])

    def forward(self, x: Tensor) -> list[Tensor]:
        trunk = self.trunk(x)
        return [head(trunk).relu() for head in self.heads]


@pytest.mark.parametrize("wanted", [[0], [1], [0, 1]])
@pytest.mark.parametrize("lowered", [True, False])
def test_what_is_kept_lies_as_it_is_read(
    wanted: list[int], lowered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only some results get a gradient, and where eager runs the backward."""
    torch.manual_seed(0)
    model, x = Heads(), torch.randn(2, 3, 16, 16)
    compiled = ingot.compile(copy.deepcopy(model))
    made = compiled(x)
    if not lowered:
        monkeypatch.setattr("ingot.pipeline.lower", None)
    for call, results in ((model, model(x)), (compiled, made)):
        sum(results[k].square().sum() for k in wanted).backward()
        assert [p.grad is None for p in call.heads[1 - wanted[0]].parameters()] == 2 * [
            len(wanted) == 1
        ]
    for ours, theirs in zip(compiled.parameters(), model.parameters()):
        if theirs.grad is not None:
            assert ours.grad is not None and ours.grad.stride() == theirs.grad.stride()
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)
