"""Where an error of the instruction that runs would lead, whatever its class.

It is found by walking the program's handlers ahead of time. The walk changes nothing: it moves
values about in frames of its own, reads attributes, and takes note of those that a handler sets.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import _GeneratorContextManager
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from ingot.capture.effects import is_same_constant
from ingot.capture.interpreter import InterpreterFrame
from ingot.capture.sources import AttrSource
from ingot.capture.values.base import NULL, LazyValue, Raised, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.functions import CellValue
from ingot.capture.values.module import hears_of_errors
from ingot.capture.values.objects import ObjectValue, instance_dict, is_data_descriptor
from ingot.capture.values.sequences import TupleValue
from ingot.errors import Unsupported
from ingot.torch_private import call_impl

if TYPE_CHECKING:
    from ingot.capture.session import Session

_LONGEST_WALK = 500  # instructions

_KNOWN = (bool, type(None), int, str)
"""What a branch may ask about, and what an attribute may be set to."""

_SAME = frozenset(
    """
    LOAD_FAST LOAD_CONST LOAD_VALUE LOAD_GLOBAL LOAD_DEREF STORE_FAST MAKE_CELL COPY_FREE_VARS
    POP_TOP COPY SWAP NOP PUSH_NULL PUSH_NULL_BELOW BUILD_TUPLE JUMP
    """.split()
)
"""Instructions that change nothing but their own frame: they do here what they do anywhere."""


class _Unclear(Exception):
    """A handler does more than let the error go on, or its effect is not known."""


def leaves_no_trace(session: Session) -> bool:
    """Whether an error of the instruction that runs leaves the function, and nothing changed.

    Of any class, with the attributes that handlers set as they were before the call. So it is where
    each handler is a `finally` or a context manager that puts back what the function has changed.
    """
    if not any(frame.program.handlers for frame in session.frames):
        return True
    walk = _Walk(session)
    try:
        for frame in reversed(session.frames):
            if frame.program.handlers:
                walk.leave(frame)
        return walk.puts_back()
    except (_Unclear, Raised, Unsupported):
        return False


class _Walk:
    """The way of an error through the handlers of all frames. `set` are the attributes that these
    set, by owner and name."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.set: dict[tuple[ObjectValue, str], Value] = {}
        self.error = Value()  # nothing is known of it, nor of its class and traceback
        self.left = _LONGEST_WALK

    def leave(self, frame: InterpreterFrame) -> None:
        """Goes through the handlers of a frame, innermost first, until the error has left it."""
        handler = frame.program.handler_at(frame.index - 1)
        if handler is None or self.is_call_of_module(frame):
            return
        ahead = InterpreterFrame(self.session, frame.program, frame.function, [])
        ahead.slots[:] = frame.slots
        ahead.stack[:] = frame.stack
        while handler is not None:
            del ahead.stack[handler.depth :]
            if handler.push_index:
                ahead.push(self.error)
            ahead.push(self.error)
            ahead.index = handler.target
            if self.run(ahead) is not None:
                raise _Unclear  # it returns
            handler = frame.program.handler_at(ahead.index - 1)

    def is_call_of_module(self, frame: InterpreterFrame) -> bool:
        """Whether it is torch's call of a module with hooks, none of which is called for errors."""
        if frame.function.code is not getattr(call_impl, "__code__", None):
            return False
        module = frame.slots[frame.program.names.index("self")]
        if isinstance(module, CellValue):
            module = module.content
        return not hears_of_errors(self.session, self.session.realize(module))

    def run(self, frame: InterpreterFrame) -> Value | None:
        """Walks a frame to its end: gives what it returns, or None where it raises the error on."""
        while self.left:
            self.left -= 1
            instruction = frame.program.instructions[frame.index]
            frame.index += 1
            if instruction.op in _SAME:
                handler, arg = frame.decoded[frame.index - 1]
                handler(frame, arg)
            elif instruction.op == "RETURN_VALUE":
                return frame.stack.pop()
            elif instruction.op == "RERAISE" or (
                instruction.op == "RAISE_VARARGS" and not instruction.arg
            ):
                return None
            elif instruction.op in _STEPS:
                _STEPS[instruction.op](self, frame, instruction.arg)
            else:
                raise _Unclear
        raise _Unclear

    def push_error(self, frame: InterpreterFrame, _: Any) -> None:
        frame.stack.insert(-1, self.error)

    def pop(self, frame: InterpreterFrame, _: Any) -> None:
        frame.stack.pop()

    def stay(self, frame: InterpreterFrame, _: Any) -> None:
        pass

    def unpack(self, frame: InterpreterFrame, count: int) -> None:
        values = frame.stack.pop()
        if type(values) is not TupleValue or len(values.items) != count:
            raise _Unclear
        frame.stack += reversed(values.items)

    # -- branches ----------------------------------------------------------------------------------

    def known(self, value: Value) -> Any:
        """The object of a value that a branch asks about. It is guarded, as the way without an
        error does in any case."""
        if type(getattr(value, "object", self)) not in _KNOWN:
            raise _Unclear
        value = self.session.realize(value)
        if type(value) is not ConstantValue:
            raise _Unclear
        return value.object

    def is_none(self, value: Value) -> bool:
        return value is not self.error and self.known(value) is None

    def truth(self, frame: InterpreterFrame, inverted: bool) -> None:
        frame.push(ConstantValue(bool(self.known(frame.stack.pop())) is not inverted))

    def compare(self, frame: InterpreterFrame, inverted: int) -> None:
        """`is` and `is not`, as far as one side is None."""
        right, left = frame.stack.pop(), frame.stack.pop()
        if not self.is_none(right):
            raise _Unclear
        frame.push(ConstantValue(self.is_none(left) is not bool(inverted)))

    # -- attributes and calls ----------------------------------------------------------------------

    def owner(self, value: Value, name: str) -> tuple[ObjectValue, Any]:
        """An object whose attribute is read or set without any code of the program's, and what its
        class has there."""
        session, owner = self.session, self.session.realize(value)
        if type(owner) is not ObjectValue or not session.looks_up_plainly(owner.cls):
            raise _Unclear
        raw = session.class_lookup(owner.cls, name)
        if is_data_descriptor(raw) or name in ("__class__", "__dict__"):
            raise _Unclear
        return owner, raw

    def get_attribute(self, frame: InterpreterFrame, name: str) -> None:
        owner, raw = self.owner(frame.stack.pop(), name)
        value = self.set.get((owner, name))
        if value is None:
            value = owner.own_attribute(self.session, name)
        if value is None:
            if type(raw) not in (FunctionType, *_KNOWN):
                raise _Unclear
            value = owner.bind(self.session, raw, name)
        frame.push(value)

    def set_attribute(self, frame: InterpreterFrame, name: str) -> None:
        owner, _ = self.owner(frame.stack.pop(), name)
        if isinstance(self.session.class_lookup(owner.cls, "__setattr__"), FunctionType):
            raise _Unclear
        self.set[owner, name] = frame.stack.pop()

    def call(self, frame: InterpreterFrame, count: int) -> None:
        frame.push(self.result(*frame.pop_callable(frame.pop_many(count))))

    def result(self, callable_: Value, args: list[Value]) -> Value:
        """What a call of a Python function gives."""
        session = self.session
        target = session.realize(callable_).callee(session, args, {})
        if target is None or target[0].code.co_flags & 0x2A0:
            raise _Unclear  # written in C, or a generator or coroutine
        result = self.run(session.frame_of(*target))
        if result is None:
            raise _Unclear
        return result

    def leave_with(self, frame: InterpreterFrame, depth: int) -> None:
        """The `__exit__` of a context manager; none of torch's handles an error."""
        leave = frame.stack[-depth]
        if depth == 5 and frame.stack[-4] is not NULL:
            raise _Unclear
        if type(leave) is LazyValue and type(leave.object) is not MethodType:
            # of a class written in C: that it may handle errors is not worth a guard
            raise _Unclear
        leave = self.session.realize(leave)
        function = self.session.realize(getattr(leave, "function", leave))
        if _is_of_torch(function) or self.leaves_generator(leave):
            frame.push(ConstantValue(False))
        else:
            frame.push(self.result(leave, [self.error] * 3))

    def leaves_generator(self, leave: Value) -> bool:
        """Whether `__exit__` is that of a `@contextmanager`: the error goes into its generator,
        which is walked as well."""
        owner = getattr(leave, "instance", None)
        if not (isinstance(owner, ObjectValue) and owner.cls is _GeneratorContextManager):
            return False
        generator = self.session.realize(owner.get_attribute(self.session, "gen"))
        frame = getattr(generator, "frame", None)
        if not isinstance(frame, InterpreterFrame):
            return False
        self.leave(frame)
        return True

    def puts_back(self) -> bool:
        """Whether the attributes that were set are as before the call, which is guarded."""
        return all(self.is_as_before(*place, value) for place, value in self.set.items())

    def is_as_before(self, owner: ObjectValue, name: str, value: Value) -> bool:
        if owner.source is None:
            return True  # it was made in the call, and is gone with it
        source, namespace = AttrSource(owner.source, name), instance_dict(owner.object)
        if namespace is None or name not in namespace:
            return False
        if value.source is source:
            return True
        before, realize = namespace[name], self.session.realize
        if before is not getattr(value, "object", self) or type(before) not in _KNOWN:
            return False
        return is_same_constant(realize(self.session.wrap(before, source)), realize(value))


