"""Frames of captured code and their step loop.

A frame keeps its instruction index, its variables and its operand stack explicit, laid out as
CPython's own, so that a frame can stand still (a generator between two elements) and be left in the
middle (a graph break) with its state restored. A call of a Python function does not recurse: its
frame lies on the session's stack of frames, above its caller's, and what it returns is pushed on
the caller's operands. Handlers that run Python code in the middle of an instruction (an operator's
method, a generator's step) start a loop of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ingot.capture.bytecode import Handler, Program
from ingot.capture.values.base import NULL, LazyValue, NotConstant, Raised, Value
from ingot.capture.values.constant import LITERALS, ConstantValue
from ingot.capture.values.exceptions import ExceptionValue
from ingot.capture.values.functions import FunctionValue
from ingot.errors import Unsupported
from ingot.native import _native
from ingot.serial import safe_point
from ingot.spots import Spot, spot_at

if TYPE_CHECKING:
    from ingot.capture.learnt_calls import Call
    from ingot.capture.session import Session

OpcodeHandler = Callable[["InterpreterFrame", Any], "Value | InterpreterFrame | None"]
HANDLERS: dict[str, OpcodeHandler] = {}


def handles(*names: str) -> Callable[[OpcodeHandler], OpcodeHandler]:
    """Registers the handler of normalized instructions. A handler that returns a value ends the run
    of its frame (return, yield); one that returns a frame calls it."""

    def register(handler: OpcodeHandler) -> OpcodeHandler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


_LOADS = frozenset({"LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_SUPER_ATTR"})
"""What may load something that is called then."""


@functools.cache
def _place(file: str, line: int) -> str:
    return f"{file}:{line}"


@functools.cache
def decoded(program: Program) -> tuple[tuple[OpcodeHandler, Any], ...]:
    """The handler and the argument of each instruction. A literal is one value wherever it is
    loaded."""
    handlers: list[tuple[OpcodeHandler, Any]] = []
    for instruction in program.instructions:
        op, arg = instruction.op, instruction.arg
        if op == "LOAD_CONST" and type(arg) in LITERALS:
            op, arg = "LOAD_VALUE", ConstantValue(arg)
        handlers.append((HANDLERS[op], arg))
    return tuple(handlers)


def spots(standing: Iterable[tuple[Program, int]]) -> list[Spot]:
    """The part of the user's line that each frame's instruction is of."""
    found = []
    for program, index in standing:
        instruction = program.instructions[max(index - 1, 0)]
        is_load = instruction.op in _LOADS
        found.append(spot_at(program.code, instruction.offset, instruction.line, is_load))
    return found


class InterpreterFrame:
    """One activation of a Python function."""

    __slots__ = (
        "called_at", "decoded", "finished", "function", "index", "layer", "module_path", "names",
        "program", "push", "session", "slots", "stack"
    )  # fmt: skip

    def __init__(
        self, session: Session, program: Program, function: FunctionValue, arguments: list[Value]
    ) -> None:
        self.session, self.program, self.function = session, program, function
        session.handles |= bool(program.handlers)
        self.slots: list[Value] = arguments + [NULL] * (len(program.names) - len(arguments))
        self.stack: list[Value] = []
        self.push: Callable[[Value], None] = self.stack.append
        self.names: dict[str, Value] | None = None  # the namespace of a class that it makes
        self.decoded = decoded(program)
        self.index = 0
        # the number of the outermost loop's instruction that called it
        self.called_at: int | None = None
        self.finished = False
        self.layer: Call | None = None  # of a module, which may be learnt
        self.module_path: str | None = None  # of the module whose forward it runs, once asked for

    @property
    def line(self) -> int:
        """The user's line of the instruction that runs."""
        return self.program.instructions[max(self.index - 1, 0)].line

    @property
    def where(self) -> str:
        """The user's "file:line"."""
        program = self.program
        return _place(program.code.co_filename, program.instructions[max(self.index - 1, 0)].line)

    def pop(self) -> Value:
        """The top of the stack, to be used: its nature is guarded."""
        value = self.stack.pop()
        if type(value) is LazyValue:
            return self.session.realize(value)
        return value

    def peek(self, depth: int = 1) -> Value:
        """An operand that stays where it is, to be used."""
        value = self.stack[-depth]
        if type(value) is LazyValue:
            value = self.stack[-depth] = self.session.realize(value)
        return value

    def pop_many(self, count: int) -> list[Value]:
        """The `count` topmost values, in order, to be passed along."""
        if not count:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def pop_callable(self, args: list[Value]) -> tuple[Value, list[Value]]:
        """What lies below the arguments of a call, and these with the `self` that it may have.

        It is (NULL, callable), (callable, NULL) or (callable, self)."""
        above, below = self.stack.pop(), self.stack.pop()
        if below is NULL:
            return above, args
        if above is NULL:
            return below, args
        return below, [above, *args]

    def run(self, raised: Value | None = None) -> Value:
        """Runs to the next yield or to the end, with all that it calls, and gives the value yielded
        or returned. It may begin with an exception, at the instruction that it stands behind."""
        session = self.session
        bottom = len(session.frames) + 1
        try:
            session.enter(self)
            if raised is not None:
                _throw(session, raised, bottom)
            return _run(session, bottom)
        finally:
            session.leave(bottom - 1)

    def unwind(self, raised: Raised) -> bool:
        """Goes to this frame's handler of an exception; False if it has none for this place."""
        handler: Handler | None = self.program.handler_at(self.index - 1)
        if handler is None:
            return False
        del self.stack[handler.depth :]
        if handler.push_index:
            unit = self.program.instructions[self.index - 1].offset // 2
            self.push(ConstantValue(_native.LastInstruction(unit)))
        self.push(raised.value)
        self.index = handler.target
        return True


