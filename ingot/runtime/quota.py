"""How many processors' time the system lets this process have: the quota of its control groups.

A container that may use two processors of 64 sees all 64, and so does torch's number of threads.
When its time of a period is used up, all of its threads stop until the next one begins: threads
beyond the quota only bring that about sooner.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ingot.native import _native


@functools.cache
def heed() -> None:
    """Has kernels run on no more threads than the quota has processors. It is read once."""
    _native.allow_threads(processors_of_quota())


def processors_of_quota(root: Path = Path("/")) -> int:
    """The processors' time that each of the process's control groups and those around them allow,
    rounded up; 0 where there is no limit. `root` is where `proc` and `sys` are found.

    Sources: "CPU Interface Files" (`cpu.max`) in the kernel's cgroup-v2.rst, and "CFS Bandwidth
    Control" (`cpu.cfs_quota_us`) in sched-bwc.rst.
    """
    limits = []
    for folder in _folders(root):
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = _quota(folder)
            if quota > 0:
                limits.append(-(-quota // period))
    return min(limits, default=0)


def _quota(folder: Path) -> tuple[int, int]:
    """Microseconds of processors' time in a period, and the period's; -1 for no limit."""
    unified = folder / "cpu.max"
    if unified.exists():
        allowed, every = unified.read_text().replace("max", "-1").split()
        return int(allowed), int(every)
    quota, period = folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"
    return int(quota.read_text()), int(period.read_text())


def _folders(root: Path) -> Iterator[Path]:
    """Those of the process's groups, and of the groups around them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    top = root / "sys/fs/cgroup"
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            mounted = top
        elif "cpu" in controllers.split(","):
            mounted = top / controllers
            if not mounted.exists():
                mounted = top / "cpu"
        else:
            continue
        folder = mounted / path.lstrip("/")
        yield folder
        for around in folder.parents:
            if not around.is_relative_to(mounted):
                break
            yield around
