"""torch.autograd.Function inside of torch.vmap.

One with a `vmap` of its own is left to that, which runs outside of the level whose batches it is
given. One for which torch makes the rule runs inside of the level, forward and backward; what has
the history are the tensors that hold the whole batches, outside of all levels. There the level is
left, and entered again behind it; in the backward it is entered as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ingot.capture.values.base import Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.sequences import SequenceValue, TupleValue
from ingot.capture.values.tensor import TensorValue
from ingot.capture.values.tensor_lists import fakes_in, tensors_in
from ingot.capture.values.transforms import LevelValue
from ingot.torch_private import (
    CVmapInterpreterPtr,
    RandomnessType,
    TransformType,
    VmapInfo,
    get_interpreter_stack,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_get_bdim,
    maybe_get_level,
    predispatch_add_batch_dim,
    vmap_decrement_nesting,
    vmap_increment_nesting,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session

_BASE: Any = torch.autograd.Function

Dims = tuple[int | None, ...]
"""Where a tensor has the batches of some levels, from the outermost to the innermost; None where it
has none."""


class Level(NamedTuple):
    """A level of vmap."""

    number: int
    size: int
    randomness: str


class Lowered(NamedTuple):
    """A tensor that holds the batches of all levels, and where; what is no tensor has none."""

    value: Value
    dims: Dims


def levels_of(session: Session, what: str) -> list[Level]:
    """The levels that are active, from the outermost to the innermost. Raises Unsupported for
    others than vmap's."""
    levels = []
    for interpreter in get_interpreter_stack() or ():
        if interpreter.key() != TransformType.Vmap:
            raise session.unsupported(
                "autograd-function",
                f"{what} inside of a transform of torch.func that differentiates",
            )
        vmap = CVmapInterpreterPtr(interpreter)
        levels.append(Level(interpreter.level(), vmap.batchSize(), _RANDOMNESS[vmap.randomness()]))
    return levels


def is_mapped() -> bool:
    """Whether a level of vmap is active."""
    stack = get_interpreter_stack() or ()
    return any(interpreter.key() == TransformType.Vmap for interpreter in stack)


def innermost_batched(args: Sequence[Value]) -> int:
    """The number of the innermost level that one of the arguments is batched at; 0 if there is
    none."""
    return max(map(maybe_get_level, filter(is_batchedtensor, fakes_in(args))), default=0)


_RANDOMNESS = {
    RandomnessType.Error: "error",
    RandomnessType.Same: "same",
    RandomnessType.Different: "different",
}


def wants_gradient(value: Value) -> bool:
    """Whether a tensor requires a gradient, inside or outside of the levels that it is batched
    at."""
    if not isinstance(value, TensorValue):
        return False
    fake = value.fake
    while not fake.requires_grad and is_functorch_wrapped_tensor(fake):
        fake = get_unwrapped(fake)
    return fake.requires_grad


def refuse_unmapped(session: Session, cls: Any, what: str) -> None:
    """Raises Unsupported for a Function that eager refuses in a transform."""
    if cls.setup_context is _BASE.setup_context:
        raise session.unsupported(
            "autograd-function", f"{what} has no setup_context, inside of a transform of torch.func"
        )
    if cls.generate_vmap_rule == (cls.vmap is not _BASE.vmap):
        raise session.unsupported("autograd-function", f"{what} has not one rule for vmap")


# -- in and out of levels --------------------------------------------------------------------------


@contextmanager
def outside(session: Session, levels: Sequence[Level]) -> Iterator[list[LevelValue]]:
    """Leaves the levels, the innermost ones that there are, and enters them again: they are in the
    list then."""
    inside: list[LevelValue] = []
    for _ in levels:
        _leave(session)
    try:
        yield inside
    finally:
        inside += list(map(partial(_enter, session), levels))


@contextmanager
def within(session: Session, levels: Sequence[Level]) -> Iterator[list[LevelValue]]:
    """Enters the levels."""
    inside = list(map(partial(_enter, session), levels))
    try:
        yield inside
    finally:
        for _ in levels:
            _leave(session)


def _enter(session: Session, level: Level) -> LevelValue:
    number = vmap_increment_nesting(level.size, level.randomness)
    node = session.graph.switch(session, vmap_increment_nesting, level.size, level.randomness)
    return LevelValue(number, node)


def _leave(session: Session) -> None:
    vmap_decrement_nesting()
    session.graph.switch(session, vmap_decrement_nesting)


