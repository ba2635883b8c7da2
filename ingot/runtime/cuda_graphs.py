"""CUDA graphs (`mode="reduce-overhead"`): the launches of a program are recorded, and replayed.

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
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ingot.errors import Unsupported, unsupported
from ingot.loops.ir import Library
from ingot.loops.launches import Launch
from ingot.loops.side_effects import acts
from ingot.native import _native
from ingot.runtime.control_calls import CONTROL
from ingot.runtime.program import Program
from ingot.runtime.traces import returned_buffers
from ingot.schedule.kernel import Kernel, scaling
from ingot.schedule.plan import KernelStep, LibraryStep, touched
from ingot.sequences import at
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

# run as in the default mode before anything is recorded: libraries make ready what they keep
WARM_CALLS = 2
MOST_SIZES = 16  # sets of sizes with recordings
MOST_RECORDINGS = 8  # of the same sizes, for inputs at other places
MOST_CAPTURES = 24  # of the same sizes in all
MOST_TWINS = 3  # of the same inputs, with results at other places
COPIED_BYTES = 1 << 20  # results that are copied for the user, where they are in the way
MOVES = 2  # calls in a row in which an input lay elsewhere: then it is copied

# Library functions that wait for the device, or ask it something, which cannot be recorded.
_WAITING = (
    "linalg", "_linalg", "lu_", "cholesky", "svd", "qr", "geqrf", "ormqr", "nonzero", "unique",
    "_unique", "masked_", "_local_scalar", "item", "equal", "repeat_interleave", "bincount",
    "histc", "multinomial", "_ctc_loss", "put", "_embedding_bag", "tensor_split", "is_nonzero",
    "allclose", "_assert", "triangular_solve", "ldl",
)  # fmt: skip

# ... and those that wait if an index is a mask
_INDEXING = ("aten.index.", "aten.index_put", "aten._index_put", "aten._unsafe_index")

# Functions that launch kernels at each step of a recurrence, with fewer launches than they do.
_MANY = {"ingot.cudnn_rnn.default": 16, "ingot.cudnn_rnn_backward.default": 16}

_storage_owners = storage_use_count
_is_dense = aten.is_non_overlapping_and_dense.default


@dataclass(frozen=True)
class Costs:
    """What decides which programs are recorded on a machine: estimates of launches, replays and
    copies.

    Fewer launches than `least_launches` take no longer than a replay. Results of more than
    `twin_bytes` have no second recording. Of library functions whose names begin with one of
    `waiting`, nothing is recorded.
    """

    launch_seconds: float = 4e-6
    replay_seconds: float = 10e-6
    copied_per_second: float = 1.5e12
    least_launches: int = 3
    twin_bytes: int = 64 << 20
    waiting: tuple[str, ...] = _WAITING


class Machine(Protocol):
    """Records and replays, where that pays by its `costs`.

    `stream` is the current one, None where nothing may be recorded or replayed on it now; `pool`
    names memory for recordings. `capture` records what `run` launches, without running it, with
    memory of the pool. It returns a callable that replays it on the current stream, and the result
    of `run`.
    """

    costs: Costs

    def stream(self) -> Hashable | None: ...
    def pool(self) -> Any: ...
    def capture(
        self, run: Callable[[], Sequence[Any]], pool: Any
    ) -> tuple[Callable[[], None], Sequence[Any]]: ...


def why_not(program: Program, costs: Costs) -> str:
    """Why nothing of a program can be recorded; "" where it can."""
    plan = program.plan
    lacking = why_off(GRAPHS)
    if lacking is not None:
        return lacking.reason
    if _native.tensor_facts_are_slow():
        return "torch does not say who holds a tensor's memory"
    if plan.graph.bound:
        return "sizes depend on data"
    for step in plan.steps:
        why = ""
        if isinstance(step, LibraryStep):
            why = _why_not_call(step.node, plan.graph.buffers, costs)
        if why:
            return why
    names = {*plan.graph.inputs, *returned_buffers(plan)}
    names.update(*map(touched, plan.steps))
    if any(buffer.on_host for buffer in at(plan.graph.buffers, names)):
        return "numbers are on the CPU"
    if not plan.frugal and any(place.kind == "arena" for place in plan.places.values()):
        return "temporaries are kept between calls"
    launches = launches_of(program)
    if launches >= costs.least_launches:
        return ""
    return f"{launches} launches take no longer than a replay"


def _why_not_call(node: Library, buffers: Mapping[str, Any], costs: Costs) -> str:
    """Why a library call cannot be recorded; "" where it can."""
    name = getattr(node.function, "__name__", str(node.function))
    if isinstance(node.function, Launch):
        if node.function.is_looked_up:
            return f"{name} is looked up by Triton at each launch"
        if node.function.reads_numbers:
            return f"{name} reads numbers from tensors"
        return ""
    if isinstance(node.function, CONTROL):
        return f"{name} is decided on the host"
    if node.ordered and acts(node.function):
        return f"{name} may do more than launch kernels"
    if _drops_attention(node):
        return f"{name} leaves the seed of its dropout where only a recorded backward reads it"
    if name.startswith(costs.waiting) or _takes_mask(node, buffers):
        return f"{name} waits for the device"
    return ""


def launches_of(program: Program) -> int:
    """How often a program launches something: once for each step, but for some library calls."""
    launches = 0
    for step in program.plan.steps:
        name = ""
        if isinstance(step, LibraryStep):
            name = str(step.node.function)
        launches += _MANY.get(name, 1)
    return launches


def _drops_attention(node: Any) -> bool:
    """Whether attention drops some of its weights.

    Its seed is on the device if it is recorded, else on the CPU.
    """
    schema = getattr(node.function, "_schema", None)
    names = [argument.name for argument in getattr(schema, "arguments", ())]
    arguments = dict(zip(names, node.args), **node.kwargs)
    return arguments.get("dropout_p", 0.0) != 0.0


def _takes_mask(node: Any, buffers: Mapping[str, Any]) -> bool:
    """Whether elements are chosen by a mask, of which only the device knows how many there are."""
    if not str(node.function).startswith(_INDEXING):
        return False
    read = at(buffers, node.reads())
    return any(buffer.dtype in (torch.bool, torch.uint8) for buffer in read)


class Results:
    """The tensors that a recording writes for its caller, at the same place in each replay.

    `lent` says that somebody may hold one: a tensor more is an owner more of the storage, and
    whoever asked for the storage has a reference to the object that Python has of it. torch makes
    that object when it is first asked for, and it is an owner from then on; so all are made here.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.storages = _native.storages(self.tensors)
        self.bytes = _bytes(self.tensors)
        self.addresses = self._addresses()
        self.objects = [t.untyped_storage() for t in tensors]
        self.owners: list[int] = []
        self.references: list[int] = []
        self.loans: list[int] = []
        self.lent, self.moved = False, False

    def __del__(self, stop: Callable[[int], None] = _native.stop_lending) -> None:
        for storage in self.loans:
            stop(storage)

    def _addresses(self) -> bytes:
        return _native.addresses(self.tensors, len(self.tensors), ())

    def settle(self) -> None:
        """To be called when nobody else holds one."""
        self.owners, self.references = self._holders()

    def _holders(self) -> tuple[list[int], list[int]]:
        return list(map(_storage_owners, self.storages)), list(map(sys.getrefcount, self.objects))

    def lend(self, positions: Iterable[int]) -> None:
        """Once settled: let the backward reuse the memory of these; its results are held alike."""
        for k in positions:
            self.loans.append(self.storages[k])
            _native.keep_lending(self.storages[k], self.owners[k], self.objects[k])
        self.references = self._holders()[1]  # the loans have some

    def are_free(self) -> bool:
        """Whether nobody holds one, and all are in place: holders can resize a tensor's memory."""
        if self.lent and self._holders() == (self.owners, self.references):
            self.lent = False
            self.moved = self.moved or self._addresses() != self.addresses
        return not self.lent

    def positions_in_use(self) -> list[int]:
        """The positions of those that somebody holds."""
        now, before = zip(*self._holders()), zip(self.owners, self.references)
        return [k for k, (a, b) in enumerate(zip(now, before)) if a != b]

    def shares(self, position: int) -> bool:
        """Whether another one has the same memory."""
        return self.storages.count(self.storages[position]) > 1


