"""The option `guard_filter_fn`: a function of the user's says which guards of an entry are checked.

In: the guards of a captured call, and the function. Out: the guards that are left. The function
gets a list with one entry for each guard, as torch.compile's does, and returns a list of bools. A
guard that it answers with False is dropped, unless compiled code would touch memory out of bounds
without it: what the graph's inputs are, and how their sizes relate, is always checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from ingot.capture.guard_set import GuardSet
from ingot.capture.guards import LOST, Guard, Kind
from ingot.capture.sources import BuiltinSource, ConstSource, GlobalSource, Source, StateSource
from ingot.errors import BackendError, without_frames

_TYPES: dict[Kind, tuple[str, ...]] = {
    Kind.TYPE: ("TYPE_MATCH",),
    Kind.IDENTITY: ("ID_MATCH",),
    Kind.EQUALS: ("CONSTANT_MATCH", "EQUALS_MATCH"),
    Kind.LENGTH: ("SEQUENCE_LENGTH",),
    Kind.DICT_KEYS: ("DICT_KEYS_MATCH", "SEQUENCE_LENGTH"),
    Kind.ABSENT_KEY: ("DICT_NOT_CONTAINS",),
    Kind.DICT_EMPTY: ("SEQUENCE_LENGTH",),
    Kind.MEMBER: ("SET_CONTAINS",),
    Kind.IS_NONE: ("CONSTANT_MATCH", "NONE_MATCH"),
    Kind.TRUTH: ("BOOL_MATCH",),
    Kind.CLASS_ATTRIBUTE: ("HASATTR",),
    Kind.TENSOR: ("TENSOR_MATCH",),
    Kind.TENSOR_OFFSET: ("TENSOR_MATCH",),
    Kind.TENSOR_MEMORY: ("TENSOR_MATCH",),
    Kind.TENSOR_ALIGNED: ("TENSOR_MATCH",),
    Kind.SAME: ("DUPLICATE_INPUT",),
    Kind.DISTINCT: ("DUPLICATE_INPUT",),
    Kind.SAME_STORAGE: ("STORAGE_OVERLAPPING",),
    Kind.TENSOR_DISJOINT: ("STORAGE_OVERLAPPING",),
    Kind.SHAPE: ("SHAPE_ENV",),
    Kind.GLOBAL_STATE: ("GLOBAL_STATE",),
}
"""torch.compile's name for each kind of guard, and for what it checks where that is another."""

_OF_OBJECTS: dict[type, str] = {
    FunctionType: "CLOSURE_MATCH",
    BuiltinFunctionType: "BUILTIN_MATCH",
    ModuleType: "MODULE_MATCH",
    type: "CLASS_MATCH",
}
"""Its names for guards on the identity of an object, by the object's type."""

_OF_MEMORY = frozenset({Kind.SHAPE, Kind.SAME_STORAGE, Kind.TENSOR_DISJOINT})
"""Guards that keep compiled code within the memory that it may touch, whatever they are of."""

_BUILT_IN_MODULES = ("torch.nn.", "torch.ao.")

_NOTHING = object()


class GuardOrigin(NamedTuple):
    """Where the value of a guard is found, asked as torch.compile's `guard.source` is."""

    is_of_module: bool
    is_of_built_in_module: bool
    is_of_global: bool

    def is_unspecialized_nn_module(self) -> bool:
        return self.is_of_module

    def is_unspecialized_builtin_nn_module(self) -> bool:
        return self.is_of_built_in_module

    def is_specialized_nn_module(self) -> bool:
        return False

    def is_fsdp_module(self) -> bool:
        return False

    def is_local(self) -> bool:
        return not self.is_of_global


class OriginalGuard(NamedTuple):
    """The guard itself: its name, its origin, and the fact as a line of the report."""

    name: str
    source: GuardOrigin
    text: str


