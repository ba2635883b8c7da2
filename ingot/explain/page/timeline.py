"""Timelines: what ran when, on each thread of the CPU and each stream of a GPU, in the user's
modules and lines.

The spans that a profiler recorded go in; plain data comes out. Nothing of torch is needed here.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

CALL = "ingot: the call"
"""The name of the span of the whole call."""

BACKWARD_SPAN = "autograd::engine::evaluate_function"
ACCUMULATE = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True)
class Span:
    """What a profiler recorded. Times are in seconds, from the begin of the call.

    `lane` is a thread or a stream. `link` is the number of the launch that a span of a GPU, and of
    the call of the runtime that launched it, belong to. `sequence` is autograd's number.
    """

    name: str
    start: float
    end: float
    lane: str
    on_gpu: bool = False
    link: int = 0
    sequence: int = -1


@dataclass
class Event:
    """A box of the timeline. `module` and `where` are the user's; `program` and `kernel` are
    positions in the report, None of what is no step of a program.

    `bytes` are what it moves at most, `flops` the operations of its products; None if they are not
    known.
    """

    name: str
    start: float
    seconds: float
    phase: str = "forward"
    module: str = ""
    where: str = ""
    bytes: int | None = None
    flops: int | None = None
    program: int | None = None
    kernel: int | None = None


@dataclass
class Lane:
    """A thread or a stream, with its events in order."""

    name: str
    gpu: bool
    events: list[Event] = field(default_factory=list)


@dataclass
class Timeline:
    """A call: `name` is "eager" or "Ingot", `seconds` the time of the whole of it."""

    name: str
    seconds: float
    lanes: list[Lane]


Describe = Callable[[Sequence[Span], Mapping[int, Event]], None]
"""Fills in what is known of the outermost spans: they, and the event of each by its position."""


def timeline(name: str, spans: Iterable[Span], describe: Describe) -> Timeline:
    """The timeline of a call: one of the spans is named `CALL`."""
    spans = sorted(spans, key=lambda span: (span.start, -span.end))
    calls = [span for span in spans if span.name == CALL and not span.on_gpu]
    whole = calls[0]
    inside = []
    for span in spans:
        if span.name != CALL and whole.start <= span.start <= whole.end:
            inside.append(span)
    shown = outermost(inside)
    events = {}
    for position in shown:
        span = inside[position]
        events[position] = Event(span.name, span.start - whole.start, span.end - span.start)
    mark_backwards(inside, events)
    describe(inside, events)
    lanes: dict[str, Lane] = {}
    for position, event in events.items():
        lane = inside[position].lane
        lanes.setdefault(lane, Lane(lane, gpu=False)).events.append(event)
    gpu_lanes = streams(inside, events, whole.start)
    return Timeline(name, whole.end - whole.start, [*lanes.values(), *gpu_lanes])


def outermost(spans: Sequence[Span]) -> list[int]:
    """The positions of the ops of the CPU that are inside of no other op."""
    ends: dict[str, float] = {}
    found = []
    for position, span in enumerate(spans):
        if span.on_gpu or not is_op(span.name) or span.end <= ends.get(span.lane, -1.0):
            continue
        ends[span.lane] = span.end
        found.append(position)
    return found


def is_op(name: str) -> bool:
    """Whether a span is an op or a step, and not what stands around some."""
    return "::" in name and not name.startswith(("autograd::", "torch::autograd::"))


def enclosing(spans: Sequence[Span], events: Mapping[int, Event]) -> Callable[[Span], int | None]:
    """What finds the position of the outermost op that a span lies in."""
    starts: dict[str, list[tuple[float, int]]] = {}
    for position in events:
        starts.setdefault(spans[position].lane, []).append((spans[position].start, position))

    def find(span: Span) -> int | None:
        of_lane = starts.get(span.lane, [])
        index = bisect.bisect_right(of_lane, (span.start, len(spans))) - 1
        if index < 0:
            return None
        position = of_lane[index][1]
        return position if span.end <= spans[position].end else None

    return find


def mark_backwards(spans: Sequence[Span], events: Mapping[int, Event]) -> None:
    """Tells events of gradients from all others: autograd's span stands around them."""
    end: dict[str, float] = {}
    for position, span in enumerate(spans):
        if span.name.startswith(BACKWARD_SPAN):
            end[span.lane] = max(span.end, end.get(span.lane, 0.0))
        elif position in events and span.start < end.get(span.lane, 0.0):
            events[position].phase = "backward"


