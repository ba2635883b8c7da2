"""What says whether functions are compiled: disable, allow_in_graph, set_stance, and
torch.compile's own marks."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import re
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import ingot
from ingot.compiler import Compiler
from ingot.native import call_eager, runs_eager

from .long import long
from .oracle import assert_near
from .tracked import Tracked

X = torch.arange(12.0).reshape(3, 4) / 7


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(autouse=True)
def stance_is_given_back():
    yield
    ingot.set_stance("default")


def doubled(x):
    return x * 2


def eager_inside(x):
    """1 where it runs in eager, 0 where it is compiled: `is_compiling` is true in captured code."""
    return x * 0 + (0 if torch.compiler.is_compiling() else 1)


@ingot.disable
def disabled(x):
    return eager_inside(x)


@ingot.disable(reason="it draws a plot")
def disabled_with_reason(x):
    return eager_inside(x) + 1


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) + eager_inside(x)


class TestDisable:
    """A disabled function does what it did, in eager with all that it calls."""

    def test_it_looks_like_the_function(self):
        assert disabled.__name__ == "disabled" and disabled.__wrapped__(X).shape == X.shape
        assert_near(disabled(X), X * 0 + 1)
        assert_near(ingot.disable(doubled)(x=X), X * 2)

    def test_in_a_compiled_function_it_breaks_the_graph(self):
        tracked = Tracked(lambda x: disabled(x.sin()).cos() + x)
        assert tracked(X) >= 1 and tracked(X) == 0
        report = ingot.explain(tracked.compiled)(X)
        [found] = report.breaks
        assert report.graph_count == 2 and not found.eager
        assert found.reason == "disabled() is disabled by ingot.disable"
        assert found.file == __file__ and "remove the disable" in found.hint

    def test_the_reason_is_in_the_report(self):
        report = ingot.explain(lambda x: disabled_with_reason(x) + 1)(X)
        assert report.breaks[0].reason.endswith("is disabled by ingot.disable: it draws a plot")

    def test_fullgraph(self):
        compiled = ingot.compile(lambda x: disabled(x) + 1, fullgraph=True)
        for _ in range(2):
            with pytest.raises(
                ingot.GraphBreakError,
                match=r"disabled\(\) is disabled .*test_control.py:\d+ \(hint: ",
            ):
                compiled(X)

    def test_what_it_calls_is_not_compiled_either(self):
        inner = ingot.compile(eager_inside)
        outer = ingot.disable(lambda x: inner(x) + inner(x))
        assert_near(outer(X), X * 0 + 2)
        assert Compiler.of(inner).compilations == []
        assert_near(ingot.compile(lambda x: outer(x) + inner(x))(X), X * 0 + 2)
        assert_near(inner(X), X * 0)

    def test_an_equal_call_that_was_compiled_before_is_collected(self):
        """What calls a disabled function in the user's place is never captured as the user's."""

        def backend(gm, inputs):
            def run(*args):
                gc.collect()
                return gm(*args)

            return run

        def breaks():
            compiled = ingot.compile(lambda x: disabled(x.sin()).cos(), backend=backend)
            compiled(X)
            return [(b.wrote, b.times) for b in ingot.explain(compiled)(X).breaks]

        assert [breaks() for _ in range(3)] == [[("disabled(x.sin())", 1)]] * 3

    def test_an_error_leaves_it(self):
        def fails(x):
            raise KeyError("gone")

        with pytest.raises(KeyError, match="gone"):
            ingot.disable(fails)(X)
        assert not runs_eager()
        compiled = ingot.compile(lambda x: ingot_disabled_failure(x) + 1)
        ingot_disabled_failure = ingot.disable(fails)
        with pytest.raises(KeyError, match="gone"):
            compiled(X)
        assert not runs_eager()

    def test_methods(self):
        class Logged:
            by = 3.0

            @ingot.disable
            def method(self, x):
                return eager_inside(x) * self.by

            @staticmethod
            @ingot.disable
            def static(x):
                return eager_inside(x)

            @classmethod
            @ingot.disable
            def of_class(cls, x):
                return eager_inside(x) * cls.by

        logged = Logged()
        compiled = ingot.compile(lambda x: logged.method(x) + Logged.static(x) + logged.of_class(x))
        for _ in range(2):
            assert_near(compiled(X), X * 0 + 7)
        reasons = [b.reason for b in ingot.explain(compiled)(X).breaks]
        assert [r.partition("(")[0] for r in reasons] == ["method", "static", "of_class"]

    def test_a_wrapper_of_a_disabled_function_is_not_disabled(self):
        @functools.wraps(disabled_with_reason)
        def wrapper(x):
            return eager_inside(x)

        assert ingot.explain(wrapper)(X).breaks == []

    def test_it_wins_over_compile(self):
        for fn in (ingot.compile(disabled), ingot.disable(ingot.compile(eager_inside))):
            assert_near(fn(X), X * 0 + 1)
        report = ingot.explain(ingot.compile(disabled))(X)
        assert report.graph_count == 0 and report.breaks[0].eager
        with pytest.raises(ingot.GraphBreakError, match="is disabled"):
            ingot.compile(disabled, fullgraph=True)(X)

    def test_replaced_by_a_function_that_is_not(self):
        holder = [disabled]
        compiled = ingot.compile(lambda x: holder[0](x) + x * 0)
        assert_near(compiled(X), X * 0 + 1)
        holder[0] = eager_inside
        assert_near(compiled(X), X * 0)

    def test_modules(self):
        model = nn.Sequential(Layer(), ingot.disable(Layer(), reason="slow"), nn.ReLU())
        compiled = ingot.compile(model)
        plain = Layer()
        plain.load_state_dict(model[1].state_dict())
        ones = torch.zeros(3, 4)
        expected = model[2](plain.linear(model[0].linear(X)) + 1)
        assert_near(compiled(X), expected)
        assert isinstance(model[1], Layer) and list(model.state_dict())[2] == "1.linear.weight"
        model[1].linear.bias.add_(1)
        assert_near(compiled(X), model[2](plain.linear(model[0].linear(X)) + 1 + 1 + ones))
        assert (
            ingot.explain(compiled)(X).breaks[0].reason
            == "Layer() is disabled by ingot.disable: slow"
        )

    def test_copies_of_a_disabled_module(self):
        layer = ingot.disable(Layer())
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert_near(ingot.compile(lambda x, m=other: m(x))(X), other.linear(X) + 1)
            assert other.linear is not layer.linear
        assert copy.copy(layer).linear is layer.linear

    def test_generators(self):
        @ingot.disable
        def two(x):
            yield x + 1
            yield x + 2

        assert_near(list(two(X)), [X + 1, X + 2])
        assert_near(ingot.compile(lambda x: sum(two(x)))(X), X + 1 + X + 2)

    @pytest.mark.parametrize("what", [3, [disabled], "f"])
    def test_mistakes(self, what):
        with pytest.raises(TypeError, match="ingot.disable: expected a function"):
            ingot.disable(what)
        with pytest.raises(TypeError, match="reason must be a str"):
            ingot.disable(disabled, reason=what if what != "f" else 3)


class TestTorchsOwnMarks:
    """Functions that are marked for torch.compile are treated alike."""

    @pytest.mark.parametrize("recursive", [True, False])
    def test_disabled_functions(self, recursive):
        marked = torch.compiler.disable(eager_inside, recursive=recursive, reason="as they say")
        compiled = ingot.compile(lambda x: marked(x.sin()).cos() + x)
        for _ in range(2):
            assert_near(compiled(X), (X * 0 + 1).cos() + X)
        report = ingot.explain(compiled)(X)
        assert [b.reason for b in report.breaks] == [
            "eager_inside() is disabled by torch.compiler.disable: as they say"
        ]

        @functools.wraps(marked)
        def wrapper(x):
            return eager_inside(x)

        assert_near(ingot.compile(wrapper)(X), X * 0)

    def test_graph_breaks(self):
        def f(x):
            y = x + 1
            torch._dynamo.graph_break()
            return y * 2

        tracked = Tracked(f)
        tracked(X)
        report = ingot.explain(tracked.compiled)(X)
        assert [b.reason for b in report.breaks] == [
            "a graph break is asked for by torch._dynamo.graph_break()"
        ]
        assert report.graph_count == 2

    def test_allowed_functions(self):
        marked = torch.compiler.allow_in_graph(Opaque())
        report = ingot.explain(lambda x: marked.call(x) + 1)(X)
        assert report.breaks == []  # of objects nothing is said
        function = torch.compiler.allow_in_graph(lambda x: x.sin() * 2)
        gm = captured_by(lambda x: function(x) + 1, X)
        assert [node.target for node in gm.graph.nodes if node.op == "call_function"][0] is function

    def test_is_compiling(self):
        tracked = ingot.compile(
            lambda x: (x * 0 + torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling())
        )
        assert_near(tracked(X), (X * 0 + 1, False))
        assert not torch.compiler.is_compiling()


def marks_of_one_function():
    """Calls disabled functions that share the code of torch.compile's wrapper with one that is not
    heeded."""
    unheeded = torch.compiler.disable(lambda match: "b")
    unheeded.__module__ = "torch.optim.sgd"
    nodes = []

    def inside(x):
        return x.sin() if x.sum() > 0 else x.cos()

    @torch.compiler.disable
    def marked(x):
        return inside(x)

    def calls(match):
        nodes.append(marked(X.clone().requires_grad_()).grad_fn)
        return "c"

    assert_near(ingot.compile(lambda x: (re.sub("a", unheeded, "aa"), x + 2))(X), ("bb", X + 2))
    assert_near(ingot.compile(lambda x: (re.sub("a", calls, "a"), x + 2))(X), ("c", X + 2))
    assert [type(function).__name__ for function in nodes] == ["SinBackward0"]


@long
def test_marks_of_one_function():
    """What is decided of a code object is decided once in a process."""
    subprocess.run(
        [sys.executable, "-c", "from tests import test_control as t; t.marks_of_one_function()"],
        check=True,
    )


class TestInsideACompiledFunction:
    """What acts on compilation runs for real there, between two graphs."""

    @pytest.mark.parametrize(
        "fn, called",
        [
            (lambda x: ingot.compile(doubled, fullgraph=True)(x) + 1, "ingot.api.compile"),
            (lambda x: ingot.disable(doubled)(x) + 1, "ingot.api.disable"),
            (lambda x: ingot.allow_in_graph(doubled)(x) + 1, "ingot.api.allow_in_graph"),
            (lambda x: x + ingot.explain(doubled)(x).graph_count, "ingot.api.explain"),
            (lambda x: x + len(ingot.list_backends()), "ingot.backends.list_backends"),
            (lambda x: x + len(ingot.cache_info().kinds), "ingot.kept.info.cache_info"),
            (lambda x: torch.compile(doubled, backend="eager")(x) + 1, "torch.compile"),
            (lambda x: torch.compiler.disable(doubled)(x) + 1, "torch.compiler.disable"),
        ],
    )
    def test_the_interface(self, fn, called):
        compiled = ingot.compile(fn)
        for _ in range(2):
            assert_near(compiled(X), fn(X))
        report = ingot.explain(compiled)(X)
        assert report.breaks[0].reason == f"{called}() is called" and report.graph_count >= 1
        with pytest.raises(ingot.GraphBreakError, match="is called at .* \\(hint: call it outside"):
            ingot.compile(fn, fullgraph=True)(X)

    def test_reset(self):
        def f(x):
            y = x + 1
            ingot.reset()
            return y * 2

        compiled = ingot.compile(f)
        for _ in range(3):
            assert_near(compiled(X), f(X))


class Opaque:
    def __call__(self, x):
        return x

    def call(self, x):
        return x * 2


def captured_by(fn, *args):
    """The graph that a custom backend gets."""
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    assert_near(ingot.compile(fn, backend=backend, fullgraph=True)(*args), fn(*args))
    [gm] = graphs
    return gm


@ingot.allow_in_graph
def opaque(x, others, *, scale=1.0, name=None):
    """What capture could not look into: it asks the frame that called it."""
    total = x * scale
    for other in others:
        total = total + other
    return total, [total.sin(), (total.shape[0], name)]


@ingot.allow_in_graph
def add_one_in_place(x):
    x.add_(1)


@ingot.allow_in_graph
def adds_a_global(x):
    return x + X


@ingot.allow_in_graph
def gives_a_dict(x):
    return {"x": x + 1}


@ingot.allow_in_graph
def asks_for_data(x):
    return x * x.sum().item()


@ingot.allow_in_graph
def has_literals(x):
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.arange(4)


def uses_opaque(x):
    first, (second, (rows, name)) = opaque(x, [x + 1, x.cos()], scale=2.0, name="n")
    return first + second * rows, name


def uses_in_place(x):
    y = x * 1
    add_one_in_place(y)
    add_one_in_place(x)
    return y + x


class TestAllowInGraph:
    """Such a function is one node, whatever it does inside."""

    def test_it_is_one_node(self):
        gm = captured_by(uses_opaque, X)
        assert [n.target for n in gm.graph.nodes if n.op == "call_function"].count(opaque) == 1
        assert "scale = 2.0, name = 'n'" in gm.code

    @pytest.mark.parametrize("backend", ["ingot", "eager"])
    @pytest.mark.parametrize("fn", [uses_opaque, uses_in_place, lambda x: has_literals(x) + 1])
    def test_results_and_mutation(self, fn, backend):
        tracked = Tracked(fn, fullgraph=True, backend=backend)
        assert tracked(X.clone()) == 1 and tracked(X.clone() + 1) == 0

    def test_ingots_own_backend_compiles_what_it_does(self):
        report = ingot.explain(uses_opaque)(X)
        assert (len(report.kernels), report.fused_count, report.break_count) == (1, 1, 0)
        assert "aten.sin.default" in report.kernels[0].ops

    def test_memory_that_inputs_share(self):
        """It may write what it is given, so that overlapping arguments are another case."""
        tracked = Tracked(lambda x, y: (add_one_in_place(x), y * 2)[1])
        base = torch.zeros(8)
        assert tracked(torch.zeros(4), torch.zeros(4)) == 1
        compiled = tracked.compiled
        assert_near(compiled(base[:4], base[2:6]), torch.tensor([2.0, 2.0, 0.0, 0.0]))

    @pytest.mark.parametrize(
        "fn, says",
        [
            (adds_a_global, "no argument of the function"),
            (gives_a_dict, "gives a dict"),
            (asks_for_data, "data"),
        ],
    )
    def test_what_may_not_be_in_a_graph_is_run_for_real(self, fn, says):
        def f(x):
            y = fn(x * 2)
            return (y["x"] if isinstance(y, dict) else y) + 1

        assert Tracked(f)(X) >= 1
        assert says in ingot.explain(f)(X).breaks[0].reason

    def test_a_global_tensor_is_read_anew_by_other_backends(self):
        held = [X]
        function = ingot.allow_in_graph(lambda x: x + held[0])
        compiled = ingot.compile(lambda x: function(x) * 2, backend="eager", fullgraph=True)
        assert_near(compiled(X), (X + X) * 2)
        held[0] = X + 1
        assert_near(compiled(X), (X + X + 1) * 2)

    def test_lists_decorators_and_compiled_functions(self):
        one, two = ingot.allow_in_graph([lambda x: x + 1, lambda x: x + 2])
        compiled = ingot.allow_in_graph(ingot.compile(lambda x: x + 3))
        gm = captured_by(lambda x: one(x) + two(x) + compiled(x), X)
        targets = [n.target for n in gm.graph.nodes if n.op == "call_function"]
        assert one in targets and two in targets and Compiler.of(compiled).fn in targets

    def test_its_errors_are_the_programs(self):
        compiled = ingot.compile(lambda x: opaque(x, [torch.ones(7)])[0])
        for _ in range(2):
            with pytest.raises(RuntimeError, match="must match the size of tensor b"):
                compiled(X)

    @pytest.mark.parametrize("what", [3, Opaque(), nn.Linear(2, 2)])
    def test_mistakes(self, what):
        with pytest.raises(TypeError, match="ingot.allow_in_graph: expected a function"):
            ingot.allow_in_graph(what)


class TestStance:
    """A stance acts on all compiled functions, those with entries included."""

    def test_eager(self):
        compiled = ingot.compile(eager_inside)
        assert_near(compiled(X), X * 0)
        with ingot.set_stance("eager"):
            assert_near(compiled(X), X * 0 + 1)
            fresh = ingot.compile(eager_inside)
            assert_near(fresh(X), X * 0 + 1)
        assert_near(compiled(X), X * 0)
        assert len(Compiler.of(compiled).compilations) == 1 and not Compiler.of(fresh).compilations

    def test_eager_for_methods_and_modules(self):
        layer = Layer()
        compiled, method = ingot.compile(layer), ingot.compile(layer.forward)
        compiled(X), method(X)
        with ingot.set_stance("eager"):
            assert_near((compiled(X), method(X)), (layer(X), layer(X)))
        assert_near((compiled(X), method(X)), (layer(X) - 1, layer(X) - 1))

    def test_fail_on_recompile(self):
        compiled = ingot.compile(lambda x, k: x * k)
        compiled(X, 2)
        with ingot.set_stance("fail_on_recompile"):
            assert_near(compiled(X, 2), X * 2)
            with pytest.raises(
                ingot.RecompileError, match=r"<lambda> would be compiled .*: k was 2, is 3"
            ):
                compiled(X, 3)
            with pytest.raises(ingot.RecompileError, match="nothing that it could run"):
                ingot.compile(doubled)(X)
        assert_near(compiled(X, 3.0), X * 3)

    def test_eager_on_recompile(self):
        compiled = ingot.compile(lambda x, k: eager_inside(x) + k)
        compiled(X, 2)
        with ingot.set_stance("eager_on_recompile"):
            assert_near(compiled(X, 2), X * 0 + 2)
            assert_near(compiled(X, 3), X * 0 + 4)
            assert_near(ingot.compile(eager_inside)(X), X * 0 + 1)
        assert len(Compiler.of(compiled).compilations) == 1
        assert_near(compiled(X, 3.0), X * 0 + 3)

    @pytest.mark.parametrize("stance", ["eager", "fail_on_recompile", "eager_on_recompile"])
    def test_functions_with_breaks(self, stance):
        compiled = ingot.compile(lambda x: disabled(x.sin()).cos() + eager_inside(x))
        assert_near(compiled(X), (X * 0 + 1).cos())
        with ingot.set_stance(stance):
            assert_near(compiled(X), (X * 0 + 1).cos() + (stance == "eager"))
            if stance == "fail_on_recompile":
                with pytest.raises(ingot.RecompileError):
                    compiled(X.double())
            else:
                assert_near(compiled(X.double()), (X.double() * 0 + 1).cos() + 1)

    def test_as_a_function_it_holds_until_the_next(self):
        compiled = ingot.compile(eager_inside)
        ingot.set_stance("eager")
        assert_near(compiled(X), X * 0 + 1)
        ingot.set_stance("default")
        assert_near(compiled(X), X * 0)

    def test_as_a_decorator(self):
        compiled = ingot.compile(eager_inside)

        @ingot.set_stance("eager")
        def eager(x):
            """In eager."""
            return compiled(x)

        assert_near(compiled(X), X * 0)
        assert_near(eager(X), X * 0 + 1)
        assert_near(compiled(X), X * 0)
        assert eager.__doc__ == "In eager."

    def test_nested_and_left_by_an_error(self):
        compiled = ingot.compile(eager_inside)
        compiled(X)
        with ingot.set_stance("eager"):
            with pytest.raises(KeyError), ingot.set_stance("default"):
                assert_near(compiled(X), X * 0)
                raise KeyError
            assert_near(compiled(X), X * 0 + 1)
        assert_near(compiled(X), X * 0)

    def test_inside_a_compiled_function(self):
        inner = ingot.compile(eager_inside)

        def f(x):
            y = x.sin()
            with ingot.set_stance("eager"):
                z = inner(y)
            return z + eager_inside(x)

        compiled = ingot.compile(f)
        for _ in range(2):
            assert_near(compiled(X)[0, 0] >= 1, torch.tensor(True))
        ingot.set_stance("default")
        assert_near(inner(X), X * 0)

    def test_it_is_the_stance_of_all_threads(self):
        compiled, seen = ingot.compile(eager_inside), []
        compiled(X)

        def work():
            with torch.no_grad():
                seen.append(compiled(X))

        with ingot.set_stance("eager"):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert_near(seen, [X * 0 + 1])

    def test_disabled_is_of_one_thread(self):
        compiled, seen = ingot.compile(eager_inside), []
        compiled(X)

        def work():
            with torch.no_grad():
                seen.append((compiled(X), runs_eager()))

        def elsewhere():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            return compiled(X), runs_eager()

        assert_near(call_eager(elsewhere), (X * 0 + 1, True))
        assert_near(seen, [(X * 0, False)])

    @pytest.mark.parametrize("stance", ["eager_force", "eagre", 3, None])
    def test_mistakes(self, stance):
        with pytest.raises(
            ValueError, match="unknown stance .*one of default, eager, fail_on_recompile"
        ):
            ingot.set_stance(stance)
        assert not runs_eager()


class TestNativeCalls:
    """The two functions of the native core beneath all this."""

    def test_call_eager(self):
        assert call_eager(dict, [(1, 2)], a=3) == {1: 2, "a": 3}
        assert call_eager(lambda: call_eager(runs_eager)) and not runs_eager()
        with pytest.raises(TypeError, match="no function"):
            call_eager()
        with pytest.raises(ZeroDivisionError):
            call_eager(lambda: 1 / 0)
        assert not runs_eager()
