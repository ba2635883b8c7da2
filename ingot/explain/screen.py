"""A report as text: at most HEIGHT lines, of as many columns as there are, in the user's own lines
of code.

A `Report` goes in, lines come out. What does not fit is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ingot.explain.programs import BACKWARD
from ingot.explain.records import Break, KernelReport, ValueReport, causes_of
from ingot.explain.text import (
    code_at,
    cut,
    module_text,
    ops_text,
    place_text,
    plural,
    short_places,
    shortened,
    size_text,
)
from ingot.sequences import at
from ingot.spots import short_name

if TYPE_CHECKING:
    from ingot.explain.report import Report

WIDTH, HEIGHT = 120, 40
NARROWEST, WIDEST = 60, 200
NARROW = 110  # columns, beyond which a break's reason has a line of its own
NOTHING = "nothing to compile: this call does no tensor work"


def lines_of(report: Report, width: int = WIDTH) -> list[str]:
    """The report's lines, of at most `width` columns, if that is from NARROWEST to WIDEST."""
    width = max(NARROWEST, min(width, WIDEST))
    head = head_lines(report) + break_lines(report.breaks, 12)
    head += listed("compiled again because", report.recompiles, 5, "reason")
    head += listed("fixed sizes", report.fixed_sizes, 4, "size")
    head += listed("CUDA graphs", report.cuda_graphs, 4, "program")
    head += listed("tuned", report.tuned, 4, "product")
    head += listed("donated", report.donations, 4, "argument")
    saved = value_lines("saved for the backward", report.saved, 6)
    again = value_lines("computed again in the backward", report.recomputed, 5)
    most_guards = 7
    if report.backward_kernels:
        most_guards = 4
    guards = listed("guards", report.guards, most_guards, "guard")
    room = HEIGHT - len(head) - len(saved) - len(again) - len(guards)
    backward = kernel_lines(report.backward_kernels, room, width)
    if backward:
        backward[0] = f"{'backward':<{len('   #') + 5}}{backward[0][len('   #') + 5 :]}"
    forward = kernel_lines(report.kernels, room - min(len(backward), room // 2), width)
    room -= len(forward)
    if len(backward) > room:
        backward = [backward[0], *kernel_lines(report.backward_kernels, room, width)[1:]]
    lines = head + forward + backward + saved + again + guards
    return [shortened(line, width) for line in lines]


def head_lines(report: Report) -> list[str]:
    """The function, the counts, memory and times: a line each, and one for the backward."""
    counts = [
        plural(report.graph_count, "graph"),
        plural(report.break_count, "break"),
        kernels_text(report.kernels),
        plural(len(report.guards), "guard"),
    ]
    lines = [f"ingot: {report.name}  {place_text(report.where)}".rstrip(), f"  {', '.join(counts)}"]
    if not report.graphs and not report.breaks:
        lines.append(f"  {NOTHING}")
    lines += backward_lines(report)
    figures = []
    if report.peak_bytes is not None:
        arena = ""
        if report.arena_bytes is not None:
            arena = f" (arena {size_text(report.arena_bytes)})"
        figures.append(f"peak memory {size_text(report.peak_bytes)}{arena}")
    if report.backward_peak_bytes is not None:
        figures.append(f"in the backward {size_text(report.backward_peak_bytes)}")
    if report.first_call is not None:
        figures.append(f"first call {report.first_call:.3f} s")
    if figures:
        lines.append("  " + ", ".join(figures))
    for label, seconds in (("", report.stages), ("backward ", report.backward_stages)):
        if seconds:
            times = ", ".join(f"{name} {s * 1e3:.1f}" for name, s in seconds.items())
            lines.append(f"  {label}compiled in ms: {times}")
    if report.kept:
        lines.append(f"  {'; '.join(report.kept)}")
    return lines


def backward_lines(report: Report) -> list[str]:
    """What the backward is, in a line; nothing where there is none."""
    lines = []
    if report.backward_kernels:
        saved = sum([value.total_bytes for value in report.saved])
        own = sum([value.total_bytes for value in report.saved if value.kind == "kept"])
        values = plural(sum([value.count for value in report.saved]), "value")
        lines.append(
            f"  backward: {kernels_text(report.backward_kernels)}, {values} saved "
            f"({size_text(saved)}, {size_text(own)} of it for the backward alone), "
            f"{len(report.recomputed)} computed again"
        )
    for program in report.programs:
        if program.kind == BACKWARD and program.eager:
            lines.append(f"  {program.name}, runs in eager: {short_places(program.eager)}")
    return lines


def kernels_text(kernels: Sequence[KernelReport]) -> str:
    """ "3 kernels (2 fused, 1 extern)"."""
    fused = sum(kernel.kind == "fused" for kernel in kernels)
    return f"{plural(len(kernels), 'kernel')} ({fused} fused, {len(kernels) - fused} extern)"


def break_lines(breaks: Sequence[Break], room: int) -> list[str]:
    """Each break's place, function and reason, the calls that led there, its line of code, and its
    hint; where they are many, only the first. Before them, what they come to by their causes."""
    few = [*cause_lines(breaks), *map(str, breaks)]
    for tells_cost in (True, False):
        lines = cause_lines(breaks)
        for item in breaks:
            lines += _lines_of_break(item, tells_cost)
        if len(lines) <= room:
            return lines
    return cut(few, room, "break")


def _lines_of_break(item: Break, tells_cost: bool) -> list[str]:
    lines = [str(item)]
    if len(lines[0]) > NARROW:
        lines = [item.head, f"    {item.reason}"]
    for call in item.stack[:-1]:
        place = place_text(f"{call.file}:{call.line}")
        lines.append(f"    through {place} in {short_name(call.function)}: {call.text}")
    code = code_at(f"{item.file}:{item.line}")
    if code:
        lines.append(f"    {code}")
    if item.hint:
        lines.append(f"    hint: {item.hint}")
    if tells_cost:
        lines.append(f"    cost: {item.cost}")
    return lines


def cause_lines(breaks: Sequence[Break]) -> list[str]:
    """Where there are several, what they come to by their causes, in a line."""
    if sum(item.times for item in breaks) < 2:
        return []
    causes = ", ".join(map(str, causes_of(breaks)))
    return [f"breaks by cause, with the time to compile what follows: {causes}"]


def kernel_lines(kernels: Sequence[KernelReport], room: int, width: int = WIDTH) -> list[str]:
    """A table of kernels in at most `room` lines: the same kernel from the same line is one row
    with its count."""
    if not kernels or room < 4:
        return []
    names = _name_width(width)
    heading = f"{'#':>4} {'':4} {'kind':<6} {'kernel':<{names}} {'reads':>9} {'writes':>9}"
    if any(kernel.seconds is not None for kernel in kernels):
        heading += f" {'ms':>8}"
    lines = [f"{heading}  ops, and where they are"]
    left = len(kernels)
    for positions in alike(kernels):
        row = kernel_row(at(kernels, positions), positions[0] + 1, names)
        last = left == len(positions)
        if len(lines) + len(row) + (not last) > room:
            return [*lines, f"  ... and {plural(left, 'more kernel')}"]
        lines += row
        left -= len(positions)
    return lines


def _name_width(width: int) -> int:
    return max(10, min(26, width - 50))


def alike(kernels: Sequence[KernelReport]) -> list[list[int]]:
    """The positions of kernels, those of the same kernel from the same line together."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for position, kernel in enumerate(kernels):
        groups.setdefault((kernel.kind, kernel.ops, kernel.where), []).append(position)
    return list(groups.values())


def sum_of_seconds(kernels: Iterable[KernelReport]) -> float:
    return sum(kernel.seconds or 0.0 for kernel in kernels)


def time_lines(kernels: Sequence[KernelReport], room: int, width: int = WIDTH) -> list[str]:
    """What took how long, as measured, in at most `room` lines: slowest first, the same kernel from
    the same line once. Nothing where nothing was measured."""
    kernels = [kernel for kernel in kernels if kernel.seconds is not None]
    total = max(sum_of_seconds(kernels), 1e-12)
    rows = []
    for positions in alike(kernels):
        row = at(kernels, positions)
        rows.append((sum_of_seconds(row), row))
    lines, names = [], max(12, min(26, width - 54))
    for seconds, alike_ones in sorted(rows, key=lambda row: -row[0]):
        kernel, count = alike_ones[0], len(alike_ones)
        figures = f"{seconds * 1e3:8.3f} ms {seconds / total:6.1%}  x{count:<3}"
        calls = ops_text(kernel.calls) or kernel.name
        place = f"{place_text(kernel.where)}  {module_text([k.modules for k in alike_ones])}"
        lines.append(
            f"{figures} {kernel.kind:<6} {shortened(calls, names):<{names}} {place}".rstrip()
        )
    return cut(lines, room, "kernel")


def kernel_row(alike: Sequence[KernelReport], number: int, names: int) -> list[str]:
    """The figures of kernels that are alike, and below them the line of code they come from."""
    kernel, times = alike[0], ""
    if len(alike) > 1:
        times = f"x{len(alike)}"
    figures = f"{size_text(kernel.reads_bytes):>9} {size_text(kernel.writes_bytes):>9}"
    if kernel.seconds is not None:
        figures += f" {sum_of_seconds(alike) * 1e3:8.3f}"
    name = f"{kernel.kind:<6} {shortened(kernel.name, names):<{names}}"
    row = f"{number:>4} {times:<4} {name} {figures}  {ops_text(kernel.calls or kernel.ops)}"
    places = [place_text(kernel.where), module_text([k.modules for k in alike])]
    code = f"{'':9} {'  '.join(filter(None, (*places, code_at(kernel.where))))}"
    if kernel.where:
        return [row, code]
    return [row]


def value_lines(heading: str, values: Sequence[ValueReport], room: int) -> list[str]:
    """Values in at most `room` lines, the largest first; those of the same op, line and reason are
    one line."""
    if not values:
        return []
    groups: dict[tuple[str, ...], ValueReport] = {}
    for value in values:
        key = value.op or value.name, value.value, value.where, value.why
        known = groups.get(key)
        if known is not None:
            value = replace(known, count=known.count + value.count)
        groups[key] = value
    rows = []
    for value in sorted(groups.values(), key=lambda value: -value.total_bytes):
        name, times = value.name, ""
        if value.op:
            name = ops_text([value.op])
        if value.count > 1:
            times = f" x{value.count}"
        place = ""
        if value.where:
            place = f"  {place_text(value.where)}"
        size = size_text(value.total_bytes)
        rows.append(f"{size:>9}  {name}{times} {value.value}{place}: {value.why}")
    return [heading, *cut(rows, room - 1, "value")]


def listed(heading: str, items: Sequence[str], room: int, noun: str) -> list[str]:
    """A heading and the items below it, with short places, in at most `room` lines; nothing when
    there are none."""
    if not items:
        return []
    return [heading, *cut([f"  {short_places(item)}" for item in items], room - 1, noun)]
