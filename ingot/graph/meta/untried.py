"""The rules of ops that are tried out where all sizes are known on a CPU: for symbolic sizes, and
for GPUs."""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch import Tensor

from ingot.errors import unsupported
from ingot.graph import geometry
from ingot.graph.meta.basis import Rule, all_at_hand, fresh, has_symbols, tensors_in
from ingot.graph.meta.families import pointwise_meta, pointwise_meta_on_gpus
from ingot.graph.meta.trials import is_worth_probing, probe, tried_out
from ingot.graph.nodes import results_of
from ingot.graph.schemas import bind
from ingot.graph.symbolic_views import is_symbolic
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload

# the rule of a CPU: that of other devices
KNOWN_TO_CPUS: dict[Rule, Rule] = {pointwise_meta: pointwise_meta_on_gpus}


def unless_known(rule: Rule) -> Rule:
    """A rule for symbolic sizes, for large ones, and for GPUs. On a CPU, where all are known, a
    real run tells more of the layout."""

    @wraps(rule)
    def wrapper(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        tensors = tensors_in((args, kwargs))
        if has_symbols(args) or any(map(is_symbolic, tensors)) or not is_worth_probing(tensors):
            return rule(op, args, kwargs)
        return probe(op, args, kwargs)

    KNOWN_TO_CPUS[wrapper] = rule
    return wrapper


_DIFFERENTIATED_ALONE = ("self", "input", "self_or_result", "input_size", "input_sizes")


def gradients_of(*arguments: str) -> Rule:
    """The rule of a backward op, each of whose results is the gradient of one of the `arguments`.
    It has the sizes of that argument, or those that the argument is, and lies as a real run says.
    Without names there is one result, the gradient of the input."""

    @unless_known
    def gradients(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        bound = bind(op, args, kwargs)
        of = arguments or [a for a in _DIFFERENTIATED_ALONE if a in bound][:1]
        results = tried_out(op, args, kwargs)
        listed = results_of(results)
        if len(of) != len(listed):
            raise unsupported("no-symbolic-rule", f"{op} has no rule for symbolic sizes")
        sized = []
        for a, t in zip(of, listed):
            sized.append(None if t is None else sized_as(op, bound[a], t))
        if isinstance(results, Tensor):
            return sized[0]
        return tuple(sized)

    return gradients


gradients = gradients_of()


def sized_as(op: OpOverload, like: Any, tried: Tensor) -> Tensor:
    """A tensor of the sizes of `like`, laid out as `tried` is, which it is in the present call."""
    sizes = results_of(like)
    if isinstance(like, Tensor):
        sizes = like.shape
    is_dense = geometry.is_dense(tried.shape, tried.stride())
    if all_at_hand(sizes) != list(tried.shape) or not is_dense:
        raise unsupported("no-symbolic-rule", f"{op} has no rule for symbolic sizes")
    fastest_first = sorted(reversed(range(tried.dim())), key=tried.stride)
    return fresh(sizes, tried.dtype, geometry.ordered(sizes, fastest_first))
