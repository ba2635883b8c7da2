"""Plans made by hand, run as programs."""

from __future__ import annotations

import time
import weakref
from typing import Any

import pytest
import torch

import ingot
from ingot.errors import CompilerBug
from ingot.loops.expr import Expr, Symbol, as_expr, integer, loop_symbol, product, size_symbol
from ingot.loops.ir import Buffer, Fault, Library, LoopGraph, Origin, View
from ingot.loops.spaces import contiguous_strides
from ingot.runtime.program import Program
from ingot.schedule.plan import KernelStep, LibraryStep, Place, Plan
from tests.native.kernels import HandMade, kernel

ROLES = {"input": "input", "constant": "constant"}


class Maker:
    """Builds a plan buffer by buffer and step by step."""

    def __init__(self, symbols: list[tuple[Symbol, int, str, int]] | None = None) -> None:
        self.graph = LoopGraph(symbols=symbols or [])
        self.steps: list[Any] = []
        self.places: dict[str, Place] = {}
        self.arena: Expr = integer(0)
        self.last_use: dict[int, tuple[str, ...]] = {}

    def buffer(self, name: str, kind: str, *sizes: Expr | int) -> View:
        shape = tuple(map(as_expr, sizes))
        strides = contiguous_strides(shape)
        self.graph.buffers[name] = Buffer(
            name, torch.float32, shape, strides, ROLES.get(kind, "temporary")
        )
        position = len(self.graph.inputs) if kind == "input" else 0
        self.places[name] = Place(kind, position, self.arena if kind == "arena" else None)
        if kind == "input":
            self.graph.inputs.append(name)
        if kind == "arena":
            self.arena = self.arena + product(shape) * 4 // 64 * 64 + 64
        return View(name, shape, strides, integer(0), torch.float32)

    def kernel(self, name: str, *views: View, work: float = 1.0) -> None:
        extent = product(views[0].sizes)
        self.steps.append(
            KernelStep(
                kernel(name, loop_symbol("i", extent)), tuple(v.buffer for v in views), extent, work
            )
        )

    def library(
        self, function: Any, args: tuple[Any, ...], targets: tuple[str | None, ...], **more: Any
    ) -> None:
        kwargs = more.pop("kwargs", {})
        self.steps.append(
            LibraryStep(
                Library(
                    "call", Origin(("call",), "f.py:1"), function, args, kwargs, targets, **more
                )
            )
        )

    def program(self, *outputs: Any, **compiled: Any) -> Program:
        self.graph.outputs = list(outputs)
        plan = Plan(
            self.graph,
            self.steps,
            self.places,
            self.last_use,
            self.arena,
            self.arena,
            self.arena + 100,
        )
        return Program(plan, HandMade(**compiled))


def test_kernels_in_order():
    make = Maker()
    x, a, y = (
        make.buffer("x", "input", 4, 2),
        make.buffer("a", "arena", 4, 2),
        make.buffer("y", "output", 4, 2),
    )
    make.kernel("add_one", x, a)
    make.kernel("double", a, y)
    run, given = make.program(y), torch.randn(4, 2)
    (result,) = run([given])
    assert torch.equal(result, (given + 1) * 2)


def test_the_steps_print():
    make = Maker()
    x, a, y = (
        make.buffer("x", "input", 8),
        make.buffer("a", "arena", 8),
        make.buffer("y", "output", 8),
    )
    make.kernel("add_one", x, a)
    make.library(torch.ops.aten.sin.out, (a,), ("y",), out="out")
    run = make.program(y, as_expr(3))
    assert str(run).splitlines() == [
        "arena 64 bytes, peak 164 bytes",
        "  kernel add_one(x:input, a:arena+0) over 8",
        "  call aten.sin.out(a:arena+0) -> y:output",
        "  return y[8], 3",
    ]
    assert run.arena_bytes.constant == 64 and run.peak_bytes.constant == 164


def test_errors_and_scratch_come_from_the_machine_code():
    make = Maker()
    x, y = make.buffer("x", "input", 8), make.buffer("y", "output", 8)
    make.kernel("by_scratch", x, y)
    make.kernel("fail_second", x, y)
    faults = Fault(IndexError, "one"), Fault(RuntimeError, "two")
    run = make.program(y, scratch={"by_scratch": integer(4)}, messages={"fail_second": faults})
    with pytest.raises(RuntimeError, match="two"):
        run([torch.zeros(8)])


