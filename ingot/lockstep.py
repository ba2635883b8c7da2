"""Do the ranks of a group issue the same collectives? Where they do not, an error that comes of it
says so.

Before a program with collectives first runs, its rank writes down in the group's store which ones
it will issue, and as which numbers of the group's sequence, and reads what others wrote. It waits
for nobody, and a difference is no error by itself: a rank that runs in eager writes nothing down,
one that recompiles alone finds old records, and gloo numbers messages between two ranks as well. So
a difference is logged, and becomes a note of the error that communication then ends in. So do the
errors that end other ranks: each writes down its own.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product, starmap
from typing import Any, NamedTuple

import torch

from ingot.graph.aten_graph import AtenGraph
from ingot.loops.side_effects import communicates
from ingot.torch_private import collectives, find, resolve_process_group

logger = logging.getLogger(__name__)

LIMIT = 5.0
"""Seconds that a conversation with a store may take."""

_NEIGHBOURS = 4  # on either side that a rank looks at: a group may have thousands
_CALLS = 200  # that are written down of a program
_NAMED = 3  # that are named where any of several is meant
_MESSAGES = frozenset(("send", "receive", "isend", "irecv", "batch_p2p_ops"))
_FORMS = ("_into_tensor", "_tensor", "_single")  # of one collective
_ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter"))
_REDUCING = frozenset(("all_reduce", "reduce_scatter", "reduce"))


class Call(NamedTuple):
    """A collective: what it is, how much of what it communicates ("" where ranks may differ in
    that), and the user's line."""

    kind: str
    amount: str
    where: str

    def is_same(self, other: Call) -> bool:
        """Whether two ranks may issue them as one."""
        amounts = {self.amount, other.amount} - {""}
        return self.kind == other.kind and len(amounts) < 2

    def __str__(self) -> str:
        return f"{self.kind} {self.amount}".rstrip() + f" at {self.where}"


Calls = Mapping[str, list[Call]]
"""By the name of a group: what a program issues there, in order."""


class Record(NamedTuple):
    """The collectives of a program in one group, and the number of the first one."""

    first: int
    calls: list[Call]

    def at(self, number: int) -> list[Call]:
        """What is issued as a number; nothing where the record does not say."""
        if number < self.first:
            return []
        return self.calls[number - self.first :][:1]

    def difference(self, other: Record) -> tuple[int, Call, Call] | None:
        """The first number under which both issue something, and not the same."""
        start = max(self.first, other.first)
        ours, theirs = self.calls[start - self.first :], other.calls[start - other.first :]
        for number, (mine, yours) in enumerate(zip(ours, theirs), start):
            if not mine.is_same(yours):
                return number, mine, yours
        return None


_records: dict[str, Record] = {}
"""By the name of a group: the latest record of this process."""

_issued: dict[str, list[Call]] = {}
"""By the name of a group: what any program of this process issues there, each once."""


# -- what a program issues -------------------------------------------------------------------------


def calls_of(aten: AtenGraph) -> Calls:
    """By the name of a group, what a program issues, as far as the numbers of that are known."""
    by_group: dict[str, list[Call]] = {}
    if aten.layers is not None or aten.copies:  # the graph has not all of the program
        return by_group
    unknown = set()  # groups of which the numbers are not known any more
    for node in aten.graph.nodes:
        is_issue = node.op == "call_function" and communicates(node.target)
        if not is_issue or node.target is collectives.wait_tensor.default:
            continue
        name, group = node.target._schema.name.partition("::")[2], node.args[-1]
        if name in _MESSAGES or name.endswith("_coalesced") or not isinstance(group, str):
            unknown.add(group)
        elif group not in unknown:
            by_group.setdefault(group, []).append(_call(node, name))
    return by_group


def _call(node: torch.fx.Node, name: str) -> Call:
    for form in _FORMS:
        name = name.removesuffix(form)
    words = [name]
    if name in _REDUCING:
        words += [argument for argument in node.args if isinstance(argument, str)][:-1]
    if name in _ROOTED:
        words += [f"of rank {argument}" for argument in node.args if type(argument) is int][:1]
    return Call(" ".join(words), _amount(node, name), str(node.meta.get("where", "")))


def _amount(node: torch.fx.Node, name: str) -> str:
    """How much is communicated, where all ranks have to agree on it and it is known."""
    given = node.args[0]
    if name == "all_to_all" or not isinstance(given, torch.fx.Node):
        return ""
    tensor = given.meta.get("val")
    if not isinstance(tensor, torch.Tensor) or not isinstance(tensor.numel(), int):
        return ""
    if name in _REDUCING:
        return f"of {tensor.numel()} × {str(tensor.dtype).removeprefix('torch.')}"
    return f"of {tensor.numel() * tensor.itemsize} bytes"


# -- what ranks tell each other --------------------------------------------------------------------


def announce(by_group: Calls) -> None:
    """Writes down what a program will issue that is about to run for the first time."""
    if by_group:
        watch_the_end()
    for name, calls in by_group.items():
        _converse(partial(_announce, name, calls))


