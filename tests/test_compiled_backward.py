"""`ingot.compiled_backward`: a backward over graph breaks is one graph, and does what eager's
does."""

from __future__ import annotations

import contextlib
import copy
import threading

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import Unsupported


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    ingot.reset()
    yield
    ingot.reset()


@ingot.disable
def pause():
    """A graph break."""


class Net(nn.Module):
    """Three layers, with a graph break behind each but the last as `breaks` says."""

    def __init__(self, breaks=2):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 10), nn.Linear(10, 8), nn.Linear(8, 3)
        self.breaks = breaks

    def forward(self, x):
        x = torch.tanh(self.first(x))
        if self.breaks > 0:
            pause()
        x = nn.functional.gelu(self.second(x))
        if self.breaks > 1:
            pause()
        x = x * torch.sigmoid(x)
        if self.breaks > 2:
            pause()
        return self.third(x)


def pair(breaks=2):
    """A compiled module and its like in eager."""
    eager = Net(breaks)
    return ingot.compile(copy.deepcopy(eager)), eager


def same_gradients(compiled, eager):
    for (name, p), q in zip(compiled.named_parameters(), eager.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, msg=name)
            assert p.grad.stride() == q.grad.stride(), name


def reasons():
    return [
        str(c.skipped.reason)
        for c in ingot.compiled_backward.report().compilations
        if c.skipped is not None
    ]


def graphs():
    """How many backward graphs were compiled; none may have been left to eager."""
    report = ingot.compiled_backward.report()
    assert not reasons()
    return report.graph_count


@pytest.mark.parametrize("breaks", [0, 1, 2, 3])
def test_one_graph_over_breaks(breaks):
    compiled, eager = pair(breaks)
    for _ in range(3):
        x = torch.randn(5, 6)
        with ingot.compiled_backward():
            compiled(x).square().mean().backward()
        eager(x).square().mean().backward()
        same_gradients(compiled, eager)
        compiled.zero_grad()
        eager.zero_grad()
    assert ingot.explain(compiled)(x).graph_count == breaks + 1
    assert graphs() == 1


def test_accumulates_in_place():
    compiled, eager = pair()
    for step in range(4):
        x = torch.randn(5, 6)
        with ingot.compiled_backward():
            compiled(x).sin().sum().backward()
        eager(x).sin().sum().backward()
        same_gradients(compiled, eager)
        if step == 0:
            before = [p.grad for p in compiled.parameters()]
            versions = [g._version for g in before]
    assert all(p.grad is g for p, g in zip(compiled.parameters(), before))
    assert all(g._version > v for g, v in zip(before, versions))
    assert graphs() == 2  # that sets gradients, and that adds to them


def test_other_sizes():
    compiled, eager = pair()
    for size in (5, 7, 4, 9, 5, 3):
        x = torch.randn(size, 6)
        with ingot.compiled_backward():
            compiled(x).sum().backward()
        eager(x).sum().backward()
        same_gradients(compiled, eager)
        compiled.zero_grad()
        eager.zero_grad()
    assert graphs() == 2


def test_eager_alone():
    """No entry of Ingot's need be there."""
    eager = Net()
    other = copy.deepcopy(eager)
    x = torch.randn(5, 6)
    with ingot.compiled_backward():
        eager(x).square().sum().backward()
    other(x).square().sum().backward()
    same_gradients(eager, other)
    assert graphs() == 1


def test_second_backward_raises():
    compiled, _ = pair()
    loss = compiled(torch.randn(5, 6)).sum()
    with ingot.compiled_backward():
        loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    with (
        pytest.raises(RuntimeError, match="backward through the graph a second time"),
        ingot.compiled_backward(),
    ):
        loss.backward()


def test_retain_graph():
    compiled, eager = pair()
    x = torch.randn(5, 6)
    ours, theirs = compiled(x).square().sum(), eager(x).square().sum()
    for keep in (True, True, False):
        with ingot.compiled_backward():
            ours.backward(retain_graph=keep)
        theirs.backward(retain_graph=keep)
        same_gradients(compiled, eager)
    assert graphs() == 2
    with pytest.raises(RuntimeError, match="second time"):
        ours.backward()


