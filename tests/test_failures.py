"""Errors of Ingot's own, and want of memory or stack, while something is compiled: facts about one
call."""

from __future__ import annotations

import sys

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from ingot.failures import ATTEMPTS, Failures
from tests.interruptions import differences, state
from tests.oracle import CLOSE, assert_call

pytestmark = pytest.mark.internal_error

STAGES = [
    "ingot.capture.captured._finish",
    "ingot.capture.results.Results.recipe",
    "ingot.capture.recorder.GraphRecorder.finish",
    "ingot.pipeline.trace_alike",
    "ingot.graph.tracing.run_passes",
    "ingot.pipeline.lower",
    "ingot.pipeline.verify",
    "ingot.pipeline.schedule",
    "ingot.devices.compile_kernels",
    "ingot.codegen.llvm.module.objects_of",
    "ingot.pipeline.Program",
    "ingot.compiler.GuardTree",
]
INTERNAL = [
    RuntimeError,
    ValueError,
    AssertionError,
    KeyError,
    OSError,
    TypeError,
    NotImplementedError,
]
PASSING = [MemoryError, RecursionError]


@pytest.fixture
def fails(monkeypatch):
    """Has a stage raise an error from now on; `fails.count` says how often it did. Without a stage:
    no more."""

    class Fails:
        count = 0

        def __call__(self, stage=None, error=None):
            monkeypatch.undo()
            if stage is None:
                return

            def failing(*args, **kwargs):
                self.count += 1
                raise error("injected")

            monkeypatch.setattr(stage, failing)

    with torch.no_grad():
        yield Fails()


def f(x):
    return torch.softmax(x.sin() * 2, -1) + x


def broken(x):
    y = x.cos()
    torch._dynamo.graph_break()
    return y * float(y.sum()) + x


def assert_right(compiled, function, size):
    assert_call(compiled, function, torch.arange(float(size)) / 7, numbers=CLOSE)


def hits(compiled):
    return sum(entry.hits for entry in compiled.entries() if entry.target is not None)


@pytest.mark.parametrize("error", [RuntimeError, KeyError, *PASSING])
@pytest.mark.parametrize("stage", STAGES)
def test_good_variants_stay_and_the_like_is_tried_again(stage, error, fails):
    compiled, before = ingot.compile(f, dynamic=False), state()
    assert_right(compiled, f, 5)
    fails(stage, error)
    assert_right(compiled, f, 6)
    assert fails.count and differences(before) == []
    served, compilations = hits(compiled), len(Compiler.of(compiled).compilations)
    assert_right(compiled, f, 5)
    assert hits(compiled) == served + 1 and len(Compiler.of(compiled).compilations) == compilations
    fails()
    for _ in range(2):
        assert_right(compiled, f, 6)
    assert Compiler.of(compiled).compilations[-1].log.program is not None
    served = hits(compiled)
    assert_right(compiled, f, 6)
    assert_right(compiled, f, 5)
    assert_right(compiled, f, 7)
    assert_right(compiled, f, 7)
    assert hits(compiled) >= served + 3


@pytest.mark.parametrize("error", INTERNAL)
def test_facts_that_always_fail_are_left_to_eager_in_the_end(error, fails):
    """These and no others, with the reason in the report."""
    compiled = ingot.compile(f, dynamic=False)
    assert_right(compiled, f, 5)
    fails("ingot.pipeline.schedule", error)
    for _ in range(50):
        assert_right(compiled, f, 6)
    assert fails.count == ATTEMPTS
    why = [str(c.skipped) for c in Compiler.of(compiled).compilations if c.skipped]
    assert len(why) == ATTEMPTS and all(error.__name__ in reason for reason in why)
    assert "tried again" in why[0] and "not tried again" in why[-1]
    fails()
    served = hits(compiled)
    assert_right(compiled, f, 5)
    assert_right(compiled, f, 8)
    assert_right(compiled, f, 8)
    assert hits(compiled) >= served + 2


@pytest.mark.parametrize("error", PASSING)
def test_want_of_memory_or_stack_is_no_lasting_reason(error, fails):
    """It is tried again, at intervals that grow."""
    compiled = ingot.compile(f)
    fails("ingot.pipeline.schedule", error)
    for _ in range(300):
        assert_right(compiled, f, 6)
    assert 6 <= fails.count <= 10
    fails()
    for _ in range(300):
        assert_right(compiled, f, 6)
    assert hits(compiled) > 0


