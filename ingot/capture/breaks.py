"""Graph breaks: where a captured region ends before its function does, and what happens then.

In: the frames of a capture that was told to end. Out: the recipe of the region's result.

The state at a break is the chain of frames that run, outermost first. For each of them its
function, its live variables and its operands become one flat tuple; a `Chain` says what is what.
The region's residual rebuilds that tuple, an `Ending` carries out the broken instruction for real,
and the continuation of the chain behind it, a compiled callable of its own, takes the tuple and
goes on in all of its frames at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import BuiltinFunctionType, CellType
from typing import TYPE_CHECKING, Any, NamedTuple

from ingot.capture import residual
from ingot.capture.bytecode import Instruction, program_of
from ingot.capture.chain import Chain, Continuations, Point
from ingot.capture.inner_calls import InnerCalls
from ingot.capture.interpreter import InterpreterFrame
from ingot.capture.liveness import live_variables, may_watch
from ingot.capture.residual import Recipe
from ingot.capture.sources import ArgSource, AttrSource
from ingot.capture.steps import (
    END,
    STEPS,
    Step,
    behind_steps,
    bound_exit_step,
    call_step,
    caller_function,
    spread_call_step,
    step_function,
)
from ingot.capture.values.base import NULL, Value
from ingot.capture.values.functions import CellValue, FunctionValue
from ingot.native import Continue
from ingot.reasons import SKIP

if TYPE_CHECKING:
    from ingot.capture.results import Results
    from ingot.capture.session import Session


class Ending:
    """What follows the graph of a region that was broken.

    `ending(operands, state)` carries out the instruction and says how to go on: by one of the
    `outcomes`, under the id of the step's result or under `_ANY`, or, where the step raised, by the
    continuation `raised`. `handles`: the state begins with an exception that is being handled.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        handles: bool,
        raised: Any,
        outcomes: dict[Any, Outcome],
        continuations: Continuations,
    ) -> None:
        self.step, self.handles, self.raised, self.outcomes = step, handles, raised, outcomes
        self.calls = InnerCalls(continuations)

    def __call__(self, operands: tuple[Any, ...], state: tuple[Any, ...]) -> Any:
        try:
            if self.handles:
                result = self._handling(operands, state[0])
            else:
                result = self.calls.run(self.step, operands)
        except BaseException as error:
            if self.raised is None:
                raise
            # the frames that go on add themselves
            error.__traceback__ = behind_steps(error.__traceback__)
            return Continue(self.raised, (*state, error))
        outcome = self.outcomes.get(id(result)) or self.outcomes[_ANY]
        kept = state[: len(state) - outcome.drops]
        return Continue(outcome.continuation, (*kept, *outcome.pushed(result, operands)))

    def _handling(self, operands: tuple[Any, ...], handled: BaseException) -> Any:
        """The step, inside the except block of an exception."""
        traceback = handled.__traceback__
        try:
            raise handled
        except BaseException:
            handled.__traceback__ = traceback
            return self.calls.run(self.step, operands)


class Outcome(NamedTuple):
    """How to go on: the state loses its last `drops` places and gains what the step pushed."""

    continuation: Any
    drops: int
    pushed: Callable[[Any, tuple[Any, ...]], Sequence[Any]]


_ANY = 0  # no object has this id


def _nothing(result: Any, operands: tuple[Any, ...]) -> Sequence[Any]:
    return ()


def _one(result: Any, operands: tuple[Any, ...]) -> Sequence[Any]:
    return (result,)


def _several(result: Any, operands: tuple[Any, ...]) -> Sequence[Any]:
    return result


def _operands(result: Any, operands: tuple[Any, ...]) -> Sequence[Any]:
    return operands


_READS_FRAME: dict[Any, int] = dict.fromkeys((locals, vars, dir, super, breakpoint), 1)
_READS_FRAME |= {eval: 2, exec: 2}
"""Built-ins that look at the frame they are called from, where they are given no more than so many
operands."""


# -- leaving a region ------------------------------------------------------------------------------


class _Watch:
    """Whether a region begins with variables that weak references may have been made to."""

    began = False


