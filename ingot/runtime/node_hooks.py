"""The hooks on a node of autograd's graph, which torch lets one add, and not see.

A node goes in, and its tables of hooks come out. They are read from the node's memory, at places
that are measured: hooks are put on nodes made for the purpose, and what changes tells the place.
Where it is not as expected, on another build of torch, `hooks_of` raises Unsupported.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ingot.errors import Unsupported, unsupported
from ingot.torch_private import (
    DisableTorchDispatch,
    FunctionBase,
    top_saved_tensors_default_hooks,
)

_WORD = 8
_CPP_NODE = 16  # where a Python object that stands for a node of C++ has its address, in bytes
_SCANNED = 40  # words at the beginning of a node, which is longer than that
_Words = ctypes.c_size_t * _SCANNED


class NodeHooks(NamedTuple):
    """Hooks by when they run.

    - `tensor`: on single gradients that come in, each table with the position of the gradient.
    - `before`: on all gradients that come in.
    - `behind`: on the gradients that the node gives.

    `retained` are the positions of the gradients that are stored in tensors as they come in.
    """

    tensor: tuple[tuple[dict[int, Any], int], ...]
    before: tuple[dict[int, Any], ...]
    behind: tuple[dict[int, Any], ...]
    retained: tuple[int, ...]


NO_HOOKS = NodeHooks((), (), (), ())


class _Places(NamedTuple):
    """Where nodes have their hooks.

    In words of a node: the vectors of hooks, the number of tensors that retain their gradients, and
    the sequence number, by which a node is recognized. `tables` are the words that hooks of
    Python's begin with. In bytes: where a Python object that stands for a function of Python's has
    the node's address.
    """

    tensor: int
    before: int
    behind: int
    retained: int
    sequence: int
    tables: dict[str, int]
    python_node: int


def hooks_of(node: Any) -> NodeHooks:
    """The hooks of a node; of one that accumulates, without those of the tensor. Raises Unsupported
    where they cannot be read, as those of C++ cannot."""
    places = _places()
    if places is None:
        raise unsupported("backward-hook", "hooks on results cannot be seen with this torch")
    address = _address(node, places.python_node)
    words = _Words.from_address(address)
    if words[places.sequence] != node._sequence_nr():
        raise unsupported(
            "backward-hook", "a node of autograd's graph is not laid out as others are"
        )
    retained = _positions(address, places.retained)
    vectors = (places.tensor, places.before, places.behind)
    if not retained and all(words[first] == words[first + 1] for first in vectors):
        return NO_HOOKS
    tables, hooks = places.tables, _vector(address, places.tensor)
    tensor = tuple([(_table(hook, tables["tensor"]), _word(hook, 2)) for hook in hooks])
    before = _tables(_vector(address, places.before), tables["before"])
    behind = _tables(_vector(address, places.behind), tables["behind"])
    return NodeHooks(tensor, before, behind, retained)


def hooks_if_readable(node: Any) -> NodeHooks:
    """The same; none where they cannot be read."""
    try:
        return hooks_of(node)
    except Unsupported:
        return NO_HOOKS


def has_hooks_behind(node: Any) -> bool:
    """Whether there are hooks on the gradients that a node gives, of whatever language; False where
    that cannot be read."""
    places = _places()
    if places is None:
        return False
    address = _address(node, places.python_node)
    return _word(address, places.behind) != _word(address, places.behind + 1)


def places_of_hooks() -> tuple[int, ...] | None:
    """Where nodes that are functions of Python's have their hooks. In order: the words of the
    vectors, of the number of tensors that retain their gradients and of the sequence number, and
    the byte of the node's address."""
    places = _places()
    if places is None:
        return None
    vectors = places.tensor, places.before, places.behind
    return *vectors, places.retained, places.sequence, places.python_node


def _address(node: Any, python_node: int) -> int:
    offset = _CPP_NODE
    if isinstance(node, FunctionBase):
        offset = python_node
    return ctypes.c_size_t.from_address(id(node) + offset).value


def _word(address: int, position: int) -> int:
    return ctypes.c_size_t.from_address(address + _WORD * position).value


def _vector(address: int, position: int) -> list[int]:
    """The addresses of the hooks in a vector."""
    begin, end = _word(address, position), _word(address, position + 1)
    return [_word(place, 0) for place in range(begin, end, _WORD)]


def _positions(address: int, retained: int) -> tuple[int, ...]:
    """The keys of the map whose number of elements is the word `retained`: before it is the first
    of a list."""
    positions, count, entry = list[int](), _word(address, retained), 0
    if count:
        entry = _word(address, retained - 1)
    while entry and len(positions) < count:
        positions.append(_word(entry, 1))
        entry = _word(entry, 0)
    return tuple(positions)


