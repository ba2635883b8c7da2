"""Triton kernels as users write them."""

from __future__ import annotations

# ruff: noqa: E731  (users write grids as lambdas)
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

# -- kernels ---------------------------------------------------------------------------------------


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@triton.jit
def multiply_kernel(x_ptr, y_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * tl.load(y_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def scale_in_place_kernel(x_ptr, scale, n, BLOCK: tl.constexpr = 64):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(x_ptr + offsets, x * scale, mask=offsets < n)


@triton.jit
def softmax_kernel(out_ptr, x_ptr, x_stride, out_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * x_stride + offsets, mask=mask, other=-float("inf"))
    x = x - tl.max(x, axis=0)
    power = tl.exp(x)
    tl.store(out_ptr + row * out_stride + offsets, power / tl.sum(power, axis=0), mask=mask)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K: tl.constexpr,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * stride_am + ks[None, :] * stride_ak
    b_ptrs = b_ptr + ks[:, None] * stride_bk + columns[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        rest = K - k
        a = tl.load(a_ptrs, mask=(rows[:, None] < M) & (ks[None, :] < rest), other=0.0)
        b = tl.load(b_ptrs, mask=(ks[:, None] < rest) & (columns[None, :] < N), other=0.0)
        total += tl.dot(a, b, input_precision="ieee")
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ACTIVATION == "leaky_relu":
        total = leaky_relu(total)
    c_ptrs = c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), (rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


def _time_once(kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
    kernel_call()
    return [1.0, 1.0, 1.0]


def tuned(**options: Any) -> Any:
    """triton.autotune whose configurations are timed without a GPU."""
    return triton.autotune(do_bench=_time_once, **options)


tuned_add_kernel = tuned(
    configs=[triton.Config({"BLOCK_SIZE": 64}, num_warps=2), triton.Config({"BLOCK_SIZE": 128})],
    key=["n_elements"],
)(add_kernel)

single_add_kernel = tuned(configs=[triton.Config({"BLOCK_SIZE": 32})], key=[])(add_kernel)

tuned_scale_kernel = tuned(
    configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 32})],
    key=["n"],
    restore_value=["x_ptr"],
)(scale_in_place_kernel)

heuristic_add_kernel = triton.heuristics(
    {"BLOCK_SIZE": lambda args: min(256, triton.next_power_of_2(args["n_elements"]))}
)(add_kernel)


def _zero_out(arguments: dict[str, Any]) -> None:
    arguments["out_ptr"].zero_()


@tuned(
    configs=[triton.Config({"BLOCK": 32}, pre_hook=_zero_out), triton.Config({"BLOCK": 64})],
    key=["n"],
    reset_to_zero=["out_ptr"],
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def total_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        x = tl.load(x_ptr + offsets)
    else:
        x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(x, axis=0))


@triton.jit
def histogram_kernel(index_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    index = tl.load(index_ptr + offsets, mask=mask, other=0)
    tl.atomic_add(counts_ptr + index, 1, mask=mask)


@triton.jit
def _shifted(ptr, offset):
    return ptr + offset


@triton.jit
def _store_both(first_ptr, second_ptr, x, mask):
    tl.store(first_ptr, x, mask=mask)
    tl.store(second_ptr, -x, mask=mask)


@triton.jit
def nested_kernel(x_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(_shifted(x_ptr, offsets), mask=offsets < n)
    _store_both(_shifted(a_ptr, offsets), second_ptr=b_ptr + offsets, x=x, mask=offsets < n)


@triton.jit
def linear_kernel(x_ptr, bias_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, x, mask=offsets < n)


@triton.jit
def cast_kernel(x_ptr, out_ptr, n, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, x.to(DTYPE).to(tl.float32) * 2, mask=offsets < n)


@triton.jit
def transpose_kernel(x_ptr, out_ptr, rows, columns, sx0, sx1, so0, so1, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (i < rows) & (j < columns)
    x = tl.load(x_ptr + i * sx0 + j * sx1, mask=mask)
    tl.store(out_ptr + j * so0 + i * so1, x, mask=mask)


@triton.jit
def block_pointer_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK
    source = tl.make_block_ptr(x_ptr, (n,), (1,), (first,), (BLOCK,), (0,))
    target = tl.make_block_ptr(
        base=out_ptr, shape=(n,), strides=(1,), offsets=(0,), block_shape=(BLOCK,), order=(0,)
    )
    target = tl.advance(target, (first,))
    tl.store(target, tl.load(source, boundary_check=(0,)) + 1, boundary_check=(0,))


@triton.jit
def descriptor_kernel(source, target, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    place = [tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N]
    target.store(place, source.load(place) * 2)


@triton.jit
def pair_kernel(pointers, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(pointers[0] + offsets, mask=offsets < n)
    tl.store(pointers[1] + offsets, x * 3, mask=offsets < n)


@triton.jit
def swiglu_kernel(gate_ptr, up_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + offsets, mask=offsets < n).to(tl.float32)
    up = tl.load(up_ptr + offsets, mask=offsets < n)
    silu = (gate / (1 + tl.exp(-gate))).to(up.dtype)
    tl.store(out_ptr + offsets, silu * up, mask=offsets < n)


@triton.jit
def swiglu_backward_kernel(grad_ptr, gate_ptr, up_ptr, n, BLOCK: tl.constexpr):
    """Writes the gradients over gate and up, as Liger's kernel does."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    grad = tl.load(grad_ptr + offsets, mask=mask)
    gate = tl.load(gate_ptr + offsets, mask=mask)
    up = tl.load(up_ptr + offsets, mask=mask)
    sigmoid = 1 / (1 + tl.exp(-gate))
    tl.store(up_ptr + offsets, grad * gate * sigmoid, mask=mask)
    tl.store(gate_ptr + offsets, grad * up * sigmoid * (1 + gate * (1 - sigmoid)), mask=mask)


@triton.jit
def layer_norm_kernel(
    x_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, stride, n, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    x = tl.load(x_ptr + row * stride + columns, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n
    centered = tl.where(mask, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centered * centered, axis=0) / n + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    w = tl.load(w_ptr + columns, mask=mask)
    b = tl.load(b_ptr + columns, mask=mask)
    tl.store(out_ptr + row * stride + columns, centered * rstd * w + b, mask=mask)


@triton.jit
def layer_norm_backward_kernel(
    dx_ptr, dy_ptr, dw_ptr, db_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, stride, n, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    x = tl.load(x_ptr + row * stride + columns, mask=mask, other=0.0)
    dy = tl.load(dy_ptr + row * stride + columns, mask=mask, other=0.0)
    w = tl.load(w_ptr + columns, mask=mask, other=0.0)
    mean, rstd = tl.load(mean_ptr + row), tl.load(rstd_ptr + row)
    x_hat = tl.where(mask, (x - mean) * rstd, 0.0)
    w_dy = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(x_hat * w_dy, axis=0) / n
    c2 = tl.sum(w_dy, axis=0) / n
    tl.store(dx_ptr + row * stride + columns, (w_dy - (x_hat * c1 + c2)) * rstd, mask=mask)
    tl.atomic_add(dw_ptr + columns, dy * x_hat, mask=mask)
    tl.atomic_add(db_ptr + columns, dy, mask=mask)


@triton.jit
def by_address_kernel(table, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    pointer = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + offsets, tl.load(pointer + offsets, mask=offsets < n), mask=offsets < n)


@triton.jit
def printing_kernel(x_ptr, BLOCK: tl.constexpr):
    tl.device_print("seen", tl.load(x_ptr + tl.arange(0, BLOCK)))