class _Broken(NamedTuple):
    """The instruction that a region ends before: its step, the values it is given, and how many
    operands it takes from the stack."""

    instruction: Instruction
    step: Step
    operands: list[Value]
    popped: int


def leave(session: Session, results: Results, continuations: Continuations) -> Recipe:
    """The recipe of what a region gives that ends before the next instruction of its innermost
    frame.

    Raises Unsupported where that instruction or the state cannot be carried over.
    """
    frames = session.frames
    broken = _broken(session, frames[-1])
    handles = not session.handled.is_constant()
    watched = session.state(_Watch).began or any(may_watch(frame.program) for frame in frames)
    points = []
    values: list[Value] = []
    if handles:
        values.append(session.handled)
    for frame in frames:
        index, stack = frame.index, frame.stack
        if frame is frames[-1]:
            stack = stack[: len(stack) - broken.popped]
        else:
            index -= 1  # of the call that waits
        point = _point(frame, index, stack, watched)
        points.append(point._replace(position=index + 1))
        values.append(frame.function)
        values += map(frame.slots.__getitem__, point.variables)
        values += _without_markers(stack)
    chain = Chain(tuple(points), handles, False, watched)
    raised = None
    if any(map(_has_handler, frames)):
        raised = continuations(chain._replace(raises=True))
    outcomes = _outcomes(chain, broken, continuations)
    ending = Ending(_step_of_chain(frames, broken), handles, raised, outcomes, continuations)
    return residual.Ending(
        ending, (_tuple_of(results, broken.operands), _tuple_of(results, values))
    )


def _tuple_of(results: Results, values: Sequence[Value]) -> Recipe:
    return residual.Collection(tuple, tuple(map(results.recipe, values)))


def _without_markers(stack: Sequence[Value]) -> list[Value]:
    return [value for value in stack if value is not NULL]


def _has_handler(frame: InterpreterFrame) -> bool:
    """Whether a frame handles an exception where it stands."""
    waiting = frame is not frame.session.frames[-1]
    return frame.program.written_handler_at(frame.index - waiting) is not None


def handled_here(session: Session) -> bool:
    """Whether some frame has a handler for an exception that the next instruction raises."""
    return any(map(_has_handler, session.frames))


def _point(frame: InterpreterFrame, index: int, stack: list[Value], watched: bool) -> Point:
    """Where a frame stands, and which of its variables and operands go on."""
    code = frame.program.code
    live: Collection[int] = range(len(frame.slots))
    if not watched:
        live = live_variables(frame.program, index)
    variables = []
    for slot, value in enumerate(frame.slots[: len(frame.slots) - len(code.co_freevars)]):
        if value is not NULL and (slot in live or isinstance(value, CellValue)):
            variables.append(slot)
    operands = tuple([value is not NULL for value in stack])
    return Point(code, index, tuple(variables), operands)


def _broken(session: Session, frame: InterpreterFrame) -> _Broken:
    instruction, stack = frame.program.instructions[frame.index], frame.stack
    if instruction.op in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
        return _broken_call(session, instruction, stack)
    if instruction.op not in STEPS:
        sentence = "a graph cannot be broken in the middle of this"
        if instruction.op == "RETURN_GENERATOR":
            sentence = "a graph cannot be broken where a generator or coroutine begins"
        raise session.unsupported("instruction", sentence, action=SKIP)
    step = STEPS[instruction.op](instruction)
    if step.peeks == (1, 5) and stack[-4] is not NULL:
        step = bound_exit_step(step)
    below = len(stack) - step.pops
    peeked = []
    for depth in step.peeks:
        peeked.append(stack[below - depth])
    return _Broken(instruction, step, [*stack[below:], *peeked], step.pops)


