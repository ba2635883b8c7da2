"""What a user may ask of `ingot.compile`, checked once, where it is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
KNOWN_OPTIONS = {"numerics": ("eager", "fast")}


@dataclass(frozen=True)
class Options:
    """`dynamic`: True makes every size a symbol from the start; None and False keep sizes static.

    `backend` is "ingot", the name of a registered backend, or a callable `backend(gm, example_inputs)`. All modes
    run the default code on a CPU: they choose between GPU launch strategies. `numerics` "fast" allows library
    kernels that are faster than eager's but round worse (oneDNN's matmul).
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    backend: str | Callable[..., Any] = "ingot"
    mode: str = "default"
    numerics: str = "eager"

    @staticmethod
    def checked(
        *,
        fullgraph: Any = False,
        dynamic: Any = None,
        backend: Any = "ingot",
        mode: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> Options:
        """The options, or TypeError / ValueError that names the argument and what it may be."""
        if not isinstance(fullgraph, bool):
            raise TypeError(f"ingot.compile: fullgraph must be a bool, not {fullgraph!r}")
        if dynamic is not None and not isinstance(dynamic, bool):
            raise TypeError(f"ingot.compile: dynamic must be True, False or None, not {dynamic!r}")
        if not isinstance(backend, str) and not callable(backend):
            raise TypeError(
                f"ingot.compile: backend must be a name or a callable (gm, example_inputs), not {backend!r}"
            )
        mode = "default" if mode is None else mode
        if mode not in MODES:
            raise ValueError(f"ingot.compile: unknown mode {mode!r}; one of {', '.join(MODES)}")
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(f"ingot.compile: options must be a dict, not {options!r}")
        for name, value in (options or {}).items():
            if name not in KNOWN_OPTIONS:
                raise ValueError(f"ingot.compile: unknown option {name!r}; known options: {', '.join(KNOWN_OPTIONS)}")
            if value not in KNOWN_OPTIONS[name]:
                raise ValueError(f"ingot.compile: option {name} is one of {KNOWN_OPTIONS[name]}, not {value!r}")
        return Options(fullgraph, dynamic, backend, mode, **(options or {}))
