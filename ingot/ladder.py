"""The ladder of attempts to compile one call: which sizes, integers and floats are symbols.

In: a call of a compiled function, and what earlier calls taught about its sizes (`SizePolicy`).
Out: the program of the first rung that can be compiled. Each rung begins with a capture of its own,
and nothing of a rung that failed is used by another.
"""

from __future__ import annotations

import enum
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from ingot import events
from ingot.capture import Captured, Request
from ingot.capture.chain import Continuations
from ingot.capture.guard_set import GuardSet
from ingot.capture.guards import Observed, Quantity, SpeculativeSizes
from ingot.compilation import Compilation
from ingot.errors import BackendError, Evidence, Unsupported, without_frames
from ingot.failures import PASSING
from ingot.graph.shape_context import too_large
from ingot.native import Entry
from ingot.options import Options
from ingot.reasons import STATIC
from ingot.sequences import Args

STABLE = 8  # calls of one entry after which a size that they had in common is taken to stay
_FLOATS = frozenset({float})
_NUMBERS = _FLOATS | {int}
_MISTAKES = (AttributeError, NameError, TypeError)
"""Errors that Ingot never refuses a program by: they are mistakes in its own code."""

Recall = Callable[[Captured], tuple[frozenset[Quantity], frozenset[Quantity]]]
"""Gives what a captured call would be compiled for, and other processes saw to vary, and what
became symbols beside that (`kept.varied.recalled`)."""

Run = Callable[[tuple[Any, ...], tuple[Any, ...], dict[str, Any]], Any]


class Sizes(enum.Enum):
    """What becomes a symbol."""

    SPECULATIVE = "what was seen to vary, and sizes that probably will"
    SYMBOLIC = "what was seen to vary"
    STATIC = "floats that were seen to vary; the sizes and integers are those of the call"


class Rung(NamedTuple):
    """One attempt. `data_dependent`: sizes that the data decide do not break the graph."""

    sizes: Sizes
    data_dependent: bool


LADDER = (
    Rung(Sizes.SPECULATIVE, True),
    Rung(Sizes.SYMBOLIC, True),
    Rung(Sizes.STATIC, True),
    Rung(Sizes.SPECULATIVE, False),
    Rung(Sizes.SYMBOLIC, False),
    Rung(Sizes.STATIC, False),
)
"""The rungs in the order in which they are tried. A policy says which of them it allows."""


