"""The interface as its users meet it: what may be compiled, options, errors, limits, memory."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import signal
import weakref

import pytest
import torch
from torch import nn

import ingot
import ingot.compiler
from ingot.compiler import Compiler
from ingot.explain.stages import OF_GRADIENTS, STAGES

from .oracle import assert_near
from .tracked import Tracked

X = torch.arange(12.0).reshape(3, 4) / 7


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def compiled_whole(fn, *args, **kwargs):
    """Asserts that `fn` (compiled or not) gives eager's result as one graph; returns the report."""
    report = ingot.explain(fn)(*args, **kwargs)
    assert report.graph_count >= 1 and not report.breaks, report.breaks
    return report


@ingot.compile
def at_module_level(x):
    """Doubles."""
    return x * 2


class Scaled:
    def __init__(self, by=2.0):
        self.by = by

    def method(self, x):
        return x * self.by + 1

    def __call__(self, x):
        return x * self.by - 1

    @ingot.compile
    def decorated(self, x):
        return x * self.by + 2

    @ingot.compile(fullgraph=True)
    def with_options(self, x):
        return self.decorated(x) + 3

    @staticmethod
    @ingot.compile
    def static(x):
        return x + 4

    @classmethod
    @ingot.compile
    def of_class(cls, x):
        return x + len(cls.__name__)


class TestWhatMayBeCompiled:
    """Functions and all that is called like one."""

    @pytest.mark.parametrize(
        "fn",
        [
            lambda x: x.sin() + 1,
            functools.partial(torch.add, X, alpha=2),
            functools.partial(lambda a, x, k: a * x + k, X, k=3),
            Scaled().method,
            Scaled(3.0),
            torch.sin,
            ingot.compile(lambda x: x * 3),
            ingot.compile(Scaled(4.0)),
            Scaled().decorated,
            nn.Linear(4, 4),
        ],
        ids=(
            "lambda partial_of_C partial bound callable builtin again object_again method_again "
            "module"
        ).split(),
    )
    def test_callables(self, fn):
        tracked = Tracked(fn, fullgraph=True)
        assert tracked(X) == 1 and tracked(X) == 0

    def test_methods_of_a_class(self):
        a, b = Scaled(2.0), Scaled(5.0)
        for s in (a, b, a):
            assert_near(s.decorated(X), X * s.by + 2)
            assert_near(s.with_options(X), X * s.by + 5)
        assert_near(
            (a.static(X), Scaled.static(X), a.of_class(X), Scaled.of_class(X)),
            (X + 4, X + 4, X + 6, X + 6),
        )
        report = compiled_whole(a.decorated, X)
        assert report.name == "Scaled.decorated" and report.graph_count == 2

    def test_the_attribute_of_a_bound_object_is_read_anew(self):
        scaled = Scaled(2.0)
        compiled = ingot.compile(scaled.method)
        assert_near(compiled(X), X * 2 + 1)
        scaled.by = 3.0
        assert_near(compiled(X), X * 3 + 1)

    @pytest.mark.parametrize(
        "args, kwargs",
        [
            ((X,), {}),
            ((X, 3), {}),
            ((X, 3, 4, X), {}),
            ((X,), {"d": X, "z": 7}),
            ((), {"b": X, "a": 2}),
            ((X, 1, 2), {"q": 1.5, "r": X}),
        ],
    )
    def test_every_kind_of_parameter(self, args, kwargs):
        def f(a, b=2, *c, d=3, **e):
            return a * b + d + sum(c) + sum(e.values())

        assert Tracked(f)(*args, **kwargs) == 1

    def test_wrong_arguments_are_the_functions_own_error(self):
        compiled = ingot.compile(lambda a, b: a + b)
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
            compiled(X)
        with pytest.raises(TypeError, match="unexpected keyword argument 'c'"):
            compiled(X, X, c=1)

    def test_generators_run_in_eager(self):
        @ingot.compile
        def twice(x):
            yield x + 1
            yield x + 2

        assert_near(list(twice(X)), [X + 1, X + 2])
        assert "generator" in ingot.explain(twice)(X).breaks[0].reason

    def test_a_compiled_function_inside_another_is_inlined(self):
        inner = ingot.compile(lambda x: x.sin())
        layer = ingot.compile(nn.Linear(4, 4))
        scaled = Scaled()
        report = compiled_whole(lambda x: layer(inner(x)) + scaled.decorated(x), X)
        assert report.graph_count == 1 and not Compiler.of(inner).compilations

    def test_recursion(self):
        @ingot.compile(fullgraph=True)
        def power(x, n):
            return x if n == 0 else power(x, n - 1) * 1.5

        assert_near(power(X, 4), X * 1.5**4)

    @pytest.mark.parametrize(
        "what, says",
        [
            (3, "expected a function or a torch.nn.Module, not 3"),
            (torch.ones(2, 2), "not a Tensor"),
            (nn.Linear, "Linear is a class; {} an instance"),
            (staticmethod(abs), "{} the function inside: @staticmethod goes above @ingot.{}"),
            (classmethod(abs), "@classmethod goes above @ingot.{}"),
        ],
    )
    @pytest.mark.parametrize("take", [ingot.compile, ingot.disable])
    def test_what_may_not(self, take, what, says):
        with pytest.raises(TypeError, match=says.replace("{}", take.__name__)):
            take()(what)

    def test_it_looks_and_travels_like_the_function(self):
        assert (at_module_level.__name__, at_module_level.__doc__) == (
            "at_module_level",
            "Doubles.",
        )
        assert (
            pickle.loads(pickle.dumps(at_module_level))
            is copy.deepcopy(at_module_level)
            is at_module_level
        )
        assert "at_module_level" in repr(at_module_level)


