"""Every op of torch.testing's database on the device, compiled and in eager."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import ingot
from tests.gpu.checks import copied
from tests.op_database import UNDEFINED, op_infos
from tests.oracle import ignore_warnings, relative_error, tensors_in

SHARDS = 32
SAMPLES = 2  # of each op and dtype
SHARE = {torch.float32: 1e-3, torch.bfloat16: 3e-2}  # of the numbers' norm that an error may be

_SEEDS = "the state of the random numbers, of which it draws none, is not defined"
_LAYOUT = "the results lie as they do on a CPU"
EXCEPTIONS = {
    "torch.ops.aten._efficient_attention_forward": _SEEDS,
    "torch.ops.aten._flash_attention_forward": _SEEDS,
    "svd_lowrank": _LAYOUT,
    "pca_lowrank": _LAYOUT,
    "fft.rfftn": _LAYOUT,
    "linalg.eig": _LAYOUT,
    "native_batch_norm": "has room for statistics in inference, which nobody fills",
}


def difference(op: Any, call: tuple[Any, ...], dtype: torch.dtype) -> str | None:
    """What tells the compiled op from eager's; None where nothing does, or eager raises an
    error."""

    def fn(input: Any, args: Any, kwargs: Any) -> Any:
        return op(input, *args, **kwargs)

    leaves, structure = pytree.tree_flatten(call)
    try:
        expected_args, found_args = (
            pytree.tree_unflatten(copied(leaves), structure) for _ in range(2)
        )
        torch.manual_seed(0)
        expected = fn(*expected_args)
    except Exception:
        return None
    torch.manual_seed(0)
    try:
        found = ingot.compile(fn)(*found_args)
    except Exception as problem:
        return f"raised {type(problem).__name__}: {problem}"[:300]
    if pytree.tree_structure(expected) != pytree.tree_structure(found):
        return "another structure"
    ours, eagers = tensors_in([found, found_args]), tensors_in([expected, expected_args])
    for a, b in zip(ours, eagers, strict=True):
        if (a.dtype, a.shape, a.device) != (b.dtype, b.shape, b.device):
            return f"{(a.dtype, a.shape, a.device)} for {(b.dtype, b.shape, b.device)}"
        if a.layout is not torch.strided:
            continue
        if any(
            size > 1 and one != other for size, one, other in zip(a.shape, a.stride(), b.stride())
        ):
            return f"strides {a.stride()} for {b.stride()}"
        a, b = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (a, b))
        if not a.is_floating_point():
            if not torch.equal(a, b):
                return f"{int((a != b).sum())} of {a.numel()} {a.dtype} differ"
        elif not torch.equal(a.isnan(), b.isnan()):
            return "NaN elsewhere"
        elif (wrong := relative_error([a], [b])) > SHARE[dtype]:
            return f"an error of {wrong:.2g}"
    return None


@pytest.mark.parametrize("dtype", SHARE, ids=str)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_ops(shard: int, dtype: torch.dtype) -> None:
    wrong = {}
    for name, info in list(op_infos().items())[shard::SHARDS]:
        if name in UNDEFINED or name in EXCEPTIONS or dtype not in info.supported_dtypes("cuda"):
            continue
        with warnings.catch_warnings(), torch.no_grad():
            ignore_warnings()
            for k, sample in zip(
                range(SAMPLES), info.sample_inputs("cuda", dtype, requires_grad=False)
            ):
                found = difference(
                    info.op, (sample.input, tuple(sample.args), dict(sample.kwargs)), dtype
                )
                if found is not None:
                    wrong[name, k] = found
        ingot.reset()
    assert not wrong
