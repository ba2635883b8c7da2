"""Where Ingot lies, who runs it and in which language does not matter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ingot
from tests.long import long

PROGRAM = """
import torch

class Größe(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        y = self.linear(x).sin()
        print("ä".encode())
        return y.sum(0)

def make():
    return Größe(), (torch.ones(2, 4),)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    file = tmp_path / os.fsdecode("a é/ingot/prögramm.py".encode())
    file.parent.mkdir(parents=True)
    file.write_text(PROGRAM, encoding="utf-8")
    return f"{file}:make"


def tried(program: str, variables: dict[str, str], umask: int) -> str:
    """What `python -m ingot try` prints, run from the root of the file system."""
    done = subprocess.run(
        [sys.executable, "-m", "ingot", "try", program, "--rounds", "1"],
        cwd="/",
        env=os.environ | variables,
        capture_output=True,
        umask=umask,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="replace")


def test_a_read_only_folder_and_nowhere_to_write(program: str, tmp_path: Path) -> None:
    place, package = tmp_path / os.fsdecode("ä b".encode()) / "ingot", Path(ingot.__file__).parent
    shutil.copytree(package, place / "ingot", ignore=shutil.ignore_patterns("*.[ch]"))
    for path in (*place.rglob("*"), place):
        path.chmod(0o500)
    nowhere = {name: "/nonexistent" for name in ("HOME", "TMPDIR", "TEMP", "TMP")}
    flags = ("PYTHONDONTWRITEBYTECODE", "PYTHONSAFEPATH", "PYTHONUTF8")
    variables = nowhere | dict.fromkeys(flags, "1") | {"PYTHONPATH": str(place)}
    shown = tried(program, variables, 0o777)
    assert "The result is eager's" in shown


@long
def test_a_terminal_that_knows_ascii_alone(program: str) -> None:
    names = {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    place = str(Path(ingot.__file__).parent.parent)
    shown = tried(program, names | {"INGOT_DEBUG": "1", "PYTHONPATH": place}, 0o002)
    assert "The result is eager's" in shown and shown.isascii()
