"""Whether a call of compiled code did what eager does, up to rounding.

Two runs of one graph go in, each on copies of the inputs and from the same random numbers: eager's
and the compiled one. Out comes the first `Difference`, or None. Values may differ by rounding: the
error from the result in float64 is at most 1.1 times eager's, or 4 epsilons (as `explain/trial.py`
has it), or each element is as near to eager's as eager is to itself where operands of its ops are
moved by an ulp (`rounding.py`). The former is of a mean: one sample of an error may be a few times
another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.debugging.inputs import RandomState, copies, doubled
from ingot.debugging.rounding import MARGIN, RUNS, InFloat64, Moved
from ingot.explain import measure
from ingot.explain.trial import UNRELATED, tolerance
from ingot.graph.ambient import preserved

Run = Callable[..., Any]

SAMPLE = 4
"""How many times another's a right program's error may be in one sample. It is 1.1 in the mean."""

EPSILONS = 4
"""So many of the dtype's, relative to itself, an element may always differ by."""


class Outcome(NamedTuple):
    """What a run did: its results, its inputs afterwards, the gradients of these, and the error
    that it raised instead."""

    results: tuple[Any, ...] = ()
    inputs: tuple[Any, ...] = ()
    gradients: tuple[Any, ...] = ()
    raised: Exception | None = None

    @property
    def kinds(self) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        """The values of each kind."""
        return (
            ("result", self.results),
            ("input", self.inputs),
            ("gradient of input", self.gradients),
        )


class Difference(NamedTuple):
    """How a value differs from eager's: that `number` of its kind, "result", "input", or "gradient
    of input"; `what` is a sentence."""

    kind: str
    number: int
    what: str
    is_error: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.number}: {self.what}"


def outcome(run: Run, inputs: Sequence[Any], gradients: bool, state: RandomState) -> Outcome:
    """Runs on inputs that are its own, from the random numbers of `state`. With `gradients`, takes
    those of all results, with respect to all inputs."""
    leaves = []
    for value in inputs:
        if isinstance(value, Tensor) and value.requires_grad:
            leaves.append(value)
    state.restore()
    try:
        with preserved():
            results = tuple(run(*inputs))
        taken: tuple[Any, ...] = ()
        if gradients:
            taken = _gradients(results, leaves)
    except Exception as error:
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return Outcome(raised=error)
    return Outcome(results, tuple(inputs), taken)


def _gradients(results: Sequence[Any], leaves: Sequence[Tensor]) -> tuple[Any, ...]:
    """Those of all results together, each element with a tangent of its own."""
    heads = []
    for result in results:
        if isinstance(result, Tensor) and result.requires_grad:
            heads.append(result)
    if not (heads and leaves):
        return ()
    tangents = []
    for head in heads:
        tangents.append(tangent_of(head))
    return torch.autograd.grad(heads, leaves, tangents, allow_unused=True)


def tangent_of(head: Tensor) -> Tensor:
    """The tangent of a result."""
    tangent = torch.linspace(-1, 1, head.numel(), dtype=torch.float64).view(head.shape)
    return tangent.to(head.device, head.dtype)


