"""The report: what Ingot made of a function.

Compilations go in, a `Report` comes out. Its text is `screen.py`'s, its records `records.py`'s and
`programs.py`'s; `to_dict` gives all of it as plain data, as docs/report.md says.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ingot
from ingot.compilation import Compilation
from ingot.explain import programs, records
from ingot.explain.programs import (
    BACKWARD,
    FORWARD,
    INSIDE,
    ProgramReport,
    backwards_of,
    complete,
    program_reports,
    with_inside,
)
from ingot.explain.records import (
    INTERNAL,
    Break,
    Cause,
    HistoryEntry,
    KernelReport,
    StageReport,
    ValueReport,
    as_plain,
    causes_of,
)
from ingot.explain.screen import HEIGHT, WIDTH, lines_of, time_lines
from ingot.explain.text import place_text, plural, short_places, size_text

__all__ = [
    "HEIGHT",
    "WIDTH",
    "Break",
    "KernelReport",
    "ProgramReport",
    "Report",
    "breaks_of",
    "place_text",
    "plural",
    "short_places",
    "size_text",
    "time_lines",
]

SCHEMA = 1
"""The version of what `Report.to_dict` gives: another one where a field is gone or means something
else. New fields leave it as it is."""


@dataclass
class Report:
    """What `ingot.explain(fn)(*args)` returns. Times are in seconds.

    `graphs`, `breaks`, `recompiles` and `history` are of all that was compiled for the function so
    far; each break counts once, and `causes` sums them by their ids. `programs`, `kernels` (of the
    forwards), `guards`, `fixed_sizes` (why sizes that vary, or are marked as dynamic, are compiled
    for) and the figures are of its regions (from its start to a graph break, from there to the
    next, and so on) as they were compiled last. `saved` are the values that forwards save for their
    backwards, `recomputed` those that backwards compute once more; both say why. `cuda_graphs` says
    of each program of
    `mode="reduce-overhead"` how it is replayed, or why it is not, `tuned` of each product that
    `mode="max-autotune"` measured what was chosen, `donations` of each argument that is given up
    whether a program takes its memory, or why not. `kept` says whether programs were found among
    those that earlier processes kept, or why they are not kept. `peak_bytes` and
    `backward_peak_bytes` count inputs, outputs and all that is alive between, as planned, for the
    program with the most; `compilations` holds every artefact.
    """

    name: str
    where: str = ""
    breaks: list[Break] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list, repr=False, metadata=INTERNAL)
    kernels: list[KernelReport] = field(default_factory=list, metadata=INTERNAL)
    guards: list[str] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    recompiles: list[str] = field(default_factory=list)
    fixed_sizes: list[str] = field(default_factory=list)
    cuda_graphs: list[str] = field(default_factory=list)
    tuned: list[str] = field(default_factory=list)
    donations: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    peak_bytes: int | None = None
    arena_bytes: int | None = None
    first_call: float | None = None
    compilations: list[Compilation] = field(default_factory=list, repr=False, metadata=INTERNAL)
    programs: list[ProgramReport] = field(default_factory=list, repr=False)
    history: list[HistoryEntry] = field(default_factory=list, repr=False)
    backward_stages: dict[str, float] = field(default_factory=dict)
    backward_peak_bytes: int | None = None

    @staticmethod
    def from_compilations(compilations: Sequence[Compilation]) -> Report:
        """The report of a function with these entries, oldest first; at least one."""
        if not compilations:
            raise ValueError("nothing was compiled, so there is nothing to report")
        first, regions = compilations[0], in_force(compilations)
        report = Report(
            name=first.name,
            where=first.where,
            breaks=breaks_of(compilations),
            graphs=[c.captured.graph_module for c in compilations if c.has_graph],
            stages=total_seconds(regions),
            recompiles=[recompiled_text(c) for c in compilations if c.recompiled],
            compilations=list(compilations),
            history=list(map(history_entry, compilations)),
        )
        for number, c in enumerate(regions):
            report._add_region(number, c)
        return report

    def _add_region(self, number: int, c: Compilation) -> None:
        c.log.complete()
        extend_with_new(self.kept, filter(None, [c.log.kept]))
        self.cuda_graphs += replayed_texts(c)
        extend_with_new(self.guards, c.guards)
        extend_with_new(self.fixed_sizes, c.fixed_sizes)
        extend_with_new(self.tuned, tuned_texts(c))
        extend_with_new(self.donations, donation_texts(c))
        if c.first_call is not None:
            self.first_call = (self.first_call or 0) + c.first_call
        for program in program_reports(c, number):
            self.programs.append(program)
            if program.compilation is c:
                self.peak_bytes = _most(self.peak_bytes, program.peak_bytes)
                if program.arena_bytes is not None:
                    self.arena_bytes = (self.arena_bytes or 0) + program.arena_bytes
            if program.kind == BACKWARD:
                add_seconds(self.backward_stages, program.stages)
                self.backward_peak_bytes = _most(self.backward_peak_bytes, program.peak_bytes)
        self.kernels = kernels_of(self.forwards)

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def break_count(self) -> int:
        return len(self.breaks)

    @property
    def causes(self) -> list[Cause]:
        """What the breaks come to by their ids."""
        return causes_of(self.breaks)

    @property
    def fused_count(self) -> int:
        return sum(kernel.kind == "fused" for kernel in self.kernels)

    @property
    def forwards(self) -> list[ProgramReport]:
        """The programs that compute results, with those inside of them."""
        return _of_kind(self.programs, FORWARD)

    @property
    def backwards(self) -> list[ProgramReport]:
        """The programs that compute gradients, with those inside of them."""
        return _of_kind(self.programs, BACKWARD)

    @property
    def backward_kernels(self) -> list[KernelReport]:
        """The kernels of the gradients."""
        return kernels_of(self.backwards)

    @property
    def saved(self) -> list[ValueReport]:
        """The values that forwards save for their backwards."""
        return list(itertools.chain(*[program.saved for program in self.programs]))

    @property
    def recomputed(self) -> list[ValueReport]:
        """The values that backwards compute once more."""
        return list(itertools.chain(*[program.recomputed for program in self.programs]))

    def measure(self, call: Callable[[], object], rounds: int = 5) -> None:
        """Fill in `seconds` of the kernels, over `rounds` of `call`.

        That calls the compiled function, and takes gradients if the backward is to be measured."""
        running, replays = [], []
        for report in self.programs:
            log = report.compilation.log
            if log.plan is not None and log.program is not None:
                running.append((report, log.program))
            if log.replayed and not isinstance(log.replayed, str):
                replays.append(log.replayed)
        measured: list[list[list[float]]] = []
        for _ in range(rounds):
            for _, program in running:
                program.profile(True)
            for graphs in replays:
                graphs.paused = True  # a replay has no steps to measure
            try:
                call()
            finally:
                measured.append([program.profile(False) for _, program in running])
                for graphs in replays:
                    graphs.paused = False
        for (report, _), *seconds in zip(running, *measured):
            _note_seconds(report, seconds)
        self.kernels = kernels_of(self.forwards)

    def stage(self, name: str) -> str:
        """The artefact of one stage (a key of `explain.stages.STAGES`) of every compilation, as
        text."""
        from ingot.explain.stages import stage_text

        return "\n\n".join(stage_text(c, name) for c in self._with_stage(name))

    def artefacts(self, name: str) -> list[StageReport]:
        """The same as records, one for each program."""
        from ingot.explain.stages import stage_report

        return [stage_report(c, name) for c in self._with_stage(name)]

    def _with_stage(self, name: str) -> list[Compilation]:
        from ingot.explain.stages import OF_FUNCTIONS

        shown: list[Compilation] = []
        for c in self.compilations:
            c.log.complete()
            shown.append(c)
            if name not in OF_FUNCTIONS:
                shown[-1:] = itertools.chain(*map(with_inside, (c, *programs.shown_backwards(c))))
        return shown

    def text(self, width: int = WIDTH) -> str:
        """The report on one screen: at most 40 lines, of `width` columns (60 to 200)."""
        return "\n".join(lines_of(self, width))

    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings, numbers and None, for tools and for JSON.

        docs/report.md has each field; `schema` is their version.
        """
        plain: dict[str, Any] = {"schema": SCHEMA, "ingot": ingot.__version__}
        plain |= as_plain(self, PROPERTIES)
        return plain

    def html(
        self,
        path: str | os.PathLike[str],
        call: Callable[[], object] | None = None,
        eager: Callable[[], object] | None = None,
    ) -> None:
        """Write all of it as a page: one file of HTML, of 5 MB at most, that needs no network.

        `call` calls the compiled function and `eager` does the same in eager, with arguments of its
        own; the page has the timelines of both then, and the times of kernels. The one is called
        six times, the other three times. OSError where the file cannot be written.
        """
        from ingot.explain.page.recording import document_of, page_of

        page = page_of(document_of(self, call, eager))
        Path(path).write_text(page, "utf-8")

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from ingot.explain.page.compact import compact_html

        return compact_html(self)

    def __str__(self) -> str:
        return self.text()


