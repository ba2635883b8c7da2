"""From the values that are alive at the end of a captured region to the recipes that make them
again after the graph has run: what it returns or leaves behind, and what it does to the world
outside."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import CellType, ClassMethodDescriptorType, FunctionType, MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture import residual
from ingot.capture.effects import dict_base
from ingot.capture.rebuilding import (
    CELL,
    FACTORY,
    advanced,
    building_order,
    finished_generator,
    give_traceback,
    iterator_of,
    put_attribute,
    set_of,
    set_position,
    stored,
    traceback_of,
)
from ingot.capture.residual import Call, Recipe
from ingot.capture.values.base import NULL, LazyValue, NativeMethod, NotConstant, Value, is_c_class
from ingot.capture.values.builtins import BuiltinValue
from ingot.capture.values.classes import SuperValue
from ingot.capture.values.constant import NONE, ConstantMethod
from ingot.capture.values.containers import DictIterator, DictValue, DictView
from ingot.capture.values.contexts import TokenValue, make_token
from ingot.capture.values.deques import DequeIterator, DequeValue
from ingot.capture.values.exceptions import ExceptionValue, TracebackValue
from ingot.capture.values.functions import (
    INHERITED,
    BoundMethod,
    CellValue,
    FunctionValue,
    GeneratorValue,
)
from ingot.capture.values.generators import standing
from ingot.capture.values.identity import IdentityNumber
from ingot.capture.values.keys import custom_hash, is_plain_key, plain_key
from ingot.capture.values.late_text import LateText
from ingot.capture.values.mappings import AttributesDict, DictObject, OwnItems
from ingot.capture.values.modes import InferenceGuard, refuse_inside
from ingot.capture.values.numbers import NumberValue
from ingot.capture.values.objects import ObjectValue, StandIn, is_data_descriptor, plain_base
from ingot.capture.values.partials import PartialValue, partial_of
from ingot.capture.values.relations import RelationValue
from ingot.capture.values.selected import refuse_selected
from ingot.capture.values.sequences import (
    ConstantIterator,
    ListValue,
    RangeIterator,
    RangeValue,
    SequenceIterator,
    SliceValue,
    SymbolicRange,
    TupleValue,
)
from ingot.capture.values.sets import SetIterator, SetValue
from ingot.capture.values.subclasses import BuiltinObject
from ingot.capture.values.tensor import SymIntValue, TensorMethod, TensorValue
from ingot.capture.values.tensor_hooks import HookHandle, refuse_alive, refuse_result
from ingot.capture.values.unread import UnreadNumber
from ingot.graph.ambient import as_inference
from ingot.graph.fakes import is_leaf
from ingot.native import _native
from ingot.reasons import SKIP
from ingot.wrapped import is_wrapped

if TYPE_CHECKING:
    from ingot.capture.session import Session


class Results:
    """Collects the graph's outputs while it writes recipes; the same value gives the same
    recipe."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.outputs: list[TensorValue | SymIntValue] = []
        self._made: dict[int, tuple[Value, Recipe | None]] = {}
        self._unfilled: list[Callable[[], None]] = []
        self._filling = False
        # what is to be done once all that was changed is as it should be
        self._last: list[Call] = []

    def recipe(self, value: Value) -> Recipe:
        """How to make the object of a value."""
        made = self._recipe(value)
        if not self._filling:
            self._filling = True
            try:
                while self._unfilled:
                    self._unfilled.pop(0)()
            finally:
                self._filling = False
        return made

    def effects(self) -> list[Call]:
        """What is to be done to the world outside, in order."""
        made = [
            Call(operation.function, tuple([self.recipe(value) for value in operation.args]))
            for operation in self.session.effects.operations()
        ]
        return [*made, *self._last]

    def check_dropped(self) -> None:
        """Raises Unsupported where a generator is dropped that stands in a try or with block:
        Python would leave the block then."""
        for generator in self.session.suspended:
            if generator.in_block and generator.source is None and id(generator) not in self._made:
                raise self.session.unsupported(
                    "generator", "a generator is dropped in a try or with block", action=SKIP
                )

    def _recipe(self, value: Value) -> Recipe:
        known = self._made.get(id(value))
        if known is None:
            self._made[id(value)] = (value, None)
            known = self._made[id(value)] = (value, self._make(value))
        if known[1] is None:
            raise self.session.unsupported(
                "alive-at-break",
                f"{value.describe()}, which is part of itself, is alive at the end of a graph",
            )
        return known[1]

    def _make(self, value: Value) -> Recipe:
        if isinstance(value, LazyValue) or (
            value.source is not None and not isinstance(value, TensorValue)
        ):
            return self._outside(value)
        for cls in type(value).__mro__:
            if cls in RECIPES:
                return RECIPES[cls](self, value)
        try:
            return residual.Constant(value.constant())
        except NotConstant:
            raise self.session.unsupported(
                "alive-at-break", f"{value.describe()} is alive at the end of a graph"
            ) from None

    def _outside(self, value: Value) -> Recipe:
        assert value.source is not None
        if isinstance(value, DictValue) and value.cls is MappingProxyType:
            return Call(MappingProxyType, (residual.FromSource(value.source),))
        return residual.FromSource(value.source)

    def _items(self, values: list[Value]) -> tuple[Recipe, ...]:
        return tuple([self._recipe(v) for v in values])

    def _later(self, fill: Callable[[], None]) -> None:
        """Puts off what may lead back to the recipe that is being made."""
        self._unfilled.append(fill)

    # -- tensors -----------------------------------------------------------------------------------

    def _tensor(self, value: TensorValue) -> Recipe:
        if value.source is not None:  # the very object, whatever was written into it
            return residual.FromSource(value.source)
        if is_wrapped(value.fake):
            raise self.session.unsupported(
                "func-transform",
                f"{value.describe()} is alive outside of the transform that it was computed in",
            )
        refuse_selected(self.session, value)
        # torch makes a view anew to tell, where what it shows was written
        with self.session.graph.context:
            leaf = value.fake.requires_grad and is_leaf(value.fake)
        if leaf:
            if (again := self._view_again(value)) is not None:
                return again
            raise self.session.unsupported(
                "alive-at-break",
                f"{value.describe()} was made a leaf, and is alive at the end of a graph",
                step=value.leaf_since,
            )
        if value.fake.shown_in_inference:  # type: ignore[attr-defined]
            raise self.session.unsupported(
                "inference-mode",
                "a view made in inference mode is alive at the end of a graph",
                action=SKIP,
            )
        refuse_result(self.session, value)
        output: Recipe = self._output(value)
        if value.fake.is_inference() and not self.session.graph.context.in_inference:
            output = Call(as_inference, (output,))
        if not value.attributes:
            return output
        made = residual.Filled(output, [])
        self._later(lambda: self._fill_attributes(made, value))
        return made

    def _view_again(self, value: TensorValue) -> Recipe | None:
        """A view of an outside leaf, in a graph that records no gradients: torch calls it a leaf as
        well."""
        fake, recorder = value.fake, self.session.graph
        base = recorder.by_fake.get(id(fake._base))
        if base is None or base.source is None or value.attributes:
            return None
        if recorder.modes.recorded or recorder.modes.entered_at is not None:
            return None
        if (
            fake.dtype != base.fake.dtype
            or fake.is_conj()
            or fake.is_neg()
            or value.leaf_since is not None
        ):
            return None
        geometry = (*fake.shape, *fake.stride(), fake.storage_offset())
        if not all(type(number) is int for number in geometry):
            return None
        numbers = [
            residual.Constant(part)
            for part in (tuple(fake.shape), fake.stride(), fake.storage_offset())
        ]
        return Call(torch.as_strided, (residual.FromSource(base.source), *numbers))

    def _output(self, value: TensorValue | SymIntValue) -> Recipe:
        self.outputs.append(value)
        return residual.Output(len(self.outputs) - 1)

    def _relation(self, value: RelationValue) -> Recipe:
        sides = [
            self._recipe(s) if isinstance(s, Value) else residual.Constant(s) for s in value.pair
        ]
        return Call(value.function, tuple(sides))

    def _inference_guard(self, value: InferenceGuard) -> Recipe:
        refuse_inside(self.session, value.entered_at)
        return Call(value.python_type(), (residual.Constant(value.enabled),))

    # -- containers --------------------------------------------------------------------------------

    def _tuple(self, value: TupleValue) -> Recipe:
        items = self._items(value.items)
        if value.cls is tuple:
            return residual.Collection(tuple, items)
        if hasattr(value.cls, "_fields"):
            return residual.named_tuple(value.cls, items)
        return Call(value.cls, (residual.Collection(tuple, items),))

    def _list(self, value: ListValue) -> Recipe:
        made = residual.Collection(list, [])
        self._later(lambda: made.items.extend(self._items(value.items)))  # type: ignore[union-attr]
        return made

    def _set(self, value: SetValue) -> Recipe:
        hashes = [custom_hash(key) for key in value.entries]
        if any(known is not None for known in hashes):
            members = self._items(list(value.entries.values()))
            return Call(set_of, (residual.Constant(value.cls), residual.Constant(hashes), *members))
        if not all(is_plain_key(plain_key(key)) for key in value.entries):
            return residual.Collection(value.cls, self._items(list(value.entries.values())))
        ordered = [value.entries[key] for key in building_order(value)]
        return Call(value.cls, (residual.Collection(tuple, self._items(ordered)),))

    def _stores(self, value: DictValue) -> list[tuple[Callable[..., Any], tuple[Recipe, ...]]]:
        """What puts the entries into a new dict."""
        return [stored(key, *entry) for key, entry in zip(value.entries, self._entries(value))]

    def _entries(self, value: DictValue) -> list[tuple[Recipe, Recipe]]:
        wrap_key = self.session.wrap_key
        return [
            (self._recipe(wrap_key(key)), self._recipe(item)) for key, item in value.entries.items()
        ]

    def _dict(self, value: DictValue) -> Recipe:
        if value.cls is dict and all(custom_hash(key) is None for key in value.entries):
            plain = residual.Dict([])
            self._later(lambda: plain.items.extend(self._entries(value)))  # type: ignore[union-attr]
            return plain
        if value.cls not in (dict, OrderedDict, defaultdict):
            raise self.session.unsupported(
                "alive-at-break", f"{value.describe()} is alive at the end of a graph"
            )
        made = residual.Filled(Call(value.cls, ()), [])

        def fill() -> None:
            if value.cls is defaultdict:
                made.steps.append((FACTORY.__set__, (self._recipe(value.factory),)))
            if value.cls is OrderedDict:
                made.steps.extend(
                    (OrderedDict.__setitem__, entry) for entry in self._entries(value)
                )
            else:
                made.steps.extend(self._stores(value))

        self._later(fill)
        return made

    def _deque(self, value: DequeValue) -> Recipe:
        empty, limit = residual.Constant(()), residual.Constant(value.held.maxlen)
        made = residual.Filled(Call(deque, (empty, limit)), [])
        self._later(
            lambda: made.steps.extend(
                (deque.append, (item,)) for item in self._items(list(value.held))
            )
        )
        return made

    def _deque_iterator(self, value: DequeIterator) -> Recipe:
        where = (residual.Constant(value.position), residual.Constant(value.ended))
        self._refuse_changed(value.owner)
        if value.changes != value.owner.changes:
            raise self.session.unsupported(
                "alive-at-break", "an iterator over a deque that has changed since is alive"
            )
        start = residual.Reading(
            reversed if value.backwards else iter, (self._recipe(value.owner),)
        )
        return Call(advanced, (start, *where))

    def _slice(self, value: SliceValue) -> Recipe:
        return Call(slice, self._items(list(value.parts)))

    def _range(self, value: RangeValue) -> Recipe:
        return residual.Constant(value.range)

    def _unread(self, value: UnreadNumber) -> Recipe:
        return Call(value.function, self._items(list(value.operands)))

    def _late_text(self, value: LateText) -> Recipe:
        return Call(value.function, self._items(value.parts))

    def _view(self, value: DictView) -> Recipe:
        return Call(getattr(dict_base(value.owner.cls), value.kind), (self._recipe(value.owner),))

    # -- iterators ---------------------------------------------------------------------------------

    def _sequence_iterator(self, value: SequenceIterator) -> Recipe:
        where = (residual.Constant(value.position), residual.Constant(value.ended))
        if isinstance(value, ConstantIterator) and value.start is not None:
            return Call(advanced, (Call(copy.copy, (residual.Constant(value.start),)), *where))
        made = residual.Filled(Call(iterator_of, (self._recipe(value.sequence),)), [])
        if self._is_changed(value.sequence):  # which may not reach so far before that
            self._last.append(Call(set_position, (made, *where)))
        elif value.position or value.ended:
            made.steps.append((set_position, where))
        return made

    def _is_changed(self, container: Any) -> bool:
        return container.source is not None and self.session.effects.is_changed(container.object)

    def _refuse_changed(self, container: Any) -> None:
        """An iterator over a dict, set or deque must not be there when that changes."""
        if self._is_changed(container):
            raise self.session.unsupported(
                "alive-at-break",
                f"an iterator over {container.describe()}, which is changed, is alive",
            )

    def _range_iterator(self, value: RangeIterator) -> Recipe:
        return Call(copy.copy, (residual.Constant(copy.copy(value.iterator)),))

    def _dict_iterator(self, value: DictIterator) -> Recipe:
        self._refuse_changed(value.owner)
        view = self._view(DictView(value.owner, value.kind))
        return residual.Reading(
            advanced, (view, residual.Constant(value.position), residual.Constant(value.ended))
        )

    def _set_iterator(self, value: SetIterator) -> Recipe:
        members = value.owner
        self._refuse_changed(members)
        if (
            members.source is None
            and list(set(iter(members.entries))) != list(members.hashed)
            and value.position
        ):
            raise self.session.unsupported(
                "alive-at-break", "an iterator over a set is alive at the end of a graph"
            )
        where = (residual.Constant(value.position), residual.Constant(value.ended))
        return residual.Reading(advanced, (self._recipe(members), *where))

    def _generator(self, value: GeneratorValue) -> Recipe:
        if value.frame is None:
            if value.function is not None:
                code = value.function.code
            else:
                code = finished_generator.__code__
            return Call(
                finished_generator,
                (residual.Constant(code.co_name), residual.Constant(code.co_qualname)),
            )
        if value.handled is not None or INHERITED in value.frame.stack:
            raise self.session.unsupported(
                "alive-at-break",
                "a generator that stands in an except block is alive at the end of a graph",
            )
        return Call(_native.suspended_generator, self._items(list(standing(value.frame))))

    def _token(self, value: TokenValue) -> Recipe:
        if not value.can_be_made:
            raise self.session.unsupported(
                "alive-at-break", f"{value.describe()} is alive at the end of a graph"
            )
        if value.before is NULL:
            before = []
        else:
            before = [value.before]
        return Call(make_token, self._items([value.variable, *before]))

    # -- functions ---------------------------------------------------------------------------------

    def _hook_handle(self, value: HookHandle) -> Recipe:
        value.refuse(self.session)

    def _cell(self, value: CellValue) -> Recipe:
        refuse_alive(self.session, value)
        made = residual.Filled(Call(CellType, ()), [])

        def fill() -> None:
            if value.content is not NULL:
                made.steps.append((CELL.__set__, (self._recipe(value.content),)))

        self._later(fill)
        return made

    def _function(self, value: FunctionValue) -> Recipe:
        cells = (
            residual.Collection(tuple, self._items(list(value.cells)))
            if value.cells
            else residual.Constant(None)
        )
        namespace, name = residual.Constant(value.namespace), residual.Constant(None)
        code = residual.Constant(value.code)
        made = residual.Filled(
            Call(FunctionType, (code, namespace, name, residual.Constant(None), cells)), []
        )

        def fill() -> None:
            session, fields = self.session, {**value.fields, **value.attributes}
            if value.defaults:
                fields["__defaults__"] = TupleValue(value.defaults, tuple)
            if value.keyword_defaults:
                fields["__kwdefaults__"] = DictValue(value.keyword_defaults.items(), dict)
            if value.annotations is not NONE:
                fields["__annotations__"] = value.annotation_dict(session)
            for key, item in fields.items():
                made.steps.append((setattr, (residual.Constant(key), self._recipe(item))))

        self._later(fill)
        return made

    def _method(self, value: BoundMethod) -> Recipe:
        function = value.function
        if isinstance(function, BuiltinValue) and isinstance(
            function.object, ClassMethodDescriptorType
        ):
            return Call(
                function.object.__get__, (residual.Constant(None), self._recipe(value.instance))
            )
        return Call(MethodType, (self._recipe(value.function), self._recipe(value.instance)))

    def _native_method(self, value: NativeMethod) -> Recipe:
        # whose class may define a method of this name
        if isinstance(value.owner, (DictObject, DictValue)):
            bind: Any = getattr(dict_base(value.owner.cls), value.name).__get__
            return Call(bind, (self._recipe(value.owner),))
        return Call(getattr, (self._recipe(value.owner), residual.Constant(value.name)))

    def _constant_method(self, value: ConstantMethod) -> Recipe:
        return Call(getattr, (self._recipe(value.owner), residual.Constant(value.name)))

    def _number(self, value: NumberValue) -> Recipe:
        return Call(torch.Tensor.item, (self._recipe(value.tensor),))

    def _tensor_method(self, value: TensorMethod) -> Recipe:
        return Call(getattr, (self._recipe(value.tensor), residual.Constant(value.name)))

    def _partial(self, value: PartialValue) -> Recipe:
        parts = self._recipe(value.function), self._recipe(value.bound), self._recipe(value.named)
        made = residual.Filled(Call(partial_of, parts), [])
        if self.session.has_attributes_dict(value):
            made.steps.append((vars, ()))  # which makes it
        self._later(lambda: self._fill_attributes(made, value))
        return made

    def _super(self, value: SuperValue) -> Recipe:
        return Call(super, (residual.Constant(value.cls), self._recipe(value.instance)))

    # -- objects -----------------------------------------------------------------------------------

    def _object(self, value: ObjectValue) -> Recipe:
        made = residual.instance(value.cls, {}, base=plain_base(value.cls))
        self._later(lambda: self._fill_attributes(made, value))
        return made

    def _fill_attributes(
        self, made: residual.Filled, value: ObjectValue | TensorValue | PartialValue
    ) -> None:
        fields = dict(value.attributes)
        if isinstance(value, ObjectValue):
            fields.update(value.members)
        for name, item in fields.items():
            taken = name in value.attributes and is_data_descriptor(
                self._raw(value.python_type(), name)
            )
            store = put_attribute if taken or type(name) is not str else object.__setattr__
            made.steps.append((store, (residual.Constant(name), self._recipe(item))))

    @staticmethod
    def _raw(cls: type, name: str) -> Any:
        return next((vars(owner)[name] for owner in cls.__mro__ if name in vars(owner)), None)

    def _builtin_object(self, value: BuiltinObject) -> Recipe:
        base: Any = plain_base(value.cls)
        mutable = base in (list, set, deque)
        content = () if mutable else (self._recipe(value.content),)
        made = residual.Filled(Call(base.__new__, (residual.Constant(value.cls), *content)), [])

        def fill() -> None:
            if mutable:
                self._fill_content(made, base, value.content)
            self._fill_attributes(made, value)

        self._later(fill)
        return made

    def _fill_content(self, made: residual.Filled, base: Any, content: Value) -> None:
        """Puts into an instance of a subclass of list, set or deque what it holds."""
        if isinstance(content, DequeValue):
            limit = residual.Constant(content.held.maxlen)
            made.steps.append((base.__init__, (residual.Constant(()), limit)))
            items = list(content.held)
        else:
            entries: Any = content
            is_list = isinstance(content, ListValue)
            if is_list:
                items = entries.items
            else:
                items = list(entries.entries.values())
        if base is set:
            put = base.update
        else:
            put = base.extend
        made.steps.append((put, (residual.Collection(tuple, self._items(items)),)))

    def _traceback(self, value: TracebackValue) -> Recipe:
        return Call(traceback_of, (self._recipe(value.error),))

    def _identity_number(self, value: IdentityNumber) -> Recipe:
        return Call(id, (self._recipe(value.owner),))

    def _stand_in(self, value: StandIn) -> Recipe:
        rebuild = getattr(value.cls, "rebuild", None)
        if rebuild is None:
            raise self.session.unsupported(
                "alive-at-break", f"{value.describe()} is alive at the end of a graph"
            )
        names = rebuild.__code__.co_varnames[: rebuild.__code__.co_argcount]
        state = {**value.attributes, **value.members}
        return residual.Reading(rebuild, self._items([state[name] for name in names]))

    def _own_items(self, value: OwnItems) -> Recipe:
        return self._recipe(value.owner)

    def _attributes_dict(self, value: AttributesDict) -> Recipe:
        return Call(vars, (self._recipe(value.owner),))

    def _mapping(self, value: DictObject) -> Recipe:
        base = dict_base(value.cls)
        made = residual.instance(value.cls, {}, base=base)

        def fill() -> None:
            items = value.made
            if base is dict:
                made.steps.extend(self._stores(items))
            else:
                made.steps.extend(
                    (vars(base)["__setitem__"], entry) for entry in self._entries(items)
                )
            self._fill_attributes(made, value)

        self._later(fill)
        return made

    def _exception(self, value: ExceptionValue) -> Recipe:
        base: Any = next(cls for cls in value.cls.__mro__ if is_c_class(cls))
        args = self._items(value.given)
        made = residual.Filled(
            Call(base.__new__, (residual.Constant(value.cls), *args)), [(base.__init__, args)]
        )

        def fill() -> None:
            others = value.remaining_args(self.session)
            if others is not None:
                recipe = self._recipe(self.session.tuple_of_values(others))
                made.steps.append((vars(BaseException)["args"].__set__, (recipe,)))
            if value.was_raised and value.raised_at is not None:
                made.steps.append((give_traceback, (residual.Constant(value.raiser()),)))
            for name, part in value.remaining_parts().items():
                made.steps.append((vars(BaseException)[name].__set__, (self._recipe(part),)))
            self._fill_attributes(made, value)

        self._later(fill)
        return made


