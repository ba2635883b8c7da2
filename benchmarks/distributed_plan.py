"""Steps of training on many ranks, priced without running them: `python -m benchmarks.distributed
--simulate`.

A plan is a timeline of two lanes, one that computes and one that communicates. What a collective
takes is a formula of ranks, bytes, latency and bandwidth; what a block takes is its operations over
a processor's speed. So the figures say what a schedule can hide, not what a machine does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Network(NamedTuple):
    """Links between ranks: seconds that a message takes at least, and bytes per second of each
    rank in each direction. Within a node of `node_ranks` they are others than between nodes."""

    latency: float = 15e-6
    bandwidth: float = 50e9
    node_ranks: int = 8
    latency_in_node: float = 5e-6
    bandwidth_in_node: float = 400e9

    def of_ring(self, ranks: int) -> tuple[float, float]:
        """Latency and bandwidth of a ring, which goes as its slowest link does."""
        if ranks <= self.node_ranks:
            return self.latency_in_node, self.bandwidth_in_node
        return self.latency, min(self.bandwidth, self.bandwidth_in_node)


# -- collectives -----------------------------------------------------------------------------------


def all_gather(total: float, ranks: int, network: Network) -> float:
    """Seconds until each rank has all of `total` bytes, of which each had a part.

    A ring: `ranks - 1` messages, each of a part. (Thakur, Rabenseifner, Gropp: Optimization of
    Collective Communication Operations in MPICH, 2005, 4.1.)
    """
    latency, bandwidth = network.of_ring(ranks)
    return (ranks - 1) * (latency + total / ranks / bandwidth)


def reduce_scatter(total: float, ranks: int, network: Network) -> float:
    """Seconds until each rank has the sum of its part of `total` bytes, without the additions.

    A ring, with the messages of `all_gather` in the other order. (The same, 4.3.)
    """
    return all_gather(total, ranks, network)


def all_reduce(total: float, ranks: int, network: Network) -> float:
    """Seconds until each rank has the sum of `total` bytes.

    A ring: the one of `reduce_scatter`, then that of `all_gather`. Each rank sends 2 (p - 1) / p of
    the bytes, than which none can send fewer. (Patarasuk, Yuan: Bandwidth optimal all-reduce
    algorithms for clusters of workstations, 2009.)
    """
    return reduce_scatter(total, ranks, network) + all_gather(total, ranks, network)


# -- timelines -------------------------------------------------------------------------------------


class Lanes:
    """Two lanes: one computes, one communicates, each one thing after the other."""

    def __init__(self) -> None:
        self.computes_until = self.communicates_until = 0.0
        self.computed = self.communicated = 0.0

    def compute(self, seconds: float, after: float = 0.0) -> float:
        """When a computation ends that begins once the lane is free, and not before `after`."""
        self.computes_until = max(self.computes_until, after) + seconds
        self.computed += seconds
        return self.computes_until

    def communicate(self, seconds: float, after: float = 0.0) -> float:
        self.communicates_until = max(self.communicates_until, after) + seconds
        self.communicated += seconds
        return self.communicates_until

    @property
    def end(self) -> float:
        return max(self.computes_until, self.communicates_until)

    @property
    def exposed(self) -> float:
        """Seconds in which nothing is computed."""
        return self.end - self.computed


class Model(NamedTuple):
    """Transformer blocks that a rank trains on so many tokens, and its operations per second.

    A block has 12 width² parameters. Forward takes 2 operations for each of them and each token,
    and 4 width for each pair of a query and a key; a backward takes twice as many.
    """

    blocks: int = 8
    width: int = 1024
    tokens: int = 8192
    length: int = 2048
    element_bytes: int = 2
    speed: float = 400e12

    @property
    def parameters(self) -> int:
        return 12 * self.width**2

    @property
    def block_bytes(self) -> int:
        return self.parameters * self.element_bytes

    @property
    def forward(self) -> float:
        """Seconds of a block's forward on one rank."""
        pairs = self.tokens * self.length
        return (2 * self.parameters * self.tokens + 4 * self.width * pairs) / self.speed


BUCKET_BYTES = 25 << 20  # of DistributedDataParallel
_STATE_BYTES = 12  # of a parameter: one of float32, and two moments


