"""Programs that launch Triton kernels of their own, as users write them."""

from __future__ import annotations

# ruff: noqa: E731  (users write grids as lambdas)
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.user_kernels import (
    add_kernel,
    block_pointer_kernel,
    cast_kernel,
    descriptor_kernel,
    heuristic_add_kernel,
    histogram_kernel,
    layer_norm_backward_kernel,
    layer_norm_kernel,
    linear_kernel,
    matmul_kernel,
    multiply_kernel,
    nested_kernel,
    pair_kernel,
    scale_in_place_kernel,
    single_add_kernel,
    softmax_kernel,
    swiglu_backward_kernel,
    swiglu_kernel,
    total_kernel,
    transpose_kernel,
    tuned_add_kernel,
    tuned_scale_kernel,
)


def add(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = out.numel()
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK_SIZE"]),)
    add_kernel[grid](x, y, out, n, BLOCK_SIZE=128)
    return out


def add_between(x: Tensor, y: Tensor) -> Tensor:
    out = add(x * 2 + 1, y.sin())
    return out.relu() - 1


def add_by_keywords(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    grid = (triton.cdiv(x.numel(), 64), 1, 1)
    add_kernel[grid](
        x_ptr=x, y_ptr=y, out_ptr=out, n_elements=x.numel(), BLOCK_SIZE=64, num_warps=2,
        num_stages=2,
    )  # fmt: skip
    return out


def add_three_times(x: Tensor, y: Tensor) -> Tensor:
    first = add(x, y)
    second = add(first, first)
    return add(second.cos(), x) + first


def add_tuned(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK_SIZE"]),)
    tuned_add_kernel[grid](x, y, out, x.numel())
    return out * 2


def add_single(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    single_add_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK_SIZE"]),)](
        x, y, out, n_elements=x.numel()
    )
    return out


def add_heuristic(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)

    def grid(meta):
        return (triton.cdiv(out.numel(), meta["BLOCK_SIZE"]),)

    heuristic_add_kernel[grid](x, y, out, n_elements=x.numel())
    return out


def scale_argument(x: Tensor) -> Tensor:
    scale_in_place_kernel[(triton.cdiv(x.numel(), 64),)](x, 3.0, x.numel())
    return x + 1


def scale_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    before = y * 1
    scale_in_place_kernel[(triton.cdiv(y.numel(), 32),)](y, 0.5, y.numel(), BLOCK=32)
    return y, before


def scale_tuned(x: Tensor) -> Tensor:
    y = x.clone()
    tuned_scale_kernel[lambda meta: (triton.cdiv(y.numel(), meta["BLOCK"]),)](y, 2.0, y.numel())
    return y


def scale_row(x: Tensor) -> Tensor:
    """A write through a view."""
    y = x * 1
    scale_in_place_kernel[(1,)](y[1], 10.0, 16)
    return y.sum(1)


def scale_flat_view(x: Tensor) -> Tensor:
    y = x * 1
    z = y.t()
    scale_in_place_kernel[(triton.cdiv(y.numel(), 64),)](y.view(-1), 10.0, y.numel())
    return z + 1


def scale_behind_a_view(x: Tensor) -> Tensor:
    """A kernel that goes beyond the elements of the view that it is given."""
    y = x.sin()
    scale_in_place_kernel[(triton.cdiv(y.numel(), 64),)](y[0], 10.0, y.numel())
    return y


def read_behind_a_view(x: Tensor) -> Tensor:
    y, out = x.sin(), torch.empty(x.numel(), device=x.device)
    add_kernel[(triton.cdiv(x.numel(), 64),)](y[0], y[0, :4], out, x.numel(), BLOCK_SIZE=64)
    return out


def softmax(x: Tensor) -> Tensor:
    rows, columns = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(columns)
    softmax_kernel[(rows,)](out, x, x.stride(0), out.stride(0), columns, BLOCK=block)
    return out


def softmax_of_slice(x: Tensor) -> Tensor:
    return softmax((x * 2)[:, :10]) + 1


def matmul(a: Tensor, b: Tensor, activation: str = "") -> Tensor:
    c = torch.empty((a.shape[0], b.shape[1]), device=a.device, dtype=a.dtype)
    grid = lambda meta: (
        triton.cdiv(a.shape[0], meta["BLOCK_M"]),
        triton.cdiv(b.shape[1], meta["BLOCK_N"]),
    )
    matmul_kernel[grid](
        a, b, c, a.shape[0], b.shape[1], a.shape[1],
        a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), c.stride(1),
        BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, ACTIVATION=activation,
    )  # fmt: skip
    return c


def matmul_between(a: Tensor, b: Tensor) -> Tensor:
    return matmul(a.relu(), b.t() * 2, "leaky_relu").sigmoid()


def total(x: Tensor) -> Tensor:
    out = torch.zeros(1, device=x.device)
    total_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out / x.numel()


def histogram(index: Tensor) -> Tensor:
    counts = torch.zeros(10, dtype=torch.int32, device=index.device)
    n = index.numel()
    histogram_kernel[(triton.cdiv(n, 32),)](index, counts, n, BLOCK=32)
    return counts.float() / n


def nested(x: Tensor) -> Tensor:
    a, b = torch.empty_like(x), torch.empty_like(x)
    n = x.numel()
    nested_kernel[(triton.cdiv(n, 64),)](x, a, b, n, BLOCK=64)
    return a * 2 + b


def linear(x: Tensor, bias: Tensor | None) -> Tensor:
    out = torch.empty_like(x)
    linear_kernel[(triton.cdiv(x.numel(), 64),)](x, bias, out, x.numel(), BLOCK=64)
    return out


def linear_both(x: Tensor, y: Tensor) -> Tensor:
    return linear(x, None) - linear(x, y)


def cast(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for dtype in (tl.float16, tl.float32):
        cast_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), dtype, BLOCK=64)
        x = out + 1
    return x


def transposed(x: Tensor) -> Tensor:
    out = torch.empty(x.shape[::-1], device=x.device)
    grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(x.shape[1], 16))
    transpose_kernel[grid](x, out, *x.shape, *x.stride(), *out.stride(), BLOCK=16)
    return out


