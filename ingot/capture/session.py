"""The state of one capture: its guards, frames and graph, and how outside objects become values."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import CellType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any, NoReturn, TypeVar

import torch

from ingot.capture import iterators
from ingot.capture.alike_layers import AlikeLayers
from ingot.capture.bytecode import Program, program_of
from ingot.capture.effects import Effects, cell_source, fixed
from ingot.capture.error_paths import leaves_no_trace
from ingot.capture.guards import Kind, Observed, SpeculativeSizes, class_attribute
from ingot.capture.interpreter import InterpreterFrame, spots
from ingot.capture.meanings import How, Meaning, is_known_in_c, stated
from ingot.capture.reading import Reading
from ingot.capture.semantics import Semantics
from ingot.capture.sources import (
    ArgSource,
    AttrSource,
    BuiltinSource,
    CalledSource,
    ConstSource,
    DerivedSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    Source,
    find_in_class,
    is_argument,
)
from ingot.capture.values import builtins as builtin_functions
from ingot.capture.values import construction, function_overrides
from ingot.capture.values.arguments import bind
from ingot.capture.values.base import (
    NULL,
    Arguments,
    Keywords,
    LazyValue,
    Operator,
    Raised,
    UnaryOperator,
    Value,
)
from ingot.capture.values.constant import LITERALS, NONE, ConstantValue
from ingot.capture.values.edits import edit_for
from ingot.capture.values.exceptions import ExceptionValue
from ingot.capture.values.functions import BoundMethod, CellValue, FunctionValue, GeneratorValue
from ingot.capture.values.mappings import AttributesDict, InstanceDict
from ingot.capture.values.objects import IdentityKey, ObjectValue, bind_member, plain_base
from ingot.capture.values.sequences import ListValue, TupleValue, TypedKey, is_struct_sequence
from ingot.capture.values.wrap import wrap_object
from ingot.errors import Unsupported
from ingot.origins import is_trusted
from ingot.reasons import SKIP, Action, reason_of
from ingot.spots import spot_of_function

_T = TypeVar("_T")

STEP_LIMIT = 2_000_000
"""Instructions after which a capture is given up: an endless loop, or a graph too large to be of
use."""

_PINNED = frozenset({Kind.TYPE, Kind.IDENTITY, Kind.EQUALS, Kind.IS_NONE, Kind.TRUTH})
"""Facts that cannot change for an object that is held itself."""

_REPLACEABLE = frozenset({"sys", "warnings"})
"""Trusted modules with functions that programs replace: sys.excepthook, warnings.showwarning."""


def _is_patch(object_: Any, module: str) -> bool:
    """Whether a function was put into a module from elsewhere, and is made anew each time.

    That is an inner function, as `context_parallel` sets it for torch's attention.
    """
    if not isinstance(object_, FunctionType) or object_.__module__ == module:
        return False
    return bool(object_.__closure__) and "<locals>" in object_.__qualname__


_OF_THE_PROGRAM = (
    ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError
)  # fmt: skip
"""What a pure function raises for what the program gives it."""


class Stop(Exception):
    """Capture has reached the instruction before which it is to end."""


class Session(Semantics, Reading):
    """One capture. `guards` answers `add` as GuardSet does; `graph` (a GraphRecorder) takes the
    tensor work, and may be None in code that has none."""

    def __init__(self, guards: Any, graph: Any = None) -> None:
        self.guards, self.graph = guards, graph
        self.frames: list[InterpreterFrame] = []
        # for each of them, the innermost one of the user's own code
        self._users: list[InterpreterFrame | None] = []
        self.handled: Value = NONE
        # the exception that the caller of the generator that runs handles
        self.inherited: Value = NONE
        self.suspended: list[GeneratorValue] = []  # in the order in which they were left standing
        self.left: InterpreterFrame | None = None
        self.steps = 0
        self.handles = False  # whether there are exception handlers in the code that was met
        self.protects = False  # whether one of them stands around an operation that may raise
        # how many instructions had run before the one of the outermost loop
        self.step_of_outermost = 0
        self.broken_at: int | None = None  # the same for the instruction that could not be captured
        # the number of instructions after which capture ends in a graph break or is given up
        self.stop_at = STEP_LIMIT
        self.symbols: Observed = frozenset()
        self.observed: Observed = frozenset()
        # of numbers that are inputs where they are given as arguments
        self.input_types: frozenset[type] = frozenset()
        self.speculative: SpeculativeSizes | None = None
        self.continues = False  # whether it begins behind a graph break
        self._by_source: dict[Source, Value] = {}
        self.effects = Effects(self._by_source)
        self._cells: dict[int, CellValue] = {}
        self._attribute_dicts: dict[ObjectValue, AttributesDict] = {}
        self._class_lookups: dict[tuple[type, str], Any] = {}
        self._plain_lookups: dict[type, bool] = {}
        # by id of a namespace, which it keeps, and name
        self._fixed: dict[tuple[int, str], tuple[Value, Any]] = {}
        self.overrides = function_overrides.Overrides()
        self.layers = AlikeLayers(self)
        self._states: dict[type, Any] = {}  # by their class: what features keep

    def state(self, kind: type[_T]) -> _T:
        """What a feature keeps for this capture: the one object of a class of its own."""
        state: _T | None = self._states.get(kind)
        if state is None:
            state = self._states[kind] = kind()
        return state

    # -- frames and places -------------------------------------------------------------------------

    def enter(self, frame: InterpreterFrame) -> None:
        """Puts a frame that is about to run on the stack."""
        if len(self.frames) >= sys.getrecursionlimit():
            raise self.unsupported("recursion", "the calls are nested too deeply")
        innermost: InterpreterFrame | None = frame
        module = frame.function.namespace.get("__name__", "")
        if is_trusted(module) or module.startswith("triton."):
            innermost = self._users[-1] if self._users else None
        self._users.append(innermost)
        self.frames.append(frame)

    def leave(self, count: int) -> None:
        """Takes all frames but the `count` outermost from the stack."""
        self.left = self.frames[count]
        del self.frames[count:], self._users[count:]

    def end(self) -> None:
        """Forgets all: frames and values hold the session, which holds them, and with them the
        call's arguments. So do a generator that waits and an object that its frame has."""
        for generator in self.suspended:
            generator.frame = None
        vars(self).clear()

    def count_step(self) -> None:
        """Counts an instruction that is about to run, or as much work."""
        if self.steps >= self.stop_at:
            self.stop()
        self.steps += 1

    def stop(self) -> NoReturn:
        """Ends the capture before the instruction `stop_at`, which is one of the outermost
        loop's."""
        if self.stop_at < STEP_LIMIT:
            if self.steps != self.step_of_outermost:
                raise self.unsupported(
                    "unstable-capture",
                    "capturing the same call twice ran other instructions",
                )
            raise Stop()
        raise self.unsupported("endless-loop", f"more than {STEP_LIMIT:,} instructions in one call")

    @property
    def where(self) -> str:
        """The innermost line of the user's own code that runs now."""
        frame = self.user_frame
        if frame is not None:
            return frame.where
        return ""

    @property
    def handles_errors(self) -> bool:
        """Whether the program does something about an error of the instruction that runs, but to
        let it go on."""
        return self.handles and not leaves_no_trace(self)

    @property
    def user_frame(self) -> InterpreterFrame | None:
        """The innermost frame of the user's own code."""
        if self.frames:
            return self._users[-1] or self.frames[-1]
        return self.left

    def frame_of(
        self, function: FunctionValue, args: Arguments, kwargs: Keywords
    ) -> InterpreterFrame:
        """The frame of a call, about to run."""
        return InterpreterFrame(
            self, program_of(function.code), function, bind(self, function, args, kwargs)
        )

    def inline(self, function: FunctionValue, args: Arguments, kwargs: Keywords) -> Value:
        """Runs a Python function in a frame of its own, in the middle of an instruction."""
        return self.frame_of(function, args, kwargs).run()

    def root_frame(self, function: FunctionValue, arguments: list[Value]) -> InterpreterFrame:
        """The frame of the compiled function itself, its parameters bound already."""
        # nn.Module.__call__(self, *args, **kwargs)
        if function.meaning().how not in (How.INLINE, How.CODE):
            *positional, args, kwargs = arguments
            positional += self.unpacked(args)
            target = function.callee(self, positional, self.entries_of(kwargs))
            if target is None:
                raise self.unsupported("call", f"a call of {function.describe()}", action=SKIP)
            function = target[0]
            arguments = bind(self, *target)
        if function.code.co_flags & 0x2A0:
            reason = reason_of("generator-function", "a generator or coroutine function")
            raise Unsupported(reason.led_by([spot_of_function(function.code)]))
        return InterpreterFrame(self, program_of(function.code), function, arguments)

    # -- errors ------------------------------------------------------------------------------------

    def unsupported(
        self,
        id: str,
        sentence: str,
        *,
        action: Action | None = None,
        step: int | None = None,
        of: Any = None,
    ) -> Unsupported:
        """The error for what cannot be captured, with the user's calls that led there. `step` is
        the instruction that the graph has to be broken before, unless it is the one that failed;
        `of` a value, class or function that there may be better advice about than the id's."""
        reason = reason_of(id, sentence + self._within(), action=action, step=step)
        edit = edit_for(of) if of is not None else ""
        if edit:
            reason = replace(reason, hint=edit)
        return Unsupported(reason.led_by(spots(self.standing())))

    def standing(self) -> list[tuple[Program, int]]:
        """Where each of the user's calls that are under way stands, the outermost first."""
        standing = []
        for frame, user in zip(self.frames, self._users):
            if frame is user:
                standing.append((frame.program, frame.index))
        if not standing and self.user_frame is not None:
            standing.append((self.user_frame.program, self.user_frame.index))
        return standing

    def _within(self) -> str:
        """Which function of a library runs, where the user's code has called one."""
        for frame in reversed(self.frames):
            if frame is self.user_frame:
                break
            module = frame.function.namespace.get("__name__", "")
            if not module.startswith("ingot."):
                return f", in {frame.program.code.co_qualname}() of {module}"
        return ""

    def raised(self, cls: type, argument: Any = None) -> Raised:
        """An exception of the user's program; `argument` is a message or a value."""
        if argument is None:
            return self.raising(ExceptionValue(cls))
        if not isinstance(argument, Value):
            argument = ConstantValue(argument)
        return self.raising(ExceptionValue(cls, [argument]))

    def raising(self, error: ExceptionValue) -> Raised:
        """An exception that is raised now, perhaps while another one is handled."""
        error.raise_while(self, self.handled)
        return Raised(error)

    def python(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """What a pure function gives for known objects; what it raises is raised in the captured
        program."""
        try:
            return function(*args, **kwargs)
        except RecursionError:  # there is less stack than in the program itself
            raise
        except _OF_THE_PROGRAM as error:
            values = list(map(self.wrap_constant, error.args))
            raise self.raising(ExceptionValue(type(error), values)) from None

    def wrap_result(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Value:
        """The value of what a pure function gives for known objects."""
        return self.wrap_constant(self.python(function, *args, **kwargs))

    # -- guards ------------------------------------------------------------------------------------

    def guard(self, source: Source | None, kind: Kind, data: Any = None) -> None:
        """States a fact about an outside object."""
        if source is None or (kind in _PINNED and isinstance(source, ConstSource)):
            return
        self.guards.add(source, kind, data, lambda: self.where)

    def guard_derived(self, function: Callable[[Any], Any], object: Any, source: Any) -> Any:
        """What a function gives for an outside object, which it has to give again."""
        answer = function(object)
        self.guard(DerivedSource(source, function), Kind.EQUALS, answer)
        return answer

    def guard_absent(self, source: Source, name: str) -> None:
        """States that the `__dict__` of an outside object has no such name."""
        self.guard(InstanceDictSource(source), Kind.ABSENT_KEY, name)

    def class_lookup(self, cls: type, name: str) -> Any:
        """The raw attribute along the method resolution order, or MISSING; guarded once for each
        class and name."""
        member = self._class_lookups.get((cls, name), self)
        if member is self:
            member = class_attribute(cls, name)
            if not cls.__flags__ & (1 << 8):  # an immutable type stays as it is
                self.guard(ConstSource(cls), Kind.CLASS_ATTRIBUTE, (name, member))
            member = self.effects.class_member(self, cls, name, member)
            self._class_lookups[cls, name] = member
        return member

    def forget_lookups(self, name: str) -> None:
        """Looks a name up again in all classes: it was set in one of them."""
        for known in list(self._class_lookups):
            if known[1] == name:
                del self._class_lookups[known]

    def changed_class(self, cls: type) -> Value:
        """The value of a class that the program has made, and changed now."""
        for known, name in list(self._class_lookups):
            if known is cls:
                del self._class_lookups[known, name]
        return self.builtin(cls)

    def looks_up_plainly(self, cls: type) -> bool:
        """Whether instances of a class look attributes up as those of the class written in C that
        it derives from."""
        if cls not in self._plain_lookups:
            hook = self.class_lookup(cls, "__getattribute__")
            is_plain = hook is find_in_class(plain_base(cls), "__getattribute__")
            self._plain_lookups[cls] = is_plain
        return self._plain_lookups[cls]

    # -- outside objects ---------------------------------------------------------------------------

    def wrap(self, object: Any, source: Source) -> Value:
        """An outside object that was met; nothing is guarded until it is used."""
        return LazyValue(object, source)

    def wrap_items(self, items: Iterable[Any], source: Source) -> list[Value]:
        """The items of an outside sequence."""
        results = []
        for i, item in enumerate(items):
            results.append(self.wrap(item, ItemSource(source, i)))
        return results

    def wrap_derived(self, function: Callable[[Any], Any], object: Any, source: Any) -> Value:
        """What a function gives for an outside object."""
        return self.wrap(function(object), DerivedSource(source, function))

    def wrap_slot(self, object: Any, source: Any, name: str) -> Value:
        """What a C descriptor of the type of an outside object reads."""
        return self.wrap(getattr(object, name), AttrSource(source, name, "slot"))

    def realize(self, value: Value) -> Value:
        """The value itself, its nature guarded, for one that is about to be used."""
        if type(value) is not LazyValue:
            return value
        assert value.source is not None
        realized = self._by_source.get(value.source)
        if realized is None:
            realized = self.effects.known(self, value.object, value.source)
            if realized is None:
                realized = wrap_object(self, value.object, value.source)
                if realized.is_shared and realized.source is value.source:
                    self.effects.admit(self, realized, value.object)
            self._by_source[value.source] = realized
        return realized

    def is_realized(self, source: Source) -> bool:
        """Whether the object on this path was used."""
        return source in self._by_source

    def is_given(self, source: Source) -> bool:
        """Whether a value is found in an argument of the call, but not in a module: no parameter,
        and no variable from around the function."""
        owners = list(source.owners())
        root = [source, *owners][-1]
        if not isinstance(root, ArgSource) or isinstance(root, CalledSource):
            return False
        for value in map(self._by_source.get, owners):
            if isinstance(getattr(value, "object", None), torch.nn.Module):
                return False
        return True

    def is_input(self, object: Any, source: Source) -> bool:
        """Whether a number from outside is an input of the graph from the first call on: an
        argument, or in a container that is one. What objects have as attributes seldom varies."""
        return type(object) in self.input_types and is_argument(source)

    def wrap_constant(self, object: Any) -> Value:
        """An object that capture made or holds: a literal, or what a pure function gave."""
        if type(object) in LITERALS:
            return ConstantValue(object)
        if type(object) is tuple:
            return TupleValue(map(self.wrap_constant, object), tuple)
        if type(object) is list:
            return ListValue(map(self.wrap_constant, object), list)
        if isinstance(object, Value):
            return object
        return self.builtin(object)

    def wrap_key(self, key: Any) -> Value:
        """The value of a key of a captured dict."""
        if isinstance(key, IdentityKey):
            return key.value
        if isinstance(key, TypedKey):
            if is_struct_sequence(key.cls):
                return key.value  # nobody can make another
            return TupleValue(map(self.wrap_key, key), key.cls)
        if type(key) is tuple:
            return TupleValue(map(self.wrap_key, key), tuple)
        return self.wrap_constant(key)

    def wrap_class_member(self, raw: Any) -> Value:
        """What a class holds; that it holds this very object is guarded by `class_lookup`."""
        return self.wrap(raw, ConstSource(raw))

    def wrap_global(self, namespace: dict[str, Any], name: str) -> Value | None:
        """A variable of a module; None if it has none of this name."""
        written = self.effects.written(namespace, name)
        if written is NULL:
            return None
        if written is not None:
            return written
        known = self._fixed.get((id(namespace), name))
        if known is not None:
            return known[0]
        if name not in namespace:
            return None
        object_, module = namespace[name], namespace.get("__name__", "")
        fixed_there = is_trusted(module) and module not in _REPLACEABLE
        if (
            fixed_there
            and not _is_patch(object_, module)
            and (callable(object_) or isinstance(object_, ModuleType))
        ):
            self.guard(GlobalSource(namespace, name), Kind.IDENTITY, object_)
            value = self.wrap(object_, ConstSource(object_))
            self._fixed[id(namespace), name] = value, namespace
            return value
        return self.effects.lazy_value(object_, GlobalSource(namespace, name))

    def wrap_builtin(self, namespace: dict[str, Any], name: str) -> Value | None:
        """A built-in; None if there is none of this name."""
        if not hasattr(builtins, name):
            return None
        if not is_trusted(namespace.get("__name__", "")):
            if name not in namespace:  # it may have been deleted during capture
                self.guard(ConstSource(namespace), Kind.ABSENT_KEY, name)
            self.guard(BuiltinSource(name), Kind.IDENTITY, getattr(builtins, name))
        return self.builtin(getattr(builtins, name))

    def builtin(self, object: Any) -> Value:
        """The value of an object that is held itself."""
        return self.realize(LazyValue(object, ConstSource(object)))

    def outside_cell(self, cell: CellType, source: Source) -> CellValue:
        """The value of a closure cell that existed before the call."""
        place = cell_source(source)
        known = self._cells.get(id(cell))
        if known is not None:
            if place is not known.source and not (fixed(place) and fixed(known.source)):
                self.guard(place, Kind.SAME, known.source)
            return known
        try:
            content = self.wrap(cell.cell_contents, source)
        except ValueError:
            content = NULL
        value = self._cells[id(cell)] = CellValue(content, place, cell)
        self.effects.admit(self, value, cell)
        return value

    def imported(self, name: str, level: int, namespace: dict[str, Any], wants_leaf: bool) -> Value:
        """What an import statement gives, for a module that is loaded already."""
        if level:
            package = namespace.get("__package__") or ""
            if level > 1:
                package = package.rsplit(".", level - 1)[0]
            name = ".".join(filter(None, [package, name]))
        if name not in sys.modules:
            raise self.unsupported("import", f"import of {name}, which is not loaded yet")
        if not wants_leaf:
            name = name.partition(".")[0]
        module = sys.modules[name]
        return self.wrap(module, ConstSource(module))

    # -- callables ---------------------------------------------------------------------------------

    def call_as(self, meaning: Meaning, function: Any, args: Arguments, kwargs: Keywords) -> Value:
        """What a function gives that is called in the way that its meaning says."""
        return builtin_functions.call_as(self, meaning, function, args, kwargs)

    def call_builtin(self, function: Any, /, *args: Value) -> Value:
        """Calls an object that is held itself."""
        return self.call(self.builtin(function), args, {})

    def call_member(self, raw: Any, /, *args: Value) -> Value:
        """Calls what a class holds, which is not bound."""
        return self.call(self.wrap_class_member(raw), args, {})

    def call_function(self, function: Any, /, *args: Value, **kwargs: Value) -> Value:
        """Calls a torch function on tensors of the graph, as one node."""
        return self.graph.call(self, "call_function", function, args, kwargs)

    def call_method(self, name: str, /, *args: Value, **kwargs: Value) -> Value:
        """Calls a Tensor method, in the same way."""
        return self.graph.call(self, "call_method", name, args, kwargs)

    def torch_call(
        self,
        function: Any,
        args: Arguments,
        kwargs: Keywords,
        run: function_overrides.Run | None = None,
    ) -> Value:
        """Calls a function of torch's, by `__torch_function__` where somebody defines it."""
        return function_overrides.torch_call(self, function, args, kwargs, run)

    def torch_method(self, owner: Value, name: str, args: Arguments, kwargs: Keywords) -> Value:
        """Calls a method of a tensor in the same way."""
        return function_overrides.torch_method(self, owner, name, args, kwargs)

    def torch_attribute(self, owner: Value, name: str) -> Value:
        """Reads an attribute of a tensor in the same way."""
        return function_overrides.torch_attribute(self, owner, name)

    def torch_unary(self, function: UnaryOperator, owner: Value) -> Value:
        """Carries out an operator of a tensor in the same way."""
        return function_overrides.torch_unary(self, function, owner)

    def torch_binary(
        self, function: Operator, owner: Value, other: Value, reflected: bool
    ) -> Value | None:
        """The same of a binary one."""
        return function_overrides.torch_binary(self, function, owner, other, reflected)

    def is_overridden(self, *values: Value) -> bool:
        """Whether a call of torch's with these arguments is to go through `torch_call`."""
        return function_overrides.is_overridden(self, values)

    def asks_python(self, values: Arguments) -> bool:
        """Whether it asks a `__torch_function__` of the user's."""
        return function_overrides.asks_python(self, values)

    def construct(self, cls: type, args: Arguments, kwargs: Keywords) -> Value:
        """What calling a class gives."""
        return construction.construct(self, cls, args, kwargs)

    def new(self, base: type, args: Arguments, kwargs: Keywords) -> Value:
        """What `base.__new__(cls, *args)` gives, for a class written in C."""
        return construction.new(self, base, args, kwargs)

    def iterate_by_index(self, sequence: Value) -> Value:
        """The iterator over an object that only has `__getitem__`."""
        return self.call(self.builtin(iterators.indexed), [sequence], {})

    def instance_dict_of(self, owner: ObjectValue) -> Value:
        """The `__dict__` of an object from outside."""
        source = InstanceDictSource(owner.source)  # type: ignore[arg-type]
        if source not in self._by_source:
            self._by_source[source] = InstanceDict(self, owner)
        return self._by_source[source]

    def attributes_of(self, owner: ObjectValue) -> Value:
        """The `__dict__` of an object made during capture."""
        if owner not in self._attribute_dicts:
            self._attribute_dicts[owner] = AttributesDict(owner)
        return self._attribute_dicts[owner]

    def has_attributes_dict(self, owner: Any) -> bool:
        """Whether the program has asked for the `__dict__` of an object that it made."""
        return owner in self._attribute_dicts

    def class_attribute(self, cls: type, name: str, instance: Value) -> Value:
        """An attribute that an instance finds on its class."""
        return bind_member(self, self.class_lookup(cls, name), instance, cls, name)

    def native_method(self, owner: Value, raw: Any) -> Value | None:
        """A C method of a value, where a polyfill has its meaning."""
        if not isinstance(raw, (MethodDescriptorType, WrapperDescriptorType)):
            return None
        meaning = stated(raw)
        if meaning is None or meaning.how is not How.POLYFILL:
            return None
        return BoundMethod(self.builtin(raw), owner)

    def native_slot(self, raw: Any) -> Value | None:
        """A C method of a class, where capture knows its meaning."""
        if is_known_in_c(raw):
            return self.builtin(raw)
        return None
