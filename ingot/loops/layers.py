"""Layers that are alike: how a line of items for some of them becomes the line for all.

The items are nodes of a graph or steps of a plan, in their order. Among them are two stretches, one
behind the other, of which the second does to the values of one layer what the first does to those
of the layer before; a stretch may begin and end anywhere in a layer. The second one is repeated for
the layers that are left out. What follows is given the values of the last layers in place of those
that it had.

Nothing is taken for granted of how a line came about. Where what is read shows that the second
stretch could not be all that the other layers need, `NotAlike` is raised.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

Row = tuple[int, ...]
"""What each layer of a program has in one place: positions among its inputs, or its outputs, in the
order of the layers."""

Name = TypeVar("Name", bound=Hashable)

_PERIODS = 4
"""Lengths of a stretch that are tried, and twice these."""


class NotAlike(Exception):
    """Some layers do not tell what all of them do."""


@dataclass(frozen=True)
class Layers:
    """What a graph with some layers leaves out of its program.

    In a row of the program's inputs or outputs the graph has the first ones, all but as many as
    there are layers `left_out`; what follows the last layer follows the last that it has. `inputs`
    and `outputs` are the positions in the program of all that the graph has.
    """

    left_out: int
    inputs: tuple[int, ...]
    input_rows: tuple[Row, ...]
    outputs: tuple[int, ...]
    output_rows: tuple[Row, ...]

    def shown(self, row: Row) -> Row:
        """What the graph has of a row."""
        return row[: len(row) - self.left_out]


class Copied(NamedTuple, Generic[Name]):
    """A value of the program: what the graph has of this name, or the copy of it with a number."""

    name: Name
    number: int = 0


class Line(NamedTuple, Generic[Name]):
    """The items of a graph. Those of one kind do the same to the values that they name, each in the
    order in which it does; what they write is among these."""

    kinds: Sequence[int]
    names: Sequence[Sequence[Name]]
    writes: Sequence[Sequence[Name]]
    inputs: Sequence[Name]
    outputs: Sequence[Name | None]


class Repeated(Generic[Name]):
    """How a line is made longer. Raises `NotAlike` where it cannot be."""

    def __init__(self, line: Line[Name], layers: Layers) -> None:
        self.line, self.layers, self.more = line, layers, layers.left_out
        forward, backward = _Inputs(line, layers, True), _Inputs(line, layers, False)
        stretches = [_Stretches.longest(line, inputs) for inputs in (forward, backward)]
        best = max(filter(None, stretches), key=len, default=None)
        if best is None:
            raise NotAlike("nothing follows itself as layers do")
        self._inputs, self.second, self.following = best.inputs, best.second, best.following
        self.first = range(self.second.start - len(self.second), self.second.start)
        made_at: dict[Name, int] = {}
        for k, names in enumerate(line.writes):
            for name in names:
                made_at.setdefault(name, k)
        self._own = {name for name, k in made_at.items() if k in self.second}
        self._before = {name for name, k in made_at.items() if k in self.first}
        self._require_all_there()

    # -- the longer line ---------------------------------------------------------------------------

    def items(self) -> Iterator[tuple[int, dict[Name, Copied[Name]]]]:
        """The items of the program: which of the graph's each is, and what it names in place of
        what that does."""
        for k, names in enumerate(self.line.names[: self.second.stop]):
            yield k, {name: Copied(name) for name in names}
        for turn in range(1, self.more + 1):
            for k in self.second:
                yield k, {name: self._repeated(name, turn) for name in self.line.names[k]}
        for k in range(self.second.stop, len(self.line.names)):
            yield k, {name: self._behind(name) for name in self.line.names[k]}

    def inputs(self) -> list[Copied[Name]]:
        """The inputs of the program."""
        result = dict(zip(self.layers.inputs, map(Copied, self.line.inputs)))
        for row, names in zip(self.layers.input_rows, self._inputs.rows):
            result.update(zip(self._inputs.ordered(row), names))
        return [result[k] for k in range(len(result))]

    def outputs(self) -> list[tuple[int, Copied[Name] | None]]:
        """The outputs of the program: which of the graph's each is, and of what copy; None for what
        is no value of the line."""
        shown = {place: k for k, place in enumerate(self.layers.outputs)}
        result: dict[int, tuple[int, Copied[Name] | None]] = {}
        for row in self.layers.output_rows:
            ordered = self._inputs.ordered(row)
            entries: list[tuple[int, Copied[Name] | None]] = []
            for place in self._inputs.ordered(self.layers.shown(row)):
                k = shown.pop(place)
                entries += self._copies_of_output(k)
            if len(entries) != len(row):
                raise NotAlike("some layers have no output of their own")
            result.update(zip(ordered, entries))
        for place, k in shown.items():
            entries = self._copies_of_output(k)
            if len(entries) > 1:
                raise NotAlike("an output is made by each layer")
            result[place] = entries[0]
        return [result[k] for k in range(len(result))]

    def _copies_of_output(self, k: int) -> list[tuple[int, Copied[Name] | None]]:
        """An output of the graph, with the copies of it where it is made in the stretch that is
        repeated."""
        name = self.line.outputs[k]
        if name is None:
            return [(k, None)]
        if name in self._inputs.place:
            raise NotAlike("an input of a layer is an output")
        copies = range(self.more + 1 if name in self._own else 1)
        return [(k, Copied(name, number)) for number in copies]

    def chains(self) -> list[list[int]]:
        """The outputs that layers have in one place, in the order of the layers, of those whose
        position in the program is not known yet."""
        position: dict[Name, int] = {}
        for k in range(len(self.layers.outputs), len(self.line.outputs)):
            name = self.line.outputs[k]
            if name is not None:
                position.setdefault(name, k)
        followed = {other for one, other in self.following.items() if one in position}
        chains = []
        for name, k in position.items():
            if name not in followed:
                chain, here = [k], self.following.get(name)
                while here is not None and here in position and here != name:
                    chain.append(position[here])
                    here = self.following.get(here)
                if any(self.line.outputs[k] in self._own for k in chain):
                    chains.append(chain if self._inputs.is_forward else chain[::-1])
        return chains

    # -- what is named in place of what ------------------------------------------------------------

    def _repeated(self, name: Name, turn: int) -> Copied[Name]:
        """For the stretch that is repeated, the first time in turn 1."""
        if name in self._own:
            return Copied(name, turn)
        if name in self._before:
            return Copied(self.following[name], turn - 1)
        return self._inputs.later(name, turn)

    def _behind(self, name: Name) -> Copied[Name]:
        if name in self._own:
            return Copied(name, self.more)
        return self._inputs.later(name, self.more)

    # -- whether it is right -----------------------------------------------------------------------

    def _require_all_there(self) -> None:
        """Raises `NotAlike` where other layers need more than what is repeated."""
        preceding: dict[Name, Name] = {}
        for k in self.first:
            for one, other in zip(self.line.names[k], self.line.names[k + len(self.second)]):
                if preceding.setdefault(other, one) != one:
                    raise NotAlike(f"{other} stands for several values")
                # what a layer makes, or reads of the one before, is made anew; all else is the same
                is_own = other in self._own and one in self._before
                is_alike = one == other or is_own or self._is_made_anew(other)
                if not (is_alike or other in self._inputs.place):
                    raise NotAlike(f"{other} is of a layer long before")
        self._require_behind()
        self._require_inputs()

    def require_own(self) -> None:
        """Raises `NotAlike` where layers hand on what goes on alone. Asks of a line that each of
        its items writes one value."""
        place = {self.line.writes[k][0]: k - self.first.start for k in self.first}
        place |= {self.line.writes[k][0]: k - self.second.start for k in self.second}
        reads, reads_own = [], []
        for k in self.second:
            operands = set(self.line.names[k]) - set(self.line.writes[k])
            reads.append([place[name] for name in operands if name in place])
            reads_own.append(not operands.isdisjoint(self._inputs.place))
        if goes_on_alone(reads, reads_own):
            raise NotAlike("a value goes on through the layers alone")

    def _is_made_anew(self, name: Name) -> bool:
        """Whether the first stretch makes a value, and the second one another in its place."""
        return name in self._before and self.following.get(name) in self._own

    def _require_behind(self) -> None:
        """What follows reads of the layers what one layer reads of the one before: it has nothing
        to do for each of them."""
        handed_on: set[Name] = set()
        for k in self.second:
            for name in self.line.names[k]:
                if name in self._before:
                    handed_on.add(self.following[name])
        made: set[Name] = set()
        for k in range(self.second.stop, len(self.line.names)):
            made.update(self.line.writes[k])
            for name in self.line.names[k]:
                is_of_layers = name in self._own or name in self._before
                if is_of_layers and name not in handed_on:
                    raise NotAlike(f"{name} is read behind the layers")
                is_known = is_of_layers or name in made or name in self._inputs.place
                if not (is_known or self.following.get(name, name) == name):
                    raise NotAlike(f"{name} is of a layer long before")

    def _require_inputs(self) -> None:
        """Each layer's inputs are read where its turn is."""
        place, turns = self._inputs.place, dict[int, set[int]]()
        for k in self.second:
            for name in self.line.names[k]:
                if name in place:
                    row, turn = place[name]
                    turns.setdefault(row, set()).add(turn)
        for k, names in enumerate(self.line.names):
            if k in self.first or k in self.second:
                continue
            for name in names:
                if name not in place:
                    continue
                row, turn = place[name]
                if row not in turns:
                    raise NotAlike(f"{name} is not read by each layer")
                is_early = k < self.first.start
                if turn > max(turns[row]) - 2 if is_early else turn <= min(turns[row]):
                    raise NotAlike(f"{name} is read where other layers have their turn")


