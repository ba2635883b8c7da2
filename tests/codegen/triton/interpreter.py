"""Runs kernels under Triton's interpreter, on CPU tensors. TRITON_INTERPRET=1 must be set before
Triton is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import fx
from triton.language.extra import libdevice as real_libdevice
from triton.runtime import interpreter

from ingot.codegen.reference import run_plan
from ingot.codegen.triton import helpers, module, ops, supported, write_kernel
from ingot.codegen.triton.forms import Form, forms_of
from ingot.codegen.triton.kernel import TritonKernel
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor
from ingot.graph.joint import simplify_joint, trace_joint
from ingot.graph.partition import Partition, partition
from ingot.graph.passes.pipeline import TRAINING_PASSES, Passes, run_passes
from ingot.graph.tracing import trace
from ingot.loops.expr import Symbol
from ingot.loops.lowering.lower import lower
from ingot.loops.ops import OPS
from ingot.loops.target import GPU, Target
from ingot.loops.verify import verify
from ingot.rules import hand_over
from ingot.schedule import schedule
from ingot.schedule.kernel import Kernel
from ingot.schedule.plan import Plan
from ingot.sequences import map_leaves
from tests.loops.test_lowering import traced

hand_over()  # a process of its own has no conftest

# libdevice's name of an op, where it is another than ours
_NAMES = {"rint": "round", "fast_dividef": "div"}


class Libdevice:
    """libdevice's functions by NumPy: the interpreter has none."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        reference = OPS[_NAMES.get(name, name)].reference
        assert hasattr(real_libdevice, name)

        def function(*args: Any) -> Any:
            tensors = [a for a in args if isinstance(a, tl.tensor)]
            arrays = [a.handle.data if isinstance(a, tl.tensor) else np.asarray(a) for a in args]
            with np.errstate(all="ignore"):
                result = np.asarray(
                    reference(*np.broadcast_arrays(*arrays)), dtype=tensors[0].handle.data.dtype
                )
            type_ = tensors[0].type.scalar
            handle = type(tensors[0].handle)(result, type_)
            return tl.tensor(
                handle, tl.block_type(type_, list(result.shape)) if result.shape else type_
            )

        return function


class Stray(Exception):
    """A kernel touched memory that is none of its buffers."""


