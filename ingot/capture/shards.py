"""What FSDP says of the modules that `fully_shard` has sharded, and the shards of a call.

In: a sharded module. Out: its state, the groups of parameters that are gathered at a time, or why
their hooks have to run in eager. What a graph relies on is a `Snapshot` of all the state below a
root. The graph's inputs are the `Shards`, whose gradients become those of the sharded parameters.

torch's FSDP is never imported here: a program that shards nothing does without.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ingot.graph.gathers import Gather, Piece, Reduction

_FSDP = "torch.distributed.fsdp._fully_shard"


def state_of(module: Any) -> Any:
    """FSDP's state of a module; None for those that neither `fully_shard` nor `replicate` has."""
    states = sys.modules.get(f"{_FSDP}._fsdp_state")
    find = getattr(states, "_get_module_fsdp_state", None)
    if find is None:
        return None
    return find(module)


def groups_of(state: Any) -> list[Any]:
    """The groups of parameters of a state: there may be several since torch 2.12."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group] if state._fsdp_param_group else []
    return groups  # type: ignore[no-any-return]


def is_root(state: Any) -> bool:
    """Whether a state is the one that all others of its model are below. It is decided by the
    first call, which this is about to be."""
    if state._is_root is None:
        state._lazy_init()
    return bool(state._is_root)


def states_below(root: Any) -> list[Any]:
    return root._state_ctx.all_states  # type: ignore[no-any-return]


def owners_of(parameter: Any) -> Iterator[tuple[nn.Module, str]]:
    """The modules that have a parameter, and its names there."""
    about = parameter._module_info
    yield about.module, about.param_name
    yield from zip(about.shared_modules, about.shared_param_names)


# -- what is of the plain kind ---------------------------------------------------------------------


def why_hooks_run(module: Any) -> str:
    """Why the hooks of a root and all modules below it run in eager; "" where a graph may do what
    they do."""
    root = state_of(module)
    context = root._state_ctx
    if context.iter_forward_root is not None or context.post_backward_final_callback_queued:
        return "another call of it is under way"
    for state in states_below(root):
        why = _why_of_state(state)
        for group in groups_of(state):
            why = why or _why_of_group(group) or _why_of_parameters(group)
        if why:
            return why
    return ""


def _why_of_state(state: Any) -> str:
    if state._modules_to_run_forward:
        return "another call of it is under way"
    if state._training_state.name != "IDLE":
        return "another call of it is under way"
    return ""


def _why_of_group(group: Any) -> str:
    """The first of these that holds."""
    mesh = group.mesh_info
    facts = {
        "parameters are distributed in other ways, too": _get(mesh, "is_spmd_mesh"),
        "set_requires_all_reduce is off": not group.all_reduce_grads,
        "gradients wait to be reduced": group._partial_reduce_output is not None,
        "parameters are gathered when it is called": group._sharded_state.name != "SHARDED",
        "another call of it is under way": group._training_state.name != "IDLE",
        "set_requires_gradient_sync is off": not group.reduce_grads,
        "parameters are kept on fewer ranks after the forward": (
            group.post_forward_mesh_info not in (None, mesh)
        ),
        "parameters are offloaded to a CPU": type(group.offload_policy).__name__ != "OffloadPolicy",
        "a hook of the user's reduces gradients": group._all_reduce_hook is not None,
        "set_unshard_in_backward is off": not group.unshard_in_backward,
        "gradients are divided by a number of the user's": group.gradient_divide_factor is not None,
        "collectives of the user's": not (
            _is_usual(group, "_all_gather_comm", "DefaultAllGather")
            and _is_usual(group, "_reduce_scatter_comm", "DefaultReduceScatter")
        ),
        "parameters without a gradient are reduced": _get(group, "reduce_scatter_unused_params"),
        "gradients are reduced by sums": _get(group, "force_sum_reduction_for_comms"),
    }
    return next((why for why, holds in facts.items() if holds), "")


def _get(object_: Any, name: str) -> Any:
    """What an attribute says that not all versions of torch have."""
    return getattr(object_, name, None)


def _is_usual(group: Any, name: str, cls: str) -> bool:
    return type(getattr(group, name, None)).__name__ in (cls, "NoneType")


def _why_of_parameters(group: Any) -> str:
    dtypes = set()
    for parameter in group.fsdp_params:
        dtypes.add(parameter.param_dtype or parameter.orig_dtype)
        local = parameter.sharded_param._local_tensor
        if parameter.is_dtensor or type(local) is not Tensor:
            return "parameters are distributed in other ways, too"
        if parameter.fsdp_placement.dim:
            return "parameters are sharded along another dimension than the first"
        if _pending_gradient(parameter):
            return "gradients wait to be reduced"
        for module, name in owners_of(parameter):
            if type(module).__setattr__ is not nn.Module.__setattr__:
                return f"{type(module).__name__} has a __setattr__ of its own"
            if module._parameters.get(name) is not parameter.sharded_param:
                return f"parameter {name!r} was replaced"
    if len(dtypes) > 1:
        return "parameters of several types are gathered at once"
    return ""


def _pending_gradient(parameter: Any) -> bool:
    """Whether earlier backwards have left a gradient of the whole parameter."""
    if parameter.unsharded_accumulated_grad is not None:
        return True
    whole = getattr(parameter, "_unsharded_param", None)
    return whole is not None and whole.grad is not None


_OF_STATE = ("_training_state", "_mp_policy", "_modules")
_OF_GROUP = (
    "_training_state", "_sharded_state", "mesh_info", "post_forward_mesh_info", "reduce_grads",
    "unshard_in_backward", "gradient_divide_factor", "reduce_scatter_unused_params",
    "force_sum_reduction_for_comms", "_all_reduce_hook", "_all_gather_comm", "_reduce_scatter_comm",
    "fsdp_params", "all_reduce_grads", "_partial_reduce_output",
)  # fmt: skip
_OF_PARAMETER = ("param_dtype", "reduce_dtype", "sharded_param", "unsharded_accumulated_grad")


class Snapshot:
    """Says of a root whether all below it is as it was when this was made: "" if so."""

    __name__ = "sharding"

    def __init__(self, module: Any) -> None:
        self.facts = _facts_of(state_of(module))

    def __call__(self, module: Any) -> str:
        root = state_of(module)
        if root is None:
            return "it is not sharded"
        facts = _facts_of(root)
        if len(facts) == len(self.facts) and all(map(_is, facts, self.facts)):
            return ""
        return why_hooks_run(module) or "it is another"


def _is(one: Any, other: Any) -> bool:
    return one is other


def _facts_of(root: Any) -> list[Any]:
    """All that a graph relies on, as objects that are the same ones as long as it holds."""
    context = root._state_ctx
    facts = [context.iter_forward_root]
    for state in context.all_states:
        facts.append(state)
        for name in _OF_STATE:
            facts.append(getattr(state, name))
        for group in groups_of(state):
            facts.append(group)
            for name in _OF_GROUP:
                facts.append(getattr(group, name, None))
            for parameter in group.fsdp_params:
                facts += (parameter, _pending_gradient(parameter))
                for name in _OF_PARAMETER:
                    facts.append(getattr(parameter, name))
    return facts


# -- how parameters are gathered -------------------------------------------------------------------


def gather_of(group: Any) -> Gather:
    """How the parameters of a group are gathered, and their gradients reduced."""
    mesh = group.mesh_info
    pieces = []
    for parameter in group.fsdp_params:
        dtype = parameter.param_dtype or parameter.orig_dtype
        shard = parameter._sharded_param_data.numel()
        pieces.append(Piece(tuple(parameter._orig_size), shard, dtype))
    gathers, ranks, groups = _get(mesh, "shard_process_group"), 1, ("", "")
    reduces = _get(mesh, "reduce_scatter_process_group") or gathers
    if gathers is not None:
        ranks, groups = gathers.size(), (gathers.group_name, reduces.group_name)
    again = group.post_forward_mesh_info is not None
    return Gather(pieces, ranks, groups, _reduction_of(group, reduces), again)


def _reduction_of(group: Any, process_group: Any) -> Reduction:
    collectives = sys.modules[f"{_FSDP}._fsdp_collectives"]
    copies = _get(group.mesh_info, "replicate_process_group")
    dtype = group._reduce_dtype
    for parameter in group.fsdp_params:
        computed = dtype or parameter.param_dtype or parameter.orig_dtype
    before, behind, *ops = collectives._get_gradient_divide_factors(
        process_group, copies, computed, group.device.type, None, False
    )
    names = []
    for op in ops:
        names.append("avg" if op == torch.distributed.ReduceOp.AVG else "sum")
    result = group._orig_dtype
    if result is computed:
        result = None
    of_copies = None if copies is None else (copies.group_name, names[1])
    return Reduction(dtype, names[0], before, behind, result, of_copies)


# -- shards ----------------------------------------------------------------------------------------


class Shards:
    """Gives the flat shards of all parameters below a root. Where gradients are wanted they have a
    history, whose backward sets the gradients of the sharded parameters as FSDP does."""

    __name__ = "shards"

    def __init__(self, root: Any) -> None:
        self.parameters: list[Any] = []
        for state in states_below(root):
            for group in groups_of(state):
                self.parameters += group.fsdp_params
        self._leaf: Tensor | None = None

    def __call__(self, module: Any) -> tuple[Tensor, ...]:
        shards = []
        for parameter in self.parameters:
            shards.append(parameter._sharded_param_data)
        if not torch.is_grad_enabled() or not any(map(_is_trained, self.parameters)):
            return tuple(shards)
        if self._leaf is None:
            with torch.inference_mode(False):
                self._leaf = torch.zeros((), requires_grad=True)
        return _Shards.apply(self.parameters, shards, self._leaf)  # type: ignore[no-any-return]


def _is_trained(parameter: Any) -> bool:
    return bool(parameter.sharded_param.requires_grad)


class _Shards(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, parameters: Sequence[Any], shards: Sequence[Tensor], leaf: Tensor
    ) -> Any:
        ctx.parameters = parameters
        ctx.set_materialize_grads(False)
        results, frozen = [], []
        for parameter, shard in zip(parameters, shards):
            results.append(shard.detach())
            if not _is_trained(parameter):
                frozen.append(results[-1])
        ctx.mark_non_differentiable(*frozen)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # type: ignore[override]
        pairs = []
        for parameter, gradient in zip(ctx.parameters, gradients):
            if gradient is not None:
                pairs.append((parameter, gradient))
        with torch.no_grad():
            for parameter, gradient in pairs:
                _accumulate(parameter, gradient)
        for parameter, _ in pairs:
            sharded = parameter.sharded_param
            for hook in (sharded._post_accumulate_grad_hooks or {}).values():
                hook(sharded)
        return None, None, None


def _accumulate(parameter: Any, gradient: Tensor) -> None:
    """Adds the gradient of a flat shard to that of a sharded parameter, as FSDP does it."""
    sharded = parameter.sharded_param
    local = gradient.as_strided(parameter.sharded_size, parameter.contiguous_sharded_stride)
    if sharded.grad is None:
        cls: Any = type(sharded)  # its `__init__` does nothing, and takes as long as the rest
        sharded.grad = cls.__new__(cls, local, parameter._sharding_spec, requires_grad=False)
    else:
        sharded.grad._local_tensor += local
