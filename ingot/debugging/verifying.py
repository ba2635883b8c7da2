"""`options={"verify": n}`: the first n calls of each compiled program are compared with eager.

In: what runs a captured graph, and the graph. Out: the same, which compares. Both sides run on
copies of the inputs, from the same random numbers. Where they agree, the compiled program runs on
the inputs themselves. Where they differ, a `DifferenceWarning` names the first op that does, and
eager runs in the program's place, now and from then on.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph

from ingot.capture import Captured
from ingot.debugging.cases import Case, case_of
from ingot.debugging.comparing import Comparison, Difference
from ingot.debugging.locating import Compile, Located, locate
from ingot.debugging.naming import NotWritable
from ingot.debugging.repro import Repro, written_on_request
from ingot.errors import DifferenceWarning, mark_of_hooks
from ingot.events import encodable
from ingot.explain.text import code_at
from ingot.graph import python_random
from ingot.native import _native

log = logging.getLogger("ingot")

Target = Callable[..., Sequence[Any]]


class Program(NamedTuple):
    """What is verified: its name and place for messages, and what compiles parts of it anew. If it
    `replays`, the original function is called again where it raises an error. `repro` makes a
    script of its graph and some inputs."""

    title: str
    where: str
    compile: Compile
    replays: bool
    repro: Callable[[Sequence[Any]], Repro]


def verified(target: Target, captured: Captured, program: Program, calls: int) -> Target:
    """What compares the first `calls` calls of `target`. Where the graph cannot be run again, it is
    not compared, and the log says why."""
    graph = captured.graph_module.graph
    try:
        _refuse_effects(graph, captured)
        case = case_of(graph)
    except NotWritable as reason:
        name = encodable(f"{program.title} ({program.where})")
        log.warning("%s is not verified: %s", name, reason)
        return target
    return Verified(target, case, program, calls)


def _refuse_effects(graph: Graph, captured: Captured) -> None:
    """Raises NotWritable for what must not run twice."""
    draws = any(node.target in python_random.OPS for node in graph.nodes)
    if draws or captured.context.effects_alone:
        raise NotWritable("an op in it has effects, which must not happen twice")


class Verified:
    """Runs `target`, the first `calls` times beside eager."""

    def __init__(self, target: Target, case: Case, program: Program, calls: int) -> None:
        self.target, self.case, self.program = target, case, program
        self.calls, self.count = calls, 0
        self.is_wrong = False

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        if self.is_wrong:
            return self.case.run(inputs)
        if self.count >= self.calls:
            return self.target(*inputs)
        self.count += 1
        try:
            comparison = self._comparison(inputs)
            actual = comparison.outcome(self.target)
            found = comparison.between(actual)
        except Exception as error:  # a tensor that cannot be copied, or no memory for it
            log.warning("%s is not verified: %r", encodable(self.program.title), error)
            self.calls = 0
            return self.target(*inputs)
        finally:
            _native.forget_traces()  # which were left on copies
        raised = comparison.expected.raised
        if self.program.replays and actual.raised and not raised:
            # an assumption does not hold: nothing was written, and the original function is called
            raise actual.raised
        if found is not None:
            located = self._located(inputs, found)
            if located is not None or not any(s.is_unset for s in self.case.statements):
                self.is_wrong = True
                self._tell(inputs, found, located)
        if self.program.replays and raised:
            raise raised
        if self.is_wrong or raised:
            return self.case.run(inputs)
        return self.target(*inputs)

    def _comparison(self, inputs: Sequence[Any]) -> Comparison:
        gradients = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        return Comparison(self.case, inputs, gradients)

    def _located(self, inputs: Sequence[Any], found: Difference) -> Located | None:
        """The first op that differs, if one is found."""
        if found.is_error:
            return None
        gradients = found.kind == "gradient of input"
        try:
            return locate(self.case, inputs, self.program.compile, gradients)
        except Exception as error:
            log.debug("the op is not found: %r", error)
            return None

    def _tell(self, inputs: Sequence[Any], found: Difference, located: Located | None) -> None:
        """Warns, with the first op that differs."""
        text = message(self.program, self.count, found, located)
        file = written_on_request(lambda: self.program.repro(inputs), self.program.title)
        if file is not None:
            text += f"\n  a script that shows it: {file}"
        warning = DifferenceWarning(text)
        if located is not None:
            warning.op, warning.where = located.statement.callee, located.statement.where
        try:
            warnings.warn(warning, stacklevel=3)
        except DifferenceWarning as error:  # the user wants an error
            mark_of_hooks(error)  # so that the call is not repeated for it
            raise


def message(program: Program, call: int, found: Difference, located: Located | None) -> str:
    """What is told to the user."""
    lines = [f"{program.title} ({program.where}), call {call} of this program: {found}"]
    if located is None:
        lines.append("no op differs by itself, nor does the graph if it is compiled once more")
    else:
        statement = located.statement
        line = f"first op that differs: {statement.callee}"
        if statement.where:
            line += f"  {statement.where}"
            source = code_at(statement.where)
            if source:
                line += f"  {source}"
        if located.in_company:
            line += "  (compiled together with those in front of it)"
        lines += [line, f"  {located.what}"]
    lines.append("the call gives eager's results, and this program runs in eager from now on")
    return "\n  ".join(lines)