def _announce(name: str, calls: list[Call]) -> None:
    group = resolve_process_group(name)
    if group.size() > 1:
        first = group._get_sequence_number_for_group() + 1
        record = _records[name] = Record(first, calls[:_CALLS])
        issued = _issued.setdefault(name, [])
        issued += [call for call in dict.fromkeys(calls) if call not in issued]
        store, rank = _store_of(group), group.rank()
        store.set(f"ingot/{rank}", json.dumps(record))
        store.set(f"ingot/issued/{rank}", json.dumps(issued[:_CALLS]))
        for difference in _differences(name, record):
            logger.warning("%s", difference)


def _store_of(group: Any) -> Any:
    return find("torch.distributed.distributed_c10d._get_process_group_store")(group)


def _differences(name: str, record: Record) -> Iterator[str]:
    """In words, how a record differs from what ranks nearby wrote down."""
    for other, theirs, _ in _nearby(name):
        difference = record.difference(theirs)
        if difference is not None:
            number, mine, yours = difference
            yield _difference(name, number, [mine], other, [yours])


def _differences_now(name: str, record: Record) -> Iterator[str]:
    """In words, where what this rank has issued last, in a later run of its programs, can be none
    of what a rank nearby issues."""
    number = resolve_process_group(name)._get_sequence_number_for_group()
    ours = record.at(number) or _issued[name]
    for other, their_record, all_of_theirs in _nearby(name):
        theirs = their_record.at(number) or all_of_theirs
        if not any(mine.is_same(yours) for mine, yours in product(ours, theirs)):
            yield _difference(name, number, ours, other, theirs)


def _difference(name: str, number: int, ours: list[Call], other: int, theirs: list[Call]) -> str:
    mine, yours = [" or ".join(map(str, calls[:_NAMED])) for calls in (ours, theirs)]
    rank = resolve_process_group(name).rank()
    return (
        f"ranks of group {name!r} issue different collectives as number {number}: "
        f"rank {rank} {mine}, rank {other} {yours}"
    )


def _nearby(name: str) -> Iterator[tuple[int, Record, list[Call]]]:
    """Ranks nearby that wrote something down: the latest record, and all that they issue."""
    group = resolve_process_group(name)
    store, rank = _store_of(group), group.rank()
    near = range(rank - _NEIGHBOURS, rank + _NEIGHBOURS + 1)
    for other in sorted({one % group.size() for one in near} - {rank}):
        keys = [f"ingot/{other}", f"ingot/issued/{other}"]
        if store.check(keys):
            (first, calls), issued = [json.loads(store.get(key)) for key in keys]
            yield other, Record(first, _calls(calls)), _calls(issued)


def _calls(fields: list[list[str]]) -> list[Call]:
    return list(starmap(Call, fields))


def explain(error: BaseException) -> None:
    """Adds notes to an error of a program's first run, or to one that ends the process.

    They say how other ranks' collectives differ, and which errors these have met."""
    groups = dict.fromkeys(_records)
    if has_ranks():
        world: Any = torch.distributed.group.WORLD
        groups[world.group_name] = None
    for name in groups:
        _converse(partial(_explain, name, error))


def _explain(name: str, error: BaseException) -> None:
    group, record = resolve_process_group(name), _records.get(name)
    store, rank = _store_of(group), group.rank()
    notes: list[str] = []
    if record and isinstance(error, RuntimeError):  # as those of communication are
        notes += list(_differences(name, record)) or _differences_now(name, record)
    for other in range(group.size()):
        key = f"ingot/error/{other}"
        if other != rank and store.check([key]):
            notes.append(f"rank {other} of group {name!r} met {store.get(key).decode()}")
    for note in notes:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    store.set(f"ingot/error/{rank}", f"{type(error).__name__}: {error}{_place_of(error)}")


_OTHERS = tuple(os.path.join(os.path.dirname(file), "") for file in (torch.__file__, __file__))


def _place_of(error: BaseException) -> str:
    """Where in the user's code an error was raised."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*_OTHERS, "<")):
            return f" at {frame.filename}:{frame.lineno}"
    return ""


def has_ranks() -> bool:
    """Whether this process is a rank of several."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized()


def watch_the_end() -> None:
    """Has an error that ends a rank be explained before it is printed."""
    if has_ranks() and not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)


class _Hook:
    """An excepthook around another one."""

    def __init__(self, printed_by: Callable[..., Any]) -> None:
        self.printed_by = printed_by

    def __call__(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, Exception):
            explain(error)
        self.printed_by(kind, error, trace)


def _converse(conversation: Callable[[], None]) -> None:
    """Speaks with a store in a thread, and leaves it there when it takes too long. That it fails is
    no concern of the program's."""

    def run() -> None:
        try:
            conversation()
        except Exception as reason:
            logger.debug("ranks were not compared: %s", reason)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
