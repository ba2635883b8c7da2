"""A model of the list, how its inputs and its loss are made, and a row: one way to run it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.training_models import trained

Draw = Callable[[int], tuple[Tensor, ...]]
"""Draws the inputs of a batch of that size."""

PARTS = ("wide", "core", "rest")
"""Which rows a model has (`listed.rows`), and which are measured first."""


@dataclass(frozen=True)
class Model:
    """One model of a suite.

    `network()` builds it with random weights. `draw(n)` draws its inputs, whose first dimension is
    `n` where it has batches. `batch` examples fill the card in inference and `train` in training.
    `loss` is one of `LOSSES`, or "" where the model is not trained; `inference` is false where the
    network takes gradients itself. `seconds` is what a row takes of one core, roughly, compilation
    and all.
    """

    suite: str
    name: str
    network: Callable[[], nn.Module]
    draw: Draw
    batch: int
    train: int
    loss: str = "classes"
    needs: str = ""
    part: str = "core"
    seconds: float = 45.0
    inference: bool = True

    @property
    def missing(self) -> str:
        """Why it cannot run here, "" if it can."""
        found = not self.needs or importlib.util.find_spec(self.needs)
        return "" if found else f"needs the package {self.needs}"


@dataclass(frozen=True)
class Row:
    """One way to run a model. `batch` is a number of examples; `full` says that it fills the
    card."""

    suite: str
    model: str
    direction: str  # "inference" or "training"
    dtype: str  # "float32", or that of autocast
    batch: int
    full: bool
    mode: str  # "default" or "reduce-overhead"

    @property
    def name(self) -> str:
        """As the list and the results call it."""
        size = f"{'full' if self.full else 'batch'}={self.batch}"
        return f"{self.suite}/{self.model} {self.direction} {self.dtype} {size} {self.mode}"


# -- losses ----------------------------------------------------------------------------------------


def tensors(result: Any) -> list[Tensor]:
    """The tensors of a result, a tensor or nested tuples. A compiler sees this code, so it must not
    be Ingot's own, into which Ingot does not look."""
    if isinstance(result, Tensor):
        return [result]
    found = []
    for part in result:
        found += tensors(part)
    return found


def class_numbers(result: Any) -> tuple[Tensor, ...]:
    """A class for each row of scores, (..., classes)."""
    (scores,) = tensors(result)
    return (torch.randint(scores.shape[-1], scores.shape[:-1], device=scores.device),)


def classified(result: Any, target: Tensor) -> Tensor:
    """Cross-entropy of scores whose classes are in the last dimension."""
    (scores,) = tensors(result)
    return F.cross_entropy(scores.flatten(0, -2), target.flatten())


def pixel_classes(result: Any) -> tuple[Tensor, ...]:
    """A class for each pixel of scores, (n, classes, height, width)."""
    (scores,) = tensors(result)
    shape = scores.shape[:1] + scores.shape[2:]
    return (torch.randint(scores.shape[1], shape, device=scores.device),)


def pixels_classified(result: Any, target: Tensor) -> Tensor:
    (scores,) = tensors(result)
    return F.cross_entropy(scores, target)


def floating(result: Any) -> list[Tensor]:
    return [t for t in tensors(result) if t.is_floating_point()]


def same_shapes(result: Any) -> tuple[Tensor, ...]:
    """A number for each of the result's, in float32."""
    return tuple(torch.randn(t.shape, device=t.device) for t in floating(result))


def squared(result: Any, *targets: Tensor) -> Tensor:
    """The mean squared distances of all tensors of a result from their targets, added."""
    total = torch.zeros((), device=targets[0].device, dtype=targets[0].dtype)
    for value, target in zip(floating(result), targets, strict=True):
        total = total + F.mse_loss(value.to(target.dtype), target)
    return total


def nothing(result: Any) -> tuple[Tensor, ...]:
    return ()


def own(result: Tensor) -> Tensor:
    return result


@dataclass(frozen=True)
class Loss:
    """`targets(result)` draws what a result is compared with; `value(result, *targets)` compares
    them."""

    targets: Callable[[Any], tuple[Tensor, ...]]
    value: Callable[..., Tensor]


LOSSES = {
    "classes": Loss(class_numbers, classified),
    "pixels": Loss(pixel_classes, pixels_classified),
    "squares": Loss(same_shapes, squared),
    "own": Loss(nothing, own),  # the network's result is its loss
}


class Training(nn.Module):
    """A network's loss: of its inputs, and behind them the targets."""

    def __init__(self, network: nn.Module, inputs: int, loss: str) -> None:
        super().__init__()
        self.network, self.inputs, self.loss = network, inputs, loss

    def forward(self, *args: Tensor) -> Tensor:
        result = self.network(*args[: self.inputs])
        return LOSSES[self.loss].value(result, *args[self.inputs :])


class Called(nn.Module):
    """A model that is called with keywords: its tensors of the names `results`, given tensors in
    the order of `names`."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], results: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names, self.results = model, names, results

    def forward(self, *args: Tensor) -> Any:
        out = self.model(**dict(zip(self.names, args, strict=True)))
        if len(self.results) == 1:
            return out[self.results[0]]
        return tuple(out[name] for name in self.results)


# -- making ----------------------------------------------------------------------------------------


def built(model: Model, device: torch.device) -> nn.Module:
    """The network on that device, with nothing left to chance. Its weights are drawn there, which
    takes no time on a GPU; those that want a CPU for it are moved."""
    torch.manual_seed(0)
    try:
        with device:
            network = model.network()
    except (RuntimeError, TypeError, NotImplementedError):
        torch.manual_seed(0)
        network = model.network()
    for module in network.modules():
        if type(module).__name__ == "StochasticDepth":  # torchvision's
            module.p = 0.0  # type: ignore[assignment]
    return trained(network.to(device))


def drawn(model: Model, batch: int, device: torch.device, seed: int = 0) -> tuple[Tensor, ...]:
    """The inputs of that seed on that device."""
    torch.manual_seed(seed)
    return tuple(value.to(device) for value in model.draw(batch))


def made(
    model: Model, row: Row, device: torch.device
) -> tuple[nn.Module, Callable[[int], tuple[Tensor, ...]]]:
    """What is called in that row, and what draws its arguments by a seed."""
    network = built(model, device)
    if row.direction == "inference":
        return network.eval(), partial(drawn, model, row.batch, device)
    inputs = drawn(model, row.batch, device)

    def draw(seed: int) -> tuple[Tensor, ...]:
        args = drawn(model, row.batch, device, seed)
        return (*args, *LOSSES[model.loss].targets(result))

    with torch.set_grad_enabled(not model.inference):
        result = shapes_of(network(*inputs))
    return Training(network, len(inputs), model.loss), draw


def shapes_of(result: Any) -> list[Tensor]:
    """Tensors like those of the result, which take no memory."""
    return [
        torch.empty((), device=t.device, dtype=t.dtype).expand(t.shape) for t in tensors(result)
    ]
