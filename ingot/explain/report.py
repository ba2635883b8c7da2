"""The report: what Ingot made of a function, on one screen, in the user's own lines of code."""

from __future__ import annotations

import linecache
import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ingot.compilation import Compilation
from ingot.errors import Unsupported

if TYPE_CHECKING:
    from ingot.schedule.plan import KernelStep, LibraryStep

WIDTH, HEIGHT = 120, 40


@dataclass(frozen=True)
class Break:
    """A place, in `function`, where a graph ends: the instruction runs for real, and what follows
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
        place = place_text(f"{self.file}:{self.line}") if self.file else "an unknown place"
        function = f" in {self.function}" if self.function else ""
        return f"{'in eager from' if self.eager else 'break at'} {place}{function}: {self.reason}"


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
    product that `mode="max-autotune"` measured what was chosen. `peak_bytes` counts inputs, outputs
    and all that is alive between, as planned, for the region with the most; `compilations` holds
    every artefact.
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
        planned = [(c.plan, c.sizes) for c in regions if c.plan is not None]
        seconds = [c.first_call for c in regions if c.first_call is not None]
        return Report(
            name=first.name,
            where=first.where,
            breaks=breaks_of(compilations),
            graphs=[c.captured.graph_module for c in compilations if c.has_graph],
            kernels=[kernel for c in regions for kernel in kernel_reports(c)],
            guards=list(dict.fromkeys(guard for c in regions for guard in c.guards)),
            stages=total_seconds(regions),
            recompiles=[recompiled_text(c) for c in compilations if c.recompiled],
            fixed_sizes=list(dict.fromkeys(text for c in regions for text in c.fixed_sizes)),
            cuda_graphs=[text for c in regions for text in replayed_texts(c)],
            tuned=list(dict.fromkeys(text for c in regions for text in tuned_texts(c))),
            peak_bytes=max(
                (plan.peak_bytes.evaluate(sizes) for plan, sizes in planned), default=None
            ),
            arena_bytes=sum(plan.arena_bytes.evaluate(sizes) for plan, sizes in planned)
            if planned
            else None,
            first_call=sum(seconds) if seconds else None,
            compilations=list(compilations),
        )

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
        programs = [
            c.program
            for c in in_force(self.compilations)
            if c.plan is not None and c.program is not None
        ]
        replayed = [
            c.replayed
            for c in in_force(self.compilations)
            if c.replayed and not isinstance(c.replayed, str)
        ]
        measured = []
        for _ in range(rounds):
            for program in programs:
                program.profile(True)
            for graphs in replayed:
                graphs.paused = True  # a replay has no steps to measure
            try:
                call()
            finally:
                measured.append(
                    [seconds for program in programs for seconds in program.profile(False)]
                )
                for graphs in replayed:
                    graphs.paused = False
        if measured and len(measured[0]) == len(self.kernels):
            medians = map(statistics.median, zip(*measured))
            self.kernels = [replace(kernel, seconds=s) for kernel, s in zip(self.kernels, medians)]

    def stage(self, name: str) -> str:
        """The artefact of one stage (a key of `explain.stages.STAGES`) of every compilation, as
        text."""
        from ingot.explain.stages import stage_text

        return "\n\n".join(stage_text(compilation, name) for compilation in self.compilations)

    def __str__(self) -> str:
        head = head_lines(self) + break_lines(self.breaks, 9)
        head += listed(
            "compiled again because", [short_places(text) for text in self.recompiles], 5, "reason"
        )
        head += listed("fixed sizes", [short_places(text) for text in self.fixed_sizes], 4, "size")
        head += listed(
            "CUDA graphs", [short_places(text) for text in self.cuda_graphs], 4, "program"
        )
        head += listed("tuned", [short_places(text) for text in self.tuned], 4, "product")
        guards = listed("guards", [short_places(text) for text in self.guards], 7, "guard")
        kernels = kernel_lines(self.kernels, HEIGHT - len(head) - len(guards))
        return "\n".join(shortened(line, WIDTH) for line in head + kernels + guards)


def in_force(compilations: Sequence[Compilation]) -> list[Compilation]:
    """All since the function itself was compiled last, and the newest of each region that was not
    compiled again."""
    starts = [number for number, c in enumerate(compilations) if c.region is None]
    compiled = [number for number in starts if compilations[number].skipped is None]
    start = (compiled or starts or [0])[-1]
    recent = [c for c in compilations[start:] if c.region is not None or c is compilations[start]]
    done = {c.region for c in recent}
    older = {c.region: c for c in compilations[:start] if c.region not in done}
    return [*recent, *older.values()]


def breaks_of(compilations: Sequence[Compilation]) -> list[Break]:
    """Each once, in the order in which they were met."""
    found: dict[Break, None] = {}
    for c in compilations:
        for why, eager in ((c.break_, False), (c.skipped, True)):
            if why is not None:
                found[Break.of(why, c.name, eager)] = None
    return list(found)


def total_seconds(compilations: Iterable[Compilation]) -> dict[str, float]:
    """The seconds of each stage, in the order of the stages."""
    total: dict[str, float] = {}
    for c in compilations:
        for name, seconds in c.seconds.items():
            total[name] = total.get(name, 0.0) + seconds
    return total


def recompiled_text(c: Compilation) -> str:
    return f"{c.recompiled}, in {c.title}" if c.is_continuation else c.recompiled


def replayed_texts(c: Compilation) -> list[str]:
    """A line for each program of a compilation that was to be replayed."""
    found = [(c.title, c.replayed)]
    backwards = [b for b in (c.backward, *c.partial_backwards) if b is not None]
    found += [(b.name, b.replayed) for b in backwards]
    return [f"{name}: {r if isinstance(r, str) else r.describe()}" for name, r in found if r]


def tuned_texts(c: Compilation) -> list[str]:
    """A line for each product of a compilation, and of its gradients, that was measured."""
    return [
        text
        for made in (c, c.backward, *c.partial_backwards)
        if made is not None
        for text in made.tuned
    ]


def kernel_reports(compilation: Compilation) -> list[KernelReport]:
    """One `KernelReport` per step of the plan."""
    if compilation.plan is None:
        return []
    return [kernel_report(step, compilation) for step in compilation.plan.steps]


def kernel_report(step: KernelStep | LibraryStep, compilation: Compilation) -> KernelReport:
    from ingot.explain.stages import function_name
    from ingot.explain.traffic import step_bytes
    from ingot.schedule.plan import KernelStep

    assert compilation.plan is not None
    reads, writes = step_bytes(step, compilation.plan.graph, compilation.sizes)
    if isinstance(step, KernelStep):
        kernel = step.kernel
        source = compilation.compiled.ir(kernel) if compilation.compiled is not None else ""
        return KernelReport(
            kernel.name, "fused", kernel.origin.ops, reads, writes, source, kernel.origin.where
        )
    node = step.node
    name = function_name(node.function)
    return KernelReport(
        name, "extern", node.origin.ops, reads, writes, str(node.function), node.origin.where
    )


# -- text ------------------------------------------------------------------------------------------


def head_lines(report: Report) -> list[str]:
    """The function, the counts, memory and times: three lines."""
    extern = len(report.kernels) - report.fused_count
    counts = ", ".join(
        (
            plural(report.graph_count, "graph"),
            plural(report.break_count, "break"),
            f"{plural(len(report.kernels), 'kernel')} ({report.fused_count} fused, {extern} "
            "extern)",
            plural(len(report.guards), "guard"),
        )
    )
    figures = []
    if report.peak_bytes is not None:
        arena = "" if report.arena_bytes is None else f" (arena {size_text(report.arena_bytes)})"
        figures.append(f"peak memory {size_text(report.peak_bytes)}{arena}")
    if report.first_call is not None:
        figures.append(f"first call {report.first_call:.3f} s")
    times = ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in report.stages.items())
    lines = [f"ingot: {report.name}  {place_text(report.where)}".rstrip(), f"  {counts}"]
    lines += ["  " + ", ".join(figures)] if figures else []
    return lines + ([f"  compiled in ms: {times}"] if times else [])


def break_lines(breaks: Sequence[Break], room: int) -> list[str]:
    """Each break's place, function and reason, its line of code, and its hint; where they are many,
    only the first."""
    lines = []
    for item in breaks:
        lines.append(str(item))
        lines += [f"    {code}" for code in [code_at(f"{item.file}:{item.line}")] if code]
        lines += [f"    hint: {item.hint}"] if item.hint else []
    return lines if len(lines) <= room else cut([str(item) for item in breaks], room, "break")


def kernel_lines(kernels: Sequence[KernelReport], room: int) -> list[str]:
    """A table of kernels in at most `room` lines: the same kernel from the same line is one row
    with its count."""
    if not kernels or room < 4:
        return []
    alike: dict[tuple[Any, ...], list[int]] = {}
    for position, kernel in enumerate(kernels):
        alike.setdefault((kernel.kind, kernel.ops, kernel.where), []).append(position)
    lines = [
        f"{'#':>4} {'':4} {'kind':<6} {'kernel':<26} {'reads':>9} {'writes':>9}  ops, and where "
        "they are"
    ]
    left = len(kernels)
    for positions in alike.values():
        row = kernel_row(kernels[positions[0]], positions[0] + 1, len(positions))
        last = left == len(positions)
        if len(lines) + len(row) + (not last) > room:
            return [*lines, f"  ... and {plural(left, 'more kernel')}"]
        lines += row
        left -= len(positions)
    return lines


def time_lines(kernels: Sequence[KernelReport], room: int) -> list[str]:
    """What took how long, as measured, in at most `room` lines: slowest first, the same kernel from
    the same line once. Nothing where nothing was measured."""
    alike: dict[tuple[Any, ...], list[KernelReport]] = {}
    for kernel in kernels:
        if kernel.seconds is not None:
            alike.setdefault((kernel.kind, kernel.ops, kernel.where), []).append(kernel)
    total = sum(kernel.seconds or 0.0 for kernel in kernels)
    rows = [(sum(kernel.seconds or 0.0 for kernel in group), group) for group in alike.values()]
    lines = [
        f"{seconds * 1e3:8.3f} ms {seconds / max(total, 1e-12):6.1%}  x{len(group):<3} "
        f"{group[0].kind:<6} "
        f"{shortened(group[0].name, 26):<26} {place_text(group[0].where)}".rstrip()
        for seconds, group in sorted(rows, key=lambda row: -row[0])
    ]
    return cut(lines, room, "kernel")


def kernel_row(kernel: KernelReport, number: int, count: int) -> list[str]:
    """A kernel's figures, and below them the line of code it comes from."""
    times = f"x{count}" if count > 1 else ""
    figures = f"{size_text(kernel.reads_bytes):>9} {size_text(kernel.writes_bytes):>9}"
    row = f"{number:>4} {times:<4} {kernel.kind:<6} {shortened(kernel.name, 26):<26} {figures}  {ops_text(kernel.ops)}"
    code = f"{'':9} {place_text(kernel.where)}  {code_at(kernel.where)}".rstrip()
    return [row, code] if kernel.where else [row]


