"""Every differentiable op of torch.testing's database: a compiled call has eager's gradients, and
these have eager's.

`python -m tests.op_gradients` runs float32 and float64 on the CPU and prints a table; its options
are those of `python -m tests.op_database`, and `--order 1` leaves out the second derivatives. The
samples are those that torch tests its own derivatives on.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import ingot
from ingot.compiler import Compiler
from ingot.explain.measure import error
from tests.op_database import UNDEFINED, _QuickCode, category, facts, op_infos, run_all, short
from tests.op_outcome import Call, Different, copied, made, text
from tests.oracle import ignore_warnings

DTYPES = (torch.float32, torch.float64)
# of the relative L2 error of all gradients together, against eager's, and in eps
ERROR_RATIO, ERROR_FLOOR = 1.2, 4
SEEDS = 5, 40  # sets of arguments and tangents over which errors are averaged where fewer do not do
CLOSE = 1e-12  # results that differ by no more are not looked at

EXCEPTIONS = {
    "linalg.vector_norm": ("a root of a power, where eager's errors happen to cancel", 5.0),
}
"""Ops whose derivatives of float32 may be less exact than eager's: why, and how many times its
error, or eps. They are in docs/limits.md."""


@dataclass
class Row:
    """What was found of one op: counts of calls, and the failures as text."""

    name: str
    calls: int = 0
    equal: int = 0
    compiled: int = 0  # with their gradients
    twice: int = 0  # whose second derivatives were compared
    excepted: int = 0  # that are less exact, as EXCEPTIONS say
    seconds: float = 0.0
    left: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """One line of the table."""
        wrong = self.calls - self.equal - self.excepted
        return (
            f"{self.name:<44.44} {self.calls:>5} {f'{wrong} WRONG' if wrong else 'equal':>10} "
            f"{f'{self.excepted} excepted ' if self.excepted else ''}"
            f"{self.compiled:>5} compiled {self.twice:>5} twice {self.seconds:>6.1f} s  "
            f"{'; '.join(f'{why} x{count}' for why, count in self.left.most_common(2))}"
        )


@dataclass
class Gradients:
    """What a call gave, its gradients, and the gradients of these."""

    results: list[torch.Tensor] = field(default_factory=list)
    first: list[torch.Tensor] = field(default_factory=list)
    second: list[torch.Tensor] = field(default_factory=list)
    error: Exception | None = None
    random: Any = None


def gradients(
    function: Callable[..., Any], finish: Callable[..., Any], call: Call, order: int, seed: int = 0
) -> Gradients:
    """The gradients of what `finish` makes of a call of `function`, for the tensors of the call
    that require them, up to some order."""
    found = Gradients()
    given = leaves_like(call)
    inputs = [t for t in tree_flatten(given)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    torch.manual_seed(0)
    try:
        heads = tracked(finish(function(*given)))
        found.results = [dense(h.detach()).clone() for h in heads]
        tangents = [
            drawn_like(h, 100 * seed + k).requires_grad_(order > 1) for k, h in enumerate(heads)
        ]
        if heads:
            found.first = taken(heads, inputs, tangents, order > 1)
        firsts = [g for g in found.first if g.requires_grad]
        if firsts:
            drawn = [drawn_like(g, 100 * seed + k) for k, g in enumerate(firsts)]
            found.second = taken(firsts, [*inputs, *tangents], drawn, False)
    except Exception as problem:
        found.error = problem
    found.random = torch.random.get_rng_state()
    return found


def leaves_like(call: Call) -> Call:
    """The call with its tensors in memory of their own, as leaves."""
    new = iter(
        tree_flatten(
            copied(tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, call))
        )[0]
    )
    return tree_map(
        lambda t: (
            next(new).requires_grad_()
            if isinstance(t, torch.Tensor) and t.requires_grad
            else next(new)
        ),
        call,
    )


def tracked(tree: Any) -> list[torch.Tensor]:
    return [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor) and t.requires_grad]


def drawn_like(t: torch.Tensor, seed: int) -> torch.Tensor:
    """Numbers that depend on nothing but the geometry."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.complex128 if t.is_complex() else torch.float64
    return torch.randn(t.shape, dtype=kind, generator=generator).to(t.dtype)


def taken(
    heads: list[Any], inputs: list[Any], tangents: list[Any], create: bool
) -> list[torch.Tensor]:
    """What autograd gives; a zero where it gives none."""
    found = torch.autograd.grad(heads, inputs, tangents, create_graph=create, allow_unused=True)
    return [torch.zeros_like(t) if g is None else dense(g) for g, t in zip(found, inputs)]


