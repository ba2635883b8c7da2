"""Calls that record gradients, and their backwards: the usual ones run no Python, the others fall
back to it, and both are as in eager."""

from __future__ import annotations

import copy
import gc
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.loops.training_contract import NativeSlots
from ingot.native import _native


def gates(x: Tensor, h: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    i, o = (x @ w + h).chunk(2, 1)
    c = torch.sigmoid(i) * torch.tanh(h[:, :4])
    return torch.sigmoid(o) * torch.tanh(c), c


def operands(rows: int = 3) -> list[Tensor]:
    shapes = (rows, 5), (rows, 8), (5, 8)
    generator = torch.Generator().manual_seed(rows)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def compiled_gates() -> Callable[..., Any]:
    """Compiled for any number of rows, and for gradients of both outputs."""
    compiled = ingot.compile(gates, dynamic=True)
    for rows in (4, 3):
        given = operands(rows)
        torch.autograd.grad(compiled(*given), given, [torch.ones(rows, 4)] * 2)
    return compiled


def gradients(
    function: Callable[..., Any], tangents: Sequence[Tensor | None], rows: int = 3
) -> Sequence[Any]:
    given = operands(rows)
    chosen = [(output, t) for output, t in zip(function(*given), tangents) if t is not None]
    return torch.autograd.grad(
        [output for output, _ in chosen], given, [t for _, t in chosen], allow_unused=True
    )


def python_frames(call: Callable[[], Any]) -> list[str]:
    """The functions of Ingot that run meanwhile."""
    package = os.path.join(os.path.dirname(ingot.__file__), "")
    found: list[str] = []

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            found.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def test_usual_calls_run_no_python():
    compiled, given = compiled_gates(), operands()
    tangents = [torch.randn(3, 4), torch.randn(3, 4)]
    assert python_frames(lambda: torch.autograd.grad(compiled(*given), given, tangents)) == []

    def partial() -> Any:
        return torch.autograd.grad(compiled(*given)[1], given[:2], tangents[0], allow_unused=True)

    assert python_frames(partial)  # which is compiled now
    assert python_frames(partial) == []


class Normed(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = (
            nn.Linear(4, 6),
            nn.BatchNorm1d(6),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(self.linear(x)).tanh())


@pytest.mark.parametrize("dropout, ran", [(0.0, []), (0.5, ["state_before"])])
def test_running_statistics_and_random_numbers(dropout, ran):
    torch.manual_seed(0)
    model, x = Normed(dropout).double(), torch.randn(5, 4, dtype=torch.float64)
    peer, compiled = copy.deepcopy(model), ingot.compile(model)
    for _ in range(2):
        compiled(x).backward(torch.ones(5, 6, dtype=torch.float64))
        peer(x)
    assert (
        sorted(
            set(python_frames(lambda: compiled(x).backward(torch.ones(5, 6, dtype=torch.float64))))
        )
        == ran
    )
    peer(x)
    found = []
    for module, function in ((model, compiled), (peer, peer)):
        torch.manual_seed(1)
        parameters = [*module.parameters()]
        first = torch.autograd.grad(function(x).sin().sum(), parameters, create_graph=True)
        torch.manual_seed(1)
        function(x)  # writes the statistics, which no gradient depends on
        found.append(torch.autograd.grad([g.square().sum() for g in first[:2]], parameters[:2]))
    torch.testing.assert_close(*found)
    torch.testing.assert_close(dict(model.named_buffers()), dict(peer.named_buffers()))


def test_what_gradients_depend_on_is_kept_as_it_was():
    def step(x: Tensor, count: Tensor) -> Tensor:
        y = (x * (2 * count)).sin()
        count.add_(1)
        return y

    found = []
    for function in (ingot.compile(step), step):
        x, count = torch.arange(4.0, requires_grad=True), torch.full((4,), 2.0)
        for _ in range(2):
            (first,) = torch.autograd.grad(function(x, count.clone()).sum(), x, create_graph=True)
            found.append(torch.autograd.grad(first.sum(), x)[0])
    torch.testing.assert_close(found[:2], found[2:])


def test_inputs_of_inference_mode():
    with torch.inference_mode():
        h = torch.randn(3, 8)
    compiled, (x, _, w), tangents = compiled_gates(), operands(), [torch.randn(3, 4)] * 2
    for _ in range(2):
        outputs = compiled(x, h, w), gates(x, h.clone(), w)
        torch.testing.assert_close(
            *(torch.autograd.grad(these, (x, w), tangents) for these in outputs)
        )


class Marked(Tensor):
    pass


def test_results_of_another_type():
    """Which other backends may give."""

    def backend(graph: Any, _: Any) -> Callable[..., Any]:
        return lambda *inputs: [
            t.as_subclass(Marked) if isinstance(t, Tensor) else t for t in graph(*inputs)
        ]

    compiled = ingot.compile(
        lambda x: (x.sin(), x.detach().cos(), x.shape[0]), backend=backend, dynamic=True
    )
    for rows in (4, 5, 4):
        x = torch.randn(rows, requires_grad=True)
        sine, cosine, count = compiled(x)
        assert sine.requires_grad and not cosine.requires_grad and count == rows
        (gradient,) = torch.autograd.grad(sine.sum(), x)
        torch.testing.assert_close(gradient.as_subclass(Tensor), x.detach().cos())


def test_what_is_unusual_is_left_to_python():
    compiled, given = compiled_gates(), operands()
    outputs, tangents = compiled(*given), [torch._efficientzerotensor((3, 4)), torch.randn(3, 4)]
    assert "_backward" in python_frames(lambda: torch.autograd.grad(outputs, given, tangents))
    outputs, tangents = compiled(*given), [torch.randn(4, 3).t(), torch.randn(3, 4)]
    assert (
        python_frames(lambda: torch.autograd.grad(outputs, given, tangents))[0]
        == "tangent_in_layout"
    )


@pytest.mark.parametrize(
    "tangents",
    [
        (torch.randn(3, 4), torch.randn(3, 4)),
        (torch.randn(3, 4), None),
        (None, torch.randn(3, 4)),
        (torch.randn(4, 3).t(), torch.randn(3, 4)),
        (torch.randn(1, 1).expand(3, 4), torch.randn(3, 1).expand(3, 4)),
        (torch.randn(3, 8)[:, ::2], torch.randn(3, 8)[:, 4:]),
        (torch._efficientzerotensor((3, 4)), torch.randn(3, 4)),
        (torch.randn(3, 4, dtype=torch.complex64).conj().imag, torch.randn(3, 4)),
        (torch.nn.Parameter(torch.randn(3, 4)), torch.randn(3, 4)),
    ],
)
def test_gradients_that_come_in(tangents):
    compiled = compiled_gates()
    for _ in range(3):
        torch.testing.assert_close(gradients(compiled, tangents), gradients(gates, tangents))


def test_nodes_of_several_sizes_wait_at_once():
    compiled, sizes = compiled_gates(), (3, 7, 2, 7, 3)
    given = [operands(rows) for rows in sizes]
    outputs = [compiled(*these) for these in given]
    for rows, these, out in zip(sizes, given, outputs):
        tangents = [torch.full((rows, 4), 2.0), torch.randn(rows, 8)[:, :4].contiguous()]
        found = torch.autograd.grad(out, these, tangents)
        torch.testing.assert_close(found, torch.autograd.grad(gates(*these), these, tangents))


def test_the_graph_goes_once_unless_it_is_kept():
    compiled, given, tangents = compiled_gates(), operands(), [torch.ones(3, 4)] * 2
    outputs = compiled(*given)
    first = torch.autograd.grad(outputs, given, tangents, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(outputs, given, tangents), first)
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        torch.autograd.grad(outputs, given, tangents)


def test_what_is_written_between():
    compiled, given, tangents = compiled_gates(), operands(), [torch.ones(3, 4)] * 2
    outputs = compiled(*given)
    with torch.no_grad():
        given[2].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(outputs, given, tangents)


def test_second_derivatives_after_usual_backwards():
    found = []
    for function in (compiled_gates(), gates):
        given = operands()
        first = torch.autograd.grad(
            [o.sin().sum() for o in function(*given)], given, create_graph=True
        )
        found.append(torch.autograd.grad([g.square().sum() for g in first], given))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_nothing_is_held_behind_the_backward():
    compiled, given, tangents = compiled_gates(), operands(), [torch.ones(3, 4)] * 2
    gc.disable()
    try:
        outputs = compiled(*given)
        kept = [weakref.ref(t) for t in outputs[0].grad_fn.saved_tensors]
        torch.autograd.grad(outputs, given, tangents)
        assert outputs[0].grad_fn.call is None
        node = weakref.ref(outputs[0].grad_fn)
        del outputs
        assert node() is None
        assert all(ref() is None or any(ref() is t for t in given) for ref in kept)
    finally:
        gc.enable()


def test_recorders_are_collected():
    compiled = compiled_gates()
    program = weakref.ref(compiled(*operands())[0].grad_fn.program)
    assert program() is not None
    del compiled
    gc.collect()
    gc.collect()
    assert program() is None


@pytest.mark.parametrize(
    "changed",
    [
        {"saved": (-1,)},
        {"untracked_outputs": (1,)},
        {"differentiable_outputs": (-1,)},
        {"size_places": ((0, "width", 0),)},
        {"size_places": ((4, "size", 0),)},
        {"tensors": 3},
    ],
)
def test_descriptions_are_checked(changed):
    slots = NativeSlots(
        inputs=2,
        tensors=2,
        outputs=1,
        saved=(0,),
        untracked_outputs=(),
        unread_inputs=(),
        size_places=(),
        differentiable_outputs=(0,),
        refused_outputs=(),
        gradient_inputs=(),
    )
    recorder = _native.Recorder()
    with pytest.raises(ValueError):
        recorder.describe(
            forward=lambda *inputs: inputs,
            leaf=None,
            state_before=None,
            slots=slots._replace(**changed),
            usual=True,
            usual_backward=True,
            looks_for_hooks=False,
        )
