"""Programs that one process keeps are found by another, and do the same; those of anything that
differs are not found."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ingot
from ingot.codegen.store import Store, store_in
from ingot.compiler import Compiler
from ingot.kept import digest, loading
from ingot.kept.contents import contents_of, read_contents
from ingot.kept.format import Named, packed, unpacked
from ingot.kept.programs import FOUND
from tests.long import long


@pytest.fixture(autouse=True)
def folder(cache: Path) -> Path:
    """A folder for programs, in which there is none yet."""
    return cache / "programs"


def called(function: Callable[..., Any], args: Any, **options: Any) -> tuple[Any, str]:
    """What a compiled function gives, or raises, as in a new process, and whether it was found."""
    ingot.reset()
    compiled = ingot.compile(function, **options)
    result: Any
    try:
        result = compiled(*args)
    except Exception as error:
        result = error
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return result, compiler.compilations[0].log.kept


def alike(found: Any, expected: Any) -> None:
    if isinstance(expected, Exception):
        assert type(found) is type(expected) and str(found) == str(expected)
        return
    flat = torch.utils._pytree.tree_leaves
    assert len(flat(found)) == len(flat(expected))
    for mine, its in zip(flat(found), flat(expected)):
        if not isinstance(its, Tensor):
            assert mine == its and type(mine) is type(its)
            continue
        torch.testing.assert_close(mine, its, equal_nan=True)
        assert mine.stride() == its.stride()


X = torch.linspace(-2, 2, 24).view(4, 6)


def writes(x: Tensor) -> Tensor:
    x.mul_(2)
    x[0] = 1
    return x.sum(0)


def several(x: Tensor) -> Any:
    y = x * 2
    return {"a": y, "b": [y.T, y[1:]], "n": 3, "x": x}


def under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.T


def of_constants(x: Tensor) -> Tensor:
    return x + torch.tensor([1.0, 2, 3, 4, 5, 6]) * torch.arange(6) + torch.eye(4, 6)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "pointwise": (lambda x: (x * 2 + 1).sin(), (X,)),
    "softmax": (lambda x: torch.softmax(x, 1), (X,)),
    "a product": (lambda x: (x @ x.T).relu() + 1, (X,)),
    "a norm": (lambda x: F.gelu(F.layer_norm(x, (6,))), (X,)),
    "an index": (lambda x, i: x[i] * 2, (X, torch.tensor([1, 3]))),
    "embedding": (lambda i, w: F.embedding(i, w).sum(1), (torch.tensor([[1, 2], [3, 0]]), X)),
    "out of range": (lambda i, w: F.embedding(i, w) + 1, (torch.tensor([1, 9]), X)),
    "sort": (lambda x: x.sort(1), (X,)),
    "several results": (several, (X,)),
    "writes": (writes, (X,)),
    "autocast": (under_autocast, (X,)),
    "constants": (of_constants, (X,)),
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding=1),
        (X.view(1, 1, 4, 6), torch.ones(2, 1, 3, 3)),
    ),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q), (torch.randn(1, 2, 8, 4),)),
    "complex": (lambda x: torch.view_as_real(torch.fft.fft(x)), (X,)),
    "integers": (lambda x: (x * 10).long() % 3, (X,)),
    "an integer": (lambda x, n: x * n, (X, 3)),
    "views": (lambda x: (x.T, x[1:], x.view(-1)), (X,)),
    "nothing": (lambda x: x, (X,)),
    "empty": (lambda x: x[:0] * 2, (X,)),
    "a module": (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8)).eval(), (X,)),
    "dropout that is off": (nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5)).eval(), (X,)),
}  # fmt: skip
WITHOUT_A_PROGRAM = frozenset({"nothing"})


@pytest.mark.parametrize("name", PROGRAMS)
@torch.no_grad()
def test_found_programs_do_the_same(name: str) -> None:
    function, args = PROGRAMS[name]

    def fresh() -> tuple[Any, ...]:
        return tuple(a.clone() if isinstance(a, Tensor) else a for a in args)

    given = fresh()
    try:
        expected = function(*given)
    except Exception as error:
        expected = error
    for turn in range(2):
        mine = fresh()
        result, found = called(function, mine)
        alike(result, expected)
        alike(mine, given)
        if turn and name not in WITHOUT_A_PROGRAM:
            assert found == FOUND
        else:
            assert not found


def test_random_numbers_are_eagers() -> None:
    def noisy(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) + torch.rand_like(x)

    for _ in range(2):
        torch.manual_seed(5)
        expected = noisy(X)
        torch.manual_seed(5)
        alike(called(noisy, (X,))[0], expected)


def test_reports_are_complete(folder: Path) -> None:
    def rows(x: Tensor) -> Tensor:
        return torch.softmax(x * 2, 1) @ x.T

    reports = []
    for _ in range(2):
        ingot.reset()
        compiled = ingot.compile(rows)
        compiled(X)
        report = ingot.explain(compiled)(X)
        report.measure(lambda compiled=compiled: compiled(X))
        assert all(kernel.seconds is not None for kernel in report.kernels)
        reports.append(report)
    cold, warm = reports
    assert warm.kept == [FOUND] and cold.kept == []
    assert FOUND in str(warm) and "look up" in warm.stages and "codegen" not in warm.stages
    for fact in ("peak_bytes", "arena_bytes", "guards"):
        assert getattr(warm, fact) == getattr(cold, fact)
    assert [k.source for k in warm.kernels] == [k.source for k in cold.kernels]


# -- what decides the key --------------------------------------------------------------------------


def scaled(x: Tensor) -> Tensor:
    return x * 2 + 1


def of_constant(number: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * number


def made_of(line: str) -> Callable[[Tensor], Tensor]:
    """A function that calls another one of this source."""
    namespace: dict[str, Any] = {"torch": torch}
    exec(f"def inner(x):\n    return {line}\ndef outer(x):\n    return inner(x) + 1", namespace)
    outer: Callable[[Tensor], Tensor] = namespace["outer"]
    return outer


PAIRS: dict[str, tuple[tuple[Callable[..., Any], Any], tuple[Callable[..., Any], Any]]] = {
    "the source of an inlined function": ((made_of("x * 2"), X), (made_of("x * 3"), X)),
    "a constant of a closure": ((of_constant(2.0), X), (of_constant(3.0), X)),
    "the sign of zero": ((of_constant(0.0), X), (of_constant(-0.0), X)),
    "an int for a float": ((of_constant(2), X.long()), (of_constant(2.0), X.long())),
    "a dtype": ((scaled, X), (scaled, X.double())),
    "sizes": ((scaled, X), (scaled, X[:3])),
    "strides": ((scaled, X), (scaled, X.T)),
    "an offset": (
        (lambda x: x.as_strided((2,), (1,), 3) * 2, X),
        (lambda x: x.as_strided((2,), (1,), 4) * 2, X),
    ),
    "a slice": ((lambda x: x[1:3] * 2, X), (lambda x: x[0:2] * 2, X)),
    "an argument by name": (
        (lambda x: x.sum(0, keepdim=True), X),
        (lambda x: x.sum(0, keepdim=False), X),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_another_program_is_not_found(name: str) -> None:
    (first, x), (second, y) = PAIRS[name]
    for function, argument in ((first, x), (second, y)):
        result, found = called(function, (argument,), dynamic=False)
        alike(result, function(argument))
        assert not found
    assert called(first, (x,), dynamic=False)[1] == called(second, (y,), dynamic=False)[1] == FOUND


def test_inputs_that_share_memory_are_another_program() -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x + y

    makers = {
        "apart": lambda: (X.clone(), X.clone()),
        "the same": lambda: (lambda t: (t, t))(X.clone()),
        "a view": lambda: (lambda t: (t, t[:]))(X.clone()),
        "half": lambda: (lambda t: (t[:4], t[2:]))(torch.arange(36.0).view(6, 6)),
    }
    for turn, (name, make) in itertools.product(range(2), makers.items()):
        given, mine = make(), make()
        expected = add(*given)
        result, found = called(add, mine)
        alike(result, expected)
        alike(mine, given)
        assert found != FOUND or turn, name


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "the format": lambda patch: patch.setattr(digest, "FORMAT", -1),
    "Ingot's version": lambda patch: (
        patch.setattr(ingot, "__version__", "9.9"),
        digest._versions.cache_clear(),
    ),
    "Ingot's files": lambda patch: (
        patch.setattr(digest, "_digest_of_package", lambda: "other"),
        digest._versions.cache_clear(),
    ),
    "torch's version": lambda patch: (
        patch.setattr(torch, "__version__", "9.9"),
        digest._versions.cache_clear(),
    ),
    "the processor": lambda patch: (
        patch.setattr(digest, "_processor", lambda: "flags: sse2"),
        digest._versions.cache_clear(),
    ),
    "a variable": lambda patch: patch.setenv("INGOT_CHECK_BOUNDS", "1"),
    "threads": lambda patch: patch.setattr(torch, "get_num_threads", lambda: 77),
    "the default dtype": lambda patch: torch.set_default_dtype(torch.float64),
    "deterministic algorithms": lambda patch: torch.use_deterministic_algorithms(True),
    "precision": lambda patch: torch.set_float32_matmul_precision("medium"),
    "gradients": lambda patch: torch.set_grad_enabled(False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_surroundings_are_another_program(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = torch.get_float32_matmul_precision()
    try:
        assert not called(scaled, (X,))[1]
        CHANGES[change](monkeypatch)
        result, found = called(scaled, (X,))
        alike(result, scaled(X))
        assert not found
        assert called(scaled, (X,))[1] == FOUND
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(precision)
        torch.set_grad_enabled(True)
        monkeypatch.undo()
        digest._versions.cache_clear()


def test_options_are_part_of_the_key() -> None:
    keys = [{}, {"options": {"numerics": "fast"}}, {"mode": "max-autotune"}]
    for options in keys:
        assert not called(scaled, (X,), **options)[1]
    for options in keys:
        assert called(scaled, (X,), **options)[1] == FOUND


# -- what is not kept ------------------------------------------------------------------------------


@torch.library.custom_op("ingot_kept::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


NOT_KEPT: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "sizes of the data": (lambda x: x[x > 0] * 2, {}, "sizes depend on the data"),
    "an operator of the program's": (lambda x: twice(x) + 1, {}, "it has effects"),
    "branches": (
        lambda x: torch.cond(x.sum() > 1, torch.sin, torch.cos, (x,)),
        {},
        "cannot be found again",
    ),
    "frozen weights": (
        nn.Linear(6, 2).requires_grad_(False),
        {"options": {"freeze": True}},
        "frozen",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_KEPT)
def test_what_is_not_kept_says_why(name: str, folder: Path) -> None:
    function, options, reason = NOT_KEPT[name]
    for _ in range(2):
        result, found = called(function, (X,), **options)
        alike(result, function(X))
        assert found.startswith("not kept: ") and reason in found
    assert not list(folder.glob("*.code"))


def test_kernels_of_the_programs_for_torchs_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    assert called(scaled, (X,))[1] == "" and called(scaled, (X,))[1] == FOUND
    kernels = {*digest.registered_kernels, "aten/mul.Tensor/CPU"}
    monkeypatch.setattr(digest, "registered_kernels", kernels)
    assert "aten/mul.Tensor/CPU" in called(scaled, (X,))[1]


def test_torchs_own_kernels_do_not_count() -> None:
    """Some are registered when they are first needed."""
    assert torch.vmap(torch.sin)(X).shape == X.shape
    assert called(scaled, (X,))[1] == "" and called(scaled, (X,))[1] == FOUND


def test_nothing_is_kept_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", "")
    store_in.cache_clear()
    for _ in range(2):
        assert called(scaled, (X,))[1] == ""


def test_damaged_files_are_made_again(folder: Path) -> None:
    called(scaled, (X,))
    (file,) = folder.glob("*.code")
    whole = file.read_bytes()
    for damaged in (b"", whole[:50], whole[:-1] + b"?"):
        file.write_bytes(damaged)
        result, found = called(scaled, (X,))
        alike(result, scaled(X))
        assert not found and file.read_bytes() == whole


def without_images(content: bytes, image: bytes) -> bytes:
    """A program's file with other object files in it."""
    contents = read_contents(content)
    description, (names, objects, _), *rest = unpacked(contents.program)
    code = names, (image,) * len(objects), ()
    steps = []
    for step in description[6]:
        steps.append((step[0], Named(step[1]), *step[2:]) if step[0] == "call" else step)
    description = (*description[:6], tuple(steps), *description[7:])
    return contents_of("f", "", contents.kernels, (description, code, *rest))


