"""Ops of a user's that write their arguments, a kind of schema each. For tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Op = Callable[[Tensor, Tensor], Any]
"""Writes its first argument, and may read the second one. Gives results, or None."""

custom_op = torch.library.custom_op
library = torch.library.Library("ingot_writes", "FRAGMENT")
ops: Any = torch.ops.ingot_writes


@custom_op("ingot_writes::scale", mutates_args=("x",))
def scale(x: Tensor, by: float = 2.0) -> None:
    x.mul_(by)


@custom_op("ingot_writes::several", mutates_args=("x", "z"))
def several(x: Tensor, y: Tensor, z: Tensor) -> None:
    x.add_(y)
    z.copy_(x * 2)


@custom_op("ingot_writes::optional", mutates_args=("x", "y"))
def optional(x: Tensor, y: Tensor | None = None) -> None:
    x.add_(1)
    if y is not None:
        y.mul_(3)


@custom_op("ingot_writes::listed", mutates_args=("xs",))
def listed(xs: list[Tensor], k: int) -> None:
    for x in xs:
        x.add_(k)


@custom_op("ingot_writes::unknown", mutates_args="unknown")
def unknown(x: Tensor, y: Tensor) -> None:
    x.sub_(y)


@custom_op("ingot_writes::summed", mutates_args=("x",))
def summed(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x.sum() + y


@summed.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(y)


@custom_op("ingot_writes::nested", mutates_args=("x",))
def nested(x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    x.add_(y)
    return x.sum(), [y * 2, y * 3]


@nested.register_fake
def _(x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    return y.new_empty(()), [torch.empty_like(y), torch.empty_like(y)]


@custom_op("ingot_writes::listing", mutates_args=("x",))
def listing(x: Tensor, y: Tensor) -> list[Tensor]:
    x.add_(y)
    return [y * 2, y * 3]


@listing.register_fake
def _(x: Tensor, y: Tensor) -> list[Tensor]:
    return [torch.empty_like(y), torch.empty_like(y)]


@custom_op("ingot_writes::places", mutates_args=("x",))
def places(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return (y > 0).nonzero().contiguous()


@places.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    count = torch.library.get_ctx().new_dynamic_size()
    return y.new_empty((count, y.dim()), dtype=torch.int64)


@custom_op("ingot_writes::by_device", mutates_args=("x",), device_types="cuda")
def by_device(x: Tensor) -> None:
    raise AssertionError("this is no GPU")


@by_device.register_kernel("cpu")
def _(x: Tensor) -> None:
    x.add_(7)


@custom_op("ingot_writes::told", mutates_args=("x",))
def told(
    x: Tensor,
    name: str,
    counts: list[int],
    dtype: torch.dtype,
    device: torch.device,
    factors: list[float],
    size: int,
    bias: float | None = None,
    *,
    flag: bool = False,
) -> None:
    assert name == "a name" and dtype is torch.float64 and device.type == "cpu"
    x.add_(sum(counts) + sum(factors) + size + (bias or 0.0) + flag)


library.define("scale_(Tensor(a!) self, Scalar by) -> Tensor(a!)")
library.define("increased(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
library.define("grow_(Tensor(a!) self) -> Tensor(a!)")
library.define("first(Tensor(a) x) -> Tensor(a)")
library.define("both(Tensor(a!) x, Tensor y) -> (Tensor(a!), Tensor)")


def _scale_(self: Tensor, by: float) -> Tensor:
    return self.mul_(by)


def _increased(x: Tensor, *, out: Tensor) -> Tensor:
    return out.copy_(x + 1)


def _grow_(self: Tensor) -> Tensor:
    return self.add_(5)


def _first(x: Tensor) -> Tensor:
    return x[:1]


def _both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.add_(y), y * 2


library.impl("scale_", _scale_, "CPU")
library.impl("increased", _increased, "CPU")
library.impl("grow_", _grow_, "CompositeExplicitAutograd")
library.impl("both", _both, "CPU")
library.impl("first", _first, "CPU")
library.impl("first", _first, "Meta")
torch.library.register_fake("ingot_writes::both", lambda x, y: (x, torch.empty_like(y)))


def _several(x: Tensor, y: Tensor) -> Tensor:
    z = torch.zeros_like(x)
    several(x, y, z)
    return z


def _optional(x: Tensor, y: Tensor) -> Tensor:
    z = y * 1
    optional(x, z)
    return z


def _listed(x: Tensor, y: Tensor) -> Tensor:
    z = y * 1
    listed([z, x], 3)
    return z


def _told(x: Tensor, y: Tensor) -> None:
    told(x, "a name", [1, 2], torch.float64, y.device, [0.5], y.shape[0], 1.5, flag=True)


OPS: dict[str, Op] = {
    "one": lambda x, y: scale(x),
    "one and a number": lambda x, y: scale(x, by=3.0),
    "several": _several,
    "optional": _optional,
    "optional left out": lambda x, y: optional(x),
    "a list": _listed,
    "unknown": lambda x, y: unknown(x, y.sum()),
    "by device": lambda x, y: by_device(x),
    "all kinds of arguments": _told,
    "a result": lambda x, y: summed(x, y.sum()),
    "results in a list": lambda x, y: listing(x, y.sum()),
    "nested results": lambda x, y: nested(x, y.sum()),
    "a size of data": lambda x, y: places(x, y),
    "itself as result": lambda x, y: ops.scale_(x, 3.0),
    "an overload": lambda x, y: ops.scale_.default(x, 3.0),
    "out": lambda x, y: ops.increased(x * 2, out=x),
    "without a fake": lambda x, y: ops.grow_(x),
    "itself and a result": lambda x, y: ops.both(x, y.sum()),
}
try:
    optional(torch.ones(2))
except IndexError:  # torch 2.11, in which eager cannot do without the argument
    del OPS["optional left out"]

DIFFERENTIATED_INSIDE = {
    "itself as result", "an overload", "out", "without a fake", "itself and a result",
}  # fmt: skip
"""Those without an autograd formula, of which eager differentiates what they do."""
