"""What one rank finds of models under DistributedDataParallel, trained in eager and compiled in
each way: see test_data_parallel.py."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch._dynamo  # which DistributedDataParallel imports: once, and not in each rank
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

import ingot
from ingot.runtime import training

WIDTH, BATCH = 32, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first, self.second = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(self.norm(x))))


class Model(nn.Module):
    """Blocks, one after the other; what is between them is Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class WithBuffers(Model):
    def __init__(self) -> None:
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.batch_norm(x))


class Varied(Model):
    """Not all of its parameters have gradients each time."""

    def __init__(self) -> None:
        super().__init__()
        self.skips = False

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks[2 if self.skips else 0 :]:
            x = block(x)
        return self.last(x)


class Checkpointed(Model):
    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.last(x)


class Tied(Model):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[3].first.weight = self.blocks[0].first.weight


class TwoResults(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = super().forward(x)
        return y, torch.softmax(y, -1)


# -- steps of training -----------------------------------------------------------------------------


def _batch(step: int, part: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * dist.get_rank() + 10 * step + part)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    y = torch.randn(BATCH, 4, generator=generator)
    return x.to(_device()), y.to(_device())


def _device() -> torch.device:
    """That of this rank."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", dist.get_rank())
    return torch.device("cpu")


def _loss(module: nn.Module, step: int, part: int = 0) -> Tensor:
    x, y = _batch(step, part)
    result = module(x)
    if isinstance(result, tuple):
        result = result[0] * 2 + result[1]
    return (result.float() - y).square().mean()


def plain(module: Any, step: int) -> Tensor:
    loss = _loss(module, step)
    loss.backward()
    return loss


def accumulated(module: Any, step: int) -> Tensor:
    """Communicates the gradients of each part."""
    for part in range(2):
        _loss(module, step, part).backward()
    return _loss(module, step)


def without_sync(module: Any, step: int) -> Tensor:
    with module.no_sync():
        _loss(module, step, 0).backward()
    return _last_part(module, step)


def _last_part(module: Any, step: int) -> Tensor:
    loss = _loss(module, step, 1)
    loss.backward()
    return loss


def autocast(module: Any, step: int) -> Tensor:
    with torch.autocast(_device().type, dtype=torch.bfloat16):
        loss = _loss(module, step)
    loss.backward()
    return loss


def kept_graph(module: Any, step: int) -> Tensor:
    with module.no_sync():
        loss = _loss(module, step)
        loss.backward(retain_graph=True)
    loss.backward()
    return loss


def one_backward(module: Any, step: int) -> Tensor:
    with ingot.compiled_backward():
        return plain(module, step)


def varied(module: Any, step: int) -> Tensor:
    module._orig_mod.module.skips = bool(step % 2)
    return plain(module, step)


def uneven(module: Any, step: int) -> Tensor:
    """Ranks have one batch more or less."""
    losses = []
    with module.join():
        for part in range(1 + dist.get_rank()):
            losses.append(_last_part(module, 10 * step + part))
    return losses[0]


def with_penalty(module: Any, step: int) -> Tensor:
    """A parameter has gradients from outside of the module as well."""
    loss = _loss(module, step) + 0.01 * sum(p.square().sum() for p in module.parameters())
    loss.backward()
    return loss


def some_inputs(module: Any, step: int) -> Tensor:
    """A gradient of the input, without one of parameters."""
    x, y = _batch(step)
    x.requires_grad_()
    with module.no_sync():
        (slope,) = torch.autograd.grad((module(x) - y).square().mean(), x)
    return plain(module, step) + slope.square().sum()


def second_order(module: Any, step: int) -> Tensor:
    """The loss has a gradient in it."""
    x, y = _batch(step)
    x.requires_grad_()
    with module.no_sync():
        loss = (module(x) - y).square().mean()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + slope.square().sum()).backward()
    return plain(module, step)


# -- the ways --------------------------------------------------------------------------------------


def _no_hook(module: Any) -> None: ...


def _mean(state, bucket):  # DDP asks for its own annotations, or none
    """Communicates as DDP does, by a hook of Python's."""
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def _by_hook(hook: Callable[..., Any], state: Any = None) -> Callable[[Any], None]:
    return lambda module: module.register_comm_hook(state, hook)


def _power(module: Any) -> None:
    """State of that hook, which begins with two plain steps."""
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _steps_behind_gradients(module: Any) -> None:
    """A parameter is written as soon as its gradient is there."""

    def step(parameter: Tensor) -> None:
        with torch.no_grad():
            parameter -= 0.05 * parameter.grad.sign()  # type: ignore[union-attr]

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(step)


def _hooks_on_gradients(module: Any) -> None:
    for parameter in module.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


class Way(NamedTuple):
    """How a model is wrapped and trained. `largest` is the largest relative difference."""

    options: dict[str, Any] = {}
    model: Callable[[], nn.Module] = Model
    train: Callable[[Any, int], Tensor] = plain
    prepare: Callable[[Any], None] = _no_hook
    largest: float = 1e-5


SMALL: dict[str, Any] = {"bucket_cap_mb": 0.02}
HALF = 2e-2

WAYS: dict[str, Way] = {
    "one bucket": Way(),
    "small buckets": Way(SMALL),
    "a hook that communicates": Way(SMALL, prepare=_by_hook(_mean)),
    "a hook of torch's": Way(SMALL, prepare=_by_hook(default_hooks.allreduce_hook)),
    "compressed": Way(SMALL, prepare=_by_hook(default_hooks.fp16_compress_hook), largest=HALF),
    # with several buckets it waits for itself in eager: its hook waits for gloo's threads, in one
    "PowerSGD": Way(prepare=_power, largest=1e-3),
    "no_sync": Way(SMALL, train=without_sync),
    "accumulated": Way(SMALL, train=accumulated),
    "unused parameters": Way({**SMALL, "find_unused_parameters": True}, Varied, varied),
    "unused parameters are looked for": Way({**SMALL, "find_unused_parameters": True}),
    "static graph": Way({**SMALL, "static_graph": True}),
    "static graph of checkpoints": Way({**SMALL, "static_graph": True}, Checkpointed),
    "views of buckets": Way({**SMALL, "gradient_as_bucket_view": True}),
    "views of buckets, no_sync": Way(
        {**SMALL, "gradient_as_bucket_view": True}, train=without_sync
    ),
    "static graph, views of buckets": Way(
        {**SMALL, "static_graph": True, "gradient_as_bucket_view": True}
    ),
    "autocast": Way(SMALL, train=autocast, largest=HALF),
    "buffers": Way(SMALL, WithBuffers),
    "buffers of each rank": Way({**SMALL, "broadcast_buffers": False}, WithBuffers),
    "join": Way(SMALL, train=uneven),
    "checkpoints": Way(SMALL, Checkpointed),
    "compiled_backward": Way(SMALL, train=one_backward),
    "a graph that is kept": Way(SMALL, train=kept_graph),
    "tied weights": Way(SMALL, Tied),
    "two results": Way(SMALL, TwoResults),
    "gradients from outside": Way(SMALL, train=with_penalty),
    "a gradient of the input": Way(SMALL, train=some_inputs),
    "second order": Way(SMALL, train=second_order),
    "hooks on gradients": Way(SMALL, prepare=_hooks_on_gradients),
    "steps behind gradients": Way(SMALL, prepare=_steps_behind_gradients),
}


def _inside(model: nn.Module, options: dict[str, Any], compiled_by: Any) -> Any:
    return DistributedDataParallel(compiled_by(model), **options)


def _around(model: nn.Module, options: dict[str, Any], compiled_by: Any) -> Any:
    return compiled_by(DistributedDataParallel(model, **options))


def _blocks(model: Any, options: dict[str, Any], compiled_by: Any) -> Any:
    for k, block in enumerate(model.blocks):
        model.blocks[k] = compiled_by(block)
    return DistributedDataParallel(model, **options)


PLACES = {"inside": _inside, "around": _around, "blocks": _blocks}


def _trained(way: Way, place: str, compiled_by: Any) -> list[Tensor]:
    """The losses, gradients and states of three steps."""
    torch.manual_seed(0)
    model = way.model().to(_device())
    module = PLACES[place](model, way.options, compiled_by)
    if not hasattr(module, "_orig_mod"):
        module.__dict__["_orig_mod"] = module
    way.prepare(module)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    found = []
    for step in range(3):
        found.append(way.train(module, step).detach().cpu())
        for parameter in model.parameters():
            gradient = parameter.grad
            found.append(torch.zeros(()) if gradient is None else gradient.detach().cpu().clone())
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        results = module.module.eval()(_batch(7)[0])
        found.append(torch.stack(results) if isinstance(results, tuple) else results)
    found += module.state_dict().values()
    return [t.detach().cpu().float().clone() for t in found]


def _plainly(module: Any) -> Any:
    return module


def _largest_difference(found: list[Tensor], expected: list[Tensor]) -> float:
    assert len(found) == len(expected)
    largest = 0.0
    for one, other in zip(found, expected):
        assert one.shape == other.shape, (one.shape, other.shape)
        largest = max(largest, float((one - other).norm() / (other.norm() + 1e-3)))
    return largest


def _ingots_count() -> tuple[int, int]:
    counters = ingot.counters()
    return counters["captures"], sum(counters["breaks"].values())


def compare(ways: str, places: str) -> dict[str, dict[str, float]]:
    """By way and place: the largest difference from eager's training, graphs and breaks."""
    warnings.simplefilter("ignore")
    found = {}
    for name in ways.split("; "):
        way = WAYS[name]
        expected = _trained(way, "inside", _plainly)
        for place in places.split("; "):
            ingot.reset()
            results = _trained(way, place, ingot.compile)
            graphs, breaks = _ingots_count()
            found[f"{name}; {place}"] = {
                "difference": _largest_difference(results, expected),
                "largest": way.largest,
                "graphs": graphs,
                "breaks": breaks,
            }
    return found


def count_torchs(ways: str, places: str) -> dict[str, tuple[int, int]]:
    """By way and place: the graphs and breaks of torch.compile."""
    from torch import _dynamo as dynamo

    warnings.simplefilter("ignore")
    found = {}
    for name in ways.split("; "):
        for place in places.split("; "):
            dynamo.reset()
            dynamo.utils.counters.clear()
            graphs = []

            def backend(module: Any, inputs: Any, graphs: list[Any] = graphs) -> Any:
                graphs.append(module)
                return module

            compiled_by = functools.partial(torch.compile, backend=backend)
            # it would split graphs by buckets, and raises an error for small ones
            with dynamo.config.patch(optimize_ddp=False):
                _trained(WAYS[name], place, compiled_by)
            breaks = sum(dynamo.utils.counters["graph_break"].values())
            found[f"{name}; {place}"] = len(graphs), breaks
    return found


# -- when buckets are launched ---------------------------------------------------------------------


def _launched(module: Any) -> list[float]:
    """For each bucket, the share of the backward's kernels that began before it, of a trace."""

    def hook(state, bucket):
        with record_function("a bucket"):
            return _mean(state, bucket)

    module.register_comm_hook(None, hook)
    for step in range(3):
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            plain(module, step)
    events = sorted(profiled.events(), key=lambda event: event.time_range.start)
    kernels, places = 0, []
    for event in events:
        if event.name.startswith("ingot::") and " backward " in event.name:
            kernels += 1
        elif event.name == "a bucket":
            places.append(kernels)
    assert kernels > 20
    return [place / kernels for place in places]


def launches() -> dict[str, list[float]]:
    """When buckets are launched, with links and without: shares of the backward's kernels."""
    warnings.simplefilter("ignore")
    found = {}
    with_links = training.links_for
    for name, links_for in {"links": with_links, "one node": lambda *_: None}.items():
        training.links_for = links_for
        try:
            torch.manual_seed(0)
            model = ingot.compile(Model())
            found[name] = _launched(DistributedDataParallel(model, **SMALL))
        finally:
            training.links_for = with_links
    return found


def find_links() -> list[bool]:
    """Whether a compiled model has links: before it is wrapped, then, and once the wrapper is
    gone."""
    warnings.simplefilter("ignore")
    model = ingot.compile(Model())
    found = []
    module: Any = model
    for count in (4, 16, 32):
        for step in range(count):
            plain(module, step)
        program = module(_batch(0)[0]).grad_fn.program
        found.append(program.links is not None)
        module = DistributedDataParallel(model) if module is model else model
    return found


def find_identity() -> dict[str, bool]:
    """What a compiled DDP is to those who ask."""
    plain = DistributedDataParallel(Model())
    module = ingot.compile(plain, fullgraph=True)
    again = ingot.compile(module)
    x = _batch(0)[0]
    module(x)
    facts = {
        "is one": isinstance(module, DistributedDataParallel) and module == plain,
        "keys": list(module.state_dict()) == list(plain.state_dict()),
        "is shared": module.module.last.weight is plain.module.last.weight,
        "again": again._orig_mod is plain,
    }
    plain.module = Block()  # a compiled one follows
    facts["follows"] = module(x).shape == x.shape and module.module == plain.module
    return facts


def find_few() -> dict[str, Any]:
    """What the ordinary tests look at, found in one start of the ranks."""
    few = compare("views of buckets, no_sync", "inside") | compare("static graph", "around")
    facts = {"launches": launches(), "links": find_links(), "identity": find_identity()}
    return {"few": few, **facts}
