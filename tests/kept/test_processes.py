"""Many processes and one cache: killed, side by side, with too little room, and with a folder that
cannot be written or disappears."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.codegen import store as stores
from ingot.codegen.store import Store, store_in
from ingot.compiler import Compiler
from ingot.explain.cli import main
from ingot.kept.programs import FOUND
from tests.kept.samples import digest
from tests.long import long

KEY = digest("key")
CONTENTS = [bytes([number]) * (1 + number * 9973) for number in range(40)]
OF_SOMEBODY = 54321


def forked(act: Callable[[], object]) -> int:
    """The number of a process that does this, and ends with 0 if it raises nothing."""
    child = os.fork()
    if child:
        return child
    try:
        act()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ends_well(child: int) -> bool:
    return os.waitpid(child, 0)[1] == 0


def is_clean(folder: Path, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether `python -m ingot cache verify` finds no damage and nothing foreign."""
    status = main(ingot.compile, ingot.explain, ["cache", "verify", "--folder", str(folder)])
    return status == 0 and "foreign" not in capsys.readouterr().out


# -- killed ----------------------------------------------------------------------------------------


def put_all(folder: Path, seed: int) -> None:
    """Puts entries of many sizes, until it is killed."""
    numbers, store = random.Random(seed), Store(folder)
    while True:
        number = numbers.randrange(len(CONTENTS))
        store.put(digest(str(number)), CONTENTS[number])


def check_what_is_left(folder: Path) -> None:
    """All that is there is whole, and what was half written goes when it is old."""
    store = Store(folder)
    listing = store.listing()
    assert not listing.foreign
    for entry in listing.entries:
        assert store.peek(entry.key) in CONTENTS
    for entry in listing.partial:
        os.utime(folder / entry.name, (1000, 1000))
    assert store.put(digest("0"), CONTENTS[0])
    assert not store.listing().partial and store.get(digest("0")) == CONTENTS[0]


def kill_writers(folder: Path, count: int) -> int:
    """Kill so many processes while they write; returns how many files they left half written."""
    numbers, left = random.Random(count), 0
    for seed in range(0, count, 4):
        children = [forked(lambda seed=seed + k: put_all(folder, seed)) for k in range(4)]
        for child in children:
            time.sleep(numbers.random() * 0.02)
            os.kill(child, signal.SIGKILL)
        assert not any(map(ends_well, children))
        left += len(Store(folder).listing().partial)
    return left


def test_killed_writers_leave_nothing_broken(tmp_path: Path) -> None:
    kill_writers(tmp_path, 8)
    check_what_is_left(tmp_path)


@long
def test_many_killed_writers_leave_nothing_broken(tmp_path: Path) -> None:
    assert kill_writers(tmp_path, 200)  # of which some were in the middle of a file
    check_what_is_left(tmp_path)


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("step", ["before it is made", "half written", "before the name", "behind"])
def test_killed_at_each_step(step: str, is_there: bool, tmp_path: Path) -> None:
    """What was there under the key stays, until all of what comes in its place is there."""
    if is_there:
        Store(tmp_path).put(KEY, b"before")
    true_open, true_replace = os.open, os.replace

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def dying_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT and step == "before it is made":
            die()
        handle = true_open(path, flags, *args, **kwargs)
        if flags & os.O_CREAT and step == "half written":
            os.write(handle, b"half")
            die()
        return handle

    def dying_replace(*args: Any, **kwargs: Any) -> None:
        if step == "before the name":
            die()
        true_replace(*args, **kwargs)
        die()

    def put() -> None:
        os.open, os.replace = dying_open, dying_replace
        Store(tmp_path).put(KEY, b"after")

    assert os.WTERMSIG(os.waitpid(forked(put), 0)[1]) == signal.SIGKILL
    expected = b"before" if is_there else None
    assert Store(tmp_path).get(KEY) == (b"after" if step == "behind" else expected)
    assert len(Store(tmp_path).listing().partial) == (step in ("half written", "before the name"))
    assert Store(tmp_path).put(KEY, b"again") and Store(tmp_path).get(KEY) == b"again"


def kill_compilers(folder: Path, kills: int) -> dict[str, Any]:
    """What is left when so many processes were killed while they compiled into a folder."""
    environment = {**os.environ, "INGOT_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.kept.killed", str(kills), "3"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=long)])
def test_killed_compilers_leave_nothing_broken(
    kills: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = kill_compilers(tmp_path, kills)
    assert kills == 8 or left["while working"] > kills // 4
    first, second = left["turns"]
    assert {*first} <= {"made", FOUND} and {*second} == {FOUND}
    assert is_clean(tmp_path, capsys)


# -- side by side ----------------------------------------------------------------------------------


def test_readers_while_others_make_room(tmp_path: Path) -> None:
    """A reader gets all of an entry or nothing, however many writers remove what is old."""

    def write(number: int) -> None:
        store = Store(tmp_path, most_files=8)
        for k in range(150):
            assert store.put(digest(f"{(k * number) % 40}"), CONTENTS[(k * number) % 40])

    def read() -> None:
        store, found = Store(tmp_path), 0
        for k in range(600):
            content = store.get(digest(f"{k % 40}"))
            assert content in (None, CONTENTS[k % 40])
            found += content is not None
        assert found and not store.counts.not_kept and store.counts.found == found

    Store(tmp_path).put(digest("0"), CONTENTS[0])
    children = [*map(forked, [read, read, *(lambda n=n: write(n) for n in (1, 3, 7))])]
    assert all([*map(ends_well, children)])
    assert len(Store(tmp_path).listing().entries) <= 3 * 8
    check_what_is_left(tmp_path)


def test_eight_writers_of_the_same_entries(tmp_path: Path) -> None:
    def write(number: int) -> None:
        store = Store(tmp_path)
        for k in range(40):
            other = (k + number * 5) % 40
            assert store.put(digest(f"{other}"), CONTENTS[other])
            assert store.get(digest(f"{other}")) == CONTENTS[other]

    children = [forked(lambda n=n: write(n)) for n in range(8)]
    assert all([*map(ends_well, children)])
    store = Store(tmp_path)
    assert len(store.listing().entries) == 40 and not store.listing().partial
    assert [store.get(digest(f"{k}")) for k in range(40)] == CONTENTS


# -- folders that cannot be written, or disappear --------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the cache that this process has."""
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))
    store_in.cache_clear()
    ingot.reset()
    yield tmp_path / "cache"
    store_in.cache_clear()
    ingot.reset()


