"""What a user may ask of `ingot.compile`, checked once, where it is said."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

NATIVE = "ingot"
"""The name of Ingot's own backend."""

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

FILTER = "guard_filter_fn"
"""The option that any backend takes: it is of capture."""


class Setting(NamedTuple):
    """What an option may be: one of the `choices`, or what `allows` says yes to."""

    choices: tuple[Any, ...] = ()
    allows: Callable[[Any], bool] = lambda value: False
    text: str = ""

    def refusal(self, value: Any) -> str | None:
        """What is wrong with a value, for an error message; None if nothing is."""
        is_choice = isinstance(value, (str, int)) and value in self.choices
        if is_choice or self.allows(value):
            return None
        if self.choices:
            return unknown(value, self.choices)
        return f"{shown(value)}; {self.text}"


def is_switched_off() -> bool:
    """Whether INGOT_DISABLE says that nothing is to be compiled."""
    return os.environ.get("INGOT_DISABLE", "0") not in ("", "0")


def is_share(value: Any) -> bool:
    """Whether it is a number from 0 to 1."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _is_number_of_calls(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_function(value: Any) -> bool:
    return value is None or callable(value)


def _is_names(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(name, str) for name in value)


KNOWN_OPTIONS: dict[str, Setting] = {
    "numerics": Setting(("eager", "fast")),
    "freeze": Setting((False, True)),
    "specialize": Setting((False, True)),
    "emit": Setting(("llvm", "cpp")),
    "memory_budget": Setting(allows=is_share, text="a number from 0 to 1"),
    "donate": Setting(allows=_is_names, text="a tuple of names of parameters"),
    "verify": Setting(allows=_is_number_of_calls, text="a number of calls, 0 or more"),
    FILTER: Setting(allows=_is_function, text="a function of a list of guards, or None"),
}


@dataclass(frozen=True)
class Options:
    """`dynamic`: True makes every size a symbol from the start, None those that are seen to vary,
    False none.

    `backend` is "ingot", the name of a registered backend, or a callable `backend(gm,
    example_inputs)`; `backend_options` are those given for another backend than Ingot's. All modes
    run the default code on a CPU: they choose between ways to launch on a GPU, and whether kernels
    are chosen by measuring. `numerics` "fast" allows library kernels that are faster than eager's
    but round worse. `freeze` is the user's promise that parameters and buffers of modules do not
    change. `specialize` gives sizes that keep coming an entry of their own beside the one with
    symbols, compiled in the background. `emit` "cpp" has CPU code written as C++, which the
    system's compiler compiles. `memory_budget` is the share of the bytes that a forward may save
    for its backward, of those that it usually does. `verify` is how many calls of each compiled
    program are compared with eager (see `debugging/verifying.py`). `donate` names the parameters
    whose tensors the caller gives up (see `capture/donations.py`). `guard_filter_fn` says which
    guards are checked (see `capture/guard_filter.py`). `recompile_limit` is how many entries a
    function may have. `isolation` is an object of one call of `compile` whose entries are not
    shared with others.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    backend: str | Callable[..., Any] = NATIVE
    mode: str = "default"
    numerics: str = "eager"
    freeze: bool = False
    specialize: bool = False
    emit: str = "llvm"
    memory_budget: float | None = None  # 1, or as the program says to torch.compile
    verify: int = 0
    donate: tuple[str, ...] = ()
    guard_filter_fn: Callable[..., Any] | None = None
    backend_options: Mapping[str, Any] | None = None
    recompile_limit: int | None = None
    isolation: object | None = None

    @property
    def is_native(self) -> bool:
        """Whether Ingot itself compiles the graph. Another backend's graph runs on real tensors
        under autograd."""
        return self.backend == NATIVE

    @property
    def replays(self) -> bool:
        """Whether a GPU's programs are replayed as CUDA graphs."""
        return self.mode in ("reduce-overhead", "max-autotune")

    @property
    def tunes(self) -> bool:
        """Whether ways to compute a product on a GPU are measured, and the fastest is taken."""
        return self.mode.startswith("max-autotune")

    @staticmethod
    def checked(
        *,
        fullgraph: Any = False,
        dynamic: Any = None,
        backend: Any = NATIVE,
        mode: Any = None,
        options: Mapping[str, Any] | None = None,
        recompile_limit: Any = None,
        isolate_recompiles: Any = False,
    ) -> Options:
        """The options, or TypeError / ValueError that names the argument and what it may be."""
        if not isinstance(fullgraph, bool):
            raise TypeError(f"ingot.compile: fullgraph must be a bool, not {shown(fullgraph)}")
        if dynamic is not None and not isinstance(dynamic, bool):
            raise TypeError(
                f"ingot.compile: dynamic must be True, False or None, not {shown(dynamic)}"
            )
        if not isinstance(backend, str) and not callable(backend):
            raise TypeError(
                "ingot.compile: backend must be a name or a callable (gm, example_inputs), not "
                f"{shown(backend)}"
            )
        if mode is None:
            mode = "default"
        if not (isinstance(mode, str) and mode in MODES):
            raise ValueError(f"ingot.compile: unknown mode {unknown(mode, MODES)}")
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(f"ingot.compile: options must be a dict, not {shown(options)}")
        limits = _checked_limits(recompile_limit, isolate_recompiles)
        given = dict(options or {})
        if not (isinstance(backend, str) and backend == NATIVE):
            # which other options there are is the backend's affair
            own = {FILTER: given.pop(FILTER, None)}
            _check_settings(own)
            if options is not None:
                options = given
            return Options(
                fullgraph, dynamic, backend, mode, backend_options=options, **own, **limits
            )
        _check_settings(given)
        _check_donation(given)
        return Options(fullgraph, dynamic, backend, mode, **given, **limits)


