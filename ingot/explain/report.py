"""The report: what Ingot made of a function, on one screen, in the user's own lines of code.

Compilations go in, a `Report` comes out, whose text is at most HEIGHT lines of WIDTH columns.
"""

from __future__ import annotations

import itertools
import linecache
import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ingot.compilation import Compilation
from ingot.errors import Unsupported
from ingot.sequences import at, present

if TYPE_CHECKING:
    from ingot.schedule.plan import KernelStep, LibraryStep

WIDTH, HEIGHT = 120, 40


@dataclass(frozen=True)
class Break:
    """A place, in `function`, where a graph ends. The instruction runs for real, and what follows
    is another graph or, where `eager` says so, runs in eager. `file` is "" and `line` 0 where they
    are not known."""

    reason: str
    file: str = ""
    line: int = 0
    hint: str = ""
    function: str = ""
    eager: bool = False

    @staticmethod
    def of(why: Unsupported, function: str, eager: bool) -> Break:
        file, line = split_where(why.where)
        return Break(why.reason, file, line, why.hint, why.function or function, eager)

    def __str__(self) -> str:
        text = "in eager from " if self.eager else "break at "
        text += place_text(f"{self.file}:{self.line}") if self.file else "an unknown place"
        if self.function:
            text += f" in {self.function}"
        return f"{text}: {self.reason}"


@dataclass(frozen=True)
class KernelReport:
    """One step of a program. `ops` are ATen names; `source` is LLVM IR, or the name of the library
    function; `seconds` is the median of what it took in the calls that `Report.measure` made."""

    name: str
    kind: str  # "fused" or "extern"
    ops: tuple[str, ...]
    reads_bytes: int
    writes_bytes: int
    source: str = field(repr=False)
    where: str = ""
    seconds: float | None = None


