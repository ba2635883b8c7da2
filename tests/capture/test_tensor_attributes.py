"""All that torch.Tensor has, read and called within a function: it is captured as eager has it, or
breaks the graph. Nothing is answered by the stand-in that capture has for a tensor."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import torch

import ingot

NAMES = [
    name for name in dir(torch.Tensor) if name not in ("__init_subclass__", "__subclasshook__")
]
PLACES = frozenset("_cdata __hash__ __sizeof__ _use_count data_ptr const_data_ptr __dir__".split())
"""What is another number for each object, or is not the same twice."""
UNSET = frozenset(
    "new new_empty empty_like __class__ __new__ resize resize_as _make_subclass".split()
)
"""What may give memory that nobody wrote."""
CALLS = ("", "()", "(z)", "(1)")


def shown(value: Any, exactly: bool) -> Any:
    """What is comparable of a result."""
    if isinstance(value, torch.Tensor):
        elements = (
            value.detach().flatten().tolist() if exactly and value.layout is torch.strided else None
        )
        return type(value), value.dtype, tuple(value.shape), value.layout, repr(elements)
    if isinstance(value, (list, tuple)):
        return type(value), [shown(item, exactly) for item in value]
    if isinstance(value, dict):
        return {key: shown(item, exactly) for key, item in value.items()}
    if callable(value) and not isinstance(value, type):
        return type(value), getattr(value, "__name__", None)
    plain = (
        isinstance(value, (int, float, str, bool, bytes, type, torch.dtype, torch.device))
        or value is None
    )
    return repr(value) if plain and exactly else type(value)


def outcome(function: Any, exactly: bool) -> Any:
    torch.manual_seed(0)
    with warnings.catch_warnings(action="ignore"):
        try:
            return shown(function(torch.tensor([[1.0, 2.0], [3.0, 5.0]])), exactly)
        except Exception as error:
            return type(error)


def program(expression: str) -> Any:
    namespace: dict[str, Any] = {"torch": torch}
    text = (
        f"def read(x):\n    y = x * 2\n    z = x + 1\n    result = {expression}\n"
        "    return result, y, z\n"
    )
    exec(text, namespace)
    return namespace["read"]


def assert_expression(expression: str, exactly: bool = True) -> None:
    function = program(expression)
    logging.disable(logging.CRITICAL)
    try:
        assert outcome(ingot.compile(function, backend="eager"), exactly) == outcome(
            function, exactly
        )
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", NAMES)
def test_attributes_are_eagers(name):
    for call in CALLS[: 4 if callable(getattr(torch.Tensor, name)) else 1]:
        assert_expression(f"y.{name}{call}", exactly=name not in PLACES | UNSET)


FUNCTIONS = [
    name
    for name in dir(torch._C._VariableFunctions)
    if callable(getattr(torch, name, None))
    and not name.startswith("__")
    and "cuda" not in name
    and name not in UNSET
]


@pytest.mark.parametrize("first", sorted({name.strip("_")[0] for name in FUNCTIONS}))
def test_functions_that_give_no_tensors_are_eagers(first):
    """By the first letter of their names."""
    for name in FUNCTIONS:
        for given in ("(y)", "(y, z)", "(y, 1)"):
            if name.strip("_")[0] == first and not _gives_tensors(name, given):
                assert_expression(f"torch.{name}{given}")


def _gives_tensors(name: str, given: str) -> bool:
    y = z = torch.ones(2, 2)
    with warnings.catch_warnings(action="ignore"):
        try:
            result = eval(f"torch.{name}{given}", {"torch": torch, "y": y, "z": z})
        except Exception:
            return True  # an error, which says nothing of what it gives
    return bool(shown(result, True)) and any(
        t in str(shown(result, False)) for t in ("torch.Tensor", "Size")
    )


@pytest.mark.parametrize(
    "expression",
    [
        "str(y)", "repr(y)", "format(y)", "f'{y}'", "f'{y!r:>80}'", "'%s' % (y,)", "'{}'.format(y)",
        "y.__str__()", "y.sum().__format__('.3f')", "f'{y.sum():.3f}'", "dir(y)", "vars(y)",
        "hash(y) == hash(y)", "type(y)", "y.__class__", "list(y)", "tuple(y[0])", "len(y)",
        "bool(y.sum())", "int(y.sum())", "float(y.sum())", "y.numpy().sum()", "y.tolist()",
        "__import__('copy').copy(y)", "__import__('copy').deepcopy(y)",
        "__import__('pickle').loads(__import__('pickle').dumps(y))",
        "__import__('numpy').asarray(y)", "__import__('sys').getsizeof(y) > 0",
        "y.storage().nbytes()", "y.untyped_storage().nbytes()", "torch.utils.dlpack.from_dlpack(y)",
        "torch.from_dlpack(y)", "torch.is_tensor(y)", "torch.typename(y)",
        "isinstance(y, torch.FloatTensor)", "callable(y)", "y is y.contiguous()",
        "y.as_subclass(torch.Tensor)", "y.as_subclass(torch.nn.Parameter)", "torch.nn.Parameter(y)",
        "id(y) == id(y)", "y in [y]", "{y: 1}[y]", "y._version", "y.name", "y.grad_fn",
        "y.__dict__", "y.__reduce_ex__(2)[0].__name__",
    ],
)  # fmt: skip
def test_what_python_asks_of_a_tensor(expression):
    assert_expression(expression)


def test_what_is_given_to_a_positional_inplace():
    def written(x):
        torch.nn.functional.relu(x, True)
        return x + 1

    compiled = ingot.compile(written)
    memory = torch.randn(8)
    for x in (memory[:4], memory[2:6]):
        expected = written(x.clone())
        torch.testing.assert_close(compiled(x), expected)
