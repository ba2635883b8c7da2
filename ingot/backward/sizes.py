"""Sizes of a backward that vary: those that differ from what they were in a graph that is alike
become symbols, and the program serves others for which all that it relied on holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ingot.backward.structure import PROGRAM, Geometry, Structure
from ingot.errors import unsupported
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor
from ingot.graph.shape_context import ShapeContext
from ingot.graph.shape_guards import ShapeGuard
from ingot.graph.symbols import to_expr
from ingot.loops.expr import Expr, Symbol
from ingot.runtime.tangents import Demand

UNKNOWN = -1
"""What a size was before that is known to vary, but not from where."""


def before(structure: Structure, now: Geometry, seen: Seen | None) -> list[tuple[int, ...]] | None:
    """What the numbers of a geometry were in a graph like it; None where all were the same. Where
    another program made a step, its own symbols tell what varies."""
    if seen is None:
        return None
    then: list[tuple[int, ...]] = []
    for position, (groups, known) in enumerate(
        zip(now.by_step(), seen.geometry.by_step(), strict=True)
    ):
        program = (
            structure.steps[position - 1].node.program
            if position and _is_program(structure, position)
            else None
        )
        if program is not None and program is not seen.programs[position - 1]:
            then += _as_symbols(program, groups)
        elif [len(g) for g in groups] != [len(g) for g in known]:
            return None
        else:
            then += known
    return then if then != list(now.groups) else None


def _is_program(structure: Structure, position: int) -> bool:
    step = structure.steps[position - 1]
    return step.kind == PROGRAM and step.needed


def _as_symbols(program: Any, groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The groups with UNKNOWN for what are symbols in a program: its sizes, and those of the
    tensors that it keeps."""
    whole = Demand((True,) * len(program.contract.tangents))
    part = program.backwards.graph(whole, None)
    if part is None:
        raise unsupported(
            "backward-part", "a compiled forward's outputs, whose gradients need its inputs again"
        )
    kept = [node.meta["val"] for node in part.aten.inputs]
    found = []
    for number, group in enumerate(groups):
        tensor, strides = divmod(number, 2)
        if number == len(groups) - 1:
            found.append((UNKNOWN,) * len(group))
            continue
        like = kept[tensor].stride() if strides else kept[tensor].shape
        varying = [isinstance(n, torch.SymInt) for n in like]
        found.append(tuple([UNKNOWN if varies else n for varies, n in zip(varying, group)]))
    return found


@dataclass
class Seen:
    """A graph that a backward was compiled for."""

    geometry: Geometry
    programs: list[Any]

    @classmethod
    def of(cls, structure: Structure, geometry: Geometry) -> Seen:
        return cls(
            geometry,
            [s.node.program if s.kind == PROGRAM and s.needed else None for s in structure.steps],
        )


@dataclass
class Conditions:
    """What has to hold of the geometry of a graph: `expected` says what each number is, in terms of
    the `symbols`, which are read at (group, position)."""

    expected: list[tuple[int | Expr, ...]]
    symbols: dict[Symbol, tuple[int, int]]
    guards: list[ShapeGuard] = field(default_factory=list)

    def hold(self, geometry: Geometry) -> bool:
        values = {symbol: geometry.groups[group][k] for symbol, (group, k) in self.symbols.items()}
        if any(value < symbol.lower for symbol, value in values.items()):
            return False
        for expected, found in zip(self.expected, geometry.groups, strict=True):
            for e, number in zip(expected, found, strict=True):
                if (e if isinstance(e, int) else e.evaluate(values)) != number:
                    return False
        return all(guard.holds(values) for guard in self.guards)


class Sizes:
    """The numbers of one geometry as they are to be traced: ints, and symbols for those that are
    not what they were `before`, if that is known."""

    def __init__(
        self, context: FakeContext, geometry: Geometry, before: Sequence[tuple[int, ...]] | None
    ) -> None:
        self.context, self.geometry, self.before = context, geometry, before
        self.taken: list[tuple[Any, ...]] = list(geometry.groups)
        self._symbols: dict[Symbol, tuple[int, int]] = {}
        self._known: dict[tuple[int, int], torch.SymInt] = {}  # by what they were and are

    def tensor(self, name: str, group: int, t: torch.Tensor) -> FakeTensor:
        """The fake of a tensor whose sizes are a group, and whose strides are the next."""
        if self.before is None:
            return self.context.fake(t.detach())
        now, then = self.geometry.groups[group], self.before[group]
        dims = frozenset(d for d, (a, b) in enumerate(zip(then, now)) if a != b)
        if any(now[d] < 2 for d in dims):
            raise unsupported("backward-sizes", "a size that varies and is 0 or 1")
        # what is read may share memory
        own = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
        fake = self.context.fake(own, dims, name)
        for d in dims:
            size = fake.shape[d]
            assert isinstance(size, torch.SymInt)
            symbol = to_expr(size)
            assert isinstance(symbol, Symbol)
            self._symbols[symbol] = (group, d)
            known = self._like(then[d], now[d])
            if known is None:
                self._known[then[d], now[d]] = size
            else:
                self.context.shapes.holds(symbol, "==", to_expr(known))
        self.taken[group], self.taken[group + 1] = tuple(fake.shape), tuple(fake.stride())
        return fake

    def _like(self, then: int, now: int) -> torch.SymInt | None:
        """A symbol that was and is the same, as far as that is known."""
        if (then, now) in self._known:
            return self._known[then, now]
        candidates = [s for (a, b), s in self._known.items() if b == now and UNKNOWN in (a, then)]
        return candidates[0] if candidates else None

    def numbers(self, group: int) -> tuple[Any, ...]:
        """Those of a group that belong to no tensor."""
        if self.before is not None:
            pairs = zip(self.before[group], self.geometry.groups[group])
            self.taken[group] = tuple([b if a == b else self._number(a, b) for a, b in pairs])
        return self.taken[group]

    def _number(self, then: int, now: int) -> Any:
        """A number that varies, in terms of sizes that do. (Whether it is that is asked at each
        call.)"""
        known = self._like(then, now)
        if known is not None:
            return known
        for (a, b), symbol in self._known.items():
            if b and now % b == 0 and (UNKNOWN in (a, then) or then == now // b * a):
                return now // b * symbol
        for (a, b), one in self._known.items():
            for (c, d), other in self._known.items():
                if b * d == now and (UNKNOWN in (a, c, then) or a * c == then):
                    return one * other
        for (a, b), whole in self._known.items():
            if now and b % now == 0 and (UNKNOWN in (a, then) or a == b // now * then):
                return whole // (b // now)
        raise unsupported(
            "backward-sizes", f"a number that varies, {now}, and is no size of a tensor's"
        )

    def conditions(self) -> Conditions | None:
        """What has to hold elsewhere, once all is compiled; None where there are no symbols."""
        if self.before is None:
            return None
        shapes: ShapeContext = self.context.shapes
        shapes.closed = True
        expected = [tuple([_plain(n) for n in group]) for group in self.taken]
        return Conditions(expected, self._symbols, list(shapes.guards))


def _plain(n: Any) -> int | Expr:
    if isinstance(n, int):
        return n
    e = to_expr(n)
    return e if e.constant is None else e.constant


def at(by_sizes: Any, values: Sequence[Any]) -> Any:
    """What a program makes of values of its symbols, which may be symbols themselves."""
    if all(isinstance(value, int) for value in values):
        return by_sizes.at(tuple(values))
    chosen: Mapping[Symbol, Any] = dict(zip(by_sizes.places, values))
    return by_sizes.make(chosen)
