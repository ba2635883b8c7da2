"""What one rank finds of attention whose sequence is split over ranks, in eager and compiled: see
test_pipelines.py.

torch's `context_parallel` has rings of the kernels that GPUs have. For one of CPUs they are added
here, made of the same functions of torch's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional as F

import ingot

WIDTH, HEADS, WORDS = 32, 4, 16
aten = torch.ops.aten
_FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _ring(group: Any, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0,
          is_causal: bool = False, *, attn_mask: Any = None, scale: Any = None) -> Any:  # fmt: skip
    from torch.distributed.tensor.experimental._context_parallel import _attention

    def attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, **kwargs: Any) -> Any:
        return _FORWARD(q, k, v, 0.0, is_causal, scale=scale)

    return _attention._templated_ring_attention(group, 2, attention, q, k, v, is_causal)


def _ring_backward(group: Any, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
                   logsumexp: Tensor, dropout: float, is_causal: bool, *, attn_mask: Any = None,
                   scale: Any = None) -> Any:  # fmt: skip
    from torch.distributed.tensor.experimental._context_parallel import _attention

    def attention(
        *, grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
        logsumexp: Tensor, is_causal: bool,
    ) -> Any:  # fmt: skip
        tensors = grad_out, query, key, value, out, logsumexp
        return _BACKWARD(*tensors, 0.0, is_causal, scale=scale)

    return _attention._templated_ring_attention_backward(
        group, 2, attention, grad_out, "grad_out", q, k, v, out, logsumexp, is_causal
    )


_RINGS: dict[Any, tuple[Callable[..., Any], int, int]] = {
    _FORWARD: (_ring, 2, 3),
    _BACKWARD: (_ring_backward, 3, 6),
}
"""By operator: the ring, and how many tensors come out and go in."""


def _handle(op: Any, args: Any, kwargs: Any) -> Any:
    dispatcher: Any = DTensor._op_dispatcher
    info = dispatcher.unwrap_to_op_info(op, args, kwargs)
    dispatcher.sharding_propagator.propagate(info)
    results = _RINGS[op][0](info.compute_mesh.get_group(), *info.local_args, **info.local_kwargs)
    return dispatcher.wrap(results, info.output_sharding.output_spec)


def add_rings() -> None:
    """Has `context_parallel` know the kernel of CPUs."""
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor._ops.utils import (
        expand_to_full_mesh_op_strategy,
        register_op_strategy,
    )
    from torch.distributed.tensor.experimental._context_parallel import _attention

    for op, (_, outputs, inputs) in _RINGS.items():
        _attention.custom_ops[op] = _handle

        def strategy(schema: Any, outputs: int = outputs, inputs: int = inputs) -> Any:
            placements = [Shard(2)] * (outputs + inputs)
            mesh = schema.get_mesh_from_args()
            return expand_to_full_mesh_op_strategy(mesh, schema, [placements], input_index=outputs)

        register_op_strategy(op, schema_info=RuntimeSchemaInfo(inputs))(strategy)


class Attention(nn.Module):
    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = []
        for part in self.qkv(self.norm(x)).chunk(3, -1):
            heads.append(part.view(batch, length, HEADS, -1).transpose(1, 2))
        y = F.scaled_dot_product_attention(*heads, is_causal=self.is_causal)
        return x + self.o(y.transpose(1, 2).reshape(batch, length, WIDTH))


def _model(is_causal: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Attention(is_causal), Attention(is_causal))


def _trained(module: nn.Module, mesh: DeviceMesh | None) -> list[Tensor]:
    """Losses and gradients of two steps, of all ranks together."""
    optimizer, found = torch.optim.SGD(module.parameters(), 0.1), []
    for step in range(2):
        torch.manual_seed(step)
        x, y = torch.randn(2, 2, WORDS, WIDTH).unbind()
        if mesh is None:
            loss = (module(x) - y).square().sum()
            loss.backward()
        else:
            with context_parallel(mesh, buffers=[x, y], buffer_seq_dims=[1, 1]):
                loss = (module(x) - y).square().sum()
                loss.backward()
        found.append(loss.detach())
        for parameter in module.parameters():
            found.append(parameter.grad.clone())  # type: ignore[union-attr]
            if mesh is not None:
                dist.all_reduce(found[-1])
                parameter.grad = found[-1] / 10
            else:
                parameter.grad = found[-1] / 10
        if mesh is not None:
            dist.all_reduce(found[-1 - len(list(module.parameters()))])
        optimizer.step()
        optimizer.zero_grad()
    return found


def _difference(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))


def compare() -> dict[str, dict[str, Any]]:
    """With a mask of causality and without: differences from one process, graphs, breaks."""
    warnings.simplefilter("ignore")
    add_rings()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found = {}
    from torch.distributed.tensor.experimental._context_parallel import _attention

    for is_causal in (True, False):
        _attention._cp_options.enable_load_balance = is_causal  # there is none without a mask
        whole = _trained(_model(is_causal), None)
        eager = _trained(_model(is_causal), mesh)
        ingot.reset()
        compiled = _trained(ingot.compile(_model(is_causal)), mesh)
        counters = ingot.counters()
        found["causal" if is_causal else "full"] = {
            "eager": _difference(eager, whole),
            "compiled": _difference(compiled, whole),
            "graphs": counters["captures"],
            "breaks": counters["breaks"],
            "fallbacks": counters["fallbacks"],
        }
    return found
