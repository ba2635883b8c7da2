"""torch._higher_order_ops, and cond, flex_attention and checkpoint where torch shows them."""

from __future__ import annotations

from typing import Any

import torch
import torch._higher_order_ops as higher
from torch import Tensor
from torch._higher_order_ops import associative_scan, cond, foreach_map, out_dtype, scan, while_loop
from torch._higher_order_ops import map as map_rows
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from tests.conformance.program import Table

PUBLIC = higher.__all__

INTERNAL = {
    "BaseHOP": "the base class of ops",
    "flat_apply": "what torch.compile makes of nonstrict_trace",
    "flex_attention_backward": "what flex_attention's gradient calls",
    "_foreach_map": "what foreach_map calls",
    "with_effects": "what AOTAutograd makes of ops with effects",
    "tag_activation_checkpoint": "what torch.compile makes of checkpoint",
    "auto_functionalized": "what functionalization makes of a custom op that writes",
    "auto_functionalized_v2": "the same",
    "executorch_call_delegate": "of ExecuTorch",
    "call_torchbind": "what export makes of a method of a scripted class",
    "run_const_graph": "what torch.export makes of folded constants",
    "invoke_leaf_function": "what torch.compile makes of a leaf function",
    "invoke_subgraph": "what torch.compile makes of nested_compile_region",
    "invoke_quant": "what InvokeQuant calls",
    "invoke_quant_packed": "the same",
    "wrap_with_set_grad_enabled": "what torch.export makes of no_grad",
    "wrap_with_autocast": "what torch.export makes of autocast",
    "wrap_activation_checkpoint": "what torch.compile makes of checkpoint",
    "dynamo_bypassing_wrapper": "what torch.compile makes of Inductor's compiled regions",
    "aoti_call_delegate": "of AOTInductor",
    "while_loop_stack_output": "what while_loop's gradient calls",
    "local_map_hop": "of DTensor's local_map",
    "inductor_compiled_code": "of Inductor",
    "register_hook": "None in this version",
}
"""Names that no program calls itself, and what they are."""


def chosen(x: Tensor, y: Tensor) -> Tensor:
    return cond(x.sum() > 0, lambda x, y: x + y, lambda x, y: x - y, (x, y))  # type: ignore[no-any-return]


def chosen_of_trees(x: Tensor) -> Any:
    return cond(
        x.sum() > 0,
        lambda p: {"a": p["a"] + 1, "b": (p["a"] * 3,)},
        lambda p: {"a": p["a"] - 1, "b": (p["a"] * 2,)},
        ({"a": x},),
    )


def chosen_in_a_branch(x: Tensor) -> Any:
    def positive(x: Tensor) -> Any:
        return cond(x.max() > 1, lambda x: x * 2, lambda x: x * 3, (x,))

    return cond(x.sum() > -99, positive, lambda x: x.sin(), (x,))


def doubled_until(x: Tensor, n: Tensor) -> Any:
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5), (n, x))


def power_iteration(s: Tensor, v: Tensor) -> Any:
    def step(i: Tensor, v: Tensor) -> Any:
        y = s @ v
        return i + 1, y / y.norm()

    return while_loop(lambda i, v: i < 4, step, (torch.tensor(0), v))[1]


def sums(x: Tensor) -> Any:
    return scan(lambda c, x: (c + x, c * x), torch.zeros(4), x)


def recurrent(x: Tensor, s: Tensor) -> Any:
    def cell(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h @ s + x)
        return h, h.clone()

    return scan(cell, torch.zeros(4), x)


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def biased(q: Tensor) -> Any:
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + 0.1 * (i - j))


def masked(q: Tensor) -> Any:
    return flex_attention(q, q, q, block_mask=create_block_mask(causal, 1, 1, 16, 16, "cpu"))


def table_of_biases(q: Tensor) -> Any:
    biases = q[0, :, 0, 0].sin()
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + biases[h])


def recomputed(x: Tensor) -> Any:
    return checkpoint(lambda x: x.sin().exp() * x, x, use_reentrant=False)


def quantized(x: Tensor, y: Tensor) -> Any:
    return higher.InvokeQuant(codegen_low_precision=False)(lambda x, y: x * y + 1, x, y)