class TestOptions:
    """Each setting on both sides, and what is none."""

    @pytest.mark.parametrize(
        "options, error, says",
        [
            (
                {"backend": "nope"},
                ValueError,
                "unknown backend 'nope'; one of ingot, aot_eager, eager, inductor",
            ),
            (
                {"backend": "ingto"},
                ValueError,
                r"unknown backend 'ingto'; did you mean 'ingot'\? \(one of",
            ),
            ({"backend": 3}, TypeError, "backend must be"),
            ({"mode": "x"}, ValueError, "unknown mode 'x'; one of default"),
            (
                {"mode": "max-autotun"},
                ValueError,
                "unknown mode 'max-autotun'; did you mean 'max-autotune'",
            ),
            ({"mode": 3}, ValueError, "unknown mode 3; one of"),
            (
                {"options": {"y": 1}},
                ValueError,
                "unknown option 'y'; one of numerics, freeze, specialize, emit, "
                "memory_budget, donate, verify, "
                "guard_filter_fn",
            ),
            (
                {"options": {"numeric": "fast"}},
                ValueError,
                "unknown option 'numeric'; did you mean 'numerics'",
            ),
            (
                {"options": {"numerics": "x"}},
                ValueError,
                "option numerics may not be 'x'; one of eager, fast",
            ),
            ({"options": 3}, TypeError, "options must be a dict"),
            ({"fullgraph": 1}, TypeError, "fullgraph must be a bool"),
            ({"dynamic": "yes"}, TypeError, "dynamic must be"),
            ({"disable": "no"}, TypeError, "disable must be a bool"),
        ],
    )
    def test_mistakes_are_named_where_they_are_made(self, options, error, says):
        with pytest.raises(error, match=says):
            ingot.compile(**options)

    def test_fullgraph(self):
        def branches(x):
            y = x + 1
            if y.sum() > 1000:
                return x
            return y

        assert_near(ingot.compile(branches, fullgraph=False)(X), X + 1)
        compiled = ingot.compile(branches, fullgraph=True)
        for _ in range(2):
            with pytest.raises(
                ingot.GraphBreakError, match=r"a branch on .* at .*test_api.py:\d+ \(hint: "
            ) as raised:
                compiled(X)
        error = raised.value
        assert error.where.endswith(f"test_api.py:{branches.__code__.co_firstlineno + 2}")
        assert (
            error.__cause__ is None
            and error.function.endswith("branches")
            and "torch.where" in error.hint
        )
        with pytest.raises(ingot.GraphBreakError, match="a branch on"):
            ingot.explain(compiled)(X)

    @pytest.mark.parametrize("dynamic, compilations", [(True, 1), (None, 2), (False, 3)])
    def test_dynamic(self, dynamic, compilations):
        tracked = Tracked(lambda x: torch.softmax(x * 2, -1), dynamic=dynamic)
        assert sum(tracked(torch.randn(n, 5)) for n in (2, 3, 7)) == compilations

    @pytest.mark.parametrize(
        "mode", [None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
    )
    def test_mode(self, mode):
        assert Tracked(lambda x: x.sin(), mode=mode)(X) == 1

    def test_disable(self):
        def f(x):
            return x

        assert ingot.compile(f, disable=True) is f and ingot.compile(f, disable=False) is not f

    @pytest.mark.parametrize("numerics", ["eager", "fast"])
    def test_numerics(self, numerics):
        linear, x = nn.Linear(64, 64), torch.randn(32, 64)
        compiled = ingot.compile(linear, options={"numerics": numerics})
        torch.testing.assert_close(compiled(x), linear(x), rtol=1e-5, atol=1e-5)

    def test_backends(self):
        seen = []

        def mine(gm, example_inputs):
            seen.append((type(gm), [t.shape for t in example_inputs]))
            return gm.forward

        assert_near(ingot.compile(lambda x: x + 1, backend=mine)(X), X + 1)
        assert seen == [(torch.fx.GraphModule, [X.shape])] or issubclass(
            seen[0][0], torch.fx.GraphModule
        )
        assert_near(ingot.compile(lambda x: x + 1, backend="eager")(X), X + 1)
        assert ingot.list_backends()[0] == "ingot" and "eager" in ingot.list_backends()

    def test_registering_a_backend(self):
        @ingot.register_backend(name="test_api_backend")
        def mine(gm, example_inputs):
            return gm.forward

        try:
            assert "test_api_backend" in ingot.list_backends()
            assert_near(ingot.compile(lambda x: x + 1, backend="test_api_backend")(X), X + 1)
            for name in ("ingot", "test_api_backend"):
                with pytest.raises(ValueError, match="cannot be used"):
                    ingot.register_backend(lambda gm, example_inputs: gm, name=name)
        finally:
            ingot.backends._registry.pop("test_api_backend")


class Own(Exception):
    pass


def raising(x, k):
    y = x + 1
    if k == "own":
        raise Own("hi", 3)
    if k == "key":
        return {}[k]
    if k == "attribute":
        return x.nope
    if k == "matmul":
        return y @ torch.ones(3, 3)
    if k == "assert":
        raise AssertionError(f"k is {k}")  # pytest rewrites assert statements
    if k == "view":
        return y.view(5)
    if k == "division":
        return 1 / 0
    if k == "name":
        return undefined_name  # noqa: F821
    if k == "value":
        return int("z")
    if k == "index":
        return y[20]
    if k == "cat":
        return torch.cat([y, torch.ones(2, 2)])
    if k == "lookup":
        return torch.embedding(y, torch.tensor([9]))
    return y


ERRORS = "own key attribute matmul assert view division name value index cat lookup".split()


class TestErrors:
    """The program's errors are eager's, and nothing of Ingot's hangs on them."""

    @pytest.mark.parametrize("fullgraph", [False, True])
    @pytest.mark.parametrize("k", ERRORS)
    def test_errors_are_eagers(self, k, fullgraph):
        with pytest.raises(Exception) as expected:  # noqa: B017, PT011 - whatever eager raises
            raising(X, k)
        compiled = ingot.compile(raising, fullgraph=fullgraph)
        for _ in range(2):
            with pytest.raises(type(expected.value)) as raised:
                compiled(X, k)
            assert str(raised.value) == str(expected.value)
            assert raised.value.__cause__ is None and raised.value.__context__ is None
        assert len(Compiler.of(compiled).compilations) == 1

    @pytest.mark.parametrize("sums", [False, True])
    def test_what_precedes_an_error_on_the_data_has_happened(self, sums):
        done = []

        def program(x, table, rows):
            done.append("before")
            x.add_(1)
            found = torch.nn.functional.embedding(rows, table)
            done.append("between")
            x.mul_(2)
            return found.sum() + x if sums else (found, x + 1)

        compiled, table = ingot.compile(program), torch.arange(6.0).reshape(3, 2)
        for rows in ([0, 1], [1, 2], [0, 3], [2, 4], [1, 1]):
            outcomes = []
            for fn in (program, compiled):
                x, error = torch.zeros(2), None
                try:
                    fn(x, table, torch.tensor(rows))
                except IndexError as raised:
                    error = str(raised)
                outcomes.append((error, x.tolist(), done.copy()))
                done.clear()
            assert outcomes[0] == outcomes[1]
        assert len(Compiler.of(compiled).compilations) == 1

    def test_an_interrupted_compilation_leaves_nothing_behind(self):
        interrupt = [True]

        def backend(gm, example_inputs):
            if interrupt.pop():
                raise KeyboardInterrupt
            return gm.forward

        compiled = ingot.compile(lambda x: x + 1, backend=backend)
        with pytest.raises(KeyboardInterrupt):
            compiled(X)
        interrupt.append(False)
        assert_near(compiled(X), X + 1)

    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
    # it may strike in a finalizer
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.parametrize("delay", [0.001, 0.003, 0.01])
    def test_a_signal_at_any_time(self, delay):
        def interrupt(*_):
            raise KeyboardInterrupt

        compiled = ingot.compile(
            lambda x: torch.softmax(nn.functional.gelu(x) + x.sin(), -1).cumsum(0)
        )
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, delay)
            compiled(X)
        except KeyboardInterrupt:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert not torch.is_grad_enabled() and torch._C._len_torch_dispatch_stack() == 0
        assert_near(compiled(X), compiled.__wrapped__(X))

    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
    # it may strike in a finalizer
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_a_signal_at_any_time_around_graph_breaks(self):
        kept = ingot.disable(lambda x: x.sum().item())

        def f(x):
            y = x.sin()
            for n in range(3):
                y = y * kept(y) + (n if y.sum() > 0 else x)
            return y

        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        struck = 0
        try:
            for delay in (0.001, 0.004, 0.01, 0.02, 0.04, 0.08, 0.12):
                compiled = ingot.compile(f, backend="eager")
                try:
                    signal.setitimer(signal.ITIMER_REAL, delay)
                    compiled(X)
                except KeyboardInterrupt:
                    struck += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                assert not torch.is_grad_enabled() and torch._C._len_torch_dispatch_stack() == 0
                assert_near((compiled(X), compiled(X + 1)), (f(X), f(X + 1)))
                assert not ingot.native.runs_eager()
        finally:
            signal.signal(signal.SIGALRM, before)
        assert struck


