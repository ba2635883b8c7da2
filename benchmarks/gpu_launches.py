"""What the host pays for a string of kernels on a GPU: a compiled call beside a loop of bare
`cuLaunchKernel`s.

    python -m benchmarks.gpu_launches [--rounds 50]

The calls are those of the row `chain` of `benchmarks.gpu_models`: twenty small kernels that cannot
be fused. The loop is machine code that launches an empty kernel of as many pointers as often. Only
the host is timed: as many calls as the device's queue takes without a wait, then a wait that does
not count.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import torch

import ingot
from benchmarks.gpu_models import SUBJECTS
from ingot.explain.cli import positive
from ingot.explain.measure import ratio_interval

LAUNCHES, POINTERS, THREADS = 20, 2, 128
CALLS = 20  # in a row: 400 launches, which the queue holds

EMPTY = f"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry empty({", ".join(f".param .u64 p{i}" for i in range(POINTERS))}) {{ ret; }}
"""

LOOP = f"""
define i32 @loop(ptr %launch, ptr %function, i32 %number, ptr %stream, ptr %parameters) {{
entry:
  br label %next
next:
  %i = phi i32 [0, %entry], [%after, %next]
  %status = call i32 %launch(ptr %function, i32 64, i32 1, i32 1, i32 {THREADS}, i32 1, i32 1,
                             i32 0, ptr %stream, ptr %parameters, ptr null)
  %after = add i32 %i, 1
  %failed = icmp ne i32 %status, 0
  %last = icmp eq i32 %after, %number
  %end = or i1 %failed, %last
  br i1 %end, label %done, label %next
done:
  ret i32 %status
}}
"""


class BareLoop:
    """`LAUNCHES` launches of an empty kernel on torch's current stream. RuntimeError where the
    driver refuses."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.driver.cuModuleLoadData(ctypes.byref(module), EMPTY.encode()))
        self.check(self.driver.cuModuleGetFunction(ctypes.byref(function), module, b"empty"))
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(LOOP), machine)
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int, *[ctypes.c_void_p] * 2
        )
        self.loop = kind(self.engine.get_function_address("loop"))
        self.values = (ctypes.c_uint64 * POINTERS)()
        self.parameters = (ctypes.c_void_p * POINTERS)(
            *(ctypes.addressof(self.values) + 8 * i for i in range(POINTERS))
        )
        launch = ctypes.cast(self.driver.cuLaunchKernel, ctypes.c_void_p)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.arguments = (
            launch,
            function,
            LAUNCHES,
            stream,
            ctypes.cast(self.parameters, ctypes.c_void_p),
        )

    def check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"the CUDA driver gives error {status}")

    def __call__(self) -> None:
        self.check(self.loop(*self.arguments))


def host_seconds(call: Callable[[], Any]) -> float:
    """Seconds of the host for one call, while the device's queue takes what it is given."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    seconds = time.perf_counter() - start
    torch.cuda.synchronize()
    return seconds / CALLS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive, default=50)
    options = parser.parse_args()
    fn, args = SUBJECTS["chain"].make()
    args = tuple(arg.cuda() for arg in args)
    with torch.no_grad():
        compiled = ingot.compile(fn, fullgraph=True)
        calls = {
            "bare loop": BareLoop(),
            "Ingot": partial(compiled, *args),
            "eager": partial(fn, *args),
        }
        for call in calls.values():
            for _ in range(3):
                call()
        launches = len(ingot.explain(compiled)(*args).kernels)
        seconds = {name: np.empty(options.rounds) for name in calls}
        for turn in range(options.rounds):
            for name, call in calls.items():
                seconds[name][turn] = host_seconds(call)
    print(f"{torch.cuda.get_device_name()}: {launches} launches by Ingot, {LAUNCHES} by the loop")
    for name in calls:
        low, middle, high = ratio_interval(seconds[name], seconds["bare loop"])
        host = np.median(seconds[name]) * 1e6
        print(
            f"{name:10} {host:8.1f} us of the host, {middle:.2f} ({low:.2f}-{high:.2f}) x the loop"
        )


if __name__ == "__main__":
    main()