def data_parallel(
    model: Model, ranks: int, network: Network, bucket_bytes: float = BUCKET_BYTES
) -> Lanes:
    """Buckets of gradients are summed up as soon as they are full."""
    lanes, waiting = Lanes(), 0.0
    lanes.compute(model.blocks * model.forward)
    for block in range(model.blocks):
        ready = lanes.compute(2 * model.forward)
        waiting += model.block_bytes
        while waiting >= bucket_bytes or (waiting and block == model.blocks - 1):
            size = min(waiting, bucket_bytes)
            lanes.communicate(all_reduce(size, ranks, network), ready)
            waiting -= size
    return lanes


def data_parallel_at_end(model: Model, ranks: int, network: Network) -> Lanes:
    """The same where a backward gives all gradients at its end."""
    lanes = Lanes()
    ready = lanes.compute(3 * model.blocks * model.forward)
    left = float(model.blocks * model.block_bytes)
    while left > 0:
        size = min(left, BUCKET_BYTES)
        lanes.communicate(all_reduce(size, ranks, network), ready)
        left -= size
    return lanes


def sharded(model: Model, ranks: int, network: Network, units: int = 0) -> Lanes:
    """Parameters are gathered one unit ahead, in the forward and again in the backward, and sums of
    gradients are scattered; so many units, of blocks each (0: one for each block)."""
    units = units or model.blocks
    share = model.blocks / units
    size, forward = share * model.block_bytes, share * model.forward
    lanes = Lanes()
    gather, scatter = all_gather(size, ranks, network), reduce_scatter(size, ranks, network)
    for seconds, scatters in ((forward, False), (2 * forward, True)):
        if scatters and units == 1:
            gathered = lanes.computes_until  # it is whole yet
        else:
            gathered = lanes.communicate(gather, lanes.computes_until)
        for unit in range(units):
            here = gathered
            if unit + 1 < units:
                gathered = lanes.communicate(gather, here)
            done = lanes.compute(seconds, here)
            if scatters:
                lanes.communicate(scatter, done)
    return lanes


def sharded_whole(model: Model, ranks: int, network: Network) -> Lanes:
    return sharded(model, ranks, network, 1)


def tensor_parallel(model: Model, ranks: int, network: Network) -> Lanes:
    """Within nodes each block is split; two sums of activations in its forward and two in its
    backward are waited for. Nodes are data parallel, and sum up their parts at the end."""
    split = min(ranks, network.node_ranks)
    lanes = Lanes()
    activations = model.tokens * split * model.width * model.element_bytes
    added = all_reduce(activations, split, network)
    for seconds in (model.forward, 2 * model.forward):
        for _ in range(2 * model.blocks):
            ready = lanes.compute(seconds / 2)
            lanes.computes_until = lanes.communicate(added, ready)
    nodes = ranks // split
    if nodes > 1:
        across = network._replace(node_ranks=1)
        size = model.blocks * model.block_bytes / split
        lanes.communicate(all_reduce(size, nodes, across), lanes.computes_until)
    return lanes


PLANS: dict[str, Callable[[Model, int, Network], Lanes]] = {
    "DDP": data_parallel,
    "DDP, gradients at the end": data_parallel_at_end,
    "FSDP2 of blocks": sharded,
    "FSDP2 of the whole": sharded_whole,
    "tensor parallel in nodes": tensor_parallel,
}


def bytes_held(plan: str, model: Model, ranks: int, network: Network) -> float:
    """Bytes of parameters, gradients and an AdamW's state that a rank holds at once."""
    parameters = model.blocks * model.parameters
    kept = 2 * model.element_bytes + _STATE_BYTES
    if plan.startswith("DDP"):
        return parameters * kept
    if plan.startswith("tensor"):
        return parameters * kept / min(ranks, network.node_ranks)
    gathered = model.blocks if plan.endswith("whole") else min(2, model.blocks)
    return parameters * kept / ranks + gathered * model.block_bytes


class Price(NamedTuple):
    """A plan on so many ranks: seconds of a step, of computation and of communication, those that
    nothing hides, and bytes of a rank."""

    plan: str
    ranks: int
    step: float
    computed: float
    communicated: float
    exposed: float
    held: float


def prices(model: Model, ranks: Iterable[int], network: Network) -> list[Price]:
    found = []
    for count in ranks:
        for name, plan in PLANS.items():
            lanes = plan(model, count, network)
            held = bytes_held(name, model, count, network)
            times = lanes.end, lanes.computed, lanes.communicated, lanes.exposed
            found.append(Price(name, count, *times, held))
    return found
