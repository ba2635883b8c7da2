"""Calls of modules: hooks of every kind, state that a forward changes, members that come and go
between calls."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations, parametrize, prune

import ingot
from ingot.errors import GraphBreakError
from tests.capture.language import compilations, since
from tests.oracle import assert_same, outcome

X = torch.linspace(-1, 1, 12).reshape(3, 4)
pytestmark = pytest.mark.usefixtures("without_gradients")


class Pair:
    """A module in eager and a copy of it, compiled: each call and each change is made to both and
    compared."""

    def __init__(self, make: Callable[[], nn.Module], **options: Any) -> None:
        torch.manual_seed(0)
        self.eager = make()
        torch.manual_seed(0)
        self.module = make()
        self.compiled = ingot.compile(self.module, backend="eager", **options)

    def __call__(self, *args: Any) -> int:
        """Compares a call; how many compilations it took, continuations included."""
        before = compilations()
        state = torch.get_rng_state()
        expected = outcome(self.eager, *copy.deepcopy(args))
        torch.set_rng_state(state)
        assert_same(outcome(self.compiled, *copy.deepcopy(args)), expected)
        assert_same(state_of(self.module), state_of(self.eager))
        return since(before)

    def settles(self, *args: Any) -> None:
        """Compares three calls, of which the last takes no compilation."""
        self(*args)
        self(*args)
        assert self(*args) == 0

    def change(self, change: Callable[[nn.Module], Any]) -> None:
        """Changes both."""
        torch.manual_seed(1)
        change(self.eager)
        torch.manual_seed(1)
        change(self.module)


def state_of(module: nn.Module) -> Any:
    """What a call can have changed: plain attributes, buffers and parameters, of all modules
    within."""
    plain = (bool, int, float, str, list, dict, tuple, Tensor, type(None))
    skipped = {"_parameters", "_buffers", "_modules"} | {
        name for name in vars(module) if "hooks" in name
    }
    return {
        name: (
            type(part).__name__,
            {
                k: v
                for k, v in vars(part).items()
                if type(v) in plain and k not in skipped and "hooks" not in k
            },
            dict(part._parameters),
            dict(part._buffers),
        )
        for name, part in module.named_modules()
    }


def whole(make: Callable[[], nn.Module], *args: Any) -> Pair:
    """A module that is captured in one graph, whatever it changes."""
    pair = Pair(make, fullgraph=True)
    pair.settles(*(args or (X,)))
    return pair


def broken(make: Callable[[], nn.Module], *args: Any) -> Pair:
    """A module that is right, though not captured whole."""
    strict = Pair(make, fullgraph=True)
    with pytest.raises(GraphBreakError):
        strict(*(args or (X,)))
    pair = Pair(make)
    pair.settles(*(args or (X,)))
    return pair


class Net(nn.Module):
    """Two layers, the first of which the tests attach hooks to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.second(torch.relu(self.first(x))) * scale


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).T


