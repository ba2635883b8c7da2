"""One function under Ingot, held against eager: results, times, memory. `python -m ingot try` and
the demo use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ingot.explain import measure
from ingot.explain.loading import Target, seed
from ingot.explain.records import as_plain
from ingot.explain.report import SCHEMA, Report
from ingot.explain.state import state_of
from ingot.torch_private import tree_flatten

EPSILONS = 4  # the floor of the tolerance, in units of the result type's epsilon
# an error of eager's beyond which float64 has answered another question: other random numbers, say
UNRELATED = 0.1
WORSE = 1.1  # how much farther from float64 than eager a result may be

MARK = "function._is_torch_compile"
"""Where torch.compile leaves a mark in a module."""

Compile = Callable[..., Any]
Explain = Callable[[Callable[..., Any]], Callable[..., Report]]


@dataclass
class Comparison:
    """How a result stands to eager's.

    Errors are relative L2, from float64; where `eager_error` is None, `error` is from eager.
    `problems` says where the result differs in a way that eager's own rounding does not explain;
    `allowed` is the largest error that passes.
    """

    problems: list[str]
    error: float = float("nan")
    eager_error: float | None = None
    allowed: float = 0.0
    largest_difference: float = float("nan")


@dataclass
class Peer:
    """Another compiler beside Ingot. Seconds per call, one entry per round, and the first call's;
    `failure` is what that raised, "" where it ran."""

    seconds: list[float] = field(default_factory=list)
    first_call: float = float("nan")
    comparison: Comparison | None = None
    failure: str = ""


@dataclass
class Trial:
    """One target in eager and compiled. Seconds per call, one entry per round; the first call's;
    memory in bytes. `peers` are other compilers, by name."""

    target: Target
    comparison: Comparison
    eager_seconds: np.ndarray
    ingot_seconds: np.ndarray
    first_call: float
    eager_peak: int
    report: Report
    gradients: bool = False
    peers: dict[str, Peer] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, for JSON: docs/report.md has each field."""
        low, middle, high = self.speedup
        return {
            "schema": SCHEMA,
            "target": self.target.spec,
            "gradients": self.gradients,
            "eager_seconds": self.eager_seconds.tolist(),
            "ingot_seconds": self.ingot_seconds.tolist(),
            "speedup": [low, middle, high],
            "first_call": self.first_call,
            "eager_peak_bytes": self.eager_peak,
            "comparison": as_plain(self.comparison),
            "peers": as_plain(self.peers),
            "report": self.report.to_dict(),
        }

    @property
    def speedup(self) -> tuple[float, float, float]:
        """(low, middle, high) of eager's time over Ingot's, the 90% interval."""
        return measure.ratio_interval(self.eager_seconds, self.ingot_seconds)

    def speedup_of(self, peer: Peer) -> tuple[float, float, float]:
        """The same of a peer that ran."""
        return measure.ratio_interval(self.eager_seconds, np.asarray(peer.seconds))


def device_of(tree: Any) -> torch.device:
    """The device of the first tensor; the CPU when there is none."""
    for tensor in measure.tensors(tree):
        return tensor.device
    return torch.device("cpu")


@dataclass
class Side:
    """One of those that are compared: a target of its own, and what was seen of its first call."""

    target: Target
    call: Callable[[], Any]
    result: Any = None
    state: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def run(self, device: torch.device) -> None:
        """The first call, from the random numbers that all sides begin with."""
        seed()
        self.result, self.seconds = measure.timed(self.call, device)
        own = self.target
        self.state = state_of(function=own.function, args=own.args, kwargs=own.kwargs)


def try_target(
    target: Target,
    compile: Compile,
    explain: Explain,
    rounds: int = 30,
    step: Callable[[str], object] = lambda what: None,
    train: bool = False,
    peers: Mapping[str, Compile] = MappingProxyType({}),
) -> Trial:
    """Run the target in eager and compiled, and compare: results, and what the call changes.

    `peers` are other compilers, by name, which take turns with these two; what one raises is told
    and no more. `step` is told what begins: `STEPS` things, each peer and each round. Each side has
    a target of its own, since a call may change what it is given, and the same random seed. With
    `train` gradients are recorded, and those of the results are taken in each call. Exceptions pass
    through.
    """
    with torch.set_grad_enabled(train):
        return _tried(target, compile, explain, rounds, step, train, peers)


