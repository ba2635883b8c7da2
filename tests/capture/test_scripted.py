"""Functions of TorchScript that are called inside: they are part of the graph where their tensors'
looks decide all, and a graph break where data do or where they act."""

from __future__ import annotations

import warnings
from typing import Any, List, Optional, Tuple  # noqa: UP035 (what TorchScript reads)

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.compiler import Compiler
from ingot.errors import GraphBreakError
from tests.oracle import assert_near
from tests.tracked import Tracked

with warnings.catch_warnings(action="ignore"):

    @torch.jit.script
    def looped(x, n: int = 2):  # type: ignore[no-untyped-def]
        if n > 1:
            y = x * n
        else:
            y = x.sin()
        for i in range(n):
            y = y + i
        return y

    @torch.jit.script
    def several(
        x: Tensor,
        ys: List[Tensor],  # noqa: UP006
        z: Optional[Tensor] = None,  # noqa: UP045
    ) -> Tuple[Tensor, int, List[Tensor]]:  # noqa: UP006
        if z is not None:
            x = x + z
        return x + ys[0], x.size(0), ys

    @torch.jit.script
    def calls(x):  # type: ignore[no-untyped-def]
        return looped(x, 3).relu() + several(x, [x])[0]

    @torch.jit.script
    def writes(x):  # type: ignore[no-untyped-def]
        x.add_(1)
        return x * 2

    @torch.jit.script
    def draws(x):  # type: ignore[no-untyped-def]
        return x + torch.rand([2, 3])

    @torch.jit.script
    def looks_up(x, i):  # type: ignore[no-untyped-def]
        return x[i] + 1

    @torch.jit.script
    def decides(x):  # type: ignore[no-untyped-def]
        if bool(x.sum() > 0):
            return x + 1
        return x - 1

    @torch.jit.script
    def prints(x):  # type: ignore[no-untyped-def]
        print("in the script")
        return x + 1

    @torch.jit.script
    def asserts(x):  # type: ignore[no-untyped-def]
        assert x.size(0) == 2, "two rows"
        return x + 1

    @torch.jit.script
    def scales(x: Tensor, n: int, positive: bool):  # type: ignore[no-untyped-def]
        size = torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * n)
        exact = torch.tensor(0.1, dtype=torch.double)
        sign = torch.as_tensor(positive, device=x.device) * torch.tensor(float(n))
        return x / size + sign, exact, torch.tensor(n), torch.as_tensor(x)

    @torch.jit.script
    def tables(x: Tensor, a: float):  # type: ignore[no-untyped-def]
        row = torch.tensor([0.1, a, 2.5], dtype=torch.double)
        return x * row, torch.tensor([[1, 2], [3, x.size(0)]]), torch.as_tensor([True, False])

    @torch.jit.script
    def tables_of_written_lists(x: Tensor, n: int):  # type: ignore[no-untyped-def]
        numbers = [1, 2]
        for i in range(n):
            numbers.append(i)
        return x.sum() * torch.tensor(numbers)

    @torch.jit.script
    def lists(x: Tensor):  # type: ignore[no-untyped-def]
        numbers: List[float] = x.tolist()  # noqa: UP006
        return x * len(numbers)

    @torch.jit.script
    def leaves(x: Tensor):  # type: ignore[no-untyped-def]
        return x * torch.tensor(2.0, requires_grad=True)

    traced = torch.jit.trace(lambda x: x * 2 + torch.ones(3), torch.zeros(2, 3))
    sized = torch.jit.trace(lambda x: x.view(x.size(0), -1) * x.size(1), torch.zeros(2, 3))

OFFSET = nn.Parameter(torch.ones(3))

WHOLE: dict[str, Any] = {
    "default": lambda x: looped(x) + 1,
    "positional": lambda x: looped(x, 1) * OFFSET,
    "keywords": lambda x: looped(n=3, x=x),
    "several results": lambda x: several(x, [x, x * 2], z=x),
    "no optional": lambda x: several(x, [x])[0],
    "nested": lambda x: calls(x.t()).t(),
    "traced": lambda x: traced(x) - traced(x + 1),
    "traced sizes": lambda x: sized(x) + sized(x.t()).sum(),
    "tensors of numbers": lambda x: scales(x, 2, positive=False),
    "tensors of lists": lambda x: tables(x, 0.3),
    "writes an intermediate": lambda x: (writes(x * 1), x),
    "random": lambda x: draws(x) * torch.rand(3),
    "of a container": lambda x: [f(x) for f in (looped, traced)],
    "under no_grad": torch.no_grad()(lambda x: looped(x) + 1),
    "its name": lambda x: (x + 1, looped.name),
}


