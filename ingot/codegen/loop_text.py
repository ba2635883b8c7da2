"""The words that the text of loop IR is written in (`loops/show.py`), and what they mean, in NumPy.

`function(text, names)` makes the text into a function of tensors. It is an oracle to read beside
the text: slow, and every loop nest runs at once, its indices being arrays over the grid.

| Word | Meaning |
|---|---|
| `array(tensor, dtype, sizes, strides)` | the flat memory of a tensor, which has this layout |
| `empty(dtype, sizes, strides)` | fresh memory for such a tensor |
| `t0[i]`, `t0[i] = x` | the element that lies `i` elements behind the first one |
| `t0.load(i, where=c)` | the same where `c` holds, else 0: nothing is read there |
| `t0.add(i, x)`, `mul`, `max`, `min` | the element becomes that of itself and `x` |
| `t0.view(sizes, strides, offset, dtype)` | a window on the memory, as a tensor |
| `for i, j in grid(4, 8):` | for each point; the last loops may be summed over |
| `float32(x)`, `int64(x)`, ... | a constant, an index or a value as one of that dtype |
| `lookup(x, n, error, where=c)` | `x` as an index below `n`, negative from the end; or the error |
| `sum(x, over=i)`, `argmax`, ... | a reduction over a loop, or a tuple of loops |
| `scan_sum(x, over=i)`, ... | what has been reduced up to each step of a loop |
| `product(a, b, over=i)` | the sum of `a * b` |
| `softmax(x, over=i)`, `logsumexp` | as in torch |
| `attention`, `attention_backward` | `codegen/reference_attention.py` |
| `library.name(...)`, `aten.name(...)` | a call on tensors |

All scalar ops of `loops/ops.py` are words too.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ingot.codegen import reference
from ingot.codegen.reference_attention import attention, attention_backward
from ingot.loops.ir import REDUCTIONS, SCANS
from ingot.loops.ops import HALVES, OPS, ScalarOp

Loops = np.ndarray | Sequence[np.ndarray]


def function(text: str, names: Mapping[str, Any]) -> Callable[..., list[Any]]:
    """The text of a loop graph as a function of its inputs, which gives the list of outputs.

    `names` are those that came with the text. Inputs that the graph writes are written. Raises what
    the graph does for indices out of range.
    """
    code = builtins.compile(text, "<loop graph>", "exec")

    def run(*inputs: Any) -> list[Any]:
        scope = {**_Run().words(), **names}
        exec(code, scope)
        with np.errstate(all="ignore"), torch.no_grad():
            outputs: list[Any] = scope["graph"](*inputs)
        return outputs

    return run


class _Array:
    """Memory: `flat` is a tensor over all of it."""

    def __init__(self, run: _Run, flat: torch.Tensor) -> None:
        self.run, self.flat = run, flat

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.load(index)

    def load(self, index: Any, where: Any = None) -> np.ndarray:
        index = np.asarray(index)
        if where is None:
            return reference.gather(self.flat, index)
        where, index = np.broadcast_arrays(where, index)
        if not where.any():
            return np.zeros(where.shape, reference.NUMPY[self.flat.dtype])
        elements = reference.gather(self.flat, np.where(where, index, 0))
        return np.where(where, elements, np.zeros((), elements.dtype))

    def __setitem__(self, index: Any, value: Any) -> None:
        reference.scatter(self.flat, index, value, "store")

    def combine(self, mode: str, index: Any, value: Any) -> None:
        """Once for each point, also where neither depends on some loop."""
        shape = self.run.shape
        reference.scatter(
            self.flat, np.broadcast_to(index, shape), np.broadcast_to(value, shape), mode
        )

    def add(self, index: Any, value: Any) -> None:
        self.combine("add", index, value)

    def mul(self, index: Any, value: Any) -> None:
        self.combine("mul", index, value)

    def max(self, index: Any, value: Any) -> None:
        self.combine("max", index, value)

    def min(self, index: Any, value: Any) -> None:
        self.combine("min", index, value)

    def view(
        self,
        sizes: Sequence[int],
        strides: Sequence[int],
        offset: int = 0,
        dtype: _Dtype | None = None,
    ) -> torch.Tensor:
        kind = self.flat.dtype if dtype is None else dtype.dtype
        return reference.window(self.flat, kind, sizes, strides, offset)


class _Run:
    """One run of a text: `loops` are those of the nest that runs, `shape` their extents."""

    def __init__(self) -> None:
        self.loops: list[np.ndarray] = []
        self.shape: tuple[int, ...] = ()

    def words(self) -> dict[str, Any]:
        words: dict[str, Any] = {
            "torch": torch,
            "aten": torch.ops.aten,
            "nan": math.nan,
            "inf": math.inf,
        }
        for name, dtype in vars(torch).items():
            if isinstance(dtype, torch.dtype):
                words[name] = _Dtype(dtype)
        for name, row in OPS.items():
            words[name] = _scalar_function(row)
        for kind in REDUCTIONS:
            words[kind] = self.reduction(kind)
        for kind in SCANS:
            words[f"scan_{kind}"] = self.scan(kind)
        words |= {"max": self.extreme(np.maximum, "max"), "min": self.extreme(np.minimum, "min")}
        words |= {"attention": attention, "attention_backward": attention_backward}
        for word in (self.array, self.empty, self.grid, self.product, self.softmax, self.logsumexp):
            words[word.__name__] = word
        words["lookup"] = lookup
        return words

    # -- memory ------------------------------------------------------------------------------------

    def array(
        self, tensor: Any, dtype: _Dtype, sizes: Sequence[int], strides: Sequence[int]
    ) -> _Array:
        """`tensor` may be the only one of a tuple, which a call gave."""
        if isinstance(tensor, (tuple, list)):
            (tensor,) = tensor
        assert tensor.dtype == dtype.dtype, f"{tensor.dtype} is not {dtype.dtype}"
        return _Array(self, reference.laid_out(tensor, sizes, strides))

    def empty(self, dtype: _Dtype, sizes: Sequence[int], strides: Sequence[int]) -> _Array:
        return _Array(self, reference.unset_storage(dtype.dtype, sizes, strides))

    # -- loops -------------------------------------------------------------------------------------

    def grid(self, *extents: int) -> Iterator[Any]:
        """Once: each loop's index is an array along its own axis."""
        self.shape, self.loops = extents, []
        for axis, extent in enumerate(extents):
            along = [1] * len(extents)
            along[axis] = -1
            self.loops.append(np.arange(extent).reshape(along))
        yield self.loops[0] if len(extents) == 1 else tuple(self.loops)

    def axes(self, over: Loops) -> tuple[int, ...]:
        """The axes of the grid that some of its loops are."""
        loops = [over] if isinstance(over, np.ndarray) else over
        axes = []
        for axis, loop in enumerate(self.loops):
            if builtins.any(loop is other for other in loops):
                axes.append(axis)
        return tuple(axes)

    def along(self, x: Any, axes: tuple[int, ...]) -> np.ndarray:
        """A value with all points of some axes, which are its last ones then."""
        x = np.asarray(x)
        shape = [1] * (len(self.shape) - x.ndim) + list(x.shape)
        for axis in axes:
            shape[axis] = self.shape[axis]
        return np.moveaxis(np.broadcast_to(x, shape), axes, range(-len(axes), 0))

    def reduction(self, kind: str) -> Callable[..., np.ndarray]:
        def reduce(x: Any, over: Loops) -> np.ndarray:
            axes = self.axes(over)
            result = reference.reduce_over(kind, self.along(x, axes), axes)
            return np.expand_dims(np.asarray(result), axes)

        return reduce

    def extreme(self, larger: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """`max` of two index expressions, or over loops."""
        reduce = self.reduction(kind)

        def extreme(*values: Any, over: Loops = ()) -> Any:
            if len(values) == 2:
                return larger(*values)
            return reduce(*values, over)

        return extreme

    def scan(self, kind: str) -> Callable[..., np.ndarray]:
        def scan(x: Any, over: np.ndarray) -> np.ndarray:
            (axis,) = axes = self.axes(over)
            return np.moveaxis(reference.scan_over(kind, self.along(x, axes)), -1, axis)

        return scan

    def product(self, a: Any, b: Any, over: Loops) -> np.ndarray:
        """In double, rounded at the end."""
        axes = self.axes(over)
        dtype, operands = np.asarray(a).dtype, list[Any]()
        for x in (a, b):
            x = np.asarray(x, np.float64)
            x = x.reshape((1,) * (len(self.shape) - x.ndim) + x.shape)
            varies = [axis for axis, extent in enumerate(x.shape) if extent != 1]
            operands += [x.squeeze(tuple(set(range(x.ndim)) - set(varies))), varies]
        varying = {*operands[1], *operands[3]}
        kept = sorted(varying - set(axes))
        result = np.einsum(*operands, kept, optimize=True)
        for axis in set(axes) - varying:
            result = result * self.shape[axis]
        shape = [self.shape[axis] if axis in kept else 1 for axis in range(len(self.shape))]
        return result.astype(dtype).reshape(shape)

    def softmax(self, x: Any, over: np.ndarray, zero_rows: bool = False) -> np.ndarray:
        """With `zero_rows`, zero where all along the loop is -inf."""
        (axis,) = self.axes(over)
        weights = np.exp(x - self.logsumexp(x, over))
        if zero_rows:
            nothing = np.all(x == -math.inf, axis=axis, keepdims=True)
            weights = np.where(nothing, np.zeros((), weights.dtype), weights)
        return weights

    def logsumexp(self, x: Any, over: np.ndarray) -> np.ndarray:
        axes = self.axes(over)
        wide = torch.from_numpy(np.ascontiguousarray(self.along(x, axes), np.float64))
        sums = wide.logsumexp(-1).numpy().astype(np.asarray(x).dtype)
        return np.expand_dims(sums, axes)


class _Dtype:
    """A dtype, which converts numbers and arrays to it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, value: Any) -> np.ndarray:
        array = np.array(value)
        if self.dtype in HALVES and array.dtype == np.float32:
            return reference.round_half(array, self.dtype)
        if isinstance(value, (bool, int, float)) or self.dtype in HALVES:
            held: np.ndarray = array.astype(reference.NUMPY[self.dtype])
            return held
        return torch.from_numpy(array).to(self.dtype).numpy()


def lookup(value: Any, extent: int, error: BaseException, where: Any = None) -> np.ndarray:
    """A value as an index below `extent`; 0 where `where` does not hold."""
    inside = (value >= -extent) & (value < extent)
    if where is not None:
        inside = inside | ~np.asarray(where)
    if not np.all(inside):
        raise error
    wrapped = np.where(value < 0, value + extent, value)
    return wrapped if where is None else np.where(where, wrapped, 0)


def _scalar_function(row: ScalarOp) -> Callable[..., np.ndarray]:
    def scalar(*args: Any) -> np.ndarray:
        result = np.asarray(row.reference(*args))
        if row.result == "bool":
            return result
        return result.astype(np.asarray(args[-1]).dtype, copy=False)

    scalar.__name__ = row.name
    return scalar
