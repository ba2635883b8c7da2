"""Numbers on the CPU beside a GPU's tensors: which nodes of a graph are computed there."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.fx

from ingot.errors import unsupported
from ingot.loops.functional_ops import FunctionalForm
from ingot.loops.side_effects import calls_foreign
from ingot.torch_private import aten

_CPU = torch.device("cpu")


def device_of(graph: torch.fx.Graph) -> tuple[torch.device, str]:
    """The device of a graph's tensors, and where it is first seen; a GPU where there are CPU
    tensors besides. Raises Unsupported for any other two devices."""
    places: dict[torch.device, str] = {}
    for node in graph.nodes:
        for tensor in _tensors(node):
            if (device := tensor.device) not in places:
                places[device] = node.meta.get("where", "")
    others = [device for device in places if device != _CPU]
    if len(others) > 1 or (len(places) > 1 and others[0].type != "cuda"):
        raise unsupported(
            "device",
            f"tensors on several devices: {', '.join(map(str, places))}",
            [*places.values()][1],
        )
    device = next(iter(others or places), _CPU)
    return device, places.get(device, "")


def on_host(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """The nodes whose values are on the CPU, in a graph of a GPU's. Numbers are computed there, and
    tensors of any size copied; raises Unsupported where more is."""
    device, _ = device_of(graph)
    if device == _CPU:
        return frozenset()
    hosts = set()
    for node in graph.nodes:
        devices = {t.device for t in _tensors(node)}
        if isinstance(node.target, FunctionalForm) and len(devices) > 1:
            what = f"{node.target} writes or gives tensors on several devices"
            raise unsupported("device", what, node.meta.get("where", ""))
        if devices != {_CPU}:
            continue
        hosts.add(node)
        if node.op != "call_function" or node.target is aten._to_copy.default:
            continue
        if "binds" in node.meta or any(
            not _is_number(t) for n in (node, *node.all_input_nodes) for t in _tensors(n)
        ):
            what = f"{node.target} of tensors on the CPU, beside those on {device}"
            raise unsupported("device", what, node.meta.get("where", ""))
    return frozenset(hosts)


def moves(node: torch.fx.Node, hosts: frozenset[torch.fx.Node]) -> bool:
    """Whether a node takes tensors from one side to the other.

    A number on the CPU is a kernel's argument. A foreign op is given the tensor that holds it.
    """
    if not hosts:
        return False
    if node in hosts:
        return any(n not in hosts and any(True for _ in _tensors(n)) for n in node.all_input_nodes)
    for n in node.all_input_nodes:
        if n in hosts:
            if calls_foreign(node.target) or not all(map(_is_number, _tensors(n))):
                return True
    return False


def _is_number(tensor: torch.Tensor) -> bool:
    return all(isinstance(n, int) and n == 1 for n in tensor.shape)


def _tensors(node: torch.fx.Node) -> Iterator[torch.Tensor]:
    value = node.meta.get("val")
    for element in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(element, torch.Tensor):
            yield element
