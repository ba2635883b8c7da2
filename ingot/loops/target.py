"""What lowering and scheduling ask of the device that a program runs on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Blocking:
    """How many elements a GPU's block of threads takes, and how many blocks keep a GPU busy.

    The figures are those of an H200; `schedule.blocks` and `schedule.columns` choose by them.
    """

    few_blocks: int = 1024  # fewer leave multiprocessors idle
    # blocks that find out whether there is anything to do: as many as run at a time
    most_scaling: int = 2048
    # that run at once where rows are summed, a quarter of what a GPU has room for
    threads: int = 1 << 16
    short_rows: int = 2048  # elements of a block of short rows
    largest_row: int = 1 << 14  # elements of a block that fit the registers of a multiprocessor
    step: int = 4096  # elements of a longer row that are taken at a time ...
    # ... of one that is read again: of fewer rows at a time, so that these stay in the L2 cache ...
    step_again: int = 8192
    steps_beside: int = 64  # ... and of one whose neighbours lie side by side
    per_thread: int = 8  # elements, and twice as many where a block has many warps
    l2_bytes: int = 64 << 20  # more than the L2 cache has


@dataclass(frozen=True)
class Speed:
    """What a GPU's libraries do in a microsecond, and the microseconds that a launch takes.

    `aligned` and `unaligned` are operations of products of halves, whose rows are or are not
    aligned for tensor cores; a multiplication and its addition are two. Measured on an H200,
    bfloat16, [8192, 768] times [768, 50257]: 6.67 ms as it is, 0.88 ms with 50264 columns.
    """

    aligned: float = 600e6
    unaligned: float = 95e6
    bytes: float = 2e6
    launch: float = 4.0


@dataclass(frozen=True)
class Splitting:
    """When a kernel leaves cores idle, and how a reduction is split among them.

    A kernel of fewer than `parallel_points` outer points leaves cores idle, which matters from
    `serial_elements` elements on, on a GPU of one point. Reductions to fewer than `few_points`
    results, over `long_reduction` elements in all, are split in at most `most_parts` parts of at
    least `part` elements each; `columns` neighbouring results count as one where they are reduced
    together. On a GPU, where a block of threads takes a part of one result, the parts of all are
    counted.
    """

    parallel_points: int = 8
    serial_elements: int = 1 << 16
    few_points: int = 8
    long_reduction: int = 1 << 17
    part: int = 1 << 14
    most_parts: int = 64
    columns: int = 512


@dataclass(frozen=True)
class Target:
    """`device` is a device type of torch's.

    `contracts`: products, attention and convolutions may be code of ours; elsewhere they are
    library calls. `scatters`: writes at places that tensors name, and scans, may be loops, whose
    points then run in order. `rounds_in_steps`: eager computes some functions of halves in several
    steps, each of which rounds. `measured`: `loops.lowering.cost` holds here. Of two tensors that
    are joined, a value of up to `cost_of_joining` scalar ops and loads is computed at each element
    of the other as well, rather than written to memory and read again: on a CPU no more than two
    plain loads. `shares_launches`: one launch may run a kernel over many sets of buffers; on a GPU
    those of short flat loops, of up to `shared_points` points, up to `most_sharing` of them.
    `has_registers`: rows of scratch are values of a block of threads, and exist as long as they fit
    its registers. `launch`: so many scalar operations take the device about as long as a launch
    does; 0 where nothing is computed again to save one. From `many_taps` elements of a depthwise
    convolution's windows on, its weight is laid side by side first.
    """

    device: str
    contracts: bool = True
    scatters: bool = True
    rounds_in_steps: bool = True
    measured: bool = True
    cost_of_joining: int = 4
    shares_launches: bool = True
    has_registers: bool = False
    launch: int = 0
    # Measured on an H200 with windows of 3x3, us: 5.7 and 4.2 at 450 thousand points, 2.4 and 2.3
    # at 75 thousand.
    many_taps: int = 1 << 22
    shared_points: int = 1 << 20
    most_sharing: int = 512
    splitting: Splitting = Splitting()
    blocking: Blocking = Blocking()
    speed: Speed = Speed()


CPU = Target("cpu")

# The figures are those of a device of about a hundred multiprocessors, each of which wants several
# blocks of threads.
GPU = Target(
    "cuda",
    contracts=False,
    scatters=False,
    rounds_in_steps=False,
    measured=False,
    cost_of_joining=24,
    has_registers=True,
    launch=1 << 25,  # 1 us
    splitting=Splitting(
        parallel_points=256,
        serial_elements=1 << 13,
        few_points=256,
        long_reduction=1 << 15,
        part=1 << 12,
        most_parts=1 << 10,
        columns=128,
    ),
)
