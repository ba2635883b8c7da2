"""What one rank finds of models under `fully_shard` and its kin, trained in eager and compiled: see
test_fully_shard.py."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch._dynamo  # which FSDP imports: once, and not in each rank
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import ingot
from ingot.compiler import Compiler

WIDTH, STEPS = 8, 3


class Block(nn.Module):
    """Which knows its number, as layers of many models do."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.norm, self.first = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16)
        self.second = nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(self.norm(x)))) / (self.number + 1)


class Checkpointed(Block):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Net(nn.Module):
    """Blocks with work before, between and behind them."""

    def __init__(self, block: Callable[[int], nn.Module], count: int) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(map(block, range(count)))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.inner(x))
        for block in self.blocks:
            x = block(x).sin() * 2
        return self.head(x)


Way = Callable[[nn.Module], nn.Module]


# -- how a model is sharded ------------------------------------------------------------------------


def _mesh() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def _each(model: Net, of_block: Way) -> Net:
    for k, block in enumerate(model.blocks):
        model.blocks[k] = of_block(block)
    return model


def _sharded(model: Net, mesh: Any = None, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = mesh or _mesh()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def _in_half(model: Net) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return _sharded(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))


def _offloaded(model: Net) -> nn.Module:
    from torch.distributed.fsdp import CPUOffloadPolicy

    return _sharded(model, offload_policy=CPUOffloadPolicy(pin_memory=False))


def _wrapped_checkpoints(model: Net) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    return _sharded(_each(model, checkpoint_wrapper))


def _frozen(model: Net) -> nn.Module:
    model.blocks[0].requires_grad_(False)
    model.inner.requires_grad_(False)
    return _sharded(model)


