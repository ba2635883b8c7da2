"""Every rule for fresh results gives eager's strides, whatever the layout of the arguments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ingot.graph import meta
from ingot.graph.schemas import is_pointwise

aten = torch.ops.aten


def layouts(shape: list[int]) -> Iterator[torch.Tensor]:
    """Tensors of one shape: plain, dimensions reversed, expanded, with gaps, the last two swapped,
    channels-last."""
    rank = len(shape)
    yield torch.rand(shape)
    yield torch.rand(shape[::-1]).permute([*range(rank)][::-1])
    yield torch.rand([1, *shape[1:]]).expand(shape)
    yield torch.rand([*shape[:-1], 1]).expand(shape)
    yield torch.rand([*shape[:-1], 2 * shape[-1]])[..., ::2]
    yield torch.rand([*shape[:-2], shape[-1], shape[-2]]).mT
    if rank == 4:
        yield torch.rand(shape).contiguous(memory_format=torch.channels_last)


CALLS = """
fill.Scalar(x, 1.0)|scatter.src(x, 1, i, x)|scatter.value(x, 1, i, 1.0)|scatter_add(x, 1, i, x)
scatter_reduce.two(x, 1, i, x, 'sum')|index_put(x, [two], x[:2])|_unsafe_index_put(x, [two], x[:2])
index_add(x, 0, two, x[:2])|index_copy(x, 0, two, x[:2])|index_fill.int_Scalar(x, 0, two, 1.0)
masked_fill.Scalar(x, x > 0.5, 1.0)|masked_fill.Scalar(x, (x > 0.5)[:1], 1.0)
masked_fill.Scalar(x[:1], x > 0.5, 1.0)|masked_scatter(x, x > 2, x)|put(x, two, torch.ones(2))
flip(x, [0])|uniform(x)|bernoulli(x)|bernoulli.p(x, 0.5)|_softmax(x, 1, False)
_log_softmax(x, 1, False)|cumsum(x, 1)|tril(x)|roll(x, [1], [0])|roll(x, [1])|clone(x)
_to_copy(x, dtype=torch.bfloat16)|zeros_like(x)|rand_like(x)|sum.dim_IntList(x, [0])
mean.dim(x, [1], True)|amax(x, [0], True)|argmax(x, 0)|var.correction(x, [0])
var_mean.correction(x, [0])|max.dim(x, 0)|logsumexp(x, [0])|linalg_vector_norm(x, 2, [0])
prod.dim_int(x, 0)|native_layer_norm(x, x.shape[-1:], None, None, 1e-5)
constant_pad_nd(x, [1, 2], 0.0)|constant_pad_nd(x, [0, -1], 0.0)|constant_pad_nd(x, [0, 0], 0.0)
gather(x, 1, i)|index_select(x, 1, two)|index.Tensor(x, [two])|index.Tensor(x, [None, two])
index.Tensor(x, [two, two])|index.Tensor(x, [torch.tensor([[0, 1], [1, 0], [0, 0]]).T])
cat([x, x], 0)|cat([x, x.contiguous()], 0)|stack([x, x], 1)|stack([x, x], -1)
repeat(x, [2] + [1] * (x.dim() - 1))|select_scatter(x, x[0], 0, 0)|slice_scatter(x, x[:2], 0, 0, 2)
diagonal_scatter(x, x.diagonal())|native_dropout(x, 0.5, True)|sort(x, 0)|topk(x, 1, 0)
where.self(x > 0.5, x, torch.tensor(1.0))|add.Tensor(x, x.contiguous())
add.Tensor(x.contiguous(), x)|add.Tensor(x, x[:1])|add.Tensor(x[:1], x)
rsub.Tensor(x, x.contiguous())|rsub.Tensor(x.contiguous(), x)|gelu(x)|lerp.Scalar(x, x, 0.5)
glu(x.repeat(*[1] * (x.dim() - 1), 2), -1)|cummax(x, 0)|median.dim(x, 0)|log_sigmoid_forward(x)
take(x, i)
"""


@pytest.mark.parametrize("call", CALLS.replace("\n", "|").strip("|").split("|"))
def test_strides_of_fresh_results(call: str) -> None:
    name, arguments = call.split("(", 1)
    packet, _, overload = name.partition(".")
    op = getattr(getattr(aten, packet), overload or "default")
    for shape in ([3, 4], [2, 3, 4], [2, 3, 4, 5]):
        for x in layouts(shape):
            i, two = (x > 0.5).long(), torch.tensor([0, 1])
            scope = {"x": x, "i": i, "two": two, "torch": torch, "given": lambda *a, **k: (a, k)}
            args, kwargs = eval(f"given({arguments}", scope)
            results = meta.tensors_in(op(*args, **kwargs))
            predicted = meta.tensors_in(meta.rule_for(op)(op, _metas(args), kwargs))
            for real, fake in zip(results, predicted, strict=True):
                assert (real.dtype, real.shape) == (fake.dtype, fake.shape)
                known = [
                    (a, b) for n, a, b in zip(real.shape, real.stride(), fake.stride()) if n > 1
                ]
                assert all(a == b for a, b in known), (
                    f"{x.shape} {x.stride()}: {fake.stride()}, eager {real.stride()}"
                )


def _metas(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return torch.empty_strided(tree.shape, tree.stride(), dtype=tree.dtype, device="meta")
    return type(tree)(map(_metas, tree)) if isinstance(tree, (list, tuple)) else tree


def spread(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Tensors that broadcast to 6 x 5: expanded along each dimension, columns dense, plain, and of
    rank 0."""
    yield torch.ones(6, 1).to(dtype).expand(6, 5)
    yield torch.ones(5).to(dtype).expand(6, 5)
    yield torch.ones(5, 6).to(dtype).t()
    yield torch.ones(6, 5).to(dtype)
    yield torch.ones(()).to(dtype)


DTYPES = torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64


def pointwise_of_tensors() -> Iterator[tuple[Any, list[str]]]:
    """The pointwise ops of two or three tensors, and what their arguments are."""
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space != "aten" or not hasattr(aten, packet):
            continue
        op = getattr(getattr(aten, packet), overload or "default", None)
        if op is None or op._schema.is_mutable or not is_pointwise(op):
            continue
        needed = [str(a.type) for a in op._schema.arguments if not a.has_default_value()]
        results = [str(r.type) for r in op._schema.returns]
        if set(needed) <= {"Tensor", "number"} and needed.count("Tensor") in (2, 3):
            if results == ["Tensor"]:
                yield op, needed


OF_TENSORS = list(pointwise_of_tensors())


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("op, needed", OF_TENSORS, ids=lambda v: str(v) if callable(v) else "")
def test_strides_where_dtypes_are_mixed(op: Any, needed: list[str]) -> None:
    """What a CPU casts it copies, and a copy of an expanded tensor has an order of its own."""
    tensors = needed.count("Tensor")
    tried = 0
    for dtypes in itertools.product(DTYPES if tensors == 2 else DTYPES[::2], repeat=tensors):
        for operands in itertools.product(*map(spread, dtypes)):
            rest = iter(operands)
            args = [next(rest) if kind == "Tensor" else 1 for kind in needed]
            try:
                real = op(*args)
            except (RuntimeError, NotImplementedError):
                continue  # of these dtypes
            fake = meta.rule_for(op)(op, _metas(args), {})
            layouts = [(t.dtype, t.stride()) for t in operands]
            assert (real.dtype, real.stride()) == (fake.dtype, fake.stride()), layouts
            tried += 1
    assert tried > 5
