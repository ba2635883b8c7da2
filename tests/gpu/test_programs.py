"""Compiled programs on the device, beside eager."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ingot
from examples.functions import FUNCTIONS
from tests.gpu.checks import CLOSE, ORACLE, agree, assert_compiled, copied, gradients_agree
from tests.oracle import EXACT

SHAPES = {
    "complex_activation": (301, 77),
    "tanh_gelu": (64, 3072),
    "mlp_dead_matmul": (64, 256),
    "layer_norm_gelu": (257, 1000),
    "masked_softmax": (129, 1024),
    "rms_norm_rotary": (65, 6, 64),
    "eight_elements": (8,),
}
HALVES = [torch.bfloat16, torch.float16]
FLOATS = [torch.float32, torch.float64, *HALVES]


def draw(
    *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, grad: bool = False
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to("cuda", dtype).requires_grad_(grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, dtype: torch.dtype) -> None:
    fn, args = FUNCTIONS[name].make("cuda", shape=SHAPES[name], dtype=dtype)
    assert_compiled(fn, *args)


UNARY: dict[str, Any] = {
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": lambda x: x.abs().log(),
    "log1p": lambda x: x.abs().log1p(), "log2": lambda x: x.abs().log2(),
    "log10": lambda x: x.abs().log10(), "sin": torch.sin, "cos": torch.cos, "tan": torch.tan,
    "asin": lambda x: x.clamp(-1, 1).asin(), "acos": lambda x: x.clamp(-1, 1).acos(),
    "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh,
    "asinh": torch.asinh, "acosh": lambda x: (x.abs() + 1).acosh(),
    "atanh": lambda x: x.clamp(-0.9, 0.9).atanh(), "erf": torch.erf, "erfc": torch.erfc,
    "erfinv": lambda x: x.clamp(-0.9, 0.9).erfinv(), "lgamma": torch.lgamma,
    "digamma": torch.digamma, "sigmoid": torch.sigmoid, "sqrt": lambda x: x.abs().sqrt(),
    "rsqrt": lambda x: x.abs().rsqrt(), "reciprocal": torch.reciprocal, "floor": torch.floor,
    "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc, "sign": torch.sign,
    "neg": torch.neg, "abs": torch.abs, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "softplus": F.softplus,
    "elu": F.elu, "mish": F.mish, "hardswish": F.hardswish, "leaky_relu": F.leaky_relu,
    "frac": torch.frac, "signbit": torch.signbit, "isnan": torch.isnan, "isinf": torch.isinf,
    "logit": lambda x: x.sigmoid().logit(),
}  # fmt: skip
BINARY: dict[str, Any] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "maximum": torch.maximum, "minimum": torch.minimum, "pow": lambda x, y: x.abs() ** y,
    "atan2": torch.atan2, "fmod": torch.fmod, "remainder": torch.remainder,
    "copysign": torch.copysign, "floor_divide": torch.floor_divide, "hypot": torch.hypot,
    "logaddexp": torch.logaddexp, "nextafter": torch.nextafter, "lerp": lambda x,
    y: torch.lerp(x, y, 0.3), "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "eq": torch.eq, "lt": torch.lt,
    "where": lambda x, y: torch.where(x > y, x, y * 2),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_unary_functions(dtype: torch.dtype) -> None:
    special = torch.tensor(
        [0.0, -0.0, torch.inf, -torch.inf, torch.nan], device="cuda", dtype=dtype
    )
    x = torch.cat([draw(999, dtype=dtype) * 3, special])
    wrong = {}
    for name, fn in UNARY.items():
        try:
            assert_compiled(fn, x, numbers=ORACLE if dtype is torch.float32 else CLOSE)
        except AssertionError as problem:
            wrong[name] = str(problem)[:300]
    assert not wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_binary_functions(dtype: torch.dtype) -> None:
    x, y = draw(64, 65, dtype=dtype) * 3, draw(65, dtype=dtype, seed=1) * 3
    wrong = {}
    for name, fn in BINARY.items():
        if name == "nextafter" and dtype is torch.bfloat16:
            continue  # eager has none on a GPU
        try:
            assert_compiled(fn, x, y, numbers=CLOSE)
        except AssertionError as problem:
            wrong[name] = str(problem)[:300]
    assert not wrong


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str
)
def test_integers(dtype: torch.dtype) -> None:
    x = torch.arange(-100, 100, device="cuda").to(dtype)
    y = torch.arange(200, device="cuda").fmod(7).add(1).to(dtype)

    def fn(x: Any, y: Any) -> Any:
        return (
            x + y, x - y, x * y, -x, x // y, x % y, torch.fmod(x, y), x & y, x | y, x ^ y, ~x,
            x << (y % 8), x >> (y % 8), x.abs() if dtype is not torch.uint8 else x, x.sign(), x < y,
            x.to(torch.float32), x.bool(), x.sum(), x.prod(), x.max(), x.min(), x.argmax(),
            x.cumsum(0), (x > 3).any(), (x > 3).all(),
            torch.maximum(x, y), x.to(torch.int8),
        )  # fmt: skip

    assert_compiled(fn, x, y, numbers=EXACT)


REDUCTIONS: dict[str, Any] = {
    "sum": lambda x, d: x.sum(d), "mean": lambda x, d: x.mean(d, keepdim=True), "amax": lambda x,
    d: x.amax(d), "amin": lambda x, d: x.amin(d), "var": lambda x, d: x.var(d),
    "std_mean": lambda x, d: torch.std_mean(x, d), "norm": lambda x,
    d: torch.linalg.vector_norm(x, dim=d), "softmax": lambda x, d: x.softmax(d),
    "log_softmax": lambda x, d: x.log_softmax(d), "logsumexp": lambda x, d: x.logsumexp(d),
    "argmax": lambda x, d: x.argmax(d), "argmin": lambda x, d: x.argmin(d), "max": lambda x,
    d: x.max(d), "prod": lambda x, d: (x * 0.1 + 1).prod(d), "any": lambda x, d: (x > 3).any(d),
    "all": lambda x, d: (x > -3).all(d), "normalized": lambda x,
    d: (x - x.mean(d, keepdim=True)) / (x.std(d, keepdim=True) + 1e-5),
}  # fmt: skip


SIZES = [(3, 5), (700, 1000), (4, 70000), (70000, 4), (300, 20000), (1, 1 << 20), (20, 30, 40)]


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_reductions(shape: tuple[int, ...]) -> None:
    x = draw(*shape)
    wrong = {}
    for name, fn in REDUCTIONS.items():
        for dim in {0, len(shape) - 1}:
            try:
                assert_compiled(lambda x: fn(x, dim), x, numbers=CLOSE if "arg" in name else ORACLE)  # noqa: B023
            except AssertionError as problem:
                wrong[name, dim] = str(problem)[:300]
    assert not wrong


def test_a_reduction_of_everything() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert_compiled(
            lambda x: (x.sum(), x.mean(), x.max(), x.square().sum().sqrt(), x.argmax()),
            draw(3000, 1234, dtype=dtype),
        )


def test_nan_is_the_extreme() -> None:
    x = draw(9, 100)
    x[3, 50] = torch.nan
    assert_compiled(
        lambda x: (x.amax(1), x.amin(1), x.argmax(1), x.max(1), x.amax(), x.clamp(-1, 1), x.relu()),
        x,
        numbers=CLOSE,
    )


def test_layouts() -> None:
    x = draw(6, 37, 65, 40)
    assert_compiled(lambda x: x.transpose(1, 3) + 1, x, numbers=EXACT)
    assert_compiled(
        lambda x: (x.transpose(1, 3).contiguous(), x.permute(3, 2, 1, 0).contiguous()),
        x,
        numbers=EXACT,
    )
    assert_compiled(lambda x: x.contiguous(memory_format=torch.channels_last) * 2, x, numbers=EXACT)
    assert_compiled(
        lambda x, y: x + y, x, x.contiguous(memory_format=torch.channels_last), numbers=EXACT
    )
    assert_compiled(lambda x: x.flip(1).roll(3, 2)[:, ::2, 1:], x, numbers=EXACT)
    assert_compiled(lambda x: F.pad(x, (1, 2, 3, 0), value=1.0), x, numbers=EXACT)
    assert_compiled(
        lambda x: torch.cat([x[:, :, :, :10].neg(), x[:, :, :, 7:], x], -1), x, numbers=EXACT
    )
    assert_compiled(lambda x: torch.stack([x, x + 1], 1).expand(-1, -1, -1, -1, 40).sum(0), x)
    assert_compiled(lambda x: x.expand(3, 6, 37, 65, 40)[1] * 2, x, numbers=EXACT)
    assert_compiled(lambda x: F.max_pool2d(x, 3, 2, 1), x, numbers=EXACT)
    assert_compiled(lambda x: F.avg_pool2d(x, 3, 2, 1), x)
    assert_compiled(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x)


def test_indices() -> None:
    table, at = draw(50, 33), torch.randint(0, 50, (7, 9), device="cuda")
    assert_compiled(lambda t, i: F.embedding(i, t) * 2, table, at, numbers=EXACT)
    assert_compiled(lambda t, i: t[i, :5] + t[0, :5], table, at, numbers=EXACT)
    assert_compiled(lambda t, i: t[-i - 1], table, at, numbers=EXACT)
    assert_compiled(lambda t, i: t.gather(0, i[:, :].reshape(7, 9)), table, at, numbers=EXACT)
    assert_compiled(lambda t, i: t.index_select(0, i.flatten()), table, at, numbers=EXACT)
    assert_compiled(
        lambda t, i: t.index_put((i[0],), t[i[1]] * 2, accumulate=True),
        table,
        at[:2].sort(1).values,
    )
    assert_compiled(
        lambda t, i: torch.zeros_like(t).scatter_add(0, i[:, :].reshape(7, 9), t[:7, :9]), table, at
    )
    assert_compiled(
        lambda t: (t.tril(), t.triu(1), torch.where(t > 0, t, 0.0)), table, numbers=EXACT
    )
    assert_compiled(
        lambda t: torch.arange(33, device="cuda") * t + torch.eye(50, 33, device="cuda"),
        table,
        numbers=EXACT,
    )


def test_libraries() -> None:
    x, w = draw(128, 96), draw(96, 64, seed=1)
    assert_compiled(lambda x, w: torch.relu(x @ w + 1) @ w.t(), x, w, numbers=CLOSE)
    assert_compiled(lambda x, w: F.linear(x, w.t(), w[0]).softmax(-1), x, w, numbers=CLOSE)
    assert_compiled(
        lambda x, w: torch.bmm(x.view(2, 64, 96), w.expand(2, 96, 64)), x, w, numbers=CLOSE
    )
    assert_compiled(
        lambda x: (x.sort(-1), x.topk(5), x.cumsum(0), x.flatten()[:3]), x, numbers=CLOSE
    )
    images, kernel = draw(2, 8, 20, 20), draw(16, 8, 3, 3, seed=1)
    assert_compiled(
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)) + 1, images, kernel, numbers=CLOSE
    )
    assert_compiled(lambda x: F.batch_norm(x, None, None, training=True), images)
    q = draw(2, 4, 64, 32)
    for dtype in (torch.float32, torch.bfloat16):
        q = q.to(dtype)
        assert_compiled(
            lambda q: F.scaled_dot_product_attention(q, q + 1, q, is_causal=True), q, numbers=CLOSE
        )
    assert_compiled(lambda q: torch.fft.rfft(q.float()).abs(), q, numbers=CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_products_are_eagers(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batches = x.view(4, 32, 96), y.view(4, 24, 96).transpose(1, 2)
        parts = x[::2] @ y.t()[:, ::3], x[:1] @ y.t(), x @ y[:1].t(), x[:, 8:40] @ y.t()[8:40]
        return (
            x @ y.t(),
            y @ x.t(),
            x.t() @ x,
            torch.bmm(*batches),
            batches[0] @ y.t(),
            *parts,
            (x + 1) @ (y + 1).t(),
        )

    x, y = draw(128, 96).to(dtype), draw(96, 96, seed=1).to(dtype)
    compiled = assert_compiled(fn, x, y, numbers=CLOSE)
    assert_compiled(fn, draw(128, 97).to(dtype)[:, 1:], y, numbers=CLOSE)  # not aligned
    if dtype is torch.float32:
        assert torch.equal(compiled(x, y)[0], x @ y.t())
        try:
            torch.backends.cuda.matmul.allow_tf32 = True
            assert torch.equal(compiled(x, y)[0], x @ y.t())
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False


def test_recurrent_cells() -> None:
    for cell, gates in ((torch.lstm_cell, 4), (torch.gru_cell, 3), (torch.rnn_tanh_cell, 1)):

        def fn(
            x: torch.Tensor, h: torch.Tensor, *weights: torch.Tensor, cell: Any = cell
        ) -> torch.Tensor:
            state: Any = (h, h + 1) if cell is torch.lstm_cell else h
            for step in x:
                state = cell(step, state, *weights)
            return state[0] if isinstance(state, tuple) else state

        shapes = (
            (5, 16, 96),
            (16, 64),
            (64 * gates, 96),
            (64 * gates, 64),
            (64 * gates,),
            (64 * gates,),
        )
        for grad, check in ((False, assert_compiled), (True, gradients_agree)):
            check(
                fn,
                *[draw(*shape, seed=k, grad=grad) / 8 ** (k > 0) for k, shape in enumerate(shapes)],
            )


def test_random_numbers_are_eagers() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.3) + torch.rand_like(x) * 2

    x, compiled = draw(100, 100), ingot.compile(fn, fullgraph=True)
    compiled(x)
    torch.manual_seed(7)
    expected = [fn(x), fn(x)]
    torch.manual_seed(7)
    found = [compiled(x), compiled(x)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


def test_inputs_that_are_written() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(y)
        y[1:] = x[:-1]
        return x.sum()

    assert_compiled(fn, draw(64, 30), draw(64, 30, seed=1), numbers=CLOSE)


def test_inputs_of_any_alignment() -> None:
    fn = ingot.compile(lambda x, y: torch.softmax(x * 2 + y, -1), fullgraph=True)
    for offset in (0, 1, 2, 3, 0, 1):
        x = draw(33 * 64 + 8)[offset : offset + 33 * 64].view(33, 64)
        agree(fn, lambda x, y: torch.softmax(x * 2 + y, -1), x, x.clone())

    def add(x: torch.Tensor) -> None:
        x.add_(1)

    whole, expected = draw(1001), draw(1001)
    ingot.compile(add)(whole[1:])
    expected[1:] += 1
    assert torch.equal(whole, expected)


def test_sizes_that_vary() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.gelu(x), (x.shape[-1],), w) + x.mean(0)

    compiled = ingot.compile(fn, fullgraph=True)
    for rows in (5, 17, 300, 1, 64, 4097):
        agree(compiled, fn, draw(rows, 96), draw(96, seed=1))
    reversed_ = ingot.compile(lambda x: x.softmax(-1).sum(0) * x.shape[1], fullgraph=True)
    for width in (5, 17, 300, 1, 64, 4097):
        agree(reversed_, lambda x: x.softmax(-1).sum(0) * x.shape[1], draw(33, width))


def test_empty_tensors() -> None:
    compiled = ingot.compile(lambda x: (x * 2 + 1, x.sum(1), x.sum(0)))
    for rows in (3, 0, 5):
        agree(
            compiled,
            lambda x: (x * 2 + 1, x.sum(1), x.sum(0)),
            torch.zeros(rows, 8, device="cuda"),
            numbers=CLOSE,
        )


def test_a_side_stream() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return ((x @ x).softmax(-1) + 1).sum(-1)

    compiled, x = ingot.compile(fn, fullgraph=True), draw(1024, 1024)
    expected = fn(x)
    streams = [torch.cuda.Stream() for _ in range(4)]
    compiled(x)
    torch.cuda.synchronize()
    found = []
    for k in range(20):
        with torch.cuda.stream(streams[k % 4]):
            found.append(compiled(x))
    torch.cuda.synchronize()
    assert all(torch.allclose(a, expected) for a in found)


def test_threads() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x * 2, (64,)) + 1

    compiled, x = ingot.compile(fn, fullgraph=True), draw(512, 64)
    expected, found = fn(x), []
    workers = [
        threading.Thread(target=lambda: found.extend(compiled(x) for _ in range(50)))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 200 and all(torch.allclose(a, expected, atol=1e-5) for a in found)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8], ids=str
)
def test_numbers_on_the_cpu(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor, n: torch.Tensor) -> Any:
        total = x.exp().sum().to("cpu")
        count = n * 2
        n += 1
        return (
            x * n,
            torch.where(x > n, x, count),
            count,
            total,
            x.sum(0) + total,
            n.to("cuda") + 0,
            x @ x.t() * n,
        )

    compiled = ingot.compile(fn, fullgraph=True)
    for value in (1, 0, 3):
        agree(compiled, fn, draw(30, 40), torch.tensor(value, dtype=dtype), numbers=CLOSE)


def test_gradients_beside_numbers_on_the_cpu() -> None:
    def fn(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return (x * torch.tensor(2.0)).tanh() * n

    gradients_agree(fn, draw(30, 40, grad=True), torch.tensor(1.5))
    gradients_agree(fn, draw(30, 40, grad=True), torch.tensor(1.5, requires_grad=True))


def test_tensors_that_are_brought_to_the_device() -> None:
    x, y = draw(30, 40), torch.arange(1200.0).reshape(30, 40)
    assert_compiled(lambda x, y: (x * y.to("cuda"), y.cuda()[:3]), x, y)
    assert_compiled(lambda x: ((x * 2).cpu(), x + 1), x)


def test_arithmetic_on_several_devices_in_a_call_is_eagers() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2, y * 3

    x, y = draw(10), torch.ones(10)
    assert all(map(torch.equal, ingot.compile(fn)(x, y), fn(x, y)))
    with pytest.raises(ingot.GraphBreakError, match="tensors on the CPU, beside those on cuda:0"):
        ingot.compile(fn, fullgraph=True)(x, y)


@pytest.mark.parametrize(
    "how", [{}, {"foreach": False}, {"fused": True}, {"capturable": True}], ids=str
)
def test_steps_of_an_optimizer(how: dict[str, bool]) -> None:
    found = []
    for compiled in (False, True):
        parameters = [draw(5, 7 + k, seed=k, grad=True) for k in range(9)]
        optimizer = torch.optim.AdamW(parameters, lr=1e-2, **how)
        step = ingot.compile(optimizer.step) if compiled else optimizer.step
        for k in range(5):
            optimizer.param_groups[0]["lr"] = 1e-2 / (k + 1)
            for p in parameters:
                p.grad = p.detach().sin() + k
            step()
        found.append(
            [p.detach() for p in parameters] + [s["step"] for s in optimizer.state.values()]
        )
    for a, b in zip(*found, strict=True):
        assert a.device == b.device
        torch.testing.assert_close(a, b)


def test_memory_is_given_back() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return ((x @ x).relu() @ x).sum(0)

    compiled, x = ingot.compile(fn, fullgraph=True), draw(512, 512)
    compiled(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        compiled(x)
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "mlp_dead_matmul"])
def test_gradients_of_functions(name: str, dtype: torch.dtype) -> None:
    fn, args = FUNCTIONS[name].make("cuda", shape=SHAPES[name], dtype=dtype)
    args = [a.requires_grad_() if a.is_floating_point() else a for a in copied(args)]
    gradients_agree(fn, *args)


def test_gradients_of_norms() -> None:
    x, w, b = draw(513, 768, grad=True), draw(768, seed=1, grad=True), draw(768, seed=2, grad=True)
    gradients_agree(lambda x, w, b: F.layer_norm(x, (768,), w, b), x, w, b)
    gradients_agree(lambda x, w: F.rms_norm(x, (768,), w, 1e-6), x, w)
    images = draw(4, 24, 10, 10, grad=True)
    gradients_agree(
        lambda x, w, b: F.group_norm(x, 4, w, b),
        images,
        draw(24, grad=True),
        draw(24, seed=3, grad=True),
    )
    gradients_agree(
        lambda x, w: F.batch_norm(x, None, None, w, training=True), images, draw(24, grad=True)
    )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_norms_of_halves(dtype: torch.dtype) -> None:
    x = draw(8192, 4096, dtype=dtype, grad=True)
    w, b = draw(4096, dtype=dtype, seed=1, grad=True), draw(4096, dtype=dtype, seed=2, grad=True)
    gradients_agree(lambda x, w, b: F.layer_norm(x, (4096,), w, b), x, w, b)
    gradients_agree(lambda x, w: F.rms_norm(x, (4096,), w, 1e-6), x, w)
    small = draw(8, 64, dtype=dtype)
    assert_compiled(lambda x: torch.native_layer_norm(x, (64,), None, None, 1e-5), small)
    assert_compiled(
        lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5), small
    )


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics(training: bool) -> None:
    images, w, b = draw(4, 24, 10, 10), draw(24, seed=1), draw(24, seed=2)
    mean, var = draw(24, seed=3), draw(24, seed=4).abs() + 0.5

    def batch_norm(x: Any, m: Any, v: Any, w: Any, b: Any) -> torch.Tensor:
        return F.batch_norm(x, m, v, w, b, training, 0.1)

    assert_compiled(batch_norm, images, mean, var, w, b)
    assert_compiled(
        lambda x, m, v, w, b: F.instance_norm(x, m, v, w, b, training, 0.1), images, mean, var, w, b
    )
    x, slope = draw(4, 24, 10, 10, grad=True), draw(24, seed=1, grad=True)
    gradients_agree(batch_norm, x, mean, var, slope, b)
    last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    gradients_agree(batch_norm, last, mean, var, slope, b, strides=training)


def test_masks_of_attention() -> None:
    q = draw(2, 4, 7, 32)
    mask = (draw(2, 1, 7, 7) > 0.3) | torch.eye(7, device="cuda").bool()
    assert_compiled(lambda q, m: F.scaled_dot_product_attention(q, q, q, m), q, mask, numbers=CLOSE)
    assert_compiled(
        lambda q, m: F.scaled_dot_product_attention(q, q, q, torch.where(m, 0.0, -1e9)),
        q,
        mask,
        numbers=CLOSE,
    )
    small = mask[:, :, :5, :5] | torch.eye(5, device="cuda").bool()

    def twice(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            q = F.scaled_dot_product_attention(q, q, q, mask) + q
        return q

    assert_compiled(twice, draw(2, 4, 5, 32), small, numbers=CLOSE)
    gradients_agree(twice, draw(2, 4, 7, 32, grad=True), mask, strides=False)
    gradients_agree(
        twice, draw(2, 4, 5, 32, grad=True), torch.where(small, 0.0, -1e9), strides=False
    )


def test_a_training_step() -> None:
    torch.manual_seed(0)

    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(64, 128),
            torch.nn.GELU(),
            torch.nn.LayerNorm(128),
            torch.nn.Linear(128, 10),
        ).cuda()

    x, y = draw(32, 64), torch.randint(0, 10, (32,), device="cuda")
    losses = []
    for compiled in (False, True):
        model = make()
        step = ingot.compile(model) if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(5):
            loss = F.cross_entropy(step(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(
            [loss.item(), *(p.detach().double().norm().item() for p in model.parameters())]
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_transformer_block() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).cuda()
    x = draw(2, 50, 64)
    compiled = ingot.compile(layer)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        layer.train()
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-5)


def test_more_elements_than_32_bits_count() -> None:
    """One program of symbolic sizes: index arithmetic in 32 bits where that is enough, else in
    64."""
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        pytest.skip("not enough memory")
    compiled = ingot.compile(lambda x: (x + 1, x.amax(-1)), dynamic=True)
    for rows in (8, 9, 33000):
        x = (
            torch.arange(rows, device="cuda", dtype=torch.int32)
            .remainder(100)
            .to(torch.int8)[:, None]
            .repeat(1, 65536)
        )
        more, most = compiled(x)
        assert torch.equal(most, x[:, 0])
        assert torch.equal(more[:, 0], x[:, 0] + 1) and torch.equal(more[:, -1], x[:, 0] + 1)
        assert bool((more[-100:] == x[-100:] + 1).all())


@pytest.mark.parametrize("rows", [(33,), (2, 3, 65)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("gelu", [True, False])
def test_activations_of_a_linear_layer(
    gelu: bool, dtype: torch.dtype, rows: tuple[int, ...]
) -> None:
    """Part of the library's call, of halves. Not-a-numbers and infinities go through it."""

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, w, b)
        return F.gelu(y, approximate="tanh") if gelu else y.relu()

    args = [
        draw(*rows, 96, dtype=dtype),
        draw(160, 96, dtype=dtype, seed=1),
        draw(160, dtype=dtype, seed=2),
    ]
    compiled = assert_compiled(fn, *args)
    for special in (torch.nan, torch.inf, -torch.inf):
        args[0].view(-1)[:97:96], args[2][0] = special, special
        assert torch.equal(compiled(*args).isfinite(), fn(*args).isfinite())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", [(2, 4096), (8195,)], ids=str)
def test_results_whose_rows_are_not_aligned(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Products in parts; the matrix of such rows that comes next is read as any other."""
    x, w = draw(*shape, 96, dtype=dtype), draw(9001, 96, dtype=dtype, seed=1)
    assert_compiled(F.linear, x, w)
    assert_compiled(lambda x, w: (y := F.linear(x * 2, w), y.float().logsumexp(-1)), x, w[:8998])
