"""A new device is a folder of code generation and a launcher: a stand-in has both, and takes the
place of the CPU here. And the rows of the devices that there are."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.codegen.triton import Gpu
from ingot.compiler import Compiler
from ingot.devices import DEVICES, Device, gpu_of, require_code
from ingot.errors import Unsupported
from ingot.loops import ops
from ingot.runtime.program import LAUNCHERS
from tests.standin import code, launcher

ROW = Device(code.TARGET, lambda: ops.supported, code.machine_code)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, nothing_is_kept: None) -> None:
    monkeypatch.setitem(DEVICES, "cpu", ROW)
    monkeypatch.setitem(LAUNCHERS, "cpu", launcher.launcher)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x.sin() * 2, -1) + x


def several(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.cumsum(x.relu(), 0)
    return y.t().contiguous() @ x, y[1:].sum(-1)


@pytest.mark.parametrize("fn", [softmax, several], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dynamic", [None, True])
def test_programs_run(fn: Callable[..., Any], dynamic: bool | None, stand_in: None) -> None:
    compiled = ingot.compile(fn, dynamic=dynamic, fullgraph=True)
    for rows in (3, 5):
        x = torch.linspace(-2, 2, rows * 4).reshape(rows, 4)
        torch.testing.assert_close(compiled(x), fn(x))
    for compilation in Compiler.of(compiled).compilations:  # type: ignore[union-attr]
        log = compilation.log
        assert isinstance(log.code, code.Code) and log.plan is not None
        names = [step.kernel.name for step in log.kernel_steps]
        assert names and log.code.launched[: len(names)] == names


def test_gradients_and_donations(stand_in: None) -> None:
    x = torch.linspace(-2, 2, 12).reshape(3, 4).requires_grad_()
    (found,) = torch.autograd.grad(ingot.compile(softmax)(x).square().sum(), x)
    (expected,) = torch.autograd.grad(softmax(x).square().sum(), x)
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        given = x.detach().clone()
        place = given.data_ptr()
        result = ingot.compile(torch.sin, options={"donate": ("args",)})(given)
    assert result.data_ptr() == place
    torch.testing.assert_close(result, x.detach().sin())


def test_it_is_a_folder_and_a_launcher() -> None:
    """What it imports of Ingot is what codegen/ and runtime/ stand on, and it is small."""
    lines, imported = 0, set[str]()
    for path in Path(launcher.__file__).parent.glob("*.py"):
        text = path.read_text("utf-8")
        lines += len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ingot"):
                imported.add(str(node.module).split(".")[1])
    assert imported <= {"codegen", "loops", "options", "runtime", "schedule"} and lines < 150
    assert DEVICES.keys() == LAUNCHERS.keys() == {"cpu", "cuda"}


def test_amds_gpus_are_tried_where_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda:0")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    for given in (None, "", "0"):
        monkeypatch.delenv("INGOT_HIP", raising=False)
        if given is not None:
            monkeypatch.setenv("INGOT_HIP", given)
        with pytest.raises(Unsupported, match="a tensor on an AMD GPU"):
            require_code(device, "")
    monkeypatch.setenv("INGOT_HIP", "1")
    require_code(device, "")


def test_what_triton_compiles_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert gpu_of(device) == Gpu("cuda", 100)
    chip = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)
    assert gpu_of(device) == Gpu("hip", "gfx942") and gpu_of(device).warp_size == 64
