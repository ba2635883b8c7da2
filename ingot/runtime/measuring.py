"""The times of plans on a GPU: each is recorded as a CUDA graph, and these take turns."""

from __future__ import annotations

import itertools
import logging
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.codegen.triton import Gpu, compile_kernels
from ingot.errors import Unsupported
from ingot.runtime.cuda_capture import machine_of
from ingot.runtime.program import Program
from ingot.runtime.traces import constants_of, kernel_steps
from ingot.schedule.kernel import Kernel
from ingot.schedule.plan import KernelStep, Plan
from ingot.schedule.tilings import Chip
from ingot.sequences import at, present

log = logging.getLogger("ingot")

ROUNDS = 7
LENGTH = 200.0  # microseconds of a recording
MOST_CALLS = 100
MOST_BYTES = 1 << 32  # of inputs; a product of more is the library's


def chip_of(device: torch.device) -> Chip:
    facts = torch.cuda.get_device_properties(device)
    shared = getattr(facts, "shared_memory_per_block_optin", 99 << 10)
    capability = 10 * facts.major + facts.minor
    return Chip(facts.name, capability, facts.multi_processor_count, shared, facts.L2_cache_size)


class Measurement:
    """`tuning.Measure` on a device. The first plan is the oracle: others must have its results."""

    def __init__(self, device: torch.device, chip: Chip) -> None:
        self.device, self.chip = device, chip

    def __call__(self, plans: Sequence[Plan], outside: frozenset[str]) -> list[float | None]:
        machine = machine_of(self.device)
        nothing: list[float | None] = [None] * len(plans)
        if machine is None or machine.stream() is None:  # the call itself is being recorded
            return nothing
        compiled = self._compiled(plans)
        try:
            with torch.no_grad(), torch.autocast("cuda", enabled=False):
                inputs = self._inputs(plans[0], outside)
                if inputs:
                    return self._times(plans, compiled, inputs, machine)
                return nothing
        except Exception as problem:
            # out of memory, or what a library refuses: the program calls it as ever
            log.info("a product could not be measured: %s", problem)
            return nothing

    def _compiled(self, plans: Sequence[Plan]) -> list[Any]:
        """The kernels of each plan; None if they do not compile, or take too much shared memory."""
        gpu = Gpu("cuda", self.chip.capability)

        def compiled(steps: list[KernelStep]) -> Any:
            try:
                return compile_kernels(steps, gpu)
            except Exception:  # Triton's own errors are of many kinds
                return None

        steps = list(map(kernel_steps, plans))
        together = compiled(list(itertools.chain(*steps)))
        fitting = []
        for of_plan in steps:
            kernels = together or compiled(of_plan)
            fits = kernels is not None and self._fits(kernels, of_plan)
            fitting.append(kernels if fits else None)
        return fitting

    def _fits(self, compiled: Any, steps: Sequence[KernelStep]) -> bool:
        for step in steps:
            if isinstance(step.kernel, Kernel):
                if compiled.binary(step.kernel).shared > self.chip.shared:
                    return False
        return True

    def _inputs(self, plan: Plan, outside: frozenset[str]) -> list[list[Tensor]]:
        """Sets of inputs, so many that those from outside are in no cache when their turn comes.

        Tensors that the program computes itself may be in a cache: all sets share them.
        """
        buffers = at(plan.graph.buffers, plan.graph.inputs)
        bytes_of = {b.name: (b.length.constant or 0) * b.dtype.itemsize for b in buffers}
        if sum(bytes_of.values()) > MOST_BYTES:
            return []
        cold = sum(at(bytes_of, outside & bytes_of.keys()))
        count, most = 1, 2 * self.chip.cache
        if 0 < cold < most:
            count = min(16, -(-most // cold))
        warm = {b.name: self._tensor(b) for b in buffers if b.name not in outside}
        sets: list[list[Tensor]] = [[] for _ in range(count)]
        for inputs in sets:
            for b in buffers:
                inputs.append(warm[b.name] if b.name in warm else self._tensor(b))
        return sets

    def _tensor(self, buffer: Any) -> Tensor:
        sizes, strides = constants_of(buffer.sizes), constants_of(buffer.strides)
        tensor = torch.empty_strided(sizes, strides, dtype=buffer.dtype, device=self.device)
        if not buffer.dtype.is_floating_point:
            return tensor.zero_()
        # the program's own numbers go on as they were
        generator = torch.Generator(self.device).manual_seed(0)
        return tensor.normal_(generator=generator)

    def _times(
        self,
        plans: Sequence[Plan],
        compiled: Sequence[Any],
        inputs: list[list[Tensor]],
        machine: Any,
    ) -> list[float | None]:
        programs = self._programs(plans, compiled, inputs[0])
        recorded = {k: self._recorded(program, inputs, machine) for k, program in programs.items()}
        times = defaultdict[int, list[float]](list)
        for _ in range(ROUNDS):
            for k, (replay, calls) in recorded.items():
                times[k].append(self._timed(replay) / calls)
        recorded.clear()  # before the programs, whose kernels these launch
        medians: list[float | None] = [None] * len(plans)
        for k, of_program in times.items():
            medians[k] = statistics.median(of_program[1:])
        return medians

    def _programs(
        self, plans: Sequence[Plan], compiled: Sequence[Any], inputs: Sequence[Tensor]
    ) -> dict[int, Any]:
        """The programs of those plans that run, and give what the first one gives."""
        programs: dict[int, Any] = {}
        expected: list[Tensor] = []
        for k, (plan, code) in enumerate(zip(plans, compiled)):
            if code is None:
                continue
            try:
                program = Program(plan, code, self.device, lasting=False).native
                results = _results(program, plan, inputs)
            except (RuntimeError, Unsupported):
                if k == 0:
                    return {}  # nothing to compare with
                continue
            expected = expected or results
            if alike(results, expected):
                programs[k] = program
            else:
                log.warning("a kernel of a product is wrong, and is not used: %s", _kernels(plan))
        return programs

    def _recorded(
        self, program: Any, inputs: list[list[Tensor]], machine: Any
    ) -> tuple[Callable[[], None], int]:
        """What replays a number of calls, and the number. The program must live as long."""
        alone = self._timed(lambda: program(*inputs[0]))
        calls = min(MOST_CALLS, max(1, round(LENGTH / max(alone, 1.0))))
        calls = min(MOST_CALLS, -(-calls // len(inputs)) * len(inputs))

        def run() -> list[Any]:
            for n in range(calls):
                program(*inputs[n % len(inputs)])
            return []

        replay, _ = machine.capture(run, machine.pool())
        return replay, calls

    @staticmethod
    def _timed(run: Callable[[], Any]) -> float:
        """Microseconds of what is launched, on the device."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3


def _results(program: Any, plan: Plan, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What a program writes into its inputs, which are left as they were."""
    written = set(itertools.chain(*[node.writes() for node in plan.graph.nodes]))
    targets = [t for t, name in zip(inputs, plan.graph.inputs) if name in written]
    before = list(map(torch.clone, targets))
    program(*inputs)
    after = list(map(torch.clone, targets))
    for target, value in zip(targets, before):
        target.copy_(value)
    return after


def alike(results: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether results differ by no more than the order of a product's sums explains."""
    tolerance = 2**-8
    if results and results[0].dtype.itemsize == 2:
        tolerance = 2**-5
    for a, b in zip(results, expected, strict=True):
        if not a.is_floating_point():
            continue
        a, b = a.float().nan_to_num(0, 0, 0), b.float().nan_to_num(0, 0, 0)
        if float((a - b).norm()) > tolerance * float(b.norm()):
            return False
    return True


def _kernels(plan: Plan) -> str:
    products = present(k.product for k in plan.kernels if isinstance(k, Kernel))
    return ", ".join([str(product.tiling) for product in products])
