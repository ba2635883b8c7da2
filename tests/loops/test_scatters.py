"""Writes at places that tensors name, lowered: values, order, errors, and which loops threads may
share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import ingot
from ingot.schedule import schedule
from tests.loops.test_lowering import assert_lowered, counts, lowered, t

i64 = torch.int64


def at(extent: int, *sizes: int) -> torch.Tensor:
    return torch.randint(0, extent, sizes)


X, PLACES = t(5, 6, 7), at(6, 5, 9, 7)

WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index_add": lambda x, i, s: x.index_add(1, i[0, :, 0], s, alpha=2),
    "index_copy": lambda x, i, s: x.index_copy(1, i[0, :, 0], s),
    "index_fill": lambda x, i, s: x.index_fill(1, i[0, :, 0], 3),
    "index_reduce": lambda x, i, s: x.index_reduce(1, i[0, :, 0], s, "amax"),
    "index_put": lambda x, i, s: torch.ops.aten.index_put(x, [None, i[0, :, 0] - 6], s),
    "index_put of two": lambda x, i, s: x.index_put(
        (i[0, :, :1] % 5, i[0]), s[:1, :, :, None][0], accumulate=True
    ),
    "put": lambda x, i, s: x.put(i, s, accumulate=True),
    "scatter": lambda x, i, s: x.scatter(1, i, s),
    "scatter of a number": lambda x, i, s: x.scatter(1, i, 2, reduce="multiply"),
    "scatter_add": lambda x, i, s: x.scatter_add(1, i[:, :4], s),
    "scatter_reduce": lambda x, i, s: x.scatter_reduce(1, i, s, "mean", include_self=False),
}


@pytest.fixture(autouse=True)
def _in_order() -> Iterator[None]:
    """On one thread: on several, eager writes in no certain order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("dtype", [torch.float32, i64])
def test_writes(name: str, dtype: torch.dtype) -> None:
    assert (
        counts(assert_lowered(WRITES[name], X.to(dtype), PLACES, t(5, 9, 7, dtype=dtype)))[2] == 0
    )


def test_threads_share_what_cannot_meet() -> None:
    """Points that may write to one element run on one thread, in order."""

    def parallel(dim: int) -> int:
        graph = lowered(lambda x, i, s: x.scatter_add(dim, i, s), X, at(5, 5, 6, 7), X)
        (kernel,) = [
            k
            for k in schedule(graph).kernels
            if "scatter_add" in k.name and k.stages[-1].stores[0].scatters
        ]
        return kernel.parallel

    assert [parallel(dim) for dim in range(3)] == [0, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_copied_and_scattered_into_by_one_kernel(dtype: torch.dtype) -> None:
    """Points of a row meet in that row only, so it is still in the cache; two scatters meet where
    they will."""
    x, i, j, s = t(40, 50, dtype=dtype), at(50, 40, 30), at(50, 40, 30), t(40, 30, dtype=dtype)
    first = schedule(lowered(lambda x, i, s: x.scatter_add(1, i, s), x, i, s)).kernels[0]
    assert len(first.stages) == 2 and first.stages[1].stores[0].scatters and first.parallel == 1
    across = schedule(lowered(lambda x, i, s: x.scatter_add(0, i % 40, s), x, i, s))  # rows meet
    assert len(across.kernels[0].stages) == 1
    for write in (
        lambda x, i, j, s: x.scatter_add(1, i, s),
        lambda x, i, j, s: x.scatter_add(1, i, s).scatter(1, j, s * 2),
        lambda x, i, j, s: (
            (x * 2).scatter_reduce(1, i, s, "amax", include_self=False).scatter_add(1, j, s) + x
        ),
        lambda x, i, j, s: (
            x.view(4, 10, 50).scatter_add(2, i.view(4, 10, 30), s.view(4, 10, 30)).sum(2)
        ),
        lambda x, i, j, s: x.scatter_add(1, i, s) + x.scatter_add(1, j, s),
        lambda x, i, j, s: x.scatter_add_(1, i, s),
    ):
        ours, eagers = x.clone(), x.clone()
        found = ingot.compile(write, fullgraph=True)(ours, i, j, s)
        expected = write(eagers, i, j, s)
        torch.testing.assert_close((found, ours), (expected, eagers))


@pytest.mark.parametrize("accumulate", [False, True])
def test_threads_share_columns_of_rows_that_may_meet(accumulate: bool) -> None:
    """Rows may be named twice, columns never meet: their blocks are shared, and each has its rows
    in order."""
    x, i, s = t(600, 192), at(600, 700), t(700, 192)
    function = lambda x, i, s: x.index_put((i,), s, accumulate=accumulate)  # noqa: E731
    torch.testing.assert_close(ingot.compile(function, fullgraph=True)(x, i, s), function(x, i, s))
    kernel = next(
        k for k in schedule(lowered(function, x, i, s)).kernels if k.stages[-1].stores[0].scatters
    )
    assert [loop.extent.constant for loop in kernel.loops] == [3, 700, 64]
    assert kernel.parallel == 1


def test_what_is_written_is_computed_before() -> None:
    """The nest that writes in order loads the places and the values."""
    graph = assert_lowered(
        lambda x, i, s: x.scatter_add(0, i, s.exp() * x.exp().sum()), X, at(5, 5, 6, 7), X
    )
    (node,) = [n for n in graph.nodes if getattr(n, "scatters", False)]
    assert len(node.body.loads) == 2


def test_half_precision_accumulates_as_eager_does() -> None:
    x, i, s = (
        torch.full((2,), 256.0).bfloat16(),
        torch.zeros(64, dtype=i64),
        torch.full((64,), 0.5).bfloat16(),
    )
    graph = assert_lowered(
        lambda x, i, s: (x.scatter_add(0, i, s), x.index_put((i,), s, accumulate=True)), x, i, s
    )
    assert counts(graph)[2] == 0


def test_scatters_of_scatters() -> None:
    """Several writes, each of which needs the one before finished."""

    def twice(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        y = x.scatter_add(1, i, s)
        z = y.scatter(1, i, y.gather(1, i) * 2)
        return z.gather(1, i) + y.gather(1, i)

    assert_lowered(twice, X[:, 0], at(7, 5, 7), t(5, 7))


@pytest.mark.parametrize("size", [3, 40])
def test_indices_out_of_range(size: int) -> None:
    i = torch.zeros(size, dtype=i64)
    i[-1] = 9
    for fn in (
        lambda x: x.index_add(0, i, torch.ones(size, 4)),
        lambda x: x.scatter(0, i[:, None], 1.0),
        lambda x: x.index_put((i,), torch.ones(4)),
        lambda x: x.index_fill(0, i, 2.0),
    ):
        with torch.no_grad():
            with pytest.raises((IndexError, RuntimeError)) as expected:
                fn(torch.ones(5, 4))
            with pytest.raises(expected.type):
                ingot.compile(fn)(torch.ones(5, 4))


def test_sizes_that_do_not_fit() -> None:
    x, i = torch.ones(5, 4), torch.tensor([0, 1])
    for fn in (
        lambda x: x.index_put((i,), torch.ones(3)),
        lambda x: x.index_add(0, i, torch.ones(3, 4)),
        lambda x: x.index_copy(0, i, torch.ones(2, 3)),
        lambda x: x.scatter(0, torch.zeros(2, 3, dtype=i64), torch.ones(2, 2)),
        lambda x: x.put(i, torch.ones(3)),
    ):
        with torch.no_grad():
            with pytest.raises((IndexError, RuntimeError)) as expected:
                fn(x)
            with pytest.raises(expected.type):
                ingot.compile(fn)(x)
