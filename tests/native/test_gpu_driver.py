"""What is asked of an AMD GPU's driver, by a stand-in that writes down each call. CUDA's is in
test_launches.py; no AMD GPU has run any of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.native.test_launches import COMPILER, HERE, pytestmark  # noqa: F401

PROGRAM = """
import ctypes, torch
torch.version.hip = "6.4"
torch._C._cuda_getCurrentRawStream = lambda device: 7
from ingot.native import _native

fake = ctypes.CDLL("libamdhip64.so.6")
F32, device = torch.float32, torch.device("cuda:0")
calls = lambda: ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(fake, "fake_calls")))
kernel = _native.load_cuda(b"image", "relu", 64 << 10, 0)
const = lambda value: (("const", value),)
vectors = tuple(("input", F32, (0,), (1,), k) for k in range(2))
forms = ((2, (), kernel, 256, 64 << 10, 1),)
step = ("launch", (0, 1), (), (0,), forms)
parts = (tuple(map(const, (8, 1, 5))), (), vectors, (), (step,), ())
program = _native.Program((2, (), *parts, 0, torch.uint8, None, device))
x, y = torch.ones(8), torch.ones(8)
program(x, y)
found = list((ctypes.c_uint64 * 8).in_dll(fake, "fake_parameters"))[:4]
assert found == [x.data_ptr(), y.data_ptr(), 8, 0], found
assert ctypes.c_int.in_dll(fake, "fake_device").value == 1  # as it was
ctypes.c_int.in_dll(fake, "fake_device").value = 0
program(x, y)  # nothing to enter
_native.load_cuda(b"other", "relu", 0, 0)
ctypes.c_int.in_dll(fake, "fake_failing").value = 1
try:
    _native.load_cuda(b"wrong", "relu", 0, 0)
except RuntimeError as problem:
    print(problem)
print(calls().decode())
"""

CALLS = """
HIP error: no such module (301), from cuModuleLoadData
hipInit(0)
hipSetDevice(0)
relaxed
hipModuleLoadData(image)
hipModuleGetFunction(relu)
relaxed
hipSetDevice(1)
hipSetDevice(0)
hipModuleLaunchKernel(5 1 1, 256 1 1, 65536, stream 7, 0)
hipSetDevice(1)
hipModuleLaunchKernel(5 1 1, 256 1 1, 65536, stream 7, 0)
relaxed
hipModuleLoadData(other)
hipModuleGetFunction(relu)
relaxed
relaxed
hipModuleUnload(1)
relaxed
relaxed
relaxed
"""


def run(program: str, tmp_path: Path, name: str = "libamdhip64.so.6") -> Any:
    """A process that finds the stand-in under that name."""
    command = [COMPILER, "-shared", "-fPIC", "-o", str(tmp_path / name)]
    subprocess.run([*command, str(HERE / "fake_hip_driver.c")], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )


def test_the_calls_of_hip(tmp_path: Path) -> None:
    """Loading, launching and unloading, in their order, with devices by their numbers."""
    ran = run(PROGRAM, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\n") == CALLS.strip().split("\n") + ["", ""]


def test_a_torch_for_amd_finds_no_driver_of_cudas(tmp_path: Path) -> None:
    ran = run(PROGRAM.replace("fake = ", "fake = None and "), tmp_path, "libcuda.so.1")
    assert "there is no HIP driver: libamdhip64.so.7 cannot be loaded" in ran.stderr


def test_each_call_stands_in_the_table_of_both() -> None:
    """What CUDA does without HIP does, and the other way round: contexts, or numbers of devices."""
    text = (HERE.parents[1] / "ingot/native/gpu_driver.c").read_text("utf-8")
    rows = re.findall(r'CALL\(\s*(\w+),\s*("\w+"|NULL),\s*("\w+"|NULL)\)', text)
    alone = {place for place, cuda, hip in rows if "NULL" in (cuda, hip)}
    assert len(rows) == 17 and alone == {
        "function_set", "device_get", "context_retain", "context_get", "context_push",
        "context_pop", "current_device", "set_device",
    }  # fmt: skip
