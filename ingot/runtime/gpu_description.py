"""The description of a program on a GPU: kernels are launches, products are asked of cuBLAS.

Kernels run on torch's current stream, and memory is of its caching allocator, which knows of
streams. Nothing is kept between calls, which may be on another stream: the plan is frugal.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ingot.codegen.loaded_kernels import LASTING, Loaded, load_kernel
from ingot.loops.aligned_products import mm_in_parts, views_of_parts
from ingot.loops.ir import Fault, Library, View
from ingot.runtime.description import Description, Row, whole
from ingot.runtime.traces import unaligned_inputs
from ingot.schedule.kernel import AnyKernel, Kernel
from ingot.schedule.plan import KernelStep, LibraryStep, Plan
from ingot.sequences import present
from ingot.torch_private import (
    get_cublas_allow_bf16_reduced_precision_reduction,
    get_cublas_allow_fp16_accumulation,
    get_cublas_allow_fp16_reduced_precision_reduction,
)

if TYPE_CHECKING:
    from ingot.codegen.triton.module import Binary, CompiledForm

log = logging.getLogger("ingot")

# Products that cuBLAS is asked for without torch in between, which tells it with each call how it
# may sum halves.
_SUMS_AS_USUAL: Mapping[torch.dtype, tuple[tuple[Callable[[], Any], Any], ...]] = {
    torch.float32: (),
    torch.float16: (
        (get_cublas_allow_fp16_reduced_precision_reduction, (True, True)),
        (get_cublas_allow_fp16_accumulation, False),
    ),
    torch.bfloat16: ((get_cublas_allow_bf16_reduced_precision_reduction, (True, True)),),
}


class GpuDescription(Description):
    def __init__(self, plan: Plan, compiled: Any, device: torch.device, lasting: bool) -> None:
        super().__init__(plan, compiled, device)
        self.unaligned = unaligned_inputs(plan)
        self.loaded: Loaded = LASTING if lasting else {}
        constants, buffers = plan.graph.constants, plan.graph.buffers
        for name, tensor in constants.items():
            if not buffers[name].on_host:  # a table of lowering's own
                constants[name] = tensor.to(device)

    def alignment(self, name: str) -> tuple[bool, ...]:
        on_host = self.plan.graph.buffers[name].on_host
        return self.kind(name) == "input" and name not in self.unaligned and not on_host, on_host

    def errors(self, kernel: AnyKernel) -> tuple[Fault, ...]:
        return ()  # what is out of range fails an assertion on the device, as in eager

    def kernel(self, step: KernelStep) -> Row:
        if step.on_host:
            return super().kernel(step)
        assert isinstance(step.kernel, Kernel)
        if step.extents:
            return self.horizontal_launch(step, step.kernel)
        buffers = self.buffer_numbers(step.arguments)
        sizes = self.values(self.compiled.written(step.kernel).sizes)
        forms = tuple(map(self.form, self.compiled.forms(step.kernel)))
        return "launch", buffers, self.offsets(step), sizes, forms

    def calls(self, node: Library) -> list[Row]:
        """Products are asked of cuBLAS; those in parts, one after the other."""
        if not LibraryStep(node).multiplies:
            return super().calls(node)
        (target,) = present(node.targets)
        out = whole(self.plan.graph.buffers[target])
        if node.function is not mm_in_parts:
            return [self.product((*node.args, out), self.call(node))]
        products, (left, right) = [], node.args
        for views in views_of_parts(left, right, out):
            items = tuple([("view", self.view(view)) for view in views])
            function = torch.bmm
            if len(views[0].sizes) == 2:
                function = torch.mm
            call = (
                "call",
                self.entry_point(function),
                items,
                ("out",),
                (),
                (self.buffer(out.buffer),),
            )
            products.append(self.product(views, call))
        return products

    def product(self, views: Sequence[View], call: Row) -> Row:
        """A product of two views that is written to a third; `call` where cuBLAS cannot."""
        dtype = views[-1].dtype
        if dtype not in _SUMS_AS_USUAL:
            return call
        name, operands = str(dtype).removeprefix("torch."), tuple(map(self.view, views))
        conditions = []
        for function, value in _SUMS_AS_USUAL[dtype]:
            conditions.append((self.entry_point(function), value))
        return "product", name, operands, tuple(conditions), call

    def horizontal_launch(self, step: KernelStep, kernel: Kernel) -> Row:
        """A launch over several sets of buffers."""
        written, buffers = self.compiled.written(kernel), self.buffer_numbers(step.arguments)
        points = dict(written.constants)["XBLOCK"]
        loaded = self.load(self.compiled.binary(kernel))
        offsets, extents = self.offsets(step), self.values(step.extents)
        return "launch parts", buffers, offsets, extents, written.table, points, *loaded

    def form(self, form: CompiledForm) -> Row:
        conditions = tuple((self.value(e), most) for e, most in form.conditions)
        if form.is_compiled:
            loaded = self.load(form.binary)
        else:
            loaded = self.load_later(form)
        return self.value(form.grid), conditions, *loaded

    def load(self, binary: Binary) -> Row:
        """What a launch has of a kernel that is compiled."""
        return load_kernel(binary.launched, self.device.index, self.loaded)

    def load_later(self, form: CompiledForm) -> Row:
        """What it has of one that is compiled when it is first launched."""
        return (functools.partial(load_form, form, self.device.index, self.loaded),)


def load_form(form: CompiledForm, device: int, loaded: Loaded) -> tuple[Any, int, int, int]:
    """The same as `load_kernel`, of a form that is compiled now if it is not yet."""
    try:
        return load_kernel(form.binary.launched, device, loaded)
    except Exception as problem:  # the core looks for another form
        log.warning("a kernel for some sizes could not be compiled or loaded: %s", problem)
        raise
