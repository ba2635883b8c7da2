"""What eager itself says of an op. It gives the dtypes of its results, from one-element tensors of
the same dtypes and ranks. For an op of no known family it gives their geometry as well, from real
tensors of the real sizes."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ingot.errors import EagerRaises, Unsupported, unsupported
from ingot.graph import geometry
from ingot.graph.meta.basis import all_at_hand, first_line, fresh, map_tensors, tensors_in
from ingot.graph.schemas import bind, is_random
from ingot.loops.side_effects import acts
from ingot.reasons import SKIP
from ingot.sequences import Args, Kwargs, map_leaves
from ingot.torch_private import (
    OpOverload,
    aten,
    dispatch_has_kernel_for_dispatch_key,
    shape_rules,
    tree_map_only,
)

# arguments that hold LAPACK's row numbers, which it does not check
_COUNTED_FROM_ONE = ("pivots", "LU_pivots")
_PROBE_LIMIT = 1 << 28  # elements that a real run for the sake of its result's geometry may take
_WORTH_PROBING = 1 << 24  # where there is a rule as well, which knows less of the layout
# where a CPU would run what a GPU is to run: 256 x 256, whose product takes milliseconds
_WORTH_STANDING_IN = 1 << 16
# numbers that types hold
_LARGEST = (127, 255, 32767, 65504, 2**31 - 1, torch.finfo(torch.float32).max)
_dtypes: dict[Any, tuple[torch.dtype, ...]] = {}
_copied: dict[Any, bool] = {}


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.dim()
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    if isinstance(value, (bool, str, torch.dtype)) or value is None:
        return value
    if isinstance(value, (int, float)):  # eager raises an error for one that a type cannot hold
        return type(value), bisect_left(_LARGEST, abs(value)) if math.isfinite(value) else 0
    return type(value)


def kinds(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """What the dtypes of the results depend on, and whether there are any."""
    return (
        op,
        _key(args),
        tuple([(k, _key(v)) for k, v in kwargs.items()]),
        torch.get_default_dtype(),
    )


def dtypes(op: OpOverload, args: Args, kwargs: Kwargs, extent: int = 1) -> tuple[torch.dtype, ...]:
    """The dtypes of the op's results for arguments of these dtypes and ranks, run on tensors of
    size `extent`."""
    key = kinds(op, args, kwargs)
    if key not in _dtypes:
        results = tensors_in(_run_small(op, args, kwargs, extent))
        _dtypes[key] = tuple([t.dtype for t in results])
    return _dtypes[key]


def dtype_of(op: OpOverload, args: Args, kwargs: Kwargs) -> torch.dtype:
    return dtypes(op, args, kwargs)[0]


def is_copied(op: OpOverload, args: Args, kwargs: Kwargs, operand: Tensor) -> bool:
    """Whether a CPU casts an operand of a pointwise op before it asks how the operands lie.

    A cast copies, and the copy of an expanded tensor has an order of its own. It is tried out with
    the operand expanded, and with dense columns of those that are asked after it: they decide the
    layout of the result, unless the operand is a copy.
    """
    position = [*map(id, tensors_in((args, kwargs)))].index(id(operand))
    key = kinds(op, args, kwargs), position
    if key not in _copied:
        _copied[key] = _is_copied(op, args, kwargs, operand)
    return _copied[key]


def _is_copied(op: OpOverload, args: Args, kwargs: Kwargs, operand: Tensor) -> bool:
    is_reached = op in geometry.LAST_FIRST

    def laid(t: Tensor) -> Tensor:
        nonlocal is_reached
        if t is operand:
            is_reached = not is_reached
            return torch.ones((2, 1), dtype=t.dtype).expand(2, 3)
        if not t.dim():
            return torch.ones((), dtype=t.dtype)
        if is_reached:
            return torch.ones((3, 2), dtype=t.dtype).t()
        return torch.ones((1, 1), dtype=t.dtype)  # asked earlier, it has no order

    try:
        args, kwargs = map_tensors(laid, args), map_tensors(laid, _on_cpu(kwargs))
        with warnings.catch_warnings(action="ignore"):  # ldexp's, of its own result
            return bool(op(*map_leaves(_concrete, args), **kwargs).is_contiguous())
    except _REFUSALS:
        return False


def _run_small(op: OpOverload, args: Args, kwargs: Kwargs, extent: int) -> Any:
    _refuse_effects(op)

    def small(t: Tensor) -> Tensor:
        return torch.ones((extent,) * t.dim(), dtype=t.dtype, device="cpu")

    kwargs = _on_cpu(kwargs)
    try:
        with _undrawn(op):
            concrete_args = map_leaves(_concrete, map_tensors(small, args))
            return op(*concrete_args, **map_tensors(small, kwargs))
    except _REFUSALS as error:
        if extent and first_line(error) == "ZeroDivisionError":  # of an element; there may be none
            return _run_small(op, args, kwargs, 0)
        if extent == 1:  # a single element may have a kernel of its own, which knows fewer dtypes
            return _run_small(op, args, kwargs, 2)
        raise EagerRaises(
            f"{op} does not take these arguments in eager: {first_line(error)}"
        ) from error


def _concrete(value: Any) -> Any:
    return 1 if isinstance(value, (torch.SymInt, torch.SymFloat)) else value


_REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
"""What eager raises for arguments that an op does not take."""


def _on_cpu(kwargs: Kwargs) -> dict[str, Any]:
    """The arguments, with a CPU in place of any device."""
    cpu = torch.device("cpu")
    result = {}
    for k, v in kwargs.items():
        result[k] = cpu if isinstance(v, torch.device) else v
    return result


def _refuse_effects(op: OpOverload) -> None:
    """An op that does more than to give its results runs when the program runs it."""
    if acts(op):
        raise unsupported("no-shape-rule", f"{op} has no shape rule, and cannot be tried out")


@contextmanager
def _undrawn(op: OpOverload) -> Iterator[None]:
    """Puts back what a trial of the op takes from torch's generator."""
    if not is_random(op):
        yield
        return
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def probe(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The geometry of what the op gives when it is run for real, on made-up values."""
    if not all(map(geometry.is_static, tensors_in((args, kwargs)))):
        raise unsupported("no-symbolic-rule", f"{op} has no rule for symbolic sizes")
    # which the geometry may depend on: guarded
    args, kwargs = tree_map_only(torch.SymInt, int, (args, kwargs))
    return map_tensors(lambda t: fresh(t.shape, t.dtype, t.stride()), tried_out(op, args, kwargs))


def stand_in(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The geometry of what the op gives on a GPU: a CPU's if it is small, else torch's prediction,
    if there is one.

    How long a real run takes on a CPU is not bounded by how long it takes on a GPU: a product of
    two 4096 x 4096 matrices of float8 takes minutes.
    """
    if not dispatch_has_kernel_for_dispatch_key(op.name(), "Meta"):
        return probe(op, args, kwargs)
    if _elements(tensors_in((args, kwargs))) > _WORTH_STANDING_IN:
        return torchs_own(op, args, kwargs)
    try:
        return probe(op, args, kwargs)
    except Unsupported:  # a CPU does not take all that a GPU takes, as scales of rows
        return torchs_own(op, args, kwargs)


def is_worth_probing(tensors: Iterable[Tensor]) -> bool:
    return _elements(tensors) <= _WORTH_PROBING


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(math.prod(all_at_hand(t.shape)) for t in tensors)


def tried_out(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """What the op gives for made-up values; symbolic sizes are what they are in the present
    call."""
    _refuse_effects(op)
    tensors, returns = tensors_in((args, kwargs)), op._schema.returns
    if tensors and returns and not any("Tensor" in str(result.type) for result in returns):
        data_dependent(op, args, kwargs)
    if op._schema.name.startswith("aten::_nested_"):
        raise unsupported("nested-tensor", f"{op} has to do with nested tensors", action=SKIP)
    if _elements(tensors) > _PROBE_LIMIT:
        raise unsupported(
            "no-shape-rule", f"{op} has no shape rule and is too large to be tried out"
        )

    bound = bind(op, args, kwargs)
    ones = []
    for name in _COUNTED_FROM_ONE:
        ones.append(id(bound.get(name)))

    def filled(t: Tensor) -> Tensor:
        sizes, strides = all_at_hand(t.shape), all_at_hand(t.stride())
        real = torch.empty_strided(sizes, strides, dtype=t.dtype, device="cpu")
        return real.fill_(t.is_floating_point() or t.is_complex() or id(t) in ones)

    try:
        with _undrawn(op):
            kwargs = map_tensors(filled, _on_cpu(kwargs))
            return op(*all_at_hand(map_tensors(filled, args)), **kwargs)
    except _REFUSALS as error:
        raise unsupported(
            "no-shape-rule", f"{op} cannot be tried out on made-up values: {first_line(error)}"
        ) from error


def runs_on_cpu(op: OpOverload) -> bool:
    """Whether the op can be tried out. What only GPUs have, such as their attention, has a shape
    rule of torch's."""
    keys = (
        "CPU",
        "CompositeImplicitAutograd",
        "CompositeExplicitAutograd",
        "CompositeExplicitAutogradNonFunctional",
    )
    has_kernel = dispatch_has_kernel_for_dispatch_key
    return any(has_kernel(op.name(), key) for key in keys) or not has_kernel(op.name(), "CUDA")


class _Layouts(TorchFunctionMode):
    """Says how a tensor like another lies, where torch's shape rules ask. Torch's own answer
    imports SymPy, which takes a second or two."""

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Any = None) -> Any:
        if func is torch.empty_like and len(args) == 1 and not kwargs:
            (like,) = args
            return like.new_empty_strided(like.shape, geometry.preserved(like))
        return func(*args, **(kwargs or {}))


def torchs_own(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """What torch predicts of an op that cannot be tried out here."""
    rule = shape_rules.get(op, op) if isinstance(shape_rules, dict) else op
    try:
        with _Layouts():
            return rule(*args, **kwargs)
    except NotImplementedError as error:
        raise unsupported("no-shape-rule", f"{op} has no shape rule") from error


def data_dependent(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    what = "a Python value that depends on"
    if op is not aten._local_scalar_dense.default:
        what = f"the result of {op}, which depends on"
    raise unsupported("data-asked", f"{what} the data of a tensor")
