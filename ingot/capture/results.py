"""Recipes of the values that are alive at the end of a captured region.

In: a value that is returned, left behind or written by a side effect. Out: the recipe that makes
its object again after the graph has run. The tensors that recipes use are the graph's outputs.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from types import CellType, ClassMethodDescriptorType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

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
from ingot.capture.residual import (
    Call,
    Collection,
    Constant,
    Dict,
    Filled,
    FromSource,
    Output,
    Reading,
    Recipe,
    named_tuple,
)
from ingot.capture.values.base import NULL, LazyValue, NativeMethod, NotConstant, Value, is_c_class
from ingot.capture.values.builtins import BuiltinValue
from ingot.capture.values.chosen import ChosenTensor
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
from ingot.capture.values.input_hooks import HookBatch, InputHookHandle
from ingot.capture.values.keys import custom_hash, is_plain_key, plain_key
from ingot.capture.values.late_text import LateText
from ingot.capture.values.local_classes import refuse_local
from ingot.capture.values.local_members import local_member
from ingot.capture.values.mappings import AttributesDict, DictObject, OwnItems
from ingot.capture.values.modes import InferenceGuard, refuse_inside
from ingot.capture.values.node_results import RaggedSize
from ingot.capture.values.numbers import NumberValue
from ingot.capture.values.objects import ObjectValue, StandIn, is_data_descriptor, plain_base
from ingot.capture.values.partials import PartialValue, partial_of
from ingot.capture.values.relations import RelationValue
from ingot.capture.values.selected import refuse_selected, selected_again, view_in_place_of
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
from ingot.capture.values.tensor import SymIntValue, TensorMethod, TensorValue, is_none
from ingot.capture.values.tensor_hooks import HookHandle, refuse_alive, refuse_result
from ingot.capture.values.tensor_objects import TensorObject
from ingot.capture.values.unread import UnreadNumber
from ingot.capture.values.wrapper_objects import WrapperObject, leaves_of, ragged_size_of
from ingot.errors import Unsupported
from ingot.graph.ambient import as_inference
from ingot.graph.fakes import is_leaf
from ingot.graph.wrappers import Wrap, below
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
        self._recipes: dict[int, tuple[Value, Recipe | None]] = {}
        self._unfilled: list[Callable[[], None]] = []
        self._filling = False
        # what is to be done once all that was changed is as it should be
        self._last: list[Call] = []

    def recipe(self, value: Value) -> Recipe:
        """How to make the object of a value."""
        if self._filling:
            return self._recipe(value)
        self._filling = True
        try:
            recipe = self._recipe(value)
            while self._unfilled:
                self._unfilled.pop(0)()
        finally:
            self._filling = False
        return recipe

    def effects(self) -> list[Call]:
        """What is to be done to the world outside, in order."""
        calls = []
        for operation in self.session.effects.operations():
            calls.append(Call(operation.function, tuple(map(self.recipe, operation.args))))
        return calls + self._last

    def has(self, value: Value) -> bool:
        """Whether there is a recipe of a value: it is seen outside of the graph."""
        return id(value) in self._recipes

    def check_dropped(self) -> None:
        """Raises Unsupported where a generator is dropped that stands in a try or with block:
        Python would leave the block then."""
        for generator in self.session.suspended:
            if (
                generator.in_block
                and generator.source is None
                and id(generator) not in self._recipes
            ):
                raise self.session.unsupported(
                    "generator", "a generator is dropped in a try or with block", action=SKIP
                )

    def _recipe(self, value: Value) -> Recipe:
        known = self._recipes.get(id(value))
        if known is None:
            self._recipes[id(value)] = (value, None)
            known = self._recipes[id(value)] = (value, self._make(value))
        if known[1] is None:
            raise self._alive(f"{value.describe()}, which is part of itself,")
        return known[1]

    def _make(self, value: Value) -> Recipe:
        refuse_local(self.session, value)
        if isinstance(value, LazyValue):
            member = local_member(self.session, value.object)
            if member is not None:
                return self._recipe(member)
            return self._outside(value)
        if value.source is not None and not isinstance(value, TensorValue):
            return self._outside(value)
        for cls in type(value).__mro__:
            if cls in RECIPES:
                return RECIPES[cls](self, value)
        try:
            return Constant(value.constant())
        except NotConstant:
            raise self._alive(value) from None

    def _outside(self, value: Value) -> Recipe:
        assert value.source is not None
        return FromSource(value.source)

    def _alive(
        self, subject: Value | str, where: str = " at the end of a graph", step: int | None = None
    ) -> Unsupported:
        """The error for what cannot be made again, which is alive."""
        if isinstance(subject, Value):
            subject = subject.describe()
        return self.session.unsupported("alive-at-break", f"{subject} is alive{where}", step=step)

    def _arguments(self, values: Iterable[Any]) -> tuple[Recipe, ...]:
        """The recipes of values. Recipes stay what they are, other objects are constants."""
        return tuple(map(self._argument, values))

    def _argument(self, value: Any) -> Recipe:
        if isinstance(value, Value):
            return self._recipe(value)
        if isinstance(value, Recipe):
            return value
        return Constant(value)

    def _call(self, function: Callable[..., Any], *args: Any) -> Call:
        return Call(function, self._arguments(args))

    def _reading(self, function: Callable[..., Any], *args: Any) -> Call:
        return Reading(function, self._arguments(args))

    def _new(self, function: Callable[..., Any], *args: Any) -> Filled:
        """A new object that is filled later."""
        return Filled(self._call(function, *args), [])

    def _then(self, recipe: Filled, function: Callable[..., Any], *args: Any) -> None:
        """Adds a step that fills an object."""
        recipe.steps.append((function, self._arguments(args)))

    def _later(self, fill: Callable[..., None], *args: Any) -> None:
        """Puts off what may lead back to the recipe that is being made."""
        self._unfilled.append(partial(fill, *args))

    # -- tensors -----------------------------------------------------------------------------------

    def _tensor(self, value: TensorValue) -> Recipe:
        if value.source is not None:  # the very object, whatever was written into it
            return FromSource(value.source)
        if is_wrapped(value.fake):
            raise self.session.unsupported(
                "func-transform",
                f"{value.describe()} is alive outside of the transform that it was computed in",
            )
        if value.cls is not torch.Tensor:
            raise self._alive(f"{value.describe()}, which is a {value.cls.__name__} made inside,")
        selected = selected_again(self.session, value)
        if selected is not None and self.session.graph.modes.entered_at is None:
            # the graph has the copy as well: it raises what eager does, before all effects
            return self._reading(view_in_place_of, self._output(value), *selected)
        refuse_selected(self.session, value)
        # torch makes a view anew to tell, where what it shows was written
        with self.session.graph.context:
            leaf = value.fake.requires_grad and is_leaf(value.fake)
        if leaf:
            again = self._view_again(value)
            if again is not None:
                return again
            if not self._records_nothing:
                raise self._alive(f"{value.describe()} was made a leaf, and", step=value.leaf_since)
        if value.fake.shown_in_inference:  # type: ignore[attr-defined]
            raise self.session.unsupported(
                "inference-mode",
                "a view made in inference mode is alive at the end of a graph",
                action=SKIP,
            )
        refuse_result(self.session, value)
        output: Recipe = self._output(value)
        if leaf:
            output = self._call(torch.Tensor.requires_grad_, output)
        if value.fake.is_inference() and not self.session.graph.context.in_inference:
            output = self._call(as_inference, output)
        if not value.attributes and is_none(value.gradient):
            return output
        recipe = Filled(output, [])
        self._later(self._fill_attributes, recipe, value)
        return recipe

    def _tensor_object(self, value: TensorObject) -> Recipe:
        """An instance of a subclass that was made inside."""
        content = value.content(self.session)
        recipe = self._new(torch.Tensor.as_subclass, content, value.cls)
        self._later(self._fill_attributes, recipe, value)
        return recipe

    def _wrapper_object(self, value: WrapperObject) -> Recipe:
        """The same of a wrapper subclass."""
        layout, tracks, leaves = leaves_of(self.session, value)
        return self._call(Wrap(layout, tracks), *leaves)

    def _ragged_size(self, value: RaggedSize) -> Recipe:
        """That of the instance which has it."""
        _, target, (content, *dims) = value.recipe
        if target is not below(torch.Tensor.size):
            raise self._alive(value.describe())
        owner = self.session.graph.objects[id(content.fake)]
        return self._call(ragged_size_of, self._recipe(owner), *dims)

    @property
    def _records_nothing(self) -> bool:
        """Whether no gradients are recorded anywhere in the graph."""
        modes = self.session.graph.modes
        return not modes.recorded and modes.entered_at is None

    def _view_again(self, value: TensorValue) -> Recipe | None:
        """A view of an outside leaf, in a graph that records no gradients: torch calls it a leaf as
        well."""
        fake, recorder = value.fake, self.session.graph
        base = recorder.by_fake.get(id(fake._base))
        if base is None or base.source is None or value.attributes or base in recorder.replaced:
            return None
        if not self._records_nothing:
            return None
        if fake.dtype != base.fake.dtype or fake.is_conj() or fake.is_neg():
            return None
        geometry = tuple(fake.shape), fake.stride(), fake.storage_offset()
        numbers = [*geometry[0], *geometry[1], geometry[2]]
        if value.leaf_since is not None or set(map(type, numbers)) != {int}:
            return None
        return self._call(torch.as_strided, FromSource(base.source), *geometry)

    def _output(self, value: TensorValue | SymIntValue) -> Recipe:
        self.outputs.append(value)
        return Output(len(self.outputs) - 1)

    def _inference_guard(self, value: InferenceGuard) -> Recipe:
        refuse_inside(self.session, value.entered_at)
        return self._call(value.python_type(), value.enabled)

    # -- containers --------------------------------------------------------------------------------

    def _tuple(self, value: TupleValue) -> Recipe:
        items = self._arguments(value.items)
        if value.cls is tuple:
            return Collection(tuple, items)
        if hasattr(value.cls, "_fields"):
            return named_tuple(value.cls, items)
        return self._call(value.cls, Collection(tuple, items))

    def _list(self, value: ListValue) -> Recipe:
        items: list[Recipe] = []
        self._later(lambda: items.extend(self._arguments(value.items)))
        return Collection(list, items)

    def _set(self, value: SetValue) -> Recipe:
        hashes = list(map(custom_hash, value.entries))
        if any(known is not None for known in hashes):
            return self._call(set_of, value.cls, hashes, *value.entries.values())
        if not all(is_plain_key(plain_key(key)) for key in value.entries):
            return Collection(value.cls, self._arguments(value.entries.values()))
        ordered = map(value.entries.__getitem__, building_order(value))
        return self._call(value.cls, Collection(tuple, self._arguments(ordered)))

    def _entries(self, value: DictValue) -> Iterator[tuple[Recipe, Recipe]]:
        for key, item in value.entries.items():
            yield self._recipe(self.session.wrap_key(key)), self._recipe(item)

    def _fill_entries(self, recipe: Filled, value: DictValue, base: Any) -> None:
        """Puts the entries into a new dict, or instance of a subclass."""
        for key, entry in zip(value.entries, self._entries(value)):
            if base is OrderedDict:
                self._then(recipe, OrderedDict.__setitem__, *entry)
            else:
                recipe.steps.append(stored(key, *entry))

    def _dict(self, value: DictValue) -> Recipe:
        if value.cls is dict and all(custom_hash(key) is None for key in value.entries):
            items: list[tuple[Recipe, Recipe]] = []
            self._later(lambda: items.extend(self._entries(value)))
            return Dict(items)
        if value.cls not in (dict, OrderedDict, defaultdict):
            raise self._alive(value)
        recipe = self._new(value.cls)

        def fill() -> None:
            if value.cls is defaultdict:
                self._then(recipe, FACTORY.__set__, value.factory)
            self._fill_entries(recipe, value, value.cls)

        self._later(fill)
        return recipe

    def _deque(self, value: DequeValue) -> Recipe:
        recipe = self._new(deque, (), value.elements.maxlen)

        def fill() -> None:
            for item in value.elements:
                self._then(recipe, deque.append, item)

        self._later(fill)
        return recipe

    def _deque_iterator(self, value: DequeIterator) -> Recipe:
        self._refuse_changed(value.owner)
        if value.changes != value.owner.changes:
            raise self._alive("an iterator over a deque that has changed since", "")
        direction: Any = iter
        if value.backwards:
            direction = reversed
        start = self._reading(direction, value.owner)
        return self._call(advanced, start, value.position, value.ended)

    def _view(self, value: DictView) -> Recipe:
        return self._call(getattr(dict_base(value.owner.cls), value.kind), value.owner)

    # -- iterators ---------------------------------------------------------------------------------

    def _sequence_iterator(self, value: SequenceIterator) -> Recipe:
        where = value.position, value.ended
        if isinstance(value, ConstantIterator) and value.start is not None:
            return self._call(advanced, self._call(copy.copy, value.start), *where)
        recipe = self._new(iterator_of, value.sequence)
        if self._is_changed(value.sequence):  # which may not reach so far before that
            self._last.append(self._call(set_position, recipe, *where))
        elif value.position or value.ended:
            self._then(recipe, set_position, *where)
        return recipe

    def _is_changed(self, container: Any) -> bool:
        return container.source is not None and self.session.effects.is_changed(container.object)

    def _refuse_changed(self, container: Any) -> None:
        """An iterator over a dict, set or deque must not be there when that changes."""
        if self._is_changed(container):
            raise self._alive(f"an iterator over {container.describe()}, which is changed,", "")

    def _dict_iterator(self, value: DictIterator) -> Recipe:
        self._refuse_changed(value.owner)
        view = self._view(DictView(value.owner, value.kind))
        return self._reading(advanced, view, value.position, value.ended)

    def _set_iterator(self, value: SetIterator) -> Recipe:
        members = value.owner
        self._refuse_changed(members)
        if members.source is None and value.position:
            if list(set(iter(members.entries))) != list(members.hashed):
                raise self._alive("an iterator over a set")
        return self._reading(advanced, members, value.position, value.ended)

    def _generator(self, value: GeneratorValue) -> Recipe:
        if value.frame is None:
            code = finished_generator.__code__
            if value.function is not None:
                code = value.function.code
            return self._call(finished_generator, code.co_name, code.co_qualname)
        if value.handled is not None or INHERITED in value.frame.stack:
            raise self._alive("a generator that stands in an except block")
        return self._call(_native.suspended_generator, *standing(value.frame))

    def _token(self, value: TokenValue) -> Recipe:
        if not value.can_be_made:
            raise self._alive(value)
        args = [value.variable, value.before]
        if value.before is NULL:
            args.pop()
        return self._call(make_token, *args)

    # -- functions ---------------------------------------------------------------------------------

    def _cell(self, value: CellValue) -> Recipe:
        refuse_alive(self.session, value)
        recipe = self._new(CellType)

        def fill() -> None:
            if value.content is not NULL:
                self._then(recipe, CELL.__set__, value.content)

        self._later(fill)
        return recipe

    def _function(self, value: FunctionValue) -> Recipe:
        cells = None
        if value.cells:
            cells = Collection(tuple, self._arguments(value.cells))
        recipe = self._new(FunctionType, value.code, value.namespace, None, None, cells)

        def fill() -> None:
            fields = {**value.fields, **value.attributes}
            if value.defaults:
                fields["__defaults__"] = TupleValue(value.defaults, tuple)
            if value.keyword_defaults:
                fields["__kwdefaults__"] = DictValue(value.keyword_defaults.items(), dict)
            if value.annotate is not NONE:
                fields["__annotate__"] = value.annotate
            if value.annotations is not NONE:
                fields["__annotations__"] = value.annotation_dict(self.session)
            for field in fields.items():
                self._then(recipe, setattr, *field)

        self._later(fill)
        return recipe

    def _method(self, value: BoundMethod) -> Recipe:
        function = value.function
        if isinstance(function, BuiltinValue):
            if isinstance(function.object, ClassMethodDescriptorType):
                return self._call(function.object.__get__, None, value.instance)
        return self._call(MethodType, function, value.instance)

    def _native_method(self, value: NativeMethod) -> Recipe:
        # whose class may define a method of this name
        if isinstance(value.owner, (DictObject, DictValue)):
            bind: Any = getattr(dict_base(value.owner.cls), value.name).__get__
            return self._call(bind, value.owner)
        return self._call(getattr, value.owner, value.name)

    def _partial(self, value: PartialValue) -> Recipe:
        recipe = self._new(partial_of, value.function, value.bound, value.named)
        if self.session.has_attributes_dict(value):
            self._then(recipe, vars)  # which makes it
        self._later(self._fill_attributes, recipe, value)
        return recipe

    # -- objects -----------------------------------------------------------------------------------

    def _object(self, value: ObjectValue) -> Recipe:
        recipe = self._new(plain_base(value.cls).__new__, value.cls)
        self._later(self._fill_attributes, recipe, value)
        return recipe

    def _fill_attributes(
        self, recipe: Filled, value: ObjectValue | TensorValue | PartialValue
    ) -> None:
        fields = dict(value.attributes)
        if isinstance(value, ObjectValue):
            fields.update(value.members)
        elif isinstance(value, TensorValue) and not is_none(value.gradient):
            fields["grad"] = value.gradient
        for name, item in fields.items():
            put: Any = object.__setattr__
            if type(name) is not str or self._has_data_descriptor(value, name):
                put = put_attribute
            self._then(recipe, put, name, item)

    @staticmethod
    def _has_data_descriptor(value: ObjectValue | TensorValue | PartialValue, name: str) -> bool:
        """Whether a descriptor of the class takes what is written under an attribute's name."""
        if name not in value.attributes:
            return False
        owners = (cls for cls in value.python_type().__mro__ if name in vars(cls))
        owner = next(owners, None)
        return owner is not None and is_data_descriptor(vars(owner)[name])

    def _builtin_object(self, value: BuiltinObject) -> Recipe:
        base: Any = plain_base(value.cls)
        args, is_mutable = [value.cls, value.content], base in (list, set, deque)
        if is_mutable:
            args.pop()
        recipe = self._new(base.__new__, *args)

        def fill() -> None:
            if is_mutable:
                self._fill_content(recipe, base, value.content)
            self._fill_attributes(recipe, value)

        self._later(fill)
        return recipe

    def _fill_content(self, recipe: Filled, base: Any, content: Any) -> None:
        """Puts into an instance of a subclass of list, set or deque what it holds."""
        if base is set:
            put = base.update
        else:
            put = base.extend
        if isinstance(content, DequeValue):
            self._then(recipe, base.__init__, (), content.elements.maxlen)
            items: Iterable[Value] = content.elements
        elif isinstance(content, ListValue):
            items = content.items
        else:
            items = content.entries.values()
        self._then(recipe, put, Collection(tuple, self._arguments(items)))

    def _stand_in(self, value: StandIn) -> Recipe:
        rebuild = getattr(value.cls, "rebuild", None)
        if rebuild is None:
            raise self._alive(value)
        names = rebuild.__code__.co_varnames[: rebuild.__code__.co_argcount]
        state = {**value.attributes, **value.members}
        return self._reading(rebuild, *map(state.__getitem__, names))

    def _mapping(self, value: DictObject) -> Recipe:
        base = dict_base(value.cls)
        recipe = self._new(base.__new__, value.cls)

        def fill() -> None:
            self._fill_entries(recipe, value.item_dict, base)
            self._fill_attributes(recipe, value)

        self._later(fill)
        return recipe

    def _exception(self, value: ExceptionValue) -> Recipe:
        base: Any = next(filter(is_c_class, value.cls.__mro__))
        args = self._arguments(value.field_args)
        recipe = self._new(base.__new__, value.cls, *args)
        self._then(recipe, base.__init__, *args)

        def fill() -> None:
            others = value.remaining_args(self.session)
            fields = vars(BaseException)
            if others is not None:
                others_tuple = self.session.tuple_of_values(others)
                self._then(recipe, fields["args"].__set__, others_tuple)
            if value.has_place:
                self._then(recipe, give_traceback, value.raiser())
            for name, item in value.remaining_base_fields().items():
                self._then(recipe, fields[name].__set__, item)
            self._fill_attributes(recipe, value)

        self._later(fill)
        return recipe

    def _traceback(self, value: TracebackValue) -> Recipe:
        """Others may need it before the exception is filled."""
        error = value.error
        if not value.is_present:
            raise self._alive(value)
        raiser = error.raiser() if error.has_place else None
        return self._call(traceback_of, error, raiser)


