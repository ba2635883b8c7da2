"""The user's own code, named on the command line as FILE.py:make, loaded and checked."""

from __future__ import annotations

import copy
import functools
import importlib.util
import os
import random
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ingot.errors import IngotError
from ingot.torch_private import CONTEXTLIB_FILE, tree_map

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
OUR_FRAMES = PACKAGE, "<ingot "
LEADING_FRAMES = *OUR_FRAMES, "<frozen importlib", CONTEXTLIB_FILE
RETURNS = (
    "it must return (function or module, arguments) or (function or module, arguments, keywords)"
)


class UserError(Exception):
    """A mistake on the command line or in the user's file: the message is all that is shown."""


@dataclass
class Target:
    """What `make()` returned: a function or module and what to call it with."""

    spec: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    make: Callable[[], Target] | None = None

    def fresh(self) -> Target:
        """One that shares nothing with this one that a call may change.

        `make()` is called again, in a module of its own, under the same seed: a copy would leave
        closures, global variables and iterators shared. What is not made by a file is copied.
        """
        if self.make is not None:
            with suppress(UserError):  # a file may not bear to be run twice
                return self.make()
        function, args, kwargs = own_copy((self.function, self.args, self.kwargs))
        return Target(self.spec, function, args, kwargs)

    def to(self, device: str) -> Target:
        """The same on another device: the module's weights, and every tensor among the
        arguments."""

        def moved(leaf: Any) -> Any:
            if isinstance(leaf, (torch.Tensor, torch.nn.Module)):
                return leaf.to(device)
            return leaf

        args, kwargs = tree_map(moved, (self.args, self.kwargs))
        make = self.make
        again = None if make is None else lambda: make().to(device)
        return Target(self.spec, moved(self.function), args, kwargs, again)


def load(spec: str) -> Target:
    """The target that "FILE.py:make" names ("FILE.py" alone means its `make`); UserError says what
    is wrong with it."""
    file, colon, name = spec.rpartition(":")
    if not colon:
        file, name = spec, "make"
    path = Path(file)
    if "\0" in file:
        raise UserError(f"there is no file {file!r}")
    if path.suffix != ".py" or not name.isidentifier():
        raise UserError(f"{spec!r} does not name a function in a file: write FILE.py:make")
    if not path.is_file():
        raise UserError(f"there is no file {file}")
    return _loaded(path, name, spec)


def _loaded(path: Path, name: str, spec: str) -> Target:
    """The target that a function of a file returns. The file is run anew, from the same random
    numbers."""
    file = str(path)
    seed()
    module = import_file(path)
    make = getattr(module, name, None)
    if make is None:
        names = []
        for n, v in vars(module).items():
            if n.startswith("make") and callable(v):
                names.append(n)
        also = ""
        if names:
            also = f"; it has {', '.join(names)}"
        raise UserError(f"{file} has no function {name}{also}")
    if not callable(make):
        raise UserError(f"{name} in {file} is no function but {described(make)}")
    result = run_user_code(make, f"{name}() in {file}")
    target = checked(result, spec, f"{name}() in {file}")
    target.make = functools.partial(_loaded, path, name, spec)
    return target


def seed() -> None:
    """Have all usual generators of random numbers begin anew."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def own_copy(tree: Any) -> Any:
    """A deep copy, in which tensors share storage as they did; the thing itself where it cannot be
    copied."""
    try:
        return copy.deepcopy(tree)
    except Exception:  # deepcopy runs the user's code; tensors inside an autograd graph refuse it
        return tree


def import_file(path: Path) -> ModuleType:
    """Import a file by its path, under its own name, with its folder importable as when it is run
    as a script."""
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    loader = spec.loader
    module = importlib.util.module_from_spec(spec)
    if sys.path[:1] != [str(path.resolve().parent)]:
        sys.path.insert(0, str(path.resolve().parent))
    displaced = sys.modules.get(name)
    sys.modules[name] = module
    try:
        run_user_code(lambda: loader.exec_module(module), str(path))
    except UserError:
        del sys.modules[name]
        if displaced is not None:
            sys.modules[name] = displaced
        raise
    return module


def run_user_code(call: Callable[[], Any], what: str) -> Any:
    """Call it; an exception becomes a UserError that shows the user's part of the traceback. One of
    Ingot's own shows only what it says."""
    try:
        return call()
    except IngotError as error:
        raise UserError(f"{what} raised {type(error).__name__}: {error}") from error
    except Exception as error:
        raise UserError(f"{what} raised an error:\n{user_traceback(error)}") from error


def user_traceback(error: BaseException) -> str:
    """The traceback without Ingot's own frames and those that lead to the user's file."""
    frames = traceback.extract_tb(error.__traceback__)
    while frames and frames[0].filename.startswith(LEADING_FRAMES):
        frames.pop(0)
    theirs = []
    for frame in frames:
        if not frame.filename.startswith(OUR_FRAMES):
            theirs.append(frame)
    listing = []
    if theirs:
        listing = ["Traceback (most recent call last):\n", *traceback.format_list(theirs)]
    return "".join((*listing, *traceback.format_exception_only(error))).rstrip()


def checked(result: Any, spec: str, what: str) -> Target:
    """The target in what `make()` returned."""
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise UserError(f"{what} returned {described(result)}; {RETURNS}")
    function, args, *rest = result
    kwargs = rest[0] if rest else {}
    if not callable(function):
        raise UserError(
            f"{what} returned {described(function)} where the function or module belongs; {RETURNS}"
        )
    if not isinstance(args, tuple):
        raise UserError(
            f"{what} returned {described(args)} where the tuple of arguments belongs; {RETURNS}"
        )
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise UserError(
            f"{what} returned {described(kwargs)} where the dict of keyword arguments belongs; "
            f"{RETURNS}"
        )
    return Target(spec, function, args, kwargs)


def described(value: Any) -> str:
    """ "a list", "None", "a tuple of 4"."""
    if value is None:
        return "None"
    name = type(value).__name__
    of = ""
    if isinstance(value, (tuple, list)):
        of = f" of {len(value)}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}{of}"
