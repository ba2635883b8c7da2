"""docs/architecture.md follows one program through all stages: each text in it is the stage's."""

from __future__ import annotations

import linecache
import re
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


def test_the_page_is_short():
    prose = re.sub(r"^```.*?^```", "", PAGE.read_text("utf-8"), flags=re.M | re.S)
    assert len(prose.split()) <= 1500
