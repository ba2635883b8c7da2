"""Layouts: one for the images that convolutions read and write, through all that stands between
them.

Channels-last makes a convolution a contraction with the weight as it lies, or, where it is
depthwise, a loop over whole vectors of channels; on a GPU it is what tensor cores read, and chosen
for inference. A node that is to lie channels-last says so in `meta["layout"]`; `meta["val"]` stays
what eager makes. Images are converted where a convolution reads one that lies otherwise, and where
one is returned. Convolutions that are connected by such images are laid channels-last together,
where they gain more than the conversions cost.

In a joint graph the gradients of convolutions count as further ones: that of the images reads and
gives an image, that of the weight reads two.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ingot.graph import geometry
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.torch_private import ADDRESSING, OpOverload, aten

CHANNELS_LAST, CONTIGUOUS = "channels_last", "contiguous"

FEWEST_RESULTS = 8
"""Contractions with fewer columns leave most of a vector empty ..."""

SMALL_WINDOW = 9
"""... which costs more than converting the images from so many elements of the window on."""

CHEAP_SUM = 128
"""A convolution that sums this many products for an element gains about what the conversion of one
element takes."""

MANY_CHANNELS = 64
"""From so many on, eager's float32 convolutions on a GPU round to TF32 whatever the layout; of
fewer, not all do ..."""

FEW_CHANNELS, MANY_WEIGHTS = 16, 1536
"""... but those of single pixels do, with so many channels on either side and so many weights."""

# Ops, beside pointwise ones, whose result lies as their first argument does.
_FOLLOWERS = {
    aten.max_pool2d_with_indices.default, aten.avg_pool2d.default, aten.constant_pad_nd.default,
    aten.cat.default, aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default,
    aten.upsample_bicubic2d.default, aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec,
    aten.upsample_bicubic2d.vec, aten._upsample_nearest_exact2d.default, aten.clone.default,
    aten._to_copy.default, operator.getitem,
}  # fmt: skip


def choose_layouts(graph: AtenGraph) -> None:
    """Lay images channels-last where that makes the convolutions between them faster."""
    nodes = list(graph.graph.nodes)
    convolutions = [node for node in nodes if _convolves(node)]
    trains = any(node.target is aten.convolution_backward.default for node in convolutions)
    laid = {
        node
        for node in convolutions
        if _is_loops(node) or (not trains and _is_for_tensor_cores(node))
    }
    if not laid or any(node.target in ADDRESSING for node in nodes):
        return
    for node in nodes:
        if not laid.isdisjoint(_images(node)):
            laid.add(node)
    for node in reversed(nodes):
        if node.users and _images(node) and laid.issuperset(node.users):
            laid.add(node)
    for connected in _components([node for node in nodes if node in laid]):
        if sum(map(_gain, connected)) > sum(_conversions(node, connected) for node in connected):
            for node in connected:
                if not _is_weight_gradient(node) and not _is_only_returned(node):
                    node.meta["layout"] = CHANNELS_LAST
    for node in nodes:
        if _is_tokens(node):
            node.meta["layout"] = CONTIGUOUS


class _Convolution(NamedTuple):
    """What is asked of a node about a convolution: the images that it reads, the weight, and which
    gradients it gives, if any."""

    images: tuple[Node, ...]
    weight: Any
    transposed: bool
    groups: int
    mask: tuple[bool, ...] | None

    @staticmethod
    def of(node: Any) -> _Convolution | None:
        if node.target is aten.convolution.default:
            x, weight, *_, transposed, _, groups = node.args
            return _Convolution((x,), weight.meta["val"], transposed, groups, None)
        if node.target is aten.convolution_backward.default:
            grad, x, weight, *_, transposed, _, groups, mask = node.args
            images = (grad, x) if mask[1] else (grad,)
            return _Convolution(images, weight.meta["val"], transposed, groups, tuple(mask))
        return None


def _convolves(node: Node) -> bool:
    return _Convolution.of(node) is not None


def _is_weight_gradient(node: Node) -> bool:
    """Whether a node reads images and gives none."""
    found = _Convolution.of(node)
    return found is not None and found.mask is not None and not found.mask[0]


def _is_loops(node: Any) -> bool:
    """Whether loops over channels-last images compute this convolution: a float32 one of images
    that is depthwise or has one group, or a transposed one whose windows lie side by side."""
    images, weight, transposed, groups, mask = _Convolution.of(node)  # type: ignore[misc]
    values = [weight, *(image.meta["val"] for image in images)]
    if values[0].device.type != "cpu":
        return False
    if weight.dim() != 4 or any(value.dtype is not torch.float32 for value in values):
        return False
    if not all(
        isinstance(size, int) and size > 0
        for size in (*weight.shape, *(v.shape[1] for v in values[1:]))
    ):
        return False
    if mask is not None:
        # not how many images
        known = all(isinstance(size, int) for value in values for size in value.shape[1:])
        return groups == 1 and known and (not mask[0] or min(weight.shape[:2]) >= FEWEST_RESULTS)
    if transposed:
        _, _, _, stride, padding, dilation, _, output_padding, _ = node.args
        steps = list(stride) * 2 if len(stride) == 1 else list(stride)
        side_by_side = steps == list(weight.shape[2:]) and set(dilation) == {1}
        return side_by_side and groups == 1 and not any((*padding, *output_padding))
    depthwise = groups == weight.shape[0] == values[1].shape[1]
    dense = groups == 1 and (
        weight.shape[0] >= FEWEST_RESULTS or math.prod(weight.shape[2:]) <= SMALL_WINDOW
    )
    return depthwise or dense


def _is_for_tensor_cores(node: Any) -> bool:
    """Whether tensor cores of a GPU compute this convolution: they read channels-last images, to
    and from which the library converts others at each."""
    (x, *_), weight, transposed, groups, _ = _Convolution.of(node)  # type: ignore[misc]
    value = x.meta["val"]
    if value.device.type != "cuda" or weight.dim() != 4 or transposed or groups > 1:
        return False
    if value.dtype in (torch.float16, torch.bfloat16):
        return True
    channels = (weight.shape[0], weight.shape[1])
    if not all(isinstance(size, int) for size in weight.shape):
        return False
    plain = (
        math.prod(weight.shape[2:]) == 1
        and min(channels) >= FEW_CHANNELS
        and math.prod(channels) >= MANY_WEIGHTS
    )
    many = plain or min(channels) >= MANY_CHANNELS
    return value.dtype is torch.float32 and many and torch.backends.cudnn.allow_tf32


def _is_of_channels(node: Any) -> bool:
    """Whether a convolution on a GPU has a small window over each channel by itself, which loops
    compute where channels lie side by side; images may lie either way."""
    found = _Convolution.of(node)
    if (
        found is None
        or found.mask is not None
        or found.transposed
        or found.images[0].meta["val"].device.type != "cuda"
    ):
        return False
    weight, image = found.weight, found.images[0].meta["val"]
    if weight.dim() != 4 or not 1 < found.groups == weight.shape[0] == image.shape[1]:
        return False
    return (
        all(isinstance(n, int) for n in weight.shape)
        and 1 < math.prod(weight.shape[2:]) <= SMALL_WINDOW
    )


def _images(node: Node) -> list[Node]:
    """The images whose layout the node's result follows: none for an op that has a layout of its
    own."""
    if node.op != "call_function" or not _is_image(node.meta["val"]):
        return []
    if node.target in _FOLLOWERS or _is_of_channels(node):
        first: Any = node.args[0]
        if isinstance(first, (list, tuple)):
            return list(first)
        return [] if _is_weight_gradient(first) else [first]
    if isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags:
        shape = _shape(node)
        return [n for n in node.all_input_nodes if _shape(n) == shape]
    return []


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) and value else value


def _is_image(value: Any) -> bool:
    first = _first(value)
    return isinstance(first, torch.Tensor) and first.dim() == 4


# How an image becomes rows of channels, and they an image.
_VIEWS = {
    aten.view.default,
    aten.transpose.int,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
}


def laid_out(node: Node) -> torch.Tensor:
    """A node's value in the layout that was chosen for it."""
    value: FakeTensor = node.meta["val"]
    if "layout" not in node.meta:
        return value
    strides = (
        geometry.channels_last if node.meta["layout"] == CHANNELS_LAST else geometry.contiguous
    )(value.shape)
    return FakeTensor(
        torch.empty_strided(value.shape, strides, dtype=value.dtype, device="meta"), value.device
    )


