"""The code of a GPU's program that computes numbers on the CPU besides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ingot.codegen.llvm.module import CompiledKernels as HostKernels
from ingot.codegen.triton.kernel import TritonKernel
from ingot.codegen.triton.module import Binary, CompiledForm
from ingot.codegen.triton.module import CompiledKernels as DeviceKernels
from ingot.loops.expr import Expr
from ingot.loops.ir import Fault
from ingot.schedule.kernel import AnyKernel, Kernel
from ingot.schedule.plan import KernelStep


class MixedKernels:
    """Answers as the GPU's kernels do, and for those `on_host` as the CPU's."""

    def __init__(self, device: DeviceKernels, host: HostKernels, steps: list[KernelStep]) -> None:
        self.device, self.host = device, host
        self._on_host = {step.kernel for step in steps if step.on_host}

    @property
    def seconds(self) -> dict[str, float]:
        ours, theirs = self.device.seconds, self.host.seconds
        return {k: ours.get(k, 0) + theirs.get(k, 0) for k in ours | theirs}

    @property
    def is_done(self) -> bool:
        return self.device.is_done

    def wait(self) -> None:
        self.device.wait()

    def written(self, kernel: Kernel) -> TritonKernel:
        return self.device.written(kernel)

    def binary(self, kernel: Kernel) -> Binary:
        return self.device.binary(kernel)

    def forms(self, kernel: Kernel) -> list[CompiledForm]:
        return self.device.forms(kernel)

    def address(self, kernel: AnyKernel) -> int:
        return self.host.address(kernel)

    def name(self, kernel: AnyKernel) -> str:
        return self.host.name(kernel)

    @property
    def names(self) -> Sequence[str]:
        return self.host.names

    @property
    def objects(self) -> Sequence[bytes]:
        return self.host.objects

    def scratch_bytes(self, kernel: AnyKernel) -> Expr:
        return self.host.scratch_bytes(kernel)

    def unit(self, kernel: AnyKernel) -> int:
        return self.host.unit(kernel)

    def errors(self, kernel: AnyKernel) -> tuple[Fault, ...]:
        return self.host.errors(kernel)

    def ir(self, kernel: AnyKernel) -> str:
        if kernel in self._on_host:
            compiled: Any = self.host
        else:
            compiled = self.device
        return compiled.ir(kernel)

    def module_text(self, kernels: Iterable[AnyKernel]) -> str:
        """The GPU's file, then the CPU's module."""
        sides: tuple[list[AnyKernel], list[AnyKernel]] = [], []
        for kernel in kernels:
            sides[kernel in self._on_host].append(kernel)
        texts = []
        if sides[0]:
            texts.append(self.device.module_text(sides[0]))
        if sides[1]:
            texts.append(self.host.module_text(sides[1]))
        return "\n\n".join(texts)

    def assembly(self) -> str:
        return f"{self.host.assembly()}\n\n{self.device.assembly()}"

    @property
    def function_count(self) -> int:
        return self.host.function_count + self.device.function_count
