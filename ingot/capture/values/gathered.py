"""Calls of modules that `fully_shard` has sharded, as a part of the graph.

FSDP's hooks gather the parameters of a module before its forward, free them behind it, and do the
same around its backward. Where all below a root is of the plain kind, and the root is called in the
graph, no hook runs: the graph gathers the parameters of each module that is called, and its
backward reduces their gradients. FSDP's state stays as it is. What breaks the graph inside leaves
the whole call to the hooks.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ingot.capture import shards
from ingot.capture.guards import Kind
from ingot.capture.meanings import means
from ingot.capture.sources import AttrSource, DerivedSource, ItemSource, Source
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import NONE
from ingot.capture.values.sequences import TupleValue
from ingot.errors import Unsupported
from ingot.graph.aten_tracer import AGAIN, ONCE
from ingot.graph.gathers import Gather
from ingot.places import Place
from ingot.reasons import HOOKED
from ingot.spots import spot_of_function
from ingot.torch_private import apply_to_tensors, find

if TYPE_CHECKING:
    from ingot.capture.session import Session


class _Root(NamedTuple):
    """A root that is called: where the shards of all below it are. By id of a group, how it is
    gathered and which shard is its first."""

    source: DerivedSource
    tensors: tuple[torch.Tensor, ...]
    groups: dict[int, tuple[Gather, int]]


class Gathers:
    """What a capture knows of sharded modules. `refusal` is why their hooks run in eager."""

    def __init__(self) -> None:
        self.refusal = ""
        self.called: list[Any] = []  # the states of those that are called now
        # by id of a state: the modules of its unit that are yet to be called
        self.rest: dict[int, set[Any]] = {}
        self.roots: dict[int, _Root] = {}

    @property
    def is_inside(self) -> bool:
        return bool(self.called or self.rest)


def forwarded(
    session: Session, module: Any, args: Arguments, kwargs: Keywords, all_have_hooks: bool
) -> tuple[Value, Arguments, Keywords]:
    """What a call of a sharded module comes to. Raises Unsupported where its hooks are to run.

    `all_have_hooks`: there are hooks of all modules."""
    why: str | None = "all modules have hooks"
    if not all_have_hooks:
        why = _why_hooks_run(session, module)
    if why is not None:
        sentence = f"{module.describe()} is sharded by FSDP: its hooks run in eager"
        if why:
            sentence += f", as {why}"
        raise session.unsupported("module-hook", sentence, action=HOOKED)
    return session.builtin(call_gathered), args, kwargs


def _why_hooks_run(session: Session, module: Any) -> str | None:
    """Why the hooks of a module run in eager, "" for no particular reason; None where the graph
    does what they do."""
    gathers, state = session.state(Gathers), shards.state_of(module.object)
    if state is None or gathers.refusal or session.graph.autograd:
        return gathers.refusal
    if not gathers.called:
        try:
            if not shards.is_root(state):
                return ""
            why = _why_of_root(session, module, state)
        except Exception as error:  # what FSDP raises, or for a name that it does not have
            return f"FSDP raises {type(error).__name__}: {error}"
        if why:
            return why
    elif not any(state is other for other in shards.states_below(gathers.called[0])):
        return "it is called by a module of another root"
    return _why_of_hooks(session, module, state)


def _why_of_root(session: Session, module: Any, state: Any) -> str:
    """The same of a root, whose shards are at hand from now on."""
    gathers, source = session.state(Gathers), module.source
    if id(state) in gathers.roots:
        return ""
    why = shards.why_hooks_run(module.object)
    if why:
        session.guard_derived(shards.why_hooks_run, module.object, source)
        return why
    every, snapshot = shards.Shards(state), shards.Snapshot(module.object)
    groups: dict[int, tuple[Gather, int]] = {}
    count = 0
    for below in shards.states_below(state):
        for group in shards.groups_of(below):
            groups[id(group)] = shards.gather_of(group), count
            count += len(group.fsdp_params)
    session.guard_derived(snapshot, module.object, source)
    tensors = every(module.object)
    gathers.roots[id(state)] = _Root(DerivedSource(source, every), tensors, groups)
    return ""


def _why_of_hooks(session: Session, module: Any, state: Any) -> str | None:
    """The same of the hooks that a module has. That it has no others is guarded."""
    session.guard(module.source, Kind.IDENTITY, module.object)
    own = set()
    for handle in (state._pre_forward_hook_handle, state._post_forward_hook_handle):
        for one in getattr(handle, "handles", (handle,)):  # several modules may be one unit
            own.add(one.id)
    for table in ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks"):
        hooks = tuple(getattr(module.object, table))
        if not own.issuperset(hooks):
            return "it has other hooks, too"
        session.guard(AttrSource(module.source, table), Kind.DICT_KEYS, hooks)
    return None


def leave_to_hooks(session: Session, why: Unsupported) -> None:
    """Has hooks run in eager: what the graph was to do in their place could not be captured."""
    session.state(Gathers).refusal = f"what is inside cannot be captured whole: {why.reason}"
    guards = why.evidence.guards
    session.guards.adopt(guards)
    shards_alone = []
    for guard in guards:
        if guard.source is not None and _is_of_shards(guard.source):
            shards_alone.append(guard)
    session.guards.drop(shards_alone)


def _is_of_shards(source: Source) -> bool:
    for owner in (source, *source.owners()):
        if isinstance(owner, DerivedSource) and isinstance(owner.function, shards.Shards):
            return True
    return False


def require_ended(session: Session) -> None:
    """Raises Unsupported where the call of a sharded module has ended with an error that the
    program handles."""
    if session.state(Gathers).is_inside:
        raise session.unsupported("module-hook", "a sharded module raises an error")


# -- the call --------------------------------------------------------------------------------------


def _cast(dtype: Any, tensor: Any) -> Any:
    if not torch.is_floating_point(tensor) or tensor.dtype == dtype:
        return tensor
    return tensor.to(dtype)


def call_gathered(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Inlined in place of a sharded module's call."""
    input_dtype, output_dtype = begin(module)
    if input_dtype is not None:
        cast = partial(_cast, input_dtype)
        args, kwargs = apply_to_tensors(cast, args), apply_to_tensors(cast, kwargs)
    result = module.forward(*args, **kwargs)
    end(module)
    if output_dtype is not None:
        result = apply_to_tensors(partial(_cast, output_dtype), result)
    return result