class Comparison:
    """Compares runs on some inputs with eager's, which runs as often as is needed and no more."""

    def __init__(self, eager: Run, inputs: Sequence[Any], gradients: bool = True) -> None:
        self.eager, self.inputs, self.gradients = eager, inputs, gradients
        self.state = RandomState.now()
        self.expected = self._run(eager)
        self.draws = not self.state.is_now()
        self._exact: Outcome | None = None
        self._moved: list[Outcome] = []

    def _run(self, run: Run, inputs: Sequence[Any] | None = None) -> Outcome:
        given = copies(self.inputs) if inputs is None else inputs
        return outcome(run, given, self.gradients, self.state)

    def outcome(self, run: Run) -> Outcome:
        """What a run does. Random numbers go on from where they were."""
        try:
            return self._run(run)
        finally:
            self.state.restore()

    def difference(self, run: Run) -> Difference | None:
        """The first difference of a run; None if there is none."""
        return self.between(self.outcome(run))

    def between(self, actual: Outcome, only_values: bool = False) -> Difference | None:
        """The same for what a run has done already; with `only_values` strides, histories and
        memory are left out."""
        try:
            return self._between(actual, self.expected, only_values)
        finally:
            self.state.restore()

    def _between(self, actual: Outcome, expected: Outcome, only_values: bool) -> Difference | None:
        if actual.raised or expected.raised:
            return _difference_of_errors(actual.raised, expected.raised)
        if not only_values:
            difference = _facts_between(actual, expected)
            if difference is not None:
                return difference
        for (kind, values), (_, its) in zip(actual.kinds, expected.kinds):
            for index, (value, eager) in enumerate(zip(values, its)):
                if not isinstance(eager, Tensor) or not isinstance(value, Tensor):
                    continue
                if not self._within(kind, index, value, eager):
                    return Difference(kind, index, values_text(value, eager))
        return None

    def _within(self, kind: str, index: int, value: Tensor, eager: Tensor) -> bool:
        """Whether a tensor's values are eager's, up to rounding."""
        value, eager = value.detach(), eager.detach()
        if same_bits(value, eager):
            return True
        if eager.is_floating_point() or eager.is_complex():
            exact = self._value(self.exact, kind, index)
            if exact is not None and _is_as_exact(value, eager, exact.detach()):
                return True
        moved = []
        for run in self.moved:
            other = self._value(run, kind, index)
            if other is not None and other.shape == eager.shape:
                moved.append(other.detach())
        return bool(_near(value, eager, moved).all())

    def result_differs(self, value: Tensor) -> str:
        """How a tensor differs from eager's first result; "" if it does by rounding alone."""
        eager = self._value(self.expected, "result", 0)
        if eager is None or value.shape != eager.shape or value.dtype != eager.dtype:
            return ""
        try:
            is_near = self._within("result", 0, value, eager)
        finally:
            self.state.restore()
        return "" if is_near else values_text(value, eager)

    def _value(self, run: Outcome | None, kind: str, index: int) -> Tensor | None:
        if run is None or run.raised:
            return None
        values = dict(run.kinds)[kind]
        if index < len(values) and isinstance(values[index], Tensor):
            return values[index]
        return None

    @property
    def exact(self) -> Outcome | None:
        """Eager's run in float64; None where other random numbers would be drawn."""
        if self._exact is None and not self.draws:
            wide = doubled(self.inputs)
            with InFloat64():
                self._exact = self._run(self.eager, wide)
        return self._exact

    @property
    def moved(self) -> list[Outcome]:
        """Eager's runs with operands moved by an ulp."""
        while len(self._moved) < RUNS:
            number = len(self._moved)
            with Moved(number, apart=number % 2 == 1):
                self._moved.append(self._run(self.eager))
        return self._moved


def same_bits(value: Tensor, eager: Tensor) -> bool:
    """Whether all elements are equal; one NaN is like another."""
    if value.is_floating_point() and value.dtype.itemsize == 1:
        value, eager = value.float(), eager.float()
    both_nan = (value != value) & (eager != eager)
    return bool(((value == eager) | both_nan).all())


def _is_as_exact(value: Tensor, eager: Tensor, exact: Tensor) -> bool:
    """Whether it is no further from the result in float64 than eager, about."""
    if exact.dtype not in (torch.float64, torch.complex128) or exact.shape != eager.shape:
        return False
    eager_error = measure.error(eager, exact)
    if not eager_error <= UNRELATED:
        return False
    return measure.error(value, exact) <= max(SAMPLE * eager_error, tolerance(eager_error, eager))


