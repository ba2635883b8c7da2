"""Autograd's graph behind some tensors, read as data: its nodes in an order, what each keeps, and a
key that is equal for graphs that one program serves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
"""Nodes that keep more than can be asked of them (a geometry, sizes of several tensors), or that no
test sees here."""


@dataclass
class Step:
    """One node: `kind` is ACCUMULATE, PROGRAM (a compiled entry), FORMULA (an operation of torch),
    IDENTITY (where torch has the hooks of a module) or FUNCTION (a torch.autograd.Function, of
    which `call` has the backward and what it is given before the gradients). `edges` are (position
    of the node, which of its inputs) or None, `saved` the tensors that it keeps, `variable` what a
    node accumulates into, `facts` what tells it from others, apart from `numbers`: sizes that may
    vary, by what they are of. `needed`: its gradients lead to what is asked for."""

    node: Any
    kind: str
    edges: tuple[tuple[int, int] | None, ...]
    saved: tuple[torch.Tensor, ...]
    facts: tuple[Any, ...]
    hooks: NodeHooks
    variable: torch.Tensor | None = None
    needed: bool = True
    call: tuple[Any, ...] = ()
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def kind_of_program(self) -> tuple[Any, ...]:
        """What tells it from others, but for which program it is of and how tensors lie."""
        facts = self.facts[1:] if self.kind == PROGRAM else self.facts
        return self.kind, self.edges, facts, self.needed, tuple(self.numbers)

    @property
    def leaf_hooks(self) -> dict[int, Any]:
        """The hooks on the gradient of the tensor that the node accumulates into."""
        return (self.variable._backward_hooks if self.variable is not None else None) or {}

    @property
    def accumulated_hooks(self) -> dict[int, Any]:
        """The hooks that run when that tensor has its gradient."""
        return (
            self.variable._post_accumulate_grad_hooks if self.variable is not None else None
        ) or {}


@dataclass
class Structure:
    """The graph behind `heads`, (position of the node, which of its inputs), and what is asked of
    it: `targets`, in the same form, or that leaves get their gradients."""

    steps: list[Step]
    heads: tuple[tuple[int, int], ...]
    targets: tuple[tuple[int, int] | None, ...] | None
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
        return [k for k, step in enumerate(self.steps) if step.kind == FUNCTION]

    def hooks(self) -> list[tuple[Any, ...]]:
        """The user's hooks, in the order of the tables, and backwards, each with what it is always
        given before the gradients."""
        hooks = [
            own for table in self.tables() for hook in table.values() for own in called_by(hook)
        ]
        return hooks + [step.call for step in self.steps if step.call]

    def geometry(self, tangents: Sequence[torch.Tensor]) -> Geometry:
        """The sizes in the graph."""
        groups = [g for t in tangents for g in (tuple(t.shape), t.stride())]
        ends = [len(groups)]
        for step in self.steps:
            groups += [g for t in self.tensors_of(step) for g in (tuple(t.shape), t.stride())]
            groups += step.numbers.values()
            ends.append(len(groups))
        return Geometry(tuple(groups), tuple(ends))

    def tensors_of(self, step: Step) -> list[torch.Tensor]:
        """What the program is given of a step: what it keeps, and the gradient that is added to."""
        adds = (
            self.accumulates
            and step.variable is not None
            and step.needed
            and step.variable.grad is not None
        )
        return [*step.saved, step.variable.grad] if adds else [*step.saved]  # type: ignore[union-attr, list-item]

    def family(self) -> tuple[Any, ...]:
        """Equal for graphs that are alike but for sizes, which may have led to other programs in
        the forward."""
        adds = tuple([len(self.tensors_of(step)) - len(step.saved) for step in self.steps])
        return (
            self.heads,
            self.targets,
            self.accumulates,
            adds,
            *[step.kind_of_program for step in self.steps],
        )

    def key(self, tangents: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Equal for two graphs of equal geometry where the program of one computes the gradients of
        the other, but for what hooks look at."""
        memory: dict[int, int] = {}
        parts: list[Any] = [
            self.heads,
            self.targets,
            self.accumulates,
            tuple([_facts(t, memory) for t in tangents]),
        ]
        for step in self.steps:
            parts += [step.kind, step.edges, step.facts, step.needed]
            parts += [tuple(step.numbers), tuple([_facts(t, memory) for t in step.saved])]
            if step.hooks is not NO_HOOKS:
                parts.append(
                    tuple([(hook_kinds(t), position) for t, position in step.hooks.tensor])
                )
                parts.append(tuple([hook_kinds(table) for table in step.hooks.before]))
                parts.append(tuple([hook_kinds(table) for table in step.hooks.behind]))
                parts.append(step.hooks.retained)
            variable = step.variable
            if variable is not None:
                grad = variable.grad if self.accumulates else None
                of_grad = None if grad is None else (_facts(grad, memory), grad.requires_grad)
                parts += [
                    _facts(variable, {}),
                    variable.requires_grad,
                    of_grad,
                    hook_kinds(step.leaf_hooks),
                ]
        return tuple(parts)


