"""Python numbers that are read from tensors, or that vary from call to call: inputs of what
follows, exact in type and value; what needs their value is asked as little as it can be."""

from __future__ import annotations

import math
import operator
import re
import time
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from tests.capture.language import Table
from tests.oracle import assert_near
from tests.tracked import Tracked

pytestmark = pytest.mark.usefixtures("without_gradients")
TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken

COUNTS = torch.arange(12).reshape(3, 4)
SEEN: list[Any] = []


class Holder:
    scale: Any = 1.0
    last: Any = None


HOLDER = Holder()


# -- numbers read from tensors ---------------------------------------------------------------------


@whole
def operations_on_numbers_alone(x: Tensor, y: Tensor) -> Any:
    parts = (
        torch.div(x.shape[0], 2, rounding_mode="trunc"),
        torch.mul(2.5, x.dim()),
        torch.add(True, 3),
    )
    return parts, x * torch.div(x.shape[-1], 2), y + 1


@whole
def scaled_by_a_sum(x: Tensor, y: Tensor) -> Any:
    return x * y.sum().item(), x / float(y.abs().max()), y.mean().item() - x


@whole
def every_operator(x: Tensor, y: Tensor) -> Any:
    s, n = y[0, 1].item(), int(COUNTS[2, 1])
    results = []
    for number in (s, n):
        results += [
            x + number,
            number + x,
            x - number,
            number - x,
            x * number,
            number * x,
            x / number,
            number / x,
        ]
        results += [x < number, number < x, x >= number, x == number, x != number, number <= x]
        results += [
            x.add(number),
            x.sub(number),
            x.mul(number),
            x.div(number),
            torch.add(x, number),
            x.gt(number),
        ]
        results += [
            torch.mul(x, number),
            torch.sub(number, x),
            torch.true_divide(x, number),
            torch.eq(x, number),
        ]
    return results


@whole
def in_place(x: Tensor, y: Tensor) -> Any:
    s = y.sum().item()
    z = x * 1
    z += s
    z *= s
    z -= 3
    z /= s
    z.add_(s).mul_(s)
    s *= 2
    s += 1
    return z, s


@whole
def types_of_results(x: Tensor, y: Tensor) -> Any:
    s, n = y[0, 0].item(), COUNTS[1, 2].item()
    tensors = [
        x.double(),
        x.half(),
        x.bfloat16(),
        x[0, 0],
        x[0, 0].half(),
        x[0, 0].double(),
        COUNTS,
        COUNTS[0, 1],
        x > 0,
    ]
    floats = (
        [t * s for t in tensors]
        + [t - s for t in tensors[:-1]]
        + [s / t for t in tensors[:-2]]
        + [t > s for t in tensors]
    )
    return (
        floats,
        [t * n for t in tensors],
        [t + n for t in tensors],
        [t / n for t in tensors[:-1]],
        COUNTS.int() * s,
    )


@whole
def arithmetic_of_numbers(x: Tensor, y: Tensor) -> Any:
    s, t = x[0, 0].item(), x[0, 1].item()
    return (
        s + t,
        s * t - 2,
        -s,
        abs(t),
        s / 3,
        1 - s,
        s + 7,
        s * 0.1,
        sum([s * 1.0]),
        x * (s * t + 1),
        float(s),
        +(s + 0),
    )


@whole
def read_before_a_write(x: Tensor, y: Tensor) -> Any:
    a = x * 1
    first, count = a[0, 0].item(), COUNTS.sum().item()
    a.add_(5)
    return first, a[0, 0].item(), a * first, count, isinstance(first, float), type(count)


@whole
def numbers_kept_outside(x: Tensor, y: Tensor) -> Any:
    SEEN.clear()
    SEEN.append(x.sum().item())
    HOLDER.last = {"loss": y.sum().item(), "step": int(COUNTS[0, 3])}
    return x + SEEN[0], len(SEEN)


@broken("a branch on")
def truth_of_a_number(x: Tensor, y: Tensor) -> Any:
    return (x if COUNTS[0, 0].item() else y), not x.sum().item(), (y.sum().item() or 3) * x


