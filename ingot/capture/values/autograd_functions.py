"""torch.autograd.Function: where no gradients are wanted, calling one comes to its forward. Where
they are, its backward is captured as well, as a graph of its own (`ingot.graph.custom`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch.autograd.function import FunctionCtx, once_differentiable

from ingot.capture.meanings import How, means, stated
from ingot.capture.values.base import (
    Arguments,
    Keywords,
    NotConstant,
    Raised,
    Value,
    constants,
    positions,
)
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.exceptions import ExceptionValue
from ingot.capture.values.mapped_functions import (
    Level,
    Lowered,
    all_lowered,
    all_raised,
    innermost_batched,
    is_mapped,
    levels_of,
    lowered_gradient,
    outside,
    raised,
    refuse_unmapped,
    values_of,
    wants_gradient,
    with_own_rule,
    within,
)
from ingot.capture.values.sequences import SequenceValue, TupleValue
from ingot.capture.values.tensor import TensorValue, is_none
from ingot.capture.values.tensor_lists import refuse_objects, tensors_in
from ingot.errors import EagerRaises
from ingot.graph.ambient import Modes
from ingot.graph.custom import Backward, CustomGradient
from ingot.graph.differentiation import without_autocast
from ingot.reasons import PROGRAM_RAISES

if TYPE_CHECKING:
    from ingot.capture.session import Session

_ONCE = once_differentiable(len).__code__
_BASE = torch.autograd.Function
_LISTS_TANGENTS = hasattr(_BASE, "boxed_grads_call")
"""Whether torch gives the backward a list of the tangents where a class asks for it: since 2.14."""

# -- inlined ---------------------------------------------------------------------------------------


def run_forward(cls: Any, needed: Any, *args: Any) -> Any:
    """What `Function.apply` does: gives the context, the result, and what the forward has set.

    That is: whether arguments were written, which of the result's tensors have no gradient,
    whether missing gradients are zeros, and what is saved."""
    context: Any = FunctionCtx()
    context.needs_input_grad = needed
    with torch.no_grad():
        if cls.setup_context is _BASE.setup_context:
            result = cls.forward(context, *args)
        else:
            result = cls.forward(*args)
            cls.setup_context(context, args, result)
    dirty = getattr(context, "dirty_tensors", ())
    constant = getattr(context, "non_differentiable", ())
    if isinstance(result, tuple):
        outputs = result
    else:
        outputs = (result,)
    are_constant = []
    for output in outputs:
        if isinstance(output, torch.Tensor):
            are_constant.append(_is_among(output, constant))
    if isinstance(result, tuple):
        result = tuple([_output_of_call(output, args, dirty, constant) for output in result])
    else:
        result = _output_of_call(result, args, dirty, constant)
    zeros = getattr(context, "materialize_grads", True)
    saved = tuple(getattr(context, "to_save", ()))
    return context, result, len(dirty) > 0, are_constant, zeros, saved


def forward_only(cls: Any, *args: Any) -> Any:
    """Inlined in place of `Function.apply` where no gradients are wanted."""
    return run_forward(cls, (False,) * len(args), *args)[1]


def run_backward(cls: Any, context: Any, saved: Any, *tangents: Any) -> Any:
    """The gradients as a tuple."""
    context.saved_tensors = saved
    # autograd may always have none
    context._input_grad_buffers = (None,) * len(context.needs_input_grad)
    if _LISTS_TANGENTS and cls.boxed_grads_call:
        gradients = cls.backward(context, [*tangents])
    else:
        gradients = cls.backward(context, *tangents)
    if isinstance(gradients, tuple):
        return gradients
    return (gradients,)


def _output_of_call(output: Any, args: Any, dirty: Any, constant: Any) -> Any:
    """An argument that is returned is a view of itself, unless it was written. It is detached
    where it is said to have no gradient."""
    if (
        not isinstance(output, torch.Tensor)
        or not _is_among(output, args)
        or _is_among(output, dirty)
    ):
        return output
    if output.requires_grad and _is_among(output, constant):
        return output.detach()
    return output.view_as(output)


def _is_among(tensor: Any, tensors: Any) -> bool:
    for other in tensors:
        if other is tensor:
            return True
    return False


# -- calls -----------------------------------------------------------------------------------------


_APPLY: Any = vars(_BASE)["apply"]
"""A classmethod, or since torch 2.14 a class method that is written in C."""


@means(getattr(_APPLY, "__func__", _APPLY), how=How.UNREALIZED)
def _apply(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    function, *values = map(session.realize, args)
    cls: Any = session.known(function)
    if (meaning := stated(_APPLY.__get__(None, cls))) is not None:
        result: Value = meaning.rule(session, values)
        return result
    operands = values + list(map(session.realize, kwargs.values()))
    if is_mapped():
        refuse_unmapped(session, cls, function.describe())
        if not cls.generate_vmap_rule and (number := innermost_batched(operands)):
            if kwargs:
                raise session.unsupported(
                    "autograd-function",
                    f"{function.describe()}.apply with keywords, inside of vmap",
                )
            return with_own_rule(session, function, values, number)
    if torch.is_grad_enabled():
        refuse_objects(operands)
    if not (torch.is_grad_enabled() and any(map(wants_gradient, operands))):
        return session.call(session.builtin(forward_only), [function, *values], kwargs)
    if kwargs:
        raise session.unsupported(
            "autograd-function-gradients",
            f"{function.describe()}.apply with keywords, where gradients are wanted",
        )
    return _with_gradients(session, function, cls, values, levels_of(session, function.describe()))


def _with_gradients(
    session: Session, function: Value, cls: Any, args: list[Value], levels: Sequence[Level]
) -> Value:
    """The forward's operations, and the node that gives its outputs a history, outside of the
    levels of vmap."""
    if cls.vjp is not _BASE.vjp:  # type: ignore[attr-defined]
        raise session.unsupported("autograd-function", f"{function.describe()}, which has a vjp")
    needed = TupleValue(map(ConstantValue, map(wants_gradient, args)), tuple)
    before = session.graph.last
    context, result, writes, are_constant, zeros, saved = session.realized_items(
        session.call_builtin(run_forward, function, needed, *args)
    )
    if session.truth(writes):
        raise session.unsupported(
            "autograd-function-gradients",
            f"{function.describe()} writes its arguments, and gradients are wanted",
        )
    results = [result]
    if isinstance(result, SequenceValue):
        results = list(map(session.realize, result.items))
    outputs = tensors_in(results)
    if not are_new(outputs, before):
        raise session.unsupported(
            "autograd-function", f"{function.describe()} returns what it has not made"
        )
    if not outputs:
        return result
    constant = frozenset(positions(session.truth, session.unpacked(are_constant)))
    with outside(session, levels) as inside:
        call = _Call(
            function,
            context,
            all_lowered(session, args, levels),
            all_lowered(session, results, levels),
            all_lowered(session, session.realized_items(saved), levels),
            levels,
        )
        _give_history(session, call, cls, constant, session.truth(zeros))
    if not levels:
        return result
    again = all_raised(session, call.results, inside)
    if isinstance(result, SequenceValue):
        return TupleValue(again, tuple)
    return again[0]


def are_new(outputs: Sequence[TensorValue], before: fx.Node) -> bool:
    """Whether tensors are all different, and made behind a node of the graph."""
    is_repeated = len(set(map(id, outputs))) < len(outputs)
    return not is_repeated and all(before < output.fx_node for output in outputs)


class _Call(NamedTuple):
    """A call of a Function whose forward has been captured.

    Its context, arguments, results and saved values are those outside of all levels of vmap."""

    function: Value
    context: Value
    args: list[Lowered]
    results: list[Lowered]
    saved: list[Lowered]
    levels: Sequence[Level]

    def gradients(
        self, session: Session, tangents: dict[int, TensorValue]
    ) -> list[TensorValue | None]:
        """What the backward makes of the tangents of the results, by the id of these."""
        with within(session, self.levels) as inside:
            saved = TupleValue(all_raised(session, self.saved, inside), tuple)
            operands = [self.function, self.context, saved]
            for result, dims in self.results:
                tangent = tangents.get(id(result), NONE)
                operands.append(raised(session, tangent, dims, inside))
            gradients = session.realized_items(session.call_builtin(run_backward, *operands))
            for k, argument in enumerate(self.args[: len(gradients)]):
                gradients[k] = lowered_gradient(session, gradients[k], argument, self.levels)
        return _gradients_of_tensors(session, self.function, values_of(self.args), gradients)


def _give_history(
    session: Session, call: _Call, cls: Any, constant: frozenset[int], with_zeros: bool
) -> None:
    """Captures the backward, and makes it the history of a call's results.

    Results at the positions `constant` have none; `with_zeros`: missing tangents are zeros."""
    outputs = tensors_in(values_of(call.results))
    inputs = tensors_in(values_of(call.args))
    backwards: dict[tuple[bool, ...], Backward | Exception] = {}
    saved: dict[fx.Node, int] = {}  # what any backward reads, and its position
    what, modes = f"the backward of {call.function.describe()}", Modes.now()
    choices: Iterable[tuple[bool, ...]] = [(True,) * len(outputs)]
    if not with_zeros:
        choices = choices_of_tangents(session, what, outputs, constant)
    for choice in choices:
        try:
            chosen = list(itertools.compress(outputs, choice))
            graph, reads = captured_backward(
                session, what, chosen, partial(call.gradients, session), modes
            )
            places = tuple(saved.setdefault(node, len(saved)) for node in reads)
            backwards[choice] = Backward(graph, places)
        except (Raised, EagerRaises) as error:
            if with_zeros:
                raise
            backwards[choice] = eager_error(error)
    node = CustomGradient(cls.__name__, backwards, constant, _is_once(cls), with_zeros)
    session.graph.give_history(session, node, inputs, outputs, list(saved))


_MOST_OPTIONAL = 4
"""Tangents that may be there or not: a backward is captured for each choice of them."""


def choices_of_tangents(
    session: Session, what: str, outputs: list[TensorValue], constant: frozenset[int]
) -> Iterable[tuple[bool, ...]]:
    """The choices of outputs whose tangents may be there when a backward runs. `what` is the
    backward in words."""
    choices: list[tuple[bool, ...]] = [(False,)] * len(outputs)
    for k, output in enumerate(outputs):
        if k not in constant and may_have_gradient(output):
            choices[k] = (True, False)
    if choices.count((True, False)) > _MOST_OPTIONAL:
        raise session.unsupported(
            "autograd-function", f"{what} tells gradients of many results that are None from zeros"
        )
    return itertools.product(*choices)


def may_have_gradient(tensor: TensorValue) -> bool:
    return tensor.fake.is_floating_point() or tensor.fake.is_complex()


def with_tensors(values: Iterable[Value], tensors: Iterable[Value]) -> list[Value]:
    """The values with others in the place of the tensors among them."""
    remaining = iter(tensors)
    results = []
    for value in values:
        results.append(next(remaining) if isinstance(value, TensorValue) else value)
    return results


def views_of(tensors: Any) -> Any:
    """Inlined: the tensors, with a history yet to be given."""
    with torch.no_grad():
        return [tensor.view_as(tensor) for tensor in tensors]


def gradient_or_none(value: Value) -> TensorValue | None:
    if isinstance(value, TensorValue):
        return value
    return None


def eager_error(error: Raised | EagerRaises) -> Exception:
    """What eager raises where the program is seen to raise an error."""
    if isinstance(error, EagerRaises):
        if isinstance(error.__cause__, Exception):
            return error.__cause__
        return error
    value = error.value
    assert isinstance(value, ExceptionValue)
    try:
        return value.cls(*constants(value.args))
    except NotConstant:
        return EagerRaises(f"the program raises {value.message()}", id=PROGRAM_RAISES)


def _gradients_of_tensors(
    session: Session, function: Value, args: list[Value], gradients: list[Value]
) -> list[TensorValue | None]:
    """The gradients of the tensors among the arguments. Raises Unsupported for what autograd may
    refuse."""
    results: list[TensorValue | None] = []
    for k, gradient in enumerate(gradients):
        is_tensor = k < len(args) and isinstance(args[k], TensorValue)
        if isinstance(gradient, TensorValue) != is_tensor and not is_none(gradient):
            raise session.unsupported(
                "autograd-function", f"{function.describe()} gives a gradient of what is no tensor"
            )
        if is_tensor:
            results.append(gradient_or_none(gradient))
    if len(gradients) < len(args):
        raise session.unsupported(
            "autograd-function", f"{function.describe()} gives too few gradients"
        )
    return results


def captured_backward(
    session: Session,
    what: str,
    outputs: list[TensorValue],
    backward: Callable[[dict[int, TensorValue]], list[TensorValue | None]],
    inside: Modes,
) -> tuple[fx.GraphModule, list[fx.Node]]:
    """The graph of a backward, and the nodes of the forward that it reads.

    `backward` gets the tangents of `outputs` by their ids. It may have no effects, and runs under
    the modes `inside`, autocast aside."""
    recorder, modes, inside = session.graph, Modes.now(), without_autocast(inside)
    effects = session.effects.mark()

    def set_modes(target: Modes) -> None:
        target.set()
        recorder.modes.changed()

    set_modes(inside)
    begun = recorder.begin_part(session, outputs)
    try:
        gradients = backward(dict(zip(map(id, outputs), begun.tangents)))
        if session.effects.since(effects) != 0:
            raise session.unsupported("autograd-function", f"{what} has effects")
        set_modes(inside)
        return recorder.end_part(session, begun, gradients)
    except (Raised, EagerRaises):
        set_modes(inside)
        recorder.drop_part(session, begun)
        raise
    finally:
        set_modes(modes)


def _is_once(cls: Any) -> bool:
    function = cls.backward
    while function is not None:
        if getattr(function, "__code__", None) is _ONCE:
            return True
        function = getattr(function, "__wrapped__", None)
    return False
