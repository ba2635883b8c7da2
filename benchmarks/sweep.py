"""Single ops beside eager, over types, sizes and axes: `python -m benchmarks.sweep [FAMILY ...]`.

Wider than `benchmarks.micro` and without other compilers: it looks for ops that are slower compiled
than called. Those whose whole 90% interval lies below 0.97 are listed, the slowest first, with the
kinds of kernels that they became.

Where arrays lie in memory can be worth a tenth of the time. So what looks slower is measured again,
with its arguments elsewhere, and all of its rounds count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import ingot
from benchmarks.micro import is_slower
from benchmarks.show import ratio_text
from benchmarks.worker import last_line
from ingot.explain import measure
from ingot.explain.cli import positive

f32, f64, bf16, i32, i64, u8, b8 = (
    torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool
)  # fmt: skip
COUNT = 1 << 16
DRAWS = 3  # places where the arguments of what looks slower lie besides

Case = tuple[str, Callable[..., Any], tuple[Tensor, ...]]


def values(*shape: int, dtype: torch.dtype = f32) -> Tensor:
    """Normal values, or whole numbers from 1 to 49."""
    if dtype is b8:
        return torch.randn(shape) > 0
    return (
        torch.randn(shape).to(dtype)
        if dtype.is_floating_point
        else torch.randint(1, 50, shape).to(dtype)
    )


UNARY = (
    "abs neg exp log sqrt rsqrt sin cos tanh sigmoid erf relu floor reciprocal tan asin atan sinh "
    "log1p expm1 exp2 "
    "log2 round sign square acosh atanh erfc lgamma digamma silu gelu softplus elu hardswish "
    "leaky_relu mish"
).split()
DOMAIN: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(
        ("log", "sqrt", "rsqrt", "log1p", "log2", "lgamma", "digamma"), lambda x: x.abs() + 0.1
    ),
    **dict.fromkeys(("asin", "atanh"), lambda x: x.clamp(-0.99, 0.99)),
    "acosh": lambda x: x.abs() + 1,
}


def unary() -> Iterator[Case]:
    for name in UNARY:
        for dtype in (f32, bf16, f64):
            x = DOMAIN.get(name, lambda x: x)(values(COUNT, dtype=dtype))
            yield f"{name} {short(dtype)}", getattr(torch, name, None) or getattr(F, name), (x,)
    masked = torch.where(torch.arange(COUNT) % 3 == 0, -torch.inf, values(COUNT))
    # some processors take a hundred times as long for what underflows
    for name in ("exp", "exp2", "sigmoid"):
        yield (
            f"{name} f32, a third masked",
            getattr(torch, name),
            (-masked if name == "sigmoid" else masked,),
        )


BINARY = (
    "add sub mul div maximum pow atan2 remainder fmod floor_divide eq lt logical_and bitwise_and "
    "bitwise_left_shift "
    "copysign hypot"
).split()


def binary() -> Iterator[Case]:
    for name in BINARY:
        function = getattr(torch, name)
        for dtype in (f32, bf16, f64, i32, i64, b8, u8):
            x, y = values(COUNT, dtype=dtype), values(COUNT, dtype=dtype)
            if name in ("pow", "bitwise_left_shift"):
                x, y = (
                    (x.abs(), y)
                    if dtype.is_floating_point
                    else (x % 4, y % 4)
                    if dtype is not b8
                    else (x, y)
                )
            yield f"{name} {short(dtype)}", function, (x, y)
            square = values(256, 256, dtype=dtype)
            if name in ("add", "eq"):
                yield f"{name} {short(dtype)}, a column", function, (square, square[:, :1].clone())
                yield f"{name} {short(dtype)}, a row", function, (square, square[:1].clone())
                yield f"{name} {short(dtype)}, one transposed", function, (square, square.t())
                yield f"{name} {short(dtype)}, both transposed", function, (square.t(), square.t())
                yield (
                    f"{name} {short(dtype)}, every second",
                    function,
                    (values(256, 512, dtype=dtype)[:, ::2], square),
                )


REDUCTIONS: dict[str, Callable[[Tensor, Any], Any]] = {
    name: lambda x, dim, name=name: getattr(x, name)(dim)
    for name in "sum mean amax var std logsumexp argmax prod any cumsum softmax log_softmax".split()
}
SHAPES = (
    ((64,), 0), ((COUNT,), 0), ((256, 256), 0), ((256, 256), 1), ((8, 8192), 1), ((8192, 8), 1),
    ((8192, 8), 0),
    ((16, 64, 64), 1), ((4, 16, 32, 32), (0, 2, 3)), ((4, 16, 32, 32), (2, 3)),
)  # fmt: skip


def reductions() -> Iterator[Case]:
    for name, function in REDUCTIONS.items():
        for dtype in (f32, bf16, f64, i64):
            for shape, dim in SHAPES:
                yield (
                    f"{name} {short(dtype)} {shape} {dim}",
                    lambda x, f=function, d=dim: f(x, d),
                    (values(*shape, dtype=dtype),),
                )


def moves() -> Iterator[Case]:
    rows, elements = torch.randperm(256), torch.randint(256, (256, 256))
    for dtype in (f32, bf16, i64, b8):
        x, images = values(256, 256, dtype=dtype), values(4, 16, 32, 32, dtype=dtype)
        mask = values(256, 256, dtype=b8)
        alone: dict[str, Callable[[Tensor], Any]] = {
            "transpose": lambda x: x.t().contiguous(), "clone": lambda x: x.clone(),
            "flip": lambda x: x.flip(1), "roll": lambda x: x.roll(3, 1),
            "cat": lambda x: torch.cat([x, x], 1),
            "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
            "stack": lambda x: torch.stack([x, x], 2), "repeat": lambda x: x.repeat(2, 2),
            "tril": lambda x: x.tril(), "slice": lambda x: x[:, ::2].contiguous(),
            "unfold": lambda x: x.unfold(1, 8, 4).contiguous(),
            "sort": lambda x: x.sort(1)[0], "zeros": torch.zeros_like,
        }  # fmt: skip
        alone |= {
            f"to {short(t)}": lambda x, t=t: x.to(t)
            for t in (f32, bf16, f64, i32, i64, b8)
            if t is not dtype
        }
        for name, function in alone.items():
            yield f"{name} {short(dtype)}", function, (x,)
        yield (
            f"channels last {short(dtype)}",
            lambda x: x.permute(0, 2, 3, 1).contiguous(),
            (images,),
        )
        yield f"index_select {short(dtype)}", lambda x, i: x.index_select(1, i), (x, rows)
        yield f"x[i] {short(dtype)}", lambda x, i: x[i], (x, rows)
        yield f"gather {short(dtype)}", lambda x, i: x.gather(1, i), (x, elements)
        yield (
            f"scatter {short(dtype)}",
            lambda x, i: x.scatter(1, i, 1),
            (x, elements[:, :64].clone()),
        )
        yield f"index_copy {short(dtype)}", lambda x, i: x.index_copy(0, i, x), (x, rows)
        yield f"index_put {short(dtype)}", lambda x, i: x.index_put((i,), x), (x, rows)
        yield f"masked_fill {short(dtype)}", lambda x, m: x.masked_fill(m, 0), (x, mask)


def layers() -> Iterator[Case]:
    for dtype in (f32, bf16):
        x, images = values(256, 256, dtype=dtype), values(4, 16, 32, 32, dtype=dtype)
        of_rows: dict[str, Callable[[Tensor], Any]] = {
            "layer_norm": lambda x: F.layer_norm(x, (256,)),
            "rms_norm": lambda x: F.rms_norm(x, (256,)), "glu": F.glu, "normalize": F.normalize,
            "mse_loss": lambda x: F.mse_loss(x, x + 1),
        }  # fmt: skip
        of_images: dict[str, Callable[[Tensor], Any]] = {
            "max_pool": lambda x: F.max_pool2d(x, 2),
            "avg_pool": lambda x: F.avg_pool2d(x, 3, 1, 1),
            "adaptive_pool": lambda x: F.adaptive_avg_pool2d(x, 1),
            "group_norm": lambda x: F.group_norm(x, 4),
            "upsample": lambda x: F.interpolate(x, scale_factor=2),
            "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
            "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            "instance_norm": F.instance_norm,
        }  # fmt: skip
        for argument, functions in ((x, of_rows), (images, of_images)):
            yield from (
                (f"{name} {short(dtype)}", function, (argument,))
                for name, function in functions.items()
            )
        ids = torch.randint(256, (256,))
        yield f"embedding {short(dtype)}", F.embedding, (ids, x)
        yield f"embedding_bag {short(dtype)}", F.embedding_bag, (ids.view(32, 8), x)
        yield f"cross_entropy {short(dtype)}", F.cross_entropy, (x, ids)


def padding() -> Iterator[Case]:
    for shape in ((4, 16, 32, 32), (8, 64, 56, 56)):
        for dtype in (f32, bf16):
            for mode in ("constant", "reflect", "replicate", "circular"):
                for pad in ((1, 1, 1, 1), (3, 2, 0, 1)):
                    name = f"pad {mode} {pad} {short(dtype)} {shape}"
                    yield (
                        name,
                        lambda x, p=pad, m=mode: F.pad(x, p, mode=m),
                        (values(*shape, dtype=dtype),),
                    )


def large() -> Iterator[Case]:
    """What exceeds the caches."""
    for dtype in (f32, bf16, i64):
        square, images = values(2048, 2048, dtype=dtype), values(8, 64, 64, 64, dtype=dtype)
        rows, elements = torch.randperm(2048), torch.randint(2048, (2048, 2048))
        of_squares: dict[str, Callable[[Tensor], Any]] = {
            "neg": torch.neg, "abs": torch.abs, "clone": lambda x: x.clone(),
            "flip": lambda x: x.flip(1), "transpose": lambda x: x.t().contiguous(),
            "roll": lambda x: x.roll(3, 1), "cat": lambda x: torch.cat([x, x], 1),
            "stack": lambda x: torch.stack([x, x], 2), "repeat": lambda x: x.repeat(2, 2),
            "tril": lambda x: x.tril(), "to float64": lambda x: x.to(f64),
            "index_select 0": lambda x, i=rows: x.index_select(0, i),
            "index_select 1": lambda x, i=rows: x.index_select(1, i),
            "gather 0": lambda x, i=elements: x.gather(0, i), "gather 1": lambda x,
            i=elements: x.gather(1, i), "diag_embed": lambda x: torch.diag_embed(x[:, :64]),
            "unfold": lambda x: x.unfold(1, 8, 4).contiguous(),
        }  # fmt: skip
        for dim in (0, 1):
            for name in "sum amax argmax any cumsum".split() + ["softmax", "log_softmax"] * (
                dtype is not i64
            ):
                of_squares[f"{name} {dim}"] = lambda x, f=REDUCTIONS[name], d=dim: f(x, d)
        of_images: dict[str, Callable[[Tensor], Any]] = {
            "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
            "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
            "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
        }  # fmt: skip
        if dtype is not i64:
            of_squares |= {"gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh}
            of_squares |= {
                "layer_norm": lambda x: F.layer_norm(x, (2048,)),
                "softmax of one row": lambda x: x.view(-1).softmax(0),
            }
            of_images |= {
                "softmax of channels": lambda x: x.softmax(1),
                "max_pool": lambda x: F.max_pool2d(x, 2),
                "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
            }
        for argument, functions in ((square, of_squares), (images, of_images)):
            for name, function in functions.items():
                yield f"{name} {short(dtype)}, large", function, (argument,)


FAMILIES = {f.__name__: f for f in (unary, binary, reductions, moves, layers, padding, large)}


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Found(NamedTuple):
    ratio: tuple[float, float, float]
    name: str
    eager: float
    ours: float
    kinds: str


def turns(
    function: Callable[..., Any], args: tuple[Tensor, ...], rounds: int
) -> dict[str, np.ndarray]:
    """Seconds of eager's calls and of Ingot's, compiled anew, in each round."""
    ingot.reset()
    compiled = ingot.compile(function)
    compiled(*args)
    calls = {"eager": lambda: function(*args), "ingot": lambda: compiled(*args)}
    return measure.interleave(calls, rounds, torch.device("cpu"))


def measured(
    name: str, function: Callable[..., Any], args: tuple[Tensor, ...], rounds: int
) -> Found | None:
    """One case's figures; None where eager has no such op."""
    try:
        function(*args)
    except Exception:
        return None
    seconds, held = turns(function, args, rounds), []
    for draw in range(DRAWS):
        if not is_slower(interval(seconds)):
            break
        held.append(torch.empty(1000 + 4096 * draw))  # what follows lies elsewhere
        more = turns(function, tuple(map(elsewhere, args)), rounds)
        seconds = {peer: np.concatenate([seconds[peer], more[peer]]) for peer in seconds}
    kinds = " ".join(kernel.kind for kernel in ingot.explain(function)(*args).kernels)
    eager, ours = (statistics.median(seconds[peer].tolist()) for peer in ("eager", "ingot"))
    return Found(interval(seconds), name, eager, ours, kinds)


