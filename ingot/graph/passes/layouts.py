"""Layouts: one for the images that convolutions read and write, and for all values between them.

Channels-last makes a convolution a contraction with the weight in its own layout, or, where it is
depthwise, a loop over whole vectors of channels; on a GPU it is what tensor cores read. The layout
of a node is in its `meta["layout"]`; `meta["val"]` stays what eager makes. Images are converted
where a convolution reads one of another layout, and where one is returned. Convolutions that such
images connect become channels-last together, where they gain more than the conversions cost.

In a joint graph the gradients of convolutions count as further ones: that of the images reads and
gives an image, that of the weight reads two.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from ingot.graph import geometry
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor, new_fake
from ingot.graph.nodes import fake_result, is_pointwise_call, is_returned
from ingot.graph.passes.tf32 import rounds_to_tf32
from ingot.torch_private import ADDRESSING, aten

CHANNELS_LAST, CONTIGUOUS = "channels_last", "contiguous"

FEWEST_RESULTS = 8
"""Contractions with fewer columns leave most of a vector empty ..."""

SMALL_WINDOW = 9
"""... which costs more than converting the images if the window has more elements than this."""

WINDOW_OF_LOOPS = 25
"""Elements of the largest window of a depthwise convolution that is loops on a GPU."""

CHEAP_SUM = 128
"""A convolution that sums this many products for an element gains about what the conversion of one
element takes."""

WINDOW_IN_FULL = 25
"""Elements of the largest window of a depthwise convolution whose weight gradient, in float32, a
GPU's library finds fast over channels-last images."""

# Ops, beside pointwise ones, whose result lies as their first argument does.
_FOLLOWERS = {
    aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default,
    aten.avg_pool2d.default, aten.constant_pad_nd.default,
    aten.cat.default, aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default,
    aten.upsample_bicubic2d.default, aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec,
    aten.upsample_bicubic2d.vec, aten._upsample_nearest_exact2d.default, aten.clone.default,
    aten._to_copy.default, operator.getitem,
}  # fmt: skip


def choose_layouts(graph: AtenGraph) -> None:
    """Lay images channels-last where that makes the convolutions between them faster."""
    nodes = list(graph.graph.nodes)
    laid = _channels_last_convolutions(nodes)
    if not laid or any(node.target in ADDRESSING for node in nodes):
        return
    for node in nodes:
        if not laid.isdisjoint(_images(node)):
            laid.add(node)
    for node in reversed(nodes):
        if node.users and _images(node) and laid.issuperset(node.users):
            laid.add(node)
    for component in _components(list(filter(laid.__contains__, nodes))):
        if sum(map(_gain, component)) > sum(_conversions(node, component) for node in component):
            for node in component:
                if not _is_weight_gradient(node) and not _is_only_returned(node):
                    node.meta["layout"] = CHANNELS_LAST
    for node in nodes:
        if _is_tokens(node):
            node.meta["layout"] = CONTIGUOUS


def _channels_last_convolutions(nodes: list[Node]) -> set[Node]:
    """The convolutions that are faster on channels-last images."""
    convolutions = list(filter(_convolves, nodes))
    suits = (_is_loops, _suits_gpu, _suits_tiles)
    return {node for node in convolutions if any(suit(node) for suit in suits)}


class _Convolution(NamedTuple):
    """A convolution, or its gradients: the images that it reads, the weight, and which gradients it
    gives, if any."""

    images: tuple[Node, ...]
    weight: Any
    transposed: bool
    groups: int
    mask: tuple[bool, ...] | None

    @staticmethod
    def of(node: Any) -> _Convolution | None:
        if node.target is aten.convolution.default:
            x, weight, *_, transposed, _, groups = node.args
            return _Convolution((x,), fake_result(weight), transposed, groups, None)
        if node.target is aten.convolution_backward.default:
            grad, x, weight, *_, transposed, _, groups, mask = node.args
            images = (grad, x) if mask[1] else (grad,)
            return _Convolution(images, fake_result(weight), transposed, groups, tuple(mask))
        return None


def _convolves(node: Node) -> bool:
    return _Convolution.of(node) is not None