def dense(t: torch.Tensor) -> torch.Tensor:
    return t if t.layout is torch.strided else t.to_dense()


Errors = dict[str, tuple[float, float, float]]
"""By what is compared: the relative error of the compiled call, that of eager, and the eps that
both are told in."""


def compare(actual: Gradients, expected: Gradients, other: Callable[[], Gradients]) -> Errors:
    """The errors of what is not equal. Raises Different where a compiled call did something else
    than eager's. `other` gives what eager makes of the call in the other precision."""
    if type(actual.error) is not type(expected.error):
        raise Different(f"raises {text(actual.error)}, eager {text(expected.error)}")
    if not torch.equal(actual.random, expected.random):
        raise Different("draws other random numbers")
    found: Errors = {}
    for order, name in enumerate(("results", "first", "second")):
        a, e = getattr(actual, name), getattr(expected, name)
        if len(a) != len(e):
            raise Different(f"{len(a)} tensors of order {order}, in eager {len(e)}")
        for x, y in zip(a, e):
            if x.dtype != y.dtype or x.shape != y.shape:
                raise Different(f"order {order}: {text(x)}, in eager {text(y)}")
        if e and not error(a, e) <= CLOSE:
            found[f"order {order}"] = _errors(a, e, getattr(other(), name))
    return found


def _errors(a: list[Any], e: list[Any], other: list[Any]) -> tuple[float, float, float]:
    """Floats are held against eager's doubles. Doubles that differ are two results with an error,
    which that of eager's floats tells the order of."""
    eps = torch.finfo(e[0].dtype).eps
    if len(other) != len(e):
        return error(a, e), 0.0, eps
    if eps > torch.finfo(torch.float64).eps:
        return error(a, other), error(e, other), eps
    return error(a, e), 8 * error(other, e) * eps / torch.finfo(torch.float32).eps, eps


class Inexact(Different):
    """An error so many times that of eager, or eps."""

    def __init__(self, text: str, ratio: float) -> None:
        super().__init__(text)
        self.ratio = ratio


def is_as_exact(mine: float, its: float, eps: float) -> bool:
    return mine <= max(ERROR_RATIO * its, ERROR_FLOOR * eps)


def judge(errors: Callable[[int], Errors]) -> None:
    """Raises Different unless the errors, for one set of arguments and tangents or else on average
    over some or over many of them, are about eager's: those of an ill-conditioned call vary
    widely."""
    first = errors(0)
    wrong = [label for label, found in first.items() if not is_as_exact(*found)]
    if not wrong:
        return
    found, inexact = [first], wrong
    for count in SEEDS:
        found += [errors(seed) for seed in range(len(found), count)]
        inexact = [label for label in wrong if not is_as_exact(*_average(label, found))]
        if not inexact:
            return
    mine, its, eps = _average(inexact[0], found)
    raise Inexact(
        f"{inexact[0]}: error {mine / eps:.3g} eps, eager's {its / eps:.3g}", mine / max(its, eps)
    )


def _average(label: str, found: list[Errors]) -> tuple[float, ...]:
    """Of the errors of one kind, those that are not listed being nothing."""
    return tuple(sum(part) / len(found) for part in zip(*(e[label] for e in found if label in e)))


# -- running ---------------------------------------------------------------------------------------


