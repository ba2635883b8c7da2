"""The steps of layers that are like ones which have been scheduled.

Steps for a few layers of a program go in (`loops/layers.py`), those for all come out. Among the
steps there are two stretches, one behind the other, of which the second does to the buffers of one
layer what the first does to those of the layer before: such a stretch may begin and end anywhere in
a layer. The second one is repeated for the layers that are left out, and what follows it is given
the buffers of the last layers in place of those that it had.

Nothing is taken for granted of how the steps came about. Where what is read shows that the second
stretch could not be all that the other layers need, `NotAlike` is raised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ingot.loops.ir import LoopGraph, Origin, View
from ingot.loops.layers import Layers, NotAlike
from ingot.schedule.horizontal import accesses
from ingot.schedule.kernel import anonymous
from ingot.schedule.plan import KernelStep, LibraryStep
from ingot.schedule.reuse import renamed_library
from ingot.sequences import at

Step = KernelStep | LibraryStep
_PERIODS = 6  # that are tried: those by which most steps follow steps of their kind


def with_all_layers(steps: list[Step], graph: LoopGraph) -> tuple[list[Step], LoopGraph]:
    """The steps for all layers of a program, and a graph with their buffers, inputs and outputs.
    Raises `NotAlike` where some layers do not tell what all of them do."""
    if graph.layers is None:
        return steps, graph
    for forward in (True, False):
        inputs = _Inputs(graph, graph.layers, forward)
        second = _second_stretch(steps, inputs)
        if second is not None:
            return _Longer(steps, graph, inputs, second).made()
    raise NotAlike("no steps follow one another as layers do")


class _Inputs:
    """The inputs that layers have of their own.

    By name there is their row, and their layer in the order in which the steps come to them: the
    last one first in a backward.
    """

    def __init__(self, graph: LoopGraph, layers: Layers, forward: bool) -> None:
        self.layers, self.forward = layers, forward
        position = {place: k for k, place in enumerate(layers.inputs)}
        self.place: dict[str, tuple[int, int]] = {}
        self.rows: list[list[str]] = []
        for r, row in enumerate(layers.input_rows):
            names = []
            for place in self.ordered(row[: layers.kept]):
                names.append(graph.inputs[position[place]])
            self.rows.append(names)
            for t, name in enumerate(names):
                self.place[name] = r, t

    def ordered(self, row: Sequence[Any]) -> Sequence[Any]:
        """What layers have, in the order in which the steps come to them."""
        return row if self.forward else row[::-1]

    def follows(self, one: str, other: str) -> bool | None:
        """Whether `other` is to a layer what `one` is to the layer before. None if neither is a
        layer's own."""
        if one not in self.place and other not in self.place:
            return None
        r, t = self.place.get(one, (-1, 0))
        return self.place.get(other) == (r, t + 1)


# -- finding the stretches -------------------------------------------------------------------------


def _second_stretch(steps: Sequence[Step], inputs: _Inputs) -> range | None:
    """The second of two stretches of steps that do the same, in the midst of all that do."""
    kinds, names = _Kinds(), list(map(named, steps))
    numbers = [kinds.number(step) for step in steps]
    best: tuple[int, int, int] | None = None
    for length in _periods(numbers):
        begin, following = length, dict[str, str]()
        for k in (*range(length, len(steps)), None):
            if k is not None and numbers[k - length] == numbers[k]:
                if _follow(names[k - length], names[k], following, inputs):
                    continue
            end = len(steps) if k is None else k
            if end - begin >= length and (best is None or end - begin > best[1] - best[0]):
                best = begin, end, length
            begin, following = end + 1, {}
    if best is None:
        return None
    begin, end, length = best
    first = (begin + end - length) // 2
    return range(first, first + length)


def _periods(numbers: Sequence[int]) -> list[int]:
    last: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for k, number in enumerate(numbers):
        if number in last:
            gaps[k - last[number]] += 1
        last[number] = k
    return [gap for gap, _ in gaps.most_common(_PERIODS)]


def _follow(
    before: Sequence[str], here: Sequence[str], following: dict[str, str], inputs: _Inputs
) -> bool:
    """Whether the buffers of a step may take the place of those of one before. `following` says
    which takes that of which."""
    for one, other in zip(before, here, strict=True):
        if inputs.follows(one, other) is False or following.setdefault(one, other) != other:
            return False
    return True


