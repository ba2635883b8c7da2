"""A Llama-like decoder that makes one token, and its parts: eager, torch.compile, Ingot in turns.

    python -m benchmarks.decode [ROW ...] [--rounds 5] [--device cuda] [--without-compile]
        [--kernels]

A row's columns are the device's ms of one step as torch's profiler sees it, the ms of a step as the
caller sees it, and the relative distance of the results to those of float32. `bytes` is the time
that what a step must read takes at the rate of a copy, measured in the same run: weights, keys and
values, each once. Rows of a whole decoder also say how many of the tokens are those of float32.
With `--kernels` the steps of Ingot's plan are printed with the bytes that they read and write, and
the device's work by name. `--tiny` makes everything small, for a CPU.

torch.compile runs in both modes but for whole decoders, which compile long: there it runs replayed
(`--all-modes` for both). With `--autotune` there is Ingot's `mode="max-autotune"` as well, and what
it chose.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import ingot
from ingot.compiler import Compiler
from ingot.explain.cli import console, positive
from ingot.explain.measure import batch_seconds, error, repetitions, synchronize
from ingot.explain.report import Report, size_text


class Sizes(NamedTuple):
    """Of a decoder; `ffn` is the width of its gated layers."""

    layers: int
    width: int
    heads: int
    shared: int  # heads of keys and values
    ffn: int
    words: int
    cache: int
    batch: int  # of the rows with many requests

    @property
    def head(self) -> int:
        return self.width // self.heads


LLAMA = Sizes(16, 2048, 32, 8, 8192, 128256, 2048, 32)
TINY = Sizes(2, 64, 4, 2, 128, 320, 64, 4)


# -- the decoder -----------------------------------------------------------------------------------


def repeated(x: Tensor, times: int) -> Tensor:
    """Heads of keys or values, one after the other, for the heads of queries that share them."""
    batch, heads, length, width = x.shape
    if times == 1:
        return x
    x = x[:, :, None, :, :].expand(batch, heads, times, length, width)
    return x.reshape(batch, heads * times, length, width)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def angles(position: Tensor, sizes: Sizes, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines (token, head width)."""
    steps = torch.arange(0, sizes.head, 2, device=position.device) / sizes.head
    turned = (position[:, None].float() * 5e5**-steps).repeat(1, 2)
    return turned.cos().to(dtype), turned.sin().to(dtype)


class Norm(nn.Module):
    """An RMS norm as models write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def linear(rows: int, columns: int) -> nn.Linear:
    return nn.Linear(rows, columns, bias=False)


class Attention(nn.Module):
    """Attention of one token to the cache; keys and values are repeated, or shared by the library
    (`grouped`)."""

    def __init__(self, sizes: Sizes, batch: int, grouped: bool) -> None:
        super().__init__()
        self.sizes, self.grouped = sizes, grouped
        shared = sizes.shared * sizes.head
        self.query, self.out = linear(sizes.width, sizes.width), linear(sizes.width, sizes.width)
        self.key, self.value = linear(sizes.width, shared), linear(sizes.width, shared)
        shape = (batch, sizes.shared, sizes.cache, sizes.head)
        self.register_buffer("keys", torch.randn(shape))
        self.register_buffer("values", torch.randn(shape))

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, position: Tensor
    ) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.sizes.head)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query, key = rotated(query, cos, sin), rotated(key, cos, sin)
        keys = self.keys.index_copy_(2, position, key)
        values = self.values.index_copy_(2, position, value)
        if not self.grouped:
            times = self.sizes.heads // self.sizes.shared
            keys, values = repeated(keys, times), repeated(values, times)
        heads = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, enable_gqa=self.grouped
        )
        return self.out(heads.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate, self.up = linear(sizes.width, sizes.ffn), linear(sizes.width, sizes.ffn)
        self.down = linear(sizes.ffn, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, sizes: Sizes, batch: int, grouped: bool) -> None:
        super().__init__()
        self.before, self.between = Norm(sizes.width), Norm(sizes.width)
        self.attention, self.gated = Attention(sizes, batch, grouped), Gated(sizes)

    def forward(self, x: Tensor, *places: Tensor) -> Tensor:
        x = x + self.attention(self.before(x), *places)
        return x + self.gated(self.between(x))


class Head(nn.Module):
    """The most likely word behind each last token."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm, self.words = Norm(sizes.width), linear(sizes.width, sizes.words)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(self.norm(x))[:, -1].argmax(-1)


