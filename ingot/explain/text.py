"""Words and figures of reports: counts, sizes, places, the user's lines of code."""

from __future__ import annotations

import linecache
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence

CONTEXT = 2
"""Lines of code that are shown before, and behind, the one that matters."""


def cut(lines: Sequence[str], room: int, noun: str) -> list[str]:
    """The lines, or as many as fit with a last one that counts the rest."""
    if len(lines) <= room:
        return list(lines)
    return [*lines[: room - 1], f"  ... and {plural(len(lines) - room + 1, f'more {noun}')}"]


def ops_text(ops: Iterable[str]) -> str:
    """Names of ops without their namespace and overload; one that repeats is counted."""
    counts = Counter(op.split(".")[1] if "." in op else op for op in ops)
    return ", ".join(op if count == 1 else f"{op} x{count}" for op, count in counts.items())


def module_text(paths: Sequence[Sequence[str]]) -> str:
    """The modules of kernels that are alike: the innermost of each, as one path where they differ
    in numbers alone, which are * then."""
    found: dict[str, None] = {}
    for modules in paths:
        for path in modules:
            inner = [other for other in modules if other.startswith((f"{path}.", f"{path}["))]
            if not inner:
                found[path] = None
    names = list(found)
    if len(names) > 1:
        places = [re.findall(r"\d+", name) for name in names]
        shapes = {re.sub(r"\d+", "{}", name) for name in names}
        if len(shapes) == 1:
            numbers = []
            for column in zip(*places):
                numbers.append(column[0] if len(set(column)) == 1 else "*")
            return shapes.pop().format(*numbers)
    return ", ".join(names)


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
    return _line(file, line).strip()


def code_around(where: str) -> list[tuple[int, str]]:
    """The user's lines of code around "file:line", each with its number."""
    file, line = split_where(where)
    lines = []
    for number in range(max(1, line - CONTEXT), line + CONTEXT + 1):
        text = _line(file, number)
        if text:
            lines.append((number, text.rstrip("\n")))
    return lines


def _line(file: str, line: int) -> str:
    if not file:
        return ""
    try:
        if os.path.exists(file) and not os.path.isfile(file):  # it may be an endless device
            return ""
        return linecache.getline(file, line)
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
