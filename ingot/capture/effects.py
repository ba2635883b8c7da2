"""The side effects of captured code: recorded during capture, done by the residual after the graph.

Nothing is changed while a call is captured. What is written to an object that existed before the
call is kept beside it, where later reads see it, and becomes an `Operation`: a call of the built-in
type's own method, so no code of the user's runs again. Several writes to one place come down to the
last of them, unless something that others can see (a line printed, a record logged) lies between;
that is an operation of its own, and the order is kept.

What is written through one path and read through another depends on which objects are the same. So
an outside object that can be changed has one value however it is reached (the paths are guarded to
be the same), and once it is changed, every other object of its type that is used is guarded to be
another one.
"""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CellType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ingot.capture.guards import Kind, class_attribute
from ingot.capture.sources import (
    AttrSource,
    CellSource,
    ConstSource,
    FunctionFieldSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    Source,
)
from ingot.capture.values.base import NULL, LazyValue, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.objects import ObjectValue, instance_dict, is_data_descriptor

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.values.functions import CellValue

_CELL: Any = vars(CellType)["cell_contents"]


class Operation(NamedTuple):
    """A call to be made after the graph has run; what it gives is dropped."""

    function: Callable[..., Any]
    args: tuple[Value, ...]
    is_seen: bool = False  # whether others than the program can see it
    is_warning: bool = False


class Change(Protocol):
    """What became of one outside object since the last operation that others can see."""

    def operations(self) -> Iterable[Operation]:
        """How to make it so."""


class Fields:
    """The names of a namespace, or keys of a dict, from outside that were written.

    `written` holds what a key was set to, NULL where it was deleted, for reads (`moved`: keys that
    were deleted at some time, and stand at the end if they are there again); `entries`, once it is
    there, the whole content. `pending` is what is still to be done: by key, the value, and whether
    the key goes to the end.
    """

    __slots__ = (
        "_done",
        "_realized",
        "_remove",
        "_source_of",
        "_store",
        "cleared",
        "entries",
        "moved",
        "pending",
        "pending_clear",
        "written",
    )

    def __init__(
        self,
        store: Callable[[Any, Value], Operation],
        remove: Callable[[Any], Operation],
        source_of: Callable[[Any], Source | None],
        realized: Mapping[Source, Value],
    ) -> None:
        self._store, self._remove = store, remove
        self._source_of, self._realized = source_of, realized
        self._done: set[Any] = set()  # keys that an operation before the pending ones writes
        self.written: dict[Any, Value] = {}
        self.moved: set[Any] = set()
        self.cleared = False
        self.entries: dict[Any, Value] | None = None
        self.pending: dict[Any, tuple[Value, bool]] = {}
        self.pending_clear: Operation | None = None

    def read(self, key: Any) -> Value | None:
        """What a key was set to, NULL where it was deleted; None where it was not written."""
        return self.written.get(key, NULL if self.cleared else None)

    def write(self, key: Any, value: Value) -> None:
        """Sets a key, or deletes it (NULL)."""
        # it moves behind the keys written before
        if value is NULL or self.written.get(key, NULL) is NULL:
            self.written.pop(key, None)
        if value is NULL:
            self.moved.add(key)
        self.written[key] = value
        before = self.pending.get(key)
        if before is not None and (value is NULL or before[0] is NULL):
            del self.pending[key]
        self.pending[key] = (value, before is not None and (before[1] or before[0] is NULL))
        if self.entries is not None:
            if value is NULL:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value

    def clear(self, operation: Operation) -> None:
        """Deletes all keys."""
        self.cleared, self.pending_clear = True, operation
        self.written.clear()
        self.pending.clear()
        self.entries = {}

    def fill(self, entries: dict[Any, Value]) -> dict[Any, Value]:
        """Takes the content that the storage had before the call, and gives the content it has
        now."""
        for key, value in self.written.items():
            if key in self.moved:
                entries.pop(key, None)
            if value is not NULL:
                entries[key] = value
        self.entries = entries
        return entries

    def operations(self) -> Iterable[Operation]:
        if self.pending_clear is not None:
            yield self.pending_clear
        for key, (value, moved) in self.pending.items():
            if not moved and self._is_as_before(key, value):
                continue
            self._done.add(key)
            if value is NULL or moved:
                yield self._remove(key)
            if value is not NULL:
                yield self._store(key, value)
        self.pending_clear = None
        self.pending.clear()

    def _is_as_before(self, key: Any, value: Value) -> bool:
        """Whether a key has what it had before the call, all the time as others can see it."""
        source = self._source_of(key)
        if self.cleared or key in self._done or source is None:
            return False
        return value.source is source or is_same_constant(self._realized.get(source), value)


