"""What a report is made of: small records, and each as plain data for tools.

`as_plain` gives dicts, lists, strings, numbers and None of them; docs/report.md has every field.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ingot.errors import Unsupported
from ingot.explain.text import code_around, place_text, split_where
from ingot.spots import short_name

INTERNAL: Mapping[str, Any] = MappingProxyType({"internal": True})
"""Metadata of a field that is no plain data."""


@dataclass(frozen=True)
class CodeLine:
    """A line of the user's file."""

    line: int
    text: str


@dataclass(frozen=True)
class Call:
    """A call of the user's that led somewhere: its line, in `function`, and the line's code."""

    file: str
    line: int
    function: str
    text: str


@dataclass(frozen=True)
class Break:
    """A place, in `function`, where a graph ends.

    The instruction runs for real, and what follows is another graph or, where `eager` says so, runs
    in eager. `file` is "" and `line` 0 where they are not known. `id` is that of the reason, a row
    of docs/limits.md. `wrote` is the expression as the user wrote it, and `stack` the calls that
    led there, the outermost first. It was met in `times` compilations; to compile what follows, or
    to find that it runs in eager, has taken `seconds`.
    """

    reason: str
    file: str = ""
    line: int = 0
    hint: str = ""
    function: str = ""
    eager: bool = False
    id: str = field(default="", compare=False)
    wrote: str = field(default="", compare=False)
    stack: tuple[Call, ...] = field(default=(), compare=False, repr=False)
    times: int = field(default=1, compare=False)
    seconds: float = field(default=0.0, compare=False)

    @staticmethod
    def of(why: Unsupported, function: str, eager: bool, seconds: float = 0.0) -> Break:
        file, line = split_where(why.where)
        stack = []
        for spot in why.why.calls:
            stack.append(Call(spot.file, spot.line, spot.function or function, spot.text))
        return Break(
            why.reason,
            file,
            line,
            why.hint,
            why.function or function,
            eager,
            why.why.id,
            wrote=why.wrote,
            stack=tuple(stack),
            seconds=seconds,
        )

    @property
    def code(self) -> list[CodeLine]:
        """The line, and those around it, as far as the file can be read."""
        return [CodeLine(*line) for line in code_around(f"{self.file}:{self.line}")]

    @property
    def cost(self) -> str:
        """What it costs, in a clause."""
        if self.eager:
            return "what follows runs in eager, op by op"
        text = "each call leaves the compiled code here"
        if self.seconds:
            text += f", and compiling what follows took {self.seconds * 1e3:.0f} ms"
        if self.times > 1:
            text += f" (x{self.times})"
        return text

    @property
    def head(self) -> str:
        """The place, and what stands there."""
        text = "in eager from " if self.eager else "break at "
        text += place_text(f"{self.file}:{self.line}") if self.file else "an unknown place"
        if self.function:
            text += f" in {short_name(self.function)}"
        if self.wrote:
            text += f": `{self.wrote}`"
        return text

    def __str__(self) -> str:
        return f"{self.head}: {self.reason}"


@dataclass(frozen=True)
class Cause:
    """What the breaks of one id come to: how many places, and in how many compilations. To compile
    what follows them took `seconds`."""

    id: str
    places: int
    times: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.id} x{self.times} ({self.seconds * 1e3:.0f} ms)"


def causes_of(breaks: Iterable[Break]) -> list[Cause]:
    """What the breaks come to by their ids, that with the most seconds first."""
    causes: dict[str, Cause] = {}
    for item in breaks:
        known = causes.get(item.id, Cause(item.id, 0, 0, 0.0))
        times, seconds = known.times + item.times, known.seconds + item.seconds
        causes[item.id] = Cause(item.id, known.places + 1, times, seconds)
    return sorted(causes.values(), key=lambda cause: -cause.seconds)


