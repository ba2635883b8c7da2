"""The contract between a compiled forward and its backward, as named slots.

The joint graph makes a `JointContract`. The partition narrows it to a `TrainingContract`, which
the runtime and the native recorder read. Both are plain data: no slot holds code, a tensor or a
node of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch

from ingot.loops.expr import Expr, Symbol

Role = Literal["input", "output", "kept", "memory", "both"]

GradientState = Literal["none", "computed", "unreached"]

Alias = str
"""What an output window is to autograd, of the tensor that it shares a storage with.

It is a "view", "one of several" views that an op gives at once (must not be written), "detached",
its "data", a "view of data", or the "same" tensor.
"""

SizePlace = tuple[int, str, int]
"""Where a size symbol is read in a call: (position, kind, dimension). The kinds "size", "stride"
and "value" are read among the inputs, "result size" and "result value" among the results."""

Convert = Callable[[Any], int | Expr]
"""Makes an expression of a symbolic number."""


class Slot(NamedTuple):
    """A value of the forward, by its role and its position among the values of that role.

    An "input" or an "output"; "kept" is a further result, for the backward alone; "memory" is what
    the output at this position is a view of. "both" is none of these: forward and backward compute
    it, each for itself.
    """

    role: Role
    position: int


class KnownLayout(NamedTuple):
    """How a tensor lies in a call."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Layout:
    """Sizes and strides, which may depend on size symbols, with dtype and device."""

    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, value: torch.Tensor) -> Layout:
        return cls(tuple(value.shape), tuple(value.stride()), value.dtype, value.device)

    def converted(self, convert: Convert) -> Layout:
        """With expressions for the symbolic numbers."""
        sizes, strides = _converted(self.sizes, convert), _converted(self.strides, convert)
        return replace(self, sizes=sizes, strides=strides)

    def at(self, values: Mapping[Symbol, int]) -> KnownLayout:
        """The layout for these values of the symbols. Takes expressions, not symbolic numbers."""
        sizes, strides = evaluated(self.sizes, values), evaluated(self.strides, values)
        return KnownLayout(sizes, strides, self.dtype, self.device)


def _converted(numbers: tuple[Any, ...], convert: Convert) -> tuple[int | Expr, ...]:
    return tuple([n if isinstance(n, int) else convert(n) for n in numbers])


def evaluated(numbers: tuple[int | Expr, ...], values: Mapping[Symbol, int]) -> tuple[int, ...]:
    """Expressions, for these values of the symbols."""
    return tuple([n if isinstance(n, int) else n.evaluate(values) for n in numbers])


@dataclass(frozen=True)
class InputSlot:
    """An input of the forward.

    `gradient` is "unreached" where the input requires a gradient and no output depends on it.
    `rebased_as` is the output with the input's final value, where autograd records the writes.
    `unread` inputs are written, and no gradient depends on what they held. `eager_reads` and
    `eager_reads_result` tell whether eager's backward reads the input, before and after it was
    written: eager then refuses to run once the user has written it again.
    """

    position: int
    is_tensor: bool = True
    gradient: GradientState = "none"
    rebased_as: int | None = None
    mutated: bool = False
    unread: bool = False
    eager_reads: bool = False
    eager_reads_result: bool = False


@dataclass(frozen=True)
class OutputSlot:
    """An output of the forward.

    `tangent` is the position of its tangent, if it has one. `refused` is the error that autograd
    raises for a backward through this output: the program has taken its gradients already, say.
    """

    position: int
    tangent: int | None = None
    refused: Exception | None = None
    eager_reads: bool = False


@dataclass(frozen=True)
class TangentSlot:
    """The gradient that comes in for an output, in the layout that the backward expects.

    Other tangents are named by their positions. `single_use` are those that reach a single-use node
    of eager's backward (one that saved tensors) which this one reaches too, itself included: none
    of them can come in after it. `downstream` are the tangents of outputs that are computed from
    this output. A `reentrant` tangent reaches a checkpoint that eager differentiates by itself,
    which must be after all gradients.
    """

    position: int
    output: int
    layout: Layout
    single_use: frozenset[int] = frozenset()
    downstream: frozenset[int] = frozenset()
    reentrant: bool = False


@dataclass(frozen=True)
class OutputGroup:
    """Outputs with an autograd node of their own, which does not lead to `unreached_inputs`."""

    outputs: frozenset[int]
    unreached_inputs: frozenset[int]


@dataclass(frozen=True)
class OutputWindow:
    """An output that shares its storage with `base`, an input or another output.

    `offset` counts elements from the first of `base`; `tracked` windows have a history. With
    `own_history` autograd's node of the program computes the window's gradient, and it is a view of
    the memory alone; else it is a view to autograd as well, made outside of the node.
    """

    output: int
    base: Slot
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    tracked: bool
    alias: Alias
    own_history: bool = False

    def converted(self, convert: Convert) -> OutputWindow:
        """With expressions for the symbolic numbers."""
        sizes, strides = _converted(self.sizes, convert), _converted(self.strides, convert)
        (offset,) = _converted((self.offset,), convert)
        return replace(self, sizes=sizes, strides=strides, offset=offset)

    def at(self, values: Mapping[Symbol, int]) -> OutputWindow:
        """The window for these values of the symbols."""
        sizes, strides = evaluated(self.sizes, values), evaluated(self.strides, values)
        (offset,) = evaluated((self.offset,), values)
        return replace(self, sizes=sizes, strides=strides, offset=offset)


