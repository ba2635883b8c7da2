"""Modes of the whole process that a program sets: the default dtype, and the backends of
attention."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import ingot
from ingot.compiler import Compiler
from ingot.graph.ambient import Modes, snapshot
from ingot.graph.process_modes import ProcessModes, left_alone, set_default_dtype
from tests.capture.language import Table
from tests.oracle import assert_near
from tests.tracked import Tracked

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken
X = torch.randn(3, 4)


def modes() -> tuple[Any, ...]:
    """All that this file's programs change."""
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch._C._get_sdp_priority_order(),
    )


def pause() -> None:
    time.sleep(0)  # breaks the graph


@pytest.fixture(autouse=True)
def modes_as_before() -> Any:
    """No test leaves a mode behind."""
    before = ProcessModes.now()
    yield
    after = Modes.now()
    after._replace(process=before).set()
    assert before == after.process


@whole
def default_dtype(x: Tensor, y: Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    a, seen = torch.ones(3), torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    return a, seen, torch.ones(3), x + y, torch.get_default_dtype()


@whole
def default_dtype_restored_after_an_error(x: Tensor, y: Tensor) -> Any:
    before, seen = torch.get_default_dtype(), []
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        try:
            torch.set_default_dtype(dtype)
            seen.append(torch.arange(3) / 2 + torch.tensor(0.5))
            raise ValueError(torch.get_default_dtype())
        except (TypeError, ValueError) as error:
            seen.append((type(error), str(error)))
        finally:
            torch.set_default_dtype(before)
    return x * 1.5, seen, torch.tensor([1.5]), torch.get_default_dtype()


@contextlib.contextmanager
def of_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@whole
def default_dtypes_in_contexts(x: Tensor, y: Tensor) -> Any:
    with of_dtype(torch.float64):
        outer = torch.zeros(2, 2) + x[:2, :2].double()
        with of_dtype(torch.float16), torch.no_grad():
            inner = torch.full((2,), 0.1), torch.get_default_dtype()
        outer = outer + torch.rand(2)
    return outer, inner, torch.linspace(0, 1, 3)


@broken("sleep()")
def break_under_another_default_dtype(x: Tensor, y: Tensor) -> Any:
    with of_dtype(torch.float64):
        a = torch.ones(3)
        pause()
        b = torch.ones(3) * torch.get_default_dtype().itemsize
    return a, b, torch.ones(3), x + y


@whole
def attention_by_one_backend(x: Tensor, y: Tensor) -> Any:
    with sdpa_kernel(SDPBackend.MATH):
        result = F.scaled_dot_product_attention(x[None], y[None], y[None])
        seen = modes()
    return result, seen, modes()


@sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True)
def attend(x: Tensor, y: Tensor) -> Any:
    return F.scaled_dot_product_attention(x[None], y[None], y[None]), modes()


@whole
def attention_in_a_decorated_function(x: Tensor, y: Tensor) -> Any:
    return attend(x, y), modes()


@whole(make=lambda: ([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION],))
def attention_by_backends_that_are_given(x: Tensor, y: Tensor, backends: Any) -> Any:
    with sdpa_kernel(backends):
        math = torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()
        with sdpa_kernel(backends[1:]):
            inner = modes()
    return F.scaled_dot_product_attention(x, y, y), math, inner, backends[0]


@whole
def attention_that_no_backend_takes(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad(), sdpa_kernel([]):
        return F.scaled_dot_product_attention(x[None], y[None], y[None])


@broken("sleep()")
def break_among_attention(x: Tensor, y: Tensor) -> Any:
    with sdpa_kernel(SDPBackend.MATH):
        x = F.scaled_dot_product_attention(x[None], y[None], y[None])
        pause()
        seen = modes()
        x = F.scaled_dot_product_attention(x, y[None], y[None])
    return x, seen, modes()


test_program = TABLE.test()


def test_a_mode_of_the_process_that_is_set_stays_set() -> None:
    def fn(x: Tensor) -> Any:
        torch.set_default_dtype(torch.float64)
        torch.backends.cuda.enable_flash_sdp(False)
        torch._C._set_sdp_priority_order([0, 1, 2, 3, 4])
        return x.double() + torch.ones(4)

    for backend in ("ingot", "eager"):
        compiled, before = ingot.compile(fn, backend=backend, fullgraph=True), ProcessModes.now()
        for _ in range(2):
            try:
                assert_near(compiled(X), X.double() + 1)
                after = ProcessModes.now()
            finally:
                Modes.now()._replace(process=before).set()
            assert after.default_dtype is torch.float64
            assert after.attention.order == (0, 1, 2, 3, 4) and not after.attention.flags[0]
        assert len(Compiler.of(compiled).compilations) == 1


def test_an_error_leaves_the_default_dtype_that_eager_leaves() -> None:
    def fn(table: Tensor, index: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        rows = table[index] + torch.ones(4)
        torch.set_default_dtype(torch.float32)
        return rows

    compiled = ingot.compile(fn)
    for position in (1, 7, 1, 7):
        found = []
        for function in (fn, compiled):
            try:
                result: Any = function(X, torch.tensor([position]))
            except IndexError:
                result = IndexError
            found.append((result, torch.get_default_dtype()))
            torch.set_default_dtype(torch.float32)
        assert_near(found[1], found[0])


def test_attention_outside_is_guarded() -> None:
    query = torch.randn(1, 2, 3, 4)
    tracked = Tracked(lambda x: F.scaled_dot_product_attention(x, x, x), fullgraph=True)
    assert (tracked(query), tracked(query)) == (1, 0)
    with sdpa_kernel(SDPBackend.MATH):
        assert (tracked(query), tracked(query)) == (1, 0)
    with sdpa_kernel([]), pytest.raises(RuntimeError, match=r"(?i)no .*kernel"):
        tracked.compiled(query)
    assert tracked(query) == 0
    assert "attention was" in ingot.explain(tracked.compiled)(query).recompiles[0]


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
@pytest.mark.parametrize("is_masked", [False, True])
def test_gradients_of_attention_by_a_backend(backend: SDPBackend, is_masked: bool) -> None:
    mask = torch.randn(5, 5) if is_masked else None

    def fn(query: Tensor, key: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, key, mask).sin()

    tracked = Tracked(fn, fullgraph=True)
    query, key = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(2))
    assert (tracked(query, key), tracked(query, key)) == (1, 0)
    results = []
    for function in (fn, tracked.compiled):
        results.append(torch.autograd.grad(function(query, key).sum(), (query, key)))
    assert_near(results[1], results[0])


def test_the_kernel_is_that_of_the_backend() -> None:
    """What math gives is written out; a fused kernel is one op."""
    query = torch.randn(1, 2, 3, 4)
    counts = []
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):

        def fn(x: Tensor, backend: SDPBackend = backend) -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(x, x, x)

        compiled = ingot.compile(fn)
        compiled(query)
        (compilation,) = Compiler.of(compiled).compilations
        counts.append("_scaled_dot_product_flash" in str(compilation.log.aten.graph))
    assert counts == [True, False]


def test_another_thread_keeps_its_changes() -> None:
    """A capture that sets no mode of the process reverts none."""
    restore = snapshot()
    torch.set_default_dtype(torch.float64)  # as another thread may
    try:
        restore()
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_no_mode_of_the_process_is_set_in_the_background() -> None:
    with left_alone(), pytest.raises(ingot.errors.Unsupported, match="of the whole process"):
        set_default_dtype(torch.float64)
    assert torch.get_default_dtype() is torch.float32
