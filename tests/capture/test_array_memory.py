"""Memory of arrays: views and copies, writes by way of either, what a result shares memory with.
And what programs do with arrays that capture refuses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from ingot.compiler import Compiler

CASES: list[tuple[Callable[..., Any], bool, Callable[[], tuple[Any, ...]]]] = []


def real() -> tuple[Any, ...]:
    return (np.arange(12.0).reshape(3, 4),)


def whole(function: Any = None, *, make: Any = real, breaks: bool = False) -> Any:
    """A program that is captured whole, or one that `breaks`."""

    def register(fn: Any) -> Any:
        CASES.append((fn, not breaks, make))
        return fn

    return register if function is None else register(function)


def broken(function: Any) -> Any:
    return whole(breaks=True)(function)


def tensor() -> tuple[Any, ...]:
    return (torch.arange(12.0).reshape(3, 4),)


@whole(make=tensor)
def write_by_way_of_the_array(x: Any) -> Any:
    a = x.numpy()
    a[0] = 5
    return x + 1


@whole(make=tensor)
def view_of_the_array(x: Any) -> Any:
    a = x.numpy()
    b = a.T
    b[0, 1] = 7
    x.mul_(2)
    return b, a, torch.from_numpy(b)


@whole(make=tensor)
def result_and_its_array(x: Any) -> Any:
    y = x * 2
    z = torch.as_tensor(np.asarray(y))
    z[0] = 1
    return y, y.numpy(), y.numpy()[0], np.array(y), torch.tensor(np.asarray(x)), z


@whole
def write_by_way_of_the_tensor(a: Any) -> Any:
    t = torch.from_numpy(a)
    t[0] = 9
    return a[0] + 1, t


@whole
def numbers_are_copies(a: Any) -> Any:
    before, total = a[0, 0], a.sum()
    a[0, 0] = 5
    total += 1
    return before, a[0, 0], total, a.sum()


@whole
def views(a: Any) -> Any:
    flat, column, row = a.ravel(), a[:, 1], a.reshape(4, 3)[0]
    column *= 2
    row[1] = 50
    flat[7] = -1
    return flat, column, row, np.squeeze(a[None]), np.swapaxes(a, 0, 1), a.view(np.int64)


@whole
def copies(a: Any) -> Any:
    picked, copied, columns = a[[0, 1]], a.copy(), a.T.ravel()
    picked *= 2
    copied[0] = 3
    columns[0] = 9
    return picked, copied, columns, a.astype(float), a.flatten(), np.array(a)


@whole
def the_same_array(a: Any) -> Any:
    b = np.asarray(a)
    b *= 2
    c = a.astype(float, copy=False)
    c += 1
    a += 1
    return b is a, c is a, b


@whole
def what_may_not_be_written(a: Any) -> Any:
    return np.broadcast_to(a[0], (3, 4)), a.diagonal(), np.broadcast_to(a[0], (3, 4)) + a


@whole
def write_to_what_may_not_be_written(a: Any) -> Any:
    np.broadcast_to(a[0], (3, 4))[0] = 1


@whole
def views_that_run_backwards(a: Any) -> Any:
    b = a[::-1]
    return b, b + 1, a[:, ::-2] * 2, b.T, b[:2], b[1, 1], np.rot90(a), b[0]


@broken
def write_behind_such_a_view(a: Any) -> Any:
    b = a[::-1]
    a[0] = 9
    return b


@broken
def write_to_such_a_view(a: Any) -> Any:
    b = a[::-1]
    b[0] = 9
    return a


@whole
def write_backwards(a: Any) -> Any:
    a[::-1] = np.arange(4.0)
    a[0, ::-1] = a[1]
    return a


@whole
def row_at_a_computed_place(a: Any) -> Any:
    row = a[np.argmax(a[:, 0])]
    return row, row.sum(), a[:, np.argmin(a[0])]


@whole
def overlapping_writes(a: Any) -> Any:
    a[1:] = a[:-1]
    np.add(a[1:], a[:-1], out=a[1:])
    a[0, 0], a[0, 1] = a[0, 1], a[0, 0]
    kept = a[0].copy()
    a[0] = a[1]
    a[1] = kept
    return a


@whole
def masks_and_indices(a: Any) -> Any:
    a[a > 5] += 1
    a[[0, 0]] += 1
    np.add.at(a, ([0, 0], [1, 1]), 1.0)
    np.fill_diagonal(a, 0)
    a.flat[3] = 7
    a.T.flat[1] = 8
    np.put(a, [1, 2], 4.0)
    return a


@whole
def results_in_arrays_that_are_given(a: Any) -> Any:
    out, other = np.zeros(4), np.empty_like(a)
    total = np.sum(a, axis=0, out=out)
    return total is out, out, np.multiply(a, 2, out=other) is other, other, a.sort(axis=1)


@whole
def shape_that_is_set(a: Any) -> Any:
    b = a + 1
    b.shape = (4, 3)
    return b


@whole
def rows_one_by_one(a: Any) -> Any:
    rows = []
    for i, row in enumerate(a):
        row *= i
        rows.append(row)
    return rows


@whole
def errors_that_are_handled(a: Any) -> Any:
    try:
        return a + np.ones(7)
    except ValueError as error:
        return str(error)


@whole
def error_behind_a_write(a: Any) -> Any:
    a[0] = 1
    return np.linalg.inv(a[:, :3] * 0)


@whole
def numbers_for_python(a: Any) -> Any:
    return a.sum().item(), float(a[0, 1]), int(a[0, 2]), bool(a[0, 0])


@broken
def numbers_that_python_needs(a: Any) -> Any:
    if a.sum() > 3:
        return a + math.sqrt(a[0, 1])
    return a - 1


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _description(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist(), value.stride()
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist(), value.strides, value.flags.writeable
    return type(value), str(value)


def _outcome(function: Any, args: tuple[Any, ...]) -> Any:
    try:
        result = function(*args)
    except Exception as error:
        return type(error), str(error), *map(_description, args)
    leaves = list(_leaves((result, args)))
    arrays = [np.asarray(leaf) for leaf in leaves if hasattr(leaf, "shape")]
    shares = [np.shares_memory(one, other) for one in arrays for other in arrays]
    return list(map(_description, leaves)), shares


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_memory_is_shared_as_in_numpy(case: Any) -> None:
    function, is_whole, make = case
    expected = _outcome(function, make())
    compiled = ingot.compile(function, fullgraph=is_whole)
    for _ in range(2):
        assert _outcome(compiled, make()) == expected
    if not is_whole:
        with pytest.raises(ingot.GraphBreakError):
            ingot.compile(function, fullgraph=True)(*make())


# -- what is refused -------------------------------------------------------------------------------


class Holder:
    """An object that NumPy makes an array of."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.ones(3)