PROGRAMS: Table = {
    "cond": {
        "value": chosen,
        "edge: on a size": lambda x: cond(x.shape[0] > 2, torch.sin, torch.cos, (x,)),
        "edge: constant": lambda x: cond(False, torch.sin, torch.cos, (x,)),
        "edge: the other branch": lambda x, y: chosen(-x.abs(), y),
        "edge: trees": chosen_of_trees,
        "edge: in a branch": chosen_in_a_branch,
        "edge: closed over": lambda x, y: cond(
            x.sum() > 0, lambda x: x * y, lambda x: x.sin(), (x + 1,)
        ),
        "edge: no operands": lambda t: cond(
            t > 0, lambda: torch.ones(3), lambda: torch.zeros(3), ()
        ),
        "edge: a number closed over": lambda x, k: cond(
            x.sum() > 0, lambda x: x * k, lambda x: x + k, (x,)
        ),
        "edge: a vector as predicate": lambda x: cond(x > 0, torch.sin, torch.cos, (x,)),
        "edge: branches that differ": lambda x: cond(
            x.sum() > -99, lambda x: x.sum(), lambda x: x, (x,)
        ),
        "edge: a write in a branch": lambda x: cond(
            x.sum() > -99, lambda x: x.clone().add_(1), lambda x: x * 1, (x,)
        ),
        "edge: without gradients": lambda x, y: torch.no_grad()(chosen)(x, y),
        "gradient": chosen,
        "gradient: trees": chosen_of_trees,
        "gradient: in a branch": chosen_in_a_branch,
        "gradient: of what is closed over": lambda x, y: cond(
            x.sum() > -99, lambda x: x * y, lambda x: x - y, (x * 2,)
        ),
        "gradient: of neither": lambda x: cond(
            x.sum() > -99, lambda x: x.detach() * 1, lambda x: x.detach() * 2, (x,)
        ),
        "gradient: between others": lambda x, y: chosen(x.sin(), y.exp()).cos() * 2,
    },
    "while_loop": {
        "value": doubled_until,
        "edge: no turn": lambda x: while_loop(
            lambda i, x: i < 0, lambda i, x: (i + 1, x * 2), (torch.tensor(3), x)
        ),
        "edge: until a value": lambda x: while_loop(
            lambda x: x.sum() < 99, lambda x: (x * 2 + 1,), (x.abs(),)
        ),
        "edge: closed over": power_iteration,
        "edge: an int": lambda x, k: while_loop(
            lambda i, x: i < 5, lambda i, x: (i + 1, x + i), (k, x)
        ),
        "edge: in a cond": lambda x, n: cond(
            x.sum() > -99, lambda x: doubled_until(x, n)[1], lambda x: x * 2, (x,)
        ),
        "edge: one in another": lambda x: while_loop(
            lambda i, x: i < 2,
            lambda i, x: (i + 1, doubled_until(x, torch.tensor(3))[1]),
            (torch.tensor(0), x),
        ),
        "edge: trees": lambda x: while_loop(
            lambda p: p["i"] < 3,
            lambda p: ({"i": p["i"] + 1, "x": p["x"] * 2},),
            ({"i": torch.tensor(0), "x": x},),
        ),
        "gradient: none": lambda x, n: torch.no_grad()(doubled_until)(x, n)[1] * x,
        "gradient: detached": lambda x, n: doubled_until(x.detach(), n)[1] * x,
    },
    "scan": {
        "value": sums,
        "edge: reversed": lambda x: scan(
            lambda c, x: (c + x, c * x), torch.zeros(4), x, reverse=True
        ),
        "edge: another dimension": lambda x: scan(
            lambda c, x: (c + x, c * x), torch.zeros(3), x, dim=1
        ),
        "edge: trees": lambda x, y: scan(
            lambda c, p: ({"s": c["s"] + p["a"]}, [c["s"] * p["b"]]),
            {"s": torch.zeros(4)},
            {"a": x, "b": y},
        ),
        "edge: one row": lambda one: scan(lambda c, x: (c + x, c * x), torch.zeros(4), one),
        "edge: closed over": recurrent,
        "edge: carry of another size": lambda x: scan(
            lambda c, x: (c + x.sum(), x * c), torch.zeros(()), x
        ),
        "gradient": sums,
        "gradient: of what is closed over": recurrent,
        "gradient: of the first carry": lambda x, v: scan(lambda c, x: (c * x, c + x), v, x),
    },
    "map": {
        "value": lambda x: map_rows(lambda row: row * 2, x),
        "edge: trees": lambda x, y: map_rows(lambda p: {"s": p[0] + p[1]}, [x, y]),
        "edge: arguments": lambda x, v, k: map_rows(lambda row, v, k: row * v + k, x, v, k),
        "edge: one row": lambda one: map_rows(torch.sin, one),
        "edge: nested": lambda b: map_rows(lambda m: map_rows(torch.sum, m), b),
        "edge: closed over": lambda x, v: map_rows(lambda row: row @ v, x),
        "gradient": lambda x, v: map_rows(lambda row, v: (row * v).sum(), x, v),
        "gradient: of what is closed over": lambda x, v: map_rows(lambda row: row @ v, x),
        "gradient: nested": lambda b: map_rows(lambda m: map_rows(torch.exp, m), b),
    },
    "associative_scan": {
        "value": lambda x: associative_scan(torch.add, x, 0, combine_mode="generic"),
        "edge: reversed": lambda x: associative_scan(
            torch.mul, x, 1, reverse=True, combine_mode="generic"
        ),
        "edge: pointwise": lambda x: associative_scan(torch.maximum, x, 0),
        "edge: trees": lambda x, y: associative_scan(
            lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (x, y), 0, combine_mode="generic"
        ),
        "edge: one row": lambda one: associative_scan(torch.add, one, 0, combine_mode="generic"),
        "edge: matrices": lambda b, s: associative_scan(
            torch.matmul, s.expand(3, 4, 4), 0, combine_mode="generic"
        ),
        "gradient": lambda x: associative_scan(torch.add, x, 0, combine_mode="generic"),
        "gradient: trees": lambda x, y: associative_scan(
            lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (x, y), 0, combine_mode="generic"
        ),
    },
    "flex_attention": {
        "value": lambda q: flex_attention(q, q, q),
        "edge: a score": biased,
        "edge: a mask": masked,
        "edge: logarithms": lambda q: flex_attention(q, q, q, return_lse=True),
        "edge: a scale": lambda q: flex_attention(q, q * 2, q, scale=0.5),
        "edge: another length": lambda q: flex_attention(q, q[:, :, :5], q[:, :, :5]),
        "edge: grouped": lambda q: flex_attention(q, q[:, :1], q[:, :1], enable_gqa=True),
        "gradient": lambda q: flex_attention(q, q, q),
        "gradient: a score": biased,
        "gradient: a mask": masked,
        "gradient: of a captured tensor": table_of_biases,
    },
    "hints_wrapper": {
        "value": lambda x: higher.hints_wrapper(lambda x: x.sin(), (x,), {}, hints={"a": True}),
        "edge: two results": lambda x: higher.hints_wrapper(
            lambda x: (x.sin(), x.cos()), (x,), {}, hints={}
        ),
        "gradient: none": lambda x: (
            higher.hints_wrapper(lambda x: x.sin(), (x.detach(),), {}, hints={"a": 1}) * x
        ),
    },
    "foreach_map": {
        "value": lambda x, y: foreach_map(torch.add, [x, y], [y, x]),
        "edge: a function": lambda x, y: foreach_map(lambda a, b: a * b + 1, [x, y], [y, x]),
        "edge: one list": lambda x, v: foreach_map(torch.sin, [x, v]),
        "gradient": lambda x, y: foreach_map(torch.mul, [x, y], [y, x]),
    },
    "out_dtype": {
        "value": lambda i: out_dtype(torch.ops.aten.mul.Tensor, torch.int32, i.int(), i.int()),
        "edge: a product": lambda x: out_dtype(
            torch.ops.aten.mm.default, torch.int32, x.to(torch.int8), x.to(torch.int8).t()
        ),
        "gradient: none": lambda x, i: (
            out_dtype(torch.ops.aten.mul.Tensor, torch.int32, i.int(), i.int())[:, None] * x
        ),
    },
    "InvokeQuant": {
        "value": quantized,
        "edge: a name": lambda x, y: higher.InvokeQuant()(lambda x: x + 1, x, scheme="nf4"),
        "gradient": quantized,
    },
    "checkpoint": {
        "value": recomputed,
        "edge: two results": lambda x, y: checkpoint(
            lambda x, y: (x * y, x + y), x, y, use_reentrant=False
        ),
        "edge: dropout": lambda x: checkpoint(
            lambda x: torch.nn.functional.dropout(x, 0.5), x, use_reentrant=False
        ),
        "gradient": recomputed,
        "gradient: one in another": lambda x: checkpoint(
            lambda x: recomputed(x).cos(), x, use_reentrant=False
        ),
        "gradient: dropout": lambda x: checkpoint(
            lambda x: torch.nn.functional.dropout(x.sin(), 0.5), x, use_reentrant=False
        ),
    },
    "strict_mode": {
        "value": lambda x: higher.strict_mode(lambda x: x.sin() + 1, (x,)),
        "edge: two results": lambda x, y: higher.strict_mode(lambda x, y: (x + y, x), (x, y)),
        "gradient: none": lambda x: higher.strict_mode(lambda x: x.sin() + 1, (x.detach(),)) * x,
    },
    "print": {
        "value": lambda x: (higher.print("a value: {}", 3), x + 1)[1],
        "edge: nothing to format": lambda x: (higher.print("here"), x.sin())[1],
        "gradient": lambda x: (higher.print("a value: {}", 3), x.sin())[1],
    },
    "inline_asm_elementwise": {
        "edge: no GPU": lambda x: higher.inline_asm_elementwise(
            x, asm_str="mov.f32 $0, $1;", constraints="=f,f", dtype=torch.float32
        ),
    },
}
