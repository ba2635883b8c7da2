"""`ingot.cache_info`, and what is told of single files."""

from __future__ import annotations

import ast
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ingot
from ingot.codegen.store import KINDS, Damaged, Store, store_in
from ingot.kept import contents
from ingot.kept.kinds import READERS, told, unpacked_text
from tests.kept.samples import PROGRAM, SAMPLES, digest, fill, held

PACKAGE = Path(ingot.__file__).parent


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an empty cache."""
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))
    store_in.cache_clear()
    ingot.reset()
    yield tmp_path / "cache"
    store_in.cache_clear()
    ingot.reset()


def test_what_is_there(root: Path) -> None:
    fill(root)
    for number in range(2):
        path = root / "programs" / f"{digest(f'programs {number}')}.code"
        os.utime(path, (1000 + number, 1000 + number))
    before = held(root)
    info = ingot.cache_info()
    assert info.folder == root and not info.problem
    assert [kind.name for kind in info.kinds] == list(KINDS) == list(SAMPLES)
    for kind in info.kinds:
        sizes = [len(content) + 32 for content in SAMPLES[kind.name]]
        assert (kind.files, kind.bytes) == (len(sizes), sum(sizes))
        assert (kind.most_files, kind.most_bytes) == (4096, 1 << 29)
        assert (kind.found, kind.made, kind.not_kept) == (0, 0, ())
    assert (info["programs"].oldest_use, info["programs"].newest_use) == (1000, 1001)
    assert held(root) == before and "programs for CPUs: 2 of 4096 files" in str(info)
    assert pickle.loads(pickle.dumps(info)) == info and hash(info)
    with pytest.raises(KeyError, match="programs, llvm"):
        info["others"]


def test_what_this_process_did() -> None:
    def count() -> tuple[int, int]:
        kind = ingot.cache_info()["programs"]
        return kind.found, kind.made

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 3 - 1

    x, counts = torch.ones(3), []
    for _ in range(3):
        ingot.reset()
        ingot.compile(scaled)(x)
        counts.append(count())
    assert counts == [(0, 1), (1, 1), (2, 1)]
    ingot.compile(lambda x: x[x > 0] * 3)(x)
    ingot.compile(scaled, options={"freeze": True})(x)
    not_kept = dict(ingot.cache_info()["programs"].not_kept)
    assert not_kept == {"sizes depend on the data": 1, "weights are frozen in it": 1}
    assert "not kept, 1 times: sizes depend on the data" in str(ingot.cache_info())


def test_folders_that_cannot_be_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ingot.cache_info().problem == "" and not root.exists()  # missing is fine
    fill(root)
    (root / "llvm").chmod(0o777)
    info = ingot.cache_info()
    assert "others may write" in info.problem and info.problem in str(info)
    assert info["llvm"].files == 0 and info["programs"].files == 2
    store_in("llvm").put(digest("x"), b"code")
    assert ingot.cache_info()["llvm"].not_kept == ((info.problem, 1),)
    store_in.cache_clear()
    monkeypatch.setenv("INGOT_CACHE_DIR", "")
    info = ingot.cache_info()
    assert info.folder is None and "no cache" in str(info)
    assert {kind.files for kind in info.kinds} == {0}


# -- single files ----------------------------------------------------------------------------------


def test_each_store_is_a_kind() -> None:
    """Each name that a store is asked for by, in any file, is among `KINDS` and has a reader."""
    names = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "store_in" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("store_in"):
                if isinstance(node.args[0], ast.Constant):
                    names.add(node.args[0].value)
                else:
                    assert path == PACKAGE / "kept" / "info.py"  # which asks for all of them
    assert names == KINDS.keys() == READERS.keys() == SAMPLES.keys()


@pytest.mark.parametrize("kind", SAMPLES)
def test_what_can_be_unpacked(kind: str, root: Path) -> None:
    fill(root)
    store = Store(root / kind)
    for number in range(len(SAMPLES[kind])):
        key = digest(f"{kind} {number}")
        path = root / kind / f"{key}.code"
        os.utime(path, (1000, 1000))
        assert told(store, kind, key) and unpacked_text(store, kind, key)
        assert path.stat().st_mtime == 1000  # to look is no use
    store.put(digest("cut"), SAMPLES[kind][0][:-1])
    store.put(digest("other"), b"\xff" * 7)
    for name in ("cut", "other"):
        if (kind, name) != ("triton", "cut"):  # whose assembly is text of any length
            with pytest.raises(Damaged):
                unpacked_text(store, kind, digest(name))


def test_programs_name_their_function(root: Path) -> None:
    def softened(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, 1) @ x.T

    ingot.compile(softened)(torch.rand(3, 4))
    store = Store(root / "programs")
    (entry,) = store.listing().entries
    text = unpacked_text(store, "programs", entry.key)
    assert "softened" in text and "test_info.py:" in text and text.endswith("kernels")

    def renamed(x: torch.Tensor) -> torch.Tensor:
        return softened(x)

    found = store_in("programs").counts.found
    ingot.reset()
    ingot.compile(softened, name="another")(torch.rand(3, 4))
    assert store_in("programs").counts.found == found + 1  # the name is no part of the key


def test_programs_of_other_versions_are_no_damage(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names may be found by the torch that they are of, and by no other."""
    monkeypatch.setattr(torch, "__version__", "1.0")
    content = contents.contents_of("old", "m.py:1", 3, PROGRAM)
    monkeypatch.undo()
    store = Store(root / "programs")
    store.put(digest("old"), content)
    assert unpacked_text(store, "programs", digest("old")).endswith("3 kernels, of torch 1.0")
    store.put(digest("new"), contents.contents_of("new", "m.py:1", 3, PROGRAM))
    with pytest.raises(Damaged, match="kernels are not those"):
        unpacked_text(store, "programs", digest("new"))