def lowered(session: Session, value: Value, levels: Sequence[Level]) -> Lowered:
    """What is batched at some levels as a tensor outside of them."""
    dims: list[int | None] = []
    for level in reversed(levels):
        dim = None
        if isinstance(value, TensorValue) and maybe_get_level(value.fake) == level.number:
            dim = maybe_get_bdim(value.fake)
            value = session.call_function(get_unwrapped, value)
        elif isinstance(value, SequenceValue) and tensors_in(value.items):
            raise session.unsupported(
                "argument-kind",
                "tensors in a container that an autograd.Function is given inside of vmap",
            )
        dims.append(dim)
    return Lowered(value, tuple(reversed(dims)))


def values_of(all_lowered: Iterable[Lowered]) -> list[Value]:
    return [value for value, _ in all_lowered]


def all_lowered(
    session: Session, values: Iterable[Value], levels: Sequence[Level]
) -> list[Lowered]:
    return list(map(partial(lowered, session, levels=levels), values))


def all_raised(
    session: Session, values: Iterable[tuple[Value, Dims]], inside: Sequence[LevelValue]
) -> list[Value]:
    results = []
    for value, dims in values:
        results.append(raised(session, value, dims, inside))
    return results


def raised(session: Session, value: Value, dims: Dims, inside: Sequence[LevelValue]) -> Value:
    """The reverse."""
    if isinstance(value, TensorValue):
        for dim, level in zip(dims, inside):
            if dim is not None:
                value = session.call_builtin(
                    predispatch_add_batch_dim, value, ConstantValue(dim), level
                )
    return session.realize(value)


# -- a rule of its own -----------------------------------------------------------------------------


def run_vmap(cls: Any, size: Any, randomness: Any, dims: Any, *args: Any) -> Any:
    """Inlined."""
    return cls.vmap(VmapInfo(batch_size=size, randomness=randomness), dims, *args)


def with_own_rule(session: Session, function: Value, args: Sequence[Value], number: int) -> Value:
    """The call of a Function that has a `vmap`; the level with this number is the innermost that
    arguments are batched at."""
    levels = [level for level in levels_of(session, function.describe()) if level.number >= number]
    level = levels[0]
    values, dims = list[Value](), list[Value]()
    for value, (dim,) in all_lowered(session, args, [level]):
        values.append(value)
        dims.append(ConstantValue(dim))
    with outside(session, levels) as inside:
        facts = [ConstantValue(level.size), ConstantValue(level.randomness)]
        operands = [function, *facts, TupleValue(dims, tuple), *values]
        pair = session.call_builtin(run_vmap, *operands)
        result, of_result = _two(session, function, session.realize(pair))
    if not isinstance(result, TupleValue):
        return raised(session, result, (_dim(session, of_result),), inside)
    results = list(map(session.realize, result.items))
    places = [of_result] * len(results)
    if isinstance(of_result, SequenceValue):
        places = list(map(session.realize, of_result.items))
    if len(places) != len(results):
        raise session.unsupported(
            "autograd-function",
            f"the vmap of {function.describe()} gives no dimension for each result",
        )
    for k, place in enumerate(places):
        results[k] = raised(session, results[k], (_dim(session, place),), inside)
    return TupleValue(results, tuple)


def _two(session: Session, function: Value, result: Value) -> list[Value]:
    if not isinstance(result, SequenceValue) or len(result.items) != 2:
        raise session.unsupported(
            "autograd-function", f"the vmap of {function.describe()} gives no two results"
        )
    return list(map(session.realize, result.items))


def _dim(session: Session, value: Value) -> int | None:
    dim = session.known(value)
    if dim is not None and type(dim) is not int:
        raise session.unsupported(
            "autograd-function",
            "a vmap that says where its results have their batches by no integer",
        )
    return dim


# -- the gradients of a rule that torch makes ------------------------------------------------------


def reduced(gradient: Any, dim: Any, of_argument: Any, size: Any) -> Any:
    """Inlined: the gradient of an argument by that of all examples.

    `dim` and `of_argument` are where the gradient and the argument have the examples, if at
    all."""
    if gradient is None or dim == of_argument:
        return gradient
    if of_argument is None:
        return gradient.sum(dim)
    if dim is None:
        sizes = list(gradient.shape)
        sizes.insert(of_argument, size)
        return gradient.unsqueeze(of_argument).expand(sizes)
    return gradient.movedim(dim, of_argument)


def lowered_gradient(
    session: Session, gradient: Value, argument: Lowered, levels: Sequence[Level]
) -> Value:
    """The gradient of an argument outside of the levels, inside of which it was computed."""
    for level, of_argument in reversed([*zip(levels, argument.dims)]):
        value, (dim,) = lowered(session, gradient, [level])
        facts = [ConstantValue(dim), ConstantValue(of_argument), ConstantValue(level.size)]
        gradient = session.realize(session.call_builtin(reduced, value, *facts))
    return gradient