RECIPES: dict[type, Callable[[Results, Any], Recipe]] = {
    TensorValue: Results._tensor,
    InferenceGuard: Results._inference_guard,
    HookHandle: Results._hook_handle,
    GeneratorValue: Results._generator,
    ConstantMethod: Results._constant_method,
    SymIntValue: Results._output,
    RelationValue: Results._relation,
    TupleValue: Results._tuple,
    ListValue: Results._list,
    SetValue: Results._set,
    DictValue: Results._dict,
    DictView: Results._view,
    DequeValue: Results._deque,
    DequeIterator: Results._deque_iterator,
    SliceValue: Results._slice,
    RangeValue: Results._range,
    SymbolicRange: Results._range,
    UnreadNumber: Results._unread,
    LateText: Results._late_text,
    SequenceIterator: Results._sequence_iterator,
    RangeIterator: Results._range_iterator,
    DictIterator: Results._dict_iterator,
    SetIterator: Results._set_iterator,
    CellValue: Results._cell,
    FunctionValue: Results._function,
    BoundMethod: Results._method,
    NativeMethod: Results._native_method,
    TensorMethod: Results._tensor_method,
    NumberValue: Results._number,
    PartialValue: Results._partial,
    SuperValue: Results._super,
    ExceptionValue: Results._exception,
    ObjectValue: Results._object,
    StandIn: Results._stand_in,
    BuiltinObject: Results._builtin_object,
    IdentityNumber: Results._identity_number,
    TracebackValue: Results._traceback,
    TokenValue: Results._token,
    DictObject: Results._mapping,
    AttributesDict: Results._attributes_dict,
    OwnItems: Results._own_items,
}
