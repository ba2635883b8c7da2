"""`to` and its kin in each mode: what eager gives back as it is (or as a view) is that, so that
writes to it are seen, and what it copies is a copy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot

SAME, OTHER = torch.float32, torch.float64


def of_type(dtype: torch.dtype) -> dict[str, Callable[[Tensor], Tensor]]:
    like = torch.zeros(1, dtype=dtype)
    return {
        "to(dtype)": lambda x: x.to(dtype),
        "to(dtype=)": lambda x: x.to(dtype=dtype),
        "to(device, dtype)": lambda x: x.to("cpu", dtype),
        "to(device=, dtype=)": lambda x: x.to(device=x.device, dtype=dtype),
        "to(dtype=, device=)": lambda x: x.to(dtype=dtype, device="cpu"),
        "to(dtype, copy=)": lambda x: x.to(dtype, copy=True),
        "to(dtype, False, True)": lambda x: x.to(dtype, False, True),
        "to(device, dtype, True, True)": lambda x: x.to(x.device, dtype, True, True),
        "to(device=, dtype=, non_blocking=)": lambda x: x.to(
            device="cpu", dtype=dtype, non_blocking=True
        ),
        "to(device=, dtype=, memory_format=)": lambda x: x.to(
            device="cpu", dtype=dtype, memory_format=torch.contiguous_format
        ),
        "to(dtype, memory_format=)": lambda x: x.to(dtype, memory_format=torch.preserve_format),
        "to(other)": lambda x: x.to(like),
        "to(tensor=, copy=)": lambda x: x.to(tensor=torch.zeros(1, dtype=dtype), copy=True),
        "type(dtype)": lambda x: x.type(dtype),
        "type(dtype=, non_blocking=)": lambda x: x.type(dtype=dtype, non_blocking=True),
        "type_as": lambda x: x.type_as(torch.zeros(1, dtype=dtype)),
        "Tensor.to": lambda x: torch.Tensor.to(x, device="cpu", dtype=dtype),
        "as_tensor": lambda x: torch.as_tensor(x, dtype=dtype, device="cpu"),
        "asarray": lambda x: torch.asarray(x, dtype=dtype),
    }


CONVERSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{f"{name} same": call for name, call in of_type(SAME).items()},
    **{f"{name} other": call for name, call in of_type(OTHER).items()},
    "float": lambda x: x.float(),
    "double": lambda x: x.double(),
    "long": lambda x: x.long(),
    "cpu": lambda x: x.cpu(),
    "cpu(memory_format=)": lambda x: x.cpu(memory_format=torch.preserve_format),
    "to(device)": lambda x: x.to(torch.device("cpu"), non_blocking=True),
    "to(device, copy=)": lambda x: x.to("cpu", copy=True),
    "to(memory_format=)": lambda x: x[None, None].to(memory_format=torch.channels_last),
    "type(name)": lambda x: x.type("torch.FloatTensor"),
    "type(class)": lambda x: x.type(torch.LongTensor),
}
GIVEN_BACK: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "flatten": lambda x: x.flatten(),
    "reshape": lambda x: x.reshape(x.shape),
    "positive": lambda x: +x,
    "resolve_conj": lambda x: x.resolve_conj(),
    "resolve_neg": lambda x: x.resolve_neg(),
    "conj": lambda x: x.conj(),
    "conj_physical": lambda x: torch.conj_physical(x),
    "real": lambda x: x.real,
    "dropout": lambda x: torch.dropout(x, 0.5, False),
    "F.dropout": lambda x: F.dropout(x, 0.5, False),
    "feature_dropout": lambda x: torch.feature_dropout(x, 0.5, False),
    "alpha_dropout": lambda x: torch.alpha_dropout(x, 0.5, False),
    "atleast_1d": lambda x: torch.atleast_1d(x),
    "atleast_3d": lambda x: torch.atleast_3d(x),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x)[0],
    "expand_as": lambda x: x.expand_as(x),
    "sum_to_size": lambda x: x.sum_to_size(x.shape),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "adjoint": lambda x: x.adjoint(),
    "tile": lambda x: x.tile(1),
    "chunk": lambda x: x.chunk(1)[0],
    "tensor_split": lambda x: torch.tensor_split(x, 1)[0],
}
OUTSIDE: dict[str, Callable[[], Any]] = {
    "inference mode around the call": torch.inference_mode,
    "inference mode inside": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "gradients": contextlib.nullcontext,
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mode", OUTSIDE)
@pytest.mark.parametrize("calls", [CONVERSIONS, GIVEN_BACK], ids=["conversions", "given back"])
def test_conversions(calls: dict[str, Any], mode: str, transposed: bool) -> None:
    writes = mode != "gradients"

    def one(call: Callable[[Tensor], Tensor], x: Tensor) -> list[Any]:
        made = call(x)
        twice, is_itself = made * 2, made is x
        if writes:
            made.add_(1)
        return [twice, x * 2, is_itself, made.dtype, made.stride()]

    def program(*given: Tensor) -> list[list[Any]]:
        inside = torch.inference_mode if "inside" in mode else contextlib.nullcontext
        with inside():
            return [one(call, x) for call, x in zip(calls.values(), given)]

    def tensors() -> list[Tensor]:
        x = torch.arange(12.0).reshape(3, 4)
        return [(x.t() if transposed else x).clone() for _ in calls]

    with OUTSIDE[mode]():
        expected = program(*tensors())
        found = ingot.compile(program, fullgraph=True)(*tensors())
    for name, mine, its in zip(calls, found, expected):
        assert mine[2:] == its[2:], name
        torch.testing.assert_close(mine[:2], its[:2], msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("call", [CONVERSIONS[k] for k in ("to(device=, dtype=) other", "cpu")])
def test_conversions_of_sizes_that_vary(call: Callable[[Tensor], Tensor]) -> None:
    compiled = ingot.compile(lambda x: call(x) * x.shape[0], fullgraph=True, dynamic=True)
    with torch.inference_mode():
        for rows in (3, 5, 7):
            x = torch.randn(rows, 2)
            torch.testing.assert_close(compiled(x), call(x) * rows)
