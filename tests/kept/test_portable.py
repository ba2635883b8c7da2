"""The cache as one file: `ingot.save_cache`, `ingot.load_cache`."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ingot
from ingot.codegen.store import Store, store_in
from ingot.kept import portable
from tests.kept.samples import COUNT, SAMPLES, digest, fill, held


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of a cache with files of each kind."""
    fill(tmp_path / "cache")
    return tmp_path / "cache"


def test_what_was_saved_is_loaded(root: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "saved", tmp_path / "other"
    before = held(root)
    assert ingot.save_cache(file, folder=root) == COUNT
    assert ingot.load_cache(file, folder=other) == COUNT
    assert held(other) == held(root) == before
    assert ingot.load_cache(file, folder=other) == COUNT and held(other) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "other", "saved"]


def test_chosen_kinds(root: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "saved", tmp_path / "other"
    assert ingot.save_cache(str(file), folder=root, kinds=["llvm", "programs"]) == 3
    assert ingot.load_cache(str(file), folder=other, kinds=["programs"]) == 2
    assert {path.name for path in other.iterdir()} == {"programs"}
    for act in (ingot.save_cache, ingot.load_cache):
        with pytest.raises(ValueError, match="'others' is no kind of the cache; there are prog"):
            act(file, kinds=["others"])


def test_the_last_used_stay_where_there_is_no_room(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(root / "programs")
    for number in range(9):
        store.put(digest(f"{number}"), b"code")
        os.utime(root / "programs" / f"{digest(f'{number}')}.code", (9000 - number,) * 2)
    ingot.save_cache(tmp_path / "saved", folder=root, kinds=["programs"])
    monkeypatch.setattr(Store.__init__, "__defaults__", (4, 1 << 20))
    ingot.load_cache(tmp_path / "saved", folder=tmp_path / "other")
    there = Store(tmp_path / "other" / "programs")
    assert len(there.listing().entries) <= 4 and there.get(digest("8")) is None
    assert there.get(digest("programs 0")) and there.get(digest("programs 1"))  # used just now


def changed(whole: bytes, at: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda whole: b"", "is no file of ingot.save_cache"),
    "another file": (lambda whole: b"PK" + whole, "is no file of ingot.save_cache"),
    "a head alone": (lambda whole: whole[:18], "ends too early"),
    "another version": (
        lambda whole: whole[:14] + struct.pack("<I", 2) + whole[18:],
        "has version 2 of the format, and this Ingot reads version 1",
    ),
    "cut in a content": (lambda whole: whole[:150], "is damaged"),
    "cut before the end": (lambda whole: whole[:-84], "ends too early"),
    "another kind": (lambda whole: whole[:18] + b"q" + whole[19:], "kind or size"),
    "another key": (lambda whole: changed(whole, 40), "checksum"),
    "another content": (lambda whole: changed(whole, 110), "checksum"),
    "another last content": (lambda whole: changed(whole, len(whole) - 90), "checksum"),
    "a huge size": (lambda whole: whole[:66] + b"\xff" * 4 + whole[70:], "kind or size"),
    "another count": (lambda whole: changed(whole, len(whole) - 36), "is damaged"),
    "more behind it": (lambda whole: whole + b"x", "does not end"),
    "a piece left out": (lambda whole: whole[:18] + whole[18 + 84 + 32 :], "is damaged"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_change_nothing(name: str, root: Path, tmp_path: Path) -> None:
    file, (change, message) = tmp_path / "saved", BAD[name]
    ingot.save_cache(file, folder=root, kinds=["package", "llvm"])
    file.write_bytes(change(file.read_bytes()))
    before = held(root)
    for folder in (root, tmp_path / "other"):
        with pytest.raises(ingot.CacheError, match=message) as caught:
            ingot.load_cache(file, folder=folder)
        assert isinstance(caught.value, ValueError) and str(file) in str(caught.value)
    assert held(root) == before and not (tmp_path / "other").exists()


def test_each_flipped_bit_is_seen(root: Path, tmp_path: Path) -> None:
    file, numbers = tmp_path / "saved", random.Random(7)
    ingot.save_cache(file, folder=root)
    whole = file.read_bytes()
    for at in {*range(102), *numbers.sample(range(len(whole)), 200)}:
        file.write_bytes(changed(whole, at))
        with pytest.raises(ingot.CacheError):
            ingot.load_cache(file, folder=tmp_path / "other")
    for end in {*numbers.sample(range(len(whole)), 50)}:
        file.write_bytes(whole[:end])
        with pytest.raises(ingot.CacheError):
            ingot.load_cache(file, folder=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_damaged_piece_replaces_none(root: Path, tmp_path: Path) -> None:
    """What is damaged in the cache is not saved, and a sound one of the same key stays."""
    path = root / "llvm" / f"{digest('llvm 0')}.code"
    path.write_bytes(path.read_bytes()[:-1])
    assert ingot.save_cache(tmp_path / "saved", folder=root) == COUNT - 1
    fill(tmp_path / "other")
    before = held(tmp_path / "other")
    assert ingot.load_cache(tmp_path / "saved", folder=tmp_path / "other") == COUNT - 1
    assert held(tmp_path / "other") == before


def test_what_stops_midway_leaves_the_file_as_it_was(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "saved"
    ingot.save_cache(file, folder=root)
    before, true_peek = file.read_bytes(), Store.peek

    def peek(self: Store, key: str) -> bytes:
        if key == digest("tuned 0"):
            raise KeyboardInterrupt
        return true_peek(self, key)

    monkeypatch.setattr(Store, "peek", peek)
    with pytest.raises(KeyboardInterrupt):
        ingot.save_cache(file, folder=root)
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "saved"]


def test_where_there_is_no_file_or_folder(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        ingot.load_cache(tmp_path / "nowhere", folder=root)
    with pytest.raises(FileNotFoundError):
        ingot.save_cache(tmp_path / "nowhere" / "saved", folder=root)
    with pytest.raises(OSError):
        ingot.save_cache(root, folder=root)
    ingot.save_cache(tmp_path / "saved", folder=root)
    monkeypatch.setenv("INGOT_CACHE_DIR", "")
    for act in (ingot.save_cache, ingot.load_cache):
        with pytest.raises(ingot.CacheError, match="nothing is kept"):
            act(tmp_path / "saved")
    (root / "tuned").chmod(0o777)
    before = held(root)
    for act in (ingot.save_cache, ingot.load_cache):
        with pytest.raises(ingot.CacheError, match="cannot be used.*others may write"):
            act(tmp_path / "saved", folder=root)
    assert held(root) == before
    empty = ingot.save_cache(tmp_path / "saved", folder=tmp_path / "missing")
    assert empty == 0 == ingot.load_cache(tmp_path / "saved", folder=tmp_path / "missing")


PROCESS = """
import sys, torch, ingot
def f(x):
    return torch.softmax(x @ x.T, 1)
if sys.argv[1] == "load":
    ingot.load_cache(sys.argv[2])
ingot.compile(f)(torch.ones(3, 4))
if sys.argv[1] == "save":
    ingot.save_cache(sys.argv[2])
programs = ingot.cache_info()["programs"]
print(programs.found, programs.made, ingot.__file__)
"""


def test_a_process_elsewhere_finds_what_was_loaded(tmp_path: Path) -> None:
    """With another cache, and with Ingot installed in another folder, at another time."""
    program, texts = tmp_path / "program.py", []
    program.write_text(PROCESS)
    package = Path(ingot.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__")
    other = tmp_path / "elsewhere"
    shutil.copytree(package, other / "ingot", ignore=ignored, copy_function=shutil.copy)
    for what, path in (("save", package.parent), ("load", other)):
        environment = {**os.environ, "INGOT_CACHE_DIR": str(tmp_path / what)}
        environment["PYTHONPATH"] = str(path)
        command = [sys.executable, str(program), what, str(tmp_path / "saved")]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout.strip())
    files = [Path(folder) / "ingot" / "__init__.py" for folder in (package.parent, other)]
    assert texts == [f"0 1 {files[0]}", f"1 0 {files[1]}"]


def test_loading_is_no_making(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ingot.save_cache(tmp_path / "saved", folder=root)
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "own"))
    store_in.cache_clear()
    try:
        assert ingot.load_cache(tmp_path / "saved") == COUNT
        info = ingot.cache_info()
        assert sum(kind.files for kind in info.kinds) == COUNT
        assert {(kind.found, kind.made) for kind in info.kinds} == {(0, 0)}
    finally:
        store_in.cache_clear()
    assert torch.is_grad_enabled() and SAMPLES.keys() == {kind.name for kind in info.kinds}
    assert portable._VERSION == 1