def goes_on_alone(reads: Sequence[Iterable[int]], reads_own: Sequence[bool]) -> bool:
    """Whether layers hand on a value that they change without a look at what is their own.

    Of the items of one layer there is which others each `reads`, of its own layer or of the one
    before, and whether it reads an input of the layer's own. What goes on alone may be computed for
    all layers at any place, where nothing tells for how many it was.
    """
    specific = {k for k, is_own in enumerate(reads_own) if is_own}
    grown = True
    while grown:
        more = {k for k, of_item in enumerate(reads) if not specific.isdisjoint(of_item)}
        grown = not more <= specific
        specific |= more
    rest = set(range(len(reads))) - specific
    while rest:
        ended = {k for k in rest if rest.isdisjoint(reads[k])}
        if not ended:
            return True
        rest -= ended
    return False


# -- the inputs of layers --------------------------------------------------------------------------


class _Inputs(Generic[Name]):
    """The inputs that layers have of their own.

    By name there is their row, and their turn in it: their layer in the order in which the line
    comes to them, which is the last one first in a backward.
    """

    def __init__(self, line: Line[Name], layers: Layers, is_forward: bool) -> None:
        self.is_forward = is_forward
        position = {place: k for k, place in enumerate(layers.inputs)}
        self.place: dict[Name, tuple[int, int]] = {}
        self.rows: list[list[Copied[Name]]] = []
        for r, row in enumerate(layers.input_rows):
            names = [line.inputs[position[k]] for k in self.ordered(layers.shown(row))]
            for turn, name in enumerate(names):
                self.place[name] = r, turn
            new = [Copied(names[-1], number + 1) for number in range(layers.left_out)]
            self.rows.append([*map(Copied, names), *new])

    def ordered(self, row: Row) -> Row:
        """What layers have, in the order in which the line comes to them."""
        return row if self.is_forward else row[::-1]

    def later(self, name: Name, turns: int) -> Copied[Name]:
        """What takes the place of an input some turns later; another value as it is."""
        if name not in self.place:
            return Copied(name)
        row, turn = self.place[name]
        return self.rows[row][turn + turns]

    def follows(self, one: Name, other: Name) -> bool | None:
        """Whether `other` is to a layer what `one` is to the layer before. None if neither is a
        layer's own."""
        if one not in self.place and other not in self.place:
            return None
        row, turn = self.place.get(one, (-1, 0))
        return self.place.get(other) == (row, turn + 1)


