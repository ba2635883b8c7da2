"""Autograd's graph behind some tensors, read as data.

Tensors go in; a `Structure` comes out: the nodes in an order, what each saved, and a key that is
equal for graphs that one program serves. Reading a graph runs none of the user's code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ingot.backward import functions
from ingot.backward.functions import refuse_unpacking
from ingot.backward.hooks import called_by, kind_of
from ingot.capture.facts import is_plain_constant
from ingot.errors import unsupported
from ingot.runtime.node_hooks import NO_HOOKS, NodeHooks, hooks_of
from ingot.runtime.training_node import is_of_program
from ingot.torch_private import BackwardHookNode, FunctionBase

ACCUMULATE, PROGRAM, FORMULA, IDENTITY = "accumulate", "program", "formula", "identity"
FUNCTION = "function"

_OF_TORCH = re.compile(r"\w+Backward\d+")

_HIDING = re.compile(
    r"(AsStrided|BlockDiag|Foreach|Nested|Sparse|Cudnn|Miopen|Mps)\w*|\w*Nested\w*"
)
"""Nodes that save more than can be asked of them (a geometry, sizes of several tensors), or that no
test sees here."""


Edge = tuple[int, int]
"""Where a gradient goes: the position of a node, and which of its inputs."""


@dataclass
class Step:
    """One node.

    - `kind` is ACCUMULATE, PROGRAM (a compiled entry), FORMULA (an operation of torch), IDENTITY
      (where torch has the hooks of a module) or FUNCTION (a torch.autograd.Function).
    - `saved` are its saved tensors; `facts` tell it from others, apart from `numbers`: sizes that
      may vary, by what they are of.
    - `variable` is what a node accumulates into; `call` is the backward of a Function, with what it
      is given before the gradients.
    - `needed`: its gradients lead to what is asked for.
    """

    node: Any
    kind: str
    edges: tuple[Edge | None, ...]
    saved: tuple[torch.Tensor, ...]
    facts: tuple[Any, ...]
    hooks: NodeHooks
    variable: torch.Tensor | None = None
    needed: bool = True
    call: tuple[Any, ...] = ()
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def known_edges(self) -> list[Edge]:
        """The edges that lead to a node."""
        return [edge for edge in self.edges if edge is not None]

    @property
    def has_node_hooks(self) -> bool:
        """Whether there are hooks on the node itself."""
        return any(self.hooks.before) or any(self.hooks.behind)

    @property
    def kind_of_program(self) -> tuple[Any, ...]:
        """What tells it from others, but for which program it is of and how tensors lie."""
        if self.kind == PROGRAM:
            facts = self.facts[1:]
        else:
            facts = self.facts
        return self.kind, self.edges, facts, self.needed, tuple(self.numbers)

    @property
    def leaf_hooks(self) -> dict[int, Any]:
        """The hooks on the gradient of the tensor that the node accumulates into."""
        if self.variable is None:
            return {}
        return self.variable._backward_hooks or {}

    @property
    def accumulated_hooks(self) -> dict[int, Any]:
        """The hooks that run when that tensor has its gradient."""
        if self.variable is None:
            return {}
        return self.variable._post_accumulate_grad_hooks or {}


@dataclass
class Structure:
    """The graph behind `heads`, and what is asked of it: the gradients of `targets`, or that leaves
    get theirs."""

    steps: list[Step]
    heads: tuple[Edge, ...]
    targets: tuple[Edge | None, ...] | None
    accumulates: bool

    def tables(self) -> Iterator[dict[int, Any]]:
        """All tables of hooks."""
        for step in self.steps:
            yield from (table for table, _ in step.hooks.tensor)
            yield from step.hooks.before
            yield from step.hooks.behind
            if step.leaf_hooks:
                yield step.leaf_hooks

    def functions(self) -> list[int]:
        """The steps that are torch.autograd.Functions."""
        results = []
        for k, step in enumerate(self.steps):
            if step.kind == FUNCTION:
                results.append(k)
        return results

    def hooks(self) -> list[tuple[Any, ...]]:
        """The user's hooks, in the order of the tables, and backwards, each with what it is always
        given before the gradients."""
        hooks: list[tuple[Any, ...]] = []
        for table in self.tables():
            for hook in table.values():
                hooks += called_by(hook)
        return hooks + [step.call for step in self.steps if step.call]

    def saved_tensors(self) -> list[torch.Tensor]:
        return [t for step in self.steps for t in step.saved]

    def written_gradients(self) -> list[torch.Tensor]:
        """The gradients that those of leaves are added to."""
        results = []
        for step in self.steps:
            for t in self.gradients_of(step):
                results.append(t)
        return results

    def geometry(self, tangents: Sequence[torch.Tensor]) -> Geometry:
        """The geometry of the graph."""
        groups = _groups_of(tangents)
        ends = [len(groups)]
        for step in self.steps:
            groups += _groups_of([*step.saved, *self.gradients_of(step)])
            groups += step.numbers.values()
            ends.append(len(groups))
        return Geometry(tuple(groups), tuple(ends))

    def gradients_of(self, step: Step) -> list[torch.Tensor]:
        """The gradient that a step's own is added to, if there is one."""
        if not self.accumulates or step.variable is None or not step.needed:
            return []
        if step.variable.grad is None:
            return []
        return [step.variable.grad]

    def family(self) -> tuple[Any, ...]:
        """Equal for graphs that are alike but for sizes, which may have led to other programs in
        the forward."""
        adds = tuple(map(len, map(self.gradients_of, self.steps)))
        kinds = []
        for step in self.steps:
            kinds.append(step.kind_of_program)
        return self.heads, self.targets, self.accumulates, adds, *kinds

    def key(self, tangents: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Equal for two graphs of equal geometry where the program of one computes the gradients of
        the other, but for what hooks look at."""
        memory: dict[int, int] = {}
        key: list[Any] = [self.heads, self.targets, self.accumulates]
        key.append(tuple([_facts(t, memory) for t in tangents]))
        for step in self.steps:
            key += [step.kind, step.edges, step.facts, step.needed, tuple(step.numbers)]
            key.append(tuple([_facts(t, memory) for t in step.saved]))
            if step.hooks is not NO_HOOKS:
                key += _key_of_hooks(step.hooks)
            if step.variable is not None:
                key += self._key_of_variable(step, step.variable, memory)
        return tuple(key)

    def _key_of_variable(
        self, step: Step, variable: torch.Tensor, memory: dict[int, int]
    ) -> list[Any]:
        """The part of a key that is about what a step accumulates into."""
        of_gradient = None
        if self.accumulates and variable.grad is not None:
            of_gradient = _facts(variable.grad, memory), variable.grad.requires_grad
        hooks = hook_kinds(step.leaf_hooks)
        return [_facts(variable, {}), variable.requires_grad, of_gradient, hooks]


def _key_of_hooks(hooks: NodeHooks) -> list[Any]:
    """The part of a key that is about the hooks of a step."""
    return [
        tuple([(hook_kinds(table), position) for table, position in hooks.tensor]),
        tuple(map(hook_kinds, hooks.before)),
        tuple(map(hook_kinds, hooks.behind)),
        hooks.retained,
    ]


def _groups_of(tensors: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """The sizes and strides of tensors, one after the other."""
    groups: list[tuple[int, ...]] = []
    for t in tensors:
        groups += [tuple(t.shape), t.stride()]
    return groups


class Geometry(NamedTuple):
    """Sizes, as groups: of each tangent its sizes and strides, then by step those of its tensors,
    and its numbers. The groups of the tangents, and those of each step, end at `ends`."""

    groups: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]

    def by_step(self) -> list[Sequence[tuple[int, ...]]]:
        """The groups of the tangents, and those of each step."""
        return [self.groups[begin:end] for begin, end in zip((0, *self.ends), self.ends)]


def hook_kinds(table: dict[int, Any]) -> tuple[Any, ...]:
    """What tells the hooks of a table from others at once: of a function its code, as programs make
    functions anew."""
    return tuple([tuple([kind_of(own[0]) for own in called_by(hook)]) for hook in table.values()])


def storage_of(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata


class Same:
    """Stands for an object, which it keeps alive, in a key."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _facts(t: torch.Tensor, memory: dict[int, int]) -> tuple[Any, ...]:
    """How a tensor lies, and which of the memories seen so far it lies in."""
    if type(t) not in (torch.Tensor, torch.nn.Parameter):
        raise unsupported("backward-gradient", f"a {type(t).__name__} in a backward")
    if t.layout is not torch.strided:
        raise unsupported("backward-gradient", f"a tensor of the layout {t.layout} in a backward")
    if t.is_conj() or t.is_neg():
        raise unsupported("backward-gradient", "a conjugate or negative view in a backward")
    owner = memory.setdefault(storage_of(t), len(memory))
    return t.dim(), t.storage_offset(), t.dtype, t.device, owner


def node_of(t: torch.Tensor) -> Any:
    """The node behind a tensor, which for a leaf accumulates its gradient."""
    if t.grad_fn is not None:
        return t.grad_fn
    with torch.enable_grad():
        return t.view_as(t).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def edge_of(t: torch.Tensor) -> tuple[Any, int]:
    return node_of(t), t.output_nr


def read(heads: Sequence[Any], targets: Sequence[Any], accumulates: bool) -> Structure:
    """The graph behind `heads`. Raises Unsupported for one that is not understood, and what
    autograd raises where a saved tensor was freed, or was written."""
    if not all(isinstance(t, torch.Tensor) for t in (*heads, *targets)):
        raise unsupported(
            "backward-gradient", "a backward from, or to, an edge of autograd's graph"
        )
    following = _next_functions(heads)
    positions = {node: k for k, node in enumerate(following)}
    edges = [_edges(functions, positions) for functions in following.values()]
    aims: tuple[Edge | None, ...] | None = None
    needed = [True] * len(edges)
    if targets:
        aims = _edges(map(edge_of, targets), positions)
        needed = _needed(edges, set(dict(filter(None, aims))))
    steps = list(map(_step, positions, edges, needed))
    if targets and any(map(_is_reentrant, steps)):
        raise unsupported(
            "backward-part",
            "gradients of some tensors alone, by way of a checkpoint with use_reentrant=True",
        )
    starts = _edges(map(edge_of, heads), positions)
    return Structure(steps, starts, aims, accumulates)  # type: ignore[arg-type]


def _next_functions(heads: Sequence[torch.Tensor]) -> dict[Any, Sequence[tuple[Any, int]]]:
    """The nodes behind tensors, in the order in which they are first met, and where each leads."""
    following: dict[Any, Sequence[tuple[Any, int]]] = {}
    stack = list(map(node_of, reversed(heads)))
    while stack:
        node = stack.pop()
        if node not in following:
            edges = following[node] = _edges_behind(node)
            for following_node, _ in reversed(edges):
                if following_node is not None and following_node not in following:
                    stack.append(following_node)
    return following


def _edges_behind(node: Any) -> Sequence[tuple[Any, int]]:
    """Where a node leads, without the links of a compiled entry, to which it gives nothing here."""
    edges: Sequence[tuple[Any, int]] = node.next_functions
    if is_of_program(node) and node.links is not None:
        return edges[:-1]
    return edges


def _edges(
    functions: Iterable[tuple[Any, int]], positions: Mapping[Any, int]
) -> tuple[Edge | None, ...]:
    """Edges of autograd's as those of steps; None where one leads to no step."""
    return tuple([(positions[node], k) if node in positions else None for node, k in functions])


def _is_reentrant(step: Step) -> bool:
    return step.kind == PROGRAM and bool(step.node.program.reentrant_tangents)


def _needed(edges: Sequence[Sequence[Edge | None]], aims: set[int]) -> list[bool]:
    """Which nodes lead to some of the `aims`."""
    leading: list[list[int]] = [[] for _ in edges]
    for position, following in enumerate(edges):
        for edge in following:
            if edge is not None:
                leading[edge[0]].append(position)
    needed, stack = set(aims), list(aims)
    while stack:
        for position in leading[stack.pop()]:
            if position not in needed:
                needed.add(position)
                stack.append(position)
    return [position in needed for position in range(len(edges))]


def _step(node: Any, edges: tuple[Edge | None, ...], needed: bool) -> Step:
    name = type(node).__name__
    if not needed:
        return Step(node, FORMULA, edges, (), (name,), NO_HOOKS, needed=False)
    hooks = hooks_of(node)
    if name == "AccumulateGrad":
        return _accumulation(node, edges, hooks)
    if is_of_program(node):
        hooked = {*hooks.retained, *(position for _, position in hooks.tensor)}
        if not hooked.isdisjoint(node.program.downstream):
            raise unsupported(
                "backward-hook", "a hook on a result that another one is computed from"
            )
        saved, facts = _of_program(node)
        return Step(node, PROGRAM, edges, saved, facts, hooks, numbers={"sizes": node.sizes})
    shapes = _shapes_of_inputs(node)
    if isinstance(node, BackwardHookNode):
        return Step(node, IDENTITY, edges, (), _of_inputs(node), hooks, numbers=shapes)
    if isinstance(node, FunctionBase):
        facts, call = functions.facts_of(node, edges), functions.call_of(node)
        return Step(node, FUNCTION, edges, (), facts, hooks, call=call, numbers=shapes)
    if not _OF_TORCH.fullmatch(name) or _HIDING.fullmatch(name):
        raise unsupported("backward-node", f"{name}, which is not known to show all that it keeps")
    if name == "CatBackward0" and edges.count(None) > 1:
        raise unsupported("backward-node", "CatBackward0 of several tensors without a gradient")
    saved, facts, numbers = _of_formula(node, name)
    return Step(node, FORMULA, edges, saved, facts, hooks, numbers=shapes | numbers)


def _accumulation(node: Any, edges: tuple[Edge | None, ...], hooks: NodeHooks) -> Step:
    """The step of a node that accumulates."""
    variable = node.variable
    if getattr(variable, "grad_dtype", variable.dtype) is not variable.dtype:
        raise unsupported(
            "backward-gradient", "a gradient of another type than what it is one of (grad_dtype)"
        )
    numbers = {"sizes": tuple(variable.shape), "strides": variable.stride()}
    return Step(node, ACCUMULATE, edges, (), (), hooks, variable, numbers=numbers)


def _of_program(node: Any) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...]]:
    if node.remaining_saved is not None:
        raise unsupported(
            "backward-part", "a second backward through a part of a compiled forward's outputs"
        )
    if node.siblings is not None:
        raise unsupported(
            "backward-part",
            "a part of a compiled forward's outputs, which come of other inputs than the rest",
        )
    refuse_unpacking(node._raw_saved_tensors)
    return tuple([t.detach() for t in node.saved_tensors]), (Same(node.program),)


