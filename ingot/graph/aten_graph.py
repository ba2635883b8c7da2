"""The functional ATen graph of a program: what `trace` makes and the loop IR is lowered from."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.fx
from torch import Tensor
from torch.fx import Graph, Node

from ingot.graph.data_dependent import Binding
from ingot.graph.nodes import fake_result, placeholders_of, results_of
from ingot.graph.schemas import draws
from ingot.graph.shape_context import ShapeContext
from ingot.graph.symbols import to_expr
from ingot.graph.unbacked import Check
from ingot.loops.expr import Symbol
from ingot.loops.layers import Layers
from ingot.sequences import present

Place = tuple[int, str, int]
"""Where a size symbol is read at the start of a call: (input, "size" | "stride" | "value",
dimension)."""


@dataclass(frozen=True)
class OutputSpec:
    """One output. A tensor is a strided window on `node`; `offset` counts elements from the node's
    first one.

    `node` is the placeholder of input `position` where eager's output shares that input's memory
    (as it is after the mutations), else a value that the caller comes to own; outputs with the same
    node share memory. With `node` None the output is `value`: an int, a SymInt or another constant.
    """

    node: Node | None = None
    sizes: tuple[Any, ...] = ()
    strides: tuple[Any, ...] = ()
    offset: Any = 0
    dtype: torch.dtype | None = None
    value: Any = None
    position: int | None = None  # of the input whose memory it lives in
    storage: int = 0  # which memory it lives in: equal for outputs that alias
    tracked: bool = False  # whether eager's output requires a gradient
    alias: str = "view"  # to autograd, of what it shares memory with: see `OutputWindow`

    @property
    def whole(self) -> bool:
        """Whether the output is all of `node`, in its own geometry."""
        if self.node is None:
            return False
        value = fake_result(self.node)
        if value.dtype != self.dtype:
            return False
        # compared as expressions: no question is asked that would be a guard
        geometry = *value.shape, *value.stride(), 0
        own_geometry = *self.sizes, *self.strides, self.offset
        return list(map(to_expr, geometry)) == list(map(to_expr, own_geometry))


class Copy(NamedTuple):
    """A component of a program that is like one in the graph: which input, and which output, takes
    the place of which. It reads the other inputs of that one as well."""

    inputs: dict[int, int]
    outputs: dict[int, int]


class AtenGraph:
    """A `torch.fx.Graph` of ATen ops without side effects, and how its values reach the caller.

    Nodes: placeholders (in input order), get_attr (`constants` by name), call_function of
    OpOverloads or operator.getitem, each with `meta["val"]` (the fake of its value; a tuple for
    several results) and `meta["where"]` (the user's line). The output node holds (output nodes,
    values of mutated inputs).

    `lends` are the positions of inputs whose memory a result may be given. Those among them that
    the caller gives up are `donated`, with how errors call them. `uncounted` are those of
    inputs that are written without autograd being told, as what is done to `data` is.

    `copies` are components of the program that are not in the graph, since they are like one that
    is: a list for each of these. An output of a copy has the spec of the output that it is like.
    With `layers` the graph has only some of those of the program. `is_backward` says that it
    computes gradients of another graph's results.
    """

    def __init__(
        self,
        graph: Graph,
        outputs: Sequence[OutputSpec],
        mutations: Iterable[tuple[int, Node]],
        constants: dict[str, Tensor],
        shapes: ShapeContext,
    ) -> None:
        self.graph = graph
        self.constants = constants
        self.shapes = shapes
        self.seconds: dict[str, float] = {}  # by pass
        self.copies: list[list[Copy]] = []
        self.layers: Layers | None = None
        self.lends: frozenset[int] = frozenset()
        self.donated: dict[int, str] = {}
        self.uncounted: frozenset[int] = frozenset()
        self.is_backward = False
        self.rewrites: list[str] = []  # what the passes removed and added, in order
        self._specs = list(outputs)
        values = dict(mutations)
        self._mutated = list(values)
        nodes = tuple([spec.node for spec in outputs])
        self._output = graph.output((nodes, tuple(values.values())))

    @property
    def inputs(self) -> list[Node]:
        return placeholders_of(self.graph)

    @property
    def outputs(self) -> list[OutputSpec]:
        specs = []
        nodes: Any = self._output.args[0][0]  # type: ignore[index]
        for spec, node in zip(self._specs, nodes):
            specs.append(spec if spec.node is node else replace(spec, node=node))
        return specs

    @property
    def mutations(self) -> list[tuple[int, Node]]:
        """(input position, node whose value is to be copied into that input after everything else
        has been computed)."""
        return list(zip(self._mutated, self._output.args[0][1]))  # type: ignore[index, arg-type]

    @property
    def mutated(self) -> set[int]:
        """The positions of the mutated inputs."""
        return set(self._mutated)

    def nodes_of(self, target: Any) -> list[Node]:
        """The nodes that call `target`, in order."""
        results = []
        for n in self.graph.nodes:
            if n.op == "call_function" and n.target is target:
                results.append(n)
        return results

    @property
    def random_nodes(self) -> Iterator[Node]:
        """The nodes that draw random numbers, in order."""
        return (node for node in self.graph.nodes if draws(node.target))

    def rewire(self, outputs: Sequence[Node | None], mutations: Sequence[Node]) -> None:
        """Give the outputs and mutations other nodes of equal value."""
        self._output.args = ((tuple(outputs), tuple(mutations)),)

    def replace(self, node: Node, value: Node) -> None:
        """Have all that reads a node read another of equal value instead, and erase it."""
        node.replace_all_uses_with(value)
        self.graph.erase_node(node)

    @property
    def bindings(self) -> dict[Symbol, tuple[Node, Binding]]:
        """The sizes that the data decide: the node that binds each, and where in its result."""
        result = {}
        for n in self.graph.nodes:
            for b in n.meta.get("binds", ()):
                result[b.symbol] = (n, b)
        return result

    @property
    def checks(self) -> list[Check]:
        """The deferred checks that the graph makes: it binds the last of their symbols."""
        unbacked = self.shapes.unbacked
        bound = set(chain.from_iterable(map(unbacked.forms, self.bindings)))
        known = bound | unbacked.among(self.symbols)
        checks = []
        for check in unbacked.checks:
            symbols = unbacked.among(check.left.symbols | check.right.symbols)
            if symbols & bound and symbols <= known:
                checks.append(check)
        return checks

    @property
    def symbols(self) -> dict[Symbol, Place]:
        """The size symbols of the inputs, and where each is read."""
        places: dict[Symbol, Place] = {}
        for position, node in enumerate(self.inputs):
            value = fake_result(node)
            kinds: list[tuple[str, Sequence[Any]]] = [("value", [value])]
            if isinstance(value, Tensor):
                kinds = [("size", value.shape), ("stride", value.stride())]
            for kind, numbers in kinds:
                for dim, number in enumerate(numbers):
                    e = number
                    if isinstance(number, torch.SymInt):
                        e = to_expr(number)
                    if isinstance(e, Symbol):
                        for form in self.shapes.unbacked.all_forms(e):
                            places.setdefault(form, (position, kind, dim))
        return places

    # -- as Python ---------------------------------------------------------------------------------

    def code(self) -> str:
        """The graph as a Python function `graph(*inputs)`, that returns the list of outputs and
        writes the mutated inputs."""
        names = [node.name for node in self.inputs]
        lines = [f"def graph({', '.join(names)}):"]
        for symbol, (position, kind, dim) in self.symbols.items():
            read = {"size": f".shape[{dim}]", "stride": f".stride()[{dim}]", "value": ""}[kind]
            lines.append(f"    {symbol} = {names[position]}{read}")
        for node in self.graph.nodes:
            if node.op == "get_attr":
                lines.append(f"    {node.name} = constants[{node.target!r}]")
            elif node.op == "call_function":
                lines.append(f"    {node.name} = {_call(node)}  # {_describe(node)}")
                for b in node.meta.get("binds", ()):
                    lines.append(f"    {b.symbol} = {_bound(node, b)}")
        for position, node in self.mutations:
            lines.append(f"    {names[position]}.copy_({node.name})")
        outputs = list(map(_window, self.outputs))
        for copies in self.copies:
            for copy in copies:
                pairs = (f"{names[k]} for {names[j]}" for j, k in copy.inputs.items())
                lines.append(f"    # and the same with {', '.join(pairs)}")
                for k in copy.outputs.values():
                    outputs[k] = "..."
        lines.append(f"    return [{', '.join(outputs)}]")
        return "\n".join(lines)

    def function(self) -> Callable[..., list[Any]]:
        """`code()` made into a function: the graph run by eager, op by op. Raises ValueError where
        components that are alike are left out."""
        if self.copies:
            raise ValueError("components of this graph are left out, which are like others")
        scope: dict[str, Any] = {
            "torch": torch,
            "aten": torch.ops.aten,
            "constants": self.constants,
        }
        exec(compile(self.code(), "<aten graph>", "exec"), scope)
        return scope["graph"]

    def __str__(self) -> str:
        return self.code()


def _call(node: Node) -> str:
    args = list(map(_text, node.args))
    if node.target is operator.getitem:
        return f"{args[0]}[{args[1]}]"
    for k, v in node.kwargs.items():
        args.append(f"{k}={_text(v)}")
    name = str(node.target)
    if not name.startswith("aten."):
        name = "torch.ops." + name
    return f"{name}({', '.join(args)})"


def _bound(node: Node, binding: Binding) -> str:
    result = node.name
    if isinstance(fake_result(node), (list, tuple)):
        result += f"[{binding.result}]"
    if binding.dim >= 0:
        result += f".shape[{binding.dim}]"
    return result


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float('{value}')"
    if not isinstance(value, str):
        return str(value)
    return repr(value)


def _describe(node: Node) -> str:
    tensors = []
    for v in results_of(fake_result(node)):
        if isinstance(v, Tensor):
            sizes = ", ".join(map(str, v.shape))
            tensors.append(f"{str(v.dtype).removeprefix('torch.')}[{sizes}]")
    shown, where = ", ".join(tensors), node.meta.get("where")
    if where:
        return f"{shown}  {where}"
    return shown


def _window(spec: OutputSpec) -> str:
    if spec.node is None:
        return _text(spec.value)
    if spec.whole:
        return spec.node.name
    name = spec.node.name
    if fake_result(spec.node).dtype != spec.dtype:
        name = f"{name}.view({spec.dtype})"
    sizes, strides = _text(spec.sizes), _text(spec.strides)
    return f"{name}.as_strided({sizes}, {strides}, {name}.storage_offset() + {_text(spec.offset)})"


def nodes_of(specs: Iterable[OutputSpec]) -> list[Node]:
    """The nodes of the outputs that have one."""
    return present(spec.node for spec in specs)


def copied(graph: Graph, node: Node, copy_of: Callable[[Node], Node]) -> Any:
    """What `graph.node_copy` gives, which takes long: it looks for sizes in the arguments."""
    copy = graph.create_node(node.op, node.target, name=node.name)
    copy.args = torch.fx.node.map_arg(node.args, copy_of)  # type: ignore[assignment]
    if node.kwargs:
        copy.kwargs = torch.fx.node.map_arg(node.kwargs, copy_of)  # type: ignore[assignment]
    copy.meta = dict(node.meta)
    return copy
