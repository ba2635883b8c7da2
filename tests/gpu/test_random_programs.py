"""Random programs (tests/random_programs.py) on the device, compiled and in eager: values, layouts,
what is written to arguments, and gradients.

`python -m tests.gpu.test_random_programs COUNT [FIRST] [SECONDS]` runs more of them.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import ingot
from ingot.debugging.rounding import RUNS, Moved
from tests import random_programs_indexing  # noqa: F401  (more statements)
from tests.oracle import ignore_warnings
from tests.random_gradients import Asked
from tests.random_programs_writer import RandomProgram, random_program
from tests.test_random_programs import ValuesDiffer, compare_tensors

_MAKERS = (
    "arange zeros ones full tensor empty rand randn linspace eye randint randperm scalar_tensor"
).split()
_MADE = re.compile(rf"\btorch\.({'|'.join(_MAKERS)})\(")

NONE = torch.zeros(0, dtype=torch.bool)  # where there is no gradient

_MAKER = """
def on_device_{0}(*args, **kwargs):
    return torch.{0}(*args, device=DEVICE, **kwargs)
"""


def on_device(program: RandomProgram, device: str) -> Callable[..., Any]:
    """The program's function, which makes its tensors on a device."""
    text = _MADE.sub(r"on_device_\1(", program.text)
    names = {**program.namespace, "DEVICE": device}
    exec("".join(map(_MAKER.format, _MAKERS)), names)
    exec(compile(text, f"<random program {program.seed}>", "exec"), names)
    return names["program"]


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of tensors of its own, which it may write to."""

    def program(*args: Any) -> Any:
        return function(
            *[a * 1 if isinstance(a, torch.Tensor) and a.requires_grad else a for a in args]
        )

    return program


def leaves_of(args: Sequence[Any]) -> int:
    return sum(isinstance(a, torch.Tensor) and a.is_floating_point() for a in args)


def moved(args: Sequence[Any], device: str, asked: Asked | None) -> list[Any]:
    """Copies on the device, which share memory as the arguments do, and require the gradients that
    are asked for."""
    numbers = itertools.count()
    storages: dict[int, torch.Tensor] = {}
    result: list[Any] = []
    for a in args:
        if isinstance(a, torch.Tensor):
            storage = a.untyped_storage()
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]
            flat = storages.setdefault(storage._cdata, whole.to(device, copy=True)).view(a.dtype)
            a = flat.as_strided(a.shape, a.stride(), a.storage_offset())
            grad = a.is_floating_point() and next(numbers) not in asked.frozen if asked else False
            a = a.detach().requires_grad_(grad)
        result.append(a)
    return result


def outcome(
    function: Callable[..., Any],
    args: Sequence[Any],
    device: str,
    asked: Asked | None = None,
    call: int = 0,
) -> tuple[list[torch.Tensor], int]:
    """What a call gives and writes, and the gradients `asked` for, which are so many of the
    last."""
    given = moved(args, device, asked)
    torch.manual_seed(0)
    found = [t for t in pytree.tree_leaves(function(*given)) if isinstance(t, torch.Tensor)]
    wanted = [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]
    history = [t for t in found if t.requires_grad]
    gradients: list[torch.Tensor] = []
    if history and asked is not None:
        tangents = [
            torch.linspace(0.5, 1, t.numel()).to(t.device, t.dtype).view(t.shape) for t in history
        ]
        for grads in asked.gradients(call, history, wanted, tangents):
            if isinstance(grads, RuntimeError):
                raise grads
            gradients += [NONE if g is None else g for g in grads]
    here = [*found, *(t for t in given if isinstance(t, torch.Tensor)), *gradients]
    return [t.detach().as_subclass(torch.Tensor) for t in here], len(gradients)


class InRange(TorchDispatchMode):
    """Raises an error for indices of what is added to elements, also where there are none: eager
    looks at them on a GPU, where an error is the end of all work, and not on a CPU."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "index_put" in op._schema.name and True in args[3:]:
            for size, index in zip(args[0].shape, args[1]):
                if (
                    index is not None
                    and index.dtype in (torch.int32, torch.int64)
                    and index.numel()
                ):
                    if index.max() >= size or index.min() < -size:
                        raise IndexError("index is out of bounds")
        return op(*args, **kwargs or {})


