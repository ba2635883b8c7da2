"""Entries that serve all functions of one code: the same function compiled again, closures that are
made anew, methods of other instances.

In: a call that no entry of a compiler fits. Out: what was compiled for another function of the same
code, with the same options, if its guards hold for the call. What outlives its function holds no
object of the user's but the globals of a module.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import CO_NESTED
from operator import attrgetter
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture import Captured
from ingot.capture.facts import is_plain_constant
from ingot.capture.guards import Kind
from ingot.capture.size_marks import marks_of
from ingot.capture.sources import ConstSource
from ingot.compilation import Compilation
from ingot.options import Options
from ingot.sequences import Args

if TYPE_CHECKING:
    from ingot.compiler import Replay

RECENT = 64
_LASTING = (type, ModuleType, BuiltinFunctionType, CodeType)


@dataclass(frozen=True, eq=False)
class Compiled:
    """What an entry is made of. `report` has the compilations of the function that it was compiled
    for, if its graph is broken: those behind the break are among them."""

    options: Options
    namespace: dict[str, Any]  # of the function
    compilation: Compilation
    captured: Captured
    target: Callable[..., Any]
    replay: Replay
    report: list[Compilation]


_of_code: weakref.WeakKeyDictionary[CodeType, weakref.WeakSet[Compiled]]
_of_code = weakref.WeakKeyDictionary()
"""What was compiled for each code, and is alive. Codes may be equal and not the same: guards tell
them apart."""

_recent: deque[Compiled] = deque(maxlen=RECENT)
"""The newest of closures: they outlive the one that they were compiled for, as the next is made
anew."""


def share(code: CodeType, compiled: Compiled) -> None:
    """Offers it to other functions of this code, unless it may hold tensors of the first one."""
    options, captured = compiled.options, compiled.captured
    if options.freeze or options.replays or not options.is_native:
        return
    if options.guard_filter_fn is not None:  # what tells functions apart may not be guarded
        return
    _of_code.setdefault(code, weakref.WeakSet()).add(compiled)
    # what is behind a graph break belongs to the function that it was compiled for
    is_of_closures = code.co_flags & CO_NESTED and captured.break_ is None
    if is_of_closures and all(map(_is_lasting, _held(captured))):
        _recent.append(compiled)


def find(options: Options, slots: Args) -> Compiled | None:
    """What was compiled that serves a call of the function in the last slot; rather for its sizes
    than for any."""
    general = None
    for compiled in _alike(options, slots[-1]):
        guards = compiled.captured.guards
        if guards.check_python(slots) is None and not _are_marked(compiled.captured, slots):
            if not guards.symbols:
                return compiled
            general = compiled
    return general


def _are_marked(captured: Captured, slots: Args) -> bool:
    """Whether something is said of the sizes of a graph's inputs, which compiling them is for."""
    for graph_input in captured.inputs:
        value = graph_input.source.load(slots)
        if isinstance(value, torch.Tensor) and marks_of(value):
            return True
    return False


def changed_floats(options: Options, slots: Args) -> frozenset[Any]:
    """The floats that differ in a call from those that functions of this code were compiled for."""
    changed = frozenset[Any]()
    for compiled in _alike(options, slots[-1]):
        changed = changed.union(compiled.captured.guards.changed_floats(slots))
    return changed


def _alike(options: Options, function: FunctionType) -> list[Compiled]:
    """What was compiled for functions of the same code, globals and options."""
    results = []
    for compiled in [*_of_code.get(function.__code__, ())]:
        if compiled.options == options and compiled.namespace is function.__globals__:
            results.append(compiled)
    return results


def forget() -> None:
    """Nothing is shared but what is compiled from now on."""
    _of_code.clear()
    _recent.clear()


def _held(captured: Captured) -> Iterator[Any]:
    """The objects that the guards and inputs of a graph hold."""
    sources = list(map(attrgetter("source"), captured.inputs))
    for guard in captured.guards:
        if guard.kind is Kind.IDENTITY:
            yield guard.data
        if guard.source is not None:
            sources.append(guard.source)
    for source in sources:
        for owner in (source, *source.owners()):
            if isinstance(owner, ConstSource):
                yield owner.value


def _is_lasting(held: Any) -> bool:
    """Whether it lives as long as its module, or is nobody's."""
    if isinstance(held, FunctionType):
        return not held.__closure__
    if isinstance(held, dict):
        return "__name__" in held and "__builtins__" in held
    return isinstance(held, _LASTING) or is_plain_constant(held)
