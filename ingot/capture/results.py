"""From the value that a captured function returns to the recipe that makes it again after the graph has run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ingot.capture import residual
from ingot.capture.residual import Recipe
from ingot.capture.values.base import LazyValue, NotConstant, Value
from ingot.capture.values.containers import DictValue, ListValue, RangeValue, SetValue, SliceValue, TupleValue
from ingot.capture.values.functions import PartialValue
from ingot.capture.values.mappings import DictObject, plain_mapping
from ingot.capture.values.objects import ExceptionValue, ObjectValue
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.errors import Unsupported

if TYPE_CHECKING:
    from ingot.capture.session import Session


class Results:
    """Collects the graph's outputs while it writes recipes; the same value gives the same recipe."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.outputs: list[TensorValue | SymIntValue] = []
        self._made: dict[int, tuple[Value, Recipe]] = {}

    def recipe(self, value: Value) -> Recipe:
        """How to make the object of a value."""
        known = self._made.get(id(value))
        if known is None:
            known = self._made[id(value)] = (value, self._make(value))
        return known[1]

    def _make(self, value: Value) -> Recipe:
        if isinstance(value, LazyValue) or (value.source is not None and not isinstance(value, TensorValue)):
            assert value.source is not None
            return residual.FromSource(value.source)
        for cls in type(value).__mro__:
            if cls in _RECIPES:
                return _RECIPES[cls](self, value)
        try:
            return residual.Constant(value.constant())
        except NotConstant:
            raise self.session.unsupported(f"{value.describe()} is returned") from None

    def _items(self, values: list[Value]) -> tuple[Recipe, ...]:
        return tuple([self.recipe(v) for v in values])

    def _tensor(self, value: TensorValue) -> Recipe:
        if value.source is not None:  # the very object, whatever was written into it
            return residual.FromSource(value.source)
        if value.fake.requires_grad:
            where = value.fx_node.meta["where"]
            raise Unsupported(
                "gradients are wanted", where, hint="call it under torch.no_grad(): training is not compiled yet"
            )
        return self._output(value)

    def _output(self, value: TensorValue | SymIntValue) -> Recipe:
        self.outputs.append(value)
        return residual.Output(len(self.outputs) - 1)

    def _tuple(self, value: TupleValue) -> Recipe:
        items = self._items(value.items)
        if value.cls is tuple:
            return residual.Collection(tuple, items)
        if hasattr(value.cls, "_fields"):
            return residual.named_tuple(value.cls, items)
        return residual.Call(value.cls, (residual.Collection(tuple, items),))

    def _list(self, value: ListValue) -> Recipe:
        return residual.Collection(list, self._items(value.items))

    def _set(self, value: SetValue) -> Recipe:
        return residual.Collection(value.cls, self._items(list(value.entries.values())))

    def _dict(self, value: DictValue) -> Recipe:
        wrap_key = self.session.wrap_key
        made = residual.Dict(tuple([(self.recipe(wrap_key(k)), self.recipe(v)) for k, v in value.entries.items()]))
        if value.cls is dict:
            return made
        if value.factory.is_constant():
            arguments = (residual.Constant(value.factory.constant()),) if value.cls.__name__ == "defaultdict" else ()
            return residual.Call(value.cls, (*arguments, made))
        raise self.session.unsupported(f"{value.describe()} is returned")

    def _slice(self, value: SliceValue) -> Recipe:
        return residual.Call(slice, self._items(list(value.parts)))

    def _range(self, value: RangeValue) -> Recipe:
        return residual.Constant(value.range)

    def _partial(self, value: PartialValue) -> Recipe:
        named = {k: self.recipe(v) for k, v in value.kwargs.items()}
        return residual.Call(functools.partial, (self.recipe(value.function), *self._items(list(value.args))), named)

    def _object(self, value: ObjectValue) -> Recipe:
        return residual.Instance(value.cls, {name: self.recipe(v) for name, v in value.attributes.items()})

    def _mapping(self, value: DictObject) -> Recipe:
        wrap_key = self.session.wrap_key
        items = [
            (self.recipe(wrap_key(k)), self.recipe(v)) for k, v in value.items(self.session).entries.items()
        ]
        attributes = {name: self.recipe(v) for name, v in value.attributes.items()}
        return residual.Instance(value.cls, attributes, tuple(items), plain_mapping(value.cls))

    def _exception(self, value: ExceptionValue) -> Recipe:
        if value.attributes:
            raise self.session.unsupported(f"{value.describe()} is returned")
        return residual.Call(value.cls, self._items(value.args))


_RECIPES: dict[type, Callable[[Results, Any], Recipe]] = {
    TensorValue: Results._tensor,
    SymIntValue: Results._output,
    TupleValue: Results._tuple,
    ListValue: Results._list,
    SetValue: Results._set,
    DictValue: Results._dict,
    SliceValue: Results._slice,
    RangeValue: Results._range,
    PartialValue: Results._partial,
    ExceptionValue: Results._exception,
    ObjectValue: Results._object,
    DictObject: Results._mapping,
}
