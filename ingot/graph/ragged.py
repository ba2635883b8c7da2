"""Nested integers of fakes: what torch has as the size of a ragged dimension, beside symbols.

torch keeps the nested integer of each tensor of offsets or lengths in a table. Its own cannot be
multiplied by a symbol, as the stride of a ragged dimension is.
"""

from __future__ import annotations

from typing import Any

import torch

from ingot.errors import unsupported
from ingot.graph.fakes import FakeTensor
from ingot.graph.symbols import SizeNode
from ingot.loops.expr import Expr, as_expr
from ingot.torch_private import (
    NESTED,
    NestedIntNode,
    constant_bool_node,
    nested_int_of,
    nested_ints,
    why_off,
)


class RaggedNode(NestedIntNode):  # type: ignore[misc, valid-type]
    """The node of a nested integer, times a `coeff` that may be an expression."""

    def mul(self, other: Any) -> RaggedNode:
        if isinstance(other, SizeNode):
            return RaggedNode(self.t_id, _plain(as_expr(self.coeff) * other.expr))
        if not other.is_constant():
            raise unsupported("nested-tensor", "a product of two ragged sizes")
        return RaggedNode(self.t_id, self.coeff * other.constant_int())

    def _is_at_least(self, other: Any) -> bool:
        """Whether it is not less than another one, which is so of 2 and less."""
        if isinstance(other, NestedIntNode) and other.t_id == self.t_id:
            if isinstance(self.coeff, int) and isinstance(other.coeff, int):
                return self.coeff >= other.coeff
        elif not isinstance(other, NestedIntNode):
            known = other.constant_int()
            if known is not None and known <= 2:
                return True
        raise unsupported("nested-tensor", "whether a ragged size is less than another")

    def gt(self, other: Any) -> Any:
        return self.ge(other) if not isinstance(other, NestedIntNode) else other.lt(self)

    def le(self, other: Any) -> Any:
        if isinstance(other, NestedIntNode):
            return other.ge(self)
        return self.lt(other)

    def ge(self, other: Any) -> Any:
        return constant_bool_node(self._is_at_least(other))

    def lt(self, other: Any) -> Any:
        return constant_bool_node(not self._is_at_least(other))


def _plain(expr: Expr) -> int | Expr:
    known = expr.constant
    return expr if known is None else known


def note_ragged(tensor: Any) -> None:
    """Gives a fake that may be the offsets or the lengths of rows a nested integer of this kind."""
    if type(tensor) is FakeTensor and _may_have_one(tensor) and tensor not in nested_ints:
        number = nested_int_of(tensor).node.t_id
        nested_ints[tensor] = torch.SymInt(RaggedNode(number, 1))


def _may_have_one(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _DTYPES and tensor.dim() == 1


_DTYPES = frozenset({torch.int64, torch.int32})


def is_noted(tensor: Any) -> bool:
    """Whether a nested integer has been asked of a fake."""
    return why_off(NESTED) is None and _may_have_one(tensor) and tensor in nested_ints


def ragged_identity(tensor: torch.Tensor) -> Any:
    """What is the same for two tensors only if their nested integers are equal."""
    known = nested_ints.get(tensor)
    return tensor if known is None else known.node
