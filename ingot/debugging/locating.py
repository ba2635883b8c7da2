"""The first op of a graph whose compiled value, or gradient, is not eager's.

In: a case whose compiled program differs from eager, and its inputs. Out: the statement. Three
ways are tried, each where the one before finds nothing:

1. The graph is compiled with every value as a result. Each op is run in eager on the values that
   the compiled program gave the op, so that what differs is the op's own doing.
2. The ops are compiled side by side, each on eager's values, and their gradients compared too.
3. The shortest prefix of the graph that differs is found by bisection: a fault that needs several
   ops in one kernel. Its last op is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.debugging.cases import Case, Statement, tensor_names
from ingot.debugging.comparing import Comparison, same_bits
from ingot.debugging.inputs import RandomState, copies

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Compiles a function with the options in question. Where its call cannot be compiled, the call
raises an error."""


class Located(NamedTuple):
    """The first statement that differs, and how; `in_company`: only with those in front of it."""

    statement: Statement
    what: str
    in_company: bool = False


def locate(case: Case, inputs: Sequence[Any], compile: Compile, gradients: bool) -> Located | None:
    """The first statement that differs from eager; None where none does by itself."""
    values = recorded(case, inputs)
    for way in (_first_wrong_value, _first_wrong_apart, _shortest_wrong_prefix):
        found = way(case, inputs, values, compile, gradients)
        if found is not None:
            return found._replace(statement=_producer(case, values, found.statement))
    return None


def _producer(case: Case, values: Mapping[str, Any], statement: Statement) -> Statement:
    """Of an item of a tuple, the statement that made the tuple; of all else the statement."""
    by_name = {s.name: s for s in case.statements}
    while "getitem" in statement.callee or "[" in statement.callee:
        made = by_name.get(statement.reads[0])
        if made is None or not isinstance(values[made.name], (tuple, list)):
            break
        statement = made
    return statement


def recorded(case: Case, inputs: Sequence[Any]) -> dict[str, Any]:
    """Eager's value of each parameter and statement, as it is when it is computed: copies, without
    gradients but where the graph takes some."""
    state = RandomState.now()
    values: dict[str, Any] = {}
    own = copies(inputs)
    for name, value in zip(case.parameters, own):
        values[name] = _kept(value)

    def keep(statement: Statement, value: Any) -> None:
        values[statement.name] = _kept(value)

    try:
        case.run(own, keep)
    finally:
        state.restore()
    return values


def _kept(value: Any) -> Any:
    """A copy that requires a gradient if the value does."""
    if isinstance(value, Tensor):
        [copy] = copies([value.detach()])
        return copy.requires_grad_(value.requires_grad)
    return value


def _first_wrong_value(
    case: Case,
    inputs: Sequence[Any],
    values: Mapping[str, Any],
    compile: Compile,
    gradients: bool,
) -> Located | None:
    made = tensor_names(values)
    names = [s.name for s in case.statements if s.name in made and not s.is_unset]
    state = RandomState.now()
    compiled: dict[str, Tensor] = {}
    try:
        with torch.no_grad():
            results = compile(case.exposing(names).function())(*copies(inputs, False))
            compiled.update(zip(names, results))
            state.restore()
            return _compared_op_by_op(case, copies(inputs, False), compiled)
    except Exception:  # with other results it may not be compiled, or need gradients
        return None
    finally:
        state.restore()


def _compared_op_by_op(
    case: Case, inputs: Sequence[Any], compiled: Mapping[str, Tensor]
) -> Located | None:
    """Runs in eager; each op on what the compiled program gave those before it."""
    values, scope = dict(zip(case.parameters, inputs)), case.globals()
    for statement in case.statements:
        before = dict(values)
        reads = copies(list(map(values.__getitem__, statement.reads)))
        state = RandomState.now()
        value = values[statement.name] = statement.evaluate(scope, before)
        own = compiled.get(statement.name)
        if own is None or (own.shape == value.shape and same_bits(own, value)):
            continue
        behind = RandomState.now()
        what = _differs_alone(case, statement, reads, own, state)
        if what:
            return Located(statement, what)
        behind.restore()
        with suppress(RuntimeError):  # elements that share memory cannot be written
            value.copy_(own)
    return None


