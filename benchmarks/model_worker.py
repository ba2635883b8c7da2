"""One model of the table, in a process of its own: `python -m benchmarks.model_worker NAME
OUTPUT.json`.

The model runs in eager, captured by Ingot and by torch.compile, each with a backend that counts and
runs the graphs as they are, and compiled by Ingot's own backend. What was found is written to a
file after each step, so that a crash later on loses only what comes after it.
"""

from __future__ import annotations

import json
import operator
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.model_zoo import make


class OpCounter(TorchDispatchMode):
    """Counts the ATen ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return op(*args, **(kwargs or {}))


@dataclass
class Counts:
    """What a compiler made of one call: `nodes` are calls in its torch-level graphs, `aten` the
    ATen ops that these graphs run in that call. `again` counts the graphs that two more calls made,
    an unchanged one and one with other values of the same shapes."""

    graphs: int = 0
    nodes: int = 0
    aten: int = 0
    again: int = 0
    difference: str = ""
    breaks: list[str] = field(default_factory=list)
    problem: str = ""


class Counting:
    """A backend that counts, and runs the graph as it is."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.watching = True

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        self.counts.graphs += 1
        self.counts.nodes += sum(map(calls_torch, gm.graph.nodes))

        def run(*inputs: Any) -> Any:
            if not self.watching:
                return gm.forward(*inputs)
            with OpCounter() as counter:
                result = gm.forward(*inputs)
            self.counts.aten += counter.count
            return result

        return run


def calls_torch(node: torch.fx.Node) -> bool:
    """Whether a node calls torch for tensors, as opposed to taking a result apart."""
    if node.op not in ("call_function", "call_method", "call_module"):
        return False
    if node.target is operator.getitem and isinstance(_value(node.args[0]), (tuple, list)):
        return False
    return isinstance(_value(node), (torch.Tensor, tuple, list))


def _value(node: Any) -> Any:
    """What capture says that a node gives: torch.compile and Ingot have names of their own for
    it."""
    return (
        node.meta.get("example_value", node.meta.get("val"))
        if isinstance(node, torch.fx.Node)
        else None
    )


def tensors(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """All tensors of a result in order: of dicts, sequences, and the attributes of other objects
    (caches)."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        yield value
        return
    if id(value) in seen or isinstance(value, (torch.nn.Module, type)):
        return
    seen.add(id(value))
    if isinstance(value, dict):
        parts: Any = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    else:
        parts = vars(value).values() if hasattr(value, "__dict__") and not callable(value) else ()
    for part in parts:
        yield from tensors(part, seen)


def difference(result: Any, expected: Any) -> str:
    """How two results differ: "exact", the largest error where they are close, or what is wrong."""
    if type(result) is not type(expected):
        return f"WRONG: a {type(result).__name__} for a {type(expected).__name__}"
    if isinstance(expected, dict) and list(result) != list(expected):
        return f"WRONG: keys {list(result)} for {list(expected)}"
    mine, its = list(tensors(result)), list(tensors(expected))
    if len(mine) != len(its):
        return f"WRONG: {len(mine)} tensors for {len(its)}"
    worst = 0.0
    for a, b in zip(mine, its):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"WRONG: {a.dtype} {tuple(a.shape)} for {b.dtype} {tuple(b.shape)}"
        if torch.equal(a, b):
            continue
        error = (a.double() - b.double()).abs().max().item()
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-4):
            return f"WRONG: off by {error:.1e}"
        worst = max(worst, error)
    return f"{worst:.0e}" if worst else "exact"


@dataclass
class Case:
    """A model, two calls of it, and what they give in eager."""

    model: torch.nn.Module
    calls: list[dict[str, Any]]
    expected: list[Any]

    @staticmethod
    def of(name: str) -> Case:
        model, inputs = make(name)
        calls = [inputs, make(name, seed=1)[1]]
        return Case(model, calls, [model(**call) for call in calls])

    def difference(self, compiled: Callable[..., Any]) -> str:
        """How the results of these calls differ from eager's: what is wrong, or else the larger of
        the errors."""
        found = [
            difference(compiled(**call), expected)
            for call, expected in zip(self.calls, self.expected)
        ]
        return max(found, key=_size)


def _size(text: str) -> float:
    """How bad a difference is, as a number."""
    return 0.0 if text == "exact" else float("inf") if text.startswith("WRONG") else float(text)


def count(compile_: Callable[..., Any], reasons: Callable[[Any], list[str]], case: Case) -> Counts:
    """Compiles, and calls three times."""
    backend = Counting()
    counts = backend.counts
    try:
        compiled = compile_(case.model, backend=backend)
        compiled(**case.calls[0])
        backend.watching = False
        graphs = counts.graphs
        counts.difference = case.difference(compiled)
        counts.again, counts.graphs = counts.graphs - graphs, graphs
        counts.breaks = reasons(compiled)
    except Exception as error:
        traceback.print_exc()
        counts.problem = (
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
        )
    return counts


def ingot_breaks(compiled: Any) -> list[str]:
    """The reasons that Ingot's report gives, one for each break or call left to eager."""
    from ingot.compiler import Compiler
    from ingot.explain.report import Report

    compiler = Compiler.of(compiled)
    assert compiler is not None
    report = Report.from_compilations(compiler.compilations)
    return [f"{b.reason} ({b.file.rpartition('/')[2]}:{b.line})" for b in report.breaks]


def torch_breaks(_: Any) -> list[str]:
    from torch._dynamo.utils import counters

    return [str(reason).splitlines()[0] for reason in counters["graph_break"]]


def own_backend(case: Case) -> str:
    """The results of Ingot's own backend beside eager's; why part of the model was left to eager,
    if any was."""
    import ingot
    from ingot.compiler import Compiler

    try:
        compiled = ingot.compile(case.model)
        found = case.difference(compiled)
        compiler = Compiler.of(compiled)
        assert compiler is not None
        skipped = [
            compilation.skipped
            for compilation in compiler.compilations
            if compilation.skipped is not None
        ]
        return f"EAGER: {skipped[0]}" if skipped else found
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"[:200]


def main(name: str, output: Path) -> None:
    import ingot

    found: dict[str, Any] = {"model": name}

    def keep(**more: Any) -> None:
        found.update(more)
        output.write_text(json.dumps(found))

    with torch.no_grad():
        case = Case.of(name)
        with OpCounter() as counter:
            case.model(**case.calls[0])
        keep(eager=counter.count)
        keep(ingot=asdict(count(ingot.compile, ingot_breaks, case)))
        keep(torch=asdict(count(torch.compile, torch_breaks, case)))
        keep(compiled=own_backend(case))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
