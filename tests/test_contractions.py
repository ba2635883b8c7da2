"""Matrix products, compiled, against float64 and against eager: values, layouts, accuracy, and what
is launched."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot

EPS = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def _no_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def assert_product(
    result: Tensor, expected: Tensor, a: Tensor, b: Tensor, more: Tensor | float = 0.0
) -> None:
    """`result` is `a @ b + more` to the last bound of rounding: each element's own."""
    assert (result.dtype, result.shape, result.stride()) == (
        expected.dtype,
        expected.shape,
        expected.stride(),
    )
    a, b = a.double(), b.double()
    exact, size = a @ b + more, a.abs() @ b.abs() + abs(more)
    assert ((result.double() - exact).abs() <= (a.shape[-1] + 3) * EPS * size).all()


def launches(fn, *args, **options):
    return ingot.explain(ingot.compile(fn, fullgraph=True, **options))(*args).kernels


@pytest.mark.parametrize("rows", [1, 3, 8, 17, 100])
def test_sizes_that_are_symbols(rows):
    """One compilation serves all sizes but 1; test_contraction.py goes through more of them."""
    compiled = ingot.compile(F.linear, dynamic=True, fullgraph=True)
    for columns, inner in itertools.product([1, 2, 15, 17, 49, 100], [1, 2, 17, 130, 300]):
        x, weight, bias = (
            torch.randn(rows, inner),
            torch.randn(columns, inner),
            torch.randn(columns),
        )
        assert_product(compiled(x, weight, bias), F.linear(x, weight, bias), x, weight.t(), bias)


LAYOUTS = {
    "contiguous": lambda *sizes: torch.randn(*sizes),
    "transposed": lambda *sizes: torch.randn(*sizes[:-2], sizes[-1], sizes[-2]).transpose(-1, -2),
    "every second": lambda *sizes: torch.randn(*sizes[:-1], 2 * sizes[-1])[..., ::2],
    "window": lambda *sizes: torch.randn(*sizes[:-2], sizes[-2] + 3, sizes[-1] + 5)[
        ..., 1:-2, 2:-3
    ],
    "expanded row": lambda *sizes: torch.randn(*sizes[:-2], 1, sizes[-1]).expand(sizes),
    "expanded column": lambda *sizes: torch.randn(*sizes[:-1], 1).expand(sizes),
}


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_layouts(left, right):
    a, b = LAYOUTS[left](19, 140), LAYOUTS[right](140, 50)
    assert_product(ingot.compile(torch.mm)(a, b), a @ b, a, b)
    a, b = LAYOUTS[left](3, 9, 20), LAYOUTS[right](3, 20, 50)
    assert_product(ingot.compile(torch.bmm)(a, b), a @ b, a, b)


@pytest.mark.parametrize(
    "left, right",
    [
        ((9,), (9, 20)),
        ((20, 9), (9,)),
        ((9,), (9,)),
        ((4, 1, 8, 9), (3, 9, 10)),
        ((2, 30, 9), (9, 20)),
    ],
)
def test_matmul_of_other_ranks(left, right):
    a, b = torch.randn(left), torch.randn(right)
    assert_product(ingot.compile(torch.matmul)(a, b), a @ b, a, b)


@pytest.mark.parametrize("sizes", [(0, 5, 6), (8, 0, 6), (8, 5, 0)])
def test_of_nothing(sizes):
    m, k, n = sizes
    a, b, bias = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
    for fn in (lambda a, b, bias: a @ b, lambda a, b, bias: torch.addmm(bias, a, b, beta=2)):
        result, expected = ingot.compile(fn)(a, b, bias), fn(a, b, bias)
        assert result.stride() == expected.stride() and torch.equal(result, expected)