@dataclass
class Report:
    """What `ingot.explain(fn)(*args)` returns. Times are in seconds.

    `graphs`, `breaks` and `recompiles` are of all that was compiled for the function so far; each
    break counts once. `kernels`, `guards`, `fixed_sizes` (why sizes that vary, or are marked as
    dynamic, are compiled for) and the figures are of its regions (from its start to a graph break,
    from there to the next, and so on) as they were compiled last. `cuda_graphs` says of each
    program of `mode="reduce-overhead"` how it is replayed, or why it is not, `tuned` of each
    product that `mode="max-autotune"` measured what was chosen. `kept` says whether programs were
    found among those that earlier processes kept, or why they are not kept. `peak_bytes` counts
    inputs, outputs and all that is alive between, as planned, for the region with the most;
    `compilations` holds every artefact.
    """

    name: str
    where: str = ""
    breaks: list[Break] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list, repr=False)
    kernels: list[KernelReport] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    recompiles: list[str] = field(default_factory=list)
    fixed_sizes: list[str] = field(default_factory=list)
    cuda_graphs: list[str] = field(default_factory=list)
    tuned: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    peak_bytes: int | None = None
    arena_bytes: int | None = None
    first_call: float | None = None
    compilations: list[Compilation] = field(default_factory=list, repr=False)

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
        )
        for c in regions:
            report._add_region(c)
        return report

    def _add_region(self, c: Compilation) -> None:
        c.log.complete()
        extend_with_new(self.kept, filter(None, [c.log.kept]))
        self.kernels += kernel_reports(c)
        self.cuda_graphs += replayed_texts(c)
        extend_with_new(self.guards, c.guards)
        extend_with_new(self.fixed_sizes, c.fixed_sizes)
        extend_with_new(self.tuned, tuned_texts(c))
        if c.log.plan is not None:
            plan, sizes = c.log.plan, c.sizes
            self.peak_bytes = max(self.peak_bytes or 0, plan.peak_bytes.evaluate(sizes))
            self.arena_bytes = (self.arena_bytes or 0) + plan.arena_bytes.evaluate(sizes)
        if c.first_call is not None:
            self.first_call = (self.first_call or 0) + c.first_call

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def break_count(self) -> int:
        return len(self.breaks)

    @property
    def fused_count(self) -> int:
        return sum(kernel.kind == "fused" for kernel in self.kernels)

    def measure(self, call: Callable[[], object], rounds: int = 5) -> None:
        """Fill in `seconds` of `kernels`, over `rounds` of `call`, which calls the compiled
        function."""
        programs, replays = [], []
        for c in itertools.chain(*map(with_inside, in_force(self.compilations))):
            if c.log.plan is not None and c.log.program is not None:
                programs.append(c.log.program)
            if c.log.replayed and not isinstance(c.log.replayed, str):
                replays.append(c.log.replayed)
        measured = []
        for _ in range(rounds):
            for program in programs:
                program.profile(True)
            for graphs in replays:
                graphs.paused = True  # a replay has no steps to measure
            try:
                call()
            finally:
                profiles = [program.profile(False) for program in programs]
                measured.append(list(itertools.chain(*profiles)))
                for graphs in replays:
                    graphs.paused = False
        if measured and len(measured[0]) == len(self.kernels):
            medians = map(statistics.median, zip(*measured))
            self.kernels = [replace(kernel, seconds=s) for kernel, s in zip(self.kernels, medians)]

    def stage(self, name: str) -> str:
        """The artefact of one stage (a key of `explain.stages.STAGES`) of every compilation, as
        text."""
        from ingot.explain.stages import stage_text

        compilations: Iterable[Compilation] = self.compilations
        if name not in ("capture", "guards"):  # where branches and loops are in the same text
            compilations = itertools.chain(*map(with_inside, compilations))
        return "\n\n".join(stage_text(compilation, name) for compilation in compilations)

    def __str__(self) -> str:
        head = head_lines(self) + break_lines(self.breaks, 9)
        head += listed("compiled again because", self.recompiles, 5, "reason")
        head += listed("fixed sizes", self.fixed_sizes, 4, "size")
        head += listed("CUDA graphs", self.cuda_graphs, 4, "program")
        head += listed("tuned", self.tuned, 4, "product")
        guards = listed("guards", self.guards, 7, "guard")
        kernels = kernel_lines(self.kernels, HEIGHT - len(head) - len(guards))
        return "\n".join(shortened(line, WIDTH) for line in head + kernels + guards)


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
    breaks: dict[Break, None] = {}
    for c in compilations:
        if c.break_ is not None:
            breaks[Break.of(c.break_, c.name, eager=False)] = None
        if c.skipped is not None:
            breaks[Break.of(c.skipped, c.name, eager=True)] = None
    return list(breaks)


def total_seconds(compilations: Iterable[Compilation]) -> dict[str, float]:
    """The seconds of each stage, in the order of the stages."""
    total: dict[str, float] = {}
    for c in itertools.chain(*map(with_inside, compilations)):
        for name, seconds in c.log.seconds.items():
            total[name] = total.get(name, 0.0) + seconds
    return total


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


def backwards_of(c: Compilation) -> list[Compilation]:
    """The compilations of its gradients."""
    return present((c.backward, *c.partial_backwards))


def with_inside(c: Compilation) -> Iterator[Compilation]:
    """The compilation, and each program of its branches and loops as one of its own."""
    yield c
    for log in c.log.inside:
        yield from with_inside(replace(c, name=f"{c.name}, inside", log=log))


def kernel_reports(compilation: Compilation) -> list[KernelReport]:
    """One `KernelReport` per step of the plan, and of the plans inside of it."""
    results = []
    for c in with_inside(compilation):
        if c.log.plan is not None:
            for step in c.log.plan.steps:
                results.append(kernel_report(step, c))
    return results


