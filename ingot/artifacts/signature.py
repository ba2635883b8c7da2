"""What an entry of an artifact takes: the facts of its arguments that its program relies on.

In: the arguments of a call. Out: its leaves (tensors and integers), or an ArtifactError that says
which fact differs. Made where an artifact is exported, packed into it, and checked at each call.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.artifacts.trees import Node, leaves_of
from ingot.errors import ArtifactError
from ingot.torch_private import dispatch_keys


class Parameter(NamedTuple):
    """An argument: its name, which ways it may be given, and its tree."""

    name: str
    by_position: bool
    by_name: bool
    tree: Node


class TensorLeaf(NamedTuple):
    """A tensor among the arguments. A size is an int, or a name where it varies; a stride is None
    where it follows from the sizes. `has_gradient`: it may require one."""

    name: str
    dtype: torch.dtype
    device: torch.device
    sizes: tuple[int | str, ...]
    strides: tuple[int | None, ...]
    is_written: bool
    has_gradient: bool

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.sizes))
        return f"{str(self.dtype).removeprefix('torch.')}[{sizes}] on {self.device}"


class Number(NamedTuple):
    """An integer that a call has: of a leaf, its "size" or "stride" along a dimension, or its
    "value"; and what users call it."""

    leaf: int
    what: str
    dim: int
    name: str


class Condition(NamedTuple):
    """A relation of two expressions (see `loops/postfix.py`) over the numbers, and its text."""

    left: tuple[Any, ...]
    relation: str
    right: tuple[Any, ...]
    text: str

    def holds(self, numbers: Sequence[int]) -> bool:
        try:
            left, right = evaluated(self.left, numbers), evaluated(self.right, numbers)
        except ZeroDivisionError:
            return False
        return RELATIONS[self.relation](left, right)


class Signature(NamedTuple):
    """All of that of one entry. `leaves` has None for an integer; `distinct` are pairs of leaves
    that must be two objects. `result` is described in `trees.py`."""

    parameters: tuple[Parameter, ...]
    leaves: tuple[TensorLeaf | None, ...]
    numbers: tuple[Number, ...]
    conditions: tuple[Condition, ...]
    distinct: tuple[tuple[int, int], ...]
    result: tuple[Node, ...]

    @staticmethod
    def of(parts: Sequence[Any]) -> Signature:
        """The signature of what `plain` gave."""
        parameters, leaves, numbers, conditions, distinct, result = parts
        known: list[TensorLeaf | None] = []
        for leaf in leaves:
            known.append(None if leaf is None else TensorLeaf(*leaf))
        return Signature(
            tuple(itertools.starmap(Parameter, parameters)),
            tuple(known),
            tuple(itertools.starmap(Number, numbers)),
            tuple(itertools.starmap(Condition, conditions)),
            distinct,
            result,
        )

    def plain(self) -> Any:
        """The same as tuples that can be packed."""
        return _plain(self)

    def sizes_above_one(self) -> set[str]:
        """The sizes that the program takes for anything but 1, which is asked where it decides how
        tensors are laid out."""
        names = set()
        for condition in self.conditions:
            left, right = condition.left, condition.right
            if condition.relation == "!=" and left[0][0] == "symbol" and right == (("const", 1),):
                if len(left) == 1:
                    names.add(self.numbers[left[0][1]].name)
        return names

    # -- a call ------------------------------------------------------------------------------------

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        """The arguments of a call in the order of the parameters, and their leaves, all facts of
        which hold. Raises ArtifactError where one does not, and TypeError for arguments that there
        are not."""
        leaves: dict[int, Any] = {}
        given = self._given(args, kwargs)
        for parameter, value in zip(self.parameters, given):
            leaves_of(parameter.tree, value, parameter.name, leaves)
        values = list(map(leaves.__getitem__, range(len(self.leaves))))
        for k, leaf in enumerate(self.leaves):
            if leaf is not None:
                values[k] = _checked(leaf, values[k])
        self._check_numbers(values)
        for first, second in self.distinct:
            if values[first] is values[second]:
                names = [getattr(self.leaves[k], "name", "an int") for k in (first, second)]
                raise ArtifactError(f"arguments {names[0]!r} and {names[1]!r} are one object")
        return given, values

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments in the order of the parameters."""
        by_position = [p for p in self.parameters if p.by_position]
        if len(args) > len(by_position):
            raise TypeError(f"expected {len(by_position)} arguments by position, got {len(args)}")
        given = {parameter.name: value for parameter, value in zip(by_position, args)}
        by_name = {p.name: p for p in self.parameters if p.by_name}
        for name, value in kwargs.items():
            if name not in by_name:
                raise TypeError(f"there is no argument {name!r}; the arguments are: {self}")
            if name in given:
                raise TypeError(f"argument {name!r} is given twice")
            given[name] = value
        for parameter in self.parameters:
            if parameter.name not in given:
                raise TypeError(f"argument {parameter.name!r} is missing")
        return [given[parameter.name] for parameter in self.parameters]

    def _check_numbers(self, values: Sequence[Any]) -> None:
        numbers, named = [], dict[str, tuple[int, Number]]()
        for number in self.numbers:
            leaf = values[number.leaf]
            if number.what == "size":
                value = leaf.shape[number.dim]
            elif number.what == "stride":
                value = leaf.stride(number.dim)
            else:
                value = leaf
            numbers.append(value)
            if number.what == "stride":
                continue
            first, where = named.setdefault(number.name, (value, number))
            if first != value:
                raise ArtifactError(
                    f"{number.name} is {first} in {self._place(where)}, and {value} in "
                    f"{self._place(number)}"
                )
        for condition in self.conditions:
            if not condition.holds(numbers):
                now = ", ".join(f"{n.name} is {v}" for n, v in zip(self.numbers, numbers))
                raise ArtifactError(f"expected {condition.text}, but {now}")

    def _place(self, number: Number) -> str:
        leaf = self.leaves[number.leaf]
        if leaf is None:
            return "the arguments"
        return f"{leaf.name}.shape[{number.dim}]"

    def __str__(self) -> str:
        texts = []
        for parameter in self.parameters:
            texts.append(f"{parameter.name}: {self._shown(parameter.tree)}")
        return f"({', '.join(texts)})"

    def _shown(self, node: Node) -> str:
        kind, part = node
        if kind == "tensor":
            return str(self.leaves[part])
        if kind == "int":
            return "int"
        if kind == "constant":
            return repr(part)
        if kind == "dict":
            return f"{{{', '.join(f'{key!r}: {self._shown(item)}' for key, item in part)}}}"
        items = ", ".join(map(self._shown, part))
        return f"[{items}]" if kind == "list" else f"({items})"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value


