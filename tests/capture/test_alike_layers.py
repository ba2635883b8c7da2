"""Layers that are alike are captured once. What is captured of the others is what would have been
captured without that, and a layer that differs in any fact is captured as it is."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ingot
from ingot.capture import Captured, Request, alike_layers, capture_call
from ingot.capture.learnt_calls import LearntCall
from ingot.options import Options
from ingot.rules import hand_over
from tests.compiled import breaks

LAYERS = 6
WIDTH = 8


class Mix(nn.Module):
    """A small layer with a branch on most kinds of facts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.5)
        self.activation: Callable[..., Tensor] = F.gelu
        self.flag, self.scale, self.sizes = False, 0.5, [2, WIDTH]
        self.table = {"shift": 1.0}
        self.register_buffer("shift", torch.full((WIDTH,), 0.1))
        self.register_buffer("absent", None)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.activation(self.up(self.norm(x)))
        gate, value = h.view(-1, *self.sizes).transpose(1, 2).reshape(h.shape).chunk(2, dim=-1)
        gate = torch.cat([gate, value], dim=-1)
        h = self.down(self.dropout(gate)) * self.scale + self.shift * self.table["shift"]
        if self.flag:
            h = h.sin()
        if self.absent is not None:
            h = h + self.absent
        if self.up.bias is None:
            h = h * 2
        if mask is not None:
            h = h * mask
        return x + h


class Stack(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module] = Mix, count: int = LAYERS) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def stack(layer: Callable[[], nn.Module] = Mix, seed: int = 0) -> Stack:
    torch.manual_seed(seed)
    return Stack(layer).eval()


X = torch.linspace(-1, 1, 4 * WIDTH).view(4, WIDTH)


# -- what is captured ------------------------------------------------------------------------------


@pytest.fixture
def repeats(monkeypatch):
    """How many calls were written down."""
    found: list[nn.Module] = []
    repeated = LearntCall.repeated

    def counted(self: Any, session: Any, module: Any, *args: Any) -> Any:
        result = repeated(self, session, module, *args)
        if result is not None:
            found.append(module.object)
        return result

    monkeypatch.setattr(LearntCall, "repeated", counted)
    return found


def captured(fn: Any, args: tuple[Any, ...], options: Options) -> Captured:
    hand_over()
    return capture_call(fn, args, {}, Request(options))


def described(what: Captured) -> list[Any]:
    """All that was captured, to be compared."""
    nodes = []
    for node in what.graph_module.graph.nodes:
        line = node.meta.get("where", "")
        nodes.append((str(node), node.op, str(node.target), str(node.args), str(node.kwargs)))
        nodes.append((line, getattr(line, "call", ""), getattr(line, "module", "")))
        nodes.append(described_value(node.meta.get("val")))
        nodes.append((node.meta.get("stack_trace"), node.meta.get("nn_module_stack")))
    inputs = [(entry.source, described_value(entry.fake)) for entry in what.inputs]
    facts = what.writes, what.handles, what.protects, what.ops
    return [nodes, inputs, facts, sorted(what.guards.texts())]


def described_value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return list(map(described_value, value))
    if not isinstance(value, Tensor):
        return value
    return value.shape, value.stride(), value.dtype, value.device, value.requires_grad


def captured_alike(monkeypatch, fn: Any, *args: Any, options: Options | None = None) -> None:
    """Asserts that a call is captured as it is where no layer is written down."""
    with_repeats, without = captured_twice(monkeypatch, fn, *args, options=options)
    for one, other in zip(with_repeats, without, strict=True):
        assert one == other


def captured_twice(monkeypatch, fn: Any, *args: Any, options: Options | None = None) -> Any:
    """What is captured of a call, and what is where no layer is written down."""
    options = options or Options()
    with_repeats = described(captured(fn, args, options))
    with monkeypatch.context() as patch:
        patch.setattr(alike_layers, "FEWEST_STEPS", 10**9)
        without = described(captured(fn, args, options))
    return with_repeats, without


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_layers_are_written_down_as_they_would_be_captured(monkeypatch, repeats, grad, training):
    model = stack().train(training)
    with torch.set_grad_enabled(grad):
        captured_alike(monkeypatch, model, X)
    assert repeats == list(model.layers[2:])


@pytest.mark.parametrize("grad", [False, True])
def test_backends_are_given_the_same_graph(monkeypatch, repeats, grad):
    options = Options(backend=lambda gm, inputs: gm.forward)
    with torch.set_grad_enabled(grad):
        captured_alike(monkeypatch, stack(), X, options=options)
    assert len(repeats) == LAYERS - 2


