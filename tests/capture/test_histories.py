"""The DTensors of a call have one node of autograd's: their gradients are eager's, on one rank."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import ingot

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)

WIDTH = 8


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(count)])
        self.unused = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def made(count: int = 3) -> Net:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = Net(count)
    plan = {f"layers.{k}": ColwiseParallel(use_local_output=True) for k in range(count)}
    plan["unused"] = ColwiseParallel()
    return parallelize_module(model, init_device_mesh("cpu", (1,)), plan)  # type: ignore[return-value]


def batch() -> Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))


def plain(gradient: Any) -> Any:
    return None if gradient is None else gradient.full_tensor().detach()


def whole(model: Any, loss: Tensor) -> list[Any]:
    loss.backward()
    return [plain(p.grad) for p in model.parameters()]


def twice(model: Any, loss: Tensor) -> list[Any]:
    """A graph that is kept gives its gradients once more."""
    loss.backward(retain_graph=True)
    return whole(model, loss)


def of_one(model: Any, loss: Tensor) -> list[Any]:
    weight = model.layers[1].weight
    return [plain(g) for g in torch.autograd.grad(loss, [weight])]


def none_for_unused(model: Any, loss: Tensor) -> list[Any]:
    wanted = [model.unused.weight, model.layers[0].bias]
    return [plain(g) for g in torch.autograd.grad(loss, wanted, allow_unused=True)]


def of_gradients(model: Any, loss: Tensor) -> list[Any]:
    weight = model.layers[0].weight
    (gradient,) = torch.autograd.grad(loss, [weight], create_graph=True)
    gradient.to_local().square().sum().backward()
    return [plain(p.grad) for p in model.parameters()]


def with_hooks(model: Any, loss: Tensor) -> list[Any]:
    seen = []
    first, second, *_ = model.parameters()
    first.register_hook(lambda gradient: gradient * 2)
    second.register_post_accumulate_grad_hook(lambda p: seen.append(plain(p.grad)))
    return [*whole(model, loss), *seen]


WAYS = [whole, twice, of_one, none_for_unused, of_gradients, with_hooks]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_gradients_are_eagers(way: Any) -> None:
    both = []
    for compiles in (False, True):
        model = made()
        called = ingot.compile(model, fullgraph=True) if compiles else model
        for _ in range(2):
            found = way(model, called(batch()).square().mean())
            model.zero_grad()
        both.append(found)
    assert len(both[0]) == len(both[1]) > 0
    for expected, actual in zip(*both):
        assert (expected is None) == (actual is None)
        if expected is not None:
            torch.testing.assert_close(actual, expected)


def _nodes(root: Any) -> set[Any]:
    found, waiting = set[Any](), [root]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    return found


def test_one_node_for_all() -> None:
    model = made()
    compiled = ingot.compile(model)
    for _ in range(2):
        nodes = _nodes(compiled(batch()).sum().grad_fn)
    assert len([node for node in nodes if type(node).__name__ == "_HistoriesBackward"]) == 1
    accumulating = [node for node in nodes if type(node).__name__ == "AccumulateGrad"]
    assert len(accumulating) == 2 * len(model.layers)


def _python_calls(count: int) -> int:
    """How many calls of Python functions a step takes, forward and backward."""
    model = made(count)
    compiled = ingot.compile(model)
    for _ in range(5):
        compiled(batch()).sum().backward()
        model.zero_grad()
    loss_of, calls = lambda: compiled(batch()).sum(), 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        loss = loss_of()
    finally:
        sys.setprofile(None)
    loss.backward()
    return calls


def test_a_call_calls_no_python_for_a_parameter() -> None:
    assert _python_calls(2) == _python_calls(6)


def test_other_distributions_are_other_programs() -> None:
    """What guards remember of a DTensor does not outlive it."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    compiled = ingot.compile(lambda w: w.redistribute(placements=[Replicate()]) * 2)
    value = torch.randn(4, 6)
    for placement in (Shard(0), Shard(1), Replicate(), Shard(0)):
        for shape in ((4, 6), (6, 4)):
            for requires_grad in (False, True):
                w = distribute_tensor(value.reshape(shape), mesh, [placement])
                w.requires_grad_(requires_grad)
                result = compiled(w)
                assert result.requires_grad is requires_grad and result.shape == shape
                torch.testing.assert_close(result.full_tensor(), value.reshape(shape) * 2)


def test_nothing_of_a_step_is_alive_after_it() -> None:
    """Neither activations nor parts of parameters, without the collector of garbage."""
    model = made()
    compiled = ingot.compile(model)
    counts = []
    gc.disable()
    try:
        for step in range(12):
            compiled(batch()).sum().backward()
            model.zero_grad()
            if step > 6:
                counts.append(sum(isinstance(one, Tensor) for one in gc.get_objects()))
    finally:
        gc.enable()
    assert counts == counts[:1] * len(counts)
