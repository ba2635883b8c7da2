"""Functions that torch.jit made: one node of the graph each, or a graph break."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.sources import Source
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.marked import OpaqueFunction
from ingot.capture.values.wrap import wraps
from ingot.graph.scripted import Scripted, why_not_run_on_fakes
from ingot.torch_private import JITException, ScriptFunction

if TYPE_CHECKING:
    from ingot.capture.session import Session


class ScriptedFunction(OpaqueFunction):
    """A function of TorchScript."""

    __slots__ = ("target",)

    def __init__(self, function: Any, source: Source) -> None:
        super().__init__(function, source)
        self.target = OpaqueFunction(Scripted(function), source)

    def describe(self) -> str:
        return f"scripted function {self.object.name}()"

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        why = why_not_run_on_fakes(self.object)
        if why:
            raise session.unsupported("call", f"{self.describe()} {why}")
        try:
            return self.target.call(session, args, kwargs)
        except JITException as error:  # its own text is eager's alone
            sentence = f"{self.describe()} raises {type(error).__name__}"
            raise session.unsupported("call", sentence) from error


@wraps(ScriptFunction)
def wrap_scripted(session: Session, object_: Any, source: Source) -> Value:
    session.guard(source, Kind.IDENTITY, object_)
    return ScriptedFunction(object_, source)
