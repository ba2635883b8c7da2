"""Programs of many layers that are alike: a few of them are traced and scheduled, and the plan that
is made longer is that of all; what is computed is what eager computes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot
from ingot import schedule
from ingot.compilation import Log
from ingot.compiler import Compiler
from ingot.graph import layers
from ingot.loops import layers as layers_of_loops
from ingot.schedule.kernel import anonymous
from ingot.schedule.plan import KernelStep
from tests.layered_programs import layered_program

MANY = 11
X = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))


def weights(count: int, *sizes: tuple[int, ...]) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    result = []
    for _ in range(count):
        result.append([torch.randn(size, generator=generator) / 4 for size in sizes])
    return result


def log_of(fn: Callable[..., Any], *args: Any) -> Log:
    """What was written down when a call was compiled, which gives what eager gives."""
    compiled = ingot.compile(fn, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(*args), fn(*args), rtol=1e-4, atol=1e-5)
    compiler: Compiler = Compiler.of(compiled)
    return compiler.compilations[-1].log


def is_shorter(log: Log) -> bool:
    """Whether the plan was made from some of the layers."""
    return log.plan is not None and log.plan.graph.layers is not None


def shape_of(log: Log) -> list[Any]:
    """What each step of a plan does, and to which buffers, numbered by their first use."""
    assert log.plan is not None
    numbers: dict[str, int] = {}
    graph, result = log.plan.graph, []
    for k, name in enumerate(graph.inputs):
        numbers[name] = k
    for step in log.plan.steps:
        if isinstance(step, KernelStep):
            names = [numbers.setdefault(name, len(numbers)) for name in step.arguments]
            result.append((anonymous(step.kernel, True), names, step.extent, step.offsets))
        else:
            reads = [numbers[name] for name in sorted(step.node.reads(), key=numbers.__getitem__)]
            for name in filter(None, step.node.targets):
                numbers.setdefault(name, len(numbers))
            result.append((step.node.function, reads, len(step.node.targets)))
    return [*result, [numbers[view.buffer] for view in graph.outputs]]  # type: ignore[union-attr]


def residual(x, blocks):
    for w, b in blocks:
        x = x + torch.relu(F.linear(x, w, b))
    return x.sum(-1)


def norms(x, blocks):
    for w, b in blocks:
        x = F.layer_norm(x, (16,), b, b) @ w
    return x


def two_states(x, blocks):
    y = x.cos()
    for w, b in blocks:
        x, y = y @ w, x + b
    return x, y


def each_is_returned(x, blocks):
    seen = []
    for w, b in blocks:
        x = torch.tanh(x @ w + b)
        seen.append(x)
    return [x.sum(), *seen]


def sums_are_returned(x, blocks):
    sums = []
    for w, b in blocks:
        x = torch.tanh(x @ w + b)
        sums.append(x.sum(0))
    return sums, x


def a_mask_for_all(x, blocks):
    mask = torch.ones(6, 6).tril().log()
    for w, b in blocks:
        x = torch.softmax(x @ x.T + mask, -1) @ (x @ w) + b
    return x


def pairs(x, blocks):
    for k, (w, b) in enumerate(blocks):
        x = x + torch.relu(x @ w) if k % 2 else x * torch.sigmoid(x @ w + b)
    return x


def one_weight(x, blocks):
    w, b = blocks[0]
    for _ in blocks:
        x = torch.tanh(x @ w + b)
    return x


def alone(x, blocks):
    """What is handed on and looks at nothing of a layer's may be computed anywhere."""
    doubled = X.exp()
    for w, b in blocks:
        x = x + torch.relu(F.linear(x, w, b))
        doubled = doubled * 1.25 + X
    return x, doubled


def alone_in_place(x, blocks):
    doubled = X.exp()
    for w, b in blocks:
        x = x + torch.relu(F.linear(x, w, b))
        doubled.mul_(1.25)
    return x, doubled


def in_place(x, blocks):
    x = x.clone()
    for w, _ in blocks:
        x.add_(torch.relu(x @ w))
        x[:, 0].mul_(0.5)
    return x


def all_are_added_at_once(x, blocks):
    """Which a kernel at the end does for all of them."""
    for w, _ in blocks:
        x = torch.tanh(X @ w) + x * 0.5
    return torch.sigmoid(x), x


def what_went_in(x, blocks):
    first = x.exp()
    y = first
    for w, b in blocks:
        y = torch.tanh(y @ w + b)
    return y + first


def dead_weights(x, blocks):
    for w, b in blocks:
        x = torch.tanh(x @ w)
        b + 1
    return x


ALIKE = [
    residual,
    norms,
    each_is_returned,
    sums_are_returned,
    a_mask_for_all,
    dead_weights,
]


