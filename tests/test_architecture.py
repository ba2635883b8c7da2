"""docs/architecture.md follows one program through all stages: each text in it is the stage's."""

from __future__ import annotations

import linecache
import re
import sys
from pathlib import Path

import pytest
import torch

import ingot
from ingot.capture.bytecode import program_of

PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
BLOCKS = re.findall(r"^```(\w*) ?(\w*)\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
TEXTS = {stage: text for _, stage, text in BLOCKS if stage}
SOURCE = next(text for language, _, text in BLOCKS if language == "python")
STAGES = ("bytecode", "capture", "guards", "aten", "loops", "schedule", "llvm", "assembly")


def make_scores():
    """The page's program, in a file of the name that the page gives it."""
    linecache.cache["scores.py"] = (
        len(SOURCE),
        None,
        SOURCE.splitlines(keepends=True),
        "scores.py",
    )
    names: dict = {}
    exec(compile(SOURCE, "scores.py", "exec"), names)
    return names["scores"]


def bytecode_text(fn) -> str:
    """The normalized instructions but PUSH_NULL, which stands elsewhere in each Python."""
    instructions = program_of(fn.__code__).instructions
    return "".join(f"{i.op} {i.arg}\n" for i in instructions if not i.op.startswith("PUSH_NULL"))


@pytest.fixture(scope="module")
def texts():
    """What each stage prints for the page's program, for a processor with AVX-512."""
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setenv("INGOT_TARGET", "avx512")
        scores = make_scores()
        report = ingot.explain(scores)(torch.rand(64, 256), torch.rand(256))
        stages = {name: report.stage(name) for name in STAGES if name != "bytecode"}
    return {"bytecode": bytecode_text(scores), **stages}


def excerpts(text: str) -> list[str]:
    """The pieces of a block between lines of `...`."""
    return [piece for piece in re.split(r"^\.\.\.\n", text, flags=re.M) if piece]


def test_every_stage_is_shown():
    assert tuple(TEXTS) == STAGES


@pytest.mark.parametrize("stage", STAGES)
def test_the_text_is_the_stages(stage, texts):
    rest = texts[stage].rstrip("\n") + "\n"
    for piece in excerpts(TEXTS[stage]):
        assert piece in rest
        rest = rest.partition(piece)[2]


def walk_of_the_page() -> list[str]:
    """The functions of the section "The walk", in its order."""
    section = PAGE.read_text("utf-8").partition("## The walk\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^(\d+)\. `([\w.]+)`: ", section, re.M)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    return [f"ingot.{name}" for _, name in steps]


def first_calls(names: list[str], call) -> list[str]:
    """Those of the functions that `call` passes, in the order of their first calls."""
    passed: dict[str, None] = {}

    def on_event(frame, event, argument):
        if event == "call":
            name = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"
            if name in names:
                passed.setdefault(name)

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        call()
    finally:
        sys.setprofile(before)
    return list(passed)


def test_the_walk_is_the_way():
    """Each function of the page is there, and they are called in this order."""
    names, scores = walk_of_the_page(), make_scores()
    assert 25 <= len(names) <= 40
    with torch.no_grad():
        arguments = torch.rand(64, 256), torch.rand(256)
        passed = first_calls(names, lambda: ingot.compile(scores)(*arguments))
    assert passed == names


INTERNALS = sorted((PAGE.parent / "internals").glob("*.md"))


@pytest.mark.parametrize("page", [PAGE, *INTERNALS], ids=lambda page: page.stem)
def test_files_that_pages_name_are_there(page):
    """A page may leave out the folders that it has named before."""
    root = PAGE.parent.parent
    folders = [root / name for name in ("ingot", "tests", "benchmarks", "examples")]
    paths = ["/" + str(p.relative_to(root)) for folder in folders for p in folder.rglob("*.*")]
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    named = set(re.findall(r"[\w/]+\.(?:py|c|h)\b", prose)) - {"FILE.py"}
    missing = {name for name in named if not any(path.endswith(f"/{name}") for path in paths)}
    assert missing == set()


def test_the_page_is_short():
    prose = re.sub(r"^```.*?^```", "", PAGE.read_text("utf-8"), flags=re.M | re.S)
    assert len(prose.split()) <= 1500
