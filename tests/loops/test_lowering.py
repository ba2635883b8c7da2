"""Lowering against eager: a program traced and lowered, then run by the slow reference, gives what
eager gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import ingot
from ingot.codegen.reference import run_graph
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fake_context import FakeContext
from ingot.graph.schemas import is_composite
from ingot.graph.tracing import trace
from ingot.loops import ops
from ingot.loops.ir import Attention, Contraction, Library, LoopGraph, Pointwise, Reduction
from ingot.loops.lowering.lower import lower
from ingot.loops.show import show
from ingot.loops.target import GPU
from ingot.loops.verify import verify
from ingot.ops import table
from tests.oracle import Norm, assert_call, copies

f32, bf16, i64 = torch.float32, torch.bfloat16, torch.int64


def traced(
    fn: Callable[..., Any], *args: torch.Tensor, dynamic: bool | tuple[int, ...] = False
) -> AtenGraph:
    """The ATen graph of `fn`, called once, on fakes of `args`; with `dynamic`, the first argument's
    first size is symbolic, or its sizes in these dimensions."""
    graph = fx.Graph()
    graph.output(
        graph.call_function(fn, tuple(graph.placeholder(f"x{k}") for k in range(len(args))))
    )
    context = FakeContext()
    gm = fx.GraphModule(torch.nn.Module(), graph)
    symbolic = dynamic if isinstance(dynamic, tuple) else (0,) if dynamic else ()
    dims = [frozenset(symbolic if k == 0 else ()) for k in range(len(args))]
    return trace(gm, [context.fake(a, dynamic_dims=d) for a, d in zip(args, dims)], context)


def lowered(fn: Callable[..., Any], *args: torch.Tensor, dynamic: bool = False) -> LoopGraph:
    """The loop graph of what `traced` gives."""
    loops = lower(traced(fn, *args, dynamic=dynamic))
    verify(loops)
    assert show(loops)
    return loops


def assert_lowered(
    fn: Callable[..., Any], *args: torch.Tensor, tolerance: float = 1e-6
) -> LoopGraph:
    """The program that `fn` is lowered to, run by the slow reference, does what `fn` does."""
    graph = lowered(fn, *args)

    def run(*own: torch.Tensor) -> list[torch.Tensor]:
        return run_graph(graph, list(own))

    assert_call(
        run, fn, *args, numbers=Norm(tolerance), strides="of sizes above 1", structure=False
    )
    return graph


def counts(graph: LoopGraph) -> tuple[int, int, int]:
    """(pointwise, reduction, library) nodes."""
    return tuple(
        sum(isinstance(n, k) for n in graph.nodes) for k in (Pointwise, Reduction, Library)
    )  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def t(*sizes: int, dtype: torch.dtype = f32) -> torch.Tensor:
    return (
        torch.randn(*sizes).to(dtype)
        if dtype.is_floating_point
        else torch.randint(-9, 9, sizes).to(dtype)
    )


UNARY = (
    "neg abs sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan "
    "sinh cosh tanh "
    "asinh acosh atanh erf erfc sigmoid floor ceil round trunc isnan isinf sign relu square "
    "isfinite"
).split()


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [f32, bf16, torch.float64])
def test_unary(name: str, dtype: torch.dtype) -> None:
    graph = assert_lowered(
        getattr(torch, name), t(5, 7, dtype=dtype), tolerance=2e-6 if dtype != bf16 else 4e-3
    )
    is_call = dtype is torch.float64 and torch.float64 not in getattr(
        ops.OPS.get(name), "types", ops.FLOATS
    )
    assert counts(graph) == ((0, 0, 1) if is_call else (1, 0, 0))


@pytest.mark.parametrize(
    "name", ["neg", "abs", "sqrt", "exp", "sign", "relu", "floor", "isnan", "square", "sigmoid"]
)
def test_unary_of_ints(name: str) -> None:
    assert counts(assert_lowered(getattr(torch, name), t(5, 7, dtype=i64).abs() + 1)) == (1, 0, 0)


@pytest.mark.parametrize(
    "name",
    (
        "add sub mul div minimum maximum atan2 fmod remainder eq ne lt le gt ge floor_divide pow"
    ).split(),
)
@pytest.mark.parametrize(
    "dtypes",
    [(f32, f32), (f32, i64), (i64, i64), (bf16, bf16), (bf16, f32), (torch.int32, torch.uint8)],
)
def test_binary(name: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    a, b = t(5, 7, dtype=dtypes[0]), t(7, dtype=dtypes[1])
    b = torch.where(b == 0, 3, b).to(b.dtype)
    if name == "pow":
        a, b = a.abs() + 1, b.clamp(0, 3)
    assert_lowered(getattr(torch, name), a, b, tolerance=1e-2 if bf16 in dtypes else 1e-6)


POINTWISE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "gelu": (F.gelu, (f32,)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (f32,)),
    "gelu_bf16": (F.gelu, (bf16,)),
    "silu": (F.silu, (f32,)),
    "silu_bf16": (F.silu, (bf16,)),
    "hardtanh": (F.hardtanh, (f32,)),
    "relu6": (F.relu6, (f32,)),
    "hardswish": (F.hardswish, (f32,)),
    "hardsigmoid": (F.hardsigmoid, (f32,)),
    "leaky_relu": (F.leaky_relu, (f32,)),
    "elu": (F.elu, (f32,)),
    "softplus": (F.softplus, (f32,)),
    "mish": (F.mish, (f32,)),
    "logsigmoid": (F.logsigmoid, (f32,)),
    "threshold": (lambda x: F.threshold(x, 0.1, 20.0), (f32,)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), (f32,)),
    "clamp_min": (lambda x: x.clamp_min(0), (i64,)),
    "clamp_tensor": (lambda x, y: torch.clamp(x, min=y), (f32, f32)),
    "alpha": (lambda x, y: torch.add(x, y, alpha=0.3), (f32, f32)),
    "rsub": (lambda x: 3 - x, (f32,)),
    "rdiv": (lambda x: 3 / x, (f32,)),
    "int_div": (lambda x: x / 3, (i64,)),
    "div_trunc": (lambda x: torch.div(x, 0.3, rounding_mode="trunc"), (f32,)),
    "div_floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (f32, f32)),
    "pows": (lambda x: x**2 + x**3 + x.abs() ** 0.5 + x**-1 + x.abs() ** 1.7, (f32,)),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.7), (f32, f32, f32)),
    "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z, value=0.7), (f32, f32, f32)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (f32, f32)),
    "where": (lambda x, y: torch.where(x > 0, x, y), (f32, f32)),
    "where_scalar": (lambda x: torch.where(x > 0, x, 1.5), (f32,)),
    "masked_fill": (lambda x: x.masked_fill(x > 0, float("-inf")), (f32,)),
    "logical": (lambda x, y: (x > 0) & (y < 0) | ~(x < 1), (f32, f32)),
    "logical_numbers": (lambda x, y: torch.logical_xor(x, y), (i64, f32)),
    "shifts by a tensor": (lambda x, y: (x >> 3) ^ (y << (x & 7)), (i64, i64)),
    "bitwise": (lambda x, y: (x & y) ^ (x | 5), (i64, i64)),
    "shifts": (lambda x: (x << 2) + (x >> 1), (i64,)),
    "casts": (lambda x: x.to(i64).to(torch.bool).to(f32) + x.to(bf16).to(f32), (f32,)),
    "promote_scalar_tensor": (lambda x, y: x + y.sum(), (bf16, f32)),
    "bf16_chain": (lambda x, y: (x * y + x) * 0.1 - y, (bf16, bf16)),
    "bool_add": (lambda x, y: (x > 0) + (y > 0), (f32, f32)),
    "complex_activation": (
        lambda x: ((torch.sin(x) + torch.cos(x)) * x + 1.0).mul(0.5).relu(),
        (f32,),
    ),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name: str) -> None:
    fn, dtypes = POINTWISE[name]
    assert_lowered(
        fn, *[t(6, 5, dtype=d) for d in dtypes], tolerance=1e-2 if bf16 in dtypes else 2e-6
    )


def test_bf16_rounds_after_every_op() -> None:
    """The chain above must agree with eager to the bit, which it only does with eager's rounding
    points."""
    x, y = t(50, 50, dtype=bf16), t(50, 50, dtype=bf16)
    assert_lowered(lambda x, y: (x * y + x) * 0.1 - y, x, y, tolerance=0.0)


def test_fuses_a_chain_into_one_node() -> None:
    assert counts(assert_lowered(POINTWISE["complex_activation"][0], t(8, 8))) == (1, 0, 0)
    assert counts(assert_lowered(lambda x: F.gelu(x, approximate="tanh"), t(8, 8))) == (1, 0, 0)


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda x: x.view(2, 3, 20) + 1,
    "flatten": lambda x: (x + 1).flatten(1) * 2,
    "heads": lambda x: (x * 2).view(6, 2, 2, 5).transpose(1, 2).reshape(6, 20) + 1,
    "permute": lambda x: x.permute(2, 0, 1).contiguous() + 1,
    "permuted_out": lambda x: x.permute(2, 0, 1) * 2,
    "t": lambda x: x[0].t() + 1,
    "expand": lambda x: x[:, :1].expand(6, 4, 5) + x,
    "slice": lambda x: x[1:5:2, 1:] * 2,
    "negative_slice": lambda x: x[-3:, :-1] + 1,
    "select": lambda x: (x[-1] + x[0, 2, 0:1], x[:, 2, 0:1] * 2),
    "unsqueeze": lambda x: x.unsqueeze(1) + x.unsqueeze(0).squeeze(0)[:, None],
    "unbind": lambda x: x.unbind(1)[2] + 1,
    "split": lambda x: [p * 2 for p in (x + 1).split([1, 3], 1)],
    "chunk": lambda x: [p * 2 for p in x.chunk(3)],
    "diagonal": lambda x: x.diagonal(1, 1, 2) + 1,
    "unfold": lambda x: x.unfold(2, 3, 2) + 1,
    "flip": lambda x: x.flip(0, 2),
    "flip_then_add": lambda x: x.flip(1) + x,
    "roll": lambda x: x.roll(2, 1) + 1,
    "as_strided": lambda x: x.as_strided((3, 4), (2, 5), 7) + 1,
    "alias_outputs": lambda x: (x.view(-1), x[1], x.transpose(0, 1)),
    "aliasing_fresh": lambda x: (lambda y: (y, y.view(-1), y[2:]))(x.exp()),
    "copy_out": lambda x: (x.clone(), x.contiguous(), x * 1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1),
    "movedim": lambda x: x.movedim(0, 2) + 1,
    "view_as_input": lambda x: x,
    "expanded_out": lambda x: (x.sum(0, keepdim=True)).expand(3, 4, 5),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    assert_lowered(VIEWS[name], t(6, 4, 5))


@pytest.mark.parametrize("name", ["slice", "permute", "heads", "flatten", "select", "flip"])
def test_views_of_strided_inputs(name: str) -> None:
    assert_lowered(VIEWS[name], t(4, 5, 6).permute(2, 0, 1))
    assert_lowered(VIEWS[name], t(6, 8, 5)[:, ::2])


REDUCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda x: x.sum(),
    "sum_dim": lambda x: x.sum(1),
    "sum_dims_keep": lambda x: x.sum((0, 2), keepdim=True),
    "mean": lambda x: x.mean(-1),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin((0, 1)),
    "max": lambda x: x.max(),
    "max_dim": lambda x: x.max(1),
    "min_dim": lambda x: x.min(2, keepdim=True),
    "argmax": lambda x: x.argmax(1),
    "argmin_all": lambda x: x.argmin(),
    "any": lambda x: (x > 1).any(1),
    "all": lambda x: (x > -1).all(),
    "any_numbers": lambda x: x.any(0),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std((0, 1), unbiased=False, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, 2),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "safe_softmax": lambda x: torch.ops.aten._safe_softmax(
        x.masked_fill(x[:, :1] > 0, float("-inf")), -1
    ),
    "masked_softmax": lambda x: (x * 0.3).masked_fill(x > 1, float("-inf")).softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "layer_norm_2": lambda x: F.layer_norm(F.gelu(x) + 1, (4, 5)),
    "norm_by_hand": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "logsumexp": lambda x: x.logsumexp(1),
    "sum_of_view": lambda x: x.transpose(0, 1).reshape(4, 30).sum(1),
    "cumsum": lambda x: x.cumsum(1),
    "sort": lambda x: x.sort(1),
    "topk": lambda x: x.topk(2, 1),
    "norm": lambda x: x.norm(dim=1),
    "nan": lambda x: (x.log().amax(1), x.log().argmax(1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    assert_lowered(REDUCTIONS[name], t(6, 4, 5))


@pytest.mark.parametrize(
    "name", ["sum", "sum_dim", "mean", "softmax", "layer_norm", "amax", "var", "log_softmax"]
)
def test_reductions_of_bf16(name: str) -> None:
    assert_lowered(REDUCTIONS[name], t(6, 4, 5, dtype=bf16), tolerance=8e-3)


@pytest.mark.parametrize("shape", [(3001,), (7, 501), (501, 7), (1 << 18,)])
def test_products_are_rounded_once(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 0.02 + 0.9901
    fn = ingot.compile(lambda x: (x.prod(0), x.prod(-1), (x * 1).prod()))
    for found, exact in zip(
        fn(x), (x.double().prod(0), x.double().prod(-1), x.double().prod()), strict=True
    ):
        torch.testing.assert_close(found, exact.float(), rtol=2**-23, atol=0)


def test_reductions_of_ints() -> None:
    assert_lowered(
        lambda x: (x.sum(0), x.amax(1), x.prod(1), (x > 0).sum()), t(6, 4, dtype=torch.int32)
    )


def test_layer_norm_with_weights() -> None:
    assert_lowered(lambda x, w, b: F.layer_norm(x, (5,), w, b), t(6, 5), t(5), t(5))


def test_batch_norm_in_inference() -> None:
    def fn(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
        return F.batch_norm(x, mean, var, w, b).relu()

    graph = assert_lowered(fn, t(2, 3, 4, 4), t(3), t(3).abs() + 0.5, t(3), t(3))
    assert counts(graph)[2] == 0


def test_group_norm() -> None:
    assert_lowered(lambda x, w, b: F.group_norm(x, 2, w, b), t(2, 4, 3, 3), t(4), t(4))


INDEXING: dict[str, Callable[..., Any]] = {
    "embedding": lambda x, i: F.embedding(i.abs(), x),
    "gather": lambda x, i: x.gather(0, i.abs()[:, :4]),
    "index_select": lambda x, i: x.index_select(0, i.abs()[0]),
    "index": lambda x, i: x[i],
    "index_two": lambda x, i: x[i, i.abs() % 4],
    "index_middle": lambda x, i: x.view(6, 2, 2)[:, i.abs() % 2],
    "index_apart": lambda x, i: x.view(2, 3, 4)[i.abs() % 2, :, i[0].abs() % 4],
    "index_of_computed": lambda x, i: (x.exp() + 1)[i],
    "tril": lambda x, i: x.tril(-1) + x.triu(1),
    "scatter": lambda x, i: x.scatter(0, i.abs()[:, :4], 1.5),
    "index_put": lambda x, i: x.index_put((i[0],), torch.ones(4), accumulate=True),
    "where_index": lambda x, i: torch.where(i[:, :4].abs() > 1, x[:3], 0.0),
    "one_hot_ish": lambda x, i: (i[0].abs().unsqueeze(1) == torch.arange(5)).to(f32),
    "take_along": lambda x, i: torch.take_along_dim(x, i.abs()[:, :4], 0),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name: str) -> None:
    assert_lowered(INDEXING[name], t(6, 4), torch.randint(-6, 6, (3, 5)).clamp(-5))


def test_index_out_of_range_raises() -> None:
    for fn in (lambda x, i: x[i], lambda x, i: F.embedding(i, x)):
        graph = lowered(fn, t(4, 3), torch.tensor([1, 9]))
        with pytest.raises(IndexError):
            run_graph(graph, [t(4, 3), torch.tensor([1, 9])])
    graph = lowered(lambda x, i: F.embedding(i, x), t(4, 3), torch.tensor([1, -1]))
    with pytest.raises(IndexError):
        run_graph(graph, [t(4, 3), torch.tensor([1, -1])])


CREATION: dict[str, Callable[..., Any]] = {
    "full": lambda x: torch.full((2, 3), 1.5) + torch.ones(3) + torch.zeros(2, 1),
    "full_like": lambda x: torch.full_like(x, 2) + torch.ones_like(x) * x,
    "arange": lambda x: torch.arange(4) + torch.arange(3, 11, 2),
    "arange_float": lambda x: torch.arange(0.0, 1.0, 0.25) + x[0],
    "cat": lambda x: torch.cat([x, x * 2, x[:1].exp()]),
    "cat_1": lambda x: torch.cat([x, x.sin()], 1) + 1,
    "rotate_half": lambda x: torch.cat([-x[:, 2:], x[:, :2]], -1) * 0.5 + x,
    "cat_types": lambda x: torch.cat([x, x.to(i64)], 1),
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=7.0),
    "pad_negative": lambda x: F.pad(x, (-1, 2)) * 2,
    "pad_shifted": lambda x: F.pad(x, (-1, 1)) * 2,
    "select_scatter": lambda x: torch.select_scatter(x, x[0] * 2, 0, -1),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:2] * 2, 0, 1, 5, 2),
    "mask": lambda x: torch.tril(torch.ones(4, 4, dtype=torch.bool)) & (x[:4] > 0),
    "causal": lambda x: (
        x[:4].masked_fill(torch.arange(4)[None] > torch.arange(4)[:, None], -1e9).softmax(-1)
    ),
}


@pytest.mark.parametrize("name", CREATION)
def test_creation(name: str) -> None:
    assert_lowered(CREATION[name], t(6, 4))


def test_repeat_has_a_loop_for_the_copies() -> None:
    for repeats in ((2, 3), (1, 3), (2, 2, 1)):
        (node,) = assert_lowered(lambda x, repeats=repeats: x.repeat(repeats), t(6, 4)).nodes
        assert isinstance(node, Pointwise) and all(
            "%" not in str(load.attrs[1]) for load in node.body.loads
        )
    assert counts(assert_lowered(lambda x: x.repeat(3, 1) + 1, t(1, 4))) == (1, 0, 0)
    assert_lowered(lambda x: x.repeat(2, 0), t(6, 4))


def test_cat_writes_each_piece_into_place() -> None:
    graph = assert_lowered(lambda x, y: torch.cat([x.sin(), y.cos(), x]), t(3, 4), t(2, 4))
    assert counts(graph) == (3, 0, 0)
    assert len({n.target for n in graph.nodes if isinstance(n, Pointwise)}) == 1


LIBRARY: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "mm": (lambda a, b: a @ b + 1, ((4, 5), (5, 6))),
    "mm_t": (lambda a, b: a @ b.t(), ((4, 5), (6, 5))),
    "linear": (F.linear, ((2, 3, 5), (6, 5), (6,))),
    "linear_no_bias": (lambda a, b: F.linear(a.relu(), b).relu(), ((2, 3, 5), (6, 5))),
    "addmm": (lambda b, x, w: torch.addmm(b, x, w, beta=0.5), ((6,), (4, 5), (5, 6))),
    "bmm": (torch.bmm, ((2, 3, 4), (2, 4, 5))),
    "matmul": (torch.matmul, ((2, 3, 4, 5), (5, 4))),
    "conv": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(),
        ((2, 3, 6, 6), (4, 3, 3, 3), (4,)),
    ),
    "pool": (lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2), ((2, 3, 6, 6),)),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), ((2, 3, 6, 6),)),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((1, 2, 6, 8),) * 3,
    ),
    "split_heads": (
        lambda x, w: [h.view(2, 3, 2, 4).transpose(1, 2) for h in F.linear(x, w).split(8, dim=2)],
        ((2, 3, 5), (24, 5)),
    ),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2), ((1, 2, 3, 3),)),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), ((2, 3, 4), (2, 5, 4))),
}


POOLING: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "two": (lambda x: F.max_pool2d(x, 2), (2, 3, 6, 8)),
    "padded": (lambda x: F.max_pool2d(x, 3, 2, padding=1), (2, 3, 7, 9)),
    "dilated": (lambda x: F.max_pool2d(x, (3, 2), (1, 2), dilation=(2, 1)), (2, 3, 8, 8)),
    "ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (1, 3, 8, 8)),
    "no_batch": (lambda x: F.max_pool2d(x, 2), (3, 6, 6)),
    "3d": (lambda x: F.max_pool3d(x, (2, 3, 2), 2, padding=1), (1, 2, 5, 6, 7)),
    "channels_last": (
        lambda x: F.max_pool2d(x.to(memory_format=torch.channels_last), 3, 2, 1).relu(),
        (2, 3, 9, 8),
    ),
}


@pytest.mark.parametrize("name", POOLING)
def test_max_pool_is_loops(name: str) -> None:
    fn, shape = POOLING[name]
    lowered = assert_lowered(fn, t(*shape))
    assert not [node for node in lowered.nodes if isinstance(node, Library)]


def test_convolution_is_given_the_layout_of_eager() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x.relu().view(1, 6, 6, 4).permute(0, 3, 1, 2).contiguous(), w)

    (call,) = [
        n for n in assert_lowered(fn, t(1, 36, 4), t(5, 4, 3, 3)).nodes if isinstance(n, Library)
    ]
    assert [stride.constant for stride in call.args[0].strides] == [144, 36, 6, 1]


def test_max_pool_keeps_nan_and_calls_the_library_for_positions() -> None:
    x = t(1, 2, 6, 6)
    x[0, 0, 2, 3] = float("nan")
    assert_lowered(lambda x: F.max_pool2d(x, 3, 2, padding=1), x)
    assert_lowered(lambda x: F.max_pool2d(x, 2, return_indices=True), x)


@pytest.mark.parametrize("name", LIBRARY)
def test_library(name: str) -> None:
    fn, shapes = LIBRARY[name]
    assert_lowered(fn, *[t(*s) for s in shapes])


def test_a_weight_is_never_copied() -> None:
    graph = assert_lowered(lambda x, w, b: F.linear(x, w, b), t(2, 3, 5), t(6, 5), t(6))
    product, bias = graph.nodes
    assert isinstance(product, Contraction) and product.reads() == {"in0", "in1"}
    assert isinstance(bias, Pointwise) and bias.reads() == {"in2", *product.writes()}


def test_large_products() -> None:
    assert_lowered(F.linear, t(64, 256), t(256, 256), t(256))
    assert_lowered(lambda x, w: x @ w, t(64, 256), t(256, 256))
    assert_lowered(lambda x, w: x.t() @ w, t(256, 64), t(256, 256))
    assert_lowered(lambda b, x, w: torch.addmm(b, x, w.t()), t(256), t(64, 256), t(256, 256))
    assert_lowered(lambda x, w: x[:, ::2] @ w, t(64, 512), t(256, 256))
    assert_lowered(lambda x, w: x[:, 3:259] @ w[::2], t(64, 512), t(512, 256))


def mixed(x: Any, filters: Any) -> Any:
    """Tokens as an image, each feature with its neighbours, and back: eager's convolution leaves
    the features apart."""
    image = x.transpose(1, 2).view(1, 32, 12, 12)
    return F.gelu(F.conv2d(image, filters, None, 1, 1, 1, 32).flatten(2).transpose(1, 2))


def test_what_is_made_of_many_elements_lies_as_they_do() -> None:
    """Else every load would be of elements that lie apart; but what is returned lies as in
    eager."""
    x, filters = t(1, 144, 32), t(32, 1, 3, 3)
    graph = assert_lowered(lambda x, w, m: mixed(x, w) @ m, x, filters, t(32, 8))
    made = next(node for node in graph.nodes if "aten.gelu.default" in node.origin.ops)
    assert str(graph.buffers[made.writes()[0]].strides[1:]) == "(32, 1)"
    assert_lowered(mixed, x, filters)


def test_attention_reads_heads_where_they_lie() -> None:
    def fn(x: Any, w: Any) -> Any:
        q, k, v = [h.view(1, 6, 2, 8).transpose(1, 2) for h in F.linear(x, w).split(16, dim=2)]
        return (
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(1, 6, 16)
        )

    graph = assert_lowered(fn, t(1, 6, 16), t(48, 16))
    assert [type(node) for node in graph.nodes] == [Contraction, Attention]


def test_a_library_without_a_rule_is_given_the_layout_it_asked_for() -> None:
    weight = t(10, 4)
    # the bags' ids are made contiguous before the kernel, which counts on it
    ids = torch.arange(8).view(2, 4)[:, :1]
    assert_lowered(lambda ids: F.embedding_bag(ids, weight, mode="sum"), ids)
    graph = assert_lowered(lambda ids: F.embedding_bag(ids, weight, mode="sum"), ids.contiguous())
    assert counts(graph) == (1, 0, 1)  # the offsets, and no copy


def test_a_library_allocates_what_is_returned_and_fills_what_is_not() -> None:
    def outs(fn: Callable[..., Any], *args: torch.Tensor) -> list[str | None]:
        return [node.out for node in assert_lowered(fn, *args).nodes if isinstance(node, Library)]

    assert outs(lambda x: torch.polygamma(1, x), t(8, 8)) == [None]
    assert outs(lambda x: torch.polygamma(1, x) * 2, t(8, 8)) == ["out"]
    assert outs(lambda x: torch.polygamma(1, x), t((16 << 20) // 4 + 1)[1:]) == [None]
    assert outs(lambda x: torch.polygamma(1, x), t((16 << 20) // 4 + 1)) == ["out"]


MUTATIONS: dict[str, Callable[..., Any]] = {
    "add_": lambda x, y: x.add_(y),
    "add_fresh": lambda x, y: x.add_(y) * 2,
    "copy_": lambda x, y: (x.copy_(y), None)[0],
    "slice": lambda x, y: (x[1:3].mul_(2), x.sum())[1],
    "select_copy": lambda x, y: (x[0].copy_(y[1]), x + 1)[1],
    "swap": lambda x, y: (lambda a: (x.copy_(y), y.copy_(a), x - y)[2])(x.clone()),
    "shift": lambda x, y: (x[1:].copy_(x[:-1].clone()), y + 1)[1],
    "transpose": lambda x, y: (x.t().mul_(2), y + 0)[1],
    "old_value_returned": lambda x, y: (lambda old: (x.add_(1), old)[1])(x * 2),
    "fill": lambda x, y: (x.zero_(), y.exp())[1],
    "softmax_in_place": lambda x, y: (x.copy_(x.softmax(-1)), y * 1)[1],
    "flip_in_place": lambda x, y: (x.copy_(x.flip(0)), y * 1)[1],
    "twice": lambda x, y: (x.add_(1), y.add_(x), x.mul_(y))[2],
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations(name: str) -> None:
    assert_lowered(MUTATIONS[name], t(4, 4), t(4, 4))


SYMBOLIC: dict[str, Callable[..., Any]] = {
    "mlp": lambda x, w: F.layer_norm(F.gelu(F.linear(x, w)), (16,)).softmax(-1),
    "heads": lambda x, w: (
        x.view(x.shape[0], 2, 4).transpose(1, 2).reshape(x.shape[0] * 4, 2) + x.mean(),
        x.shape[0],
    ),
    "cat": lambda x, w: (torch.cat([x, x * 2], 0), x[1:].sum(0), x.t().contiguous()),
    "reduce": lambda x, w: (x.mean(0), x.var(0), x.amax(1), x.argmax(0)),
    "arange": lambda x, w: x + torch.arange(x.shape[0])[:, None],
    "flatten": lambda x, w: (x.sin() @ w.t()).flatten() + 1,
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_one_graph_serves_every_size(name: str) -> None:
    fn, w = SYMBOLIC[name], t(16, 8)
    graph = lowered(fn, t(5, 8), w, dynamic=True)
    assert len(graph.symbols) == 1
    for n in (2, 3, 9):
        x = t(n, 8)
        expected = fn(x, w)
        found = run_graph(graph, [x, w])
        for a, b in zip(found, expected if isinstance(expected, tuple) else (expected,)):
            torch.testing.assert_close(a, b)
            assert isinstance(b, int) or a.stride() == b.stride()


def test_empty_and_scalar_tensors() -> None:
    assert_lowered(lambda x: x.exp().sum(1), t(3, 0))
    assert_lowered(lambda x: x.view(0, 3) * 2, t(3, 0))
    assert_lowered(lambda x: x * 2 + x.sum(), torch.tensor(1.5))


def test_random_ops_keep_their_order() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x * torch.rand_like(x), torch.randn(4) + 1, F.dropout(x, 0.5)

    torch.manual_seed(3)
    expected = fn(t(4, 4) * 0 + 1)
    graph = lowered(fn, torch.ones(4, 4))
    torch.manual_seed(3)
    t(4, 4)
    found = run_graph(graph, [torch.ones(4, 4)])
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


def test_nodes_carry_names_of_what_they_compute() -> None:
    (node,) = assert_lowered(lambda x: x.sin().mul(2), t(3)).nodes
    assert node.origin.ops == ("aten.sin.default", "aten.mul.Tensor")


def test_windows_on_memory() -> None:
    """as_strided counts from the beginning of the memory that the tensor has in eager, whatever
    computes it."""
    x = t(3, 8)
    assert_lowered(
        lambda a: a.contiguous().as_strided((6, 2), (1, 1)) + 0, t(3, 8, 1).permute(2, 1, 0)
    )
    assert_lowered(lambda a: a[1:].clone().as_strided((2,), (1,), 0) + 0, x)

    def assigned(a: torch.Tensor) -> torch.Tensor:
        b = torch.zeros(8)
        b[:] = a[1]
        return b.as_strided((2, 3), (1, 1), 1) + b[:3]

    assert_lowered(assigned, x)


def test_padding_that_moves() -> None:
    assert_lowered(lambda a: F.pad(a, (-1, 1, -2, 1), value=2.0), t(1, 3, 4, 4))


@pytest.mark.parametrize("function", [torch.gcd, torch.lcm, torch.pow], ids=lambda f: f.__name__)
def test_integers_of_each_value(function: Callable[..., Any]) -> None:
    for dtype in (torch.int8, torch.uint8):
        numbers = torch.arange(torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1).to(dtype)
        x, y = numbers[:, None], numbers[None, :]
        assert torch.equal(ingot.compile(function, fullgraph=True)(x, y), function(x, y))
        assert counts(lowered(function, x, y))[2] == 0


@pytest.mark.parametrize("exponent", [0, 1, 4, 5, 7, 31, 64, 10**12])
def test_whole_powers_of_integers(exponent: int) -> None:
    graph = assert_lowered(lambda x: (x**exponent, exponent ** x.abs()), torch.arange(-20, 20))
    assert counts(graph)[2] == 0


def test_divisors_of_long_integers() -> None:
    """Those that doubles hold, and others, beside each other."""
    generator = torch.Generator().manual_seed(0)
    parts = [
        torch.randint(1, 1 << bits, (500,), generator=generator)
        for bits in (3, 20, 30, 52, 53, 54, 60, 62)
    ]
    numbers = torch.cat(
        [*parts, -parts[-1], torch.tensor([0, 1, -1, (1 << 63) - 1, 1 - (1 << 63), -1 << 63])]
    )
    common = numbers[torch.randperm(len(numbers), generator=generator)]
    for x, y in ((numbers, common), (numbers * 6, common * 21), (numbers, torch.tensor(-1 << 63))):
        assert torch.equal(ingot.compile(torch.gcd, fullgraph=True)(x, y), torch.gcd(x, y))


def test_what_is_added_to_few_elements_of_float32_is_no_part_of_a_gpus_product() -> None:
    x, weight, bias = torch.randn(197, 64), torch.randn(128, 64), torch.randn(128)
    graph = lower(traced(F.linear, x, weight, bias), target=GPU)
    (product,) = (node for node in graph.nodes if isinstance(node, Library))
    assert product.function is torch.mm
    halves = lower(traced(F.linear, x.half(), weight.half(), bias.half()), target=GPU)
    (product,) = (node for node in halves.nodes if isinstance(node, Library))
    assert product.function is torch.addmm
    (result,) = run_graph(graph, copies([x, weight, bias]))
    torch.testing.assert_close(result, F.linear(x, weight, bias))


def test_no_rule_is_for_what_is_always_decomposed():
    """A decomposition that never gives NotImplemented leaves nothing of its op to be lowered."""
    decomposed, lowered = table("decompose"), table("lower")
    partial = {
        op
        for op, rule in decomposed.items()
        if "NotImplemented" in inspect.getsource(inspect.unwrap(rule))
    }
    assert not [op for op in lowered if op in decomposed and op not in partial]
    assert partial & lowered.keys()


def test_no_rule_is_for_what_torch_itself_decomposes():
    """The recorder runs a composite op, so that its parts alone are in a graph. A pass makes linear
    layers."""
    composite = {op for op in (*table("lower"), *table("decompose")) if is_composite(op)}
    assert composite == {torch.ops.aten.linear.default}
