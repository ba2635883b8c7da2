"""What CUDA kernels are launched with, by a driver that launches nothing: no GPU is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is a shared library of Linux"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="torch would ask the driver too"),
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C compiler"),
]

PROGRAM = """
import ctypes, torch, weakref
torch._C._cuda_getCurrentRawStream = lambda device: 0
from ingot.native import _native

fake = ctypes.CDLL("libcuda.so.1")
kernel = _native.load_cuda(b"image", "kernel", 0, 0)
F32, cuda = torch.float32, torch.device("cuda:0")


def const(value):
    return (("const", value),)


def launched(step, parameters, expressions, calls=1):
    ctypes.c_uint.in_dll(fake, "fake_count").value = parameters
    x, y = torch.ones(8), torch.ones(8)
    vectors = tuple(("input", F32, (0,), (1,), k) for k in range(2))
    parts = (tuple(map(const, expressions)), (), vectors, (), (step,), ())
    program = _native.Program((2, (), *parts, 2, torch.uint8, None, cuda))
    for _ in range(calls):
        program(x, y)
    found = (ctypes.c_uint64 * 64).in_dll(fake, "fake_parameters")
    return list(found)[:parameters], x.data_ptr(), y.data_ptr(), weakref.ref(program)


step = ("launch", (0, 1), (), (0,), ((3, (), kernel, 32, 0, 1),))
found, x, y, _ = launched(step, 4, (8, 1, 0, 5))
assert found == [x, y, 8, 0], found
assert ctypes.c_uint.in_dll(fake, "fake_grid").value == 5
step = ("launch", (0, 1), (4, 2), (0,), ((3, (), kernel, 32, 0, 0),))
found, x, y, _ = launched(step, 3, (8, 1, 0, 5, 16))
assert found == [x + 16, y, 8], found
try:
    launched(("launch", (0, 1), (4,), (0,), ((3, (), kernel, 32, 0, 0),)), 3, (8, 1, 0, 5, 16))
except ValueError as problem:
    assert "offsets in the buffers of a launch" in str(problem)
else:
    raise AssertionError("one offset for two buffers was taken")

# The first form is launched whose conditions hold; one that was not compiled is asked for once.
asked = []


def load():
    asked.append(1)
    return kernel, 64, 0, 2


for most, grid, parameters in ((8, 5, 3), (7, 6, 5)):
    forms = ((3, ((0, most), (1, 9)), kernel, 32, 0, 0), (4, (), load))
    found, x, y, _ = launched(("launch", (0, 1), (), (0,), forms), parameters, (8, 1, 0, 5, 6))
    assert found == [x, y, 8, 0, 0][:parameters]
    assert ctypes.c_uint.in_dll(fake, "fake_grid").value == grid
assert asked == [1]

# Where it cannot be compiled or loaded, the next that is right for these sizes is launched,
# compiled if need be.
def fails():
    asked.append(2)
    raise RuntimeError("not compiled")


for last in ((4, (), kernel, 64, 0, 2), (4, (), load)):
    del asked[:]
    forms = (3, ((0, 9),), fails), (3, ((0, 7),), kernel, 32, 0, 0), last
    step = ("launch", (0, 1), (), (0,), forms)
    found, x, y, _ = launched(step, 5, (8, 1, 0, 5, 6), calls=3)
    assert found == [x, y, 8, 0, 0] and ctypes.c_uint.in_dll(fake, "fake_grid").value == 6
    assert asked == [2] + [1] * (len(last) == 3), asked
for forms in (((3, (), fails),), ((3, ((0, 9),), fails), (4, (), fails))):
    for k in range(2):
        try:
            launched(("launch", (0, 1), (), (0,), forms), 3, (8, 1, 0, 5, 6))
        except RuntimeError as problem:
            assert "not compiled" in str(problem)
        else:
            raise AssertionError(forms)

# What has no blocks is not loaded.
launched(("launch", (0, 1), (), (0,), ((3, (), fails),)), 3, (0, 1, 0, 0))

# While something is recorded, code is loaded and unloaded all the same, and the thread's mode is
# as before.
recording, mode = (ctypes.c_uint.in_dll(fake, name) for name in ("fake_recording", "fake_mode"))
recording.value, mode.value = 1, 1
other = _native.load_cuda(b"image", "kernel", 0, 0)
assert mode.value == 1
del other
assert mode.value == 1

# What the user records may be replayed when all else is gone: its program stays, and lends no
# memory from then on.
count = (("const", 1 << 21),)
vector = lambda place: (place, F32, (0,), (1,), 0)
lending = lambda device: _native.Program((
    1, (), (count, const(1)[0:1], const(0)[0:1]), (), (vector("input"), vector("output")), (),
    (("allocate", 1, *([0] if device else [])), ("release", (0,))), (("buffer", 1),),
    2, torch.uint8, None, device))