def _near(value: Tensor, eager: Tensor, moved: Sequence[Tensor]) -> Tensor:
    """Where a value is no further from eager's than runs with moved operands, about."""
    if not (eager.is_floating_point() or eager.is_complex()):
        near = value == eager
        for other in moved:
            near = near | (other != eager)
        return near
    wide = torch.complex128 if eager.is_complex() else torch.float64
    own = EPSILONS * torch.finfo(eager.dtype).eps
    expected = eager.to(wide)
    spread = expected.abs() * own
    for other in moved:
        distance = (other.to(wide) - expected).abs().nan_to_num(torch.inf, torch.inf, torch.inf)
        spread = torch.maximum(spread, MARGIN * distance)
    distance = (value.to(wide) - expected).abs()
    same = (value == eager) | (value.isnan() & eager.isnan())
    return same | (distance <= spread) | (spread == torch.inf)


def _facts_between(actual: Outcome, expected: Outcome) -> Difference | None:
    """What differs beside values."""
    for (kind, values), (_, its) in zip(actual.kinds, expected.kinds):
        for index, (value, eager) in enumerate(zip(values, its)):
            what = _facts_differ(value, eager, kind)
            if what:
                return Difference(kind, index, what)
    own, eagers = _memory(actual), _memory(expected)
    if own != eagers:
        return Difference("result", 0, f"what shares memory is {own}, in eager {eagers}")
    return None


def _facts_differ(value: Any, eager: Any, kind: str) -> str:
    """What is wrong with all but the values; "" if nothing is."""
    if not isinstance(eager, Tensor) or not isinstance(value, Tensor):
        if type(value) is type(eager) and (value is None or value == eager):
            return ""
        return f"{value!r}, in eager {eager!r}"
    for name in ("dtype", "shape", "device", "requires_grad"):
        own, its = getattr(value, name), getattr(eager, name)
        if own != its:
            return f"its {name} is {own}, in eager {its}"
    if kind == "gradient of input" or not eager.numel() or eager.layout is not torch.strided:
        return ""
    for size, own, its in zip(eager.shape, value.stride(), eager.stride()):
        if size > 1 and own != its:
            return f"its strides are {value.stride()}, in eager {eager.stride()}"
    return ""


def _memory(run: Outcome) -> list[int]:
    """For each tensor among inputs and results, the first one of the same storage."""
    first: dict[int, int] = {}
    pattern = []
    for k, value in enumerate((*run.inputs, *run.results)):
        if isinstance(value, Tensor) and value.layout is torch.strided and value.numel():
            pattern.append(first.setdefault(value.untyped_storage().data_ptr(), k))
    return pattern


def _difference_of_errors(own: Exception | None, its: Exception | None) -> Difference | None:
    if own is not None and its is not None and type(own) is type(its):
        return None
    return Difference("result", 0, f"{_raises(own)}, eager {_raises(its)}", True)


def _raises(error: Exception | None) -> str:
    if error is None:
        return "raises nothing"
    return f"raises {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def values_text(value: Tensor, eager: Tensor) -> str:
    """Both values where they differ most, and by how much."""
    value, eager = value.detach(), eager.detach()
    if not eager.numel():
        return ""
    wide = torch.complex128 if eager.is_complex() else torch.float64
    distance = (value.to(wide) - eager.to(wide)).abs()
    same = (value == eager) | (value.isnan() & eager.isnan())
    distance = torch.where(same, 0.0, distance.nan_to_num(torch.inf, torch.inf, torch.inf))
    at = int(distance.flatten().argmax())
    place: list[int] = []
    for size in reversed(eager.shape):
        place.insert(0, at % size)
        at //= size
    own, its = value[tuple(place)].item(), eager[tuple(place)].item()
    dtype = str(eager.dtype).removeprefix("torch.")
    sizes = ", ".join(map(str, eager.shape))
    text = f"{dtype}[{sizes}] at {place} is {own!r}, in eager {its!r}"
    largest, wrong = float(distance.max()), int((~same).sum())
    return f"{text}; largest difference {largest:.3g}, {wrong} of {eager.numel()} elements differ"
