"""Python integers that vary from call to call, on either side of zero: eager's results, errors and
writes."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from tests.tracked import Tracked

X = torch.randn(16, 12, generator=torch.Generator().manual_seed(0))
INTEGERS = (3, 5, -2, 0, 30, -12, 1, -30, 11, -1)


def row(x: Tensor, n: int) -> Any:
    x[n] = x.sum(0)


def row_in_place(x: Tensor, n: int) -> Any:
    x.select(0, n).add_(1)


def row_of_a_number(x: Tensor, n: int) -> Any:
    x[n] = 1.0
    return x * 2


def part(x: Tensor, n: int) -> Any:
    x[n : n + 3].mul_(2)


def column(x: Tensor, n: int) -> Any:
    x[..., n] += 1


def element(x: Tensor, n: int) -> Any:
    x[n, n] = 2.0
    return x[None, :, n]


def cached(x: Tensor, n: int) -> Any:
    x[:, n : n + 2] = x[:, :2] * 2
    return x[:, : n + 2].sum(1)


PROGRAMS: list[Callable[[Tensor, int], Any]] = [
    row,
    row_in_place,
    row_of_a_number,
    part,
    column,
    element,
    lambda x, n: x[n] * 2,
    lambda x, n: x[n, 1:],
    lambda x, n: x.select(1, n) * 2,
    lambda x, n: x[:, n] * 2,
    lambda x, n: torch.select_scatter(x, x[0], 0, n),
    lambda x, n: x[:n] * 2,
    lambda x, n: x[-n:].sum(),
    lambda x, n: x.narrow(0, n, 2) * 2,
    lambda x, n: x.roll(n, 0),
    lambda x, n: x.tril(n),
    lambda x, n: F.pad(x, (0, 0, n, -n)),
    lambda x, n: (x * 10) // (n or 1),
    lambda x, n: x.split([n, 16 - n])[1] * 2,
    lambda x, n: x.split([3, n])[1] * 2,
    lambda x, n: F.one_hot(torch.tensor([0, 1]), n if n < 0 else n + 2),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_integers_of_both_signs_and_out_of_range(program: Callable[[Tensor, int], Any]) -> None:
    compiled = ingot.compile(program)
    with torch.no_grad():
        for n in INTEGERS:
            sides: list[tuple[Any, Tensor]] = []
            for function in (program, compiled):
                x = X.clone()
                try:
                    sides.append((function(x, n), x))
                except (IndexError, RuntimeError) as error:
                    sides.append((f"{type(error).__name__}: {error}", x))
            (expected, written), (found, its) = sides
            torch.testing.assert_close(its, written)
            if isinstance(expected, Tensor):
                torch.testing.assert_close(found, expected)
            else:
                assert found == expected


WITHIN: list[Callable[[Tensor, int], Any]] = [
    row_of_a_number,
    column,
    element,
    cached,
    lambda x, n: x[n] * 2,
    lambda x, n: x[n - 1, 1:],
    lambda x, n: x.select(0, n) * 2,
    lambda x, n: x[:n] * 2,
    lambda x, n: x[n:].mean(0),
    lambda x, n: x[n : n + 2].sum(),
]


@pytest.mark.parametrize("program", WITHIN)
def test_places_in_a_tensor_of_known_sizes_share_a_program(
    program: Callable[[Tensor, int], Any],
) -> None:
    tracked = Tracked(program, fullgraph=True)
    with torch.no_grad():
        assert [tracked(X.clone(), n) for n in (3, 5, 9, 7)] == [1, 1, 0, 0]


def test_a_table_is_read_up_to_a_size_that_varies() -> None:
    tracked = Tracked(lambda x, table: table[len(x) :] * 2, fullgraph=True)
    assert [tracked(torch.ones(n), X) for n in (3, 5, 9, 7)] == [1, 1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
def test_a_number_that_the_type_cannot_hold_fills_nothing(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    for number in (torch.finfo(dtype).min * 2, 1e300):
        with pytest.raises(RuntimeError, match="overflow"):
            ingot.compile(lambda x, number=number: x.masked_fill(x > 0, number))(x)
    filled = ingot.compile(lambda x: x.masked_fill(x > 0, -torch.inf))(x)
    torch.testing.assert_close(filled, x.masked_fill(x > 0, -torch.inf))


RAISING: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = [
    (lambda x, n: (x * 2)[n], [(X, 99), (X, 1), (X, 2), (X, 98), (X, 3)]),
    (lambda x, n: (x * 2)[n], [(X, 1), (X, 2), (X, 98), (X, 3), (X, 4), (X, -3)]),
    (
        lambda x, y: (x * 2) @ y,
        [(X, X), (X, X.t()), (X, torch.ones(12, 3)), (X, X), (X, torch.ones(12, 5))],
    ),
    (
        lambda x, y: torch.cat([x * 2, y]),
        [(X, X), (X[:, 1:], X[:, 2:]), (X[:, 3:], X[:, 2:]), (X[:, 3:], X[:, 3:])],
    ),
]


@pytest.mark.parametrize(("program", "calls"), RAISING)
def test_what_raises_leaves_other_calls_compiled(
    program: Callable[..., Any], calls: list[tuple[Any, ...]]
) -> None:
    compiled = ingot.compile(program)
    entries = Compiler.of(compiled).entries
    for args in calls:
        try:
            expected: Any = program(*args)
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error), match=re.escape(str(error))):
                compiled(*args)
            continue
        hits = sum(entry.hits for entry in entries if entry.target is not None)
        known = len(entries)
        torch.testing.assert_close(compiled(*args), expected)
        served = sum(entry.hits for entry in entries if entry.target is not None) > hits
        assert served or len(entries) == known + 1 and entries[-1].target is not None


@pytest.mark.parametrize(
    "number", [11 * 10**18, -(1 << 63) - 1, 1e300, 300, -300, -1.5, 3e38, 70000.0]
)
def test_new_tensors_of_numbers_that_their_type_cannot_hold(number: float) -> None:
    fillings: list[Callable[[Any], Any]] = [
        lambda dtype: torch.full((2,), number),
        lambda dtype: torch.full((2,), number, dtype=dtype),
        lambda dtype: torch.full_like(X, number, dtype=dtype),
        lambda dtype: X.to(dtype).new_full((2,), number),
        lambda dtype: torch.scalar_tensor(number, dtype=dtype),
        lambda dtype: F.threshold(torch.arange(4).to(dtype), 1, number),
    ]
    for fill in fillings:
        for dtype in (torch.uint8, torch.int64, torch.float16):
            found: list[Any] = []
            for function in (fill, ingot.compile(fill)):
                try:
                    found.append(function(dtype))
                except (RuntimeError, OverflowError) as error:
                    found.append(f"{type(error).__name__}: {error}")
            assert type(found[0]) is type(found[1])
            if isinstance(found[0], str):
                assert found[0] == found[1]
            else:
                torch.testing.assert_close(found[1], found[0])


OF_PYTHON: list[Callable[[Tensor, int], Any]] = [
    lambda x, n: (x * 2, n << 2, n >> 1, n & 3, n | 4, 5 ^ n, ~n),
    lambda x, n: (x * 2, divmod(n, -3), n // -4, n % -4, divmod(n, 5)),
    lambda x, n: (x * (n / 3), n / 7, float(n), n * 0.5, 0.5**n, n**2, n > 2.5),
    lambda x, n: (x * math.exp(-n / 10), math.gcd(n, 6), math.cos(n), (n + 1) / 2),
    lambda x, n: x[: int(n * 0.25) + 1] * round(n / 3, 1),
]


@pytest.mark.parametrize("program", OF_PYTHON)
def test_what_python_computes_of_an_integer_that_varies(
    program: Callable[[Tensor, int], Any],
) -> None:
    tracked = Tracked(program, fullgraph=True)
    with torch.no_grad():
        counts = [tracked(X, n) for n in (8, 13, -7, 2, 31, -1, 9, 22, 17, 5, -14)]
    assert sum(counts) <= 6


OF_SIZES: list[Callable[[Tensor], Any]] = [
    lambda x: x * (1 / x.shape[0]),
    lambda x: x.softmax(0) / math.sqrt(x.shape[0]),
    lambda x: (x * x.shape[0] ** -0.5, float(len(x) - 1), x.shape[0] / x.shape[1]),
    lambda x: (x - 0.5 * (x.shape[0] - 1) / 3).clamp(max=x.shape[0] / 10),
    lambda x: torch.full_like(x, 1 / (x.shape[0] + 1)) + math.log(x.shape[0]),
]


@pytest.mark.parametrize("program", OF_SIZES)
def test_what_python_computes_of_a_size_that_varies(program: Callable[[Tensor], Any]) -> None:
    tracked = Tracked(program, fullgraph=True)
    with torch.no_grad():
        assert [tracked(X[:n].clone()) for n in (4, 6, 16, 9, 5)] == [1, 1, 0, 0, 0]


def test_a_count_of_steps_beside_a_schedule() -> None:
    class Warm(torch.nn.Module):
        step = 0

        def forward(self, x: Tensor) -> Tensor:
            self.step += 1
            return x * min(1.0, self.step / 4)

    eager, compiled = Warm(), ingot.compile(Warm())
    with torch.no_grad():
        for _ in range(12):
            torch.testing.assert_close(compiled(X), eager(X))
    assert len(Compiler.of(compiled).compilations) <= 4


@pytest.mark.parametrize("dynamic", [None, True])
def test_heads_that_an_integer_decides(dynamic: bool | None) -> None:
    tracked = Tracked(lambda x, n: x.view(x.shape[0], n, -1).transpose(0, 1) + 1, dynamic=dynamic)
    found = [
        tracked(torch.randn(rows, 24), n) for rows, n in ((2, 2), (2, 3), (5, 4), (3, 6), (7, 8))
    ]
    assert found == ([1, 0, 0, 0, 0] if dynamic else [1, 1, 1, 0, 0])
    assert tracked.skips == []


def test_integers_are_symbols_at_once_where_that_is_asked_for() -> None:
    tracked = Tracked(lambda x, n: x[: n + 1].sum() * n, dynamic=True)
    assert [tracked(torch.ones(9), n) for n in (3, 5, 7, 2, 1)] == [1, 0, 0, 0, 0]
    tracked = Tracked(lambda x, dim: x.sum(dim), dynamic=True)  # a dimension is compiled for
    assert [tracked(torch.ones(2, 3, 4), n) for n in (2, 1, 0, 2)] == [1, 1, 1, 0]
    tracked = Tracked(lambda x, n: [x * i for i in range(n)], dynamic=True)
    assert [tracked(torch.ones(2), n) for n in (3, 2, 3)] == [1, 1, 0]


@pytest.mark.parametrize("result", [0, 1])
def test_images_are_not_resampled_to_nothing(result: int) -> None:
    compiled = ingot.compile(lambda x, n: (F.interpolate(x, size=n), x * 2)[result])
    x = torch.randn(2, 3, 5)
    for n in (2, 3, 4):
        compiled(x, n)
    for call in (compiled, ingot.compile(lambda x, n: (F.interpolate(x, size=n), x * 2)[result])):
        with pytest.raises(RuntimeError, match="greater than 0"):
            call(x, 0)


def signs(x: Tensor, n: int) -> Tensor:
    y = x**2
    return (n + 1) * y if n >= 0 else y / n


def test_integers_that_do_not_fit_run_in_eager_where_their_branch_has_no_entry() -> None:
    tracked, x = Tracked(signs), torch.randn(5)
    with torch.no_grad():
        assert [tracked(x, n) for n in (2, 3, -(1 << 63), -(1 << 63), -3, -(1 << 63), -4)] == [
            1,
            1,
            1,
            0,
            1,
            0,
            0,
        ]
    assert tracked.skips == ["an integer of more than 63 bits"]


def test_an_integer_that_does_not_fit_is_compiled_for_where_none_is_a_symbol() -> None:
    tracked, x = Tracked(lambda x, n: x[:n] * 2), torch.randn(5)
    assert [tracked(x, n) for n in (3, (1 << 63) - 1, (1 << 63) - 1, 2, (1 << 63) - 1)] == [
        1,
        1,
        0,
        1,
        0,
    ]
    assert tracked.skips == []


def test_integers_that_overflow_leave_symbols_to_others() -> None:
    """They run in eager; what comes later does not."""

    def f(n: int, x: Tensor) -> Tensor:
        return (n + 1) * (x * 2)

    compiled = ingot.compile(f)
    for n in (2, 3, 2**62, 2**62 + 1):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(n, x), f(n, x))
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.compilations) == 2
    for rows in (5, 6, 7, 8):
        x = torch.randn(rows)
        torch.testing.assert_close(compiled(rows, x), f(rows, x))
    assert len(compiler.compilations) == 3


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: x * len(range(n)),
        lambda x, n: x * len(range(3, n)),
        lambda x, n: x + range(n, n + 5)[2],
        lambda x, n: x + range(n, 100)[-1],
        lambda x, n: x * (2 if range(n) else 3),
        lambda x, n: x * (2 if 4 in range(n) else 3),
        lambda x, n: x[len(range(x.shape[0])) - 2 :] * n,
    ],
)
def test_ranges_whose_elements_are_not_taken_one_by_one(
    program: Callable[[Tensor, int], Any],
) -> None:
    tracked = Tracked(program, fullgraph=True)
    assert sum(tracked(X, n) for n in (2, 3, 5, 4, 7, 9, -1, 1, 0, -4, 11)) <= 4
    assert tracked.skips == []


@pytest.mark.parametrize(
    "program", [lambda x, n: x * range(n)[3], lambda x, n: x * range(n)[-n], lambda x, n: range(n)]
)
def test_ranges_that_end_before(program: Callable[[Tensor, int], Any]) -> None:
    compiled = ingot.compile(program)
    for n in (5, 6, 2, 7, 0, 3, 4, -1):
        found = []
        for f in (compiled, program):
            try:
                found.append(f(X, n))
            except IndexError as error:
                found.append(str(error))
        assert type(found[0]) is type(found[1])
        assert torch.equal(*found) if isinstance(found[0], Tensor) else found[0] == found[1]


_BINARY = [
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.truediv,
    operator.pow, operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift,
    operator.eq, operator.ne, operator.lt,
    operator.ge, divmod, max, min,
]  # fmt: skip


@pytest.mark.parametrize("of", ["size", "found size", "integer"])
@pytest.mark.parametrize(("flag", "reflected"), itertools.product((True, False), (False, True)))
@pytest.mark.parametrize("function", _BINARY)
def test_a_truth_value_beside_an_integer_that_varies(
    function: Callable[[Any, Any], Any], flag: bool, reflected: bool, of: str
) -> None:
    """It counts as 0 or 1, on either side; torch's symbolic integers would take it for a
    question."""

    def program(x: Tensor, n: int) -> Any:
        count = {"size": x.shape[0], "found size": torch.nonzero(x > 0).shape[0], "integer": n}[of]
        try:
            return x + 1, function(flag, count) if reflected else function(count, flag)
        except ZeroDivisionError as error:
            return x + 1, str(error)

    compiled = ingot.compile(program)
    for n in (3, 5, 4):
        x = torch.arange(1.0, n + 1)
        (expected, number), (found, result) = program(x, n), compiled(x, n)
        assert torch.equal(found, expected) and type(result) is type(number) and result == number
    compiler = Compiler.of(compiled)
    assert compiler is not None
    skips = [str(c.skipped) for c in compiler.compilations if c.skipped is not None]
    assert not [skip for skip in skips if "internal error" in skip]


def _appended(made: list[Any], n: int, m: int) -> None:
    made.append(n)


def _returned(made: list[Any], n: int, m: int) -> int:
    made.append(n)
    return n


def _swapped(made: list[Any], n: int, m: int) -> Any:
    made.extend((m, n, m))
    return {"n": n}, m


@pytest.mark.parametrize("program", [_appended, _returned, _swapped])
@pytest.mark.parametrize("dynamic", [None, True])
def test_integers_are_passed_along_without_tensor_work(
    program: Callable[..., Any], dynamic: bool | None
) -> None:
    compiled = ingot.compile(program, dynamic=dynamic)
    for n in range(2, 8):
        ours, eager = [], []  # type: ignore[var-annotated]
        assert compiled(ours, n, 2 * n) == program(eager, n, 2 * n)
        assert ours == eager
    compiler = Compiler.of(compiled)
    assert compiler is not None
    assert len(compiler.compilations) <= 3


def _identities(x: Tensor, n: int) -> list[bool]:
    """Small integers are one object each, and large ones that are computed are new."""
    quotient, rest = divmod(n, 3)
    return [
        quotient is rest, n is n + 0, n * 1 is n, n + 1 is n + 1, n is int(n), n is not abs(n),
        quotient is len("four"), [n + 0].count(n) == 1,
    ]  # fmt: skip


def _identities_of_sizes(x: Tensor, n: int) -> list[bool]:
    rows, columns = x.shape
    return [
        rows is columns, len(x) is rows, x.numel() is rows * columns, x.size(0) is rows,
        rows is n, {rows: 1}.get(n) is None,
    ]  # fmt: skip


@pytest.mark.parametrize("function", [_identities, _identities_of_sizes])
@pytest.mark.parametrize("dynamic", [None, True])
def test_integers_that_are_one_object(function: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = ingot.compile(lambda x, n: (x + 1, function(x, n)), dynamic=dynamic)
    for n, rows, columns in ((3, 3, 4), (4, 5, 6), (16, 7, 7), (300, 300, 2), (-7, 16, 16)):
        x = torch.ones(rows, columns)
        assert compiled(x, n)[1] == function(x, n)