def _is_weight_gradient(node: Node) -> bool:
    """Whether a node reads images and gives none."""
    convolution = _Convolution.of(node)
    if convolution is None or convolution.mask is None:
        return False
    return not convolution.mask[0]


def _is_loops(node: Any) -> bool:
    """Whether loops over channels-last images compute this convolution. They do if it is float32,
    and depthwise, of one group, or a transposed one whose windows lie side by side."""
    images, weight, transposed, groups, mask = _Convolution.of(node)  # type: ignore[misc]
    images = list(map(fake_result, images))
    if weight.device.type != "cpu" or weight.dim() != 4:
        return False
    if any(value.dtype is not torch.float32 for value in (weight, *images)):
        return False
    sizes = (*weight.shape, *(image.shape[1] for image in images))
    if geometry.has_symbols(sizes) or 0 in sizes:
        return False
    if mask is not None:
        for image in images:
            if geometry.has_symbols(image.shape[1:]):  # of one image
                return False
        return groups == 1 and (not mask[0] or min(weight.shape[:2]) >= FEWEST_RESULTS)
    if transposed:
        _, _, _, stride, padding, dilation, _, output_padding, _ = node.args
        if len(stride) == 1:
            steps = list(stride) * 2
        else:
            steps = list(stride)
        side_by_side = steps == list(weight.shape[2:]) and set(dilation) == {1}
        return side_by_side and groups == 1 and not any((*padding, *output_padding))
    if groups == weight.shape[0] == images[0].shape[1]:  # it is depthwise
        return True
    is_small = math.prod(weight.shape[2:]) <= SMALL_WINDOW
    return groups == 1 and (is_small or weight.shape[0] >= FEWEST_RESULTS)


def _suits_gpu(node: Any) -> bool:
    """Whether a GPU's library is faster on channels-last images. Tensor cores read those, to and
    from which it converts others at each convolution; and it has kernels for depthwise ones. In
    float32 tensor cores round to TF32, which is right only where eager does."""
    (x, *_), weight, transposed, groups, _ = _Convolution.of(node)  # type: ignore[misc]
    value = fake_result(x)
    if value.device.type != "cuda" or weight.dim() != 4:
        return False
    is_half = value.dtype in (torch.float16, torch.bfloat16)
    if is_half:
        return groups == 1 or not transposed
    if groups > 1:
        if transposed or weight.shape[1] != 1 or groups != weight.shape[0]:
            return False
        is_small = math.prod(weight.shape[2:]) <= WINDOW_IN_FULL
        return value.dtype is torch.float32 and is_small
    return value.dtype is torch.float32 and rounds_to_tf32(node)


def _suits_tiles(node: Any) -> bool:
    """Whether a CPU's library convolves brain floats by instructions that multiply tiles. It reads
    channels-last images then, to and from which it converts others at each convolution."""
    (x, *_), weight, transposed, groups, mask = _Convolution.of(node)  # type: ignore[misc]
    value = fake_result(x)
    if value.device.type != "cpu" or weight.dim() != 4 or not _multiplies_tiles():
        return False
    if value.dtype is not torch.bfloat16 or weight.dtype is not torch.bfloat16:
        return False
    return mask is None and groups == 1 and not transposed


