"""Names of files, functions and lines that no file and no function written by hand has."""

from __future__ import annotations

import contextlib
import keyword
import logging
import warnings
from types import CodeType, FunctionType
from typing import Any

import pytest
import torch

import ingot

SOURCE = """
def called(x):
    y = x + 1
    print(end="")
    try:
        z = helper(y)
    except ValueError:
        z = y * 3
    return z.sin() if z.sum() > 0 else z.cos()

def helper(y):
    w = y * 2
    w.tolist()
    if y.sum() > 1e9:
        raise ValueError
    return w + [number for number in map(float, [1, 2])][0]
"""
FILES = ["a\0b.py", "a\nb.py", "\udcff.py", "\ud800.py", "x" * 5000, "", "<string>", "a(b.py:3"]
FILES += [
    "a b.py:1",
    "/nowhere/[bold]x.py",
    "%s%d.py",
    "{0}.py",
    "\x1b[31m.py",
    "a:b:c.py",
    "\\x.py",
]
FILES += ["/dev/zero", "/", ".", "é.py"]
NAMES = [
    "class",
    "a b",
    "",
    "\0",
    "é",
    "1",
    "<lambda>",
    "None",
    "x" * 3000,
    "f\ng",
    "residual",
    "self",
]


def renamed(code: CodeType, lines: int = 0, **names: Any) -> CodeType:
    inner = tuple(
        renamed(c, lines, **names) if isinstance(c, CodeType) else c for c in code.co_consts
    )
    first = code.co_firstlineno + lines
    return code.replace(co_consts=inner, co_firstlineno=first, **names)


def program(lines: int = 0, **names: Any) -> FunctionType:
    namespace: dict[str, Any] = {}
    exec(SOURCE, namespace)
    for name in ("called", "helper"):
        function = namespace[name]
        function.__code__ = renamed(function.__code__, lines, **names)
    made: FunctionType = namespace["called"]
    return made


def runs_as_in_eager(function: FunctionType, caplog: pytest.LogCaptureFixture) -> None:
    """What fails is told without frames, and warnings without their places: pytest looks for such
    files, and a worker of it sends their names as UTF-8."""
    x = torch.randn(3, 4)
    with caplog.at_level(logging.DEBUG, "ingot"), warnings.catch_warnings(record=True) as warned:
        try:
            torch.testing.assert_close(ingot.compile(function)(x), function(x))
            report = ingot.explain(function)(x)
            assert str(report) and report.break_count
            for stage in ("capture", "guards", "aten", "loops", "schedule", "llvm"):
                report.stage(stage)
        except Exception as error:
            failure: str | None = ascii(error)
        else:
            failure = None
    assert failure is None
    assert not [ascii(warning.message) for warning in warned]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert caplog.text.encode("utf-8")  # as a handler that writes to a file has it


@pytest.mark.parametrize("number", range(len(FILES)))
def test_files(number: int, caplog: pytest.LogCaptureFixture) -> None:
    runs_as_in_eager(program(co_filename=FILES[number]), caplog)


@pytest.mark.parametrize("number", range(len(NAMES)))
def test_functions(number: int, caplog: pytest.LogCaptureFixture) -> None:
    name = NAMES[number]
    runs_as_in_eager(program(co_name=name, co_qualname=name), caplog)
    function = program()
    function.__name__ = function.__qualname__ = name
    runs_as_in_eager(function, caplog)


@pytest.mark.parametrize("lines", [10**6, 2**30])
def test_lines(lines: int, caplog: pytest.LogCaptureFixture) -> None:
    runs_as_in_eager(program(lines), caplog)


def test_the_line_of_an_error_behind_a_break(caplog: pytest.LogCaptureFixture) -> None:
    """Steps stand on the user's line, also where it is the first of its file."""
    namespace: dict[str, Any] = {}
    exec(
        compile("def fails(x): y = x + 1; y.tolist().nothing; return y", "one.py", "exec"),
        namespace,
    )
    with pytest.raises(AttributeError) as caught:
        ingot.compile(namespace["fails"])(torch.ones(2))
    places = []
    traceback = caught.value.__traceback__
    while traceback is not None:
        places.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    assert places[-1] == ("one.py", 1)


PLACES = [
    "self",
    "torch",
    "device",
    "inf",
    "nan",
    "print",
    "int",
    "getattr",
    "ingot",
    "L",
    "x",
    "pytree",
]
PLACES += ["NoneType", "outputs", "slots", "residual", "forward", "add", "operator", "é", "_", "__"]
KEYS = [
    "class",
    "lambda",
    "a b",
    "a\nb",
    "1",
    "'",
    '"',
    "\\",
    "\0",
    "{x}",
    "%s",
    "🙂",
    "x" * 300,
    "",
]


class Named(torch.nn.Module):
    """A module whose buffer, parameter and submodule are named so, where torch allows it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleDict()
        with contextlib.suppress(KeyError):
            self.register_buffer(name, torch.ones(4))
        with contextlib.suppress(KeyError):
            self.register_parameter(f"{name}_", torch.nn.Parameter(torch.ones(4)))
        with contextlib.suppress(KeyError, TypeError):
            self.inner[name] = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.inner.values():
            x = module(x)
        for tensor in (*self.buffers(), *self.parameters()):
            x = torch.add(x, tensor.sum()).clamp(max=float("inf")).to(torch.device("cpu"))
        return x


def graph_of(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    return graph


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("backend", ["ingot", graph_of], ids=["ingot", "another"])
@pytest.mark.parametrize("number", range(len(PLACES + KEYS)))
def test_names_of_what_is_given(
    number: int, backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    name, x = (PLACES + KEYS)[number], torch.randn(3, 4)
    module = Named(name)

    def doubled(**named: torch.Tensor) -> dict[str, torch.Tensor]:
        return {key: torch.mul(value, 2).clamp(max=float("inf")) for key, value in named.items()}

    compiled = ingot.compile(doubled, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(**{name: x}), doubled(**{name: x}))
    torch.testing.assert_close(ingot.compile(module, backend=backend)(x), module(x))
    if name.isidentifier():
        namespace: dict[str, Any] = {"plus_": torch.add, "number": float}
        text = f"def called({name}):\n    return plus_({name}, {name}).clamp(max=number('inf'))"
        exec(text, namespace) if not keyword.iskeyword(name) else exec("called = abs", namespace)
        called = namespace["called"]
        torch.testing.assert_close(ingot.compile(called, backend=backend)(x), called(x))
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
