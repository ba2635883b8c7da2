"""`graph_for`: the graph that a call would run, as Python text that runs.

A function and the arguments of a call go in; a `SpecializedGraph` comes out. The call is captured,
and compiled unless it is already. It is never run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ingot.api import compiler_for
from ingot.capture import Captured
from ingot.compiler import Compiler, loaded
from ingot.errors import Unsupported
from ingot.explain.records import Break
from ingot.explain.stages import captured_code, captured_function


@dataclass(frozen=True)
class SpecializedGraph:
    """The graph of one call, from its function's start to its end or first graph break.

    `code` defines a Python function `graph(*inputs)` that returns a tuple of tensors and numbers;
    what it names beside builtins is in `names`. Each line ends with the user's, as "file:line".
    `sources` are the user's paths to the graph's inputs, `inputs` their values in the call: not
    copies. `guards` are the facts for which a call runs this graph. `break_` says where the graph
    ends before the function does, None if it does not; `result` is the text of the Python function
    that makes the call's result of the graph's, and applies its side effects.
    """

    name: str
    where: str
    code: str
    names: dict[str, Any] = field(repr=False)
    sources: list[str]
    inputs: list[Any] = field(repr=False)
    guards: list[str] = field(repr=False)
    break_: Break | None
    result: str = field(repr=False)

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """`code` made into a function, which eager runs. It writes the tensors that the program
        writes."""
        return captured_function(self.code, self.names, self.name)

    def __str__(self) -> str:
        """The code under its guards and its inputs, as one text."""
        lines = [f"# graph of {self.name}  {self.where}", "# for calls where"]
        for guard in self.guards:
            lines += [f"#   {line}" for line in guard.splitlines()]
        lines.append("# its inputs are")
        lines += [f"#   {source}" for source in self.sources]
        if self.break_ is not None:
            lines.append(f"# {self.break_}")
        return "\n".join((*lines, self.code))


def graph_for(fn: Callable[..., Any]) -> Callable[..., SpecializedGraph]:
    """`graph_for(fn)(*args, **kwargs)` gives the graph that this call would run, as a
    `SpecializedGraph`.

    `fn` is a function, method or module, compiled already (its own options and entries are used) or
    not. The call is captured, and compiled unless an entry holds for it, which counts as one of the
    function's compilations. Neither the function nor the graph is run, so that none of its effects
    happen: no tensor is written, nothing is printed. Behind a graph break nothing is known, since
    that depends on what the break gives.

    Raises TypeError for arguments that `fn` does not take, and `Unsupported` with the reason where
    the call would run in eager.
    """
    compiler, bound = compiler_for("graph_for", fn)

    def graph(*args: Any, **kwargs: Any) -> SpecializedGraph:
        known = len(compiler.compilations)
        slots = compiler.prepare_entry((*bound, *args), kwargs)
        captured = _captured_for(compiler, slots)
        if captured is None:
            raise _why_eager(compiler, known, slots)
        return _of(compiler, captured, slots)

    return graph


def _captured_for(compiler: Compiler, slots: tuple[Any, ...]) -> Captured | None:
    """What was captured that serves a call, rather for its sizes than for any."""
    general = None
    for entry in compiler.compiled:
        guards = entry.captured.guards
        if guards.check_python(slots) is None:
            if not guards.symbols:
                return entry.captured
            general = entry.captured
    return general


def _why_eager(compiler: Compiler, known: int, slots: tuple[Any, ...]) -> Unsupported:
    """Why there is no graph for a call, before which there were so many `known` compilations."""
    for compilation in compiler.compilations[known:]:
        if compilation.skipped is not None:
            return compilation.skipped
    for compilation in compiler.compilations:
        why = compilation.skipped
        guards = None if why is None else why.evidence.guards
        if why is not None and guards is not None and guards.check_python(slots) is None:
            return why
    return compiler.eager_calls.too_many()


def _of(compiler: Compiler, captured: Captured, slots: tuple[Any, ...]) -> SpecializedGraph:
    code, names = captured_code(captured.graph_module)
    break_ = None
    if captured.break_ is not None:
        break_ = Break.of(captured.break_, compiler.name, eager=False)
    return SpecializedGraph(
        name=compiler.name,
        where=compiler.where,
        code=code,
        names=names,
        sources=[graph_input.source.name for graph_input in captured.inputs],
        inputs=loaded(captured, slots),
        guards=list(map(str, captured.guards)),
        break_=break_,
        result=str(captured.residual),
    )
