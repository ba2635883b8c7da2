"""Where a node of a graph comes from: the module whose forward runs, for reports, and for other
backends what torch.compile's graphs say.

In: the frames that run. Out: the module's path; the node's `stack_trace`, the text of a traceback,
and `nn_module_stack`, the modules whose forward runs: each by its path, with its class.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.values.base import LazyValue, OutsideOrMade, Value
from ingot.origins import is_trusted

if TYPE_CHECKING:
    from ingot.capture.interpreter import InterpreterFrame
    from ingot.capture.session import Session


def origin_of(session: Session) -> dict[str, Any]:
    """The meta of a node that is made now."""
    lines, modules = list[traceback.FrameSummary](), dict[str, tuple[str, type]]()
    for frame in session.frames:
        code = frame.program.code
        if not is_trusted(frame.function.namespace.get("__name__", "")):
            lines.append(traceback.FrameSummary(code.co_filename, frame.line, code.co_name))
        module = _module_of(frame)
        if module is not None and module.source is not None:
            path = module.source.name
            modules[path] = path, type(module.object)  # type: ignore[attr-defined]
    return {"stack_trace": "".join(traceback.format_list(lines)), "nn_module_stack": modules}


def module_path(session: Session) -> str:
    """The path of the module whose `forward` runs, as `self.blocks[0]`; "" where none does, or it
    is one that the call itself makes."""
    for frame in reversed(session.frames):
        path = frame.module_path
        if path is None:
            module = _module_of(frame)
            path = ""
            if module is not None and module.source is not None:
                path = module.source.name
            frame.module_path = path
        if path:
            return path
    return ""


def _module_of(frame: InterpreterFrame) -> Value | None:
    """The module whose `forward` a frame runs."""
    if frame.program.code.co_name != "forward" or not frame.slots:
        return None
    value = frame.slots[0]
    is_module = isinstance(value, (LazyValue, OutsideOrMade)) and isinstance(
        value.object, torch.nn.Module
    )
    return value if is_module else None