class Pool:
    """Memory of recordings.

    A replay may write all that was free when it was recorded, and so the results of recordings made
    later.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.handle: Any = None
        # in the order in which they were made
        self.recordings: list[tuple[weakref.ref[Recording], Results]] = []

    def begin(self) -> Any:
        """The pool's name, before something is recorded."""
        kept, is_alive = [], False
        for reference, results in self.recordings:
            exists = reference() is not None
            is_alive |= exists
            if exists or not results.are_free():
                kept.append((reference, results))
        self.recordings = kept
        if not is_alive:  # its memory went with the last: there is none of that name
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
    """The pool that recordings of one device and stream share, and the lock of all use of it."""

    known: dict[tuple[int, Hashable], Memory] = {}

    def __init__(self, machine: Machine) -> None:
        self.shared = Pool(machine)
        self.pools: weakref.WeakSet[Pool] = weakref.WeakSet([self.shared])
        self.lock = threading.Lock()

    def pool(self) -> Pool:
        """A pool for a recording that cannot share one."""
        pool = Pool(self.shared.machine)
        self.pools.add(pool)
        return pool

    def result_addresses(self) -> set[int]:
        """Where recordings' results begin."""
        addresses: set[int] = set()
        for pool in self.pools:
            for _, results in pool.recordings:
                addresses.update(_numbers(results.addresses))
        return addresses