PROPERTIES = {
    **records.PROPERTIES,
    **programs.PROPERTIES,
    Report: ("graph_count", "break_count", "causes"),
}
"""What is plain data beside the fields of each record."""


def complete_gradients(compilations: Sequence[Compilation]) -> None:
    """Compiles the backwards that a report of these shows and nobody has asked for yet."""
    for c in in_force(compilations):
        complete(c)


def _most(one: int | None, other: int | None) -> int | None:
    sizes = [size for size in (one, other) if size is not None]
    return max(sizes, default=None)


def _of_kind(programs: Iterable[ProgramReport], kind: str) -> list[ProgramReport]:
    """The programs of a kind, with what is inside of them, which follows."""
    found, last = [], ""
    for program in programs:
        if program.kind != INSIDE:
            last = program.kind
        if last == kind:
            found.append(program)
    return found


def kernels_of(programs: Iterable[ProgramReport]) -> list[KernelReport]:
    """All of their kernels, in order."""
    return list(itertools.chain(*[program.kernels for program in programs]))


def _note_seconds(report: ProgramReport, rounds: Sequence[Sequence[float]]) -> None:
    """Fills in the medians of what a program's kernels took, where each round has run it."""
    if not rounds or any(len(round_) != len(report.kernels) for round_ in rounds):
        return
    if not any(map(any, rounds)):
        return  # it did not run
    medians = map(statistics.median, zip(*rounds))
    report.kernels = [replace(kernel, seconds=s) for kernel, s in zip(report.kernels, medians)]