def _keys_of_plain_tensors() -> frozenset[int]:
    plain = torch.empty(0)
    with torch.inference_mode():
        inference = torch.empty(0)
    return frozenset({dispatch_keys(plain).raw_repr(), dispatch_keys(inference).raw_repr()})


_PLAIN_KEYS = _keys_of_plain_tensors()


def why_not_plain(tensor: Tensor) -> str | None:
    """What keeps a tensor of a CPU from being a plain one, whose memory programs may touch."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return f"is a {type(tensor).__name__}, a subclass of Tensor"
    if tensor.device.type != "cpu":
        return f"is on {tensor.device}, and artifacts are for CPUs"
    if tensor.layout is not torch.strided:
        return f"has the layout {tensor.layout}"
    if dispatch_keys(tensor).raw_repr() not in _PLAIN_KEYS:
        return "is no plain tensor (conjugated, negated, quantized, or of a transform)"
    return None


def _checked(leaf: TensorLeaf, tensor: Tensor) -> Tensor:
    """The tensor, with usual strides where its size is 1. Raises ArtifactError if it differs."""
    problem = why_not_plain(tensor)
    if problem is not None:
        raise ArtifactError(f"argument {leaf.name!r} {problem}; expected {leaf}")
    fits = tensor.dtype is leaf.dtype and tensor.dim() == len(leaf.sizes)
    if fits:
        for size, expected in zip(tensor.shape, leaf.sizes):
            fits = fits and (type(expected) is str or size == expected)
    if not fits:
        dtype, sizes = str(tensor.dtype).removeprefix("torch."), ", ".join(map(str, tensor.shape))
        raise ArtifactError(f"argument {leaf.name!r}: expected {leaf}, got {dtype}[{sizes}]")
    if torch.is_grad_enabled() and tensor.requires_grad and not leaf.has_gradient:
        raise ArtifactError(
            f"argument {leaf.name!r} requires gradients, and the artifact computes none of it: "
            "call it under torch.no_grad(), give it a tensor that is detached, or export it with "
            "training=True and an argument that requires gradients"
        )
    if 1 in tensor.shape and (None in leaf.strides or tensor.stride() != leaf.strides):
        tensor = with_usual_strides(tensor)
    for stride, is_now in zip(leaf.strides, tensor.stride()):
        if stride is not None and stride != is_now:
            raise ArtifactError(
                f"argument {leaf.name!r}: expected strides {_texts(leaf.strides)}, got "
                f"{_texts(tensor.stride())}: lay it out as in the call that was exported, by "
                ".contiguous() as a rule"
            )
    return tensor


def _texts(strides: Iterable[int | None]) -> str:
    return f"({', '.join('any' if stride is None else str(stride) for stride in strides)})"


def with_usual_strides(tensor: Tensor) -> Tensor:
    """The same elements; a dimension of size 1 has the stride that it has in contiguous tensors."""
    if 1 not in tensor.shape or not tensor.is_contiguous():
        return tensor
    strides, stride = [0] * tensor.dim(), 1
    for dim in reversed(range(tensor.dim())):
        strides[dim] = stride
        stride *= tensor.shape[dim]
    if tuple(strides) == tensor.stride():
        return tensor
    return tensor.as_strided(tensor.shape, strides)


def refuse_shared_memory(tensors: Iterable[tuple[str, Tensor, bool]]) -> None:
    """Raises ArtifactError where a tensor that is written shares memory with another. Each is its
    name, the tensor, and whether it is written."""
    spans: list[tuple[str, int, int, bool]] = []
    for name, tensor, is_written in tensors:
        if not tensor.numel():
            continue
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
        start = tensor.data_ptr()
        end = start + (last + 1) * tensor.element_size()
        for other, its_start, its_end, its_written in spans:
            if (is_written or its_written) and start < its_end and its_start < end:
                raise ArtifactError(f"{other} and {name} share memory that is written")
        spans.append((name, start, end, is_written))


RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}


def evaluated(steps: Iterable[tuple[Any, ...]], numbers: Sequence[int]) -> int:
    """The value of an expression over the numbers of a call."""
    stack: list[int] = []
    for step in steps:
        if step[0] == "const":
            stack.append(step[1])
        elif step[0] == "symbol":
            stack.append(numbers[step[1]])
        else:
            right = stack.pop()
            stack.append(_OPERATIONS[step[0]](stack.pop(), right))
    return stack.pop()
