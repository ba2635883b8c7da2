"""What each normalized instruction does, one file for each family.

Importing this package fills the interpreter's table.
"""

from ingot.capture.handlers import (  # noqa: F401
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
