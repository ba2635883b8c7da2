"""Modes inside the captured function: they hold where they hold in eager, across graph breaks too,
and nowhere else."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity

import ingot
from ingot.compiler import Compiler
from ingot.graph.ambient import Modes, autocast_depth, preserved
from ingot.graph.process_modes import ProcessModes
from tests.capture.language import Table
from tests.oracle import assert_near
from tests.tracked import Tracked

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken

torch.manual_seed(0)
LINEAR = nn.Linear(4, 4)
X = torch.randn(3, 4)


with (
    warnings.catch_warnings(action="ignore"),
    torch.profiler.profile(activities=[ProfilerActivity.CPU]),
):
    pass  # the first use warns, in some versions of torch


def modes() -> tuple[Any, ...]:
    """All that this file's programs change."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
    )


def pause() -> None:
    time.sleep(0)  # breaks the graph


@pytest.fixture(autouse=True)
def modes_as_before() -> Any:
    """No test leaves a mode behind, whatever the program does."""
    with preserved():
        before = (
            ProcessModes.now(),
            torch.get_default_device(),
            torch.is_inference_mode_enabled(),
        )
        yield
    assert before == (
        ProcessModes.now(),
        torch.get_default_device(),
        torch.is_inference_mode_enabled(),
    )


# -- gradients -------------------------------------------------------------------------------------


@whole
def grad_modes_as_contexts(x: Tensor, y: Tensor) -> Any:
    seen = [modes()]
    with torch.enable_grad():
        seen.append(modes())
        with torch.no_grad():
            seen.append(modes())
            x = x * 2
        with torch.set_grad_enabled(False):
            seen.append(modes())
    return x + y, seen, modes()


@whole
def grad_mode_as_a_decorator(x: Tensor, y: Tensor) -> Any:
    @torch.no_grad()
    def inner(a: Tensor) -> Any:
        return a + 1, torch.is_grad_enabled()

    @torch.enable_grad()
    def outer(a: Tensor) -> Any:
        return inner(a), torch.is_grad_enabled()

    @torch.no_grad
    def bare(a: Tensor) -> Any:
        return a - 1, torch.is_grad_enabled()

    @torch.set_grad_enabled(False)
    def setting(a: Tensor) -> Any:
        return a - 1, torch.is_grad_enabled()

    return outer(x), bare(y), setting(y), torch.is_grad_enabled()


@torch.enable_grad()
def decorated_outside(a: Tensor) -> Any:
    return a.detach() + 1, torch.is_grad_enabled()


@whole
def decorator_from_outside(x: Tensor, y: Tensor) -> Any:
    return decorated_outside(x), torch.is_grad_enabled()


@whole
def grad_mode_as_a_call(x: Tensor, y: Tensor) -> Any:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    during = torch.is_grad_enabled()
    torch._C._set_grad_enabled(before)
    return x + y, before, during, torch.is_grad_enabled()


@whole
def context_left_by_an_exception(x: Tensor, y: Tensor) -> Any:
    try:
        with torch.enable_grad():
            raise ValueError(torch.is_grad_enabled())
    except ValueError as error:
        return x, error.args, torch.is_grad_enabled()


@whole
def one_context_used_twice(x: Tensor, y: Tensor) -> Any:
    context, seen = torch.enable_grad(), []
    for _ in range(2):
        with context as entered:
            seen.append((entered, torch.is_grad_enabled()))
        seen.append(torch.is_grad_enabled())
    return x + 1, seen, context.prev


@whole(make=lambda: (torch.enable_grad(),), fresh=True)
def context_from_outside(x: Tensor, y: Tensor, context: Any) -> Any:
    with context:
        inside = torch.is_grad_enabled()
    return x + 1, inside, torch.is_grad_enabled()


@whole
def context_that_is_returned(x: Tensor, y: Tensor) -> Any:
    context = torch.set_grad_enabled(False)
    return x, type(context), context.mode, context.prev, str(context)


@broken("sleep()")
def break_within_grad_modes(x: Tensor, y: Tensor) -> Any:
    seen = []
    with torch.enable_grad():
        seen.append(modes())
        pause()
        seen.append(modes())
        with torch.no_grad():
            z = x * y
            pause()
            seen.append(modes())
        seen.append(modes())
        pause()
    pause()
    return z, seen, modes()


@broken("sleep()")
def break_in_a_decorated_function(x: Tensor, y: Tensor) -> Any:
    @torch.enable_grad()
    def inner(a: Tensor) -> Any:
        b = a.detach() + 1
        pause()
        return b * 2, torch.is_grad_enabled()

    return inner(x), torch.is_grad_enabled()


