"""Compiled code that is kept from process to process."""

from __future__ import annotations

import logging
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from ingot.codegen import store as stores
from ingot.codegen.store import Store, store_in


def test_what_was_put_is_got_by_others(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "down"
    Store(folder).put("key", b"some code")
    assert Store(folder).get("key") == b"some code"
    assert Store(folder).get("other") is None
    assert folder.stat().st_mode & 0o077 == 0
    Store(folder).put("key", b"newer")
    assert Store(folder).get("key") == b"newer" and len(list(folder.iterdir())) == 1


DAMAGES = [lambda b: b[:-1], lambda b: b + b"x", lambda b: b"", lambda b: b[:40] + b"?" + b[41:]]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused(tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path)
    store.put("key", b"some code of some length")
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING, "ingot"):
        assert store.get("key") is None
    assert "damaged" in caplog.text and not list(tmp_path.iterdir())
    store.put("key", b"again")
    assert store.get("key") == b"again"


def test_a_file_is_for_its_key(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("key", b"code")
    (path,) = tmp_path.iterdir()
    path.rename(path.with_name("other" + path.suffix))
    assert store.get("other") is None


def test_folders_that_others_may_write_into(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o777)
    store = Store(tmp_path)
    store.put("key", b"code")
    assert store.get("key") is None and not list(tmp_path.iterdir()) and "others may write" in caplog.text


def test_where_nothing_can_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "folder")
    store.put("key", b"code")
    assert store.get("key") is None and "not kept" in caplog.text
    Store(None).put("key", b"code")
    assert Store(None).get("key") is None


def test_the_oldest_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MOST_FILES", 8)
    store = Store(tmp_path)
    for k in range(8):
        store.put(str(k), bytes([k]))
        os.utime(tmp_path / f"{k}.code", (1000 + k, 1000 + k))
    assert store.get("0") == b"\0"  # which was used just now
    store.put("8", b"\x08")
    assert [k for k in range(9) if store.get(str(k))] == [0, 5, 6, 7, 8]


def _write(folder: Path, number: int) -> None:
    store = Store(folder)
    for k in range(50):
        store.put("key", bytes([number]) * 100_000)
        content = store.get("key")
        assert content is not None and content == content[:1] * 100_000, k


def test_processes_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(tmp_path, number)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len(list(tmp_path.iterdir())) == 1


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(name: str) -> bytes | None:
        store_in.cache_clear()
        store_in(name).put("key", b"code")
        store_in.cache_clear()
        return store_in(name).get("key")

    monkeypatch.setenv("INGOT_CACHE_DIR", "")
    assert kept("some") is None
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "own"))
    assert kept("some") == b"code" and (tmp_path / "own" / "some").is_dir()
    monkeypatch.delenv("INGOT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert kept("some") == b"code" and (tmp_path / "xdg" / "ingot" / "some").is_dir()
    store_in.cache_clear()
