"""Users' Triton kernels in the graph, beside eager, under Triton's interpreter. It is chosen when
Triton is imported: this file runs itself once more, in a process where it is."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest
import torch

import ingot
from ingot.codegen.triton.module import available
from tests.codegen.triton.interpreting import INTERPRETED, interpreted, run_interpreted

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

if INTERPRETED:
    import triton

    from tests.user_kernel_programs import (
        PROGRAMS,
        TRAINING,
        Kernels,
        add,
        add_between,
        draw,
        histogram,
    )
    from tests.user_kernels import (
        add_kernel,
        by_address_kernel,
        multiply_kernel,
        printing_kernel,
        scale_in_place_kernel,
    )
else:
    PROGRAMS = TRAINING = {}

    def test_under_the_interpreter() -> None:
        run_interpreted(__file__)


def assert_same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected)


def takes_interpreted_kernels() -> bool:
    """Whether `wrap_triton` does: that of torch 2.11 takes compiled ones alone."""
    try:
        torch.library.wrap_triton(add_kernel)
    except RuntimeError:
        return False
    return True


@interpreted
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, dynamic: bool | None) -> None:
    program = PROGRAMS[name]
    if name == "wrapped" and not takes_interpreted_kernels():
        pytest.skip("wrap_triton of torch 2.11 takes no interpreted kernels")
    compiled = ingot.compile(program.fn, fullgraph=True, dynamic=dynamic)
    for seed in (0, 1):
        ours, eagers = draw(program, seed=seed), draw(program, seed=seed)
        assert_same(compiled(*ours), program.fn(*eagers))
        assert_same(ours, eagers)
        assert versions(ours) == versions(eagers)


@interpreted
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", TRAINING)
def test_gradients(name: str, dynamic: bool | None) -> None:
    program = TRAINING[name]
    compiled = ingot.compile(program.fn, fullgraph=True, dynamic=dynamic)
    ours, eagers = draw(program), draw(program)
    for fn, tensors in ((compiled, ours), (program.fn, eagers)):
        for t in tensors:
            t.requires_grad_()
        fn(*tensors).cos().sum().backward()
    assert_same(gradients(ours), gradients(eagers))
    assert_same(ours, eagers)
    assert versions(ours) == versions(eagers)


def versions(tensors: Any) -> list[int]:
    return list(map(attrgetter("_version"), tensors))


def gradients(tensors: Any) -> list[Any]:
    return list(map(attrgetter("grad"), tensors))


@interpreted
def test_sizes_that_vary_are_symbols() -> None:
    compiled = ingot.compile(add_between, fullgraph=True)
    for columns in (100, 200, 7, 64, 65):
        x, y = torch.randn(3, columns), torch.randn(3, columns)
        assert_same(compiled(x, y), add_between(x, y))
    assert len(compiled.entries()) == 2


@interpreted
def test_numbers_that_vary() -> None:
    def program(x: torch.Tensor, n: int, scale: float) -> torch.Tensor:
        y = x * 1
        scale_in_place_kernel[(1,)](y, scale, n, BLOCK=32)
        return y

    compiled = ingot.compile(program, fullgraph=True)
    x = torch.randn(32)
    for n in (5, 6, 7, 0, 1, 16):
        assert_same(compiled(x, n, 2.0), program(x, n, 2.0))
    assert len(compiled.entries()) <= 4  # 0 and 1 have their own
    before = len(compiled.entries())
    for scale in (0.5, 3.25, -1.0, 1e-3):
        assert_same(compiled(x, 8, scale), program(x, 8, scale))
    assert len(compiled.entries()) == before


@interpreted
def test_floats_of_tensors() -> None:
    def program(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = x * 1
        scale_in_place_kernel[(1,)](y, scale.item(), 32, BLOCK=32)
        scale_in_place_kernel[(1,)](y, -scale.sum().item(), 32, BLOCK=32)
        return y

    compiled = ingot.compile(program, fullgraph=True)
    for scale in (0.5, 3.0):
        x, tensor = torch.randn(32), torch.tensor([scale])
        assert_same(compiled(x, tensor), program(x, tensor))


@interpreted
def test_the_kernel_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        CHOSEN[0][(1,)](x, y, out, x.numel(), BLOCK_SIZE=64)
        return out

    compiled = ingot.compile(program, fullgraph=True)
    x, y = torch.randn(50), torch.randn(50)
    for kernel, expected in ((add_kernel, x + y), (multiply_kernel, x * y), (add_kernel, x + y)):
        monkeypatch.setitem(globals(), "CHOSEN", [kernel])
        assert_same(compiled(x, y), expected)


@interpreted
def test_kernels_in_closures_and_attributes() -> None:
    def make(kernel: Any) -> Any:
        def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            kernel[(1,)](x, y, out, x.numel(), BLOCK_SIZE=64)
            return out

        return program

    x, y = torch.randn(50), torch.randn(50)
    first = ingot.compile(make(add_kernel), fullgraph=True)
    second = ingot.compile(make(multiply_kernel), fullgraph=True)
    for _ in range(2):
        assert_same(first(x, y), x + y)
        assert_same(second(x, y), x * y)
    module, x = Kernels(), torch.randn(300)
    result = ingot.compile(module, fullgraph=True)(x)
    assert_same(result, module(x))
    assert not result.requires_grad


@interpreted
def test_neighbours_are_fused_around_a_launch() -> None:
    x = torch.randn(300)
    report = ingot.explain(add_between)(x, x)
    assert report.graph_count == 1 and not report.breaks
    kinds = list(map(attrgetter("kind"), report.kernels))
    assert kinds.count("fused") == 2 and kinds.count("extern") == 1, kinds


@interpreted
def test_memory_that_kernels_fill_is_not_saved() -> None:
    """What the forward and the backward allocate alike is allocated by each."""
    program = TRAINING["layer_norm"]
    tensors = draw(program)
    for t in tensors:
        t.requires_grad_()
    report = ingot.explain(program.fn)(*tensors)
    assert list(map(attrgetter("kind"), report.kernels)) == ["fused", "extern", "fused"]


@interpreted
def test_an_argument_is_written_in_place() -> None:
    x, out = torch.randn(32), torch.zeros(32)

    def program(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        add_kernel[(1,)](x, x, out, x.numel(), BLOCK_SIZE=64)
        return out

    compiled = ingot.compile(program, fullgraph=True)
    assert compiled(x, out) is out
    assert_same(out, x * 2)
    report = ingot.explain(program)(x, out)
    assert list(map(attrgetter("kind"), report.kernels)) == ["extern"]


@interpreted
def test_integer_tensors() -> None:
    index = torch.randint(0, 10, (300,), generator=torch.Generator().manual_seed(0))
    assert_same(ingot.compile(histogram, fullgraph=True)(index), histogram(index))


@interpreted
def test_inputs_that_share_memory() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scale_in_place_kernel[(1,)](x, 2.0, 32, BLOCK=32)
        return y + 1

    ours, eagers = torch.ones(64), torch.ones(64)
    result = ingot.compile(program)(ours[:32], ours[16:48])
    assert_same(result, program(eagers[:32], eagers[16:48]))
    assert_same(ours, eagers)


@interpreted
def test_errors_are_eagers() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        add_kernel[(1,)](x, x, BLOCK_SIZE=64)
        return x

    for fn in (program, ingot.compile(program)):
        with pytest.raises(TypeError, match="missing 2 required positional arguments"):
            fn(torch.ones(3))


@interpreted
def test_what_breaks_the_graph() -> None:
    def made_inside(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        triton.jit(add_kernel.fn)[(1,)](x, x, out, x.numel(), BLOCK_SIZE=64)
        return out

    def by_address(table: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        by_address_kernel[(1,)](table, out, 4, BLOCK=4)
        return out

    def caught(x: torch.Tensor) -> torch.Tensor:
        try:
            return add(x, x)
        except RuntimeError:
            return x

    def allocates(x: torch.Tensor) -> torch.Tensor:
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size))
        return add(x, x)

    def differentiated(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda t: (t * add(t, t)).sum())(x)

    def mapped(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda t: add(t, t))(x.view(2, 2))

    x = torch.arange(4.0)
    for transform in (differentiated, mapped):
        with pytest.raises(ingot.GraphBreakError, match="a tensor of a transform"):
            ingot.compile(transform, fullgraph=True)(x)
        for fn in (transform, ingot.compile(transform)):
            with pytest.raises(NotImplementedError, match="Cannot access storage"):
                fn(x)
    table = torch.tensor([x.data_ptr()])
    cases: list[tuple[Any, ...]] = [
        (made_inside, "getenv_bool|that the function makes", x),
        (by_address, "follows addresses", table, torch.zeros(4)),
        (allocates, "set_allocator", x),
        (caught, "raise an error that the function handles", x),
    ]
    for program, reason, *args in cases:
        with pytest.raises(ingot.GraphBreakError, match=reason):
            ingot.compile(program, fullgraph=True)(*args)
        assert_same(ingot.compile(program)(*args), program(*args))


@interpreted
def test_other_backends() -> None:
    x = torch.randn(32)
    for backend in ("eager", "aot_eager", lambda graph, examples: graph.forward):
        compiled = ingot.compile(add_between, backend=backend, fullgraph=True)
        assert_same(compiled(x, x), add_between(x, x))


@interpreted
def test_a_launch_that_prints_is_not_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        printing_kernel[(1,)](x, BLOCK=4)
        return x + 1

    compiled = ingot.compile(program, fullgraph=True)
    compiled(torch.ones(4))
    compiled(torch.ones(4))
    assert capfd.readouterr().out.count("seen") == 2


CHOSEN: list[Any] = []
