"""Each public name of NumPy that torch's own layer has, called beside NumPy: values, types, shapes,
layouts, errors, and what is written."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.errors import GraphBreakError
from tests.capture import numpy_calls

_TABLES = {
    name: numpy_calls.lines(text)
    for name, text in vars(numpy_calls).items()
    if name.isupper() and isinstance(text, str)
}
_CASES = [(table, name) for table, names in _TABLES.items() for name in names]
_TOLERANCES = {"float16": 2e-3, "float32": 1e-5, "complex64": 1e-5}
_NAMES = ", ".join(numpy_calls.arrays())


def _program(call: str) -> Callable[..., Any]:
    return eval(f"lambda {_NAMES}: {call}", {"np": np, "operator": operator})  # type: ignore[no-any-return]


def _outcome(function: Callable[..., Any], arrays: dict[str, Any]) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            return function(*arrays.values())
    except GraphBreakError:
        raise
    except Exception as error:
        return error


def _assert_same(found: Any, expected: Any, has_layout: bool) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, Exception):
        assert str(found) == str(expected)
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for pair in zip(found, expected):
            _assert_same(*pair, has_layout)
    elif isinstance(expected, (np.ndarray, np.generic)):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        tolerance = _TOLERANCES.get(str(expected.dtype), 1e-12)
        np.testing.assert_allclose(found, expected, tolerance, tolerance)
        if has_layout:
            assert _layout(found) == _layout(expected)
    else:
        assert found == expected


def _layout(array: Any) -> list[int]:
    """The strides that matter."""
    strides = []
    for stride, size in zip(array.strides, array.shape):
        if size > 1 and array.size:
            strides.append(stride)
    return strides


@pytest.mark.parametrize(("table", "name"), _CASES)
def test_a_name_means_what_it_means_in_numpy(table: str, name: str) -> None:
    for call in _TABLES[table][name]:
        function = _program(call)
        arrays, own = numpy_calls.arrays(), numpy_calls.arrays()
        expected = _outcome(function, own)
        compiled = ingot.compile(function, fullgraph=True)
        if call in numpy_calls.BREAKS:
            with pytest.raises(GraphBreakError):
                _outcome(compiled, arrays)
            arrays = numpy_calls.arrays()
            compiled = ingot.compile(function)
        found = _outcome(compiled, arrays)
        has_layout = call not in numpy_calls.LAYOUTS
        _assert_same(found, expected, has_layout)
        _assert_same(list(arrays.values()), list(own.values()), has_layout)


def _public(module: Any, others: Any) -> set[str]:
    """The functions that two modules have in common."""
    names = set()
    for name in dir(others):
        own = getattr(module, name, None)
        if not name.startswith("_") and callable(own) and not isinstance(own, type):
            names.add(name)
    return names


def test_every_name_is_listed() -> None:
    import torch._numpy as theirs  # which Ingot itself does not import

    listed = set(_TABLES["FUNCTIONS"])
    ufuncs = set()
    for name in _public(np, theirs) - listed:
        assert isinstance(getattr(np, name), np.ufunc), name
        ufuncs.add(name)
    assert ufuncs <= set(UFUNC_NAMES)
    assert _public(np.linalg, theirs.linalg) <= set(_TABLES["LINALG"])
    assert _public(np.fft, theirs.fft) <= set(_TABLES["FFT"])
    methods = {name for name in dir(np.ndarray) if not name.startswith("_")}
    assert methods == set(_TABLES["METHODS"])


# -- universal functions ---------------------------------------------------------------------------

UFUNC_NAMES = tuple(name for name in dir(np) if isinstance(getattr(np, name), np.ufunc))

_VALUES = {
    "float64": [0.0, -0.0, 1.5, -2.5, np.nan, np.inf, -np.inf, 3.0],
    "float32": [0.5, -0.25, 2.0, -3.0, np.nan, np.inf, 7.0, 1.0],
    "float16": [0.5, -0.25, 2.0, -3.0, 0.0, 1.0, 7.0, -1.0],
    "int64": [0, 1, -1, 2, -7, 5, 12, 3],
    "int8": [0, 1, -1, 2, -7, 5, 127, -128],
    "uint8": [0, 1, 255, 2, 7, 5, 12, 3],
    "bool": [0, 1, 1, 0, 1, 0, 0, 1],
    "complex128": [1 + 2j, -1j, 0, 2, -3 + 1j, 0.5j, 1 - 1j, 4],
}


def _example(dtype: str, turn: int) -> Any:
    values = np.array(_VALUES[dtype]).astype(dtype)
    return np.roll(values, turn).reshape(2, 4)


def _of_elements(name: str) -> bool:
    """Whether it is not one of whole matrices, which are tested above."""
    return getattr(np, name).signature is None


@pytest.mark.parametrize("name", filter(_of_elements, UFUNC_NAMES))
def test_a_universal_function_is_numpys(name: str) -> None:
    ufunc = getattr(np, name)
    for dtype in _VALUES:
        arrays = {}
        for turn in range(ufunc.nin):
            arrays[f"x{turn}"] = _example(dtype, 3 * turn)
        function = _program_of(ufunc)
        expected = _outcome(function, arrays)
        compiled = ingot.compile(function, fullgraph=not isinstance(expected, Exception))
        _assert_same(_outcome(compiled, arrays), expected, True)


def _program_of(ufunc: np.ufunc) -> Callable[..., Any]:
    if ufunc.nin == 1:
        return lambda x: ufunc(x)
    return lambda x, y: ufunc(x, y)
