"""The map that names kernels' machine code for perf."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ingot.codegen import perf_map
from ingot.codegen.perf_map import PerfMap, functions_of, line

PROGRAM = textwrap.dedent(
    """
    import json, os, sys
    import torch, ingot
    from ingot.native import _native
    from ingot.runtime import description
    from ingot.kept import loading

    ran = []
    right = description.name_code

    def seen(steps, names):
        for step, name in zip(steps, names):
            if step[0] == "kernel" and isinstance(step[1], int):
                ran.append((step[1], name))
        return right(steps, names)

    description.name_code = loading.name_code = seen

    def model(x):
        return torch.softmax(x.sin() @ x, -1).sum(0)

    x = torch.randn(64, 64, requires_grad=True)
    ingot.compile(model)(x).sum().backward()

    def lines():
        path = f"/tmp/perf-{os.getpid()}.map"
        if not os.path.exists(path):
            return None
        mode, text = oct(os.stat(path).st_mode & 0o777), open(path).read()
        os.unlink(path)
        return [mode, text]

    inside, outside = os.pipe()
    child = os.fork()
    if not child:
        os.write(outside, json.dumps(lines()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(outside)
    of_child = json.loads(open(inside).read())
    print(json.dumps({"ran": ran, "map": lines(), "child": of_child}))
    """
)


def run(folder: Path, asked: str) -> dict[str, list]:
    """What a process tells of its map, of that of a child, and of the kernels of its programs."""
    import json

    (folder / "program.py").write_text(PROGRAM)
    root = str(Path(perf_map.__file__).parents[2])
    environment = os.environ | {
        "PYTHONPATH": root,
        "INGOT_PERF": asked,
        "INGOT_CACHE_DIR": str(folder / "cache"),
    }
    command = (sys.executable, str(folder / "program.py"))
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    told: dict[str, list] = json.loads(ran.stdout)
    return told


def ranges(text: str) -> list[tuple[int, int, str]]:
    found = []
    for each in text.splitlines():
        begin, size, name = each.split(" ", 2)
        found.append((int(begin, 16), int(begin, 16) + int(size, 16), name))
    return sorted(found)


def test_kernels_that_run_lie_in_named_ranges(tmp_path: Path) -> None:
    """Those that are compiled; those that a later process finds; and a child's."""
    for _ in range(2):
        told = run(tmp_path, "map")
        mode, text = told["map"]
        assert mode == "0o600"
        named = ranges(text)
        assert len(told["ran"]) >= 3
        for address, name in told["ran"]:
            [own] = [each for each in named if each[0] <= address < each[1]]
            assert own[2] == name and "program.py:" in name
        for one, other in zip(named, named[1:]):
            assert one[1] <= other[0]  # no two overlap
        # a kernel's own code is most of it, beside what calls it
        assert any(end - begin > 200 and "program.py:" in name for begin, end, name in named)
        assert told["child"] == told["map"]
    assert any((tmp_path / "cache").iterdir())


def test_nothing_is_written_unless_it_is_asked_for(tmp_path: Path) -> None:
    told = run(tmp_path, "")
    assert told["map"] is None and told["child"] is None and told["ran"]


def test_lines_have_hexadecimal_numbers_and_one_name() -> None:
    assert line(0xABC0, 0x1F, "ingot::add\nmodel.py:3") == b"abc0 1f ingot::add model.py:3\n"
    assert line(16, 1, "\ud800") == b"10 1  \n"


def test_what_is_no_object_file_has_no_functions() -> None:
    assert functions_of(b"MZ and so on") == [] == functions_of(b"")


def write(folder: Path) -> Path:
    """Writes a map of one kernel in a folder."""
    made = PerfMap(str(folder))
    made.parts[4096] = [(4096, 16)]
    made.name([("kernel", 4096), ("kernel", 4096), ("release", 1)], ["ingot::a", "b", None])
    assert not made.parts
    return folder / f"perf-{os.getpid()}.map"


def test_lines_are_appended_to_what_python_wrote(tmp_path: Path) -> None:
    path = tmp_path / f"perf-{os.getpid()}.map"
    path.write_text("1000 10 py::f\n")
    assert write(tmp_path).read_text() == "1000 10 py::f\n1000 10 ingot::a\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_of_an_earlier_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / f"perf-{os.getpid()}.map"
    path.write_text("1000 10 of another\n")
    os.utime(path, (0, 0))
    assert write(tmp_path).read_text() == "1000 10 ingot::a\n"


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "folder", "pipe"])
def test_what_is_not_ones_own_file_is_left_alone(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, other = tmp_path / f"perf-{os.getpid()}.map", tmp_path / "other"
    other.write_text("mine")
    if kind == "symbolic link":
        path.symlink_to(other)
    elif kind == "hard link":
        path.hardlink_to(other)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with caplog.at_level(logging.WARNING, "ingot"):
        write(tmp_path)
    assert other.read_text() == "mine"
    assert "INGOT_PERF: no map for perf is written" in caplog.text
