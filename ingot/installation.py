"""`torch.compile` as Ingot, for programs that are written for it: `install`, `uninstall`.

In: calls of `torch.compile`, of `torch.nn.Module.compile`, or of a library that calls these. Out:
calls of `ingot.compile`, whose arguments say the same as far as Ingot has a counterpart.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ingot.api import compile
from ingot.backends import default_of_torch, list_backends, of_torch
from ingot.options import KNOWN_OPTIONS, MODES, NATIVE

log = logging.getLogger("ingot")

_INDUCTORS = frozenset({"inductor", NATIVE})
"""Backends of torch.compile that Ingot's own stands for."""

_WITHOUT_EFFECT = frozenset({
    "emulate_precision_casts", "epilogue_fusion", "fallback_random", "shape_padding",
    "trace.enabled", "trace.graph_diagram",
})  # fmt: skip
"""Options of Inductor's that ask for what Ingot does anyway, or for what shows in no result."""

_MODES = {
    (True, False): "reduce-overhead",
    (False, True): "max-autotune-no-cudagraphs",
    (True, True): "max-autotune",
}
"""By whether CUDA graphs are wanted, and whether kernels are to be chosen by measuring."""

_NOT_TAKEN = ("shapes_spec", "dynamic_shapes")
"""Parameters of torch.compile that only spare compilations."""

_said: set[str] = set()
"""What has been warned of: each is said once in a process."""


class _Installed:
    """The `torch.compile` that was there before `install`; None where none was replaced."""

    torchs: Callable[..., Any] | None = None


def install() -> None:
    """Have `torch.compile` be Ingot, in the whole process from now on: also where modules or
    libraries call it (`Module.compile`, transformers' `generate`).

    `backend="inductor"`, torch.compile's default, becomes Ingot's own; another one that is asked
    for gets the graphs that Ingot captures. Modes and options that Ingot has no counterpart of are
    named in one warning and not used. What is compiled already stays as it is. Called again, it
    does nothing.
    """
    if _Installed.torchs is None:
        _Installed.torchs = torch.compile
        torch.compile = _in_place_of(torch.compile)  # type: ignore[assignment]


def uninstall() -> None:
    """Have `torch.compile` be torch's own again. What Ingot has compiled stays so."""
    if _Installed.torchs is not None:
        torch.compile = _Installed.torchs
        _Installed.torchs = None


def _in_place_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(torchs)
    def compile_by_ingot(
        model: Any = None,
        *,
        backend: Any = None,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
        **rest: Any,
    ) -> Any:
        chosen = default_of_torch() if backend is None else backend
        for name in _NOT_TAKEN:
            if rest.pop(name, None) is not None:
                _warn(f"{name} is not used, sizes that vary are found when they do")
        if isinstance(chosen, str) and chosen in _INDUCTORS:
            chosen = NATIVE
            mode, options = _translated(mode, options)
        elif isinstance(chosen, str) and chosen not in list_backends():
            chosen = of_torch(chosen)
        return compile(model, backend=chosen, mode=mode, options=options, **rest)

    return compile_by_ingot


def _translated(
    mode: str | None, options: Mapping[str, Any] | None
) -> tuple[str | None, dict[str, Any]]:
    """The mode and options of Ingot's own backend that say what Inductor's do."""
    if mode is not None and mode not in MODES:
        _warn(f"the mode {mode!r} has no counterpart, the default is used")
        mode = None
    left = dict(options or {})
    cudagraphs = bool(left.pop("triton.cudagraphs", False))
    tunes = bool(left.pop("max_autotune", False))
    mode = _MODES.get((cudagraphs, tunes), mode)
    known = {}
    if left.pop("freezing", False):
        known["freeze"] = True
    for name in KNOWN_OPTIONS:
        if name in left:
            known[name] = left.pop(name)
    unused = sorted(left.keys() - _WITHOUT_EFFECT)
    if unused:
        _warn(f"these options have no counterpart and are not used: {', '.join(unused)}")
    return mode, known


def _warn(text: str) -> None:
    if text not in _said:
        _said.add(text)
        log.warning("torch.compile by Ingot: %s", text)
