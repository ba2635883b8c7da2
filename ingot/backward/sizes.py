"""Dynamic sizes of a compiled backward.

The geometry of a graph goes in, and that of a graph like it that was met before. The sizes that
differ become symbols; out come the conditions under which the program serves other sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ingot.backward.structure import PROGRAM, Geometry, Step, Structure
from ingot.errors import unsupported
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor
from ingot.graph.shape_context import ShapeContext
from ingot.graph.shape_guards import ShapeGuard
from ingot.graph.symbols import to_expr
from ingot.loops.expr import Expr, Symbol
from ingot.loops.training_contract import evaluated
from ingot.runtime.tangents import Demand

UNKNOWN = -1
"""What a size was before that is known to vary, but not from where."""


def before(
    structure: Structure, now: Geometry, previous: CompiledGraph | None
) -> list[tuple[int, ...]] | None:
    """What the numbers of a geometry were in a graph like it; None where all were the same. Where
    another program made a step, its own symbols tell what varies."""
    if previous is None:
        return None
    groups, *groups_of_steps = now.by_step()
    groups_then, *groups_of_steps_then = previous.geometry.by_step()
    if not _alike(groups, groups_then):
        return None
    then = [*groups_then]
    programs = map(_program_of, structure.steps)
    steps = zip(programs, previous.programs, groups_of_steps, groups_of_steps_then, strict=True)
    for program, program_then, groups, groups_then in steps:
        if program is not None and program is not program_then:
            then += _as_symbols(program, groups)
        elif _alike(groups, groups_then):
            then += groups_then
        else:
            return None
    if then != list(now.groups):
        return then
    return None


def _alike(groups: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> bool:
    """Whether groups have as many numbers as others."""
    return list(map(len, groups)) == list(map(len, others))


def _program_of(step: Step) -> Any:
    """The program whose backward a step is, if it is needed and is one."""
    if step.kind == PROGRAM and step.needed:
        return step.node.program
    return None


def _as_symbols(program: Any, groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The groups with UNKNOWN for what are symbols in a program: its sizes, and those of its saved
    tensors."""
    whole = Demand((True,) * len(program.contract.tangents))
    backward = program.backwards.graph(whole, None)
    if backward is None:
        raise unsupported(
            "backward-part", "a compiled forward's outputs, whose gradients need its inputs again"
        )
    saved = []
    for node in backward.aten.inputs:
        saved.append(node.meta["val"])
    *of_tensors, sizes = groups
    then = []
    for number, group in enumerate(of_tensors):
        tensor, is_strides = divmod(number, 2)
        if is_strides:
            like = saved[tensor].stride()
        else:
            like = saved[tensor].shape
        pairs = zip(like, group)
        then.append(tuple([UNKNOWN if isinstance(n, torch.SymInt) else now for n, now in pairs]))
    return [*then, (UNKNOWN,) * len(sizes)]


@dataclass
class CompiledGraph:
    """A graph that a backward was compiled for."""

    geometry: Geometry
    programs: list[Any]

    @classmethod
    def of(cls, structure: Structure, geometry: Geometry) -> CompiledGraph:
        return cls(geometry, list(map(_program_of, structure.steps)))


@dataclass
class Conditions:
    """What has to hold of the geometry of a graph. `expected` are its numbers in terms of the
    `symbols`, which are read at (group, position)."""

    expected: list[tuple[int | Expr, ...]]
    symbols: dict[Symbol, tuple[int, int]]
    guards: list[ShapeGuard] = field(default_factory=list)

    def hold(self, geometry: Geometry) -> bool:
        values = {symbol: geometry.groups[group][k] for symbol, (group, k) in self.symbols.items()}
        if any(value < symbol.lower for symbol, value in values.items()):
            return False
        for expected, group in zip(self.expected, geometry.groups, strict=True):
            if evaluated(expected, values) != group:
                return False
        return all(guard.holds(values) for guard in self.guards)


