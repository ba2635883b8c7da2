"""Each kind of step, argument and fact is kept, or says that it is not: walks over the tables that
list the kinds, so that one which is added later fails until something is said of it."""

from __future__ import annotations

import dataclasses
import re
import types
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import fx

import ingot
from ingot.built import Risks
from ingot.capture import facts
from ingot.codegen.store import store_in
from ingot.compiler import Compiler
from ingot.graph.shape_context import ShapeContext
from ingot.kept import digest, format, loading, programs, steps
from ingot.kept.description import NamedDescription
from ingot.kept.names import NotKept
from ingot.kept.programs import FOUND
from ingot.kept.sizes import Sizes
from ingot.options import Options
from tests.kept.test_programs import PROGRAMS, WITHOUT_A_PROGRAM, X

PACKAGE = Path(ingot.__file__).parent


pytestmark = pytest.mark.usefixtures("cache")


# -- what a description is made of -----------------------------------------------------------------


def native_kinds(count: str) -> list[str]:
    """The words of a table in the C source that reads descriptions."""
    text = (PACKAGE / "native" / "program_describe.c").read_text()
    (table,) = re.findall(rf"kinds\[{count}\] = \{{(.*?)\}};", text, re.DOTALL)
    return re.findall(r'"([^"]+)"', table)


def test_each_kind_of_step_is_declared() -> None:
    """Those of the C source, of the text that describes them, and of what is kept are the same."""
    text = (PACKAGE / "runtime" / "description.py").read_text()
    (described,) = re.findall(r"^steps   (.*?)^outputs  ", text, re.DOTALL | re.MULTILINE)
    kinds = re.findall(r'\("([a-z]+(?:\s+[a-z]+)*)",', described)
    assert {re.sub(r"\s+", " ", kind) for kind in kinds} == steps.STEP_KINDS.keys()
    assert native_kinds("STEP_KINDS") == list(steps.STEP_KINDS)


@pytest.mark.parametrize("kind", [*steps.STEP_KINDS, "a later one"])
def test_steps_are_kept_or_refused(kind: str) -> None:
    reason = steps.STEP_KINDS.get(kind, "it has a step of the kind 'a later one'")
    if reason:
        with pytest.raises(NotKept) as refusal:
            steps.require_kept((("release", (1,)), (kind, 0, (1, 2))))
        assert str(refusal.value) == reason
    else:
        steps.require_kept(((kind, 0, (1, 2)),))


OF_A_GPU = {"launch", "launch parts", "product"}
"""Kinds of steps that tests/kept/test_gpu_programs.py is about."""


def sorted_and_summed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sort(1)[0].cumsum(1).sort(0)[0], x + 1


@torch.no_grad()
def test_each_kind_of_step_that_is_kept_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program has all of them. What is read is what was written, and gives eager's results."""
    written: list[Any] = []
    read: list[Any] = []
    true_build, true_restore = NamedDescription.build, loading.with_addresses

    def build(self: NamedDescription) -> Any:
        row = true_build(self)
        written.extend(row[steps.STEPS])
        return row

    def with_addresses(step: Any, addresses: Any) -> Any:
        read.append(step)
        return true_restore(step, addresses)

    monkeypatch.setattr(NamedDescription, "build", build)
    monkeypatch.setattr(loading, "with_addresses", with_addresses)
    for kept in ("", FOUND):
        ingot.reset()
        compiled = ingot.compile(sorted_and_summed)
        torch.testing.assert_close(compiled(X), sorted_and_summed(X))
        compiler = Compiler.of(compiled)
        assert compiler is not None and compiler.compilations[0].log.kept == kept
    of_a_cpu = steps.STEP_KINDS.keys() - OF_A_GPU
    assert {kind for kind, *_ in written} == {k for k in of_a_cpu if not steps.STEP_KINDS[k]}
    assert list(map(plain, read)) == list(map(plain, written))


