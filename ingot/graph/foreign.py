"""Ops of libraries and users, on fakes.

An op's registered fake says what its results are like, and is believed. The op itself never runs
while a program is compiled. Where no fake is registered, the graph breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.errors import CompilerBug, Unsupported, unsupported
from ingot.graph.data_dependent import LARGEST, bound_by
from ingot.graph.meta import first_line, returned_types, tensors_in
from ingot.loops.side_effects import is_foreign
from ingot.sequences import present
from ingot.torch_private import OpOverload, library_registry, set_ctx_getter, triton_ops_to_kernels

if TYPE_CHECKING:
    from ingot.graph.fake_context import FakeContext


_TRITON_KERNELS: dict[str, Any] = {}
if isinstance(triton_ops_to_kernels, dict):
    _TRITON_KERNELS = triton_ops_to_kernels


def gives_nothing(op: OpOverload) -> bool:
    """Whether it is a foreign op that is called for what it does alone."""
    return is_foreign(op) and not op._schema.returns and not op._schema.is_mutable


def has_python_fake(op: OpOverload) -> bool:
    """Whether it is a foreign op, neither in place nor a view, with a fake in Python."""
    if not is_foreign(op) or any(a.alias_info for a in op._schema.arguments):
        return False
    return _registered(op) is not None


def _registered(op: OpOverload) -> Callable[..., Any] | None:
    entry = library_registry._data.get(op.name())
    if entry is None:
        return None
    return entry.fake_impl.kernel


def by_python_fake(
    context: FakeContext, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of the function that was registered with `register_fake`, on the fakes
    themselves."""
    function, unbacked = _registered(op), context.shapes.unbacked
    assert function is not None
    if _TRITON_KERNELS.get(op._schema.name):  # its fake is the function that launches them
        raise unsupported("custom-op-result", f"{op} launches Triton kernels")
    arguments = tensors_in((args, kwargs))
    on_cpu = all(t.device.type == "cpu" for t in arguments)
    before = len(unbacked.bound)
    try:
        with context, torch.no_grad(), set_ctx_getter(lambda: Sizes(context, op, on_cpu)):
            result = _as_declared(op, function(*args, **kwargs))
    except (Unsupported, CompilerBug):
        raise
    except Exception as error:
        raise unsupported("custom-op-fake", f"the fake of {op} raises {_text(error)}") from error
    _check_memory(op, arguments, tensors_in(result))
    _check_sizes(op, result, unbacked.bound[before:])
    return result


def _as_declared(op: OpOverload, result: Any) -> Any:
    """The results in the form that the schema says. Raises Unsupported for what is neither a tensor
    nor a list or tuple of tensors."""
    returns = returned_types(op)
    if len(returns) == 1 and returns[0].startswith("List"):
        return list(result)
    results = tuple(result) if len(returns) > 1 else (result,)
    are_tensors = all(isinstance(t, Tensor) for t in present(results))
    if len(results) != len(returns) or not are_tensors:
        raise unsupported("custom-op-result", f"the fake of {op} gives other things than the op")
    if len(returns) > 1:
        return results
    return results[0]


def _check_memory(op: OpOverload, arguments: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Refuse results that are no fakes, and those that share memory, which the schema denies."""
    if not all(isinstance(getattr(t, "meta", None), Tensor) for t in results):
        raise unsupported(
            "custom-op-result", f"the fake of {op} gives a tensor that it has not made"
        )
    keys = set(map(_memory_of, results))
    others = set()
    for t in arguments:
        if hasattr(t, "meta"):
            others.add(_memory_of(t))
    if len(keys) < len(results) or not keys.isdisjoint(others):
        raise unsupported(
            "custom-op-result", f"the fake of {op} gives memory that is another tensor's as well"
        )


def _memory_of(fake: Any) -> int:
    memory: int = fake.meta.untyped_storage()._cdata
    return memory


def _check_sizes(op: OpOverload, result: Any, symbols: Sequence[Any]) -> None:
    """Refuse unbacked symbols that are no size of a result."""
    try:
        bound_by(result, symbols)
    except CompilerBug as problem:
        raise unsupported(
            "custom-op-result", f"the fake of {op} makes a size that no result has"
        ) from problem


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


class Sizes:
    """What `torch.library.get_ctx()` gives in such a function: it makes unbacked symbols."""

    def __init__(self, context: FakeContext, op: OpOverload, on_cpu: bool) -> None:
        self._context, self._op, self._on_cpu = context, op, on_cpu

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> torch.SymInt:
        shapes = self._context.shapes
        if not (shapes.unbacked.enabled and self._on_cpu):
            raise unsupported(
                "data-asked",
                f"the result of {self._op}, which depends on a tensor's data is asked for",
            )
        return shapes.decided_by_data(min, LARGEST if max is None else max)

    create_unbacked_symint = new_dynamic_size
