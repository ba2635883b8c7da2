"""Backends: torch.compile's calling convention, errors, gradients, the compilers that torch has,
and Ingot as one of torch.compile's."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

import ingot
from ingot.backends import torch_backend
from ingot.compiler import Compiler
from tests.long import long

from .oracle import assert_near
from .tracked import Tracked

X = torch.arange(12.0).reshape(3, 4) / 7


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


class Recording:
    """A backend that keeps what it was given."""

    def __init__(self):
        self.calls = []

    def __call__(self, gm, example_inputs, **keywords):
        self.calls.append((gm, example_inputs, keywords))
        return gm.forward


def with_keywords(gm, example_inputs, *, mode=None, options=None):
    scale = (options or {}).get("scale", 1.0)
    return lambda *inputs: [out * scale for out in gm(*inputs)]


def without_keywords(gm, example_inputs):
    return gm.forward


class TestConvention:
    """`backend(gm, example_inputs) -> callable`, as for torch.compile."""

    def test_what_it_is_given(self, no_grad):
        backend, layer = Recording(), nn.Linear(4, 2)
        compiled = ingot.compile(lambda x: layer(x).relu(), backend=backend)
        assert_near(compiled(X), layer(X).relu())
        [(gm, inputs, keywords)] = backend.calls
        assert isinstance(gm, torch.fx.GraphModule) and keywords == {}
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        assert len(inputs) == len(placeholders) == 3
        assert {id(t) for t in inputs} == {id(X), id(layer.weight), id(layer.bias)}
        compiled(X + 1)
        assert len(backend.calls) == 1

    def test_it_is_given_every_graph(self, no_grad):
        backend = Recording()
        compiled = ingot.compile(lambda x: x * 2 if (x + 1).sum() > 0 else x, backend=backend)
        assert_near(compiled(X), X * 2)
        assert len(backend.calls) == 2

    def test_a_graph_without_tensor_work_is_not_given_to_it(self, no_grad):
        backend = Recording()
        assert ingot.compile(lambda x: x.shape[0], backend=backend)(X) == 3
        assert backend.calls == []

    @pytest.mark.parametrize("container", [tuple, list])
    def test_tuples_and_lists_may_be_returned(self, container, no_grad):
        tracked = Tracked(
            lambda x: (x + 1, {"a": x * 2}), backend=lambda gm, _: lambda *i: container(gm(*i))
        )
        assert tracked(X) == 1 and tracked(X) == 0

    def test_mode_and_options_reach_it(self, no_grad):
        backend = Recording()
        ingot.compile(lambda x: x + 1, backend=backend, mode="max-autotune", options={"a": 1})(X)
        assert backend.calls[0][2] == {"mode": "max-autotune", "options": {"a": 1}}
        assert_near(
            ingot.compile(lambda x: x + 1, backend=with_keywords, options={"scale": 2.0})(X),
            (X + 1) * 2,
        )

    @pytest.mark.parametrize("keywords", [{"options": {"a": 1}}, {"mode": "max-autotune"}])
    def test_what_it_does_not_take_is_an_error_at_once(self, keywords):
        with pytest.raises(
            TypeError, match=f"backend 'without_keywords' takes no {next(iter(keywords))}"
        ):
            ingot.compile(lambda x: x, backend=without_keywords, **keywords)
        ingot.compile(lambda x: x, backend=without_keywords, mode="default", options={})

    def test_registered_ones_have_names(self, no_grad):
        ingot.register_backend(with_keywords, name="test_backends_scaled")
        try:
            assert (
                ingot.register_backend(with_keywords, name="test_backends_scaled") is with_keywords
            )
            assert "test_backends_scaled" in ingot.list_backends()
            compiled = ingot.compile(
                lambda x: x + 1, backend="test_backends_scaled", options={"scale": 3.0}
            )
            assert_near(compiled(X), (X + 1) * 3)
            with pytest.raises(ValueError, match="did you mean 'test_backends_scaled'"):
                ingot.compile(backend="test_backend_scaled")
        finally:
            ingot.backends._registry.pop("test_backends_scaled")

    @pytest.mark.parametrize("name", ["ingot", "eager", "inductor"])
    def test_names_that_are_taken(self, name):
        with pytest.raises(
            ValueError, match=f"the name {name!r} cannot be used; taken are ingot, aot_eager"
        ):
            ingot.register_backend(with_keywords, name=name)

    def test_what_is_no_backend(self):
        with pytest.raises(TypeError, match="expected a callable"):
            ingot.register_backend(3)


class TestFaults:
    """What a backend does wrong is an error that names it; it hides in no fallback."""

    @pytest.mark.parametrize("fullgraph", [False, True])
    def test_it_raises(self, fullgraph, no_grad):
        def bad(gm, example_inputs):
            raise RuntimeError("no such device")

        compiled = ingot.compile(lambda x: x + 1, backend=bad, fullgraph=fullgraph)
        for _ in range(2):
            with pytest.raises(
                ingot.BackendError, match="the backend 'bad' failed: RuntimeError: no such"
            ) as raised:
                compiled(X)
            assert isinstance(raised.value.__cause__, RuntimeError)
        assert torch.is_grad_enabled() is False

    def test_it_may_work_the_next_time(self, no_grad):
        failures = [True]

        def sometimes(gm, example_inputs):
            if failures:
                raise OSError(failures.pop())
            return gm.forward

        compiled = ingot.compile(lambda x: x + 1, backend=sometimes)
        with pytest.raises(ingot.BackendError):
            compiled(X)
        assert_near(compiled(X), X + 1)

    def test_it_returns_no_callable(self, no_grad):
        def careless(gm, example_inputs):
            gm.recompile()
            return None

        with pytest.raises(ingot.BackendError, match="'careless' returned None where a callable"):
            ingot.compile(lambda x: x + 1, backend=careless)(X)

    @pytest.mark.parametrize(
        "fn",
        [lambda x: x + 1, lambda x: (x + 1, x + 2), lambda x: {"a": x + 1, "b": x * 2}],
        ids=["one", "two", "dict"],
    )
    @pytest.mark.parametrize(
        "change", [lambda out: (*out, out[0]), lambda out: list(out)[:-1]], ids=["more", "fewer"]
    )
    def test_its_callable_returns_another_number_of_outputs(self, fn, change, no_grad):
        wrong = []

        def miscounting(gm, example_inputs):
            return lambda *inputs: change(gm(*inputs)) if wrong else gm(*inputs)

        compiled = ingot.compile(fn, backend=miscounting)
        compiled(X)
        wrong.append(True)
        with pytest.raises(TypeError, match=r"a compiled graph of \d outputs? returned \d"):
            compiled(X)
        with pytest.raises(
            TypeError, match=r"'miscounting' made .* returned \d outputs for a graph of \d"
        ):
            ingot.compile(fn, backend=miscounting)(X)

    def test_its_callable_returns_a_tensor(self, no_grad):
        compiled = ingot.compile(
            lambda x: x + 1, backend=lambda gm, _: lambda *inputs: gm(*inputs)[0]
        )
        for _ in range(2):
            with pytest.raises(
                TypeError, match="tuple or list of .*outputs, not Tensor|returned a Tensor"
            ):
                compiled(X)

    def test_its_callable_raises(self, no_grad):
        """What eager does not raise is the backend's fault: the program goes on, with a warning."""

        def refusing(gm, example_inputs):
            def run(*inputs):
                raise KeyError("never")

            return run

        compiled = ingot.compile(lambda x: x + 1, backend=refusing)
        for _ in range(2):
            with pytest.warns(
                RuntimeWarning, match="graph raised KeyError.'never'., which .*<lambda>.* does not"
            ):
                assert_near(compiled(X), X + 1)

    @pytest.mark.filterwarnings("error")
    def test_the_programs_own_error_is_caught_by_the_program(self, no_grad):
        def f(x, i):
            try:
                return x[i] + 1
            except IndexError:
                return x

        compiled = ingot.compile(f, backend="eager", fullgraph=True)
        for i in (1, 9, 2, 8):
            assert_near(compiled(X, torch.tensor([i])), f(X, torch.tensor([i])))

    def test_it_refuses_a_graph(self, no_grad):
        def choosy(gm, example_inputs):
            raise ingot.Unsupported("no sines here", hint="use cosines")

        compiled = ingot.compile(lambda x: x.sin(), backend=choosy)
        for _ in range(2):
            assert_near(compiled(X), X.sin())
        [found] = ingot.explain(compiled)(X).breaks
        assert (found.reason, found.hint, found.eager) == ("no sines here", "use cosines", True)
        with pytest.raises(ingot.GraphBreakError, match="no sines here"):
            ingot.compile(lambda x: x.sin(), backend=choosy, fullgraph=True)(X)

    def test_grad_mode_survives_an_error_in_the_graph(self):
        def f(x, i):
            with torch.no_grad():
                return x[i]

        compiled = ingot.compile(f, backend="eager", fullgraph=True)
        assert_near(compiled(X, torch.tensor([1])), X[1:2])
        with pytest.raises(IndexError):
            compiled(X, torch.tensor([9]))
        assert torch.is_grad_enabled()


