"""Rewrites of a stage's body into what is cheaper on a GPU, with the same results.

tanh has two branches there, for small and large arguments. GELU and its gradient need 1 + tanh(x),
which is 2 / (1 + exp(-2x)), and 1 - tanh(x)**2, which is that, y, times 2 - y. Neither loses digits
where tanh is near -1, as the sum would. Where tanh is near 1 the latter has an error a few times
that of eager's. In a product that is harmless, as that is added to larger numbers; a logarithm
would show it, so that only products read the rewritten ops.

GELU with erf is x times the normal distribution function, which its gradient has as (1 + erf(x /
sqrt(2))) / 2: one helper for both, which a kernel that computes both calls once. It has the
exponential that the gradient needs as well, and no digits are lost in the sum with 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ingot.codegen.triton.conditions import is_number, number_of
from ingot.loops.expr import Expr, Symbol, integer, loop_symbol
from ingot.loops.ir import Body, BodyBuilder, Instruction
from ingot.schedule.kernel import Stage


def with_cheaper_ops(stage: Stage) -> Stage:
    """The stage with cheaper ops in place of sums with erf, and of those with tanh that only
    products read."""
    return _with_cheaper_sums_of_tanh(_with_normal_distributions(stage))


def _with_normal_distributions(stage: Stage) -> Stage:
    body = stage.body.instructions
    instructions = list(body)
    for k, i in enumerate(body):
        if i.dtype is torch.float32 and (x := _normal_argument(i, body)) is not None:
            instructions[k] = Instruction("normal_cdf", (x,), i.dtype)
    if instructions == list(body):
        return stage
    return replace(stage, body=Body(tuple(instructions), ())).without_dead()


def _normal_argument(i: Instruction, body: Sequence[Instruction]) -> int | None:
    """The x of (1 + erf(x / sqrt(2))) / 2; None for anything else."""
    for op, number in (("mul", 0.5), ("add", 1), ("erf", None), ("mul", _ROOT_OF_HALF)):
        if i.op != op:
            return None
        rest = [k for k in i.args if number is None or not _is(body[k], number)]
        if len(rest) != 1:
            return None
        i, found = body[rest[0]], rest[0]
    return found


_ROOT_OF_HALF = math.sqrt(0.5)


def _is(i: Instruction, number: float) -> bool:
    """Whether an instruction is a constant, a float32 of that number."""
    return i.op == "constant" and math.isclose(i.attrs[0], number, rel_tol=2**-24)


def _with_cheaper_sums_of_tanh(stage: Stage) -> Stage:
    body = stage.body.instructions
    if not any(i.op == "tanh" and i.dtype is torch.float32 for i in body):
        return stage
    users: dict[int, list[int]] = {k: [] for k in range(len(body))}
    for k, i in enumerate(body):
        for argument in i.args:
            users[argument].append(k)
    results = stage.values
    cheaper = {}
    for k, i in enumerate(body):
        new = _rewritten(i, body)
        if new is not None and k not in results and all(body[u].op == "mul" for u in users[k]):
            cheaper[k] = new

    def vanishes(k: int) -> bool:
        """Whether nothing reads a tanh, or its square, once the cheaper ops are in place."""
        if k in results:
            return False
        return all(u in cheaper or (_is_square(body[u]) and vanishes(u)) for u in users[k])

    vanishing = {k for k, i in enumerate(body) if i.op == "tanh" and vanishes(k)}
    instructions = list(body)
    for k, new in cheaper.items():
        if _tanh_of(body[k], body) in vanishing:
            instructions[k] = new
    return replace(stage, body=Body(tuple(instructions), ())).without_dead()


def _tanh_of(i: Instruction, body: tuple[Instruction, ...]) -> int:
    """The tanh that an instruction which has a cheaper form is made of."""
    if i.op == "sub":
        return body[i.args[1]].args[0]
    return next(k for k in i.args if body[k].op == "tanh")


def _rewritten(i: Instruction, body: tuple[Instruction, ...]) -> Instruction | None:
    if i.dtype is not torch.float32 or i.op not in ("add", "sub"):
        return None
    left, right = (body[k] for k in i.args)
    if i.op == "add":
        for tanh, one in ((left, right), (right, left)):
            if tanh.op == "tanh" and _is_one(one):
                return Instruction("one_plus_tanh", tanh.args, i.dtype)
    elif _is_one(left) and _is_square(right) and body[right.args[0]].op == "tanh":
        return Instruction("one_minus_square_of_tanh", body[right.args[0]].args, i.dtype)
    return None


def _is_square(i: Instruction) -> bool:
    return i.op == "mul" and i.args[0] == i.args[1]


def _is_one(i: Instruction) -> bool:
    return i.op == "constant" and i.attrs[0] == 1


def in_first_steps(stage: Stage, count: int) -> Stage:
    """The stage in the first `count` steps of its loop, without conditions that hold in all."""
    if len(stage.loops) != 1:
        return stage
    first: dict[Symbol, Expr] = {stage.loops[0]: loop_symbol(stage.loops[0].name, integer(count))}

    def visit(builder: BodyBuilder, i: Instruction) -> int:
        values = []
        for k in i.args:
            values.append(builder.instructions[k])
        if i.op in ("logical_and", "where"):
            return builder.fold(i)
        if _compares_to(i.op, values, first):
            return builder.constant(True, i.dtype)
        if i.op == "load" and values and _holds(values[0]):
            i = i._replace(args=())
        return builder.append(i)

    return stage.rewrite(visit).without_dead()


def _holds(i: Instruction) -> bool:
    return i.op == "constant" and i.dtype is torch.bool and bool(i.attrs[0])


def _compares_to(op: str, values: Sequence[Instruction], first: Mapping[Symbol, Expr]) -> bool:
    """Whether a comparison of an index with a number holds for all that the index may be."""
    if op not in ("lt", "ge") or values[0].op != "index" or not is_number(values[1]):
        return False
    limit = number_of(values[1])
    low, high = values[0].attrs[0].substitute(first).bounds
    if limit is None or low is None or high is None:
        return False
    return bool(high < limit if op == "lt" else low >= limit)
