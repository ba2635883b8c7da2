"""Programs on the device are found by a later process, and do the same."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ingot
from ingot.codegen.store import store_in
from ingot.compiler import Compiler
from ingot.kept.programs import FOUND
from tests.gpu.checks import CLOSE, agree


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache in which there is nothing yet."""
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    store_in.cache_clear()
    ingot.reset()
    yield tmp_path
    store_in.cache_clear()
    ingot.reset()


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to("cuda", dtype)


def kept(compiled: Any) -> list[str]:
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return [compilation.log.kept for compilation in compiler.compilations]


def of_constants(x: Tensor) -> Tensor:
    return x * torch.tensor([1.0, 2, 3], device="cuda").sum() + torch.eye(4, 6, device="cuda")


def of_a_number(x: Tensor, n: Tensor) -> Tensor:
    return x * (n + 1)


def writes(x: Tensor) -> Tensor:
    x.mul_(2)
    x[0] = 1
    return x.sum(0)


def many(*tensors: Tensor) -> None:
    for tensor, step in zip(tensors[::2], tensors[1::2]):
        tensor.sub_(step * 0.1)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "pointwise": (lambda x: (x * 2 + 1).sin(), lambda: (draw(4, 6),)),
    "rows": (lambda x: F.gelu(F.layer_norm(x, (64,))), lambda: (draw(40, 64),)),
    "a product of float32": (lambda x, w: (x @ w).relu() + 1, lambda: (draw(9, 32), draw(32, 7))),
    "a product of halves": (
        lambda x, w: F.gelu(x @ w),
        lambda: (draw(64, 32, dtype=torch.bfloat16), draw(32, 48, dtype=torch.bfloat16)),
    ),
    "constants": (of_constants, lambda: (draw(4, 6),)),
    "a number on the CPU": (of_a_number, lambda: (draw(4, 6), torch.tensor(3.0))),
    "writes": (writes, lambda: (draw(4, 6),)),
    "one launch for many": (many, lambda: tuple([draw(3 + k // 2) for k in range(24)])),
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding=1).relu(),
        lambda: (draw(2, 3, 9, 9), draw(4, 3, 3, 3)),
    ),
    "attention": (
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        lambda: (draw(2, 4, 64, 32, dtype=torch.bfloat16),),
    ),
    "embedding": (
        lambda i, w: F.embedding(i, w).sum(1),
        lambda: (torch.tensor([[1, 2], [3, 0]], device="cuda"), draw(5, 8)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    function, make = PROGRAMS[name]
    for expected in ("", FOUND):
        ingot.reset()
        compiled = ingot.compile(function)
        for _ in range(2):
            agree(compiled, function, *make(), numbers=CLOSE)
        assert kept(compiled) == [expected]


def test_random_numbers() -> None:
    x, results = draw(40, 64), []
    for _ in range(2):
        ingot.reset()
        compiled = ingot.compile(lambda x: F.dropout(x, 0.5) + 1)
        torch.manual_seed(3)
        results.append(compiled(x))
    assert kept(compiled) == [FOUND]
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training(dtype: torch.dtype) -> None:
    module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
    module, x = module.to("cuda", dtype), draw(16, 32, dtype=dtype)
    found = []
    for expected in ("", FOUND):
        ingot.reset()
        trained = copy.deepcopy(module)
        compiled = ingot.compile(trained)
        for _ in range(2):
            compiled(x).square().mean().backward()
        assert kept(compiled) == [expected]
        found.append([p.grad for p in trained.parameters()])
    for _ in range(2):
        module(x).square().mean().backward()
    for first, second, p in zip(*found, module.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
        assert p.grad is not None and not CLOSE.difference(second, p.grad)


def test_sizes_that_vary(folder: Path) -> None:
    """Forms of a kernel that no size had asked for are compiled when they are launched."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.softmax(-1) + 1, x.sum(0)

    for expected, sizes in (("", (40, 50)), (FOUND, (50, 60, 3))):
        ingot.reset()
        compiled = ingot.compile(function, dynamic=True)
        for size in sizes:
            agree(compiled, function, draw(size, 24 * size), numbers=CLOSE)
        assert kept(compiled)[0] == expected


OTHER_PROCESS = """
import sys, torch, ingot
from ingot.compiler import Compiler
def function(x, w):
    return torch.softmax((x @ w).relu() * 2, 1)
compiled = ingot.compile(function)
with torch.no_grad():
    x, w = (torch.linspace(-1, 1, 64 * 32, device="cuda").view(s) for s in ((64, 32), (32, 64)))
    torch.testing.assert_close(compiled(x, w), function(x, w))
(compilation,) = Compiler.of(compiled).compilations
print(compilation.log.kept, "triton" in sys.modules, sep="|")
"""


def test_another_process_needs_no_triton() -> None:
    told = []
    for _ in range(2):
        command = [sys.executable, "-c", OTHER_PROCESS]
        told.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert told[0].startswith("|") and told[1].strip() == f"{FOUND}|False"