def _of_inputs(node: Any) -> tuple[Any, ...]:
    return tuple([(m.dtype, m.device) for m in node._input_metadata])


def _shapes_of_inputs(node: Any) -> dict[str, tuple[int, ...]]:
    """What the gradients that come in are."""
    result = {}
    for k, m in enumerate(node._input_metadata):
        result[f"input {k}"] = tuple(m.shape)
    return result


def _of_formula(
    node: Any, name: str
) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...], dict[str, tuple[int, ...]]]:
    """What a node of torch's saved: the tensors, all else, and numbers that may vary."""
    tensors: list[torch.Tensor] = []
    facts: list[Any] = [name, _of_inputs(node)]
    numbers: dict[str, tuple[int, ...]] = {}
    for attribute in saved_attributes(type(node)):
        value = getattr(node, attribute)
        if isinstance(value, (list, tuple)):
            several = value
        else:
            several = (value,)
        if attribute.startswith("_raw"):
            refuse_unpacking(several)
            continue
        if attribute in ("_saved_sparse", "_saved_sparse_grad") and value:
            raise unsupported("backward-gradient", f"{name} gives a sparse gradient")
        if _is_size(attribute) and all(type(n) is int for n in several):
            numbers[attribute] = tuple(several)
            continue
        if _is_number(value) and value.dtype is torch.int64:
            numbers[attribute] = (value.item(),)
        elif _is_number(value):
            facts.append(("number", value.dtype, _exact(value.item())))
        if any(isinstance(v, torch.Tensor) for v in several):
            facts.append(tuple([v is not None for v in several]))
            for v in several:
                if v is not None:
                    tensors.append(v.detach())
        elif is_plain_constant(tuple(value) if isinstance(value, list) else value):
            facts.append((type(value), _exact(value)))
        else:
            raise unsupported("backward-node", f"{name} keeps a {type(value).__name__}")
    return tuple(tensors), tuple(facts), numbers