def interval(seconds: dict[str, np.ndarray]) -> tuple[float, float, float]:
    return measure.ratio_interval(seconds["eager"], seconds["ingot"])


def elsewhere(x: Tensor) -> Tensor:
    """A copy of a tensor with its strides."""
    copy = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    return copy.copy_(x)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sweep", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "families", nargs="*", help=f"some of {', '.join(FAMILIES)}; all of them if none is named"
    )
    parser.add_argument(
        "--rounds", type=positive, default=15, help="rounds of taking turns (%(default)s)"
    )
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.families) - set(FAMILIES):
        parser.error(f"no family {', '.join(sorted(unknown))}")
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    for family in arguments.families or FAMILIES:
        found = []
        with torch.no_grad():
            for name, function, args in FAMILIES[family]():
                try:
                    found.append(measured(name, function, args, arguments.rounds))
                except Exception as problem:
                    print(f"{name}: {last_line(problem)}")
        rows = sorted(row for row in found if row is not None)
        slower = [row for row in rows if is_slower(row.ratio)]
        mean = statistics.geometric_mean([row.ratio[1] for row in rows])
        print(
            f"{family}: {len(rows)} cases, geometric mean {mean:.2f} x eager, {len(slower)} slower",
            flush=True,
        )
        for row in slower:
            times = f"eager {row.eager * 1e6:7.1f} us  ingot {row.ours * 1e6:7.1f} us"
            print(f"  {ratio_text(row.ratio)}  {row.name:40} {times}  {row.kinds}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