@pytest.mark.parametrize("beta, alpha", [(1, 1), (0.5, 1), (1, -2), (0, 3), (2, 0)])
@pytest.mark.parametrize("bias", [(20,), (1, 20), (9, 1), (9, 20), ()], ids=str)
def test_scaled_products(beta, alpha, bias):
    a, b, c = torch.randn(9, 30), torch.randn(30, 20), torch.randn(bias)

    def fn(c, a, b):
        return torch.addmm(c, a, b, beta=beta, alpha=alpha), torch.baddbmm(
            c, a[None], b[None], beta=beta, alpha=alpha
        )

    for result, expected in zip(ingot.compile(fn)(c, a, b), fn(c, a, b)):
        torch.testing.assert_close(result, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("shape", ["linear", "mm", "bmm", "mv", "dot"])
def test_few_rows_are_one_kernel(rows, shape):
    x, w = torch.randn(rows, 70), torch.randn(50, 70)
    fn, args = {
        "linear": (lambda x, w: F.gelu(F.linear(x, w, w[:, 0])), (x, w)),
        "mm": (lambda x, w: torch.relu(x @ w), (x, w.t().contiguous())),
        "bmm": (lambda x, w: torch.bmm(x, w) * 2, (x[:, None], w.t().expand(rows, 70, 50))),
        "mv": (lambda x, w: torch.mv(w, x[0]) + torch.mv(w, x[-1]), (x, w)),
        "dot": (lambda x, w: torch.dot(x[0], w[3]).exp(), (x, w)),
    }[shape]
    assert {k.kind for k in launches(fn, *args)} == {"fused"}
    result, expected = ingot.compile(fn)(*args), fn(*args)
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def test_doubles():
    x, w, b = (torch.randn(sizes, dtype=torch.float64) for sizes in ((9, 300), (70, 300), (70,)))
    for rows in (1, 9):
        (kernel,) = launches(F.linear, x[:rows], w, b)
        assert kernel.kind == "fused"
        torch.testing.assert_close(
            ingot.compile(F.linear)(x[:rows], w, b), F.linear(x[:rows], w, b)
        )


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int64, torch.complex64], ids=str
)
def test_other_dtypes_are_left_to_the_library(dtype):
    x, w = (torch.randint(-9, 9, sizes).to(dtype) for sizes in ((9, 30), (30, 20)))
    assert [k.kind for k in launches(torch.mm, x, w)] == ["extern"]
    assert torch.equal(ingot.compile(torch.mm)(x, w), x @ w)


def test_a_bias_that_does_not_count_may_be_anything():
    a, b, c = torch.randn(9, 30), torch.randn(30, 20), torch.full((20,), float("nan"))
    assert not ingot.compile(lambda c, a, b: torch.addmm(c, a, b, beta=0))(c, a, b).isnan().any()


def with_factors(form, beta, alpha):
    """`form` with two factors that are constants of its closure."""
    return lambda b, x, y: form(b, x, y, beta=beta, alpha=alpha)


# eager's products of few elements are others
@pytest.mark.parametrize("sizes", [(9, 30, 20), (3, 5, 4)], ids=str)
@pytest.mark.parametrize("outside", [False, True], ids=["constants", "inputs"])
@pytest.mark.parametrize(
    "form", [torch.addmm, torch.addmv, torch.addr, torch.baddbmm, torch.addbmm]
)
def test_factors_by_which_nan_and_infinity_count_or_not(form, outside, sizes):
    m, k, n = sizes
    left, right = torch.randn(2, m, k), torch.randn(2, k, n)
    left[:, 1, 2], right[:, 3, 2] = math.inf, math.nan
    bias, *operands = {
        torch.addmm: (torch.randn(m, n), left[0], right[0]),
        torch.addmv: (torch.randn(m), left[0], right[0, :, 0]),
        torch.addr: (torch.randn(m, k), left[0, :, 2], left[0, 1]),
        torch.baddbmm: (torch.randn(2, m, n), left, right),
        torch.addbmm: (torch.randn(m, n), left, right),
    }[form]
    bias.view(-1)[1] = math.nan
    given = ingot.compile(lambda b, x, y, beta, alpha: form(b, x, y, beta=beta, alpha=alpha))
    for beta, alpha in (
        (0.5, 2.0),
        (1.0, 0.0),
        (0.0, 1.0),
        (0.0, 0.0),
        (0.5, -0.0),
        (1.0, math.inf),
        (math.nan, 1.0),
    ):
        expected = form(bias, *operands, beta=beta, alpha=alpha)
        if outside:
            result = given(bias, *operands, beta, alpha)
        else:
            result = ingot.compile(with_factors(form, beta, alpha))(bias, *operands)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_nan_and_infinity():
    a, b = torch.randn(9, 40), torch.randn(40, 60)
    a[2, 3], a[5, 0], b[7, 50], b[8, 50] = float("nan"), float("inf"), float("inf"), -float("inf")
    torch.testing.assert_close(
        ingot.compile(torch.mm)(a, b), a @ b, rtol=1e-5, atol=1e-5, equal_nan=True
    )


