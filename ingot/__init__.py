"""Ingot: a just-in-time compiler for PyTorch programs. `model = ingot.compile(model)`."""

from ingot.collection import paused_collection

with paused_collection():
    from ingot.api import compile, explain, reset
    from ingot.backends import list_backends, register_backend
    from ingot.errors import CompilerBug, GraphBreakError, IngotError, Unsupported
    from ingot.explain.report import Report

__version__ = "0.1.0"

__all__ = [
    "CompilerBug",
    "GraphBreakError",
    "IngotError",
    "Report",
    "Unsupported",
    "compile",
    "explain",
    "list_backends",
    "register_backend",
    "reset",
]