def _tried(
    target: Target,
    compile: Compile,
    explain: Explain,
    rounds: int,
    step: Callable[[str], object],
    train: bool,
    peers: Mapping[str, Compile],
) -> Trial:
    eager = _side(target.fresh(), lambda function: function, train)
    inputs = eager.target.args, eager.target.kwargs, _parameters(eager.target.function)
    device = device_of(inputs)
    step("eager")
    eager.run(device)
    step("first call")
    compiled: list[Callable[..., Any]] = []

    def compiled_function(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled.append(compile(function))
        return compiled[-1]

    ingot = _side(target.fresh(), compiled_function, train)
    ingot.run(device)
    step("float64")
    exact = _exact(target, train)
    comparison = compare_sides(ingot, eager, exact)
    step("report")
    report = explain(compiled[0])(*ingot.target.args, **ingot.target.kwargs)
    calls, others = {"eager": eager.call, "ingot": ingot.call}, {}
    for name, wrap in peers.items():
        step(name)
        others[name] = Peer()
        side = _side(target.fresh(), wrap, train)
        try:
            side.run(device)
        except Exception as error:  # another compiler may fail in any way it likes
            others[name].failure = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
            continue
        side.state.pop(MARK, None)
        others[name] = Peer([], side.seconds, compare_sides(side, eager, exact))
        calls[name] = side.call
    seconds = measure.interleave(calls, rounds, device, lambda: step("taking turns"))
    step("each step")
    report.measure(calls["ingot"])
    step("peak memory")
    peak = measure.peak_bytes(calls["eager"], inputs, device)
    for name in others.keys() & seconds.keys():
        others[name].seconds += seconds[name].tolist()
    return Trial(
        target,
        comparison,
        seconds["eager"],
        seconds["ingot"],
        ingot.seconds,
        peak,
        report,
        train,
        others,
    )


def _side(target: Target, wrap: Compile, train: bool) -> Side:
    function = wrap(target.function)

    def call() -> Any:
        result = function(*target.args, **target.kwargs)
        if train:
            take_gradients(result)
        return result

    return Side(target, call)


def take_gradients(result: Any, tangents: list[Tensor] | None = None) -> None:
    """The backward of all results that have a history, with random tangents, always the same.

    Those in `tangents` are taken; it is filled if it is empty."""
    outputs = []
    for t in measure.tensors(result):
        if t.grad_fn is not None:
            outputs.append(t)
    if tangents is None:
        tangents = []
    if not tangents:
        random = torch.Generator().manual_seed(0)
        for t in outputs:
            tangents.append(torch.randn(t.shape, generator=random, dtype=torch.float64).to(t))
    if outputs:
        torch.autograd.backward(outputs, tangents)


def _exact(target: Target, train: bool) -> Side | None:
    """The side that computes in float64; None where there is no such result."""
    own = target.fresh()
    args, kwargs = measure.in_float64((own.args, own.kwargs))
    function = own.function
    try:
        if isinstance(function, torch.nn.Module):
            function = function.double()
        side = _side(Target(own.spec, function, args, kwargs), lambda f: f, train)
        side.run(device_of(args))
    except Exception:  # the user's program may refuse float64 in any way it likes
        return None
    return None if measure.is_narrow(side.result) else side


def _parameters(function: Any) -> list[torch.nn.Parameter]:
    if isinstance(function, torch.nn.Module):
        return list(function.parameters())
    return []


STEPS = 6
"""How often `try_target` calls `step` beside once a round and for each peer."""


def compare(ingot: Any, eager: Any, exact: Any | None) -> Comparison:
    """Compare two (result, arguments and keywords afterwards); `exact` is the float64 result, None
    if there is none."""
    problems = differences(ingot, eager)
    if problems:
        return Comparison(problems)
    error, eager_error = errors(ingot[0], eager[0], exact)
    allowed = tolerance(eager_error, eager[0])
    if not error <= allowed:
        from_where = "eager"
        if eager_error is not None:
            from_where = f"float64, eager's is {eager_error:.2e}"
        problems.append(f"relative error {error:.2e} from {from_where}")
    if measure.error(ingot[1:], eager[1:]) > allowed:
        problems.append("the arguments hold other values after the call")
    return Comparison(
        problems, error, eager_error, allowed, measure.largest_difference(ingot[0], eager[0])
    )


def compare_sides(ingot: Side, eager: Side, exact: Side | None) -> Comparison:
    """Compare two sides: what a call gave, and all that it may have changed."""
    exact_state, exact_result = {}, None
    if exact is not None:
        exact_state, exact_result = exact.state, exact.result
    comparison = compare((ingot.result,), (eager.result,), exact_result)
    for place in sorted(eager.state.keys() | ingot.state.keys()):
        mine, expected = ingot.state.get(place), eager.state.get(place)
        if comparison.eager_error is not None and is_noise(expected, exact_state.get(place)):
            continue
        problem = state_problem(mine, expected, exact_state.get(place), comparison.allowed)
        if problem:
            comparison.problems.append(f"{place} {problem} after the call")
    comparison.problems[MOST_PROBLEMS:] = []
    return comparison


MOST_PROBLEMS = 8


def is_noise(eager: Any, exact: Any) -> bool:
    """Whether eager itself is far from float64: a gradient that is zero but for rounding, say."""
    try:
        tensors = isinstance(eager, Tensor) and isinstance(exact, Tensor)
        return tensors and eager.is_floating_point() and measure.error(eager, exact) > UNRELATED
    except ValueError:
        return False


def state_problem(mine: Any, expected: Any, exact: Any, allowed: float) -> str:
    """How what is left in one place differs from what eager leaves there; "" if it does not."""
    problems = differences(mine, expected)
    if problems:
        return f"differs: {problems[0]}"
    if not isinstance(mine, Tensor):
        return ""
    error, eager_error = errors(mine, expected, exact)
    allowed = max(tolerance(eager_error, expected), allowed)
    if error <= allowed:
        return ""
    return f"holds other values, by {error:.2e},"


def differences(result: Any, expected: Any) -> list[str]:
    """Where the structure of two results differs: containers, and each tensor's dtype, shape,
    strides and device."""
    leaves, tree = tree_flatten(result)
    expected_leaves, expected_tree = tree_flatten(expected)
    if str(tree) != str(expected_tree):  # classes of the user's are made once for each side
        return [f"the result is built as {tree}, eager's as {expected_tree}"]
    problems = []
    for number, (leaf, other) in enumerate(zip(leaves, expected_leaves, strict=True)):
        for name, fact in FACTS.items():
            mine, its = fact(leaf), fact(other)
            if mine != its:
                problems.append(f"tensor {number}: {name} {mine}, eager's is {its}")
                break
    return problems


def tensor_fact(read: Callable[[Tensor], Any]) -> Callable[[Any], Any]:
    return lambda leaf: read(leaf) if isinstance(leaf, Tensor) else None


FACTS: dict[str, Callable[[Any], Any]] = {
    "type": lambda leaf: f"{type(leaf).__module__}.{type(leaf).__qualname__}",
    "dtype": tensor_fact(lambda t: t.dtype),
    "shape": tensor_fact(lambda t: tuple(t.shape)),
    "strides": tensor_fact(lambda t: t.stride()),
    "device": tensor_fact(lambda t: t.device),
    "requires_grad": tensor_fact(lambda t: t.requires_grad),
    "value": lambda leaf: (
        repr(leaf) if isinstance(leaf, (int, float, bool, str, complex, type(None))) else None
    ),
}


def errors(result: Any, eager: Any, exact: Any | None) -> tuple[float, float | None]:
    """(the result's error, eager's), both from float64; (the distance from eager, None) where there
    is no float64."""
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
    eps = 0.0
    for t in measure.tensors(eager):
        if t.is_floating_point() or t.is_complex():
            eps = max(eps, torch.finfo(t.dtype).eps)
    if eager_error is None:
        return 100 * eps
    return max(WORSE * eager_error, EPSILONS * eps)
