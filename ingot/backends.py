"""Who compiles a captured graph: Ingot itself, a function the user gives or registers, or nobody.

A backend is `backend(gm, example_inputs) -> callable`: it gets a `torch.fx.GraphModule` over torch functions and one
tensor per placeholder, and returns a callable that takes the same inputs and returns a tuple or list of the graph's
outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
NATIVE = "ingot"


def _eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the captured graph as it is, op by op: tells a fault of capture from one of compilation."""
    return gm.forward


_registry: dict[str, Backend] = {"eager": _eager}


def register_backend(backend: Backend | None = None, *, name: str | None = None) -> Any:
    """Register a backend under `name` (its own name if none is given); also a decorator. Raises ValueError if the
    name is taken."""
    if backend is None:
        return lambda b: register_backend(b, name=name)
    key = name or getattr(backend, "__name__", "")
    if not key or key == NATIVE or (key in _registry and _registry[key] is not backend):
        raise ValueError(
            f"ingot.register_backend: the name {key!r} cannot be used; taken are {', '.join(list_backends())}"
        )
    _registry[key] = backend
    return backend


def list_backends() -> list[str]:
    """Names that `ingot.compile(backend=...)` accepts."""
    return [NATIVE, *sorted(_registry)]


def find_backend(backend: str | Backend) -> Backend | None:
    """The backend function, or None for Ingot's own; raises ValueError for an unknown name."""
    if callable(backend):
        return backend
    if backend == NATIVE:
        return None
    if backend not in _registry:
        raise ValueError(f"ingot.compile: unknown backend {backend!r}; one of {', '.join(list_backends())}")
    return _registry[backend]
