"""Python's global random generator as ops. A draw gives its number in a tensor of rank 0, where,
and as often as, eager draws it."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ingot.torch_private import OpOverload

_library = torch.library.Library("ingot_random", "DEF")
_library.define("draw(str method, str arguments, ScalarType dtype) -> Tensor")
_library.define("seed(str arguments) -> ()")

GENERATOR: Any = random.random.__self__  # type: ignore[attr-defined]
"""The one that the functions of `random` are methods of."""

_new_tensor = torch.scalar_tensor


@cache
def _bound(method: str, arguments: str) -> Callable[[], Any]:
    """A call of a method of the generator's; the arguments are the text of a tuple and a dict."""
    args, kwargs = ast.literal_eval(arguments)
    return partial(getattr(GENERATOR, method), *args, **kwargs)


def _draw(method: str, arguments: str, dtype: torch.dtype) -> Tensor:
    return _new_tensor(_bound(method, arguments)(), dtype=dtype)


def _seed(arguments: str) -> None:
    _bound("seed", arguments)()


def _fake(method: str, arguments: str, dtype: torch.dtype) -> Tensor:
    return torch.empty((), dtype=dtype)


_library.impl("draw", _draw, "CompositeExplicitAutograd")
_library.impl("seed", _seed, "CompositeExplicitAutograd")
torch.library.register_fake("ingot_random::draw", _fake, lib=_library)
torch.library.register_fake("ingot_random::seed", lambda arguments: None, lib=_library)

draw: OpOverload = torch.ops.ingot_random.draw.default
seed: OpOverload = torch.ops.ingot_random.seed.default

OPS = frozenset({draw, seed})
"""They raise no error, and nobody sees in which order they and what is printed come."""
