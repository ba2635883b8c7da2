"""What guards compare: plain constants, the facts of a tensor, the memory it spans, and the state
around a call.

In: Python objects and torch's own state. Out: tuples that are equal if, and only if, compiled code
may take one for the other. Nothing here keeps a tensor.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ingot.graph.process_modes import AttentionModes
from ingot.precision import float32_precisions
from ingot.torch_private import (
    DeviceContext,
    dispatch_keys,
    dispatch_tls_local_exclude_set,
    dispatch_tls_local_include_set,
    get_function_stack_at,
    get_torch_function_state,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    peek_interpreter_stack,
)

# -- plain constants -------------------------------------------------------------------------------

_BY_VALUE = frozenset({int, bool, str, bytes, torch.device})
_BY_BITS = frozenset({float, complex})
_SEQUENCES = frozenset({tuple, torch.Size})
_SINGLETONS = frozenset(
    {type(None), type(...), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format}
)


def is_plain_constant(value: object) -> bool:
    """Whether EQUALS can guard this value."""
    kind = type(value)
    if kind in _SEQUENCES:
        return all(is_plain_constant(item) for item in value)  # type: ignore[attr-defined]
    return kind in _BY_VALUE or kind in _BY_BITS or kind in _SINGLETONS


def same_constant(a: Any, b: Any) -> bool:
    """Same type and same value; floats by their bits, so that -0.0 is not 0.0 and a NaN is
    itself."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind in _BY_BITS:
        return struct.pack("dd", a.real, a.imag) == struct.pack("dd", b.real, b.imag)
    if kind in _SEQUENCES:
        return len(a) == len(b) and all(map(same_constant, a, b))
    return kind in _BY_VALUE and a == b


# -- the facts of a tensor -------------------------------------------------------------------------

TENSOR_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # torch refuses to say, for a view under no_grad whose base was written
        return True


class TensorFacts(NamedTuple):
    """All that a compiled graph relies on in a tensor. A size or stride of None is not guarded here
    (it is symbolic)."""

    type: type
    dtype: torch.dtype
    device: torch.device
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    requires_grad: bool
    is_leaf: bool
    dispatch_keys: int  # layout, conjugate and negative bits, inference, functorch wrappers, ...

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorFacts:
        """The facts of a tensor as it is; raises TypeError for a subclass, whose attributes could
        be the user's code."""
        if type(tensor) not in TENSOR_TYPES:
            raise TypeError(f"{type(tensor).__qualname__} is not a plain tensor")
        strided = tensor.layout is torch.strided
        return TensorFacts(
            type(tensor),
            tensor.dtype,
            tensor.device,
            tuple(tensor.shape),
            tuple(tensor.stride()) if strided else (),
            tensor.requires_grad,
            _is_leaf(tensor),
            dispatch_keys(tensor).raw_repr(),
        )

    def is_resized(self, other: TensorFacts) -> bool:
        """Whether `other` is the same but for its sizes and strides."""
        if len(self.sizes) != len(other.sizes) or self.sizes == other.sizes:
            return False
        return self._without_geometry() == other._without_geometry()

    def _without_geometry(self) -> TensorFacts:
        return self._replace(sizes=(), strides=())

    def differences(self, other: TensorFacts) -> list[str]:
        """Where `other` differs from what is guarded here: "shape[0] was 4, is 8"."""
        changes = _changes(self._without_geometry(), other._without_geometry())
        if len(self.sizes) != len(other.sizes):
            return [f"ndim was {len(self.sizes)}, is {len(other.sizes)}", *changes]
        changes += _changes_of_places("shape[{}]", self.sizes, other.sizes)
        # The stride of a dimension of size 1 is guarded as well: results have eager's strides.
        changes += _changes_of_places("stride({})", self.strides, other.strides)
        return sorted(changes, key=_is_of_dispatch_keys)

    def __str__(self) -> str:
        dtype, gradient = str(self.dtype).removeprefix("torch."), ""
        if self.requires_grad:
            gradient = ", requires grad"
        sizes, strides = _listed(self.sizes), _listed(self.strides)
        return f"{dtype}[{sizes}] strides ({strides}) on {self.device}{gradient}"


def _listed(numbers: Sequence[int | None]) -> str:
    return ", ".join("*" if number is None else str(number) for number in numbers)