@pytest.mark.parametrize("fn", ALIKE)
def test_the_longer_plan_is_that_of_all_layers(fn, monkeypatch):
    blocks = weights(MANY, (16, 16), (16,))
    short = log_of(fn, X, blocks)
    assert is_shorter(short)
    monkeypatch.setattr(layers, "FEWEST", 99)
    ingot.reset()
    whole = log_of(fn, X, blocks)
    assert not is_shorter(whole)
    assert shape_of(short) == shape_of(whole)


@pytest.mark.parametrize("fn", [residual, each_is_returned, norms])
@pytest.mark.parametrize("count", [1, 7, 9, 24])
def test_any_number_of_layers(fn, count):
    log = log_of(fn, X, weights(count, (16, 16), (16,)))
    assert is_shorter(log) == (count > layers.FEWEST)


def test_layers_of_several_kinds_in_turn():
    assert is_shorter(log_of(pairs, X, weights(20, (16, 16), (16,))))


def the_third_is_returned(x, blocks):
    third = x
    for k, (w, b) in enumerate(blocks):
        x = torch.tanh(x @ w + b)
        if k == 3:
            third = x
    return x, third


def a_layer_reads_two(x, blocks):
    before = x
    for w, _ in blocks:
        x, before = torch.tanh(x @ w + before), x
    return x


def the_behind_reads_a_weight(x, blocks):
    for w, b in blocks:
        x = torch.tanh(x @ w + b)
    return x @ blocks[4][0]


def the_before_reads_weights(x, blocks):
    scales = [b.sum() for _, b in blocks]
    for (w, b), scale in zip(blocks, scales):
        x = torch.tanh(x @ w + b) * scale
    return x


def all_are_joined(x, blocks):
    seen = []
    for w, b in blocks:
        x = torch.tanh(x @ w + b)
        seen.append(x)
    return torch.stack(seen)


def they_count(x, blocks):
    for k, (w, b) in enumerate(blocks):
        x = torch.tanh(x @ w + b) * (1 + k / 8)
    return x


def later_weights_are_read(x, blocks):
    for k in range(len(blocks) - 1):
        x = torch.tanh(x @ blocks[k][0] + blocks[k + 1][1])
    return x


def weights_go_backwards(x, blocks):
    for (w, _), (_, b) in zip(blocks, reversed(blocks)):
        x = torch.tanh(x @ w + b)
    return x


def weights_are_written(x, blocks):
    for w, b in blocks:
        x = torch.tanh(x @ w + b)
        b.mul_(0.5)
    return x


def results_are_weights(x, blocks):
    for w, b in blocks:
        x = torch.tanh(x @ w + b)
    return x, [w for w, _ in blocks]


def random_numbers(x, blocks):
    for w, b in blocks:
        x = F.dropout(x @ w + b, 0.5)
    return x


@pytest.mark.parametrize(
    "fn",
    [
        the_third_is_returned,
        a_layer_reads_two,
        two_states,
        one_weight,
        alone,
        alone_in_place,
        all_are_added_at_once,
        in_place,
        the_behind_reads_a_weight,
        the_before_reads_weights,
        all_are_joined,
        they_count,
        later_weights_are_read,
        weights_go_backwards,
        what_went_in,
        results_are_weights,
    ],
)
def test_what_is_not_known_to_be_alike_is_right(fn):
    log_of(fn, X, weights(MANY, (16, 16), (16,)))


def test_weights_that_share_memory():
    together = torch.randn(MANY, 16, 16, generator=torch.Generator().manual_seed(1)) / 4
    blocks = [[w, w[0]] for w in together]
    assert not is_shorter(log_of(residual, X, blocks))


def test_weights_that_are_written():
    ours, theirs = weights(MANY, (16, 16), (16,)), weights(MANY, (16, 16), (16,))
    compiled = ingot.compile(weights_are_written, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(X, ours), weights_are_written(X, theirs))
        torch.testing.assert_close(ours, theirs)


def test_random_numbers_come_in_order():
    blocks = weights(MANY, (16, 16), (16,))
    compiled = ingot.compile(random_numbers, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = random_numbers(X, blocks)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(X, blocks), expected)


