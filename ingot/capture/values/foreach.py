"""torch's operations of lists of tensors (`torch._foreach_add_`, ...): the same operation of each
tensor, as eager does it on a CPU. Making that fast is the schedule's affair: equal loops over many
tensors share a launch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.meanings import How, means
from ingot.capture.values.base import Arguments, Keywords, OptionalRule, Value, map_values
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.sequences import ListValue, SequenceValue, TupleValue
from ingot.capture.values.tensor import TensorMethod, TensorValue
from ingot.capture.values.wrapper_objects import RULES, WrapperObject, call_wrapped
from ingot.graph.wrappers import is_wrapper_class
from ingot.torch_private import (
    Missing,
    foreach_copy_,
    foreach_norm,
    foreach_pow,
    foreach_zero_,
    group_tensors_by_device_and_dtype,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session

_PLAIN = """
abs acos add asin atan ceil clamp_max clamp_min clone cos cosh div erf erfc exp expm1 floor frac
lerp lgamma log log10 log1p log2 max mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt
sub tan tanh trunc
""".split()
_RENAMED = {"maximum": "clamp_min", "minimum": "clamp_max"}
_METHODS = {**dict(zip(_PLAIN, _PLAIN)), **_RENAMED, "addcmul": "addcmul", "addcdiv": "addcdiv"}
"""By what follows `_foreach_`: the Tensor method that eager calls."""

_KEYWORDS = frozenset({"alpha", "value", "non_blocking"})
"""Those that mean the same to the method."""


def _shares(session: Session, value: Value) -> list[Value] | Value:
    """The elements of a list, one for each tensor; an argument that is no list, for all."""
    value = session.realize(value)
    if isinstance(value, SequenceValue):
        return session.realized_items(value)
    return value


def _share(shares: list[Value] | Value, k: int) -> Value:
    if isinstance(shares, list):
        return shares[k]
    return shares


_Share = tuple[TensorValue, list[Value], dict[str, Value]]


def _shares_by_tensor(
    session: Session, name: str, args: Arguments, kwargs: Keywords
) -> Iterator[_Share]:
    """Each tensor of the first list, with its share of the other arguments."""
    shares = partial(_shares, session)
    tensors, *others = map(shares, args or [TupleValue([], tuple)])
    named = map_values(shares, kwargs)
    lengths = set()
    for argument in (tensors, *others, *named.values()):
        if isinstance(argument, list):
            lengths.add(len(argument))
    if not isinstance(tensors, list) or not tensors or len(lengths) > 1:
        raise session.unsupported("foreach", f"{name}() of something else than lists of one length")
    for k, tensor in enumerate(tensors):
        if not isinstance(tensor, TensorValue):
            raise session.unsupported("foreach", f"{name}() of {tensor.describe()}")
        yield (
            tensor,
            [_share(argument, k) for argument in others],
            {key: _share(argument, k) for key, argument in named.items()},
        )


def _rule(name: str, method: str) -> OptionalRule:
    """The function `name`, which calls a Tensor method."""

    def call(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
        if method.startswith("addc") and len(args) == 4:  # a keyword of the method
            args, kwargs = args[:3], {**kwargs, "value": args[3]}
        scale = session.realize(kwargs.get("value", NONE))
        many = isinstance(scale, TensorValue) and scale.fake.dim() > 0
        if not kwargs.keys() <= _KEYWORDS or many:
            raise session.unsupported("foreach", f"{name}() with the arguments {', '.join(kwargs)}")
        results = []
        for tensor, shares, named in _shares_by_tensor(session, name, args, kwargs):
            if is_wrapper_class(type(tensor.fake)):
                function = getattr(torch.Tensor, method)
                results.append(call_wrapped(session, function, [tensor, *shares], named))
            else:
                results.append(TensorMethod(tensor, method).call(session, shares, named))
        if not method.endswith("_"):
            return TupleValue(results, tuple)
        if _GIVES_LIST:
            return session.realize(args[0])
        return NONE

    return call


_zeros = [torch.zeros(1, device="cpu")]
_GIVES_LIST: bool = not isinstance(foreach_zero_, Missing) and foreach_zero_(_zeros) is _zeros
"""What an operation in place gives: its first argument, or None."""


@means(foreach_pow, how=How.OPERATION)
def _pow(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    """One number to the power of many tensors, besides the usual."""
    if len(args) != 2 or kwargs or isinstance(session.realize(args[0]), SequenceValue):
        return _rule("_foreach_pow", "pow")(session, args, kwargs)
    shares = _shares_by_tensor(session, "_foreach_pow", args[1:], {})
    return _results_for_each(session, torch.pow, args[:1], shares)


@means(foreach_norm, how=How.OPERATION)
def _norm(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    if not kwargs.keys() <= {"ord", "dtype"} or len(args) > 2:
        raise session.unsupported("foreach", "_foreach_norm() with further arguments")
    shares = _shares_by_tensor(session, "_foreach_norm", args, kwargs)
    return _results_for_each(session, torch.linalg.vector_norm, (), shares)


def _results_for_each(
    session: Session, function: Any, first: Arguments, shares: Iterator[_Share]
) -> TupleValue:
    """What a function gives for arguments that come first, and each tensor with its share."""
    called = session.builtin(function)
    results = []
    for t, rest, named in shares:
        results.append(session.call(called, [*first, t, *rest], named))
    return TupleValue(results, tuple)


@means(group_tensors_by_device_and_dtype)
def _grouped(session: Session, lists: Value, with_indices: Value = NONE) -> Value:
    """Lists of tensors, grouped by device and dtype of the tensors in the first list."""
    columns = list(map(session.realized_items, session.unpacked(lists)))
    groups: dict[Any, list[int]] = {}
    for k, tensor in enumerate(columns[0]):
        content = tensor
        if isinstance(tensor, WrapperObject):
            content = tensor.content(session)
        if not isinstance(content, TensorValue):
            raise session.unsupported(
                "foreach", "_group_tensors_by_device_and_dtype() of something else than tensors"
            )
        groups.setdefault((content.fake.device, content.fake.dtype), []).append(k)
    entries: dict[Any, Value] = {}
    for key, members in groups.items():
        group = []
        for column in columns:
            group.append(ListValue([column[k] for k in members if column], list))
        indices = ListValue([], list)
        if session.truth(with_indices):
            indices.items += map(ConstantValue, members)
        entries[key] = TupleValue([ListValue(group, list), indices], tuple)
    return session.dict_of_values(entries)


def _state(function: Any, rule: OptionalRule) -> None:
    RULES[function] = means(function, how=How.OPERATION)(rule)


for _name, _method in _METHODS.items():
    for _end in ("", "_"):
        _function: Any = getattr(torch, f"_foreach_{_name}{_end}", None)
        if _function is not None and _function is not foreach_pow:  # which has a rule above
            _state(_function, _rule(_function.__name__, _method + _end))
_state(foreach_zero_, _rule("_foreach_zero_", "zero_"))
_state(foreach_copy_, _rule("_foreach_copy_", "copy_"))
