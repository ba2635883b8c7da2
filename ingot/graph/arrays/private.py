"""The private names of NumPy that Ingot touches. A later NumPy may rename each; an object that
nobody else has stands for one that is missing."""

from __future__ import annotations

import contextvars
import functools
import importlib
from typing import Any

import numpy as np

UNIVERSAL = "numpy._core.umath"
LINEAR_ALGEBRA = "numpy.linalg._umath_linalg"
TRANSFORMS = "numpy.fft._pocketfft_umath"
LINEAR_ALGEBRA_ERRORS = "numpy.linalg._linalg"
_MULTIARRAY = "numpy._core.multiarray"


@functools.cache
def module_of(name: str) -> Any:
    """A module of NumPy's; None where there is none of this name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _find(module: str, name: str) -> Any:
    """An object of a module of NumPy's, or a class that stands for it."""
    found = getattr(module_of(module), name, None)
    if found is None:
        return type(name, (), {})
    return found


no_value = _find("numpy", "_NoValue")
converter = _find("numpy._core._multiarray_umath", "_array_converter")
flags_type = _find(_MULTIARRAY, "flagsobj")
correlate = _find(_MULTIARRAY, "correlate")
correlate_conjugated = _find(_MULTIARRAY, "correlate2")
einsum = _find(_MULTIARRAY, "c_einsum")
normalize_axis_index = _find(_MULTIARRAY, "normalize_axis_index")
count_nonzero = _find(_MULTIARRAY, "count_nonzero")
unique_hash = _find("numpy._core._multiarray_umath", "_unique_hash")
clip = _find(UNIVERSAL, "clip")
error_state: contextvars.ContextVar[Any] = getattr(
    module_of(UNIVERSAL), "_extobj_contextvar", contextvars.ContextVar("missing")
)
IS_KNOWN = int(np.__version__.partition(".")[0]) >= 2
"""Whether types of results are those of NumPy 2."""
dispatcher_type = type(np.prod)
"""The type of functions that look for `__array_function__` first."""


def method_in_python(name: str) -> Any:
    """What a method of arrays is implemented by."""
    return _find("numpy._core._methods", name)


def implementation_of(function: Any) -> Any:
    """What a function of NumPy's does for arrays."""
    return getattr(function, "_implementation", function)
