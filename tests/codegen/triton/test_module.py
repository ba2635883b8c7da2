"""Kernels compiled for devices that need not be there."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.functions import FUNCTIONS
from ingot.codegen.store import Store
from ingot.codegen.triton import Gpu, TritonKernel, compile_kernels, module, write_kernel
from ingot.codegen.triton.module import Binary, available
from ingot.errors import Unsupported
from ingot.schedule.plan import KernelStep, Plan

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

from tests.codegen.triton.interpreter import planned, planned_beside
from tests.long import long

DEVICES = [Gpu("cuda", 80), Gpu("cuda", 90), Gpu("cuda", 100), Gpu("hip", "gfx942")]
HOPPER = Gpu("cuda", 90)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_binaries", {})


def steps(plan: Plan) -> list[KernelStep]:
    return [step for step in plan.steps if isinstance(step, KernelStep)]


@pytest.fixture(scope="module")
def functions() -> list[KernelStep]:
    found = []
    for name in ("complex_activation", "layer_norm_gelu", "masked_softmax", "rms_norm_rotary"):
        fn, args = FUNCTIONS[name].make()
        found += steps(planned(fn, *args))
    return found


@pytest.mark.parametrize("gpu", DEVICES, ids=str)
def test_the_functions_compile(functions: list[KernelStep], gpu: Gpu) -> None:
    compiled = compile_kernels(functions, gpu)
    assert compiled.function_count == len(functions) == 4
    for step in functions:
        binary = compiled.binary(step.kernel)
        assert binary.image[:4] == b"\x7fELF" and binary.threads % gpu.warp_size == 0
        assert binary.function.encode() in binary.image


def test_what_compiling_leaves_alone() -> None:
    """The launcher and the driver of Triton's, which call a C compiler."""
    from triton.runtime import driver

    before = set(sys.modules)
    plan = planned(lambda x: x * 2, torch.randn(100))
    compile_kernels(steps(plan), HOPPER)
    assert getattr(driver, "_active", None) is None
    imported = sys.modules.keys() - before
    assert not [name for name in imported if name.startswith(("torch._inductor", "torch._dynamo."))]