def _broken_call(session: Session, instruction: Instruction, stack: list[Value]) -> _Broken:
    """A call: (NULL, callable), (callable, NULL) or (callable, self), and the arguments."""
    spread, with_names = instruction.op == "CALL_FUNCTION_EX", instruction.op == "CALL_KW"
    popped = 2 + instruction.arg + (spread or with_names)
    above = stack[len(stack) - popped :]
    callee, args = _without_markers(above[:2]), above[2:]
    if spread:
        args = _without_markers(args)  # in place of keywords
        step = spread_call_step(len(callee) - 1, len(args) == 2)
    else:
        names: tuple[str, ...] = ()
        if with_names:
            names = session.realize(args.pop()).constant()
        step = call_step(len(callee) - 1 + len(args) - len(names), names)
    operands = [*callee, *args]
    function = getattr(callee[0], "object", None)
    if isinstance(function, BuiltinFunctionType | type):
        if len(operands) <= _READS_FRAME.get(function, 0):
            raise session.unsupported(
                "caller-variables", f"{function.__name__}() reads the variables of its caller"
            )
    return _Broken(instruction, step, operands, popped)


def _step_of_chain(frames: Sequence[InterpreterFrame], broken: _Broken) -> Callable[..., Any]:
    """The step as a function that is called by its callers' likes, for tracebacks and whatever
    looks at the stack."""
    innermost = frames[-1]
    step: Callable[..., Any] = step_function(
        broken.step, broken.instruction, innermost.program.code, innermost.function.namespace
    )
    for frame in reversed(frames[:-1]):
        if not frame.function.namespace.get("__name__", "").startswith("ingot.capture."):
            step = caller_function(step, frame.program.code, frame.line, frame.function.namespace)
    return step


def _outcomes(chain: Chain, broken: _Broken, continuations: Continuations) -> dict[Any, Outcome]:
    """The ways to go on, by the identity of what the step gives."""
    instruction, step = broken.instruction, broken.step

    def at(index: int, drops: int, pushes: int) -> Any:
        innermost = chain.points[-1]
        operands = innermost.operands[: len(innermost.operands) - drops] + (True,) * pushes
        point = innermost._replace(position=index, operands=operands)
        return continuations(chain._replace(points=(*chain.points[:-1], point)))

    behind = chain.points[-1].position
    if instruction.op == "RAISE_VARARGS":
        return {}
    if instruction.op == "FOR_ITER":
        return {
            id(END): Outcome(at(instruction.arg, 1, 0), 1, _nothing),
            _ANY: Outcome(at(behind, 0, 1), 0, _one),
        }
    if step.branch:
        pushed = _nothing
        if step.keeps:
            pushed = _operands
        jump = Outcome(at(instruction.arg, 0, step.keeps), 0, pushed)
        fall_through = Outcome(at(behind, 0, 0), 0, _nothing)
        return {id(step.jumps_if): jump, id(not step.jumps_if): fall_through}
    pushed = {0: _nothing, 1: _one}.get(step.results, _several)
    return {_ANY: Outcome(at(behind, 0, step.results), 0, pushed)}


# -- going on --------------------------------------------------------------------------------------


def enter_chain(
    session: Session, chain: Chain, state: Sequence[Any]
) -> tuple[list[InterpreterFrame], Value | None]:
    """The frames of a chain, their variables and operands taken from the state, and the exception
    that was raised."""
    place = 0
    session.state(_Watch).began = chain.watched

    def take(name: str) -> Value:
        nonlocal place
        value = session.wrap(state[place], ArgSource(place, name))
        place += 1
        return value

    if chain.handles:
        session.handled = session.realize(take("the handled exception"))
    frames = []
    for point in chain.points:
        program = program_of(point.code)
        function = FunctionValue.outside(
            session, state[place], ArgSource(place, point.code.co_qualname)
        )
        place += 1
        frame = InterpreterFrame(session, program, function, [])
        for slot in point.variables:
            cell = state[place]
            if type(cell) is CellType and program.names[slot] in point.code.co_cellvars:
                source = AttrSource(ArgSource(place, program.names[slot]), "cell_contents", "slot")
                frame.slots[slot] = session.outside_cell(cell, source)
                place += 1
            else:
                frame.slots[slot] = take(program.names[slot])
        if point.code.co_freevars:
            frame.slots[len(frame.slots) - len(point.code.co_freevars) :] = function.cells
        frame.stack[:] = [take("an operand") if is_value else NULL for is_value in point.operands]
        frame.index = point.position
        frames.append(frame)
    if chain.raises:
        return frames, session.realize(take("the exception"))
    return frames, None