class TestCompilationIsInvisible:
    """What a compilation may not leave behind."""

    def test_random_numbers(self):
        compiled = ingot.compile(lambda x: nn.functional.gelu(x) + torch.rand_like(x))
        torch.manual_seed(0)
        expected = [compiled.__wrapped__(X), torch.rand(3)]
        torch.manual_seed(0)
        assert_near([compiled(X), torch.rand(3)], expected)

    @pytest.mark.parametrize("broken", [False, True])
    def test_arguments_die_with_their_last_user(self, broken):
        def f(x, y):
            return x + (y.sum().item() if broken else y)

        compiled = ingot.compile(f)
        tensor = torch.randn(100)
        alive = weakref.ref(tensor)
        compiled(tensor, tensor[:1])
        del tensor
        gc.collect()
        assert alive() is None

    def test_a_compiled_function_dies_with_its_last_user(self):
        model = nn.Linear(4, 4)
        compiled, function = ingot.compile(model), ingot.compile(lambda x: x + 1)
        compiled(X), function(X)
        alive = [
            weakref.ref(o)
            for o in (model, compiled, function, Compiler.of(compiled), Compiler.of(function))
        ]
        del model, compiled, function
        gc.collect()
        assert [reference() for reference in alive] == [None] * 5

    def test_dynamic_sizes_keep_no_tensor_either(self):
        compiled = ingot.compile(lambda x: x.relu_(), dynamic=True)
        tensor = torch.randn(6, 7)
        alive = weakref.ref(tensor.untyped_storage())
        result = compiled(tensor)
        del tensor, result
        gc.collect()
        assert alive() is None