@broken("the value of the number")
def as_a_size(x: Tensor, y: Tensor) -> Any:
    n = int(COUNTS[0, 2])
    return x[:n] * n, torch.zeros(n), range(n), n // 2, n % 2


@broken("operator /")
def division_by_a_number(x: Tensor, y: Tensor) -> Any:
    s = x.sum().item()
    try:
        return 1 / s, s / (s - s)
    except ZeroDivisionError as error:
        return x, str(error)


@broken("operator **")
def powers(x: Tensor, y: Tensor) -> Any:
    s = y[0, 0].item()
    return x.abs() ** s, abs(s) ** 0.5, s // 0.3, s % 0.3, x * s


@broken("sleep()")
def number_across_a_break(x: Tensor, y: Tensor) -> Any:
    s = y.sum().item()
    z = x * s
    time.sleep(0)
    return z + s, s


@whole
def number_in_text(x: Tensor, y: Tensor) -> Any:
    s, n = y.sum().item(), COUNTS.sum().item()
    return f"{s:.3f} {n}", x * s


@whole
def the_larger_and_the_smaller_of_numbers(x: Tensor, y: Tensor) -> Any:
    s, n, nan = y.abs().max().item(), int(COUNTS[2, 1]), float("nan")
    found = (
        max(s, 1.0),
        max(s, 1e-3),
        min(2.0, s, x.sum().item()),
        max([s]),
        min(n, 3),
        max(4, n),
        max(n, 1 << 40),
    )
    return [
        x * number for number in (*found, max(nan, s), max(s, nan), min(s, nan), max(s, s * 2, 0.5))
    ]


@broken("a branch on the number")
def the_larger_of_numbers_of_two_types(x: Tensor, y: Tensor) -> Any:
    return x * max(y.abs().max().item(), 1)


@broken("")
def number_as_another_argument(x: Tensor, y: Tensor) -> Any:
    s = y.abs().max().item()
    return torch.nn.functional.elu(x, s), x.half().add(y.half(), alpha=s), torch.linspace(0, s, 3)


@whole
def number_in_the_place_of_a_tensor(x: Tensor, y: Tensor) -> Any:
    s = y.abs().max().item()
    z = x.clone()
    z[:, 1] = s
    z[x > 0] = -s
    filled = (
        torch.full((2,), s),
        torch.full_like(x, s, dtype=torch.half),
        x.new_full((3, 1), s),
        z,
        z.clone().fill_(s),
    )
    chosen = (
        torch.where(x > 0, x, s),
        torch.where(x > 0, s, 1),
        torch.where(x > 0, COUNTS[:1, :1], s),
    )
    held = (
        x.clamp(max=s),
        torch.clamp(x, -s, 0.5),
        x.half().clip(min=s),
        x.clamp_min(s),
        (x + 1).clamp_(0, s),
    )
    return (
        filled,
        chosen,
        held,
        x % s,
        x // s,
        torch.fmod(x, s),
        torch.div(x, s, rounding_mode="trunc"),
    )


@whole
def number_that_requires_a_gradient(x: Tensor, y: Tensor) -> Any:
    weight = x.clone().requires_grad_() if False else x
    return weight.sum().item() * y


test_program = TABLE.test()


# -- floats that vary ------------------------------------------------------------------------------

X = torch.linspace(-2, 2, 12).reshape(3, 4)


@pytest.mark.parametrize(
    ("settings", "second"), [({}, 0), ({"dynamic": False}, 1), ({"backend": "eager"}, 1)]
)
def test_a_float_that_varies_is_compiled_once_or_twice(
    settings: dict[str, Any], second: int
) -> None:
    tracked = Tracked(lambda x, s: (x * s + s * 2, s / x, x.half() - s, s), **settings)
    values = [0.5, 0.25, -3.0, 0.0, -0.0, float("inf"), float("nan"), 1e300]
    assert [tracked(X, value) for value in values] == [1, second, 0, 0, 0, 0, 0, 0]
    assert tracked(X, 0.5) == 0


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_float_within_a_mode(mode: Any) -> None:
    tracked = Tracked(mode()(lambda x, s, t: x.sin().mul_(s).add_(t)))
    assert [tracked(X, s, s + t) for s, t in ((0.5, 0.0), (0.25, 1.0), (-2.0, 0.0))] == [1, 0, 0]
    assert tracked.skips == []