def _is_size(attribute: str) -> bool:
    """Whether an attribute of a node has sizes, or positions that may be sizes."""
    return "_sym_" in attribute or attribute in (
        "_saved_start",
        "_saved_end",
        "_saved_split_size",
    )


def _is_number(value: Any) -> bool:
    """Whether a tensor is what torch made of a number of Python's, which a formula takes as a
    number again."""
    if not isinstance(value, torch.Tensor) or value.dim() or value.device.type != "cpu":
        return False
    narrow = _NARROW.get(value.dtype)
    return narrow is not None and torch.result_type(value, torch.empty((), dtype=narrow)) is narrow


_NARROW = {
    torch.bool: torch.bool,
    torch.int64: torch.int32,
    torch.float64: torch.float32,
    torch.complex128: torch.complex64,
}


def _exact(value: Any) -> Any:
    """A constant as part of a key: with its type, and -0.0 is not 0.0."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_exact, value))
    if isinstance(value, (float, complex)):
        return (type(value), repr(value))
    return (type(value), value)


_attributes: dict[type, tuple[str, ...]] = {}


def saved_attributes(cls: type) -> tuple[str, ...]:
    """The attributes of a kind of nodes that show what one saved."""
    if cls not in _attributes:
        _attributes[cls] = tuple([n for n in dir(cls) if n.startswith(("_saved_", "_raw_saved_"))])
    return _attributes[cls]