def test_one_program_serves_all_sizes():
    n = size_symbol("s0", 2)
    make = Maker([(n, 0, "size", 0)])
    x, a, y = (
        make.buffer("x", "input", n, 3),
        make.buffer("a", "arena", n, 3),
        make.buffer("y", "output", n, 3),
    )
    make.kernel("add_size", x, a)
    make.library(torch.ops.aten.sin.out, (a,), ("y",), out="out")
    first_row = View("y", (integer(3),), (integer(1),), (n - 1) * 3, torch.float32)
    run = make.program(y, first_row, n * 3)
    for size in (2, 50, 7, 7):
        given = torch.randn(size, 3)
        result, row, count = run([given])
        assert (
            torch.equal(result, (given + size).sin())
            and torch.equal(row, result[-1])
            and count == 3 * size
        )
        assert row.data_ptr() == result[-1].data_ptr()


@pytest.mark.parametrize("place", ["arena", "output"])
@pytest.mark.parametrize("op", ["mm", "addmm", "bmm", "baddbmm"])
def test_matmuls_with_out(op, place):
    batch = (2,) if "b" in op.replace("addmm", "") or op == "baddbmm" else ()
    shapes = [(*batch, 4, 3), (*batch, 3, 5)]
    shapes = [(*batch, 4, 5), *shapes] if "add" in op else shapes
    make = Maker()
    args = tuple(make.buffer(f"x{i}", "input", *shape) for i, shape in enumerate(shapes))
    z, y = make.buffer("z", place, *batch, 4, 5), make.buffer("y", "output", *batch, 4, 5)
    make.library(getattr(torch.ops.aten, op).out, args, ("z",), out="out")
    make.kernel("add_one", z, y)
    run, inputs = make.program(y), [torch.randn(shape) for shape in shapes]
    for _ in range(2):
        assert torch.equal(run(inputs)[0], getattr(torch, op)(*inputs) + 1)


def test_results_of_libraries_are_used_returned_and_released():
    make = Maker()
    x, s, y = (
        make.buffer("x", "input", 8),
        make.buffer("s", "library", 8),
        make.buffer("y", "output", 8),
    )
    values, lost = make.buffer("values", "library", 8), []
    make.library(torch.ops.aten.sin.default, (x,), ("s",))
    make.kernel("add_one", s, y)
    make.last_use[1] = ("s",)
    make.library(lambda: lost.append("called"), (), ())
    make.library(torch.sort, (x,), ("values", None), kwargs={"dim": 0, "descending": True})
    run, given = make.program(y, values), torch.randn(8)
    result, ordered = run([given])
    assert (
        torch.equal(result, given.sin() + 1)
        and torch.equal(ordered, given.sort(descending=True)[0])
        and lost == ["called"]
    )
    steps = run.native.description[6]
    made = next(step[4] for step in steps if step[0] == "call" and step[1] is torch.sin)
    assert ("release", made) in steps


def test_nested_arguments_and_symbols():
    n = size_symbol("s0", 2)
    make = Maker([(n, 0, "size", 0)])
    x = make.buffer("x", "input", n)
    make.buffer("y", "library", 2 * n + 1)
    make.graph.outputs = []
    half = View("x", (integer(1),), (integer(1),), integer(1), torch.float32)
    make.library(
        lambda parts, shape: torch.cat(parts).reshape(shape), ([x, x, half], (2 * n + 1,)), ("y",)
    )
    y = View("y", (2 * n + 1,), (integer(1),), integer(0), torch.float32)
    run, given = make.program(y), torch.randn(5)
    assert torch.equal(run([given])[0], torch.cat([given, given, given[1:2]]))


def test_mutated_inputs():
    make = Maker()
    x, y = make.buffer("x", "input", 8), make.buffer("y", "input", 8)
    make.kernel("add_one", x, y)
    make.library(torch.Tensor.mul_, (y, 3), (), mutates=("y",))
    run, given, written = make.program(), torch.randn(8), torch.zeros(8)
    assert run([given, written]) == []
    # the kernel's write, and mul_
    assert torch.equal(written, (given + 1) * 3) and written._version == 2