class _Kinds:
    """Numbers for steps: those of one number do the same, to the buffers that they name."""

    def __init__(self) -> None:
        self._known: dict[Any, list[Any]] = {}

    def number(self, step: Step) -> int:
        if isinstance(step, KernelStep):
            alike: Any = replace(step, kernel=anonymous(step.kernel, True), arguments=())
            group: Any = KernelStep
        else:
            alike = replace(renamed_library(step.node, _nameless), name="", origin=Origin(()))
            group = alike.function
        for number, other in self._known.setdefault(group, []):
            if other == alike:
                return number  # type: ignore[no-any-return]
        number = sum(map(len, self._known.values()))
        self._known[group].append((number, alike))
        return number


def _nameless(name: str) -> str:
    return ""


def named(step: Step) -> list[str]:
    """The buffers that a step names, in the order in which it does."""
    if isinstance(step, KernelStep):
        return list(step.arguments)
    names: list[str] = []

    def note(name: str) -> str:
        names.append(name)
        return name

    renamed_library(step.node, note)
    return names


# -- making them longer ----------------------------------------------------------------------------


class _Longer:
    """The steps for all layers. `second` is the stretch that is repeated."""

    def __init__(
        self, steps: Sequence[Step], graph: LoopGraph, inputs: _Inputs, second: range
    ) -> None:
        self.steps, self.graph, self.inputs, self.second = steps, graph, inputs, second
        self.layers = inputs.layers
        self.more = self.layers.left_out
        self.buffers = dict(graph.buffers)
        self.origin: dict[str, str] = {}  # of new buffers, those that they are like
        first = range(second.start - len(second), second.start)
        self.made_at: dict[str, int] = {}
        for k, step in enumerate(steps):
            for name in accesses(step)[1]:
                self.made_at.setdefault(name, k)
        self.following: dict[str, str] = {}
        for k in first:
            self.following.update(zip(named(steps[k]), named(steps[k + len(second)])))
        self.own = {name for name, k in self.made_at.items() if k in second}
        self.before = {name for name, k in self.made_at.items() if k in first}
        self.names = [self._names_of_row(row) for row in inputs.rows]
        self._require_all_there()

    def made(self) -> tuple[list[Step], LoopGraph]:
        end = self.second.stop
        result = list(self.steps[:end])
        for turn in range(1, self.more + 1):
            for k in self.second:
                result.append(_renamed(self.steps[k], self._repeated(turn)))
        for step in self.steps[end:]:
            result.append(_renamed(step, self._behind))
        return result, self._longer_graph()

    # -- what is named in place of what ------------------------------------------------------------

    def _repeated(self, turn: int) -> Callable[[str], str]:
        """The names for the stretch that is repeated, the first time in turn 1."""

        def name_of(name: str) -> str:
            if name in self.own:
                return self._copy(name, turn)
            if name in self.before:
                return self._copy(self.following[name], turn - 1)
            return self._later(name, turn)

        return name_of

    def _behind(self, name: str) -> str:
        """The name for what follows the stretches."""
        if name in self.own:
            return self._copy(name, self.more)
        if name in self.before:
            return self._copy(self.following[name], self.more - 1)
        return self._later(name, self.more)

    def _later(self, name: str, turns: int) -> str:
        """An input of a later layer; another buffer as it is."""
        if name not in self.inputs.place:
            return name
        r, t = self.inputs.place[name]
        return self.names[r][t + turns]

    def _copy(self, name: str, turn: int) -> str:
        if turn == 0:
            return name
        return self._new(f"{name}__{turn}", name)

    def _new(self, new: str, like: str) -> str:
        if new not in self.origin:
            if new in self.graph.buffers:
                raise NotAlike(f"there is a buffer {new!r}")
            self.origin[new] = like
            self.buffers[new] = replace(self.buffers[like], name=new)
        return new

    def _names_of_row(self, row: Sequence[str]) -> list[str]:
        return [*row, *[self._new(f"{row[-1]}__{k + 1}", row[-1]) for k in range(self.more)]]

    # -- whether it is right -----------------------------------------------------------------------

    def _require_all_there(self) -> None:
        """Raises `NotAlike` where other layers need more than the steps that are repeated."""
        preceding: dict[str, str] = {}
        for one, other in self.following.items():
            if preceding.setdefault(other, one) != one:
                raise NotAlike(f"{other} stands for several buffers")
            # what a layer makes, or reads of the one before, is made anew; all else is the same
            is_own = other in self.own and one in self.before
            is_alike = one == other or is_own or self._is_made_anew(other)
            if not (is_alike or other in self.inputs.place):
                raise NotAlike(f"{other} is of a layer long before")
        for step in self.steps[self.second.stop :]:
            for name in named(step):
                is_known = name in self.own or name in self.inputs.place
                if not (is_known or self._is_made_anew(name)):
                    if self.following.get(name, name) != name:
                        raise NotAlike(f"{name} is of a layer long before")
        self._require_inputs()

    def _is_made_anew(self, name: str) -> bool:
        """Whether the first stretch makes a buffer, and the second one another in its place."""
        return name in self.before and self.following.get(name) in self.own

    def _require_inputs(self) -> None:
        """Each layer's inputs are read where its turn is."""
        turns: dict[int, set[int]] = {}
        for k in self.second:
            for name in named(self.steps[k]):
                if name in self.inputs.place:
                    r, t = self.inputs.place[name]
                    turns.setdefault(r, set()).add(t)
        first = self.second.start - len(self.second)
        for k, step in enumerate(self.steps):
            if first <= k < self.second.stop:
                continue
            for name in named(step):
                if name not in self.inputs.place:
                    continue
                r, t = self.inputs.place[name]
                if r not in turns:
                    raise NotAlike(f"{name} is not read by each layer")
                if (k < first and t > max(turns[r]) - 2) or (k >= first and t <= min(turns[r])):
                    raise NotAlike(f"{name} is read where other layers have their turn")

    # -- the graph ---------------------------------------------------------------------------------

    def _longer_graph(self) -> LoopGraph:
        graph, layers = self.graph, self.layers
        inputs = dict(zip(layers.inputs, graph.inputs))
        for row, names in zip(layers.input_rows, self.names):
            inputs.update(zip(self.inputs.ordered(row), names))
        outputs, spread = self._outputs()
        longer = replace(
            graph,
            buffers=self.buffers,
            inputs=[inputs[k] for k in range(len(inputs))],
            outputs=outputs,
            checked=self._all_of(graph.checked),
            lends=self._all_of(graph.lends),
            addressed=self._all_of(graph.addressed),
            layers=replace(layers, spread=spread),
        )
        return longer

    def _all_of(self, names: set[str]) -> set[str]:
        """Buffers, with those that are like them."""
        return names | {new for new, like in self.origin.items() if like in names}

    def _outputs(self) -> tuple[list[Any], tuple[tuple[int, int], ...]]:
        """The outputs of the program, and of which output of the graph each is which copy."""
        graph, layers = self.graph, self.layers
        known = len(layers.outputs)
        places: dict[int, tuple[int, int]] = {}
        in_rows: set[int] = set()
        of_place = {place: k for k, place in enumerate(layers.outputs)}
        for row in layers.output_rows:
            shown = at(of_place, self.inputs.ordered(row[: layers.kept]))
            in_rows.update(shown)
            spread = self._spread(shown)
            if len(spread) != layers.count:
                raise NotAlike("some layers have no output of their own")
            places.update(zip(self.inputs.ordered(row), spread))
        for k, place in enumerate(layers.outputs):
            if k not in in_rows:
                if self._is_repeated(k):
                    raise NotAlike("an output is made by each layer")
                places[place] = (k, 0)
        order = [places[k] for k in range(len(places))]
        order += self._spread(range(known, len(graph.outputs)))
        return [self._shown(k, turn) for k, turn in order], tuple(order)

    def _spread(self, outputs: Iterable[int]) -> list[tuple[int, int]]:
        """Outputs of the graph with, behind those that are made in the stretch that is repeated,
        their copies."""
        result = []
        for k in outputs:
            result.append((k, 0))
            if self._is_repeated(k):
                result += [(k, turn) for turn in range(1, self.more + 1)]
        return result

    def _is_repeated(self, output: int) -> bool:
        view = self.graph.outputs[output]
        return isinstance(view, View) and view.buffer in self.own

    def _shown(self, output: int, turn: int) -> Any:
        view = self.graph.outputs[output]
        if not isinstance(view, View):
            return view
        name = view.buffer
        if name in self.inputs.place:
            raise NotAlike("an input of a layer is an output")
        if self.made_at.get(name, -1) >= self.second.stop:
            assert turn == 0
            return view
        return replace(view, buffer=self._copy(name, turn))


def _renamed(step: Step, name_of: Callable[[str], str]) -> Step:
    if isinstance(step, KernelStep):
        return replace(step, arguments=tuple(map(name_of, step.arguments)))
    node = renamed_library(step.node, name_of)
    return LibraryStep(replace(node, name=next(iter(filter(None, node.targets)), node.name)))
