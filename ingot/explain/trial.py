"""One function under Ingot, held against eager: results, times, memory. `python -m ingot try` and the demo use it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ingot.explain import measure
from ingot.explain.loading import Target
from ingot.explain.report import Report
from ingot.torch_private import tree_flatten

EPSILONS = 4  # the floor of the tolerance, in units of the result type's epsilon
UNRELATED = 0.1  # an error of eager's beyond which float64 has answered another question: other random numbers, say
WORSE = 1.1  # how much farther from float64 than eager a result may be

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
Explain = Callable[[Callable[..., Any]], Callable[..., Report]]


@dataclass
class Comparison:
    """How a result stands to eager's.

    Errors are relative L2, from float64; where `eager_error` is None, `error` is from eager. `problems` says where the
    result differs in a way that eager's own rounding does not explain; `allowed` is the largest error that passes.
    """

    problems: list[str]
    error: float = float("nan")
    eager_error: float | None = None
    allowed: float = 0.0
    largest_difference: float = float("nan")


@dataclass
class Trial:
    """One target in eager and compiled. Seconds per call, one entry per round; the first call's; memory in bytes."""

    target: Target
    comparison: Comparison
    eager_seconds: np.ndarray
    ingot_seconds: np.ndarray
    first_call: float
    eager_peak: int
    report: Report

    @property
    def speedup(self) -> tuple[float, float, float]:
        """(low, middle, high) of eager's time over Ingot's, the 90% interval."""
        return measure.ratio_interval(self.eager_seconds, self.ingot_seconds)


def device_of(tree: Any) -> torch.device:
    """The device of the first tensor; the CPU when there is none."""
    return next((t.device for t in measure.tensors(tree)), torch.device("cpu"))


@torch.no_grad()
def try_target(
    target: Target,
    compile: Compile,
    explain: Explain,
    rounds: int = 30,
    step: Callable[[str], object] = lambda what: None,
) -> Trial:
    """Run the target in eager and compiled, without gradients, and compare.

    `step` is told what begins: `STEPS` things and each round. Both get copies of the arguments for the comparison,
    since a function may write to them, and the same random seed. Exceptions pass through.
    """
    function, args, kwargs = target.function, target.args, target.kwargs
    parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    device = device_of((args, kwargs, parameters))
    compiled = compile(function)

    def run(callee: Callable[..., Any], what: str) -> tuple[Any, float]:
        """((result, arguments as they are afterwards), seconds) of one call on copies of the arguments."""
        step(what)
        own_args, own_kwargs = own_copy((args, kwargs))
        torch.manual_seed(0)
        result, seconds = measure.timed(lambda: callee(*own_args, **own_kwargs), device)
        return (result, own_args, own_kwargs), seconds

    eager, _ = run(function, "eager")
    ingot, first_call = run(compiled, "first call")
    exact, _ = run(lambda *a, **k: measure.reference64(function, a, k), "float64")
    comparison = compare(ingot, eager, exact[0])
    step("report")
    report = explain(compiled)(*args, **kwargs)
    calls = {"eager": lambda: function(*args, **kwargs), "ingot": lambda: compiled(*args, **kwargs)}
    seconds = measure.interleave(calls, rounds, device, lambda: step("taking turns"))
    step("each step")
    report.measure(calls["ingot"])
    step("peak memory")
    peak = measure.peak_bytes(calls["eager"], (args, kwargs, parameters), device)
    return Trial(target, comparison, seconds["eager"], seconds["ingot"], first_call, peak, report)


STEPS = 6
"""How often `try_target` calls `step` beside once a round."""


def compare(ingot: Any, eager: Any, exact: Any | None) -> Comparison:
    """Compare two (result, arguments and keywords afterwards); `exact` is the float64 result, None if there is none."""
    problems = differences(ingot, eager)
    if problems:
        return Comparison(problems)
    error, eager_error = errors(ingot[0], eager[0], exact)
    allowed = tolerance(eager_error, eager[0])
    if not error <= allowed:
        from_where = "eager" if eager_error is None else f"float64, eager's is {eager_error:.2e}"
        problems.append(f"relative error {error:.2e} from {from_where}")
    if measure.error(ingot[1:], eager[1:]) > allowed:
        problems.append("the arguments hold other values after the call")
    return Comparison(problems, error, eager_error, allowed, measure.largest_difference(ingot[0], eager[0]))


def own_copy(tree: Any) -> Any:
    """A deep copy, in which tensors share storage as they did; the thing itself where it cannot be copied."""
    try:
        return copy.deepcopy(tree)
    except Exception:  # deepcopy runs the user's code; tensors inside an autograd graph refuse it
        return tree


def differences(result: Any, expected: Any) -> list[str]:
    """Where the structure of two results differs: containers, and each tensor's dtype, shape, strides and device."""
    leaves, tree = tree_flatten(result)
    expected_leaves, expected_tree = tree_flatten(expected)
    if tree != expected_tree:
        return [f"the result is built as {tree}, eager's as {expected_tree}"]
    problems = []
    for number, (leaf, other) in enumerate(zip(leaves, expected_leaves, strict=True)):
        for name, fact in FACTS.items():
            mine, its = fact(leaf), fact(other)
            if mine != its:
                problems.append(f"tensor {number}: {name} {mine}, eager's is {its}")
                break
    return problems


def tensor_fact(read: Callable[[torch.Tensor], Any]) -> Callable[[Any], Any]:
    return lambda leaf: read(leaf) if isinstance(leaf, torch.Tensor) else None


FACTS: dict[str, Callable[[Any], Any]] = {
    "type": type,
    "dtype": tensor_fact(lambda t: t.dtype),
    "shape": tensor_fact(lambda t: tuple(t.shape)),
    "strides": tensor_fact(lambda t: t.stride()),
    "device": tensor_fact(lambda t: t.device),
    "requires_grad": tensor_fact(lambda t: t.requires_grad),
    "value": lambda leaf: repr(leaf) if isinstance(leaf, (int, float, bool, str, complex, type(None))) else None,
}


def errors(result: Any, eager: Any, exact: Any | None) -> tuple[float, float | None]:
    """(the result's error, eager's), both from float64; (the distance from eager, None) where there is no float64."""
    if exact is None:
        return measure.error(result, eager), None
    try:
        eager_error = measure.error(eager, exact)
        if eager_error <= UNRELATED:
            return measure.error(result, exact), eager_error
    except ValueError:  # the function's shape depends on the dtype it is given
        pass
    return measure.error(result, eager), None


def tolerance(eager_error: float | None, eager: Any) -> float:
    """The largest error that passes: 1.1x eager's, at least 4 eps; against eager itself 100 eps."""
    types = {t.dtype for t in measure.tensors(eager) if t.is_floating_point() or t.is_complex()}
    eps = max((torch.finfo(dtype).eps for dtype in types), default=0.0)
    return 100 * eps if eager_error is None else max(WORSE * eager_error, EPSILONS * eps)
