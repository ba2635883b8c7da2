"""What the system's control groups allow, read from folders like theirs, and heeded by launches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ingot.native import _native
from ingot.runtime.quota import processors_of_quota

V2, V1 = "0::/a/b", "3:memory:/m\n2:cpu,cpuacct:/a/b\n1:cpuset:/c"


def written(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A root with the groups of this process, and the files of `sys/fs/cgroup`."""
    paths = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": groups, **paths}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "files", "processors"),
    [
        (V2, {"a/b/cpu.max": "200000 100000"}, 2),
        (V2, {"a/b/cpu.max": "150000 100000"}, 2),
        (V2, {"a/b/cpu.max": "1000 100000"}, 1),
        (V2, {"a/b/cpu.max": "max 100000"}, 0),
        (V2, {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        (V2, {"a/b/cpu.max": "400000 100000", "cpu.max": "100000 50000"}, 2),
        (V2, {"cpu.max": "100000 100000"}, 1),  # in a container, whose own group is the top
        (V2, {}, 0),
        (V2, {"a/b/cpu.max": "", "a/cpu.max": "?"}, 0),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "250000", "cpu/a/b/cpu.cfs_period_us": "100000"}, 3),
        (V1, {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        (
            V1,
            {
                "cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1",
                "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000",
            },
            0,
        ),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "250000", "cpu/a/b/cpu.cfs_period_us": "0"}, 0),
    ],
)
def test_quotas(tmp_path, groups, files, processors):
    assert processors_of_quota(written(tmp_path, groups, files)) == processors


def test_a_system_without_groups(tmp_path):
    assert processors_of_quota(tmp_path) == 0


def test_launches_heed_what_is_allowed():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(8)
        _native.allow_threads(3)
        assert _native.threads_wanted(1000, 1, 1e9) == 3
        torch.set_num_threads(2)
        assert _native.threads_wanted(1000, 1, 1e9) == 2
        _native.allow_threads(0)
        torch.set_num_threads(8)
        assert _native.threads_wanted(1000, 1, 1e9) == 8
    finally:
        _native.allow_threads(0)
        torch.set_num_threads(before)
    with pytest.raises(ValueError, match="-1 threads"):
        _native.allow_threads(-1)
