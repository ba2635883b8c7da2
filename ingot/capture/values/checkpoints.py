"""torch.utils.checkpoint: a call of the function that it is given. Where gradients are wanted, the nodes of that call
are marked as a region of the graph, of which the forward keeps nothing: the backward computes it again
(`graph/partition.py`)."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

from ingot.capture.session import FORWARDING, SPECIAL_FUNCTIONS
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import NONE, ConstantValue

if TYPE_CHECKING:
    from ingot.capture.session import Session

_DEFAULTS = {"preserve_rng_state": True, "determinism_check": "default", "early_stop": True}
"""What says how the backward pass is to run the function again."""

_WITH_STATISTICS = ("batch_norm", "instance_norm")


def _plain_call(session: Session, args: Arguments, kwargs: Keywords) -> tuple[Value, Arguments, Keywords] | None:
    """Without gradients: a call of the function, with the arguments that are its own."""
    if torch.is_grad_enabled():
        return None
    reentrant = session.known(kwargs.get("use_reentrant", NONE))
    given = {name: value for name, value in kwargs.items() if name not in _DEFAULTS.keys() | {"use_reentrant"}}
    if reentrant is None or (reentrant and given) or "context_fn" in given or "debug" in given:
        raise session.unsupported("torch.utils.checkpoint with options that do more than call")
    return session.realize(args[0]), args[1:], given


def _call(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    plain = _plain_call(session, args, kwargs)
    if plain is not None:
        target, args, kwargs = plain
        return session.call(target, args, kwargs)
    options = {name: kwargs.get(name, ConstantValue(default)) for name, default in _DEFAULTS.items()}
    given = {name: value for name, value in kwargs.items() if name not in _DEFAULTS.keys() | {"use_reentrant"}}
    if session.known(kwargs.get("use_reentrant", NONE)) is not False or session.graph.autograd:
        raise session.unsupported("torch.utils.checkpoint with gradients and use_reentrant=True")
    if "context_fn" in given or "debug" in given or session.known(options["determinism_check"]) not in _CHECKS:
        raise session.unsupported("torch.utils.checkpoint with options that do more than call")
    return _region(session, args, given, bool(session.known(options["preserve_rng_state"])))


_CHECKS = ("default", "none")


def _region(session: Session, args: Arguments, kwargs: Keywords, keeps_numbers: bool) -> Value:
    """The call, as a region of the graph. What eager would do twice is left to eager."""
    recorder = session.graph
    before, effects, draws = recorder.last, session.effects.mark(), recorder.context.draws
    versions = [(known.fake, known.fake._version) for known in recorder.by_fake.values()]
    result = session.call(session.realize(args[0]), args[1:], kwargs)
    recorder.modes.reach(recorder.graph, session.where)
    nodes = recorder.nodes_since(before)
    if session.effects.since(effects) != 0:
        raise session.unsupported("a checkpointed function has effects, which it has again in the backward")
    if any(fake._version != version for fake, version in versions) or any(map(_updates_statistics, nodes)):
        raise session.unsupported("a checkpointed function writes what was there before, and again in the backward")
    if not keeps_numbers and recorder.context.draws != draws:
        raise session.unsupported("a checkpointed function draws random numbers, other ones in the backward")
    for node in nodes:
        node.meta["region"] = recorder.steps
    return result


def _updates_statistics(node: fx.Node) -> bool:
    """Whether it is torch.batch_norm or its kin with running statistics, in training."""
    if getattr(node.target, "__name__", node.target) not in _WITH_STATISTICS:
        return False
    arguments = dict(zip(("input", "weight", "bias", "running_mean", "running_var", "training"), node.args))
    arguments.update(node.kwargs)
    training = arguments.get("training", arguments.get("use_input_stats"))
    return arguments.get("running_mean") is not None and training is not False


for _checkpoint in (checkpoint, inspect.unwrap(checkpoint)):
    FORWARDING[_checkpoint] = _plain_call
    SPECIAL_FUNCTIONS[_checkpoint] = _call