def mixed(layer, x):
    """Some results want gradients, some do not, one is an argument."""
    y = layer(x)
    with torch.no_grad():
        z = y * 2
    return y.relu(), z, y.detach() + 1, {"x": x}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
class TestCompilersOfTorch:
    """The captured graph handed to torch's own compilers."""

    def test_inference(self, backend, no_grad):
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8))
        tracked = Tracked(model, backend=backend, fullgraph=True)
        assert tracked(X) == 1 and tracked(X + 1) == 0 and tracked(X[:2].clone()) == 1

    def test_sizes_are_static_for_them(self, backend, no_grad):
        tracked = Tracked(lambda x: x.sin() + x.shape[0], backend=backend, dynamic=True)
        counts = [tracked(torch.ones(n, 3)) for n in (2, 3, 4)]
        assert counts == ([1, 0, 0] if backend == "eager" else [1, 1, 1])

    def test_gradients(self, backend):
        layer = nn.Linear(4, 4)
        compiled = ingot.compile(mixed, backend=backend, fullgraph=True)
        for x in (X.clone(), X.clone().requires_grad_()):
            mine, theirs = compiled(layer, x), mixed(layer, x)
            assert_near(mine, theirs)
            assert mine[3]["x"] is x
            inputs = [layer.weight, layer.bias, *([x] if x.requires_grad else [])]
            expected = torch.autograd.grad(theirs[0].sum(), inputs)
            assert_near(torch.autograd.grad(mine[0].sum(), inputs), expected)
        report = ingot.explain(compiled)(layer, X)
        assert report.breaks == [] and report.graph_count == 2

    def test_mutation_under_gradients(self, backend):
        def f(total, w):
            y = X * w
            y.mul_(w)
            total.add_(y.detach())
            return y, total

        w = torch.full((4,), 2.0, requires_grad=True)
        mine, theirs = X.clone(), X.clone()
        got, expected = ingot.compile(f, backend=backend, fullgraph=True)(mine, w), f(theirs, w)
        assert_near(got, expected)
        assert got[1] is mine
        assert_near(torch.autograd.grad(got[0].sum(), w), torch.autograd.grad(expected[0].sum(), w))


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@long
def test_inductor():
    layer = nn.Linear(4, 4)
    options = {"max_fusion_size": 8}
    compiled = ingot.compile(
        mixed, backend="inductor", options=options, mode="max-autotune", fullgraph=True
    )
    mine, theirs = compiled(layer, X), mixed(layer, X)
    assert_near(mine, theirs)
    weights = list(layer.parameters())
    assert_near(
        torch.autograd.grad(mine[0].sum(), weights), torch.autograd.grad(theirs[0].sum(), weights)
    )
    with pytest.raises(ingot.BackendError, match="the backend 'inductor' failed"):
        ingot.compile(lambda x: x.cos(), backend="inductor", options={"no such setting": 8})(X)