class _Bounds:
    """While in force, every access of an interpreted kernel is compared with the buffers that it
    was given."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.ranges = [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in tensors]

    def check(self, pointers: Any, mask: Any) -> None:
        # a mask that was made of numbers holds integers
        mask = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)
        touched = pointers.data[mask]
        inside = np.zeros(touched.shape, bool)
        for begin, end in self.ranges:
            inside |= (touched >= begin) & (touched < end)
        if not inside.all():
            raise Stray(f"{(~inside).sum()} of {inside.size} accesses")

    def __enter__(self) -> None:
        builder, check = interpreter.InterpreterBuilder, self.check
        self.kept = builder.create_masked_load, builder.create_masked_store
        load, store = self.kept

        def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
            check(pointers, mask)
            return load(self, pointers, mask, *rest)

        def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            check(pointers, mask)
            return store(self, pointers, value, mask, *rest)

        builder.create_masked_load, builder.create_masked_store = checked_load, checked_store

    def __exit__(self, *error: Any) -> None:
        builder = interpreter.InterpreterBuilder
        builder.create_masked_load, builder.create_masked_store = self.kept


def _patch_tensor(
    tensor: Any, scope: Any, patch: Callable[..., None] = interpreter._patch_lang_tensor
) -> None:
    """As the interpreter does, and sizes may bound a range: NumPy takes no array of one element for
    a number."""
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


interpreter._patch_lang_tensor = _patch_tensor


def run_kernel(
    kernel: Kernel, arrays: MutableMapping[str, torch.Tensor], sizes: Mapping[Symbol, int]
) -> None:
    written = write_kernel(kernel, form_for(kernel, sizes))
    grid = written.grid.evaluate(dict(sizes))
    if grid == 0:
        return
    function = interpreted(written)
    values = [sizes[s] for s in written.sizes]
    given = [_number(arrays[p.name]) if p.on_host else arrays[p.name] for p in written.parameters]
    with _Bounds(arrays[p.name] for p in written.parameters if not p.on_host):
        function[(grid,)](*given, *values, **dict(written.constants))


def form_for(kernel: Kernel, sizes: Mapping[Symbol, int]) -> Form | None:
    """What the native core launches for these sizes."""
    return next(
        (
            f
            for f in forms_of(kernel)
            if all(e.evaluate(dict(sizes)) <= most for e, most in f.conditions)
        ),
        None,
    )


def _number(array: torch.Tensor) -> tl.tensor:
    """The one element of an array as an argument of a kernel."""
    (number,) = array
    type_ = tl.str_to_ty(ops.signature(array.dtype), None)
    held = (
        number.reshape(1).view(torch.int16) if array.dtype is torch.bfloat16 else number.reshape(1)
    )
    return tl.tensor(interpreter.TensorHandle(held.numpy().copy(), type_), type_)


def interpreted(written: TritonKernel) -> Any:
    helpers.libdevice = Libdevice()
    helpers.exp2_flushed = helpers.libdevice.exp2
    function = module.load(written)
    function.fn.__globals__["libdevice"] = Libdevice()
    return function


def planned(
    fn: Callable[..., Any],
    *args: torch.Tensor,
    dynamic: bool | tuple[int, ...] = False,
    target: Target = GPU,
) -> Plan:
    """The GPU's plan of a function, traced on the CPU; with `dynamic`, the first argument's first
    size is symbolic, or its sizes in these dimensions."""
    loops = lower(traced(fn, *args, dynamic=dynamic), supported, target=target)
    verify(loops)
    return schedule(loops, target=target)


def planned_beside(
    fn: Callable[..., Any],
    *args: torch.Tensor,
    passes: Passes = (),
    target: Target = GPU,
) -> Plan:
    """The GPU's plan of a function whose arguments of rank 0 are on the CPU, the others on a GPU
    that need not be there; its graph went through the passes."""
    context = FakeContext()
    fakes = [context.fake(a) for a in args]
    fakes = [
        FakeTensor(f.meta, torch.device("cuda:0")) if a.dim() else f for f, a in zip(fakes, args)
    ]
    aten = trace(_module_of(fn, len(args)), fakes, context)
    run_passes(aten, passes)
    loops = lower(aten, supported, target=target)
    verify(loops)
    return schedule(loops, target=target)


def _module_of(fn: Callable[..., Any], arguments: int) -> fx.GraphModule:
    """A graph of one call."""
    graph = fx.Graph()
    placeholders = tuple(graph.placeholder(f"x{k}") for k in range(arguments))
    graph.output(graph.call_function(fn, placeholders))
    return fx.GraphModule(torch.nn.Module(), graph)


def planned_training(fn: Callable[..., Any], *args: torch.Tensor) -> tuple[Partition, Plan, Plan]:
    """The GPU's plans of the forward and the backward of a function whose arguments are on a GPU
    that need not be there, and what the one keeps for the other. It is traced on the CPU."""
    context = FakeContext()
    with context:
        fakes = [context.fake(a) for a in args]
    module = _module_of(fn, len(args))
    parts = partition(trace_joint(module, fakes, context, _simplified_on_gpu))
    plans = []
    for aten in (parts.forward, parts.backward):
        run_passes(aten, TRAINING_PASSES)
        loops = lower(aten, supported, target=GPU)
        verify(loops)
        plans.append(schedule(loops, target=GPU))
    return parts, plans[0], plans[1]


def _simplified_on_gpu(aten: AtenGraph) -> None:
    for node in aten.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = map_leaves(_on_gpu, node.meta["val"])
    simplify_joint(aten)


def _on_gpu(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return FakeTensor(value.meta, torch.device("cuda:0"))
    return value


def run(plan: Plan, inputs: list[torch.Tensor]) -> list[Any]:
    return run_plan(plan, inputs, run_kernel, run_horizontal)


def run_horizontal(kernel: Kernel, parts: list[dict[str, torch.Tensor]], points: list[int]) -> None:
    """One launch over several sets of arrays, with the table of them that the native core makes."""
    written = write_kernel(kernel)
    block = dict(written.constants)["XBLOCK"]
    begins = [sum(-(-n // block) for n in points[:k]) for k in range(len(points))]
    rows = []
    for arrays, begin, count in zip(parts, begins, points, strict=True):
        rows += [begin, count]
        for p in kernel.parameters:
            number = bytes(arrays[p.name].view(torch.uint8).tolist()).ljust(8, b"\0")
            rows.append(
                int.from_bytes(number[:8], "little", signed=True)
                if p.on_host
                else arrays[p.name].data_ptr()
            )
    table = torch.tensor(begins + [2**63 - 1] * (written.table - len(begins)) + rows)
    inside = [table, *(a[p.name] for a in parts for p in kernel.parameters if not p.on_host)]
    function = interpreted(written)
    with _Bounds(inside):
        function[(sum(-(-n // block) for n in points),)](table, **dict(written.constants))