def test_arguments_by_name_in_tuples_and_from_outside(monkeypatch, repeats):
    class Layer(Mix):
        def forward(self, x: Tensor, *, pair: Any, mask: Any = None, last: bool = False) -> Any:
            cos, sin = pair
            return super().forward(x * cos + sin, mask), None

    class Model(Stack):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            pair = x.cos(), x.sin()
            for layer in self.layers:
                x, _ = layer(x, pair=pair, mask=mask, last=False)
            return x

    model = Model(Layer)
    with torch.no_grad():
        captured_alike(monkeypatch, model, X, X.abs())
    assert len(repeats) == LAYERS - 2


@pytest.mark.parametrize("grad", [False, True])
def test_results_that_are_views(monkeypatch, repeats, grad):
    class Layer(Mix):
        def forward(self, x: Tensor, mask: Any = None) -> Tensor:
            return super().forward(x, mask).view(2, 2, WIDTH).transpose(0, 1).reshape(4, WIDTH)[:]

    with torch.set_grad_enabled(grad):
        captured_alike(monkeypatch, stack(Layer), X)
    assert len(repeats) == LAYERS - 2


def test_one_layer_that_is_called_again_and_again(monkeypatch, repeats):
    layer = Mix()

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(LAYERS):
                x = layer(x)
            return x

    captured_alike(monkeypatch, Model(), X)
    assert len(repeats) == LAYERS - 2


def test_layers_of_two_kinds_take_turns(monkeypatch, repeats):
    class Other(Mix):
        def forward(self, x: Tensor, mask: Any = None) -> Tensor:
            return super().forward(x, mask).tanh()

    model = stack()
    model.layers = nn.ModuleList([(Mix, Other)[k % 2]() for k in range(8)]).eval()
    captured_alike(monkeypatch, model, X)
    assert repeats == list(model.layers[4:])


def test_autocast(monkeypatch, repeats):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        captured_alike(monkeypatch, stack(), X)
    assert len(repeats) == LAYERS - 2


# -- layers that differ ----------------------------------------------------------------------------


def _hook(layer: Mix) -> None:
    layer.register_forward_hook(lambda module, args, result: result * 3)


def _hook_inside(layer: Mix) -> None:
    layer.up.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def _flag(layer: Mix) -> None:
    layer.flag = True


def _scale(layer: Mix) -> None:
    layer.scale = 0.25


def _item(layer: Mix) -> None:
    layer.sizes[:] = [4, WIDTH // 2]


def _entry(layer: Mix) -> None:
    layer.table["shift"] = 2.0


def _epsilon(layer: Mix) -> None:
    layer.norm.eps = 0.1


def _training(layer: Mix) -> None:
    layer.dropout.train()
    layer.dropout.p = 1.0


def _buffer(layer: Mix) -> None:
    layer.absent = torch.ones(WIDTH)


def _no_bias(layer: Mix) -> None:
    layer.up.bias = None


def _activation(layer: Mix) -> None:
    layer.activation = torch.relu


def _closures(layer: Mix, factor: float = 2.0) -> None:
    layer.activation = lambda x: x * factor


def _patched_forward(layer: Mix) -> None:
    layer.forward = lambda x: x * 2


def _patched_inside(layer: Mix) -> None:
    layer.down.forward = lambda x: x[..., :WIDTH]


def _other_class(layer: Mix) -> None:
    layer.norm = nn.RMSNorm(WIDTH)


def _other_layout(layer: Mix) -> None:
    layer.up.weight = nn.Parameter(layer.up.weight.detach().t().contiguous().t())


def _offset(layer: Mix) -> None:
    weight = layer.up.weight.detach()
    flat = torch.cat([torch.zeros(16), weight.flatten()])
    layer.up.weight = nn.Parameter(flat[16:].view(weight.shape))


def _tied_inside(layer: Mix) -> None:
    layer.norm.bias = nn.Parameter(layer.norm.weight)
    layer.norm.weight = layer.norm.bias


def _shared_memory(layer: Mix) -> None:
    layer.shift = layer.norm.weight.detach()


def _frozen(layer: Mix) -> None:
    layer.up.weight.requires_grad_(False)


def _no_attribute(layer: Mix) -> None:
    Shifted.scale = 0.125
    del layer.scale
    layer.__class__ = Shifted


class Shifted(Mix):
    pass


DIFFERENCES = [
    _hook, _hook_inside, _flag, _scale, _item, _entry, _epsilon, _training, _buffer, _no_bias,
    _activation, _closures, _patched_forward, _patched_inside, _other_class, _other_layout, _offset,
    _tied_inside, _shared_memory, _frozen, _no_attribute,
]  # fmt: skip


@pytest.mark.parametrize("place", [1, 3, LAYERS - 1])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("change", DIFFERENCES, ids=lambda change: change.__name__)
def test_a_layer_that_differs_is_captured_as_it_is(monkeypatch, change, grad, place):
    model = stack()
    change(model.layers[place])
    with torch.set_grad_enabled(grad):
        captured_alike(monkeypatch, model, X)


@pytest.mark.parametrize("change", DIFFERENCES, ids=lambda change: change.__name__)
def test_what_differs_later_is_noticed(change):
    model = stack()
    compiled = ingot.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X))
        change(model.layers[3])
        torch.testing.assert_close(compiled(X), model(X))
        assert breaks(compiled) == 0


