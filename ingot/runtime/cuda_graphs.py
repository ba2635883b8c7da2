"""CUDA graphs (`mode="reduce-overhead"`): what a program launches is recorded once, and replayed by
one call.

A recording reads and writes memory where it was when it was made. So before each replay it is
checked that

- the inputs lie where they lay then. Those that move from call to call (`Sizes.moving`) are copied
  to a fixed place;
- nobody holds a tensor in memory that the replay writes: the results of this recording, and those
  of recordings that share its pool and were made later, which may lie where this one keeps what it
  needs for a while. A tensor is held where its storage has more owners than when nobody did: the
  user's variables and views, autograd's saved tensors, a gradient in `.grad`, be it one that a
  backward was lent the memory for.

Where that does not hold, the program is run as in the default mode, into fresh memory, or there is
another recording: for inputs at other places, or with results at other places, in a pool of its
own. Random numbers are those of eager: torch's own recordings take the default generator's state
when they are replayed, and advance it. All this is plain Python and knows nothing of CUDA, which is
behind `Machine`.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ingot.errors import Unsupported, unsupported
from ingot.loops.ir import View
from ingot.loops.side_effects import acts
from ingot.native import _native
from ingot.runtime.program import Program
from ingot.schedule.kernel import Kernel, scaling
from ingot.schedule.plan import KernelStep, LibraryStep, touched
from ingot.serial import whole
from ingot.torch_private import (
    GRAPHS,
    aten,
    foreach_copy_,
    increment_version,
    set_grad_enabled,
    storage_use_count,
    why_off,
)

LEAST_LAUNCHES = 3  # fewer take no longer than a replay
# run as in the default mode before anything is recorded: libraries make ready what they keep
WARM_CALLS = 2
MOST_SIZES = 16  # sets of sizes with recordings
MOST_RECORDINGS = 8  # of the same sizes, for inputs at other places
MOST_CAPTURES = 24  # of the same sizes in all
MOST_TWINS = 3  # of the same inputs, with results at other places ...
TWIN_BYTES = 64 << 20  # ... of so many bytes at most
COPIED_BYTES = 1 << 20  # results that are copied for the user, where they are in the way
MOVES = 2  # calls in a row in which an input lay elsewhere: then it is copied
# What a launch takes on the host, what a replay takes, and how many bytes a copy of an input moves:
# estimates.
LAUNCH_SECONDS, REPLAY_SECONDS, COPIED_PER_SECOND = 4e-6, 10e-6, 1.5e12

# Library functions that wait for the device, or ask it something, which cannot be recorded.
_WAITING = (
    "linalg", "_linalg", "lu_", "cholesky", "svd", "qr", "geqrf", "ormqr", "nonzero", "unique",
    "_unique", "masked_", "_local_scalar", "item", "equal", "repeat_interleave", "bincount",
    "histc", "multinomial", "_ctc_loss", "put", "_embedding_bag", "tensor_split", "is_nonzero",
    "allclose", "_assert", "triangular_solve", "ldl",
)  # fmt: skip

# ... and functions that launch kernels at each step of a recurrence: fewer than they do.
_MANY = {"ingot.cudnn_rnn.default": 16, "ingot.cudnn_rnn_backward.default": 16}

_storage_owners = storage_use_count
_is_dense = aten.is_non_overlapping_and_dense.default


class Machine(Protocol):
    """What records and replays. `stream` is the current one, None where nothing may be recorded or
    replayed on it now; `pool` names memory for recordings. `capture` records what `run` launches,
    without running it, with what it allocates from the pool: what replays it on the current stream,
    and what `run` returned."""

    def stream(self) -> Hashable | None: ...
    def pool(self) -> Any: ...
    def capture(
        self, run: Callable[[], Sequence[Any]], pool: Any
    ) -> tuple[Callable[[], None], Sequence[Any]]: ...


def why_not(program: Program) -> str:
    """Why nothing of a program can be recorded; "" where it can."""
    plan = program.plan
    if (lacking := why_off(GRAPHS)) is not None:
        return lacking.reason
    if _native.tensor_facts_are_slow():
        return "torch does not say who holds a tensor's memory"
    if plan.graph.bound:
        return "sizes depend on data"
    for step in plan.steps:
        if isinstance(step, LibraryStep):
            name = getattr(step.node.function, "__name__", str(step.node.function))
            if step.node.ordered and acts(step.node.function):
                return f"{name} may do more than launch kernels"
            if _drops_attention(step.node):
                return (
                    f"{name} leaves the seed of its dropout where only a recorded backward reads it"
                )
            if name.startswith(_WAITING) or _takes_mask(step.node, plan.graph.buffers):
                return f"{name} waits for the device"
    shown = [view.buffer for view in plan.graph.outputs if isinstance(view, View)]
    met = {*plan.graph.inputs, *shown, *(name for step in plan.steps for name in touched(step))}
    if any(plan.graph.buffers[name].on_host for name in met):
        return "numbers are on the CPU"
    if not plan.frugal and any(place.kind == "arena" for place in plan.places.values()):
        return "temporaries are kept between calls"
    launches = launches_of(program)
    return "" if launches >= LEAST_LAUNCHES else f"{launches} launches take no longer than a replay"


def launches_of(program: Program) -> int:
    """How often a program launches something: a step once, but for calls that are known to launch a
    lot."""
    called = [
        str(step.node.function) if isinstance(step, LibraryStep) else ""
        for step in program.plan.steps
    ]
    return sum(_MANY.get(name, 1) for name in called)


def _drops_attention(node: Any) -> bool:
    """Whether attention drops some of its weights. Its seed is on the device if it is recorded,
    else on the CPU."""
    names = [
        argument.name
        for argument in getattr(getattr(node.function, "_schema", None), "arguments", ())
    ]
    given = dict(zip(names, node.args), **node.kwargs)
    return given.get("dropout_p", 0.0) != 0.0


def _takes_mask(node: Any, buffers: Mapping[str, Any]) -> bool:
    """Whether elements are chosen by a mask: how many there are, the device says."""
    name = str(node.function)
    return (
        "index" in name
        and any(buffers[b].dtype in (torch.bool, torch.uint8) for b in node.reads())
        and (
            name.startswith(
                ("aten.index.", "aten.index_put", "aten._index_put", "aten._unsafe_index")
            )
        )
    )


class Results:
    """The tensors that a recording writes for its caller, which lie where they lay at each replay.
    `lent` says that somebody may hold one."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        # Asked for without making storages Python objects, which would be owners that come and go
        # unseen.
        self.storages = _native.storages(self.tensors)
        self.bytes = sum(t.nbytes for t in self.tensors)
        self.addresses = self._addresses()
        self.owners: list[int] = []
        self.loans: list[int] = []
        self.lent, self.moved = False, False

    def __del__(self, stop: Callable[[int], None] = _native.stop_lending) -> None:
        for storage in self.loans:
            stop(storage)

    def _addresses(self) -> bytes:
        return _native.addresses(self.tensors, len(self.tensors), ())

    def settle(self) -> None:
        """To be called when nobody else holds one."""
        self.owners = list(map(_storage_owners, self.storages))

    def lend(self, position: int) -> None:
        """Once settled: what the backward makes of this one may lie in its memory, and is held like
        it."""
        self.loans.append(self.storages[position])
        _native.keep_lending(self.storages[position], self.owners[position])

    def are_free(self) -> bool:
        """Whether nobody holds one, and all are where they were (who holds a tensor can resize its
        memory)."""
        if self.lent and list(map(_storage_owners, self.storages)) == self.owners:
            self.lent = False
            self.moved = self.moved or self._addresses() != self.addresses
        return not self.lent

    def held(self) -> list[int]:
        """The positions of those that somebody holds."""
        return [k for k, s in enumerate(self.storages) if _storage_owners(s) != self.owners[k]]

    def shares(self, position: int) -> bool:
        """Whether another one has the same memory."""
        return self.storages.count(self.storages[position]) > 1


