"""The slow oracle: run a `LoopGraph`, a `Plan` or one `Kernel` with NumPy.

Every body runs over whole index grids at once. Half-precision values are held as float32 and
rounded at conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch

from ingot.codegen.reference_attention import attention, attention_backward
from ingot.loops.depthwise import DepthwiseGradient
from ingot.loops.expr import ZERO, Expr, Symbol
from ingot.loops.ir import (
    Access,
    Attention,
    AttentionBackward,
    Body,
    Buffer,
    Contraction,
    Instruction,
    Library,
    LoopGraph,
    Pointwise,
    Reduction,
    Scan,
    View,
)
from ingot.loops.ops import HALVES, OPS
from ingot.loops.spaces import extents_of
from ingot.schedule.attention import attention_step
from ingot.schedule.kernel import (
    AnyKernel,
    AttentionBackwardKernel,
    AttentionKernel,
    Kernel,
    Operand,
    Product,
    Stage,
)
from ingot.schedule.plan import LibraryStep, Plan

Values = Mapping[Symbol, Any]  # a symbol's value: an int, or an array over the grid

NUMPY = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.uint16: np.uint16,
    torch.uint32: np.uint32,
    torch.uint64: np.uint64,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.bfloat16: np.float32,
    torch.float16: np.float32,
}


# -- bodies ----------------------------------------------------------------------------------------


def run_body(
    body: Body,
    memory: Mapping[str, torch.Tensor],
    values: Values,
    shape: tuple[int, ...],
    scalars: Mapping[str, Any] | None = None,
) -> list[np.ndarray]:
    """The values of all instructions of `body` over a grid of `shape`.

    `memory` maps buffer names to flat tensors over the buffer's storage; `values` gives every
    symbol. Raises IndexError with the body's message for an indirect value out of range.
    """
    symbols, scalars = dict(values), scalars or {}
    done: list[np.ndarray] = []
    for instruction in body.instructions:
        rule = _STRUCTURAL.get(instruction.op, _scalar_op)
        with np.errstate(all="ignore"):
            result = rule(
                instruction, [done[a] for a in instruction.args], memory, symbols, scalars
            )
        done.append(np.broadcast_to(np.asarray(result, dtype=NUMPY[instruction.dtype]), shape))
    return done


def _scalar_op(i: Instruction, args: list[np.ndarray], *_: Any) -> Any:
    return OPS[i.op].reference(*args)


def _constant(i: Instruction, *_: Any) -> Any:
    return i.attrs[0]


def _index(
    i: Instruction, args: list[np.ndarray], memory: Any, symbols: dict[Symbol, Any], scalars: Any
) -> Any:
    return i.attrs[0].evaluate(symbols)


def _load(
    i: Instruction, args: list[np.ndarray], memory: Any, symbols: dict[Symbol, Any], scalars: Any
) -> Any:
    name, offset = i.attrs
    array = memory[name]
    at = np.asarray(offset.evaluate(symbols))
    if not args:
        return gather(array, at)
    mask: np.ndarray = args[0]
    zero: np.ndarray = np.zeros((), NUMPY[i.dtype])
    if not mask.any():
        return np.where(mask, 0, zero)
    return np.where(mask, gather(array, np.where(mask, at, 0)), zero)


def gather(array: torch.Tensor, at: np.ndarray) -> np.ndarray:
    """Elements of flat memory; halves as float32."""
    # an empty buffer is only read by loops without iterations, whose index may have folded to 0
    if not len(array):
        return np.zeros(at.shape, NUMPY[array.dtype])
    if at.size and (at.min() < 0 or at.max() >= len(array)):
        raise AssertionError(f"a load from element {at.min()} .. {at.max()} of {len(array)}")
    elements = array[torch.from_numpy(np.ascontiguousarray(at, dtype=np.int64).reshape(-1))]
    if elements.dtype in HALVES:
        elements = elements.float()
    return elements.numpy().reshape(at.shape)


def _running(i: Instruction, args: list[np.ndarray], *_: Any) -> Any:
    """A scan over all loops of a kernel's stage."""
    return scan_over(i.attrs[0], args[0].reshape(-1)).reshape(args[0].shape)


