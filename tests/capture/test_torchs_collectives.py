"""torch.distributed's collectives in the graph, with two and four ranks of gloo; eager is the
oracle."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ingot
from tests.capture import collective_programs as programs
from tests.long import long
from tests.ranks import on_ranks

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)


def check(found: dict[str, Any]) -> None:
    """What one rank has found."""
    for row in programs.ROWS:
        name = row.function.__name__
        if name not in found:
            continue
        one = found[name]
        assert one["equal"] and one["beside eager"], (name, one)
        if row.broken:
            assert any(row.broken in reason for reason in one["reasons"]), (name, one)
        else:
            assert one["graphs"] == 1 and not one["reasons"], (name, one)
    for function in programs.REFUSED:
        eager, compiled = found[function.__name__]
        assert eager and compiled == eager, function.__name__


def test_two_ranks() -> None:
    """In one test, so that they are started once."""
    for found in on_ranks(2, "tests.capture.collective_ranks:find_all", "quick"):
        check(found)


@long
@pytest.mark.parametrize("count", (2, 4))
def test_all_collectives(count: int) -> None:
    for found in on_ranks(count, "tests.capture.collective_ranks:find_all", "all"):
        check(found)


@long
def test_what_is_whole_to_torch_is_whole() -> None:
    """No function breaks that is one right graph of torch.compile's."""
    for whole in on_ranks(2, "tests.capture.collective_ranks:find_whole_to_torch"):
        for row in programs.ROWS:
            assert not (whole[row.function.__name__] and row.broken), row.function.__name__


def test_other_groups_are_other_facts() -> None:
    """A program is compiled for the group that it communicates in, and not for one that has
    ended."""

    def size(x: torch.Tensor) -> torch.Tensor:
        if dist.is_initialized():
            return x * dist.get_world_size() + dist.get_rank()
        return -x

    compiled, x = ingot.compile(size, fullgraph=True), torch.ones(3)
    assert torch.equal(compiled(x), -x)
    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            assert torch.equal(compiled(x), x)
        finally:
            dist.destroy_process_group()
        assert torch.equal(compiled(x), -x)


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def truth(x: torch.Tensor) -> torch.Tensor:
    y = x > 0
    dist.all_reduce(y)
    return y


def gathered(x: torch.Tensor) -> torch.Tensor:
    """With a gradient, gloo may raise an error: what it writes in a thread of its own races with
    what autograd notes."""
    whole = torch.empty_like(x)
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, x * 2)
    return whole


def short(x: torch.Tensor) -> torch.Tensor:
    y = x.to(torch.int16)
    dist.all_reduce(y)
    return y


def small_floats(x: torch.Tensor) -> torch.Tensor:
    y = x.to(torch.float8_e4m3fn)
    dist.broadcast(y, 0)
    return y.float()


def largest_complex(x: torch.Tensor) -> torch.Tensor:
    y = torch.complex(x, x)
    dist.all_reduce(y, dist.ReduceOp.MAX)
    return y


def bits(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y, dist.ReduceOp.BAND)
    return y


def handled(x: torch.Tensor) -> torch.Tensor:
    y = x.to(torch.int16)
    try:
        dist.all_reduce(y)
    except RuntimeError:
        return x + 1
    return y


def result_or_error(function: Any, x: torch.Tensor) -> Any:
    try:
        result = function(x)
    except Exception as error:
        return type(error), str(error)
    return result.tolist(), result.requires_grad


@pytest.mark.parametrize("gradients", (False, True))
@pytest.mark.parametrize("function", (truth, short, small_floats, largest_complex, bits, handled))
def test_errors_are_eagers(alone: None, function: Any, gradients: bool) -> None:
    x = torch.ones(4, 3, requires_grad=gradients)
    assert result_or_error(ingot.compile(function), x) == result_or_error(function, x)


def test_gathering_with_gradients_is_left_to_eager(alone: None) -> None:
    x = torch.ones(4, 3)
    compiled = ingot.compile(gathered, fullgraph=True)
    assert torch.equal(compiled(x), gathered(x))
    with pytest.raises(ingot.GraphBreakError, match="gradients"):
        compiled(x.requires_grad_())


def test_a_work_is_waited_for_outside(alone: None) -> None:
    """As an object that does what a Work does."""

    def begun(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        y = x * 2
        return y, dist.all_reduce(y, async_op=True)

    compiled, x = ingot.compile(begun, fullgraph=True), torch.ones(4)
    second = datetime.timedelta(seconds=60)
    ends: tuple[Callable[[Any], Any], ...] = (
        lambda work: work.wait(),
        lambda work: work.wait(second),
        lambda work: work.get_future().wait(),
        lambda work: [None for _ in iter(work.is_completed, True)],
        lambda work: work.synchronize(),
    )
    for end in ends:
        y, work = compiled(x)
        assert isinstance(work, dist.Work)
        end(work)
        assert work.is_completed() and work.is_success() and work.exception() is None
        assert work.wait() and torch.equal(work.result()[0], y)
        assert work.get_future().value()[0] is y
        assert torch.equal(y, x * 2)

    @ingot.compile(fullgraph=True)
    def ended(y: torch.Tensor, work: Any) -> torch.Tensor:
        work.wait()
        return y + 1

    assert torch.equal(ended(*compiled(x)), x * 2 + 1)