def _is_tokens(node: Node) -> bool:
    """Whether a pointwise op computes rows of channels, (batch, pixels, channels), from an image
    that is laid channels-last. They lie one after the other there; in eager, whose images are
    contiguous, the pixels do."""
    if not isinstance(node.target, OpOverload) or torch.Tag.pointwise not in node.target.tags:
        return False
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dim() != 3 or geometry.surely_contiguous(value):
        return False
    return any(
        "layout" in _viewed(n).meta for n in node.all_input_nodes if _shape(n) == _shape(node)
    )


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


def _read(node: Any) -> tuple[Node, ...]:
    """The images that a convolution reads."""
    found = _Convolution.of(node)
    return () if found is None else found.images


def _gain(node: Node) -> float:
    """What a convolution gains from images that lie channels-last, in elements of conversions."""
    found = _Convolution.of(node)
    if found is None:
        return 0.0
    results = found.images[0] if found.mask is not None else node
    sums = math.prod(found.weight.shape[1:])
    return _elements(results) * max(1.0, sums / CHEAP_SUM)


def _conversions(node: Node, connected: set[Node]) -> float:
    """How many elements are converted between layouts because this node is laid channels-last,
    besides those of its neighbours."""
    converted = [node] if _is_returned(node) and not _lies_channels_last(node) else []
    converted += [node for user in node.users if _convolves(user) and user not in connected]
    converted += [
        image for image in _read(node) if image not in connected and not _lies_channels_last(image)
    ]
    return sum(map(_elements, converted))


def _is_returned(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _is_only_returned(node: Node) -> bool:
    """Whether a pointwise result, of a GPU's, is read by the user alone: its kernel writes it as it
    is to lie."""
    if not isinstance(node.target, OpOverload) or torch.Tag.pointwise not in node.target.tags:
        return False
    return node.meta["val"].device.type == "cuda" and all(
        user.op == "output" for user in node.users
    )


def _lies_channels_last(node: Node) -> bool:
    value = _first(node.meta["val"])
    return isinstance(value, torch.Tensor) and geometry.at_hand(value.stride()[1]) == 1


def _elements(node: Node) -> float:
    """The size of an image, which where sizes are symbols it has in the call that is compiled
    for."""
    return float(math.prod(map(geometry.at_hand, _first(node.meta["val"]).shape)))
