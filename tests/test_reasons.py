"""The table of break reasons: every row is about a reason that is given somewhere, and every error
has a hint."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from ingot.errors import EagerRaises, GraphBreakError, Unsupported
from ingot.reasons import HINTS, hint_for

PACKAGE = Path(__file__).parent.parent / "ingot"


@functools.cache
def sentences():
    """The string constants of the package as they are read, an X for what is filled in."""
    texts = set()
    for path in PACKAGE.rglob("*.py"):
        if path.name == "reasons.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                texts.add(
                    "".join(
                        part.value if isinstance(part, ast.Constant) else "X"
                        for part in node.values
                    )
                )
    return texts


@pytest.mark.parametrize("pattern, hint", HINTS)
def test_each_row_is_the_first_for_some_reason(pattern, hint):
    assert any(re.search(pattern, text) and hint_for(text) == hint for text in sentences())


def test_a_reason_without_a_row():
    assert hint_for("the stars are wrong") == "" and Unsupported("the stars are wrong").hint == ""
    assert "fullgraph=False" in GraphBreakError(Unsupported("the stars are wrong")).hint


def test_a_hint_of_its_own_is_kept():
    error = Unsupported("side effect: print", "a.py:3", "whisper")
    assert str(error) == "side effect: print at a.py:3 (hint: whisper)"
    assert str(GraphBreakError(error)) == str(error)
    assert Unsupported("side effect: print").hint == "print outside the compiled function"


def test_errors_of_the_program_are_given_no_advice():
    assert EagerRaises("the program raises TypeError: 'int' is not known during capture").hint == ""
