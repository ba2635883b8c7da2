"""The code that is generated for the corpus is what it was; see `tests/corpus/texts.py`."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from tests.corpus.programs import PROGRAMS  # noqa: E402
from tests.corpus.texts import MADE_WITH, hashes_of, stored, texts_of  # noqa: E402

STORED = stored()


@pytest.mark.skipif(
    any(STORED[name] != version for name, version in MADE_WITH.items()),
    reason="the corpus was made with another torch or Triton",
)
@pytest.mark.parametrize(
    "name, mode", [(name, mode) for name, program in PROGRAMS.items() for mode in program.modes]
)
def test_the_code_is_what_it_was(name: str, mode: str) -> None:
    found, known = hashes_of(texts_of(PROGRAMS[name], mode)), STORED["programs"][f"{name}, {mode}"]
    changed = [stage for stage in known if found.get(stage) != known[stage]]
    assert not changed, (
        f"compare `python -m tests.corpus.texts {name} --write FOLDER` of before and now"
    )


def test_the_corpus_holds_all_programs() -> None:
    names = [f"{name}, {mode}" for name, program in PROGRAMS.items() for mode in program.modes]
    assert sorted(STORED["programs"]) == sorted(names)