def transposed_twice(x: Tensor) -> Tensor:
    return transposed(transposed(x + 1).t().contiguous().t())


def block_pointers(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    block_pointer_kernel[(triton.cdiv(x.numel(), 32),)](x, out, x.numel(), BLOCK=32)
    return out


def descriptors(x: Tensor) -> Tensor:
    y = x + 1
    out = torch.zeros_like(y)
    source = TensorDescriptor.from_tensor(y, [8, 16])
    target = TensorDescriptor(out, out.shape, out.stride(), [8, 16])
    grid = (triton.cdiv(y.shape[0], 8), triton.cdiv(y.shape[1], 16))
    descriptor_kernel[grid](source, target, BLOCK_M=8, BLOCK_N=16)
    return out.sin()


def pair(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    pair_kernel[(triton.cdiv(x.numel(), 32),)]((x.relu(), out), x.numel(), BLOCK=32)
    return out


def wrapped(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 64),)
    torch.library.wrap_triton(add_kernel)[grid](x, y, out, x.numel(), 64)
    return out


def run_itself(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 64),)
    add_kernel.run(x, y, out, x.numel(), BLOCK_SIZE=64, grid=grid, warmup=False)
    return out


def _add_into(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    add_kernel[(1,)](x, y, out, out.numel(), BLOCK_SIZE=triton.next_power_of_2(out.numel()))
    return out


def _scale(x: Tensor, scale: float) -> Tensor:
    scale_in_place_kernel[(1,)](x, scale, x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
    return x


def scale_row_of_argument(x: Tensor) -> Tensor:
    row = x[1]
    _scale(x, 2.0)
    _scale(x[2], 3.0)
    return row + 1


def add_rows(x: Tensor) -> Tensor:
    """Three views of one tensor, of which one is written."""
    y = x + 1
    _add_into(y[0], y[1], y[2])
    return y


def swap_doubled(x: Tensor, y: Tensor) -> Tensor:
    before = x.clone()
    _add_into(y, y, x)
    _add_into(before, before, y)
    return x - y


def accumulate(x: Tensor, total: Tensor) -> Tensor:
    _add_into(total, x, total)
    doubled = total * 2
    _add_into(total, x, total)
    return doubled + total


def between_writes(x: Tensor) -> tuple[Tensor, ...]:
    a = x + 1
    b = a * 2
    _scale(a, 3.0)
    c = a * 2
    _scale(b, 3.0)
    return a, b, c


def same_launch_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = torch.zeros_like(x), torch.zeros_like(x)
    _add_into(x, x, a)
    _add_into(x, x, b)
    return a.add_(1), b


def alike_components(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    """Parts of the graph that differ by a kernel, or a constant that it is given."""
    outs = []
    for kernel, a, n in ((add_kernel, x, 32), (multiply_kernel, y, 32), (add_kernel, z, 16)):
        out = torch.zeros_like(a)
        kernel[(1,)](a * 2, a, out, n, BLOCK_SIZE=32)
        outs.append(out.sin())
    return tuple(outs)


def in_a_loop(x: Tensor) -> Tensor:
    for _ in range(3):
        x = _scale(x, 2.0) + 1
    return x


def views_of_written(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.ones(4, x.numel(), device=x.device)
    _scale(y[2:], 2.0)
    _add_into(x, x, y[1])
    return y[1], y[1:3].t()


def read_views(x: Tensor) -> Tensor:
    y = (x * 2).view(4, 2, 8)[1:3].transpose(1, 2)
    return _add_into(y, y, torch.empty(y.numel(), device=x.device))


def other_constants(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_kernel[(1,)](x, x, out, x.numel(), BLOCK_SIZE=tl.constexpr(64))
    bound = functools.partial(add_kernel[(1,)], BLOCK_SIZE=64)
    bound(x, out, out, x.numel())
    return out


def empty_grid(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    add_kernel[(0,)](x, x, out, x.numel(), BLOCK_SIZE=64)
    return out + 1


class Kernels(torch.nn.Module):
    """Kernels that are attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = add_kernel
        self.kernels = [linear_kernel]
        self.weight = torch.nn.Parameter(torch.linspace(0, 1, 300))

    def forward(self, x: Tensor) -> Tensor:
        out, n = torch.empty_like(x), x.numel()
        grid = (triton.cdiv(n, 64),)
        self.kernel[grid](x, self.weight.to(x.device), out, n, BLOCK_SIZE=64)
        self.kernels[0][grid](out * 1, None, out, n, BLOCK=64)
        return out


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        out, n = torch.empty_like(gate), gate.numel()
        swiglu_kernel[(triton.cdiv(n, 64),)](gate, up, out, n, BLOCK=64)
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        gate, up, n = gate.clone(), up.clone(), gate.numel()
        grad = grad.contiguous()
        swiglu_backward_kernel[(triton.cdiv(n, 64),)](grad, gate, up, n, BLOCK=64)
        return gate, up


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        rows, n = x.shape
        out = torch.empty_like(x)
        mean = torch.empty((rows,), dtype=torch.float32, device=x.device)
        rstd = torch.empty((rows,), dtype=torch.float32, device=x.device)
        block = triton.next_power_of_2(n)
        layer_norm_kernel[(rows,)](
            x, out, weight, bias, mean, rstd, x.stride(0), n, eps, BLOCK=block, num_warps=4
        )
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.block = block
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, mean, rstd = ctx.saved_tensors
        rows, n = x.shape
        dy = dy.contiguous()
        dx, dw, db = torch.empty_like(x), torch.zeros_like(weight), torch.zeros_like(weight)
        layer_norm_backward_kernel[(rows,)](
            dx, dy, dw, db, x, weight, mean, rstd, x.stride(0), n, BLOCK=ctx.block
        )
        return dx, dw, db, None


def swiglu_block(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return SwiGLU.apply(x @ w1, x @ w2).sin()


def layer_norm_block(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = LayerNorm.apply(x * 2, weight, bias, 1e-5)
    return F.gelu(y) + x


class ScaledSum(torch.autograd.Function):
    """Writes over what it is given, as Liger's cross entropy does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        _scale(x, 0.5)
        ctx.save_for_backward(x.detach())
        return x.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return _scale(x, 3.0) * grad


def scaled_sum(x: Tensor) -> Tensor:
    return ScaledSum.apply(x * 2)


def saved_then_written(x: Tensor) -> Tensor:
    """The backward of exp is given what the kernel has left, as in eager."""
    return _scale(x.exp(), 2.0)


def written_leaf(w: Tensor, x: Tensor) -> Tensor:
    return _scale(w, 2.0) * x


def checkpointed(x: Tensor, w1: Tensor, w2: Tensor) -> Any:
    return checkpoint(swiglu_block, x, w1, w2, use_reentrant=False)


def kernel_beside_autograd(x: Tensor, y: Tensor) -> Tensor:
    """What a kernel computes has no gradient."""
    return add(x.detach(), y) * x


class Program(NamedTuple):
    """A program and the shapes of its arguments."""

    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


PROGRAMS: dict[str, Program] = {}
for _fn, *_shapes in [
    (add, (300,), (300,)),
    (add_between, (7, 100), (7, 100)),
    (add_by_keywords, (300,), (300,)),
    (add_three_times, (300,), (300,)),
    (add_tuned, (300,), (300,)),
    (add_single, (300,), (300,)),
    (add_heuristic, (300,), (300,)),
    (scale_argument, (300,)),
    (scale_intermediate, (300,)),
    (scale_tuned, (300,)),
    (scale_row, (5, 16)),
    (scale_flat_view, (5, 16)),
    (scale_behind_a_view, (5, 16)),
    (read_behind_a_view, (5, 16)),
    (softmax, (9, 50)),
    (softmax_of_slice, (9, 20)),
    (matmul, (20, 33), (33, 17)),
    (matmul_between, (20, 33), (17, 33)),
    (total, (300,)),
    (nested, (300,)),
    (linear_both, (300,), (300,)),
    (cast, (300,)),
    (transposed, (20, 33)),
    (transposed_twice, (20, 33)),
    (block_pointers, (300,)),
    (pair, (300,)),
    (descriptors, (24, 32)),
    (wrapped, (300,), (300,)),
    (run_itself, (300,), (300,)),
    (scale_row_of_argument, (4, 8)),
    (add_rows, (4, 8)),
    (swap_doubled, (32,), (32,)),
    (accumulate, (32,), (32,)),
    (between_writes, (32,)),
    (same_launch_twice, (32,)),
    (alike_components, (32,), (32,), (32,)),
    (in_a_loop, (32,)),
    (views_of_written, (8,)),
    (read_views, (4, 16)),
    (other_constants, (50,)),
    (empty_grid, (50,)),
]:
    PROGRAMS[_fn.__name__] = Program(_fn, tuple(_shapes))

if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9):
    del PROGRAMS["block_pointers"]  # Triton has none any more

TRAINING = {
    "swiglu": Program(swiglu_block, ((6, 8), (8, 20), (8, 20))),
    "layer_norm": Program(layer_norm_block, ((6, 50), (50,), (50,))),
    "scaled_sum": Program(scaled_sum, ((32,),)),
    "saved_then_written": Program(saved_then_written, ((32,),)),
    "written_leaf": Program(written_leaf, ((32,), (32,))),
    "checkpointed": Program(checkpointed, ((6, 8), (8, 20), (8, 20))),
    "beside_autograd": Program(kernel_beside_autograd, ((300,), (300,))),
}


def draw(program: Program, device: str = "cpu", seed: int = 0) -> list[Tensor]:
    """Arguments of a program."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for shape in program.shapes:
        tensors.append(torch.randn(shape, generator=generator).to(device))
    return tensors