@pytest.mark.parametrize("error", [RuntimeError, *PASSING])
def test_in_a_continuation(error, fails):
    compiled = ingot.compile(broken, dynamic=False)
    assert_right(compiled, broken, 5)
    fails("ingot.pipeline.schedule", error)
    assert_right(compiled, broken, 6)
    fails()
    for _ in range(4):
        assert_right(compiled, broken, 6)
        assert_right(compiled, broken, 5)
    [continuation] = Compiler.of(compiled).continuations.values()
    assert sum(entry.target is not None for entry in continuation.entries) == 2
    assert sum(entry.target is not None for entry in compiled.entries()) == 2


@pytest.mark.parametrize("error", [RuntimeError, *PASSING])
def test_in_a_backward(error, fails):
    compiled, tensors = ingot.compile(f), [torch.ones(5, requires_grad=True) for _ in range(2)]

    def step():
        for function, x in zip((compiled, f), tensors):
            x.grad = None
            (function(x) * torch.arange(5.0)).sum().backward()
        torch.testing.assert_close(tensors[0].grad, tensors[1].grad)

    with torch.enable_grad():
        results = [compiled(tensors[0]) for _ in range(2)]
        fails("ingot.pipeline.schedule", error)
        for result in results:
            result.sum().backward()
        failed = fails.count
        for _ in range(100):
            step()
        assert failed == 2 and fails.count == (ATTEMPTS if error is RuntimeError else 7)
        fails()
        for _ in range(100):
            step()
    backward = Compiler.of(compiled).compilations[0].backward
    assert (backward.log.program is None) == (error is RuntimeError)


def test_in_a_backward_of_attention_with_scores(fails):
    """The graph's own ops run in eager as well."""

    def attend(q, k, v):
        place = torch.arange(q.shape[-2])
        scores = torch.where(place[:, None] >= place, q @ k.mT * 0.5, -torch.inf)
        return torch.ops.aten._safe_softmax.default(scores, -1) @ v

    runs = []
    tensors = [torch.randn(1, 2, 20, 8, requires_grad=True) for _ in range(3)]
    with torch.enable_grad():
        result = ingot.compile(attend, fullgraph=True)(*tensors)
        fails("ingot.pipeline.schedule", RuntimeError)
        for output in (result, attend(*tensors)):
            runs.append(torch.autograd.grad(output.sum(), tensors))
    assert fails.count
    for found, expected in zip(*runs):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("error", [RuntimeError, *PASSING])
def test_fullgraph_raises_the_error(error, fails):
    compiled = ingot.compile(f, fullgraph=True)
    fails("ingot.pipeline.schedule", error)
    for _ in range(2):
        with pytest.raises((error, ingot.errors.GraphBreakError)):
            compiled(torch.ones(3))
    fails()
    assert_right(compiled, f, 3)


def test_little_stack_at_one_call():
    """What is called first where the stack is nearly used up is compiled where it is not."""
    compiled = ingot.compile(f)

    def deep(left):
        return deep(left - 1) if left else compiled(torch.ones(4))

    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    with torch.no_grad():
        for room in (10, 25, 60, 100):
            try:
                deep(sys.getrecursionlimit() - depth - room)
            except RecursionError:  # there is too little for the program itself
                pass
        for _ in range(20):
            assert_right(compiled, f, 4)
    assert hits(compiled) > 0


class TestIntervals:
    def attempts(self, failures, slots, calls):
        made = 0
        for _ in range(calls):
            if not failures.put_off(slots):
                failures.note(lambda s: s == slots, slots)
                made += 1
        return made

    def test_they_grow(self):
        assert [self.attempts(Failures(), (1,), n) for n in (1, 2, 3, 4, 100, 1000)] == [
            1,
            2,
            2,
            3,
            7,
            10,
        ]

    def test_each_for_its_facts(self):
        failures = Failures()
        self.attempts(failures, (1,), 100)
        assert not failures.put_off((2,)) and failures.put_off((1,))

    def test_success_ends_them(self):
        failures = Failures()
        self.attempts(failures, (1,), 100)
        failures.forget((1,))
        assert not failures.put_off((1,))