class TestLimits:
    """A function that never settles is left to eager, which costs no memory."""

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch):
        monkeypatch.setattr(Compiler, "max_entries", 3)

    def test_too_many_variants_run_in_eager_and_say_so_once(self, caplog):
        compiled = ingot.compile(lambda x, k: x * int(k))
        for k in range(20):
            assert_near(compiled(X, str(k)), X * k)
        compiler = Compiler.of(compiled)
        assert len(compiler.compilations) == 4
        (message,) = [r.message for r in caplog.records if "more than 3 variants" in r.message]
        assert message.startswith(f"{__file__}:")
        report = ingot.explain(compiled)(X, "1")
        assert (
            report.graph_count == 3
            and len(report.recompiles) == 2
            and report.breaks[0].file == __file__
        )
        assert "k was '0', is '1'" in report.recompiles[0]
        ingot.reset()
        assert_near(compiled(X, "99"), X * 99)
        assert len(compiler.compilations) == 1

    def test_under_fullgraph_it_is_an_error(self):
        compiled = ingot.compile(lambda x, k: x * int(k), fullgraph=True)
        for k in range(3):
            compiled(X, str(k))
        with pytest.raises(ingot.GraphBreakError, match="more than 3 variants"):
            compiled(X, "4")
        assert_near(compiled(X, "2"), X * 2)