class Geometry(NamedTuple):
    """Sizes, as groups: of each tangent its sizes and strides, then by step those of its tensors,
    and its numbers; the groups of the tangents, and those of each step, end at `ends`."""

    groups: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]

    def by_step(self) -> list[Sequence[tuple[int, ...]]]:
        """The groups of the tangents, and those of each step."""
        return [self.groups[begin:end] for begin, end in zip((0, *self.ends), self.ends)]


def hook_kinds(table: dict[int, Any]) -> tuple[Any, ...]:
    """What tells the hooks of a table from others at once: of a function its code, as programs make
    functions anew."""
    return tuple([tuple([kind_of(own[0]) for own in called_by(hook)]) for hook in table.values()])


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
    owner = memory.setdefault(t.untyped_storage()._cdata, len(memory))
    return t.dim(), t.storage_offset(), t.dtype, t.device, owner


def node_of(t: torch.Tensor) -> Any:
    """The node behind a tensor, which for a leaf accumulates its gradient."""
    if t.grad_fn is not None:
        return t.grad_fn
    with torch.enable_grad():
        return t.view_as(t).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def read(heads: Sequence[Any], targets: Sequence[Any], accumulates: bool) -> Structure:
    """The graph behind `heads`. Raises Unsupported for one that is not understood, and what
    autograd raises where a tensor that is kept was let go, or was written."""
    if not all(isinstance(t, torch.Tensor) for t in (*heads, *targets)):
        raise unsupported(
            "backward-gradient", "a backward from, or to, an edge of autograd's graph"
        )
    positions: dict[Any, int] = {}
    nodes: list[Any] = []
    stack = [node_of(t) for t in reversed(heads)]
    following: list[Any] = []
    while stack:
        node = stack.pop()
        if node in positions:
            continue
        positions[node] = len(nodes)
        nodes.append(node)
        edges = node.next_functions
        following.append(edges)
        stack.extend([n for n, _ in reversed(edges) if n is not None and n not in positions])
    aims = [(node_of(t), t.output_nr) for t in targets]
    found = (
        tuple([(positions[n], k) if n in positions else None for n, k in aims]) if targets else None
    )
    edges_of = [
        tuple([None if n is None else (positions[n], k) for n, k in edges]) for edges in following
    ]
    needed = (
        _needed(edges_of, {p[0] for p in found if p is not None})
        if found is not None
        else [True] * len(nodes)
    )
    steps = [_step(*parts) for parts in zip(nodes, edges_of, needed)]
    if targets and any(
        step.kind == PROGRAM and step.node.program.reentrant_tangents for step in steps
    ):
        raise unsupported(
            "backward-part",
            "gradients of some tensors alone, by way of a checkpoint with use_reentrant=True",
        )
    return Structure(
        steps, tuple([(positions[node_of(t)], t.output_nr) for t in heads]), found, accumulates
    )


def _needed(edges: Sequence[Sequence[tuple[int, int] | None]], aims: set[int]) -> list[bool]:
    """Which nodes lead to some of the `aims`."""
    leading: list[list[int]] = [[] for _ in edges]
    for position, following in enumerate(edges):
        for edge in following:
            if edge is not None:
                leading[edge[0]].append(position)
    found, stack = set(aims), list(aims)
    while stack:
        for position in leading[stack.pop()]:
            if position not in found:
                found.add(position)
                stack.append(position)
    return [position in found for position in range(len(edges))]


