"""The gradients of every differentiable op of torch.testing's database on the device, compiled and
in eager.

`python -m tests.gpu.test_op_gradients SHARD SECONDS` prints what differs in one of the shards.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import ingot
from tests.gpu.checks import copied
from tests.gpu.test_op_database import EXCEPTIONS, SHARDS, SHARE
from tests.op_database import UNDEFINED, op_infos
from tests.op_gradients import dense, drawn_like, tracked
from tests.oracle import doubled, ignore_warnings, relative_error

SAMPLES = 2  # of each op and dtype


def taken(
    function: Any, sample: Any, given: list[Any], structure: Any
) -> tuple[list[torch.Tensor], list[Any]]:
    """What a call gives that has a history, and the gradients of it, None where there is none."""
    torch.manual_seed(0)
    inputs = [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]
    heads = tracked(
        sample.output_process_fn_grad(function(*pytree.tree_unflatten(given, structure)))
    )
    tangents = [drawn_like(h, k).to(h.device) for k, h in enumerate(heads)]
    grads = torch.autograd.grad(heads, inputs, tangents, allow_unused=True) if heads else ()
    return [dense(h.detach()) for h in heads], [None if g is None else dense(g) for g in grads]


def difference(info: Any, sample: Any, dtype: torch.dtype) -> str | None:
    """What tells the compiled op's gradients from eager's; None where nothing does, or eager raises
    an error."""

    def fn(input: Any, args: Any, kwargs: Any) -> Any:
        return info.gradcheck_wrapper(info.op, input, *args, **kwargs)

    leaves, structure = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    try:
        expected, slopes = taken(fn, sample, copied(leaves), structure)
    except Exception:
        return None
    try:
        found, ours = taken(ingot.compile(fn), sample, copied(leaves), structure)
    except Exception as problem:
        return f"raised {type(problem).__name__}: {problem}"[:300]
    looks = [
        [t if t is None else (t.dtype, t.shape, t.device) for t in ts]
        for ts in (found + ours, expected + slopes)
    ]
    if looks[0] != looks[1]:
        return f"{looks[0]} for {looks[1]}"
    parts = [[t for t in ts if t is not None] for ts in (ours, slopes)]
    wrong = relative_error(
        *[[torch.view_as_real(t) if t.is_complex() else t for t in ts] for ts in parts]
    )
    if wrong <= SHARE[dtype]:
        return None
    try:  # an ill-conditioned call
        exact = [
            g for g in taken(fn, sample, doubled(copied(leaves)), structure)[1] if g is not None
        ]
        rounding = relative_error(parts[1], exact)
    except Exception:
        rounding = 0.0
    return None if wrong <= 4 * rounding else f"an error of {wrong:.2g}, eager's {rounding:.2g}"


def differences(shard: int, dtype: torch.dtype) -> Iterator[tuple[str, int, str]]:
    for name, info in list(op_infos().items())[shard::SHARDS]:
        if name in UNDEFINED or name in EXCEPTIONS or not info.supports_autograd:
            continue
        if dtype not in info.supported_backward_dtypes("cuda"):
            continue
        with warnings.catch_warnings():
            ignore_warnings()
            for k, sample in zip(
                range(SAMPLES), info.sample_inputs("cuda", dtype, requires_grad=True)
            ):
                found = difference(info, sample, dtype)
                if found is not None:
                    yield name, k, found
        ingot.reset()


@pytest.mark.parametrize("dtype", SHARE, ids=str)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_gradients_of_ops(shard: int, dtype: torch.dtype) -> None:
    assert not list(differences(shard, dtype))


def main(shard: int, seconds: int) -> None:
    end = time.monotonic() + seconds
    for dtype in SHARE:
        for found in differences(shard, dtype):
            print(dtype, *found, flush=True)
            if time.monotonic() > end:
                return
    print(f"shard {shard} done with {end - time.monotonic():.0f} s left", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