def kernel_report(step: KernelStep | LibraryStep, compilation: Compilation) -> KernelReport:
    from ingot.explain.stages import function_name
    from ingot.explain.traffic import step_bytes
    from ingot.schedule.plan import KernelStep

    assert compilation.log.plan is not None
    reads, writes = step_bytes(step, compilation.log.plan.graph, compilation.sizes)
    if isinstance(step, KernelStep):
        name, kind, origin = step.kernel.name, "fused", step.kernel.origin
        source = ""
        if compilation.log.code is not None:
            source = compilation.log.code.ir(step.kernel)
    else:
        name, kind, origin = function_name(step.node.function), "extern", step.node.origin
        source = str(step.node.function)
    return KernelReport(name, kind, origin.ops, reads, writes, source, origin.where)


# -- text ------------------------------------------------------------------------------------------


def head_lines(report: Report) -> list[str]:
    """The function, the counts, memory and times: three lines."""
    extern = len(report.kernels) - report.fused_count
    kernels = plural(len(report.kernels), "kernel")
    counts = [
        plural(report.graph_count, "graph"),
        plural(report.break_count, "break"),
        f"{kernels} ({report.fused_count} fused, {extern} extern)",
        plural(len(report.guards), "guard"),
    ]
    lines = [f"ingot: {report.name}  {place_text(report.where)}".rstrip(), f"  {', '.join(counts)}"]
    figures = []
    if report.peak_bytes is not None:
        arena = ""
        if report.arena_bytes is not None:
            arena = f" (arena {size_text(report.arena_bytes)})"
        figures.append(f"peak memory {size_text(report.peak_bytes)}{arena}")
    if report.first_call is not None:
        figures.append(f"first call {report.first_call:.3f} s")
    if figures:
        lines.append("  " + ", ".join(figures))
    if report.stages:
        times = ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in report.stages.items())
        lines.append(f"  compiled in ms: {times}")
    if report.kept:
        lines.append(f"  {'; '.join(report.kept)}")
    return lines


def break_lines(breaks: Sequence[Break], room: int) -> list[str]:
    """Each break's place, function and reason, its line of code, and its hint; where they are many,
    only the first."""
    lines = []
    for item in breaks:
        lines.append(str(item))
        code = code_at(f"{item.file}:{item.line}")
        if code:
            lines.append(f"    {code}")
        if item.hint:
            lines.append(f"    hint: {item.hint}")
    if len(lines) <= room:
        return lines
    return cut(list(map(str, breaks)), room, "break")


def kernel_lines(kernels: Sequence[KernelReport], room: int) -> list[str]:
    """A table of kernels in at most `room` lines: the same kernel from the same line is one row
    with its count."""
    if not kernels or room < 4:
        return []
    heading = f"{'#':>4} {'':4} {'kind':<6} {'kernel':<26} {'reads':>9} {'writes':>9}"
    lines = [f"{heading}  ops, and where they are"]
    left = len(kernels)
    for positions in alike(kernels):
        row = kernel_row(kernels[positions[0]], positions[0] + 1, len(positions))
        last = left == len(positions)
        if len(lines) + len(row) + (not last) > room:
            return [*lines, f"  ... and {plural(left, 'more kernel')}"]
        lines += row
        left -= len(positions)
    return lines