USELESS: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda content: b"",
    "no packed value": lambda content: b"?" * 40,
    "another value": lambda content: packed((1, 2)),
    "another program": lambda content: contents_of("f", "", 1, (((), ()), ((), (), ()), (), ())),
    "a kernel that is not there": lambda content: contents_of(
        "f",
        "",
        1,
        ((*[()] * 6, (("kernel", "f"),), *[()] * 11), ((), (), ()), (None, *[False] * 4), None),
    ),
    "an empty object file": lambda content: without_images(content, b""),
    "no object file": lambda content: without_images(content, b"no object file" * 40),
    "half an object file": lambda content: without_images(
        content, unpacked(read_contents(content).program)[1][1][0][:300]
    ),
}


@pytest.mark.parametrize("name", USELESS)
def test_sound_files_of_no_use_are_made_again(
    name: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checksum is right, and what the file holds is no program."""
    called(scaled, (X,))
    store, (file,) = Store(folder), folder.glob("*.code")
    whole = store.peek(file.stem)
    assert store.put(file.stem, USELESS[name](whole)) and store.peek(file.stem) != whole
    result, found = called(scaled, (X,))
    alike(result, scaled(X))
    assert not found and "cannot be used, and is made again" in caplog.text
    assert store.peek(file.stem) == whole and called(scaled, (X,))[1] == FOUND


PROCESS = """
    import sys, torch, ingot
    from ingot.compiler import Compiler
    def f(x):
        return torch.softmax(x @ x.T, 1)
    compiled, x = ingot.compile(f), torch.arange(12.0).view(3, 4) / 7
    print(compiled(x).tolist() == compiled(x).tolist(), compiled(x).tolist())
    print(Compiler.of(compiled).compilations[0].log.kept, "ingot.pipeline" in sys.modules)
"""


def test_another_process_neither_plans_nor_compiles(folder: Path) -> None:
    texts = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(PROCESS)], capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        texts.append(run.stdout.splitlines())
    assert texts[0][0] == texts[1][0]
    assert [texts[0][1].strip(), texts[1][1]] == ["True", f"{FOUND} False"]


@long
def test_eight_processes_share_a_folder(folder: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(PROCESS)]
    processes = []
    for _ in range(8):
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, stdout=pipe, env=environment, text=True))
    texts = [process.communicate(timeout=120)[0].splitlines()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    assert len(set(texts)) == 1 and len(list(folder.glob("*.code"))) == 1
    assert not list(folder.glob(".*"))


def test_threads_and_grad_modes_do_not_mix() -> None:
    modes = itertools.product((True, False), (torch.float32, torch.float64))
    for is_on, dtype in modes:
        torch.set_default_dtype(dtype)
        try:
            with torch.set_grad_enabled(is_on):
                alike(called(lambda x: x * torch.ones(6), (X,))[0], X * torch.ones(6))
        finally:
            torch.set_default_dtype(torch.float32)


def test_files_that_llvm_has_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on other machines."""
    assert called(scaled, (X,))[1] == ""
    monkeypatch.setattr(loading._native, "load_objects", lambda *_: None)
    result, found = called(scaled, (X,))
    alike(result, scaled(X))
    assert found == FOUND
