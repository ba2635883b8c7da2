"""torch._numpy: NumPy's functions, on arrays that lie otherwise in memory and beside gradients.

tests/capture/numpy_calls.py has the calls; tests/capture/test_numpy_names.py runs each as it is.
"""

from __future__ import annotations

import functools
import inspect
import operator
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tests.capture import numpy_calls
from tests.conformance.program import Function, Program

GROUPS = {"_numpy": "FUNCTIONS", "linalg": "LINALG", "fft": "FFT", "ndarray": "METHODS"}
"""The modules, and the array type, by their tables of calls."""

DRAWS = "draws from NumPy's own state: a graph break"


@functools.cache
def programs() -> list[Program]:
    return list(_programs())


def _programs() -> Iterator[Program]:
    for group, attribute in GROUPS.items():
        table = numpy_calls.lines(getattr(numpy_calls, attribute))
        if group == "_numpy":
            table |= _ufuncs(table)
        for name, calls in table.items():
            if calls:
                edge, plain = calls[-1], calls[0]
                yield Program(group, name, f"edge: views, {edge}", _function(edge), _views)
                yield Program(
                    group, name, f"gradient: around {plain}", _with_gradients(plain), _around
                )


def public() -> list[str]:
    """The names of torch's layer of NumPy, its modules and its array type."""
    import torch._numpy as layer  # which Ingot itself does not import

    found = []
    for name in vars(layer):
        if not name.startswith("_") and not isinstance(getattr(layer, name), ModuleType):
            found.append(name)
    for module in (layer.linalg, layer.fft, layer.random):
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__:
                found.append(name)
    for name in vars(layer.ndarray):
        if not name.startswith("_"):
            found.append(name)
    return found


def without() -> dict[str, str]:
    """The public names that have no program, and why."""
    import torch._numpy as layer

    listed = {program.name for program in programs()}
    found = {}
    for name in public():
        if name in listed:
            continue
        value = getattr(layer, name, None)
        if name in vars(layer.random):
            found[name] = DRAWS
        elif isinstance(value, type):
            found[name] = "a type"
        elif not callable(value) and hasattr(layer, name):
            found[name] = "a constant"
        elif not hasattr(np, name) and not hasattr(np.ndarray, name):
            found[name] = "not in this NumPy"
    return found | NO_CALLS


NO_CALLS = {
    "flat": "an iterator, which is not captured",
    "data": "a buffer, which is not captured",
    "put": "writes by position: a graph break",
    "resize": "changes the array's size: a graph break",
    "is_integer": "of numbers",
    "set_default_dtype": "of torch's layer alone",
    "row_stack": "not in every NumPy",
    "finfo": "of types alone",
    "iinfo": "of types alone",
}


def _ufuncs(listed: dict[str, list[str]]) -> dict[str, list[str]]:
    found = {}
    for name in public():
        ufunc = getattr(np, name, None)
        if isinstance(ufunc, np.ufunc) and name not in listed:
            found[name] = [_call(ufunc)]
    return found


def _call(ufunc: np.ufunc) -> str:
    """A call on arrays of the first types that it takes."""
    integers = all(kind in "?bBhHiIlLqQO" for kind in ufunc.types[0][: ufunc.nin])
    first, second = ("i", "w") if integers and "d" not in "".join(ufunc.types) else ("a", "v")
    arguments = first if ufunc.nin == 1 else f"{first}, {second}"
    return f"np.{ufunc.__name__}({arguments})"


def _function(call: str) -> Function:
    names = ", ".join(numpy_calls.arrays())
    return eval(f"lambda {names}: {call}", {"np": np, "operator": operator})  # type: ignore[no-any-return]


def _views() -> dict[str, Any]:
    """The arrays as views with steps."""
    found: dict[str, Any] = {}
    for name, value in numpy_calls.arrays().items():
        if isinstance(value, np.ndarray) and value.ndim:
            value = np.repeat(value, 2, axis=-1)[..., ::2]
        found[name] = value
    return found


def _with_gradients(call: str) -> Function:
    """The call, beside gradients of a tensor, or between them where it gives an array of floats."""
    names = ", ".join(numpy_calls.arrays())
    text = f"lambda x, {names}: ({call}, x.sin())"
    with warnings.catch_warnings(action="ignore"):
        try:
            found = _function(call)(**numpy_calls.arrays())
        except Exception:
            found = None  # both raise it
    if isinstance(found, np.ndarray) and found.dtype.kind == "f":
        text = f"lambda x, {names}: torch.from_numpy({call}).sum() * x.sin()"
    return eval(text, {"np": np, "operator": operator, "torch": torch})  # type: ignore[no-any-return]


def _around() -> dict[str, Any]:
    return numpy_calls.arrays() | {"x": torch.linspace(-1, 1, 12).reshape(3, 4)}