def _step(node: Any, edges: tuple[tuple[int, int] | None, ...], needed: bool) -> Step:
    name = type(node).__name__
    if not needed:
        return Step(node, FORMULA, edges, (), (name,), NO_HOOKS, needed=False)
    hooks = hooks_of(node)
    if name == "AccumulateGrad":
        variable = node.variable
        if getattr(variable, "grad_dtype", variable.dtype) is not variable.dtype:
            raise unsupported(
                "backward-gradient",
                "a gradient of another type than what it is one of (grad_dtype)",
            )
        numbers = {"sizes": tuple(variable.shape), "strides": variable.stride()}
        return Step(node, ACCUMULATE, edges, (), (), hooks, variable, numbers=numbers)
    if is_of_program(node):
        if any(
            number in node.program.downstream
            for number in (*hooks.retained, *(k for _, k in hooks.tensor))
        ):
            raise unsupported(
                "backward-hook", "a hook on a result that another one is computed from"
            )
        saved, facts = _of_program(node)
        return Step(node, PROGRAM, edges, saved, facts, hooks, numbers={"sizes": node.sizes})
    if isinstance(node, BackwardHookNode):
        return Step(
            node, IDENTITY, edges, (), _of_inputs(node), hooks, numbers=_shapes_of_inputs(node)
        )
    if isinstance(node, FunctionBase):
        facts, call = functions.facts_of(node, edges), functions.call_of(node)
        return Step(
            node, FUNCTION, edges, (), facts, hooks, call=call, numbers=_shapes_of_inputs(node)
        )
    if not _OF_TORCH.fullmatch(name) or _HIDING.fullmatch(name):
        raise unsupported("backward-node", f"{name}, which is not known to show all that it keeps")
    if name == "CatBackward0" and sum(edge is None for edge in edges) > 1:
        raise unsupported("backward-node", "CatBackward0 of several tensors without a gradient")
    saved, facts, numbers = _of_formula(node, name)
    return Step(
        node, FORMULA, edges, saved, facts, hooks, numbers=_shapes_of_inputs(node) | numbers
    )


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
    return {f"input {k}": tuple(m.shape) for k, m in enumerate(node._input_metadata)}


def _of_formula(
    node: Any, name: str
) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...], dict[str, tuple[int, ...]]]:
    """What a node of torch's keeps: the tensors, all else, and numbers that may vary."""
    tensors: list[torch.Tensor] = []
    facts: list[Any] = [name, _of_inputs(node)]
    numbers: dict[str, tuple[int, ...]] = {}
    for attribute in kept_by(type(node)):
        if attribute.startswith("_raw"):
            kept = getattr(node, attribute)
            refuse_unpacking(kept if isinstance(kept, (list, tuple)) else (kept,))
            continue
        value = getattr(node, attribute)
        if attribute in ("_saved_sparse", "_saved_sparse_grad") and value:
            raise unsupported("backward-gradient", f"{name} gives a sparse gradient")
        if "_sym_" in attribute or attribute in ("_saved_start", "_saved_end", "_saved_split_size"):
            found = value if isinstance(value, (list, tuple)) else (value,)
            if all(type(n) is int for n in found):
                numbers[attribute] = tuple(found)
                continue
        several = value if isinstance(value, (list, tuple)) else (value,)
        if _is_number(value) and value.dtype is torch.int64:
            numbers[attribute] = (value.item(),)
        elif _is_number(value):
            facts.append(("number", value.dtype, _exact(value.item())))
        if any(isinstance(v, torch.Tensor) for v in several):
            facts.append(tuple([v is not None for v in several]))
            tensors += [v.detach() for v in several if v is not None]
        elif is_plain_constant(value if not isinstance(value, list) else tuple(value)):
            facts.append((type(value), _exact(value)))
        else:
            raise unsupported("backward-node", f"{name} keeps a {type(value).__name__}")
    return tuple(tensors), tuple(facts), numbers


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
        return tuple([_exact(v) for v in value])
    return (
        (type(value), repr(value)) if isinstance(value, (float, complex)) else (type(value), value)
    )


_attributes: dict[type, tuple[str, ...]] = {}


def kept_by(cls: type) -> tuple[str, ...]:
    """The attributes of a kind of nodes that show what one keeps."""
    if cls not in _attributes:
        _attributes[cls] = tuple([n for n in dir(cls) if n.startswith(("_saved_", "_raw_saved_"))])
    return _attributes[cls]