class GuardFilterEntry(NamedTuple):
    """One guard, as a `guard_filter_fn` sees it: the fields of torch.compile's own entries.

    `value` is what is guarded, as it is in this call, if `has_value`. `guard_type` is what
    torch.compile calls the kind of guard."""

    name: str
    has_value: bool
    value: Any
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    orig_guard: OriginalGuard


def filter_guards(
    guards: GuardSet,
    inputs: Iterable[Source],
    slots: Sequence[Any],
    choose: Callable[[list[GuardFilterEntry]], Any],
) -> None:
    """Drops the guards that `choose` answers with False; those of `inputs` stay.

    Raises BackendError, from its own error, where it fails, and where it does not return a bool for
    each guard.
    """
    entries = []
    for guard in guards:
        entries.append(_entry(guard, slots))
    try:
        answers = list(choose(entries))
    except Exception as error:
        raise BackendError(f"the guard_filter_fn raised {error!r}") from without_frames(error)
    if len(answers) != len(entries) or not {*map(type, answers)} <= {bool}:
        raise BackendError(
            f"the guard_filter_fn is to return {len(entries)} bools, one for each guard; it "
            f"returned {len(answers)} values"
        )
    places = set(map(attrgetter("source"), guards.symbols.values()))
    places.update(inputs)
    dropped = []
    for guard, answer in zip(guards, answers):
        if not (answer or guard.kind in _OF_MEMORY or guard.source in places):
            dropped.append(guard)
    guards.drop(dropped)


def _entry(guard: Guard, slots: Sequence[Any]) -> GuardFilterEntry:
    value: Any = _NOTHING
    path = list(_path(guard.source))
    if path:
        value = _loaded(path[0], slots)
    root, name = None, guard.name
    if path:
        root = path[-1]
    if isinstance(root, StateSource):
        root, name = None, ""
    origin = _origin(path, slots, _is_global(root))
    name = _name_in_torch(name, root)
    kind, *derived = _type_names(guard, value)
    return GuardFilterEntry(
        name,
        value is not _NOTHING,
        value,
        kind,
        tuple(derived or [kind]),
        origin.is_of_global,
        OriginalGuard(name, origin, guard.text),
    )


def _path(source: Source | None) -> Iterator[Source]:
    """A source and those that it is reached through, the root last."""
    if source is not None:
        yield source
        yield from source.owners()


def _loaded(source: Source, slots: Sequence[Any]) -> Any:
    try:
        return source.load(slots)
    except LOST:  # of what is guarded not to be there
        return _NOTHING


def _is_global(root: Source | None) -> bool:
    if isinstance(root, ConstSource):
        return isinstance(root.value, (ModuleType, dict, type))
    return isinstance(root, (GlobalSource, BuiltinSource))


def _name_in_torch(name: str, root: Source | None) -> str:
    """A path whose global is written as torch.compile writes it: `G['name']`."""
    if isinstance(root, BuiltinSource):
        return f"G['__builtins__'][{root.key!r}]" + name.removeprefix(root.name)
    if isinstance(root, GlobalSource) and name.startswith(root.name):
        return f"G[{root.key!r}]" + name.removeprefix(root.name)
    return name


def _origin(path: Sequence[Source], slots: Sequence[Any], is_global: bool) -> GuardOrigin:
    """What the innermost module on the path says of it."""
    for source in path:
        owner = _loaded(source, slots)
        cls = owner
        if not isinstance(owner, type):
            cls = type(owner)
        if issubclass(cls, torch.nn.Module):
            return GuardOrigin(True, cls.__module__.startswith(_BUILT_IN_MODULES), is_global)
    return GuardOrigin(False, False, is_global)


def _type_names(guard: Guard, value: Any) -> tuple[str, ...]:
    """torch.compile's names for the kind of a guard."""
    if isinstance(guard.source, StateSource):
        return ("DUAL_LEVEL",)
    names = _TYPES[guard.kind]
    if guard.kind is Kind.IDENTITY:
        for cls, name in _OF_OBJECTS.items():
            if isinstance(value, cls):
                return name, *names
    return names
