"""Calls of NumPy itself, as ops: of universal functions that torch does not have, or computes
otherwise, such as those of numpy.linalg. Their results, errors and warnings are NumPy's."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ingot.graph.arrays.dtypes import NUMPY_DTYPES, TORCH_DTYPES
from ingot.graph.arrays.private import LINEAR_ALGEBRA_ERRORS, module_of
from ingot.torch_private import OpOverload

_library = torch.library.Library("ingot", "FRAGMENT")
_ARGUMENTS = "str module, str name, str signature, str handler, Tensor[] operands"
_ALONG = "str module, str name, Tensor operand, Tensor factor, int dim, SymInt size"
_library.define(f"numpy_ufunc({_ARGUMENTS}) -> Tensor")
_library.define(f"numpy_ufunc_2({_ARGUMENTS}) -> (Tensor, Tensor)")
_library.define(f"numpy_ufunc_3({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)")
_library.define(f"numpy_ufunc_4({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define(f"numpy_along({_ALONG}, ScalarType dtype) -> Tensor")


@functools.cache
def ufunc_of(module: str, name: str) -> Any:
    """The universal function of this name."""
    return getattr(module_of(module), name)


def _dtypes(ufunc: Any, signature: str, operands: Sequence[Tensor]) -> list[torch.dtype]:
    """The types of the results."""
    dtypes: list[Any] = []
    for operand in operands:
        dtypes.append(NUMPY_DTYPES[operand.dtype])
    named = {"signature": signature} if signature else {}
    loop = ufunc.resolve_dtypes((*dtypes, *[None] * ufunc.nout), **named)
    results = []
    for dtype in loop[ufunc.nin :]:
        results.append(TORCH_DTYPES[dtype])
    return results


def core_sizes(ufunc: Any, operands: Sequence[Any]) -> list[list[Any]]:
    """The sizes of the results, by the function's signature. Raises ValueError where those of the
    operands do not go together."""
    signature = ufunc.signature or ",".join(["()"] * ufunc.nin) + "->" + ",".join(
        ["()"] * ufunc.nout
    )  # fmt: skip
    before, after = signature.replace(" ", "").split("->")
    sizes: dict[str, Any] = {}
    loops = []
    for core, operand in zip(_cores(before), operands):
        rank = operand.dim() - len(core)
        if rank < 0:
            raise ValueError(f"{ufunc.__name__}: an operand does not have enough dimensions")
        loops.append(tuple(operand.shape[:rank]))
        for name, size in zip(core, operand.shape[rank:]):
            if sizes.setdefault(name, size) != size:
                raise ValueError(f"{ufunc.__name__}: operands do not go together")
    if "p" not in sizes and "m" in sizes and "n" in sizes:
        sizes["p"] = min(sizes["m"], sizes["n"])
    loop = torch.broadcast_shapes(*loops)
    results = []
    for core in _cores(after):
        results.append([*loop, *map(sizes.__getitem__, core)])
    return results


def _cores(signature: str) -> list[list[str]]:
    cores = []
    for core in re.findall(r"\((.*?)\)", signature):
        cores.append(list(filter(None, core.split(","))))
    return cores


Look = tuple[list[Any], torch.dtype]
"""Sizes and type of a result."""


def looks(
    module: str, name: str, signature: str, handler: str, operands: Sequence[Tensor]
) -> list[Look]:
    """What the results of a call are like."""
    ufunc = ufunc_of(module, name)
    return list(zip(core_sizes(ufunc, operands), _dtypes(ufunc, signature, operands)))


def _run(
    module: str, name: str, signature: str, handler: str, operands: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    ufunc = ufunc_of(module, name)
    named = {"signature": signature} if signature else {}
    arrays = map(Tensor.numpy, operands)
    if handler:
        call = getattr(module_of(LINEAR_ALGEBRA_ERRORS), handler)
        with np.errstate(call=call, invalid="call", over="ignore", divide="ignore", under="ignore"):
            results = ufunc(*arrays, **named)
    else:
        results = ufunc(*arrays, **named)
    if not isinstance(results, tuple):
        results = (results,)
    return as_tensors(results)


def as_tensors(results: Sequence[Any]) -> tuple[Tensor, ...]:
    """What NumPy gave, in rows."""
    return tuple(map(_as_tensor, results))


def _as_tensor(result: Any) -> Tensor:
    # which makes rank 1 of rank 0
    return torch.from_numpy(np.ascontiguousarray(result).reshape(result.shape))


def look_along(
    module: str,
    name: str,
    operand: Tensor,
    factor: Tensor,
    dim: int,
    size: int,
    dtype: torch.dtype,
) -> Look:
    """The same of a call along one dimension."""
    sizes = list(operand.shape)
    sizes[dim] = size
    return sizes, dtype


def _run_along(
    module: str,
    name: str,
    operand: Tensor,
    factor: Tensor,
    dim: int,
    size: int,
    dtype: torch.dtype,
) -> Tensor:
    sizes, _ = look_along(module, name, operand, factor, dim, size, dtype)
    result = torch.empty(sizes, dtype=dtype)
    axes = [(dim,), (), (dim,)]
    ufunc_of(module, name)(operand.numpy(), factor.numpy(), axes=axes, out=result.numpy())
    return result


def _first(*args: Any) -> Tensor:
    return _run(*args)[0]


_NAMES = ("numpy_ufunc", "numpy_ufunc_2", "numpy_ufunc_3", "numpy_ufunc_4")
for _name in _NAMES:
    _library.impl(_name, _first if _name == _NAMES[0] else _run, "CompositeExplicitAutograd")
_library.impl("numpy_along", _run_along, "CompositeExplicitAutograd")

BY_RESULTS: dict[int, OpOverload] = {}
"""By the number of results."""
for _count, _name in enumerate(_NAMES, 1):
    BY_RESULTS[_count] = getattr(torch.ops.ingot, _name).default

along: OpOverload = torch.ops.ingot.numpy_along.default