def history_entry(c: Compilation) -> HistoryEntry:
    """What came of a compilation."""
    from ingot.kept.programs import FOUND

    outcome, reason = "compiled", ""
    if c.skipped is not None:
        outcome, reason = "eager", str(c.skipped)
    elif c.log.kept == FOUND:
        outcome = "found"
    if c.break_ is not None and not reason:
        reason = str(c.break_)
    seconds = sum(c.log.seconds.values())
    return HistoryEntry(c.title, c.where, outcome, c.recompiled, reason, seconds, c.first_call)


def extend_with_new(items: list[str], more: Iterable[str]) -> None:
    """Add those that are not there yet, in order."""
    items[:] = dict.fromkeys((*items, *more))


def in_force(compilations: Sequence[Compilation]) -> list[Compilation]:
    """All since the function itself was compiled last, and the newest of each region that was not
    compiled again."""
    starts = [k for k, c in enumerate(compilations) if c.region is None]
    compiled = []
    for k in starts:
        if compilations[k].skipped is None:
            compiled.append(k)
    start = (compiled or starts or [0])[-1]
    newest = {c.region: c for c in compilations[:start]}
    recent = []
    for c in compilations[start:]:
        if c.region is not None or c is compilations[start]:
            recent.append(c)
            newest.pop(c.region, None)
    return [*recent, *newest.values()]


def breaks_of(compilations: Sequence[Compilation]) -> list[Break]:
    """Each once, in the order in which they were met."""
    breaks: dict[tuple[Break, str], Break] = {}
    costs = _costs(compilations)
    for c, cost in zip(compilations, costs):
        for why, eager in ((c.break_, False), (c.skipped, True)):
            if why is None:
                continue
            item = Break.of(why, c.name, eager, cost)
            known = breaks.get((item, item.wrote))
            if known is not None:
                item = replace(known, times=known.times + 1, seconds=known.seconds + cost)
            breaks[item, item.wrote] = item
    return list(breaks.values())


def _costs(compilations: Sequence[Compilation]) -> list[float]:
    """For each compilation that has a break, the seconds that what follows took to compile; its own
    for one that is left to eager."""
    costs, last = [0.0] * len(compilations), None
    for k, c in enumerate(compilations):
        seconds = sum(c.log.seconds.values())
        if c.skipped is not None:
            costs[k] += seconds
        elif c.is_continuation and last is not None:
            costs[last] += seconds
        if c.break_ is not None:
            last = k
    return costs


def total_seconds(compilations: Iterable[Compilation]) -> dict[str, float]:
    """The seconds of each stage, in the order of the stages."""
    total: dict[str, float] = {}
    for c in itertools.chain(*map(with_inside, compilations)):
        add_seconds(total, c.log.seconds)
    return total


def add_seconds(total: dict[str, float], more: Mapping[str, float]) -> None:
    """Add the seconds of each stage to those of the same one."""
    for name, seconds in more.items():
        total[name] = total.get(name, 0.0) + seconds


def recompiled_text(c: Compilation) -> str:
    if c.is_continuation:
        return f"{c.recompiled}, in {c.title}"
    return c.recompiled


def replayed_texts(c: Compilation) -> list[str]:
    """A line for each program of a compilation that was to be replayed."""
    texts = []
    for program in (c, *backwards_of(c)):
        replayed, name = program.log.replayed, program.name
        if program is c:
            name = c.title
        if replayed and not isinstance(replayed, str):
            replayed = replayed.describe()
        if replayed:
            texts.append(f"{name}: {replayed}")
    return texts


def tuned_texts(c: Compilation) -> list[str]:
    """A line for each product of a compilation, and of its gradients, that was measured."""
    return list(itertools.chain(*[program.log.tuned for program in (c, *backwards_of(c))]))


def donation_texts(c: Compilation) -> list[str]:
    """What became of the arguments that the caller gives up, as planned and in the calls so far."""
    reasons: dict[str, str] = {}
    reasons.update(c.log.donated)
    donations = getattr(c.captured, "donations", None)
    if donations is not None:
        reasons.update(donations.kept)
    texts = []
    for what, why in reasons.items():
        texts.append(f"{what} stays: {why}" if why else f"{what} is taken")
    if c.log.program is not None:
        for (what, why), calls in (c.log.program.native.kept_arguments or {}).items():
            texts.append(f"{what} stayed in {plural(calls, 'call')}: {why}")
    return texts
