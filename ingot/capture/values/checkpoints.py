"""torch.utils.checkpoint: a call of the function that it is given. Where gradients are wanted, the
nodes of that call are marked as a region of the graph, of which the forward keeps nothing: the
backward computes it again (`graph/partition.py`).

With `use_reentrant=True` torch's own code is inlined down to its autograd.Function. In eager that
runs the function without gradients, and in the backward once more with them, to differentiate it by
itself: into `.grad` of all leaves, and only if an argument requires a gradient."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointFunction, check_backward_validity, checkpoint

from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.values.autograd_functions import (
    are_new,
    may_have_gradient,
    views_of,
    with_tensors,
)
from ingot.capture.values.base import Arguments, Keywords, Value, map_values, positions
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.partials import PartialValue
from ingot.capture.values.sequences import TupleValue
from ingot.capture.values.tensor import GradientQuestions, TensorValue
from ingot.capture.values.tensor_lists import is_tracked, tensors_in
from ingot.errors import Unsupported
from ingot.graph.custom import Reentrant
from ingot.graph.fakes import storage_key
from ingot.torch_private import CachingTorchDispatchMode

if TYPE_CHECKING:
    from ingot.capture.session import Session

_DEFAULTS = {"preserve_rng_state": True, "determinism_check": "default", "early_stop": True}
"""What says how the backward pass is to run the function again."""

_WITH_STATISTICS = ("batch_norm", "instance_norm")


def _plain_call(
    session: Session, args: Arguments, kwargs: Keywords
) -> tuple[Value, Arguments, Keywords] | None:
    """Without gradients: a call of the function, with the arguments that are its own."""
    if torch.is_grad_enabled():
        return None
    reentrant = session.known(kwargs.get("use_reentrant", NONE))
    if reentrant is None:  # of which torch warns
        return None
    keywords = _function_keywords(kwargs)
    if not reentrant:
        keywords.pop("context_fn", None)  # it says what is saved
    if (reentrant and keywords) or "debug" in keywords:
        raise session.unsupported(
            "checkpoint", "torch.utils.checkpoint with options that do more than call"
        )
    return session.realize(args[0]), args[1:], keywords


def _function_keywords(kwargs: Keywords) -> Keywords:
    """The keyword arguments that checkpoint() passes on to the function."""
    options = (*_DEFAULTS, "use_reentrant")
    result = {}
    for name, value in kwargs.items():
        if name not in options:
            result[name] = value
    return result


def _call(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    plain = _plain_call(session, args, kwargs)
    if plain is not None:
        target, args, kwargs = plain
        return session.call(target, args, kwargs)
    if session.known(kwargs.get("use_reentrant", NONE)) in (None, True):
        inside = session.builtin(_CHECKPOINT)
        assert isinstance(inside, FunctionValue)
        return session.inline(inside, args, kwargs)
    if session.graph.autograd:
        raise session.unsupported(
            "checkpoint",
            "torch.utils.checkpoint with gradients, in a graph that records them as it runs",
        )
    options = map_values(ConstantValue, _DEFAULTS) | kwargs
    keywords = _function_keywords(kwargs)
    policy = _policy(session, keywords.pop("context_fn", None))
    if "debug" in keywords or session.known(options["determinism_check"]) not in _CHECKS:
        raise session.unsupported(
            "checkpoint", "torch.utils.checkpoint with options that do more than call"
        )
    keeps_numbers = bool(session.known(options["preserve_rng_state"]))
    return _region(session, args, keywords, keeps_numbers, policy)


def _policy(session: Session, context_fn: Value | None) -> Any:
    """What says of each op whether the forward saves its result: the policy of
    `create_selective_checkpoint_contexts`, which `context_fn` is called for; None if there is
    none."""
    if context_fn is None:
        return None
    contexts = session.python(_real(session, context_fn))
    if isinstance(contexts, tuple) and isinstance(contexts[0], CachingTorchDispatchMode):
        return contexts[0].policy_fn
    raise session.unsupported(
        "checkpoint", "torch.utils.checkpoint with contexts of the program's own"
    )


def _real(session: Session, value: Value) -> Any:
    """The object of a function that existed before the call, or of a partial of such."""
    value = session.realize(value)
    if isinstance(value, PartialValue) and value.source is None:
        real = partial(_real, session)
        named = map_values(real, session.entries_of(value.named))
        return partial(real(value.function), *map(real, value.args), **named)
    if isinstance(value, (FunctionValue, PartialValue)) and value.source is not None:
        session.guard(value.source, Kind.IDENTITY, value.object)
        return value.object
    return session.known(value)


_CHECKPOINT = inspect.unwrap(checkpoint)
_CHECKS = ("default", "none")


def _region(
    session: Session, args: Arguments, kwargs: Keywords, keeps_numbers: bool, policy: Any = None
) -> Value:
    """The call, as a region of the graph. What eager would do twice is left to eager."""
    recorder = session.graph
    before, effects, draws = recorder.last, session.effects.mark(), recorder.context.draws
    effects_alone, foreign_writes = recorder.context.effects_alone, len(recorder.context.written)
    versions = {}
    for known in recorder.by_fake.values():
        versions[known.fake] = known.fake._version
    result = session.call(session.realize(args[0]), args[1:], kwargs)
    recorder.modes.reach(recorder.graph, session.where)
    nodes = recorder.nodes_since(before)
    if session.effects.since(effects) != 0 or recorder.context.effects_alone != effects_alone:
        raise session.unsupported(
            "checkpoint", "a checkpointed function has effects, which it has again in the backward"
        )
    memory, is_written = set(), False
    for known in recorder.by_fake.values():
        fake = known.fake
        if fake in versions or fake.is_outside:  # it may be reached inside first
            memory.add(storage_key(fake))
            is_written |= fake._version != versions.get(fake, 0)
    is_written |= not memory.isdisjoint(recorder.context.written[foreign_writes:])
    if is_written or any(map(_updates_statistics, nodes)):
        raise session.unsupported(
            "checkpoint",
            "a checkpointed function writes what was there before, and again in the backward",
        )
    if not keeps_numbers and recorder.context.draws != draws:
        raise session.unsupported(
            "checkpoint", "a checkpointed function draws random numbers, other ones in the backward"
        )
    for node in nodes:
        node.meta["region"] = recorder.steps
        if policy is not None:
            node.meta["policy"] = policy
    return result


def _updates_statistics(node: fx.Node) -> bool:
    """Whether it is torch.batch_norm or its kin with running statistics, in training."""
    if getattr(node.target, "__name__", node.target) not in _WITH_STATISTICS:
        return False
    arguments = dict(
        zip(("input", "weight", "bias", "running_mean", "running_var", "training"), node.args)
    )
    arguments.update(node.kwargs)
    training = arguments.get("training", arguments.get("use_input_stats"))
    return arguments.get("running_mean") is not None and training is not False


# -- use_reentrant=True ----------------------------------------------------------------------------


def _untracked(function: Any, *args: Any) -> Any:
    """Inlined."""
    with torch.no_grad():
        return function(*args)


@means(CheckpointFunction.apply, how=How.APPLY)
def _reentrant(session: Session, args: list[Value]) -> Value:
    """CheckpointFunction.apply."""
    function, keeps_numbers, *arguments = args
    session.call_builtin(check_backward_validity, TupleValue(arguments, tuple))
    if not torch.is_grad_enabled():
        return session.call(function, arguments, {})
    recorder = session.graph
    before, questions = recorder.last, session.state(GradientQuestions)
    count = questions.count
    takes_gradient = any(map(is_tracked, arguments))
    if takes_gradient and recorder.autograd:
        raise session.unsupported(
            "checkpoint",
            "torch.utils.checkpoint with gradients, in a graph that records them as it runs",
        )
    if takes_gradient:
        result = _region(session, [function, *arguments], {}, bool(session.known(keeps_numbers)))
    else:
        result = session.call_builtin(_untracked, function, *arguments)
    result = session.realize(result)
    results = _results(session, result, before)
    if not takes_gradient:
        return result
    tensors = tensors_in(results)
    if questions.count != count:
        raise session.unsupported(
            "checkpoint",
            "a checkpointed function asks for gradients, which it has in the backward alone",
        )
    if not any(map(is_tracked, tensors)):
        raise session.unsupported(
            "checkpoint",
            "a checkpointed function whose results do not depend on what requires a gradient",
        )
    outputs = with_tensors(results, _with_history(session, tensors))
    if isinstance(result, TensorValue):
        return outputs[0]
    return TupleValue(outputs, tuple)


def _results(session: Session, result: Value, before: fx.Node) -> list[Value]:
    """What a checkpointed function gives: tensors that it has made, and constants."""
    is_tensor = isinstance(result, TensorValue)
    if not is_tensor and result.python_type() is not tuple:
        raise _refused(session, "gives no tensors")
    if is_tensor:
        results = [result]
    else:
        results = session.realized_items(result)
    if not are_new(tensors_in(results), before):
        raise _refused(session, "returns what it has not made")
    for element in results:
        if not isinstance(element, TensorValue) and not element.is_constant():
            raise _refused(session, "gives containers")
    return results


def _refused(session: Session, what: str) -> Unsupported:
    sentence = f"torch.utils.checkpoint with use_reentrant=True, of a function that {what}"
    return session.unsupported("checkpoint", sentence)


def _with_history(session: Session, tensors: list[TensorValue]) -> list[TensorValue]:
    """The results of the region as views, whose history is the backward that eager has."""
    constant = frozenset(range(len(tensors))).difference(positions(may_have_gradient, tensors))
    views = session.call_builtin(views_of, TupleValue(tensors, tuple))
    outputs = tensors_in(session.realized_items(views))
    session.graph.give_history(session, Reentrant(constant), tensors, outputs, [])
    return outputs


means(checkpoint, _CHECKPOINT, how=How.FORWARD, otherwise=_call)(_plain_call)
