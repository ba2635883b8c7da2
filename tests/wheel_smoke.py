"""A smoke of an installed Ingot: `python wheel_smoke.py`, outside of any checkout.

It compiles a function, a training step and a graph break, beside eager. No process may be started:
neither a compiler nor anything else is needed where Ingot runs.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from typing import Any

import torch


def forbid_processes(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"):
        raise AssertionError(f"a process is started: {event} {arguments[:2]}")


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


def main() -> None:
    sys.addaudithook(forbid_processes)
    import ingot

    assert ingot.__version__ == importlib.metadata.version("ingot")
    check_functions(ingot)
    check_training(ingot)
    compilers = [name for name in ("cc", "gcc", "clang", "c++") if shutil.which(name)]
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"ingot {ingot.__version__}, Python {python}, torch {torch.__version__}: all is well")
    print(f"{ingot.__file__}; compilers on PATH: {', '.join(compilers) or 'none'}")


if __name__ == "__main__":
    main()