class Pool:
    """Memory that recordings take what they need from. A replay may write whatever was free when it
    was recorded, so also the results of recordings made later."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.handle: Any = None
        # in the order in which they were made
        self.recordings: list[tuple[weakref.ref[Recording], Results]] = []

    def begin(self) -> Any:
        """The pool's name, before something is recorded."""
        self.recordings = [
            (r, found) for r, found in self.recordings if r() is not None or not found.are_free()
        ]
        # its memory went with the last: there is none of that name
        if all(r() is None for r, _ in self.recordings):
            self.handle, self.recordings = self.machine.pool(), []
        return self.handle

    def is_clear(self, recording: Recording) -> bool:
        """Whether nobody holds what a replay would write."""
        for r, results in reversed(self.recordings):
            if results.lent and not results.are_free():
                return False
            if r() is recording:
                return True
        raise AssertionError("a recording of another pool")


class Memory:
    """The pool that recordings of one device and stream share, and the lock under which they are
    made and replayed."""

    known: dict[tuple[int, Hashable], Memory] = {}

    def __init__(self, machine: Machine) -> None:
        self.shared = Pool(machine)
        self.pools: weakref.WeakSet[Pool] = weakref.WeakSet([self.shared])
        self.lock = threading.Lock()

    def pool(self) -> Pool:
        """A pool for a recording that cannot share one."""
        made = Pool(self.shared.machine)
        self.pools.add(made)
        return made

    def result_addresses(self) -> set[int]:
        """Where recordings' results begin."""
        found = [results.addresses for pool in self.pools for _, results in pool.recordings]
        return set().union(*map(_numbers, found))