def test_floats_that_are_equal_beside_what_is_written() -> None:
    tracked = Tracked(lambda x, s, t: x.mul_(s).add_(t) * s)
    pairs = ((0.5, 0.5), (0.25, 0.75), (3.0, 3.0), (0.0, 0.0), (-0.0, 0.0))
    assert [tracked(X.clone(), *pair) for pair in pairs] == [1, 0, 0, 0, 0]


def test_floats_in_containers_and_attributes() -> None:
    tracked = Tracked(lambda x, given: x * given["by"][0] + given["more"])
    assert [tracked(X, {"by": (s,), "more": s + 1}) for s in (0.5, 0.25, 3.0)] == [1, 0, 0]
    compiled = ingot.compile(lambda x, held: x * held.scale)
    for scale in (0.5, 0.25, 3.0):
        holder = Holder()
        holder.scale = scale
        assert torch.equal(compiled(X, holder), X * scale)
    assert len(Compiler.of(compiled).compilations) == 2


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_comparison_is_guarded_by_its_outcome(fullgraph: bool) -> None:
    tracked = Tracked(lambda x, s: x * s if s > 1 else x - s, fullgraph=fullgraph)
    assert [tracked(X, s) for s in (0.5, 0.25, 3.0, 7.0, 0.75, 1.0, 2.0)] == [1, 0, 1, 0, 0, 0, 0]
    tracked = Tracked(lambda x, s: x + 1 if s else x, fullgraph=fullgraph)
    assert [tracked(X, s) for s in (0.5, 0.25, 3.0, 0.0, -0.0, 9.0)] == [1, 0, 0, 1, 0, 0]


def set_elements(x: Tensor, s: float) -> Any:
    x[:, 1], x[x > 1] = s, -s
    return x * 2


REFUSED: list[Any] = [
    lambda x, s: x.clone().fill_(s),
    lambda x, s: torch.full_like(x, s),
    lambda x, s: x.new_full((2,), s),
    lambda x, s: x.masked_fill(x > 0, s),
    lambda x, s: x.clamp(max=s),
    lambda x, s: x.clamp_min(-s),
    lambda x, s: torch.where(x > 0, x, s),
    lambda x, s: torch.add(x, x, alpha=s),
    lambda x, s: torch.addcmul(x, x, x, value=s),
    lambda x, s: torch.lerp(x, x, s),
    lambda x, s: x**s,
    set_elements,
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("program", REFUSED)
def test_floats_that_a_type_cannot_hold(program: Any, dtype: torch.dtype) -> None:
    """Eager refuses most of them, and so does what is compiled."""
    x, largest = X.to(dtype), torch.finfo(dtype).max
    tracked = Tracked(program)
    tracked(x.clone(), 0.5), tracked(x.clone(), largest)
    for s in (-4 * largest, 1e300):
        try:
            program(x.clone(), s)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error).splitlines()[0])):
                tracked.compiled(x.clone(), s)
        else:
            tracked(x.clone(), s)
    assert tracked(x.clone(), 0.5) == 0
    tracked(x.clone(), math.inf)


def test_what_needs_the_value_compiles_for_it() -> None:
    tracked = Tracked(
        lambda x, s: (torch.nn.functional.threshold(x, s, 0.0), x * s), fullgraph=True
    )
    assert [tracked(X, s) for s in (0.5, 0.25, 3.0, 0.5, 3.0)] == [1, 1, 1, 0, 0]


