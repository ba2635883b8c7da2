"""Graphs for other backends are Python that runs, whatever the program gave to torch's
functions."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot


class Axis(enum.IntEnum):
    ROW = 0
    COLUMN = 1


class Mode(enum.StrEnum):
    FLOOR = "floor"


class Number(int):
    pass


class Real(float):
    pass


NUMBERS = int, float, bool, complex
PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    **{f"to({n.__name__})": lambda x, n=n: x.to(n) for n in NUMBERS},
    **{f"to(dtype={n.__name__})": lambda x, n=n: x.to(dtype=n) for n in NUMBERS},
    **{f"zeros({n.__name__})": lambda x, n=n: torch.zeros(3, dtype=n) + x[:, 0] for n in NUMBERS},
    **{f"new_zeros({n.__name__})": lambda x, n=n: x.new_zeros(3, dtype=n) for n in NUMBERS},
    **{f"sum({n.__name__})": lambda x, n=n: x.sum(dtype=n) for n in (int, float, complex)},
    "to(device, float)": lambda x: x.to("cpu", float),
    "tensor(float)": lambda x: torch.tensor([1, 2], dtype=float) + x.sum(),
    "arange(float)": lambda x: torch.arange(3, dtype=float) + x[0, 0],
    "view(int)": lambda x: x.double().view(int),
    "softmax(float)": lambda x: F.softmax(x, -1, dtype=float),
    "infinity": lambda x: x.masked_fill(x > 0, -math.inf),
    "no number": lambda x: x + math.nan,
    "complex infinity": lambda x: x + complex(1, math.inf),
    "complex minus infinity": lambda x: torch.add(x, x, alpha=1) * complex(-math.inf, -0.0),
    "no complex number": lambda x: torch.add(x, other=complex(math.nan, 1)),
    "complex zero": lambda x: x * complex(-0.0, -1),
    "enum as dimension": lambda x: x.sum(Axis.ROW),
    "enums as dimensions": lambda x: x.sum([Axis.ROW, Axis.COLUMN]),
    "enum as index": lambda x: x[Axis.COLUMN, Axis.ROW :],
    "enum as factor": lambda x: x * Axis.COLUMN,
    "enum as text": lambda x: torch.div(x, 2, rounding_mode=Mode.FLOOR),
    "numpy number": lambda x: x * np.float32(2),
    "numpy dimension": lambda x: x.sum(np.int64(1)),
    "class of numbers": lambda x: x.sum(Number(1)) * Real(1.5),
    "size": lambda x: torch.zeros(x.shape) + x.reshape(torch.Size([3, 4])),
    "range": lambda x: x[range(2)].permute(*range(2)),
    "ellipsis and None": lambda x: x[..., None, 0],
    "slices": lambda x: x[slice(None, 2), 1:3],
    "lists": lambda x: x[[0, 1]] + x[[1, 2], 0].sum(),
    "layout": lambda x: torch.zeros(3, layout=torch.strided) + x[:, 0],
    "memory format": lambda x: x[None, None].to(memory_format=torch.channels_last),
    "device": lambda x: x.to(torch.device("cpu")),
    "text": lambda x: torch.einsum("ij->ji", x),
    "alias": lambda x: x.as_subclass(torch.Tensor) * 2,
}


def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Runs what the graph prints as, with no more than torch and its own names."""
    copy = torch.fx.GraphModule(graph, graph.graph)
    compile(copy.code, "graph", "exec")
    return copy


@contextmanager
def no_internal_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("chosen", ["ingot", backend], ids=["ingot", "another"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, chosen: Any, caplog: pytest.LogCaptureFixture) -> None:
    # sums in any order are exact
    program, x = PROGRAMS[name], torch.randn(3, 4).mul(64).round() / 64
    with no_internal_errors(caplog):
        found = ingot.compile(program, backend=chosen, fullgraph=True)(x)
    torch.testing.assert_close(found, program(x), equal_nan=True)


class Marked(Tensor):
    pass


AS: dict[str, Callable[[Tensor], Any]] = {
    "another class": lambda x: x.as_subclass(Marked) + 1,
    "a keyword": lambda x: x.as_subclass(cls=Marked) * 2,
    "a parameter": lambda x: x.as_subclass(torch.nn.Parameter) * 2,
    "the function": lambda x: torch.Tensor.as_subclass(x, Marked) * 2,
}


@pytest.mark.parametrize("chosen", ["ingot", backend], ids=["ingot", "another"])
@pytest.mark.parametrize("name", AS)
def test_as_subclass(name: str, chosen: Any, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(3)
    with no_internal_errors(caplog):
        found = ingot.compile(AS[name], backend=chosen)(x)
    expected = AS[name](x)
    assert type(found) is type(expected)
    torch.testing.assert_close(found.as_subclass(Tensor), expected.as_subclass(Tensor))