class Convolutional(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.mean((2, 3))


def test_convolutions():
    torch.manual_seed(0)
    model = Convolutional(MANY).eval()
    assert is_shorter(log_of(model, torch.randn(2, 8, 7, 7)))


def test_weights_may_change_behind_the_compilation():
    blocks = weights(MANY, (16, 16), (16,))
    compiled = ingot.compile(residual, fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(X, blocks), residual(X, blocks))
        for w, _ in blocks:
            w.mul_(0.9)
    others = weights(MANY + 1, (16, 16), (16,))
    torch.testing.assert_close(compiled(X, others), residual(X, others))


def test_reports_show_all_layers():
    log = log_of(residual, X, weights(MANY, (16, 16), (16,)))
    assert is_shorter(log)
    log.complete()
    assert log.aten is not None and log.loops is not None
    assert len(log.aten.inputs) == len(log.loops.inputs) == 1 + 2 * MANY
    assert log.compile_again is None


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    fn, args = layered_program(seed)
    compiled = ingot.compile(fn, fullgraph=True)
    with torch.no_grad():
        eagers, exact = fn(*args), fn(*in_double(args))
        for _ in range(2):
            assert_as_exact(compiled(*args), eagers, exact)


def test_many_random_programs_have_layers_that_are_alike():
    short = 0
    for seed in range(100, 108):
        fn, args = layered_program(seed)
        short += is_shorter(log_of(fn, *args))
    assert short >= 2


# -- gradients -------------------------------------------------------------------------------------


def a_block(x, w, b):
    return x + F.gelu(F.layer_norm(x, (16,), b, b) @ w) @ w.T


def blocks(x, blocks):
    for w, b in blocks:
        x = a_block(x, w, b)
    return x


def blocks_and_their_mean(x, blocks):
    for w, b in blocks:
        x = a_block(x, w, b)
    return x.mean(), x


def blocks_behind_an_embedding(x, blocks):
    x = torch.sin(x @ x.T @ x)
    for w, b in blocks:
        x = a_block(x, w, b)
    return torch.log_softmax(x @ x.T / 64, -1)


def blocks_with_dropout(x, blocks):
    for w, b in blocks:
        x = F.dropout(a_block(x, w, b), 0.25)
    return x


TRAINED = [blocks, blocks_and_their_mean, blocks_behind_an_embedding, blocks_with_dropout]


def trained(count: int, frozen: frozenset[int] = frozenset()) -> list[list[Tensor]]:
    result = []
    for own in weights(count, (16, 16), (16,)):
        result.append([t.requires_grad_(k not in frozen) for k, t in enumerate(own)])
    return result


def gradients(fn: Any, x: Tensor, blocks: list[list[Tensor]], choose: Any) -> list[Any]:
    torch.manual_seed(3)
    results = fn(x, blocks)
    loss = choose(results if isinstance(results, tuple) else (results,))
    leaves = [t for t in (x, *sum(blocks, [])) if t.requires_grad]
    return [loss, *torch.autograd.grad(loss, leaves, allow_unused=True)]


def last_squared(results: tuple[Tensor, ...]) -> Tensor:
    return results[-1].square().sum()


def all_squared(results: tuple[Tensor, ...]) -> Tensor:
    return sum((result.square().sum() for result in results), torch.zeros(()))


def logs_of_training(fn: Any, *args: Any, choose: Any = last_squared) -> tuple[Log, Log]:
    """What was written down of the forward and the backward, whose gradients are eager's."""
    compiled = ingot.compile(fn, fullgraph=True)
    expected = gradients(fn, *args, choose)
    for _ in range(2):
        torch.testing.assert_close(
            gradients(compiled, *args, choose), expected, rtol=1e-4, atol=1e-4
        )
    compilation = Compiler.of(compiled).compilations[-1]  # type: ignore[union-attr]
    assert compilation.skipped is None and compilation.backward is not None
    parts = [compilation.backward, *compilation.partial_backwards]
    return compilation.log, [part.log for part in parts if part.log.plan is not None][-1]


@pytest.mark.parametrize("choose", [last_squared, all_squared])
@pytest.mark.parametrize("fn", TRAINED)
def test_forward_and_backward_are_those_of_all_layers(fn, choose, monkeypatch):
    args = X, trained(MANY)
    short = logs_of_training(fn, *args, choose=choose)
    assert all(map(is_shorter, short))
    monkeypatch.setattr(layers, "FEWEST", 99)
    ingot.reset()
    whole = logs_of_training(fn, *args, choose=choose)
    assert not any(map(is_shorter, whole))
    for one, other in zip(short, whole):
        assert one.plan is not None and other.plan is not None
        assert len(one.plan.steps) == len(other.plan.steps)
        assert one.plan.peak_bytes is other.plan.peak_bytes


@pytest.mark.parametrize("frozen", [frozenset({0}), frozenset({1})], ids=str)
def test_some_weights_have_no_gradients(frozen):
    assert all(map(is_shorter, logs_of_training(blocks, X, trained(MANY, frozen))))


def test_some_layers_have_no_gradients():
    args = [*trained(4, frozenset({0, 1})), *trained(MANY)]
    logs_of_training(blocks, X, args)


def test_the_input_has_a_gradient():
    x = X.clone().requires_grad_()
    assert all(map(is_shorter, logs_of_training(blocks, x, trained(MANY))))
    logs_of_training(blocks, x, trained(MANY, frozenset({0, 1})))


def test_gradients_of_some_inputs():
    own = trained(MANY)
    compiled = ingot.compile(blocks, fullgraph=True)
    for wanted in ([own[3][0]], [own[0][1], own[-1][0]], [own[5][1], own[5][0]]):
        for _ in range(2):
            ours = torch.autograd.grad(compiled(X, own).square().sum(), wanted)
            theirs = torch.autograd.grad(blocks(X, own).square().sum(), wanted)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_gradients_of_gradients():
    own = trained(MANY)
    compiled = ingot.compile(blocks, fullgraph=True)
    results = []
    for fn in (compiled, blocks):
        first = torch.autograd.grad(fn(X, own).square().sum(), own[2], create_graph=True)
        norm = sum(g.square().sum() for g in first)
        results.append((first, torch.autograd.grad(norm, sum(own, []))))
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-3)


