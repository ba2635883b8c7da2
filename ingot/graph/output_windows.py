"""The output windows of a graph that records gradients: outputs that share a storage with an input
or with one another.

The outputs of a trace go in. Out come the windows, and the outputs with 0 for each window that is
made outside of autograd's node for the graph. Autograd knows of an output what eager's autograd
knows, which is one of two things:

- The output is a plain view: each node of autograd's graph between it and what it shows is that of
  a view op. Such a window is made outside of the graph's node, by a view op.
- The output has a history of its own, as a custom backward or a hook gives one. Such a window is a
  result of the graph's node, with a gradient of its own, and a view only of the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from ingot.errors import unsupported
from ingot.graph.aten_graph import OutputSpec
from ingot.graph.aten_tracer import AtenTracer
from ingot.graph.fakes import FakeTensor, has_history
from ingot.graph.symbols import to_expr
from ingot.graph.tensor_hooks import is_hooked
from ingot.loops.expr import Symbol
from ingot.loops.training_contract import Alias, OutputWindow, SizePlace, Slot
from ingot.torch_private import CreationMeta, get_creation_meta

_PLAIN_VIEWS = frozenset(
    "Alias AsStrided Diagonal Expand Permute ReshapeAlias Select Slice Split SplitWithSizes "
    "Squeeze T Transpose Unbind Unfold UnsafeSplit UnsafeSplitWithSizes UnsafeView Unsqueeze View "
    "ViewAsComplex ViewAsReal".split()
)
"""The ops whose gradient is that of a window on memory."""

Edge = tuple[Any, int]
"""A node of autograd's graph, and which of its results."""


class OutputsAndWindows(NamedTuple):
    """The outputs, and behind them memory that only windows show; and the windows."""

    outputs: list[Any]
    windows: tuple[OutputWindow, ...]


class _SharingOutput(NamedTuple):
    """An output that shares a storage: with the slot `base`, whose fake is `memory`."""

    output: int
    spec: OutputSpec
    base: Slot
    memory: FakeTensor


class _Anchor(NamedTuple):
    """What a window may be a plain view of."""

    slot: Slot
    fake: FakeTensor


def output_window(
    output: int, base: Slot, spec: OutputSpec, own_history: bool = False
) -> OutputWindow:
    """The window that an output's spec describes."""
    assert spec.dtype is not None
    return OutputWindow(
        output,
        base,
        tuple(spec.sizes),
        tuple(spec.strides),
        spec.offset,
        spec.dtype,
        spec.tracked,
        spec.alias,
        own_history,
    )


def size_places(
    windows: Sequence[OutputWindow],
    symbols: Mapping[Symbol, SizePlace],
    outputs: Sequence[OutputSpec],
) -> dict[Symbol, SizePlace]:
    """Where the symbols in windows are read: in the inputs, or, if the data decide them, in the
    other outputs. Raises Unsupported where they are in neither."""
    places = dict(symbols)
    for k, spec in enumerate(outputs):
        if spec.node is None:
            continue
        for dim, size in enumerate(map(to_expr, spec.sizes)):
            if isinstance(size, Symbol):
                places.setdefault(size, (k, "result size", dim))
    for window in windows:
        for number in (*window.sizes, *window.strides, window.offset):
            if not to_expr(number).symbols <= places.keys():
                raise unsupported("backward-sizes", "a window whose place the data decide")
    return places


def windows_on(
    outputs: Sequence[Any], primals: Sequence[Any], recorder: AtenTracer
) -> OutputsAndWindows:
    """The windows among the outputs of a trace whose inputs are `primals`."""
    sharing, memories = _sharing_outputs(outputs, primals, recorder)
    remaining = [*outputs, *memories]
    anchors = _Anchors()
    for _, _, base, memory in sharing:
        if memory.requires_grad:
            anchors.add(memory, base, base)
    windows: list[OutputWindow] = []
    paths = {s.output: list(_view_path(outputs[s.output])) for s in sharing}
    # a window may be a view of one with a shorter path, which is then an anchor
    for s in sorted(sharing, key=lambda s: len(paths[s.output])):
        window = _window(s, outputs[s.output], paths[s.output], anchors)
        windows.append(window)
        if window.own_history:
            anchors.add(outputs[s.output], s.base, Slot("output", s.output))
        else:
            remaining[s.output] = 0
    return OutputsAndWindows(remaining, tuple(sorted(windows, key=lambda w: w.output)))


