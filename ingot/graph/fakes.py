"""Fake tensors: shape, strides, dtype, device and aliasing of a tensor, without its data.

A `FakeTensor` wraps a meta tensor, on which ops run, and reports the real device. Two fakes share
memory exactly when their meta tensors share a storage (`storage_key`). Autograd runs above the
dispatch, so `requires_grad` of a result answers as eager's would.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ingot.errors import CompilerBug, unsupported
from ingot.graph.dtensors import has_dtensor
from ingot.graph.shape_context import ShapeContext
from ingot.graph.symbols import to_expr
from ingot.reasons import SKIP
from ingot.torch_private import OpOverload, aten, disabled_torch_function_impl


class FakeTensor(Tensor):
    """A tensor without data: `meta` carries geometry and storage identity, the wrapper reports the
    real device."""

    meta: Tensor
    is_outside = False
    """Whether it stands for a tensor that existed before the call."""
    required_grad = False
    """Whether that tensor required a gradient before the call."""
    is_followed = False
    """Whether autograd does more with that gradient than to add it to `grad`: see `is_followed`."""
    origin: Any = None
    """The autograd node of that tensor before the call."""
    look: int | None = None
    """The number that `look_of` gave, None before."""
    memory: int | None = None
    """The key that `storage_key` gave, None before."""
    counts_alone = False
    """Whether it is a tensor's `data`: autograd does not count writes to it as the tensor's."""
    shown_in_inference = False
    """Whether it is a view, made in inference mode, of a tensor that is not of that mode."""

    @staticmethod
    def __new__(cls, meta: Tensor, device: torch.device, requires_grad: bool = False) -> FakeTensor:
        fake = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            layout=meta.layout,
            device=device,
            requires_grad=requires_grad,
        )
        fake.meta = meta
        return fake

    __torch_function__ = disabled_torch_function_impl  # type: ignore[assignment]

    def __init__(self, meta: Tensor, device: torch.device, requires_grad: bool = False) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore
        if has_dtensor(types):
            return NotImplemented
        # without a mode torch has by now imported torch.distributed.tensor, and sympy, to ask
        # whether this is a DTensor
        raise CompilerBug("fakes", f"{op} was called on fakes outside of `with context:`")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        sizes = ", ".join(map(str, self.shape))
        return f"FakeTensor([{sizes}], {str(self.dtype).removeprefix('torch.')}, {self.device})"


NUMBERS_OF: dict[OpOverload, Callable[..., Any]] = {
    aten.size.default: Tensor.size,
    aten.stride.default: Tensor.stride,
}
"""What code in C++ that has no words for symbols asks of a tensor, as some rules of vmap do."""


def numbers_of(op: OpOverload, tensor: Tensor) -> list[int]:
    """The answer to such a question: symbols that it is made of become what they are in this
    call."""
    return list(map(int, NUMBERS_OF[op](tensor)))


def new_fake(
    sizes: Iterable[Any],
    like: FakeTensor,
    *,
    strides: Iterable[Any] | None = None,
    dtype: torch.dtype | None = None,
) -> FakeTensor:
    """A fake with memory of its own on the device of another, and of its dtype if none is given."""
    kind: Any = {"dtype": dtype or like.dtype, "device": "meta"}
    if strides is None:
        return FakeTensor(torch.empty(tuple(sizes), **kind), like.device)
    return FakeTensor(torch.empty_strided(tuple(sizes), tuple(strides), **kind), like.device)


def fake_like(meta: Tensor, like: Tensor) -> FakeTensor:
    """A fake of what `meta` is, on the device of another tensor, and one of inference mode's if
    that is."""
    if like.is_inference() == torch.is_inference_mode_enabled():
        return FakeTensor(meta, like.device)
    with torch.inference_mode(like.is_inference()):
        return FakeTensor(meta, like.device)


def data_of(tensor: Tensor) -> Tensor:
    """`tensor.data`, as a node of a graph: it shares memory, and autograd counts writes to it by
    themselves."""
    data = tensor.data
    if isinstance(data, FakeTensor):
        data.counts_alone = True
    return data


def holds_real(tree: Any) -> bool:
    """Whether there is a tensor that is no fake in nested lists, tuples and dicts."""
    if isinstance(tree, Tensor):
        return not isinstance(tree, FakeTensor)
    if isinstance(tree, (list, tuple)):
        return any(map(holds_real, tree))
    return isinstance(tree, dict) and any(map(holds_real, tree.values()))


def fakes_in(tensors: Iterable[Tensor]) -> list[FakeTensor]:
    """The fakes among some tensors."""
    return [t for t in tensors if isinstance(t, FakeTensor)]


def storage_key(fake: Tensor) -> int:
    """Identity of the memory behind a fake: equal for two fakes exactly when they alias."""
    assert isinstance(fake, FakeTensor)
    if fake.memory is None:
        fake.memory = fake.meta.untyped_storage()._cdata
    return fake.memory


def shows_the_same(a: Tensor, b: Tensor) -> bool:
    """Whether two fakes surely show the same elements of the same memory."""
    assert isinstance(a, FakeTensor) and isinstance(b, FakeTensor)
    return a is b or (storage_key(a) == storage_key(b) and look_of(a) == look_of(b))


# -- how a fake lies in memory ---------------------------------------------------------------------

MOST_KEPT = 1 << 14
"""Looks, or results of ops, that are kept at once."""

_looks: dict[Any, int] = {}
_numbers = itertools.count()


def look_of(fake: FakeTensor) -> int:
    """A number that fakes of equal sizes, strides, offset, dtype and device have in common. Those
    with symbols have it in common within one capture."""
    if fake.look is not None:
        return fake.look
    t = fake.meta
    shapes = context_of(t)
    looks = _looks
    geometry: tuple[Any, ...] = t.shape, t.stride(), t.storage_offset()
    if shapes is not None:
        looks = shapes.looks
        geometry = tuple(map(to_expr, (*t.shape, *t.stride(), t.storage_offset())))
    if len(looks) >= MOST_KEPT:
        looks.clear()
    key = geometry, t.dtype, fake.device, t.is_conj(), t.is_neg()
    look = looks.setdefault(key, next(_numbers))
    if shapes is None or not shapes.supposes:
        fake.look = look
    return look


def context_of(t: Tensor) -> ShapeContext | None:
    """The context of the symbols in a tensor's geometry; None where there are none."""
    for number in (*t.shape, *t.stride(), t.storage_offset()):
        if isinstance(number, torch.SymInt):
            return number.node.context  # type: ignore[no-any-return]
    return None


