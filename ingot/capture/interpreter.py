"""Frames of captured code and their step loop.

A frame keeps its instruction index, its variables and its operand stack explicit, laid out as CPython's own, so that
a frame can stand
still (a generator between two elements) and later be left in the middle (a graph break) with its state restored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ingot.capture.bytecode import Handler, Program
from ingot.capture.values.base import NULL, LazyValue, Raised, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.functions import FunctionValue

if TYPE_CHECKING:
    from ingot.capture.session import Session

OpcodeHandler = Callable[["InterpreterFrame", Any], "Value | None"]
HANDLERS: dict[str, OpcodeHandler] = {}


def handles(*names: str) -> Callable[[OpcodeHandler], OpcodeHandler]:
    """Registers the handler of normalized instructions. A handler that returns a value ends the run of its frame
    (return, yield)."""

    def register(handler: OpcodeHandler) -> OpcodeHandler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


class InterpreterFrame:
    """One activation of a Python function."""

    __slots__ = ("finished", "function", "index", "program", "session", "slots", "stack")

    def __init__(self, session: Session, program: Program, function: FunctionValue, arguments: list[Value]) -> None:
        self.session, self.program, self.function = session, program, function
        self.slots: list[Value] = arguments + [NULL] * (len(program.names) - len(arguments))
        self.stack: list[Value] = []
        self.index = 0
        self.finished = False

    @property
    def line(self) -> int:
        """The user's line of the instruction that runs."""
        return self.program.instructions[max(self.index - 1, 0)].line

    @property
    def where(self) -> str:
        """The user's "file:line"."""
        return f"{self.program.code.co_filename}:{self.line}"

    def pop(self) -> Value:
        """The top of the stack, to be used: its nature is guarded."""
        value = self.stack.pop()
        return self.session.realize(value) if type(value) is LazyValue else value

    def pop_many(self, count: int) -> list[Value]:
        """The `count` topmost values, in order, to be passed along."""
        if not count:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def push(self, value: Value) -> None:
        self.stack.append(value)

    def run(self) -> Value:
        """Runs to the next yield or to the end, and gives the value yielded or returned."""
        session, instructions = self.session, self.program.instructions
        session.enter(self)
        try:
            while True:
                instruction = instructions[self.index]
                self.index += 1
                session.count_step()
                try:
                    value = HANDLERS[instruction.op](self, instruction.arg)
                except Raised as raised:
                    self.unwind(raised)
                    continue
                if value is not None:
                    return value
        except RecursionError:
            raise session.unsupported("the calls are nested too deeply") from None
        finally:
            session.leave()

    def unwind(self, raised: Raised) -> None:
        """Goes to the handler of an exception, or raises it on to the caller."""
        raised.where = raised.where or self.session.where
        handler: Handler | None = self.program.handler_at(self.index - 1)
        if handler is None:
            raise raised
        del self.stack[handler.depth :]
        if handler.push_index:
            self.push(ConstantValue(self.index - 1))
        self.push(raised.value)
        self.index = handler.target