def samples(info: Any, dtype: torch.dtype, most: int | None) -> list[Any]:
    """The database's samples for derivatives, or `most` of them, evenly spread."""
    torch.manual_seed(0)
    listed = list(info.sample_inputs("cpu", dtype, requires_grad=True))
    if most is not None and len(listed) > most:
        listed = [listed[k * (len(listed) - 1) // max(most - 1, 1)] for k in range(most)]
    return listed


def run_op(name: str, info: Any, options: argparse.Namespace) -> Row:
    """All calls of an op."""
    row, start = Row(name), time.perf_counter()
    with warnings.catch_warnings():
        ignore_warnings()
        for dtype in DTYPES:
            if options.dtypes and short(dtype) not in options.dtypes:
                continue
            if info.supports_autograd and dtype in info.supported_backward_dtypes("cpu"):
                _run_samples(row, info, dtype, options)
    row.seconds = time.perf_counter() - start
    return row


def _run_samples(row: Row, info: Any, dtype: torch.dtype, options: argparse.Namespace) -> None:
    order = min(options.order, 1 + bool(info.supports_gradgrad))
    compiled: dict[str, Any] = {}
    try:
        listed = samples(info, dtype, options.samples)
    except Exception as problem:  # the database's own, for what this build of torch lacks
        row.left[f"the database has no samples: {type(problem).__name__}"] += 1
        return
    for k, sample in enumerate(listed):
        call: Call = (sample.input, tuple(sample.args), dict(sample.kwargs))
        with _QuickCode(k > 0):
            _run_call(
                row, info, call, sample, f"{row.name} {short(dtype)} sample {k}", order, compiled
            )


def _run_call(
    row: Row, info: Any, call: Call, sample: Any, where: str, order: int, compiled: dict[str, Any]
) -> None:
    def eager(input: Any, args: Any, kwargs: Any) -> Any:
        return info.gradcheck_wrapper(info.op, input, *args, **kwargs)

    def run(function: Any, call: Call, seed: int) -> Gradients:
        return gradients(function, sample.output_process_fn_grad, call, order, seed)

    expected = run(eager, call, 0)
    if expected.error is None and not expected.first:
        return  # nothing of it can be differentiated
    row.calls += 1
    key = facts(call)
    function = compiled[key] = compiled.get(key) or ingot.compile(eager)
    actual = run(function, call, 0)
    left = why_eager(function)
    row.left.update(left)
    row.compiled += not left
    row.twice += bool(expected.second)

    def errors(seed: int) -> Errors:
        given = rescaled(call, 1 - seed / 64)
        both = (
            (actual, expected)
            if not seed
            else (run(function, given, seed), run(eager, given, seed))
        )
        return compare(*both, lambda: run(eager, tree_map(in_other_precision, given), seed))

    try:
        if row.name not in UNDEFINED:
            judge(errors)
        if any("internal error" in why for why in left):
            raise Different(left[0])
    except Different as difference:
        most = (
            isinstance(difference, Inexact)
            and " float32 " in where
            and EXCEPTIONS.get(row.name, ("", 0))[1]
        )
        if most and difference.ratio <= most:
            row.excepted += 1
            return
        row.failures.append(f"{where} {text(call)}: {difference}")
    else:
        row.equal += 1


def rescaled(call: Call, factor: float) -> Call:
    """The call with other numbers, that round otherwise: what is differentiated, times a factor.
    That leaves zeros, ties, symmetry and the rank of matrices as they are."""

    def one(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or not t.requires_grad or factor == 1:
            return t
        return (t.detach() * factor).requires_grad_()

    return tree_map(one, call)


_OTHER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_OTHER |= {wide: narrow for narrow, wide in _OTHER.items()}


def in_other_precision(value: Any) -> Any:
    """A tensor or dtype of one precision in the other one; anything else as it is."""
    if isinstance(value, torch.dtype):
        return _OTHER.get(value, value)
    if not isinstance(value, torch.Tensor) or value.dtype not in _OTHER:
        return value
    return value.detach().to(_OTHER[value.dtype]).requires_grad_(value.requires_grad)


def why_eager(compiled: Any) -> list[str]:
    """Why something of a call, or of its gradients, was left to eager."""
    left = list(made(compiled).left)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    for compilation in compiler.compilations:
        later = compilation.backward
        while later is not None:
            if later.skipped is not None:
                left.append(f"{later.skipped}")
            later = later.backward
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ops", nargs="*", help="names as in the table; a category runs all of it")
    parser.add_argument("--dtypes", nargs="*", help="float32, float64; both by default")
    parser.add_argument("--samples", type=int, help="at most so many samples of each op and dtype")
    parser.add_argument("--order", type=int, default=2, help="the highest derivative: 1 or 2")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--shard", help="k/n: the k-th of n parts of the ops, from 1")
    parser.add_argument(
        "--failures", type=int, default=4, help="failures of an op that are printed"
    )
    options = parser.parse_args()
    infos = {name: info for name, info in op_infos().items() if info.supports_autograd}
    wanted = options.ops or list(infos)
    names = [
        n
        for n in infos
        if n in wanted or category(n, infos[n]) in wanted or infos[n].name in wanted
    ]
    if options.shard:
        part, parts = map(int, options.shard.split("/"))
        names = list(itertools.islice(names, part - 1, None, parts))
    rows = run_all(names, infos, options, run_op, Row)
    kinds = ("calls", "equal", "excepted", "compiled", "twice")
    counts = [len(rows), *(sum(getattr(row, kind) for row in rows) for kind in kinds)]
    print(
        (
            "\n{} ops, {} calls: {} equal, {} excepted, {} compiled with their gradients, {} twice"
        ).format(*counts)
    )
    return int(any(row.failures for row in rows))


if __name__ == "__main__":
    sys.exit(main())
