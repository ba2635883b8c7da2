"""Models on a GPU, inference and training: eager, and some modes of Ingot and of torch.compile, in
turns.

    python -m benchmarks.gpu_models [NAME ...] [--rounds 15] [--without-compile] [--jobs 8] [--modes
    MODE ...]

Times are of a call as the caller sees it, many in a row; a training step is a forward and a
backward. Ratios are to eager and to torch.compile in the same mode. Each row runs in a process of
its own: `--jobs` of them compile at a time (so first calls are fair only with `--jobs 1`), and
measure one after the other. `device` is the sum of the device's work in one call, copies included,
as torch's profiler sees it; `peak` is what a call holds at most, inputs included, as torch's
allocator counts it; what `reduce-overhead` replayed, what `max-autotune` chose, and why anything is
left to eager, is printed below the table. Modes are by default "default" and "reduce-overhead".
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import ingot
from benchmarks.training_models import Cells, Classified, Squared, trained
from benchmarks.workloads import WORKLOADS, Made
from examples import gpt2
from ingot.explain.cli import console, milliseconds, positive
from ingot.explain.measure import (
    error,
    interleave,
    peak_bytes,
    ratio_interval,
    synchronize,
    tensors,
    timed,
)
from ingot.explain.report import size_text

WIDTH = 165  # of the table, in columns
# and how they are called in the table
MODES = {"default": "", "reduce-overhead": ", r.-o.", "max-autotune": ", m.-a."}
COMPILERS: Mapping[str, Callable[..., Any]] = {
    "Ingot": ingot.compile,
    "torch.compile": torch.compile,
}


def peer_name(compiler: str, mode: str) -> str:
    return compiler + MODES[mode]


@dataclass(frozen=True)
class Subject:
    """`make()` returns a function or module on the CPU and its arguments; in training, one whose
    result is the loss or is given a gradient like itself."""

    make: Callable[[], Made]
    training: bool = False
    autocast: bool = False
    needs: str = ""

    def context(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.autocast else nullcontext()

    @property
    def missing(self) -> str:
        return self.needs if self.needs and not importlib.util.find_spec(self.needs) else ""


class Step:
    """Forward and backward; the detached result."""

    def __init__(self, fn: Callable[..., Any], leaves: list[Tensor], subject: Subject) -> None:
        self.fn, self.leaves, self.subject = fn, leaves, subject

    def __call__(self, *args: Any) -> Tensor:
        for leaf in self.leaves:
            leaf.grad = None
        with self.subject.context():
            out: Tensor = self.fn(*args)
        out.backward(None if out.ndim == 0 else torch.ones_like(out))
        return out.detach()


# -- what is measured ------------------------------------------------------------------------------


def chain() -> Made:
    """Twenty small kernels that cannot be fused: each wants all that the one before writes."""

    def fn(x: Tensor) -> Tensor:
        for _ in range(10):
            x = x.softmax(0).softmax(1) * 3
        return x

    return fn, (torch.randn(64, 64),)


class Found(nn.Module):
    """What a model of transformers finds in an image: the tensors of these names in its result."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model.eval(), names

    def forward(self, images: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, ...]:
        out = self.model(pixel_values=images) if tokens is None else self.model(tokens, images)
        return tuple(out[name] for name in self.names)


def detector(kind: str, names: tuple[str, ...], size: tuple[int, int]) -> Made:
    """A model with its default sizes whose backbone is ResNet-50, on one image."""
    import transformers

    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = transformers.ResNetConfig(out_features=stages if "Mask" in kind else stages[-1:])
    config = getattr(transformers, kind.rsplit("For", 1)[0] + "Config")(backbone_config=backbone)
    return Found(getattr(transformers, kind)(config), *names), (torch.randn(1, 3, *size),)


def owlvit() -> Made:
    """OwlViT looks for what four descriptions say."""
    import transformers

    model = transformers.OwlViTForObjectDetection(transformers.OwlViTConfig())
    return Found(model, *BOXES), (torch.randn(1, 3, 768, 768), torch.randint(1000, (4, 16)))


def gpt2_training() -> Made:
    """GPT-2 124M at 16 x 1024."""
    tokens = torch.randint(50257, (2, 16, 1024), generator=torch.Generator().manual_seed(0))
    return Classified(trained(gpt2.make()[0])), tuple(tokens)


def image_training(name: str) -> Made:
    """A model of timm on 64 images of 224 x 224, without dropout."""
    import timm

    network = timm.create_model(name, drop_rate=0.0, drop_path_rate=0.0)
    return Classified(network), (torch.randn(64, 3, 224, 224), torch.randint(1000, (64,)))


