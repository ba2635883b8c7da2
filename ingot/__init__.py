"""Ingot: a just-in-time compiler for PyTorch programs. `model = ingot.compile(model)`."""

from ingot.collection import paused_collection

with paused_collection():
    from ingot.api import (
        allow_in_graph,
        compile,
        disable,
        explain,
        mark_dynamic,
        mark_static,
        reset,
    )
    from ingot.backends import list_backends, register_backend
    from ingot.backward import compiled_backward
    from ingot.errors import (
        BackendError,
        CacheError,
        CompilerBug,
        GraphBreakError,
        IngotError,
        RecompileError,
        Unsupported,
    )
    from ingot.explain.report import Report
    from ingot.installation import install, uninstall
    from ingot.kept.info import CacheInfo, cache_info
    from ingot.kept.portable import load_cache, save_cache
    from ingot.stance import set_stance

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "CacheError",
    "CacheInfo",
    "CompilerBug",
    "GraphBreakError",
    "IngotError",
    "RecompileError",
    "Report",
    "Unsupported",
    "allow_in_graph",
    "cache_info",
    "compile",
    "compiled_backward",
    "disable",
    "explain",
    "install",
    "list_backends",
    "load_cache",
    "mark_dynamic",
    "mark_static",
    "register_backend",
    "reset",
    "save_cache",
    "set_stance",
    "uninstall",
]
