"""What lowering and scheduling ask of the device that a program runs on."""

from __future__ import annotations

from dataclasses import dataclass


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
    those of short flat loops. `has_registers`: rows of scratch are values of a block of threads,
    and exist as long as they fit its registers. `launch`: so many scalar operations take the device
    about as long as a launch does; 0 where nothing is computed again to save one.

    A kernel of fewer than `parallel_points` outer points leaves cores idle, which matters from
    `serial_elements` elements on, on a GPU of one point. Reductions to fewer than `few_points`
    results, over `long_reduction` elements in all, are split in at most `most_parts` parts of at
    least `part` elements each; `columns` neighbouring results count as one where they are reduced
    together. On a GPU, where a block of threads takes a part of one result, the parts of all are
    counted.
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
    parallel_points: int = 8
    serial_elements: int = 1 << 16
    few_points: int = 8
    long_reduction: int = 1 << 17
    part: int = 1 << 14
    most_parts: int = 64
    columns: int = 512


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
    parallel_points=256,
    serial_elements=1 << 13,
    few_points=256,
    long_reduction=1 << 15,
    part=1 << 12,
    most_parts=1 << 10,
    columns=128,
)