def norm_training(norm: Callable[..., Tensor], weights: int) -> Made:
    """A norm of 16384 rows of 4096 in bfloat16."""

    def fn(x: Tensor, *weights: Tensor) -> Tensor:
        return norm(x, (4096,), *weights)

    return fn, (
        torch.randn(16384, 4096, dtype=torch.bfloat16),
        *torch.rand(weights, 4096, dtype=torch.bfloat16),
    )


def conv_norm_relu() -> Made:
    """Convolution, BatchNorm and ReLU at 32 x 64 x 56 x 56."""
    network = nn.Sequential(
        nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()
    )
    return Squared(network), (torch.randn(32, 64, 56, 56), torch.randn(32, 64, 56, 56))


class LSTM(nn.Module):
    """cuDNN's LSTM over (time, batch, width); the last state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[1][0][0]


def recurrent(
    network: Callable[[int], nn.Module], steps: int = 64, batch: int = 64, width: int = 512
) -> Made:
    return Squared(network(width)), (torch.randn(steps, batch, width), torch.randn(batch, width))


BOXES = ("logits", "pred_boxes")
MASKS = ("class_queries_logits", "masks_queries_logits")

SUBJECTS: dict[str, Subject] = {
    "chain": Subject(chain),
    **{
        name: Subject(partial(WORKLOADS[name].make, "cuda"), needs=WORKLOADS[name].needs)
        for name in "gpt gpt2 resnet50 bert vit mobilenet_v2 convnext beit segformer".split()
    },
    "detr": Subject(partial(detector, "DetrForObjectDetection", BOXES, (800, 1066)),
        needs="transformers"),
    "conditional_detr": Subject(
        partial(detector, "ConditionalDetrForObjectDetection", BOXES, (800, 1066)),
        needs="transformers"
    ),
    "maskformer": Subject(
        partial(detector, "MaskFormerForInstanceSegmentation", MASKS, (512, 512)),
        needs="transformers"
    ),
    "mask2former": Subject(
        partial(detector, "Mask2FormerForUniversalSegmentation", MASKS, (384, 384)),
        needs="transformers"
    ),
    "owlvit": Subject(owlvit, needs="transformers"),
    "gpt2 training": Subject(gpt2_training, training=True, autocast=True),
    **{
        f"{name} training": Subject(partial(image_training, name), True, True, needs="timm")
        for name in ("resnet50", "efficientnet_b0", "convnext_tiny")
    },
    "lstm training": Subject(
        lambda: recurrent(lambda width: Cells(nn.LSTMCell(width, width))), training=True
    ),
    "cudnn lstm training": Subject(lambda: recurrent(LSTM), training=True),
    "conv_norm_relu training": Subject(conv_norm_relu, training=True),
    "layer_norm training": Subject(lambda: norm_training(F.layer_norm, 2), training=True),
    "rms_norm training": Subject(lambda: norm_training(F.rms_norm, 1), training=True),
    "cross_entropy training": Subject(
        lambda: (F.cross_entropy, (torch.randn(8192, 50304), torch.randint(50304, (8192,)))),
        training=True
    ),
}  # fmt: skip


# -- measuring -------------------------------------------------------------------------------------


def work(name: str, rounds: int, compilers: list[str], modes: list[str]) -> None:
    """Compile the row, say so on a line, wait for one, and measure; the figures are the last line,
    as JSON."""
    subject = SUBJECTS[name]
    torch.manual_seed(0)
    fn, args = subject.make()
    fn = fn.cuda() if isinstance(fn, nn.Module) else fn
    args = tuple(arg.cuda() for arg in args)
    leaves = list(fn.parameters()) if isinstance(fn, nn.Module) else []
    if subject.training and not leaves:
        leaves = [arg.requires_grad_() for arg in args if arg.is_floating_point()]

    def called(compiled: Callable[..., Any]) -> Callable[[], Any]:
        return partial(Step(compiled, leaves, subject) if subject.training else compiled, *args)

    made = {"eager": fn}
    for compiler, mode in product(compilers, modes):
        made[peer_name(compiler, mode)] = COMPILERS[compiler](
            fn, mode=None if mode == "default" else mode
        )
    calls = {peer: called(compiled) for peer, compiled in made.items()}
    device = torch.device("cuda", torch.cuda.current_device())
    found: dict[str, Any] = {peer: {} for peer in calls}
    with torch.set_grad_enabled(subject.training):
        expected = calls["eager"]()
        for peer, call in calls.items():
            result, found[peer]["first"] = timed(call, device)
            found[peer]["error"] = error(result, expected)
            for _ in range(4):
                result = call()
            del result
        print("ready", flush=True)
        sys.stdin.readline()
        seconds = interleave(calls, rounds, device)
        for peer, call in calls.items():
            found[peer]["seconds"] = seconds[peer].tolist()
            found[peer]["device"] = device_seconds(call)
            found[peer]["peak"] = peak_bytes(call, [*tensors(args), *leaves], device, before=2)
        with subject.context():
            reports = [ingot.explain(made[peer_name("Ingot", mode)])(*args) for mode in modes]
            found["notes"] = [
                line
                for r in reports
                for line in (*(b.reason for b in r.breaks), *r.cuda_graphs, *r.tuned)
            ]
        synchronize(device)
    print(json.dumps(found))


def device_seconds(call: Callable[[], Any], calls: int = 5) -> float:
    """Seconds of the device's work in one call."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    work = [event for event in profiled.events() if event.device_type == DeviceType.CUDA]
    return sum(event.device_time for event in work) / calls / 1e6


