"""Calls of functions of NumPy's whose code asks what elements are, as ops. The types and sizes of
their results do not depend on elements."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ingot.graph.arrays.calls import Look, as_tensors
from ingot.graph.arrays.dtypes import NUMPY_DTYPES, TORCH_DTYPES
from ingot.torch_private import OpOverload

FUNCTIONS: dict[str, Any] = {
    "median": np.median,
    "quantile": np.quantile,
    "percentile": np.percentile,
    "nanmedian": np.nanmedian,
    "nanquantile": np.nanquantile,
    "nanpercentile": np.nanpercentile,
    "histogram": np.histogram,
    "histogram2d": np.histogram2d,
    "i0": np.i0,
    "nanmean": np.nanmean,
    "nanstd": np.nanstd,
    "nanvar": np.nanvar,
    "nanmax": np.nanmax,
    "nanmin": np.nanmin,
    "nanargmax": np.nanargmax,
    "nanargmin": np.nanargmin,
    "unravel_index": np.unravel_index,
    "ravel_multi_index": np.ravel_multi_index,
    "cond": np.linalg.cond,
    "qr": np.linalg.qr,
    "choose": np.choose,
    "interp": np.interp,
    "digitize": np.digitize,
    "partition": np.partition,
    "argpartition": np.argpartition,
    "lexsort": np.lexsort,
    "vander": np.vander,
    "isin": np.isin,
}

_library = torch.library.Library("ingot", "FRAGMENT")
_ARGUMENTS = "str function, str arguments, Tensor[] operands"
_library.define(f"numpy_call({_ARGUMENTS}) -> Tensor")
_library.define(f"numpy_call_2({_ARGUMENTS}) -> (Tensor, Tensor)")
_library.define(f"numpy_call_3({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)")


class Results(NamedTuple):
    """What a call gives. `cls`: the type of the tuple; None for a single result."""

    cls: type | None
    looks: tuple[Look, ...]
    are_numbers: tuple[bool, ...]


def with_arrays(tree: Any, arrays: Sequence[Any]) -> Any:
    """Arguments in which `{k: None}` stands for the array at this position."""
    if isinstance(tree, dict):
        (place,) = tree
        return arrays[place]
    if isinstance(tree, (tuple, list)):
        return type(tree)(map(functools.partial(with_arrays, arrays=arrays), tree))
    return tree


def _called(function: str, arguments: str, arrays: Sequence[Any]) -> Any:
    args, kwargs = ast.literal_eval(arguments)
    named = {}
    for name, value in kwargs:
        named[name] = with_arrays(value, arrays)
    return FUNCTIONS[function](*with_arrays(args, arrays), **named)


@functools.lru_cache(1024)
def results_of(
    function: str, arguments: str, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[Any, ...]
) -> Results:
    """What a call gives for arrays of these shapes and types of torch. Raises what NumPy raises."""
    arrays = []
    for shape, dtype in zip(shapes, dtypes):
        arrays.append(np.zeros(shape, NUMPY_DTYPES[dtype]))
    with np.errstate(all="ignore"):
        given = _called(function, arguments, arrays)
    cls = type(given)
    if not isinstance(given, tuple):
        given, cls = (given,), None  # type: ignore[assignment]
    looks, are_numbers = [], []
    for result in given:
        looks.append((list(result.shape), TORCH_DTYPES[result.dtype]))
        are_numbers.append(isinstance(result, np.generic))
    return Results(cls, tuple(looks), tuple(are_numbers))


def _run(function: str, arguments: str, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
    results = _called(function, arguments, list(map(Tensor.numpy, operands)))
    if not isinstance(results, tuple):
        results = (results,)
    return as_tensors(results)


def _first(*args: Any) -> Tensor:
    return _run(*args)[0]


_library.impl("numpy_call", _first, "CompositeExplicitAutograd")
_library.impl("numpy_call_2", _run, "CompositeExplicitAutograd")
_library.impl("numpy_call_3", _run, "CompositeExplicitAutograd")

BY_RESULTS: dict[int, OpOverload] = {
    1: torch.ops.ingot.numpy_call.default,
    2: torch.ops.ingot.numpy_call_2.default,
    3: torch.ops.ingot.numpy_call_3.default,
}
"""By the number of results."""
