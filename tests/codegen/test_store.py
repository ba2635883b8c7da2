"""Compiled code that is kept from process to process."""

from __future__ import annotations

import errno
import hashlib
import logging
import multiprocessing
import os
import resource
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingot.codegen import private_folder
from ingot.codegen import store as stores
from ingot.codegen.store import Store, store_in
from tests.long import long

pytestmark = pytest.mark.own_objects


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


KEY = digest("key")
SOMEBODY = 54321


def test_what_was_put_is_got_by_others(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "down"
    Store(folder).put(KEY, b"some code")
    assert Store(folder).get(KEY) == b"some code"
    assert Store(folder).get(digest("other")) is None
    assert folder.stat().st_mode & 0o077 == 0
    Store(folder).put(KEY, b"newer")
    assert Store(folder).get(KEY) == b"newer" and len(list(folder.iterdir())) == 1


DAMAGES = [lambda b: b[:-1], lambda b: b + b"x", lambda b: b"", lambda b: b[:40] + b"?" + b[41:]]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused(
    tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    store.put(KEY, b"some code of some length")
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING, "ingot"):
        assert store.get(KEY) is None
    assert "damaged" in caplog.text and not list(tmp_path.iterdir())
    store.put(KEY, b"again")
    assert store.get(KEY) == b"again"


def test_a_file_is_for_its_key(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(KEY, b"code")
    (path,) = tmp_path.iterdir()
    path.rename(path.with_name(digest("other") + path.suffix))
    assert store.get(digest("other")) is None


def test_where_nothing_can_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "folder")
    store.put(KEY, b"code")
    assert store.get(KEY) is None and "not kept" in caplog.text
    Store(None).put(KEY, b"code")
    assert Store(None).get(KEY) is None


def test_the_oldest_make_room(tmp_path: Path) -> None:
    store = Store(tmp_path, most_files=8)
    for k in range(8):
        store.put(digest(str(k)), bytes([k]))
        os.utime(tmp_path / f"{digest(str(k))}.code", (1000 + k, 1000 + k))
    assert store.get(digest("0")) == b"\0"  # which was used just now
    store.put(digest("8"), b"\x08")
    assert [k for k in range(9) if store.get(digest(str(k)))] == [0, 5, 6, 7, 8]


def test_the_oldest_make_room_for_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path, most_bytes=1000)
    for k in range(9):  # of 132 bytes each, with their checksums
        store.put(digest(str(k)), bytes(100))
        os.utime(tmp_path / f"{digest(str(k))}.code", (1000 + k, 1000 + k))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000
    assert [k for k in range(9) if store.get(digest(str(k)))] == [4, 5, 6, 7, 8]
    store.put(digest("large"), bytes(900))  # more than half of it
    assert store.get(digest("large")) == bytes(900) and len(list(tmp_path.iterdir())) == 1


# -- folders that others may put something into, or replace ----------------------------------------


