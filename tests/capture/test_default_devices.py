"""`with torch.device(...)` inside the captured function: factories make their tensors there, and
nothing else does."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.capture.meanings import MEANINGS
from tests.capture.language import Table

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


def pause() -> None:
    time.sleep(0)  # breaks the graph


def devices(*tensors: Tensor) -> list[torch.device]:
    return [t.device for t in tensors]


@whole
def factories(x: Tensor, y: Tensor) -> Any:
    with torch.device("meta") as entered:
        made = (
            torch.empty(3), torch.arange(3) * 2.5, torch.eye(2), torch.linspace(0, 1, 3),
            torch.rand(2), torch.full((2,), 1.5, device=None), torch.empty_strided((2,), (1,)),
        )  # fmt: skip
        others = torch.zeros(2, device="cpu"), x.new_zeros(2), torch.zeros_like(x), x + 1
    return devices(*made), [*map(torch.Tensor.size, made)], others, torch.ones(2), entered


@whole
def numbers_and_tensors(x: Tensor, y: Tensor) -> Any:
    with torch.device("cpu"):
        made = torch.tensor([1.0, 2]), torch.as_tensor(3), torch.as_tensor(x), torch.asarray(2.0)
    return made, made[2] is x


@whole
def nested(x: Tensor, y: Tensor) -> Any:
    seen = [torch.get_default_device()]
    with torch.device("meta"):
        with torch.device("cpu"), torch.no_grad():
            a = torch.ones(2)
            seen.append(torch.get_default_device())
        b = torch.ones(2)
        seen.append(torch.get_default_device())
    return a, b.device, seen, torch.get_default_device()


@whole
def left_by_an_exception(x: Tensor, y: Tensor) -> Any:
    try:
        with torch.device("meta"):
            raise ValueError(str(torch.get_default_device()))
    except ValueError as error:
        return torch.ones(1), error.args


@whole
def of_a_tensor(x: Tensor, y: Tensor) -> Any:
    with x.device, torch.no_grad():
        return torch.zeros(3).sum() + x


@whole
def inside_of_functions(x: Tensor, y: Tensor) -> Any:
    """Those of torch run without the mode."""
    with torch.device("meta"):
        a = torch.nn.functional.interpolate(x[None], scale_factor=2.0)
        b = torch.nn.functional.pad(x, (1, 1), value=2.0)
    return a, b, torch.ones(1)


@whole
def used_twice(x: Tensor, y: Tensor) -> Any:
    device, made = torch.device("meta"), []
    for _ in range(2):
        with device:
            made.append(torch.ones(2))
        made.append(torch.ones(2))
    return devices(*made), x


@broken("sleep()")
def break_inside(x: Tensor, y: Tensor) -> Any:
    with torch.device("meta"):
        a = torch.ones(2)
        pause()
        b = torch.ones(3)
    return a.device, b.device, torch.ones(1) + x.sum()


@broken("a DeviceContext is entered")
def set_for_good(x: Tensor, y: Tensor) -> Any:
    torch.set_default_device("cpu")
    a = torch.ones(3) + x.sum()
    torch.set_default_device(None)
    return a


test_program = TABLE.test()


def test_gradients_and_numbers_that_vary() -> None:
    def fn(x: Tensor, n: int) -> Tensor:
        with torch.device("cpu"):
            weight = torch.arange(2.0) * torch.tensor([1.0, n]) + torch.full((2,), n)
        return (x * weight).sum()

    compiled = ingot.compile(fn, fullgraph=True)
    for n in (2, 3, 4, 5):
        x = torch.ones(2, requires_grad=True)
        compiled(x, n).backward()
        assert torch.equal(x.grad, torch.tensor([n, 2.0 * n]))  # type: ignore[arg-type]
    assert len(ingot.explain(compiled)(x, 6).compilations) == 2


@pytest.mark.parametrize("outer", ["cpu", "meta"])
def test_another_device_around_the_call(outer: str) -> None:
    def fn() -> Any:
        with torch.device("meta"):
            a = torch.ones(2)
        return a.device, torch.ones(2).device

    with torch.device(outer):
        assert ingot.compile(fn, backend="eager", fullgraph=True)() == fn()


def test_the_current_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """`with torch.cuda.device(...)` of the current one changes nothing."""

    def program(x: Tensor, index: int) -> Any:
        with torch.cuda.device(index):
            y = x + 1
        with torch.cuda.device_of(x):
            return y * torch.cuda.get_device_properties(index).multi_processor_count

    properties = SimpleNamespace(multi_processor_count=7)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setitem(MEANINGS, torch.cuda.get_device_properties, MEANINGS[_PROPERTIES])
    compiled = ingot.compile(program, fullgraph=True)
    for index in (0, -1):
        assert torch.equal(compiled(torch.ones(2), index), torch.full((2,), 14.0))
    with pytest.raises(ingot.GraphBreakError, match="current CUDA device is changed"):
        compiled(torch.ones(2), 1)


_PROPERTIES = "torch.cuda.get_device_properties"
