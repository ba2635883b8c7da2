"""Spots in the user's code: a line, and which part of it an instruction is of.

A code object and the offset of an instruction go in. Out comes a `Spot`, from which the expression
is read as the user wrote it. That is done where a reason is told, never on the way to a program.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from types import CodeType
from typing import NamedTuple

WIDEST = 100
"""The most characters of an expression that are shown."""

_KEYWORDS = re.compile(r"(?:^|\s)(?:(?:el)?if|while|assert|with|raise|for\s.+\sin)\s+$")
"""What stands before an expression and says what is done with it."""

_DEFINES = ("def ", "class ", "@", "async def ")


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
        "" where the file cannot be read, or defines something there."""
        if not self.end_line:
            line = _without_comment(self.text)
            return "" if line.startswith(_DEFINES) else _on_one_line(line)
        lines = []
        for number in range(self.line, self.end_line + 1):
            lines.append(line_of(self.file, number).encode("utf-8", "surrogatepass"))
        first, lines[-1] = lines[0], lines[-1][: self.end_column]
        before, lines[0] = first[: self.column].decode("utf-8", "replace"), lines[0][self.column :]
        keyword = _KEYWORDS.search(before)
        text = b"\n".join(lines).decode("utf-8", "replace")
        if keyword is not None:
            text = keyword[0].strip() + " " + text
        if text.startswith(_DEFINES):
            return ""
        if re.match(r"(with|if|while|for)\s", text) and self.end_line > self.line:
            text = text.partition("\n")[0].rstrip(" :")  # not the statements inside of it
        return _on_one_line(text)


def spot_at(code: CodeType, offset: int, line: int, is_load: bool = False) -> Spot:
    """The spot of the instruction at an offset, whose line is known. Where it loads what is then
    called, that is the call."""
    positions = list(islice(code.co_positions(), offset // 2, None))
    start, end_line, column, end_column = positions[0]
    if start is None or end_line is None or column is None or end_column is None:
        return Spot(code.co_filename, line, code.co_qualname)
    if is_load:
        end_line, end_column = _called(positions, (start, column), (end_line, end_column))
    return Spot(code.co_filename, start, code.co_qualname, end_line, column, end_column)


def _called(
    positions: Iterable[tuple[int | None, ...]], start: tuple[int, int], end: tuple[int, int]
) -> tuple[int, int]:
    """The end of the call of what ends there: the first wider expression that begins in the same
    place, if it goes on with a parenthesis. It is given the positions of what follows."""
    for line, end_line, column, end_column in positions:
        if (line, column) != start or end_line is None or end_column is None:
            continue
        if (end_line, end_column) > end:
            return end_line, end_column
    return end


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
            lines.append(f'  File "{spot.file}", line {spot.line}, in {spot.function}')
            if spot.text:
                lines.append(f"    {spot.text}")
    return lines


def line_of(file: str, line: int) -> str:
    """A line of a file, without its end; "" where it cannot be read."""
    try:
        if os.path.exists(file) and not os.path.isfile(file):  # it may be an endless device
            return ""
        return linecache.getline(file, line).rstrip("\n")
    except ValueError:  # no file can have this name
        return ""


def _without_comment(line: str) -> str:
    return re.sub(r"\s+#[^'\"]*$", "", line)


def _on_one_line(text: str) -> str:
    text = " ".join(text.split())
    text = re.sub(r"(?<=[(\[]) | (?=[)\]])", "", text)
    if len(text) > WIDEST:
        text = text[: WIDEST - 3] + "..."
    return text