class Recording:
    """Replays a program with inputs at `addresses`, and with `copies` of those that move."""

    def __init__(
        self,
        replay: Callable[[], None],
        pool: Pool,
        addresses: bytes,
        copies: Mapping[int, Tensor],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> None:
        self.replay, self.pool, self.addresses = replay, pool, addresses
        self.moving, self.copies = tuple(copies), list(copies.values())
        tensors = [t for t in inputs if isinstance(t, Tensor)]  # which come first
        storages = dict(zip(_native.storages(tensors), itertools.count()))
        self.windows: list[tuple[int, int, tuple[int, ...], tuple[int, ...], int]] = []
        self.constants: list[tuple[int, Any]] = []
        self.owned: list[int] = []  # the positions of `results` among the outputs
        owned = []
        for k, output in enumerate(outputs):
            base = None
            if isinstance(output, Tensor) and output.numel():
                base = storages.get(_native.storages([output])[0])
            if not isinstance(output, Tensor):
                self.constants.append((k, output))
            elif base is not None:
                shift = output.storage_offset() - inputs[base].storage_offset()
                if output.dtype != inputs[base].dtype:
                    raise unsupported(
                        "recorded-result", "a result is a window of another dtype on an input"
                    )
                self.windows.append((k, base, tuple(output.shape), output.stride(), shift))
            elif output.device != inputs[0].device:
                raise unsupported("recorded-result", "a result lies on another device")
            else:
                self.owned.append(k)
                owned.append(output)
        self.results, self.count = Results(owned), len(outputs)

    def run(self, inputs: Sequence[Any], visible: int, copied: set[int]) -> tuple[Any, ...]:
        """Replay, and the outputs: the first `visible` ones are tensors of their own.

        Those that are `copied` have memory of their own.
        """
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
        outputs: list[Any] = [None] * self.count
        for k, value in self.constants:
            outputs[k] = value
        for k, base, sizes, strides, shift in self.windows:
            offset = inputs[base].storage_offset() + shift
            outputs[k] = inputs[base].as_strided(sizes, strides, offset)
        fresh, written = [], []
        for position, (k, t) in enumerate(zip(self.owned, self.results.tensors)):
            if position in copied and not self.results.shares(position):
                outputs[k] = _empty_like(t)
                fresh.append(outputs[k])
                written.append(t)
            else:
                self.results.lent = True
                if k < visible:
                    outputs[k] = _alias(t)
                else:
                    outputs[k] = t.detach()
        if fresh:
            foreach_copy_(fresh, written)
        return tuple(outputs)


class Sizes:
    """The recordings of a program for one stream and set of sizes.

    `moving` are inputs that are copied, `copied` the results that are. The addresses of a call are
    those of its inputs, with 0 for the former.
    """

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
        """Note where the inputs of a call lie for which there is no recording.

        Returns whether one is worth its while: they lay there the last time too, or are copied from
        now on.
        """
        last, self.last = self.last, addresses
        self.calls += 1
        if last is None:
            return False
        ours = memory.result_addresses() if addresses != last else ()
        moved_before, self.moved = self.moved, {}
        for k, (address, before) in enumerate(zip(_numbers(addresses), _numbers(last))):
            if address != before and address not in ours:
                self.moved[k] = moved_before.get(k, 0) + 1
        often = [k for k, times in self.moved.items() if times >= MOVES]
        if often:
            self.moving = tuple(sorted({*self.moving, *often}))
            self.recordings.clear()  # of inputs that were in place
            self.last = None
        return len(often) == len(self.moved) and self.calls > WARM_CALLS


class Replayed:
    """A program that is replayed where that is known to be right, and else run.

    `visible` is how many of its outputs the user gets, None for all: the others are only read.
    Where the CPU has a part of its own (a layer that draws whether it is skipped), `parts` are the
    program of the device, which is recorded, and that of the CPU, which runs at each call.
    """

    def __init__(
        self, program: Program, machine: Machine, programs: tuple[Program, Program] | None = None
    ) -> None:
        self.program, self.machine = program.native, machine
        recorded, beside = programs or (program, None)
        self.recorded = recorded.native
        self.beside = beside.native if beside else None
        self.visible: int | None = None
        self.launches = launches_of(recorded)
        self.tensors = len(program.plan.graph.inputs)
        self.written = sorted(program.written_inputs)
        self.counted = sorted(program.counted_writes)
        self.scaled = _scaled_in_place(program)
        self.places = [place[1:] for place in program.plan.graph.symbols]
        self.known: dict[tuple[Hashable, ...], Sizes] = {}
        self.calls, self.replays, self.held, self.why = 0, 0, 0, ""
        self.paused = False  # while steps are to be measured one by one

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        results = self._replayed(inputs)
        if results is None:
            return self.program(*inputs)
        return results

    def consume(self, inputs: list[Any]) -> tuple[Any, ...]:
        """As a call, and takes the inputs from the list."""
        results = self._replayed(inputs)
        if results is None:
            return self.program.consume(inputs)
        inputs.clear()
        return results

    def describe(self) -> str:
        """For the report."""
        reasons, count = {self.why: None}, 0
        for sizes in self.known.values():
            reasons[sizes.why] = None
            count += len(sizes.recordings)
        reasons.pop("", None)
        text = f"{count} recorded, {self.replays} of {self.calls} calls replayed"
        if self.held:
            text += f", {self.held} not while results of others were held"
        if reasons:
            return f"{text}: {'; '.join(reasons)}"
        return text

    def _replayed(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        """The results, or None where the program is to be run."""
        self.calls += 1
        if self.why or self.paused:
            return None
        stream = self.machine.stream()
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
            if sizes.note(addresses, memory):
                return self._record(sizes, memory.shared, inputs)
            return None
        last = matching[-1]
        if last.results.are_free():  # results of others are where it writes
            sizes.recordings.remove(last)
        elif len(matching) >= MOST_TWINS or last.results.bytes > self.machine.costs.twin_bytes:
            positions = last.results.positions_in_use()
            copied = _bytes(at(last.results.tensors, positions))
            few = copied <= max(COPIED_BYTES, last.results.bytes // 4)
            if few and self._saves_more_than(copied):
                sizes.copied.update(positions)
            self.held += 1
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
            self.why = f"recording failed: {problem}"
            if isinstance(problem, Unsupported):
                self.why = str(problem)
            return None
        recording.results.settle()
        visible = recording.count if self.visible is None else self.visible
        lent = []
        for position, (k, t) in enumerate(zip(recording.owned, recording.results.tensors)):
            if k >= visible and not self._saves_more_than(t.nbytes):
                lent.append(position)
        recording.results.lend(lent)
        pool.recordings.append((weakref.ref(recording), recording.results))
        sizes.recordings.append(recording)
        return recording

    def _captured(self, moving: tuple[int, ...], pool: Pool, inputs: Sequence[Any]) -> Recording:
        recorded_inputs, copies = list(inputs), {}
        addresses = _native.addresses(inputs, self.tensors, moving)
        for k in moving:
            copies[k] = recorded_inputs[k] = _empty_like(inputs[k])
        run = functools.partial(self.recorded, *recorded_inputs)
        replay, outputs = self.machine.capture(run, pool.begin())
        return Recording(replay, pool, addresses, copies, recorded_inputs, outputs)

    def _why_not(self, sizes: Sizes, inputs: Sequence[Any]) -> str:
        """Why nothing is recorded for these inputs; "" where it is."""
        if not self.tensors:
            return "there are no inputs"
        if sizes.captures >= MOST_CAPTURES:
            return "inputs lie elsewhere too often"
        if set(sizes.moving) & set(self.written):
            return "an input that is written lies elsewhere at each call"
        if not all(map(_is_dense, at(inputs, sizes.moving))):
            return "an input with gaps between its elements lies elsewhere at each call"
        copied = _bytes(at(inputs, sizes.moving))
        scaled = _bytes(at(inputs, self.scaled))
        launches = f"{self.launches} launches take no longer than"
        if not self._saves_more_than(copied):
            return f"{launches} a replay and a copy of {copied} bytes of inputs"
        if not self._saves_more_than(copied + scaled):
            return f"{launches} to scale {scaled} bytes elsewhere than in their place"
        return ""

    def _saves_more_than(self, copied: int) -> bool:
        """Whether a replay takes less than the launches even if so many bytes are copied."""
        costs = self.machine.costs
        replay = costs.replay_seconds + copied / costs.copied_per_second
        return self.launches * costs.launch_seconds > replay


def _scaled_in_place(program: Program) -> list[int]:
    """The positions of inputs that a step may multiply in their place.

    It does if nobody holds them, and not at all if the number is 1: a recording writes the product
    elsewhere.
    """
    plan, names = program.plan, list(program.plan.graph.inputs)
    positions = set()
    for step in plan.steps:
        if isinstance(step, KernelStep) and isinstance(step.kernel, Kernel):
            scaled = scaling(step.kernel)
            if scaled and step.arguments[scaled.source] in plan.lenders.values():
                positions.add(names.index(step.arguments[scaled.source]))
    return sorted(positions)


def _numbers(addresses: bytes) -> Sequence[int]:
    if addresses:
        return memoryview(addresses).cast("Q")
    return ()


def memory_of(machine: Machine, stream: Hashable) -> Memory:
    key = (id(machine), stream)
    return Memory.known.get(key) or Memory.known.setdefault(key, Memory(machine))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.nbytes for t in tensors)


def _empty_like(t: Tensor) -> Tensor:
    """Memory for the same elements, with exactly the same strides."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)


def _alias(t: Tensor) -> Tensor:
    """A tensor in the memory of `t` that is no view of it, and so like any of the user's own."""
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(t)  # type: ignore[call-overload]


def _read(value: Any, kind: str, dim: int) -> int:
    if kind == "size":
        return value.shape[dim]
    if kind == "stride":
        return value.stride(dim)
    return value