def _is_of_torch(function: Value) -> bool:
    name: str = getattr(function, "namespace", {}).get("__name__", "")
    return name.startswith("torch.")


_STEPS: dict[str, Callable[[_Walk, InterpreterFrame, Any], None]] = {
    "PUSH_EXC_INFO": _Walk.push_error,
    "POP_EXCEPT": _Walk.pop,
    "STOPITERATION_ERROR": _Walk.stay,
    "UNPACK_SEQUENCE": _Walk.unpack,
    "TO_BOOL": lambda walk, frame, _: walk.truth(frame, False),
    "UNARY_NOT": lambda walk, frame, _: walk.truth(frame, True),
    "IS_OP": _Walk.compare,
    "LOAD_ATTR": _Walk.get_attribute,
    "STORE_ATTR": _Walk.set_attribute,
    "CALL": _Walk.call,
    "WITH_EXCEPT_START": _Walk.leave_with,
}


def _jump(holds: Callable[[_Walk, Value], bool]) -> Callable[[_Walk, InterpreterFrame, Any], None]:
    def step(walk: _Walk, frame: InterpreterFrame, target: int) -> None:
        if holds(walk, frame.stack.pop()):
            frame.index = target

    return step


_STEPS |= {
    "POP_JUMP_IF_TRUE": _jump(lambda walk, value: bool(walk.known(value))),
    "POP_JUMP_IF_FALSE": _jump(lambda walk, value: not walk.known(value)),
    "POP_JUMP_IF_NONE": _jump(lambda walk, value: walk.is_none(value)),
    "POP_JUMP_IF_NOT_NONE": _jump(lambda walk, value: not walk.is_none(value)),
}
