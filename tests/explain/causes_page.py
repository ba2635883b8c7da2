"""What Ingot says of the programs of causes.py, and docs/causes.md, which is written of it.

`python -m tests.explain.causes_page` writes the page.
"""

from __future__ import annotations

import contextlib
import inspect
import io
from pathlib import Path
from typing import NamedTuple

import ingot
from ingot.compiler import Compiler
from ingot.errors import GraphBreakError, Unsupported
from ingot.reasons import Reason
from tests.explain import causes
from tests.explain.causes import CAUSES, MARK, Cause

PAGE = Path(__file__).parents[2] / "docs" / "causes.md"


class Said(NamedTuple):
    """What Ingot says of a program: the reason, None where the graph is whole; the error's text and
    the user's lines in the error's traceback, outermost first."""

    reason: Reason | None
    error: BaseException | None
    text: str


def said_of(cause: Cause) -> Said:
    """Compiles a program for a call."""
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
        return _said_of(cause)


def _said_of(cause: Cause) -> Said:
    ingot.reset()
    compiled = ingot.compile(cause.function, fullgraph=not cause.is_error)
    error: BaseException | None = None
    try:
        compiled(*cause.arguments)
    except GraphBreakError as why:
        assert isinstance(why.why, Reason)
        return Said(why.why, why, str(why))
    except (Exception, SystemExit) as raised:
        error = raised
    compiler = Compiler.of(compiled)
    assert compiler is not None
    skipped: list[Unsupported] = []
    for compilation in compiler.compilations:
        for why_not in (compilation.break_, compilation.skipped):
            if why_not is not None:
                skipped.append(why_not)
    reason = skipped[0].why if skipped else None
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return Said(reason, error, text)


def marked_line(cause: Cause) -> str:
    """The line that is to blame: the first with the mark in the program, or in its helpers."""
    lines, start = inspect.getsourcelines(cause.function)
    for line in lines:
        if MARK in line:
            return line.partition(MARK)[0].strip()
    everything = Path(causes.__file__).read_text("utf-8").splitlines()
    names = cause.function.__code__.co_names
    for number in range(start, 0, -1):
        if any(everything[number].startswith(f"def {name}(") for name in names):
            for line in everything[number:]:
                if MARK in line:
                    return line.partition(MARK)[0].strip()
    raise AssertionError(f"no line of {cause.name} is marked")


def page() -> str:
    """docs/causes.md."""
    rows, errors = [], []
    for cause in CAUSES:
        said, wrote = said_of(cause), f"`{marked_line(cause).replace('|', chr(92) + '|')}`"
        if cause.is_error:
            errors.append(f"| {wrote} | {said.text} |")
        else:
            assert said.reason is not None, cause.name
            rows.append(f"| {wrote} | {said.reason.sentence} | {said.reason.hint} |")
    return _PAGE.format(rows="\n".join(rows), errors="\n".join(errors))


_PAGE = """\
# Common causes

What people write that breaks a graph, and what Ingot says of it. The tests run each program
(`tests/explain/causes.py`), and hold that this page is what they say; `python -m
tests.explain.causes_page` writes it. A message begins with the expression as you wrote it, and a
report has the calls that led there ([report.md](report.md)). [limits.md](limits.md) has all that is
not compiled.

## Graph breaks

| You write | Ingot says | Hint |
|---|---|---|
{rows}

## Errors

Your program's own errors are raised as in eager, by the same line, with the same text. Ingot adds
nothing to them.

| You write | What is raised |
|---|---|
{errors}
"""


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
