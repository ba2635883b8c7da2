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
from ingot.graph.dispatch_mode import Mode
from ingot.graph.fake_ops import run_fake
from ingot.graph.fakes import requires_grad
from ingot.graph.meta import first_line, returned_types, tensors_in
from ingot.graph.schemas import bind, is_mutable, written
from ingot.loops.functional_ops import flattened
from ingot.loops.side_effects import is_foreign
from ingot.sequences import Args, Kwargs, are_present, at, present
from ingot.torch_private import (
    OpOverload,
    dispatch_has_kernel_for_dispatch_key,
    library_registry,
    set_ctx_getter,
)

if TYPE_CHECKING:
    from ingot.graph.fake_context import FakeContext


class _WithoutLaunches(Mode):
    """A mode in which Triton kernels are not launched: the fake of a `triton_op` is the function
    that launches them."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(op, OpOverload):
            return op(*args, **(kwargs or {}))
        return None


def result_of(context: FakeContext, op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """What a foreign op gives for fakes."""
    result: Any
    if _is_view(op):
        raise unsupported("custom-op-result", f"{op} gives a view of an argument")
    if not op._schema.returns:
        result = None
    elif _returns_arguments(op):
        result, _ = _with_arguments(op, args, kwargs, None)
    elif _registered(op) is not None:
        result = _by_python_fake(context, op, args, kwargs)
    else:
        result = run_fake(op, args, kwargs, context.shapes)
        result, _ = _with_arguments(op, args, kwargs, result)
    _refuse_gradients(op, args, kwargs, result)
    return result


def _refuse_gradients(op: OpOverload, args: Args, kwargs: Kwargs, result: Any) -> None:
    """Raise Unsupported where eager differentiates what an op does, of which a graph knows
    nothing."""
    given = tensors_in((args, kwargs))
    if not torch.is_grad_enabled() or not any(map(requires_grad, given)):
        return
    changed = [*tensors_in(result), *written_by(op, args, kwargs)]
    if _has_formula(op, given[0].device.type) or not any(map(_is_differentiable, changed)):
        return
    raise unsupported(
        "custom-op-gradient", f"{op} has no autograd formula, and is given what requires gradients"
    )


def _is_differentiable(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _has_formula(op: OpOverload, device: str) -> bool:
    for key in ("Autograd", f"Autograd{device.upper()}"):
        if dispatch_has_kernel_for_dispatch_key(op.name(), key):
            return True
    return False


def writes(op: OpOverload) -> bool:
    """Whether it is a foreign op that writes its arguments."""
    return is_mutable(op) and is_foreign(op)


def written_by(op: OpOverload, args: Args, kwargs: Kwargs) -> list[Tensor]:
    """The tensors that a call of an op writes."""
    if not is_mutable(op):
        return []
    return tensors_in(at(bind(op, args, kwargs), written(op)))


def _is_view(op: OpOverload) -> bool:
    """Whether an op gives a view of an argument that it does not write."""
    for argument in op._schema.arguments:
        if argument.alias_info is not None and not argument.alias_info.is_write:
            return True
    return False


def _returns_arguments(op: OpOverload) -> bool:
    """Whether each result of an op is an argument that it writes."""
    for result in op._schema.returns:
        if result.alias_info is None or not result.alias_info.before_set:
            return False
    return True


def _written_results(op: OpOverload, args: Args, kwargs: Kwargs) -> list[Any]:
    """Of each result of an op: the argument that it is, which the op writes; None for others."""
    bound, by_alias = bind(op, args, kwargs), {}
    for argument in op._schema.arguments:
        alias = argument.alias_info
        if alias is not None and alias.is_write:
            by_alias[frozenset(alias.before_set)] = bound[argument.name]
    results: list[Any] = []
    for result in op._schema.returns:
        alias = result.alias_info
        if alias is None or not alias.before_set:
            results.append(None)
        else:
            results.append(by_alias[frozenset(alias.before_set)])
    return results


def _registered(op: OpOverload) -> Callable[..., Any] | None:
    entry = library_registry._data.get(op.name())
    if entry is None:
        return None
    return entry.fake_impl.kernel


def _by_python_fake(
    context: FakeContext, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of the function that was registered with `register_fake`, on the fakes
    themselves."""
    function, unbacked = _registered(op), context.shapes.unbacked
    assert function is not None
    arguments = tensors_in((args, kwargs))
    on_cpu = all(t.device.type == "cpu" for t in arguments)
    before = len(unbacked.bound)
    try:
        with (
            context,
            _WithoutLaunches(),
            torch.no_grad(),
            set_ctx_getter(lambda: Sizes(context, op, on_cpu)),
        ):
            result = _as_declared(op, function(*args, **kwargs))
    except (Unsupported, CompilerBug):
        raise
    except Exception as error:
        raise unsupported("custom-op-fake", f"the fake of {op} raises {_text(error)}") from error
    result, own = _with_arguments(op, args, kwargs, result)
    _check_memory(op, arguments, own)
    _check_sizes(op, own, unbacked.bound[before:])
    return result


def _with_arguments(
    op: OpOverload, args: Args, kwargs: Kwargs, result: Any
) -> tuple[Any, list[Tensor]]:
    """The results of an op with the arguments that it says it returns, and those that are none."""
    arguments = _written_results(op, args, kwargs)
    if not any(are_present(arguments)):
        return result, tensors_in(result)
    if len(arguments) == 1:
        return arguments[0], []
    results, own = [], []
    for given, argument in zip(result or arguments, arguments):
        if argument is None:
            own.append(given)
            argument = given
        results.append(argument)
    return tuple(results), tensors_in(own)


def _as_declared(op: OpOverload, result: Any) -> Any:
    """The results in the form that the schema says. Raises Unsupported for what is neither a tensor
    nor a list or tuple of tensors."""
    returns = returned_types(op)
    if not returns:
        return None
    if len(returns) > 1:
        results = tuple(result)
    else:
        results = (result,)
    declared = []
    for item, kind in zip(results, returns):
        declared.append(list(item) if kind.startswith("List") else item)
    are_tensors = all(isinstance(t, Tensor) for t in present(list(flattened(declared))))
    if len(results) != len(returns) or not are_tensors:
        raise unsupported("custom-op-result", f"the fake of {op} gives other things than the op")
    if len(returns) > 1:
        return tuple(declared)
    return declared[0]


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
                "the answer depends on the data of a tensor",
            )
        return shapes.decided_by_data(min, LARGEST if max is None else max)

    create_unbacked_symint = new_dynamic_size
