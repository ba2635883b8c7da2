"""Small loop graphs made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ingot.loops.expr import Expr, as_expr, integer, loop_symbol
from ingot.loops.ir import Body, Buffer, Instruction, LoopGraph, Origin, Pointwise, Reduction, View
from ingot.loops.spaces import contiguous_strides

F32 = torch.float32


class Draft:
    """Builds a loop graph node by node over contiguous float32 buffers."""

    def __init__(self) -> None:
        self.graph = LoopGraph()

    def buffer(self, name: str, sizes: Sequence[int | Expr], role: str = "temporary") -> str:
        extents = tuple(as_expr(s) for s in sizes)
        self.graph.buffers[name] = Buffer(name, F32, extents, contiguous_strides(extents), role)
        if role == "input":
            self.graph.inputs.append(name)
        return name

    def input(self, name: str, *sizes: int | Expr) -> str:
        return self.buffer(name, sizes, "input")

    def at(self, name: str, indices: Sequence[Expr]) -> Expr:
        total: Expr = integer(0)
        for stride, index in zip(self.graph.buffers[name].strides, indices):
            total = total + stride * index
        return total

    def pointwise(self, name: str, op: str, *reads: str, keep_last: bool = False) -> str:
        """`name[i] = op(reads[i]...)`, shapes broadcast; the shape is the first read's."""
        shape = self.graph.buffers[reads[0]].sizes
        self.buffer(name, shape)
        loops = tuple(loop_symbol(f"i{k}", e) for k, e in enumerate(shape))
        loads = []
        for r in reads:
            sizes = self.graph.buffers[r].sizes
            used = [integer(0) if s.constant == 1 else i for s, i in zip(sizes, loops)]
            loads.append(Instruction("load", (), F32, (r, self.at(r, used))))
        body = Body((*loads, Instruction(op, tuple(range(len(loads))), F32)), (len(loads),))
        self.graph.nodes.append(
            Pointwise(
                name, Origin((f"aten.{op}.default",)), loops, body, name, self.at(name, loops)
            )
        )
        return name

    def reduction(self, name: str, kind: str, read: str, dim: int) -> str:
        """`name = kind(read, dim, keepdim=True)`."""
        shape = self.graph.buffers[read].sizes
        self.buffer(name, [integer(1) if k == dim else e for k, e in enumerate(shape)])
        symbols = [loop_symbol(f"i{k}", e) for k, e in enumerate(shape)]
        load = Instruction("load", (), F32, (read, self.at(read, symbols)))
        loops = tuple(s for k, s in enumerate(symbols) if k != dim)
        index = self.at(name, [integer(0) if k == dim else s for k, s in enumerate(symbols)])
        origin = Origin((f"aten.{kind}.dim",))
        self.graph.nodes.append(
            Reduction(
                name, origin, loops, (symbols[dim],), kind, Body((load,), (0,)), name, index, F32
            )
        )
        return name

    def returns(self, *names: str) -> LoopGraph:
        for name in names:
            b = self.graph.buffers[name]
            self.graph.outputs.append(View(name, b.sizes, b.strides, integer(0), b.dtype))
        return self.graph