def net(prepare: Callable[[Net], Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        made = Net()
        prepare(made)
        return made

    return make


# -- hooks -----------------------------------------------------------------------------------------


def doubles(module: nn.Module, args: Any, output: Any) -> Any:
    return output * 2


def looks(module: nn.Module, args: Any, output: Any) -> None:
    assert isinstance(args, tuple)


def adds(module: nn.Module, args: Any) -> Any:
    return (args[0] + 1,)


def adds_bare(module: nn.Module, args: Any) -> Any:
    return args[0] + 2


def scales(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return args, {**kwargs, "scale": kwargs.get("scale", 1.0) * 3}


def scales_output(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    return output + kwargs.get("scale", 7.0)


HOOKS: dict[str, Callable[[Net], Any]] = {
    "forward": lambda m: m.first.register_forward_hook(doubles),
    "looking": lambda m: m.first.register_forward_hook(looks),
    "pre": lambda m: m.first.register_forward_pre_hook(adds),
    "pre_bare": lambda m: m.first.register_forward_pre_hook(adds_bare),
    "of_the_root": lambda m: (m.register_forward_hook(doubles), m.register_forward_pre_hook(adds)),
    "asking_the_module": lambda m: m.first.register_forward_hook(
        lambda mod, args, out: out + mod.weight.sum()
    ),
    "pre_with_kwargs": lambda m: m.register_forward_pre_hook(scales, with_kwargs=True),
    "with_kwargs": lambda m: m.register_forward_hook(scales_output, with_kwargs=True),
    "prepended": lambda m: (
        m.first.register_forward_hook(doubles),
        m.first.register_forward_hook(lambda mod, args, out: out + 1, prepend=True),
        m.first.register_forward_pre_hook(adds),
        m.first.register_forward_pre_hook(lambda mod, args: args[0] * 3, prepend=True),
    ),
    "always": lambda m: m.first.register_forward_hook(doubles, always_call=True),
    "full_backward": lambda m: m.first.register_full_backward_hook(
        lambda mod, grad_in, grad_out: None
    ),
    "backward_pre": lambda m: m.first.register_full_backward_pre_hook(lambda mod, grad_out: None),
    "old_backward": lambda m: m.first.register_backward_hook(lambda mod, grad_in, grad_out: None),
    "state_dict": lambda m: (
        m._register_state_dict_hook(lambda mod, state, prefix, meta: state),
        m.register_load_state_dict_post_hook(lambda mod, keys: None),
        m.register_state_dict_pre_hook(lambda mod, prefix, keep: None),
    ),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hook(name: str) -> None:
    whole(net(HOOKS[name]))


@pytest.mark.parametrize("name", HOOKS)
def test_hook_added_and_removed_between_calls(name: str) -> None:
    pair = whole(Net)
    handles: list[Any] = []
    pair.change(lambda module: handles.append(HOOKS[name](module)))  # type: ignore[arg-type]
    pair.settles(X)
    for handle in handles:
        for one in handle if isinstance(handle, tuple) else (handle,):
            one.remove()
    assert pair(X) == 0


def test_hook_that_is_replaced() -> None:
    pair = whole(net(HOOKS["forward"]))
    pair.change(
        lambda m: m.first._forward_hooks.update(
            dict.fromkeys(m.first._forward_hooks, lambda mod, a, o: o - 5)
        )
    )
    pair.settles(X)


def test_hook_on_the_compiled_module_itself() -> None:
    pair = whole(Net)
    handle = pair.compiled.register_forward_hook(doubles)
    other = pair.eager.register_forward_hook(doubles)
    pair.settles(X)
    handle.remove(), other.remove()
    assert pair(X) == 0


@pytest.mark.parametrize(
    "register",
    [
        lambda: torch_module.register_module_forward_hook(lambda mod, args, out: out * 2),
        lambda: torch_module.register_module_forward_hook(
            lambda mod, args, kwargs, out: out, with_kwargs=True
        ),
        lambda: torch_module.register_module_forward_hook(
            lambda mod, args, out: None, always_call=True
        ),
        lambda: torch_module.register_module_forward_pre_hook(
            lambda mod, args: (args[0] + 1, *args[1:])
        ),
        lambda: torch_module.register_module_full_backward_hook(
            lambda mod, grad_in, grad_out: None
        ),
        lambda: torch_module.register_module_full_backward_pre_hook(lambda mod, grad_out: None),
    ],
    ids=["forward", "kwargs", "always", "pre", "backward", "backward_pre"],
)
def test_global_hook(register: Any) -> None:
    pair = whole(Net)
    handle = register()
    try:
        pair.settles(X)
    finally:
        handle.remove()
    assert pair(X) == 0


class Recorder(nn.Module):
    """Its hook keeps what the first layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.kept, self.calls = Net(), {}, 0
        self.net.first.register_forward_hook(self.keep)

    def keep(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.kept["first"] = output.detach()
        self.calls += 1

    def forward(self, x: Tensor) -> Any:
        return self.net(x), self.kept["first"].sum(), self.calls


def test_hook_that_changes_state() -> None:
    pair = whole_with_counters(Recorder)
    assert pair.module.calls == pair.eager.calls == 4


def whole_with_counters(make: Callable[[], nn.Module], *args: Any) -> Pair:
    """A module that counts its calls and does nothing else with the count: captured whole at each
    of four calls."""
    pair = Pair(make, fullgraph=True)
    for _ in range(4):
        pair(*(args or (X,)))
    return pair


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no")


class Guarded(nn.Module):
    """The hook that is always called sees the failure, and one that fails itself is passed over."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Failing()
        self.inner.register_forward_hook(
            lambda mod, args, out: mod.seen.append(out), always_call=True
        )
        self.inner.register_forward_hook(lambda mod, args, out: mod.seen.append("never"))

    def forward(self, x: Tensor) -> Any:
        try:
            return self.inner(x)
        except ValueError as error:
            return x * 2, str(error), len(self.inner.seen) > 0


def test_hook_that_is_called_after_an_error() -> None:
    pair = Pair(Guarded)
    for _ in range(3):
        pair(X)
    assert pair.module.inner.seen == [None] * 3  # type: ignore[union-attr]


def test_hooks_that_raise() -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("from a hook")

    Pair(net(lambda m: m.first.register_forward_hook(fails))).settles(X)
    Pair(net(lambda m: m.first.register_forward_pre_hook(fails))).settles(X)
    wrong = net(
        lambda m: m.register_forward_pre_hook(lambda mod, args, kwargs: 3, with_kwargs=True)
    )
    Pair(wrong).settles(X)


def test_break_within_a_hook() -> None:
    def pauses(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        output = output * 2
        time.sleep(0)
        return output + 1

    broken(
        net(
            lambda m: (
                m.first.register_forward_hook(pauses),
                m.first.register_forward_pre_hook(adds),
            )
        )
    )
    broken(net(lambda m: m.register_forward_hook(pauses)))


class Attaching(nn.Module):
    """Attaches a hook while it runs, and takes it off again."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Any:
        handle = self.net.first.register_forward_hook(doubles)
        y = self.net(x)
        handle.remove()
        return y, self.net(x), len(self.net.first._forward_hooks)


def test_hook_attached_within() -> None:
    pair = Pair(Attaching)
    # each call attaches a hook of another number: what was compiled for one does not hold for it
    for _ in range(3):
        pair(X)


# -- state that a forward changes ------------------------------------------------------------------


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("late", None)
        self.linear, self.cache, self.history = nn.Linear(4, 4), {}, []
        self.last = None

    def forward(self, x: Tensor) -> Any:
        y = self.linear(x)
        self.average = self.average * 0.9 + y.mean(0) * 0.1
        self.average += 1
        self.last = y
        self.late = y.sum()
        self.cache["y"] = y.mean()
        if not hasattr(self, "made"):
            self.made = torch.ones(4)
        if "extra" not in self._buffers:
            self.register_buffer("extra", torch.full((4,), 3.0), persistent=False)
        self.extra.mul_(2)
        return y + self.average + self.made + self.extra, self.last is y


def test_state_changed_by_a_forward() -> None:
    pair = Pair(Stateful)
    for _ in range(2):
        pair(X)
    assert (pair(X), pair(X)) == (0, 0)
    assert list(pair.module.state_dict()) == list(pair.eager.state_dict())
    assert pair.module._non_persistent_buffers_set == {"extra"}


def test_members_changed_by_a_forward() -> None:
    class Swapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Tanh()

        def forward(self, x: Tensor) -> Any:
            self.a, self.b = self.b, self.a
            y = self.b(self.a(x))
            self.a, self.b = self.b, self.a
            self.eval()
            seen = self.training, self.a.training
            self.train()
            return y, seen, [n for n, _ in self.named_children()]

    Pair(Swapping).settles(X)


def test_module_made_within() -> None:
    class Making(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept: Any = None

        def forward(self, x: Tensor) -> Any:
            torch.manual_seed(0)
            layer = nn.Linear(4, 4)
            y = layer(x)
            if self.kept is None:
                self.kept = nn.ReLU()
            return self.kept(y), nn.Sequential(nn.Tanh(), layer)(x), layer

    Pair(Making).settles(X)


# -- what torch attaches ---------------------------------------------------------------------------


def test_old_weight_norm() -> None:
    def make() -> nn.Module:
        with pytest.warns(FutureWarning):
            return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.ReLU())

    pair = whole(make)
    pair.change(lambda m: m[0].weight_g.mul_(2))
    assert pair(X) == 0
    pair.change(lambda m: nn.utils.remove_weight_norm(m[0]))
    pair.settles(X)


@pytest.mark.parametrize(
    "wrap",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        nn.utils.spectral_norm,
        lambda m: parametrize.register_parametrization(m, "weight", Symmetric()) and m,
        lambda m: prune.l1_unstructured(m, "weight", 0.5),
    ],
    ids=["weight_norm", "spectral_norm", "orthogonal", "old_spectral_norm", "own", "pruned"],
)
def test_reparametrized(wrap: Any) -> None:
    def make() -> nn.Module:
        with torch.enable_grad():
            return nn.Sequential(wrap(nn.Linear(4, 4)), nn.ReLU()).eval()

    pair = whole(make)
    pair.change(lambda m: [p.mul_(1.5) for p in m.parameters()])
    assert pair(X) == 0


def test_parametrizations_come_and_go() -> None:
    pair = whole(Net)
    pair.change(lambda m: parametrize.register_parametrization(m.first, "weight", Symmetric()))
    pair.settles(X)
    pair.change(lambda m: parametrize.register_parametrization(m.first, "weight", nn.Identity()))
    pair.settles(X)
    pair.change(lambda m: parametrize.remove_parametrizations(m.first, "weight"))
    pair.settles(X)


def test_cached_parametrizations() -> None:
    pair = Pair(net(lambda m: parametrize.register_parametrization(m.first, "weight", Symmetric())))
    pair.settles(X)
    with parametrize.cached():
        pair(X)
        pair(X)
    assert pair(X) == 0


def test_lazy_modules() -> None:
    pair = Pair(lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyBatchNorm1d()))
    pair.settles(X)
    assert type(pair.module[0]) is nn.Linear  # type: ignore[index]
    root = Pair(lambda: nn.LazyLinear(4))
    root.settles(X)
    assert isinstance(root.compiled, nn.Linear) and repr(root.compiled) == repr(root.eager)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_the_call_that_makes_parameters_runs_in_eager(fullgraph: bool) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.sin()).cos()

    pair = Pair(Outer, fullgraph=fullgraph)
    assert pair(X) == 1
    assert pair(X) == 1
    assert pair(X) == 0
    report = ingot.explain(pair.compiled)(X)
    [found] = report.breaks
    assert report.graph_count == 1 and "has not got its parameters yet" in found.reason


def test_functional_call() -> None:
    module = Net()
    replaced = {"first.weight": torch.ones(4, 4), "second.bias": torch.full((2,), 3.0)}

    def fn(x: Tensor, scale: Tensor) -> Any:
        weights = {name: value * scale for name, value in replaced.items()}
        return (
            torch.func.functional_call(module, weights, (x,)),
            module(x),
            module.first.weight.shape,
        )

    compiled = ingot.compile(fn, backend="eager")
    parameters = dict(module.named_parameters())
    for turn in range(3):
        before = compilations()
        assert_same(compiled(X, torch.tensor(2.0)), fn(X, torch.tensor(2.0)))
        assert turn < 2 or not since(before)
    assert all(a is b for a, b in zip(parameters.values(), module.parameters(), strict=True))


def test_compiled_in_place() -> None:
    pair = Pair(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    pair.module[0].compile(backend="eager")  # type: ignore[index]
    pair.settles(X)


def test_graph_module() -> None:
    whole(lambda: nn.Sequential(torch.fx.symbolic_trace(Net()), nn.ReLU()))


def test_shared_module_and_parameters() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b, self.c = self.a, nn.Linear(4, 4)
            self.c.weight = self.a.weight
            self.count = 0

        def forward(self, x: Tensor) -> Any:
            return self.c(self.b(self.a(x))), self.a is self.b, self.c.weight is self.b.weight

    pair = whole(Shared)
    pair.change(lambda m: setattr(m, "b", nn.Linear(4, 4)))
    pair.settles(X)
    pair.change(lambda m: setattr(m.c, "weight", nn.Parameter(torch.ones(4, 4))))
    pair.settles(X)


class Managing(nn.Module):
    """Manages its own parts while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.rounds = Net(), 0

    def forward(self, x: Tensor) -> Any:
        self.rounds += 1
        self.apply(lambda part: setattr(part, "visited", True))
        self.net.requires_grad_(self.rounds % 2 == 0)
        wanted = [p.requires_grad for p in self.net.parameters()]
        self.net.to(torch.float64)
        y = self.net(x.double())
        self.net.float().zero_grad()
        self.net.first.weight.data.clamp_(-1, 1)
        return (
            y,
            wanted,
            self.net.visited,
            [p.dtype for p in self.net.parameters()],
            str(self.net.first),
        )


def test_parts_managed_within() -> None:
    pair = Pair(Managing)
    for _ in range(4):
        pair(X)
    assert pair.module.rounds == 4


def test_weights_initialized_within() -> None:
    class Initializing(Net):
        def forward(self, x: Tensor) -> Any:  # type: ignore[override]
            with torch.no_grad():
                nn.init.constant_(self.first.weight, 0.5)
                nn.init.normal_(self.second.weight)
                self.first.bias.copy_(x.mean(0))
            return super().forward(x)

    whole(Initializing)
