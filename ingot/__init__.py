"""Ingot: a just-in-time compiler for PyTorch programs. `model = ingot.compile(model)`.

Each name is imported when it is first asked for: a process that only loads artifacts has no
compiler in it.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingot.api import (
        allow_in_graph,
        compile,
        disable,
        explain,
        mark_dynamic,
        mark_static,
        reset,
    )
    from ingot.artifacts.exporting import export
    from ingot.artifacts.loading import load
    from ingot.backends import list_backends, register_backend
    from ingot.backward import compiled_backward
    from ingot.debugging.saving import save_repro
    from ingot.errors import (
        ArtifactError,
        BackendError,
        CacheError,
        CompilerBug,
        DifferenceWarning,
        DonationError,
        ExportError,
        GraphBreakError,
        IngotError,
        RecompileError,
        ReproError,
        Unsupported,
    )
    from ingot.events import counters
    from ingot.explain.report import Report
    from ingot.installation import install, uninstall
    from ingot.kept.info import CacheInfo, cache_info
    from ingot.kept.portable import load_cache, save_cache
    from ingot.specialized import SpecializedGraph, graph_for
    from ingot.stance import set_stance

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "BackendError",
    "CacheError",
    "CacheInfo",
    "CompilerBug",
    "DifferenceWarning",
    "DonationError",
    "ExportError",
    "GraphBreakError",
    "IngotError",
    "RecompileError",
    "Report",
    "ReproError",
    "SpecializedGraph",
    "Unsupported",
    "allow_in_graph",
    "cache_info",
    "compile",
    "compiled_backward",
    "counters",
    "disable",
    "explain",
    "export",
    "graph_for",
    "install",
    "list_backends",
    "load",
    "load_cache",
    "mark_dynamic",
    "mark_static",
    "register_backend",
    "reset",
    "save_cache",
    "save_repro",
    "set_stance",
    "uninstall",
]

_PLACES = {
    **dict.fromkeys(("install", "uninstall"), "ingot.installation"),
    **dict.fromkeys(("list_backends", "register_backend"), "ingot.backends"),
    **dict.fromkeys(("CacheInfo", "cache_info"), "ingot.kept.info"),
    **dict.fromkeys(("load_cache", "save_cache"), "ingot.kept.portable"),
    **dict.fromkeys(("SpecializedGraph", "graph_for"), "ingot.specialized"),
    "Report": "ingot.explain.report",
    "compiled_backward": "ingot.backward",
    "counters": "ingot.events",
    "export": "ingot.artifacts.exporting",
    "load": "ingot.artifacts.loading",
    "save_repro": "ingot.debugging.saving",
    "set_stance": "ingot.stance",
}
"""Where names are that are neither of `ingot.api` nor errors."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ingot' has no attribute {name!r}")
    return _imported(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _imported(name: str) -> Any:
    """A public name, from where it is, and from now on an attribute."""
    from ingot.collection import paused_collection

    place = _PLACES.get(name, "ingot.errors" if name[0].isupper() else "ingot.api")
    with paused_collection():
        thing = getattr(importlib.import_module(place), name)
    globals()[name] = thing
    return thing


class _Package(ModuleType):
    """This module, in which `explain` is the function, also once the package of that name is
    imported, which Python would put in its place."""

    @property
    def explain(self) -> Any:
        return _imported("explain")

    @explain.setter
    def explain(self, module: Any) -> None:
        pass


sys.modules[__name__].__class__ = _Package
