"""Which ops do something beside their results. Torch's own are known not to, by their schemas and
tags, but for a few; what is a library's or the user's may count, send, write or wait: it runs when,
and as often as, the program runs it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from ingot.loops.functional_ops import FlatCall, FunctionalForm
from ingot.loops.launches import Launch
from ingot.torch_private import (
    OpOverload,
    aten,
    library_registry,
    side_effectful_functions,
)

_OWN_NAMESPACES = frozenset(("aten", "prims", "ingot"))
_ACTING_NAMESPACES = frozenset(("ingot_random",))  # whose ops change a state of the program's
_BESIDE_THEIR_SCHEMAS = frozenset(  # it may make the file; they print, warn, seed
    f"aten::{name}" for name in "from_file _print warn manual_seed seed wait".split()
)

UNINITIALIZED = frozenset(
    (aten.empty.memory_format, aten.empty_strided.default, aten.new_empty_strided.default)
)
"""Ops whose results hold anything."""


@cache
def is_foreign(op: OpOverload) -> bool:
    """Whether an op is a library's or the user's: what it gives is known by what was registered for
    it alone."""
    return op._schema.name.partition("::")[0] not in _OWN_NAMESPACES


@cache
def _may_act(op: OpOverload) -> bool:
    return is_foreign(op) or op._schema.is_mutable or op._schema.name in _BESIDE_THEIR_SCHEMAS


def acts(target: Any) -> bool:
    """Whether a call of a target may do something beside giving its results.

    Random numbers do not count, and neither do errors, for which torch's own ops without results
    are. What torch's registries of side effects have is asked each time, since a program may add to
    them.
    """
    if isinstance(target, (FunctionalForm, FlatCall, Launch)):
        return True
    if not isinstance(target, OpOverload):
        return target in side_effectful_functions
    registered = target in side_effectful_functions or _is_registered(target)
    return _may_act(target) or registered and bool(target._schema.returns)


def _is_registered(op: OpOverload) -> bool:
    entry = library_registry._data.get(op.name())
    holder = getattr(entry, "effect", None)  # torch 2.11 has none
    return holder is not None and holder.effect is not None


def calls_foreign(target: Any) -> bool:
    """Whether a target is a foreign op, in any form.

    A call of it may keep the tensors that it is given, or gives, for itself, as what communicates
    does until it is waited for.
    """
    if isinstance(target, (FunctionalForm, FlatCall)):
        return True
    return isinstance(target, OpOverload) and is_foreign(target)


def acts_alone(op: OpOverload) -> bool:
    """Whether a foreign op is known to be there for what it does beside giving or writing tensors.

    It gives and writes none, is registered as effectful, communicates, or draws a number of
    Python's.
    """
    namespace = op._schema.name.partition("::")[0]
    gives = bool(op._schema.returns) or op._schema.is_mutable
    known = "c10d" in namespace or namespace in _ACTING_NAMESPACES or _is_registered(op)
    return known or not gives


def communicates(target: Any) -> bool:
    """Whether a target is an operator of process groups."""
    packet = getattr(target, "overloadpacket", target)
    return "c10d" in getattr(packet, "_qualified_op_name", "").partition("::")[0]


@cache
def _draws(op: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


def has_effect(target: Any) -> bool:
    """Whether a call is more than its results.

    Such a call keeps its place among the others of its kind, and is neither dropped, nor shared,
    nor made again.
    """
    return isinstance(target, OpOverload) and _draws(target) or acts(target)
