"""Checks on a loop graph, run between stages: passes rely on them and need not defend
themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ingot.errors import CompilerBug
from ingot.loops import ops
from ingot.loops.depthwise import DepthwiseGradient
from ingot.loops.expr import ZERO, Expr, Symbol, integer, known_less_equal
from ingot.loops.ir import (
    REDUCTIONS,
    SCANS,
    Access,
    Attention,
    AttentionBackward,
    Body,
    Buffer,
    Contraction,
    Instruction,
    Library,
    LoopGraph,
    Node,
    Pointwise,
    Reduction,
    Scan,
    View,
    views_in,
)  # fmt: skip
from ingot.loops.spaces import address_of, contiguous_strides


def verify(graph: LoopGraph, stage: str = "lower") -> None:
    """Raise CompilerBug, naming `stage`, the node and the user's line, if an invariant of the IR
    does not hold.

    Checked: names are defined and unique; nothing is read before it is written; bodies are in SSA
    form with the dtypes of the op table; symbols in index expressions belong to the node; constant
    accesses are within their buffers.
    """
    sizes = {symbol for symbol, *_ in graph.symbols}
    ready = {name for name in graph.buffers if not graph.is_temporary(name)}
    node_names: set[str] = set()
    for node in graph.nodes:
        check = _Check(graph, stage, node, sizes)
        check.require(node.name not in node_names, "the name is used twice")
        node_names.add(node.name)
        written: set[str] = set()
        if isinstance(node, Library):
            written.update(node.mutates)
        for name in sorted(node.reads()):
            check.require(name in graph.buffers, f"{name} is not a buffer")
            is_ready = name in ready or name in written  # as torch.empty gives it
            check.require(is_ready, f"{name} is read before it is written")
        check.run()
        ready.update(node.writes())
    for copies in graph.copies:
        for names in copies:
            ready.update(new for name, new in names.items() if name in ready)
    for name in sorted(graph.returned - ready):
        raise CompilerBug(stage, f"{name} is returned but never written")


class _Check:
    def __init__(self, graph: LoopGraph, stage: str, node: Node, sizes: set[Symbol]) -> None:
        self.graph, self.stage, self.node, self.sizes = graph, stage, node, sizes

    def require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise CompilerBug(self.stage, problem, self.node.name, self.node.origin.where)

    def run(self) -> None:
        node = self.node
        for name in node.writes():
            self.require(name in self.graph.buffers, f"{name} is not a buffer")
        if isinstance(node, Library):
            for view in views_in((node.args, node.kwargs)):
                self.window(view)
        elif isinstance(node, (Pointwise, Reduction)):
            self.nest(node)
        elif isinstance(node, Attention):
            self.attention(node)
        elif isinstance(node, AttentionBackward):
            self.attention_backward(node)
        elif isinstance(node, Contraction):
            self.contraction(node)
        elif isinstance(node, DepthwiseGradient):
            self.depthwise_gradient(node)

    def window(self, view: View) -> None:
        self.require(
            len(view.sizes) == len(view.strides),
            f"a view of {view.buffer} has ill-matched sizes and strides",
        )
        buffer = self.graph.buffers[view.buffer]
        last = address_of([n - 1 for n in view.sizes], view.strides, view.offset)
        if ZERO not in view.sizes and view.dtype.itemsize == buffer.dtype.itemsize:
            self.within(buffer, view.offset, last)

    def attention(self, node: Attention) -> None:
        batch, heads, queries, width = node.query.sizes
        _, key_heads, keys, value_width = node.value.sizes
        rows = batch, heads, queries
        self.attention_view(node.query, node.query.sizes)
        self.attention_view(node.key, (batch, key_heads, keys, width))
        self.attention_view(node.value, (batch, key_heads, keys, value_width))
        self.attention_view(node.mask, (*rows, keys))
        self.attention_view(node.target, (*rows, value_width))
        self.attention_view(node.logarithms, rows)
        self.constant(heads, key_heads, width, value_width)

    def attention_view(self, view: View | None, sizes: tuple[Expr, ...]) -> None:
        if view is None:
            return
        self.window(view)
        self.require(
            view.sizes == sizes, f"a view of {view.buffer} has sizes {view.sizes}, not {sizes}"
        )
        self.require(all((n.bounds[0] or 0) > 0 for n in sizes), "a size may be 0")
        self.require(view.dtype is torch.float32, f"attention of {view.dtype}")

    def constant(self, *sizes: Expr) -> None:
        self.require(all(n.constant for n in sizes), "heads or a width vary")

    def attention_backward(self, node: AttentionBackward) -> None:
        batch, heads, queries, width = node.query.sizes
        keys, value_width = node.value.sizes[2:]
        rows = batch, heads, queries
        for view in (node.query, node.of_query):
            self.attention_view(view, (*rows, width))
        for view in (node.key, node.of_key):
            self.attention_view(view, (batch, heads, keys, width))
        for view in (node.value, node.of_value):
            self.attention_view(view, (batch, heads, keys, value_width))
        for view in (node.tangent, node.result):
            self.attention_view(view, (*rows, value_width))
        self.attention_view(node.logarithms, rows)
        self.attention_view(node.mask, (*rows, keys))
        self.constant(heads, width, value_width)

    def nest(self, node: Pointwise | Reduction) -> None:
        reduced = node.reduced if isinstance(node, Reduction) else ()
        symbols = {*self.sizes, *node.loops, *reduced}
        self.require(
            len({*node.loops, *reduced}) == len(node.loops) + len(reduced), "a loop occurs twice"
        )
        self.require(len(node.body.results) == 1, "the body must have one result")
        empty = any(s.extent is ZERO for s in (*node.loops, *reduced))
        values = self.body(node.body, symbols, empty)
        target = self.graph.buffers[node.target]
        result = node.body.instructions[node.body.results[0]]
        stored, outer = result.dtype, {*self.sizes, *node.loops}
        if isinstance(node, Scan):
            self.require(
                node.kind in SCANS and len(reduced) == 1,
                f"{node.kind} over {len(reduced)} loops is no scan",
            )
            self.require(
                not node.kind.startswith("arg") or node.dtype is torch.int64,
                "a position is an int64",
            )
            stored = node.dtype
            outer.update(reduced)
        elif isinstance(node, Reduction):
            self.require(node.kind in REDUCTIONS, f"{node.kind} is not a reduction")
            stored = node.dtype
            position = node.kind.startswith("arg")
            self.require(
                stored is (torch.int64 if position else result.dtype),
                f"a {node.kind} of {result.dtype} stored as {stored}",
            )
        else:
            outer |= values
        self.require(
            stored is target.dtype,
            f"a {stored} is stored into {target.name}, which holds {target.dtype}",
        )
        self.require(
            node.index.symbols <= outer, f"the store's index {node.index} has unknown symbols"
        )
        if not empty:
            self.within(target, *_range(node.index))

    def depthwise_gradient(self, node: DepthwiseGradient) -> None:
        """As `DepthwiseGradient` describes it, and kernels rely on."""
        parts, *_, channels = node.target.sizes
        for view in (node.images, node.tangent):
            self.window(view)
            sizes = view.sizes
            self.require(sizes[1] is channels, f"{view.buffer} has {sizes[1]} channels")
            self.require(None not in [n.constant for n in sizes[1:]], "an image's sizes vary")
            strides = contiguous_strides([sizes[0], *sizes[2:], sizes[1]])
            laid = strides[0], strides[3], *strides[1:3]
            self.require(view.strides == laid, f"{view.buffer} does not lie channels last")
        self.require((parts.constant or 0) > 0, "the number of parts varies")
        self.require(node.images.sizes[0] is node.tangent.sizes[0], "numbers of images differ")
        self.require(
            node.target.strides == contiguous_strides(node.target.sizes), "parts lie apart"
        )
        self.nest(node.sums)

    def contraction(self, node: Contraction) -> None:
        loops = (*node.loops, *node.reduced)
        self.require(len(set(loops)) == len(loops), "a loop occurs twice")
        self.require(
            len(node.columns) == 1 and bool(node.reduced),
            "it must have one column loop and a reduced one",
        )
        empty = any(s.extent is ZERO for s in loops)
        accesses = {
            "left": (node.left, (*node.batch, *node.rows, *node.reduced)),
            "right": (node.right, (*node.batch, *node.columns, *node.reduced)),
            "target": (Access(node.target, node.index), node.loops),
        }
        weights = node.weights
        if weights is not None:
            del accesses["left"]
            for p in weights.products:
                accesses[f"{p.name} left"] = (p.left, (*node.batch, *node.rows, p.depth))
                accesses[f"{p.name} right"] = (p.right, (*node.batch, *node.reduced, p.depth))
            if weights.logarithms is not None:
                accesses["logarithms"] = (weights.logarithms, (*node.batch, *node.rows))
            if weights.beside is not None:
                beside = weights.beside
                accesses["right beside"] = (
                    beside.right, (*node.batch, *node.reduced, beside.column)
                )  # fmt: skip
                accesses["target beside"] = (
                    beside.target, (*node.batch, *node.rows, beside.column)
                )  # fmt: skip
            if weights.tiles is not None:
                tiles = weights.tiles
                for k, access in enumerate(tiles.accesses):
                    accesses[f"tiles {k}"] = (access, (*node.batch, tiles.rows, tiles.entry))
            points = {*node.batch, *node.rows, *node.reduced}
            self.body(weights.body, points | self.sizes, empty)
        for name, (access, own) in accesses.items():
            buffer = self.graph.buffers[access.buffer]
            unknown = access.index.symbols - {*self.sizes, *own}
            self.require(not unknown, f"the {name} index has unknown symbols {unknown}")
            self.require(
                access.index.linear(own) is not None or weights is not None,
                f"the {name} index {access.index} is not linear",
            )
            self.require(
                buffer.dtype is node.dtype or weights is not None,
                f"the {name} {buffer.name} holds {buffer.dtype}, not {node.dtype}",
            )
            if not empty:
                self.within(buffer, *_range(access.index))

    def body(self, body: Body, symbols: set[Symbol], empty: bool) -> set[Symbol]:
        """Check every instruction; returns the value symbols that the body makes."""
        values: set[Symbol] = set()
        for position, i in enumerate(body.instructions):
            self.require(
                all(0 <= a < position for a in i.args), f"%{position} ({i.op}) uses a later value"
            )
            types = []
            for a in i.args:
                types.append(body.instructions[a].dtype)
            if i.op in ("load", "index", "indirect"):
                if i.op == "index":
                    index: Expr = i.attrs[0]
                else:
                    index = i.attrs[1]
                unknown = index.symbols - symbols - values
                self.require(not unknown, f"%{position} ({i.op}) has unknown symbols {unknown}")
            if i.op == "indirect":
                values.add(i.attrs[0])
            self.typed(position, i, types)
            if i.op == "load" and not i.args and not empty:
                self.within(self.graph.buffers[i.attrs[0]], *_range(i.attrs[1]))
        return values

    def typed(self, position: int, i: Instruction, types: Sequence[torch.dtype]) -> None:
        problem = _type_problem(i, types, self.graph)
        self.require(problem is None, f"%{position} ({i.op}): {problem}")

    def within(self, buffer: Buffer, first: Expr, last: Expr) -> None:
        """Element numbers first .. last exist, as far as constants tell."""
        if buffer.name in self.graph.addressed:
            return
        top = buffer.length - 1
        high = (last - top).bounds[0]
        self.require(
            (first.bounds[1] or 0) >= 0 and (high or 0) <= 0,
            f"{buffer.name} is accessed at {first} .. {last}, its elements are 0 .. {top}",
        )
        if first.constant is not None:
            self.require(first.constant >= 0, f"{buffer.name} is accessed at {first}")


def _range(index: Expr) -> tuple[Expr, Expr]:
    """The first and last value of an index: constants, or in terms of sizes that vary; else the
    index itself, twice."""
    if any(s.kind == "size" or s.extent.constant is None for s in index.symbols):
        return _ends(index) or (index, index)
    low, high = index.bounds
    # as u - 1 - i is for i below u
    if low is not None and low < 0 and known_less_equal(ZERO, index):
        low = 0
    if low is None or high is None:
        return index, index
    return integer(low), integer(high)


def _ends(index: Expr) -> tuple[Expr, Expr] | None:
    """What an index is at the ends of its loops; None where it is not linear in them."""
    linear = index.linear([symbol for symbol in index.symbols if symbol.kind != "size"])
    if linear is None:
        return None
    first = last = linear[0]
    for symbol, slope in linear[1].items():
        low, high = slope.bounds
        if low is not None and low >= 0:
            last = last + slope * (symbol.extent - 1)
        elif high is not None and high <= 0:
            first = first + slope * (symbol.extent - 1)
        else:
            return None
    return first, last


def _type_problem(i: Instruction, types: Sequence[torch.dtype], graph: LoopGraph) -> str | None:
    """What is wrong with the dtypes of an instruction, or None."""
    if i.op == "load":
        dtype = graph.buffers[i.attrs[0]].dtype
        if dtype is i.dtype:
            return None
        return f"loads {i.dtype} from {dtype}"
    if i.op in ops.STRUCTURAL:
        if i.dtype in ops.STORED:
            return None
        return f"{i.dtype} cannot be held"
    row = ops.OPS.get(i.op)
    if row is None:
        return "no such op"
    if len(types) != row.arity:
        return f"takes {row.arity} arguments, has {len(types)}"
    operands = types
    if i.op == "where":
        operands = types[1:]
    if len(set(operands)) > 1 or operands[-1] not in row.types:
        return f"arguments of {[str(t) for t in types]}"
    if row.result == "bool":
        expected = torch.bool
    else:
        expected = operands[-1]
    if i.dtype is expected:
        return None
    return f"gives {expected}, is declared {i.dtype}"
