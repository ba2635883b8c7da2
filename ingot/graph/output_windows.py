"""Outputs of a graph that share memory with an input or with one another, where gradients are
recorded.

Autograd has to know of such an output what eager's autograd knows. Two things can be said of one:

- its history is that of a plain view: every node of autograd's graph between it and what it shows
  is that of a view op. Then it is made outside of the graph's node, by a view op.
- anything else, as the history that a custom backward or a hook gives. Then it is a result of the
  graph's node with a gradient of its own, and a view only of the memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ingot.errors import unsupported
from ingot.graph.aten_graph import OutputSpec
from ingot.graph.aten_tracer import AtenTracer
from ingot.graph.fakes import FakeTensor, has_history
from ingot.graph.tensor_hooks import is_hooked
from ingot.torch_private import CreationMeta, get_creation_meta

_PLAIN_VIEW = re.compile(
    "(Alias|AsStrided|Diagonal|Expand|Permute|ReshapeAlias|Select|Slice|Split|SplitWithSizes|Squeeze|T|Transpose"
    "|Unbind|Unfold|UnsafeSplit|UnsafeSplitWithSizes|UnsafeView|Unsqueeze|View|ViewAsComplex|ViewAsReal)Backward[0-9]"
)
"""The nodes of autograd's graph whose gradient is that of a window on memory."""

Edge = tuple[Any, int]
"""A node of autograd's graph, and which of its results."""


@dataclass(frozen=True)
class Window:
    """An output that shares memory with an input of the graph or with another output: a view of
    `base`, ("input" | "output", position). With `own_history` it is a view of the memory alone, and
    the graph's node computes its gradient; else it is a view to autograd as well, and made outside
    of that node."""

    output: int
    base: tuple[str, int]
    spec: OutputSpec
    own_history: bool = False


class OutputWindows(NamedTuple):
    """The outputs with 0 in place of those that are made outside of the graph's node, and behind
    them memory that only windows show; and the windows."""

    outputs: list[Any]
    windows: tuple[Window, ...]


class _Shown(NamedTuple):
    """An output that shares memory, the ("input" | "output", position) whose memory that is, and
    the fake of this."""

    output: int
    spec: OutputSpec
    base: tuple[str, int]
    memory: FakeTensor


def windows_on(
    outputs: Sequence[Any], primals: Sequence[Any], recorder: AtenTracer
) -> OutputWindows:
    """The windows among the outputs of a trace whose inputs are `primals`."""
    shown, memories = _outputs_that_share(outputs, primals, recorder)
    made = [*outputs, *memories]
    anchors = _Anchors()
    for _, _, base, memory in shown:
        if memory.requires_grad:
            anchors.add(memory, base, base)
    windows: list[Window] = []
    paths = {s.output: list(_path(outputs[s.output])) for s in shown}
    for s in sorted(shown, key=lambda s: len(paths[s.output])):
        window = _window(s, outputs[s.output], paths[s.output], anchors)
        windows.append(window)
        if window.own_history:
            anchors.add(outputs[s.output], s.base, ("output", s.output))
        else:
            made[s.output] = 0
    return OutputWindows(made, tuple(sorted(windows, key=lambda w: w.output)))


def _outputs_that_share(
    outputs: Sequence[Any], primals: Sequence[Any], recorder: AtenTracer
) -> tuple[list[_Shown], list[FakeTensor]]:
    """The outputs that share memory with an input or with one another, and the new memory of the
    latter."""
    in_memory: dict[int, list[tuple[int, OutputSpec]]] = {}  # the outputs in each new memory
    shown: list[_Shown] = []
    memories: list[FakeTensor] = []
    for k, output in enumerate(outputs):
        if isinstance(output, FakeTensor):
            spec = recorder.output(output)
            if spec.position is None:
                in_memory.setdefault(spec.storage, []).append((k, spec))
            else:
                shown.append(_Shown(k, spec, ("input", spec.position), primals[spec.position]))
    for sharing in in_memory.values():
        if len({id(outputs[k]) for k, _ in sharing}) > 1:
            memory = recorder.tracked(outputs[sharing[0][0]]).base.fake
            base = ("output", len(outputs) + len(memories))
            memories.append(memory)
            shown += [_Shown(k, spec, base, memory) for k, spec in sharing]
    return shown, memories


class _Anchors:
    """What a window may be a plain view of, by its place in autograd's graph and by its memory."""

    def __init__(self) -> None:
        self._known: dict[tuple[Edge, tuple[str, int]], tuple[tuple[str, int], FakeTensor]] = {}

    def add(self, fake: FakeTensor, memory: tuple[str, int], base: tuple[str, int]) -> None:
        self._known.setdefault((_edge(fake), memory), (base, fake))

    def first(
        self, path: Sequence[Edge], memory: tuple[str, int]
    ) -> tuple[tuple[str, int], FakeTensor] | None:
        """The first on a path."""
        return next((known for edge in path if (known := self._known.get((edge, memory)))), None)


def _window(shown: _Shown, output: FakeTensor, path: Sequence[Edge], anchors: _Anchors) -> Window:
    spec = shown.spec
    if not spec.tracked:
        alias = "same" if output is shown.memory else spec.alias
        return Window(
            shown.output,
            shown.base,
            replace(spec, tracked=not shown.memory.requires_grad, alias=alias),
        )
    anchor = anchors.first(path, shown.base)
    if anchor is None:
        return Window(shown.output, shown.base, spec, own_history=True)
    base, fake = anchor
    if base[0] == "input":
        _refuse_part_of_shared(spec, fake)
    offset = (
        output.storage_offset()
        - fake.storage_offset() * fake.element_size() // output.element_size()
    )
    alias = "same" if output is fake else "one of several" if _is_one_of_several(output) else "view"
    return Window(shown.output, base, replace(spec, offset=offset, alias=alias))


def _is_one_of_several(output: FakeTensor) -> bool:
    """Whether it is a view that autograd knows as one of those that an op gives at once, or a view
    of such a one."""
    return output._is_view() and get_creation_meta(output) == CreationMeta.MULTI_OUTPUT_NODE


def _refuse_part_of_shared(spec: OutputSpec, base: torch.Tensor) -> None:
    """What makes a window, as_strided, spreads a gradient over all elements that share memory,
    where eager's views know which is which."""
    shared = [
        d for d, stride in enumerate(base.stride()) if isinstance(stride, int) and stride == 0
    ]
    if any(base.shape[d] != 1 for d in shared):
        if (
            tuple(spec.sizes) != tuple(base.shape)
            or tuple(spec.strides) != base.stride()
            or spec.offset != 0
        ):
            raise unsupported(
                "gradients-wanted",
                "gradients are wanted of a part of an expanded input that is a result",
            )


# -- places in autograd's graph --------------------------------------------------------------------


def _edge(fake: torch.Tensor) -> Edge:
    """Where the gradient of a tensor that requires one goes."""
    return (fake.grad_fn, fake.output_nr) if has_history(fake) else (fake, 0)


def _path(fake: torch.Tensor) -> Iterator[Edge]:
    """Where its gradient goes from there on as that of a plain view does, without a hook that sees
    it."""
    if not fake.requires_grad:
        return
    node, position = _edge(fake)
    yield node, position
    while _PLAIN_VIEW.fullmatch(type(node).__name__) and not is_hooked(node):
        node, position = node.next_functions[0]
        node = getattr(node, "variable", node)  # of a leaf
        yield node, position
