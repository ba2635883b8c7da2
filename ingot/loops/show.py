"""A loop graph as text that a person can read: buffers, then each node with its loops, its body and
the user's line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ingot.loops.expr import Expr, Symbol
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
    Node,
    Pointwise,
    Reduction,
    Scan,
    View,
)
from ingot.torch_private import OpOverload

_INFIX = dict(
    pair.split(":")
    for pair in "add:+ sub:- mul:* div:/ floordiv:// remainder:% "
    "eq:== ne:!= lt:< le:<= gt:> ge:>= logical_and:and logical_or:or "
    "bitwise_and:& bitwise_or:| bitwise_xor:^ shift_left:<< shift_right:>>".split()
)


def show(graph: LoopGraph) -> str:
    """The whole graph as text."""
    lines = []
    for b in graph.buffers.values():
        if not b.is_temporary:
            lines.append(f"{b.role} {show_buffer(b)}")
    for symbol, position, kind, dim in graph.symbols:
        if kind == "value":
            place = f"input {position}"
        else:
            place = f"{graph.inputs[position]}.{kind}({dim})"
        lines.append(f"size {symbol} = {place}")
    for node in graph.nodes:
        lines += ["", *show_node(node, graph)]
    for name, new in (pair for copies in graph.copies for copy in copies for pair in copy.items()):
        lines += ["", f"the same with {new} for {name}"]
    lines += ["", f"return {', '.join(_value(o) for o in graph.outputs)}"]
    return "\n".join(lines)


def show_buffer(buffer: Buffer) -> str:
    """`name: float32[4, 8] strides (8, 1)`."""
    sizes, strides = _list(buffer.sizes), _list(buffer.strides)
    return f"{buffer.name}: {dtype_name(buffer.dtype)}[{sizes}] strides ({strides})"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def show_node(node: Node, graph: LoopGraph) -> list[str]:
    """A node as lines: what it computes and from which line of the user's, then how."""
    where = ""
    if node.origin.where:
        where = f"  # {node.origin.where}"
    lines = [f"{node.name}: {' '.join(map(_short, node.origin.ops))}{where}"]
    for name in node.writes():
        if name in graph.buffers:
            lines.append(f"  -> {show_buffer(graph.buffers[name])}")
    if isinstance(node, Library):
        return [*lines, f"  {_call(node)}"]
    if isinstance(node, Attention):
        return [*lines, f"  {_attention(node)}"]
    if isinstance(node, AttentionBackward):
        return [*lines, f"  {_attention_backward(node)}"]
    if isinstance(node, Contraction):
        left, right = _place(node.left), _place(node.right)
        around = "; ".join(map(_loops, filter(None, (node.batch, node.rows, node.columns))))
        lines.append(f"  for {around}: contract {_loops(node.reduced)}:")
        if node.weights is not None:
            for p in node.weights.products:
                terms = f"{_place(p.left)} * {_place(p.right)}"
                lines.append(f"    {p.name} = sum over {_loops((p.depth,))} of {terms}")
            verb = "softmax of" if node.weights.softmax else ""
            lines += _body_lines(node.weights.body, f"weight = {verb}".rstrip())
            left = "weight"
        return [*lines, f"    {node.target}[{node.index}] = sum {left} * {right}"]
    if isinstance(node, Pointwise):
        lines.append(f"  for {_loops(node.loops)}:")
        verb = {"store": "=", "add": "+=", "mul": "*="}.get(node.mode, f"{node.mode}=")
        last = f"{node.target}[{node.index}] {verb}"
        return lines + _body_lines(node.body, last)
    assert isinstance(node, Reduction)
    if isinstance(node, Scan):
        verb = "scan"
    else:
        verb = "reduce"
    lines.append(f"  for {_loops(node.loops)}: {verb} {_loops(node.reduced)}:")
    return lines + _body_lines(node.body, f"{node.target}[{node.index}] {node.kind}=")


def _body_lines(body: Body, last: str) -> list[str]:
    lines = []
    for k, i in enumerate(body.instructions):
        lines.append(f"    %{k} = {show_instruction(i)}")
    return [*lines, f"    {last} {', '.join(f'%{r}' for r in body.results)}"]


def show_instruction(i: Instruction) -> str:
    """One instruction, values written %k."""
    args = [f"%{a}" for a in i.args]
    kind = dtype_name(i.dtype)
    if i.op == "constant":
        return f"{i.attrs[0]!r}: {kind}"
    if i.op == "index":
        return f"{i.attrs[0]}"
    if i.op == "load":
        return f"{i.attrs[0]}[{i.attrs[1]}]" + (f" if {args[0]} else 0" if args else "")
    if i.op == "indirect":
        return " if ".join([f"{args[0]} as {i.attrs[0]} < {i.attrs[1]}", *args[1:]])
    if i.op == "scalar":
        return i.attrs[0]
    if i.op == "to":
        return f"{kind}({args[0]})"
    if i.op in _INFIX:
        return f"{args[0]} {_INFIX[i.op]} {args[1]}"
    return f"{i.op}({', '.join(args)})"


def _place(access: Access) -> str:
    return f"{access.buffer}[{access.index}]"


def _loops(loops: Sequence[Symbol]) -> str:
    return ", ".join(f"{s} < {s.extent}" for s in loops) or "once"


def _list(items: Iterable[Expr]) -> str:
    return ", ".join(map(str, items))


def _short(op: str) -> str:
    return op.removeprefix("aten.").removesuffix(".default")


def _attention(node: Attention) -> str:
    flags = ", causal" * node.causal + ", mask replaces" * node.replaces
    operands = ", ".join(map(_value, node.operands))
    logarithms = ""
    if node.logarithms is not None:
        logarithms = f", {_value(node.logarithms)}"
    return f"{_value(node.target)}{logarithms} = attention({operands}, scale {node.scale!r}{flags})"


def _attention_backward(node: AttentionBackward) -> str:
    flags = ", causal" * node.causal
    results = ", ".join(map(_value, node.results))
    operands = ", ".join(map(_value, node.operands))
    return f"{results} = attention_backward({operands}, scale {node.scale!r}{flags})"


def _call(node: Library) -> str:
    name = getattr(node.function, "__name__", None)
    if not name or isinstance(node.function, OpOverload):
        name = str(node.function)
    arguments = list(map(_value, node.args))
    for k, v in node.kwargs.items():
        arguments.append(f"{k}={_value(v)}")
    targets = ", ".join(t or "_" for t in node.targets)
    if node.out is not None:
        return f"{name}({', '.join([*arguments, f'{node.out}={targets}'])})"
    return f"{targets} = {name}({', '.join(arguments)})"


def _value(value: Any) -> str:
    if isinstance(value, View):
        sizes, strides = _list(value.sizes), _list(value.strides)
        return f"{value.buffer}[{sizes}; strides {strides}; from {value.offset}]"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_value, value))}]"
    return str(value)