def test_grad():
    compiled, eager = pair()
    x = torch.randn(5, 6, requires_grad=True)
    unused = torch.randn(3, requires_grad=True)
    with ingot.compiled_backward():
        found = torch.autograd.grad(
            compiled(x).cos().sum(), [x, compiled.second.weight, unused], allow_unused=True
        )
    expected = torch.autograd.grad(
        eager(x).cos().sum(), [x, eager.second.weight, unused], allow_unused=True
    )
    assert found[2] is None and expected[2] is None
    torch.testing.assert_close(found[:2], expected[:2])
    assert all(p.grad is None for p in compiled.parameters())
    assert graphs() == 1
    with pytest.raises(RuntimeError, match="not have been used"), ingot.compiled_backward():
        torch.autograd.grad(compiled(x).sum(), [x, unused])


def test_inputs_of_backward():
    compiled, eager = pair()
    x = torch.randn(5, 6)
    with ingot.compiled_backward():
        compiled(x).sum().backward(inputs=[compiled.second.weight])
    eager(x).sum().backward(inputs=[eager.second.weight])
    same_gradients(compiled, eager)
    assert graphs() == 1


def test_several_heads_and_tied_weights():
    compiled, eager = pair()
    compiled.third.weight, eager.third.weight = [
        nn.Parameter(m.first.weight.detach()[:3, :1].repeat(1, 8)) for m in (compiled, eager)
    ]
    x = torch.randn(5, 6)
    g = torch.randn(5, 3)
    for m in (compiled, eager):
        with ingot.compiled_backward() if m is compiled else contextlib.nullcontext():
            y = m(x)
            torch.autograd.backward([y @ m.third.weight, y], [torch.ones(5, 8), g])
    same_gradients(compiled, eager)
    assert graphs() == 1


def test_gradients_do_not_share_memory():
    a, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    g = torch.randn(4)
    with ingot.compiled_backward():
        (a + b).backward(g)
    assert graphs() == 1
    assert len({a.grad.data_ptr(), b.grad.data_ptr(), g.data_ptr()}) == 3
    assert torch.equal(a.grad, g) and torch.equal(b.grad, g)


def test_constants_of_nodes_are_told_apart():
    """What a node keeps beside tensors is not in any input of the graph."""
    x = torch.randn(4, 3, requires_grad=True)
    for make in (
        lambda: x * 2,
        lambda: x * 3,
        lambda: x.sum(0),
        lambda: x.sum(1),
        lambda: x**2,
        lambda: x**3.0,
    ):
        x.grad = None
        with ingot.compiled_backward():
            make().sum().backward()
        (expected,) = torch.autograd.grad(make().sum(), x)
        torch.testing.assert_close(x.grad, expected)
    assert graphs() == 6


def test_conditions_of_no_dimensions():
    x = torch.randn(4, requires_grad=True)
    for flag in (True, False, True):
        x.grad = None
        with ingot.compiled_backward():
            torch.where(torch.tensor(flag), x, 2 * x.detach()).sum().backward()
        assert torch.equal(x.grad, torch.full((4,), float(flag)))
    assert graphs() == 2


def test_same_tensor_twice_in_a_node():
    x, y = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    with ingot.compiled_backward():
        (x * x).sum().backward()
        (x * y).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() + y.detach())
    torch.testing.assert_close(y.grad, x.detach())


