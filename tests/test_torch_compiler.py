"""docs/torch_compiler.md: it has every public name of torch.compile's interface, and what it says
to work does, beside torch.compile itself."""

from __future__ import annotations

import inspect
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo import decorators

import ingot
from ingot.compiler import Compiler

PAGE = Path(__file__).parent.parent / "docs" / "torch_compiler.md"
ROW = re.compile(r"^\| (`.*?`(?:, `.*?`)*) \| (works|differs|not) \|")
WORKS, DIFFERS, NOT = "works", "differs", "not"

X = torch.linspace(-1, 1, 12).reshape(3, 4)

# -- the page --------------------------------------------------------------------------------------


def rows(section: str) -> dict[str, str]:
    """The status of each name of a section of the page."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    status = {}
    for line in text.splitlines():
        found = ROW.match(line)
        if found:
            for name in re.findall(r"`(.*?)`", found[1]):
                status[name] = found[2]
    return status


NAMESPACES: dict[str, list[str]] = {
    "Parameters of torch.compile": list(inspect.signature(torch.compile).parameters),
    "torch.compiler": torch.compiler.__all__,
    "torch._dynamo": [*torch._dynamo.__all__, "mark_unbacked", "skip"],
}


@pytest.mark.parametrize("section", NAMESPACES)
def test_the_page_has_every_name(section: str) -> None:
    assert set(NAMESPACES[section]) - set(rows(section)) == set()


def test_the_usual_limit_is_known() -> None:
    assert torch._dynamo.config.recompile_limit == 8


# -- what is said to work --------------------------------------------------------------------------

Compile = Callable[..., Any]
Program = Callable[[Compile], Any]

CASES: list[tuple[str, Program]] = []
UNLIKE_TORCH: set[str] = set()
"""Names whose programs give what eager does, and not what torch.compile does."""

C = torch.compiler
D = SimpleNamespace(**{**vars(decorators), **vars(torch._dynamo)})


def case(*names: str, unlike_torch: bool = False) -> Callable[[Program], Program]:
    """A program that uses these names of the interface, given what compiles."""

    def note(program: Program) -> Program:
        for name in names:
            CASES.append((name, program))
            if unlike_torch:
                UNLIKE_TORCH.add(name)
        return program

    return note


@case("allow_in_graph")
def _(compile: Compile) -> Any:
    double = C.allow_in_graph(lambda x: x.sin() * 2)
    return compile(lambda x: double(x) + 1, fullgraph=True)(X)


@case("assume_constant_result")
def _(compile: Compile) -> Any:
    class Scaled(nn.Module):
        @C.assume_constant_result
        def factor(self) -> int:
            return len(str(self.training))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor()

    return compile(Scaled(), fullgraph=True)(X)


@case("compile", "backend", "fullgraph", "dynamic", "mode", "name", "model")
def _(compile: Compile) -> Any:
    return compile(model=lambda x: x.sin(), fullgraph=True, dynamic=True)(X)


@case("cudagraph_mark_step_begin")
def _(compile: Compile) -> Any:
    def step(x: torch.Tensor) -> torch.Tensor:
        C.cudagraph_mark_step_begin()
        return x.sin()

    C.cudagraph_mark_step_begin()
    return compile(step)(X)


@case("disable")
def _(compile: Compile) -> Any:
    @C.disable(reason="it draws")
    def drawn(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        return x.sin(), C.is_compiling()

    @C.disable(recursive=False)
    def outer(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    layer = C.disable(nn.Identity())
    return compile(lambda x: (drawn(x + 1), outer(x), layer(x)))(X)


@case("is_compiling")
def _(compile: Compile) -> Any:
    return compile(lambda x: (x + 1, C.is_compiling(), D.is_compiling()))(X)


@case("is_dynamo_compiling", "is_exporting", unlike_torch=True)
def _(compile: Compile) -> Any:
    return compile(lambda x: (x + 1, C.is_dynamo_compiling(), C.is_exporting()), fullgraph=True)(X)


@case("list_backends", "lookup_backend")
def _(compile: Compile) -> Any:
    return C.list_backends(None), D.lookup_backend("eager")


@case("nested_compile_region")
def _(compile: Compile) -> Any:
    @C.nested_compile_region
    def region(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    return compile(lambda x: region(x) + region(x * 2), fullgraph=True)(X)


@case("nonstrict_trace")
def _(compile: Compile) -> Any:
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.fill_(0.5)
        layer.bias.zero_()

    @D.nonstrict_trace
    def parts(given: dict[str, Any]) -> dict[str, Any]:
        return {"sum": layer(given["a"]) + given["b"][0]}

    return compile(lambda x: parts({"a": x, "b": [x]})["sum"] * 2, fullgraph=True)(X)


@case("reset")
def _(compile: Compile) -> Any:
    calls = compile(lambda x: (x.sin(), C.is_compiling()))
    first = calls(X)
    C.reset()
    with C.set_stance("eager_on_recompile"):
        return first, calls(X)


@case("set_stance")
def _(compile: Compile) -> Any:
    calls = compile(lambda x: (x.sin(), C.is_compiling()))

    @C.set_stance("force_eager")
    def eager() -> Any:
        return calls(X)

    results = [calls(X), eager(), calls(X)]
    with C.set_stance("eager_on_recompile"):
        results += [calls(X), calls(X[None])]
    with C.set_stance("fail_on_recompile"):
        results.append(calls(X))
        try:
            calls(X[None])
        except RuntimeError:
            results.append("an error")
    C.set_stance("force_eager")
    results.append(calls(X))
    C.set_stance("default")
    return [*results, calls(X)]


@case("substitute_in_graph")
def _(compile: Compile) -> Any:
    return compile(lambda x: x * (zlib.adler32(b"abc") % 7), fullgraph=True)(X)


@case("disable_nested_graph_breaks", "dont_skip_tracing", "graph_break")
def _(compile: Compile) -> Any:
    @D.disable_nested_graph_breaks
    @D.dont_skip_tracing
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        D.graph_break()
        return y.cos()

    return compile(lambda x: broken(x) + 1)(X)


@case("disable_nested_graph_breaks", "dont_skip_tracing", "patch_dynamo_config")
def _(compile: Compile) -> Any:
    @D.dont_skip_tracing
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @D.disable_nested_graph_breaks
    def outer(x: torch.Tensor) -> torch.Tensor:
        with D.patch_dynamo_config(capture_scalar_outputs=True):
            return inner(x) * x.square().sum().item()

    return compile(outer, fullgraph=True)(X)


@case("error_on_graph_break")
def _(compile: Compile) -> Any:
    def broken(x: torch.Tensor, is_error: bool) -> torch.Tensor:
        y = x + 1
        with D.error_on_graph_break(is_error):
            D.graph_break()
            return y.sin()

    def broken_elsewhere(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        D.graph_break()
        with D.error_on_graph_break(True):
            return y.cos()

    within = D.error_on_graph_break(False)(broken_elsewhere)
    results = [compile(broken)(X, False), compile(broken_elsewhere)(X), compile(within)(X)]
    try:
        compile(broken)(X, True)
    except RuntimeError:
        results.append("an error")
    return results


@case("is_dynamo_disable_recursive")
def _(compile: Compile) -> Any:
    disabled = C.disable(lambda x: x, recursive=False)
    return D.is_dynamo_disable_recursive(disabled), compile(disabled)(X)


@case("mark_dynamic", "maybe_mark_dynamic", "mark_unbacked")
def _(compile: Compile) -> Any:
    scaled = compile(lambda x: (x * x.shape[0], C.is_compiling()), fullgraph=True)
    results = []
    for mark in (D.mark_dynamic, D.maybe_mark_dynamic, D.mark_unbacked):
        C.reset()
        tensors = [torch.ones(5, 4), torch.ones(7, 4)]
        for tensor in tensors:
            mark(tensor, 0)
        results.append(scaled(tensors[0]))
        with C.set_stance("eager_on_recompile"):  # one compilation serves both
            results.append(scaled(tensors[1]))
    return results


@case("mark_static", "mark_static_address")
def _(compile: Compile) -> Any:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        D.mark_static(x, 0)
        D.mark_static(x)
        return x * x.shape[0]

    D.mark_static_address(X)
    tensor = torch.ones(5, 4)
    D.mark_static(tensor, 0)
    results = [compile(scaled, fullgraph=True, dynamic=True)(X)]
    return [*results, compile(lambda x: x * x.shape[0], dynamic=True)(tensor)]


@case("skip", "skip_frame", "step_unsupported")
def _(compile: Compile) -> Any:
    def left(x: torch.Tensor) -> torch.Tensor:
        D.skip_frame()
        return x.sin()

    def stepped(x: torch.Tensor) -> torch.Tensor:
        D.step_unsupported()
        return x.cos()

    def skipped(x: torch.Tensor) -> torch.Tensor:
        return x.tan()

    return [compile(function)(X) for function in (left, stepped, D.skip(skipped))]


FILTERS = [name for name in C.__all__ if name.startswith(("keep_", "skip_"))]


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by, self.dropout = 2.0, nn.Dropout(0.0)

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return self.dropout(x) * self.by * n


@case(*FILTERS)
def _(compile: Compile) -> Any:
    results = []
    for name in FILTERS:
        C.reset()
        module, options = Dropped(), {"guard_filter_fn": getattr(C, name)}
        calls = compile(module, dynamic=False, options=options)
        results.append(calls(X, 3))
        results.append(calls(X, 4))
        module.by = 5.0
        results.append(calls(X, 4))
        module.dropout.p = 1.0
        results.append(calls(X, 4))
    return results


@case("wrap_numpy")
def _(compile: Compile) -> Any:
    wrapped = C.wrap_numpy(lambda array: array * 2 + 1)
    return compile(lambda x: wrapped(x) + 1)(X)


@case("config", "recompile_limit")
def _(compile: Compile) -> Any:
    def repeated(x: torch.Tensor, times: int) -> Any:
        return [x] * times, C.is_compiling()

    calls, results = compile(repeated, dynamic=False), []
    with torch._dynamo.config.patch(recompile_limit=2):
        for times in (2, 3, 4, 3):
            results.append(calls(X, times))
    return results


@case("options", "disable")
def _(compile: Compile) -> Any:
    return compile(lambda x: x.sin(), disable=True)(X)


@case("get_default_backend", "set_default_backend")
def _(compile: Compile) -> Any:
    before = C.get_default_backend()
    C.set_default_backend("eager")
    try:
        return C.get_default_backend(), compile(lambda x: x.sin())(X)
    finally:
        C.set_default_backend(before)


@case("register_backend")
def _(compile: Compile) -> Any:
    if "negating_for_test" not in D.list_backends():
        D.register_backend(lambda gm, inputs: gm.forward, name="negating_for_test")
    return compile(lambda x: x.sin(), backend=D.lookup_backend("negating_for_test"))(X)


@case("isolate_recompiles")
def _(compile: Compile) -> Any:
    def negated(x: torch.Tensor) -> Any:
        return -x, C.is_compiling()

    calls = [compile(negated, isolate_recompiles=True, recompile_limit=1) for _ in range(2)]
    return [call(X) for call in calls]


def eager(fn: Any = None, *, model: Any = None, backend: Any = None, **rest: Any) -> Any:
    return model if fn is None else fn


def by_torch(fn: Any = None, *, model: Any = None, backend: Any = "eager", **rest: Any) -> Any:
    return torch.compile(model if fn is None else fn, backend=backend, **rest)


def by_ingot(fn: Any = None, **rest: Any) -> Any:
    return ingot.compile(fn, **rest)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    C.set_stance("default")
    torch._dynamo.reset()


@pytest.fixture(scope="module", autouse=True)
def a_substitute() -> None:
    @C.substitute_in_graph(zlib.adler32, skip_signature_check=True)
    def adler32(data: bytes, value: int = 1) -> int:
        low, high = value & 65535, value >> 16
        for place in range(len(data)):
            low = (low + data[place]) % 65521
            high = (high + low) % 65521
        return high << 16 | low


def is_here(name: str) -> bool:
    """Whether the installed torch has a name."""
    return any(name in names for names in NAMESPACES.values())


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.allclose(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize(("name", "program"), CASES)
def test_what_works(name: str, program: Program) -> None:
    if not is_here(name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    expected = program(eager if name in UNLIKE_TORCH else by_torch)
    torch._dynamo.reset()
    assert equal(program(by_ingot), expected)


def test_what_is_said_to_work_is_tried() -> None:
    claimed = set()
    for section in NAMESPACES:
        claimed |= {name for name, status in rows(section).items() if status != NOT}
    assert claimed - set(dict(CASES)) == set()


# -- what is said to differ, and ingot's own names -------------------------------------------------


def entries(compiled: Any) -> int:
    """How many compilations a compiled function has had."""
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return len(compiler.entries)


@pytest.mark.parametrize("stance", ["force_eager", "eager"])
def test_ingot_takes_the_names_of_stances(stance: str) -> None:
    calls = ingot.compile(lambda x: (x, C.is_compiling()))
    calls(X)
    with ingot.set_stance(stance):
        assert not calls(X)[1]
    assert repr(ingot.set_stance(stance)) == "set_stance('eager')"
    ingot.set_stance("default")


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
@pytest.mark.parametrize("interface", [C, ingot])
def test_eager_then_compile(stance: str, interface: Any) -> None:
    calls = ingot.compile(lambda x: (x.sin(), C.is_compiling()))
    with interface.set_stance(stance):
        assert [calls(X)[1], calls(X)[1], calls(X[None])[1]] == [False, True, True]
    C.reset()
    with interface.set_stance(stance):
        assert [calls(X)[1], calls(X)[1]] == [False, True]


def test_a_recompile_limit_of_its_own() -> None:
    def repeated(x: torch.Tensor, times: int) -> Any:
        return [x + 1] * times, C.is_compiling()

    calls = ingot.compile(repeated, dynamic=False, recompile_limit=2)
    assert [calls(X, times)[1] for times in (2, 3, 4, 2)] == [True, True, False, True]
    strict = ingot.compile(repeated, dynamic=False, recompile_limit=1, fullgraph=True)
    strict(X, 2)
    with pytest.raises(ingot.GraphBreakError, match="more than 1 variants"):
        strict(X, 3)


def test_isolated_entries_are_nobody_elses() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    shared = [ingot.compile(scaled) for _ in range(2)]
    isolated = [ingot.compile(scaled, isolate_recompiles=True) for _ in range(2)]
    with ingot.set_stance("default"):
        for call in (*shared, *isolated):
            call(X)
    reports = [ingot.explain(call)(X) for call in (*shared, *isolated)]
    first = [report.graphs[0] for report in reports]
    assert first[0] is first[1] and len({id(graph) for graph in first}) == 3


def test_the_name_in_reports() -> None:
    named = ingot.compile(lambda x: x.sin(), name="the sine")
    assert "ingot: the sine" in str(ingot.explain(named)(X))


def test_settings_of_torch_are_heeded() -> None:
    calls = ingot.compile(lambda x: (x.sin(), C.is_compiling()))
    with torch._dynamo.config.patch(disable=True):
        assert not calls(X)[1]
    assert calls(X)[1]
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert calls(X)[1]
        with pytest.raises(RuntimeError, match="would be compiled under 'error_on_recompile'"):
            calls(X[None])
    assert entries(calls) == 1


def test_a_constant_result_is_of_the_object() -> None:
    """The result for a module is kept for that module alone."""

    class Scaled(nn.Module):
        def __init__(self, factor: int) -> None:
            super().__init__()
            self.register_buffer("factors", torch.tensor([factor]))

        @C.assume_constant_result
        def factor(self) -> int:
            return int(self.factors)

    def scaled(x: torch.Tensor, by: Scaled) -> torch.Tensor:
        return x * by.factor()

    compiled = ingot.compile(scaled, fullgraph=True)
    for factor in (2, 3):
        assert torch.equal(compiled(X, Scaled(factor)), X * factor)


def test_errors_where_graphs_break_reach_through_calls_and_continuations() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        D.graph_break()
        return x.sin()

    def outer(x: torch.Tensor) -> torch.Tensor:
        D.graph_break()
        with D.error_on_graph_break(True):
            y = inner(x)
        return y + 1

    with pytest.raises(ingot.GraphBreakError, match="graph_break") as raised:
        ingot.compile(outer)(X)
    assert raised.value.function.endswith("inner")
    assert not torch._dynamo.utils._get_error_on_graph_break()  # the block was left
    lenient = ingot.compile(D.error_on_graph_break(True)(D.error_on_graph_break(False)(inner)))
    assert torch.equal(lenient(X), X.sin())


@pytest.mark.skipif(not hasattr(D, "override_cudagraphs"), reason="this torch has none")
def test_hints_inside_break_no_graph() -> None:
    def hinted(x: torch.Tensor) -> torch.Tensor:
        D.maybe_mark_dynamic(x, 0)
        D.override_optimization_hint(x.shape[0], 64)
        with D.override_cudagraphs(fwd=False):
            return x.sin()

    assert torch.allclose(ingot.compile(hinted, fullgraph=True)(X), X.sin())


def test_mark_static_inside_compiles_for_the_size() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        D.mark_static(x, [0])
        return x * 2

    compiled = ingot.compile(scaled, dynamic=True)
    for rows_ in (3, 5):
        for columns in (4, 6):
            compiled(torch.ones(rows_, columns))
    assert entries(compiled) == 2


@pytest.mark.parametrize("least", [None, 4])
def test_bounds_of_an_unbacked_size(least: int | None) -> None:
    if least is not None and "min" not in inspect.signature(D.mark_unbacked).parameters:
        pytest.skip(f"torch {torch.__version__} takes no bounds")
    scaled = ingot.compile(lambda x: x * x.shape[0], fullgraph=True)
    tensor = torch.ones(5, 4)
    D.mark_unbacked(tensor, 0, **({} if least is None else {"min": least}))
    scaled(tensor)
    scaled(torch.ones(3, 4))
    assert entries(scaled) == (1 if least is None else 2)