def _check_settings(given: Mapping[Any, Any]) -> None:
    for name, value in given.items():
        if not (isinstance(name, str) and name in KNOWN_OPTIONS):
            raise ValueError(f"ingot.compile: unknown option {unknown(name, KNOWN_OPTIONS)}")
        refusal = KNOWN_OPTIONS[name].refusal(value)
        if refusal is not None:
            raise ValueError(f"ingot.compile: option {name} may not be {refusal}")


def _check_donation(given: dict[str, Any]) -> None:
    """Makes a tuple of the names; raises ValueError for an option that needs what they give up."""
    given["donate"] = tuple(dict.fromkeys(given.get("donate", ())))
    for other in _NEEDING_ARGUMENTS:
        if given["donate"] and given.get(other):
            raise ValueError(
                f"ingot.compile: option donate does not go with {other}, which reads the arguments "
                "of a call once more behind it"
            )


_NEEDING_ARGUMENTS = ("specialize", "verify")


def _checked_limits(recompile_limit: Any, isolate_recompiles: Any) -> dict[str, Any]:
    """The options that say how many entries there may be, and whose they are."""
    is_count = isinstance(recompile_limit, int) and not isinstance(recompile_limit, bool)
    if recompile_limit is not None and not (is_count and recompile_limit > 0):
        raise ValueError(
            "ingot.compile: recompile_limit must be a positive int or None, not "
            f"{shown(recompile_limit)}"
        )
    if not isinstance(isolate_recompiles, bool):
        raise TypeError(
            f"ingot.compile: isolate_recompiles must be a bool, not {shown(isolate_recompiles)}"
        )
    isolation = None
    if isolate_recompiles:
        isolation = object()
    return {"recompile_limit": recompile_limit, "isolation": isolation}


def unknown(name: Any, known: Iterable[Any]) -> str:
    """The name and what it may be instead, nearest first, for an error message."""
    names = list(map(str, known))
    near = []
    if isinstance(name, str):
        near = difflib.get_close_matches(name, names, n=1)
    choice = f"one of {', '.join(names)}"
    if near:
        return f"{shown(name)}; did you mean {near[0]!r}? ({choice})"
    return f"{shown(name)}; {choice}"


def shown(value: Any) -> str:
    """A value in an error message: its repr, or its type where that would fill the screen."""
    try:
        text = repr(value)
    except Exception:  # which is the user's code
        return f"a {type(value).__name__}"
    if len(text) <= 80 and "\n" not in text:
        return text
    return f"a {type(value).__name__}"
