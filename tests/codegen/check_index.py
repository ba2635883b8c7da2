"""Compiled index expressions against exact integers: what LLVM code computes, with its shortcuts
for short and for nonnegative operands, is what `Expr.evaluate` says.

`python -m tests.codegen.check_index COUNT [FIRST]` checks COUNT batches of expressions, each
compiled as one module.
"""

from __future__ import annotations

import itertools
import random
import sys
from math import prod
from typing import Any

import torch

from ingot.codegen.llvm.module import compile_kernels
from ingot.loops import ops
from ingot.loops.expr import (
    Expr,
    Symbol,
    _Operation,
    floor_div,
    integer,
    loop_symbol,
    mod,
    size_symbol,
)
from ingot.loops.ir import Origin
from ingot.loops.spaces import contiguous_strides
from ingot.schedule.kernel import Kernel, Store
from tests.codegen.harness import body, launch, parameter, stage
from tests.loops.check_expr import World, random_tree

BATCH = 24
LARGE = (2**31 - 1, 2**31, 2**31 + 5, 2**32 - 3, 2**33 + 7, 2**40 + 1)


def random_index(rng: random.Random, world: World) -> Expr:
    built = random_tree(rng, world, rng.randint(1, 4)).build()
    if rng.random() < 0.3:  # beyond 32 bits, on one side of a division or the other
        built = built * rng.choice([1, 1, 3, 2**20]) + rng.choice(LARGE) * rng.choice([1, -1])
        divide = rng.choice([floor_div, mod])
        built = divide(built, integer(rng.choice([1, 2, 3, 7, 2**16 + 1, 2**31 + 11, 2**32])))
    return built


def index_kernel(name: str, loops: tuple[Symbol, ...], e: Expr) -> Kernel:
    """Stores the value of `e` at every point of `loops`."""
    place = sum(
        (i * s for i, s in zip(loops, contiguous_strides([i.extent for i in loops]))), integer(0)
    )
    written = stage((), body(lambda: ops.index(e)), [Store("out", place, 0)])
    parameters = (parameter("out", torch.int64, True),)
    return Kernel(
        name, Origin(()), loops, (written,), parameters, (), max(1, len(loops) - 1), loops[-1]
    )


def check(seed: int) -> int:
    """Compile and run one batch; how many expressions it checked. Raises AssertionError for a
    difference."""
    rng = random.Random(f"index {seed}")
    sizes = [size_symbol("s0", 2), size_symbol("s1", 1, 40)]
    extents: list[Expr | int] = [rng.choice([2, 3, 5]), rng.choice([1, 7, 8, 19, sizes[1]])]
    loops = tuple(loop_symbol(f"i{k}", n) for k, n in enumerate(extents))
    world = World(sizes, list(loops))
    expressions = [random_index(rng, world) for _ in range(BATCH)]
    kernels = [index_kernel(f"k{n}", loops, e) for n, e in enumerate(expressions)]
    compiled = compile_kernels(kernels, sizes)
    checked = 0
    for given in (
        {sizes[0]: 2, sizes[1]: 1},
        {sizes[0]: rng.randint(2, 70000), sizes[1]: rng.randint(2, 40)},
    ):
        shape = [i.extent.evaluate(given) for i in loops]
        largest = given | {i: n for i, n in zip(loops, shape)}
        for e, kernel in zip(expressions, kernels):
            if magnitude(e, largest) >= 2**63:
                continue
            checked += 1
            out = torch.full(shape, -77, dtype=torch.int64)
            assert launch(kernel, [out], [(0, shape[0])], given, compiled) == 0
            for place in itertools.product(*map(range, shape)):
                expected = e.evaluate(given | dict(zip(loops, place)))
                assert out[place].item() == expected, (
                    f"seed {seed}: {e} at {place}, {given}: {out[place]}, {expected}"
                )
    return checked


def magnitude(e: Any, point: dict[Symbol, int]) -> int:
    """A bound on the absolute values that evaluating `e` passes through."""
    if isinstance(e, Symbol):
        return point[e]
    if isinstance(e, _Operation):
        return max(magnitude(e.left, point), magnitude(e.right, point))
    return sum(abs(c) * prod(magnitude(a, point) for a in atoms) for c, atoms in e.terms)


def main(count: int, first: int = 0) -> None:
    failed, checked = [], 0
    for seed in range(first, first + count):
        try:
            checked += check(seed)
        except AssertionError as error:
            failed.append(seed)
            print(error)
    print(f"{checked} expressions, failed: {failed}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