def alike(kernels: Sequence[KernelReport]) -> list[list[int]]:
    """The positions of kernels, those of the same kernel from the same line together."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for position, kernel in enumerate(kernels):
        groups.setdefault((kernel.kind, kernel.ops, kernel.where), []).append(position)
    return list(groups.values())


def sum_of_seconds(kernels: Iterable[KernelReport]) -> float:
    return sum(kernel.seconds or 0.0 for kernel in kernels)


def time_lines(kernels: Sequence[KernelReport], room: int) -> list[str]:
    """What took how long, as measured, in at most `room` lines: slowest first, the same kernel from
    the same line once. Nothing where nothing was measured."""
    kernels = [kernel for kernel in kernels if kernel.seconds is not None]
    total = max(sum_of_seconds(kernels), 1e-12)
    rows = []
    for positions in alike(kernels):
        row = at(kernels, positions)
        rows.append((sum_of_seconds(row), row[0], len(row)))
    lines = []
    for seconds, kernel, count in sorted(rows, key=lambda row: -row[0]):
        figures = f"{seconds * 1e3:8.3f} ms {seconds / total:6.1%}  x{count:<3}"
        name = f"{kernel.kind:<6} {shortened(kernel.name, 26):<26}"
        lines.append(f"{figures} {name} {place_text(kernel.where)}".rstrip())
    return cut(lines, room, "kernel")


def kernel_row(kernel: KernelReport, number: int, count: int) -> list[str]:
    """A kernel's figures, and below them the line of code it comes from."""
    times = ""
    if count > 1:
        times = f"x{count}"
    figures = f"{size_text(kernel.reads_bytes):>9} {size_text(kernel.writes_bytes):>9}"
    name = f"{kernel.kind:<6} {shortened(kernel.name, 26):<26}"
    row = f"{number:>4} {times:<4} {name} {figures}  {ops_text(kernel.ops)}"
    code = f"{'':9} {place_text(kernel.where)}  {code_at(kernel.where)}".rstrip()
    if kernel.where:
        return [row, code]
    return [row]


def listed(heading: str, items: Sequence[str], room: int, noun: str) -> list[str]:
    """A heading and the items below it, with short places, in at most `room` lines; nothing when
    there are none."""
    if not items:
        return []
    return [heading, *cut([f"  {short_places(item)}" for item in items], room - 1, noun)]


def cut(lines: Sequence[str], room: int, noun: str) -> list[str]:
    """The lines, or as many as fit with a last one that counts the rest."""
    if len(lines) <= room:
        return list(lines)
    return [*lines[: room - 1], f"  ... and {plural(len(lines) - room + 1, f'more {noun}')}"]


def ops_text(ops: Iterable[str]) -> str:
    """Names of ops without their namespace and overload; one that repeats is counted."""
    counts = Counter(op.split(".")[1] if "." in op else op for op in ops)
    return ", ".join(op if count == 1 else f"{op} x{count}" for op, count in counts.items())


def split_where(where: str) -> tuple[str, int]:
    """("file", line) of "file:line"; ("", 0) for anything else."""
    file, _, line = where.rpartition(":")
    if file and line.isdigit():
        return file, int(line)
    return "", 0


def place_text(where: str) -> str:
    """ "file:line" with the file relative to the working directory when it is beneath it, else its
    last two parts."""
    file, line = split_where(where)
    if not file:
        return where
    if os.path.isabs(file):
        file = _beneath_here(file)
    return f"{file}:{line}"


def _beneath_here(file: str) -> str:
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):  # there is no working directory, or it is on another drive
        relative = os.pardir
    if relative.split(os.sep)[0] == os.pardir:
        return os.path.join(*file.split(os.sep)[-2:])
    return relative


def short_places(text: str) -> str:
    """The text with each "/path/file:line" in it shortened as `place_text` does."""
    place = r"(?<!\S)(\(?)(/[^()]*?:\d+)(?!\d)"
    return re.sub(place, lambda match: match[1] + place_text(match[2]), text)


def code_at(where: str) -> str:
    """The user's line of code at "file:line", stripped; "" where it cannot be read."""
    file, line = split_where(where)
    if not file:
        return ""
    try:
        if os.path.exists(file) and not os.path.isfile(file):  # it may be an endless device
            return ""
        return linecache.getline(file, line).strip()
    except ValueError:  # no file can have this name
        return ""


def size_text(count: int) -> str:
    """Bytes for people: three digits and a binary unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1000:
            if unit == "B" or size >= 100:
                return f"{size:.0f} {unit}"
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def plural(count: int, noun: str) -> str:
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun}s"


def shortened(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    return text[: width - 3] + "..."
