"""A loop graph as Python text that a person can read and that runs.

It has the buffers, then each node with its loops, its body and the user's line. The words that it
is written in are those of `codegen/loop_text.py`, which runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from ingot.loops.depthwise import DepthwiseGradient
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
    "eq:== ne:!= lt:< le:<= gt:> ge:>= logical_and:& logical_or:| "
    "bitwise_and:& bitwise_or:| bitwise_xor:^ shift_left:<< shift_right:>>".split()
)
_READ = {"size": ".shape[{}]", "stride": ".stride({})", "value": ""}


def show(graph: LoopGraph) -> str:
    """The text of a Python function `graph(*inputs)`.

    It returns the list of outputs, and writes the inputs that the program writes."""
    return text_and_names(graph)[0]


def text_and_names(graph: LoopGraph) -> tuple[str, dict[str, Any]]:
    """The text, and what it names beside the words of `codegen/loop_text.py`: the graph's
    `constants`, and as attributes of `library` what it calls."""
    writer = _Writer(graph)
    return writer.graph_text(), {"constants": graph.constants, "library": writer.library}


def show_node(node: Node, graph: LoopGraph) -> list[str]:
    """A node as lines: what it computes and from which line of the user's, then how."""
    return _Writer(graph).node_lines(node)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Writer:
    """Writes one graph. A buffer is declared where it is first written."""

    def __init__(self, graph: LoopGraph) -> None:
        self.graph = graph
        self.library = SimpleNamespace()
        self.declared: set[str] = set()
        self.bound: set[Symbol] = set()
        self.checks = list(graph.checks)

    def graph_text(self) -> str:
        graph = self.graph
        inputs = list(graph.inputs)
        for k in range(graph.integers):
            inputs.append(f"int{k}")
        lines = []
        for symbol, position, kind, dim in graph.symbols:
            if kind != "bound":
                self.bound.add(symbol)
                lines.append(f"{symbol} = {inputs[position]}{_READ[kind].format(dim)}")
        for b in graph.buffers.values():
            if not b.is_temporary:
                self.declared.add(b.name)
                tensor = f"constants[{b.name!r}]" if b.role == "constant" else b.name
                lines.append(f"{b.name} = array({tensor}, {_layout(b)})")
        for node in graph.nodes:
            lines += ["", *self.node_lines(node)]
        lines.append("")
        outputs = list(map(self.value, graph.outputs))
        for copy in (copy for copies in graph.copies for copy in copies):
            pairs = [f"{new} for {name}" for name, new in copy.items()]
            lines.append(f"# and the same with {', '.join(pairs)}")
        lines.append(f"return [{', '.join(outputs)}]")
        indented = [f"    {line}".rstrip() for line in lines]
        return "\n".join((f"def graph({', '.join(inputs)}):", *indented))

    def node_lines(self, node: Node) -> list[str]:
        where = ""
        if node.origin.where:
            where = f"  {node.origin.where}"
        lines = [f"# {node.name}: {' '.join(map(_short, node.origin.ops))}{where}"]
        if isinstance(node, Library) and node.out is None:
            return [*lines, *self.call_lines(node)]
        for name in node.writes():
            if name in self.graph.buffers and name not in self.declared:
                self.declared.add(name)
                lines.append(f"{name} = empty({_layout(self.graph.buffers[name])})")
        if isinstance(node, Library):
            return [*lines, self.call(node)]
        if isinstance(node, (Attention, AttentionBackward)):
            return [*lines, self.attention(node)]
        if isinstance(node, DepthwiseGradient):
            node = node.sums
        loops, body = _nest(node)
        names = ", ".join(map(str, loops)) or "_"
        extents = ", ".join(str(loop.extent) for loop in loops)
        lines.append(f"for {names} in grid({extents}):")
        lines += [f"    {line}" for line in body]
        return lines

    # -- calls of libraries ------------------------------------------------------------------------

    def call_lines(self, node: Library) -> list[str]:
        """A call that returns fresh tensors, which become buffers."""
        lines, results = [], [f"{node.name}"]
        for name in node.mutates:
            if name in self.graph.buffers and name not in self.declared:
                self.declared.add(name)
                lines.append(f"{name} = empty({_layout(self.graph.buffers[name])})")
        if len(node.targets) > 1:
            results = [f"{node.name}[{k}]" for k in range(len(node.targets))]
        used = [target for target in node.targets if target is not None]
        if not used and not node.binds:
            return [*lines, self.call(node)]
        lines.append(f"{node.name} = {self.call(node)}")
        for symbol, position, dim in node.binds:
            self.bound.add(symbol)
            lines.append(f"{symbol} = {results[position]}" + f".shape[{dim}]" * (dim >= 0))
        lines += self.check_lines()
        for target, result in zip(node.targets, results):
            if target is not None:
                self.declared.add(target)
                lines.append(f"{target} = array({result}, {_layout(self.graph.buffers[target])})")
        return lines

    def check_lines(self) -> list[str]:
        """The relations of which all symbols are known now."""
        lines, waiting = [], []
        for check in self.checks:
            left, relation, right, where = check
            if (left.symbols | right.symbols) <= self.bound:
                lines.append(f"assert {left} {relation} {right}  # {where}".rstrip(" #"))
            else:
                waiting.append(check)
        self.checks = waiting
        return lines

    def call(self, node: Library) -> str:
        arguments = list(map(self.value, node.args))
        for k, v in node.kwargs.items():
            arguments.append(f"{k}={self.value(v)}")
        if node.out is not None:
            outs = []
            for target in filter(None, node.targets):
                b = self.graph.buffers[target]
                outs.append(f"{target}.view({_list(b.sizes)}, {_list(b.strides)})")
            text = outs[0] if len(outs) == 1 else f"[{', '.join(outs)}]"
            arguments.append(f"{node.out}={text}")
        return f"{self.function(node.function)}({', '.join(arguments)})"

    def function(self, function: Any) -> str:
        """The name of what a library call calls."""
        if isinstance(function, OpOverload):
            name = str(function)
            return name if name.startswith("aten.") else f"torch.ops.{name}"
        return self.named(getattr(function, "__name__", ""), function)

    def named(self, name: str, value: Any) -> str:
        """The name of an object that Python text has no other words for."""
        if not name.isidentifier():
            name = type(value).__name__.lower()
        known, number = vars(self.library), 1
        unique = name
        while known.setdefault(unique, value) is not value:
            number += 1
            unique = f"{name}_{number}"
        return f"library.{unique}"

    def attention(self, node: Attention | AttentionBackward) -> str:
        arguments = []
        for name, value in vars(node).items():
            if name not in ("name", "origin") and value is not None and value is not False:
                arguments.append(f"{name}={self.value(value)}")
        name = "attention_backward"
        if isinstance(node, Attention):
            name = "attention"
        return f"{name}({', '.join(arguments)})"

    def window(self, view: View) -> list[str]:
        """The arguments that say where a view lies."""
        arguments = [_list(view.sizes), _list(view.strides)]
        if view.offset.constant != 0:
            arguments.append(str(view.offset))
        if view.dtype != self.graph.buffers[view.buffer].dtype:
            arguments.append(f"dtype={dtype_name(view.dtype)}")
        return arguments

    def value(self, value: Any) -> str:
        if isinstance(value, View):
            return f"{value.buffer}.view({', '.join(self.window(value))})"
        if isinstance(value, (tuple, list)):
            return f"[{', '.join(map(self.value, value))}]"
        if isinstance(value, dict):
            items = []
            for k, v in value.items():
                items.append(f"{k!r}: {self.value(v)}")
            return f"{{{', '.join(items)}}}"
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            return repr(value)
        if isinstance(value, (Expr, torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        return self.named(getattr(value, "__name__", ""), value)


# -- loop nests ------------------------------------------------------------------------------------


def _nest(node: Node) -> tuple[tuple[Symbol, ...], list[str]]:
    """The loops of a node, and what is done at each point."""
    if isinstance(node, Pointwise):
        lines, (result,) = _body_lines(node.body)
        if node.mode == "store":
            return node.loops, [*lines, f"{node.target}[{node.index}] = {result}"]
        return node.loops, [*lines, f"{node.target}.{node.mode}({node.index}, {result})"]
    if isinstance(node, Contraction):
        return _contraction(node)
    assert isinstance(node, Reduction)
    lines, (result,) = _body_lines(node.body)
    verb = node.kind
    if isinstance(node, Scan):
        verb = f"scan_{node.kind}"
    last = f"{node.target}[{node.index}] = {verb}({result}, over={_over(node.reduced)})"
    return (*node.loops, *node.reduced), [*lines, last]


def _contraction(node: Contraction) -> tuple[tuple[Symbol, ...], list[str]]:
    loops, weights, lines = (*node.loops, *node.reduced), node.weights, []
    over, left, right = _over(node.reduced), _place(node.left), _place(node.right)
    if weights is not None:
        for p in weights.products:
            loops = (*loops, p.depth)
            terms = f"{_place(p.left)}, {_place(p.right)}"
            lines.append(f"{p.name} = product({terms}, over={p.depth})")
        body, (left, *others) = _body_lines(weights.body)
        lines += body
        if weights.logarithms is not None:
            logarithms = f"logsumexp({left}, over={over})"
            lines.append(f"{_place(weights.logarithms)} = {logarithms}")
        if weights.softmax:
            zero_rows = ", zero_rows=True" * weights.zero_rows
            lines.append(f"weights = softmax({left}, over={over}{zero_rows})")
            left = "weights"
        if weights.beside is not None:
            beside = weights.beside
            loops = (*loops, beside.column)
            terms = f"{others[0]}, {_place(beside.right)}"
            lines.append(f"{_place(beside.target)} = product({terms}, over={over})")
    last = f"{node.target}[{node.index}] = product({left}, {right}, over={over})"
    return tuple(dict.fromkeys(loops)), [*lines, last]


def _body_lines(body: Body) -> tuple[list[str], list[str]]:
    """The lines of a body, and the names of its results. Constants stand where they are used."""
    lines: list[str] = []
    names: list[str] = []
    for i in body.instructions:
        text = show_instruction(i, names)
        if i.op in ("constant", "scalar"):
            names.append(text)
            continue
        if i.op == "indirect":
            names.append(str(i.attrs[0]))
        else:
            names.append(f"x{len(lines)}")
        lines.append(f"{names[-1]} = {text}")
    return lines, list(map(names.__getitem__, body.results))


def show_instruction(i: Instruction, names: Sequence[str]) -> str:
    """One instruction; `names` are those of the values before it."""
    args = list(map(names.__getitem__, i.args))
    kind = dtype_name(i.dtype)
    if i.op in ("constant", "index"):
        value = i.attrs[0]
        return f"{kind}({value!r})"
    if i.op == "load":
        name, index = i.attrs
        return f"{name}.load({index}, where={args[0]})" if args else f"{name}[{index}]"
    if i.op == "indirect":
        _, extent, fault = i.attrs
        arguments = [args[0], str(extent), f"{fault.error.__name__}({fault.message!r})"]
        arguments += [f"where={condition}" for condition in args[1:]]
        return f"lookup({', '.join(arguments)})"
    if i.op == "scalar":
        return str(i.attrs[0])
    if i.op == "to":
        return f"{kind}({args[0]})"
    if i.op in _INFIX:
        return f"{args[0]} {_INFIX[i.op]} {args[1]}"
    return f"{i.op}({', '.join(args)})"


def _place(access: Access) -> str:
    return f"{access.buffer}[{access.index}]"


def _over(loops: Sequence[Symbol]) -> str:
    names = ", ".join(map(str, loops))
    return names if len(loops) == 1 else f"({names})"


def _layout(buffer: Buffer) -> str:
    sizes, strides = _list(buffer.sizes), _list(buffer.strides)
    return f"{dtype_name(buffer.dtype)}, {sizes}, strides={strides}"


def _list(items: Iterable[Expr]) -> str:
    return f"[{', '.join(map(str, items))}]"


def _short(op: str) -> str:
    return op.removeprefix("aten.").removesuffix(".default")
