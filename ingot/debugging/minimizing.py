"""`python -m ingot minimize`: the smallest script that fails in the same way, or nearly.

In: a script that fails, and a check that says how. Out: one with fewer ops, results and elements
for which the check says the same kind. Any set of a graph's ops is a graph: what the others
computed becomes an input, with the value that eager has there. Delta debugging looks for a small
set; then results go, sizes shrink, and values are replaced by ones that are made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ingot.debugging.cases import Case, tensor_names
from ingot.debugging.locating import recorded
from ingot.debugging.made_inputs import Facts, may_be_made
from ingot.debugging.repro import Failure, Repro, in_modes
from ingot.errors import ReproError

Check = Callable[[Repro], Failure]
"""Says what is wrong with a script's program."""

SECONDS = 45.0
"""After so many, the smallest one found until then is taken. With Python's start that is less than
a minute."""


def minimize(
    repro: Repro,
    check: Check,
    seconds: float = SECONDS,
    note: Callable[[str], object] = lambda text: None,
) -> Repro:
    """A smaller script that fails in the same way. Raises ReproError for one that does not fail.

    `note` is told of progress.
    """
    end = time.monotonic() + seconds
    kind = check(repro).kind
    if not kind:
        raise ReproError("the script does not fail: there is nothing to minimize")
    search = _Search(check, kind, end, note)
    with in_modes(repro.modes):
        values = recorded(repro.case, repro.made())
    smaller = _fewer_statements(repro, values, search)
    for step in (_fewer_results, _smaller_sizes, _made_inputs):
        smaller = step(smaller, search)
    return replace(smaller, shows=kind)


class _Search:
    """What the steps have in common: whether a candidate fails in the same way, and the time."""

    def __init__(self, check: Check, kind: str, end: float, note: Callable[[str], object]) -> None:
        self.check, self.kind, self.end, self.note = check, kind, end, note
        self.tried = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end

    def fails(self, repro: Repro) -> bool:
        """Whether a candidate does; not once the time is over."""
        if self.is_over or not repro.case.results:
            return False
        self.tried += 1
        try:
            fails = self.check(repro).kind == self.kind
        except Exception:  # it cannot even be run
            return False
        if fails:
            self.note(f"{len(repro.case.statements)} ops, {self.tried} tried")
        return fails


def _fewer_statements(repro: Repro, values: Mapping[str, Any], search: _Search) -> Repro:
    """Delta debugging: halves, then quarters and so on, then what is left without each."""
    tensors = tensor_names(values)

    def of(names: Collection[str]) -> Repro:
        part = repro.case.part(names, tensors)
        return replace(repro, case=part, inputs=tuple(map(values.__getitem__, part.parameters)))

    names, pieces = [s.name for s in repro.case.statements], 2
    best = repro
    while len(names) > 1 and not search.is_over:
        for candidate in _candidates(names, pieces):
            smaller = of(candidate)
            if search.fails(smaller):
                is_piece = len(candidate) <= -(-len(names) // pieces)
                names, best = candidate, smaller
                pieces = 2 if is_piece else max(pieces - 1, 2)
                break
        else:
            if pieces >= len(names):
                break
            pieces = min(2 * pieces, len(names))
    return best


def _candidates(names: list[str], pieces: int) -> Iterator[list[str]]:
    """The pieces of a list, then what is left without each."""
    length = -(-len(names) // pieces)
    begins = range(0, len(names), length)
    for begin in begins:
        yield names[begin : begin + length]
    if pieces > 2:
        for begin in begins:
            yield names[:begin] + names[begin + length :]


def _fewer_results(repro: Repro, search: _Search) -> Repro:
    """One result, if one fails alone."""
    if len(repro.case.results) < 2:
        return repro
    for name in repro.case.results:
        smaller = _with_case(repro, repro.case.with_results([name]).without_dead())
        if search.fails(smaller):
            return smaller
    return repro


def _with_case(repro: Repro, case: Case) -> Repro:
    """Another case of some of the same inputs."""
    given = dict(zip(repro.case.parameters, repro.inputs))
    return replace(repro, case=case, inputs=tuple(map(given.__getitem__, case.parameters)))


def _smaller_sizes(repro: Repro, search: _Search) -> Repro:
    """Each size that inputs have, at all places at once, as small as it may be."""
    sizes = set[int]()
    for value in repro.inputs:
        if isinstance(value, Tensor):
            sizes.update(value.shape)
    for size in sorted(sizes, reverse=True):
        for smaller_size in (2, 3, 4, 8, 16, 64):
            if smaller_size >= size:
                break
            inputs = [_cut(value, size, smaller_size) for value in repro.inputs]
            smaller = replace(repro, inputs=tuple(inputs))
            if search.fails(smaller):
                repro = smaller
                break
    return repro


def _cut(value: Any, size: int, smaller: int) -> Any:
    """A tensor with the first elements along the dimensions of a size, in memory of its own."""
    if not isinstance(value, Tensor) or size not in value.shape:
        return value
    cut = value.detach()
    for dim, own in enumerate(value.shape):
        if own == size:
            cut = cut.narrow(dim, 0, smaller)
    return cut.clone().requires_grad_(value.requires_grad)


def _made_inputs(repro: Repro, search: _Search) -> Repro:
    """Values replaced by ones that are made from facts: all at once, else one by one."""
    made: list[Any] = []
    for seed, value in enumerate(repro.inputs):
        made.append(Facts.of(value, seed) if may_be_made(value) else value)
    smaller = replace(repro, inputs=tuple(made))
    if search.fails(smaller):
        return smaller
    for k, facts in enumerate(made):
        inputs: Sequence[Any] = (*repro.inputs[:k], facts, *repro.inputs[k + 1 :])
        smaller = replace(repro, inputs=tuple(inputs))
        if isinstance(facts, Facts) and search.fails(smaller):
            repro = smaller
    return repro


def describe(repro: Repro) -> str:
    """How large a script is."""
    elements = 0
    for value in repro.made():
        if isinstance(value, torch.Tensor):
            elements += value.numel()
    return f"{len(repro.case.statements)} ops, {elements} elements among the inputs"