def plain(value: Any) -> Any:
    """A part of a description, with functions in place of what stands for them."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.thing if isinstance(value, format.Named) else value


@pytest.mark.parametrize("table", ["ITEM_KINDS", "OUT_KINDS", "STEP_KINDS"])
def test_words_of_a_description_are_packed(table: str) -> None:
    kinds = native_kinds(table)
    rows = tuple([(kind, 3, (torch.float32, None)) for kind in kinds])
    assert len(rows) >= 5 and format.unpacked(format.packed(rows)) == rows


# -- what a captured graph is made of --------------------------------------------------------------

SHAPES = ShapeContext()
SIZE = SHAPES.size(4)
SIZES = Sizes(SHAPES)

PAIRS: dict[type, tuple[Any, Any]] = {
    int: (1, 2),
    bool: (True, False),
    float: (0.0, -0.0),
    complex: (1j, 2j),
    str: ("a", "b"),
    bytes: (b"a", b"b"),
    type(None): (None, 0),
    type(...): (..., None),
    tuple: ((1, (2.0,)), (1, [2.0])),
    list: ([1], (1,)),
    dict: ({"a": 1}, {"a": 2}),
    slice: (slice(1, 2), slice(1, 2, 3)),
    torch.Size: (torch.Size((1, 2)), (1, 2)),
    torch.dtype: (torch.float32, torch.float64),
    torch.layout: (torch.strided, torch.sparse_coo),
    torch.memory_format: (torch.channels_last, torch.contiguous_format),
    torch.device: (torch.device("cpu"), torch.device("meta")),
    torch.Tensor: (torch.tensor([1.0]), torch.tensor([2.0])),
    torch.SymInt: (SIZE, SIZE + 1),
    fx.Node: (0, 1),  # their numbers: see `arguments`
}
"""Two arguments of each type that is kept: programs of the one and of the other are two."""

REFUSED: dict[type, Any] = {
    range: range(3),
    type(NotImplemented): NotImplemented,
    torch.SymFloat: torch.SymFloat.__new__(torch.SymFloat),
    torch.SymBool: torch.SymBool.__new__(torch.SymBool),
    torch._ops.OpOverload: torch.ops.aten.sin.default,
    torch.Generator: torch.default_generator,
}
"""An argument of each type that is not kept."""


def argument_types() -> set[type]:
    """The types that torch.fx lets an argument have, and those of constants that capture may
    guard."""
    found = {*facts._BY_VALUE, *facts._BY_BITS, *facts._SEQUENCES, *facts._SINGLETONS}
    found.update(fx.node.base_types)
    pending = [*get_args(fx.node.Argument)]
    while pending:
        each = pending.pop()
        inner = getattr(each, "__origin__", each)
        if isinstance(inner, type):
            found.add({"Sequence": list, "Mapping": dict}.get(inner.__name__, inner))
        elif isinstance(each, types.UnionType) or get_args(each):
            pending += get_args(each)
    return found


def test_each_type_of_argument_is_kept_or_refused() -> None:
    assert argument_types() <= PAIRS.keys() | REFUSED.keys()
    assert not PAIRS.keys() & REFUSED.keys()


def told(argument: Any) -> bytes:
    """What the key has of a node with this argument."""
    return format.packed(digest._told({}, SIZES, argument))


@pytest.mark.parametrize("kind", PAIRS, ids=lambda kind: kind.__name__)
def test_other_arguments_are_another_program(kind: type) -> None:
    first, second = PAIRS[kind]
    if kind is fx.Node:
        graph = fx.Graph()
        nodes = [graph.placeholder("x"), graph.placeholder("y")]
        numbers = {nodes[0]: first, nodes[1]: second}
        first, second = [format.packed(digest._told(numbers, SIZES, node)) for node in nodes]
        assert first != second
        return
    assert type(first) is kind
    for wrap in (lambda a: a, lambda a: [a], lambda a: {"k": (a,)}, lambda a: slice(None, a)):
        assert told(wrap(first)) == told(wrap(first)) != told(wrap(second))


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_arguments_that_are_refused(kind: type) -> None:
    for argument in (REFUSED[kind], (REFUSED[kind],), {"a": [REFUSED[kind]]}):
        with pytest.raises(NotKept, match="is part of it"):
            told(argument)


def test_each_type_that_is_packed_is_read() -> None:
    for kind in format._PACK:
        value = PAIRS.get(kind, (format.Named(torch.mm),))[0]
        found = format.unpacked(format.packed(value))
        assert repr(found) == repr(plain(value)) and kind in {*PAIRS, format.Named}


@pytest.mark.parametrize("op", ["placeholder", "call_function", "call_method", "output", "root"])
def test_each_kind_of_node_is_told(op: str) -> None:
    """Those of torch.fx: `get_attr` and `call_module` are refused, since what they name is not
    looked at."""
    assert {*fx.node._legal_ops} == {
        *("placeholder", "call_function", "call_method", "output", "root"),
        *("get_attr", "call_module"),
    }
    graph = fx.Graph()
    x = graph.placeholder("x")
    if op == "call_function":
        graph.call_function(torch.sin, (x,))
    elif op == "call_method":
        graph.call_method("sin", (x,))
    elif op == "output":
        graph.output(x)
    rows = list(digest._facts_of_nodes(graph, SIZES))
    assert format.packed(tuple(rows)) and rows[-1][0] in (op, "placeholder")


@pytest.mark.parametrize("op", ["get_attr", "call_module"])
def test_nodes_with_tensors_of_their_own_are_refused(op: str) -> None:
    graph = fx.Graph()
    graph.create_node(op, "weight")
    with pytest.raises(NotKept, match="tensors in it"):
        list(digest._facts_of_nodes(graph, SIZES))


# -- what else decides a program -------------------------------------------------------------------

OPTIONS = {
    "fullgraph": "where the graph ends: the graph is told",
    "dynamic": "which sizes are symbols: the inputs are told",
    "backend": "only Ingot's own programs are kept",
    "mode": "key",
    "numerics": "key",
    "freeze": "not kept",
    "specialize": "when something is compiled, and not how",
    "emit": "not kept",
    "memory_budget": "key",
    "verify": "what is done beside running the program",
    "donate": "which inputs are given up: what was captured is told",
    "guard_filter_fn": "which guards are checked: capture always runs",
    "backend_options": "of other backends",
    "recompile_limit": "when something is compiled, and not how",
    "isolation": "who shares an entry of this process",
}
"""What becomes of each option: "key", "not kept", or why it decides nothing about the program of a
graph."""

VALUES: dict[str, Any] = {"mode": "max-autotune", "numerics": "fast", "memory_budget": 0.5}


def captured_of(function: Any) -> Any:
    compiled = ingot.compile(function)
    with torch.no_grad():
        compiled(X)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return compiler.compilations[0].captured


def test_each_option_is_in_the_key_or_says_why_not() -> None:
    assert {field.name for field in dataclasses.fields(Options)} == OPTIONS.keys()
    captured = captured_of(torch.nn.Sigmoid())
    sizes = Sizes(captured.context.shapes)

    def key(**options: Any) -> str:
        return digest.key_of(captured, Options(**options), sizes)

    for name, what in OPTIONS.items():
        if what == "key":
            assert key(**{name: VALUES[name]}) != key()
    with pytest.raises(NotKept, match="frozen"):
        key(freeze=True)
    with pytest.raises(NotKept, match=r"C\+\+"):
        key(emit="cpp")


RISKS = {
    "fails_at": "kept",
    "checks": "refused",
    "binds": "refused",
    "draws": "kept",
    "generators": "made anew",
    "leaves_traces": "kept",
    "fails_first": "kept",
    "is_replayed": "refused",
    "collectives": "refused",  # as effects are
}
"""What becomes of each risk of a program."""


def test_each_risk_is_kept_or_refused() -> None:
    assert list(Risks._fields) == list(RISKS)


@torch.no_grad()
@pytest.mark.parametrize("name", ["embedding", "sort", "writes", "pointwise"])
def test_risks_come_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, args = PROGRAMS[name]
    assert name not in WITHOUT_A_PROGRAM
    found: list[Risks] = []
    true = programs.found_or_compiled

    def watched(*all_args: Any) -> Any:
        run, risks = true(*all_args)
        found.append(risks)
        return run, risks

    monkeypatch.setattr(programs, "found_or_compiled", watched)
    for _ in range(2):
        ingot.reset()
        given = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        ingot.compile(function)(*given)
    assert found[0] == found[1] and store_in("programs").counts.found == 1
