"""The ids of reasons: each is a row of the table and is given somewhere, and every error has its
row's hint."""

from __future__ import annotations

import ast
import functools
import pickle
import re
from pathlib import Path

import pytest

from ingot import reasons
from ingot.errors import EagerRaises, Evidence, GraphBreakError, Unsupported, unsupported
from ingot.reasons import BREAK, FAMILIES, RAISE_IN_EAGER, SKIP, reason_of

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ingot"
MAKERS = {"unsupported", "reason_of"}  # functions whose first argument is an id
PASSED_ON = {"id", "reason.why.id", "*why"}  # ids that another reason has brought
CONSTANTS = {name for name, id in vars(reasons).items() if isinstance(id, str) and id in FAMILIES}


def called_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


@functools.cache
def ids_given() -> dict[str, list[str]]:
    """The ids that the package gives, each with the places."""
    places: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and called_name(node) in MAKERS and node.args:
                id = node.args[0]
            elif isinstance(node, ast.keyword) and node.arg == "id":
                id = node.value
            else:
                continue
            text = id.value if isinstance(id, ast.Constant) else ast.unparse(id)
            if text in CONSTANTS:
                text = getattr(reasons, text)
            places.setdefault(text, []).append(f"{path.relative_to(PACKAGE)}:{id.lineno}")
    return places


def tuples_with_ids() -> set[str]:
    """The ids that functions give beside a sentence, for another to raise."""
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    return {id for text in texts for id in re.findall(r'return "([a-z-]+)", ', text)}


def test_each_id_that_is_given_is_in_the_table() -> None:
    unknown = {id: places for id, places in ids_given().items() if id not in FAMILIES}
    assert unknown.keys() == PASSED_ON, unknown


def test_each_id_in_the_table_is_given_somewhere() -> None:
    of_defaults = {reasons.REFUSED, reasons.EAGER_REFUSES}  # of the errors' constructors
    assert FAMILIES.keys() == FAMILIES.keys() & (
        ids_given().keys() | of_defaults | tuples_with_ids()
    )


def test_ids_are_short_words() -> None:
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+){0,2}", id) for id in FAMILIES)
    assert 60 <= len(FAMILIES) <= 120


def test_nobody_names_a_sentence_alone() -> None:
    """`Unsupported` is given a Reason, but by backends of users."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and called_name(node) == "Unsupported":
                text = ast.unparse(node.args[0])
                assert not text.startswith(("'", '"', "f'", 'f"')), (path, text)


HAPPENS = {
    "BREAK": "a graph break",
    "SKIP": "runs in eager",
    "STATIC": "is compiled for its own sizes",
    "RAISE_IN_EAGER": "eager raises it",
}


def test_the_page_of_limits_has_a_row_for_each_id() -> None:
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    table = page.partition("## Reasons")[2]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+?) \| (.+?) \| (.*?) ?\|$", table, re.MULTILINE)
    assert [row[0] for row in rows] == [*FAMILIES]
    for id, met, happens, hint in rows:
        family = FAMILIES[id]
        assert met and (happens, hint) == (HAPPENS[family.action.name], family.hint), id


def test_a_family_gives_hint_and_action() -> None:
    assert unsupported("print", "side effect: print").hint == "print outside the compiled function"
    assert unsupported("recursion", "too deep").why.action is SKIP
    assert unsupported("attribute", "x.y", action=SKIP).skips
    with pytest.raises(KeyError):
        unsupported("stars", "the stars are wrong")


def test_a_reason_without_a_row() -> None:
    error = Unsupported("the stars are wrong")
    assert (error.hint, error.why.id, error.why.action) == ("", reasons.REFUSED, BREAK)
    assert "fullgraph=False" in GraphBreakError(error).hint


def test_a_hint_of_its_own_is_kept() -> None:
    error = Unsupported("side effect: print", "a.py:3", "whisper", skip=True)
    assert str(error) == "side effect: print at a.py:3 (hint: whisper)"
    assert str(GraphBreakError(error)) == str(error) and error.skips


def test_errors_of_the_program_are_given_no_advice() -> None:
    error = EagerRaises("the program raises TypeError: 'int' is not known during capture")
    assert error.hint == "" and error.why.action is RAISE_IN_EAGER and not error.skips
    assert EagerRaises("the program raises", id=reasons.PROGRAM_RAISES).skips
    error.evidence = Evidence([], 7)
    broken = error.as_break()
    assert type(broken) is Unsupported and broken.why.action is BREAK
    assert broken.evidence is error.evidence


def test_errors_cross_processes() -> None:
    error = Unsupported(reason_of("data-branch", "a branch on x", "a.py:3", "f"))
    error.evidence = Evidence(lambda: None, 3)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) and copy.why == error.why and copy.evidence == Evidence()
    broken = pickle.loads(pickle.dumps(GraphBreakError(error)))
    assert (broken.reason, broken.where, broken.function) == ("a branch on x", "a.py:3", "f")
    assert "torch.where" in broken.hint