def _tables(hooks: list[int], kind: int) -> tuple[dict[int, Any], ...]:
    return tuple([_table(hook, kind) for hook in hooks])


def _table(hook: int, kind: int) -> dict[int, Any]:
    if _word(hook, 0) != kind:
        raise unsupported("backward-hook", "a hook of C++ on the backward")
    return ctypes.cast(_word(hook, 1), ctypes.py_object).value  # type: ignore[no-any-return]


@functools.cache
def _places() -> _Places | None:
    """Where nodes have their hooks; None where that is not as expected."""
    quiet: AbstractContextManager[Any] = nullcontext()
    if top_saved_tensors_default_hooks(False):  # which would see more than the program saves
        quiet = saved_tensors_hooks(_same, _same)
    try:
        with quiet, torch.enable_grad(), DisableTorchDispatch():
            return _measured_places()
    except _Unexpected:
        return None


class _Unexpected(Exception):
    pass


def _measured_places() -> _Places:
    def tensor_hook(y: Tensor) -> Any:
        y.register_hook(_nothing)
        return y._backward_hooks

    tensor, tensor_kind = _vector_of(tensor_hook)

    def node_of(y: Tensor) -> Any:
        return y.grad_fn

    before, before_kind = _vector_of(
        lambda y: node_of(y).register_prehook(_nothing).hooks_dict_ref()
    )
    behind, behind_kind = _vector_of(lambda y: node_of(y).register_hook(_nothing).hooks_dict_ref())
    retaining = _changes(lambda y: y.retain_grad())
    retained = _only([k for k, *words in retaining if words == [0, 1]])
    second = torch.zeros(3, requires_grad=True).unbind()[1]
    second.retain_grad()
    if _positions(_address(second.grad_fn, 0), retained) != (1,):
        raise _Unexpected
    number = 0x1A60_7000_1A60
    numbered = _changes(lambda y: y.grad_fn._set_sequence_nr(number))  # type: ignore[union-attr]
    sequence = _only([k for k, _, new in numbered if new == number])
    tables = {"tensor": tensor_kind, "before": before_kind, "behind": behind_kind}
    return _Places(tensor, before, behind, retained, sequence, tables, _python_node(sequence))


def _python_node(sequence: int) -> int:
    """A pointer, or a pointer and what counts its users, is the last that such an object holds."""
    # only it keeps the node alive, before torch 2.13
    y = _Plain.apply(torch.zeros(1, requires_grad=True))
    function = y.grad_fn
    function._set_sequence_nr(0x1A60_7000_1A61)
    size = FunctionBase.__basicsize__
    for offset in (size - _WORD, size - 2 * _WORD):
        address = _address(function, offset)
        if address % _WORD == 0 and address and _word(address, sequence) == 0x1A60_7000_1A61:
            return offset
    raise _Unexpected


class _Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> Tensor:  # type: ignore[override]
        return tangent


def _nothing(*_: Any) -> None:
    pass


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _changes(
    change: Callable[[Tensor], Any], y: Tensor | None = None
) -> list[tuple[int, int, int]]:
    """The words of the node of `y`, a new one, that a change of it changes: their positions, before
    and after it."""
    if y is None:
        y = torch.zeros(1, requires_grad=True).sin()
    address = _address(y.grad_fn, 0)
    before = _scanned(address)
    change(y)
    words = enumerate(zip(before, _scanned(address)))
    return [(k, old, new) for k, (old, new) in words if old != new]


def _scanned(address: int) -> list[int]:
    """The first words of a node."""
    return [_word(address, k) for k in range(_SCANNED)]


def _vector_of(add: Callable[[Tensor], Any]) -> tuple[int, int]:
    """Where the vector is to which `add` adds a hook, whose table it returns, and what such a hook
    begins with."""
    y, tables = torch.zeros(1, requires_grad=True).sin(), list[Any]()
    changed = _changes(lambda y: tables.append(add(y)), y)
    first = 0
    if changed:
        first = changed[0][0]
    expected = [(first, 0), (first + 1, 0), (first + 2, 0)]
    if [(k, old) for k, old, _ in changed] != expected:
        raise _Unexpected
    if changed[1][2] - changed[0][2] != _WORD:
        raise _Unexpected
    hook = _word(changed[0][2], 0)
    if _word(hook, 1) != id(tables[0]) or tables[0] is None:
        raise _Unexpected
    return first, _word(hook, 0)


def _only(places: list[int]) -> int:
    if len(places) != 1:
        raise _Unexpected
    return places[0]