@ingot.disable
def seen_from_outside() -> Any:
    return modes()


@broken("seen_from_outside")
def modes_hold_while_the_broken_instruction_runs(x: Tensor, y: Tensor) -> Any:
    seen = [seen_from_outside()]
    with torch.enable_grad(), torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        seen.append(seen_from_outside())
        z = x @ y.T
        seen.append(seen_from_outside())
    seen.append(seen_from_outside())
    return z, seen


@broken("sleep()")
def exception_behind_a_break_leaves_the_context(x: Tensor, y: Tensor) -> Any:
    try:
        with torch.enable_grad():
            z = x.detach() + 1
            pause()
            raise KeyError(str(torch.is_grad_enabled()))
    except KeyError as error:
        return z, str(error), torch.is_grad_enabled()


# -- autocast --------------------------------------------------------------------------------------


@whole
def autocast(x: Tensor, y: Tensor) -> Any:
    with torch.autocast("cpu"):
        a = x @ y.T
        inside = modes()
    return a, x @ y.T, LINEAR(x), inside, modes()


@whole
def autocast_nested(x: Tensor, y: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.float16):
        a = x @ y.T
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            b = LINEAR(x)
            inner = modes()
        with torch.autocast("cpu", enabled=False):
            c = LINEAR(x)
            off = modes()
        d = LINEAR(x)
    return a, b, c, d, inner, off, modes()


@whole
def autocast_keeps_what_is_precise(x: Tensor, y: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (
            F.softmax(x @ y.T, -1),
            F.layer_norm(x, (4,)),
            F.mse_loss(x, y),
            torch.cat([x, (x @ y.T)[:, :2]], 1),
        )


@whole
def autocast_as_a_decorator(x: Tensor, y: Tensor) -> Any:
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def inner(a: Tensor) -> Any:
        return LINEAR(a), modes()

    return inner(x), LINEAR(x), modes()


@whole
def autocast_for_another_device(x: Tensor, y: Tensor) -> Any:
    with torch.autocast("cuda", enabled=False):
        return x @ y.T, modes()


@whole
def autocast_by_setters(x: Tensor, y: Tensor) -> Any:
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)
    a, during = x @ y.T, modes()
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    return a, x @ y.T, during, modes()


@whole
def autocast_error(x: Tensor, y: Tensor) -> Any:
    with torch.autocast(torch.device("cpu")):
        return x


CACHED = nn.Parameter(torch.randn(4, 4))


