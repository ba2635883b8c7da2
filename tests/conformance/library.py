"""torch.library: ops of the user's, and what is registered for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, library
from torch.library import custom_op, get_ctx, infer_schema, triton_op

from tests.conformance.program import Table

MORE = ("register_kernel", "register_autograd", "opcheck")
"""Names that torch.library does not list in `__all__`."""
PUBLIC = [*library.__all__, *MORE]

OUTSIDE = {
    "impl_abstract": "the old name of register_fake",
    "wrap_triton": "needs a kernel of Triton's: tests of Triton's kernels have it",
    "register_torch_dispatch": "of modes and subclasses: what it registers is called by them",
}
"""Names that no program here calls, and why."""

fragment = library.Library("ingot_conforms", "FRAGMENT")
ops: Any = torch.ops.ingot_conforms

# -- custom_op -------------------------------------------------------------------------------------


@custom_op("ingot_conforms::sine", mutates_args=())
def sine(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sin(x.detach().numpy()))


@sine.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def sine_backward(ctx: Any, gradient: Tensor) -> Tensor:
    return gradient * ctx.saved_tensors[0].cos()


sine.register_autograd(sine_backward, setup_context=save)


@sine.register_vmap
def _(info: Any, in_dims: Any, x: Tensor) -> Any:
    return sine(x), in_dims[0]


@custom_op("ingot_conforms::scale_", mutates_args=("x",))
def scale_(x: Tensor, by: float) -> None:
    x.mul_(by)


@custom_op("ingot_conforms::both", mutates_args=())
def both(x: Tensor, k: int = 2) -> tuple[Tensor, Tensor]:
    return x + k, x * k


@both.register_fake
def _(x: Tensor, k: int = 2) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@custom_op("ingot_conforms::pieces", mutates_args=())
def pieces(xs: list[Tensor], weights: list[float] | None = None) -> list[Tensor]:
    found = []
    for place, x in enumerate(xs):
        found.append(x * (weights or [1.0] * len(xs))[place])
    return found


@pieces.register_fake
def _(xs: list[Tensor], weights: list[float] | None = None) -> list[Tensor]:
    return [torch.empty_like(x) for x in xs]


@custom_op("ingot_conforms::no_fake", mutates_args=())
def no_fake(x: Tensor) -> Tensor:
    return x.clone()


@custom_op("ingot_conforms::of_rank", mutates_args=())
def of_rank(x: Tensor, mode: str, flag: bool, dtype: torch.dtype) -> Tensor:
    return (x.sum() if flag else x.prod()).to(dtype).reshape(1) * len(mode)


@of_rank.register_fake
def _(x: Tensor, mode: str, flag: bool, dtype: torch.dtype) -> Tensor:
    return x.new_empty(1, dtype=dtype)


# -- the rest --------------------------------------------------------------------------------------


@custom_op("ingot_conforms::places", mutates_args=())
def places(x: Tensor) -> Tensor:
    return (x > 0).nonzero().contiguous()


@places.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty((get_ctx().new_dynamic_size(), x.dim()), dtype=torch.int64)


@triton_op("ingot_conforms::joined", mutates_args={})
def joined(x: Tensor, y: Tensor) -> Tensor:
    return x.exp() + y


library.define("ingot_conforms::cubed", "(Tensor x) -> Tensor")
library.define("ingot_conforms::fill_", "(Tensor(a!) x, float by) -> ()")
library.define("ingot_conforms::halved", "(Tensor x, *, bool up=False) -> Tensor")
library.define("ingot_conforms::cast", "(Tensor x, Tensor y) -> Tensor")
library.define("ingot_conforms::composed", "(Tensor x) -> Tensor")
library.define("ingot_conforms::fell", "(Tensor x) -> Tensor")
library.define("ingot_conforms::plain", "(Tensor x) -> Tensor")


@library.impl("ingot_conforms::cubed", "cpu")
def cubed(x: Tensor) -> Tensor:
    return x**3


@library.register_fake("ingot_conforms::cubed")
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def cubed_backward(ctx: Any, gradient: Tensor) -> Tensor:
    return gradient * 3 * ctx.saved_tensors[0] ** 2


library.register_autograd("ingot_conforms::cubed", cubed_backward, setup_context=save)


@library.register_vmap("ingot_conforms::cubed")
def _(info: Any, in_dims: Any, x: Tensor) -> Any:
    return ops.cubed(x), in_dims[0]


@library.impl("ingot_conforms::fill_", "CPU")
def _(x: Tensor, by: float) -> None:
    x.fill_(by)


@library.impl(fragment, "halved", "CPU")
def _(x: Tensor, *, up: bool = False) -> Tensor:
    return (x / 2).ceil() if up else x / 2


@library.register_fake("ingot_conforms::halved", lib=fragment)
def _(x: Tensor, *, up: bool = False) -> Tensor:
    return torch.empty_like(x)


@library.register_kernel("ingot_conforms::cast", "cpu")
def _(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.t()


@library.register_fake("ingot_conforms::cast")
def _(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.t()


library.register_autocast("ingot_conforms::cast", "cpu", torch.bfloat16)


@library.impl("ingot_conforms::composed", "CompositeImplicitAutograd")
def _(x: Tensor) -> Tensor:
    return x.sin() * x


@library.impl("ingot_conforms::fell", "CPU")
def _(x: Tensor) -> Tensor:
    return x + 5


@library.register_fake("ingot_conforms::fell")
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


fragment.impl("fell", library.fallthrough_kernel, "AutocastCPU")
fragment.define("from_fragment(Tensor x, int k=1) -> Tensor")
fragment.impl("from_fragment", lambda x, k=1: x * k + 1, "CompositeExplicitAutograd")


def plain(x: Tensor, k: int = 1) -> Tensor:
    return x * k


library.define("ingot_conforms::inferred", infer_schema(plain, mutates_args=()))
library.impl("ingot_conforms::inferred", "CompositeImplicitAutograd")(plain)


def scaled(x: Tensor) -> Any:
    y = x * 2
    scale_(y, 3.0)
    return y + 1


def written_rows(x: Tensor) -> Any:
    y = x.clone()
    for row in range(2):
        scale_(y[row], 2.0)
    return y, y.sum()


def filled(x: Tensor) -> Any:
    y = x + 1
    ops.fill_(y[0], 2.5)
    return y


def sizes_of_places(x: Tensor) -> Any:
    found = places(x)
    return found, found.shape[0], found.float().sum(0)


def in_autocast(x: Tensor, y: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return ops.cast(x, y), ops.fell(x @ y.t())


def disabled_kernel(x: Tensor) -> Any:
    with sine.set_kernel_enabled("cpu", False):
        return sine(x)


def by_kernel(x: Tensor) -> Any:
    kernel = library.get_kernel("aten::sin", "CPU")
    return kernel.call_boxed(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), x)


PROGRAMS: Table = {
    "custom_op": {
        "value": lambda x: sine(x) + 1,
        "edge: two results": lambda x: both(x),
        "edge: another default": lambda x, k: both(x, k)[1] * 2,
        "edge: a keyword": lambda x, k: both(x, k=k)[0],
        "edge: lists": lambda x, v: pieces([x, v], [0.5, 2.0]),
        "edge: no list": lambda x: pieces([x]),
        "edge: an empty list": lambda x: (pieces([]), x + 1),
        "edge: writes": scaled,
        "edge: writes rows": written_rows,
        "edge: writes an argument": lambda x: scale_(x, 2.0),
        "edge: no fake": lambda x: no_fake(x) + 1,
        "edge: other types": lambda x: of_rank(x, "abc", True, torch.float64),
        "edge: strides": lambda wide: sine(wide) + wide,
        "edge: no elements": lambda empty: sine(empty),
        "edge: by torch.ops": lambda x: ops.sine(x) + ops.sine.default(x),
        "edge: a wrong argument": lambda x: sine("a"),  # type: ignore[arg-type]
        "edge: an unused result": lambda x: (sine(x), x + 1)[1],
        "gradient": lambda x: sine(x) + 1,
        "gradient: writes": scaled,
        "gradient: without a formula": lambda x: both(x.detach())[0] * x,
        "gradient: between others": lambda x: sine(x.exp()).square(),
    },
    "register_autograd": {
        "value": lambda x: ops.cubed(x),
        "edge: under no_grad": lambda x: torch.no_grad()(ops.cubed)(x),
        "gradient": lambda x: ops.cubed(x) * 2,
        "gradient: twice": lambda x: ops.cubed(ops.cubed(x)),
        "gradient: inside": lambda x: torch.func.grad(lambda x: ops.cubed(x).sum())(x),
    },
    "register_vmap": {
        "value": lambda x: torch.vmap(ops.cubed)(x),
        "edge: other dimensions": lambda x: torch.vmap(sine, in_dims=1, out_dims=1)(x),
        "edge: nested": lambda b: torch.vmap(torch.vmap(sine))(b),
        "edge: none is registered": lambda x: torch.vmap(ops.halved)(x),
        "gradient": lambda x: torch.vmap(ops.cubed)(x),
        "gradient: of each sample": lambda x: torch.vmap(torch.func.grad(ops.cubed))(x[0]),
    },
    "define": {
        "value": lambda x: ops.halved(x),
        "edge: only by keyword": lambda x: ops.halved(x, up=True),
        "edge: writes": filled,
        "edge: no implementation": lambda x: ops.plain(x),
        "gradient": lambda x: ops.halved(x.detach()) * x,
        "gradient: writes": lambda x: filled(x.detach()) * x,
    },
    "impl": {
        "value": lambda x: ops.composed(x),
        "edge: no elements": lambda empty: ops.composed(empty),
        "edge: integers": lambda i: ops.from_fragment(i, 2),
        "gradient": lambda x: ops.composed(x) + 1,
    },
    "Library": {
        "value": lambda x: ops.from_fragment(x),
        "edge: a default": lambda x, k: ops.from_fragment(x, k=k),
        "gradient": lambda x: ops.from_fragment(x.detach()) * x,
    },
    "fallthrough_kernel": {
        "value": lambda x: ops.fell(x),
        "edge: in autocast": in_autocast,
        "gradient": lambda x: ops.fell(x.detach()) * x,
    },
    "register_autocast": {
        "value": lambda x, y: ops.cast(x, y),
        "edge: in autocast": in_autocast,
        "gradient": lambda x, y: in_autocast(x.detach(), y.detach())[0] * x[0, 0],
    },
    "register_fake": {
        "value": lambda x: ops.cubed(x).shape,
        "edge: sizes that the data decide": sizes_of_places,
        "gradient": lambda x: ops.cubed(x).reshape(x.shape[1], -1),
    },
    "register_kernel": {
        "value": lambda x, y: ops.cast(x, y),
        "edge: a kernel that is disabled": disabled_kernel,
        "gradient": lambda x, y: ops.cast(x.detach(), y.detach()).sum() * x,
    },
    "get_ctx": {
        "value": sizes_of_places,
        "edge: none": lambda empty: sizes_of_places(empty),
        "edge: an index": lambda x: x[places(x)[:, 0]],
        "gradient": lambda x: x[places(x.detach())[:, 0]].sum(0),
    },
    "get_kernel": {
        "value": by_kernel,
        "edge: none": lambda x: library.get_kernel("aten::no_such_op", "CPU"),
        "gradient": lambda x: by_kernel(x.detach()) * x,
    },
    "triton_op": {
        "value": lambda x, y: joined(x, y),
        "edge: no elements": lambda empty: joined(empty, empty),
        "gradient": lambda x, y: joined(x.detach(), y.detach()) * x,
    },
    "infer_schema": {
        "value": lambda x, k: ops.inferred(x, k),
        "edge: inside": lambda x: (infer_schema(plain, mutates_args=()), x + 1),
        "gradient": lambda x: ops.inferred(x),
    },
    "opcheck": {
        "edge: around a compilation": lambda x: (sine(x), len(library.opcheck(sine, (x,)))),
    },
}
