"""A report as a few elements of HTML, without a script: what a notebook shows."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ingot.events import encodable
from ingot.explain.screen import alike, kernels_text, sum_of_seconds
from ingot.explain.text import (
    code_at,
    ops_text,
    place_text,
    plural,
    short_places,
    shortened,
    size_text,
)
from ingot.sequences import at

if TYPE_CHECKING:
    from ingot.explain.records import KernelReport
    from ingot.explain.report import Report

MOST_KERNELS = 12
"""Rows of the table: those that take longest or, if nothing was measured, move most."""

_LEFT = ' style="text-align:left"'
_NUMBER = ' style="text-align:right;white-space:nowrap"'


def compact_html(report: Report) -> str:
    """Counts, breaks, what was compiled again, and the kernels that matter most; the text of the
    report is there to be opened."""
    parts = [f"<b>ingot: {_escaped(report.name)}</b> <code>{_place(report.where)}</code>"]
    counts = [
        plural(report.graph_count, "graph"),
        plural(report.break_count, "break"),
        kernels_text(report.kernels),
        plural(len(report.guards), "guard"),
    ]
    if report.backward_kernels:
        counts.append(f"backward: {kernels_text(report.backward_kernels)}")
    if report.peak_bytes is not None:
        counts.append(f"peak memory {size_text(report.peak_bytes)}")
    parts.append(f"<div>{_escaped(', '.join(counts))}</div>")
    breaks = []
    for item in report.breaks:
        where = f"{item.file}:{item.line}"
        hint = f" <i>{_escaped(item.hint)}</i>" if item.hint else ""
        breaks.append(f"{_escaped(item)}<br><code>{_escaped(code_at(where))}</code>{hint}")
    parts += _list("breaks", breaks)
    again = map(_escaped, map(short_places, report.recompiles))
    parts += _list("compiled again because", list(again))
    parts.append(_kernel_table([*report.kernels, *report.backward_kernels]))
    text = f"<pre>{_escaped(report.text())}</pre>"
    parts.append(f"<details><summary>the report as text</summary>{text}</details>")
    return f'<div class="ingot-report">{"".join(parts)}</div>'


def _kernel_table(kernels: Sequence[KernelReport]) -> str:
    """A row for the same kernel from the same line, with its count."""
    if not kernels:
        return ""
    measured = any(kernel.seconds is not None for kernel in kernels)
    groups = [at(kernels, positions) for positions in alike(kernels)]
    weigh = sum_of_seconds if measured else _bytes
    groups.sort(key=weigh, reverse=True)
    total = max(weigh(kernels), 1e-12)
    rows = []
    for group in groups[:MOST_KERNELS]:
        kernel = group[0]
        figures = [str(len(group)), size_text(_bytes(group))]
        if measured:
            figures.append(f"{sum_of_seconds(group) * 1e3:.3f}")
        figures.append(f"{weigh(group) / total:.0%}")
        cells = [f"<td{_NUMBER}>{figure}</td>" for figure in figures]
        texts = (
            shortened(kernel.name, 40),
            ops_text(kernel.ops),
            place_text(kernel.where),
            code_at(kernel.where),
        )
        shown = [f"<td{_LEFT}>{_escaped(text)}</td>" for text in texts]
        rows.append(f"<tr>{shown[0]}{''.join(cells)}{''.join(shown[1:])}</tr>")
    names = ["kernel", "count", "bytes", "ms", "share", "ops", "line", ""]
    if not measured:
        names.remove("ms")
    heads = "".join([f"<th{_LEFT}>{name}</th>" for name in names])
    more = ""
    if len(groups) > MOST_KERNELS:
        more = f"<div>... and {plural(len(groups) - MOST_KERNELS, 'more kernel')}</div>"
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"


def _bytes(kernels: Iterable[KernelReport]) -> int:
    return sum([kernel.reads_bytes + kernel.writes_bytes for kernel in kernels])


def _list(title: str, items: Sequence[str]) -> list[str]:
    """A title and its items, which are HTML."""
    if not items:
        return []
    listed = "".join([f"<li>{item}</li>" for item in items])
    return [f"<div>{title}</div><ul>{listed}</ul>"]


def _place(where: str) -> str:
    return _escaped(place_text(where))


def _escaped(text: object) -> str:
    return html.escape(encodable(str(text)))