heap, program = lending(None), lending(cuda)


def lent():
    given = list(heap(torch.empty(1 << 21)))
    address = given[0].data_ptr()
    try:
        return program.consume(given)[0].data_ptr() == address
    except AssertionError:  # there is no memory of its own to be had here
        return False


recording.value = 0
assert lent()
recording.value = 1
_native.record_for_itself(True)
step = ("launch", (0, 1), (), (0,), ((3, (), kernel, 32, 0, 0),))
assert launched(step, 3, (8, 1, 0, 5))[-1]() is None
_native.record_for_itself(False)
recording.value = 0
assert lent()
recording.value = 1
assert launched(step, 3, (8, 1, 0, 5))[-1]() is not None
recording.value = 0
assert not lent()
recording.value = 1

# What fails while something is recorded is asked for again.
del asked[:]
step = ("launch", (0, 1), (), (0,), ((3, ((0, 9),), fails), (4, (), kernel, 64, 0, 2)))
launched(step, 5, (8, 1, 0, 5, 6), calls=2)
assert asked == [2, 2]
recording.value = 0
for forms in ((), ((3, ((0, 8),), kernel, 32, 0, 0),), ((3, (), 5),), ((3, (), kernel, 32, 0, 9),)):
    try:
        launched(("launch", (0, 1), (), (0,), forms), 3, (8, 1, 0, 5))
    except ValueError as problem:
        assert "malformed" in str(problem)
    else:
        raise AssertionError(forms)
failing = ("launch", (0, 1), (), (0,), ((3, (), lambda: None),))
try:
    launched(failing, 3, (8, 1, 0, 5))
except TypeError as problem:
    assert "returned no tuple" in str(problem)
print("launched")
"""

WITHOUT_KERNELS = """
import torch
torch._C._cuda_getCurrentRawStream = lambda device: 0
from ingot.native import _native

F32, cuda = torch.float32, torch.device("cuda:0")
one, vector = (("const", 1),), ("input", F32, (0,), (0,), 0)
steps, results = (), (("buffer", 0),)
program = _native.Program(
    (1, (), (one,), (), (vector,), (), steps, results, 0, torch.uint8, None, cuda))
x = torch.ones(1)
assert program(x)[0] is x
print("ran")
"""


NAMED = """
import torch
torch._C._cuda_getCurrentRawStream = lambda device: 0
from ingot.native import _native

F32, cuda = torch.float32, torch.device("cuda:0")
one, vector = (("const", 1),), ("input", F32, (0,), (0,), 0)
current, seen = ["the user's"], []
names = "ingot::relu a.py:1 [relu]", None, "ingot::mul a.py:2 [mul]"


def noted():
    seen.append(current[0])


def failing():
    noted()
    raise ValueError("in the middle")


def program(*functions):
    steps = tuple(("call", function, (), None, (), ()) for function in functions)
    return _native.Program((
        1, (), (one,), (), (vector,), (), steps, (("buffer", 0),), 0, torch.uint8, None, cuda,
        (0,), True, None, 0, 0, len(steps), names))


def set_name(name):
    current[0] = name


x = torch.ones(1)
recorded = [False]
_native.name_memory_by(lambda: recorded[0], lambda: current[0], set_name)
program(noted, noted, noted)(x)
assert seen == ["the user's"] * 3, seen
recorded[0], seen[:] = True, []
program(noted, noted, noted)(x)
assert seen == [names[0], names[0], names[2]], seen
assert current == ["the user's"]
try:
    program(noted, noted, failing)(x)
except ValueError as problem:
    assert "in the middle" in str(problem)
assert seen[3:] == [names[0], names[0], names[2]] and current == ["the user's"], seen
print("named")
"""


def run(program: str, tmp_path: Path) -> str:
    """What it prints, in a process of its own."""
    library = tmp_path / "libcuda.so.1"
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-o", str(library), str(HERE / "fake_driver.c")], check=True
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_arguments(tmp_path: Path) -> None:
    assert run(PROGRAM, tmp_path) == "launched\n"


def test_the_first_program_launches_nothing(tmp_path: Path) -> None:
    """One that only calls libraries: nothing has been loaded before it runs."""
    assert run(WITHOUT_KERNELS, tmp_path) == "ran\n"


def test_memory_has_the_name_of_the_step_that_needs_it(tmp_path: Path) -> None:
    """While torch records what its allocator is asked for; else nothing is set."""
    assert run(NAMED, tmp_path) == "named\n"