def test_a_weight_that_is_tied_to_one_elsewhere(monkeypatch, repeats):
    model = stack()
    model.layers[4].up.weight = model.layers[0].up.weight
    model.layers[5].shift = X[0]
    captured_alike(monkeypatch, model, X)
    compiled = ingot.compile(model)
    x = X.clone()
    torch.testing.assert_close(compiled(x), model(x))
    model.layers[4].up.weight = nn.Parameter(torch.randn(2 * WIDTH, WIDTH))
    torch.testing.assert_close(compiled(x), model(x))


def test_a_shared_object_that_is_written_behind_the_layers(monkeypatch):
    class Model(Stack):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            self.layers[4].table["shift"] += 1.0
            self.layers[3].scale = 2.0
            return x * self.layers[5].table["shift"]

    torch.manual_seed(0)
    model = Model().eval()
    model.layers[5].table = model.layers[4].table
    expected = copy.deepcopy(model)
    with torch.no_grad():
        *with_repeats, guards = captured_twice(monkeypatch, model, X)[0]
        *without, same_guards = captured_twice(monkeypatch, model, X)[1]
        assert with_repeats == without
        # the line of one that is stated for what is written behind the layers is that of the write
        facts, needed = [{t.partition("  (")[0] for t in texts} for texts in (guards, same_guards)]
        assert needed <= facts  # what is one object here was guarded as if there were two
        compiled = ingot.compile(model)
        for _ in range(3):
            torch.testing.assert_close(compiled(X), expected(X))
            assert model.layers[4].table == expected.layers[4].table
        model.layers[5].table, expected.layers[5].table = {"shift": 1.0}, {"shift": 1.0}
        for _ in range(2):
            torch.testing.assert_close(compiled(X), expected(X))
            assert model.layers[5].table == expected.layers[5].table


@pytest.mark.parametrize("write", ["count", "shift", "list"])
def test_layers_with_effects_are_captured_each(monkeypatch, repeats, write):
    seen: list[int] = []

    class Layer(Mix):
        count = 0

        def forward(self, x: Tensor, mask: Any = None) -> Tensor:
            if write == "count":
                self.count += 1
            elif write == "shift":
                self.shift.mul_(0.5)
            else:
                seen.append(len(seen))
            return super().forward(x, mask) * (self.count + len(seen))

    model = stack(Layer)
    expected = copy.deepcopy(model)
    with torch.no_grad():
        captured_alike(monkeypatch, model, X)
        assert not any(type(module) is Layer for module in repeats)
        compiled = ingot.compile(model)
        for _ in range(2):
            result = compiled(X)
            if write == "list":
                assert seen.pop() == LAYERS - 1
                del seen[:]
            torch.testing.assert_close(result, expected(X))
            del seen[:]


def test_what_is_set_before_a_layer_runs_is_read_inside():
    class Model(Stack):
        def forward(self, x: Tensor) -> Tensor:
            for k, layer in enumerate(self.layers):
                layer.scale = k * 0.5
                x = layer(x)
            return x

    torch.manual_seed(0)
    model = Model().eval()
    expected = copy.deepcopy(model)
    with torch.no_grad():
        torch.testing.assert_close(ingot.compile(model)(X), expected(X))


def test_a_layer_that_branches_on_numbers_of_its_argument():
    class Layer(Mix):
        def forward(self, x: Tensor, switch: Any = None) -> Tensor:
            if switch > 0:
                x = x * 2
            return super().forward(x)

    class Model(Stack):
        def __init__(self) -> None:
            super().__init__(Layer)
            self.register_buffer("switches", torch.tensor([1, 1, 1, 0, 1, 0]))

        def forward(self, x: Tensor) -> Tensor:
            for layer, switch in zip(self.layers, self.switches.unbind()):
                x = layer(x, switch)
            return x

    torch.manual_seed(0)
    model = Model().eval()
    compiled = ingot.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X))
        model.switches = 1 - model.switches
        torch.testing.assert_close(compiled(X), model(X))