class _Nothing:
    """What no path leads to: that a value is another object says that it is there."""

    def __repr__(self) -> str:
        return "missing"


_NOWHERE = ConstSource(_Nothing())


class Effects:
    """The writes of one capture."""

    def __init__(self, realized: Mapping[Source, Value]) -> None:
        self._realized = realized  # what was there before the call, and was used
        self._log: list[Operation] = []
        # by id of the change, in the order of the first write
        self._segment: dict[int, Change] = {}
        self._fields: dict[int, Fields] = {}  # by id of the storage
        self._slots: dict[int, Fields] = {}  # by id of the instance
        self._known: dict[int, Value] = {}  # by id of the outside object
        self._by_type: dict[type, list[Any]] = {}
        self._changed: dict[type, dict[int, Any]] = {}
        self._handed_over: dict[int, Any] = {}
        self._classes: set[type] = set()  # those that were written
        self.paths: dict[Source, None] = {}  # to what was found, and may not have been used
        self._uses: list[Callable[[], None]] = []

    # -- which outside objects are the same --------------------------------------------------------

    def known(self, session: Session, object_: Any, source: Source) -> Value | None:
        """The value of an outside object that was met before on another path.

        Raises Unsupported for one that was handed over."""
        if id(object_) in self._handed_over:
            raise session.unsupported(
                "side-effect",
                f"side effect: a {type(object_).__name__} is used that takes what was shown",
            )
        value = self._known.get(id(object_))
        if value is not None and source is not value.source:
            session.guard(source, Kind.SAME, value.source)
        return value

    def admit(self, session: Session, value: Value, object_: Any) -> None:
        """Takes note of an outside object that can be changed, and of the value that stands for
        it."""
        if id(object_) in self._known:
            return
        self._known[id(object_)] = value
        self._by_type.setdefault(type(object_), []).append(object_)
        for other in self._changed.get(type(object_), {}):
            _distinct(session, value, self._known[other])

    @property
    def are_none(self) -> bool:
        """Whether no outside object was written, or is read otherwise than it is."""
        return not (
            self
            or self._fields
            or self._slots
            or self._changed
            or self._handed_over
            or self._classes
        )

    @property
    def known_count(self) -> int:
        """How many outside objects that can be changed were used."""
        return len(self._known)

    def known_sources(self, count: int) -> Iterator[Source]:
        """Where the first `count` of them were found."""
        for value in itertools.islice(self._known.values(), count):
            if value.source is not None:
                yield value.source

    def use(self, uses: Callable[[], None]) -> None:
        """Takes note that outside objects were used, which `uses` has known. It is called before
        one is changed."""
        self._uses.append(uses)

    def _know_all(self) -> None:
        while self._uses:
            self._uses.pop()()

    def change(self, session: Session, value: Value, object_: Any, change: Change) -> None:
        """Takes note that an outside object, which `value` stands for, is about to be changed."""
        self._is_changed(session, value, object_)
        self._segment.setdefault(id(change), change)

    def _is_changed(self, session: Session, value: Value, object_: Any) -> None:
        """Guards that an object which changes is none of the others that are used."""
        self._know_all()
        self.admit(session, value, object_)
        changed = self._changed.setdefault(type(object_), {})
        if id(object_) not in changed:
            changed[id(object_)] = object_
            for other in self._by_type[type(object_)]:
                if other is not object_:
                    _distinct(session, value, self._known[id(other)])

    def hand_over(self, session: Session, object_: Any, source: Source) -> bool:
        """Takes note that others change an outside object, when they see what is deferred.

        Gives False where the function has used it before."""
        self._know_all()
        if id(object_) not in self._handed_over:
            if id(object_) in self._known:
                return False
            self._handed_over[id(object_)] = object_
            self._is_changed(session, ReadyValue(source), object_)
        return True

    def note(self, change: Change) -> None:
        """Takes note of what is about to be done to outside objects that cannot be confused."""
        self._segment.setdefault(id(change), change)

    def is_changed(self, object_: Any) -> bool:
        """Whether an outside object was changed."""
        return id(object_) in self._changed.get(type(object_), {})

    def has_changed(self, *classes: type) -> bool:
        """Whether some instance of these classes was changed."""
        return any(issubclass(cls, classes) for cls in self._changed)

    def lazy_value(self, object_: Any, source: Source) -> Value:
        """The lazy value of what is under a name or key. That it is there is guarded, even if it is
        never used."""
        self.paths[source] = None
        return LazyValue(object_, source)

    def guard_paths(self, session: Session) -> None:
        """States that what was found and not used is there: what was used is guarded."""
        for source in self.paths:
            if not session.is_realized(source):
                session.guard(source, Kind.DISTINCT, _NOWHERE)
        self.paths.clear()

    def _fields_of(
        self,
        storage: Any,
        store: Callable[[Any, Value], Operation],
        remove: Callable[[Any], Operation],
        source_of: Callable[[Any], Source | None] = lambda _: None,
    ) -> Fields:
        """The fields of a dict, set, namespace or cell, made at the first write."""
        fields = self._fields.get(id(storage))
        if fields is None:
            fields = Fields(store, remove, source_of, self._realized)
            self._fields[id(storage)] = fields
        return fields

    def stand_in(self, storage: dict[Any, Any], key: Any, value: Value) -> None:
        """Has reads of a dict from outside find a value under a key, which is never written."""
        owner = ReadyValue(ConstSource(storage))

        def store(key: Any, value: Value) -> Operation:
            return Operation(dict.__setitem__, (owner, ConstantValue(key), value))

        def remove(key: Any) -> Operation:
            return Operation(_remove_item, (owner, ConstantValue(key)))

        fields = self._fields_of(storage, store, remove)
        fields.written[key], fields.entries = value, None

    def step_back(self, storage: dict[Any, Any], key: Any) -> None:
        """The dict is again as it was before that."""
        fields = self._fields[id(storage)]
        del fields.written[key]
        fields.entries = None

    # -- names and keys ----------------------------------------------------------------------------

    def fields(self, storage: Any) -> Fields | None:
        """What was written to a dict or namespace; None where nothing was."""
        return self._fields.get(id(storage))

    def written(self, storage: Any, key: Any) -> Value | None:
        """What was written there under a key: NULL where it was deleted, None where neither was."""
        return _read(self.fields(storage), key)

    def written_slot(self, object_: Any, name: str) -> Value | None:
        """The same of the `__slots__` of an instance."""
        return _read(self.slots(object_), name)

    def slots(self, object_: Any) -> Fields | None:
        """What was written to the `__slots__` of an instance; None where nothing was."""
        return self._slots.get(id(object_))

    def items_of(self, owner: Any) -> Fields:
        """The fields of a dict from outside (`owner.object`, of value `owner`)."""
        base = dict_base(type(owner.object))

        def store(key: Any, value: Value) -> Operation:
            return Operation(base.__setitem__, (owner, owner.key_value(key), value))

        def remove(key: Any) -> Operation:
            return Operation(_remove_item, (owner, owner.key_value(key)))

        return self._fields_of(owner.object, store, remove, owner.item_source)

    def members_of(self, owner: Any) -> Fields:
        """The members of a set from outside (`owner.object`, of value `owner`), each its own
        key."""

        def store(key: Any, value: Value) -> Operation:
            return Operation(set.add, (owner, value))

        def remove(key: Any) -> Operation:
            return Operation(set.discard, (owner, owner.key_value(key)))

        return self._fields_of(owner.object, store, remove)

    def set_attribute(self, session: Session, owner: ObjectValue, name: str, value: Value) -> None:
        """Sets or deletes (NULL) an attribute of an instance from outside, as object.__setattr__
        does."""
        if isinstance(session.class_lookup(owner.cls, name), MemberDescriptorType):
            fields = self.slots_of(owner, owner.object)
        else:
            namespace = instance_dict(owner.object)
            if namespace is None:
                message = f"'{owner.cls.__name__}' object has no attribute '{name}'"
                raise session.raised(AttributeError, message)
            fields = self.attributes_of(owner, namespace)
        self.change(session, owner, owner.object, fields)
        fields.write(name, value)

    def set_own(
        self, session: Session, owner: Value, object_: Any, name: str, value: Value
    ) -> None:
        """Sets or deletes (NULL) an own attribute of a function or tensor from outside."""
        fields = self.attributes_of(owner, vars(object_))
        self.change(session, owner, object_, fields)
        fields.write(name, value)

    def own(self, session: Session, owner: Value, object_: Any, name: str) -> Value | None:
        """Such an attribute; None where there is none."""
        assert owner.source is not None
        self.admit(session, owner, object_)
        written = self.written(vars(object_), name)
        if written is NULL:
            return None
        if written is not None:
            return written
        if name in vars(object_):
            return self.lazy_value(vars(object_)[name], AttrSource(owner.source, name))
        session.guard_absent(owner.source, name)
        return None

    def attributes_of(self, owner: Value, namespace: dict[str, Any]) -> Fields:
        """The fields of the `__dict__` of an instance, module or function."""

        def dict_of() -> Value:
            assert owner.source is not None
            return ReadyValue(InstanceDictSource(owner.source))

        def store(key: Any, value: Value) -> Operation:
            if type(key) is not str or _has_data_descriptor(owner.python_type(), key):
                return Operation(dict.__setitem__, (dict_of(), ConstantValue(key), value))
            return Operation(object.__setattr__, (owner, ConstantValue(key), value))

        def remove(key: Any) -> Operation:
            return Operation(_remove_item, (dict_of(), ConstantValue(key)))

        def source_of(key: Any) -> Source:
            return AttrSource(owner.source, key)  # type: ignore[arg-type]

        return self._fields_of(namespace, store, remove, source_of)

    def set_class_attribute(self, cls: type, name: str, value: ConstantValue) -> None:
        """Sets an attribute of a class from outside. The constant needs no binding."""

        def store(key: Any, value: Value) -> Operation:
            return Operation(type.__setattr__, (ConstantValue(cls), ConstantValue(key), value))

        def remove(key: Any) -> Operation:
            return Operation(type.__delattr__, (ConstantValue(cls), ConstantValue(key)))

        fields = self._fields_of(cls, store, remove)
        fields.write(name, value)
        self._classes.add(cls)
        self.note(fields)

    def class_member(self, session: Session, cls: type, name: str, before: Any) -> Any:
        """What a class has under a name along its resolution order; `before` is what it had before
        the call."""
        if not self._classes:
            return before
        for i, owner in enumerate(cls.__mro__):
            written = self.written(owner, name)
            if isinstance(written, ConstantValue):
                for passed in cls.__mro__[:i]:
                    session.guard_derived(_defines(name), passed, ConstSource(passed))
                return written.object
            if name in vars(owner):
                break
        return before

    def has_written_to(self, cls: type) -> bool:
        """Whether an attribute of a class, or of one that it derives from, was set."""
        return not self._classes.isdisjoint(cls.__mro__)

    def set_gradient(self, owner: Value, tensor: Any, value: Value) -> None:
        """Sets the `grad` of a tensor from outside. Which tensors are the same is guarded by the
        memory they have."""
        fields = self.slots_of(owner, tensor)
        fields.write("grad", value)
        self.note(fields)

    def slots_of(self, owner: Value, object_: Any) -> Fields:
        """The fields of what C descriptors of the type of an object from outside hold: its
        `__slots__`, the `grad` of a tensor."""

        def store(key: Any, value: Value) -> Operation:
            return Operation(object.__setattr__, (owner, ConstantValue(key), value))

        def remove(key: Any) -> Operation:
            return Operation(_remove_slot, (owner, ConstantValue(key)))

        def source_of(key: Any) -> Source:
            assert owner.source is not None
            return AttrSource(owner.source, key, "slot")

        fields = Fields(store, remove, source_of, self._realized)
        return self._slots.setdefault(id(object_), fields)

    def set_name(self, namespace: dict[str, Any], name: str, value: Value) -> None:
        """Sets or deletes (NULL) a global of a module."""
        namespace_value = ConstantValue(namespace)

        def store(key: Any, value: Value) -> Operation:
            return Operation(dict.__setitem__, (namespace_value, ConstantValue(key), value))

        def remove(key: Any) -> Operation:
            return Operation(_remove_item, (namespace_value, ConstantValue(key)))

        def source_of(key: Any) -> Source:
            return GlobalSource(namespace, key)

        fields = self._fields_of(namespace, store, remove, source_of)
        fields.write(name, value)
        self.note(fields)

    def set_cell(self, session: Session, cell: CellValue, content: Value) -> None:
        """Sets the variable of a closure cell from outside, or unbinds it (NULL)."""
        fields = self._fields_of(
            cell.object,
            lambda _, value: Operation(_CELL.__set__, (cell, value)),
            lambda _: Operation(_unbind, (cell,)),
        )
        fields.write(None, content)
        self.change(session, cell, cell.object, fields)

    # -- the operations ----------------------------------------------------------------------------

    def defer(self, operation: Operation) -> None:
        """Appends something that others can see: it comes after all that was written so far."""
        self._close_segment()
        self._log.append(operation._replace(is_seen=True))

    def operations(self) -> list[Operation]:
        """All that is to be done, in order."""
        self._close_segment()
        return self._log

    def are_seen(self, but_for_warnings: bool = False) -> bool:
        """Whether others can see something that is to be done."""
        for operation in self._log:
            if operation.is_seen and not (but_for_warnings and operation.is_warning):
                return True
        return False

    def values(self) -> Iterator[Value]:
        """What was written to outside objects, and the values of those that were changed."""
        for fields in (*self._fields.values(), *self._slots.values()):
            yield from fields.written.values()
        for objects in self._changed.values():
            for number in objects:
                yield self._known[number]

    def mark(self) -> int:
        """A place in the order of effects, to look back to."""
        self._close_segment()
        return len(self._log)

    def since(self, mark: int) -> int | None:
        """How many operations that others can see came after a mark.

        None if something was written as well."""
        operations = self._log[mark:]
        if self._segment or not all(operation.is_seen for operation in operations):
            return None
        return len(operations)

    def take_back(self, mark: int) -> None:
        """Forgets what came after a mark: it will come about in another way."""
        del self._log[mark:]

    def _close_segment(self) -> None:
        for change in self._segment.values():
            self._log.extend(change.operations())
        self._segment.clear()

    def __bool__(self) -> bool:
        return bool(self._log or self._segment)