def start(name: str, rounds: int, compilers: list[str], modes: list[str]) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_models",
        name,
        "--rounds",
        str(rounds),
        "--worker",
        *compilers,
    ]
    command += ["--modes", *modes]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def measured(worker: subprocess.Popen[str]) -> dict[str, Any] | None:
    """The figures of a row that is ready; None where its process failed."""
    lines = worker.communicate("\n")[0].splitlines()
    return json.loads(lines[-1]) if worker.returncode == 0 else None


def wait(worker: subprocess.Popen[str]) -> None:
    assert worker.stdout is not None
    while (line := worker.stdout.readline()) and line != "ready\n":
        pass


def over(found: Mapping[str, Any], peer: str, other: str) -> tuple[float, float, float] | None:
    """How many times faster `peer` is than `other`, with its interval; None where one of them was
    not measured."""
    if not {peer, other} <= found.keys():
        return None
    return ratio_interval(*(np.array(found[name]["seconds"]) for name in (other, peer)))


def rows(name: str, found: Mapping[str, Any]) -> Iterator[list[str]]:
    theirs = {peer_name("Ingot", mode): peer_name("torch.compile", mode) for mode in MODES}
    for peer in [peer for peer in found if peer != "notes"]:
        figures = found[peer]
        ratios = [over(found, peer, "eager"), over(found, peer, theirs.get(peer, ""))]
        yield [
            name if peer == "eager" else "",
            peer,
            f"{figures['first']:.2f}",
            milliseconds(float(np.median(figures["seconds"]))),
            milliseconds(figures["device"]),
            *(
                "" if ratio is None else "{1:.2f} ({0:.2f}-{2:.2f})".format(*ratio)
                for ratio in ratios
            ),
            size_text(figures["peak"]),
            f"{figures['error']:.1e}",
        ]


def show(found: Mapping[str, dict[str, Any]]) -> Table:
    table = Table(title=f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for heading in (
        "row",
        "peer",
        "first s",
        "ms",
        "device ms",
        "x eager",
        "x torch.compile",
        "peak",
        "differs by",
    ):
        table.add_column(
            heading, no_wrap=True, justify="left" if heading in ("row", "peer") else "right"
        )
    for name, peers in found.items():
        for cells in rows(name, peers):
            table.add_row(*cells)
        table.add_section()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        default=[name for name, subject in SUBJECTS.items() if not subject.missing],
    )
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument(
        "--jobs", type=positive, default=8, help="rows that compile at a time (%(default)s)"
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["default", "reduce-overhead"])
    parser.add_argument("--without-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        return work(options.names[0], options.rounds, options.worker, options.modes)
    compilers = [
        name for name in COMPILERS if not (options.without_compile and name == "torch.compile")
    ]
    found: dict[str, dict[str, Any]] = {}
    with suppress(KeyboardInterrupt):  # what was measured is shown
        for begin in range(0, len(options.names), options.jobs):
            together = options.names[begin : begin + options.jobs]
            workers = {
                name: start(name, options.rounds, compilers, options.modes) for name in together
            }
            for worker in workers.values():
                wait(worker)
            for name, worker in workers.items():
                if figures := measured(worker):
                    found[name] = figures
    console().print(show(found), width=WIDTH)
    for mode in options.modes:
        names = peer_name("Ingot", mode), peer_name("torch.compile", mode)
        if ratios := [ratio[1] for figures in found.values() if (ratio := over(figures, *names))]:
            print(
                f"{mode}: {geometric_mean(ratios):.2f} x torch.compile in geometric mean of "
                f"{len(ratios)} rows"
            )
    for name, figures in found.items():
        for line in figures["notes"]:
            print(f"{name}: {line}")
    if missing := [name for name in options.names if name not in found]:
        print("failed:", ", ".join(missing))


if __name__ == "__main__":
    main()
