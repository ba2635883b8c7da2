"""Facts about ATen ops, read from their schemas: what they write, whether they view or draw random
numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any

import torch
import torch.fx

from ingot.sequences import Args, Kwargs
from ingot.tables import Table
from ingot.torch_private import DispatchKey, OpOverload, dispatch_has_kernel_for_dispatch_key


@cache
def name_of(op: OpOverload) -> str:
    """The schema's name, "aten::add". It and what follows is kept: torch makes objects anew each
    time it is asked."""
    return op._schema.name


@cache
def arguments_of(op: OpOverload) -> tuple[tuple[str, Any], ...]:
    """(name, default) of the arguments; None is the default of those that have none."""
    return tuple(
        (a.name, a.default_value if a.has_default_value() else None) for a in op._schema.arguments
    )


@cache
def is_mutable(op: OpOverload) -> bool:
    """Whether the op writes into an argument."""
    return op._schema.is_mutable


_OF_LAYOUT = re.compile(r"aten::_?(to_sparse|sparse_(coo|csr|csc|bsr|bsc|compressed)_tensor)")


@cache
def makes_sparse(op: OpOverload) -> bool:
    """Whether the op makes a sparse tensor of others."""
    return _OF_LAYOUT.match(name_of(op)) is not None


@cache
def is_random(op: OpOverload) -> bool:
    """Whether the op draws from a generator: it keeps its place among the other random ops and is
    never dropped."""
    return torch.Tag.nondeterministic_seeded in op.tags


@cache
def node_name(target: Any) -> str:
    """What torch.fx names a node after, which takes it as long to find as all else about the
    node."""
    return re.sub(r"\W+", "_", torch.fx.Graph()._target_to_str(target))


def draws(target: Any) -> bool:
    """Whether the target of a node is a random op."""
    return isinstance(target, OpOverload) and is_random(target)


MAY_RAISE: Table[Callable[..., bool]] = Table("may_raise")
"""Whether a call of an op may be an error, by its arguments and result."""


def indexes(args: Args, result: Any) -> bool:
    """An index may be out of range."""
    return True


def divides(args: Args, result: Any) -> bool:
    """An integer may be divided by zero."""
    if result.is_floating_point() or result.is_complex():
        return False
    return not isinstance(args[1], (int, float)) or args[1] == 0


def may_raise(op: Any, args: Args, result: Any) -> bool:
    """Whether a call of the op may be an error for some values of its tensors. An index may be out
    of range, an integer divided by zero. What gives nothing is called for that."""
    if not isinstance(op, OpOverload):
        return False
    if result is None:
        return True
    rule = MAY_RAISE.get(op)
    return rule is not None and rule(args, result)


class Cost(Enum):
    """What the partition must know of an op's cost, beside its tags."""

    LIGHT = "takes no longer than reading its result"
    CONTRACTION = "a library computes it on a GPU, and of halves, with nothing that follows"
    LOOKUP = "reads a few elements of its argument, which need not be in memory"


COSTS: Table[Cost] = Table("cost")


def cost_of(target: Any) -> Cost | None:
    """The cost of a node's target, where it is known to be unlike others'."""
    return COSTS.get(target)


@cache
def is_pointwise(op: OpOverload) -> bool:
    return torch.Tag.pointwise in op.tags


@cache
def is_composite(op: OpOverload) -> bool:
    """Whether torch defines the op by other ops; autograd takes such ops apart, code that runs
    below it must do so itself."""
    return dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


def run_composite(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """What such an op gives, as in eager. Torch's versions of some in Python, which
    `OpOverload.decompose` prefers, give a copy where eager gives the very argument."""
    return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


@cache
def written(op: OpOverload) -> tuple[str, ...]:
    """The names of the arguments that the op writes into."""
    return tuple(
        a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write
    )


def _signature(op: OpOverload, skip: frozenset[str] = frozenset()) -> tuple[tuple[str, str], ...]:
    return tuple((a.name, str(a.type)) for a in op._schema.arguments if a.name not in skip)


@cache
def functional_form(op: OpOverload) -> OpOverload | None:
    """The op without side effects that computes what an in-place or out= op writes, or None."""
    namespace, name = op._schema.name.split("::")
    names = frozenset(written(op))
    if names == {"self"} and op._schema.arguments[0].name == "self" and name.endswith("_"):
        base, signature = name[:-1], _signature(op)
        if name.startswith("__i"):  # __irshift__
            base = f"__{name[3:]}"
    elif names and op._schema.arguments[-1].is_out:
        base, signature = name, _signature(op, names)
    else:
        return None
    for candidate in (base, base + "_functional"):
        packet: Any = getattr(getattr(torch.ops, namespace), candidate, None)
        for overload in packet.overloads() if packet is not None else ():
            form = getattr(packet, overload)
            if not form._schema.is_mutable and _signature(form) == signature:
                return form
    return None


def bind(op: OpOverload, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """The call's arguments by schema name, defaults filled in."""
    arguments = arguments_of(op)
    bound = {name: value for (name, _), value in zip(arguments, args)}
    for name, default in arguments[len(args) :]:
        bound[name] = kwargs.get(name, default)
    return bound
