"""Several modules of a graph's kernels at a time."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from dataclasses import replace

import pytest
import torch

from ingot.codegen.llvm import objects
from ingot.codegen.llvm.module import compile_kernels
from ingot.codegen.llvm.objects import modules_of, objects_of
from ingot.codegen.llvm.target import host
from ingot.codegen.store import store_in
from ingot.loops import ops
from tests.codegen.harness import flat, launch
from tests.codegen.test_contraction import Case
from tests.long import long

pytestmark = pytest.mark.own_objects

f32 = torch.float32
GOOD = "define i32 @f(i32 %x) {\n ret i32 %x\n}\n"


@pytest.fixture
def three(monkeypatch):
    """A target of three processors, on which any text is worth a module."""
    monkeypatch.setattr(objects, "_processors", lambda: 3)
    return replace(host(), long_text=1)


def test_each_text_is_in_one_part_and_parts_are_alike(three):
    parts = modules_of([("a" * length, frozenset()) for length in (10, 90, 20, 30, 40, 50)], three)
    assert sorted(k for part in parts for k in part) == [0, 1, 2, 3, 4, 5]
    assert [1] in parts and len(parts) == 3


def test_functions_stay_with_those_that_call_the_same(monkeypatch, three):
    monkeypatch.setattr(objects, "_processors", lambda: 2)
    first, second = frozenset(["f" * 100]), frozenset(["g" * 100])
    callers = [("a" * 50, own) for own in (first, first, second, second)]
    assert modules_of(callers, three) == [[0, 1], [2, 3]]
    callers = [("a" * 50, first), ("a" * 50, first), ("b" * 300, second)]
    assert modules_of(callers, three) == [[2], [0, 1]]


def test_little_text_is_one_part(monkeypatch):
    monkeypatch.setattr(objects, "_processors", lambda: 8)
    assert modules_of([("a" * 100, frozenset()), ("b" * 100, frozenset())], host()) == [[0, 1]]
    assert modules_of([], host()) == []


def test_one_processor_compiles_one_module(monkeypatch):
    monkeypatch.setattr(objects, "_processors", lambda: 1)
    assert modules_of([("a" * 10**6, frozenset()), ("b" * 10**6, frozenset())], host()) == [[0, 1]]


def test_kernels_of_several_modules_run(three):
    scaled = [
        flat(100, [f32], f32, lambda x,
            k=k: ops.apply("mul", x, ops.constant(k + 0.5, f32))) for k in range(8)
    ]  # fmt: skip
    compiled = compile_kernels(scaled, [], three)
    assert len(compiled.objects) == 3 and all(
        f"kernel{k}:" in compiled.assembly() for k in range(8)
    )
    x = torch.randn(100)
    for k, kernel in enumerate(scaled):
        out = torch.zeros(100)
        assert launch(kernel, [x, out], [(0, 100)], compiled=compiled) == 0
        assert torch.equal(out, x * (k + 0.5))


def test_results_do_not_depend_on_the_number_of_modules(monkeypatch):
    """What several kernels call is in each module that calls it."""
    cases = [Case((rows, 64, 32), right="nk") for rows in (16, 24, 40)]
    kernels = [case.kernel() for case in cases]
    monkeypatch.setattr(objects, "_processors", lambda: 1)
    whole = compile_kernels(kernels, [])
    monkeypatch.setattr(objects, "_processors", lambda: 3)
    apart = compile_kernels(kernels, [], replace(host(), long_text=1))
    assert (len(whole.objects), len(apart.objects)) == (1, 3)
    for case, kernel in zip(cases, kernels):
        a, b, c = case.tensors()
        d = c.clone()
        for out, compiled in ((c, whole), (d, apart)):
            assert (
                launch(kernel, [a, b, out], [(0, kernel.points.evaluate({}))], compiled=compiled)
                == 0
            )
        assert torch.equal(c, d) and c.isfinite().all()


def test_what_is_wrong_in_any_module_is_raised():
    for texts in ([GOOD, "define"], ["define", GOOD]):
        with pytest.raises(RuntimeError, match="parsing"):
            objects_of(texts, host(), {})


def test_where_no_thread_can_be_started_one_compiles_all(monkeypatch):
    usual = objects_of([GOOD] * 3, host(), {})

    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert objects_of([GOOD] * 3, host(), {}) == usual


@long
def test_several_modules_are_compiled_at_the_interpreters_exit():
    program = f"""
        import atexit
        from ingot.codegen.llvm.target import host
        from ingot.codegen.llvm.objects import objects_of
        atexit.register(lambda: print(len(objects_of([{GOOD!r}] * 3, host(), {{}}))))
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True
    )
    assert (ran.stdout, ran.returncode) == ("3\n", 0), ran.stderr


def test_an_interrupt_waits_for_the_other_modules(monkeypatch):
    """And leaves what compiles the next ones as it was."""
    made = objects.optimized

    def interrupted(text, target, seconds):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return made(text, target, seconds)

    monkeypatch.setattr(objects, "optimized", interrupted)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        objects_of([GOOD] * 3, host(), {})
    assert threading.active_count() == before
    monkeypatch.undo()
    assert len(objects_of([GOOD] * 3, host(), {})) == 3


# -- what is kept for later processes --------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in which code is kept, and nothing is yet."""
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    store_in.cache_clear()
    yield tmp_path / "llvm"
    store_in.cache_clear()


def test_what_was_generated_is_not_generated_again(folder):
    first, second = {}, {}
    (image,) = objects_of([GOOD], host(), first)
    assert "generate" in first and len(list(folder.iterdir())) == 1
    assert objects_of([GOOD], host(), second) == [image] and "generate" not in second
    other = GOOD.replace("ret i32 %x", "ret i32 7")
    third = {}
    images = objects_of([other, GOOD], host(), third)
    assert images[1] == image != images[0] and "generate" in third


def test_damaged_code_is_generated_again(folder):
    (image,) = objects_of([GOOD], host(), {})
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert objects_of([GOOD], host(), {}) == [image]


CHANGES = {
    "the machine": lambda monkeypatch: replace(host(), cpu="x86-64-v3"),
    "its features": lambda monkeypatch: replace(host(), features="+avx2"),
    "passes": lambda monkeypatch: monkeypatch.setattr(objects, "_PASSES", ("sroa",)),
    "the level": lambda monkeypatch: monkeypatch.setattr(objects, "_LEVEL", 1),
    "the format": lambda monkeypatch: monkeypatch.setattr(objects, "_FORMAT", -1),
    "LLVM": lambda monkeypatch: monkeypatch.setattr(objects, "_version", lambda: ("0",)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_code_has_another_key(folder, monkeypatch, change):
    objects_of([GOOD], host(), {})
    target, seconds = CHANGES[change](monkeypatch) or host(), {}
    objects_of([GOOD], target, seconds)
    assert "generate" in seconds


KEPT = """
    import ingot, torch
    f = ingot.compile(lambda x: torch.softmax(x.exp() @ x.T, 1).sum(0), fullgraph=True)
    x = torch.arange(12.0).view(3, 4) / 10
    print(f(x).tolist())
"""


@long
def test_another_process_finds_what_one_has_kept(folder):
    code = textwrap.dedent(KEPT)
    found = []
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        found.append((run.stdout, sorted(path.name for path in folder.iterdir())))
    assert found[0] == found[1] and found[0][1]
