"""The gradient of a depthwise convolution's weight as a kernel: how the images are cut up."""

from __future__ import annotations

from dataclasses import replace

from ingot.loops.depthwise import DepthwiseGradient
from ingot.loops.ir import Buffer, Origin
from ingot.loops.target import Target
from ingot.schedule.build import build_kernel
from ingot.schedule.groups import Overlay
from ingot.schedule.kernel import Kernel
from ingot.schedule.reuse import renamed


def depthwise_kernel(
    node: DepthwiseGradient, buffers: dict[str, Buffer], target: Target
) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel of the node and the buffers that its parameters stand for.

    Its stages are those of the sums as loops; how they are computed is written by `depthwise`, the
    node over the kernel's parameters.
    """
    sums = node.sums
    laid = Overlay(sums.loops, (sums,), (sums.reduced,))
    kernel, arguments = build_kernel(laid, set(), buffers, target)
    names = dict(zip(arguments, [p.name for p in kernel.parameters]))
    own = replace(renamed(node, names.__getitem__), name="", origin=Origin(()))
    return replace(kernel, depthwise=own), arguments
