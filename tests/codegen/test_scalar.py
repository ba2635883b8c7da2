"""Every scalar op that code generation claims, in every dtype, against NumPy, eager and wider
arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ingot.codegen.llvm.scalar import INTS, supported_ops
from ingot.loops import ops
from ingot.loops.ops import DIVISIONS, OPS
from tests.codegen.harness import flat, launch

COUNT = 4001
WIDE_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
SPECIAL = [
    0.0,
    -0.0,
    float("inf"),
    -float("inf"),
    float("nan"),
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    3.0,
    1e-40,
    -1e-40,
    1e-310,
]
SPECIAL += [
    3e38,
    -3e38,
    88.8,
    -88.8,
    -104.5,
    2.5,
    -2.5,
    1e5,
    -1e5,
    3e9,
    -7e12,
    1e30,
    8388609.0,
    -16777217.0,
]
SMOOTH = {
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma",
    "digamma", "sigmoid", "rsqrt", "sqrt",
    "pow", "atan2", "reciprocal",
}  # fmt: skip
EXTENDED = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}
EXTENDED |= {"atan2": "arctan2", "pow": "power"}


def arguments(dtype: torch.dtype, arity: int, seed: int) -> list[Tensor]:
    """Values of all magnitudes, and every pair of special ones."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return [torch.rand(COUNT, generator=generator) > 0.5 for _ in range(arity)]
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        edge = torch.tensor(
            [0, 1, 2, 3, info.min, info.max, info.max - 1, info.min + 1, 7], dtype=dtype
        )
        pairs = torch.cartesian_prod(edge, edge)
        low, high = max(info.min, -(2**40)), min(info.max, 2**40)
        parts = [
            torch.randint(low, high, (COUNT,), generator=generator).to(dtype) for _ in range(arity)
        ]
        small = [
            torch.randint(max(info.min, -9), 9, (COUNT,), generator=generator).to(dtype)
            for _ in range(arity)
        ]
        return [torch.cat([parts[k], small[k], pairs[:, k % 2]]) for k in range(arity)]
    special = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    pairs = torch.cartesian_prod(special, special)
    result = []
    for k in range(arity):
        normal = torch.randn(COUNT, generator=generator, dtype=torch.float64)
        spread = torch.exp(torch.rand(COUNT, generator=generator, dtype=torch.float64) * 100 - 50)
        values = torch.cat(
            [normal, normal * 30, 1 + normal * 1e-3, spread * normal.sign(), normal * 1e-4]
        )
        result.append(torch.cat([values.to(dtype), pairs[:, k % 2]]))
    return result


def computed(name: str, inputs: list[Tensor], result: torch.dtype) -> Tensor:
    count = inputs[0].numel()
    out = torch.empty(count, dtype=result)
    kernel = flat(count, [t.dtype for t in inputs], result, lambda *args: ops.apply(name, *args))
    assert launch(kernel, [*inputs, out], [(0, count)]) == 0
    return out


def eager(name: str, inputs: list[Tensor]) -> Tensor:
    function = getattr(torch, name, None) or getattr(torch.special, name)
    return function(*inputs)


def exact(name: str, inputs: list[Tensor]) -> np.ndarray:
    """The op in wider arithmetic: float64 for float32, 80 bits for float64."""
    if name in ("erf", "erfc", "erfinv", "lgamma", "digamma"):
        return eager(name, [t.double() for t in inputs]).numpy().astype(np.longdouble)
    wide = [t.numpy().astype(np.longdouble) for t in inputs]
    with np.errstate(all="ignore"):
        if name == "sigmoid":
            return 1 / (1 + np.exp(-wide[0]))
        if name == "rsqrt":
            return 1 / np.sqrt(wide[0])
        return getattr(np, EXTENDED.get(name, name))(*wide)


