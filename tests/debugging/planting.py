"""Where to plant a mutant, chosen by a seed: a call of torch, a row of the op tables that compiling
it uses, a wrong rule for that row, and a random graph in which nothing else uses it.

A mutant that does not compile, or changes no value by more than rounding, is no miscompilation: the
next one is taken, and where none is left, the next row and the next call.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.debugging.cases import case_from
from ingot.debugging.comparing import Outcome, outcome
from ingot.debugging.inputs import RandomState, copies
from ingot.debugging.repro import Repro, compiler_of
from tests.debugging.calls import CALLS
from tests.debugging.mutating import Key, Mutant, candidates, noted, planted
from tests.debugging.random_graphs import BOUNDS, FORMS, random_graph

EFFECT = 1e-4
"""The relative error that makes a mutant a miscompilation."""

FEWEST = 8
"""So many other forms a graph is made of at least."""

AROUND = (
    "{a}.view(1, 1, {n}, {n})[0, 0][:, :8][None][0]",
    "({a}.abs() + 1.5)",
    "({a}[:1]*{b})",
    "({a}*0.3)",
    "({a}-{b})",
    "({b} > 0)",
)
"""What stands around calls, or within them."""


class Planting(NamedTuple):
    """A mutant, the name of the call that it makes wrong, and a graph of that."""

    name: str
    mutant: Mutant
    graph: Repro

    def __str__(self) -> str:
        return f"{self.name}: {self.mutant}"


def planting(seed: int, number: int, backward: bool, ops: int, of: int = 20) -> Planting:
    """The planting of a number below `of`, no two of which are of the same call; with `backward` of
    a rule that gradients alone use."""
    names = list(CALLS)
    random.Random(seed).shuffle(names)
    rng = random.Random(f"{seed} {number}")
    for name in names[number::of]:
        for key in _rows(name, backward, rng):
            others = [form for form in FORMS if key not in reached(form, backward)]
            bounds = [form for form in BOUNDS if key not in reached(form, backward)]
            if len(others) < FEWEST or not bounds:
                continue
            mutants = candidates(key)
            rng.shuffle(mutants)
            graph = random_graph(number, ops, CALLS[name], 16, others, bounds[0])
            graph = _requiring(graph, backward)
            alone = _alone(CALLS[name], bounds[0], backward)
            for mutant in mutants:
                if _is_wrong(mutant, alone) and _is_wrong(mutant, graph):
                    return Planting(name, mutant, graph)
    raise ValueError("all mutants are equivalent")


def _rows(name: str, backward: bool, rng: random.Random) -> Iterator[Key]:
    """The rows that the call alone uses, in an order by the seed."""
    rows = set(reached(CALLS[name], backward))
    if backward:
        rows -= reached(CALLS[name], False)
    for form in AROUND:
        rows -= reached(form, backward)
    ordered = sorted(rows, key=str)
    rng.shuffle(ordered)
    yield from ordered


@cache
def reached(form: str, backward: bool) -> frozenset[Key]:
    """The rows that compiling a call uses."""
    seen = set[Key]()
    with noted(seen):
        _run(_alone(form, "{a}", backward))
    return frozenset(seen)


def _alone(form: str, bound: str, backward: bool) -> Repro:
    """The graph of one call, and of `bound` on its result."""
    a, called = "v0", form.format(a="x", b="y", i="indices", n=16)
    lines = [f"    v0 = {called}", f"    v1 = torch.clone({bound.format(a=a)})"]
    text = "\n".join(("import torch", "def graph(x, y, indices):", *lines, "    return (v1,)"))
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(16, 16, generator=generator) for _ in range(2))
    indices = torch.randint(0, 16, (16, 16), generator=generator)
    return _requiring(Repro(case_from(text), (x, y, indices)), backward)


def _requiring(graph: Repro, backward: bool) -> Repro:
    """The graph of inputs that require gradients, or with gradients switched off."""
    if not backward:
        return replace(graph, modes={"grad": False})
    for value in graph.inputs:
        if value.is_floating_point():
            value.requires_grad_()
    return graph


def _run(graph: Repro) -> Outcome:
    """What the compiled graph does."""
    compile = compiler_of(graph)
    with torch.set_grad_enabled(graph.gradients):
        return outcome(
            lambda *inputs: compile(graph.case.function())(*inputs),
            copies(graph.inputs),
            graph.gradients,
            RandomState.now(),
        )


def _is_wrong(mutant: Mutant, graph: Repro) -> bool:
    """Whether it changes what a graph computes, beyond rounding."""
    right = _run(graph)
    with planted(mutant):
        wrong = _run(graph)
    if right.raised or wrong.raised:
        return False
    pairs = zip((*right.results, *right.gradients), (*wrong.results, *wrong.gradients))
    return any(_differ(one, other) for one, other in pairs)


def _differ(right: Any, wrong: Any) -> bool:
    if not isinstance(right, Tensor) or not isinstance(wrong, Tensor):
        return False
    right, wrong = right.detach().double(), wrong.detach().double()
    if not torch.equal(right.isfinite(), wrong.isfinite()):
        return True
    finite = right.isfinite()
    distance = (right - wrong)[finite].norm()
    return bool(distance > EFFECT * right[finite].norm())