def _changes(before: Any, now: Any) -> list[str]:
    """The fields that differ of two named tuples: "grad_mode was True, is False"."""
    pairs = zip(before._fields, before, now, strict=True)
    results = []
    for label, was, value in pairs:
        if was != value:
            results.append(f"{label} was {was}, is {value}")
    return results


def _changes_of_places(
    label: str, before: Sequence[int | None], now: Sequence[int | None]
) -> list[str]:
    """The numbers that differ from those that are guarded."""
    changes = []
    for place, (was, value) in enumerate(zip(before, now)):
        if was is not None and was != value:
            changes.append(f"{label.format(place)} was {was}, is {value}")
    return changes


def _is_of_dispatch_keys(text: str) -> bool:
    """These come last: they say little to a reader."""
    return text.startswith("dispatch_keys")


def memory_extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte and one past the last byte that the elements of a strided tensor may occupy; (0,
    0) if it has none."""
    if tensor.numel() == 0:
        return 0, 0
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def overlapping(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """The pairs of positions, the lesser first, whose memory extents meet. What capture and
    TENSOR_DISJOINT mean by sharing memory."""
    pairs: list[tuple[int, int]] = []
    # ends and positions of those that begin before and may meet the next
    reaching: list[tuple[int, int]] = []
    for start, end, i in sorted((*memory_extent(tensor), i) for i, tensor in enumerate(tensors)):
        if start < end:
            reaching = [other for other in reaching if other[0] > start]
            for _, j in reaching:
                pairs.append((min(i, j), max(i, j)))
            reaching.append((end, i))
    return sorted(pairs)


# -- the facts around the call ---------------------------------------------------------------------

_AUTOCAST_DEVICES = ("cpu", "cuda")


class GlobalState(NamedTuple):
    """The process and thread state that eager's meaning depends on."""

    grad_mode: bool
    inference_mode: bool
    # per device: whether it is on, and for which dtype
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    autocast_cache: bool
    default_dtype: torch.dtype
    attention: AttentionModes
    deterministic: bool
    matmul_precision: tuple[str, str]  # of float32, by CUDA and by oneDNN
    function_modes: tuple[Any, ...]  # the device of new tensors is one of them
    function_overrides: str  # whether __torch_function__ is enabled
    dispatch_modes: int
    # that this thread includes and excludes: functorch transforms among others
    dispatch_keys: tuple[int, int]

    def differences(self, other: GlobalState) -> list[str]:
        """Where `other` differs: "grad_mode was True, is False"."""
        return sorted(_changes(self, other), key=_is_of_dispatch_keys)


def _autocast(device: str) -> tuple[str, bool, torch.dtype]:
    return device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)


def _function_modes() -> list[Any]:
    """The torch function modes that are active, outermost first."""
    results = []
    for i in range(len_torch_function_stack()):
        results.append(get_function_stack_at(i))
    return results


def _identity(mode: Any) -> Any:
    """What tells a torch function mode from another: of a default device the device, which says all
    about it."""
    if type(mode) is DeviceContext:
        return mode.device
    return mode


WATCHED = (
    "a torch function or dispatch mode, a dual level, a torch.func transform or anomaly detection "
    "is active"
)


def operations_are_watched() -> bool:
    """Whether something sees each operation of this thread, or changes what it means.

    That is a torch function or dispatch mode (other than a default device), a transform of
    torch.func, forward-mode differentiation, or anomaly detection."""
    return (
        torch.is_anomaly_enabled()
        or torch.autograd.forward_ad._current_level >= 0
        or len_torch_dispatch_stack() > 0
        or any(type(mode) is not DeviceContext for mode in _function_modes())
        or peek_interpreter_stack() is not None
    )


def read_global_state() -> GlobalState:
    """The state now, in this thread."""
    return GlobalState(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple(map(_autocast, _AUTOCAST_DEVICES)),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        AttentionModes.now(),
        torch.are_deterministic_algorithms_enabled(),
        float32_precisions(),
        tuple(map(_identity, _function_modes())),
        str(get_torch_function_state()),
        len_torch_dispatch_stack(),
        (dispatch_tls_local_include_set().raw_repr(), dispatch_tls_local_exclude_set().raw_repr()),
    )