def _indirect(
    i: Instruction, args: list[np.ndarray], memory: Any, symbols: dict[Symbol, Any], scalars: Any
) -> Any:
    symbol, extent, fault = i.attrs
    size = extent.evaluate(symbols)
    value = args[0]
    inside = (value >= -size) & (value < size)
    if len(args) == 2:
        inside |= ~args[1]
    if not inside.all():
        raise fault.error(fault.message)
    wrapped = np.where(value < 0, value + size, value)
    if len(args) == 2:
        symbols[symbol] = np.where(args[1], wrapped, 0)
    else:
        symbols[symbol] = wrapped
    return wrapped


def _scalar(
    i: Instruction, args: Any, memory: Any, symbols: Any, scalars: Mapping[str, Any]
) -> Any:
    return scalars[i.attrs[0]]


def _to(i: Instruction, args: list[np.ndarray], *_: Any) -> Any:
    if i.dtype in HALVES:
        return round_half(args[0], i.dtype)
    return torch.from_numpy(args[0].copy()).to(i.dtype).numpy().reshape(args[0].shape)


def round_half(value: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """float32 values that are exact in the half-precision `dtype`."""
    return torch.from_numpy(value.copy()).to(dtype).float().numpy().reshape(value.shape)


_STRUCTURAL = {
    "constant": _constant,
    "index": _index,
    "load": _load,
    "indirect": _indirect,
    "running": _running,
    "scalar": _scalar,
    "to": _to,
}


# -- grids -----------------------------------------------------------------------------------------


def grid(
    loops: Sequence[Symbol], sizes: Mapping[Symbol, int], fixed: Values | None = None
) -> tuple[tuple[int, ...], dict[Symbol, Any]]:
    """(shape, value of every symbol) of a loop nest: a loop's index is an array along its axis."""
    shape = tuple(s.extent.evaluate(dict(sizes)) for s in loops)  # type: ignore[union-attr]
    values: dict[Symbol, Any] = {**sizes, **(fixed or {})}
    for axis, (symbol, extent) in enumerate(zip(loops, shape)):
        along = [1] * len(shape)
        along[axis] = -1
        values[symbol] = np.arange(extent).reshape(along)
    return shape, values


def reduce_over(kind: str, values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Reduce `values` over its last `axes`. Sums accumulate in double; NaN is the extreme."""
    flat = values.reshape(*values.shape[: len(values.shape) - len(axes)], -1)
    if kind in ("sum", "prod"):
        wide = np.float64 if np.issubdtype(values.dtype, np.floating) else values.dtype
        return getattr(np, kind)(flat, axis=-1, dtype=wide).astype(values.dtype)
    return getattr(np, kind)(flat, axis=-1)


_REDUCE = {"mul": "prod", "max": "amax", "min": "amin"}


def scatter(memory: torch.Tensor, at: Any, value: np.ndarray, mode: str) -> None:
    """Write elements of flat memory: `mode` is a `Pointwise` node's."""
    at, value = np.broadcast_arrays(np.asarray(at, dtype=np.int64), value)
    if at.size and (at.min() < 0 or at.max() >= len(memory)):
        raise AssertionError(f"a store to element {at.min()} .. {at.max()} of {len(memory)}")
    index = torch.from_numpy(at.reshape(-1).copy())
    new = torch.from_numpy(value.reshape(-1).copy()).to(memory.dtype)
    if mode in ("store", "add"):
        # rounds every sum, as kernels do
        memory.index_put_((index,), new, accumulate=mode == "add")
    else:
        memory.scatter_reduce_(0, index, new, _REDUCE[mode])


# -- loop graphs -----------------------------------------------------------------------------------


def run_graph(
    graph: LoopGraph,
    inputs: Sequence[torch.Tensor],
    seen: Callable[[Any, Mapping[str, torch.Tensor]], None] = lambda node, memory: None,
) -> list[Any]:
    """Run `graph` on real tensors; returns its outputs (windows of fresh memory or of the inputs,
    and ints).

    Inputs that the graph writes are written. `seen` is told each node that has run, and the memory.
    """
    sizes, memory = _start(graph, inputs)
    for node in graph.nodes:
        for name in node.writes():
            if name not in memory and not isinstance(node, Library):
                memory[name] = new_storage(graph.buffers[name], sizes)
        _RUN[type(node)](node, graph, memory, sizes)
        seen(node, memory)
    return list(_materialize(graph.outputs, memory, sizes))


def _start(
    graph: LoopGraph, inputs: Sequence[torch.Tensor]
) -> tuple[dict[Symbol, int], dict[str, torch.Tensor]]:
    """The value of every size symbol, and the memory there is before the first node."""
    read: dict[str, Callable[[Any, int], int]] = {
        "size": lambda tensor, dim: tensor.shape[dim],
        "stride": lambda tensor, dim: tensor.stride(dim),
        "value": lambda number, _: number,
    }
    sizes: dict[Symbol, int] = {}
    for symbol, position, kind, dim in graph.symbols:
        sizes[symbol] = int(read[kind](inputs[position], dim))
    tensors = dict(zip(graph.inputs, inputs), **graph.constants)
    return sizes, dict(zip(tensors, map(flat_storage, tensors.values())))


def flat_storage(tensor: torch.Tensor) -> torch.Tensor:
    """A flat alias of a tensor's memory, from its first element to its last."""
    tensor = tensor.detach()
    return tensor.as_strided((_span(tensor.shape, tensor.stride()),), (1,))


def _span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last one."""
    if not all(sizes):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides))


def new_storage(buffer: Buffer, sizes: Mapping[Symbol, int]) -> torch.Tensor:
    """Flat memory for a temporary."""
    layout = _evaluated(buffer.sizes, sizes), _evaluated(buffer.strides, sizes)
    return unset_storage(buffer.dtype, *layout)


def unset_storage(dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """Flat memory for a tensor of that layout, with what a program must not rely on."""
    return _unset(_span(sizes, strides), dtype)


def _unset(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory with what a program must not rely on."""
    return torch.full((length,), float("nan") if dtype.is_floating_point else 77).to(dtype)


def _evaluated(exprs: Iterable[Expr], sizes: Mapping[Symbol, int]) -> list[int]:
    return [e.evaluate(sizes) for e in exprs]


def tensor_of(
    view: View, memory: Mapping[str, torch.Tensor], sizes: Mapping[Symbol, int]
) -> torch.Tensor:
    """The tensor that a view names."""
    extents, strides = _evaluated(view.sizes, sizes), _evaluated(view.strides, sizes)
    return window(memory[view.buffer], view.dtype, extents, strides, view.offset.evaluate(sizes))


def window(
    flat: torch.Tensor,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
) -> torch.Tensor:
    """A strided window on flat memory; all is counted in elements of `dtype`, which may be the real
    numbers of complex ones."""
    if dtype != flat.dtype:
        flat = flat.view(dtype)
    return flat.as_strided(sizes, strides, flat.storage_offset() + offset)


def _bind_lookups(body: Body, done: Sequence[Any], values: dict[Symbol, Any]) -> None:
    """Add the values of the symbols that a body's lookups give."""
    for instruction, value in zip(body.instructions, done):
        if instruction.op == "indirect":
            values[instruction.attrs[0]] = value


def _run_pointwise(
    node: Pointwise, graph: LoopGraph, memory: dict[str, torch.Tensor], sizes: dict[Symbol, int]
) -> None:
    shape, values = grid(node.loops, sizes)
    symbols = dict(values)
    done = run_body(node.body, memory, symbols, shape)
    _bind_lookups(node.body, done, symbols)
    scatter(
        memory[node.target], node.index.evaluate(symbols), done[node.body.results[0]], node.mode
    )


def _run_reduction(
    node: Reduction, graph: LoopGraph, memory: dict[str, torch.Tensor], sizes: dict[Symbol, int]
) -> None:
    shape, values = grid((*node.loops, *node.reduced), sizes)
    done = run_body(node.body, memory, values, shape)[node.body.results[0]]
    axes = tuple(range(len(node.loops), len(shape)))
    result = reduce_over(node.kind, done, axes)
    outer, outer_values = grid(node.loops, sizes)
    scatter(
        memory[node.target],
        node.index.evaluate(outer_values),
        result.astype(NUMPY[node.dtype]).reshape(outer),
        "store",
    )


def _run_depthwise_gradient(node: DepthwiseGradient, *rest: Any) -> None:
    _run_reduction(node.sums, *rest)


def _run_scan(
    node: Scan, graph: LoopGraph, memory: dict[str, torch.Tensor], sizes: dict[Symbol, int]
) -> None:
    shape, values = grid((*node.loops, *node.reduced), sizes)
    done = run_body(node.body, memory, values, shape)[node.body.results[0]]
    result: np.ndarray = scan_over(node.kind, done).astype(NUMPY[node.dtype])
    scatter(memory[node.target], node.index.evaluate(values), result, "store")


_ACCUMULATED = {"sum": np.add, "prod": np.multiply, "logaddexp": np.logaddexp}


def scan_over(kind: str, values: np.ndarray) -> np.ndarray:
    """A scan along the last axis."""
    if kind in _ACCUMULATED:
        with np.errstate(all="ignore"):
            return _ACCUMULATED[kind].accumulate(values, axis=-1)
    best, positions = values[..., 0], np.zeros(values.shape, np.int64)
    extremes = values.copy()
    for k in range(1, values.shape[-1]):
        new = values[..., k]
        take = (new >= best if kind.endswith("max") else new <= best) | (new != new)
        best = extremes[..., k] = np.where(take, new, best)
        positions[..., k] = np.where(take, k, positions[..., k - 1])
    if kind.startswith("arg"):
        return positions
    return extremes


def contract(
    loops: tuple[Sequence[Symbol], ...], left: Access, right: Access,
    memory: Mapping[str, torch.Tensor], sizes: Values, fixed: Values | None = None,
) -> tuple[tuple[int, ...], np.ndarray]:  # fmt: skip
    """(shape, values): sums of left * right in double, rounded to their dtype at the end.

    They are over the last of `loops` (batch, rows, columns, reduced).
    """
    batch, rows, columns, reduced = loops

    def operand(access: Access, own: Sequence[Symbol]) -> np.ndarray:
        shape, values = grid((*batch, *own, *reduced), sizes, fixed)  # type: ignore[arg-type]
        elements = gather(
            memory[access.buffer], np.broadcast_to(np.asarray(access.index.evaluate(values)), shape)
        )
        rows_end = len(batch) + len(own)
        count = int(np.prod(shape[len(batch) : rows_end], dtype=np.int64))
        depth = int(np.prod(shape[rows_end:], dtype=np.int64))
        return elements.reshape([*shape[: len(batch)], count, depth])

    a, b = operand(left, rows), operand(right, columns)
    with np.errstate(all="ignore"):
        result = (a.astype(np.float64) @ b.astype(np.float64).swapaxes(-1, -2)).astype(a.dtype)
    shape, _ = grid((*batch, *rows, *columns), sizes, fixed)  # type: ignore[arg-type]
    return shape, result.reshape(shape)


def _run_contraction(
    node: Contraction, graph: LoopGraph, memory: dict[str, torch.Tensor], sizes: dict[Symbol, int]
) -> None:
    loops = (node.batch, node.rows, node.columns, node.reduced)
    _, result = contract(loops, node.left, node.right, memory, sizes)
    _, values = grid(node.loops, sizes)
    scatter(memory[node.target], node.index.evaluate(values), result, "store")


def _run_library(
    node: Library, graph: LoopGraph, memory: dict[str, torch.Tensor], sizes: dict[Symbol, int]
) -> None:
    for written in node.mutates:
        if written not in memory:
            memory[written] = new_storage(graph.buffers[written], sizes)
    args, kwargs = _materialize((node.args, node.kwargs), memory, sizes)
    if node.out is not None:
        outs = []
        for target in filter(None, node.targets):
            b = graph.buffers[target]
            memory[target] = new_storage(b, sizes)
            outs.append(tensor_of(View(target, b.sizes, b.strides, ZERO, b.dtype), memory, sizes))
        node.function(*args, **{**kwargs, node.out: outs[0] if len(outs) == 1 else outs})
        return
    results = node.function(*args, **kwargs)
    if not isinstance(results, (tuple, list)):
        results = (results,)
    for name, result in zip(node.targets, results):
        if name is not None:
            b = graph.buffers[name]
            layout = _evaluated(b.sizes, sizes), _evaluated(b.strides, sizes)
            memory[name] = laid_out(result.to(b.dtype), *layout)


def _run_attention(
    node: Attention | AttentionBackward,
    graph: LoopGraph,
    memory: dict[str, torch.Tensor],
    sizes: dict[Symbol, int],
) -> None:
    step = attention_step(node)
    arrays = []
    for name in step.arguments:
        arrays.append(memory[name])
    _ATTENTION[type(step.kernel)](step.kernel, arrays, sizes)


def attend(
    kernel: AttentionKernel, arrays: Sequence[torch.Tensor], sizes: Mapping[Symbol, int]
) -> None:
    """Attention in double, from and to the flat arrays of the kernel's parameters."""
    batches, heads, queries, keys, width, value_width = _evaluated(kernel.sizes, sizes)

    def array(operand: Operand | None, *extents: int) -> Any:
        return _array(operand, arrays, (batches, *extents), sizes)

    attention(
        array(kernel.query, heads, queries, width),
        array(kernel.key, kernel.key_heads, keys, width),
        array(kernel.value, kernel.key_heads, keys, value_width),
        array(kernel.target, heads, queries, value_width),
        kernel.scale,
        mask=array(kernel.mask, heads, queries, keys),
        causal=kernel.causal,
        zero_rows=kernel.zero_rows,
        replaces=kernel.replaces,
        logarithms=array(kernel.logarithms, heads, queries),
    )


def differentiate_attention(
    kernel: AttentionBackwardKernel, arrays: Sequence[torch.Tensor], sizes: Mapping[Symbol, int]
) -> None:
    """The gradients of attention in double, from and to the flat arrays of the kernel's
    parameters."""
    batches, heads, queries, keys, width, value_width = _evaluated(kernel.sizes, sizes)

    def array(operand: Operand | None, *extents: int) -> Any:
        return _array(operand, arrays, (batches, heads, *extents), sizes)

    attention_backward(
        array(kernel.tangent, queries, value_width),
        array(kernel.query, queries, width),
        array(kernel.key, keys, width),
        array(kernel.value, keys, value_width),
        array(kernel.result, queries, value_width),
        array(kernel.logarithms, queries),
        array(kernel.of_query, queries, width),
        array(kernel.of_key, keys, width),
        array(kernel.of_value, keys, value_width),
        kernel.scale,
        mask=array(kernel.mask, queries, keys),
        causal=kernel.causal,
    )


def _array(
    operand: Operand | None,
    arrays: Sequence[torch.Tensor],
    extents: tuple[int, ...],
    sizes: Mapping[Symbol, int],
) -> Any:
    """The window of those extents that an attention's operand is; None where there is none."""
    if operand is None:
        return None
    strides, offset = _evaluated(operand.strides, sizes), operand.offset.evaluate(sizes)
    return arrays[operand.parameter].as_strided(extents, strides, offset)


_ATTENTION: dict[type, Any] = {
    AttentionKernel: attend,
    AttentionBackwardKernel: differentiate_attention,
}


def laid_out(tensor: torch.Tensor, sizes: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """The flat memory of a tensor, of a copy in that layout if the tensor has another one."""
    same = all(n == 1 or a == b for n, a, b in zip(sizes, strides, tensor.stride()))
    if list(tensor.shape) == list(sizes) and same:
        return flat_storage(tensor)
    return flat_storage(torch.empty_strided(sizes, strides, dtype=tensor.dtype).copy_(tensor))


def _materialize(tree: Any, memory: Mapping[str, torch.Tensor], sizes: Mapping[Symbol, int]) -> Any:
    if isinstance(tree, View):
        return tensor_of(tree, memory, sizes)
    if isinstance(tree, Expr):
        return tree.evaluate(sizes)
    if isinstance(tree, dict):
        return dict(zip(tree, _materialize([*tree.values()], memory, sizes)))
    if isinstance(tree, (tuple, list)):
        return type(tree)(_materialize(item, memory, sizes) for item in tree)
    return tree


_RUN: dict[type, Any] = {
    Pointwise: _run_pointwise,
    Reduction: _run_reduction,
    Scan: _run_scan,
    Attention: _run_attention,
    AttentionBackward: _run_attention,
    Contraction: _run_contraction,
    DepthwiseGradient: _run_depthwise_gradient,
    Library: _run_library,
}


# -- kernels ---------------------------------------------------------------------------------------


def run_kernel(
    kernel: AnyKernel,
    arrays: MutableMapping[str, torch.Tensor],
    sizes: Mapping[Symbol, int],
    begin: int = 0,
    end: int | None = None,
) -> None:
    """Run `kernel` over [begin, end) of its collapsed parallel loops.

    `arrays` maps the name of each parameter to its flat memory, as `flat_storage` gives it.
    """
    if isinstance(kernel, (AttentionKernel, AttentionBackwardKernel)):
        operands = []
        for p in kernel.parameters:
            operands.append(arrays[p.name])
        return _ATTENTION[type(kernel)](kernel, operands, sizes)
    if kernel.members:
        return _run_members(kernel, arrays, sizes)
    if kernel.product is not None:
        return _run_product(kernel, kernel.product, arrays, sizes)
    extents = _evaluated(extents_of(kernel.loops), sizes)
    inner = max(int(np.prod(extents[kernel.parallel :], dtype=np.int64)), 1)
    for number, point in enumerate(np.ndindex(*extents)):
        if number // inner < begin or (end is not None and number // inner >= end):
            continue
        fixed = dict(zip(kernel.loops, point))
        memory = dict(arrays)
        for row in kernel.rows:
            memory[row.name] = _unset(row.length.evaluate({**sizes, **fixed}), row.dtype)
        scalars: dict[str, Any] = {}
        begins = not kernel.run or number % kernel.run == 0
        for stage in kernel.stages:
            _run_stage(stage, memory, sizes, fixed, scalars, begins)


def _run_members(
    kernel: Kernel, arrays: MutableMapping[str, torch.Tensor], sizes: Mapping[Symbol, int]
) -> None:
    """Kernels that share a launch, one after the other."""
    for member, parameters in kernel.of_members():
        own = {}
        for p, shared in zip(member.parameters, parameters):
            own[p.name] = arrays[shared.name]
        run_kernel(member, own, sizes)


def _run_product(
    kernel: Kernel,
    product: Product,
    arrays: MutableMapping[str, torch.Tensor],
    sizes: Mapping[Symbol, int],
) -> None:
    """A contraction kernel, wholly: which of its points are which elements is code generation's
    affair."""
    loops = (kernel.loops, product.rows, product.columns, product.reduced)
    shape, result = contract(loops, product.left, product.right, arrays, sizes)
    for stage in kernel.stages:
        everything = Stage((*kernel.loops, *stage.loops), stage.body, stage.stores)
        _run_stage(everything, dict(arrays), sizes, {}, {product.name: result.reshape(shape)})


def _run_stage(
    stage: Stage,
    memory: dict[str, torch.Tensor],
    sizes: Mapping[Symbol, int],
    fixed: Values,
    scalars: dict[str, Any],
    begins: bool = True,
) -> None:
    """`begins`: whether totals begin here, rather than go on."""
    shape, values = grid(stage.loops, sizes, fixed)
    done = run_body(stage.body, memory, values, shape, scalars)
    _bind_lookups(stage.body, done, values)
    for store in stage.stores:
        if store.mode != "total":
            mode = store.mode
        else:
            mode = "store" if begins else "add"
        scatter(memory[store.buffer], store.index.evaluate(values), done[store.value], mode)
    for total in stage.reductions:
        result = reduce_over(total.kind, done[total.value], tuple(range(len(shape))))
        scalars[total.name] = np.asarray(result).astype(NUMPY[total.dtype])
    for define in stage.scalars:
        scalars[define.name] = done[define.value]


# -- plans -----------------------------------------------------------------------------------------


def run_plan(
    plan: Plan,
    inputs: Sequence[torch.Tensor],
    run: Callable[..., None] = run_kernel,
    run_horizontal: Callable[..., None] | None = None,
    seen: Callable[[Any, Mapping[str, torch.Tensor]], None] = lambda step, memory: None,
) -> list[Any]:
    """Run a plan's steps in order, and return outputs as `run_graph` does. Very slow.

    Kernels run by `run`; those over several sets of buffers by `run_horizontal`, with the arrays
    and the points of each set; those that a GPU's plan leaves to the CPU by `run_kernel`. Inputs
    that may lend their memory do. `seen` is told each step that has run, and the memory.
    """
    graph = plan.graph
    sizes, memory = _start(graph, inputs)
    for step in plan.steps:
        if isinstance(step, LibraryStep):
            _run_library(step.node, graph, memory, sizes)
            seen(step, memory)
            continue
        for name in step.arguments:
            if name not in memory:
                lender = plan.lenders.get(name)
                if lender:
                    memory[name] = memory[lender]
                else:
                    memory[name] = new_storage(graph.buffers[name], sizes)
        begins = _evaluated(step.offsets, sizes) or [0] * len(step.arguments)
        operands = [memory[name][begin:] for name, begin in zip(step.arguments, begins)]
        names, width = [p.name for p in step.kernel.parameters], len(step.kernel.parameters)
        arrays = []
        for k in range(0, len(operands), width):
            arrays.append(dict(zip(names, operands[k : k + width])))
        ends = _evaluated(step.extents, sizes)
        if not step.extents:
            (run_kernel if step.on_host else run)(step.kernel, arrays[0], sizes)
        elif run_horizontal is not None and not step.on_host:
            run_horizontal(step.kernel, arrays, ends)
        else:
            for kernel_arrays, end in zip(arrays, ends):
                run_kernel(step.kernel, kernel_arrays, sizes, 0, end)
        seen(step, memory)
    return list(_materialize(graph.outputs, memory, sizes))