@pytest.mark.parametrize("backend", ["ingot", "eager"])
@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name: str, backend: str) -> None:
    function = WHOLE[name]
    compiled = ingot.compile(function, backend=backend, fullgraph=True)
    for wants_gradients in (False, True, False):
        results = []
        for run in (function, compiled):
            torch.manual_seed(0)
            x = torch.randn(2, 3, requires_grad=wants_gradients)
            result = run(x)
            first = result[0] if isinstance(result, (tuple, list)) else result
            if first.requires_grad:
                first.sum().backward()
            results.append((result, x.grad, torch.rand(1)))
        assert_near(results[1], results[0])
    assert len(Compiler.of(compiled).compilations) <= 2


def test_an_argument_is_written() -> None:
    tracked = Tracked(lambda x: writes(x) + x, fullgraph=True)
    assert [tracked(torch.randn(2)), tracked(torch.randn(2))] == [1, 0]


def test_numbers_and_sizes_vary() -> None:
    tracked = Tracked(lambda x, n: looped(x, n), fullgraph=True)
    assert [tracked(torch.randn(2), n) for n in (2, 3, 2)] == [1, 1, 0]
    dynamic = Tracked(lambda x: looped(x), fullgraph=True, dynamic=True)
    assert [dynamic(torch.randn(n)) for n in (2, 3, 5)] == [1, 0, 0]


def test_another_script_is_noticed() -> None:
    holder = {"script": looped}
    tracked = Tracked(lambda x: holder["script"](x))
    assert tracked(torch.randn(3)) == 1
    holder["script"] = traced
    assert tracked(torch.randn(3)) == 1


BREAKING: dict[str, Any] = {
    "decides": decides,
    "prints": prints,
    "lists": lists,
    "leaves": leaves,
    "tables_of_written_lists": lambda x: tables_of_written_lists(x, 1),
}


def test_digits_of_numbers() -> None:
    """TorchScript rounds a float to the default dtype, whatever dtype is asked for."""
    exact = ingot.compile(lambda x: scales(x, 3, True), fullgraph=True)(torch.ones(2, 3))[1]
    assert exact.dtype == torch.float64
    assert exact.item() == torch.tensor(0.1).item() == scales(torch.ones(2, 3), 3, True)[1].item()


@pytest.mark.parametrize("name", BREAKING)
def test_a_break(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    script = BREAKING[name]

    def fn(x: Tensor) -> Tensor:
        return script(x * 2) * 2

    with pytest.raises(GraphBreakError, match=f"scripted function {name}.. has"):
        ingot.compile(fn, fullgraph=True)(torch.ones(2))
    compiled = ingot.compile(fn)
    for x in (torch.ones(2), -torch.ones(2)):
        expected, printed = fn(x), capfd.readouterr()
        assert torch.equal(compiled(x), expected)
        assert capfd.readouterr() == printed


@pytest.mark.parametrize("backend", ["ingot", "eager"])
def test_errors(backend: str) -> None:
    def handled(x: Tensor) -> Any:
        try:
            return asserts(x)
        except Exception as error:
            return type(error).__name__, str(error), x + 1

    programs = [
        (lambda x: asserts(x), (torch.ones(3),)),
        (lambda x: looped(x, m=3), (torch.ones(3),)),
        (lambda x: looped(), (torch.ones(3),)),
        (lambda x: several(x, x), (torch.ones(3),)),
        (lambda x: calls(x) @ looped(x), (torch.ones(2, 3),)),
        (lambda x, i: looks_up(x, i), (torch.ones(3), torch.tensor([1]))),
        (lambda x, i: looks_up(x, i), (torch.ones(3), torch.tensor([7]))),
        (handled, (torch.ones(2),)),
        (handled, (torch.ones(3),)),
    ]
    for program, arguments in programs:
        compiled = ingot.compile(program, backend=backend)
        for _ in range(2):
            outcomes = []
            for run in (program, compiled):
                try:
                    outcomes.append(run(*arguments))
                except Exception as error:
                    outcomes.append((type(error), str(error)))
            assert_near(outcomes[1], outcomes[0])


def test_the_script_learns_nothing() -> None:
    """A run on fakes leaves no plan behind that real tensors would meet."""
    with warnings.catch_warnings(action="ignore"):
        script = torch.jit.script(lambda_like)
    compiled = ingot.compile(lambda x: script(x) + 1, fullgraph=True)
    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(compiled(x), script(x) + 1)


def lambda_like(x: Tensor) -> Tensor:
    return x.sin() * 2
