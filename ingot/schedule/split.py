"""Long reductions to few results, in two steps: parts that threads share, and the reduction of the parts.

How many parts there are depends on sizes alone, so that the result does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

import torch

from ingot.loops.expr import Expr, Symbol, contiguous_strides, loop_symbol, product
from ingot.loops.ir import Body, Buffer, Instruction, LoopGraph, Node, Reduction, Scan
from ingot.schedule.nests import canonical, map_indices

FEW_POINTS = 8  # fewer results than this, each reduced on its own, leave threads without work ...
COLUMNS = 512  # ... where neighbours are reduced together, this many count as one
LONG = 1 << 17  # elements in all from which on that matters
PART = 1 << 14  # elements of one part, at least
MOST_PARTS = 64


def split_reductions(nodes: Sequence[Node], graph: LoopGraph) -> tuple[list[Node], LoopGraph]:
    """The nodes with long reductions split, and the graph with the buffers of their parts."""
    graph = replace(graph, buffers=dict(graph.buffers))
    result: list[Node] = []
    for node in nodes:
        result += _split(node, graph) if isinstance(node, Reduction) and not isinstance(node, Scan) else [node]
    return result, graph


def _split(node: Reduction, graph: LoopGraph) -> Iterator[Node]:
    nest = canonical(node)
    parts = _parts(nest) if isinstance(nest, Reduction) else 1
    if parts == 1:
        yield node
        return
    assert isinstance(nest, Reduction)
    loop = _longest(nest.reduced)
    extent = loop.extent.constant or 0
    length = -(-extent // parts)
    part, rest = loop_symbol("part", parts), loop_symbol("rest", length)
    whole = part * length + rest
    body = map_indices(nest.body, lambda e: e.substitute({loop: whole}))
    if extent % parts:
        body = _guarded(body, whole, extent, nest)
    loops = (part, *nest.loops) if _reduces_columns(nest) else (*nest.loops, part)
    sizes = tuple(s.extent for s in loops)
    strides = contiguous_strides(sizes)
    name = f"{node.target}_parts"
    graph.buffers[name] = Buffer(name, node.dtype, sizes, strides, device=graph.buffers[node.target].device)
    index = sum((s * stride for s, stride in zip(loops, strides)), loop * 0)
    reduced = tuple(rest if s is loop else s for s in nest.reduced)
    yield Reduction(f"{node.name}_parts", node.origin, loops, reduced, node.kind, body, name, index, node.dtype)
    load = Instruction("load", (), node.dtype, (name, index))
    yield replace(nest, reduced=(part,), body=Body((load,), (0,)))


def _parts(node: Reduction) -> int:
    """Into how many parts a reduction is split; 1 where it is not."""
    points, reduced = product(s.extent for s in node.loops).constant, [s.extent.constant for s in node.reduced]
    if node.kind.startswith("arg") or points is None or None in reduced:
        return 1
    length = product(s.extent for s in node.reduced).constant or 0
    independent = points
    if _reduces_columns(node):
        columns = node.loops[-1].extent.constant or 1
        independent = points // columns * -(-columns // COLUMNS)
    if independent >= FEW_POINTS or points * length < LONG:
        return 1
    extent = _longest(node.reduced).extent.constant or 0
    wanted = min(MOST_PARTS, points * length // PART, length, extent)
    even = [parts for parts in range(wanted // 2 + 1, 2 * wanted) if extent % parts == 0]
    return min(even, key=lambda parts: abs(parts - wanted), default=wanted)


def _longest(loops: Sequence[Symbol]) -> Symbol:
    return max(loops, key=lambda s: s.extent.constant or 0)


def _reduces_columns(node: Reduction) -> bool:
    """Whether what is reduced is contiguous along the last loop that is kept."""
    if not node.loops:
        return False
    last = node.loops[-1]
    reduced = [load.attrs[1] for load in node.body.loads if load.attrs[1].symbols.intersection(node.reduced)]
    linear = [index.linear((last,)) for index in reduced]
    return any(found is not None and last in found[1] and found[1][last].constant == 1 for found in linear)


def _guarded(body: Body, whole: Expr, extent: int, node: Reduction) -> Body:
    """The body with its memory touched and its value counted only where `whole` is below `extent`."""
    index, end = (Instruction("index", (), torch.int64, (whole,)), Instruction("constant", (), torch.int64, (extent,)))
    instructions = [index, end, Instruction("lt", (0, 1), torch.bool)]
    at: list[int] = []
    for i in body.instructions:
        i = i._replace(args=tuple(at[a] for a in i.args))
        conditional = {"load": 0, "indirect": 1}.get(i.op)
        if conditional is not None:
            mask = 2
            if len(i.args) > conditional:
                instructions.append(Instruction("logical_and", (i.args[conditional], 2), torch.bool))
                mask = len(instructions) - 1
            i = i._replace(args=(*i.args[:conditional], mask))
        at.append(len(instructions))
        instructions.append(i)
    value, dtype = at[body.results[0]], body.instructions[body.results[0]].dtype
    instructions.append(Instruction("constant", (), dtype, (_neutral(node.kind, dtype),)))
    instructions.append(Instruction("where", (2, value, len(instructions) - 1), dtype))
    return Body(tuple(instructions), (len(instructions) - 1,))


def _neutral(kind: str, dtype: torch.dtype) -> bool | int | float:
    if kind in ("max", "min"):
        if dtype is torch.bool:
            return kind == "min"
        if dtype.is_floating_point:
            return -inf if kind == "max" else inf
        return torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max
    return kind in ("prod", "all") if dtype is torch.bool else int(kind in ("prod", "all"))
