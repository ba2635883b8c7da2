"""The record of an op: all that Ingot knows of it.

A family's file has the functions of its ops and, at its end, one record for each in `OPS`.
Overloads that are alike share one. What a record leaves out has a default: an op without a
decomposition is recorded whole, one without a meta rule is pointwise or runs once on made-up
values, and one without a lowering is a library call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ingot.graph.meta.basis import Rule as MetaRule
from ingot.graph.schemas import Cost
from ingot.loops.lowering.pointwise import Scalar, elementwise, simple
from ingot.loops.lowering.rules import LibraryCall
from ingot.torch_private import OpOverload


@dataclass(
    slots=True, eq=False
)  # not frozen: they are made at the first call, and setters take long
class Op:
    """One op, or overloads that are alike."""

    overloads: tuple[OpOverload, ...]

    decompose: Callable[..., Any] | None = None
    """The op as others, run under the recorder; NotImplemented for a call that stays whole. See
    graph/decompositions.py."""

    meta: MetaRule | None = None
    """Sizes, strides and dtype of the results. See graph/meta."""

    gpu_meta: MetaRule | None = None
    """The same on a GPU, where that differs."""

    refuses: Callable[..., str] | None = None
    """Why eager refuses the arguments, which come by their names in the schema; "" where it does
    not. For what `meta` does not find out. See graph/checks.py."""

    may_raise: Callable[..., bool] | None = None
    """Whether a call is an error for some values of its tensors. See graph/schemas.py."""

    takes_no_elements: bool = False
    """Whether a size of 0 means nothing else, though the op is neither pointwise nor a view."""

    last_operand_first: bool = False
    """Whether a pointwise op asks its last operand first how the result lies."""

    cost: Cost | None = None
    """What computing it again costs the backward, where that is not plain. See
    graph/schemas.py."""

    lower: Callable[..., Any] | None = None
    """The op as loop IR. See loops/lowering/rules.py."""

    library: LibraryCall | None = None
    """How a library computes it, where that is not a plain call."""

    reads_part: bool = False
    """Whether it may read only some elements of an argument."""


def op(*overloads: OpOverload, **facts: Any) -> Op:
    """The record of some overloads; `facts` are fields of `Op`."""
    return Op(overloads, **facts)


def unary(*overloads: OpOverload, scalar: Scalar | None = None, **facts: Any) -> Op:
    """The record of an op of each element; see `_of_elements`."""
    return _of_elements(1, overloads, scalar, **facts)


def binary(*overloads: OpOverload, scalar: Scalar | None = None, **facts: Any) -> Op:
    """The record of an op of each element of two arguments; see `_of_elements`."""
    return _of_elements(2, overloads, scalar, **facts)


def _of_elements(
    operands: int,
    overloads: tuple[OpOverload, ...],
    scalar: Scalar | None,
    dtype: str = "result",
    **facts: Any,
) -> Op:
    """The record of an op that is `scalar`, or the scalar op of its own name, of each element.

    `dtype` says in which dtype to compute; see `elementwise`.
    """
    named = scalar or simple(overloads[0].overloadpacket.__name__)
    return op(*overloads, lower=elementwise(named, operands, dtype), **facts)
