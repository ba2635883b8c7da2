"""What tracers see of compiled functions: no line, since none is executed as bytecode."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot


def function(x: Tensor) -> Tensor:
    y = x.sin()
    return y * 2


def breaking(x: Tensor) -> Tensor:
    y = function(x)
    str(y)
    return y + 1


CODES = (function.__code__, breaking.__code__)


def lines_traced(call: Callable[[Tensor], Any]) -> set[int]:
    """The lines of the functions above that `sys.settrace` is told of."""
    lines = set[int]()

    def tracer(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and frame.f_code in CODES:
            lines.add(frame.f_lineno)
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        call(torch.ones(3))
    finally:
        sys.settrace(before)
    return lines


def lines_monitored(call: Callable[[Tensor], Any]) -> set[int]:
    """The same of `sys.monitoring`."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    lines = set[int]()

    def seen(code: CodeType, line: int) -> None:
        if code in CODES:
            lines.add(line)

    tool, event = monitoring.PROFILER_ID, monitoring.events.LINE
    monitoring.use_tool_id(tool, "test")
    monitoring.register_callback(tool, event, seen)
    monitoring.set_events(tool, event)
    try:
        call(torch.ones(3))
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)
    return lines


needs_monitoring = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12"
)
TRACERS = [lines_traced, pytest.param(lines_monitored, marks=needs_monitoring)]


@pytest.mark.parametrize("lines_of", TRACERS)
def test_no_line_of_a_compiled_function_is_seen(lines_of: Any) -> None:
    first = function.__code__.co_firstlineno
    assert lines_of(function) == {first + 1, first + 2}
    compiled = ingot.compile(function, fullgraph=True)
    assert lines_of(compiled) == lines_of(compiled) == set()


def test_nor_is_one_where_the_graph_breaks() -> None:
    compiled = ingot.compile(breaking)
    assert lines_traced(compiled) == lines_traced(compiled) == set()


def test_all_lines_are_seen_with_ingot_disabled(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys, torch, ingot

        @ingot.compile
        def function(x):
            return x.sin() * 2

        lines = set()

        def tracer(frame, event, _):
            if event == "line" and frame.f_code.co_filename == __file__:
                lines.add(frame.f_lineno)
            return tracer

        x = torch.ones(3)
        sys.settrace(tracer)
        function(x)
        sys.settrace(None)
        print(lines)
        """
    )
    (tmp_path / "program.py").write_text(program)
    root = str(Path(ingot.__file__).parents[1])
    found = []
    for disabled in ("0", "1"):
        environment = os.environ | {"PYTHONPATH": root, "INGOT_DISABLE": disabled}
        command = (sys.executable, str(tmp_path / "program.py"))
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        found.append(ran.stdout.strip())
    assert found == ["set()", "{6}"]