def _of(function: Callable[..., Any], *names: str) -> Callable[[Results, Any], Recipe]:
    """The recipe of what a function gives for some attributes of the value."""
    read = [attrgetter(name) for name in names]
    return lambda results, value: results._call(function, *[get(value) for get in read])


RECIPES: dict[type, Callable[[Results, Any], Recipe]] = {
    TensorValue: Results._tensor,
    ChosenTensor: Results._tensor,
    InferenceGuard: Results._inference_guard,
    HookHandle: lambda results, value: value.refuse(results.session),
    HookBatch: lambda results, value: value.recipe(results),
    InputHookHandle: lambda results, value: value.recipe(results),
    GeneratorValue: Results._generator,
    ConstantMethod: _of(getattr, "owner", "name"),
    SymIntValue: Results._output,
    RaggedSize: Results._ragged_size,
    RelationValue: lambda results, value: results._call(value.function, *value.pair),
    TupleValue: Results._tuple,
    ListValue: Results._list,
    SetValue: Results._set,
    DictValue: Results._dict,
    DictView: Results._view,
    DequeValue: Results._deque,
    DequeIterator: Results._deque_iterator,
    SliceValue: lambda results, value: results._call(slice, *value.bounds),
    RangeValue: lambda _, value: Constant(value.range),
    SymbolicRange: lambda _, value: Constant(value.range),
    UnreadNumber: lambda results, value: results._call(value.function, *value.operands),
    LateText: lambda results, value: results._call(value.function, *value.args),
    SequenceIterator: Results._sequence_iterator,
    RangeIterator: lambda results, value: results._call(copy.copy, copy.copy(value.iterator)),
    DictIterator: Results._dict_iterator,
    SetIterator: Results._set_iterator,
    CellValue: Results._cell,
    FunctionValue: Results._function,
    BoundMethod: Results._method,
    NativeMethod: Results._native_method,
    TensorObject: Results._tensor_object,
    WrapperObject: Results._wrapper_object,
    TensorMethod: _of(getattr, "tensor", "name"),
    NumberValue: _of(torch.Tensor.item, "tensor"),
    PartialValue: Results._partial,
    SuperValue: _of(super, "cls", "instance"),
    ExceptionValue: Results._exception,
    ObjectValue: Results._object,
    StandIn: Results._stand_in,
    BuiltinObject: Results._builtin_object,
    IdentityNumber: _of(id, "owner"),
    TracebackValue: Results._traceback,
    TokenValue: Results._token,
    DictObject: Results._mapping,
    AttributesDict: _of(vars, "owner"),
    OwnItems: lambda results, value: results._recipe(value.owner),
}
