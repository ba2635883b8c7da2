"""What torch's profiler shows of compiled programs: their steps, by names in the user's words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.profiler_util import FunctionEvent
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

import ingot
from ingot.native import _native
from ingot.places import Origin, Place
from tests.compiled import compilations

HERE = Path(__file__).name


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(functional.gelu(self.inner(x)))


def line_of(text: str) -> int:
    """The number of this file's first line with a text."""
    lines = Path(__file__).read_text("utf-8").splitlines()
    return next(k for k, line in enumerate(lines, 1) if text in line)


BLOCK_LINE = f"{HERE}:{line_of('return x + self.norm')}"


def events_of(call: Callable[[], object]) -> list[FunctionEvent]:
    """Ingot's events, and no others, while a profiler looks at a call."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        call()
    return [event for event in profiled.events() if event.name.startswith("ingot::")]


def names_of(call: Callable[[], object]) -> list[str]:
    """The names of its kernels and library calls."""
    memory = {"ingot::allocate", "ingot::release"}
    return [event.name for event in events_of(call) if event.name not in memory]


def test_a_kernel_has_the_calls_the_line_the_module_and_the_ops() -> None:
    model = ingot.compile(nn.Sequential(Block(), Block()))
    x = torch.randn(16, 16)
    with torch.no_grad():
        model(x)
        names = names_of(lambda: model(x))
    for k in range(2):
        assert f"ingot::linear+gelu {BLOCK_LINE} self[{k}].inner [linear, gelu]" in names
        norm = f"ingot::layer_norm+add {BLOCK_LINE} self[{k}].norm ["
        assert any(name.startswith(norm) for name in names)
    assert len(names) == 4


def test_what_matters_most_comes_first() -> None:
    """A table of the profiler's cuts names off."""
    model = ingot.compile(nn.Sequential(Block()))
    x = torch.randn(16, 16)
    with torch.no_grad():
        model(x)
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            model(x)
    table = profiled.key_averages().table()
    assert f"ingot::linear+gelu {BLOCK_LINE} " in table


def test_backwards_have_the_lines_of_the_forward() -> None:
    model, x = ingot.compile(nn.Sequential(Block())), torch.randn(16, 16)

    def step() -> None:
        model(x).sum().backward()

    step()
    backwards = [name for name in names_of(step) if " backward " in name]
    assert backwards
    for name in backwards:
        assert f" {BLOCK_LINE} self[0]" in name, name
    assert any(name.startswith("ingot::linear backward") for name in backwards)
    assert any("[" in name and "mm" in name.partition("[")[2] for name in backwards)


def test_backwards_under_compiled_backward_are_named() -> None:
    x = torch.randn(8, requires_grad=True)

    def step() -> None:
        with ingot.compiled_backward():
            (x.sin() * 2).sum().backward()

    step()
    try:
        assert any(" backward " in name for name in names_of(step))
    finally:
        ingot.reset()  # its report is of the process


def library(x: Tensor, y: Tensor) -> Tensor:
    return torch.linalg.inv(x) + y  # library


def test_library_calls_are_named_and_hold_what_torch_records() -> None:
    compiled, args = ingot.compile(library), (torch.eye(8), torch.ones(8, 8))
    compiled(*args)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        compiled(*args)
    line = f"{HERE}:{line_of('# library')}"
    (step,) = [e for e in profiled.events() if "[linalg_inv_ex]" in e.name]
    assert step.name.startswith(f"ingot::linalg_inv {line} ")
    inside = [e for e in profiled.events() if e.name == "aten::linalg_inv_ex"]
    assert inside
    for event in inside:
        assert step.time_range.start <= event.time_range.start
        assert event.time_range.end <= step.time_range.end


def test_a_trace_has_the_names(tmp_path: Path) -> None:
    compiled, x = ingot.compile(lambda x: x.sin() + 1), torch.randn(8)
    compiled(x)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        compiled(x)
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    (kernel,) = [e for e in events if e.get("name", "").startswith("ingot::sin+add ")]
    assert kernel["cat"] == "cpu_op" and kernel["dur"] >= 0 and HERE in kernel["name"]


def test_no_event_without_a_profiler() -> None:
    """A kernel that ran before a profiler began is not in its events, and one that runs afterwards
    neither."""
    compiled, x = ingot.compile(lambda x: x.cos() * 3), torch.randn(8)
    compiled(x)
    assert len(names_of(lambda: None)) == 0
    assert len(names_of(lambda: compiled(x))) == 1
    compiled(x)
    assert len(names_of(lambda: None)) == 0


def test_threads() -> None:
    """A profiler sees the thread that it was begun in, as it does of torch's operators."""
    compiled, x = ingot.compile(lambda x: x.cos() * 3), torch.randn(8)
    compiled(x)

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: (compiled(x), torch.cos(x)))
        thread.start()
        thread.join()

    assert names_of(elsewhere) == []
    assert len(names_of(lambda: (elsewhere(), compiled(x)))) == 1