def streams(spans: Sequence[Span], events: Mapping[int, Event], begin: float) -> list[Lane]:
    """The lanes of GPUs. An event there is what the op that launched it is."""
    find = enclosing(spans, events)
    launches = {}
    for span in spans:
        if not span.on_gpu and span.link and not is_op(span.name):
            launches[span.link] = find(span)
    lanes: dict[str, Lane] = {}
    for span in spans:
        if not span.on_gpu:
            continue
        event = Event(span.name, span.start - begin, span.end - span.start)
        owner = launches.get(span.link)
        if owner is not None:
            cause = events[owner]
            event.phase, event.module, event.where = cause.phase, cause.module, cause.where
            event.bytes, event.flops = cause.bytes, cause.flops
            event.program, event.kernel = cause.program, cause.kernel
        lanes.setdefault(span.lane, Lane(span.lane, gpu=True)).events.append(event)
    return list(lanes.values())


# -- eager: each op is known by its order ----------------------------------------------------------


@dataclass(frozen=True)
class Note:
    """An op as it was dispatched: its name ("aten::mm"), the user's line and module, what it
    moves."""

    name: str
    where: str
    module: str
    bytes: int
    flops: int | None


def described_by(notes: Sequence[Note]) -> Describe:
    """What fills in events of eager from the ops that another call has dispatched, in order."""

    def describe(spans: Sequence[Span], events: Mapping[int, Event]) -> None:
        find = enclosing(spans, events)
        causes: dict[int, Event] = {}  # by autograd's number, of the forward
        for position, note in matched(spans, notes):
            owner = find(spans[position])
            if owner is None:
                continue
            event = events[owner]
            event.bytes = (event.bytes or 0) + note.bytes
            if note.flops is not None:
                event.flops = (event.flops or 0) + note.flops
            if event.phase == "forward" and not event.where:
                event.where, event.module = note.where, note.module
        number: dict[str, int] = {}
        for position, span in enumerate(spans):
            owner = find(span)
            if span.name.startswith(BACKWARD_SPAN):
                number[span.lane] = span.sequence
            elif owner is not None and span.sequence >= 0 and events[owner].phase == "forward":
                causes[span.sequence] = events[owner]
            if position in events and events[position].phase == "backward":
                cause = causes.get(number.get(span.lane, -1))
                if cause is not None:
                    events[position].where, events[position].module = cause.where, cause.module
        for event in events.values():
            event.name = event.name.partition("::")[2]

    return describe


def matched(spans: Sequence[Span], notes: Sequence[Note]) -> list[tuple[int, Note]]:
    """The positions of spans with the ops that they are: each the next one of that name that is in
    no other that was found."""
    found, position, end = [], 0, -1.0
    for note in notes:
        start = position
        while position < len(spans):
            span = spans[position]
            if span.name == note.name and not span.on_gpu and span.end > end:
                break
            position += 1
        if position == len(spans):  # it is not there: the next one is sought from the same place
            position = start
            continue
        found.append((position, note))
        end = spans[position].end
        position += 1
    return found


# -- Ingot: each step is known by its name ---------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A step of a program in the report, by its positions, with what the page says of it."""

    program: int
    kernel: int
    backward: bool
    module: str
    where: str
    bytes: int
    flops: int | None
    name: str


def described_by_steps(steps: Mapping[str, Sequence[Step]]) -> Describe:
    """What fills in events of Ingot by what profilers call the steps of its programs.

    Steps of the same name come in the order of the report, again and again."""

    def describe(spans: Sequence[Span], events: Mapping[int, Event]) -> None:
        seen: dict[str, int] = {}
        waiting: list[Event] = []
        for event in events.values():
            known = steps.get(event.name, ())
            if not known:
                event.name = event.name.partition("::")[2]
                waiting.append(event)
                continue
            count = seen.get(event.name, 0)
            seen[event.name] = count + 1
            step = known[count % len(known)]
            event.program, event.kernel, event.name = step.program, step.kernel, step.name
            event.module, event.where = step.module, step.where
            event.bytes, event.flops = step.bytes, step.flops
            if step.backward:
                event.phase = "backward"
            for one in waiting:  # memory is taken for the step that follows
                if one.name in ("allocate", "release"):
                    one.module, one.where, one.phase = event.module, event.where, event.phase
            waiting.clear()

    return describe