def _in_group(model: Net) -> nn.Module:
    """The blocks are one group of parameters."""
    from torch.distributed.fsdp import fully_shard

    mesh = _mesh()
    fully_shard([*model.blocks], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _prefetched(model: Net) -> nn.Module:
    sharded: Any = _sharded(model)
    first, second = sharded.blocks
    first.set_modules_to_forward_prefetch([second])
    second.set_modules_to_backward_prefetch([first])
    return sharded


def _hybrid(model: Net) -> nn.Module:
    """Sharded on pairs of ranks, and replicated."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "fsdp"))
    return _sharded(model, mesh)


def _with_tensor_parallel(model: Net) -> nn.Module:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], plan)
    return _sharded(model, mesh["dp"])


def _replicated(model: Net) -> nn.Module:
    from torch.distributed._composable.replicate_with_fsdp import replicate

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("replicate",))
    for block in model.blocks:
        replicate(block, mesh=mesh)
    return replicate(model, mesh=mesh)


def _wrapped(model: Net, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({Block, Checkpointed})
    cpu = torch.device("cpu")
    return FullyShardedDataParallel(model, device_id=cpu, auto_wrap_policy=policy, **options)


SHARDINGS: dict[str, Way] = {
    "default": _sharded,
    "kept": partial(_sharded, reshard_after_forward=False),
    "in half": _in_half,
    "offloaded": _offloaded,
    "wrapped checkpoints": _wrapped_checkpoints,
    "frozen": _frozen,
    "in group": _in_group,
    "prefetched": _prefetched,
    "replicated": _replicated,
    "fsdp1": _wrapped,
    "fsdp1 with parameters": partial(_wrapped, use_orig_params=True),
    # those of four ranks
    "of pairs": partial(_sharded, reshard_after_forward=2),
    "hybrid": _hybrid,
    "with tensor parallel": _with_tensor_parallel,
}


# -- how it is compiled ----------------------------------------------------------------------------


def _compiled_in_place(block: nn.Module, **options: Any) -> nn.Module:
    """As `block.compile()` does it with torch.compile."""
    block._compiled_call_impl = ingot.compile(block._call_impl, **options)
    return block


def _compiled_forward(block: nn.Module) -> nn.Module:
    block.forward = ingot.compile(block.forward)  # type: ignore[method-assign]
    return block


_whole_graph = partial(ingot.compile, fullgraph=True)

BEFORE: dict[str, Way] = {
    "blocks": _whole_graph,
    "blocks in place": partial(_compiled_in_place, fullgraph=True),
    "forwards": _compiled_forward,
}
"""What compiles a block that is sharded then."""


def _of_blocks(of_block: Way, model: Any) -> Any:
    return _each(model, of_block)


BEHIND: dict[str, Way] = {
    "sharded blocks": partial(_of_blocks, _whole_graph),
    "sharded blocks in place": partial(_of_blocks, partial(_compiled_in_place, fullgraph=True)),
    "sharded forwards": partial(_of_blocks, _compiled_forward),
    "model": ingot.compile,
}
"""What compiles a model that is sharded."""

WAYS = (*BEFORE, *BEHIND)


def made(
    sharding: str, way: str, block: Callable[[int], nn.Module] = Block, count: int = 2
) -> nn.Module:
    """A model that is sharded, and compiled in a way; "" is eager."""
    torch.manual_seed(0)
    model = Net(block, count)
    if way in BEFORE:
        model = _each(model, BEFORE[way])
    sharded = SHARDINGS[sharding](model)
    return BEHIND[way](sharded) if way in BEHIND else sharded


# -- training --------------------------------------------------------------------------------------


def _numbers(tensor: Any) -> list[Any]:
    """What tells a tensor, and how a DTensor lies, from others."""
    if tensor is None:
        return ["none"]
    tensor = tensor.detach()
    found = [str(tensor.dtype)]
    if isinstance(tensor, DTensor):
        found.append(str(tensor.placements))
        tensor = tensor.to_local()
    tensor = tensor.double()
    return [*found, list(tensor.shape), tensor.sum().item(), tensor.norm().item()]


def _loss(model: nn.Module, seed: int) -> Tensor:
    torch.manual_seed(100 * seed + dist.get_rank())
    x, y = torch.randn(6, WIDTH), torch.randn(6, 4)
    return (model(x).float() - y).square().mean()


def trained(model: Any, accumulates: bool = False) -> Iterator[list[Any]]:
    """Losses, gradients and parameters of some steps, and what the model gives without gradients.

    Where it accumulates gradients, two backwards make a step, and the first of them exchanges
    nothing."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for k in range(STEPS):
        if accumulates:
            model.set_requires_gradient_sync(False)
            _loss(model, STEPS + k).backward()
            model.set_requires_gradient_sync(True)
        loss = _loss(model, k)
        loss.backward()
        gradients = [_numbers(p.grad) for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            after = _loss(model, k)
        yield [_numbers(loss), gradients, _numbers(after), _state(model)]


def _state(model: nn.Module) -> list[Any]:
    """What would be saved of a model, under its names."""
    state = model.state_dict()
    return [[name, *_numbers(state[name])] for name in state]


def distance(one: Any, other: Any) -> float:
    """The largest relative difference of numbers in nested lists; infinite where other things
    differ."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max(map(distance, one, other), default=0.0)
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) / max(1.0, abs(other))
    return 0.0 if one == other else float("inf")


def facts(sharding: str, way: str, eager: list[Any], **options: Any) -> dict[str, Any]:
    """How far training is from eager's, how often it is compiled in each step, where graphs are
    broken, and whose they are."""
    ingot.reset()
    start, counts, differs = ingot.counters(), [], 0.0
    model = made(sharding, way)
    for one, other in zip(trained(model, **options), eager, strict=True):
        differs = max(differs, distance(one, other))
        counts.append(ingot.counters()["compilations"] - start["compilations"])
    breaks = ingot.counters()["breaks"]
    for reason in start["breaks"]:
        breaks[reason] -= start["breaks"][reason]
    broken = {reason: breaks[reason] for reason in breaks if breaks[reason]}
    return {"differs": differs, "compilations": counts, "breaks": broken, "graphs": _graphs()}


def _graphs() -> list[str]:
    """The names of all functions that a graph was compiled of."""
    names = set[str]()
    for compiler in Compiler.alive:
        names.update(c.name for c in compiler.compilations if c.has_graph)
    return sorted(names)


def find_all(shardings: str, ways: str = ",".join(WAYS)) -> dict[str, Any]:
    """By sharding and way, the facts."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for sharding in shardings.split(","):
        for accumulates in (False, True)[: 1 + (sharding == "default")]:
            eager = list(trained(made(sharding, ""), accumulates))
            for way in ways.split(","):
                name = f"{sharding}, {way}" + ", accumulated" * accumulates
                found[name] = facts(sharding, way, eager, accumulates=accumulates)
    return found


# -- many blocks, memory, time ---------------------------------------------------------------------


def find_more() -> dict[str, Any]:
    """What a model of many blocks comes to, what is gathered at a time, and what hooks take."""
    warnings.simplefilter("ignore")
    memory = {way: _gathered(made("default", way)) for way in ("", "blocks", "model")}
    seconds = {way: _seconds(made("default", way)) for way in ("", "blocks", "model")}
    return {"many": _of_many(24), "memory": memory, "seconds": seconds}


def _of_many(count: int) -> dict[str, Any]:
    """How often a model of many blocks is compiled in two calls, and what is left to eager."""
    ingot.reset()
    start = ingot.counters()
    model, eager = made("default", "model", count=count), made("default", "", count=count)
    x, counts = torch.randn(6, WIDTH), []
    with torch.no_grad():
        for _ in range(2):
            differs = distance(_numbers(model(x)), _numbers(eager(x)))
            counts.append(ingot.counters()["compilations"] - start["compilations"])
    fallbacks = ingot.counters()["fallbacks"]
    variants = fallbacks.get("variants", 0) - start["fallbacks"].get("variants", 0)
    return {"compilations": counts, "variants": variants, "differs": differs}


def _gathered(model: Any) -> list[int]:
    """How many bytes of whole parameters there are behind a forward, and behind its backward."""
    found = []
    for _ in range(2):
        loss = _loss(model, 0)
        found.append(_whole_bytes(model))
        loss.backward()
        found.append(_whole_bytes(model))
    return found


def _whole_bytes(model: Any) -> int:
    total = 0
    for module in (model, *model.blocks):
        for group in module._get_fsdp_state()._fsdp_param_groups:
            for parameter in group.fsdp_params:
                for output in parameter.all_gather_outputs:
                    total += output.untyped_storage().nbytes()
    return total


def _seconds(model: nn.Module) -> float:
    """The processor's time of a call, nearly all of which hooks take: the least of some rounds."""
    x, rounds = torch.randn(6, WIDTH), []
    with torch.no_grad():
        for _ in range(12):
            start = time.process_time()
            for _ in range(10):
                model(x)
            rounds.append(time.process_time() - start)
    return min(rounds[2:])


def find_ways() -> str:
    return ",".join(WAYS)


def find_alive(way: str) -> tuple[list[int], int]:
    """How many tensors there are after each of some steps without the collector of garbage, and how
    many it finds then."""
    warnings.simplefilter("ignore")
    model = made("default", way)

    def step() -> None:
        _loss(model, 0).backward()
        model.zero_grad()

    for _ in range(9):  # the eighth looks again at who waits for gradients
        step()
    gc.collect()
    gc.disable()
    counts = []
    for _ in range(6):
        step()
        counts.append(_tensors())
    gc.collect()
    return counts, counts[-1] - _tensors()


def _tensors() -> int:
    return sum(isinstance(one, Tensor) for one in gc.get_objects())


# -- whole models as one graph ---------------------------------------------------------------------


class Odd(nn.Module):
    """Sizes that no number of ranks divides, a parameter that is not used and one that is used
    twice, units within units, and a forward that looks at its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, WIDTH)
        self.outer = nn.Sequential(nn.Linear(WIDTH, 5), Block(0), nn.Linear(WIDTH, 3))
        self.outer[1].norm = nn.Identity()
        self.outer[1].first, self.outer[1].second = nn.Linear(5, 1), nn.Linear(1, WIDTH)
        self.outer[1].skip = nn.Linear(5, WIDTH)
        self.outer[1].forward = self._of_block
        self.back = nn.Linear(3, WIDTH)
        self.unused = nn.Parameter(torch.randn(3))
        self.scale = nn.Parameter(torch.tensor([1.5]))

    def _of_block(self, x: Tensor) -> Tensor:
        block = self.outer[1]
        return block.skip(x) + block.second(torch.tanh(block.first(x)))

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(next(self.back.parameters()).dtype)
        places = (x.detach() * 3).abs().long().clamp(max=6)[:, 0]
        x = self.embedding(places) + x
        x = self.back(self.outer(x)) * self.scale
        return (x @ self.embedding.weight.T)[:, :4]


def _odd(dtypes: Any = None, **options: Any) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    model, mesh = Odd(), _mesh()
    for unit in (model.outer[1], model.outer, model):
        if dtypes is not None:
            result = torch.float32 if unit is model else None
            options["mp_policy"] = MixedPrecisionPolicy(*dtypes, output_dtype=result)
        fully_shard(unit, mesh=mesh, **options)
    return model


def _steps(model: Any, optimizer: Any, calls: Iterator[Any]) -> Iterator[list[Any]]:
    """Steps of two backwards each; the next of `calls` is called for each forward."""
    for k in range(STEPS):
        losses = []
        for part in range(2):
            losses.append(_loss(next(calls), 2 * k + part))
            losses[-1].backward()
        gradients = [_numbers(p.grad) for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.inference_mode(k == 1), torch.no_grad():
            after = _loss(next(calls), k)
        model.train()
        model.reshard()
        yield [*map(_numbers, losses), gradients, _numbers(after), _state(model)]


ODD: dict[str, Callable[[], Any]] = {
    "default": _odd,
    "kept": partial(_odd, reshard_after_forward=False),
    "in half": partial(_odd, (torch.bfloat16, torch.float16)),
}


def find_whole(sharding: str, every: str) -> dict[str, Any]:
    """How far an odd model is from eager, of whose calls every so manieth runs in eager, and what
    was compiled."""
    warnings.simplefilter("ignore")
    both = []
    for is_compiled in (False, True):
        model = ODD[sharding]()
        whole = ingot.compile(model) if is_compiled else model
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        both.append(list(_steps(model, optimizer, _in_turn(whole, model, int(every)))))
    breaks = sum(ingot.counters()["breaks"].values())
    return {"differs": distance(*both), "graphs": _graphs(), "breaks": breaks}


def _in_turn(whole: Any, model: Any, every: int) -> Iterator[Any]:
    """What is called for each forward."""
    count = 0
    while True:
        count += 1
        yield model if every and count % every == 0 else whole


# -- when collectives begin and end ----------------------------------------------------------------

_STEPS = {"all_gather_into_tensor": "gather", "reduce_scatter_tensor": "reduce", "wait_tensor": "|"}


def find_order() -> list[str]:
    """The collectives of a model of three blocks, forward and backward, and the waits for them; "."
    is work in between."""
    warnings.simplefilter("ignore")
    report = ingot.explain(made("default", "model", count=3))(torch.randn(6, WIDTH))
    found = []
    for kernels in (report.kernels, report.backward_kernels):
        words = [""]
        for kernel in kernels:
            word = _STEPS.get(kernel.name, ".")
            if word != words[-1] or word != ".":
                words.append(word)
        found.append(" ".join(words[1:]))
    return found


# -- what Python runs between kernels --------------------------------------------------------------

_COLLECTIVES = tuple(f"_c10d_functional::{name}" for name in _STEPS)


def find_python(count: str, way: str = "model") -> dict[str, dict[str, Any]]:
    """Of a step of a model of so many sharded layers, forward and backward: how many kernels and
    collectives the profiler sees, and what Python calls between the first and the last of them."""
    from torch.profiler import ProfilerActivity, profile

    warnings.simplefilter("ignore")
    model = made("default", way, count=int(count))
    for step in range(3):
        _loss(model, step).backward()
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiled:
        _loss(model, 3).backward()
    events = list(_flat(profiled.profiler.kineto_results.experimental_event_tree()))  # type: ignore[union-attr]
    begin = next(event.start_time_ns for event in events if "run_backward" in event.name)
    found = {}
    for way in ("forward", "backward"):
        own = [e for e in events if (e.start_time_ns < begin) == (way == "forward")]
        found[way] = _between(sorted(own, key=lambda event: event.start_time_ns))
    return found


def _flat(events: Any) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _flat(event.children)


def _between(events: list[Any]) -> dict[str, Any]:
    """The same of events in order."""
    launched = [event.name.startswith(("ingot::", *_COLLECTIVES)) for event in events]
    first, last = launched.index(True), len(events) - launched[::-1].index(True)
    counts = {"kernels": 0, "gather": 0, "reduce": 0, "|": 0}
    python = []
    for event in events[first:last]:
        _, _, step = event.name.partition("_c10d_functional::")
        if step in _STEPS:
            counts[_STEPS[step]] += 1
        elif event.name.startswith("ingot::") and "[" in event.name:
            counts["kernels"] += 1
        elif event.tag.name.startswith("Py"):
            python.append(event.name)
    return {**counts, "python": python}
