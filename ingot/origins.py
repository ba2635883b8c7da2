"""Whose code something is: Python's, torch's, NumPy's or Ingot's own, or the user's.

Names alone do not decide it: a user's file may be called `profile.py`, and `functools.wraps` gives
a function the name of another's module.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy
import torch

_PACKAGES: dict[str, ModuleType] = {"torch": torch, "numpy": numpy}

_OF_INGOT = ("ingot.capture.", "ingot.compiler")
"""What of Ingot is captured: its versions of functions that are written in C."""

_FOLDERS = (
    os.path.dirname(os.__file__),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("platstdlib"),
)
_LIBRARY = {os.path.realpath(folder) for folder in _FOLDERS if folder}
"""Where Python's own modules lie."""

_BINARIES = os.path.basename(sysconfig.get_config_var("DESTSHARED") or "lib-dynload")
"""The folder in there of those that are written in C."""

_trusted: dict[str, tuple[ModuleType | None, bool]] = {}


def is_trusted(name: str | None) -> bool:
    """Whether the module of this name is torch's, NumPy's or Python's own, or part of Ingot, which
    nobody is expected to change under way."""
    if name is None:
        return False
    module = sys.modules.get(name)
    known = _trusted.get(name)
    if known is None or known[0] is not module:
        known = _trusted[name] = module, _is_trusted(name, module)
    return known[1]


def trusts_function(function: Any) -> bool:
    """Whether a callable is of a trusted module: it says so, and if it is written in Python its
    code lies in one."""
    if not is_trusted(getattr(function, "__module__", None)):
        return False
    if not isinstance(function, FunctionType):
        return True
    return is_trusted(function.__globals__.get("__name__"))


def _is_trusted(name: str, module: ModuleType | None) -> bool:
    package = name.partition(".")[0]
    if package in _PACKAGES:
        return sys.modules.get(package) is _PACKAGES[package]
    if package not in sys.stdlib_module_names:
        return name.startswith(_OF_INGOT)
    if package in sys.builtin_module_names:
        return True
    return _is_standard(package, module or sys.modules.get(package))


def _is_standard(package: str, module: ModuleType | None) -> bool:
    """Whether a module that is called as one of the standard library is that one."""
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    file = getattr(module, "__file__", None) or origin
    if origin == "frozen" or not isinstance(file, str):
        return origin == "frozen"
    path = Path(os.path.realpath(file))
    for folder in path.parents:
        if str(folder) in _LIBRARY:
            first = path.relative_to(folder).parts[0]
            return first == _BINARIES or first.partition(".")[0] == package
    return False


@functools.cache
def is_installed(file: str) -> bool:
    """Whether a file of code is of Python's own library or of an installed package: that lies
    beside what installers note of it."""
    if file.startswith("<frozen "):
        return True
    for folder in Path(os.path.realpath(file)).parents:
        if str(folder) in _LIBRARY or any(folder.glob("*.dist-info")):
            return True
    return False