class Recording:
    """What replays a program with the inputs at `addresses`, but for those that are copied to
    `copies` first."""

    def __init__(
        self,
        replay: Callable[[], None],
        pool: Pool,
        addresses: bytes,
        copies: Mapping[int, Tensor],
        given: Sequence[Any],
        outputs: Sequence[Any],
    ) -> None:
        self.replay, self.pool, self.addresses = replay, pool, addresses
        self.moving, self.copies = tuple(copies), list(copies.values())
        tensors = [t for t in given if isinstance(t, Tensor)]  # which come first
        storages = {storage: k for k, storage in enumerate(_native.storages(tensors))}
        self.windows: list[tuple[int, int, tuple[int, ...], tuple[int, ...], int]] = []
        self.constants: list[tuple[int, Any]] = []
        self.owned: list[int] = []  # the positions of `results` among the outputs
        owned = []
        for k, output in enumerate(outputs):
            if not isinstance(output, Tensor):
                self.constants.append((k, output))
            elif (
                output.numel() and (base := storages.get(_native.storages([output])[0])) is not None
            ):
                shift = output.storage_offset() - given[base].storage_offset()
                if output.dtype != given[base].dtype:
                    raise unsupported(
                        "recorded-result", "a result is a window of another dtype on an input"
                    )
                self.windows.append((k, base, tuple(output.shape), output.stride(), shift))
            elif output.device != given[0].device:
                raise unsupported("recorded-result", "a result lies on another device")
            else:
                self.owned.append(k)
                owned.append(output)
        self.results, self.count = Results(owned), len(outputs)

    def run(self, inputs: Sequence[Any], visible: int, copied: set[int]) -> tuple[Any, ...]:
        """Replay, and what is returned: of the first `visible` outputs tensors of their own, and of
        those `copied` memory of their own."""
        grad_mode = torch.is_grad_enabled()
        if grad_mode:
            set_grad_enabled(False)
        try:
            return self._run(inputs, visible, copied)
        finally:
            if grad_mode:
                set_grad_enabled(True)

    def _run(self, inputs: Sequence[Any], visible: int, copied: set[int]) -> tuple[Any, ...]:
        if self.moving:
            foreach_copy_(self.copies, [inputs[k] for k in self.moving])
        self.replay()
        made: list[Any] = [None] * self.count
        for k, value in self.constants:
            made[k] = value
        for k, base, sizes, strides, shift in self.windows:
            made[k] = inputs[base].as_strided(sizes, strides, inputs[base].storage_offset() + shift)
        fresh, written = [], []
        for position, (k, t) in enumerate(zip(self.owned, self.results.tensors)):
            if position in copied and not self.results.shares(position):
                made[k] = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
                fresh.append(made[k])
                written.append(t)
            else:
                self.results.lent = True
                made[k] = _alias(t) if k < visible else t.detach()
        if fresh:
            foreach_copy_(fresh, written)
        return tuple(made)


class Sizes:
    """The recordings of a program for one stream and set of sizes. `moving` are inputs that are
    copied, `copied` the results that are. The addresses of a call are those of its inputs, with 0
    for the former."""

    def __init__(self) -> None:
        self.recordings: list[Recording] = []
        self.calls, self.captures = 0, 0
        self.last: bytes | None = None  # the addresses of the call before
        self.moved: dict[int, int] = {}
        self.moving: tuple[int, ...] = ()
        self.copied: set[int] = set()
        self.why = ""

    def matching(self, addresses: bytes) -> list[Recording]:
        if any(r.results.moved for r in self.recordings):
            self.recordings = [r for r in self.recordings if not r.results.moved]
        return [r for r in self.recordings if r.addresses == addresses]

    def note(self, addresses: bytes, memory: Memory) -> bool:
        """Notes where the inputs of a call lie for which there is no recording. Returns whether one
        is worth its while: they lay there the last time too, or are copied from now on."""
        last, self.last = self.last, addresses
        self.calls += 1
        if last is None:
            return False
        elsewhere = [
            (k, a) for k, (a, b) in enumerate(zip(_numbers(addresses), _numbers(last))) if a != b
        ]
        ours = memory.result_addresses() if elsewhere else ()
        self.moved = {
            k: self.moved.get(k, 0) + 1 for k, address in elsewhere if address not in ours
        }
        often = [k for k, times in self.moved.items() if times >= MOVES]
        if often:
            self.moving = tuple(sorted({*self.moving, *often}))
            self.recordings.clear()  # of inputs that were in place
            self.last = None
        return len(often) == len(self.moved) and self.calls > WARM_CALLS


