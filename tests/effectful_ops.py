"""Ops of a user's that do something beside their results: each appends a line to `LOG` when it
runs. For tests, and for random programs."""

from __future__ import annotations

import torch
from torch import Tensor

LOG: list[tuple[str, float]] = []
KEPT: list[Tensor] = []


def _note(name: str, x: Tensor) -> None:
    LOG.append((name, round(float(x.detach().double().nan_to_num(7.0, 8.0, 9.0).sum()), 3)))


@torch.library.custom_op("ingot_tests::counted", mutates_args=())
def counted(x: Tensor) -> Tensor:
    _note("counted", x)
    return x * 2


@counted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("ingot_tests::noted", mutates_args=())
def noted(x: Tensor) -> None:
    _note("noted", x)


@torch.library.custom_op("ingot_tests::pair", mutates_args=())
def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    _note("pair", x)
    return x + 1, x.sum()


@pair.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(())


@torch.library.custom_op("ingot_tests::listed", mutates_args=())
def listed(xs: list[Tensor], times: float = 1.0) -> list[Tensor]:
    _note("listed", xs[0])
    return [x * times for x in xs]


@listed.register_fake
def _(xs: list[Tensor], times: float = 1.0) -> list[Tensor]:
    return [torch.empty_like(x) for x in xs]


@torch.library.custom_op("ingot_tests::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> Tensor:
    _note("scaled", x)
    return x * factor


@scaled.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


def _remember(ctx, inputs, output) -> None:
    ctx.factor = inputs[1]


def _backward_of_scaled(ctx, gradient: Tensor) -> tuple[Tensor, None]:
    noted(gradient)
    return scaled(gradient, ctx.factor), None


scaled.register_autograd(_backward_of_scaled, setup_context=_remember)


@torch.library.custom_op("ingot_tests::unfaked", mutates_args=())
def unfaked(x: Tensor) -> Tensor:
    _note("unfaked", x)
    return x - 1


@torch.library.custom_op("ingot_tests::turned", mutates_args=())
def turned(x: Tensor) -> Tensor:
    """Its result lies in memory in another order than its fake says."""
    _note("turned", x)
    return (x + 3).t().contiguous().t() if x.dim() == 2 else x + 3


@turned.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("ingot_tests::places", mutates_args=())
def places(x: Tensor) -> Tensor:
    _note("places", x)
    return x.nonzero()


@places.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty([torch.library.get_ctx().new_dynamic_size(), x.dim()], dtype=torch.int64)


@torch.library.custom_op("ingot_tests::kept", mutates_args=())
def kept(x: Tensor) -> Tensor:
    """Keeps what it is given and what it gives."""
    _note("kept", x)
    result = x + 0.5
    KEPT.extend((x, result))
    return result


@kept.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("ingot_tests::raised_by", mutates_args=("x",))
def raised_by(x: Tensor, by: float) -> None:
    """Writes its argument."""
    _note("raised_by", x)
    x.add_(by)


@torch.library.custom_op("ingot_tests::raised_both", mutates_args=("xs",))
def raised_both(xs: list[Tensor]) -> None:
    """Writes the tensors of a list."""
    _note("raised_both", xs[0])
    for x in xs:
        x.add_(1)


_library = torch.library.Library("ingot_tests", "FRAGMENT")
_library.define("defined(Tensor x) -> Tensor")


def _defined(x: Tensor) -> Tensor:
    _note("defined", x)
    return x.clone()


_library.impl("defined", _defined, "CPU")
_library.impl("defined", torch.empty_like, "Meta")
defined = torch.ops.ingot_tests.defined

_library.define("silent(Tensor x) -> ()")


def _silent(x: Tensor) -> None:
    _note("silent", x)


def _gives_nothing(x: Tensor) -> None:
    return None


_library.impl("silent", _silent, "CPU")
_library.impl("silent", _gives_nothing, "Meta")
silent = torch.ops.ingot_tests.silent

_library.define("composed(Tensor x) -> Tensor")


def _composed(x: Tensor) -> Tensor:
    return torch.ops.ingot_tests.counted(x) + 1


_library.impl("composed", _composed, "CompositeImplicitAutograd")
composed = torch.ops.ingot_tests.composed

SHAPE_KEEPING = (counted, kept, turned, defined, composed)
"""Ops that take a tensor of any floating type and give one of its sizes."""


def _same_gradient(ctx, *gradients):
    return gradients[0]


def _of_listed(ctx, gradients):
    return [g * ctx.times for g in gradients], None


def _remember_times(ctx, inputs, output) -> None:
    ctx.times = inputs[1]


for _op in (counted, pair, kept, turned, unfaked, "ingot_tests::defined"):
    torch.library.register_autograd(_op, _same_gradient)
listed.register_autograd(_of_listed, setup_context=_remember_times)
