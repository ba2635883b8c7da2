"""Values as bytes, and back."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch

from ingot.kept.format import Named, packed, unpacked
from ingot.kept.names import NotKept, name_of, named

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1 << 62,
    -(1 << 63),
    1 << 200,
    -(1 << 90),
    0.0,
    -0.0,
    1e-310,
    math.inf,
    complex(-0.0, 3.5),
    "",
    "Größe \ud800",
    b"\x00bytes",
    (),
    [],
    ((1, (2.5, [None, ("a",)])), []),
    torch.bfloat16,
    torch.strided,
    torch.channels_last,
    torch.device("cpu"),
    torch.device("cuda", 1),
    IndexError,
    torch.linalg.LinAlgError,
]


@pytest.mark.parametrize("value", VALUES)
def test_values_come_back(value: Any) -> None:
    found = unpacked(packed(value))
    assert type(found) is type(value) and repr(found) == repr(value)


def test_numbers_of_other_types_differ() -> None:
    alike = [1, True, 1.0, 1 + 0j, "1", b"1", (1,), [1]]
    assert len({packed(value) for value in alike}) == len(alike)
    assert math.isnan(unpacked(packed(math.nan)))
    assert packed(0.0) != packed(-0.0)


FUNCTIONS: list[Any] = [
    torch.mm,
    torch.sin,
    torch.ops.aten.mm.default,
    torch.ops.aten.add.Tensor,
    torch._C._increment_version,
    torch.nn.functional.layer_norm,
    operator.add,
    math.sqrt,
    len,
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_are_found_by_name(function: Any) -> None:
    assert unpacked(packed(("call", Named(function))))[1] is function


def of_the_program(x: Any) -> Any:
    return x


REFUSED: dict[str, Any] = {
    "a function of the program's": Named(of_the_program),
    "a local function": Named(lambda x: x),
    "a method": Named([].append),
    "an object": object(),
    "a set": {1},
    "a dict": {"a": 1},
    "a generator": torch.default_generator,
    "a large tensor": torch.zeros(1 << 15),
    "a tensor that requires a gradient": torch.zeros(2, requires_grad=True),
    "a view": torch.zeros(3, 4).T,
    "a parameter": torch.nn.Parameter(torch.zeros(2)),
    "an operator of another namespace": Named(
        torch.ops.profiler._record_function_enter_new.default
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_bytes_is_refused(name: str) -> None:
    with pytest.raises(NotKept):
        packed(("call", REFUSED[name]))


def test_a_replaced_function_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.nn.functional.gelu
    monkeypatch.setattr(torch.nn.functional, "gelu", of_the_program)
    for function in (before, of_the_program):
        if function is of_the_program:
            with pytest.raises(NotKept):
                name_of(function)
        else:
            assert named(name_of(function)) is function


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("sizes", [(), (0,), (3,), (2, 3)])
def test_small_tensors_come_back(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randn(sizes).to(dtype)
    found = unpacked(packed(tensor))
    assert found.dtype is dtype and found.shape == tensor.shape and torch.equal(found, tensor)


def test_bytes_that_are_cut_or_changed_are_refused() -> None:
    whole = packed((1, "text", [2.5, torch.float32, IndexError], torch.arange(3)))
    for end in range(len(whole)):
        with pytest.raises(NotKept):
            unpacked(whole[:end])
    with pytest.raises(NotKept):
        unpacked(whole + b"n")
    with pytest.raises(NotKept):
        unpacked(b"?" + whole)
    for name in ("os:system", "builtins:no_such_thing", "op:aten.no_such_thing.default"):
        with pytest.raises(NotKept):
            unpacked(b"N" + len(name).to_bytes(4, "little") + name.encode())
