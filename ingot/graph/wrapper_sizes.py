"""How the sizes and strides of an instance of a wrapper subclass follow from its inner tensors.

In: an instance, real or around fakes, and its plain inner tensors. Out: a `Geometry`, which gives
the sizes of an instance of other tensors, or an `Outline`, which tells whether such an instance is
what was expected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ingot.errors import unsupported
from ingot.graph.symbols import to_expr
from ingot.loops.expr import Expr, Symbol
from ingot.torch_private import DisableTorchFunctionSubclass

if TYPE_CHECKING:
    from ingot.graph.wrappers import Layout

_LARGEST = 16  # of the factors that are tried


class Followed(NamedTuple):
    """A size or stride that is a multiple of one of an inner tensor, and so much more."""

    leaf: int
    what: str
    dim: int
    factor: int
    more: int

    def of_leaves(self, leaves: Sequence[Tensor]) -> Any:
        return _numbers_of(leaves[self.leaf], self.what)[self.dim] * self.factor + self.more


class Ragged(NamedTuple):
    """So many times the size of a ragged dimension. That is no number: it stands for the sizes that
    an inner tensor holds."""

    factor: Any

    def of_leaves(self, leaves: Sequence[Tensor]) -> int:
        """What torch gives `__tensor_unflatten__` in its place."""
        return -1


def is_ragged(number: Any) -> bool:
    """Whether a size or stride is a nested integer."""
    return isinstance(number, torch.SymInt) and number.node.is_nested_int()


class Geometry(NamedTuple):
    """The sizes and strides of an instance. `strides` is None where it lies in order."""

    sizes: tuple[Any, ...]
    strides: tuple[Any, ...] | None

    def of_leaves(self, leaves: Sequence[Tensor]) -> tuple[Any, ...]:
        """Those of an instance of these tensors."""
        sizes = _of_leaves(self.sizes, leaves)
        if self.strides is None:
            return sizes, _in_order(sizes)
        return sizes, _of_leaves(self.strides, leaves)


FLAT = Geometry((), ())


def geometry_of(wrapper: Tensor, leaves: Sequence[Tensor]) -> Geometry:
    """That of an instance of these inner tensors."""
    sizes, strides = tuple(wrapper.shape), wrapper.stride()
    followed = tuple(_all_followed(sizes, "size", leaves))
    if not any(map(is_ragged, sizes)) and _is_in_order(sizes, strides):
        return Geometry(followed, None)
    return Geometry(followed, tuple(_all_followed(strides, "stride", leaves)))


def _of_leaves(numbers: Sequence[Any], leaves: Sequence[Tensor]) -> tuple[Any, ...]:
    results = []
    for number in numbers:
        is_rule = isinstance(number, (Followed, Ragged))
        results.append(number.of_leaves(leaves) if is_rule else number)
    return tuple(results)


def _numbers_of(tensor: Tensor, what: str) -> Sequence[Any]:
    if what == "size":
        return tensor.shape
    return tensor.stride()


def _in_order(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """The strides of what lies in order without gaps."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step = step * max(size, 1) if isinstance(size, int) else step * size
    return tuple(reversed(strides))