def _differs_alone(
    case: Case, statement: Statement, reads: Sequence[Any], value: Tensor, state: RandomState
) -> str:
    """How a value differs from what the statement gives of these; "" if it does by rounding."""
    state.restore()
    alone = case.part({statement.name})
    given = dict(zip(statement.reads, reads))
    comparison = Comparison(alone, list(map(given.__getitem__, alone.parameters)), False)
    return comparison.result_differs(value)


def _first_wrong_apart(
    case: Case,
    inputs: Sequence[Any],
    values: Mapping[str, Any],
    compile: Compile,
    gradients: bool,
) -> Located | None:
    apart = Apart(case, values)
    state = RandomState.now()
    try:
        comparison = Comparison(apart.case, apart.inputs, gradients)
        difference = comparison.difference(compile(apart.case.function()))
    except Exception:  # it may not be compiled
        return None
    finally:
        state.restore()
    if difference is None or difference.is_error:
        return None
    if difference.kind == "result":
        statement = apart.of_results[difference.number]
    else:
        leaves = list(range(len(apart.inputs)))
        if difference.kind == "gradient of input":
            leaves = [k for k in leaves if apart.inputs[k].requires_grad]
        statement = apart.of_inputs[leaves[difference.number]]
    return Located(statement, str(difference))


class Apart:
    """The ops of a case side by side, each on copies of eager's values: no fault reaches another.

    Results and inputs are in the order of the statements that they belong to.
    """

    def __init__(self, case: Case, values: Mapping[str, Any]) -> None:
        self.values = values
        self.by_name = {s.name: s for s in case.statements}
        self.statements: list[Statement] = []
        self.inputs: list[Any] = []
        self.of_inputs: list[Statement] = []
        self.of_results: list[Statement] = []
        results = []
        for statement in case.statements:
            value = values[statement.name]
            if isinstance(value, Tensor) and not statement.is_unset:
                results.append(self._copied(self._written(statement, statement)))
                self.of_results.append(statement)
            elif not isinstance(value, (Tensor, tuple, list)):  # a mode is entered or left
                self._written(statement, statement, statement.name)
        parameters = [f"input_{k}" for k in range(len(self.inputs))]
        self.case = replace(
            case,
            parameters=tuple(parameters),
            statements=tuple(self.statements),
            results=tuple(results),
        )

    def _copied(self, name: str) -> str:
        """Writes a copy of a value; its name. The gradient of a result that is a view of an input
        would be taken by eager."""
        copy = Statement(f"{name}_seen", f"torch.clone({name})", (name,))
        self.statements.append(copy)
        return copy.name

    def _written(self, statement: Statement, whole: Statement, name: str = "") -> str:
        """Writes a statement for the sake of another, on inputs of its own; its name."""
        names = {}
        for read in statement.reads:
            value = self.values[read]
            if isinstance(value, Tensor):
                names[read] = f"input_{len(self.inputs)}"
                self.inputs.append(value)
                self.of_inputs.append(whole)
            elif isinstance(value, (tuple, list)):
                names[read] = self._written(self.by_name[read], whole)
        name = name or f"value_{len(self.statements)}"
        self.statements.append(statement.renamed(name, names))
        return name


def _shortest_wrong_prefix(
    case: Case,
    inputs: Sequence[Any],
    values: Mapping[str, Any],
    compile: Compile,
    gradients: bool,
) -> Located | None:
    made = tensor_names(values)
    given = dict(zip(case.parameters, inputs))

    def wrong(count: int) -> str:
        prefix = case.prefix(count, made)
        own = list(map(given.__getitem__, prefix.parameters))
        return differs(prefix, own, compile, gradients)

    low, high, what = 0, len(case.statements), ""
    while high - low > 1:
        middle = (low + high) // 2
        found = wrong(middle)
        if found:
            high, what = middle, found
        else:
            low = middle
    what = what or wrong(high)
    if not what:
        return None
    return Located(case.statements[high - 1], what, in_company=True)


def differs(case: Case, inputs: Sequence[Any], compile: Compile, gradients: bool) -> str:
    """How a compiled case differs from eager; "" if it does not, or cannot be run or compiled."""
    if not case.results:
        return ""
    state = RandomState.now()
    try:
        comparison = Comparison(case, inputs, gradients)
        if comparison.expected.raised:
            return ""
        difference = comparison.difference(compile(case.function()))
    except Exception:
        return ""
    finally:
        state.restore()
    if difference is None or difference.is_error:
        return ""
    return str(difference)