def _read(fields: Fields | None, key: Any) -> Value | None:
    if fields is None:
        return None
    return fields.read(key)


def is_same_constant(before: Value | None, after: Value) -> bool:
    """Whether two values are the same object, and all that is known of it."""
    return type(before) is type(after) is ConstantValue and before.object is after.object


def _has_data_descriptor(cls: type, name: str) -> bool:
    """Whether a data descriptor of the class takes what is written under this name."""
    return is_data_descriptor(class_attribute(cls, name))


class ReadyValue(Value):
    """An outside object of which nothing is asked but that it is loaded."""

    __slots__ = ()

    def python_type(self) -> type:
        return object


@functools.cache
def _defines(name: str) -> Callable[[type], bool]:
    def defines(cls: type) -> bool:
        return name in vars(cls)

    return defines


def _distinct(session: Session, a: Value, b: Value) -> None:
    assert a.source is not None and b.source is not None
    if not (fixed(a.source) and fixed(b.source)):
        session.guard(a.source, Kind.DISTINCT, b.source)


def fixed(source: Source | None) -> bool:
    """Whether a path leads to the same object at every call: one that is held, or a cell of a
    function that is."""
    if isinstance(source, ItemSource) and isinstance(source.base, FunctionFieldSource):
        return source.base.field == "__closure__" and isinstance(source.base.base, ConstSource)
    return isinstance(source, ConstSource)


def cell_source(content: Source) -> Source:
    """Where a closure cell comes from, given where its content does."""
    if isinstance(content, CellSource):
        return ItemSource(FunctionFieldSource(content.base, "__closure__"), content.index)
    assert isinstance(content, AttrSource)
    return content.base


def dict_base(cls: type) -> type[dict[Any, Any]]:
    """The built-in class whose methods act on the items of a dict of this class."""
    if issubclass(cls, OrderedDict):
        return OrderedDict
    return dict


def _remove_item(storage: Any, key: Any) -> None:
    """Deletes a key, where it is there."""
    if dict.__contains__(storage, key):
        dict_base(type(storage)).__delitem__(storage, key)


def _remove_slot(owner: Any, name: str) -> None:
    """Empties a member of `__slots__`, where it is set."""
    try:
        object.__delattr__(owner, name)
    except AttributeError:
        pass


def _unbind(cell: CellType) -> None:
    """Empties a closure cell."""
    del cell.cell_contents