@functools.cache
def _multiplies_tiles() -> bool:
    """Whether this machine and its library have AMX."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return capabilities.get("amx_bf16", False) and torch.backends.mkldnn.is_available()


def _is_of_channels(node: Any) -> bool:
    """Whether a convolution on a GPU is depthwise with a small window. Loops compute it where
    channels lie side by side; images may have either layout."""
    convolution = _Convolution.of(node)
    if convolution is None or convolution.mask is not None or convolution.transposed:
        return False
    weight, image = convolution.weight, fake_result(convolution.images[0])
    if image.device.type != "cuda" or weight.dim() != 4:
        return False
    if not 1 < convolution.groups == weight.shape[0] == image.shape[1]:
        return False
    if geometry.has_symbols(weight.shape):
        return False
    return 1 < math.prod(weight.shape[2:]) <= WINDOW_OF_LOOPS


def _images(node: Node) -> list[Node]:
    """The images whose layout the node's result follows: none for an op that has a layout of its
    own."""
    if node.op != "call_function" or not _is_image(fake_result(node)):
        return []
    if node.target in _FOLLOWERS or _is_of_channels(node):
        first: Any = node.args[0]
        if isinstance(first, (list, tuple)):
            return list(first)
        if _is_weight_gradient(first):
            return []
        return [first]
    if is_pointwise_call(node):
        return _inputs_of_its_shape(node)
    return []


def _inputs_of_its_shape(node: Node) -> list[Node]:
    shape = _shape(node)
    return [n for n in node.all_input_nodes if _shape(n) == shape]


def _first(value: Any) -> Any:
    if isinstance(value, (tuple, list)) and value:
        return value[0]
    return value


def _is_image(value: Any) -> bool:
    first = _first(value)
    return isinstance(first, Tensor) and first.dim() == 4


# How an image becomes rows of channels, and they an image.
_VIEWS = {
    aten.view.default,
    aten.transpose.int,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
}


def laid_out(node: Node) -> Tensor:
    """A node's value in the layout that was chosen for it."""
    value: FakeTensor = fake_result(node)
    if "layout" not in node.meta:
        return value
    strides_of = geometry.contiguous
    if node.meta["layout"] == CHANNELS_LAST:
        strides_of = geometry.channels_last
    return new_fake(value.shape, value, strides=strides_of(value.shape))


def _is_tokens(node: Node) -> bool:
    """Whether a pointwise op computes rows of channels, (batch, pixels, channels), from an image
    that is channels-last. The rows are contiguous there; in eager, whose images are contiguous, the
    pixels of a channel are."""
    if not is_pointwise_call(node):
        return False
    value = fake_result(node)
    if not isinstance(value, Tensor) or value.dim() != 3 or geometry.surely_contiguous(value):
        return False
    return any("layout" in _viewed(n).meta for n in _inputs_of_its_shape(node))


def _viewed(node: Any) -> Node:
    while node.target in _VIEWS:
        node = node.args[0]
    return node


def _shape(node: Node) -> list[str]:
    return list(map(str, getattr(fake_result(node), "shape", ())))


def _components(nodes: list[Node]) -> list[set[Node]]:
    """The nodes in sets that images among them connect."""
    component_of: dict[Node, set[Node]] = {node: {node} for node in nodes}
    for node in nodes:
        for other in (*_images(node), *_read(node)):
            if other not in component_of:
                continue
            small, large = sorted((component_of[node], component_of[other]), key=len)
            if small is not large:
                large |= small
                component_of.update(dict.fromkeys(small, large))
    return list({id(component): component for component in component_of.values()}.values())


def _read(node: Any) -> tuple[Node, ...]:
    """The images that a convolution reads."""
    convolution = _Convolution.of(node)
    if convolution is None:
        return ()
    return convolution.images


def _gain(node: Node) -> float:
    """What a convolution gains from channels-last images, in elements of conversions."""
    convolution = _Convolution.of(node)
    if convolution is None:
        return 0.0
    results = node
    if convolution.mask is not None:
        results = convolution.images[0]
    sums = math.prod(convolution.weight.shape[1:])
    return _elements(results) * max(1.0, sums / CHEAP_SUM)


def _conversions(node: Node, connected: set[Node]) -> float:
    """How many elements are converted because this node is channels-last and others are not."""
    converted: list[Node] = []
    if is_returned(node) and not _is_channels_last(node):
        converted.append(node)
    for user in node.users:
        if _convolves(user) and user not in connected:
            converted.append(node)
    for image in _read(node):
        if image not in connected and not _is_channels_last(image):
            converted.append(image)
    return sum(map(_elements, converted))


def _is_only_returned(node: Node) -> bool:
    """Whether a pointwise result of a GPU is read by the caller alone: its kernel writes it in the
    caller's layout."""
    if not is_pointwise_call(node) or fake_result(node).device.type != "cuda":
        return False
    return all(user.op == "output" for user in node.users)


def _is_channels_last(node: Node) -> bool:
    value = _first(fake_result(node))
    return isinstance(value, Tensor) and geometry.at_hand(value.stride()[1]) == 1


def _elements(node: Node) -> float:
    """The size of an image; that of the present call where sizes are symbols."""
    return float(math.prod(map(geometry.at_hand, _first(fake_result(node)).shape)))