def test_a_layer_that_asks_how_its_argument_lies(repeats):
    class Layer(Mix):
        def forward(self, x: Tensor, mask: Any = None) -> Tensor:
            if x.is_contiguous():
                x = x * 2
            return super().forward(x)

    class Model(Stack):
        def forward(self, x: Tensor) -> Tensor:
            for k, layer in enumerate(self.layers):
                x = layer(x)
                if k == 3:
                    x = x.t().contiguous().t()
            return x

    torch.manual_seed(0)
    model = Model(Layer).eval()
    with torch.no_grad():
        torch.testing.assert_close(ingot.compile(model)(X), model(X))
    assert repeats[:2] == list(model.layers[2:4]) and model.layers[4] not in repeats


@pytest.mark.parametrize("inside", [False, True])
def test_layers_in_checkpoints(monkeypatch, inside):
    class Layer(Mix):
        def forward(self, x: Tensor, mask: Any = None) -> Tensor:
            if inside:
                return checkpoint(super().forward, x, use_reentrant=False)
            return super().forward(x)

    class Model(Stack):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                if inside:
                    x = layer(x)
                else:
                    x = checkpoint(layer, x, use_reentrant=False)
            return x

    torch.manual_seed(0)
    model, x = Model(Layer).eval(), X.clone().requires_grad_()
    captured_alike(monkeypatch, model, x)
    expected = _gradients(model, x, lambda: model(x).square().sum().backward())
    compiled = ingot.compile(model)
    actual = _gradients(model, x, lambda: compiled(x).square().sum().backward())
    torch.testing.assert_close(actual, expected)


def test_sizes_that_vary():
    model = stack()
    compiled = ingot.compile(model, dynamic=True)
    for rows in (4, 6, 9):
        x = torch.randn(rows, WIDTH)
        torch.testing.assert_close(compiled(x), model(x))


# -- gradients -------------------------------------------------------------------------------------


def _gradients(model: nn.Module, x: Tensor, call: Callable[[], Any]) -> list[Tensor | None]:
    model.zero_grad()
    x.grad = None
    call()
    return [x.grad, *(None if p.grad is None else p.grad.clone() for p in model.parameters())]


def _training_step(model: nn.Module, x: Tensor) -> Tensor:
    loss = model(x).square().sum()
    loss.backward()
    return loss.detach()


def _second_derivatives(model: nn.Module, x: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    loss = gradient.square().sum()
    loss.backward()
    return loss.detach()


def _autocast_step(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = model(x)
    loss = result.float().square().sum()
    loss.backward()
    return loss.detach()


class Smooth(Mix):
    """Differentiable twice, with a parameter that some results do not depend on."""

    def forward(self, x: Tensor, mask: Any = None) -> Tensor:
        h = torch.tanh(self.up(self.norm(x)))
        unused = self.shift.mean() * self.down.bias.detach()
        return x + self.down(h) * self.scale + unused - self.down.bias


def in_any_order(described: Any) -> list[Any]:
    return sorted(sorted(re.split(r", | ", str(one))) for one in described)


@pytest.mark.parametrize("step", [_training_step, _second_derivatives, _autocast_step])
def test_the_graph_differentiates_through_layers(monkeypatch, repeats, step):
    model = stack(Smooth)
    model.layers[3].up.weight.requires_grad_(False)
    x = X.clone().requires_grad_()
    expected = _gradients(model, x, lambda: step(model, x))
    # autograd reaches the leaves in another order, in which their gradients become inputs
    with_repeats, without = captured_twice(monkeypatch, step, model, x)
    for one, other in zip(with_repeats[1:], without[1:], strict=True):
        assert in_any_order(one) == in_any_order(other)
    assert len(repeats) == LAYERS - 3
    compiled = ingot.compile(step, fullgraph=True)
    for actual, wanted in zip(_gradients(model, x, lambda: compiled(model, x)), expected):
        assert (actual is None) == (wanted is None)
        if actual is not None:
            assert (actual - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_gradients_of_a_compiled_model():
    model = stack()
    x = X.clone().requires_grad_()
    expected = _gradients(model, x, lambda: model(x).square().sum().backward())
    compiled = ingot.compile(model)
    actual = _gradients(model, x, lambda: compiled(x).square().sum().backward())
    torch.testing.assert_close(actual, expected)


def test_a_break_behind_and_within_the_layers(monkeypatch):
    class Model(Stack):
        def forward(self, x: Tensor) -> Tensor:
            for k, layer in enumerate(self.layers):
                x = layer(x)
                if k == 4:
                    torch._dynamo.graph_break()
            return x

    torch.manual_seed(0)
    model = Model().eval()
    compiled = ingot.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X))
    assert breaks(compiled) == 1