def units(actual: Tensor, reference: np.ndarray) -> np.ndarray:
    """Errors in units of the last place; 0 where the result is not finite or subnormal."""
    kind = actual.numpy().dtype
    with np.errstate(all="ignore"):
        rounded = reference.astype(kind)
        error = np.abs(actual.numpy().astype(np.longdouble) - reference) / np.spacing(
            np.abs(rounded)
        )
    ordinary = (
        np.isfinite(rounded)
        & (np.abs(rounded) >= np.finfo(kind).tiny)
        & np.isfinite(actual.numpy())
    )
    return np.where(ordinary, error, 0)


SMOOTH_CASES = [
    (n, d) for n in sorted(SMOOTH) for d in (torch.float32, torch.float64) if d in supported_ops[n]
]
OTHER_CASES = [
    (n, d) for n in sorted(set(supported_ops) - {"gelu"}) for d in sorted(supported_ops[n], key=str)
    if n not in SMOOTH or not d.is_floating_point
]  # fmt: skip


@pytest.mark.parametrize("name, dtype", SMOOTH_CASES, ids=str)
def test_accuracy(name: str, dtype: torch.dtype) -> None:
    """No further from the exact value than 2 ulp, or 1.1 times eager's error where that is more;
    infinities, NaN and the signs of zeros are eager's."""
    inputs = arguments(dtype, OPS[name].arity, seed=1)
    ours, theirs = computed(name, inputs, dtype), eager(name, inputs)
    reference = exact(name, inputs)
    assert units(ours, reference).max() <= max(2.0, 1.1 * units(theirs, reference).max())
    assert torch.equal(ours.isnan(), theirs.isnan())
    edge = ~theirs.isfinite() | (theirs == 0)
    # eager's own overflow is early, or its underflow
    if name in ("sinh", "cosh", "exp2", "pow", "lgamma"):
        with np.errstate(all="ignore"):
            edge &= torch.from_numpy(
                ~np.isfinite(reference.astype(theirs.numpy().dtype)) | (reference == 0)
            )
    edge &= ~theirs.isnan()
    assert torch.equal(ours[edge], theirs[edge])
    assert torch.equal(ours[edge].signbit(), theirs[edge].signbit())


def test_gelu() -> None:
    """As close to float64 as eager's in L2, and closer where x is negative and the result small;
    infinities and NaN as the formula x erfc(-x / sqrt(2)) / 2 has them, and the sign of zero."""
    x = torch.cat([arguments(torch.float32, 1, seed=3)[0], torch.linspace(-8, 8, 100_001)])
    ours, theirs = computed("gelu", [x], torch.float32), torch.nn.functional.gelu(x)
    reference = torch.special.ndtr(x.double()) * x.double()

    def error(result: Tensor, among: Tensor) -> float:
        return ((result.double() - reference)[among].norm() / reference[among].norm()).item()

    ordinary = x.isfinite() & (x.abs() < 1e3)
    assert error(ours, ordinary) <= 1.1 * error(theirs, ordinary) < 1e-7
    tail = (x > -5) & (x < -2)
    assert error(ours, tail) < 0.5 * error(theirs, tail)
    assert (ours.double() - reference)[ordinary].abs().max() < 5e-7 * 8
    assert torch.equal(ours.isnan(), x.isnan() | (x == -float("inf")))
    assert ours[x == float("inf")].isinf().all()
    assert torch.equal(ours[x == 0].signbit(), x[x == 0].signbit())


@pytest.mark.parametrize("name, dtype", OTHER_CASES, ids=str)
def test_exact(name: str, dtype: torch.dtype) -> None:
    """Arithmetic, comparisons, bits and rounding give NumPy's result, bit for bit."""
    row = OPS[name]
    inputs = arguments(dtype, row.arity, seed=2)
    if name == "where":
        inputs[0] = torch.rand(inputs[0].numel()) > 0.5
    if name in DIVISIONS and dtype in INTS:
        divisors = inputs[1].numpy()
        divisors[divisors == 0] = 5
    if name in ("shift_left", "shift_right"):
        inputs[1] = torch.from_numpy(np.abs(inputs[1].numpy()) % torch.iinfo(dtype).bits).to(dtype)
    result = torch.bool if row.result == "bool" else dtype
    ours = computed(name, inputs, result)
    with np.errstate(all="ignore"):
        reference = torch.from_numpy(np.asarray(row.reference(*map(array, inputs))))
    if name == "fma":  # NumPy's reference rounds twice
        torch.testing.assert_close(ours, reference, equal_nan=True)
        return
    of_floats = name in ("sign", "minimum", "maximum") and dtype.is_floating_point
    if of_floats or name in ("gcd", "pow") and dtype not in WIDE_UNSIGNED:
        reference = eager(name, inputs)
    np.testing.assert_array_equal(array(ours), array(reference.to(result)))


