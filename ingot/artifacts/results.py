"""What a captured call returns, as the tree that an artifact builds; see `trees.py`.

In: the residual of a captured call. Out: its result's nodes, or an ExportError for objects that an
artifact cannot make, and for effects.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable
from types import CodeType
from typing import Any

import torch
from torch import Tensor, fx

from ingot.artifacts.arguments import Arguments
from ingot.artifacts.state import State
from ingot.artifacts.trees import CONSTANTS, MADE, Node
from ingot.capture import Captured
from ingot.capture.residual import Call, Collection, Constant, Dict, FromSource, Output, Residual
from ingot.errors import ExportError
from ingot.kept.format import Named
from ingot.kept.names import NotKept, name_of

_KINDS = {kind: name for name, kind in MADE.items()}


def refuse_effects(captured: Captured, fn: Any) -> None:
    """Raises ExportError where a call of `fn` changes more than tensors, which no artifact does."""
    codes: list[CodeType] = []
    known = getattr(getattr(fn, "forward", fn), "__code__", None)
    for code in (known, *(guard.data for guard in captured.guards)):
        if isinstance(code, CodeType):
            codes.append(code)
    for effect in captured.residual.effects:
        where = _line_of_output(effect, captured.graph_module.graph)
        where = where or _line_of_code(effect, codes) or _place_of(codes)
        place = f"  ({where})" if where else ""
        raise ExportError(
            f"ingot.export: {_described(effect)}{place}, which an artifact does not do: it changes "
            "nothing but tensors; return the value, or write into a buffer in place, as "
            "self.cache.copy_(new) or self.steps.add_(1) does"
        )


_TABLES = ("._buffers", "._parameters", "._modules", ".__dict__")


def _described(effect: Call) -> str:
    """An effect in few words."""
    name = getattr(effect.function, "__name__", str(effect.function)).strip("_")
    owner = next(iter(effect.args), None)
    if isinstance(owner, FromSource) and len(effect.args) > 1:
        place, key = owner.source.name, getattr(effect.args[1], "value", None)
        for table in _TABLES:
            place = place.removesuffix(table)
        if isinstance(key, str) and name.startswith("set"):
            return f"the call sets {place}.{key}"
        return f"the call changes {place} ({name})"
    if name == "print":
        return "the call prints"
    return f"the call has an effect ({name})"


def _line_of_output(effect: Call, graph: fx.Graph) -> str:
    """The user's line where a tensor is computed that an effect is about, if there is one."""
    outputs: Any = graph.output_node().args[0]
    for operand in effect.args:
        if isinstance(operand, Output):
            return str(outputs[operand.index].meta.get("where", ""))
    return ""


def _line_of_code(effect: Call, codes: Iterable[CodeType]) -> str:
    """The first line that sets the attribute of an effect, or prints, in the code that ran."""
    wanted: tuple[str, Any] = ("LOAD_GLOBAL", "print")
    if len(effect.args) > 1 and isinstance(effect.args[0], FromSource):
        wanted = ("STORE_ATTR", getattr(effect.args[1], "value", None))
    for code in codes:
        for instruction in dis.get_instructions(code):
            is_it = (instruction.opname, instruction.argval) == wanted
            if is_it and instruction.positions is not None:
                return f"{code.co_filename}:{instruction.positions.lineno}"
    return ""


def _place_of(codes: Iterable[CodeType]) -> str:
    """Where the function begins that is called."""
    for code in codes:
        return f"{code.co_filename}:{code.co_firstlineno}"
    return ""


def result_of(residual: Residual, arguments: Arguments, state: State) -> tuple[Node, ...]:
    """The nodes of a result."""
    writer = _Writer(arguments, state)
    writer.place(residual.result)
    return tuple(writer.rows)


class _Writer:
    """Writes nodes, parts first; a recipe that stands at two places is one node."""

    def __init__(self, arguments: Arguments, state: State) -> None:
        self.arguments, self.state = arguments, state
        self.rows: list[Node] = []
        self._places: dict[int, int] = {}
        self._open: set[int] = set()

    def place(self, recipe: Any) -> int:
        """The position of a recipe's node, which is written when it is first asked for."""
        known = self._places.get(id(recipe))
        if known is not None:
            return known
        if id(recipe) in self._open:
            raise ExportError("ingot.export: the call returns an object that contains itself")
        self._open.add(id(recipe))
        row = self._row(recipe)
        self._open.discard(id(recipe))
        self.rows.append(row)
        place = self._places[id(recipe)] = len(self.rows) - 1
        return place

    def _row(self, recipe: Any) -> Node:
        if isinstance(recipe, Output):
            return "output", recipe.index
        if isinstance(recipe, Constant):
            return self._constant(recipe.value)
        if isinstance(recipe, FromSource):
            return self._outside(recipe)
        if isinstance(recipe, Collection) and recipe.kind in _KINDS:
            return _KINDS[recipe.kind], tuple(map(self.place, recipe.items))
        if isinstance(recipe, Dict):
            items = []
            for key, item in recipe.items:
                items.append((self.place(key), self.place(item)))
            return "dict", tuple(items)
        if type(recipe) is Call:
            return self._call(recipe)
        raise ExportError(f"ingot.export: the call returns {_what(recipe)}{_ADVICE}")

    def _constant(self, value: Any) -> Node:
        if type(value) in CONSTANTS or type(value) is torch.Size:
            return "constant", value
        if isinstance(value, Tensor):
            raise ExportError(f"ingot.export: the call returns a tensor that it keeps{_ADVICE}")
        try:
            name_of(value)
        except NotKept:
            raise ExportError(
                f"ingot.export: the call returns a {type(value).__name__}{_ADVICE}"
            ) from None
        return "constant", Named(value)

    def _outside(self, recipe: FromSource) -> Node:
        """An object from before the call: an argument, or a tensor or constant of the state's."""
        source = recipe.source
        value = source.load(self.arguments.slots)
        if self.arguments.is_under(source):
            path = self.arguments.path_of(source)
            if path is not None:
                return "given", path
            raise ExportError(f"ingot.export: the call returns {source.name} itself{_ADVICE}")
        if isinstance(value, Tensor):
            return "state", self.state.number_of(source, self.arguments.slots, False)
        return self._constant(value)

    def _call(self, recipe: Call) -> Node:
        try:
            name_of(recipe.function)
        except NotKept as reason:
            raise ExportError(f"ingot.export: the call returns {reason}{_ADVICE}") from None
        return "call", (Named(recipe.function), tuple(map(self.place, recipe.args)))


_ADVICE = ", which an artifact cannot make: return tensors, numbers, tuples, lists and dicts"


def _what(recipe: Any) -> str:
    """What a recipe makes, in words."""
    kind = getattr(recipe, "kind", None)
    if isinstance(kind, type):
        return f"a {kind.__name__}"
    made = getattr(recipe, "make", recipe)
    for operand in getattr(made, "args", ()):
        if isinstance(operand, Constant) and isinstance(operand.value, type):
            return f"a {operand.value.__name__}"
    return "an object of the program's own"
