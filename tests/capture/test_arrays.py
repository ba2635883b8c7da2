"""NumPy beside torch: arrays as arguments, made, computed and passed between the two. Where a graph
is broken for it, the result is eager's all the same, and an unchanged call compiles nothing."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from tests.capture.language import Table
from tests.oracle import assert_near
from tests.tracked import Tracked

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken

ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)
with warnings.catch_warnings(action="ignore"):
    torch.from_numpy(np.frombuffer(b"1234", dtype=np.float32))  # torch warns the first time only


def arrays() -> tuple[Any, ...]:
    return np.arange(-6.0, 6.0).reshape(3, 4) / 4, np.arange(4)


@whole(make=arrays)
def arrays_as_arguments(x: Tensor, y: Tensor, a: Any, n: Any) -> Any:
    z = x + torch.from_numpy(a).float()
    return (
        z,
        np.floor(a),
        a.shape,
        a.dtype,
        n.sum(),
        a[1:, ::2] * 2,
        a.mean(axis=0),
        len(a),
        type(n[0]),
        n[2] + 1,
    )


@whole(make=arrays)
def arrays_passed_along(x: Tensor, y: Tensor, a: Any, n: Any) -> Any:
    z = (x * 2).t()
    kept = {"z": z.numpy(), "a": a, "input": y.numpy(), "detached": x.detach().cpu().numpy()}
    t = torch.from_numpy(a)
    return (
        t * x,
        torch.as_tensor(n) + 1,
        torch.tensor(a),
        kept,
        a.shape,
        n.ndim,
        len(a),
        a.dtype,
        z.numpy().shape,
        t,
    )


@whole(make=arrays, fresh=True)
def memory_shared_with_an_array(x: Tensor, y: Tensor, a: Any, n: Any) -> Any:
    torch.from_numpy(a).mul_(3)
    z = x + 1
    b = z.numpy()
    z.add_(1)
    torch.from_numpy(b)[0] = 7
    torch.tensor(a).zero_()
    return b, z, a, isinstance(b, np.ndarray), b is a, type(b)


@broken("not writable", make=lambda: (np.frombuffer(b"12345678", dtype=np.float32),))
def array_that_may_not_be_written(x: Tensor, y: Tensor, a: Any) -> Any:
    return torch.from_numpy(a) + x[0, 0], torch.tensor(a)


@broken("", make=lambda: (np.arange(12.0).reshape(3, 4)[::-1],))
def array_with_negative_strides(x: Tensor, y: Tensor, a: Any) -> Any:
    return torch.from_numpy(a.copy()) + x, a.strides


@whole
def array_of_a_tensor(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    a = z.numpy()
    b = np.abs(a) + 1
    a[0, 0] = 100.0  # the same memory
    return z, b, torch.from_numpy(b) * 3, np.asarray(y).max(), np.asarray(y).dtype, type(b)


@whole
def functions_of_numpy_on_tensors(x: Tensor, y: Tensor) -> Any:
    return (
        np.max(x.numpy()),
        np.ptp(y.numpy(), axis=1),
        np.concatenate([x, y]),
        np.stack([x]),
    )


@whole
def numbers_of_numpy(x: Tensor, y: Tensor) -> Any:
    scale = np.sqrt(4.0)
    return (
        x * scale,
        y / np.float64(3.0),
        x * np.pi,
        np.prod((2, 3)),
        x.reshape(int(np.prod(x.shape))),
        x * np.float32(0.5),
    )


@whole
def arrays_made(x: Tensor, y: Tensor) -> Any:
    a, b = np.zeros((3, 4), dtype=np.float32), np.array([1.5, 2.5])
    a += 1
    grid = np.meshgrid(np.arange(2), np.arange(3))
    return (
        x + torch.tensor(a),
        torch.as_tensor(b),
        b @ b,
        grid[0].shape,
        np.arange(3)[-1],
        torch.from_numpy(a) * y,
    )


@whole
def global_array(x: Tensor, y: Tensor) -> Any:
    return torch.from_numpy(ARRAY) * x, ARRAY[1], np.floor(x.numpy()) @ ARRAY.T


@whole(make=arrays, fresh=True)
def arrays_changed(x: Tensor, y: Tensor, a: Any, n: Any) -> Any:
    a[0] = 5
    a *= 2
    n.sort()
    t = torch.from_numpy(a)
    t += 1
    return a, n, t, x + 1


@broken("")
def tensors_and_arrays_mixed(x: Tensor, y: Tensor) -> Any:
    a = (x + y).numpy()
    b = a * 2 if a.sum() > 0 else a - 1
    c = torch.as_tensor(b) + x
    return np.where(b > 0, b, 0), c, np.linalg.norm(c.numpy()), c[torch.as_tensor(b[:, 0] > 0)]


@whole
def numbers_of_math(x: Tensor, y: Tensor) -> Any:
    return (
        x * math.sqrt(x.shape[-1]),
        math.prod(x.shape),
        math.isclose(0.1 + 0.2, 0.3),
        x + math.inf,
        math.floor(2.5),
    )


@whole
def errors_of_numpy(x: Tensor, y: Tensor) -> Any:
    try:
        return np.zeros(3) + np.zeros(4)
    except ValueError as error:
        return x, str(error)


@broken("")
def random_numbers_of_numpy(x: Tensor, y: Tensor) -> Any:
    draws = np.random.default_rng(0)
    return x + torch.from_numpy(draws.standard_normal((3, 4))), draws.integers(5)


test_program = TABLE.test()


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, a: (np.square(x), np.add(x, a), np.maximum(a, x), x * a, np.array(x)),
        lambda x, a: (x * np.float32(2), np.float64(2) * x, x + np.int64(1), x - a.max()),
    ],
)
def test_functions_of_numpy_take_tensors(fn: Any) -> None:
    args = torch.tensor([1.0, -2.0, 0.5]), np.array([1.0, 2.0, 4.0])
    with warnings.catch_warnings(action="ignore"):  # NumPy's, of how torch answers it
        expected = fn(*args)
    for found, own in zip(ingot.compile(fn, fullgraph=True)(*args), expected):
        assert type(found) is type(own) and found.dtype == own.dtype
        assert_near(torch.as_tensor(found), torch.as_tensor(own))


def test_an_array_that_changes_is_read_again() -> None:
    tracked = Tracked(lambda x: x * torch.from_numpy(ARRAY) + float(ARRAY[0, 1]))
    x = torch.ones(3, 4)
    with torch.no_grad():
        for _ in range(3):
            tracked(x)
            ARRAY[0, 1] += 1
        assert tracked.skips == []


def test_numbers_of_numpy_are_guarded() -> None:
    tracked = Tracked(lambda x, n: x * n + isinstance(n, np.floating))
    x, steps = (
        torch.ones(3),
        (np.float64(2), np.float64(3), np.float32(3), np.int64(3), 3, np.float64(2), np.float32(3)),
    )
    with torch.no_grad():
        assert [tracked(x, n) for n in steps] == [1, 1, 1, 1, 1, 0, 0]
        assert [tracked(x, np.float64(n)) for n in range(5)] == [0] * 5
        assert tracked.skips == []


def test_methods_of_tensors_take_doubles_of_numpy() -> None:
    def fn(x: Tensor) -> Any:
        bound = np.log(2.0)
        return x.clamp(-bound, bound), torch.empty_like(x).fill_(bound), x.add(bound)

    tracked = Tracked(fn)
    with torch.no_grad():
        assert tracked(torch.randn(5)) == 1
    assert tracked.skips == []


def test_facts_of_an_array_are_guarded() -> None:
    compiled = ingot.compile(lambda x, a: (x + torch.from_numpy(a), a.shape))
    x, arrays = (
        torch.ones(4),
        (np.ones(4), np.zeros(4), np.ones((2, 4)), np.ones(4, dtype=np.float32), np.ones(8)[::2]),
    )
    counts = []
    with torch.no_grad():
        for a in arrays * 2:
            assert_near(compiled(x, a), (x + torch.from_numpy(a), a.shape))
            counts.append(len(Compiler.of(compiled).compilations))
    assert counts == [1, 1, 2, 3, 4] + [4] * 5


@pytest.mark.parametrize("backend", ["eager", "ingot"])
def test_compiled_function_of_arrays(backend: str) -> None:
    def fn(a: Any, b: Any) -> Any:
        t = torch.from_numpy(a) @ torch.from_numpy(b)
        return (t.relu() + 1).numpy()

    compiled = ingot.compile(fn, backend=backend)
    for scale in (1, 2, -1):
        a, b = np.full((2, 3), scale, dtype=np.float32), np.ones((3, 2), dtype=np.float32)
        with torch.no_grad():
            result = compiled(a, b)
        assert isinstance(result, np.ndarray) and result.dtype == np.float32
        assert_near(torch.from_numpy(result), torch.from_numpy(fn(a, b)))
