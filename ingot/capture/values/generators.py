"""Generators that outlive a capture.

An outside one is read where it is suspended, and advanced after the graph has run. One that was
begun during capture is built then."""

from __future__ import annotations

from collections.abc import Iterable
from types import CellType, GeneratorType
from typing import TYPE_CHECKING, Any

from ingot.capture.bytecode import Program, program_of
from ingot.capture.effects import Operation
from ingot.capture.guards import Kind
from ingot.capture.interpreter import InterpreterFrame
from ingot.capture.sources import AttrSource, DerivedSource, ItemSource, Source
from ingot.capture.values.base import NULL, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.functions import FunctionValue, GeneratorValue
from ingot.capture.values.sequences import TupleValue
from ingot.capture.values.wrap import wraps
from ingot.native import _native

if TYPE_CHECKING:
    from ingot.capture.session import Session

_NO_VALUE = ConstantValue(_native.NULL)


def _layout(generator: Any) -> tuple[Any, ...]:
    """Where a generator stands, and which of its variables and operands are bound.

    (offset, count of variables, whether it handles no exception, whether each is bound ...), or ()
    where it is finished or runs."""
    state = _native.generator_state(generator)
    if state is None:
        return ()
    _, offset, slots, stack, handled = state
    is_bound = []
    for value in (*slots, *stack):
        is_bound.append(value is not _native.NULL)
    return (offset, len(slots), handled is None, *is_bound)


def _contents(generator: Any) -> tuple[Any, ...]:
    """The function of a generator, its variables and its operands."""
    function, _, slots, stack, _ = _native.generator_state(generator)  # type: ignore[misc]
    return (function, *slots, *stack)


class OutsideGenerator(GeneratorValue):
    """A generator that existed before the call."""

    __slots__ = ("object",)
    is_shared = True

    def __init__(self, frame: InterpreterFrame | None, object_: Any, source: Source) -> None:
        super().__init__(frame)
        self.object, self.source = object_, source

    def identity(self) -> Any:
        return self.object

    def touch(self, session: Session) -> None:
        session.effects.change(session, self, self.object, self)

    def _run(self, session: Session, raised: Value | None) -> Value | None:
        try:
            return super()._run(session, raised)
        finally:
            # what others can see, printed while it ran, came before it stood here
            self.touch(session)

    def operations(self) -> Iterable[Operation]:
        """What puts the generator itself where this one stands."""
        if self.running:
            return
        if self.frame is None:
            yield Operation(_native.finish_generator, (self,))
        else:
            yield Operation(_native.restore_generator, (self, *standing(self.frame)[1:]))


@wraps(GeneratorType, guards=Kind.TYPE)
def wrap_generator(session: Session, object_: Any, source: Source) -> Value:
    layout = session.guard_derived(_layout, object_, source)
    if not layout:
        if object_.gi_frame is not None:
            raise session.unsupported("generator", f"the generator {source.name}, which runs")
        return OutsideGenerator(None, object_, source)
    offset, variables, unhandled, *_ = layout
    if not unhandled:
        raise session.unsupported(
            "generator", f"the generator {source.name}, which stands in an exception handler"
        )
    contents, contents_source = _contents(object_), DerivedSource(source, _contents)
    function = FunctionValue.outside(session, contents[0], ItemSource(contents_source, 0))
    program = program_of(function.code)
    frame = InterpreterFrame(session, program, function, [])
    values = []
    for i, content in enumerate(contents[1:]):
        values.append(_wrap_content(session, content, ItemSource(contents_source, 1 + i)))
    frame.slots, frame.stack[:] = values[:variables], values[variables:]
    if function.cells:
        frame.slots[len(frame.slots) - len(function.cells) :] = function.cells
    frame.index = _index_behind(program, offset)
    return OutsideGenerator(frame, object_, source)


def _wrap_content(session: Session, content: Any, source: Source) -> Value:
    if content is _native.NULL:
        return NULL
    if type(content) is CellType:
        return session.outside_cell(content, AttrSource(source, "cell_contents", "slot"))
    return session.wrap(content, source)


def _index_behind(program: Program, offset: int) -> int:
    """The index of the instruction that a suspended generator goes on with.

    It stands behind the YIELD_VALUE or RETURN_GENERATOR at `offset`."""
    index = 0
    for instruction in program.instructions:
        index += 1
        if instruction.offset == offset and instruction.op in _STANDING:
            break
    return index


_STANDING = ("YIELD_VALUE", "RETURN_GENERATOR")


def standing(frame: InterpreterFrame) -> tuple[Value, Value, Value, Value]:
    """The arguments of `suspended_generator` for the generator of a frame: function, offset,
    variables and operands."""
    slots = list(frame.slots)
    free = len(frame.program.code.co_freevars)
    if free and slots[-1] is NULL:  # it has not begun: COPY_FREE_VARS is ahead
        slots[-free:] = frame.function.cells
    offset = frame.program.instructions[frame.index - 1].offset
    return frame.function, ConstantValue(offset), _all_bound(slots), _all_bound(frame.stack)


def _all_bound(values: list[Value]) -> Value:
    return TupleValue([_NO_VALUE if value is NULL else value for value in values], tuple)