class TestModes:
    """The state around the call: each is a fact of its own."""

    def test_gradients_autocast_inference_and_dtype(self):
        linear = nn.Linear(4, 4)
        tracked = Tracked(lambda x: torch.softmax(linear(x), -1) * 2)
        assert tracked(X) == 1
        with torch.enable_grad():
            assert tracked(X) == 1
            assert tracked.compiled(X).requires_grad
        with torch.inference_mode():
            assert tracked(X) == 1
            assert tracked.compiled(X).is_inference()
        assert tracked(X) == 0

    def test_autocast(self):
        tracked = Tracked(nn.Linear(4, 4))
        assert tracked(X) == 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert tracked(X) == 1 and tracked.compiled(X).dtype is torch.bfloat16
        assert tracked(X) == 0

    def test_default_dtype(self):
        tracked = Tracked(lambda n: torch.ones(n) * 0.5)
        tracked(3)
        torch.set_default_dtype(torch.float64)
        try:
            assert tracked(3) == 1 and tracked.compiled(3).dtype is torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
        assert tracked(3) == 0


class TestReport:
    """`explain` has what it promises."""

    @pytest.mark.parametrize("compiled", [True, False])
    @pytest.mark.parametrize(
        "fn", [lambda x: nn.functional.gelu(x) @ x.T, nn.Linear(4, 4)], ids=["function", "module"]
    )
    def test_fields(self, fn, compiled):
        report = ingot.explain(ingot.compile(fn) if compiled else fn)(X)
        assert report.graph_count == len(report.graphs) == 1 and report.break_count == 0
        assert {k.kind for k in report.kernels} <= {"fused", "extern"} and report.kernels[-1].ops
        assert all(
            k.reads_bytes > 0 and k.writes_bytes > 0 and k.source and k.where
            for k in report.kernels
        )
        assert report.guards and report.recompiles == [] and report.peak_bytes > X.nbytes
        assert {"capture", "trace", "lower", "schedule", "codegen"} <= set(report.stages)
        assert len(str(report).splitlines()) <= 40

    def test_every_artefact_names_the_users_line(self):
        def f(x):
            y = x + 1
            return torch.softmax(y, -1) @ y.T

        report = ingot.explain(f)(X)
        assert str(report).count("test_api.py") > 3
        for stage in STAGES:
            text = report.stage(stage)
            is_without = stage in ("llvm", "assembly", *OF_GRADIENTS)
            assert text and ("test_api.py:" in text or is_without), stage

    def test_rewrites_are_kept(self):
        report = ingot.explain(lambda x: (x * 1).sin() + x.sin())(X)
        text = "\n".join(report.compilations[0].log.rewrites)
        assert (
            "remove no-ops: - mul" in text
            and "share common subexpressions: - sin" in text
            and "test_api.py" in text
        )


def test_explain_compiles_without_running():
    def f(x):
        return x.add_(1).sin()

    x = torch.zeros(8)
    with torch.no_grad():
        report = ingot.explain(f)(x)
    assert torch.equal(x, torch.zeros(8)) and x._version == 0
    assert len(report.kernels) == 1 and report.peak_bytes == 2 * 8 * 4 and report.first_call is None
