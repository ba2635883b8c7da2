"""Functions that communicate, and what is to be found of them: see test_torchs_collectives.py.

Each takes a tensor of 4 rows and 3 columns, which differs from rank to rank, and gives a tensor.
The rows of `ROWS` say whether it is one graph."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import Tensor
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

import ingot

# groups and meshes, made once there is a group: of this rank, of all, of a pair; dp × tp, one row
ALONE: Any = None
ALL: Any = None
PAIR: Any = None
MESH: Any = None
LINE: Any = None
WORKS: list[Any] = []


def make_groups() -> None:
    """On each rank: makes the groups and meshes."""
    global ALONE, ALL, PAIR, MESH, LINE
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for one in range(ranks):
        group = dist.new_group([one])
        if one == rank:
            ALONE = group
    for one in range(0, ranks, 2):
        group = dist.new_group([one, one + 1])
        if rank in (one, one + 1):
            PAIR = group
    ALL = dist.new_group(list(range(ranks)))
    LINE = init_device_mesh("cpu", (ranks,), mesh_dim_names=("all",))
    MESH = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))


gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def summed(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def argument(x: Tensor) -> None:
    dist.all_reduce(x)


def window(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y[1:3])
    return y


def largest(x: Tensor) -> Tensor:
    y = x.sin()
    dist.all_reduce(y, op=dist.ReduceOp.MAX)
    return y


def integers(x: Tensor) -> Tensor:
    y = x.to(torch.int32)
    dist.all_reduce(y, dist.ReduceOp.MIN)
    return y


def halves(x: Tensor) -> Tensor:
    y = x.to(torch.bfloat16)
    dist.all_reduce(y)
    return y * 2


def twice(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    dist.all_reduce(y)
    return y


def alike(x: Tensor) -> Tensor:
    """Both are wanted, though they communicate the same."""
    y, z = x * 2, x * 2
    dist.all_reduce(y)
    dist.all_reduce(z)
    return y - z


def unread(x: Tensor) -> Tensor:
    """Others wait for what this rank does not read."""
    y = x * 2
    dist.all_reduce(y)
    return x + 1


def in_order(x: Tensor) -> Tensor:
    y, z = x + 1, x * 3
    dist.broadcast(z, 1)
    dist.all_reduce(y, dist.ReduceOp.MAX)
    dist.broadcast(y, 0)
    return y * z


def functionally(x: Tensor) -> Tensor:
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1  # type: ignore[arg-type]


def received(x: Tensor) -> Tensor:
    y = x + 1
    dist.broadcast(y, 1)
    return y * 2


def gathered(x: Tensor) -> Tensor:
    whole = x.new_empty(dist.get_world_size() * x.shape[0], x.shape[1])
    gather(whole, x * 2)
    return whole + 1


def scattered(x: Tensor) -> Tensor:
    part = x.new_empty(x.shape[0] // dist.get_world_size(), x.shape[1])
    scatter(part, x * 2, dist.ReduceOp.SUM)
    return part + 1


def exchanged(x: Tensor) -> Tensor:
    other = torch.empty_like(x)
    dist.all_to_all_single(other, x * 2)
    return other + 1


def exchanged_unevenly(x: Tensor) -> Tensor:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    given = [1] * ranks
    given[0] = x.shape[0] - ranks + 1
    taken = [given[rank]] * ranks
    other = x.new_empty(sum(taken), x.shape[1])
    dist.all_to_all_single(other, x * 2, taken, given)
    return other + 1


def ranks_and_sizes(x: Tensor) -> Tensor:
    assert dist.is_initialized()
    return x * (dist.get_rank() + 1) + dist.get_world_size() + dist.get_rank(ALL)


def in_groups(x: Tensor) -> Tensor:
    y, z = x * 2, x * 3
    dist.all_reduce(y, group=ALONE)
    dist.all_reduce(z, group=ALL)
    return y + z


class Shared(torch.autograd.Function):
    """The sum over all ranks, of results and of gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def differentiated(x: Tensor) -> Tensor:
    leaf = x.detach().requires_grad_()
    loss = (Shared.apply(leaf * 2).sin() * leaf).sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