def test_a_kernel_of_several_threads_is_one_event() -> None:
    compiled, x = ingot.compile(lambda x: x.sin() + 1), torch.randn(1 << 20)
    compiled(x)
    assert len(names_of(lambda: compiled(x))) == 1


def fails(x: Tensor, index: Tensor) -> Tensor:
    return x[index] * 2


def test_a_step_that_fails_ends_its_event() -> None:
    compiled, x = ingot.compile(fails), torch.randn(8)
    compiled(x, torch.tensor([1, 2]))

    def call() -> None:
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([1, 20]))
        compiled(x, torch.tensor([1, 2]))

    assert len(names_of(call)) >= 2
    compiled(x, torch.tensor([1, 2]))


def test_times_are_those_of_the_call() -> None:
    """The events of a call of more than 5 ms add up to the call, but for a twentieth. The best of
    some calls counts, since others may run on the machine."""

    def products(x: Tensor) -> Tensor:
        for _ in range(4):
            x = (x @ x).tanh()
        return x

    compiled, x = ingot.compile(products), torch.randn(768, 768)
    with torch.no_grad():
        compiled(x)
        shares, kept = [], []
        for _ in range(5):
            with profile(activities=[ProfilerActivity.CPU]) as profiled, record_function("call"):
                kept.append(compiled(x))  # to free memory takes time of its own
            spans: dict[str, float] = {}
            for event in profiled.events():
                kind = event.name.partition("::")[0]
                spans[kind] = spans.get(kind, 0.0) + event.time_range.elapsed_us()
            assert spans["call"] > 5000
            shares.append(spans["ingot"] / spans["call"])
    assert 0.95 <= max(shares) <= 1


def test_many_layers_that_are_compiled_once() -> None:
    """Their steps are those of one layer: the names do not say which."""
    model = nn.Sequential(*[Block() for _ in range(12)])
    compiled, x = ingot.compile(model), torch.randn(4, 16, requires_grad=True)
    compiled(x).sum().backward()
    names = names_of(lambda: compiled(x).sum().backward())
    layered = compilations(compiled)[0].log.plan.graph.layers is not None
    assert any("self[*].inner" in name for name in names) == layered
    # 12 products of each of two sorts, forward and backward
    assert sum("linear" in name for name in names) >= 36


# -- NVTX ------------------------------------------------------------------------------------------


@pytest.fixture
def marks() -> Iterator[Callable[..., None]]:
    yield _native.mark_steps
    _native.mark_steps()


def test_ranges_are_around_the_steps(marks: Callable[..., None]) -> None:
    compiled, x, ranges = ingot.compile(lambda x: x.sin() + 1), torch.randn(8), list[str]()
    compiled(x)
    marks(ranges.append, lambda: ranges.append("end"))
    compiled(x)
    assert ranges[:2] == ["ingot::allocate", "end"] and ranges[3:] == ["end"]
    assert ranges[2].startswith(f"ingot::sin+add {HERE}:")
    marks()
    compiled(x)
    assert len(ranges) == 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ranges_that_fail_are_given_up(marks: Callable[..., None]) -> None:
    compiled, x, calls = ingot.compile(lambda x: x.sin() + 1), torch.randn(8), list[str]()

    def fail(name: str) -> None:
        calls.append(name)
        raise RuntimeError("NVTX functions not installed")

    marks(fail, lambda: None)
    assert torch.equal(compiled(x), compiled(x)) and len(calls) == 1


def test_the_environment_asks_for_ranges() -> None:
    """Before torch's functions are called: this torch may have been built without CUDA."""
    program = """
        import torch
        ranges = []
        torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop = ranges.append, lambda: None
        import ingot
        ingot.compile(lambda x: x.sin() + 1)(torch.ones(3))
        print(ranges)
    """
    for asked in ("1", "0"):
        environment = os.environ | {"INGOT_NVTX": asked}
        command = [sys.executable, "-c", textwrap.dedent(program)]
        printed = subprocess.check_output(command, env=environment, text=True)
        assert ("ingot::sin+add" in printed) == (asked == "1")


# -- what is noted of places -----------------------------------------------------------------------


def test_a_place_is_its_line() -> None:
    place = Place("a.py:3", "relu", "self.act")
    assert place == "a.py:3" and {place: 1}["a.py:3"] == 1
    assert (place.call, place.module) == ("relu", "self.act")
    assert type(str(place)) is str


@pytest.mark.parametrize("place", ["a.py:3", Place("a.py:3", "relu")])
def test_origins_keep_each_call_once(place: Any) -> None:
    origin = Origin.of("aten.relu.default", place, "relu_1")
    merged = Origin(()).merged(origin, Origin(("aten.add.Tensor",), "b.py:1", ("add",)), origin)
    assert merged.where == "a.py:3"
    assert merged.ops == ("aten.relu.default", "aten.add.Tensor", "aten.relu.default")
    assert merged.calls == (("relu", "add") if isinstance(place, Place) else ("add",))