class Replayed:
    """A program that is replayed where that is known to be right, and else run: `program(*inputs)`,
    `consume(inputs)`.

    `visible` is how many of its outputs the user gets, None for all: the others are only read.
    Where the CPU has a part of its own (the numbers that a layer draws to decide whether it is left
    out), `parts` are programs of what the device does, which is recorded, and of that part, which
    runs at each call.
    """

    def __init__(
        self, program: Program, machine: Machine, parts: tuple[Program, Program] | None = None
    ) -> None:
        self.program, self.machine = program.native, machine
        self.recorded = parts[0].native if parts else self.program
        self.beside = parts[1].native if parts else None
        self.visible: int | None = None
        self.launches, self.tensors = (
            launches_of(parts[0] if parts else program),
            len(program.plan.graph.inputs),
        )
        self.written = sorted(program.written_inputs)
        self.counted = sorted(program.counted_writes)
        self.scaled = _scaled_in_place(program)
        self.places = [
            (position, kind, dim) for _, position, kind, dim in program.plan.graph.symbols
        ]
        self.known: dict[tuple[Hashable, ...], Sizes] = {}
        self.calls, self.replays, self.why = 0, 0, ""
        self.paused = False  # while steps are to be measured one by one

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        results = self._replayed(inputs)
        return self.program(*inputs) if results is None else results

    def consume(self, inputs: list[Any]) -> tuple[Any, ...]:
        """As a call, and takes the inputs from the list."""
        results = self._replayed(inputs)
        if results is None:
            return self.program.consume(inputs)
        inputs.clear()
        return results

    def describe(self) -> str:
        """For the report."""
        sizes = list(self.known.values())
        why = "; ".join(dict.fromkeys(filter(None, [self.why, *(s.why for s in sizes)])))
        count = sum(len(s.recordings) for s in sizes)
        return f"{count} recorded, {self.replays} of {self.calls} calls replayed" + (
            f": {why}" if why else ""
        )

    def _replayed(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        """The results, or None where the program is to be run."""
        self.calls += 1
        stream = None if self.why or self.paused else self.machine.stream()
        if stream is None:
            return None
        key = (stream, *[_read(inputs[position], kind, dim) for position, kind, dim in self.places])
        sizes = self.known.get(key)
        if sizes is None:
            if len(self.known) >= MOST_SIZES:
                return None
            sizes = self.known[key] = Sizes()
        if sizes.why:
            return None
        memory = memory_of(self.machine, stream)
        if not memory.lock.acquire(blocking=False):
            return None
        try:
            recording = self._recording(sizes, memory, inputs)
            if recording is None:
                return None
            self.replays += 1
            if self.counted:
                increment_version([inputs[k] for k in self.counted])
            visible = recording.count if self.visible is None else self.visible
            if self.beside is not None:
                self.beside(*inputs)
            return recording.run(inputs, visible, sizes.copied)
        finally:
            memory.lock.release()

    def _recording(self, sizes: Sizes, memory: Memory, inputs: Sequence[Any]) -> Recording | None:
        """One that can be replayed now."""
        addresses = _native.addresses(inputs, self.tensors, sizes.moving)
        matching = sizes.matching(addresses)
        for recording in matching:
            if recording.pool.is_clear(recording) and not recording.results.moved:
                return recording
        if not matching:
            return (
                self._record(sizes, memory.shared, inputs)
                if sizes.note(addresses, memory)
                else None
            )
        last = matching[-1]
        if last.results.are_free():  # results of others are where it writes
            sizes.recordings.remove(last)
        elif len(matching) >= MOST_TWINS or last.results.bytes > TWIN_BYTES:
            held = last.results.held()
            copied = sum(last.results.tensors[k].nbytes for k in held)
            if copied <= max(COPIED_BYTES, last.results.bytes // 4) and self._saves_more_than(
                copied
            ):
                sizes.copied.update(held)
            return None
        return self._record(sizes, memory.pool(), inputs)

    @whole
    def _record(self, sizes: Sizes, pool: Pool, inputs: Sequence[Any]) -> Recording | None:
        if len({t.device for t in inputs[: self.tensors]}) > 1:
            # what a library keeps of attention lies on the CPU where nothing is recorded
            return None
        sizes.why = self._why_not(sizes, inputs)
        if sizes.why:
            sizes.recordings.clear()
            return None
        if len(sizes.recordings) >= MOST_RECORDINGS:
            sizes.recordings.pop(0)
        sizes.captures += 1
        try:
            with torch.inference_mode(False), torch.no_grad():
                recording = self._captured(sizes.moving, pool, inputs)
        except Exception as problem:
            self.why = (
                str(problem) if isinstance(problem, Unsupported) else f"recording failed: {problem}"
            )
            return None
        recording.results.settle()
        for position, k in enumerate(recording.owned):
            t = recording.results.tensors[position]
            if (
                self.visible is not None
                and k >= self.visible
                and not self._saves_more_than(t.nbytes)
            ):
                recording.results.lend(position)
        pool.recordings.append((weakref.ref(recording), recording.results))
        sizes.recordings.append(recording)
        return recording

    def _captured(self, moving: tuple[int, ...], pool: Pool, inputs: Sequence[Any]) -> Recording:
        given, copies = list(inputs), {}
        addresses = _native.addresses(inputs, self.tensors, moving)
        for k in moving:
            t = inputs[k]
            copies[k] = given[k] = torch.empty_strided(
                t.shape, t.stride(), dtype=t.dtype, device=t.device
            )
        replay, outputs = self.machine.capture(
            functools.partial(self.recorded, *given), pool.begin()
        )
        return Recording(replay, pool, addresses, copies, given, outputs)

    def _why_not(self, sizes: Sizes, inputs: Sequence[Any]) -> str:
        """Why nothing is recorded for these inputs; "" where it is."""
        if not self.tensors:
            return "there are no inputs"
        if sizes.captures >= MOST_CAPTURES:
            return "inputs lie elsewhere too often"
        if set(sizes.moving) & set(self.written):
            return "an input that is written lies elsewhere at each call"
        if not all(_is_dense(inputs[k]) for k in sizes.moving):
            return "an input with gaps between its elements lies elsewhere at each call"
        copied, scaled = (
            sum(inputs[k].nbytes for k in positions) for positions in (sizes.moving, self.scaled)
        )
        if not self._saves_more_than(copied):
            return f"{self.launches} launches take no longer than a replay and a copy of {copied} bytes of inputs"
        if not self._saves_more_than(copied + scaled):
            return f"{self.launches} launches take no longer than to scale {scaled} bytes elsewhere than in their place"
        return ""

    def _saves_more_than(self, copied: int) -> bool:
        """Whether a replay takes less than the launches even if so many bytes are copied."""
        return self.launches * LAUNCH_SECONDS > REPLAY_SECONDS + copied / COPIED_PER_SECOND


def _scaled_in_place(program: Program) -> list[int]:
    """The positions of inputs that a step multiplies in their place, if nobody holds them, by a
    number that may be 1: a recording writes the product elsewhere."""
    plan, names = program.plan, list(program.plan.graph.inputs)
    found = set()
    for step in plan.steps:
        scaled = (
            scaling(step.kernel)
            if isinstance(step, KernelStep) and isinstance(step.kernel, Kernel)
            else None
        )
        if (
            isinstance(step, KernelStep)
            and scaled
            and step.arguments[scaled.source] in plan.lenders.values()
        ):
            found.add(names.index(step.arguments[scaled.source]))
    return sorted(found)


def _numbers(addresses: bytes) -> Sequence[int]:
    return memoryview(addresses).cast("Q") if addresses else ()


def memory_of(machine: Machine, stream: Hashable) -> Memory:
    key = (id(machine), stream)
    return Memory.known.get(key) or Memory.known.setdefault(key, Memory(machine))


def _alias(t: Tensor) -> Tensor:
    """A tensor in the memory of `t` that is no view of it, with which a user can do all that he can
    with his own."""
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(t)  # type: ignore[call-overload]


def _read(value: Any, kind: str, dim: int) -> int:
    if kind == "size":
        return value.shape[dim]
    return value.stride(dim) if kind == "stride" else value