def on_cpu(t: torch.Tensor) -> torch.Tensor:
    """With its strides; elements may share memory."""
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else 0
    return t.as_strided((span,), (1,)).cpu().as_strided(t.shape, t.stride(), 0)


def examine(seed: int, device: str) -> str | None:
    """How a program differs from eager; "" where it does not, None where eager raises an error."""
    program = random_program(seed)
    asked = Asked(seed, leaves_of(program.arguments(0))) if seed % 2 == 1 else None
    function, host = on_device(program, device), on_device(program, "cpu")
    if asked is not None:
        function, host = with_gradients(function), with_gradients(host)
    compiled = ingot.compile(function)
    for draw, other in ((0, False), (1, False), (2, True), (3, False)):
        try:  # on the CPU: an index out of range is the end of all work on a GPU
            with InRange():
                outcome(on_device(program, "cpu"), program.arguments(draw, other), "cpu")
            expected, gradients = outcome(
                function, program.arguments(draw, other), device, asked, draw
            )
        except torch.AcceleratorError as problem:
            raise RuntimeError(f"seed {seed}: eager leaves the device unusable") from problem
        except Exception:
            return None if draw == 0 else ""
        try:
            found, _ = outcome(compiled, program.arguments(draw, other), device, asked, draw)
        except Exception as problem:
            return f"{type(problem).__name__}: {problem}"
        if len(found) != len(expected):
            return f"{len(found)} tensors, eager {len(expected)}"
        again = partial(outcome, function, program.arguments(draw, other), device, asked, draw)
        beside = partial(outcome, host, program.arguments(draw, other), "cpu", asked, draw)
        try:
            compare(found, expected, len(expected) - gradients, again, beside)
        except AssertionError as problem:
            return f"call {draw}{f', {asked}' if asked else ''}: {problem}"
    return ""


def compare(
    found: Any, expected: Any, laid_out: int, again: Callable[[], Any], beside: Callable[[], Any]
) -> None:
    """The layouts of the first tensors are compared, too: those of gradients may differ
    (docs/limits.md). Gradients that are not eager's, `again` with operands moved, are those that it
    has on a CPU, `beside`: some of its kernels for GPUs are wrong."""
    others: list[list[torch.Tensor]] = []
    for k, (a, e) in enumerate(zip(found, expected)):
        same = partial(compare_tensors, on_cpu(a), what=f"tensor {k}", layout=k < laid_out)
        try:
            same(on_cpu(e), moved=[])
        except ValuesDiffer:
            if not others:
                for run in range(4 * RUNS):  # of hundreds of elements, each must be seen to flip
                    # some kernels refuse what noise makes
                    with suppress(RuntimeError), Moved(run, apart=run % 2 == 1):
                        others.append(again()[0])
            try:
                same(on_cpu(e), moved=[on_cpu(o[k]) for o in others])
            except ValuesDiffer:
                if k < laid_out or not agrees(same, beside()[0], k):
                    raise


def agrees(same: Callable[..., None], tensors: Sequence[torch.Tensor], k: int) -> bool:
    try:
        same(tensors[k], moved=[])
    except (AssertionError, IndexError):
        return False
    return True


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_random_programs(first: int) -> None:
    with warnings.catch_warnings():
        ignore_warnings()
        wrong = {
            seed: found for seed in range(first, first + 10) if (found := examine(seed, "cuda"))
        }
    ingot.reset()
    assert not wrong


def main(count: int, first: int = 0, seconds: int = 3600, device: str = "cuda") -> None:
    end, ran, skipped = time.monotonic() + seconds, 0, 0
    ignore_warnings()
    for seed in range(first, first + count):
        if time.monotonic() > end:
            break
        found = examine(seed, device)
        ran, skipped = ran + (found is not None), skipped + (found is None)
        if found:
            print(f"seed {seed}: {found[:600]}", flush=True)
        ingot.reset()
    print(f"{ran} programs, of {skipped} more eager raises an error", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:5])
