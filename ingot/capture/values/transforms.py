"""torch.vmap: the Python of it is inlined. Its levels are entered for real while capture runs, as modes are, so that
the shapes inside are those of one example; and by the graph, which calls the same functions of torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._functorch import predispatch, vmap

from ingot.capture.session import SPECIAL_FUNCTIONS
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.builtins import rule
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from ingot.capture.session import Session

_C: Any = torch._C._functorch


class LevelValue(Value):
    """The number of a level of vmap: which one it is depends on the levels around the call."""

    __slots__ = ("fake", "fx_node")

    def __init__(self, level: int, node: fx.Node) -> None:
        super().__init__()
        self.fake, self.fx_node = level, node

    def python_type(self) -> type:
        return int

    def argument(self, leaf: Callable[[Value], Any]) -> Any:
        return leaf(self)


def mapped(
    level: Any, func: Any, batch_size: Any, in_dims: Any, args: Any, spec: Any, out_dims: Any, kwargs: Any
) -> Any:
    """Inlined: what torch's `_flat_vmap` does inside a level."""
    batched = vmap._create_batched_inputs(in_dims, args, level, spec)
    return vmap._unwrap_batched(func(*batched, **kwargs), out_dims, level, batch_size, func)


def _flat_vmap(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    func, batch_size, in_dims, flat_args, spec, out_dims, randomness = args
    size, randomness = session.known(batch_size), session.known(randomness)
    level = _C._vmap_increment_nesting(size, randomness)
    try:
        node = session.graph.switch(session, _C._vmap_increment_nesting, size, randomness)
        inner = [LevelValue(level, node), func, batch_size, in_dims, flat_args, spec, out_dims]
        return session.call(session.builtin(mapped), [*inner, session.dict_of_values(kwargs)], {})
    finally:
        _C._vmap_decrement_nesting()
        session.graph.switch(session, _C._vmap_decrement_nesting)


def _load_decompositions(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    predispatch.lazy_load_decompositions()
    return NONE


def _operation(function: Callable[..., Any]) -> Callable[..., Value]:
    def call(session: Session, args: Arguments, kwargs: Keywords) -> Value:
        values = tuple(session.deep(arg) for arg in args)
        return session.graph.call(session, "call_function", function, values, kwargs)

    return call


@rule(_C.is_batchedtensor)
def is_batchedtensor(session: Session, tensor: Value) -> Value:
    return ConstantValue(isinstance(tensor, TensorValue) and _C.is_batchedtensor(tensor.fake))


SPECIAL_FUNCTIONS[vmap._flat_vmap] = _flat_vmap
SPECIAL_FUNCTIONS[predispatch.lazy_load_decompositions] = _load_decompositions
SPECIAL_FUNCTIONS[predispatch._add_batch_dim] = _operation(_C._add_batch_dim)
SPECIAL_FUNCTIONS[predispatch._remove_batch_dim] = _operation(_C._remove_batch_dim)