def _sharing_outputs(
    outputs: Sequence[Any], primals: Sequence[Any], recorder: AtenTracer
) -> tuple[list[_SharingOutput], list[FakeTensor]]:
    """The outputs that share a storage with an input or with one another, and the new memory of
    the latter."""
    new_storages: dict[int, list[tuple[int, OutputSpec]]] = {}
    sharing: list[_SharingOutput] = []
    memories: list[FakeTensor] = []
    for k, output in enumerate(outputs):
        if not isinstance(output, FakeTensor):
            continue
        spec = recorder.output(output)
        if spec.position is None:
            new_storages.setdefault(spec.storage, []).append((k, spec))
        else:
            base = Slot("input", spec.position)
            sharing.append(_SharingOutput(k, spec, base, primals[spec.position]))
    for members in new_storages.values():
        first, *others = (outputs[k] for k, _ in members)
        if any(other is not first for other in others):
            memory = recorder.tracked(first).base.fake
            base = Slot("output", len(outputs) + len(memories))
            memories.append(memory)
            sharing += [_SharingOutput(k, spec, base, memory) for k, spec in members]
    return sharing, memories


class _Anchors:
    """The anchors by their place in autograd's graph and by their memory."""

    def __init__(self) -> None:
        self._anchors: dict[tuple[Edge, Slot], _Anchor] = {}

    def add(self, fake: FakeTensor, memory: Slot, slot: Slot) -> None:
        self._anchors.setdefault((_edge(fake), memory), _Anchor(slot, fake))

    def first(self, path: Sequence[Edge], memory: Slot) -> _Anchor | None:
        """The first anchor on a path."""
        for edge in path:
            anchor = self._anchors.get((edge, memory))
            if anchor is not None:
                return anchor
        return None


def _window(
    sharing: _SharingOutput, output: FakeTensor, path: Sequence[Edge], anchors: _Anchors
) -> OutputWindow:
    spec, memory = sharing.spec, sharing.memory
    if not spec.tracked:
        alias = "same"
        if output is not memory:
            alias = spec.alias
        spec = replace(spec, tracked=not memory.requires_grad, alias=alias)
        return output_window(sharing.output, sharing.base, spec)
    anchor = anchors.first(path, sharing.base)
    if anchor is None:
        return output_window(sharing.output, sharing.base, spec, own_history=True)
    base = anchor.fake
    if anchor.slot.role == "input":
        _refuse_window_of_expanded(spec, base)
    base_offset = base.storage_offset() * base.element_size() // output.element_size()
    offset = output.storage_offset() - base_offset
    spec = replace(spec, offset=offset, alias=_alias(output, base))
    return output_window(sharing.output, anchor.slot, spec)


def _alias(output: FakeTensor, base: FakeTensor) -> Alias:
    """What autograd knows of a plain view."""
    if output is base:
        return "same"
    several = CreationMeta.MULTI_OUTPUT_NODE
    if output._is_view() and get_creation_meta(output) == several:
        return "one of several"
    return "view"


def _refuse_window_of_expanded(spec: OutputSpec, base: Tensor) -> None:
    """Raises Unsupported for a part of an input whose elements share memory.

    A window is made by as_strided, which spreads a gradient over all elements that share memory;
    eager's views know which is which.
    """
    for size, stride in zip(base.shape, base.stride()):
        if isinstance(stride, int) and stride == 0 and size != 1:
            break
    else:
        return
    same_sizes = tuple(spec.sizes) == tuple(base.shape)
    if not same_sizes or tuple(spec.strides) != base.stride() or spec.offset != 0:
        raise unsupported(
            "gradients-wanted",
            "gradients are wanted of a part of an expanded input that is a result",
        )


# -- places in autograd's graph --------------------------------------------------------------------


def _edge(fake: Tensor) -> Edge:
    """Where the gradient of a tensor that requires one goes."""
    if has_history(fake):
        return (fake.grad_fn, fake.output_nr)
    return (fake, 0)


def _is_plain_view(node: Any) -> bool:
    """Whether a node is that of a view op, and no hook sees its gradient."""
    name, _, number = type(node).__name__.rpartition("Backward")
    return name in _PLAIN_VIEWS and number.isdecimal() and not is_hooked(node)


def _view_path(fake: Tensor) -> Iterator[Edge]:
    """Where a gradient goes for as long as it does so as that of a plain view."""
    if not fake.requires_grad:
        return
    node, position = _edge(fake)
    yield node, position
    while _is_plain_view(node):
        node, position = node.next_functions[0]
        node = getattr(node, "variable", node)  # of a leaf
        yield node, position
