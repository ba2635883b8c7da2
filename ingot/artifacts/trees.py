"""The arguments and the results of a call as trees of plain values, that can be packed.

A node is a tuple that begins with its kind:

===============================  ==================================================================
("tensor", k) | ("int", k)       the k-th leaf of the arguments
("constant", value)              None, a bool, an int, a float, a text, ...: exactly this value
("tuple" | "list", nodes)        of exactly this type
("dict", ((key, node), ...))     the keys in any order
===============================  ==================================================================

A result is a list of such nodes in which the parts of a node stand before it, as their positions,
so that an object that is at two places of it is one object. ("output", k) is an output of the
program there, ("given", (k, *keys)) what is found in the k-th argument, ("state", k) a tensor of
the artifact's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.errors import ArtifactError

Node = tuple[Any, ...]

CONSTANTS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device}
    | {torch.layout, torch.memory_format}
)
"""The types of constants among the arguments."""

TENSORS = (Tensor, torch.nn.Parameter)
"""The exact types of tensors among the arguments."""

MADE: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "list": list,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
}


def same(a: Any, b: Any) -> bool:
    """Whether two constants are the same: of one type, floats by their bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (float, complex)):
        return struct.pack("dd", a.real, a.imag) == struct.pack("dd", b.real, b.imag)
    return bool(a == b)


def leaves_of(node: Node, value: Any, name: str, leaves: dict[int, Any]) -> None:
    """Adds the leaves of an argument by their numbers. Raises ArtifactError where it is another
    tree than `node`."""
    kind = node[0]
    if kind == "tensor":
        if type(value) not in TENSORS:
            raise _expected(name, "a tensor", value)
        leaves[node[1]] = value
    elif kind == "int":
        if type(value) is not int:
            raise _expected(name, "an int", value)
        leaves[node[1]] = value
    elif kind == "constant":
        if not same(value, node[1]):
            raise _expected(name, f"{node[1]!r}, as it was exported with", value)
    elif kind == "dict":
        _leaves_of_dict(node, value, name, leaves)
    else:
        if type(value) is not MADE[kind] or len(value) != len(node[1]):
            raise _expected(name, f"a {kind} of {len(node[1])} items", value)
        for k, (part, item) in enumerate(zip(node[1], value)):
            leaves_of(part, item, f"{name}[{k}]", leaves)


def _leaves_of_dict(node: Node, value: Any, name: str, leaves: dict[int, Any]) -> None:
    keys = dict(node[1]).keys()
    if type(value) is not dict or value.keys() != keys:
        raise _expected(name, f"a dict with the keys {', '.join(map(repr, keys))}", value)
    for key, part in node[1]:
        leaves_of(part, value[key], f"{name}[{key!r}]", leaves)


def _expected(name: str, what: str, value: Any) -> ArtifactError:
    shown = f"a {type(value).__name__}"
    if isinstance(value, (tuple, list)):
        shown += f" of {len(value)} items"
    elif type(value) is dict:
        shown += f" with the keys {', '.join(map(repr, value))}"
    elif type(value) in CONSTANTS:
        shown = repr(value)
    return ArtifactError(f"argument {name!r}: expected {what}, got {shown}")


def built(
    rows: Sequence[Node], outputs: Sequence[Any], given: Sequence[Any], state: Sequence[Tensor]
) -> Any:
    """The result whose nodes these are, the last of which is the whole."""
    numbered = {"output": outputs, "state": state}
    values: list[Any] = []
    for kind, part in rows:
        if kind == "constant":
            values.append(part)
        elif kind in numbered:
            values.append(numbered[kind][part])
        elif kind == "given":
            value: Any = given
            for key in part:
                value = value[key]
            values.append(value)
        elif kind == "dict":
            items = {}
            for key, item in part:
                items[values[key]] = values[item]
            values.append(items)
        elif kind == "call":
            function, arguments = part
            values.append(function(*map(values.__getitem__, arguments)))
        else:
            values.append(MADE[kind](map(values.__getitem__, part)))
    return values[-1]