def lengths(x: Tensor) -> Tensor:
    """Of sizes that vary."""
    results = []
    for rows in range(4, 9, dist.get_world_size()):
        results.append(_length(torch.cat([x, x])[:rows]))
    return torch.cat(results)


@ingot.compile(dynamic=True, fullgraph=True)
def _length(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    other = torch.empty_like(y)
    dist.all_to_all_single(other, y + dist.get_rank())
    return other


# -- asynchronous ----------------------------------------------------------------------------------


def asynchronous(x: Tensor) -> Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    assert isinstance(work, dist.Work)
    z = x.sin() @ x.cos().T
    work.wait()
    assert work.is_completed()
    return z @ y


def several_at_once(x: Tensor) -> Tensor:
    parts = [x * 2, x * 3, x + 1]
    works = [dist.all_reduce(y, async_op=True) for y in parts]
    for work in works:
        work.wait()  # type: ignore[union-attr]
    return torch.stack(parts).sum(0)


def waited_for_in_another_order(x: Tensor) -> Tensor:
    y, z = x * 2, torch.empty_like(x)
    first = dist.broadcast(y, 0, async_op=True)
    second = dist.all_to_all_single(z, x[:4] * 3, async_op=True)
    second.wait()  # type: ignore[union-attr]
    z = z.exp()
    first.wait()  # type: ignore[union-attr]
    return y * z


def never_waited_for(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y, async_op=True)
    return x + 1


def begun_before_a_break(x: Tensor) -> Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    torch.manual_seed(0)
    z = x.sin()
    work.wait()  # type: ignore[union-attr]
    return y * z


def kept_in_a_list(x: Tensor) -> Tensor:
    y = x * 2
    WORKS.append(dist.all_reduce(y, async_op=True))
    WORKS.pop().wait()
    return y + 1


def polled(x: Tensor) -> Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    while not work.is_completed():  # type: ignore[union-attr]
        pass
    return y


def waited_for_within_a_time(x: Tensor) -> Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    work.wait(_SECONDS)  # type: ignore[union-attr]
    return y


_SECONDS = datetime.timedelta(seconds=60)


def in_a_future(x: Tensor) -> Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    return work.get_future().wait()[0] + 1  # type: ignore[union-attr]


# -- lists, roots, messages ------------------------------------------------------------------------


def listed(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.detach() * 2)
    return torch.stack(parts) + x


def listed_later(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    work = dist.all_gather(parts, x.detach() * 2, async_op=True)
    y = x.sin()
    work.wait()  # type: ignore[union-attr]
    return torch.stack(parts) + y


def met(x: Tensor) -> Tensor:
    y = x + 1
    dist.barrier()
    return y * 2


def reduced(x: Tensor) -> Tensor:
    y = x * 2
    dist.reduce(y, 1)
    return y if dist.get_rank() == 1 else x * 1


def collected(x: Tensor) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty_like(x) for _ in range(ranks)] if rank == 0 else None
    dist.gather(x.detach() * 2, parts)
    return torch.stack(parts) + x if parts else x + 1


def dealt(x: Tensor) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    y = torch.empty_like(x)
    dist.scatter(y, [x * (i + 1) for i in range(ranks)] if rank == 1 else None, src=1)
    return y + x


def scattered_lists(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    dist.reduce_scatter(y, [x.detach() * (i + 1) for i in range(dist.get_world_size())])
    return y + x


def exchanged_lists(x: Tensor) -> Tensor:
    ranks = range(dist.get_world_size())
    parts = [torch.empty_like(x) for _ in ranks]
    dist.all_to_all(parts, [x * (i + 1) for i in ranks])
    return torch.stack(parts) + x


def sent(x: Tensor) -> Tensor:
    y = x * 2
    if dist.get_rank() == 0:
        dist.send(y, 1)
    elif dist.get_rank() == 1:
        y = y + dist.recv(y, 0)
    return y * 2


def sent_around(x: Tensor) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    y = torch.empty_like(x)
    works = dist.isend(x * 2, (rank + 1) % ranks), dist.irecv(y, (rank - 1) % ranks)
    z = x.sin()
    for work in works:
        work.wait()  # type: ignore[union-attr]
    return y * z


def sent_in_a_batch(x: Tensor) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    y = torch.empty_like(x)
    sending = dist.P2POp(dist.isend, x * 2, (rank + 1) % ranks)
    receiving = dist.P2POp(dist.irecv, y, (rank - 1) % ranks)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()
    return y * x


def objects(x: Tensor) -> Tensor:
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, dist.get_rank())
    return x + sum(ranks)


# -- numbers of all kinds, gradients ---------------------------------------------------------------


def complex_numbers(x: Tensor) -> Tensor:
    y = torch.complex(x, x + 1)
    dist.all_reduce(y)
    return torch.view_as_real(y * 2)


def bytes_of_integers(x: Tensor) -> Tensor:
    y = x.to(torch.int8)
    dist.all_reduce(y)
    return y + x


def turned(x: Tensor) -> Tensor:
    """The order of its numbers is that in memory."""
    y = torch.arange(12.0).view(4, 3) * (dist.get_rank() + 1)
    if dist.get_rank() == 0:
        y = y.reshape(3, 4).T
    y = y * 2
    dist.all_reduce(y)
    return y + x


def with_gaps(x: Tensor) -> Tensor:
    y = x.repeat(1, 2)
    dist.all_reduce(y[:, ::2])
    return y


def truth(x: Tensor) -> Tensor:
    y = x > 0
    dist.broadcast(y, 0)
    return y * x


def blind_to_gradients(x: Tensor) -> Tensor:
    """What is in the memory changes, not the history."""
    y = (x * 0.1).exp()  # its backward reads the result
    dist.all_reduce(y)
    return y * y


def backward_inside(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    y = (x * 0.1).exp()
    dist.all_reduce(y)
    (y * y).sum().backward()
    assert x.grad is not None
    return x.grad


# -- functional ones, which are differentiated -----------------------------------------------------


def functional_largest(x: Tensor) -> Tensor:
    return functional.all_reduce(x.detach() * 2, "max", ALL) + x


def functional_broadcast(x: Tensor) -> Tensor:
    return functional.broadcast(x.detach() * 2, 0, ALL) + x


def functional_gather(x: Tensor) -> Tensor:
    return functional.all_gather_tensor(x * 2, 0, ALL).sin()


def functional_columns(x: Tensor) -> Tensor:
    return functional.all_gather_tensor_autograd(x * 2, 1, ALL).sin()


def functional_scatter(x: Tensor) -> Tensor:
    return functional.reduce_scatter_tensor(x * 2, "sum", 0, ALL).sin()


def functional_scattered_columns(x: Tensor) -> Tensor:
    return functional.reduce_scatter_tensor_autograd(x.T * 2, "sum", 1, ALL).sin()


def functional_exchange(x: Tensor) -> Tensor:
    return functional.all_to_all_single(x * 2, None, None, ALL).sin()


def functional_autograd_exchange(x: Tensor) -> Tensor:
    splits = [x.shape[0] // dist.get_world_size()] * dist.get_world_size()
    return functional.all_to_all_single_autograd(x * 2, splits, splits, ALL).sin()


def functional_sums(x: Tensor) -> Tensor:
    y, z = functional.all_reduce_coalesced([x * 2, x * 3], "sum", ALL)
    return y.sin() * z


def functional_gathers(x: Tensor) -> Tensor:
    y, z = functional.all_gather_into_tensor_coalesced([x * 2, x * 3], ALL)
    return y.sin() * z


def functional_scatters(x: Tensor) -> Tensor:
    y, z = functional.reduce_scatter_tensor_coalesced([x * 2, x * 3], "sum", [0, 0], ALL)
    return y.sin() * z


def permuted(x: Tensor) -> Tensor:
    ranks = dist.get_world_size()
    return functional.permute_tensor(
        x.flatten() * 2, [(i + 1) % ranks for i in range(ranks)], ALL
    ).sin()


def of_ranks(x: Tensor) -> Tensor:
    """Which torch warns of."""
    return functional.all_reduce(x * 2, "sum", list(range(dist.get_world_size()))) + 1


def by_name(x: Tensor) -> Tensor:
    return functional.all_reduce(x * 2, "sum", ALL.group_name) + 1


def of_a_mesh(x: Tensor) -> Tensor:
    return functional.all_reduce(x * 2, "sum", LINE) + functional.all_reduce(x, "sum", (MESH, 1))


def differentiable_sum(x: Tensor) -> Tensor:
    return differentiable.all_reduce(x * 2).sin()


def differentiable_broadcast(x: Tensor) -> Tensor:
    return differentiable.broadcast(x * 2, 0).sin()


def differentiable_reduce(x: Tensor) -> Tensor:
    y = differentiable.reduce(x * 2, 0)
    return y.sin() if dist.get_rank() == 0 else y * 0 + x


def differentiable_collect(x: Tensor) -> Tensor:
    return torch.stack(differentiable.gather(x * 2, 0)).sin()


def differentiable_deal(x: Tensor) -> Tensor:
    return differentiable.scatter([x * (i + 1) for i in range(dist.get_world_size())], 0).sin()


def differentiable_gather(x: Tensor) -> Tensor:
    return torch.stack(differentiable.all_gather(x * 2)).sin()


def differentiable_scatter(x: Tensor) -> Tensor:
    parts = [x * (i + 1) for i in range(dist.get_world_size())]
    return differentiable.reduce_scatter(torch.empty_like(x), parts).sin()


def differentiable_exchange(x: Tensor) -> Tensor:
    return differentiable.all_to_all_single(torch.empty_like(x), x * 2).sin()


def differentiable_lists(x: Tensor) -> Tensor:
    ranks = range(dist.get_world_size())
    parts = [torch.empty_like(x) for _ in ranks]
    return torch.stack(differentiable.all_to_all(parts, [x * (i + 1) for i in ranks])).sin()


# -- groups, ranks, meshes -------------------------------------------------------------------------


def ranks_of_groups(x: Tensor) -> Tensor:
    number = sum(dist.get_process_group_ranks(PAIR)) + dist.get_global_rank(PAIR, 0)
    number += dist.get_group_rank(PAIR, dist.get_rank()) + dist.get_world_size(PAIR)
    return x * number if dist.get_backend(PAIR) == dist.Backend.GLOO else x


def in_a_pair(x: Tensor) -> Tensor:
    y = x.detach() * 2
    dist.all_reduce(y, group=PAIR)
    dist.broadcast(y, group=PAIR, group_src=1)
    return y + x


def facts_of_a_mesh(x: Tensor) -> Tensor:
    y = x * LINE.size() + LINE.get_local_rank() + LINE.get_rank() + LINE.ndim + LINE.shape[0]
    if "tp" in MESH.mesh_dim_names:
        y = y + MESH.mesh_dim_names.index("tp") + MESH.size(0) + MESH.get_local_rank("tp")
    return y * MESH.get_coordinate()[1]


def part_of_a_mesh(x: Tensor) -> Tensor:
    part, y = MESH["tp"], x.detach() * 2
    dist.all_reduce(y, group=part.get_group())
    return y + x * part.size() + part.get_local_rank()


def dimensions_of_a_mesh(x: Tensor) -> Tensor:
    y = x.detach() * 2
    dist.all_reduce(y, group=MESH.get_group("dp"))
    dist.all_reduce(y, group=MESH.get_group(mesh_dim=1))
    return y + x


# -- the table -------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A function; whether the quick suite has it; part of the reason if it breaks the graph; and
    whether it is differentiated."""

    function: Callable[[Tensor], Tensor]
    quick: bool = False
    broken: str = ""
    gradients: bool = True


ROWS = (
    Row(summed),
    Row(argument, quick=True, gradients=False),
    Row(window, quick=True),
    Row(largest),
    Row(integers, quick=True),
    Row(halves, quick=True),
    Row(twice),
    Row(alike, quick=True),
    Row(unread, quick=True),
    Row(in_order, quick=True),
    Row(functionally),
    Row(received, quick=True),
    Row(gathered, gradients=False),
    Row(scattered, quick=True, gradients=False),
    Row(exchanged),
    Row(exchanged_unevenly, quick=True),
    Row(ranks_and_sizes),
    Row(in_groups, quick=True, gradients=False),
    Row(differentiated, quick=True),
    Row(lengths, quick=True),
    Row(asynchronous, quick=True),
    Row(several_at_once, quick=True),
    Row(waited_for_in_another_order, quick=True),
    Row(never_waited_for, quick=True),
    Row(begun_before_a_break, quick=True, broken="random state"),
    Row(kept_in_a_list, quick=True),
    Row(polled, quick=True, broken="whether it has ended"),
    Row(waited_for_within_a_time, broken="time limit"),
    Row(in_a_future, broken="a future"),
    Row(listed, quick=True),
    Row(listed_later),
    Row(met, quick=True),
    Row(reduced, quick=True),
    Row(collected, quick=True),
    Row(dealt),
    Row(scattered_lists),
    Row(exchanged_lists),
    Row(sent),
    Row(sent_around, quick=True),
    Row(sent_in_a_batch),
    Row(objects, quick=True, broken="pickled"),
    Row(complex_numbers, quick=True),
    Row(bytes_of_integers),
    Row(turned, quick=True),
    Row(with_gaps, quick=True, broken="way of its own"),
    Row(truth),
    Row(blind_to_gradients, quick=True),
    Row(backward_inside),
    Row(functional_largest),
    Row(functional_broadcast),
    Row(functional_gather),
    Row(functional_columns, quick=True),
    Row(functional_scatter),
    Row(functional_scattered_columns),
    Row(functional_exchange),
    Row(functional_autograd_exchange),
    Row(functional_sums, quick=True),
    Row(functional_gathers),
    Row(functional_scatters),
    Row(permuted),
    Row(of_ranks),
    Row(by_name),
    Row(of_a_mesh),
    Row(differentiable_sum),
    Row(differentiable_broadcast),
    Row(differentiable_reduce),
    Row(differentiable_collect),
    Row(differentiable_deal),
    Row(differentiable_gather, quick=True),
    Row(differentiable_scatter),
    Row(differentiable_exchange),
    Row(differentiable_lists),
    Row(ranks_of_groups),
    Row(in_a_pair),
    Row(facts_of_a_mesh),
    Row(part_of_a_mesh, quick=True),
    Row(dimensions_of_a_mesh),
)


def wrong_size(x: Tensor) -> None:
    gather(x.new_empty(1), x * 2)


def wrong_rank(x: Tensor) -> None:
    dist.broadcast(x * 2, 7)


def wrong_reduction(x: Tensor) -> None:
    dist.all_reduce(x * 2, "sum")  # type: ignore[arg-type]


def wrong_count(x: Tensor) -> None:
    dist.all_gather([torch.empty_like(x)] * 7, x)


REFUSED = (wrong_size, wrong_rank, wrong_reduction, wrong_count)