@dataclass(frozen=True, kw_only=True)
class JointContract:
    """What the joint graph knows of its slots.

    The last outputs stand for the rebased inputs. The user gets the first `user_outputs`; between
    these and the rebased inputs is memory that only windows show. There are `groups` only if some
    outputs come of other inputs than others do and it matters: the engine visits all that a node
    leads to.
    """

    inputs: tuple[InputSlot, ...]
    outputs: tuple[OutputSlot, ...]
    tangents: tuple[TangentSlot, ...]
    windows: tuple[OutputWindow, ...]
    groups: tuple[OutputGroup, ...]
    user_outputs: int

    @property
    def differentiable_outputs(self) -> tuple[int, ...]:
        """The outputs that have a tangent, in the order of the tangents."""
        return tuple([tangent.output for tangent in self.tangents])

    @property
    def refused_outputs(self) -> dict[int, Exception]:
        """The outputs through which autograd refuses to go back, with its errors."""
        result = {}
        for o in self.outputs:
            if o.refused is not None:
                result[o.position] = o.refused
        return result

    @property
    def gradient_inputs(self) -> tuple[int, ...]:
        """The inputs that have a gradient."""
        return tuple([slot.position for slot in self.inputs if slot.gradient == "computed"])

    @property
    def unreached_inputs(self) -> tuple[int, ...]:
        """The inputs that require a gradient and have none."""
        return tuple([slot.position for slot in self.inputs if slot.gradient == "unreached"])

    @property
    def mutated_inputs(self) -> tuple[int, ...]:
        return tuple([slot.position for slot in self.inputs if slot.mutated])

    @property
    def rebased_inputs(self) -> dict[int, int]:
        """The inputs that are written where autograd records it, and the outputs that stand for
        them."""
        result = {}
        for s in self.inputs:
            if s.rebased_as is not None:
                result[s.position] = s.rebased_as
        return result

    @property
    def windows_in_node(self) -> tuple[OutputWindow, ...]:
        """The windows that are results of the program's node in autograd's graph."""
        return tuple([window for window in self.windows if window.own_history])

    @property
    def views(self) -> tuple[OutputWindow, ...]:
        """The windows that are made outside of that node."""
        return tuple([window for window in self.windows if not window.own_history])


class NativeSlots(NamedTuple):
    """What the native recorder reads of a contract: counts and positions. The fields are read in
    this order (`Recorder.describe`)."""

    inputs: int
    tensors: int  # the inputs in front of the integers
    outputs: int
    saved: tuple[int, ...]  # among the inputs and all results
    untracked_outputs: tuple[int, ...]
    unread_inputs: tuple[int, ...]
    size_places: tuple[SizePlace, ...]
    differentiable_outputs: tuple[int, ...]
    refused_outputs: tuple[int, ...]
    gradient_inputs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TrainingContract(JointContract):
    """What the partition leaves of a `JointContract`: layouts and windows are expressions.

    `saved` says where the backward finds its first arguments; behind these come the tangents, and
    the values of the size symbols, which are read at `size_places`. The symbols in windows are read
    at `window_places`.
    """

    saved: tuple[Slot, ...]
    size_places: Mapping[Symbol, SizePlace]
    window_places: Mapping[Symbol, SizePlace]

    @classmethod
    def narrowed(
        cls,
        joint: JointContract,
        saved: tuple[Slot, ...],
        size_places: Mapping[Symbol, SizePlace],
        window_places: Mapping[Symbol, SizePlace],
        convert: Convert,
    ) -> TrainingContract:
        """The contract with what a partition decided."""
        return cls(
            inputs=joint.inputs,
            outputs=joint.outputs,
            tangents=tuple(
                [replace(t, layout=t.layout.converted(convert)) for t in joint.tangents]
            ),
            windows=tuple([window.converted(convert) for window in joint.windows]),
            groups=joint.groups,
            user_outputs=joint.user_outputs,
            saved=saved,
            size_places=size_places,
            window_places=window_places,
        )

    @property
    def tensors(self) -> int:
        """How many inputs are tensors: they are in front of the integers."""
        return sum(slot.is_tensor for slot in self.inputs)

    @property
    def unread_inputs(self) -> tuple[int, ...]:
        return tuple([slot.position for slot in self.inputs if slot.unread])

    @property
    def saved_positions(self) -> tuple[int, ...]:
        """The saved values, by their positions among the inputs and all results."""
        inputs, outputs = len(self.inputs), len(self.outputs)
        first: dict[Role, int] = {"input": 0, "output": inputs, "kept": inputs + outputs}
        return tuple([first[slot.role] + slot.position for slot in self.saved])

    @property
    def native(self) -> NativeSlots:
        """The contract as the native recorder reads it."""
        refused, outputs = self.refused_outputs, self.outputs
        untracked = []
        for o in outputs:
            if o.tangent is None and o.refused is None:
                untracked.append(o.position)
        return NativeSlots(
            inputs=len(self.inputs),
            tensors=self.tensors,
            outputs=len(outputs),
            saved=self.saved_positions,
            untracked_outputs=tuple(untracked),
            unread_inputs=self.unread_inputs,
            size_places=tuple(self.size_places.values()),
            differentiable_outputs=self.differentiable_outputs,
            refused_outputs=tuple(refused),
            gradient_inputs=self.gradient_inputs,
        )