def belongs_to_somebody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path belongs to another user than the one whose store it is."""
    if os.geteuid() == 0:
        os.chown(path, SOMEBODY, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)


def linked(path: Path, to: Path) -> None:
    path.rmdir()
    path.symlink_to(to)


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.rmdir()
    make(path)


# What is done to folder/parent/leaf, all of which is private, before the store is asked.
HOSTILE: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "all may write": lambda leaf, _: leaf.chmod(0o777),
    "all may write, it is sticky": lambda leaf, _: leaf.chmod(0o1777),
    "a group may write": lambda leaf, _: leaf.chmod(0o770),
    "others may write": lambda leaf, _: leaf.chmod(0o702),
    "all may write above": lambda leaf, _: leaf.parent.chmod(0o777),
    "others may write above": lambda leaf, _: leaf.parent.chmod(0o702),
    "all may write at the top": lambda leaf, _: leaf.parents[1].chmod(0o777),
    "a group may write above": lambda leaf, patch: (
        leaf.parent.chmod(0o770),
        patch.setattr(private_folder, "_is_users_own_group", lambda group: False),
    ),
    "the user's group and others may write above": lambda leaf, patch: (
        leaf.parent.chmod(0o772),
        patch.setattr(private_folder, "_is_users_own_group", lambda group: True),
    ),
    "a list says who may write above": lambda leaf, patch: (
        leaf.parent.chmod(0o770),
        patch.setattr(private_folder, "_is_users_own_group", lambda group: True),
        patch.setattr(private_folder, "_has_acl", lambda handle: True),
    ),
    "somebody else's": belongs_to_somebody,
    "somebody else's above": lambda leaf, patch: belongs_to_somebody(leaf.parent, patch),
    "somebody else's in a sticky one": lambda leaf, patch: (
        leaf.parents[1].chmod(0o1777),
        belongs_to_somebody(leaf.parent, patch),
    ),
    "a link": lambda leaf, _: linked(leaf, victims(leaf)),
    "a link to nowhere": lambda leaf, _: linked(leaf, leaf.with_name("nowhere")),
    "a link to itself": lambda leaf, _: linked(leaf, leaf),
    "a loop above": lambda leaf, _: (leaf.rmdir(), linked(leaf.parent, leaf.parent)),
    "somebody's link above": lambda leaf, patch: (
        leaf.rmdir(),
        linked(leaf.parent, victims(leaf).parent),
        belongs_to_somebody(leaf.parent, patch),
    ),
    "a link above to where all may write": lambda leaf, _: (
        leaf.rmdir(),
        victims(leaf).parent.chmod(0o777),
        linked(leaf.parent, victims(leaf).parent),
    ),
    "a file": lambda leaf, _: replaced(leaf, Path.touch),
    "a fifo": lambda leaf, _: replaced(leaf, os.mkfifo),
    "a file above": lambda leaf, _: (leaf.rmdir(), replaced(leaf.parent, Path.touch)),
    "a fifo above": lambda leaf, _: (leaf.rmdir(), replaced(leaf.parent, os.mkfifo)),
}


def victims(leaf: Path) -> Path:
    """A folder elsewhere with a file in it, which has the name of an entry."""
    folder = leaf.parents[1] / "victims" / leaf.name
    if not folder.exists():
        folder.mkdir(parents=True, mode=0o700)
        (folder / f"{KEY}.code").write_bytes(b"precious")
    return folder


def everything(folder: Path) -> list[tuple[str, int, int]]:
    found = [(str(path), path.lstat()) for path in sorted(folder.rglob("*"))]
    return [(path, facts.st_mode, facts.st_size) for path, facts in found]


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    folder = tmp_path / "folder" / "parent" / "leaf"
    for made in (*reversed(folder.parents), folder):
        made.mkdir(exist_ok=True, mode=0o700)
    return folder


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_folders(
    kind: str, leaf: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    HOSTILE[kind](leaf, monkeypatch)
    before, store = everything(leaf.parents[1]), Store(leaf)
    for _ in range(3):
        store.put(KEY, b"code")
        assert store.get(KEY) is None
    assert everything(leaf.parents[1]) == before
    assert len(caplog.records) == 1 and "not kept" in caplog.text, caplog.text


FINE: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "missing": lambda leaf, _: (leaf.rmdir(), leaf.parent.rmdir()),
    "others may read": lambda leaf, _: (leaf.chmod(0o755), leaf.parent.chmod(0o755)),
    "all may write above, it is sticky": lambda leaf, _: leaf.parent.chmod(0o1777),
    "the user's group may write above": lambda leaf, patch: (
        leaf.parent.chmod(0o770),
        patch.setattr(private_folder, "_is_users_own_group", lambda group: True),
    ),
    "a link above": lambda leaf, _: (
        leaf.rmdir(),
        linked(leaf.parent, victims(leaf).parent),
        (victims(leaf) / f"{KEY}.code").unlink(),
    ),
    "a relative link above": lambda leaf, _: (
        leaf.rmdir(),
        linked(leaf.parent, Path("../folder/./made")),
        leaf.parent.with_name("made").mkdir(mode=0o700),
    ),
    "it may not be read above": lambda leaf, _: leaf.parent.chmod(0o300),
}


@pytest.mark.parametrize("kind", FINE)
def test_folders_that_are_the_users_own(
    kind: str, leaf: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    FINE[kind](leaf, monkeypatch)
    assert Store(leaf).get(KEY) is None
    Store(leaf).put(KEY, b"code")
    assert Store(leaf).get(KEY) == b"code" and not caplog.records


@pytest.mark.parametrize("name", ["a b", "é", "a\nb", "-", "\udcff", "..x", "$HOME", "x" * 200])
def test_names_of_folders(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not name.isascii() and "\udcff" not in name:
        name = os.fsdecode(name.encode())  # as the system gives it
    monkeypatch.chdir(tmp_path)
    store = Store(Path(name) / "leaf")
    monkeypatch.chdir("/")
    store.put(KEY, b"code")
    assert Store(tmp_path / name / "leaf").get(KEY) == b"code"


def test_names_that_are_too_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path / ("x" * 300))
    store.put(KEY, b"code")
    assert store.get(KEY) is None and len(caplog.records) == 1


def test_groups_of_single_users(monkeypatch: pytest.MonkeyPatch) -> None:
    grp, pwd = pytest.importorskip("grp"), pytest.importorskip("pwd")

    def answers(user: str, users_group: int, name: str, members: list[str]) -> bool:
        entry = (user, "x", SOMEBODY, users_group, "", "/", "/bin/sh")
        monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(entry))
        monkeypatch.setattr(
            grp, "getgrgid", lambda gid: grp.struct_group((name, "x", gid, members))
        )
        return private_folder._is_users_own_group(7)

    assert answers("ann", 7, "ann", []) and answers("ann", 7, "ann", ["ann"])
    assert not answers("ann", 8, "ann", []) and not answers("ann", 7, "users", [])
    assert not answers("ann", 7, "ann", ["ann", "bob"])
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    assert not private_folder._is_users_own_group(7)


def test_systems_without_handles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(private_folder, "HAS_HANDLES", False)
    store = Store(tmp_path)
    store.put(KEY, b"code")
    assert store.get(KEY) is None and not [*tmp_path.iterdir()] and len(caplog.records) == 1


def test_a_folder_that_is_swapped_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, moved, victim = (tmp_path / name for name in ("folder", "moved", "victim"))
    victim.mkdir()
    (victim / f"{KEY}.code").write_bytes(b"precious")
    Store(folder).put(digest("other"), b"code")
    true_open = os.open

    def swapping(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT and not moved.exists():
            folder.rename(moved)
            folder.symlink_to(victim)
        return true_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", swapping)
    Store(folder).put(KEY, b"code")
    assert [path.read_bytes() for path in victim.iterdir()] == [b"precious"]
    assert Store(moved).get(KEY) == b"code" and Store(folder).get(KEY) is None


# -- entries that are none of the store's ----------------------------------------------------------


def socket_at(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # a path may be too long for a socket
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(before)


def sparse(path: Path) -> None:
    path.touch(mode=0o600)
    os.truncate(path, stores.MOST_BYTES + 1)


def linked_to_a_secret(path: Path) -> None:
    secret = path.with_name("secret")
    secret.write_bytes(b"secret")
    path.symlink_to(secret)


def writable(path: Path) -> None:
    path.write_bytes(b"planted")
    path.chmod(0o666)


ALIENS: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "fifo": os.mkfifo,
    "socket": socket_at,
    "link": linked_to_a_secret,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "file that others may write": writable,
}
DAMAGED: dict[str, Callable[[Path], object]] = {
    "empty file": lambda path: path.touch(mode=0o600),
    "huge file": sparse,
    "file without rights": lambda path: path.touch(mode=0o000),
    "read-only file": lambda path: path.touch(mode=0o400),
}


@pytest.mark.parametrize("kind", ALIENS)
def test_entries_that_are_no_files_of_the_store(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ALIENS[kind](tmp_path / f"{KEY}.code")
    before, store = everything(tmp_path), Store(tmp_path)
    for _ in range(3):
        assert store.get(KEY) is None
        store.put(KEY, b"code")
    assert everything(tmp_path) == before and len(caplog.records) == 2  # of reading, of writing
    store.put(digest("other"), b"code")  # which goes on
    assert store.get(digest("other")) == b"code"


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_entries_are_made_again(kind: str, tmp_path: Path) -> None:
    DAMAGED[kind](tmp_path / f"{KEY}.code")
    store = Store(tmp_path)
    assert store.get(KEY) is None
    store.put(KEY, b"code")
    assert store.get(KEY) == b"code"


def test_nothing_but_entries_makes_room(tmp_path: Path) -> None:
    aliens = [tmp_path / f"{digest(kind)}.code" for kind in ALIENS]
    for path, make in zip(aliens, ALIENS.values()):
        make(path)
    others = [tmp_path / name for name in ("notes.txt", "mine.code", ".part", "KEY.CODE")]
    others += [tmp_path / f"{digest('x').upper()}.code", tmp_path / f"{KEY}.code.bak"]
    parts = [tmp_path / f".{'0' * 31}{k}.part" for k in range(2)]
    for path in (*others, *parts):
        path.touch(mode=0o600)
    for path in (*aliens[:2], *others, parts[0]):
        os.utime(path, (1000, 1000), follow_symlinks=False)
    store = Store(tmp_path, most_files=8)
    for k in range(9):
        store.put(digest(str(k)), b"code")
        os.utime(tmp_path / f"{digest(str(k))}.code", (2000 + k, 2000 + k))
    assert [k for k in range(9) if store.get(digest(str(k)))] == [4, 5, 6, 7, 8]
    assert all(stat.S_IFMT(path.lstat().st_mode) for path in (*aliens, *others, parts[1]))
    assert not parts[0].exists()


@pytest.mark.parametrize("key", ["", "key", "../" + KEY, KEY + "\n", KEY.upper(), KEY[:-1]])
def test_keys_are_digests(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError):
        Store(tmp_path).put(key, b"code")


def test_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path)
    store.put(KEY, b"code")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        for k in range(3):
            store.put(digest(str(k)), b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(caplog.records) == 1 and len([*tmp_path.iterdir()]) == 1
    store.put(digest("later"), b"x" * 100_000)
    assert store.get(KEY) == b"code" and store.get(digest("later")) == b"x" * 100_000


def test_what_is_too_large(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path)
    store.put(KEY, bytes(stores.MOST_BYTES))
    assert store.get(KEY) is None and not [*tmp_path.iterdir()] and len(caplog.records) == 1


def test_a_folder_that_may_only_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Store(tmp_path).put(KEY, b"code")
    true_open = os.open

    def read_only(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(errno.EROFS, "Read-only file system", path)
        return true_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "utime", lambda handle: os.stat("/nowhere"))
    store = Store(tmp_path)
    for k in range(3):
        store.put(digest(str(k)), b"code")
        assert store.get(KEY) == b"code" and store.get(digest(str(k))) is None
    assert len(caplog.records) == 1


# -- what people ask -------------------------------------------------------------------------------


def test_to_look_changes_nothing(tmp_path: Path) -> None:
    folder, store = tmp_path / "folder", Store(tmp_path / "folder")
    assert store.listing() == stores.Listing() and not folder.exists()
    store.put(KEY, b"code")
    store.put(digest("newer"), b"newer code")
    for number, key in enumerate((KEY, digest("newer"))):
        os.utime(folder / f"{key}.code", (1000 + number, 1000 + number))
    (folder / "notes.txt").write_text("")
    (folder / f".{'0' * 32}.part").touch(mode=0o600)
    before = everything(folder)
    entries, partial, foreign = store.listing()
    assert [(e.key, e.last_used, e.size) for e in entries] == [
        (KEY, 1000, 36),
        (digest("newer"), 1001, 42),
    ]
    assert [e.name for e in partial] == [f".{'0' * 32}.part"] and foreign == ("notes.txt",)
    assert store.peek(KEY) == b"code" and (folder / f"{KEY}.code").stat().st_mtime == 1000
    assert everything(folder) == before and store.counts.found == 0
    with pytest.raises(FileNotFoundError):
        store.peek(digest("other"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_look_says_what_is_damaged(tmp_path: Path, damage: Any) -> None:
    store = Store(tmp_path)
    store.put(KEY, b"some code of some length")
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(stores.Damaged, match="checksum"):
        store.peek(KEY)
    assert path.exists()


@pytest.mark.parametrize("kind", ALIENS)
def test_nothing_but_the_stores_files_is_removed(kind: str, tmp_path: Path) -> None:
    store, name = Store(tmp_path), f"{KEY}.code"
    store.put(KEY, b"code")
    store.put(digest("other"), b"code")
    entries = store.listing().entries
    (tmp_path / name).unlink()
    ALIENS[kind](tmp_path / name)  # since it was listed
    assert [entry.key for entry in store.remove(entries)] == [digest("other")]
    assert os.path.lexists(tmp_path / name) and store.remove(entries) == []
    assert name in store.listing().foreign


def test_a_store_counts(tmp_path: Path) -> None:
    store = Store(tmp_path, most_bytes=100)
    assert store.put(KEY, b"code") and store.get(KEY) and not store.get(digest("other"))
    tmp_path.chmod(0o777)
    assert not store.put(KEY, b"code") and store.get(KEY) is None
    assert (store.counts.found, store.counts.made) == (1, 1)
    ((reason, count),) = store.counts.not_kept.items()
    assert "others may write into" in reason and count == 1
    assert not Store(None).put(KEY, b"code") and Store(None).remove(()) == []


# -- many at once, and where -----------------------------------------------------------------------


def _write(folder: Path, number: int) -> None:
    store = Store(folder)
    for k in range(50):
        store.put(KEY, bytes([number]) * 100_000)
        content = store.get(KEY)
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


def _crowd(folder: Path, number: int) -> None:
    store = Store(folder, most_files=8)
    for k in range(100):
        store.put(digest(f"{number} {k % 11}"), b"code")
        assert store.get(digest(f"{number + 1} {k % 11}")) in (None, b"code")
    assert not store._complaints


@long
def test_processes_make_room_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_crowd, args=(tmp_path, number)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert all(path.suffix == ".code" for path in tmp_path.iterdir())


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(name: str) -> bytes | None:
        store_in.cache_clear()
        store_in(name).put(KEY, b"code")
        store_in.cache_clear()
        return store_in(name).get(KEY)

    monkeypatch.setenv("INGOT_CACHE_DIR", "")
    assert kept("some") is None
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "own"))
    assert kept("some") == b"code" and (tmp_path / "own" / "some").is_dir()
    monkeypatch.delenv("INGOT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert kept("some") == b"code" and (tmp_path / "xdg" / "ingot" / "some").is_dir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for relative in ("", "xdg", "./xdg"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert kept(f"some{relative[:1]}") == b"code"
        assert (tmp_path / "home" / ".cache" / "ingot" / f"some{relative[:1]}").is_dir()
    monkeypatch.setenv("HOME", "")
    monkeypatch.chdir(tmp_path)
    assert kept("some") is None and not (tmp_path / ".cache").exists()
    store_in.cache_clear()
