"""Layouts: one for the images that convolutions read and write, through all that stands between them.

Channels-last makes a convolution a contraction with the weight as it lies, or, where it is depthwise, a loop over whole
vectors of channels. A node that is to lie channels-last says so in `meta["layout"]`; `meta["val"]` stays what eager
makes. Images are converted where a convolution reads one that lies otherwise, and where one is returned. Convolutions
that are connected by such images are laid channels-last together, where there are more of them than conversions.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from ingot.graph.aten_graph import AtenGraph

aten = torch.ops.aten

CHANNELS_LAST, CONTIGUOUS = "channels_last", "contiguous"

FEWEST_RESULTS = 8
"""Contractions with fewer columns leave most of a vector empty ..."""

SMALL_WINDOW = 9
"""... which costs more than converting the images from so many elements of the window on."""

# Ops, beside pointwise ones, whose result lies as their first argument does.
_FOLLOWERS = {
    aten.max_pool2d_with_indices.default, aten.avg_pool2d.default, aten.constant_pad_nd.default, aten.cat.default,
    aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default, aten.upsample_bicubic2d.default,
    aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec, aten.upsample_bicubic2d.vec,
    aten._upsample_nearest_exact2d.default, aten.clone.default, aten._to_copy.default, operator.getitem,
}  # fmt: skip


def choose_layouts(graph: AtenGraph) -> None:
    """Lay images channels-last where that makes the convolutions between them faster."""
    nodes = list(graph.graph.nodes)
    laid = {node for node in nodes if _is_convolution(node) and _is_loops(node)}
    if not laid or any(node.target is aten.as_strided.default for node in nodes):
        return
    for node in nodes:
        if not laid.isdisjoint(_images(node)):
            laid.add(node)
    for node in reversed(nodes):
        if node.users and _images(node) and laid.issuperset(node.users):
            laid.add(node)
    for connected in _components([node for node in nodes if node in laid]):
        if sum(map(_is_convolution, connected)) > sum(_conversions(node, connected) for node in connected):
            for node in connected:
                node.meta["layout"] = CHANNELS_LAST
    for node in nodes:
        if _is_tokens(node):
            node.meta["layout"] = CONTIGUOUS


def _is_convolution(node: Node) -> bool:
    return node.target is aten.convolution.default


def _is_loops(node: Any) -> bool:
    """Whether loops over channels-last images compute this convolution: a float32 one of images that is depthwise or
    has one group, or a transposed one whose windows lie side by side."""
    x, weight, _, stride, padding, dilation, transposed, output_padding, groups = node.args
    images, window = x.meta["val"], weight.meta["val"]
    if images.dim() != 4 or images.dtype is not torch.float32 or window.dtype is not torch.float32:
        return False
    if not all(isinstance(size, int) and size > 0 for size in (*window.shape, images.shape[1])):
        return False
    if transposed:
        steps = list(stride) * 2 if len(stride) == 1 else list(stride)
        side_by_side = steps == list(window.shape[2:]) and set(dilation) == {1}
        return side_by_side and groups == 1 and not any((*padding, *output_padding))
    depthwise = groups == window.shape[0] == images.shape[1]
    dense = groups == 1 and (window.shape[0] >= FEWEST_RESULTS or math.prod(window.shape[2:]) <= SMALL_WINDOW)
    return depthwise or dense


def _images(node: Node) -> list[Node]:
    """The images whose layout the node's result follows: none for an op that has a layout of its own."""
    if node.op != "call_function" or not _is_image(node.meta["val"]):
        return []
    if node.target in _FOLLOWERS:
        first: Any = node.args[0]
        return list(first) if isinstance(first, (list, tuple)) else [first]
    if isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags:
        shape = _shape(node)
        return [n for n in node.all_input_nodes if _shape(n) == shape]
    return []


def _is_image(value: Any) -> bool:
    first = value[0] if isinstance(value, (tuple, list)) and value else value
    return isinstance(first, torch.Tensor) and first.dim() == 4


# How an image becomes rows of channels, and they an image.
_VIEWS = {aten.view.default, aten.transpose.int, aten.permute.default, aten.unsqueeze.default, aten.squeeze.dim}


def _is_tokens(node: Node) -> bool:
    """Whether a pointwise op computes rows of channels, (batch, pixels, channels), from an image that is laid
    channels-last. They lie one after the other there; in eager, whose images are contiguous, the pixels do."""
    if not isinstance(node.target, OpOverload) or torch.Tag.pointwise not in node.target.tags:
        return False
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dim() != 3 or value.is_contiguous():
        return False
    return any("layout" in _viewed(n).meta for n in node.all_input_nodes if _shape(n) == _shape(node))


def _viewed(node: Any) -> Node:
    while node.target in _VIEWS:
        node = node.args[0]
    return node


def _shape(node: Node) -> list[str]:
    return list(map(str, getattr(node.meta["val"], "shape", ())))


def _components(nodes: list[Node]) -> list[set[Node]]:
    """The nodes in sets that images among them connect."""
    of: dict[Node, set[Node]] = {node: {node} for node in nodes}
    for node in nodes:
        for other in [n for n in (*_images(node), *_read(node)) if n in of]:
            small, large = sorted((of[node], of[other]), key=len)
            if small is not large:
                large |= small
                of.update((n, large) for n in small)
    return list({id(connected): connected for connected in of.values()}.values())


def _read(node: Any) -> list[Node]:
    """The image that a convolution reads."""
    return [node.args[0]] if _is_convolution(node) else []


def _conversions(node: Node, connected: set[Node]) -> float:
    """How many conversions between layouts laying this node channels-last costs, besides those of its neighbours; one
    of an image smaller than the convolution's result counts for less."""
    cost = float(_is_returned(node) and not _lies_channels_last(node))
    cost += sum(_is_convolution(user) and user not in connected for user in node.users)
    for image in _read(node):
        if image not in connected and not _lies_channels_last(image):
            cost += min(1.0, _elements(image) / max(_elements(node), 1.0))
    return cost


def _is_returned(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _lies_channels_last(node: Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.stride()[1] == 1


def _elements(node: Node) -> float:
    """The size of an image; that of its channels where the others vary."""
    value = node.meta["val"]
    return float(value.numel() if isinstance(value.numel(), int) else value.shape[1])