def listed(heading: str, items: Sequence[str], room: int, noun: str) -> list[str]:
    """A heading and the items below it in at most `room` lines; nothing when there are none."""
    return [heading, *cut([f"  {item}" for item in items], room - 1, noun)] if items else []


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
    return (file, int(line)) if file and line.isdigit() else ("", 0)


def place_text(where: str) -> str:
    """ "file:line" with the file relative to the working directory when it is beneath it, else its
    last two parts."""
    file, line = split_where(where)
    if not file:
        return where
    return f"{_beneath_here(file) if os.path.isabs(file) else file}:{line}"


def _beneath_here(file: str) -> str:
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):  # there is no working directory, or it is on another drive
        relative = os.pardir
    is_elsewhere = relative.split(os.sep)[0] == os.pardir
    return os.path.join(*file.split(os.sep)[-2:]) if is_elsewhere else relative


def short_places(text: str) -> str:
    """The text with each "/path/file:line" in it shortened as `place_text` does."""
    return re.sub(
        r"(?<!\S)(\(?)(/[^()]*?:\d+)(?!\d)", lambda match: match[1] + place_text(match[2]), text
    )


def code_at(where: str) -> str:
    """The user's line of code at "file:line", stripped; "" where it cannot be read."""
    file, line = split_where(where)
    try:
        is_readable = os.path.isfile(file) or not os.path.exists(file)  # and no endless device
        return linecache.getline(file, line).strip() if file and is_readable else ""
    except ValueError:  # no file can have this name
        return ""


def size_text(count: int) -> str:
    """Bytes for people: three digits and a binary unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
