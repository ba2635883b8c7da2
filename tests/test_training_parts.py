"""Gradients of only some of the outputs: as in eager, what the others are made of is not there."""

from __future__ import annotations

import functools
import itertools
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot.pipeline
from ingot.compilation import Compilation
from ingot.compiler import Compiler
from ingot.errors import Unsupported
from ingot.gradients import backwards, captured_graph
from tests import effectful_ops
from tests.oracle import alike
from tests.test_differentiation import EAGER, both, whole
from tests.test_training import is_compiled, wanted

pytestmark = pytest.mark.usefixtures("nothing_is_kept")


def compilation_of(compiled: Any) -> Compilation:
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return compiler.compilations[-1]


def several(x: Tensor, w: Tensor, v: Tensor) -> Any:
    shared = (x @ w).tanh()
    return shared * 2, (shared @ v).exp(), v.sin(), nn.functional.dropout(x, 0.5) * v


@pytest.mark.parametrize(
    "chosen", [c for n in (1, 2, 3, 4) for c in itertools.combinations(range(4), n)]
)
def test_each_choice_of_outputs(chosen):
    def program(wrap: Any) -> Any:
        inputs = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        outputs = wrap(several)(*inputs)
        loss = sum(outputs[k].square().sum() for k in chosen)
        first = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
        second = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
        slope = sum(g.square().sum() for g in second if g is not None)
        loss.backward(retain_graph=True)
        again = torch.autograd.grad(slope, inputs, allow_unused=True)
        return first, second, again, [x.grad for x in inputs]

    found = []
    for wrap in (EAGER, whole):
        torch.manual_seed(0)
        found.append(program(wrap))
    for ours, eagers in zip(found[1], found[0]):
        assert [g is None for g in ours] == [g is None for g in eagers]
    torch.testing.assert_close(found[1], found[0])


def test_work_for_the_others_is_not_done():
    compiled = ingot.compile(lambda x, w, v: (x @ w, (x @ v).relu()), fullgraph=True)
    x, w, v = wanted(4, 4), wanted(4, 4), wanted(4, 4)
    first, second = compiled(x, w, v)
    first.sum().backward(retain_graph=True)
    (part,) = compilation_of(compiled).partial_backwards
    assert part.skipped is None and v.grad is None
    products = [
        n for n in part.log.aten.graph.nodes if "mm" in str(n.target) or "linear" in str(n.target)
    ]
    assert len(products) == 2
    (first.sum() + second.sum()).backward()
    assert v.grad is not None
    first, second = compiled(x, w, v)
    second.sum().backward()
    first, second = compiled(x, w, v)
    first.sum().backward()
    assert len(compilation_of(compiled).partial_backwards) == 2  # one for each choice
    assert is_compiled(compiled)


@pytest.mark.parametrize(
    "act", [F.silu, F.gelu, F.mish, F.softplus, F.hardswish, torch.sigmoid, F.log_softmax]
)
@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_what_the_gradients_keep_is_told_by_its_value(act, chosen):
    """The nodes of a gradient are numbered otherwise where others are not there."""
    act = functools.partial(act, dim=-1) if act is F.log_softmax else act

    def function(x: Tensor, w: Tensor, decay: Tensor) -> Any:
        q, k, v = act(x @ w).reshape(2, 6, 2, 12).transpose(1, 2).split(4, dim=3)
        scores = (q @ k.transpose(-1, -2)) * decay[:, :6]
        state = 0.5 + (k * decay).transpose(-1, -2) @ v
        return scores @ v, state, act(state) * act(q).sum()

    def program(wrap: Any) -> Any:
        x, w = (
            torch.randn(*sizes, dtype=torch.float64, requires_grad=True)
            for sizes in ((2, 6, 8), (8, 24))
        )
        wrapped = wrap(function)
        wrapped(x, w, torch.linspace(0.5, 1.5, 6, dtype=torch.float64).reshape(6, 1))[
            chosen
        ].sin().sum().backward()
        if wrap is not EAGER:
            parts = compilation_of(wrapped).partial_backwards
            assert is_compiled(wrapped) and len(parts) == 1 and parts[0].skipped is None
        return x.grad, w.grad

    both(program)


def test_infinite_slopes_of_what_is_not_asked_for():
    """Zeros in the place of a gradient that is not there would make NaN of them."""

    def program(wrap: Any) -> Any:
        x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        _, y = wrap(lambda x: (x.sqrt(), x * 2))(x)
        y.sum().backward()
        return x.grad

    both(program)