def test_what_is_left_to_eager():
    x = torch.randn(4, requires_grad=True)
    with ingot.compiled_backward():
        (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        assert g.requires_grad
        torch.as_strided(x, (2,), (2,)).sum().backward()
    text = " ".join(reasons())
    for part in ("create_graph", "AsStrided"):
        assert part in text
    assert all(
        isinstance(c.skipped, Unsupported) for c in ingot.compiled_backward.report().compilations
    )


def test_sparse_gradients_are_eagers():
    table = torch.nn.Embedding(5, 3, sparse=True)
    with ingot.compiled_backward():
        table(torch.tensor([1, 1])).sum().backward()
    assert table.weight.grad.is_sparse and torch.equal(
        table.weight.grad.to_dense()[1], torch.full((3,), 2.0)
    )
    assert "sparse gradient" in reasons()[0]


def test_outside_it_is_eager():
    compiled, _ = pair()
    with ingot.compiled_backward():
        pass
    compiled(torch.randn(5, 6)).sum().backward()
    with pytest.raises(ValueError, match="nothing was compiled"):
        ingot.compiled_backward.report()


def test_hooks_on_tensors():
    """Of a leaf, of an entry's result and of an operation's; functions made anew at each step take
    the same graph."""
    compiled, eager = pair()
    for _ in range(3):
        x = torch.randn(5, 6)
        for m in (compiled, eager):
            with ingot.compiled_backward() if m is compiled else contextlib.nullcontext():
                y = m(x).sin()
                y.register_hook(lambda g: g * 2)
                y.register_hook(lambda g: g.clamp(-0.5, 0.5))
                z = y.exp()
                z.register_hook(lambda g: None)
                handle = m.first.weight.register_hook(lambda g: g / g.norm())
                z.sum().backward()
                handle.remove()
        same_gradients(compiled, eager)
    assert graphs() == 2


@pytest.mark.parametrize("accumulates", [True, False])
def test_results_that_retain_their_gradients(accumulates):
    """Of an entry, of operations, of one of several results of an operation, with hooks; a second
    time they add up."""
    compiled, eager = pair()
    for _ in range(2):
        x, found = torch.randn(5, 6), []
        for m in (compiled, eager):
            with ingot.compiled_backward() if m is compiled else contextlib.nullcontext():
                y = m(x)
                a, b, c = y.sin().unbind(1)
                kept = [y, b, c, y.exp().t(), a * 2]
                for t in kept:
                    t.retain_grad()
                b.register_hook(lambda g: g * 3)
                gone = y.cos()
                gone.retain_grad()
                loss = sum(t.square().sum() for t in kept) + gone.sum()
                del gone
                for k in range(2):
                    if accumulates:
                        loss.backward(retain_graph=k == 0)
                        grads = []
                    else:
                        grads = torch.autograd.grad(loss, [m.first.weight, c], retain_graph=k == 0)
                    found.append(
                        (grads, [t.grad.clone() for t in kept], [t.grad.stride() for t in kept])
                    )
        torch.testing.assert_close(found[:2], found[2:])
        same_gradients(compiled, eager)
    assert graphs() == 1 + accumulates


def test_hooks_read_what_is_around_them():
    compiled, eager = pair()
    for scale in (2.0, 2.0, 3.0):
        x, mask = torch.randn(5, 6), torch.randn(5, 3)
        for m in (compiled, eager):
            with ingot.compiled_backward() if m is compiled else contextlib.nullcontext():
                y = m(x)
                y.register_hook(lambda g: g * mask + scale)  # noqa: B023
                y.sum().backward()
        same_gradients(compiled, eager)
        compiled.zero_grad()
        eager.zero_grad()
    assert graphs() == 2  # for each scale


def test_hooks_with_effects_run_in_eager():
    compiled, eager = pair()
    seen = []
    x = torch.randn(5, 6)
    for m in (compiled, eager):
        with ingot.compiled_backward() if m is compiled else contextlib.nullcontext():
            y = m(x)
            y.register_hook(seen.append)
            y.sum().backward()
    same_gradients(compiled, eager)
    assert len(seen) == 2 and all(type(g) is torch.Tensor for g in seen) and torch.equal(*seen)
    assert any("append" in reason for reason in reasons())


def test_hooks_after_accumulation():
    compiled, eager = pair()
    order = {True: [], False: []}
    for m in (compiled, eager):
        names = {p: name for name, p in m.named_parameters()}
        with ingot.compiled_backward() if m is compiled else contextlib.nullcontext():
            for p in m.parameters():

                def update(p, m=m, names=names):
                    order[m is compiled].append(names[p])
                    with torch.no_grad():
                        p.sub_(0.1 * p.grad)
                    p.grad = None

                p.register_post_accumulate_grad_hook(update)
            for step in range(3):
                torch.manual_seed(step)
                m(torch.randn(5, 6)).square().sum().backward()
    for p, q in zip(compiled.parameters(), eager.parameters()):
        torch.testing.assert_close(p, q)
        assert p.grad is None and q.grad is None
    assert sorted(order[True]) == sorted(order[False]) and len(order[True]) == 18
    assert graphs() == 1


def test_hooks_of_nodes():
    compiled, eager = pair()
    for _ in range(2):
        x = torch.randn(5, 6)
        for m in (compiled, eager):
            with ingot.compiled_backward() if m is compiled else contextlib.nullcontext():
                y = m(x)
                z = y * y.detach()
                z.grad_fn.register_hook(lambda made, came: (made[0] * came[0], None))
                z.grad_fn.register_prehook(lambda came: (came[0] + 1,))
                y.grad_fn.register_prehook(lambda came: (came[0] * 2, *came[1:]))
                z.sum().backward()
        same_gradients(compiled, eager)
    assert graphs() == 2


def test_hooks_of_modules():
    """The module that has them is called in eager, between compiled ones."""
    first, last = nn.Linear(6, 6), nn.Linear(6, 2)
    middle = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    for scale in (1.0, 2.0):
        middle.register_full_backward_hook(
            lambda m, made, came, scale=scale: (made[0] * scale + came[0].sum(),)
        )
    middle.register_full_backward_pre_hook(lambda m, came: (came[0] * m[0].bias.mean(),))
    eager = copy.deepcopy([first, middle, last])
    compiled = [ingot.compile(first), middle, ingot.compile(last)]
    for step in range(3):
        x = torch.randn(5, 6)
        for parts in (compiled, eager):
            y = x
            for part in parts:
                y = part(y)
            with ingot.compiled_backward() if parts is compiled else contextlib.nullcontext():
                y.sin().sum().backward()
        for ours, theirs in zip(compiled, eager):
            same_gradients(ours, theirs)
            if step == 1:
                ours.zero_grad()
                theirs.zero_grad()
    assert graphs() == 2


def test_a_hook_of_a_gone_tensor_and_its_removal():
    x = torch.randn(4, requires_grad=True)

    def forward():
        y = x.sin()
        return y.exp(), y.register_hook(lambda g: g * 5)

    for remove in (False, True):
        found = []
        for compiled in (True, False):
            z, handle = forward()
            if remove:
                handle.remove()
            with ingot.compiled_backward() if compiled else contextlib.nullcontext():
                found.append(torch.autograd.grad(z.sum(), x)[0])
        torch.testing.assert_close(*found)
    assert graphs() == 2


def test_a_leaf_that_requires_no_gradient_any_more():
    compiled, eager = pair()
    x = torch.randn(5, 6)
    for m in (compiled, eager):
        y = m(x).sum()
        m.second.weight.requires_grad_(False)
        with ingot.compiled_backward() if m is compiled else contextlib.nullcontext():
            y.backward()
    same_gradients(compiled, eager)
    assert compiled.second.weight.grad is None and graphs() == 1


def test_threads_have_contexts_of_their_own():
    compiled, eager = pair()
    x = torch.randn(5, 6)
    with ingot.compiled_backward():
        other = threading.Thread(target=lambda: compiled(x).sum().backward())
        other.start()
        other.join()
    eager(x).sum().backward()
    same_gradients(compiled, eager)
    with pytest.raises(ValueError, match="nothing was compiled"):
        ingot.compiled_backward.report()