@broken("written under autocast", fresh=True)
def parameter_written_under_autocast(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        CACHED.fill_(1.5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = F.linear(x, CACHED)
            CACHED.mul_(2)
            b = F.linear(x, CACHED)  # by the cast of the first value, which is kept
    return a, b, torch.equal(a, b)


@broken("sleep()")
def break_within_autocast(x: Tensor, y: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.float16):
        a = x @ y.T
        pause()
        b, seen = LINEAR(x), modes()
        with torch.autocast("cpu", enabled=False):
            pause()
            c = LINEAR(x)
            pause()
        d = LINEAR(x)
    pause()
    return a, b, c, d, LINEAR(x), seen, modes()


# -- inference mode --------------------------------------------------------------------------------


@whole
def inference_mode(x: Tensor, y: Tensor) -> Any:
    with torch.inference_mode():
        a = LINEAR(x) + y
        inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), a.is_inference()
    seen = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    return (
        a,
        a[0],
        a.view(-1),
        a.is_inference(),
        inside,
        seen,
        (x + 1).is_inference(),
        (a + 1).is_inference(),
    )


@whole
def inference_mode_as_a_decorator(x: Tensor, y: Tensor) -> Any:
    @torch.inference_mode()
    def inner(a: Tensor) -> Any:
        return a + 1, torch.is_inference_mode_enabled()

    @torch.inference_mode
    def bare(a: Tensor) -> Any:
        return a + 1, torch.is_inference_mode_enabled()

    return inner(x), bare(x), torch.is_inference_mode_enabled()


@whole
def inference_mode_in_inference_mode(x: Tensor, y: Tensor) -> Any:
    context = torch.inference_mode()
    with context:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            a = LINEAR(x)
        with torch.no_grad():
            b = a + y
    with torch.inference_mode(False):
        seen = modes()
    with context:
        c = torch.vmap(lambda row: LINEAR(row).sum())(x)
    return a, b, c, seen, context.mode, modes()


@whole
def inference_mode_within_autocast(x: Tensor, y: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        with torch.inference_mode():
            a = LINEAR(x)
        b = LINEAR(x)
    return a, b, LINEAR(x), modes()


@whole
def inference_mode_left_by_an_exception(x: Tensor, y: Tensor) -> Any:
    try:
        with torch.inference_mode():
            y = x + 1
            raise ValueError(torch.is_inference_mode_enabled())
    except ValueError as error:
        return x + y, y, error.args, modes()


@whole
def a_write_in_inference_mode(x: Tensor, y: Tensor) -> Any:
    with torch.inference_mode():
        x.mul_(2)
        first = x[0] + 1
        a = torch.zeros(4)
        a += first
    return a, x.is_inference(), (x * y).is_inference()


@broken("sleep()")
def break_within_inference_mode(x: Tensor, y: Tensor) -> Any:
    seen = [modes()]
    with torch.inference_mode():
        a = x + y
        pause()
        seen.append(modes())
        b = a * 2
    return a, b, a.is_inference(), b.is_inference(), seen, modes()


@broken("a view made in inference mode")
def a_view_made_in_inference_mode(x: Tensor, y: Tensor) -> Any:
    with torch.inference_mode():
        part = x[1:]
    return part, part.is_inference()


@broken("a view made in inference mode")
def a_view_made_in_inference_mode_and_used_outside(x: Tensor, y: Tensor) -> Any:
    with torch.inference_mode():
        flat = LINEAR.weight.reshape(16)
    with torch.enable_grad():
        return (flat * 2).requires_grad


# -- other modes: a graph break, at least ----------------------------------------------------------


@broken("a DeviceContext is entered")
def default_device(x: Tensor, y: Tensor) -> Any:
    torch.set_default_device("cpu")
    a = torch.ones(3) + x.sum()
    torch.set_default_device(None)
    return a


@broken("")
def forked_random_state(x: Tensor, y: Tensor) -> Any:
    with torch.random.fork_rng():
        a = torch.rand(3)
    return a, torch.rand(3), x + y


@broken("random state")
def seeded(x: Tensor, y: Tensor) -> Any:
    torch.manual_seed(5)
    return torch.rand(3) + 1, torch.randn(2)


@broken("")
def backend_flags(x: Tensor, y: Tensor) -> Any:
    with torch.backends.mkldnn.flags(enabled=False):
        return x @ y.T, torch.backends.mkldnn.enabled


# -- labels ----------------------------------------------------------------------------------------


@whole
def labelled(x: Tensor, y: Tensor) -> Any:
    with record_function("outer") as label:
        with torch.profiler.record_function("inner"):
            x = x + y
    return x, label.name


@broken("sleep()")
def break_within_a_label(x: Tensor, y: Tensor) -> Any:
    with record_function("outer") as label:
        x = x + y
        pause()
        x = x * y
    return x, label.name


@broken("")
def profiled(x: Tensor, y: Tensor) -> Any:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profile:
        z = x + y
    return z, type(profile).__name__, profile.profiler is not None


test_program = TABLE.test()


# -- what is left behind, and what is not ----------------------------------------------------------


@pytest.mark.parametrize("backend", ["ingot", "eager"])
def test_a_mode_that_is_set_stays_set(backend: str) -> None:
    def fn(x: Tensor) -> Tensor:
        y = x * 2
        torch.set_grad_enabled(False)
        torch.set_autocast_enabled("cpu", True)
        torch.set_autocast_dtype("cpu", torch.float16)
        torch.set_autocast_cache_enabled(False)
        return y + x @ x.T.contiguous()

    compiled = ingot.compile(fn, backend=backend, fullgraph=True)
    with preserved():
        expected, after = fn(X[:, :3]), modes()
    for _ in range(2):
        with preserved():
            assert_near(compiled(X[:, :3]), expected, rtol=1e-2)
            assert modes() == after == (False, False, True, torch.float16, False)
    assert len(Compiler.of(compiled).compilations) == 1


@pytest.mark.parametrize("backend", ["ingot", "eager"])
def test_a_graph_that_raises_leaves_no_mode(backend: str) -> None:
    def fn(table: Tensor, index: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu"):
            return table[index]

    compiled = ingot.compile(fn, backend=backend, fullgraph=True)
    before, depth = modes(), autocast_depth()
    assert_near(compiled(X, torch.tensor([1, 0])), X[[1, 0]])
    with pytest.raises(IndexError):
        compiled(X, torch.tensor([7, 0]))
    assert (modes(), autocast_depth()) == (before, depth)


def test_capture_leaves_no_mode() -> None:
    def fn(x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        torch.autocast("cpu").__enter__()
        return x.view(77)  # an error

    before, depth = modes(), autocast_depth()
    with pytest.raises(RuntimeError), preserved():
        ingot.compile(fn)(X)
    ingot.explain(lambda x: torch.set_grad_enabled(False))(X)
    assert (modes(), autocast_depth()) == (before, depth)


def test_modes_around_the_call_are_guarded() -> None:
    def fn(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=torch.is_grad_enabled()):
            return LINEAR(x).detach()

    tracked = Tracked(fn, backend="eager")
    with torch.no_grad():
        assert (tracked(X), tracked(X)) == (1, 0)
    assert (tracked(X), tracked(X)) == (1, 0)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        assert (tracked(X), tracked(X)) == (1, 0)
    with torch.no_grad():
        assert tracked(X) == 0


def test_a_default_device_is_told_by_its_device_not_by_its_context() -> None:
    tracked = Tracked(lambda x: torch.ones(4) + x)
    counts = []
    with torch.no_grad():
        for _ in range(3):
            with torch.device("cpu"):
                counts.append(tracked(X))
        with torch.device("meta"):
            assert tracked.compiled(X.to("meta")).device.type == "meta"
        counts.append(tracked(X))
    assert counts == [1, 0, 0, 1]


def test_views_of_parameters_are_alive_at_a_break_where_no_gradients_are_recorded() -> None:
    """torch says of such a view that it is a leaf, and wants a gradient."""
    weight = nn.Parameter(torch.arange(4.0))

    def views(x: Tensor) -> Any:
        view, row = weight.view(2, 2), weight[None, 1:]
        pause()
        return view, view.t(), row, view * x.sum(), view.requires_grad, view.is_leaf

    tracked = Tracked(views, backend="eager")
    with torch.no_grad():
        assert [tracked(X), tracked(X + 1)] == [2, 0] and tracked.skips == []
        view, transposed, *_ = tracked.compiled(X)
    assert view._base is weight and transposed._base is weight
    with torch.enable_grad():
        tracked(X)  # where the views have a history


def test_switches_stand_in_the_graph_only_where_an_operation_depends_on_them() -> None:
    graphs = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append([str(node.target) for node in gm.graph.nodes if node.op == "call_function"])
        return gm.forward

    def fn(x: Tensor) -> Any:
        with torch.enable_grad():
            flag = torch.is_grad_enabled()
        with torch.enable_grad():
            y = torch.sin(x)
        return torch.cos(y), flag

    with torch.no_grad():
        ingot.compile(fn, backend=backend)(X)
    switch = str(torch._C._set_grad_enabled)
    assert [name for name in graphs[0] if name == switch] == [switch, switch]
    assert len(graphs[0]) == 4


def test_modes_tell_what_changed() -> None:
    with preserved():
        before = Modes.now()
        torch.set_autocast_dtype("cpu", torch.float16)
        torch.set_grad_enabled(not before.grad)
        after = Modes.now()
        assert before.changes(after) == [
            (torch.set_autocast_dtype, ("cpu", torch.float16)),
            (torch._C._set_grad_enabled, (not before.grad,)),
        ]
        before.set()
        assert Modes.now() == before


def lookup_behind_a_break(table: Tensor, index: Tensor) -> Any:
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
            pause()
            rows = table[index]
            return rows @ rows.T
    except IndexError:
        return modes(), autocast_depth_now()


def lookup_in_contexts(table: Tensor, index: Tensor) -> Any:
    with torch.no_grad():
        pause()
        with torch.autocast("cpu"):
            rows = table[index] + 1
        pause()
    return rows


def lookup_between_calls(table: Tensor, index: Tensor) -> Any:
    torch.set_grad_enabled(False)
    rows = table[index] + 1
    torch.set_grad_enabled(True)
    return rows


@ingot.disable
def autocast_depth_now() -> int:
    return autocast_depth()


@pytest.mark.parametrize("backend", ["ingot", "eager"])
@pytest.mark.parametrize("fn", [lookup_behind_a_break, lookup_in_contexts, lookup_between_calls])
def test_an_error_of_the_graph_leaves_the_modes_that_eager_leaves(fn: Any, backend: str) -> None:
    compiled = ingot.compile(fn, backend=backend)
    for position in (1, 7, 1, 7):
        found = []
        for function in (fn, compiled):
            with preserved():
                try:
                    result = function(X, torch.tensor([position]))
                except IndexError:
                    result = IndexError
                found.append((result, modes(), autocast_depth()))
        assert_near(found[1], found[0], rtol=1e-2)
