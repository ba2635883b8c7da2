"""Tensors whose elements are known during capture, since they follow from numbers in the program's
text and from sizes. `torch.tensor(3)` and `torch.div(12, 4)` give such ones. They are computed for
real."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor, storage_key
from ingot.graph.meta import tensors_in
from ingot.graph.repeats import is_torchs
from ingot.sequences import map_leaves

MOST = 64
"""Elements of such a tensor."""

COMPUTES = frozenset(
    """
    tensor as_tensor scalar_tensor arange zeros ones full linspace eye
    zeros_like ones_like full_like new_tensor new_zeros new_ones new_full
    clone detach to type_as int long float double bool
    add sub subtract mul multiply div divide true_divide floor_divide remainder fmod neg abs
    floor ceil round trunc sqrt pow exp log log2 log10 min max amin amax clamp clip minimum maximum
    sum prod mean any all cumsum cumprod argmin argmax sort flip diff where eq ne lt le gt ge
    logical_and logical_or logical_not logical_xor isin
    triu tril masked_fill _canonical_mask
    view reshape flatten ravel unsqueeze squeeze expand unbind stack cat concat select narrow t
    permute transpose repeat tile split chunk getitem contiguous
    truediv floordiv mod and_ or_ xor invert inv pos rsub lshift rshift
    __rtruediv__ __rfloordiv__ __rpow__ __rmod__
    """.split()
)
"""Functions and methods that do the same whenever they are called, by their names."""
_WRITES = frozenset(
    """
    setitem iadd isub imul itruediv ifloordiv
    add_ sub_ mul_ div_ fill_ zero_ clamp_ copy_ masked_fill_
    """.split()
)
_NO_TREES = frozenset((FakeTensor, float, int, bool, str, type(None), torch.dtype))


class _Unknown(Exception):
    """An argument is not known."""


class KnownTensors:
    """Those of one capture, whose context has them. `sizes` has what stands for the numbers in
    those of one element that vary, as sizes do."""

    def __init__(self, context: FakeContext) -> None:
        self.context = context
        self.sizes: dict[int, tuple[FakeTensor, Any]] = {}  # by id of the fake

    def of(self, fake: Tensor) -> Tensor | None:
        """The elements of a fake, which only this class may write; None where they are not
        known."""
        _, elements = self.context.known.get(id(fake), (None, None))
        return elements

    def note(
        self,
        target: Any,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        """After a call of a torch function or method: does on real tensors what it has done on
        fakes."""
        context = self.context
        tensors: list[Tensor] = [a for a in args if type(a) is FakeTensor]
        if kwargs or not _NO_TREES.issuperset(map(type, args)):
            tensors = tensors_in((list(args), dict(kwargs)))
        known = [t for t in tensors if id(t) in context.known or id(t) in self.sizes]
        if tensors and not known:
            return
        if isinstance(target, str):
            name = target
        else:
            name = getattr(target, "__name__", "")
        computes = name in COMPUTES and is_torchs(target) and "out" not in kwargs
        if not known and not computes:
            return
        may_run = (computes or name in _WRITES) and _is_small(result)
        if may_run and self._done(function, args, kwargs, result):
            return
        keys = set(map(storage_key, known))
        # A result on the same memory, or one that a transform of torch.func has wrapped, may be
        # written from here on.
        results = tensors_in(result)
        shares = any(type(t) is not FakeTensor or storage_key(t) in keys for t in results)
        if not computes or shares:
            context.known, self.sizes = _without(context.known, keys), _without(self.sizes, keys)

    def _done(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> bool:
        """Whether a call was done on real tensors as well."""
        try:
            real_args, real_kwargs = map_leaves(self._real, (list(args), dict(kwargs)))
            with torch.no_grad():
                return self._pair(result, function(*real_args, **real_kwargs))
        except (RuntimeError, ValueError, TypeError, IndexError, _Unknown):
            return False

    def _real(self, argument: Any) -> Any:
        """An argument, or the real tensor in place of a fake. Raises _Unknown for sizes that are
        symbols, and for what a transform of torch.func has wrapped."""
        if isinstance(argument, Tensor):
            if id(argument) not in self.context.known:
                raise _Unknown
            return self.context.known[id(argument)][1]
        if isinstance(argument, slice):
            return slice(*map(self._real, (argument.start, argument.stop, argument.step)))
        if isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise _Unknown
        return argument

    def _pair(self, fake: Any, real: Any) -> bool:
        """Notes what each fake of a result is; False where they do not match."""
        if isinstance(fake, (list, tuple)):
            return len(fake) == len(real) and all([*map(self._pair, fake, real)])
        if isinstance(fake, FakeTensor):
            if (fake.dtype, fake.shape, fake.device) != (real.dtype, real.shape, real.device):
                return False
            self.context.known[id(fake)] = fake, real
        return True


def _without(
    known: dict[int, tuple[FakeTensor, Any]], keys: set[int]
) -> dict[int, tuple[FakeTensor, Any]]:
    """What lies in other memory."""
    result = {}
    for k, pair in known.items():
        if storage_key(pair[0]) not in keys:
            result[k] = pair
    return result


def _is_small(result: Any) -> bool:
    elements = 0
    for t in tensors_in(result):
        if geometry.has_symbols(t.shape):
            return False
        elements += t.numel()
    return elements <= MOST