def _is_in_order(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    for expected, stride in zip(_in_order(sizes), strides):
        if to_expr(expected) is not to_expr(stride):
            return False
    return True


def _all_followed(numbers: Sequence[Any], what: str, leaves: Sequence[Tensor]) -> Iterator[Any]:
    """Sizes or strides, by those of inner tensors where they seem to follow from them."""
    for dim, number in enumerate(numbers):
        if is_ragged(number):
            yield Ragged(number.node.coeff)
        else:
            yield _followed(number, dim, what, leaves)


def _followed(number: Any, dim: int, what: str, leaves: Sequence[Tensor]) -> Any:
    expr = to_expr(number)
    elsewhere: list[Followed] = []
    for k, leaf in enumerate(leaves):
        for d, other in enumerate(_numbers_of(leaf, what)):
            factor, more = _relation(expr, to_expr(other), d == dim)
            if factor:
                found = Followed(k, what, d, factor, more)
                if d == dim:
                    return found
                elsewhere.append(found)
    return elsewhere[0] if elsewhere else number


def _relation(expr: Expr, other: Expr, in_place: bool) -> tuple[int, int]:
    """The factor by which a number follows from another, and what is added; (0, 0) where it does
    not seem to."""
    if expr is other:
        return 1, 0
    if other.constant is None and expr.constant is None:
        more = (expr - other).constant
        if more is not None:
            return 1, more
    if in_place and other.constant not in (0, 1):
        for factor in range(2, _LARGEST + 1):
            if other * factor is expr:
                return factor, 0
    return 0, 0


class Outline:
    """What an instance is to torch, as plain constants.

    They are the same for all instances whose sizes follow from their inner tensors as those of the
    instance around fakes do that it is made with."""

    __name__ = "outline"

    def __init__(self, fake: Tensor, layout: Layout, followers: Mapping[str, str]) -> None:
        """`followers` says which attributes are its sizes or its strides."""
        self.layout, self.followers = layout, followers
        self._places: dict[Symbol, tuple[int, str, int]] = {}
        for k, leaf in enumerate(layout.leaves(fake)):
            for what in _WHATS:
                for dim, number in enumerate(_numbers_of(leaf, what)):
                    expr = to_expr(number)
                    if isinstance(expr, Symbol):
                        self._places.setdefault(expr, (k, what, dim))
        self._rules: dict[str, list[Any]] = {}
        for what in _WHATS:
            self._rules[what] = [_rule(n, self._places) for n in _numbers_of(fake, what)]

    def __call__(self, wrapper: Tensor) -> tuple[Any, ...]:
        with DisableTorchFunctionSubclass():
            values = self._values(self.layout.leaves(wrapper))
            differences: list[Any] = []
            for what, rules in self._rules.items():
                differences += _differences(rules, _numbers_of(wrapper, what), values)
            for name, what in self.followers.items():
                differences += _differences(self._rules[what], getattr(wrapper, name), values)
            return (tuple(differences), *facts_of(wrapper))

    def _values(self, leaves: Sequence[Tensor]) -> dict[Symbol, int]:
        values = {}
        for symbol, (k, what, dim) in self._places.items():
            values[symbol] = _numbers_of(leaves[k], what)[dim]
        return values


_WHATS = ("size", "stride")


def facts_of(wrapper: Tensor) -> tuple[Any, ...]:
    """What an instance is to torch, apart from its sizes and strides."""
    with DisableTorchFunctionSubclass():
        return (
            wrapper.storage_offset(),
            wrapper.dtype,
            wrapper.device,
            wrapper.layout,
            wrapper.requires_grad,
            wrapper.is_leaf,
        )


def _rule(number: Any, places: Collection[Symbol]) -> Any:
    """A size or stride of an instance as an expression of those symbols; as the number that it is
    now where it depends on others."""
    if is_ragged(number):
        factor = number.node.coeff
        return Ragged(factor if isinstance(factor, int) else _of_symbols(factor, number, places))
    return _of_symbols(to_expr(number), number, places)


def _of_symbols(expr: Expr, number: Any, places: Collection[Symbol]) -> Any:
    if expr.symbols.issubset(places):
        return expr
    if is_ragged(number):
        raise unsupported("nested-tensor", "a stride that depends on another tensor's sizes")
    return number.node.hint


def _differences(
    rules: Sequence[Expr | Ragged], numbers: Sequence[Any], values: Mapping[Symbol, int]
) -> tuple[Any, ...]:
    """The numbers that are not as they are expected, and their places."""
    if len(rules) != len(numbers):
        return (len(numbers),)
    results: list[Any] = []
    for dim, (rule, number) in enumerate(zip(rules, numbers)):
        found: Any = Ragged(number.node.coeff) if is_ragged(number) else number
        expected = _evaluated(rule, values)
        if found != expected:
            results.append((dim, str(found)))
    return tuple(results)


def _evaluated(rule: Any, values: Mapping[Symbol, int]) -> Any:
    if isinstance(rule, Ragged):
        return Ragged(_evaluated(rule.factor, values))
    return rule.evaluate(values) if isinstance(rule, Expr) else rule


def followers_of(wrapper: Tensor, fake: Tensor, names: Iterable[str]) -> dict[str, str]:
    """Which attributes of an instance are its sizes or strides, and of that around fakes as
    well."""
    results = {}
    for name in names:
        for what in _WHATS:
            if _is_held(wrapper, name, what) and _is_held(fake, name, what):
                results[name] = what
                break
    return results


def _is_held(wrapper: Tensor, name: str, what: str) -> bool:
    held: Any = vars(wrapper).get(name)
    numbers = _numbers_of(wrapper, what)
    if type(held) not in (tuple, torch.Size) or len(held) != len(numbers):
        return False
    return all(map(_are_same, held, numbers))


def _are_same(a: Any, b: Any) -> bool:
    if is_ragged(a) or is_ragged(b):
        return is_ragged(a) and is_ragged(b) and bool(a == b)
    return isinstance(a, (int, torch.SymInt)) and to_expr(a) is to_expr(b)
