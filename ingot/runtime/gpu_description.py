"""The description of a program on a GPU: kernels are launches, products are asked of cuBLAS.

Kernels run on torch's current stream, and memory is of its caching allocator, which knows of
streams. Nothing is kept between calls, which may be on another stream: the plan is frugal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ingot.loops.aligned_products import mm_in_parts, views_of_parts
from ingot.loops.ir import Fault, Library, View
from ingot.native import _native
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

# What is in the memory of which GPU. A user's CUDA graph may launch it when its program is long
# gone; and while one is recorded, nothing may be unloaded.
_LOADED: dict[tuple[Binary, int], Any] = {}

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
        self.loaded: dict[tuple[Binary, int], Any] = _LOADED if lasting else {}
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
            call = ("call", function, items, ("out",), (), (self.buffer(out.buffer),))
            products.append(self.product(views, call))
        return products

    def product(self, views: Sequence[View], call: Row) -> Row:
        """A product of two views that is written to a third; `call` where cuBLAS cannot."""
        dtype = views[-1].dtype
        if dtype not in _SUMS_AS_USUAL:
            return call
        name, operands = str(dtype).removeprefix("torch."), tuple(map(self.view, views))
        return "product", name, operands, _SUMS_AS_USUAL[dtype], call

    def horizontal_launch(self, step: KernelStep, kernel: Kernel) -> Row:
        """A launch over several sets of buffers."""
        written, buffers = self.compiled.written(kernel), self.buffer_numbers(step.arguments)
        points = dict(written.constants)["XBLOCK"]
        loaded = load_binary(self.compiled.binary(kernel), self.loaded, self.device.index)
        offsets, extents = self.offsets(step), self.values(step.extents)
        return "launch parts", buffers, offsets, extents, written.table, points, *loaded

    def form(self, form: CompiledForm) -> Row:
        conditions = tuple((self.value(e), most) for e, most in form.conditions)
        load = _Loader(form, self.loaded, self.device.index)
        return self.value(form.grid), conditions, *(load() if form.is_compiled else [load])


class _Loader:
    """Loads a form of a kernel into a GPU, and keeps it there as long as this lives."""

    def __init__(
        self, form: CompiledForm, loaded: dict[tuple[Binary, int], Any], device: int
    ) -> None:
        self.form, self.loaded, self.device = form, loaded, device

    def __call__(self) -> tuple[Any, int, int, int]:
        try:
            return load_binary(self.form.binary, self.loaded, self.device)
        except Exception as problem:  # the core looks for another form
            log.warning("a kernel for some sizes could not be compiled or loaded: %s", problem)
            raise


def load_binary(
    binary: Binary, loaded: dict[tuple[Binary, int], Any], device: int
) -> tuple[Any, int, int, int]:
    """(kernel, threads, shared, hidden) of a description."""
    key = binary, device
    if key not in loaded:
        loaded[key] = _native.load_cuda(binary.image, binary.function, binary.shared, device)
    return loaded[key], binary.threads, binary.shared, binary.hidden
