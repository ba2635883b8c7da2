"""Miscompilations to plant: rules of ops that are changed for the time of a test.

Each says what is changed (the rule of an overload, by which it is lowered or decomposed, or the
row of a scalar op in the code generator's table), and which call of a program shows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.codegen.llvm import scalar as machine_code
from ingot.graph.decompositions import DECOMPOSITIONS
from ingot.loops.lowering.pointwise import apply, constant_like, elementwise
from ingot.loops.lowering.rules import RULES
from ingot.ops.arithmetic import clamped
from ingot.rules import hand_over
from ingot.torch_private import aten


class Fault(NamedTuple):
    """`table[key]` becomes `rule`; `call` is wrong then: its value or, if `gradient`, that. It is
    known by the last name of what it calls, `shows`."""

    name: str
    table: dict[Any, Any]
    key: Any
    rule: Any
    call: Callable[[Tensor], Tensor]
    shows: str
    gradient: bool = False


def scalar_rule(scalar: Callable[..., int], operands: int) -> Any:
    """A lowering rule of a function of each element."""
    return elementwise(scalar, operands, "result")


def other(overload: Any) -> Any:
    """The rule of another overload."""
    hand_over()
    return RULES[overload]


def gelu_with(constant: float) -> Callable[..., int]:
    """tanh-GELU with another constant than 0.044715."""

    def gelu(x: int, *, approximate: str = "none") -> int:
        cube = apply("mul", apply("mul", x, x), x)
        inner = apply("fma", cube, constant_like(x, constant), x)
        inner = apply("tanh", apply("mul", inner, constant_like(x, math.sqrt(2 / math.pi))))
        half = apply("mul", x, constant_like(x, 0.5))
        return apply("mul", half, apply("add", inner, constant_like(x, 1)))

    return gelu


def over_other_dims(rule: Any) -> Any:
    """A reduction along the other one of two dimensions of equal size."""

    def reduce(lw: Any, out: Any, x: Any, dims: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dims and len(x.sizes) == 2 and x.sizes[0] == x.sizes[1]:
            dims = [1 - d % 2 for d in dims]
        return rule(lw, out, x, dims, *args, **kwargs)

    return reduce


def scaled(rule: Any, factor: float) -> Any:
    """What another rule gives, times a number."""

    def decompose(*args: Any, **kwargs: Any) -> Any:
        result = rule(*args, **kwargs)
        return result if result is NotImplemented else result * factor

    return decompose


def faults() -> list[Fault]:
    """All of them."""
    hand_over()
    table, code = RULES, machine_code.TABLE
    add, mul = aten.add.Tensor, aten.mul.Tensor

    def loops(name: str, key: Any, rule: Any, call: Any, shows: str) -> Fault:
        return Fault(name, table, key, rule, call, shows)

    def gradient(name: str, key: Any, call: Any, shows: str) -> Fault:
        rule = scaled(DECOMPOSITIONS[key], 1.001)
        return Fault(name, DECOMPOSITIONS, key, rule, call, shows, gradient=True)

    gelu = scalar_rule(gelu_with(0.0447), 1)
    upper_only = scalar_rule(lambda x, low=None, high=None: clamped(x, None, high), 1)
    from_zero = scalar_rule(lambda x: apply("where", apply("lt", x, constant_like(x, 0)), x, x), 1)
    swapped = scalar_rule(lambda a, b: apply("sub", b, a), 2)
    slope = scalar_rule(lambda x: apply("mul", apply("tanh", x), constant_like(x, 0.999)), 1)
    sum_over = over_other_dims(table[aten.sum.dim_IntList])
    mean_over = over_other_dims(table[aten.mean.dim])
    return [
        loops("sub for add", add, other(aten.sub.Tensor), lambda x: x + 0.5, "add"),
        loops("add for mul", mul, other(add), lambda x: x * 1.5, "mul"),
        loops("operands swapped", aten.sub.Tensor, swapped, lambda x: x - 0.3, "sub"),
        loops("no relu", aten.relu.default, from_zero, torch.relu, "relu"),
        loops(
            "a missing clamp", aten.clamp.default, upper_only, lambda x: x.clamp(-0.5, 0.5), "clamp"
        ),
        loops(
            "a constant of gelu",
            aten.gelu.default,
            gelu,
            lambda x: F.gelu(x, approximate="tanh"),
            "gelu",
        ),
        loops(
            "a sum along the wrong dimension",
            aten.sum.dim_IntList,
            sum_over,
            lambda x: x + x.sum(-1, keepdim=True),
            "sum",
        ),
        loops(
            "a mean along the wrong dimension",
            aten.mean.dim,
            mean_over,
            lambda x: x - x.mean(0),
            "mean",
        ),
        loops(
            "the smallest for the largest",
            aten.amax.default,
            other(aten.amin.default),
            lambda x: x + x.amax(1, keepdim=True),
            "amax",
        ),
        loops(
            "minimum for maximum",
            aten.maximum.default,
            other(aten.minimum.default),
            lambda x: torch.maximum(x, x.sin()),
            "maximum",
        ),
        loops(
            "at least for more than",
            aten.gt.Scalar,
            other(aten.le.Scalar),
            lambda x: torch.where(x > 0.1, x, 0.1),
            "gt",
        ),
        loops("tanh is scaled", aten.tanh.default, slope, torch.tanh, "tanh"),
        loops(
            "a product for a running sum",
            aten.cumsum.default,
            other(aten.cumprod.default),
            lambda x: x.cumsum(0),
            "cumsum",
        ),
        loops(
            "floor for ceil",
            aten.ceil.default,
            other(aten.floor.default),
            lambda x: x + x.ceil(),
            "ceil",
        ),
        Fault("a sine's code", code, "sin", code["cos"], torch.sin, "sin"),
        Fault("a square root's code", code, "sqrt", code["exp"], lambda x: x.abs().sqrt(), "sqrt"),
        gradient("of gelu", aten.gelu_backward.default, F.gelu, "gelu"),
        gradient("of tanh", aten.tanh_backward.default, torch.tanh, "tanh"),
        gradient("of sigmoid", aten.sigmoid_backward.default, torch.sigmoid, "sigmoid"),
        gradient(
            "of leaky_relu",
            aten.leaky_relu_backward.default,
            lambda x: F.leaky_relu(x, 0.1),
            "leaky_relu",
        ),
    ]


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """Within, the op is miscompiled."""
    before = fault.table[fault.key]
    fault.table[fault.key] = fault.rule
    try:
        yield
    finally:
        fault.table[fault.key] = before
