"""Arguments that the caller gives up: which inputs of a graph they are, and which must stay.

In: what was captured of a call, and the names in `options={"donate": ...}`. Out: `Donations`. What
the program still needs when the graph has run stays as it is, with the reason for the report; more
reasons are found where the graph is traced (`graph.donating`) and in each call
(`native/donation.c`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ingot.capture.guards import Kind
from ingot.capture.residual import FromSource, Recipe
from ingot.capture.sources import ArgSource, ItemSource, Source, is_argument
from ingot.options import shown, unknown

if TYPE_CHECKING:
    from ingot.capture.captured import Captured


class Donations(NamedTuple):
    """The inputs that may be taken, by their positions and as errors call them, and the arguments
    that stay, each with the reason."""

    given: tuple[tuple[int, str], ...] = ()
    kept: tuple[tuple[str, str], ...] = ()

    def all_kept(self, why: str) -> Donations:
        """The same with nothing taken."""
        kept = [*self.kept]
        for _, what in self.given:
            kept.append((what, why))
        return Donations((), tuple(kept))


class _Parameters(NamedTuple):
    """What a call's arguments are called: `names` of the parameters that are given by position or
    by keyword, and those of *args and **kwargs. Those of a module are its `forward`'s, which
    `__call__` hands all of them to."""

    names: tuple[str, ...]
    rest: str = ""
    further: str = ""
    is_forward: bool = False

    @property
    def all(self) -> list[str]:
        return [*self.names, *filter(None, (self.rest, self.further))]

    def way_to(self, source: Source) -> tuple[str, list[Any]]:
        """The parameter that an input comes by, "" where it is none, and the keys that lead on."""
        keys: list[Any] = []
        for owner in (source, *source.owners()):
            if isinstance(owner, ItemSource):
                keys.insert(0, owner.key)
            elif isinstance(owner, ArgSource):
                index = owner.index
        if not self.is_forward:
            return (self.all[index] if index < len(self.all) else ""), keys
        if not keys:
            return "", keys
        key, *others = keys
        if isinstance(key, int):
            key = self.names[1 + key] if 1 + key < len(self.names) else ""
        if key in self.names:
            return key, others
        return (self.further if key else self.rest), keys


def _parameters(function: FunctionType, bound: Sequence[Any]) -> _Parameters:
    is_forward = function is torch.nn.Module.__call__
    if is_forward:
        forward = type(bound[0]).forward
        function = getattr(forward, "__func__", forward)
    code = function.__code__
    at = code.co_argcount + code.co_kwonlyargcount
    names, others = code.co_varnames[:at], list(code.co_varnames[at:])
    rest = further = ""
    if code.co_flags & CO_VARARGS:
        rest = others.pop(0)
    if code.co_flags & CO_VARKEYWORDS:
        further = others.pop(0)
    return _Parameters(names, rest, further, is_forward)


def check_names(function: FunctionType, bound: Sequence[Any], donated: Sequence[str]) -> None:
    """Raises ValueError for a name that is no parameter of a function, or of a module's forward;
    `bound` is what it is a method of."""
    known = _parameters(function, bound).all[len(bound) :]
    for name in donated:
        if name in known:
            continue
        what = unknown(name, known)
        if "[" in name or "." in name:
            what = f"{name!r}: what an argument holds is given up as a whole; one of "
            what += ", ".join(known)
        raise ValueError(f"ingot.compile: option donate has no parameter {what}")


def donations_of(
    captured: Captured, function: FunctionType, bound: Sequence[Any], names: Sequence[str]
) -> Donations:
    """The inputs of a graph that are tensors among the arguments of these names."""
    parameters = _parameters(function, bound)
    title = function.__qualname__
    if parameters.is_forward:
        title = type(bound[0]).__qualname__
    needed = set(_sources_in([captured.residual.result, *captured.residual.effects]))
    given, kept, met = [], [], set()
    for position, entry in enumerate(captured.inputs):
        if not is_argument(entry.source) or isinstance(entry.fake, torch.SymInt):
            continue
        name, keys = parameters.way_to(entry.source)
        if name not in names:
            continue
        met.add(name)
        place = "".join(f"[{shown(key)}]" for key in keys)
        what = f"argument '{name}'{place} of {title}()"
        why = _why_kept(captured, entry, needed)
        if why:
            kept.append((what, why))
        else:
            given.append((position, what))
    for name in names:
        if name not in met:
            what = f"argument {name!r} of {title}()"
            kept.append((what, "the graph reads no tensor of it, but by way of attributes"))
    return Donations(tuple(given), tuple(kept))


def _why_kept(captured: Captured, entry: Any, needed: set[Source]) -> str:
    fake, source = entry.fake, entry.source
    if not needed.isdisjoint((source, *source.owners())):
        if captured.break_ is not None:
            return "what follows the graph break may read it"
        return "the call returns or keeps it, or what it is in"
    for guard in captured.guards:
        if guard.kind is Kind.SAME and source in (guard.source, guard.data):
            other = guard.data if source == guard.source else guard.source
            return f"the program has it twice, as {source.name} and {other.name}"  # type: ignore[union-attr]
    if isinstance(fake, torch.nn.Parameter):
        return "it is a parameter"
    if fake.is_conj() or fake.is_neg():
        return "its memory has other values than it shows"
    return ""


def _sources_in(recipes: Sequence[Recipe]) -> Iterator[Source]:
    """The objects that were there before the call and that recipes load."""
    stack, visited = list(recipes), set[int]()
    while stack:
        recipe = stack.pop()
        if id(recipe) in visited:
            continue
        visited.add(id(recipe))
        if isinstance(recipe, FromSource):
            yield recipe.source
        stack.extend(recipe.operands())
