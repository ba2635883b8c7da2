"""Small programs, at least one of each kind of kernel that is made for a GPU. tests/gpu/sanitize.py
runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from examples.functions import FUNCTIONS

LAST = torch.channels_last
HALF = torch.bfloat16


@dataclass(frozen=True)
class Kind:
    """A function and the arguments of its calls, on the CPU; the gradients of what asks for them
    are computed. Eager is compared with on the CPU, or `beside` on the device, where they
    differ."""

    fn: Callable[..., Any]
    calls: Sequence[Sequence[Any]]
    how: dict[str, Any] = field(default_factory=dict)
    beside: bool = False


KINDS: dict[str, Callable[[], Kind]] = {}


def kind(make: Callable[[], Kind]) -> Callable[[], Kind]:
    KINDS[make.__name__] = make
    return make


def draw(
    *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, grad: bool = False
) -> torch.Tensor:
    return (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        .to(dtype)
        .requires_grad_(grad)
    )


def whole(bound: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(bound, shape, generator=torch.Generator().manual_seed(seed))


@kind
def pointwise() -> Kind:
    def fn(x: Any, y: Any) -> Any:
        return (
            torch.where(x > y, x.exp(), y * 2) + x.to(torch.bfloat16),
            (x * 3).long() % 5,
            x.isnan(),
        )

    return Kind(fn, [(draw(301, 77), draw(77, seed=1)), (draw(7, 1), draw(1))])


@kind
def transposed() -> Kind:
    def fn(x: Any, y: Any) -> Any:
        moved = x.permute(0, 3, 1, 2).contiguous()
        return moved + 1, (x + y.transpose(1, 3)).contiguous(), x.flip(1).roll(3, 2)[:, ::2, 1:] * 2

    return Kind(fn, [(draw(3, 37, 65, 33), draw(3, 33, 65, 37))])


@kind
def joined() -> Kind:
    def fn(x: Any, y: Any) -> Any:
        both = torch.cat([x.neg(), y, x[:, 3:]], 1)
        return (
            both,
            both.sum(0),
            torch.stack([x, x + 1], 1),
            F.pad(x, (3, 2), value=1.0),
            both.view(-1).unfold(0, 5, 3),
        )

    return Kind(fn, [(draw(65, 33), draw(65, 7, seed=1))])


@kind
def joined_and_summed() -> Kind:
    def fn(*pieces: Any) -> Any:
        both = torch.cat(pieces, -1).view(4096, -1)
        return both, both.sum(0)

    return Kind(fn, [[draw(4, 1024, 64, seed=k) / 16 for k in range(3)]])


@kind
def reductions() -> Kind:
    def fn(x: Any) -> Any:
        found = [x.amax(d) for d in range(3)] + [x.var(d) for d in range(3)]
        return (
            *found,
            x.argmax(1),
            x.argmin(-1),
            x.softmax(0),
            x.logsumexp(-1),
            (x > 3).any(1),
            x.prod(2),
            x.sum(),
        )

    return Kind(fn, [(draw(20, 30, 40),), (draw(3, 700, 5),), (draw(1, 1, 1),)])


@kind
def long_reductions() -> Kind:
    def fn(x: Any, y: Any) -> Any:
        return (
            x.sum(-1),
            x.mean(),
            x.argmax(),
            y.sum(0),
            y.softmax(0),
            (x - x.mean(-1, True)) / x.std(-1, keepdim=True),
        )

    return Kind(fn, [(draw(3, 70001), draw(70001, 3)), (draw(300, 20000), draw(2000, 130))])


@kind
def scans() -> Kind:
    def fn(x: Any) -> Any:
        return x.cumsum(-1), x.cumsum(0), (x * 0.1 + 1).cumprod(-1), x.cummax(-1), x.logcumsumexp(1)

    return Kind(fn, [(draw(33, 300),), (draw(2, 5000),)])


@kind
def functions() -> Kind:
    shapes = {"rms_norm_rotary": (65, 6, 64), "eight_elements": (8,), "mlp_dead_matmul": (64, 256)}
    made = [
        example.make("cpu", shape=shapes.get(name, (129, 1000)))
        for name, example in FUNCTIONS.items()
    ]

    def fn(*given: Any) -> Any:
        return [f(*args) for (f, _), args in zip(made, given)]

    return Kind(fn, [[args for _, args in made]])


@kind
def norms() -> Kind:
    def fn(x: Any, w: Any, b: Any) -> Any:
        return F.layer_norm(x, (768,), w, b) + F.rms_norm(x, (768,), w, 1e-6)

    return Kind(
        fn,
        [[draw(513, 768, grad=True), draw(768, seed=1, grad=True), draw(768, seed=2, grad=True)]],
    )


@kind
def norms_of_halves() -> Kind:
    """The columns are summed within the kernels that go over the rows."""

    def fn(x: Any, w: Any, b: Any) -> Any:
        return F.layer_norm(x, (300,), w, b) * F.rms_norm(x, (300,), w, 1e-6)

    return Kind(
        fn,
        [
            [
                draw(4096, 300, dtype=HALF, grad=True),
                *(draw(300, dtype=HALF, grad=True) for _ in range(2)),
            ]
        ],
    )


@kind
def norms_of_long_rows() -> Kind:
    def fn(x: Any, w: Any, b: Any) -> Any:
        return F.layer_norm(x, (20001,), w, b)

    return Kind(
        fn,
        [
            [
                draw(37, 20001, grad=True),
                draw(20001, seed=1, grad=True),
                draw(20001, seed=2, grad=True),
            ]
        ],
    )


@kind
def norms_of_images() -> Kind:
    def fn(x: Any, y: Any, w: Any, b: Any) -> Any:
        grouped = F.group_norm(x, 4, w, b)
        return (
            grouped.relu(),
            F.batch_norm(x, None, None, w, b, True),
            F.batch_norm(y, None, None, w, b, True).relu(),
        )

    images = [
        draw(4, 24, 15, 13, seed=k).to(memory_format=f)
        for k, f in enumerate((torch.contiguous_format, LAST))
    ]
    return Kind(
        fn,
        [[*(t.requires_grad_() for t in images), draw(24, grad=True), draw(24, seed=1, grad=True)]],
    )


@kind
def cross_entropy() -> Kind:
    def fn(x: Any, y: Any) -> Any:
        return F.cross_entropy(x, y, ignore_index=3), F.cross_entropy(
            x * 2, y, reduction="none", label_smoothing=0.1
        )

    calls = [(draw(130, n, grad=True), whole(n, 130)) for n in (77, 30001)]
    return Kind(fn, calls)


@kind
def cross_entropy_of_a_product() -> Kind:
    def fn(x: Any, w: Any, y: Any) -> Any:
        return F.cross_entropy(x @ w, y)

    return Kind(
        fn, [(draw(256, 64, grad=True), draw(64, 5003, seed=1, grad=True), whole(5003, 256))]
    )


@kind
def gathered() -> Kind:
    def fn(t: Any, i: Any) -> Any:
        by_place = (
            t.gather(0, i),
            t.index_select(0, i.flatten()),
            t[i[0], :5],
            t[-i - 1],
            torch.take(t, i),
        )
        return F.embedding(i, t) * 2, *by_place, F.one_hot(i, 50).to(t.dtype) @ t

    return Kind(fn, [(draw(50, 33, grad=True), whole(50, 7, 9))])


@kind
def scattered() -> Kind:
    def fn(t: Any, i: Any, v: Any) -> Any:
        made = (
            (t * 2).index_put([i[0]], v, accumulate=True),
            t.index_put([i[0]], v[:1]),
            t.index_add(0, i[1], v),
        )
        spread = i[:, :].view(7, 9)
        return (
            *made,
            torch.zeros_like(t).scatter_add(0, spread, t[:7, :9]),
            t.scatter(1, spread % 9, 0.5),
            t.tril(),
        )

    return Kind(fn, [(draw(50, 9), torch.arange(63).fmod(50).view(7, 9), draw(9, 9, seed=1))])


@kind
def written_inputs() -> Kind:
    def fn(x: Any, y: Any) -> Any:
        x.mul_(2).add_(y)
        y[1:] = x[:-1]
        return x.sum(), x.softmax(-1)

    return Kind(fn, [(draw(64, 30), draw(64, 30, seed=1))])


@kind
def many_tensors() -> Kind:
    """One launch with a table of buffers, numbers on the CPU among what it reads."""

    def fn(rate: Any, *given: Any) -> Any:
        return [t - rate * t.sign() * 0.1 for t in given] + [t.sum() for t in given]

    return Kind(fn, [[torch.tensor(0.3), *(draw(5 + 37 * k, seed=k) for k in range(14))]])


@kind
def unaligned() -> Kind:
    def fn(x: Any, y: Any) -> Any:
        return torch.softmax(x * 2 + y, -1), x.t().contiguous()

    whole_ = draw(33 * 61 + 3)
    return Kind(
        fn, [(whole_[k : k + 33 * 61].view(33, 61), draw(33, 61, seed=k)) for k in (0, 1, 3)]
    )


@kind
def sizes_that_vary() -> Kind:
    def fn(x: Any, w: Any) -> Any:
        normal = F.layer_norm(F.gelu(x), (x.shape[-1],), w)
        return normal + x.mean(0), x.softmax(-1).sum(0) * x.shape[1], x.t().contiguous(), x.sum()

    sizes = [(5, 96), (17, 33), (300, 64), (4097, 5), (1, 700), (9, 5001), (64, 1)]
    calls = [(draw(*s, grad=True), draw(s[1], seed=1, grad=True)) for s in sizes]
    return Kind(fn, calls, {"dynamic": True})


@kind
def empty() -> Kind:
    def fn(x: Any) -> Any:
        return x * 2 + 1, x.sum(1), x.sum(0), x.cumsum(0)

    return Kind(fn, [(torch.zeros(n, 8),) for n in (3, 0, 5)], {"dynamic": True})


@kind
def windows() -> Kind:
    def fn(x: Any, w: Any) -> Any:
        deep = F.conv2d(x.relu(), w, None, 2, 1, 1, 32).clamp(0, 6)
        return (
            deep,
            F.conv2d(F.pad(x, (0, 1, 0, 1)), w, w[:, 0, 0, 0], 1, 0, 1, 32),
            F.conv2d(x, w, None, 1, 1, 1, 32),
        )

    return Kind(fn, [(draw(2, 32, 15, 14).to(memory_format=LAST), draw(32, 1, 3, 3, seed=1) / 3)])


@kind
def pooled() -> Kind:
    def fn(x: Any) -> Any:
        sizes = (
            F.interpolate(x, scale_factor=2, mode="bilinear"),
            F.interpolate(x, size=(5, 40), mode="bicubic"),
        )
        pools = F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, (4, 3))
        return *pools, *sizes, F.interpolate(x, scale_factor=1.5)

    return Kind(fn, [(draw(2, 6, 17, 20),)])


@kind
def sampled() -> Kind:
    """Places at corners, between two elements, far away and nowhere."""

    def fn(x: Any, grid: Any) -> Any:
        modes, paddings = ("bilinear", "nearest"), ("zeros", "border", "reflection")
        return [F.grid_sample(x, grid, m, p, align_corners=False) for m in modes for p in paddings]

    special = torch.tensor([-1, 1, 0, 0.5, 1.0001, 3, -7.5, 1e9, -1e30, torch.inf, torch.nan])
    grid = torch.cartesian_prod(special, special).view(1, 11, 11, 2)
    return Kind(fn, [(draw(1, 5, *size), grid) for size in ((8, 8), (1, 9))], beside=True)


@kind
def products() -> Kind:
    def fn(x: Any, w: Any, b: Any) -> Any:
        return F.gelu(F.linear(x, w, b)), (x @ x.t()).softmax(-1)

    return Kind(fn, [(draw(65, 97), draw(130, 97, seed=1), draw(130, seed=2))])


def _products_as_kernels(dtype: torch.dtype, *sizes: int) -> Kind:
    rows, depth, columns = sizes
    args = [
        draw(*s, dtype=dtype, seed=k) / 4
        for k, s in enumerate(((rows, depth), (columns, depth), (columns,)))
    ]
    return Kind(
        lambda x, w, b: F.gelu(F.linear(x, w, b)), [args], {"mode": "max-autotune-no-cudagraphs"}
    )


@kind
def products_as_kernels() -> Kind:
    return _products_as_kernels(torch.float32, 65, 97, 130)


@kind
def products_of_halves_as_kernels() -> Kind:
    return _products_as_kernels(HALF, 197, 256, 384)


@kind
def products_in_parts_as_kernels() -> Kind:
    return _products_as_kernels(HALF, 8, 1000, 130)


@kind
def recurrent() -> Kind:
    def fn(x: Any, h: Any, c: Any, *weights: Any) -> Any:
        for step in x:
            h, c = torch.lstm_cell(step, (h, c), *weights)
        return h, c

    shapes = (5, 16, 96), (16, 64), (16, 64), (256, 96), (256, 64), (256,), (256,)
    return Kind(fn, [[(draw(*s, seed=k) / 4).requires_grad_() for k, s in enumerate(shapes)]])


@kind
def gelus() -> Kind:
    def fn(x: Any, y: Any) -> Any:
        return F.gelu(x, approximate="tanh") * F.silu(y), F.gelu(y) / x.square().sum(
            -1, keepdim=True
        )

    return Kind(fn, [(draw(130, 515, grad=True), draw(130, 515, seed=1, grad=True))])
