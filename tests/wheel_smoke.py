"""A smoke of an installed Ingot: `python wheel_smoke.py`, outside of any checkout.

It compiles a function, a training step and a graph break, beside eager, and exports a program. No
process may be started for these: neither a compiler nor anything else is needed where Ingot runs.
Kernels in C++ need a compiler, and shared libraries a linker: those on PATH are used, and without
them the error must say so.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

allowed = False
"""Whether a process may be started now."""


def forbid_processes(event: str, arguments: tuple[Any, ...]) -> None:
    starts = event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")
    if starts and not allowed:
        raise AssertionError(f"a process is started: {event} {arguments[:2]}")


@contextlib.contextmanager
def processes() -> Iterator[None]:
    """Processes may be started within this."""
    global allowed
    allowed = True
    yield
    allowed = False


def on_path(*programs: str) -> bool:
    return any(map(shutil.which, programs))


def fused(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x.sin() * y + 0.5).relu() * x.cos()).sum(1)


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 + 1
    if y.sum() > 0:
        y = y.sqrt()
    return y * x


def make() -> tuple[Any, tuple[torch.Tensor, ...]]:
    """For `python -m ingot try wheel_smoke.py:make`."""
    return fused, (torch.linspace(-1, 1, 4096).reshape(64, 64), torch.ones(64, 64))


def check_functions(ingot: Any) -> None:
    function, arguments = make()
    report = ingot.explain(function)(*arguments)
    assert report.graph_count == 1 and not report.breaks
    assert len(report.kernels) == 1 and "define" in report.stage("llvm")
    compiled = ingot.compile(function, fullgraph=True)
    for rows in (64, 5, 9, 7):
        parts = [argument[:rows] for argument in arguments]
        torch.testing.assert_close(compiled(*parts), function(*parts))
    x = torch.linspace(0, 1, 12)
    torch.testing.assert_close(ingot.compile(broken)(x), broken(x))


def check_training(ingot: Any) -> None:
    torch.manual_seed(0)
    layers = (
        torch.nn.Linear(32, 64),
        torch.nn.GELU(),
        torch.nn.LayerNorm(64),
        torch.nn.Linear(64, 8),
    )
    model, x = torch.nn.Sequential(*layers), torch.randn(16, 32)
    weights = list(model.parameters())
    expected = torch.autograd.grad(model(x).square().mean(), weights)
    found = torch.autograd.grad(ingot.compile(model, fullgraph=True)(x).square().mean(), weights)
    for gradient, eagers in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, eagers)


def check_artifact(ingot: Any, folder: Path) -> None:
    """A program in a file, and the folders of the package that only this needs."""
    function, arguments = make()
    path = str(folder / "fused.ingot")
    ingot.export(function, arguments, path=path, dynamic={"x": {0: "n"}, "y": {0: "n"}})
    parts = [argument[:5] for argument in arguments]
    torch.testing.assert_close(ingot.load(path)(*parts), function(*parts))
    header = Path(ingot.__file__).parent / "artifacts" / "ingot_artifact.h"
    assert "ingot_model_new" in header.read_text("utf-8")


def check_library(ingot: Any, folder: Path) -> str:
    """A shared library for programs without Python, if something links."""
    function, arguments = make()
    path = str(folder / "fused.so")
    export = lambda: ingot.export(function, arguments, path=path, format="library")  # noqa: E731
    if not on_path("ld", "ld.lld"):
        try:
            export()
        except ingot.ExportError as error:
            assert "needs a linker" in str(error) and "binutils" in str(error), error
            return "no linker, and the error says so"
        raise AssertionError("a library was linked by nothing")
    with processes():
        export()
    model_new = ctypes.CDLL(path).ingot_model_new
    model_new.restype = ctypes.c_void_p
    assert model_new()
    return "linked and loaded"


def check_cpp(ingot: Any) -> str:
    """Kernels in C++, if there is a compiler; without one eager, and the report has the reason."""
    function, arguments = make()
    compiled = ingot.compile(function, options={"emit": "cpp"})
    with processes():
        report = ingot.explain(compiled)(*arguments)
        torch.testing.assert_close(compiled(*arguments), function(*arguments))
    if on_path("g++", "clang++", "c++"):
        assert len(report.kernels) == 1 and 'extern "C"' in report.stage("cpp")
        return "compiled"
    assert "no C++ compiler is found: install g++" in str(report), report
    return "no compiler, and the report says so"


def main() -> None:
    sys.addaudithook(forbid_processes)
    import ingot

    assert ingot.__version__ == importlib.metadata.version("ingot")
    check_functions(ingot)
    check_training(ingot)
    with tempfile.TemporaryDirectory() as folder:
        check_artifact(ingot, Path(folder))
        print(f"a shared library: {check_library(ingot, Path(folder))}")
    print(f"kernels in C++: {check_cpp(ingot)}")
    compilers = [name for name in ("cc", "gcc", "clang", "c++") if shutil.which(name)]
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"ingot {ingot.__version__}, Python {python}, torch {torch.__version__}: all is well")
    print(f"{ingot.__file__}; compilers on PATH: {', '.join(compilers) or 'none'}")


if __name__ == "__main__":
    main()
