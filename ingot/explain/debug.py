"""`INGOT_DEBUG=1..7`: one rising ladder of what is printed, on stderr, after each compilation."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import TextIO

from ingot.compilation import Compilation
from ingot.explain.report import Report
from ingot.explain.stages import stage_text
from ingot.explain.text import plural


def summary(c: Compilation) -> str:
    """One line: what came of it."""
    if c.skipped is not None:
        return f"ingot: {c.title} runs in eager: {c.skipped}"
    report = Report.from_compilations([c])
    kernels = f"{plural(len(report.kernels), 'kernel')} ({report.fused_count} fused)"
    if not c.has_graph:
        kernels = "no tensor work"
    seconds = sum(c.log.seconds.values())
    text = f"ingot: {c.title} compiled in {seconds:.3f} s, {kernels}"
    if c.recompiled:
        text += f"; compiled again because {c.recompiled}"
    if c.break_ is not None:
        text += f"; graph break: {c.break_}"
    return text


def times(c: Compilation) -> str:
    return indented(
        f"{name:<12} {seconds * 1e3:9.2f} ms" for name, seconds in c.log.seconds.items()
    )


def decisions(c: Compilation) -> str:
    return indented(c.log.decisions)


def rewrites(c: Compilation) -> str:
    return indented(c.log.rewrites)


def indented(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


def stages(*names: str) -> Callable[[Compilation], str]:
    return lambda c: "\n\n".join(stage_text(c, name) for name in names)


def code(c: Compilation) -> str:
    """The kernels' text: C++ where they are written as that."""
    text = stage_text(c, "llvm")
    if hasattr(c.log.code, "source"):
        text = f"{stage_text(c, 'cpp')}\n\n{text}"
    return text


LEVELS: tuple[Callable[[Compilation], str], ...] = (
    summary,
    times,
    decisions,
    code,
    stages("capture", "guards", "aten", "loops", "schedule"),
    rewrites,
    stages("assembly"),
)


def level() -> int:
    """The level that the environment asks for, 0 for none; ValueError for what is no level."""
    text = os.environ.get("INGOT_DEBUG", "") or "0"
    if not text.isdecimal() or int(text) > len(LEVELS):
        raise ValueError(
            f"INGOT_DEBUG is {text!r}; it may be 0 (nothing) to {len(LEVELS)} (everything)"
        )
    return int(text)


def debug(compilation: Compilation, file: TextIO | None = None) -> None:
    """Print every level up to the one asked for; levels with nothing to say print nothing."""
    texts = []
    for show in LEVELS[: level()]:
        texts.append(show(compilation))
    for text in filter(None, texts):
        print(text, file=file or sys.stderr)