def begin(module: Any) -> Any:
    """Captured: gathers the parameters of a module. Gives the types that floats of its arguments
    and its result are cast to, None for none."""


def end(module: Any) -> None:
    """Captured: the module has its shards again."""


@means(begin)
def _begin(session: Session, module: Any) -> Value:
    gathers, state = session.state(Gathers), shards.state_of(module.object)
    gathers.called.append(state)
    root = gathers.roots[id(gathers.called[0])]
    if id(state) not in gathers.rest:
        _gather_all(session, root, state, _place_of(module))
    gathers.rest[id(state)].discard(module.object)
    policy = state._mp_policy
    inputs = policy.param_dtype if policy.cast_forward_inputs else None
    return TupleValue([_dtype(session, inputs), _dtype(session, policy.output_dtype)], tuple)


def _gather_all(session: Session, root: _Root, state: Any, where: Place) -> None:
    """Gathers the parameters of a unit, before the first of its modules."""
    session.state(Gathers).rest[id(state)] = set(state._modules)
    find("torch.distributed._functional_collectives")  # registers what operators do to fakes
    for group in shards.groups_of(state):
        _gather(session, root, group, where)


def _dtype(session: Session, dtype: Any) -> Value:
    return NONE if dtype is None else session.wrap_constant(dtype)


def _place_of(module: Any) -> Place:
    """What reports say of where parameters are gathered: the forward that reads them."""
    code = getattr(module.cls.forward, "__code__", None)
    line = spot_of_function(code).where if code is not None else ""
    return Place(line, "gather", module.source.name)


def _gather(session: Session, root: _Root, group: Any, where: Place) -> None:
    """Gathers the parameters of a group, which their modules have from now on."""
    gather, first = root.groups[id(group)]
    inputs = []
    for place in range(first, first + len(group.fsdp_params)):
        leaf = session.wrap(root.tensors[place], ItemSource(root.source, place))
        inputs.append(session.realize(leaf))
    before = session.graph.last
    whole = session.unpacked(session.call_function(gather, *inputs))
    for node in session.graph.nodes_since(before):
        node.meta["where"] = where
        node.meta["region"] = AGAIN if gather.again else ONCE
    for parameter, value in zip(group.fsdp_params, whole):
        for owner, name in shards.owners_of(parameter):
            session.effects.stand_in(owner._parameters, name, value)


@means(end)
def _end(session: Session, module: Any) -> Value:
    gathers = session.state(Gathers)
    state = gathers.called.pop()
    if gathers.rest[id(state)]:
        return NONE
    del gathers.rest[id(state)]
    for group in shards.groups_of(state):
        for parameter in group.fsdp_params:
            for owner, name in shards.owners_of(parameter):
                session.effects.step_back(owner._parameters, name)
    return NONE
