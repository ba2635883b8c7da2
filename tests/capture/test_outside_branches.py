"""Branches on numbers that follow from a few that tensors from outside hold."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.errors import GraphBreakError
from tests.compiled import breaks, compilations
from tests.oracle import assert_same

_STEPS = torch.tensor([901, 601, 301, 1])


def scheduled(x: Tensor, steps: Tensor, table: Tensor) -> Tensor:
    """As samplers of diffusion models step."""
    for step in steps:
        before = step - 300
        factor = table[before] if before >= 0 else 1.0
        x = x * factor + table[step]
    return x


def of_global(x: Tensor) -> Tensor:
    for step in _STEPS:
        if step > 300:
            x = x * 2
    return x + 1


def integrated(x: Tensor, times: Tensor) -> Tensor:
    """As solvers of fixed steps write what the caller asks for."""
    solution = torch.empty(len(times), *x.shape)
    solution[0] = x
    j = 1
    for a, b in zip(times[:-1], times[1:]):
        y = x + (b - a) * x.abs()
        while j < len(times) and b >= times[j]:
            solution[j] = y if times[j] == b else x + (y - x) * (times[j] - a) / (b - a)
            j += 1
        x = y
    return solution


class Keeper(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("least", torch.tensor(float("inf")))

    def forward(self, x: Tensor) -> Tensor:
        if self.least == float("inf"):
            x = x + 1
        if self.count.item() % 5 == 4:
            x = x * 3
        self.count.add_(1)
        self.least.copy_(torch.minimum(self.least, x.min()))
        return x.abs()


def test_elements_of_what_is_held() -> None:
    x, table = torch.randn(3), torch.rand(1000)
    steps, times = _STEPS.clone(), torch.linspace(0, 1, 5)
    for fn in (of_global, lambda x: scheduled(x, steps, table), lambda x: integrated(x, times)):
        compiled = ingot.compile(fn, fullgraph=True)
        for _ in range(2):
            assert_same(compiled(x), fn(x))
        assert len(compilations(compiled)) == 1


def test_held_elements_that_are_written_between_calls() -> None:
    x, held = torch.randn(3), SimpleNamespace(step=torch.tensor(0.5), steps=torch.arange(3))

    def fn(x: Tensor) -> Tensor:
        if held.step > 1:
            x = x * 2
        if held.steps[1] > 4:
            x = x + 1
        return x - held.step

    compiled = ingot.compile(fn)
    for _ in range(12):
        assert_same(compiled(x), fn(x))
        held.step += 0.125
        held.steps += 1
    held.step = torch.tensor(0.0)
    assert_same(compiled(x), fn(x))
    # for the elements of the first call, for its truths, and for each truth that differs
    assert breaks(compiled) == 0 and len(compilations(compiled)) == 4


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_integers_of_an_argument(dtype: torch.dtype) -> None:
    table = torch.rand(100)

    def fn(x: Tensor, t: Tensor) -> Tensor:
        before = t - 10
        return x * (table[before] if before >= 0 else 1.0)

    x, compiled = torch.randn(3), ingot.compile(fn)
    for step in (95, 60, 31, 10, 9, 3, 50):
        t = torch.tensor(step, dtype=dtype)
        assert_same(compiled(x, t), fn(x, t))
    assert breaks(compiled) == 0 and len(compilations(compiled)) == 2


def test_truths_that_all_differ_break_the_graph() -> None:
    def fn(x: Tensor, t: Tensor) -> Tensor:
        for k in range(6):
            if t[k] > 0:
                x = x * (k + 2)
        return x

    x, compiled = torch.randn(3), ingot.compile(fn)
    for number in range(40):
        t = torch.tensor([number * 37 >> k & 1 for k in range(6)])
        assert_same(compiled(x, t), fn(x, t))
    assert 0 < breaks(compiled) < 12


def test_a_loop_that_a_number_ends() -> None:
    def fn(x: Tensor, n: Tensor) -> Tensor:
        while n > 0:
            x, n = x + n, n - 1
        return x

    x, compiled = torch.randn(3), ingot.compile(fn)
    for number in (3, 3, 5, 2, 7, 4, 6, 1, 90):
        n = torch.tensor(number)
        assert_same(compiled(x, n), fn(x, n))
    assert len(compilations(compiled)) < 16


@pytest.mark.parametrize(
    ("old", "new"), [(0.0, -0.0), (-0.0, 0.0), (float("nan"), 1.0), (1.0, float("nan"))]
)
def test_floats_are_told_apart_by_their_bits(old: float, new: float) -> None:
    held = torch.tensor([old])

    def fn(x: Tensor) -> Tensor:
        return x + 1 if 1 / held[0] > 0 else x - 1

    x, compiled = torch.randn(3), ingot.compile(fn)
    for number in (old, old, new, old, new):
        held.fill_(number)
        assert_same(compiled(x), fn(x))
    assert breaks(compiled) == 0


def test_buffers_that_count_calls() -> None:
    for options in ({}, {"dynamic": True}, {"backend": "eager"}):
        torch.manual_seed(0)
        mine, eager = Keeper(), Keeper()
        x, compiled = torch.randn(3), ingot.compile(mine, **options)
        for _ in range(11):
            assert_same(compiled(x), eager(x))
            assert_same((mine.count, mine.least), (eager.count, eager.least))


def _first(t: Tensor) -> None:
    t[0].mul_(-1)


def _out(t: Tensor) -> None:
    torch.neg(t, out=t)


def _filled(t: Tensor) -> None:
    t.view(-1)[0] = -3


def _data(t: Tensor) -> None:
    t.data.mul_(-1)


@pytest.mark.parametrize("write", [_first, _out, _filled, _data])
@pytest.mark.parametrize("shared", [False, True])
def test_what_the_function_writes_first(write: Callable[[Tensor], None], shared: bool) -> None:
    """By itself, or by a tensor that shares its memory."""

    def fn(x: Tensor, t: Tensor, other: Tensor) -> Tensor:
        early = t[0] > 2
        write(other if shared else t)
        x = x * 2 if t[0] > 0 else x + 1
        return x * 3 if early else x - 1

    x, compiled = torch.randn(3), ingot.compile(fn)
    for number in (3, 3, 5, -2, 1):
        mine, its = torch.tensor([number, 5]), torch.tensor([number, 5])
        assert_same(compiled(x, mine, mine[:1]), fn(x, its, its[:1]))
        assert_same(mine, its)


def test_writes_of_other_memory_do_not_matter() -> None:
    def fn(x: Tensor, t: Tensor) -> Tensor:
        made = torch.zeros(3)
        made[0] = 1
        made += x
        return made * 2 if t > 0 else made

    x, t, compiled = torch.randn(3), torch.tensor(2), ingot.compile(fn, fullgraph=True)
    assert_same(compiled(x, t), fn(x, t))


@pytest.mark.parametrize(
    ("t", "is_broken"),
    [
        (torch.tensor(2.0), True), (torch.tensor(True), True), (torch.tensor(2), False),
        (nn.Parameter(torch.tensor(2.0)), True), (torch.arange(100), False),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_the_data_proper(t: Tensor, is_broken: bool) -> None:
    """Floats among the arguments and what is trained: they differ from call to call."""

    def fn(x: Tensor, t: Tensor) -> Tensor:
        return x * 2 if t.flatten()[-1] > 1 else x + 1

    x, compiled = torch.randn(3), ingot.compile(fn)
    assert_same(compiled(x, t), fn(x, t))
    assert breaks(compiled) == is_broken


def test_random_numbers_and_what_a_graph_has_computed() -> None:
    def drawn(x: Tensor, t: Tensor) -> Tensor:
        return x * 2 if t + torch.randint(0, 3, ()) > 4 else x + 1

    def behind(x: Tensor, t: Tensor) -> Tensor:
        count = (x > 0).sum()
        torch._C._get_tracing_state()
        if x.sum() > 100:
            x = x + 1
        return x * 2 if count + t > 4 else x - 1

    for fn in (drawn, behind):
        compiled = ingot.compile(fn)
        for seed in range(8):
            torch.manual_seed(seed)
            x, t = torch.randn(3), torch.tensor(seed % 4)
            state = torch.get_rng_state()
            expected = fn(x, t)
            torch.set_rng_state(state)
            assert_same(compiled(x, t), expected)


@pytest.mark.parametrize("around", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_gradients_and_modes(around: Callable[[], Any]) -> None:
    times = torch.linspace(0, 1, 4)
    mine, eager = (torch.linspace(-1, 1, 3).requires_grad_() for _ in range(2))
    compiled = ingot.compile(integrated)
    with around():
        for _ in range(2):
            found, expected = compiled(mine, times), integrated(eager, times)
            assert_same(found.detach(), expected.detach())
    if expected.requires_grad:
        found.sum().backward()
        expected.sum().backward()
        assert_same(mine.grad, eager.grad)


def test_the_report_names_the_truth() -> None:
    def fn(x: Tensor, t: Tensor) -> Tensor:
        return x * 2 if t - 1 > 3 else x

    report = ingot.explain(fn)(torch.randn(3), torch.tensor(5))
    assert "truth_of_gt(t) == 1" in str(report.guards)


def causal(kind: str, time: int, dtype: torch.dtype, device: Any = None) -> Tensor:
    if kind == "bools":
        return torch.ones(time, time, dtype=torch.bool, device=device).triu(1)
    if kind == "floats":
        return torch.full((time, time), float("-inf"), dtype=dtype, device=device).triu(1)
    ahead = torch.ones(time, time, dtype=torch.bool, device=device).tril().logical_not()
    return torch.zeros(time, time, dtype=dtype, device=device).masked_fill(ahead, float("-inf"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["bools", "floats", "filled"])
def test_masks_that_a_program_makes(kind: str, dtype: torch.dtype) -> None:
    """An encoder asks whether its mask is causal, and attention is told."""
    layer = nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(dtype)

    def fn(x: Tensor, extra: int) -> Tensor:
        mask = causal(kind, x.shape[1], dtype)
        if extra:
            mask = mask.clone().triu(1 + extra)
        return body(x, mask=mask)

    compiled = ingot.compile(fn, fullgraph=True)
    for extra in (0, 1):
        x = torch.randn(2, 300, 8).to(dtype)
        bound = 1e-6 if dtype == torch.float32 else 2e-2
        assert torch.allclose(compiled(x, extra), fn(x, extra), bound, bound)


def test_constants_of_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed on the CPU where that gives the same."""
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    graphs: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module.code)
        return lambda *args: (args[0],)

    def compares(x: Tensor, device: Any) -> Tensor:
        mask = causal("floats", 64, torch.float32, device)
        if (causal("filled", 64, torch.float32, device) == mask).all():
            return x.sin()
        return x.cos()

    def rounds(x: Tensor, device: Any) -> Tensor:
        return x.sin() if torch.full((100,), 0.1, device=device).exp().sum() > 1 else x.cos()

    for device in ("cuda", torch.device("cuda")):
        ingot.compile(compares, backend=backend, fullgraph=True)(torch.ones(3), device)
        assert "sin" in graphs[-1] and "cos" not in graphs[-1]
        with pytest.raises(GraphBreakError, match="a branch on the values"):
            ingot.compile(rounds, backend=backend, fullgraph=True)(torch.ones(3), device)
    assert len(graphs) == 2
    assert torch.equal(
        ingot.compile(rounds, fullgraph=True)(torch.ones(3), "cpu"), torch.ones(3).sin()
    )