# -- accuracy --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [(64, 64, 64), (128, 768, 96), (17, 3072, 100), (100, 147, 64)], ids=str
)
def test_the_error_is_at_most_eager_s(sizes):
    m, k, n = sizes
    compiled = ingot.compile(F.linear)
    errors = []
    for seed in range(5):
        torch.manual_seed(seed)
        x, weight, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
        exact = F.linear(x.double(), weight.double(), bias.double())
        results = compiled(x, weight, bias), F.linear(x, weight, bias)
        errors.append([((y.double() - exact).norm() / exact.norm()).item() for y in results])
    own, eager = torch.tensor(errors).mean(0).tolist()
    assert own <= max(1.1 * eager, 4 * EPS)


def test_the_number_of_threads_changes_nothing():
    x, weight, bias = torch.randn(300, 500), torch.randn(700, 500), torch.randn(700)
    compiled = ingot.compile(lambda x, w, b: F.gelu(F.linear(x, w, b)))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(compiled(x, weight, bias))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


# -- what is launched ------------------------------------------------------------------------------

X, W, B = torch.randn(16, 40), torch.randn(50, 40), torch.randn(50)
R = torch.randn(16, 50)

EPILOGUES = {
    "bias": lambda x, w, b, r: F.linear(x, w, b),
    "gelu": lambda x, w, b, r: F.gelu(F.linear(x, w, b)),
    "tanh gelu": lambda x, w, b, r: F.gelu(F.linear(x, w, b), approximate="tanh"),
    "residual": lambda x, w, b, r: r + F.linear(x, w, b),
    "scale and mask": lambda x, w, b, r: (F.linear(x, w) * 0.125).masked_fill(r > 0, float("-inf")),
    "cast": lambda x, w, b, r: F.linear(x, w, b).to(torch.bfloat16),
    "several results": lambda x, w, b, r: (
        F.linear(x, w, b),
        F.linear(x, w, b).relu(),
        F.linear(x, w, b) + r,
    ),
    "along rows": lambda x, w, b, r: F.linear(x, w) * r[:, :1],
    "batch": lambda x, w, b, r: torch.relu(F.linear(x.view(2, 8, 40), w, b)) + r.view(2, 8, 50),
    "without bias": lambda x, w, b, r: torch.addmm(r, x, w.t(), beta=0.5, alpha=2).sigmoid(),
    "bmm": lambda x, w, b, r: torch.bmm(x[None], w.t()[None]).tanh(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", EPILOGUES)
def test_pointwise_consumers_run_on_the_finished_tile(name, dynamic):
    fn = EPILOGUES[name]
    found = launches(fn, X, W, B, R, dynamic=dynamic)
    assert [k.kind for k in found] == ["fused"]
    results, expected = ingot.compile(fn, dynamic=dynamic)(X, W, B, R), fn(X, W, B, R)
    torch.testing.assert_close(results, expected, rtol=1e-5 if name != "cast" else 1e-2, atol=1e-5)


SEPARATE = {
    "softmax": (lambda x, w, b, r: F.softmax(F.linear(x, w, b), -1), 2),
    "of the other order": (lambda x, w, b, r: F.linear(x, w, b).t().contiguous() + 1, 2),
    "two products": (lambda x, w, b, r: F.silu(F.linear(x, w, b)) * F.linear(x, w + 1), 3),
    "a product of a product": (lambda x, w, b, r: F.linear(F.linear(x, w, b).relu(), w.t()), 2),
    "shifted": (lambda x, w, b, r: F.linear(x, w, b)[1:] + F.linear(x, w, b)[:-1], 2),
}


@pytest.mark.parametrize("name", SEPARATE)
def test_other_consumers_run_after_it(name):
    fn, count = SEPARATE[name]
    assert len(launches(fn, X, W, B, R)) == count
    torch.testing.assert_close(ingot.compile(fn)(X, W, B, R), fn(X, W, B, R), rtol=1e-5, atol=2e-5)


def test_parts_of_a_linear_share_its_bias():
    def fn(x, w, b):
        return [
            part.view(2, 8, 5, 5).transpose(1, 2) for part in F.linear(x, w, b).split(25, dim=1)
        ]

    assert len(launches(fn, X, W, B)) == 1
    torch.testing.assert_close(ingot.compile(fn)(X, W, B), fn(X, W, B), rtol=1e-5, atol=1e-5)


def test_an_operand_that_the_epilogue_would_overwrite():
    square = torch.randn(40, 40)

    def fn(x, w):
        x.add_(F.linear(x, w))
        return x * 2

    mine, eager = X.clone(), X.clone()
    torch.testing.assert_close(
        ingot.compile(fn)(mine, square), fn(eager, square), rtol=1e-5, atol=2e-5
    )
    torch.testing.assert_close(mine, eager, rtol=1e-5, atol=2e-5)


def test_a_residual_is_written_in_place():
    def fn(x, w, r):
        r.add_(F.linear(x, w))

    mine, eager = R.clone(), R.clone()
    ingot.compile(fn)(X, W, mine)
    fn(X, W, eager)
    torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5)


def residual(x, w, r):
    return torch.softmax(r, -1) + F.linear(x, w)


def residual_read_later(x, w, r):
    h = torch.softmax(r, -1)
    y = F.linear(x, w)
    return y.relu(), y + h


def residual_is_an_operand(x, w, r):
    h = torch.softmax(x, -1)
    return h + F.linear(h, w[:40, :40])


@pytest.mark.parametrize(
    "fn, overwritten",
    [(residual, True), (residual_read_later, True), (residual_is_an_operand, False)],
)
def test_a_dead_residual_is_overwritten(fn, overwritten):
    found = ingot.explain(ingot.compile(fn, fullgraph=True))(X, W, R)
    assert len(found.kernels) == 2
    # where it is not, all of it takes memory of its own
    assert (found.arena_bytes < 16 * 40 * 4) == overwritten
    torch.testing.assert_close(ingot.compile(fn)(X, W, R), fn(X, W, R), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_a_lower_precision_is_left_to_the_library(precision):
    torch.set_float32_matmul_precision(precision)
    try:
        assert [k.kind for k in launches(torch.mm, X, W.t())] == ["extern"]
    finally:
        torch.set_float32_matmul_precision("highest")
    assert [k.kind for k in launches(torch.mm, X, W.t())] == ["fused"]


def test_precisions_by_backend():
    """Those that torch has no one word for."""
    compiled, before = (
        ingot.compile(lambda x, y: x @ y + 1),
        torch.backends.cuda.matmul.fp32_precision,
    )
    torch.testing.assert_close(compiled(X, W.t()), X @ W.t() + 1)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        for _ in range(2):
            torch.testing.assert_close(compiled(X, W.t()), X @ W.t() + 1)
        assert "matmul_precision" in ingot.explain(compiled)(X, W.t()).recompiles[0]
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def reads_before(x, w, h):
    before = x * 2 - 0.25
    x.copy_(F.linear(h, w) + h)
    return before


def reads_twice_before(x, w, h):
    before, total = x.exp(), x.sum()
    x.add_(h @ w)
    return before, total


def reads_before_and_behind(x, w, h):
    before = x + 1
    x.copy_(h @ w)
    return before, x * 2


@pytest.mark.parametrize("shape", [(3,), (5, 3), (1, 3), (64, 64)], ids=str)
@pytest.mark.parametrize("fn", [reads_before, reads_twice_before, reads_before_and_behind])
def test_what_a_product_writes_is_read_before(fn, shape):
    """A kernel that reads an argument runs before the product whose epilogue overwrites it, and is
    none of its own."""
    w = torch.randn(shape[-1], shape[-1])
    given = [torch.randn(shape), w, torch.randn(shape)]
    ours, eager = [t.clone() for t in given], [t.clone() for t in given]
    for _ in range(2):
        found, expected = ingot.compile(fn, fullgraph=True)(*ours), fn(*eager)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
