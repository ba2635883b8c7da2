"""Collectives in graphs and plans: none is merged, dropped or moved past another, and a program
waits as late as it can."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import ingot

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)
operators = torch.ops._c10d_functional
A: Any = None  # groups of this process alone
B: Any = None


@pytest.fixture(scope="module", autouse=True)
def groups() -> Iterator[None]:
    global A, B
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    A, B = dist.new_group([0]), dist.new_group([0])
    yield
    dist.destroy_process_group()


_STEP = re.compile(r"^ +\d+  (?:launch (\w+)|t\d+ = (\w+)\(.*, (\w+)\)|t\d+ = (\w+))", re.M)


def steps(function: Any, *args: Any, **options: Any) -> list[str]:
    """The steps of the plan, after a look at the results: `all_reduce A`, `wait_tensor`, kernels;
    "|" between forward and backward."""
    names = {A.group_name: "A", B.group_name: "B"}
    compiled = ingot.compile(function, fullgraph=True, **options)
    expected, result = function(*args), compiled(*args)
    torch.testing.assert_close(result, expected)
    text = ingot.explain(compiled)(*args).stage("schedule")
    found = []
    for part in text.split("# == schedule")[1:]:
        found.append("|")
        for kernel, collective, group, call in _STEP.findall(part):
            found.append(kernel or call or f"{collective} {names[group]}")
    return found[1:]


def collectives(found: list[str]) -> list[str]:
    return [step for step in found if step.endswith((" A", " B"))]


def equal_ones(x: Tensor) -> Tensor:
    y, z = x * 2, x * 2
    dist.all_reduce(y, group=A)
    dist.all_reduce(z, group=A)
    return y - z


def unread_ones(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y, group=A)
    dist.broadcast(y, 0, group=B)
    dist.all_reduce(y.clone(), group=B)
    return x + 1


def of_two_groups(x: Tensor) -> Tensor:
    y, z = x * 2, x * 3
    dist.all_reduce(y, group=B)
    dist.all_reduce(z, group=A)
    dist.all_reduce(y, group=A)
    dist.broadcast(z, 0, group=B)
    dist.all_reduce(x + 1, group=A)
    return z * y


@pytest.mark.parametrize("dynamic", (False, True))
def test_all_stay_in_their_order(dynamic: bool) -> None:
    x = torch.randn(4, 6)
    assert collectives(steps(equal_ones, x, dynamic=dynamic)) == ["all_reduce A"] * 2
    expected = ["all_reduce A", "broadcast B", "all_reduce B"]
    assert collectives(steps(unread_ones, x, dynamic=dynamic)) == expected
    expected = ["all_reduce B", "all_reduce A", "all_reduce A", "broadcast B", "all_reduce A"]
    assert collectives(steps(of_two_groups, x, dynamic=dynamic)) == expected


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        dist.all_reduce(y, group=A)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=B)
        dist.all_reduce(gradient, group=A)
        return gradient


def test_all_stay_in_training() -> None:
    def loss(x: Tensor) -> Tensor:
        return (Summed.apply(x * 2).sin() * Summed.apply(x * 2)).sum()

    found = steps(loss, torch.randn(8, requires_grad=True))
    middle = found.index("|")
    assert collectives(found[:middle]) == ["all_reduce A"] * 2
    assert collectives(found[middle:]) == ["all_reduce B", "all_reduce A"] * 2


def test_branches_are_left_to_torch() -> None:
    def branch(x: Tensor) -> Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y

    def either(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, branch, torch.sin, (x,))

    compiled = ingot.compile(either)
    for x in (torch.ones(4), -torch.ones(4)):
        assert torch.equal(compiled(x), either(x))
    (reason,) = [str(one.reason) for one in ingot.explain(compiled)(x).breaks]
    assert "effects" in reason


# -- waits -----------------------------------------------------------------------------------------


def begun_early(x: Tensor) -> Tensor:
    y = x * 2
    work = dist.all_reduce(y, group=A, async_op=True)
    z = x.sin() @ x.cos()
    work.wait()  # type: ignore[union-attr]
    return z @ y


def not_asynchronous(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y, group=A)
    z = x.sin() @ x.cos()
    return z @ y


@pytest.mark.parametrize("function", (begun_early, not_asynchronous))
def test_work_is_done_between_beginning_and_wait(function: Any) -> None:
    found = steps(function, torch.randn(8, 8))
    assert found.index("all_reduce A") < found.index("mm") < found.index("wait_tensor")


def test_two_are_under_way_at_once() -> None:
    found = steps(of_two_groups, torch.randn(8))
    first = found.index("wait_tensor")
    assert collectives(found[:first]) == ["all_reduce B", "all_reduce A"]


def test_what_is_read_behind_a_wait_needs_it() -> None:
    """Also what is seen through a view from before it, and without the wait's own result."""

    def read(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = operators.all_reduce(x * 2, "sum", A.group_name)
        row = y[1].view(2, 2)
        z = v.sin()
        operators.wait_tensor(y)
        return row.exp(), y.cos(), z.tan()

    found = steps(read, torch.randn(4, 4), torch.randn(100))
    readers = [k for k, step in enumerate(found) if "exp" in step or "cos" in step]
    assert readers and min(readers) > found.index("wait_tensor")


def test_a_barrier_comes_behind_all_waits() -> None:
    def met(x: Tensor) -> Tensor:
        y = x * 2
        dist.all_reduce(y, group=A)
        dist.barrier(B)
        return y + 1

    text = ingot.explain(ingot.compile(met, fullgraph=True))(torch.ones(4)).stage("schedule")
    assert text.index("all_reduce(") < text.index("wait_tensor(") < text.index("barrier(")


def test_memory_is_not_written_while_it_is_sent() -> None:
    """What is given may still be read by the group: it is nobody's memory before the wait."""

    def sent(x: Tensor) -> Tensor:
        y = x * 2
        whole = operators.all_gather_into_tensor(y, 1, A.group_name)
        z = y + 1  # would be written in place of y
        return operators.wait_tensor(whole) * z

    report = ingot.explain(ingot.compile(sent, fullgraph=True))(torch.ones(64))
    text = report.stage("schedule")
    (given,) = re.findall(r"all_gather_into_tensor\((t\d+)", text)
    assert f"\n{given}: own" in text and not re.search(rf"^t\d+: .*\b{given}\b", text, re.M)