class Decoder(nn.Module):
    """One step of generation: tokens (batch, 1) at a `position` (1), and what follows them. Keys
    and values are written into the caches."""

    def __init__(self, sizes: Sizes, batch: int, grouped: bool) -> None:
        super().__init__()
        self.sizes = sizes
        self.words = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes, batch, grouped) for _ in range(sizes.layers))
        self.head = Head(sizes)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        x = self.words(tokens)
        cos, sin = angles(position, self.sizes, x.dtype)
        mask = torch.arange(self.sizes.cache, device=x.device) <= position[:, None]
        for layer in self.layers:
            x = layer(x, cos, sin, mask[None, None], position)
        return self.head(x)

    def written(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """What the step wrote into the last layer's caches, which all layers before decide."""
        last = self.layers[-1].attention
        return last.keys[:, :, position].clone(), last.values[:, :, position].clone()


class GatedLayers(nn.Module):
    """Layers without attention: their weights do not fit into caches."""

    def __init__(self, sizes: Sizes, count: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm(sizes.width) for _ in range(count))
        self.gated = nn.ModuleList(Gated(sizes) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for norm, gated in zip(self.norms, self.gated):
            x = x + gated(norm(x))
        return x


class Attend(nn.Module):
    """Attention alone, in one of the ways of writing shared keys and values."""

    def __init__(self, grouped: bool, shared: int) -> None:
        super().__init__()
        self.grouped, self.shared = grouped, shared

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        if not self.grouped:
            key, value = repeated(key, self.shared), repeated(value, self.shared)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=self.grouped
        )


# -- rows ------------------------------------------------------------------------------------------


class Subject(NamedTuple):
    """What a row runs: a module and its arguments, and the bytes that a step must read."""

    module: nn.Module
    args: tuple[Any, ...]
    bytes: int


Make = Callable[[Sizes, Any], Subject]


def weight_bytes(module: nn.Module) -> int:
    return sum(p.nbytes for p in module.parameters())


def decoder(sizes: Sizes, kind: Any, batch: int | None, grouped: bool = False) -> Subject:
    batch = batch or sizes.batch
    with torch.device(kind["device"]):
        module = Decoder(sizes, batch, grouped).to(kind["dtype"])
        tokens = torch.randint(sizes.words, (batch, 1))
        position = torch.tensor([sizes.cache - 3])
    bytes = weight_bytes(module) - weight_bytes(module.words)
    return Subject(module, (tokens, position), bytes + sum(b.nbytes for b in module.buffers()))


def attention(sizes: Sizes, kind: Any, masked: bool, grouped: bool) -> Subject:
    query = torch.randn(sizes.batch, sizes.heads, 1, sizes.head, **kind)
    shape = (sizes.batch, sizes.shared, sizes.cache, sizes.head)
    args = [query, torch.randn(shape, **kind), torch.randn(shape, **kind)]
    if masked:
        lengths = torch.randint(sizes.cache // 2, sizes.cache, (sizes.batch, 1, 1, 1))
        seen = torch.arange(sizes.cache) < lengths
        args.append(seen.to(kind["device"]))
    bytes = sum(t.nbytes for t in args)
    return Subject(Attend(grouped, sizes.heads // sizes.shared), tuple(args), bytes)


def gated(sizes: Sizes, kind: Any, rows: int) -> Subject:
    with torch.device(kind["device"]):
        module = GatedLayers(sizes, 3).to(kind["dtype"])
    return Subject(module, (torch.randn(rows, 1, sizes.width, **kind),), weight_bytes(module))


def head(sizes: Sizes, kind: Any, rows: int) -> Subject:
    with torch.device(kind["device"]):
        module = Head(sizes).to(kind["dtype"])
    return Subject(module, (torch.randn(rows, 1, sizes.width, **kind),), weight_bytes(module))


ROWS: dict[str, Make] = {
    "decoder-1": partial(decoder, batch=1),
    "decoder-32": partial(decoder, batch=None),
    "decoder-32-grouped": partial(decoder, batch=None, grouped=True),
    "attention-masked": partial(attention, masked=True, grouped=True),
    "attention-masked-repeated": partial(attention, masked=True, grouped=False),
    "attention": partial(attention, masked=False, grouped=True),
    "gated-1": partial(gated, rows=1),
    "gated-8": partial(gated, rows=8),
    "gated-32": partial(gated, rows=32),
    "gated-64": partial(gated, rows=64),
    "head-1": partial(head, rows=1),
    "head-32": partial(head, rows=32),
}


# -- what is measured ------------------------------------------------------------------------------


@dataclass
class Peer:
    """A compiler in a mode, and what was measured of it."""

    name: str
    call: Callable[[], Tensor]
    compiled: Any
    first: float = 0.0
    error: float = math.nan
    tokens: str = ""
    device: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


def device_work(call: Callable[[], Any], calls: int) -> list[Any]:
    """The events of the device's work of so many calls."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    return [event for event in profiled.events() if event.device_type == DeviceType.CUDA]


def device_seconds(call: Callable[[], Any], calls: int = 3) -> float:
    """Seconds of the device's work in one call."""
    return sum(event.device_time for event in device_work(call, calls)) / calls / 1e6


def bandwidth(device: torch.device) -> float:
    """Bytes per second of a copy, read and written ones together."""
    count = 1 << (29 if device.type == "cuda" else 25)
    source = torch.ones(count, dtype=torch.int16, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        times.append(batch_seconds(lambda: target.copy_(source), 3, device))
    return 2 * source.nbytes / statistics.median(times)


def modes_of(row: str, arguments: argparse.Namespace) -> dict[str, Callable[[Any], Any]]:
    """The peers of a row, by name."""
    peers: dict[str, Callable[[Any], Any]] = {"eager": lambda module: module}
    replayed = {"mode": "reduce-overhead"}
    if not arguments.without_compile:
        if arguments.all_modes or not row.startswith("decoder"):
            peers["torch.compile"] = torch.compile
        peers["torch.compile, r.-o."] = partial(torch.compile, **replayed)
    peers["Ingot"] = ingot.compile
    if arguments.device != "cpu":
        peers["Ingot, r.-o."] = partial(ingot.compile, **replayed)
    if arguments.autotune:
        peers["Ingot, m.-a."] = partial(ingot.compile, mode="max-autotune")
    return peers


def with_error(peer: Peer, subject: Subject, result: Tensor, exact: Any) -> None:
    """Notes how far a peer's results are from those of float32."""
    module = subject.module
    if isinstance(module, Decoder):
        tokens, written = exact
        peer.tokens = f"{(result == tokens).sum().item()}/{tokens.numel()}"
        peer.error = error(module.written(subject.args[1]), written)
    elif isinstance(module, Head):
        peer.tokens = f"{(result == exact).sum().item()}/{exact.numel()}"
    else:
        peer.error = error(result, exact)


def exact_results(subject: Subject) -> Any:
    """What float32 gives, in eager."""
    module = copy.deepcopy(subject.module).float()
    args = []
    for t in subject.args:
        args.append(t.float() if t.is_floating_point() else t)
    result = module(*args)
    if isinstance(module, Decoder):
        return result, module.written(args[1])
    return result


def measure(row: str, sizes: Sizes, arguments: argparse.Namespace) -> tuple[Subject, list[Peer]]:
    device = torch.device(arguments.device)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    torch.compiler.reset()
    subject = ROWS[row](sizes, {"device": device, "dtype": dtype})
    exact = exact_results(subject)
    peers = []
    for name, compiler in modes_of(row, arguments).items():
        compiled = compiler(subject.module)
        peer = Peer(name, partial(compiled, *subject.args), compiled)
        start = time.perf_counter()
        result = peer.call()
        synchronize(device)
        peer.first = time.perf_counter() - start
        with_error(peer, subject, result, exact)
        for _ in range(3):
            peer.call()
        peers.append(peer)
    counts = [repetitions(peer.call, device) for peer in peers]
    for _ in range(arguments.rounds):
        for peer, count in zip(peers, counts):
            peer.wall.append(batch_seconds(peer.call, count, device))
            if device.type == "cuda":
                peer.device.append(device_seconds(peer.call))
    return subject, peers


# -- what is printed -------------------------------------------------------------------------------


def middle(times: Sequence[float]) -> float:
    return statistics.median(times) if times else math.nan


def add_rows(table: Table, row: str, subject: Subject, peers: Iterable[Peer], rate: float) -> None:
    ideal = subject.bytes / rate
    ours = math.nan
    for peer in peers:
        if peer.name.startswith("Ingot"):
            ours = middle(peer.device or peer.wall)
    for peer in peers:
        device, wall = middle(peer.device), middle(peer.wall)
        best = middle(peer.device or peer.wall)
        texts = [row, peer.name, f"{peer.first:.1f}", f"{device * 1e3:.4f}", f"{wall * 1e3:.4f}"]
        texts += [f"{ideal * 1e3:.4f}", f"{best / ideal:.2f}", f"{best / ours:.2f}"]
        table.add_row(*texts, f"{peer.error:.1e}", peer.tokens)
        print("  ".join([*texts, f"{peer.error:.1e}", peer.tokens]), flush=True)


def report_of(peer: Peer) -> Report:
    compiler = Compiler.of(peer.compiled)
    assert compiler is not None
    return Report.from_compilations(compiler.compilations)


def print_kernels(row: str, peers: Iterable[Peer], rate: float, on_device: bool) -> None:
    """The steps of Ingot's plan, those of one name together, and the device's work by name."""
    (peer, *_) = [p for p in peers if p.name == "Ingot"]
    report = report_of(peer)
    steps = defaultdict[tuple[str, str], list[int]](lambda: [0, 0, 0])
    for kernel in report.kernels:
        total = steps[kernel.name, kernel.kind]
        total[0] += 1
        total[1] += kernel.reads_bytes
        total[2] += kernel.writes_bytes
    print(f"{row}: steps of the plan: number, kind, name, read, written, us at a copy's rate")
    for (name, kind), (count, read, written) in steps.items():
        at_rate = (read + written) / rate * 1e6
        moved = f"{size_text(read):>9} {size_text(written):>9} {at_rate:9.1f}"
        print(f"  {count:4d} {kind:6} {name:50.50} {moved}", flush=True)
    if not on_device:
        return
    calls = 3
    times = defaultdict[str, list[float]](list)
    for event in device_work(peer.call, calls):
        times[event.name].append(event.device_time)
    print(f"{row}: the device's work in a step: number, name, us in all, us of the median one")
    for name, of_name in sorted(times.items(), key=lambda item: -sum(item[1])):
        each = statistics.median(of_name)
        shown = f"{sum(of_name) / calls:9.1f} {each:8.2f}"
        print(f"  {len(of_name) / calls:6.1f} {name:90.90} {shown}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for flag in ("tiny", "without-compile", "all-modes", "autotune", "kernels"):
        parser.add_argument(f"--{flag}", action="store_true")
    arguments = parser.parse_args(argv)
    for name in arguments.rows:
        if name not in ROWS:
            parser.error(f"no row {name!r}; there are {', '.join(ROWS)}")
    sizes = TINY if arguments.tiny else LLAMA
    table = Table("row", "peer", "first, s", "device ms", "wall ms", "bytes ms", "x bytes")
    for column in ("x Ingot", "error", "tokens"):
        table.add_column(column)
    with torch.no_grad():
        rate = bandwidth(torch.device(arguments.device))
        print(f"a copy moves {rate / 1e12:.3f} TB/s", flush=True)
        for row in arguments.rows or ROWS:
            subject, peers = measure(row, sizes, arguments)
            add_rows(table, row, subject, peers, rate)
            if arguments.kernels:
                print_kernels(row, peers, rate, arguments.device != "cpu")
            for peer in peers:
                if peer.name == "Ingot, m.-a.":
                    print("\n".join(dict.fromkeys(report_of(peer).tuned)), flush=True)
            del subject, peers
    console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
