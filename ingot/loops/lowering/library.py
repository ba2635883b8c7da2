"""Ops that a library computes: matmuls, and every op or form of an op that has no rule."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.errors import Unsupported
from ingot.loops.expr import ONE, ZERO, Expr, contiguous_strides, product
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.rules import NotLowered, lowers
from ingot.loops.lowering.values import Spec, TensorValue, dense_strides
from ingot.loops.lowering.views import reshape_map

aten = torch.ops.aten

# The plain bindings take out= and are quicker to call than an OpOverload.
_PLAIN: dict[Any, Callable[..., Any]] = {
    aten.bmm.default: torch.bmm,
    aten.mm.default: torch.mm,
    aten.addmm.default: torch.addmm,
    aten.baddbmm.default: torch.baddbmm,
    aten.mv.default: torch.mv,
    aten.cumsum.default: torch.cumsum,
}


def call_aten(
    lw: Lowering, func: Any, outs: Sequence[Spec | None], args: Sequence[Any], kwargs: dict[str, Any]
) -> list[Any]:
    """Call `func` as it is, through an out= variant where a real one exists."""
    if func._schema.is_mutable:
        raise Unsupported(f"{func} writes to its arguments", lw.origin.where)
    random = torch.Tag.nondeterministic_seeded in func.tags
    args, kwargs = _laid_out(lw, tuple(args)), _laid_out(lw, kwargs)
    spec = outs[0] if len(outs) == 1 else None
    if spec is not None and not random and _is_dense(spec):
        function = _PLAIN.get(func) or out_variant(func)
        if function is not None:
            return lw.call(function, outs, args, kwargs, out="out")
    return lw.call(func, outs, args, kwargs, random=random)


def _laid_out(lw: Lowering, tree: Any) -> Any:
    """`tree` with every tensor in it in the layout that was recorded: a kernel may rely on a copy before it having
    made its input contiguous, where a view of the original is all that the values need."""
    if isinstance(tree, TensorValue):
        return tree if not _is_dense(tree) or _same_strides(tree, lw.view(tree).strides) else lw.copied(tree)
    if isinstance(tree, dict):
        return {key: _laid_out(lw, item) for key, item in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(_laid_out(lw, item) for item in tree)
    return tree


def _is_dense(spec: Spec | TensorValue) -> bool:
    return _same_strides(spec, dense_strides(spec.sizes, spec.strides))


def _same_strides(spec: Spec | TensorValue, strides: Sequence[Expr]) -> bool:
    return all(a is b or size is ONE for size, a, b in zip(spec.sizes, spec.strides, strides))


@functools.cache
def out_variant(func: Any) -> Any:
    """The overload of the same op that writes to `out`, if it has a CPU kernel of its own; else None."""
    returns = func._schema.returns
    if len(returns) != 1 or str(returns[0].type) != "Tensor":
        return None
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    packet = func.overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        outputs = [a.name for a in candidate._schema.arguments if a.is_out]
        others = [(a.name, str(a.type)) for a in candidate._schema.arguments if not a.is_out]
        if outputs == ["out"] and others == wanted:
            has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(candidate.name(), "CPU")
            return candidate if has_kernel else None
    return None


# -- matmuls -----------------------------------------------------------------------------------------------------------

# oneDNN against the default BLAS for float32 x @ w.T (+ bias), by vendor of the CPU: the number of multiplications
# from which oneDNN is faster. Measured on an AMD EPYC, 2 cores, torch 2.13, us (MKL / oneDNN): 1x8x8 2 / 13, 4x64x64 4
# / 13, 4x512x512 45 / 30, 128x768x768 765 / 416, 128x3072x768 3389 / 1651, 8192x512x512 21346 / 11731, 128x50257x768
# 80935 / 24860; one row is a tie (1x768x768 33 / 34). It matters little which way the weight lies. Its error against
# float64 is 1.5 to 2.2 times MKL's, so it is chosen under numerics="fast" only.
ONEDNN_FROM: dict[str, int] = {"amd": 2**20}
TYPICAL_SIZE = 64


@functools.cache
def cpu_vendor() -> str:
    """ "amd", "intel" or "other"."""
    try:
        with open("/proc/cpuinfo") as file:
            text = file.read(4096)
    except OSError:
        text = platform.processor()
    if "AuthenticAMD" in text:
        return "amd"
    return "intel" if "GenuineIntel" in text else "other"


def onednn_is_faster(rows: Expr, columns: Expr, inner: Expr) -> bool:
    """Whether oneDNN should serve a float32 matmul of these sizes; a symbolic one counts as `TYPICAL_SIZE`."""
    least = ONEDNN_FROM.get(cpu_vendor())
    if least is None or not torch.backends.mkldnn.is_available() or rows is ONE:
        return False
    work = rows * columns * inner
    return work.evaluate(dict.fromkeys(work.symbols, TYPICAL_SIZE)) >= least


@lowers(aten.linear.default)
def linear(
    lw: Lowering, out: Spec, x: TensorValue, weight: TensorValue, bias: TensorValue | None = None
) -> TensorValue:
    """x @ weight.T + bias over the last dimension, with the weight as it is."""
    if len(weight.sizes) != 2 or ZERO in out.sizes or ZERO in x.sizes:
        raise NotLowered("a linear of vectors, or of nothing")
    rows, inner = product(x.sizes[:-1]), weight.sizes[1]
    flat = _flattened(lw, x, (rows, inner))
    sizes = (rows, weight.sizes[0])
    spec = Spec(sizes, contiguous_strides(sizes), out.dtype, out.device)
    result = _product(lw, spec, flat, weight, transposed(lw, weight), bias)
    return lw.mapped(result, out, reshape_map(out.sizes, sizes))


@lowers(aten.mm.default)
def mm(lw: Lowering, out: Spec, x: TensorValue, y: TensorValue) -> TensorValue:
    return _matrix_product(lw, out, x, y, None)


@lowers(aten.addmm.default)
def addmm(
    lw: Lowering, out: Spec, bias: TensorValue, x: TensorValue, y: TensorValue, *, beta: Any = 1, alpha: Any = 1
) -> TensorValue:
    if (beta, alpha) != (1, 1) or bias.sizes != (y.sizes[1],):
        raise NotLowered("a scaled product")
    return _matrix_product(lw, out, x, y, bias)


def _matrix_product(lw: Lowering, out: Spec, x: TensorValue, y: TensorValue, bias: TensorValue | None) -> TensorValue:
    if out.strides != contiguous_strides(out.sizes) or ZERO in (*x.sizes, *out.sizes):
        raise NotLowered("a product in another layout, or of nothing")
    return _product(lw, out, x, transposed(lw, y), y, bias)


def _product(
    lw: Lowering, out: Spec, x: TensorValue, weight: TensorValue, turned: TensorValue, bias: TensorValue | None
) -> TensorValue:
    """x @ weight.T + bias for matrices, `turned` being weight.T, by the library that is faster here."""
    (rows, inner), columns = x.sizes, weight.sizes[0]
    plain = out.dtype is torch.float32 and out.device.type == "cpu"
    if lw.fast_libraries and plain and onednn_is_faster(rows, columns, inner) and lw.view(x).strides[1] is ONE:
        function = torch.ops.mkldnn._linear_pointwise.default
        (result,) = lw.call(function, [out], [x, weight, bias, "none", [], ""])
    elif bias is None:
        (result,) = lw.call(torch.mm, [out], [x, turned], out="out")
    else:
        (result,) = lw.call(torch.addmm, [out], [bias, x, turned], out="out")
    assert result is not None
    return result


def _flattened(lw: Lowering, x: TensorValue, sizes: tuple[Expr, Expr]) -> TensorValue:
    spec = Spec(sizes, contiguous_strides(sizes), x.dtype, torch.device("cpu"))
    return lw.mapped(x, spec, reshape_map(sizes, x.sizes))


def transposed(lw: Lowering, x: TensorValue) -> TensorValue:
    spec = Spec(x.sizes[::-1], x.strides[::-1], x.dtype, torch.device("cpu"))
    return lw.mapped(x, spec, lambda index: index[::-1])