def test_gradients_of_a_batch_of_tangents():
    own = trained(MANY)
    tangents = torch.randn(3, *X.shape)
    results = []
    for fn in (ingot.compile(blocks, fullgraph=True), blocks):
        wanted = [own[0][0], own[7][1]]
        got = torch.autograd.grad(fn(X, own), wanted, tangents, is_grads_batched=True)
        results.append(got)
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)


def test_a_backward_that_cannot_be_built_has_all_layers(monkeypatch):
    """What it falls back to is the graph with all of them."""
    own = trained(MANY)
    compiled = ingot.compile(blocks, fullgraph=True)
    result = compiled(X, own)
    compilation = Compiler.of(compiled).compilations[-1]  # type: ignore[union-attr]
    assert is_shorter(compilation.log)

    def refuse(*args: Any) -> Any:
        raise layers_of_loops.NotAlike("for once")

    monkeypatch.setattr(schedule, "with_all_layers", refuse)
    ours = torch.autograd.grad(result.square().sum(), sum(own, []))
    theirs = torch.autograd.grad(blocks(X, own).square().sum(), sum(own, []))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_reports_of_training_show_all_layers():
    for log in logs_of_training(blocks, X, trained(MANY)):
        log.complete()
        assert log.aten is not None and log.plan is not None
        assert len(log.aten.inputs) == len(log.plan.graph.inputs) > MANY


def in_double(tree: Any) -> Any:
    if isinstance(tree, list):
        return list(map(in_double, tree))
    if isinstance(tree, dict):
        return {key: in_double(value) for key, value in tree.items()}
    return tree.detach().double().requires_grad_(tree.requires_grad)


def assert_as_exact(ours: Any, eagers: Any, exact: Any) -> None:
    """Ours are about as near to what is exact as eager's; some programs make errors grow."""
    for mine, its, right in zip(ours, eagers, exact, strict=True):
        assert (mine is None) == (right is None)
        if right is not None and its.isfinite().all():
            error = (its - right).abs().max()
            assert (mine - right).abs().max() <= 60 * error + 2e-5 * right.abs().max() + 1e-6


@pytest.mark.parametrize("seed", range(1000, 1060))
def test_random_programs_are_trained(seed):
    of = random.Random(seed)
    fn, args = layered_program(seed)
    wanted = of.choice(["all", "all", "matrices", "x"])
    for leaf in leaves_of(args):
        is_matrix = leaf.shape[0] == leaf.shape[1] if leaf.dim() == 2 else False
        leaf.requires_grad_(wanted == "all" or (wanted == "matrices" and is_matrix))
    args[0].requires_grad_()
    used, some = of.choice([1, -1, None]), of.random() < 0.3

    def results_of(function: Any, args: Any) -> list[Any]:
        results = function(*args)
        tracked = [result for result in results[:used] if result.requires_grad]
        if not tracked:
            return [*results]
        leaves = [leaf for leaf in leaves_of(args) if leaf.requires_grad][:: 1 + some]
        loss = sum(result.sin().sum() for result in tracked)
        return [
            *results,
            *torch.autograd.grad(loss, leaves, allow_unused=True),
        ]

    compiled = ingot.compile(fn, fullgraph=True)
    eagers, exact = results_of(fn, args), results_of(fn, in_double(args))
    for _ in range(2):
        assert_as_exact(results_of(compiled, args), eagers, exact)


def leaves_of(args: Any) -> list[Tensor]:
    x, layers, shared = args
    return [x, shared, *[leaf for own in layers for leaf in own.values()]]


def test_an_attempt_that_comes_to_nothing_leaves_nothing_behind(monkeypatch):
    args = X, weights(MANY, (16, 16), (16,))
    log = log_of(all_are_added_at_once, *args)
    assert not is_shorter(log)
    monkeypatch.setattr(layers, "FEWEST", 99)
    ingot.reset()
    whole = log_of(all_are_added_at_once, *args)
    assert log.decisions == whole.decisions and log.rewrites == whole.rewrites