class Deciding:
    """An object that decides what functions of NumPy give for it."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return ufunc.__name__

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function.__name__


FOREIGN = [
    (lambda s: s + 1, np.array([1, 2], dtype=object)),
    (lambda s: s["f"] * 2, np.array([(1.0, 2)], dtype=[("f", "f8"), ("g", "i4")])),
    (lambda s: s[1] - s[0], np.array(["2020-01-01", "2020-01-03"], dtype="datetime64[D]")),
    (lambda s: s * 2, np.arange(4, dtype=np.uint32)),
    (lambda s: s * 2, np.arange(4, dtype=">f8")),
    (lambda s: s * 2, np.broadcast_to(np.arange(4.0), (2, 4))),
    (lambda s: s * 2, np.arange(4.0)[::-1]),
    (lambda s: s * 2, np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])),
    (lambda s: s * s, np.array([[1.0, 2.0], [3.0, 4.0]]).view(np.matrix)),
    (lambda s: np.sin(s) + np.concatenate([s, s])[0], Holder()),
    (lambda s: np.add(s, np.ones(3)), Deciding()),
    (lambda s: np.ones(3) + s, Deciding()),
    (lambda s: np.concatenate([s, np.ones(3)]), Deciding()),
    (lambda s: np.mean(s), Deciding()),
    (lambda s: s + np.random.RandomState(0).rand(3), np.ones(3)),
]


@pytest.mark.parametrize("case", range(len(FOREIGN)))
def test_what_is_no_array_of_the_graph_is_left_to_numpy(case: int) -> None:
    function, value = FOREIGN[case]
    compiled = ingot.compile(function)
    with warnings.catch_warnings(action="ignore"):
        for _ in range(2):
            expected, found = function(value), compiled(value)
            assert type(found) is type(expected)
            assert np.array_equal(np.asarray(found), np.asarray(expected))


def test_an_array_of_the_graph_comes_after_one_that_is_not() -> None:
    compiled = ingot.compile(lambda a: a * 2, fullgraph=True)
    for array in (np.arange(4, dtype=np.uint32), np.arange(4.0)[::-1], np.zeros((2, 2), ">f8")):
        with pytest.raises(ingot.GraphBreakError):
            compiled(array)
        assert np.array_equal(compiled(np.ones(4)), np.full(4, 2.0))


# -- modes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["raise", "ignore"])
def test_numerical_errors_that_are_raised(kind: Any) -> None:
    def divided(a: Any) -> Any:
        with np.errstate(divide=kind):
            return a / 0

    for _ in range(2):
        found = _outcome(ingot.compile(divided), (np.ones(3),))
        assert found == _outcome(divided, (np.ones(3),))
        with np.errstate(divide=kind):
            compiled = ingot.compile(lambda a: a / 0.0)
            assert _outcome(compiled, (np.ones(3),)) == _outcome(lambda a: a / 0, (np.ones(3),))


def test_arrays_know_neither_autocast_nor_a_default_device() -> None:
    def fn(a: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return a @ a

    a = np.arange(9, dtype=np.float32).reshape(3, 3)
    assert np.array_equal(ingot.compile(fn)(a), a @ a)
    with torch.device("meta"):
        made = ingot.compile(lambda a: np.zeros(3) + np.arange(3) * a + np.maximum(a, 1))(a)
    assert np.array_equal(made, np.arange(3) * a + np.maximum(a, 1))


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.int32])
def test_numbers_of_numpy_vary(kind: Any) -> None:
    def fn(x: Any, a: Any, k: Any) -> Any:
        return (x * k).numpy(), a * k, np.sqrt(k) + k**2, k

    compiled = ingot.compile(fn, fullgraph=True)
    x, a = torch.ones(3), np.arange(4.0)
    for k in map(kind, (2, 3, 4, 7, 9)):
        for found, expected in zip(compiled(x, a, k), fn(x, a, k)):
            assert type(found) is type(expected) and found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, 1e-6)
    assert len(Compiler.of(compiled).compilations) == 2


def test_sizes_of_arrays_vary() -> None:
    def fn(a: Any) -> Any:
        spread = (a - a.mean(0)) / a.std()
        return spread.reshape(-1, 2).sum(), np.concatenate([a, a]), a[:, None] * np.arange(4)

    compiled = ingot.compile(fn, fullgraph=True)
    for rows in range(3, 9):
        a = np.random.default_rng(rows).standard_normal((rows, 4))
        for found, expected in zip(compiled(a), fn(a)):
            np.testing.assert_allclose(found, expected, 1e-12, 1e-12)
    assert len(Compiler.of(compiled).compilations) == 2


def test_a_tensor_that_requires_a_gradient_is_no_array() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="requires grad"):
        ingot.compile(lambda x: x.numpy(), fullgraph=True)(x)

    def fn(x: Any) -> Any:
        return torch.from_numpy(np.exp(x.detach().numpy())) * x + torch.from_numpy(
            x.numpy(force=True)
        )

    ingot.compile(fn, fullgraph=True)(x).sum().backward()
    assert torch.allclose(x.grad, torch.full((3,), math.e))  # type: ignore[arg-type]