class SizePolicy:
    """What a compiler has learnt of its calls that decides which rungs it tries."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.observed: Observed = frozenset()
        self.recall: Recall | None = None  # asked once
        self.speculative: SpeculativeSizes | None = None  # once there is an entry
        self.is_symbolic = options.dynamic is not False and options.is_native
        self.speculates = self.is_symbolic
        self.is_static = False  # symbols could not be compiled
        self.data_dependent = options.is_native  # False: they could not be compiled
        self.expects_errors = True  # False: eager did not raise what capture said that it does

    def observe(self, guards: Sequence[GuardSet], entries: Sequence[Entry], slots: Args) -> None:
        """Takes note of what differs in a call that none of these entries serves."""
        for known in guards:
            self.observed = self.observed.union(known.changed_floats(slots))
            if self.is_symbolic:
                changed = known.changed_sizes(slots), known.changed_integers(slots)
                self.observed = self.observed.union(*changed)
        if self.speculates:
            self._speculate(guards, entries, slots)

    def _speculate(self, guards: Sequence[GuardSet], entries: Sequence[Entry], slots: Args) -> None:
        """Finds the sizes beside one that varies, unless they were stable in an entry that nothing
        but sizes keeps from serving this call."""
        compiled = [(g, entry) for g, entry in zip(guards, entries) if entry.target is not None]
        if not compiled:
            return
        beside, stable, known = set[Quantity](), set[Quantity](), set[Any]()
        for g, entry in compiled:
            known.update(g.sizes())
            if entry.hits < STABLE:
                beside.update(g.sizes_beside_changed(slots))
            else:
                stable.update(g.settled_sizes(slots))
        places = beside - stable
        if self.speculative is not None:
            places |= self.speculative.places
        self.speculative = SpeculativeSizes(frozenset(places), frozenset(known))

    def allows(self, rung: Rung) -> bool:
        if rung.data_dependent is not self.data_dependent:
            return False
        if self.is_static:
            return rung.sizes is Sizes.STATIC
        return rung.sizes is not Sizes.SPECULATIVE or self.speculative is not None

    def request(self, sizes: Sizes, continuations: Continuations) -> Request:
        """What a rung asks of capture."""
        options, symbols, inputs = self.options, self.observed, self._inputs()
        if sizes is Sizes.STATIC:
            options = replace(options, dynamic=False)
            symbols = frozenset(s for s in symbols if not isinstance(s, Quantity))
            inputs &= _FLOATS
        return Request(
            options,
            continuations,
            symbols,
            self.speculative if sizes is Sizes.SPECULATIVE else None,
            self.data_dependent,
            self.expects_errors,
            self.observed,
            inputs,
        )

    def _inputs(self) -> frozenset[type]:
        """The types of numbers that are inputs from the first call on."""
        dynamic = self.options.dynamic if self.options.is_native else False
        if dynamic is False or self.options.replays:  # what is recorded on a GPU has numbers in it
            return frozenset()
        if dynamic:
            return _NUMBERS
        return _FLOATS


class Ladder:
    """Compiles one call. `capture` captures it, and `add_entry` makes what was captured an
    entry."""

    def __init__(
        self,
        policy: SizePolicy,
        compilation: Compilation,
        continuations: Continuations,
        guards: Sequence[GuardSet],
        capture: Callable[[Request], Captured],
        add_entry: Callable[[Captured], Run],
    ) -> None:
        self.policy, self.compilation, self.continuations = policy, compilation, continuations
        self.guards, self._capture_call, self._add_entry = guards, capture, add_entry
        self.captured: Captured | None = None  # by the rung that is tried
        self.against_symbols: Exception | None = None  # why the rung before failed
        self.against_data: Exception | None = None  # why those with data-dependent sizes did

    def climb(self) -> Run:
        """The program of the first rung that can be compiled.

        Raises what the last one raises, or a rung that failed for no reason that another one takes
        away.
        """
        for rung in LADDER:
            if not self.policy.allows(rung):
                continue
            try:
                run = self._try(rung)
            except (BackendError, *PASSING):
                raise
            except Exception as problem:
                mistake = mistake_line(problem)
                if not self._may_go_on(rung, problem):
                    raise
                self.compilation.fixed_sizes += mistake
            else:
                if run is not None:
                    return run
        raise AssertionError("the last rung gives a program or raises")

    def _try(self, rung: Rung) -> Run | None:
        """The program of a rung; None where its symbols break the graph."""
        captured = self._capture(rung.sizes)
        if rung.sizes is Sizes.SYMBOLIC and self._recall(captured):
            return self.climb()
        if rung.sizes is Sizes.STATIC:
            self._refuse_large_integers(captured)
        elif self._breaks_by_symbols(captured):
            assert captured.break_ is not None
            self._note_refusal(rung, captured.break_)
            return None
        self.captured = captured  # which was captured again for the sizes of the call
        run = self._add_entry(captured)
        self._learn(rung, captured)
        return run

    def _capture(self, sizes: Sizes) -> Captured:
        compilation = self.compilation
        self.captured = compilation.captured = None
        span = events.Span(events.CAPTURE, compilation.title, compilation.where, sizes=sizes.name)
        with compilation.log.stage("capture"), span:
            captured = self._capture_call(self.policy.request(sizes, self.continuations))
            self.captured = compilation.captured = captured
            span.facts["operations"] = captured.ops
        return captured

    def _recall(self, captured: Captured) -> bool:
        """Whether more becomes a symbol, since other processes saw it to vary."""
        recall, self.policy.recall = self.policy.recall, None
        if recall is None:
            return False
        observed, speculative = recall(captured)
        if not observed:
            return False
        for quantity in sorted(observed, key=attrgetter("name")):
            line = f"{quantity.name} is a symbol: an earlier process saw it to vary"
            self.compilation.log.decisions.append(line)
        self.policy.observed |= observed
        known = frozenset(captured.guards.sizes())
        self.policy.speculative = SpeculativeSizes(speculative, known)
        return True

    def _breaks_by_symbols(self, captured: Captured) -> bool:
        """Whether a graph breaks that would not break, or elsewhere, for the sizes of the call."""
        why = captured.break_
        if why is None or not has_symbols(why):
            return False
        return str(self._capture(Sizes.STATIC).break_) != str(why)

    def _refuse_large_integers(self, captured: Captured) -> None:
        """Raises Unsupported where a call is not compiled for an integer that is too large for a
        symbol: the next one may have another."""
        takes_integers = any(guards.takes_integers() for guards in self.guards)
        if self._is_of_the_call and takes_integers and not self.policy.options.fullgraph:
            reason = too_large()
            reason.evidence = Evidence(captured.guards)
            raise reason

    @property
    def _is_of_the_call(self) -> bool:
        """Whether the values of this call are to blame that symbols failed, and not the program."""
        why = self.against_symbols
        return isinstance(why, Unsupported) and why.why.is_of_the_call

    def _may_go_on(self, rung: Rung, problem: Exception) -> bool:
        """Whether a later rung lacks what may have led to an error."""
        captured = self.captured
        if rung.sizes is not Sizes.STATIC and has_symbols(captured or problem):
            self._note_refusal(rung, problem)
            return True
        if captured is None or not captured.context.shapes.unbacked.roots:
            return False
        if self.policy.options.fullgraph:
            return False
        self.policy.data_dependent = False
        self.against_data, self.against_symbols = without_frames(problem), None
        self.captured = self.compilation.captured = None
        return True

    def _note_refusal(self, rung: Rung, why: Exception) -> None:
        self.against_symbols = without_frames(why)
        if rung.sizes is Sizes.SPECULATIVE and not self._is_of_the_call:
            self.policy.speculates, self.policy.speculative = False, None

    def _learn(self, rung: Rung, captured: Captured) -> None:
        """Takes note of which rung it was, for the next call and the report."""
        policy, lines = self.policy, self.compilation.fixed_sizes
        if rung.sizes is Sizes.SPECULATIVE:
            known = policy.speculative
            assert known is not None
            policy.speculative = known._replace(places=known.places | captured.speculative)
        if rung.sizes is Sizes.STATIC and self.against_symbols is not None:
            lines.append(f"all sizes and integers are those of the call: {self.against_symbols}")
            policy.is_static = not self._is_of_the_call
        if self.against_data is not None:
            lines.append(f"sizes that the data decide break the graph: {self.against_data}")


def mistake_line(problem: Exception) -> list[str]:
    """The line of a report that names a mistake in Ingot's own code; empty for other errors."""
    if not isinstance(problem, _MISTAKES):
        return []
    package = os.path.dirname(__file__) + os.sep
    place = ""
    for frame in traceback.extract_tb(problem.__traceback__):
        if frame.filename.startswith(package):
            place = f"{frame.filename.removeprefix(package)}:{frame.lineno}"
    return [f"internal error in {place}: {type(problem).__name__}: {problem}"]


def has_symbols(outcome: Captured | Exception) -> bool:
    """Whether a capture, or the reason why there is none, has seen symbols for sizes or integers;
    True if unknown."""
    if isinstance(outcome, Captured):
        return bool(outcome.guards.symbols)
    if not isinstance(outcome, Unsupported) or outcome.evidence.guards is None:
        return True
    if outcome.why.action is STATIC or outcome.why.is_of_the_call:
        return True
    return bool(outcome.evidence.guards.symbols)
