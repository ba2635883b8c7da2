"""What a program may change between two processes: the later one gets the new answer, and never a
program that was kept for the old one. Each part of the key has a test here or in test_programs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import llvmlite
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import ingot
from ingot.capture.facts import GlobalState
from ingot.codegen.store import store_in
from ingot.kept import digest
from ingot.kept.programs import FOUND
from tests.kept.test_programs import alike, called


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an empty cache."""
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))
    store_in.cache_clear()
    ingot.reset()
    yield tmp_path
    store_in.cache_clear()
    digest._versions.cache_clear()
    digest._digest_of_package.cache_clear()
    ingot.reset()


X = torch.arange(-6.0, 6).view(3, 4) / 4  # whose products are exact in float32

# -- the program's source, and what it reads -------------------------------------------------------

EDITS: dict[str, tuple[str, str, str]] = {
    "a line of an inlined function": (
        "def g(x): return x * NUMBER\ndef f(x): return g(x) + 1",
        "2",
        "3",
    ),
    "a line of the function": ("def f(x): return x.NUMBER()", "sin", "cos"),
    "a global": ("SCALE = NUMBER\ndef f(x): return x * SCALE", "2", "3"),
    "a closure": (
        "def make(n):\n    def f(x): return x * n\n    return f\nf = make(NUMBER)",
        "2.0",
        "3.0",
    ),
    "a default argument": ("def f(x, n=NUMBER): return x * n", "2", "3"),
    "a default by name": ("def f(x, *, n=NUMBER): return x * n", "2", "3"),
    "a default of an inlined function": (
        "def g(x, n=NUMBER): return x * n\ndef f(x): return g(x)",
        "2",
        "3",
    ),
    "the type of a number": ("def f(x): return x.long() * NUMBER", "2", "2.0"),
    "the sign of zero": ("def f(x): return (x * 0 + 1) / (x * 0 + NUMBER)", "0.0", "-0.0"),
    "an attribute of a module": (
        "class M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.n = NUMBER\n    def forward(self, x): return x * self.n\nf = M()",
        "2",
        "3",
    ),
    "an attribute of a class": (
        "class C:\n    n = NUMBER\ndef f(x): return x * C.n",
        "2",
        "3",
    ),
    "a method of a base class": (
        "class A:\n    def m(self, x): return x * NUMBER\nclass B(A): pass\nb = B()\n"
        "def f(x): return b.m(x)",
        "2",
        "3",
    ),
    "a layer of a module": (
        "f = torch.nn.Sequential(torch.nn.NUMBER(), torch.nn.Flatten(0))",
        "ReLU",
        "GELU",
    ),
    "the mode of a module": ("f = torch.nn.Dropout(0.999999).train(NUMBER)", "True", "False"),
    "an entry of a config": (
        "CONFIG = {'width': NUMBER}\ndef f(x): return x[:, : CONFIG['width']] * 2",
        "2",
        "3",
    ),
    "a branch": ("def f(x): return x * 2 if NUMBER else x * 3", "True", "False"),
    "how often a loop runs": (
        "def f(x):\n    for _ in range(NUMBER): x = x * 2\n    return x",
        "2",
        "3",
    ),
    "a text": ("def f(x): return torch.einsum(NUMBER, x, x)", "'ij,ij->i'", "'ij,ij->j'"),
    "a slice": ("def f(x): return x[NUMBER:] * 2", "0", "1"),
    "an ellipsis": ("def f(x): return x[NUMBER, 1] * 2", "...", "0"),
    "a dtype": ("def f(x): return x.to(torch.NUMBER) * 2", "float64", "float16"),
    "a constant tensor": ("def f(x): return x + torch.tensor([NUMBER, 1, 2, 3])", "2.0", "3.0"),
    "what a context manager sets": (
        "def f(x):\n    with torch.autocast('cpu', torch.NUMBER):\n        return x @ x.T",
        "bfloat16",
        "float16",
    ),
    "a function that goes into the graph as it is": (
        "@ingot.allow_in_graph\ndef g(x): return x * NUMBER\ndef f(x): return g(x) + 1",
        "2",
        "3",
    ),
    "the definition of a custom operator": (
        "@torch.library.custom_op('ingot_stale::scaled', mutates_args=())\n"
        "def g(x: torch.Tensor) -> torch.Tensor: return x * NUMBER\n"
        "@g.register_fake\ndef _(x): return torch.empty_like(x)\ndef f(x): return g(x) + 1",
        "2",
        "3",
    ),
    "an autograd function": (
        "class G(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x): return x * NUMBER\n"
        "def f(x): return G.apply(x)",
        "2",
        "3",
    ),
    "a subclass of Tensor": (
        "class S(torch.Tensor):\n    @classmethod\n"
        "    def __torch_function__(cls, func, types, args=(), kwargs=None):\n"
        "        out = super().__torch_function__(func, types, args, kwargs or {})\n"
        "        return out * NUMBER if func is torch.sin else out\n"
        "def f(x): return torch.sin(x.as_subclass(S)).as_subclass(torch.Tensor)",
        "2",
        "3",
    ),
    "the function of a higher-order operator": (
        "def f(x): return torch.cond(x.sum() > 9, torch.sin, torch.NUMBER, (x,))",
        "cos",
        "tan",
    ),
}
"""A program, and what stands in the place of NUMBER in the first process and in the second."""

