"""Moving values on the operand stack."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import NULL


@handles("POP_TOP")
def pop_top(frame: InterpreterFrame, _: Any) -> None:
    frame.stack.pop()


@handles("COPY")
def copy(frame: InterpreterFrame, depth: int) -> None:
    frame.push(frame.stack[-depth])


@handles("SWAP")
def swap(frame: InterpreterFrame, depth: int) -> None:
    stack = frame.stack
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


@handles("PUSH_NULL")
def push_null(frame: InterpreterFrame, _: Any) -> None:
    frame.push(NULL)


@handles("PUSH_NULL_BELOW")
def push_null_below(frame: InterpreterFrame, _: Any) -> None:
    frame.stack.insert(-1, NULL)


@handles("NOP")
def nop(frame: InterpreterFrame, _: Any) -> None:
    pass


@handles("UNSUPPORTED")
def unsupported(frame: InterpreterFrame, name: str) -> None:
    raise frame.session.unsupported("instruction", "Ingot does not know this form of statement")
