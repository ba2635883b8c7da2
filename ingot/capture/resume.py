"""A continuation that is not compiled: real CPython frames that go on in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any, NamedTuple

from ingot.capture.bytecode import Program, program_of
from ingot.capture.chain import Chain, Point
from ingot.errors import CompilerBug
from ingot.native import _native


class _Frame(NamedTuple):
    """A frame as it stands: its function, variables and operands."""

    function: Any
    point: Point
    slots: list[Any]
    stack: list[Any]


def leave_alone(function: FunctionType, *parameters: Any) -> Any:
    """Says that a frame, which has only begun, is to run as it is."""
    _native.count_compilation(False)
    return _native.NULL


def resume_function(chain: Chain) -> FunctionType:
    """A function of the state of a chain that runs the rest of its frames in eager.

    It says (NULL) that a lone frame, which has only begun, is to run as it is. It has one parameter
    for each place of the state."""
    scope: dict[str, Any] = {"run": _run, "chain": chain}
    if chain.is_call:
        scope["run"] = _leave_alone
    parameters = "".join(f"s{i}, " for i in range(chain.size))
    exec(f"def continuation({parameters}): return run(chain, ({parameters}))", scope)
    resumed: FunctionType = scope["continuation"]
    return resumed


def _leave_alone(chain: Chain, state: Sequence[Any]) -> Any:
    return _native.NULL


def _run(chain: Chain, state: Sequence[Any]) -> Any:
    handled = error = None
    if chain.handles:
        handled = state[0]
    frames = _frames(chain, state[chain.handles :])
    if chain.raises:
        error = state[-1]
    result: Any = _native.NULL  # the innermost frame waits for nothing
    while frames:
        frame = frames.pop()
        try:
            result, error = _resume(frame, result, error, handled), None
        except BaseException as raised:
            error = raised
        handled = _handled_outside(frame, handled)
    if error is not None:
        raise error
    return result


def _frames(chain: Chain, state: Sequence[Any]) -> list[_Frame]:
    place, frames = 0, []
    for point in chain.points:
        function: FunctionType = state[place]
        values = iter(state[place + 1 : place + point.size])
        slots = [_native.NULL] * len(program_of(point.code).names)
        for slot in point.variables:
            slots[slot] = next(values)
        free = function.__closure__ or ()
        slots[len(slots) - len(free) :] = free
        stack = []
        for is_value in point.operands:
            stack.append(next(values) if is_value else _native.NULL)
        frames.append(_Frame(function, point, slots, stack))
        place += point.size
    return frames


def _resume(
    frame: _Frame, result: Any, error: BaseException | None, handled: BaseException | None
) -> Any:
    program, index = program_of(frame.point.code), frame.point.position
    if error is not None:
        index -= 1
    else:
        if result is not _native.NULL:
            frame.stack.append(result)
        index = _to_boundary(program, index, frame.stack)
    offset = program.instructions[index].offset
    return _native.resume(
        frame.function, offset, tuple(frame.slots), tuple(frame.stack), error, handled
    )


def _handled_outside(frame: _Frame, handled: BaseException | None) -> BaseException | None:
    """The exception that a frame's caller handles, where the frame itself handles `handled`: the
    outermost of its except blocks keeps the caller's on the stack."""
    program = program_of(frame.point.code)
    handler = program.handler_at(frame.point.position - 1)
    while handler is not None:
        op = program.instructions[handler.target].op
        if op == "COPY":  # the end of an except block, which puts it back
            handled = frame.stack[handler.depth - 1]
        elif op == "PUSH_EXC_INFO":  # an except block that has not begun, and its end
            handler = program.handler_at(handler.target) or handler
        handler = program.handler_at(handler.target)
    return handled


def _to_boundary(program: Program, index: int, stack: list[Any]) -> int:
    """Carries out what is left of an instruction that was split into several; gives the index of
    the next whole one."""
    instructions = program.instructions
    while index > 0 and instructions[index].offset == instructions[index - 1].offset:
        op, arg = instructions[index].op, instructions[index].arg
        if op == "PUSH_NULL":
            stack.append(_native.NULL)
        elif op == "PUSH_NULL_BELOW":
            stack.insert(-1, _native.NULL)
        elif op == "SWAP":
            stack[-1], stack[-arg] = stack[-arg], stack[-1]
        elif op == "TO_BOOL":
            stack[-1] = bool(stack[-1])
        elif op == "FORMAT_SIMPLE":
            stack[-1] = format(stack[-1])
        elif op == "FORMAT_WITH_SPEC":
            spec = stack.pop()
            stack[-1] = format(stack[-1], spec)
        else:
            raise CompilerBug("resume", f"in the middle of an instruction, at {op}")
        index += 1
    return index