NEVER_FOUND = {
    "the definition of a custom operator": "not kept: it has effects",
    "the function of a higher-order operator": "not kept: ",
    "a function that goes into the graph as it is": "not kept: ",
}
"""Programs that are not kept at all."""


def loaded(folder: Path, text: str) -> ModuleType:
    """A module of this text, as a new process imports it; the file is always the same one."""
    path = folder / "edited_program.py"
    path.write_text(f"import torch\nimport ingot\n{text}\n")
    spec = importlib.util.spec_from_file_location("edited_program", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


@pytest.mark.parametrize("name", EDITS)
@torch.no_grad()
def test_an_edited_program_gets_the_new_answer(name: str, folder: Path) -> None:
    text, first, second = EDITS[name]
    never, results = NEVER_FOUND.get(name), []
    for turn, number in enumerate((first, second, first, second)):
        function = loaded(folder, text.replace("NUMBER", number)).f
        torch.manual_seed(0)
        expected = function(X)
        torch.manual_seed(0)
        result, kept = called(function, (X,))
        alike(result, expected)
        if never is None:
            assert kept == ("" if turn < 2 else FOUND)
        else:
            assert kept.startswith(never)
        results.append(result)
    with pytest.raises(AssertionError):
        alike(results[0], results[1])


def test_values_of_parameters_are_no_part_of_it(folder: Path) -> None:
    """A program that was found reads the tensors of this process."""
    for turn in range(3):
        layer = torch.nn.Linear(4, 2).requires_grad_(False)
        result, kept = called(layer, (X,))
        alike(result, layer(X))
        assert kept == (FOUND if turn else "")


# -- the state of the thread -----------------------------------------------------------------------


@contextlib.contextmanager
def set_for_a_while(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Any:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


class Doubling(TorchFunctionMode):
    """A mode that changes what operations mean."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.Tensor.sin else result


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


STATES: dict[str, Callable[[], Any]] = {
    "grad_mode": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast_cache": lambda: set_for_a_while(
        torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False
    ),
    "default_dtype": lambda: set_for_a_while(
        torch.get_default_dtype, torch.set_default_dtype, torch.float64
    ),
    "attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "deterministic": lambda: set_for_a_while(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "matmul_precision": lambda: set_for_a_while(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "function_modes": lambda: torch.device("cpu"),
    "function_overrides": torch._C.DisableTorchFunctionSubclass,
    "dispatch_modes": Watching,
    "dispatch_keys": torch._C._AutoDispatchBelowAutograd,
}
"""A way to change each part of `GlobalState`."""


def test_each_part_of_the_state_is_changed_below() -> None:
    assert STATES.keys() == {*GlobalState._fields}


def stateful(x: Tensor) -> Tensor:
    y = x @ x.T + torch.ones(3)
    attention = F.scaled_dot_product_attention(y[None, None], y[None, None], y[None, None])
    return attention[0, 0].sin()


@pytest.mark.parametrize("field", STATES)
def test_another_state_is_another_program(field: str) -> None:
    """The new answer is eager's in that state. What is watched is not compiled, or not kept."""
    assert called(stateful, (X,))[1] == ""
    for turn in range(2):
        with STATES[field]():
            expected = stateful(X)
            if field == "dispatch_modes":
                alike(ingot.compile(stateful)(X), expected)
                continue
            result, kept = called(stateful, (X,))
        alike(result, expected)
        assert kept == (FOUND if turn else "")
    assert called(stateful, (X,))[1] == FOUND


def test_tensors_of_inference_mode_are_another_program() -> None:
    """They have no version counter."""
    with torch.inference_mode():
        x = X.clone()
    for turn in range(2):
        kept = []
        for given, mode in ((X, torch.no_grad), (x, torch.no_grad), (x, torch.inference_mode)):
            with mode():
                result, found = called(stateful, (given,))
                alike(result, stateful(given))
                kept.append(found)
        assert kept == ([FOUND] * 3 if turn else [""] * 3)


def test_what_a_mode_sees_is_not_kept() -> None:
    assert called(stateful, (X,))[1] == ""
    with Doubling():
        expected = stateful(X)
        alike(ingot.compile(stateful)(X), expected)
    with pytest.raises(AssertionError):
        alike(expected, stateful(X))


# -- the process, and what it runs on --------------------------------------------------------------


def convolved(x: Tensor) -> Tensor:
    return torch.conv1d(x[None], torch.ones(2, 3, 2)) * 2


TARGET = "avx2" if platform.machine() == "x86_64" else "neon"
"""Less than this machine may have."""

PROCESSES: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "threads": lambda patch: torch.set_num_threads(torch.get_num_threads() + 1),
    "processors": lambda patch: patch.setattr(os, "sched_getaffinity", lambda pid: {*range(77)}),
    "a library of torch's": lambda patch: patch.setattr(torch.backends.mkldnn, "enabled", False),
    "the target": lambda patch: patch.setenv("INGOT_TARGET", TARGET),
    "a variable that is not known": lambda patch: patch.setenv("INGOT_LATER", "1"),
    "torch's version": lambda patch: patch.setattr(torch, "__version__", "9.9"),
    "torch's commit": lambda patch: patch.setattr(torch.version, "git_version", "0"),
    "how torch was built": lambda patch: patch.setattr(torch.__config__, "show", lambda: "other"),
    "llvmlite's version": lambda patch: patch.setattr(llvmlite, "__version__", "9.9"),
    "Python's version": lambda patch: patch.setattr(sys, "version", "3.99"),
    "the C library": lambda patch: patch.setattr(digest.platform, "libc_ver", lambda: ("c", "9")),
    "features of the processor": lambda patch: patch.setattr(
        "builtins.open", reading_processor("flags\t\t: fpu sse2\n")
    ),
    "the model of the processor": lambda patch: patch.setattr(
        "builtins.open", reading_processor("model name\t: another\n")
    ),
    "Ingot's version": lambda patch: patch.setattr(ingot, "__version__", "9.9"),
    "Ingot's files": lambda patch: patch.setattr(digest, "_digest_of_package", lambda: "other"),
}


def reading_processor(text: str) -> Callable[..., Any]:
    """`open`, for which the file that tells of the processor holds this."""
    true_open = open

    def reading(path: Any, *args: Any, **kwargs: Any) -> Any:
        if path == "/proc/cpuinfo":
            return contextlib.nullcontext(iter([text, "\n"]))
        return true_open(path, *args, **kwargs)

    return reading


@pytest.mark.parametrize("change", PROCESSES)
def test_another_process_is_not_served_what_was_kept(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    digest._processor.cache_clear()
    assert [called(convolved, (X,))[1] for _ in range(2)] == ["", FOUND]
    try:
        with monkeypatch.context() as patch:
            PROCESSES[change](patch)
            digest._versions.cache_clear()
            digest._processor.cache_clear()
            result, kept = called(convolved, (X,))
            alike(result, convolved(X))
            assert kept == "" and called(convolved, (X,))[1] == FOUND
    finally:
        torch.set_num_threads(threads)
        digest._versions.cache_clear()
        digest._processor.cache_clear()
    assert called(convolved, (X,))[1] == FOUND


@pytest.mark.parametrize("name", sorted(digest._WITHOUT_EFFECT))
def test_variables_without_effect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They decide where programs are kept and what is printed."""
    assert called(convolved, (X,))[1] == ""
    monkeypatch.setenv(name, os.environ.get(name, "") or "0")
    assert called(convolved, (X,))[1] == FOUND


def test_the_digest_of_ingots_files_is_of_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is another one where a byte of a file differs, and the same in another folder and at
    another time."""

    def digest_of(folder: Path) -> str:
        monkeypatch.setattr(ingot, "__file__", str(folder / "__init__.py"))
        digest._digest_of_package.cache_clear()
        return digest._digest_of_package()

    def made(name: str, text: str, file: str = "a.py") -> Path:
        folder = tmp_path / name
        (folder / "room").mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "room" / file).write_text(text)
        (folder / "notes.txt").write_text(name)
        return folder

    first = made("first", "x = 1")
    known = digest_of(first)
    assert digest_of(made("elsewhere", "x = 1")) == known
    assert digest_of(made("edited", "x = 2")) != known
    assert digest_of(made("renamed", "x = 1", "b.py")) != known
    os.utime(first / "room" / "a.py", (1000, 1000))
    assert digest_of(first) == known
    (first / "room" / "a.py").write_text("x = 3")
    assert digest_of(first) != known
    assert store_in("package").counts.made == 6


def test_a_kernel_of_the_programs_for_an_operator_of_torchs() -> None:
    """It is registered as a program does it, and gone afterwards."""

    def traced(x: Tensor) -> Tensor:
        return x.logaddexp2(x * 2)

    assert [called(traced, (X,))[1] for _ in range(2)] == ["", FOUND]
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("logaddexp2", lambda x, y: x * 7, "CPU")
        assert called(traced, (X,))[1] == "not kept: the program has a kernel for " + (
            "aten/logaddexp2/CPU"
        )
    finally:
        library._destroy()
    result, kept = called(traced, (X,))
    alike(result, traced(X))
    assert kept == FOUND


def test_a_decomposition_of_the_programs_is_not_looked_at() -> None:
    """Ingot takes none from torch's table, so that none is part of the key."""
    table, op = torch._decomp.decomposition_table, torch.ops.aten.logaddexp2.default

    def traced(x: Tensor) -> Tensor:
        return x.logaddexp2(x * 2)

    assert called(traced, (X,))[1] == ""
    before = table.get(op)
    table[op] = lambda x, y: x * 7
    try:
        result, kept = called(traced, (X,))
        alike(result, traced(X))
        assert kept == FOUND
        result, kept = called(lambda x: x.logaddexp2(x * 2), (X,))
        alike(result, traced(X))
        assert kept == ""
    finally:
        if before is None:
            del table[op]
        else:
            table[op] = before


def test_the_memory_budget_that_torch_compiles_config_sets() -> None:
    config = pytest.importorskip("torch._functorch.config")
    assert called(convolved, (X,))[1] == ""
    with config.patch(activation_memory_budget=0.5):
        result, kept = called(convolved, (X,))
    alike(result, convolved(X))
    assert kept == ""