def test_no_library_is_read_for_a_key(
    functions: list[KernelStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's own `compile` takes the checksum of all of itself, which takes longer than all the
    rest."""
    from triton.runtime import cache

    monkeypatch.setattr(cache, "triton_key", lambda: pytest.fail("the library was read"))
    assert compile_kernels(functions[:1], HOPPER).function_count == 1


def test_binaries_are_kept(
    functions: list[KernelStep],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, build, built = Store(tmp_path), module.build, []
    monkeypatch.setattr(module, "store_in", lambda name: store)
    monkeypatch.setattr(module, "build", lambda *given: (built.append(given), build(*given))[1])

    def compiled(steps: list[KernelStep], *args: Any) -> list[module.Binary]:
        made = compile_kernels(steps, *args)
        return [made.binary(step.kernel) for step in steps]

    first = compiled(functions, HOPPER)
    assert len(built) == 4 and compiled(functions, HOPPER) == first and len(built) == 4
    module._binaries.clear()  # as in another process
    assert compiled(functions, HOPPER) == first and len(built) == 4
    assert compiled(functions[:1], Gpu("cuda", 80)) != first[:1] and len(built) == 5
    apart = compiled(functions[:1], HOPPER, functions[0].arguments[:1])
    assert apart != first[:1] and len(built) == 6
    module._binaries.clear()
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    again = compiled(functions[:1], HOPPER)
    assert len(built) == 7 and again[0].function == first[0].function and "damaged" in caplog.text


def test_what_decides_a_binary(
    functions: list[KernelStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write_kernel(functions[0].kernel)  # type: ignore[arg-type]

    def placed(line: int) -> TritonKernel:
        head, _, body = written.source.partition(":\n")
        return replace(written, source=f"{head}:\n    # program.py:{line}\n{body}")

    key = module._key(placed(3), HOPPER, ())
    assert module._key(placed(7), HOPPER, ()) == key
    assert module._key(replace(placed(3), warps=16), HOPPER, ()) != key
    assert module._key(placed(3), Gpu("cuda", 80), ()) != key
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    assert module._key(placed(3), HOPPER, ()) == key
    monkeypatch.setenv("DISABLE_PTXAS_OPT", "1")
    assert module._key(placed(3), HOPPER, ()) != key


def test_no_collection_while_threads_make_syntax_trees(
    functions: list[KernelStep], monkeypatch: Any
) -> None:
    """CPython would raise SystemError where one lets the trees of two threads mix."""
    seen, build = [], module.build
    monkeypatch.setattr(
        module, "build", lambda *given: (seen.append(gc.isenabled()), build(*given))[1]
    )
    assert gc.isenabled()
    compile_kernels(functions, HOPPER)
    assert seen == [False] * 4 and gc.isenabled()


FIRST_KERNELS = """
import sys, torch
from ingot.codegen.triton import Gpu, compile_kernels, module, supported
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.rules import hand_over
from ingot.schedule import schedule
from tests.loops.test_lowering import traced

hand_over()  # as the compiler does before it captures
seen, build = [], module.build


def noted(*given):
    seen.append("triton.compiler.compiler" in sys.modules)
    return build(*given)


module.build = noted
assert "triton" not in sys.modules


def several(x):
    return x.sin().sum(), x.softmax(0), x.softmax(1), x.t() * 2


plan = schedule(lower(traced(several, torch.randn(40, 24)), supported, target=GPU), target=GPU)
compile_kernels([step for step in plan.steps if hasattr(step, "kernel")], Gpu("cuda", 90))
print(len(seen) > 2 and all(seen))
"""


@long
def test_triton_is_imported_before_threads_compile(tmp_path: Path) -> None:
    """Several threads that import it at once find parts of it missing: the whole program was left
    to eager."""
    environment = {**os.environ, "INGOT_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", FIRST_KERNELS], env=environment, capture_output=True, text=True
    )
    assert ran.stdout == "True\n", ran.stderr


def test_accesses_are_as_wide_as_the_alignment_allows() -> None:
    plan = planned(lambda x: x * 2 + 1, torch.randn(1 << 20))
    aligned = compile_kernels(steps(plan), HOPPER).assembly()
    assert "ld.global.v4.b32" in aligned and "st.global.v4.b32" in aligned
    apart = compile_kernels(steps(plan), HOPPER, unaligned={"in0"}).assembly()
    assert "ld.global.v4.b32" not in apart and "st.global.v4.b32" in apart


def test_equal_kernels_are_compiled_once() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        for _ in range(3):
            x = torch.tanh(x @ w)
        return x

    made = steps(planned(fn, torch.randn(64, 64), torch.randn(64, 64)))
    assert len(made) == 3 and compile_kernels(made, HOPPER).function_count == 1


def test_sizes_that_are_symbols_have_two_forms() -> None:
    """32 bits as long as all fits, else 64. What the sizes at hand do not ask for is compiled when
    it is launched."""
    plan = planned(
        lambda x: (torch.tanh(x) + 1, x.softmax(-1), x.sum(0)), torch.randn(40, 24), dynamic=True
    )
    compiled = compile_kernels(steps(plan), HOPPER)
    assert compiled.function_count == len(steps(plan))
    (rows,) = (symbol for symbol, *_ in plan.graph.symbols)
    for step in steps(plan):
        short, wide = compiled.forms(step.kernel)
        assert short.is_compiled and not wide.is_compiled and not wide.conditions
        assert short.written.short and short.written.sizes == wide.written.sizes != ()
        ((limit, most),) = short.conditions
        limits = {n: limit.evaluate({rows: n}) for n in (1, 40, 1000, 2**31 // 24, 2**31)}
        assert most == 2**31 - 1 and 40 * 24 < limits[40] < 10000 and limits[1000] < 2**31 // 100
        assert limits[2**31 // 24] >= 2**31 - 100 and limits[2**31] > 2**31
        assert "int64" not in short.written.source and "int64" in wide.written.source
        assert ".u32" in entry(short.binary) and ".u32" not in entry(wide.binary)
        assert entry(wide.binary).count(".u64") > entry(short.binary).count(".u64")
    assert compiled.function_count == 2 * len(steps(plan))


def test_the_form_for_the_sizes_at_hand_is_compiled() -> None:
    plan = planned(lambda x: (x.softmax(-1), x.sum(0)), torch.randn(40, 24), dynamic=(0, 1))
    symbols = [symbol for symbol, *_ in plan.graph.symbols]
    expected = {
        (40, 100): (128, 16),
        (40, 200): (256, 16),
        (3, 1 << 14): (1 << 14, 64),
        (3, 1 << 15): (2048, 128),
    }
    for shape, sizes in expected.items():
        compiled = compile_kernels(steps(plan), HOPPER, sizes=dict(zip(symbols, shape)))
        rows, columns = (dict(compiled.written(step.kernel).constants) for step in steps(plan))
        assert (rows["RBLOCK"], columns["XBLOCK"]) == sizes
        assert compiled.function_count == 2
        for step in steps(plan):
            assert sum(form.is_compiled for form in compiled.forms(step.kernel)) == 1


def entry(binary: Binary) -> str:
    """The parameters that a function takes."""
    return binary.assembly.split(".entry")[1].split(")")[0]


@pytest.mark.parametrize("gpu", DEVICES, ids=str)
def test_both_forms_compile(gpu: Gpu) -> None:
    plan = planned(lambda x: (x.t() * 2).softmax(-1)[1:], torch.randn(40, 24), dynamic=True)
    compiled = compile_kernels(steps(plan), gpu)
    for step in steps(plan):
        forms = compiled.forms(step.kernel)
        assert len(forms) > 1 and all(
            form.binary.image[:4] == b"\x7fELF" for form in (forms[0], *forms[-2:])
        )


def test_sizes_that_are_known_have_one_form() -> None:
    plan = planned(lambda x: x.softmax(-1) + 1, torch.randn(40, 24))
    compiled = compile_kernels(steps(plan), HOPPER)
    assert all(len(compiled.forms(step.kernel)) == 1 for step in steps(plan))
    assert compiled.function_count == len(steps(plan))


def test_products_are_rounded_before_they_are_added() -> None:
    plan = planned(lambda x, y: x * y + x, torch.randn(4096), torch.randn(4096))
    text = compile_kernels(steps(plan), HOPPER).assembly()
    assert "fma.rn.f32" not in text and "mul.f32" in text.replace("mul.rn.f32", "mul.f32")


def test_the_text_is_readable() -> None:
    fn, args = FUNCTIONS["layer_norm_gelu"].make()
    (step,) = steps(planned(fn, *args))
    text = compile_kernels([step], HOPPER).ir(step.kernel)
    assert text.startswith("@triton.jit\ndef gelu_add_mean_")
    compile(text, "kernel", "exec")


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available", lambda: False)
    with pytest.raises(Unsupported, match="Triton is not installed"):
        compile_kernels(steps(planned(lambda x: x + 1, torch.randn(8))), HOPPER)


@pytest.mark.parametrize("gpu", DEVICES, ids=str)
def test_a_launch_over_many_tensors_compiles(gpu: Gpu) -> None:
    def update(*parameters: torch.Tensor) -> torch.Tensor:
        for p in parameters:
            p.mul_(0.5)
        return parameters[0]

    plan = planned(update, *(torch.randn(k + 2) for k in range(20)))
    (step,) = steps(plan)
    compiled = compile_kernels([step], gpu)
    assert len(step.extents) == 20 and compiled.written(step.kernel).table == 32
    assert compiled.binary(step.kernel).image[:4] == b"\x7fELF"


def test_a_number_of_the_cpus_is_given_by_value() -> None:
    for number in (
        torch.tensor(2.0),
        torch.tensor(0.5, dtype=torch.float16),
        torch.tensor(True),
        torch.tensor(3),
    ):
        plan = planned_beside(lambda x, n: x * n, torch.randn(100), number)
        (step,) = steps(plan)
        compiled = compile_kernels([step], HOPPER)
        head = compiled.binary(step.kernel).assembly.split(".entry")[1].split(")")[0]
        found = re.findall(r"\.param .*?\.[bufs](\d+) .*_param_\d+(?:\[(\d+)\])?", head)
        bits = [int(width) * int(count or 1) for width, count in found]
        assert bits[:3] == [64, 8 * number.itemsize, 64]
