"""For the tests of frames: the state of a function before each of its instructions, as CPython
itself has it."""

from __future__ import annotations

import copy
import copyreg
import dis
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ingot.native import _native

NULL = _native.NULL


class State(NamedTuple):
    """Where a frame stands, as `_native.resume` takes it, and what the program has logged by
    then."""

    offset: int
    slots: tuple[Any, ...]
    stack: tuple[Any, ...]
    handled: BaseException | None
    log: list[Any]


class Outcome(NamedTuple):
    """What came of a run: the value, or the exception with the lines of the function that it went
    through."""

    value: Any
    error: str
    lines: tuple[int | None, ...]
    log: list[Any]


def offset_of(fn: Callable[..., Any], opname: str, nth: int = 0) -> int:
    """The byte offset of the nth instruction whose name begins so."""
    return [i.offset for i in dis.get_instructions(fn) if i.opname.startswith(opname)][nth]


def line_at(fn: Callable[..., Any], line: int) -> int:
    """The byte offset where a line of the function begins, counted from its first."""
    line += fn.__code__.co_firstlineno
    return min(
        i.offset for i in dis.get_instructions(fn) if i.positions and i.positions.lineno == line
    )


def slots_of(fn: Callable[..., Any], **values: Any) -> tuple[Any, ...]:
    """The slots of a function: `values` by name, NULL for the others."""
    code = fn.__code__
    names = [
        *code.co_varnames,
        *(n for n in code.co_cellvars if n not in code.co_varnames),
        *code.co_freevars,
    ]
    assert values.keys() <= set(names)
    return tuple(values.get(name, NULL) for name in names)


def make_cell(*contents: Any) -> types.CellType:
    return types.CellType(*contents)


def reduce_cell(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return make_cell, (cell.cell_contents,)
    except ValueError:
        return make_cell, ()


copyreg.pickle(types.CellType, reduce_cell)


def outcome(fn: Callable[..., Any], run: Callable[[], Any], log: list[Any]) -> Outcome:
    try:
        return Outcome(run(), "", (), log)
    except Exception as error:
        lines, entry, before = [], error.__traceback__, None
        while entry is not None:
            # Early versions of 3.11 have an entry twice where a trace function raised.
            if entry.tb_frame.f_code is fn.__code__ and (entry.tb_frame, entry.tb_lineno) != before:
                lines.append(entry.tb_lineno and entry.tb_lineno - fn.__code__.co_firstlineno)
            before = entry.tb_frame, entry.tb_lineno
            entry = entry.tb_next
        return Outcome(None, repr(error), tuple(lines), log)


def watch(fn: Callable[..., Any], log: list[Any], step: Callable[[types.FrameType], None]) -> Any:
    """fn(log), with `step(frame)` called before each instruction."""

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is not fn.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            step(frame)
        return trace

    before = sys.gettrace()
    # some versions look when tracing begins whether anyone wants it
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        return fn(log)
    finally:
        sys.settrace(before)


def depths(fn: Callable[..., Any]) -> dict[int, int]:
    """How much is on the operand stack before the instruction at each offset."""
    instructions = list(dis.get_instructions(fn))
    following = {one.offset: other.offset for one, other in zip(instructions, instructions[1:])}
    by_offset = {one.offset: one for one in instructions}
    table = dis._parse_exception_table(fn.__code__)  # type: ignore[attr-defined]
    work = [(0, 0), *((entry.target, entry.depth + entry.lasti + 1) for entry in table)]
    found: dict[int, int] = {}
    while work:
        offset, depth = work.pop()
        if offset in found:
            continue
        one = by_offset[offset]
        found[offset] = depth
        if one.opname == "CALL" and "PRECALL" in dis.opmap:
            found[offset] += one.arg  # PRECALL counts for both
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            work.append((one.argval, depth + dis.stack_effect(one.opcode, one.arg, jump=True)))
        if not one.opname.startswith(
            ("RETURN_VALUE", "RETURN_CONST", "RAISE", "RERAISE", "JUMP_FORWARD", "JUMP_BACK")
        ):
            work.append(
                (following[offset], depth + dis.stack_effect(one.opcode, one.arg, jump=False))
            )
    return found


def copied(values: tuple[Any, ...], held: list[Any]) -> Any:
    """A deep copy. Of what is held, by itself or in a cell, exceptions keep their traceback, cause
    and context, and functions get cells of their own."""
    with _functions_are_copied():
        return _copied(values, held)


@contextmanager
def _functions_are_copied() -> Iterator[None]:
    """From 3.14 on deepcopy does not look for functions in its memo."""
    kept: set[type] = getattr(copy, "_atomic_types", set())
    dispatch: dict[type, Any] = copy._deepcopy_dispatch  # type: ignore[attr-defined]
    if types.FunctionType not in kept:
        yield
        return
    kept.discard(types.FunctionType)
    dispatch[types.FunctionType] = lambda function, memo: function
    try:
        yield
    finally:
        del dispatch[types.FunctionType]
        kept.add(types.FunctionType)


def _copied(values: tuple[Any, ...], held: list[Any]) -> Any:
    memo: dict[int, Any] = {}
    in_cells = [
        cell.cell_contents
        for cell in held
        if isinstance(cell, types.CellType) and reduce_cell(cell)[1]
    ]
    for one in [*in_cells, *held]:
        if isinstance(one, BaseException) and id(one) not in memo:
            same = memo[id(one)] = copy.copy(one).with_traceback(one.__traceback__)
            same.__cause__, same.__context__ = one.__cause__, one.__context__
        elif isinstance(one, types.FunctionType) and one.__closure__:
            cells = copy.deepcopy(one.__closure__, memo)
            memo[id(one)] = types.FunctionType(
                one.__code__, one.__globals__, one.__name__, one.__defaults__, cells
            )
    return copy.deepcopy(values, memo)


def states(fn: Callable[..., Any]) -> list[State]:
    """Copies of the state before each instruction that fn([]) runs."""
    found: list[State] = []
    log: list[Any] = []

    depth = depths(fn)

    def step(frame: types.FrameType) -> None:
        slots, stack = _native._frame_values(frame, depth[frame.f_lasti])
        handled = sys.exception()
        found.append(
            State(frame.f_lasti, *copied((slots, stack, handled, log), [*slots, *stack, handled]))
        )

    outcome(fn, lambda: watch(fn, log, step), log)
    return found


def raised_at(fn: Callable[..., Any], number: int, error: Exception) -> Outcome:
    """fn([]) where the instruction of that number, counted as they are run, raises."""
    count = 0
    log: list[Any] = []

    def step(frame: types.FrameType) -> None:
        nonlocal count
        count += 1
        if count == number + 1:
            raise error

    # In a generator, as some instructions that never raise would leave their frame's exception as
    # the one handled.
    return outcome(fn, lambda: next(watch(fn, log, step) for _ in (0,)), log)


def resume(fn: Callable[..., Any], state: State, error: Exception | None = None) -> Outcome:
    offset, slots, stack, handled, log = state
    return outcome(
        fn, lambda: _native.resume(fn, offset, slots, stack, error, handled=handled), log
    )