# -- autograd's view of a fake ---------------------------------------------------------------------


def requires_grad(fake: Tensor) -> bool:
    """What `requires_grad` says. Raises Unsupported where torch refuses to say."""
    return _attribute(fake, "requires_grad")


def has_history(fake: Tensor) -> bool:
    """Whether there is a `grad_fn`. Raises Unsupported where torch refuses to say."""
    return _attribute(fake, "grad_fn") is not None


def is_rebased(fake: FakeTensor) -> bool:
    """Whether an input has become the result of an operation that wrote it."""
    return requires_grad(fake) and fake.grad_fn is not fake.origin


def _attribute(fake: Tensor, name: str) -> Any:
    try:
        return getattr(fake, name)
    except RuntimeError:  # a view under no_grad that was written
        why = "a view of a tensor that wants gradients was made without them, and written"
        raise unsupported("tensor-kind", why, action=SKIP) from None


def is_followed(tensor: Tensor) -> bool:
    """Whether autograd's engine would do more with a gradient of a tensor than to add it to its
    `grad`."""
    return not is_leaf(tensor) or bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def is_leaf(tensor: Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # torch refuses to say, for a view under no_grad that was written
        why = "a tensor cannot be traced: it is a view of one that wants gradients, and was written"
        raise unsupported("tensor-kind", why) from None
