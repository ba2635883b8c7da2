"""A Python newer than those whose frames are known: Ingot is imported, and all runs in eager."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import ingot
from ingot.native import _native

ROOT = Path(ingot.__file__).parent.parent

PROGRAM = """
import threading
import torch
import ingot
from ingot.native import _native

assert not _native.KNOWS_FRAMES
x = torch.arange(4.0, requires_grad=True)

def fn(x, n=3):
    return (x * n).sin().sum()

compiled = ingot.compile(fn)
assert torch.equal(compiled(x), fn(x)) and torch.equal(compiled(x, n=2), fn(x, n=2))
compiled(x).backward()
assert torch.equal(x.grad, 3 * (3 * x.detach()).cos())
report = ingot.explain(fn)(x)
assert "are not known" in str(report), report
try:
    ingot.compile(fn, fullgraph=True)(x)
except ingot.GraphBreakError as error:
    assert "are not known" in str(error), error
else:
    raise AssertionError("compiled")
model = ingot.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
assert model(torch.ones(2, 4)).shape == (2, 4)
ingot.reset()
assert torch.equal(compiled(x), fn(x))
print("done")
"""


def test_its_frames_are_known() -> None:
    assert _native.KNOWS_FRAMES is (sys.version_info < (3, 15))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_all_runs_in_eager(tmp_path: Path) -> None:
    """The extension is built as if for a Python to come, into a copy of the package."""
    package = tmp_path / "ingot"
    shutil.copytree(
        ROOT / "ingot", package, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.pyd")
    )
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    sources = sorted(map(str, (package / "native").glob("*.c")))
    include = sysconfig.get_path("include")
    outer = os.path.dirname(include)  # where Debian's pyconfig.h looks for another one
    subprocess.run(
        ["gcc", "-std=c11", "-O0", "-fPIC", "-shared", "-Werror", "-DINGOT_UNKNOWN_PYTHON"]
        + [f"-I{include}", f"-idirafter{outer}", *sources]
        + ["-ldl", "-lpthread", "-o", str(package / "native" / f"_native{suffix}")],
        check=True,
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True
    )
    assert run.stdout.decode().strip() == "done", run.stderr.decode()
