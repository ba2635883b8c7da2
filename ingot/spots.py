"""Spots in the user's code: a line, and which part of it an instruction is of.

A code object and the offset of an instruction go in. Out comes a `Spot`, from which the expression
is read as the user wrote it. That is done where a reason is told, never on the way to a program.
"""

from __future__ import annotations

import dis
import linecache
import os
import re
from collections.abc import Sequence
from itertools import islice
from types import CodeType
from typing import NamedTuple

WIDEST = 100
"""The most characters of an expression that are shown."""

_KEYWORDS = re.compile(r"(?:^|\s)(?:(?:el)?if|while|assert|with|raise|for\s.+\sin)\s+$")
"""What stands before an expression and says what is done with it."""

_COMPOUND = re.compile(r"(?:with|if|while|for|class|def|async|@)\b")
"""Begins a statement that has others inside of it."""


_FUNCTION = re.compile(r"\s*(?:async\s+)?def\s|.*\blambda\b")
_MOST_DECORATORS = 30  # lines of them that are looked through


class Spot(NamedTuple):
    """A place in the user's file, in `function`. Columns are in bytes of UTF-8, counted from 0;
    `end_line` is 0 where only the line is known."""

    file: str
    line: int
    function: str = ""
    end_line: int = 0
    column: int = 0
    end_column: int = 0

    @property
    def where(self) -> str:
        """ "file:line"."""
        return f"{self.file}:{self.line}"

    @property
    def text(self) -> str:
        """The line, stripped; "" where the file cannot be read."""
        return line_of(self.file, self.line).strip()

    @property
    def wrote(self) -> str:
        """The expression as the user wrote it, on one line, with the keyword that it stands behind;
        "" where the file cannot be read."""
        if not self.end_line:
            return _on_one_line(_without_comment(self.text))
        lines = []
        for number in range(self.line, self.end_line + 1):
            lines.append(line_of(self.file, number).encode("utf-8", "surrogatepass"))
        first, lines[-1] = lines[0], lines[-1][: self.end_column]
        before, lines[0] = first[: self.column].decode("utf-8", "replace"), lines[0][self.column :]
        keyword = _KEYWORDS.search(before)
        text = b"\n".join(lines).decode("utf-8", "replace")
        if _COMPOUND.match(text) and self.end_line > self.line:  # not the statements inside of it
            text = _without_comment(text.partition("\n")[0])
        if keyword is not None:
            text = keyword[0].strip() + " " + text
        return _on_one_line(text)


def spot_at(code: CodeType, offset: int, line: int, is_load: bool = False) -> Spot:
    """The spot of the instruction at an offset, whose line is known. Where it loads what is then
    called, that is the call."""
    start, end_line, column, end_column = next(islice(code.co_positions(), offset // 2, None))
    if start is None or end_line is None or column is None or end_column is None:
        return Spot(code.co_filename, line, code.co_qualname)
    spot = Spot(code.co_filename, start, code.co_qualname, end_line, column, end_column)
    if is_load:
        return _called(code, offset, spot)
    return spot


def _called(code: CodeType, offset: int, spot: Spot) -> Spot:
    """The call of what an instruction at an offset loads, or the spot itself if there is none.

    It is the first one behind the instruction that begins in the same place."""
    for place, (line, end_line, column, end_column) in enumerate(code.co_positions()):
        if 2 * place <= offset or (line, column) != (spot.line, spot.column):
            continue
        if "CALL" in dis.opname[code.co_code[2 * place]] and end_line and end_column is not None:
            return spot._replace(end_line=end_line, end_column=end_column)
    return spot


def spot_of_line(where: str, function: str = "") -> Spot | None:
    """The spot of "file:line", of which no more is known."""
    file, _, line = where.rpartition(":")
    if file and line.isdigit():
        return Spot(file, int(line), function)
    return None


def stack_lines(stack: Sequence[Spot]) -> list[str]:
    """Calls as a traceback shows them, the outermost first; nothing for a single one."""
    lines = []
    if len(stack) > 1:
        for spot in stack:
            lines.append(f'  File "{spot.file}", line {spot.line}, in {short_name(spot.function)}')
            if spot.text:
                lines.append(f"    {spot.text}")
    return lines


def spot_of_function(code: CodeType) -> Spot:
    """Where a function is defined, below its decorators."""
    first = line = code.co_firstlineno
    while line < first + _MOST_DECORATORS and not _FUNCTION.match(line_of(code.co_filename, line)):
        line += 1
    if line == first + _MOST_DECORATORS:
        line = first
    return Spot(code.co_filename, line, code.co_qualname)


def short_name(function: str) -> str:
    """The name of a function, without those of the functions that it is defined in."""
    return function.rpartition("<locals>.")[2]


def line_of(file: str, line: int) -> str:
    """A line of a file, without its end; "" where it cannot be read."""
    try:
        if os.path.exists(file) and not os.path.isfile(file):  # it may be an endless device
            return ""
        return linecache.getline(file, line).rstrip("\n")
    except ValueError:  # no file can have this name
        return ""


def _without_comment(line: str) -> str:
    """A line without the comment at its end and, before that, the colon of a statement."""
    return re.sub(r"\s+#[^'\"]*$", "", line).rstrip(" :")


def _on_one_line(text: str) -> str:
    text = " ".join(text.split())
    text = re.sub(r"(?<=[(\[]) | (?=[)\]])", "", text)
    if len(text) > WIDEST:
        text = text[: WIDEST - 3] + "..."
    return text
