"""The native program runner, on descriptions written by hand: see ingot/runtime/description.py for
their format."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
import torch

from ingot.native import _native
from tests.native.kernels import address

F32 = torch.float32


def const(value: int) -> tuple[Any, ...]:
    return (("const", value),)


def program(
    buffers: list[tuple[Any, ...]],
    steps: list[tuple[Any, ...]],
    outputs: list[tuple[str, int]],
    *,
    inputs: int = 1,
    symbols: tuple[Any, ...] = (),
    expressions: tuple[Any, ...] = (const(8), const(1), const(0)),
    constants: tuple[torch.Tensor, ...] = (),
    views: tuple[Any, ...] = (),
    arena: int = 2,
) -> Any:
    """Without symbols, value 0 is 8, 1 is 1 and 2 is 0: a vector of 8 elements is (0,), (1,)."""
    parts = (tuple(buffers), views, tuple(steps), tuple(outputs))
    return _native.Program(
        (inputs, symbols, expressions, constants, *parts, arena, torch.uint8, None)
    )


def vector(place: str, position: int = 0) -> tuple[Any, ...]:
    return (place, F32, (0,), (1,), position)


def launch(
    name: str,
    *buffers: int,
    extent: int = 0,
    work: float = 1.0,
    unit: int = 1,
    scratch: int = -1,
    errors=(),
) -> Any:
    return ("kernel", address(name), buffers, extent, work, unit, scratch, errors)


def call(
    function: Any,
    *items: Any,
    keywords: Any = None,
    targets: tuple[int, ...] = (),
    written: tuple[int, ...] = (),
) -> Any:
    return ("call", function, items, keywords, targets, written)


def one_kernel(name: str = "add_one", **how: Any) -> Any:
    return program(
        [vector("input"), vector("output")],
        [("allocate", 1), launch(name, 0, 1, **how)],
        [("buffer", 1)],
    )


def settle() -> None:
    for _ in range(3):
        gc.collect()


class TestLentMemory:
    """An input that dies with the next step lends its memory, where the caller alone had it."""

    @pytest.fixture
    def run(self) -> Any:
        steps = [("allocate", 1, 0), launch("add_one", 0, 1), ("release", (0,))]
        return program([vector("input"), vector("output")], steps, [("buffer", 1)])

    def test_what_is_consumed_lends(self, run):
        given = [torch.arange(8.0)]
        address = given[0].data_ptr()
        (y,) = run.consume(given)
        assert (
            torch.equal(y, torch.arange(8.0) + 1) and y.data_ptr() == address and not y._is_view()
        )
        assert y._version == 0 and y.untyped_storage().nbytes() == 32

    def test_what_the_caller_keeps_does_not(self, run):
        x = torch.arange(8.0)
        (y,) = run(x)
        (z,) = run.consume([x])
        assert torch.equal(x, torch.arange(8.0)) and torch.equal(y, x + 1) and torch.equal(z, x + 1)

    @pytest.mark.parametrize(
        "other",
        [
            lambda x: x,
            lambda x: x.detach(),
            lambda x: x.untyped_storage(),
            lambda x: x.numpy(),
            lambda x: torch.utils.dlpack.to_dlpack(x),
        ],
    )
    def test_what_somebody_holds_does_not(self, run, other):
        given = [torch.arange(8.0)]
        address, held = given[0].data_ptr(), other(given[0])
        (y,) = run.consume(given)
        assert torch.equal(y, torch.arange(8.0) + 1) and y.data_ptr() != address
        del held

    @pytest.mark.parametrize(
        "made",
        [
            lambda: torch.from_numpy(np.arange(8, dtype=np.float32)),
            lambda: torch.frombuffer(bytearray(32), dtype=F32),
            lambda: torch.arange(8.0).share_memory_(),
        ],
    )
    def test_memory_of_others_is_not_lent(self, run, made):
        given = [made()]
        address = given[0].data_ptr()
        (y,) = run.consume(given)
        assert y.data_ptr() != address

    def test_a_part_of_an_allocation_is_not_lent(self, run):
        given = [torch.arange(9.0)[1:].detach()]
        address = given[0].data_ptr()
        (y,) = run.consume(given)
        assert torch.equal(y, torch.arange(9.0)[1:] + 1) and y.data_ptr() != address

    def test_small_ones_are_not_asked_for(self, run):
        before = _native._lend_from(33)
        try:
            given = [torch.arange(8.0)]
            address = given[0].data_ptr()
            assert run.consume(given)[0].data_ptr() != address
        finally:
            _native._lend_from(before)


class TestKernels:
    def test_a_kernel_computes(self, allocation):
        x = torch.arange(8.0)
        (y,) = one_kernel()(x)
        assert torch.equal(y, x + 1)

    def test_an_output_is_an_ordinary_tensor(self, allocation):
        x = torch.arange(8.0)
        (y,) = one_kernel()(x)
        assert (
            type(y) is torch.Tensor
            and not y.requires_grad
            and y.is_leaf
            and y._base is None
            and y._version == 0
        )
        other = torch.empty(8)
        assert sys.getrefcount(y) == sys.getrefcount(other) and y._use_count() == other._use_count()
        y.resize_(100)
        assert y.shape == (100,) and y.untyped_storage().resizable()
        y.requires_grad_().sum().backward()
        assert y.grad is not None

    def test_outputs_of_two_calls_are_apart(self):
        run = one_kernel()
        first = run(torch.zeros(8))[0]
        second = run(torch.ones(8))[0]
        assert first.tolist() == [1] * 8 and second.tolist() == [2] * 8

    @pytest.mark.parametrize(
        "dtype", [torch.bool, torch.int64, torch.bfloat16, torch.complex64, torch.float8_e4m3fn]
    )
    def test_outputs_have_the_planned_layout(self, dtype, allocation):
        expressions = (const(3), const(5), const(0), const(1), const(3))
        buffer = ("output", dtype, (0, 1), (3, 4), 0)
        run = program(
            [buffer], [("allocate", 0)], [("buffer", 0)], inputs=0, expressions=expressions
        )
        (y,) = run()
        assert y.dtype == dtype and y.shape == (3, 5) and y.stride() == (1, 3)

    def test_a_kernel_begins_within_its_buffers(self):
        expressions = (const(8), const(1), const(0), const(16), const(4))
        # four elements, from 4 of one and 1 of another
        launched = (*launch("add_one", 0, 1, extent=4), (), -1, (3, 4))
        buffers = [vector("input"), vector("output")]
        run = program(
            buffers, [("allocate", 1), launched], [("buffer", 1)], expressions=expressions
        )
        (y,) = run(torch.arange(8.0))
        assert y[1:5].tolist() == [5.0, 6.0, 7.0, 8.0]

    def test_nothing_is_launched_over_an_empty_range(self):
        run = program(
            [vector("input"), ("output", F32, (2,), (1,), 0)],
            [("allocate", 1), launch("fail_first", 0, 1, extent=2)],
            [("buffer", 1)],
        )
        assert run(torch.empty(0))[0].shape == (0,)

    def test_kernels_chain_through_the_arena(self):
        run = program(
            [vector("input"), vector("arena", 2), vector("arena", 3), vector("output")],
            [
                launch("add_one", 0, 1),
                launch("double", 1, 2),
                ("allocate", 3),
                launch("add_one", 2, 3),
            ],
            [("buffer", 3)],
            expressions=(const(8), const(1), const(0), const(64), const(128)),
            arena=4,
        )
        x = torch.randn(8)
        for _ in range(3):
            assert torch.equal(run(x)[0], (x + 1) * 2 + 1)

    def test_an_input_may_be_written(self):
        run = program(
            [vector("input"), vector("input", 1)], [launch("add_one", 0, 1)], [], inputs=2
        )
        x, y = torch.arange(8.0), torch.zeros(8)
        assert run(x, y) == ()
        assert torch.equal(y, x + 1)

    def test_a_constant_is_read(self):
        constant = torch.arange(8.0)
        run = program(
            [vector("constant"), vector("output")],
            [("allocate", 1), launch("add_one", 0, 1)],
            [("buffer", 1)],
            inputs=0,
            constants=(constant,),
        )
        assert torch.equal(run()[0], constant + 1)

    def test_errors_of_a_kernel_are_raised(self):
        errors = ((IndexError, "index out of range"), (RuntimeError, "other"))
        with pytest.raises(IndexError, match="^index out of range$"):
            one_kernel("fail_first", errors=errors)(torch.zeros(8))
        with pytest.raises(RuntimeError, match="^other$"):
            one_kernel("fail_second", errors=errors)(torch.zeros(8))
        with pytest.raises(SystemError, match="unknown status 1"):
            one_kernel("fail_first")(torch.zeros(8))

    def test_scratch_memory_is_private_to_the_thread(self):
        expressions = (const(100_000), const(1), const(0), const(4))
        run = program(
            [vector("input"), vector("output")],
            [("allocate", 1), launch("by_scratch", 0, 1, work=100.0, scratch=3)],
            [("buffer", 1)],
            expressions=expressions,
        )
        x = torch.randn(100_000)
        for _ in range(5):
            assert torch.equal(run(x)[0], x + 1)


class TestDynamicSizes:
    SYMBOLS = ((0, "size", 0), (0, "stride", 0))

    def run(self):
        """add_one over s0 elements, of twice as many, through an arena of as many."""
        n = ("symbol", 0)
        return program(
            [
                ("input", F32, (0,), (1,), 0),
                ("arena", F32, (0,), (3,), 2),
                ("output", F32, (4,), (3,), 0),
            ],
            [launch("add_size", 0, 1), ("allocate", 2), launch("double", 1, 2, extent=4)],
            [("buffer", 2), ("int", 5), ("int", 1)],
            symbols=self.SYMBOLS,
            expressions=(
                const(0),
                const(1),
                (n, ("const", 2), ("floordiv",)),
                (n, ("const", 3), ("mul",)),
                (n, ("const", 4), ("mul",)),
            ),
            arena=6,
        )

    def test_sizes_are_read_at_every_call(self):
        run = self.run()
        for n in (4, 100, 6, 6, 0, 4):
            x = torch.randn(n)
            y, three_n, stride = run(x)
            assert torch.equal(y, ((x + n) * 2)[: n // 2]) and three_n == 3 * n and stride == 1

    def test_a_wrong_rank_is_refused(self):
        with pytest.raises(ValueError, match="fewer dimensions"):
            self.run()(torch.tensor(1.0))

    def test_integers_follow_python(self):
        operations = {
            "add": lambda a, b: a + b,
            "sub": lambda a, b: a - b,
            "mul": lambda a, b: a * b,
            "floordiv": lambda a, b: a // b,
            "mod": lambda a, b: a % b,
            "max": max,
            "min": min,
        }
        cases = [(name, a, b) for name in operations for a in (-7, -6, 0, 5) for b in (-3, 2, 3)]
        expressions = (const(0), *((("const", a), ("const", b), (name,)) for name, a, b in cases))
        outputs = [("int", 1 + k) for k in range(len(cases))]
        run = program([], [], outputs, inputs=0, expressions=expressions, arena=0)
        assert list(run()) == [operations[name](a, b) for name, a, b in cases]

    @pytest.mark.parametrize(
        "steps, error",
        [
            ((("const", 2**62), ("const", 2), ("mul",)), OverflowError),
            ((("const", -(2**63)), ("const", -1), ("floordiv",)), OverflowError),
            ((("const", 1), ("const", 0), ("mod",)), ZeroDivisionError),
        ],
    )
    def test_what_does_not_fit_is_raised(self, steps, error):
        run = program([], [], [("int", 1)], inputs=0, expressions=(const(0), steps), arena=0)
        with pytest.raises(error):
            run()

    @pytest.mark.parametrize(
        "steps",
        [
            (("add",),),
            (("const", 1), ("const", 2)),
            (),
            (("nonsense",),),
            (("symbol", 0),),
            ("add",),
        ],
    )
    def test_malformed_expressions_are_refused(self, steps):
        with pytest.raises(ValueError):
            program([], [], [], inputs=0, expressions=(steps,), arena=0)


class TestLibraryCalls:
    def test_a_result_becomes_a_buffer(self):
        run = program(
            [vector("input"), vector("library"), vector("output")],
            [
                call(torch.sin, ("buffer", 0), targets=(1,)),
                ("allocate", 2),
                launch("add_one", 1, 2),
                ("release", (1,)),
            ],
            [("buffer", 2)],
        )
        x = torch.randn(8)
        assert torch.equal(run(x)[0], x.sin() + 1)
        assert run.layout_mismatches == 0

    def test_results_may_be_several_and_unused(self):
        run = program(
            [("input", F32, (0, 1), (1, 1), 0), ("library", F32, (0,), (1,), 0)],
            [call(torch.max, ("buffer", 0), ("object", 1), targets=(1, -1))],
            [("buffer", 1)],
        )
        x = torch.randn(8, 1)
        assert torch.equal(run(x)[0], x[:, 0])

    def test_out_variants_write_into_the_arena(self):
        run = program(
            [vector("input"), vector("arena", 2), vector("output")],
            [
                call(torch.sin, ("buffer", 0), ("view", 0), keywords=("out",), written=(1,)),
                ("allocate", 2),
                launch("add_one", 1, 2),
            ],
            [("buffer", 2)],
            expressions=(const(8), const(1), const(64), const(96), const(0)),
            views=((1, F32, (0,), (1,), 4),),
            arena=3,
        )
        for _ in range(3):
            x = torch.randn(8)
            assert torch.equal(run(x)[0], x.sin() + 1)

    def test_lists_ints_and_keywords(self):
        run = program(
            [vector("input"), ("library", F32, (3,), (1,), 0)],
            [
                call(
                    torch.cat,
                    ("list", (("buffer", 0), ("view", 0))),
                    ("int", 2),
                    keywords=("dim",),
                    targets=(1,),
                )
            ],
            [("buffer", 1)],
            expressions=(const(8), const(1), const(0), const(11), const(3), const(5)),
            views=((0, F32, (4,), (1,), 5),),
        )
        x = torch.randn(8)
        assert torch.equal(run(x)[0], torch.cat([x, x[5:]]))

    def test_views_count_from_the_first_element_of_an_input(self):
        run = program(
            [vector("input")],
            [],
            [("view", 0), ("view", 1), ("copy", 0)],
            expressions=(const(8), const(1), const(0), const(2), const(3)),
            views=((0, F32, (4,), (3,), 1), (0, torch.int32, (4,), (1,), 4)),
        )
        x = torch.arange(20.0)[5:13]
        y, z, copy = run(x)
        assert y.tolist() == [6, 8, 10] and y.data_ptr() == x[1:].data_ptr()
        assert torch.equal(z, x.view(torch.int32)[3:6])
        assert torch.equal(copy, y) and copy.data_ptr() != y.data_ptr()

    def test_windows_in_calls_and_alone(self, allocation):
        kept: list[torch.Tensor] = []

        def keep(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            kept[:] = x, y
            return x + y

        run = program(
            [vector("input"), ("library", F32, (3,), (1,), 0)],
            [call(keep, ("view", 0), ("view", 1), targets=(1,))],
            [("buffer", 1), ("alone", 2)],
            expressions=(const(8), const(1), const(0), const(3), const(2)),
            views=((0, F32, (3,), (1,), 4), (0, F32, (3,), (4,), 1), (1, F32, (3, 1), (1, 4), 2)),
        )
        x = torch.arange(20.0)[5:13].requires_grad_()
        result, alone = run(x)
        assert (
            torch.equal(kept[0], x[2:5])
            and torch.equal(kept[1], x[1:6:2])
            and torch.equal(result, sum(kept))
        )
        assert [t.untyped_storage().data_ptr() for t in kept] == [
            x.untyped_storage().data_ptr()
        ] * 2
        assert alone.data_ptr() == result.data_ptr() and (alone.shape, alone.stride()) == (
            (3, 1),
            (1, 2),
        )
        assert not alone._is_view() and not alone.requires_grad
        conjugate = torch.tensor([1 + 2j] * 8).conj()
        run = program(
            [
                ("input", torch.complex64, (0,), (1,), 0),
                ("library", torch.complex64, (2,), (1,), 0),
            ],
            [call(torch.resolve_conj, ("view", 0), targets=(1,))],
            [("buffer", 1)],
            expressions=(const(8), const(1), const(4), const(0)),
            views=((0, torch.complex64, (2,), (1,), 3),),
            arena=3,
        )
        assert torch.equal(run(conjugate)[0], conjugate[:4].resolve_conj())

    def test_another_layout_than_predicted_is_copied_and_counted(self):
        expressions = (const(2), const(4), const(0), const(1))
        run = program(
            [("input", F32, (0, 1), (1, 3), 0), ("library", F32, (0, 1), (1, 3), 0)],
            [call(lambda x: x.t().contiguous().t(), ("buffer", 0), targets=(1,))],
            [("buffer", 1)],
            expressions=expressions,
        )
        x = torch.randn(2, 4)
        (y,) = run(x)
        assert torch.equal(y, x) and y.stride() == (4, 1) and run.layout_mismatches == 1

    def test_a_result_in_an_arguments_memory_is_copied(self):
        run = program(
            [vector("input"), vector("library")],
            [call(lambda x: x, ("buffer", 0), targets=(1,))],
            [("buffer", 1)],
        )
        x = torch.randn(8)
        (y,) = run(x)
        assert torch.equal(x, y) and x.data_ptr() != y.data_ptr() and run.layout_mismatches == 0

    @pytest.mark.parametrize(
        "result, error, text",
        [
            (torch.zeros(9), RuntimeError, "sizes"),
            (torch.zeros(8, 1), RuntimeError, "rank"),
            (torch.zeros(8, device="meta"), RuntimeError, "device"),
            (None, TypeError, "tensor was predicted"),
            ({1: 2}.keys(), TypeError, "tensor was predicted"),
            ((1,), TypeError, "tensor was predicted"),
            ((), RuntimeError, "length"),
        ],
    )
    def test_other_results_than_predicted_are_refused(self, result, error, text):
        run = program(
            [vector("input"), vector("library")],
            [call(lambda x: result, ("buffer", 0), targets=(1,))],
            [("buffer", 1)],
        )
        with pytest.raises(error, match=text):
            run(torch.zeros(8))

    def test_a_resized_out_argument_is_noticed(self):
        run = program(
            [vector("input"), vector("output")],
            [
                ("allocate", 1),
                call(
                    lambda x, out: out.resize_(10_000), ("buffer", 0), ("buffer", 1), written=(1,)
                ),
            ],
            [("buffer", 1)],
        )
        with pytest.raises(RuntimeError, match="resized its out= argument"):
            run(torch.zeros(8))

    def test_an_input_may_be_what_a_call_writes(self):
        run = program(
            [vector("input"), vector("input", 1)],
            [call(torch.sin, ("buffer", 0), ("buffer", 1), keywords=("out",), written=(1,))],
            [],
            inputs=2,
        )
        x, y = torch.randn(8), torch.zeros(8)
        run(x, y)
        assert torch.equal(y, x.sin())

    def test_a_product_is_a_call_where_there_is_no_gpu(self):
        square = (F32, (0, 0), (0, 1))
        otherwise = call(
            torch.mm, ("buffer", 0), ("buffer", 1), ("buffer", 2), keywords=("out",), written=(2,)
        )
        step = ("product", "float32", (0, 1, 2), ((lambda: True, True),), otherwise)
        run = program(
            [("input", *square, 0), ("input", *square, 1), ("output", *square, 0)],
            [("allocate", 2), step],
            [("buffer", 2)],
            inputs=2,
            views=tuple((k, *square, 2) for k in range(3)),
        )
        x, y = torch.randn(8, 8), torch.randn(8, 8)
        assert torch.equal(run(x, y)[0], x @ y)

    def test_a_frugal_program_makes_its_arena_anew(self):
        kept: list[torch.Tensor] = []
        parts = (
            (vector("input"), vector("arena", 2)),
            ((1, F32, (0,), (1,), 2),),
            (launch("add_one", 0, 1), call(kept.append, ("view", 0))),
            (),
        )
        sizes = (const(8), const(1), const(0), const(64))
        run = _native.Program(
            (
                1,
                (),
                sizes,
                (),
                *parts,
                3,
                torch.uint8,
                None,
                torch.device("cpu"),
                (0, 0, 0, 0),
                True,
            )
        )
        for value in range(3):
            run(torch.full((8,), float(value)))
        assert [t.tolist() for t in kept] == [[1] * 8, [2] * 8, [3] * 8]
        assert len({t.untyped_storage().data_ptr() for t in kept}) == 3

    @pytest.mark.parametrize("size", [8, 800])
    def test_small_buffers_share_the_arena(self, size):
        """Two buffers of symbolic size: in an arena of up to 512 bytes, at multiples of its half,
        else on their own."""
        seen: list[torch.Tensor] = []
        place = ("small", F32, (0,), (1,))
        parts = (
            (vector("input"), (*place, 2), (*place, 3)),
            tuple((k, F32, (0,), (1,), 2) for k in (1, 2)),
            (
                ("allocate", 1),
                launch("add_one", 0, 1),
                ("allocate", 2),
                launch("add_one", 1, 2),
                call(lambda *given: seen.extend(given), ("view", 0), ("view", 1)),
                ("release", (1, 2)),
            ),
            (),
        )
        n = ("symbol", 0)
        expressions = (const(1), const(0), (n, ("const", 4), ("mul",)), (n, ("const", 8), ("mul",)))
        rest = 2, torch.uint8, None, torch.device("cpu"), (0,) * 4, True, None, 4, 512
        run = _native.Program((1, ((0, "size", 0),), expressions, (), *parts, *rest))
        for value in (0.0, 1.0):
            run(torch.full((size,), value))
        values = [t[:8].tolist() for t in seen]
        assert values == [[1] * 8, [2] * 8, [2] * 8, [3] * 8]
        first, second = (t.untyped_storage() for t in seen[:2])
        assert (first.data_ptr() == second.data_ptr()) is (size == 8)
        assert first.nbytes() == (64 if size == 8 else 4 * size)

    def test_no_gradient_is_recorded(self):
        run = program(
            [vector("input"), vector("library")],
            [call(torch.sin, ("buffer", 0), targets=(1,))],
            [("buffer", 1)],
        )
        (y,) = run(torch.ones(8, requires_grad=True))
        assert not y.requires_grad and torch.is_grad_enabled()
        with torch.no_grad():
            run(torch.ones(8))
            assert not torch.is_grad_enabled()

    def test_a_kept_view_of_the_arena_is_never_overwritten(self):
        kept: list[torch.Tensor] = []
        run = program(
            [vector("input"), vector("arena", 2)],
            [launch("add_one", 0, 1), call(kept.append, ("view", 0))],
            [],
            expressions=(const(8), const(1), const(0), const(64)),
            views=((1, F32, (0,), (1,), 2),),
            arena=3,
        )
        for value in range(3):
            run(torch.full((8,), float(value)))
        assert [t.tolist() for t in kept] == [[1] * 8, [2] * 8, [3] * 8]
