"""`python -m ingot cache`: what it prints, what it removes, how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ingot
from ingot.codegen.store import Store
from ingot.explain.cli import main
from tests.kept.samples import COUNT, SAMPLES, digest, fill, held
from tests.long import long


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of a cache with files of each kind."""
    fill(tmp_path / "cache")
    return tmp_path / "cache"


def cache(*argv: Any) -> int:
    return main(ingot.compile, ingot.explain, ["cache", *map(str, argv)])


def damage(root: Path) -> Path:
    path = root / "llvm" / f"{digest('llvm 0')}.code"
    path.write_bytes(path.read_bytes()[:-1])
    return path


def foreign(root: Path) -> list[Path]:
    """Files in a cache that are none of Ingot's."""
    paths = [root / "programs" / "notes.txt", root / "programs" / f"{digest('link')}.code"]
    paths[0].write_text("precious")
    paths[1].symlink_to(paths[0])
    (root / "others").mkdir()
    paths.append(root / "others" / f"{digest('llvm 0')}.code")
    paths[2].write_text("of another program")
    return paths


def test_ls(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.utime(root / "programs" / f"{digest('programs 0')}.code", (1000, 1000))
    damage(root)
    foreign(root)
    before = held(root)
    assert cache("ls", "--folder", root) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == COUNT and held(root) == before
    assert lines[-1].split()[:3] == ["programs", lines[-1].split()[1], "B"]
    assert "f  model.py:3  0 kernels" in lines[-1] and " d  " in lines[-1]
    for kind, text in (("llvm", "damaged: its checksum"), ("triton", "kernel  128 threads")):
        (line,) = [line for line in lines if line.startswith(kind)]
        assert text in line and digest(f"{kind} 0")[:12] in line
    assert cache("ls", "--folder", root, "--kind", "tuned", "--kind", "package") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_clear_removes_nothing_but_ingots(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = foreign(root)
    partial = root / "llvm" / f".{'0' * 32}.part"
    partial.touch(mode=0o600)
    assert cache("clear", "--folder", root, "--kind", "tuned") == 0
    assert capsys.readouterr().out.startswith("removed 1 file, ")
    assert cache("clear", "--folder", root) == 0
    assert f"removed {COUNT} files" in capsys.readouterr().out
    assert all(path.is_symlink() or path.is_file() for path in others) and not partial.exists()
    assert set(held(root)) == {str(path.relative_to(root)) for path in others}
    assert cache("clear", "--folder", root) == 0
    assert "removed 0 files" in capsys.readouterr().out


def test_verify(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cache("verify", "--folder", root) == 0
    assert capsys.readouterr().out == f"{COUNT} files sound, 0 damaged\n"
    path, before = damage(root), held(root)
    Store(root / "tuned").put(digest("bad"), b"{}")  # its checksum is right
    assert cache("verify", "--folder", root) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"llvm/{path.name}: damaged: its checksum is not that of what it holds"
    assert lines[1].endswith("damaged: it cannot be unpacked: it is no list of times")
    assert lines[2] == f"{COUNT - 1} files sound, 2 damaged"
    assert before.items() <= held(root).items()
    assert cache("verify", "--folder", root, "--remove") == 1
    assert "2 damaged and removed" in capsys.readouterr().out and not path.exists()
    assert cache("verify", "--folder", root) == 0
    assert len(held(root)) == COUNT - 1


def test_verify_leaves_foreign_files_alone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign(root)
    for number in range(7):
        (root / "programs" / f"z{number}").touch()
    (root / "programs" / f".{'0' * 32}.part").touch(mode=0o600)
    before = held(root)
    assert cache("verify", "--folder", root, "--remove") == 0
    text = capsys.readouterr().out
    assert "9 foreign files, left alone: " in text and "and 4 more" in text
    assert "1 file half written" in text and f"{COUNT} files sound, 0 damaged" in text
    assert held(root) == before


def test_files_that_cannot_be_read(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    true_open = os.open

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if path == f"{digest('tuned 0')}.code":
            raise PermissionError(13, "Permission denied", path)
        return true_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    assert cache("ls", "--folder", root) == 0
    assert "it cannot be read: Permission denied" in capsys.readouterr().out
    assert cache("verify", "--folder", root) == 1
    assert "it cannot be read: Permission denied" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["ls", "clear", "verify"])
def test_folders_that_are_missing_or_not_ours(
    command: str,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cache(command, "--folder", tmp_path / "missing") == 0
    assert not (tmp_path / "missing").exists()
    before = held(root)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert cache(command, "--folder", root) == 2
    monkeypatch.undo()
    captured = capsys.readouterr()
    assert "cannot be used" in captured.err and "belongs to somebody else" in captured.err
    (root / "tuned").chmod(0o707)
    assert cache(command, "--folder", root, "--kind", "tuned") == 2
    assert "others may write into" in capsys.readouterr().err
    assert held(root) == before
    monkeypatch.setenv("INGOT_CACHE_DIR", "")
    assert cache(command) == 2
    assert "nothing is kept: INGOT_CACHE_DIR is empty" in capsys.readouterr().err


def test_the_folder_is_that_of_the_variable(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(root))
    assert cache("verify") == 0
    assert f"{COUNT} files sound" in capsys.readouterr().out


def test_save_and_load(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, other = tmp_path / "saved", tmp_path / "other"
    assert cache("save", "--folder", root, file) == 0
    assert cache("load", "--folder", other, file) == 0
    assert held(other) == held(root)
    assert capsys.readouterr().out.splitlines() == [
        f"saved {COUNT} pieces in {file}",
        f"loaded {COUNT} pieces from {file}",
    ]
    file.write_bytes(file.read_bytes()[:-1])
    assert cache("load", "--folder", other, file) == 2
    assert f"ingot: {file} is damaged" in capsys.readouterr().err
    assert cache("load", "--folder", other, tmp_path / "nowhere") == 2
    assert "nowhere: No such file or directory" in capsys.readouterr().err


@long
def test_the_reader_of_the_list_may_leave(root: Path) -> None:
    for number in range(200):
        Store(root / "tuned").put(digest(f"more {number}"), SAMPLES["tuned"][0])
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "ingot", "cache", "ls", "--folder", str(root)]
        pipe = subprocess.PIPE
        done = subprocess.run(command, stdout=writing, stderr=pipe, text=True, timeout=60)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_as_json(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One document each, with the same exit status."""

    def document(status: int, *argv: Any) -> Any:
        assert cache(*argv, "--json", "--folder", root) == status
        text = capsys.readouterr().out
        assert text.count("\n") == 1
        return json.loads(text)

    saved = document(0, "save", tmp_path / "saved")
    assert saved == {"schema": 1, "pieces": COUNT, "file": str(tmp_path / "saved")}
    path = damage(root)
    listed = document(0, "ls")
    assert {file["kind"] for file in listed["files"]} == SAMPLES.keys()
    assert listed["files"][0].keys() == {"kind", "key", "bytes", "last_used", "text"}
    verified = document(1, "verify")
    assert verified["sound"] == COUNT - 1 and verified["damaged"][0]["name"] == path.name
    assert verified.keys() == {"schema", "sound", "damaged", "removed", "foreign", "partial"}
    assert document(0, "clear")["removed"] == COUNT