X = torch.linspace(-1, 1, 6)


def compiled(number: int) -> str:
    """Compiles a function of its own, as a new process does; whether it was found."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * number + 1

    ingot.reset()
    function = ingot.compile(scaled)
    torch.testing.assert_close(function(X), scaled(X))
    compiler = Compiler.of(function)
    assert compiler is not None
    return compiler.compilations[0].log.kept


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder with an entry, in which its owner may not write; for root it is somebody's."""
    folder = Path(tempfile.mkdtemp())
    Store(folder / "tuned").put(KEY, b"[1.5]")
    owner = OF_SOMEBODY if os.geteuid() == 0 else os.geteuid()
    for path in (folder / "tuned" / f"{KEY}.code", folder / "tuned", folder):
        os.chown(path, owner, -1)
    (folder / "tuned").chmod(0o500)
    yield folder
    (folder / "tuned").chmod(0o700)
    shutil.rmtree(folder)


def test_a_folder_that_may_only_be_read(read_only: Path) -> None:
    def use() -> None:
        if os.geteuid() == 0:
            os.setuid(OF_SOMEBODY)
        store = Store(read_only / "tuned")
        assert store.get(KEY) == b"[1.5]" and not store.put(digest("other"), b"[2.5]")
        assert store.put(KEY, b"[2.5]") is False and store.get(KEY) == b"[1.5]"
        assert store.counts.not_kept == {"Permission denied": 2}
        arguments = ["--folder", str(read_only)]
        assert main(ingot.compile, ingot.explain, ["cache", "verify", *arguments]) == 0
        assert main(ingot.compile, ingot.explain, ["cache", "clear", *arguments]) == 2
        assert store.get(KEY) == b"[1.5]"

    assert ends_well(forked(use))


def with_small_files(act: Callable[[], object]) -> None:
    """Does this while no file may have more than 300 bytes: `EFBIG`, as a full disk gives
    `ENOSPC`."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        act()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept: list[str] = []
    with_small_files(lambda: kept.append(compiled(3)))
    assert kept == [""] and ingot.cache_info()["programs"].files == 0
    assert ingot.cache_info()["programs"].not_kept == (("File too large", 1),)
    assert is_clean(root, capsys) and not list(root.rglob(".*"))
    assert [compiled(3), compiled(3)] == ["", FOUND]


def test_a_disk_that_is_full_while_a_cache_is_saved(root: Path, tmp_path: Path) -> None:
    compiled(3)
    count = ingot.save_cache(tmp_path / "saved")
    before = (tmp_path / "saved").read_bytes()

    def save() -> None:
        with pytest.raises(OSError, match="File too large"):
            ingot.save_cache(tmp_path / "saved")

    with_small_files(save)
    assert (tmp_path / "saved").read_bytes() == before and count > 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "saved"]


def test_a_folder_that_disappears(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [compiled(3), compiled(3)] == ["", FOUND]
    shutil.rmtree(root)
    assert [compiled(3), compiled(3)] == ["", FOUND]
    shutil.rmtree(root / "programs")
    assert [compiled(3), compiled(3)] == ["", FOUND] and is_clean(root, capsys)


@pytest.mark.parametrize("step", ["_write", "_make_room", "_read"])
def test_a_folder_that_disappears_midway(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone between the step that opened it and this one."""
    folder = tmp_path / "folder"
    store = Store(folder)
    store.put(KEY, b"code")
    where: Any = Store if step == "_make_room" else stores
    true = getattr(where, step)

    def vanishing(*args: Any, **kwargs: Any) -> Any:
        shutil.rmtree(folder)
        return true(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(where, step, vanishing)
        if step == "_read":
            assert store.get(KEY) is None
        else:
            assert not store.put(KEY, b"other")
            assert store.counts.not_kept == {"No such file or directory": 1}
    assert store.put(KEY, b"again") and store.get(KEY) == b"again"


def test_a_folder_that_another_takes_the_place_of(tmp_path: Path) -> None:
    """What was written before is not there, what is written now is."""
    folder, store = tmp_path / "folder", Store(tmp_path / "folder")
    store.put(KEY, b"code")
    folder.rename(tmp_path / "moved")
    Store(folder).put(digest("other"), b"other")
    assert store.get(KEY) is None and store.get(digest("other")) == b"other"
    assert store.put(KEY, b"again") and store.get(KEY) == b"again"
    assert Store(tmp_path / "moved").get(KEY) == b"code"