class Sizes:
    """The numbers of one geometry as they are traced: ints, or symbols for those that are not what
    they were `before`."""

    def __init__(
        self, context: FakeContext, geometry: Geometry, before: Sequence[tuple[int, ...]] | None
    ) -> None:
        self.context, self.geometry, self.before = context, geometry, before
        self.groups: list[tuple[Any, ...]] = list(geometry.groups)
        self._symbols: dict[Symbol, tuple[int, int]] = {}
        self._known: dict[tuple[int, int], torch.SymInt] = {}  # by what they were and are

    def tensor(self, name: str, group: int, t: torch.Tensor) -> FakeTensor:
        """The fake of a tensor whose sizes are a group, and whose strides are the next."""
        if self.before is None:
            return self.context.fake(t.detach())
        now, then = self.geometry.groups[group], self.before[group]
        dims = frozenset(d for d, number in enumerate(now) if number != then[d])
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
            equal = self._like(then[d], now[d])
            if equal is None:
                self._known[then[d], now[d]] = size
            else:
                self.context.shapes.holds(symbol, "==", to_expr(equal))
        self.groups[group], self.groups[group + 1] = tuple(fake.shape), tuple(fake.stride())
        return fake

    def _like(self, then: int, now: int) -> torch.SymInt | None:
        """A symbol that was and is the same, as far as that is known."""
        if (then, now) in self._known:
            return self._known[then, now]
        for (a, b), symbol in self._known.items():
            if b == now and UNKNOWN in (a, then):
                return symbol
        return None

    def numbers(self, group: int) -> tuple[Any, ...]:
        """Those of a group that belong to no tensor."""
        if self.before is not None:
            pairs = zip(self.before[group], self.geometry.groups[group])
            self.groups[group] = tuple([b if a == b else self._number(a, b) for a, b in pairs])
        return self.groups[group]

    def _number(self, then: int, now: int) -> Any:
        """A number that varies, in terms of sizes that do. (Whether it is that is asked at each
        call.)"""
        number = self._like(then, now)
        if number is None:
            number = self._multiple(then, now)
        if number is None:
            number = self._product(then, now)
        if number is None:
            number = self._fraction(then, now)
        if number is None:
            raise unsupported(
                "backward-sizes", f"a number that varies, {now}, and is no size of a tensor's"
            )
        return number

    def _multiple(self, then: int, now: int) -> Any:
        for (a, b), symbol in self._known.items():
            if b and now % b == 0 and (UNKNOWN in (a, then) or then == now // b * a):
                return now // b * symbol
        return None

    def _product(self, then: int, now: int) -> Any:
        for (a, b), one in self._known.items():
            for (c, d), other in self._known.items():
                if b * d == now and (UNKNOWN in (a, c, then) or a * c == then):
                    return one * other
        return None

    def _fraction(self, then: int, now: int) -> Any:
        for (a, b), whole in self._known.items():
            if now and b % now == 0 and (UNKNOWN in (a, then) or a == b // now * then):
                return whole // (b // now)
        return None

    def conditions(self) -> Conditions | None:
        """What has to hold elsewhere, once all is compiled; None where there are no symbols."""
        if self.before is None:
            return None
        shapes: ShapeContext = self.context.shapes
        shapes.closed = True
        expected = []
        for group in self.groups:
            expected.append(tuple(map(_plain, group)))
        return Conditions(expected, self._symbols, list(shapes.guards))


def _plain(n: Any) -> int | Expr:
    if isinstance(n, int):
        return n
    e = to_expr(n)
    if e.constant is None:
        return e
    return e.constant


def at(by_sizes: Any, values: Sequence[Any]) -> Any:
    """What a program makes of values of its symbols, which may be symbols themselves."""
    if all(isinstance(value, int) for value in values):
        return by_sizes.at(tuple(values))
    sizes: Mapping[Symbol, Any] = dict(zip(by_sizes.places, values))
    return by_sizes.make(sizes)