IN_PLACE_OF_TENSORS: list[Any] = [
    lambda x, s: (
        x.clamp(1 - s, 1 + s) * 2,
        torch.clamp(x, max=s),
        torch.clip(input=x, min=s, max=None),
    ),
    lambda x, s: (x.double().clamp(-1, s), x.half().clamp(s, 0.5), x[0, 0].clamp(s, 0.5)),
    lambda x, s: (x.clamp_min(s) + x.clamp_max(s), (x + 1).clamp_(min=-s)),
    lambda x, s: (
        torch.full((2, 1), s),
        torch.full_like(x, s),
        x.new_full((1,), s),
        torch.scalar_tensor(s),
    ),
    lambda x, s: (
        torch.where(x > 0, s, x),
        torch.where(x > 0, COUNTS, s),
        torch.where(x > 0, -s, 1),
    ),
    lambda x, s: (x.masked_fill(x > 0, s), x.clone().fill_(s), x.clone().masked_fill_(x > 0, s)),
    lambda x, s: (x % s, x // s, torch.fmod(x, s), s % x, torch.div(x, s, rounding_mode="floor")),
    lambda x, s: s**x,
    set_elements,
]


@pytest.mark.parametrize("program", IN_PLACE_OF_TENSORS)
def test_numbers_that_vary_in_place_of_tensors(program: Any) -> None:
    tracked = Tracked(program, fullgraph=True)
    values = [0.5, 0.25, -0.0, 3.0, -1.5, float("inf"), 1e-40, 5e-324]
    # torch 2.11 overlooks such a bound: docs/limits.md
    if torch.ones(1).clamp(max=float("nan")).isnan():
        values.append(float("nan"))
    assert [tracked(X.clone(), s) for s in values] == [1] + [0] * (len(values) - 1)


def test_exponents_that_vary() -> None:
    tracked = Tracked(lambda x, s: (x**s, torch.pow(x.double(), s)), fullgraph=True)
    # Square roots and whole powers are eager's own.
    assert [tracked(X, s) for s in (0.3, 1.5, -2.5, 2.0, 0.5, 2.7, -1.0, 2.0)] == [
        1,
        0,
        0,
        1,
        1,
        0,
        1,
        0,
    ]


def test_gradients_between_bounds_that_vary() -> None:
    def loss(x: Tensor, s: float) -> Any:
        held = x.clamp(1 - s, 1 + s)
        return held, torch.autograd.grad((held * torch.where(x > s, s, x)).sum(), x)[0]

    compiled = ingot.compile(loss)
    for s in (0.5, 0.25, -0.25, 1.0, float("nan")):
        with torch.enable_grad():
            x = X.clone().requires_grad_()
            torch.testing.assert_close(compiled(x, s), loss(x, s), equal_nan=True)
    assert len(Compiler.of(compiled).compilations) == 1


AT_BOUNDS: list[Any] = [
    lambda x, s: x.clamp(s, 2 * s),
    lambda x, s: torch.clamp(x, s),
    lambda x, s: torch.clamp(x, max=s),
    lambda x, s: torch.clip(x, -s, s),
    lambda x, s: x.clamp(s, s),
    lambda x, s: x.clamp(2 * s, s),
    lambda x, s: x.clamp(0.5, s),
    lambda x, s: x.clamp(-1, s),
    lambda x, s: x.clamp_min(s),
    lambda x, s: torch.clamp_max(x, s),
    lambda x, s: x.sin().clamp_(s / 2, s) + x.mul(1).clamp_(-s, s),
    lambda x, s: x.mul(1).clamp_min_(s),
    lambda x, s: (x + 2).clip_(s, 2),
    lambda x, s: x.half().clamp(s, 2 * s),
    lambda x, s: x.double().clamp(s, 2 * s),
    lambda x, s: x.clamp((x.detach().max() * 0 + s).item(), 2.0),
    lambda x, s: x.clamp(max=x[-2].item()),
    lambda x, s: torch.clamp(x, torch.tensor(s), torch.tensor(2 * s)),
    lambda x, s: torch.maximum(x, torch.tensor(s)),
    lambda x, s: x.clamp(1.0, 2.0) + s,
    lambda x, s: torch.nn.functional.elu(x, s),
    lambda x, s: torch.nn.functional.leaky_relu(x, s),
    lambda x, s: torch.nn.functional.hardtanh(x, -1.5, s),
    lambda x, s: torch.nn.functional.relu6(x) * s,
    lambda x, s: torch.nn.functional.softplus(x, s, 1.0),
    lambda x, s: torch.nn.functional.softshrink(x, s),
    lambda x, s: torch.nn.functional.hardshrink(x, s),
    lambda x, s: torch.nn.functional.threshold(x, s, 3.0),
    lambda x, s: torch.nn.functional.smooth_l1_loss(x, torch.zeros_like(x), beta=s),
    lambda x, s: torch.nn.functional.huber_loss(x, torch.zeros_like(x), delta=s),
]


@pytest.mark.parametrize("program", AT_BOUNDS)
def test_gradients_at_bounds_that_vary(program: Any) -> None:
    """Eager's for an element that is equal to a bound, which depends on the torch and on what the
    bound is."""

    def gradients(x: Tensor, s: float) -> Any:
        held = program(x, s)
        return held, torch.autograd.grad((held * 3).sum(), x)[0]

    compiled = ingot.compile(gradients)
    for s in (0.5, 1.0, 2.0, 0.25):
        with torch.enable_grad():
            near = torch.tensor(
                [-s, -0.0, 0.0, s, s / 2, 2 * s, 1.0, 2.0, 6.0, math.nan, -math.inf, math.inf]
            )
            x = near.requires_grad_()
            torch.testing.assert_close(compiled(x, s), gradients(x, s), equal_nan=True)


OF_PYTHON: list[Any] = [
    lambda x, s: (x * math.sqrt(s), math.exp(s), math.pow(s, 2.5), math.atan2(1.0, s)),
    lambda x, s: (x * s**2.5, 2.0**s, s % 0.3, s // 0.3, 1 / s, 3 - s, abs(-s), round(s, 2)),
    lambda x, s: (x + math.sqrt(s * 2 + 1), (s * 2).is_integer(), math.isnan(s / 3)),
    lambda x, s: x * 2 if 0.01 < s * 0.5 <= 10 else x,
    lambda x, s: (x * max(s, 0.01), min(7.0, s), max([0.1, s])),
    lambda x, s: ((s + 1.0 + s) * x, -(s - 1), 2 * (s + 1), [s, s]),
]


def test_methods_of_a_float_that_varies() -> None:
    def program(x: Any, s: float) -> Any:
        return x * s.conjugate(), s.hex(), s.as_integer_ratio()

    compiled = ingot.compile(program, fullgraph=True)
    for s in (0.3, 1.75, -2.0):
        assert_near(compiled(X, s), program(X, s))


@pytest.mark.parametrize("program", OF_PYTHON)
def test_what_python_computes_of_a_float_that_varies(program: Any) -> None:
    tracked = Tracked(program, fullgraph=True)
    assert [tracked(X, s) for s in (0.3, 1.7, 2.2, 0.9, 3.1, 0.15)] == [1, 0, 0, 0, 0, 0]


def test_an_integer_that_is_made_of_a_float() -> None:
    tracked = Tracked(lambda x, s: (x[: int(s * 3)] * 2, round(s), math.floor(s)), fullgraph=True)
    assert sum(tracked(X, s) for s in (0.4, 0.45, 0.7, 0.72, 0.9, 0.35, 0.8, 0.5)) <= 5
    tracked = Tracked(lambda x, s: x * int(s), fullgraph=True)
    assert [tracked(X, s) for s in (0.5, 0.25, 0.75, 3.5, 7.25, 9.5)] == [1, 0, 0, 1, 0, 0]


ERRORS: list[tuple[Any, float]] = [
    (lambda x, s: x * math.log(s), 0.0),
    (lambda x, s: (x * 2, 1 / s)[0], 0.0),
    (lambda x, s: (x * 2, math.exp(s))[0], 1e5),
    (lambda x, s: x * int(s), float("inf")),
]


@pytest.mark.parametrize(("program", "number"), ERRORS)
def test_errors_of_python_about_a_float_that_varies(program: Any, number: float) -> None:
    tracked = Tracked(program)
    for s in (0.5, 0.25, 0.75):
        tracked(X, s)
    with pytest.raises((ArithmeticError, ValueError)) as expected:
        program(X, number)
    for _ in range(2):
        with pytest.raises(type(expected.value), match=str(expected.value)):
            tracked.compiled(X, number)
    assert tracked(X, 0.375) == 0


def test_the_real_part_of_a_complex_number() -> None:
    tracked = Tracked(lambda x, s: (x * complex(s, 1), x * complex(imag=s, real=2), complex(s) * x))
    assert [tracked(X, s) for s in (0.5, 0.25, -3.0, 0.5)] == [1, 1, 1, 0]


def test_an_int_in_place_of_the_float() -> None:
    tracked = Tracked(lambda x, s: x * s)
    assert [tracked(X, s) for s in (0.5, 0.25, 2, 0.75, True)] == [1, 0, 1, 0, 1]


def test_attributes_globals_and_items_that_vary() -> None:
    holder = Holder()
    tracked = Tracked(lambda x, pair: x * holder.scale + pair[1])
    counts = []
    for value in (0.5, 0.25, 3.5, 4.5):
        holder.scale = value
        counts.append(tracked(X, (1, value * 2)))
    assert counts == [1, 1, 0, 0]


def test_a_state_that_decays() -> None:
    def make() -> Any:
        holder = Holder()
        holder.scale = 1.0

        def fn(x: Tensor) -> Any:
            holder.scale = holder.scale * 0.9
            return x * holder.scale

        return fn, holder

    fn, holder = make()
    eager, eager_holder = make()
    compiled = ingot.compile(fn)
    for _ in range(5):
        assert_near(compiled(X), eager(X))
        assert holder.scale == eager_holder.scale and type(holder.scale) is float
    assert len(Compiler.of(compiled).compilations) == 2


@pytest.mark.parametrize("backend", ["eager", "ingot"])
def test_a_number_read_from_a_tensor_is_an_input_of_what_follows(backend: str) -> None:
    def fn(x: Tensor) -> Any:
        largest = x.max().item()
        if largest > 1:
            return x / largest, largest
        return x * largest, largest

    tracked = Tracked(fn, backend=backend)
    counts = [tracked(X * scale) for scale in (1.0, 1.5, 1.25, 2.0, 0.25, 0.125, 0.375, 0.2, 3.0)]
    assert counts[3:4] == [0] and counts[6:] == [0, 0, 0]
    assert tracked.skips == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "lt", "eq"])