@pytest.mark.parametrize("backend", ["eager", "ingot"])
def test_a_written_input_that_gradients_flow_into(backend):
    def f(x, w):
        x.mul_(w)
        return x

    w = torch.full((4,), 2.0, requires_grad=True)
    mine, theirs = X.clone(), X.clone()
    got, expected = ingot.compile(f, backend=backend, fullgraph=True)(mine, w), f(theirs, w)
    assert got is mine and got.requires_grad
    assert_near(torch.autograd.grad(got.sum(), w), torch.autograd.grad(expected.sum(), w))


class TestUnderTorchCompile:
    """`torch.compile(fn, backend="ingot")`."""

    @pytest.fixture(autouse=True)
    def fresh(self):
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    def compiled_by(self, seen):
        def backend(gm, example_inputs, **keywords):
            seen.append(torch_backend(gm, example_inputs, **keywords))
            return seen[-1]

        return backend

    def report(self, made):
        return [
            (c.skipped and c.skipped.reason, c.log.plan is not None)
            for c in Compiler.of(made).compilations
        ]

    def test_it_is_an_entry_point(self):
        found = importlib.metadata.entry_points(group="torch_dynamo_backends", name="ingot")
        if not found:
            pytest.skip("Ingot was installed before it had the entry point")
        assert [point.load() for point in found] == [torch_backend]
        assert "ingot" in torch._dynamo.list_backends()
        with torch.no_grad():
            assert_near(torch.compile(lambda x: x.sin() + 1, backend="ingot")(X), X.sin() + 1)
            options = {"numerics": "fast"}
            assert_near(torch.compile(nn.ReLU(), backend="ingot", options=options)(X), X.relu())

    def test_inference_is_compiled(self, no_grad):
        seen, model = [], nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        compiled = torch.compile(model, backend=self.compiled_by(seen))
        for x in (X, X + 1):
            assert_near(compiled(x), model(x))
        assert [self.report(made) for made in seen] == [[(None, True)]]

    def test_gradients_are_compiled(self):
        seen, model = [], nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        compiled = torch.compile(model, backend=self.compiled_by(seen))
        mine, theirs = compiled(X), model(X)
        assert_near(mine, theirs)
        parameters = list(model.parameters())
        assert_near(
            torch.autograd.grad(mine.sum(), parameters),
            torch.autograd.grad(theirs.sum(), parameters),
        )
        assert self.report(seen[0]) == [(None, True)]

    def test_symbolic_sizes(self, no_grad):
        seen = []

        def f(x, k):
            return (x * k).view(-1).sum() + x.shape[0]

        compiled = torch.compile(f, backend=self.compiled_by(seen), dynamic=True)
        for n in (2, 3, 5, 7):
            assert_near(compiled(torch.ones(n, 3), n + 1), f(torch.ones(n, 3), n + 1))
        assert len(seen) == 1 and all(skipped is None for skipped, _ in self.report(seen[0]))

    def test_inputs_that_share_memory(self, no_grad):
        """torch.compile does not guard how its inputs overlap; Ingot does."""

        def f(x, y):
            x.add_(1)
            return y * 2

        compiled = torch.compile(f, backend=torch_backend)
        assert_near(compiled(torch.zeros(4), torch.zeros(4)), torch.zeros(4))
        base, expected = torch.zeros(8), torch.zeros(8)
        assert_near(compiled(base[:4], base[2:6]), f(expected[:4], expected[2:6]))
        assert_near(base, expected)

    @pytest.mark.filterwarnings(
        "error:Dynamo does not know how to trace the builtin .ingot.native._native.[hr]"
    )
    def test_functions_that_ingot_compiled_inside_it(self, no_grad, caplog):
        """torch.compile's frame hook sees neither that they compile nor what they run."""

        @ingot.disable
        def kept(x):
            return x + 1

        parts = [lambda x: {"a": x.sin() + 1}, lambda x: kept(x.sin()).cos(), nn.Linear(4, 4)]
        compiled = [ingot.compile(part) for part in parts]

        def outer(x, parts):
            return parts[0](x.cos())["a"] * 2 + parts[1](x) + parts[2](x)

        together = torch.compile(outer, backend="eager")
        for _ in range(3):
            assert_near(together(X, compiled), outer(X, parts))
        assert [ingot.explain(each)(X).graph_count for each in compiled] == [1, 2, 1]
        assert not [record for record in caplog.records if "internal error" in record.message]

    def test_alignment(self, no_grad):
        compiled, base = (
            torch.compile(lambda x: x.exp() + 1, backend=torch_backend),
            torch.rand(1025),
        )
        for x in (base[:1024], base[1:]):
            assert_near(compiled(x), x.exp() + 1)


def test_nothing_of_torchs_is_imported_unless_it_is_named():
    program = (
        "import sys, torch, ingot; x = torch.ones(3)\n"
        "with torch.no_grad():\n"
        "    ingot.compile(lambda x: x + 1, backend='eager')(x)\n"
        "    ingot.compile(lambda x: x + 1, backend=lambda gm, inputs: gm.forward)(x)\n"
        "    f = ingot.disable(lambda x: x + 1); ingot.compile(lambda x: f(x) + 1)(x)\n"
        "    g = ingot.allow_in_graph(lambda x: x + 1); ingot.compile(lambda x: g(x) + 1)(x)\n"
        "    ingot.set_stance('eager_on_recompile'); ingot.compile(lambda x: x + 2)(x)\n"
        "print([name for name in ('torch._dynamo', 'torch._inductor') if name in sys.modules], "
        "ingot.list_backends())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[] ['ingot', 'aot_eager', 'eager', 'inductor']\n", done.stderr[-2000:]
