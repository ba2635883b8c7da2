"""What each normalized instruction does, one file for each family. Importing this package fills the
interpreter's table."""

from ingot.capture.handlers import (
    attributes,
    calls,
    containers,
    control,
    exceptions,
    formatting,
    functions,
    iteration,
    matching,
    names,
    operators,
    stack,
)

__all__ = [
    "attributes",
    "calls",
    "containers",
    "control",
    "exceptions",
    "formatting",
    "functions",
    "iteration",
    "matching",
    "names",
    "operators",
    "stack",
]
