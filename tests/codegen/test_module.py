"""Compilation as a whole: sharing, other targets, lifetimes, and what a compiled module can
tell."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial, reduce

import pytest
import torch

from ingot.codegen.llvm.module import compile_kernels
from ingot.codegen.llvm.target import host, named
from ingot.loops import ops
from ingot.loops.ir import Fault, Origin
from tests.codegen.harness import flat, launch
from tests.codegen.test_kernels import embedding, reduction, softmax

f32 = torch.float32


def doubled(count: int = 100):
    return flat(count, [f32], f32, lambda x: ops.apply("add", x, x))


def test_equal_bodies_compile_once():
    """Also when their buffers have other names."""
    first, second = doubled(), doubled()
    stage = second.stages[0]
    instructions = tuple(
        i._replace(attrs=("b7", *i.attrs[1:])) if i.op == "load" else i
        for i in stage.body.instructions
    )
    stage = replace(
        stage,
        body=stage.body._replace(instructions=instructions),
        stores=(replace(stage.stores[0], buffer="b8"),),
    )
    parameters = (
        second.parameters[0]._replace(name="b7"),
        second.parameters[1]._replace(name="b8"),
    )
    second = replace(
        second, name="other", origin=Origin(("aten.add",)), stages=(stage,), parameters=parameters
    )
    longer = doubled(101)  # a thread's range says how far a flat kernel runs
    third = flat(100, [f32], f32, lambda x: ops.apply("mul", x, x))
    compiled = compile_kernels([first, second, longer, third], [])
    assert (
        compiled.address(first)
        == compiled.address(second)
        == compiled.address(longer)
        != compiled.address(third)
    )
    assert compiled.function_count == 2


def test_text_and_times():
    kernel = doubled()
    compiled = compile_kernels([kernel], [])
    assert "define i32 @kernel0" in compiled.ir(kernel)
    assert "kernel0" in compiled.assembly()
    assert set(compiled.seconds) == {"emit", "look up", "parse", "optimize", "generate", "load"}
    assert compiled.scratch_bytes(kernel).constant == 0
    assert compiled.errors(kernel) == ()


def test_errors_are_listed_in_order():
    kernel = embedding(3, 8, 10)
    assert compile_kernels([kernel], []).errors(kernel) == (
        Fault(IndexError, "index out of range in self"),
    )


def test_no_kernels():
    assert compile_kernels([], []).function_count == 0


@pytest.mark.parametrize(
    "name, register", [("avx2", "%ymm"), ("avx512", "%zmm"), ("zen4", "%zmm"), ("neon", "v0.4s")]
)
def test_other_targets_compile(name, register):
    kernels = [
        flat(1000, [f32], f32,
            lambda x: ops.apply("mul", ops.apply("sin", x), ops.apply("tanh", x))),
        flat(1000, [torch.bfloat16], torch.float16, lambda x: ops.to(x, torch.float16)),
        softmax(5, 100, False), softmax(5, 100, True), embedding(5, 33, 10),
        reduction("argmax", 5, 70, False, f32, torch.int64)[0],
    ]  # fmt: skip
    compiled = compile_kernels(kernels, [], named(name), load=False)
    assert register in compiled.assembly()
    assert len(compiled.object_code) > 1000


def test_halves_are_rounded_to_whole_numbers_as_vectors():
    half = torch.float16
    kernel = flat(4096, [half], half, lambda x: ops.to(ops.apply("floor", ops.to(x, f32)), half))
    text = compile_kernels([kernel], [], named("avx512"), load=False).assembly()
    assert "vrndscaleps" in text and "roundss" not in text and "vrndscaless" not in text


@pytest.mark.parametrize("features", ["", "+avx512bf16"])
def test_brain_floats_are_rounded_by_an_instruction_where_there_is_one(features):
    kernel = flat(4096, [f32], torch.bfloat16, lambda x: ops.to(x, torch.bfloat16))
    text = compile_kernels(
        [kernel], [], replace(named("avx512"), features=features), load=False
    ).assembly()
    assert ("vcvtneps2bf16" in text) == bool(features)


@pytest.mark.skipif("avx2" not in host().features, reason="this machine cannot run AVX2 code")
def test_avx2_code_runs():
    """The code for narrower vectors gives the results of this machine's own, to a rounding of the
    sums."""
    narrow = replace(host(), cpu="haswell", features="", vector_bytes=32)
    wave = flat(
        1003, [f32], f32, lambda x: ops.apply("mul", ops.apply("sin", x), ops.apply("exp", x))
    )
    brain = flat(
        77,
        [torch.bfloat16],
        torch.bfloat16,
        lambda x: ops.to(ops.apply("neg", ops.to(x, f32)), torch.bfloat16),
    )
    cases = [
        (wave, [torch.randn(1003) * 40, torch.zeros(1003)], 1003),
        (brain, [torch.randn(77).bfloat16(), torch.zeros(77).bfloat16()], 77),
        (softmax(5, 100, False), [torch.randn(5, 100), torch.zeros(5, 100)], 5),
        (softmax(21, 9, True), [torch.randn(9, 21), torch.zeros(9, 21)], 21),
        (
            embedding(5, 33, 10),
            [torch.randint(-10, 10, (5,)), torch.randn(10, 33), torch.zeros(5, 33)],
            5,
        ),
    ]
    kernels = [kernel for kernel, _, _ in cases]
    wide, narrowed = compile_kernels(kernels, []), compile_kernels(kernels, [], narrow)
    for kernel, tensors, extent in cases:
        other = [t.clone() for t in tensors]
        assert launch(kernel, tensors, [(0, extent)], compiled=wide) == 0
        assert launch(kernel, other, [(0, extent)], compiled=narrowed) == 0
        torch.testing.assert_close(tensors[-1], other[-1], rtol=1e-6, atol=1e-7, equal_nan=True)


def test_code_is_freed_with_its_owner():
    """Many compilations in one process do not pile up, and the ones still held still work."""
    kept = doubled(33)
    held = compile_kernels([kept], [])
    for count in range(1, 60):
        compile_kernels([doubled(count)], [])
    gc.collect()
    x, out = torch.randn(33), torch.zeros(33)
    assert launch(kept, [x, out], [(0, 33)], compiled=held) == 0
    assert torch.equal(out, x + x)


def test_many_kernels_are_one_module():
    kernels = [
        flat(
            1000,
            [f32],
            f32,
            lambda x, k=k: ops.apply("tanh", ops.apply("mul", x, ops.constant(k + 0.5, f32))),
        )
        for k in range(60)
    ]
    assert compile_kernels(kernels, []).function_count == 60


def test_the_target_can_be_named(monkeypatch):
    monkeypatch.setenv("INGOT_TARGET", "avx2")
    text = compile_kernels([doubled()], [], load=False).assembly()
    assert "%ymm" in text and "%zmm" not in text
    monkeypatch.setenv("INGOT_TARGET", "z80")
    with pytest.raises(ValueError, match="avx2, avx512, zen4, neon, not 'z80'"):
        compile_kernels([doubled()], [])


@pytest.mark.parametrize("count, hidden", [(2, False), (12, True)])
def test_the_index_of_a_loop_over_many_arrays_is_opaque_to_llvm(count: int, hidden: bool):
    """One register each for many addresses is not what it has to look for."""
    kernel = flat(
        100, [f32] * count, f32, lambda *values: reduce(partial(ops.apply, "add"), values)
    )
    compiled = compile_kernels([kernel], [])
    assert ("@llvm.expect.i64" in compiled.ir(kernel)) is hidden
    given = [torch.arange(100.0) + k for k in range(count)]
    result = torch.empty(100)
    assert launch(kernel, [*given, result], [(0, 37), (37, 100)], compiled=compiled) == 0
    assert torch.equal(result, torch.stack(given).sum(0))
