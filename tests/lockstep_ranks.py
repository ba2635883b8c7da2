"""What one rank of two finds where ranks compile programs that differ: see test_lockstep.py."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import ingot

LOGGED: list[str] = []


class Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        LOGGED.append(record.getMessage())


def summed(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def summed_elsewhere(x: Tensor) -> Tensor:
    """The same collective, of another program."""
    y = torch.cat([x, x])[: x.shape[0]] * 3
    dist.all_reduce(y)
    return y.sin()


def summed_twice(x: Tensor) -> Tensor:
    y, z = x * 2, x * 3
    dist.all_reduce(y)
    dist.all_reduce(z)
    return y * z


def summed_twice_with_a_break(x: Tensor) -> Tensor:
    y, z = x * 2, x * 3
    dist.all_reduce(y)
    torch.manual_seed(0)
    dist.all_reduce(z)
    return y * z


def uneven(x: Tensor) -> Tensor:
    """Each gives one row to rank 0, and three to rank 1."""
    rows = 3 if dist.get_rank() else 1
    taken = x.new_empty(2 * rows, 2)
    dist.all_to_all_single(taken, x[:4] * 2, [rows] * 2, [1, 3])
    return taken


def of_a_root(x: Tensor) -> Tensor:
    rank = dist.get_rank()
    parts = [torch.empty_like(x) for _ in range(2)] if rank == 0 else None
    dist.gather(x * 2, parts)
    return x + 1


def talking(x: Tensor) -> Tensor:
    """Messages, which gloo numbers as well."""
    y = x * 2
    if dist.get_rank() == 0:
        dist.isend(y, 1).wait()  # type: ignore[union-attr]
        dist.isend(y, 1).wait()  # type: ignore[union-attr]
    else:
        dist.irecv(y, 0).wait()  # type: ignore[union-attr]
        dist.irecv(y, 0).wait()  # type: ignore[union-attr]
    dist.all_reduce(y)
    return y


def differentiated(x: Tensor) -> Tensor:
    from torch.distributed import _functional_collectives as functional

    x = x.detach().requires_grad_()
    functional.all_reduce(x * 2, "sum", dist.group.WORLD).sin().sum().backward()  # type: ignore[arg-type]
    assert x.grad is not None
    return x.grad


Function = Callable[[Tensor], Tensor]
compiled = ingot.compile


def grows(function: Function) -> Function:
    """Compiled at three sizes on one rank, and for all sizes on the other."""
    return ingot.compile(function, dynamic=dist.get_rank() == 0)


# what the ranks run, which is right
ALIKE: dict[str, tuple[Any, Any]] = {
    "the same": (compiled(summed), compiled(summed)),
    "another program": (compiled(summed), compiled(summed_elsewhere)),
    "eager on one": (compiled(summed), summed),
    "eager on the other": (summed_twice, compiled(summed_twice)),
    "a break on one": (compiled(summed_twice), compiled(summed_twice_with_a_break)),
    "disabled on one": (compiled(summed), compiled(ingot.disable(summed))),
    "uneven parts": (compiled(uneven), compiled(uneven)),
    "a root": (compiled(of_a_root), compiled(of_a_root)),
    "messages": (compiled(talking), compiled(talking)),
    "gradients": (compiled(differentiated), compiled(differentiated)),
}


def run_alike() -> dict[str, list[str]]:
    """By name: what was logged while ranks ran what belongs together."""
    logging.getLogger("ingot.lockstep").addHandler(Listener())
    found, rank = {}, dist.get_rank()
    for name, pair in ALIKE.items():
        for rows in (4, 4, 6):
            pair[rank](torch.ones(rows, 2))
        found[name] = list(LOGGED)
        LOGGED.clear()
    for rows in (4, 6, 8, 6):
        grows(summed)(torch.ones(rows, 2))
    found["sizes"] = list(LOGGED)
    return found


def run_different() -> list[str]:
    """The text of the error, with its notes, where ranks issue different collectives."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=3))

    def zero(x: Tensor) -> Tensor:
        y = x * 2
        dist.all_reduce(y, group=group)
        return y

    def one(x: Tensor) -> Tensor:
        y = x * 2
        dist.broadcast(y, 0, group=group)
        dist.all_reduce(y, dist.ReduceOp.MAX, group=group)
        return y

    function = ingot.compile(one if dist.get_rank() else zero, fullgraph=True)
    x = torch.ones(8 if dist.get_rank() else 4)
    try:
        function(x)
    except RuntimeError as error:
        return [str(error), *getattr(error, "__notes__", ())]
    return []
