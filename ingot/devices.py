"""The devices that there is code for, a row each.

A device is a folder of `codegen`, which makes machine code of a plan's kernels, and a launcher,
which says how a program runs them (`runtime.program.LAUNCHERS`). docs/new_device.md leads through
both. What is for one device alone is imported where a graph is of that device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ingot.codegen.llvm.module import compile_kernels
from ingot.errors import unsupported
from ingot.loops import ops
from ingot.loops.expr import Symbol
from ingot.loops.target import CPU, GPU, Target
from ingot.options import Options
from ingot.runtime.traces import kernel_steps, unaligned_inputs
from ingot.schedule.plan import Plan

if TYPE_CHECKING:
    from ingot.codegen.triton import Gpu

Supported = Callable[[str, torch.dtype], bool]
"""Whether there is code for a scalar op of a dtype."""

MachineCode = Callable[[Plan, torch.device, Mapping[Symbol, int], Options], Any]
"""The code of a plan's kernels on a device; the sizes are those of the call at hand."""


BeginCode = Callable[[Plan, torch.device, Mapping[Symbol, int], Options, bool], Any]
"""The same. The last argument says whether somebody will wait for it soon."""


class Device(NamedTuple):
    """What is known of a type of device.

    `target` is what lowering and scheduling ask of it, `supported` gives the scalar ops that it has
    code for, and `machine_code` makes the code of a plan. `refusal` says of one of its devices why
    there is none, "" where there is. Where others make the code meanwhile, `begin` has them do it:
    the code's `wait` waits for them, and its `is_done` says whether there is nothing to wait for.
    Inside of `ready` they stay, and are there for a graph of so many nodes.
    """

    target: Target
    supported: Callable[[], Supported]
    machine_code: MachineCode
    refusal: Callable[[torch.device], str] = lambda device: ""
    begin: BeginCode | None = None
    ready: Callable[[int], AbstractContextManager[None]] = lambda nodes: nullcontext()


def require_code(device: torch.device, where: str) -> None:
    """Raises Unsupported, with the user's line, for a device that there is no code for."""
    row, refusal = DEVICES.get(device.type), f"a tensor on the device {str(device)!r}"
    if row is not None:
        refusal = row.refusal(device)
    if refusal:
        raise unsupported("device", refusal, where)


# -- the CPU ---------------------------------------------------------------------------------------


def _cpu_code(
    plan: Plan, device: torch.device, hints: Mapping[Symbol, int], options: Options
) -> Any:
    symbols = [symbol for symbol, *_ in plan.graph.symbols]
    if options.emit == "cpp":
        from ingot.codegen import cpp  # what few ask for is imported for them

        return cpp.compile_kernels(plan.kernels, symbols)
    return compile_kernels(plan.kernels, symbols)


# -- GPUs ------------------------------------------------------------------------------------------


def _ops_of_gpus() -> Supported:
    from ingot.codegen import triton

    return triton.supported


def gpu_of(device: torch.device) -> Gpu:
    """What Triton is to compile for: the processor of a device that torch calls "cuda"."""
    from ingot.codegen import triton

    if torch.version.hip:
        chip = torch.cuda.get_device_properties(device).gcnArchName  # gfx942:sramecc+:xnack-
        return triton.Gpu("hip", chip.partition(":")[0])
    major, minor = torch.cuda.get_device_capability(device)
    return triton.Gpu("cuda", 10 * major + minor)


def _gpu_code(
    plan: Plan, device: torch.device, hints: Mapping[Symbol, int], options: Options
) -> Any:
    code = _begin_gpu_code(plan, device, hints, options, True)
    code.wait()
    return code


def _begin_gpu_code(
    plan: Plan, device: torch.device, hints: Mapping[Symbol, int], options: Options, soon: bool
) -> Any:
    from ingot.codegen import triton
    from ingot.codegen.mixed import MixedKernels
    from ingot.codegen.triton.workers import LATER, SOON

    steps = kernel_steps(plan)
    launched = []
    for step in steps:
        if not step.on_host:
            launched.append(step)
    unaligned, when = unaligned_inputs(plan), SOON if soon else LATER
    compiled = triton.begin_kernels(launched, gpu_of(device), unaligned, hints, when)
    if len(launched) == len(steps):
        return compiled
    symbols = [symbol for symbol, *_ in plan.graph.symbols]
    host = compile_kernels([step.kernel for step in steps if step.on_host], symbols)
    return MixedKernels(compiled, host, steps)


def _ready_workers(nodes: int) -> AbstractContextManager[None]:
    from ingot.codegen.installed_triton import available
    from ingot.codegen.triton.workers import NODES_OF_A_KERNEL, WORKERS, how_many

    return WORKERS.held(how_many(nodes // NODES_OF_A_KERNEL) if available() else 0)


def _why_no_gpu(device: torch.device) -> str:
    """No AMD GPU has run this code yet: INGOT_HIP=1 tries."""
    if os.environ.get("INGOT_CUDA") == "0":
        return f"a tensor on the device {str(device)!r}"
    if torch.version.hip and os.environ.get("INGOT_HIP", "0") in ("", "0"):
        return "a tensor on an AMD GPU"
    return ""


DEVICES: dict[str, Device] = {
    "cpu": Device(CPU, lambda: ops.supported, _cpu_code),
    "cuda": Device(GPU, _ops_of_gpus, _gpu_code, _why_no_gpu, _begin_gpu_code, _ready_workers),
}
"""By torch's type of device; a ROCm build of torch calls AMD's "cuda" as well."""