def test_inputs_that_are_written():
    def program(wrap: Any) -> Any:
        def function(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
            x.mul_(w)
            return v * 3

        w, v = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        x = torch.ones(3, dtype=torch.float64)
        compiled = wrap(function)
        compiled(x, w, v).sum().backward()
        before = w.grad
        x.sum().backward()
        return before, w.grad, v.grad

    both(program)


def test_auxiliary_heads_of_a_model():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3)
            )
            self.heads = nn.ModuleList([nn.Linear(8, 2) for _ in range(3)])

        def forward(self, x: Tensor) -> Any:
            h = self.body(x)
            return [head(h) for head in self.heads]

    def program(wrap: Any) -> Any:
        model = Net().double()
        compiled, x = wrap(model), torch.randn(6, 4, dtype=torch.float64)
        gradients: list[Any] = []
        for k in (0, 1, 0, 2):
            model.zero_grad()
            outputs = compiled(x)
            outputs[k].square().mean().backward()
            gradients.append(
                [None if p.grad is None else p.grad.clone() for p in model.parameters()]
            )
        return gradients

    found = []
    for wrap in (EAGER, whole):
        torch.manual_seed(0)
        found.append(program(wrap))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0), (2, 0), (2, 2), (0, 3), (3, 0),
                                   (0, 1, 2), (4, 1, 5), (5, 4, 1, 0), (4, 5, 4)])  # fmt: skip
def test_one_after_the_other(order):
    """Without the graph being kept: where they have nothing in common that is, the second backward
    runs as well."""

    def function(x: Tensor, w: Tensor) -> Any:
        return (
            (x * w).sin(),
            (w * 3).exp(),
            x + 1,
            (x * x).cos(),
            (x @ x).exp() @ w,
            torch.softmax(x @ w, 0) @ w,
        )

    def outcome(f: Any) -> Any:
        torch.manual_seed(0)
        x, w = wanted(3, 3), wanted(3, 3)
        outputs = f(x, w)
        try:
            for k in order:
                outputs[k].sum().backward()
        except RuntimeError as error:
            return str(error)[:50]
        return x.grad, w.grad

    found, expected = outcome(ingot.compile(function, fullgraph=True)), outcome(function)
    if isinstance(expected, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)


def test_what_is_left_may_not_be_written():
    x, w = wanted(3), wanted(3)
    outputs = ingot.compile(lambda x, w: (x.sin(), w.exp()), fullgraph=True)(x, w)
    outputs[1].sum().backward()
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs[0].sum().backward()


@pytest.mark.parametrize("scale", [2.0, 0.0])
def test_second_derivatives_of_a_determinant(scale):
    """Where eager's formula asks whether the matrix is singular; all of its singular values are the
    same here."""
    found = []
    for function in (torch.linalg.det, ingot.compile(lambda matrix: torch.linalg.det(matrix))):
        x = (scale * torch.eye(3, dtype=torch.float64)).requires_grad_()
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        found.append((first, *torch.autograd.grad(first.sum(), x)))
    torch.testing.assert_close(found[1], found[0], equal_nan=True)


def test_second_derivatives_of_vectors_up_to_factors():
    """What the vectors' tangent adds to second derivatives depends on the factors, each part for
    itself."""

    def program(wrap: Any) -> Any:
        x = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
        _, vectors = wrap(torch.linalg.eig)(x)
        tangent = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad(vectors.abs(), x, tangent, create_graph=True)
        return first, torch.autograd.grad(
            first, [x, tangent], torch.randn(5, 5, dtype=torch.float64)
        )

    found = []
    for wrap in (EAGER, lambda f: ingot.compile(lambda x: f(x))):
        torch.manual_seed(0)
        found.append(program(wrap))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_backward_that_cannot_be_compiled_runs_in_eager(
    monkeypatch: pytest.MonkeyPatch, dynamic: bool
) -> None:
    building = ingot.pipeline.Building

    def forward_alone(aten: Any, log: Any, *sizes: Any, **options: Any) -> Any:
        if not sizes:  # which the forward alone is built for
            raise Unsupported("a backward")
        return building(aten, log, *sizes, **options)

    def function(x: Tensor) -> Tensor:
        return (x.t() @ x).tanh() * x.shape[0]

    monkeypatch.setattr(ingot.pipeline, "Building", forward_alone)
    compiled = ingot.compile(function, dynamic=dynamic)
    for rows, columns in ((3, 5), (4, 7)):
        gradients = []
        for f in (compiled, function):
            x = torch.linspace(0, 1, rows * columns).view(rows, columns).requires_grad_()
            f(x).sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)
    assert all(c.backward.skipped for c in Compiler.of(compiled).compilations)