def array(t: Tensor) -> np.ndarray:
    """NumPy has no brain floats."""
    return (t.float() if t.dtype is torch.bfloat16 else t).numpy()


@pytest.mark.parametrize("name", ["shift_left", "shift_right"])
# eager does not shift those
@pytest.mark.parametrize("dtype", sorted(INTS - WIDE_UNSIGNED, key=str), ids=str)
def test_shifts_out_of_range(name: str, dtype: torch.dtype) -> None:
    bits = torch.iinfo(dtype).bits
    values = torch.tensor([1, 5, 100, torch.iinfo(dtype).min], dtype=dtype).repeat(4)
    amounts = torch.tensor([bits, bits + 1, 120, 0], dtype=dtype).repeat_interleave(4)
    expected = (
        torch.bitwise_left_shift(values, amounts)
        if name == "shift_left"
        else torch.bitwise_right_shift(values, amounts)
    )
    assert torch.equal(computed(name, [values, amounts], dtype), expected)


@pytest.mark.parametrize("name", sorted(DIVISIONS))
@pytest.mark.parametrize("dtype", sorted(INTS, key=str), ids=str)
def test_division_by_zero_is_reported(name: str, dtype: torch.dtype) -> None:
    """No trap: the kernel returns a status; lanes beyond the end do not count."""
    a, b, out = (
        torch.ones(19, dtype=dtype),
        torch.ones(19, dtype=dtype),
        torch.empty(19, dtype=dtype),
    )
    kernel = flat(19, [dtype, dtype], dtype, lambda x, y: ops.apply(name, x, y))
    assert launch(kernel, [a, b, out], [(0, 19)]) == 0
    b[17] = 0
    assert launch(kernel, [a, b, out], [(0, 19)]) == 1
    assert launch(kernel, [a, b, out], [(0, 17), (18, 19)]) == 0


CONVERTIBLE = sorted(ops.STORED, key=str)


@pytest.mark.parametrize("source", CONVERTIBLE, ids=str)
def test_conversions(source: torch.dtype) -> None:
    """Eager's conversions, for every pair of dtypes; floats that fit the integer."""
    for target in CONVERTIBLE:
        if source is torch.bool:
            values = torch.rand(600) > 0.5
        elif source.is_floating_point:
            values = torch.cat(
                [
                    torch.randn(300, dtype=torch.float64) * 50,
                    torch.tensor(SPECIAL, dtype=torch.float64),
                ]
            )
            values = torch.cat([values, torch.rand(300, dtype=torch.float64) * 1e-6]).to(source)
            if not target.is_floating_point and target is not torch.bool:
                values = torch.rand(300).mul(100).to(source)
        else:
            values = arguments(source, 1, seed=3)[0]
        out = torch.empty(values.numel(), dtype=target)
        kernel = flat(values.numel(), [source], target, lambda x, target=target: ops.to(x, target))
        assert launch(kernel, [values, out], [(0, values.numel())]) == 0
        if target in WIDE_UNSIGNED:
            assert torch.equal(out.view(torch.uint8), values.to(target).view(torch.uint8)), target
        else:
            torch.testing.assert_close(out, values.to(target), rtol=0, atol=0, equal_nan=True)


def test_table_agrees_with_the_op_table() -> None:
    assert set(supported_ops) <= set(OPS)
    for name, types in supported_ops.items():
        assert types <= OPS[name].types, name
    assert set(OPS) - set(supported_ops) == set()
