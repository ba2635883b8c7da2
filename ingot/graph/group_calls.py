"""Calls of process groups that torch has no functional operator for, as operators.

Each begins what torch.distributed's function of its name begins, on copies of the tensors that it
would write, and gives these copies. `_c10d_functional.wait_tensor` waits for them, as for results
of torch's own functional operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ingot.torch_private import register_work, resolve_process_group

_ARGUMENTS = "Tensor[] given, Tensor[] received, int peer, str reduction, int tag, str group"

_library = torch.library.Library("ingot_c10d", "DEF")
_library.define("barrier(str group) -> ()")


def _gather(given: list[Tensor], received: list[Tensor], peer: int, **options: Any) -> Any:
    options = _without(options, "op", "tag")
    return torch.distributed.gather(
        given[0], received or None, group_dst=peer, async_op=True, **options
    )


def _scatter(given: list[Tensor], received: list[Tensor], peer: int, **options: Any) -> Any:
    options = _without(options, "op", "tag")
    return torch.distributed.scatter(
        received[0], given or None, group_src=peer, async_op=True, **options
    )


def _reduce(given: list[Tensor], received: list[Tensor], peer: int, **options: Any) -> Any:
    options = _without(options, "tag")
    return torch.distributed.reduce(received[0], group_dst=peer, async_op=True, **options)


def _reduce_scatter(given: list[Tensor], received: list[Tensor], peer: int, **options: Any) -> Any:
    options = _without(options, "tag")
    return torch.distributed.reduce_scatter(received[0], given, async_op=True, **options)


def _all_gather(given: list[Tensor], received: list[Tensor], peer: int, **options: Any) -> Any:
    options = _without(options, "op", "tag")
    return torch.distributed.all_gather(received, given[0], async_op=True, **options)


def _all_to_all(given: list[Tensor], received: list[Tensor], peer: int, **options: Any) -> Any:
    options = _without(options, "op", "tag")
    return torch.distributed.all_to_all(received, given, async_op=True, **options)


def _send(given: list[Tensor], received: list[Tensor], peer: int, **options: Any) -> Any:
    return torch.distributed.isend(given[0], group_dst=peer, **_without(options, "op"))


def _receive(given: list[Tensor], received: list[Tensor], peer: int, **options: Any) -> Any:
    return torch.distributed.irecv(received[0], group_src=peer, **_without(options, "op"))


def _without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        del options[name]
    return options


def _implementation(begin: Callable[..., Any]) -> Callable[..., list[Tensor]]:
    def run(
        given: list[Tensor], received: list[Tensor], peer: int, reduction: str, tag: int, group: str
    ) -> list[Tensor]:
        results = [tensor.clone() for tensor in received]
        process_group = resolve_process_group(group)
        work = begin(
            given, list(results), peer, op=_reduction(reduction), tag=tag, group=process_group
        )
        if not results:  # something has to be waited for
            results.append(given[0].new_zeros(1))
        for result in results:
            register_work(result, work)
        return results

    return run


def _reduction(name: str) -> Any:
    """The reduction that functional operators call so."""
    if not name:
        return None
    return getattr(torch.distributed.ReduceOp, name.upper())


def _fake(
    given: list[Tensor], received: list[Tensor], peer: int, reduction: str, tag: int, group: str
) -> list[Tensor]:
    results = list(map(torch.empty_like, received))
    return results or [given[0].new_empty(1)]


def _barrier(group: str) -> None:
    torch.distributed.barrier(resolve_process_group(group))


for _begin in (
    _gather, _scatter, _reduce, _reduce_scatter, _all_gather, _all_to_all, _send, _receive,
):  # fmt: skip
    _name = _begin.__name__.lstrip("_")
    _library.define(f"{_name}({_ARGUMENTS}) -> Tensor[]")
    _library.impl(_name, _implementation(_begin), "CompositeExplicitAutograd")
    torch.library.register_fake(f"ingot_c10d::{_name}", _fake, lib=_library)
_library.impl("barrier", _barrier, "CompositeExplicitAutograd")
torch.library.register_fake("ingot_c10d::barrier", lambda group: None, lib=_library)

calls: Any = torch.ops.ingot_c10d
"""The operators, by name: `calls.gather(given, received, peer, reduction, tag, group)`.

`given` are the tensors that this rank gives, `received` those that it would write, of which copies
are written. `peer` is a rank of the group, `reduction` "" or a name as "sum", `group` a group's
name. The result is a list of tensors to be waited for: the copies, or one without meaning where
nothing is received.
"""