def run_chain(session: Session, frames: list[InterpreterFrame], raised: Value | None) -> Value:
    """Runs a stack of frames, each of which waits for the next one, until the outermost ends.

    The innermost one begins with the exception that is `raised`, if there is one."""
    for frame in frames:
        session.enter(frame)
    if raised is not None:
        _throw(session, raised, 1)
    return _run(session, 1)


def _run(session: Session, bottom: int) -> Value:
    """Runs the frames from number `bottom` on until that one yields or ends. The outermost loop
    notes the instruction that cannot be captured, where the graph can be broken."""
    try:
        return _loop(session, bottom)
    except Unsupported as error:
        error.why = error.why.led_by(spots(session.standing()))
        if bottom == 1:
            session.broken_at = session.step_of_outermost
        raise


def _loop(session: Session, bottom: int) -> Value:
    frames = session.frames
    frame = frames[-1]
    outermost = bottom == 1
    while True:
        if outermost:
            session.step_of_outermost = session.steps
        if session.steps >= session.stop_at:
            session.stop()
        safe_point()
        session.steps += 1
        handler, arg = frame.decoded[frame.index]
        frame.index += 1
        try:
            outcome = handler(frame, arg)
        except Raised as raised:
            if not _is_handled(session, raised, bottom):
                raise
            frame = frames[-1]
            continue
        except NotConstant as unknown:
            what = unknown.args[0].describe()
            raise session.unsupported(
                "unknown-value", f"the value of {what} is needed, which only a call knows"
            ) from None
        if outcome is None:
            continue
        if isinstance(outcome, InterpreterFrame):
            outcome.called_at = session.step_of_outermost
            session.enter(outcome)
            frame = outcome
            continue
        if len(frames) == bottom:
            return outcome
        if frame.layer is not None:
            session.layers.end(frame.layer, outcome)
        session.leave(len(frames) - 1)
        frame = frames[-1]
        frame.push(outcome)


def _throw(session: Session, error: Value, bottom: int) -> None:
    """Raises an exception where the innermost frame stands."""
    try:
        raise Raised(error)
    except Raised as raised:
        if not _is_handled(session, raised, bottom):
            raise


def _is_handled(session: Session, raised: Raised, bottom: int) -> bool:
    """Whether a frame from number `bottom` on handles an exception: it is the innermost one then,
    at its handler."""
    if not raised.where:
        raised.where, raised.stack = session.where, session.standing()
    if raised.is_from_inside:
        _come_through(session, raised)
    while not session.frames[-1].unwind(raised):
        if len(session.frames) == bottom:
            # raised on by whoever caught it: a frame that has it in a variable would hold it, and
            # it that
            raised.is_from_inside = True
            return False
        session.leave(len(session.frames) - 1)
        _come_through(session, raised)
    return True


def _come_through(session: Session, raised: Raised) -> None:
    """Adds the innermost frame to the traceback of an exception that one it called has raised."""
    raised.is_from_inside = False
    if isinstance(raised.value, ExceptionValue):
        raised.value.come_through(session.frames[-1])
