"""docs/internals/changes.md: each of its diffs is in the tree, and touches few files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).parent.parent
PAGE = TREE / "docs/internals/changes.md"
SECTION = re.compile(r"^## (.*?)\n.*?^```diff\n(.*?)^```", re.MULTILINE | re.DOTALL)
CHANGES = dict(SECTION.findall(PAGE.read_text(encoding="utf-8")))


def files_of(diff: str) -> list[str]:
    return re.findall(r"^\+\+\+ b/(.*)$", diff, re.MULTILINE)


def test_there_is_one_of_each() -> None:
    assert list(CHANGES) == [
        "An op",
        "An opcode",
        "A guard",
        "A graph pass",
        "A rewrite of loop IR",
    ]


@pytest.mark.parametrize("change", CHANGES)
def test_it_touches_two_files_and_the_test(change: str) -> None:
    files = files_of(CHANGES[change])
    tests = [file for file in files if file.startswith("tests/")]
    count = len(files) - len(tests)
    assert count <= 2 and len(tests) == 1
    link = change.lower().replace(" ", "-")
    assert f"](#{link}) | {count} |" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("change", CHANGES)
def test_it_can_be_taken_back(change: str, tmp_path: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    for file in files_of(CHANGES[change]):
        if not (TREE / file).exists():
            pytest.skip(f"{file} is not in this tree")
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TREE / file, tmp_path / file)
    patch = tmp_path / "change.diff"
    patch.write_text(CHANGES[change], encoding="utf-8")
    # no repository around the copies: paths are taken from where git runs
    alone = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    alone["GIT_CEILING_DIRECTORIES"] = str(tmp_path.parent)
    # one line of context is enough: what stands farther off may change
    command = [git, "apply", "--check", "--reverse", "-C1", patch.name]
    answer = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