def test_a_tensor_of_rank_0_computes_as_the_number_does(dtype: torch.dtype, name: str) -> None:
    """What capture relies on, bit for bit: in eager, and in compiled code."""
    function, generator = getattr(operator, name), torch.Generator().manual_seed(0)
    compiled = ingot.compile(lambda t, s: function(t, s.item()), fullgraph=True)
    for _ in range(10):
        values = torch.randn(1000, generator=generator).to(dtype)
        number = torch.randn((), generator=generator, dtype=torch.float64)
        expected = function(values, number.item())
        assert torch.equal(function(values, number), expected)
        assert torch.equal(compiled(values, number), expected)


@pytest.mark.parametrize("backend", ["eager", "ingot"])
def test_a_float_that_a_broken_instruction_gives_is_an_input_at_once(backend: str) -> None:
    given: list[float] = []

    @ingot.disable
    def measure() -> float:
        return given[-1]

    def fn(x: Tensor) -> Any:
        seconds = measure()
        y = x * seconds + 1
        time.sleep(0)
        return (y - seconds, seconds) if seconds > 0 else (y / seconds, seconds)

    tracked, counts = Tracked(fn, backend=backend), []
    for value in (0.5, 0.25, 3.0, -1.0, -2.0):
        given.append(value)
        counts.append(tracked(X))
    assert counts == [3, 0, 0, 1, 0]
    assert tracked.skips == []


def test_a_float_behind_a_break_that_is_needed_for_its_value_stays_a_constant() -> None:
    def fn(x: Tensor) -> Any:
        rate = 0.5
        time.sleep(0)
        return (
            torch.nn.functional.dropout(x, rate * 0, True).clamp(max=rate),
            math.sqrt(rate),
            rate * 2,
        )

    tracked = Tracked(fn)
    assert (tracked(X), tracked(X)) == (2, 0)