@pytest.mark.parametrize("chosen", [(0,), (1,), (2,), (0, 2)])
def test_a_part_that_would_need_other_guards_is_taken_out_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, chosen: tuple[int, ...]
) -> None:
    def refuse(*args: Any) -> Any:
        raise Unsupported("compiled code would depend on a size as well")

    monkeypatch.setattr(captured_graph, "trace_partial", refuse)
    found = []
    for wrap in (EAGER, whole):
        torch.manual_seed(0)
        inputs = [torch.randn(3, 3, requires_grad=True) for _ in range(3)]
        outputs = wrap(several)(*inputs)
        sum(outputs[k].square().sum() for k in chosen).backward()
        found.append([x.grad for x in inputs])
    assert [g is None for g in found[0]] == [g is None for g in found[1]]
    torch.testing.assert_close(found[1], found[0])


def slopes_of_some(a: Tensor, b: Tensor) -> Any:
    """How the gradient of the first result alone lies is asked of `b`'s size, and the last has
    infinite slopes."""
    turned = b.roll(b.shape[-1] // 2, -1)
    return (
        torch.cat([turned.flatten(), a.flatten()]),
        turned.reshape(turned.shape[::-1]).mT + 1,
        a / a,
    )


def test_a_part_that_asks_more_of_the_sizes_is_compiled_for_each_answer() -> None:
    compiled = ingot.compile(slopes_of_some, dynamic=True)
    for n in (12, 7, 1, 5, 1):
        inputs = torch.zeros(n, 3, requires_grad=True), torch.randn(1, n, requires_grad=True)
        tangents = torch.randn(5, 4 * n)

        def gradients(f: Any, inputs: Any = inputs, tangents: Tensor = tangents) -> Any:
            first = torch.autograd.grad(f(*inputs)[0], inputs, tangents[0])
            batch = torch.autograd.grad(f(*inputs)[0], inputs, tangents, is_grads_batched=True)
            again = torch.autograd.grad(
                f(*inputs)[0], inputs, tangents[0].clone().requires_grad_(), create_graph=True
            )
            return first, batch, again

        torch.testing.assert_close(gradients(compiled), gradients(slopes_of_some), rtol=0, atol=0)
    made = compilation_of(compiled)
    assert len(Compiler.of(compiled).compilations) == 1 and len(made.partial_backwards) == 2
    assert all(part.skipped is None for part in made.partial_backwards)


def floors_of_some(a: Tensor, b: Tensor) -> Any:
    """The same, where the gradient of `a` is zeros, whatever those of the results are."""
    turned = b.roll(b.shape[-1] // 2, -1)
    return (
        torch.cat([turned.flatten(), a.floor().flatten()]),
        turned.reshape(turned.shape[::-1]).mT + 1,
        a / a,
    )


def test_a_part_that_asks_more_of_the_sizes_has_the_gradients_that_it_has() -> None:
    compiled = ingot.compile(floors_of_some, dynamic=True)
    for n in (12, 1, 5):
        inputs = torch.zeros(n, 3, requires_grad=True), torch.randn(1, n, requires_grad=True)
        tangent = torch.randn(4 * n, requires_grad=True)
        for create_graph in (False, True):
            found = [
                torch.autograd.grad(
                    f(*inputs)[0], inputs, tangent, create_graph=create_graph, allow_unused=True
                )
                for f in (compiled, floors_of_some)
            ]
            torch.testing.assert_close(*found, rtol=0, atol=0)


def slopes_of_more(a: Tensor, b: Tensor) -> Any:
    first, second, third = slopes_of_some(a, b)
    return first, second, third, second.sin(), torch.stack([first, first])


def test_a_part_is_cut_out_at_the_sizes_that_it_is_traced_for() -> None:
    compiled = ingot.compile(slopes_of_more, dynamic=True)
    for n in (12, 1, 5):
        inputs = torch.ones(n, 3, requires_grad=True), torch.randn(1, n, requires_grad=True)
        tangents = torch.randn(2, 2, 1, n).unbind()
        found = [
            torch.autograd.grad(
                f(*inputs)[1:4:2], inputs, tangents, allow_unused=True, is_grads_batched=True
            )
            for f in (compiled, slopes_of_more)
        ]
        torch.testing.assert_close(*found)


def test_what_a_part_supposes_of_the_sizes_other_threads_do_not_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled, cut = ingot.compile(slopes_of_more, dynamic=True), backwards.partial_backward
    found: list[Any] = []

    def inputs_of(n: int) -> Any:
        return torch.ones(n, 3, requires_grad=True), torch.randn(1, n, requires_grad=True)

    def gradients_of_all(n: int) -> None:
        inputs = inputs_of(n)
        tangents = [torch.randn_like(result) for result in slopes_of_more(*inputs)]
        found.append(
            [torch.autograd.grad(f(*inputs), inputs, tangents) for f in (compiled, slopes_of_more)]
        )

    def cut_beside(*args: Any) -> Any:
        thread = threading.Thread(target=gradients_of_all, args=(len(found) + 20,))
        thread.start()
        thread.join()
        return cut(*args)

    gradients_of_all(12)
    monkeypatch.setattr(backwards, "partial_backward", cut_beside)
    inputs = inputs_of(1)
    torch.autograd.grad(compiled(*inputs)[0], inputs, torch.randn(4))
    assert len(found) > 1
    for gradients in found:
        torch.testing.assert_close(*gradients)


def test_work_for_inputs_that_are_not_asked_for_is_not_done():
    compiled = ingot.compile(lambda x, w, v: ((x @ w).relu() @ v).sum(), fullgraph=True)
    x, w, v = wanted(4, 5), wanted(5, 6), wanted(6, 3)
    found = torch.autograd.grad(compiled(x, w, v), [x])
    torch.testing.assert_close(found, torch.autograd.grad(((x @ w).relu() @ v).sum(), [x]))
    (made,) = compilation_of(compiled).partial_backwards
    assert "for inputs 0" in made.name and len(made.log.aten.outputs) == 1
    x.grad = None
    compiled(x, w, v).backward(inputs=[x])
    assert torch.equal(x.grad, found[0]) and len(compilation_of(compiled).partial_backwards) == 1


@pytest.mark.parametrize("chosen", [(0,), (1,), (0, 1), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("upstream", [False, True])
@pytest.mark.parametrize("scaled", [effectful_ops.scaled, torch.mul])
def test_each_choice_of_inputs(chosen, upstream, scaled):
    def program(x: Tensor, w: Tensor, v: Tensor) -> Any:
        shared = scaled(x, 3.0) @ w
        return shared.tanh() * 2, scaled(v, 0.5).exp(), shared + v

    def outcome(run: Any, asked: tuple[int, ...]) -> Any:
        torch.manual_seed(0)
        found = list[Any]()
        for _ in range(2):
            leaves = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
            results = run(*[leaf.sin() for leaf in leaves] if upstream else leaves)
            loss = sum(results[k].square().sum() for k in chosen)
            of = [leaves[k] for k in asked]
            effectful_ops.LOG.clear()
            found.append(torch.autograd.grad(loss, of, retain_graph=True, allow_unused=True))
            found.append([name for name, _ in effectful_ops.LOG])
            if not effectful_ops.LOG:  # whose gradients are not differentiable
                again = torch.autograd.grad(loss, of, create_graph=True, allow_unused=True)
                found.append([g is None or g.requires_grad for g in again])
            loss.backward(inputs=of, retain_graph=True)
            found.append([leaf.grad for leaf in leaves])
            loss.backward()
            found.append([leaf.grad for leaf in leaves])
        return found

    compiled = whole(program)
    choices = [c for n in (1, 2, 3) for c in itertools.combinations(range(3), n)]
    for asked in choices + choices[::-1]:
        assert alike(outcome(program, asked), outcome(compiled, asked)), asked


def test_inputs_asked_for_one_by_one_share_a_program():
    """A backward for each choice of inputs would be compiled for every parameter of a model."""
    count = 3 * backwards.MOST_CHOICES

    def program(*leaves: Tensor) -> Tensor:
        return sum(leaf.sin() * k for k, leaf in enumerate(leaves)).sum()  # type: ignore[union-attr]

    compiled, leaves = ingot.compile(program, fullgraph=True), [wanted(3) for _ in range(count)]
    loss = compiled(*leaves)
    for k, leaf in enumerate(leaves):
        (found,) = torch.autograd.grad(loss, [leaf], retain_graph=True)
        torch.testing.assert_close(found, leaf.detach().cos() * k)
    assert len(compilation_of(compiled).partial_backwards) == backwards.MOST_CHOICES
