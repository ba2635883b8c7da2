"""The state of one capture: its guards, frames and graph, and how outside objects become values."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from types import CellType, FunctionType, ModuleType
from typing import Any

from ingot.capture.bytecode import program_of
from ingot.capture.guards import MISSING, Kind
from ingot.capture.interpreter import InterpreterFrame
from ingot.capture.semantics import Semantics
from ingot.capture.sources import BuiltinSource, ConstSource, GlobalSource, InstanceDictSource, Source, find_in_class
from ingot.capture.values import builtins as builtin_functions
from ingot.capture.values.base import Arguments, Keywords, LazyValue, Raised, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.containers import TupleValue
from ingot.capture.values.functions import CellValue, FunctionValue, bind
from ingot.capture.values.mappings import InstanceDictValue
from ingot.capture.values.objects import ExceptionValue, IdentityKey, ObjectValue, bind_member
from ingot.capture.values.wrap import wrap_object
from ingot.capture.values.writes import Writes
from ingot.errors import Unsupported

STEP_LIMIT = 2_000_000
"""Instructions after which a capture is given up: an endless loop, or a graph too large to be of use."""

_PINNED = frozenset({Kind.TYPE, Kind.IDENTITY, Kind.EQUALS, Kind.IS_NONE, Kind.TRUTH})
"""Facts that cannot change for an object that is held itself."""

_TRUSTED = frozenset(sys.stdlib_module_names) - {"__main__"} | {"torch", "numpy"}
"""Packages whose module attributes are taken as they are: functions, classes and modules in them are not guarded."""

_LITERALS = frozenset({int, float, bool, str, bytes, complex, type(None), type(...), type(NotImplemented)})

SPECIAL_FUNCTIONS: dict[Any, Callable[..., Value]] = {}
"""Python functions with a meaning of their own during capture: handler(session, args, kwargs)."""


class Session(Semantics):
    """One capture. `guards` answers `add` as GuardSet does; `graph` (a GraphRecorder) takes the tensor work, and may
    be None in code
    that has none."""

    def __init__(self, guards: Any, graph: Any = None) -> None:
        self.guards, self.graph = guards, graph
        self.frames: list[InterpreterFrame] = []
        self.handled: Value = ConstantValue(None)
        self.left: InterpreterFrame | None = None
        self.steps = 0
        self.writes = Writes()
        self._by_source: dict[Source, Value] = {}
        self._cells: dict[int, CellValue] = {}
        self._class_lookups: dict[tuple[type, str], Any] = {}

    # -- frames and places ---------------------------------------------------------------------------------------------

    def enter(self, frame: InterpreterFrame) -> None:
        self.frames.append(frame)

    def leave(self) -> None:
        self.left = self.frames.pop()

    def count_step(self) -> None:
        self.steps += 1
        if self.steps > STEP_LIMIT:
            raise self.unsupported(f"more than {STEP_LIMIT:,} instructions in one call", hint="an endless loop?")

    @property
    def where(self) -> str:
        """The innermost line of the user's own code that runs now."""
        for frame in reversed(self.frames):
            if not self.is_trusted(frame.function.namespace.get("__name__", "")):
                return frame.where
        innermost = self.frames[-1] if self.frames else self.left
        return innermost.where if innermost is not None else ""

    def is_trusted(self, module: str | None) -> bool:
        """Whether a module is torch's or Python's own, which nobody is expected to change under way."""
        return module is not None and (
            module.partition(".")[0] in _TRUSTED or module.startswith(("ingot.capture.", "ingot.compiler"))
        )

    def inline(self, function: FunctionValue, args: Arguments, kwargs: Keywords) -> Value:
        """Runs a Python function in a frame of its own."""
        arguments = bind(self, function, args, kwargs)
        return InterpreterFrame(self, program_of(function.code), function, arguments).run()

    def run_root(self, function: FunctionValue, arguments: list[Value]) -> Value:
        """Runs the compiled function itself, its parameters bound already."""
        special = self.special_function(function.object)
        if special is not None:  # nn.Module.__call__(self, *args, **kwargs)
            args, kwargs = arguments[:-2] + self.unpacked(arguments[-2]), self.entries_of(arguments[-1])
            return special(self, args, kwargs)
        if function.code.co_flags & 0x2A0:
            raise self.unsupported("a generator or coroutine function")
        return InterpreterFrame(self, program_of(function.code), function, arguments).run()

    # -- errors --------------------------------------------------------------------------------------------------------

    def unsupported(self, reason: str, hint: str = "") -> Unsupported:
        """The error for what cannot be captured, with the user's line."""
        return Unsupported(reason, self.where, hint)

    def raised(self, cls: type, argument: Any = None) -> Raised:
        """An exception of the user's program; `argument` is a message or a value."""
        if argument is None:
            return Raised(ExceptionValue(cls))
        return Raised(ExceptionValue(cls, [argument if isinstance(argument, Value) else ConstantValue(argument)]))

    def python(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a pure function gives for known objects; what it raises is raised in the captured program."""
        try:
            return function(*args, **kwargs)
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise Raised(ExceptionValue(type(error), [self.wrap_constant(a) for a in error.args])) from None

    # -- guards --------------------------------------------------------------------------------------------------------

    def guard(self, source: Source | None, kind: Kind, data: Any = None) -> None:
        """States a fact about an outside object."""
        if source is not None and not (kind in _PINNED and isinstance(source, ConstSource)):
            self.guards.add(source, kind, data, self.where)

    def guard_absent(self, source: Source, name: str) -> None:
        """States that the `__dict__` of an outside object has no such name."""
        self.guard(InstanceDictSource(source), Kind.ABSENT_KEY, name)

    def class_lookup(self, cls: type, name: str) -> Any:
        """The raw attribute along the method resolution order, or MISSING; guarded once for each class and name."""
        found = self._class_lookups.get((cls, name), self)
        if found is self:
            try:
                found = find_in_class(cls, name)
            except AttributeError:
                found = MISSING
            self._class_lookups[cls, name] = found
            if not (
                cls.__module__ in sys.stdlib_module_names or cls.__flags__ & (1 << 8)
            ):  # an immutable type stays as it is
                self.guard(ConstSource(cls), Kind.CLASS_ATTRIBUTE, (name, found))
        return found

    # -- outside objects -----------------------------------------------------------------------------------------------

    def wrap(self, object: Any, source: Source) -> Value:
        """An outside object that was met; nothing is guarded until it is used."""
        return LazyValue(object, source)

    def realize(self, value: Value) -> Value:
        """The value itself, its nature guarded, for one that is about to be used."""
        if type(value) is not LazyValue:
            return value
        assert value.source is not None
        found = self._by_source.get(value.source)
        if found is None:
            found = self._by_source[value.source] = wrap_object(self, value.object, value.source)
        return found

    def wrap_constant(self, object: Any) -> Value:
        """An object that capture made or holds: a literal, or what a pure function gave."""
        if type(object) in _LITERALS:
            return ConstantValue(object)
        if type(object) is tuple:
            return TupleValue([self.wrap_constant(item) for item in object], tuple)
        if type(object) is list:
            return self.list_of(TupleValue([self.wrap_constant(item) for item in object], tuple))
        if isinstance(object, Value):
            return object
        return self.realize(LazyValue(object, ConstSource(object)))

    def wrap_key(self, key: Any) -> Value:
        """The value of a key of a captured dict."""
        if isinstance(key, IdentityKey):
            return key.value
        return TupleValue([self.wrap_key(k) for k in key], tuple) if type(key) is tuple else self.wrap_constant(key)

    def wrap_class_member(self, raw: Any) -> Value:
        """What a class holds; that it holds this very object is guarded by `class_lookup`."""
        return self.wrap(raw, ConstSource(raw))

    def wrap_global(self, namespace: dict[str, Any], name: str, module: str) -> Value | None:
        """A variable of a module; None if it has none of this name."""
        if name not in namespace:
            return None
        found = namespace[name]
        if self.is_trusted(module) and (callable(found) or isinstance(found, ModuleType)):
            return self.wrap(found, ConstSource(found))
        return self.wrap(found, GlobalSource(namespace, name))

    def wrap_builtin(self, namespace: dict[str, Any], name: str) -> Value | None:
        """A built-in; None if there is none of this name."""
        if not hasattr(builtins, name):
            return None
        if not self.is_trusted(namespace.get("__name__", "")):
            self.guard(ConstSource(namespace), Kind.ABSENT_KEY, name)
            self.guard(BuiltinSource(name), Kind.IDENTITY, getattr(builtins, name))
        return self.builtin(getattr(builtins, name))

    def builtin(self, object: Any) -> Value:
        """The value of an object that is held itself."""
        return self.realize(LazyValue(object, ConstSource(object)))

    def outside_cell(self, cell: CellType, source: Source) -> CellValue:
        """The value of a closure cell that existed before the call."""
        if id(cell) not in self._cells:
            try:
                content = self.wrap(cell.cell_contents, source)
            except ValueError:
                raise self.unsupported(f"the outer variable {source.name!r} is not bound yet") from None
            self._cells[id(cell)] = CellValue(content, outside=True)
        return self._cells[id(cell)]

    def imported(self, name: str, level: int, namespace: dict[str, Any], wants_leaf: bool) -> Value:
        """What an import statement gives, for a module that is loaded already."""
        if level:
            package = namespace.get("__package__") or ""
            name = ".".join(filter(None, [package.rsplit(".", level - 1)[0] if level > 1 else package, name]))
        if name not in sys.modules:
            raise self.unsupported(
                f"import of {name}, which is not loaded yet", hint="import it at the top of the module"
            )
        module = sys.modules[name if wants_leaf else name.partition(".")[0]]
        return self.wrap(module, ConstSource(module))

    # -- callables -----------------------------------------------------------------------------------------------------

    def special_function(self, function: FunctionType | None) -> Callable[..., Value] | None:
        """The handler of a Python function that has a meaning of its own."""
        if function in builtin_functions.RULES:
            return lambda session, args, kwargs: builtin_functions.call_builtin(session, function, args, kwargs)
        return SPECIAL_FUNCTIONS.get(function)

    def construct(self, cls: type, args: Arguments, kwargs: Keywords) -> Value:
        """What calling a class gives."""
        return builtin_functions.construct(self, cls, args, kwargs)

    def instance_dict_of(self, owner: ObjectValue) -> Value:
        """The `__dict__` of an object from outside."""
        if type(owner).own_attribute is not ObjectValue.own_attribute:  # a module's own attributes are in tables, too
            return self.wrap(owner.object.__dict__, InstanceDictSource(owner.source))  # type: ignore[arg-type]
        return InstanceDictValue(owner)

    def class_attribute(self, cls: type, name: str, instance: Value) -> Value:
        """An attribute that an instance finds on its class."""
        return bind_member(self, self.class_lookup(cls, name), instance, cls, name)

    def native_slot(self, raw: Any) -> Value | None:
        """A C method of a class, where capture knows its meaning."""
        return self.builtin(raw) if builtin_functions.knows(raw) else None
