"""What the functions that control torch.compile mean inside captured code.

In: a call of one of them; the program has imported them, Ingot never does. Out: what the call does
there for Ingot's own compilation, where that can be done without a graph break.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ingot.capture.meanings import How, means
from ingot.capture.sources import ConstSource
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import NONE
from ingot.capture.values.functions import FunctionValue

if TYPE_CHECKING:
    from ingot.capture.session import Session

_DECORATORS = "torch._dynamo.decorators"
_FLAG_MODULE = "torch._dynamo.utils"

# -- marks on sizes --------------------------------------------------------------------------------


@means(f"{_DECORATORS}.mark_static")
def _mark_static(session: Session, t: Value, index: Value = NONE) -> Value:
    """Sizes that are symbols are compiled for, from here on."""
    sizes = session.unpacked(t.get_attribute(session, "shape"))
    named = session.known(index)
    dims: Iterable[int] = range(len(sizes))
    if isinstance(named, int):
        dims = [named]
    elif named is not None:
        dims = named
    for dim in dims:
        session.known(sizes[dim])
    return NONE


@means(f"{_DECORATORS}.maybe_mark_dynamic", f"{_DECORATORS}.override_optimization_hint")
def _maybe_mark_dynamic(session: Session, tensor: Value, index: Value) -> Value:
    """Nothing: a size of what the program computes is a symbol or not by then."""
    return NONE


# -- settings --------------------------------------------------------------------------------------


@means(f"{_DECORATORS}.patch_dynamo_config", how=How.UNREALIZED)
def _patch_config(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """Nothing: these settings are of how torch.compile captures."""
    return session.call(session.wrap_constant(nullcontext), [], {})


# -- whether a graph break is an error -------------------------------------------------------------


class BreakIsError:
    """Whether `torch._dynamo.error_on_graph_break` asks for an error where the graph would break:
    at this point of the program, first as the caller has it."""

    def __init__(self) -> None:
        utilities = sys.modules.get(_FLAG_MODULE)
        self.holds = bool(getattr(utilities, "_error_on_graph_break", False))


@means(f"{_FLAG_MODULE}._set_error_on_graph_break", how=How.UNREALIZED)
def _set_error_on_graph_break(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """Sets torch's own variable as well, behind the graph: a region that begins inside of the block
    finds it."""
    session.state(BreakIsError).holds = bool(session.known(session.realize(args[0])))
    function: Any = sys.modules[_FLAG_MODULE]._set_error_on_graph_break
    return session.inline(
        FunctionValue.outside(session, function, ConstSource(function)), args, kwargs
    )