# -- finding the stretches -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stretches(Generic[Name]):
    """The items from `begin` to `end` do what those `length` before them do, to the values that
    are `following` in place of theirs."""

    inputs: _Inputs[Name]
    begin: int
    end: int
    length: int
    following: dict[Name, Name]

    @classmethod
    def longest(cls, line: Line[Name], inputs: _Inputs[Name]) -> _Stretches[Name] | None:
        kinds, names = line.kinds, line.names
        best: _Stretches[Name] | None = None
        for length in periods(kinds):
            begin, following = length, dict[Name, Name]()
            for k in range(length, len(kinds) + 1):
                if k < len(kinds) and kinds[k - length] == kinds[k]:
                    if _follow(names[k - length], names[k], following, inputs):
                        continue
                if k - begin >= length and (best is None or k - begin > len(best)):
                    best = cls(inputs, begin, k, length, following)
                begin, following = k + 1, {}
        return best

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def second(self) -> range:
        """The second of two stretches, in the midst of all."""
        first = (self.begin + self.end - self.length) // 2
        return range(first, first + self.length)


def periods(kinds: Sequence[int]) -> list[int]:
    """Likely lengths of a stretch that is repeated, in a line of items of these kinds.

    They are distances between items of kinds that come at regular intervals, those of most kinds
    first, and twice these, for layers of two kinds in turn.
    """
    last: dict[int, int] = {}
    gaps: dict[int, Counter[int]] = defaultdict(Counter)
    for k, kind in enumerate(kinds):
        if kind in last:
            gaps[kind][k - last[kind]] += 1
        last[kind] = k
    votes: Counter[int] = Counter()
    for of_kind in gaps.values():
        gap, count = of_kind.most_common(1)[0]
        if 2 * count > of_kind.total() > 1:
            votes[gap] += 1
    likely = [gap for gap, _ in votes.most_common(_PERIODS)]
    return [*likely, *[2 * gap for gap in likely if 2 * gap not in likely]]


def _follow(
    before: Sequence[Name],
    here: Sequence[Name],
    following: dict[Name, Name],
    inputs: _Inputs[Name],
) -> bool:
    """Whether the values of an item may take the place of those of one before. `following` says
    which takes that of which."""
    more: dict[Name, Name] = {}
    for one, other in zip(before, here, strict=True):
        if inputs.follows(one, other) is False:
            return False
        if following.get(one, other) != other or more.setdefault(one, other) != other:
            return False
    following |= more
    return True