def test_outputs_that_alias():
    make = Maker()
    x, y = make.buffer("x", "input", 2, 4), make.buffer("y", "output", 2, 4)
    make.kernel("add_one", x, y)
    transposed = View(
        "y", (integer(4), integer(2)), (integer(1), integer(4)), integer(0), torch.float32
    )
    last_column = View("x", (integer(2),), (integer(4),), integer(3), torch.float32)
    run = make.program(y, transposed, y, x, last_column)
    given = torch.randn(10)[2:].view(2, 4)
    fresh, turned, again, same, column = run([given])
    assert fresh is not again and fresh.data_ptr() == again.data_ptr() == turned.data_ptr()
    assert torch.equal(turned, fresh.t()) and fresh._base is None
    assert same is not given and same.data_ptr() == given.data_ptr() and torch.equal(same, given)
    column.fill_(9)
    assert given[:, 3].tolist() == [9, 9]


def test_a_returned_constant_is_a_copy():
    make = Maker()
    literal = make.graph.constants["c"] = torch.arange(3.0)
    c = make.buffer("c", "constant", 3)
    run = make.program(c)
    run([])[0].fill_(5)
    assert run([])[0].tolist() == literal.tolist() == [0, 1, 2]


def test_an_output_that_nothing_writes_is_allocated():
    make = Maker()
    y = make.buffer("y", "output", 0, 3)
    del make.places["y"]
    assert make.program(y)([])[0].shape == (0, 3)


def test_bugs_are_named():
    make = Maker()
    x, a = make.buffer("x", "input", 8), make.buffer("a", "arena", 8)
    make.kernel("add_one", x, a)
    with pytest.raises(CompilerBug, match="lies in the arena"):
        make.program(a)
    make.library(print, ({"x": x},), ())
    with pytest.raises(CompilerBug, match="dict.*f.py:1"):
        make.program()


def test_units():
    """A launch is shared in the units of the kernel's code."""
    make = Maker()
    x, y = make.buffer("x", "input", 8), make.buffer("y", "output", 8)
    make.kernel("add_one", x, y)
    make.kernel("double", y, y)
    program = make.program(y, units={"double": 16})
    steps = [step for step in program.native.description[6] if step[0] == "kernel"]
    assert [step[5] for step in steps] == [1, 16]


def test_results_whose_elements_lie_apart():
    def function(x):
        first, second = torch.unsafe_split(x * 2, 2, 1)
        spread = torch.empty_strided((3, 2), (4, 1))
        spread.copy_(x[:3, :2])
        return first.sigmoid_(), second, spread, spread[:, 1:], spread * 2

    x = torch.randn(4, 4)
    expected, results = function(x), ingot.compile(function, fullgraph=True)(x)
    assert [r.stride() for r in results] == [e.stride() for e in expected]
    assert results[3].data_ptr() == results[2].data_ptr() + 4
    for result, value in zip(results, expected):
        torch.testing.assert_close(result, value)


def test_a_profile_has_the_time_of_each_step_of_the_plan():
    """Not of allocations apart, and of the calls since it began; switching it on again starts
    anew."""
    maker = Maker()
    x, y, z = (
        maker.buffer("x", "input", 4),
        maker.buffer("y", "arena", 4),
        maker.buffer("z", "output", 4),
    )
    maker.kernel("double", x, y)
    maker.library(slow_addition, (y, y), ("z",), out="out")
    program = maker.program(z)
    argument = torch.ones(4)
    assert program.profile(False) == [] and program.profile(True) == []
    program([argument])
    fast, slow = program.profile(True)
    assert 0 <= fast < slow and slow >= 0.002
    for _ in range(3):
        assert torch.equal(program([argument])[0], torch.full((4,), 4.0))
    assert program.profile(False)[1] >= 0.006
    program([argument])
    assert program.profile(False) == []


def slow_addition(x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor) -> None:
    time.sleep(0.002)
    torch.add(x, y, out=out)


def test_a_consumed_input_dies_with_its_last_use():
    make = Maker()
    x, a, y = (
        make.buffer("x", "input", 4, 2),
        make.buffer("a", "own", 4, 2),
        make.buffer("y", "output", 4, 2),
    )
    alive: list[bool] = []
    make.kernel("add_one", x, a)
    make.library(lambda: alive.append(reference() is not None), (), ())
    make.kernel("double", a, y)
    make.last_use[0] = ("x",)
    run, given = make.program(y), torch.randn(4, 2)
    expected, reference, inputs = (given + 1) * 2, weakref.ref(given), [given]
    del given
    for survives in (True, False):  # a call holds its arguments
        (result,) = run.native(*inputs) if survives else run.native.consume(inputs)
        torch.testing.assert_close(result, expected)
    assert alive == [True, False] and inputs == []
    with pytest.raises(TypeError, match="a list"):
        run.native.consume((result,))
    with pytest.raises(TypeError, match="was given 0"):
        run.native.consume([])