@dataclass(frozen=True)
class KernelReport:
    """One step of a program: a kernel of Ingot's, or a call of a library.

    `ops` are ATen names, `nodes` those of the ATen graph's nodes, beside the ops, and `calls` what
    the user wrote that asked for them, as layer_norm, each once. `where` is the
    first of the user's `lines`, "file:line", and `modules` are paths as `self.blocks[0]`. `loops`
    is its loop IR; `source` is LLVM IR, or the name of the library function. `buffers_read` and
    `buffers_written` name rows of the program's memory. `seconds` is the median of what it took in
    the calls that `Report.measure` made.
    """

    name: str
    kind: str  # "fused" or "extern"
    ops: tuple[str, ...]
    reads_bytes: int
    writes_bytes: int
    source: str = field(repr=False)
    where: str = ""
    seconds: float | None = None
    lines: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    buffers_read: tuple[str, ...] = ()
    buffers_written: tuple[str, ...] = ()
    loops: str = field(default="", repr=False)
    calls: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeReport:
    """A node of a graph. `op` is "input", "constant" or the name of what it calls; `inputs` are
    nodes; `values` say what it gives, as "float32[4, 8]". An input's `source` is the user's path to
    it."""

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    where: str = ""
    module: str = ""
    source: str = ""


@dataclass(frozen=True)
class BufferReport:
    """A block of memory over one call of a program.

    `place` is "input", "constant", "arena", "small" (in the arena as well), "output", "own" (memory
    of its own) or "library"; `offset` is in bytes from the arena's start, None elsewhere. The
    kernels number `first` to `last` use it, counted from 0; what outlives the call, and what is
    there before it, is used by the first and by all to the end.
    """

    name: str
    value: str
    bytes: int
    place: str
    offset: int | None
    first: int
    last: int


@dataclass(frozen=True)
class ValueReport:
    """A value that crosses from a forward to its backward, or that both compute.

    `kind` is "input" or "output", which are there anyway, "kept" of what is in memory for the
    backward alone, or "both". `count` values are alike, each of so many `bytes`. `why` is a clause
    that begins with "it" or "that".
    """

    name: str
    kind: str
    op: str
    value: str
    bytes: int
    count: int
    where: str
    module: str
    why: str

    @property
    def total_bytes(self) -> int:
        return self.bytes * self.count


@dataclass(frozen=True)
class StageReport:
    """What a stage of the compiler made of a program; `text` is None where there is nothing, for
    this `reason`. `seconds` are those of the stage."""

    stage: str
    program: str
    seconds: float | None
    text: str | None
    reason: str = ""
    make: Callable[[], Callable[..., Any]] | None = field(
        default=None, repr=False, compare=False, metadata=INTERNAL
    )

    def function(self) -> Callable[..., Any]:
        """The text of a graph or of loop IR as a function of the graph's inputs.

        It gives what the program computes, and writes the inputs that the program writes. Graphs
        are run by eager, loop IR by NumPy (`codegen/loop_text.py`).

        Raises TypeError for a stage whose text is not Python, or that was not reached, and
        ValueError where the text leaves out layers of the program.
        """
        if self.make is None:
            raise TypeError(f"the {self.stage} stage of {self.program} has no Python that runs")
        return self.make()


@dataclass(frozen=True)
class HistoryEntry:
    """One compilation, oldest first.

    `outcome` is "compiled", "found" (a program that an earlier process kept), or "eager".
    `changed` says which fact differed from the entry that is closest, "" at the first. `seconds` is
    the time of all its stages, `first_call` that of the call that it was compiled for, if one ran.
    """

    name: str
    where: str
    outcome: str
    changed: str
    reason: str
    seconds: float
    first_call: float | None


PROPERTIES: Mapping[type, tuple[str, ...]] = {
    Break: ("code", "cost"),
    ValueReport: ("total_bytes",),
}
"""What is plain data beside the fields of a record; other rooms of the report add theirs."""


def as_plain(thing: Any, properties: Mapping[type, tuple[str, ...]] = PROPERTIES) -> Any:
    """Records, and containers of them, as dicts, lists, strings, numbers and None. `INTERNAL`
    fields stay out, and a number that JSON has not is None."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        plain = {}
        for name in plain_fields(type(thing), properties):
            plain[name] = as_plain(getattr(thing, name), properties)
        return plain
    if isinstance(thing, Mapping):
        plain = {}
        for key, value in thing.items():
            plain[str(key)] = as_plain(value, properties)
        return plain
    if isinstance(thing, (list, tuple)):
        items = []
        for item in thing:
            items.append(as_plain(item, properties))
        return items
    if isinstance(thing, float) and not math.isfinite(thing):
        return None
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return thing
    return str(thing)


def plain_fields(
    record: type, properties: Mapping[type, tuple[str, ...]] = PROPERTIES
) -> tuple[str, ...]:
    """The names of what `as_plain` gives of a record."""
    names = []
    for each in dataclasses.fields(record):
        if not each.metadata.get("internal"):
            names.append(each.name)
    return (*names, *properties.get(record, ()))
