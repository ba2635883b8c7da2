"""Opens a folder that nobody but the user can have put anything into.

The way there is walked from the root, one handle after the other, so that what was checked is what
is used, whatever is renamed meanwhile. Each folder on it must belong to the user or to root, and
nobody else may write into it, unless it is sticky, as /tmp is: what lies in there can be replaced
by its owner alone. A symbolic link on the way is followed if it is the user's or root's, the folder
itself must be none.

Where the system has no handles of folders (Windows), no folder is opened.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_NEEDED = {os.open, os.stat, os.mkdir, os.readlink, os.unlink, os.rename}
HAS_HANDLES = hasattr(os, "O_NOFOLLOW") and hasattr(os, "geteuid") and _NEEDED <= os.supports_dir_fd

_PASSED = getattr(os, "O_PATH", os.O_RDONLY)  # a folder on the way need not be readable
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40


class NotPrivateError(OSError):
    """Others than the user may write into a folder, or replace it."""


@contextmanager
def opened(folder: Path, make: bool = False) -> Iterator[int]:
    """A handle of a private folder, which is made where it is missing if `make` says so.
    NotPrivateError if it is not private, other errors of the system's if it cannot be opened."""
    if not HAS_HANDLES:
        raise NotPrivateError("this system has no handles of folders")
    with ExitStack() as handles:
        folder = folder.absolute()
        handle = _walk(handles, folder, make)
        _require_own(os.fstat(handle), str(folder))
        yield handle


def _walk(handles: ExitStack, folder: Path, make: bool) -> int:
    """A handle of a folder to which the way is safe."""
    path, steps = Path(folder.anchor), [*reversed(folder.parts[1:])]  # the next one last
    here, links = _open(handles, str(path), None, _PASSED), 0
    while steps:
        _require_safe(here, str(path))
        name = steps.pop()
        link = _link(here, name)
        if link is None:
            path /= name
            here = _enter(handles, name, here, _PASSED if steps else os.O_RDONLY, make)
            continue
        links += 1
        if not steps or links > _MOST_LINKS:
            raise NotPrivateError(f"{path / name} is a symbolic link")
        steps += reversed([component for component in link.parts if component != link.anchor])
        if link.is_absolute():
            path = Path(link.anchor)
            here = _open(handles, str(path), None, _PASSED)
    return here


def _enter(handles: ExitStack, name: str, within: int, access: int, make: bool) -> int:
    """A handle of a folder in another, which is made where it is missing if `make` says so."""
    try:
        return _open(handles, name, within, access)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # another process may make it at once
        os.mkdir(name, 0o700, dir_fd=within)
    return _open(handles, name, within, access)


def _open(handles: ExitStack, name: str, within: int | None, access: int) -> int:
    flags = access | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags, dir_fd=within)
    handles.callback(os.close, handle)
    return handle


def _link(here: int, name: str) -> Path | None:
    """Where a symbolic link leads; None for what is none."""
    try:
        status = os.stat(name, dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(status.st_mode):
        return None
    _require_known_owner(status, name)
    return Path(os.readlink(name, dir_fd=here))


# -- who may write into a folder -------------------------------------------------------------------


def _require_own(status: os.stat_result, path: str) -> None:
    """Raises NotPrivateError unless only the user may write into a folder."""
    if status.st_uid != os.geteuid():
        raise NotPrivateError(f"{path} belongs to somebody else")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise NotPrivateError(f"others may write into {path}")


def _require_known_owner(status: os.stat_result, path: str) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise NotPrivateError(f"{path} belongs to somebody else")


def _require_safe(handle: int, path: str) -> None:
    """Raises NotPrivateError if others may replace what the user or root have put into a folder."""
    status = os.fstat(handle)
    _require_known_owner(status, path)
    others = status.st_mode & _WRITABLE_BY_OTHERS
    if others == stat.S_IWGRP and _is_users_own_group(status.st_gid) and not _has_acl(handle):
        return
    if others and not status.st_mode & stat.S_ISVTX:
        raise NotPrivateError(f"others may write into {path}")


def _is_users_own_group(group: int) -> bool:
    """Whether a group is one that systems make for each user, and let write (a umask of 002)."""
    import grp
    import pwd

    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    is_named_alike = entry.gr_name == user.pw_name and group == user.pw_gid
    return is_named_alike and {*entry.gr_mem} <= {user.pw_name}


def _has_acl(handle: int) -> bool:
    """Whether a folder may have a list of others that may write, which its mode does not tell."""
    if not hasattr(os, "getxattr"):
        return True
    try:
        os.getxattr(f"/proc/self/fd/{handle}", "system.posix_acl_access")
    except OSError as problem:
        return problem.errno not in (errno.ENODATA, errno.ENOTSUP)
    return True
