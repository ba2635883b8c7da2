"""Sizes that vary: what compiles anew, what is served by an entry that is there, and that all of it
is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot
from ingot.compiler import Compiler
from ingot.ladder import STABLE
from tests.oracle import assert_near
from tests.tracked import Tracked


def softmax_of_sum(x: Tensor) -> Tensor:
    return torch.softmax(x * 2 + x.sum(0), -1) * x.shape[0]


def counts(tracked: Tracked, *shapes: tuple[int, ...]) -> list[int]:
    with torch.no_grad():
        return [tracked(torch.randn(shape)) for shape in shapes]


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.zeros(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.kept = torch.cat([self.kept, x])
        return self.kept.cumsum(0) * x.sum()


def test_a_size_that_varies_becomes_a_symbol():
    tracked = Tracked(softmax_of_sum)
    assert counts(tracked, (4, 6), (4, 6), (7, 6), (9, 6), (4, 6), (300, 6)) == [1, 0, 1, 0, 0, 0]
    assert tracked.skips == []


def test_sizes_that_vary_one_after_the_other():
    assert counts(Tracked(softmax_of_sum), (4, 6), (7, 6), (7, 8), (3, 5), (16, 2)) == [
        1,
        1,
        0,
        0,
        0,
    ]


def symbols(tracked: Tracked) -> set[str]:
    """The sizes that are symbols in the last entry."""
    captured = tracked.compiler.compilations[-1].captured
    return {q.name for q in captured.guards.symbols.values() if q.what == "size"}


def test_sizes_that_stay_for_many_calls_are_compiled_for():
    tracked = Tracked(softmax_of_sum)
    found = counts(tracked, *[(4, 6)] * (1 + STABLE), (7, 6), (9, 6), (9, 8), (3, 5))
    assert found == [1] + [0] * STABLE + [1, 0, 1, 0]
    assert symbols(tracked) == {"x.shape[0]", "x.shape[1]"}
    ingot.reset()
    counts(tracked := Tracked(softmax_of_sum), *[(4, 6)] * (1 + STABLE), (7, 6))
    assert symbols(tracked) == {"x.shape[0]"}


def test_sizes_of_parameters_and_static_ones_are_compiled_for():
    model = nn.Linear(6, 5)
    tracked = Tracked(lambda x, weight, state: F.linear(x, weight).cos() + state)

    def called(rows: int) -> int:
        state = torch.randn(rows, 5)
        ingot.mark_static(state, 1)
        with torch.no_grad():
            return tracked(torch.randn(rows, 6), model.weight, state)

    assert [called(n) for n in (4, 3, 2)] == [1, 1, 0]
    assert symbols(tracked) == {"x.shape[0]", "x.shape[1]", "state.shape[0]"}


def test_rows_of_another_argument_vary_with_those_of_one():
    tracked = Tracked(lambda tokens, start: tokens.cumsum(1)[:, -1:] + start)
    with torch.no_grad():
        found = [
            tracked(torch.randn(n, m), torch.randn(n, 1))
            for n, m in ((3, 5), (3, 7), (4, 7), (1, 9), (2, 2))
        ]
    assert found == [1, 1, 0, 0, 0]


class Attends(nn.Module):
    """A step of attention to what came before, which is None at first."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> Any:
        batch, length, _ = x.shape
        q, k, v = (p(x).view(batch, length, 2, 4).transpose(1, 2) for p in self.projections)
        k, v = (t.clone(memory_format=torch.contiguous_format) for t in (k, v))
        if cache is not None:
            k, v = (torch.cat(pair, 2) for pair in zip(cache, (k, v)))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        return mixed.transpose(1, 2).reshape(batch, length, 8), (k, v)


@pytest.mark.parametrize("order", ["batches", "lengths"])
def test_a_cache_that_grows_for_several_batches_and_lengths(order: str) -> None:
    """One compilation for the sizes of the first call, and one each for all sizes without a cache,
    and with one."""
    tracked = Tracked(Attends())
    prompts = [(batch, length) for length in (7, 12, 5) for batch in (1, 2, 3)]
    with torch.no_grad():
        for batch, length in prompts if order == "batches" else sorted(prompts):
            x, cache = torch.randn(batch, length, 8), None
            for _ in range(4):
                tracked(x, cache)
                x, cache = tracked.eager(x, cache)
                x = x[:, -1].unsqueeze(1).clone(memory_format=torch.contiguous_format)
    assert tracked.skips == [] and tracked.count == 3


def test_what_has_no_symbolic_rule_beside_a_size_that_varies_is_compiled_for_its_size():
    tracked = Tracked(lambda x: x.cos() @ torch.linalg.inv(torch.eye(x.shape[1]) * 2))
    assert counts(tracked, (4, 6), (5, 6), (7, 6), (1, 6)) == [1, 1, 0, 0]
    assert symbols(tracked) == {"x.shape[0]"}
    assert tracked.skips == [] and not any(c.fixed_sizes for c in tracked.compiler.compilations)


def test_sizes_that_vary_together():
    assert counts(Tracked(softmax_of_sum), (4, 6), (7, 8), (3, 5), (16, 2)) == [1, 1, 0, 0]


def test_a_size_of_0_has_an_entry_of_its_own_and_1_has_none():
    assert counts(Tracked(softmax_of_sum), (4, 6), (1, 6), (0, 6), (7, 6), (0, 6), (1, 6),
        (9, 6)) == [
        1, 1, 1, 0, 0, 0, 0,
    ]  # fmt: skip


REDUCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: x.sum() + x.sum(0).sum() + x.sum(1, keepdim=True),
    "mean": lambda x: (x.mean(0), x.mean(1), x.mean()),
    "amax": lambda x: x.amax(2) + x.any(2),
    "var": lambda x: torch.var_mean(x, 0),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_one_entry_for_each_size_of_0_whatever_the_others_are(name: str) -> None:
    """Three for the pairs of lengths of 0 and above, of which one is for the sizes of the first
    call."""
    tracked = Tracked(REDUCTIONS[name])
    shapes = (4, 6, 5), (3, 0, 5), (9, 0, 5), (7, 8, 5), (1, 0, 5), (2, 3, 5), (8, 1, 5)
    assert sum(counts(tracked, *shapes)) == 3
    assert sum(counts(tracked, (0, 9, 5), (0, 2, 5), (0, 1, 5))) == 1
    assert tracked.skips == [] and not any(c.fixed_sizes for c in tracked.compiler.compilations)


def test_a_size_of_1_that_is_broadcast_has_an_entry_of_its_own():
    tracked = Tracked(lambda x, y: x.cos() + y)
    shapes = (7, 7), (7, 1), (1, 5), (1, 1), (3, 3), (9, 1), (1, 8), (2, 1), (6, 6)
    with torch.no_grad():
        assert [tracked(torch.randn(n, 3), torch.randn(m, 3)) for n, m in shapes] == [
            1,
            1,
            1,
            0,
            1,
            0,
            0,
            0,
            0,
        ]


class Rows(nn.Module):
    """Heads of a sequence that attend to what came before, and what follows from the last row."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.last = nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Any:
        batch, length, _ = x.shape
        q, k, v = (p.view(batch, length, 2, 4).transpose(1, 2) for p in self.wide(x).split(8, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, length, 8)
        return self.last(mixed[:, -1:]), (mixed * q.transpose(1, 2).flatten(2)).sum(0), k


@pytest.mark.parametrize("gradients", [False, True])
def test_attention_of_batches_and_lengths_that_may_be_1(gradients: bool) -> None:
    torch.manual_seed(0)
    model = Rows()
    compiled = ingot.compile(model, dynamic=True)
    for batch, length in ((3, 7), (1, 7), (4, 1), (1, 1), (2, 9)):
        x, found = torch.randn(batch, length, 8), []
        for function in (compiled, model):
            model.zero_grad()
            with torch.set_grad_enabled(gradients):
                results = function(x)
            if gradients:
                sum(r.square().sum() for r in results).backward()
            found.append(
                [r.squeeze() for r in results]
                + [p.grad.clone() for p in model.parameters() if gradients]
            )
        assert_near(*found, 1e-4)


LAYOUTS = {
    "as it is": lambda *s: torch.randn(s),
    "transposed": lambda *s: torch.randn(s[1], s[0], s[2]).transpose(0, 1),
    "a part": lambda *s: torch.randn(s[0], s[1] + 2, s[2])[:, 1:-1],
    "columns": lambda *s: torch.randn(*s[:2], s[2] + 3)[..., 3:],
    "last fastest": lambda *s: torch.randn(s[::-1]).permute(2, 1, 0),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_results_of_sizes_that_become_1(name):
    """Strides of sizes of 1 count as well, as Tracked compares them."""

    def function(x: Tensor) -> Any:
        y = x * 2
        return (
            y,
            x.sin() + x,
            x.reshape(x.shape[0], -1),
            y.transpose(0, 2).contiguous(),
            x.clone(),
            y[:, -1:] + 1,
        )

    make, tracked = LAYOUTS[name], Tracked(function)
    with torch.no_grad():
        for n in (4, 1, 7):
            for shape in ((n, 5, 6), (n, 1, 6)):
                for _ in range(1 + STABLE if tracked.count == 0 else 1):  # the last size settles
                    tracked(make(*shape))
    assert tracked.skips == []


def test_dynamic_false_compiles_for_each_size():
    assert counts(Tracked(softmax_of_sum, dynamic=False), (4, 6), (7, 6), (9, 6), (4, 6)) == [
        1,
        1,
        1,
        0,
    ]


def test_a_size_that_the_program_asks_for():
    def function(x: Tensor) -> Tensor:
        return x.sin() if x.shape[0] > 5 else x.cos()

    assert counts(Tracked(function), (2, 3), (3, 3), (8, 3), (4, 3), (9, 3)) == [1, 1, 1, 0, 0]


def test_symbolic_strides_and_numbers_of_elements():
    def function(x: Tensor) -> Tensor:
        return x * x.stride(0) + x.numel() + sum(x.stride()) + len(x) + x.size(-1)

    assert counts(Tracked(function), (4, 6), (7, 8), (3, 5)) == [1, 1, 0]


def test_equal_sizes_are_not_assumed_to_stay_equal():
    tracked = Tracked(lambda x, y: x[:, None] + y)
    with torch.no_grad():
        assert [
            tracked(torch.randn(n), torch.randn(m)) for n, m in ((3, 3), (4, 4), (5, 6), (7, 2))
        ] == [1, 1, 0, 0]


def test_a_transposed_tensor_compiles_once_more():
    tracked = Tracked(softmax_of_sum)
    with torch.no_grad():
        laid = [lambda *s: torch.randn(s), lambda *s: torch.randn(s[::-1]).t()]
        found = [tracked(laid[k](*s)) for s in ((4, 6), (7, 8), (9, 3)) for k in (0, 1)]
    assert sum(found[2:]) == 2 and sum(found[4:]) == 0


def test_what_has_no_symbolic_rule_is_compiled_for_its_sizes():
    tracked = Tracked(lambda x: torch.fft.rfft(x).abs() + 1)
    assert counts(tracked, (4, 6), (4, 8), (4, 10), (4, 8)) == [1, 1, 1, 0]
    assert tracked.skips == [] and all(c.break_ is None for c in tracked.compiler.compilations)
    (alone,) = tracked.compiler.compilations[1].fixed_sizes
    assert alone.startswith("all sizes and integers are those of the call: ")


def test_a_break_for_the_sake_of_a_symbol_is_not_made():
    def function(x: Tensor) -> Tensor:
        return x * float(x.shape[0]) ** 0.5 + torch.tensor([1.0] * x.shape[1])

    tracked = Tracked(function)
    counts(tracked, (4, 6), (7, 6), (7, 8), (3, 5))
    assert tracked.skips == [] and all(c.break_ is None for c in tracked.compiler.compilations)


def test_behind_a_graph_break():
    def function(x: Tensor) -> Tensor:
        y = x.sin() * 2
        print(end="", flush=True)
        if y.sum() > 1e9:
            return y
        return torch.softmax(y, -1)

    tracked = Tracked(function)
    found = counts(tracked, (4, 6), (7, 6), (9, 6), (12, 6), (5, 6))
    assert sum(found[2:]) == 0


# -- integers --------------------------------------------------------------------------------------


def branches(x: Tensor, n: int) -> Tensor:
    y = x**2
    return (n + 1) * y if n >= 0 else y / n


def test_an_integer_that_varies_becomes_a_symbol_on_either_side_of_a_branch():
    tracked, x = Tracked(branches), torch.randn(5)
    with torch.no_grad():
        assert [tracked(x, n) for n in (2, 3, 6, -3, -8, 100, 0, -1, 1, 1 << 61)] == [
            1,
            1,
            0,
            1,
            0,
            0,
            0,
            0,
            0,
            0,
        ]
        # or they run in eager
        assert [tracked(x, n) for n in ((1 << 63) - 1, -(1 << 63), 1 << 62, 5)] == [0, 0, 0, 0]
    assert tracked.skips == []


INTEGERS = {
    # what becomes of it, and programs of a tensor x, an integer tensor i and an int n
    "symbol": """x * n|x + n - n * 2|x * (n // 2)|x * (n % 3)|x * -n|x / n|n / x|x // n|x % n|i * n
        i + n * n|x * int(n)|x[:n]|x[n:]|x.roll(n, 1)|torch.full((2,), n) + x[0, 0]
        torch.zeros(n) + n|torch.arange(n, n + 5)|x.clamp(max=n)|x.masked_fill(x > n, 0)
        torch.where(x > n, x, n)|torch.where(i == n, 1, n)|x.add(x, alpha=n)|x.half() * n
        x.bfloat16() + n|x.double() / n|x.int() + n|(x, n)|(x, n + 1, [n * 2], {"a": n})|x.tril(n)
        x.sum() * n|x.add_(n)|x.fill_(n)|x * isinstance(n, int)|i * (n * 10**9)""",
    "known": """x * n**2|x * (n << 1)|x * (n & 3)|x * (n ^ 5)|x * ~n|x * (7 // n)|x * (7 % n)|x**n
        x.pow(n)|x * float(n)|x * (n + 0.5)|x * (n / 2)|x * max(n, 2)|x * divmod(n, 3)[0]
        x.sum(n % 2)|x.unsqueeze(n % 2)|torch.tensor(n) + x|torch.tensor([n, n + 1])
        x * {1: 2, 2: 3}.get(n, 4)|x * [5, 6, 7][n % 3]|x * (n in (1, 2, 3))|x * len(str(n))
        x * hash(n)|x * len(range(n))|x * n.bit_length()|(x, str(n), f"{n:3d}", n / 2, n == 3)
        torch.cat([x] * n)|x * sum(range(n))|x * abs(n)|torch.nn.functional.one_hot(i % 3, n + 3)
        torch.linspace(0, n, 5)|torch.topk(x, n % 4 + 1)[0]|torch.softmax(x, -1 - n % 2)
        torch.remainder(i, n)|torch.nn.functional.pad(x, (n, 1))|x.split(n)[0]""",
}


CASES = [
    (kind, p.strip())
    for kind, lines in INTEGERS.items()
    for line in lines.split("\n")
    for p in line.split("|")
]


@pytest.mark.parametrize("kind, program", CASES, ids=[program for _, program in CASES])
def test_programs_of_an_integer(kind, program):
    tracked = Tracked(eval(f"lambda x, i, n: ({program})"))
    x, i = torch.arange(1.0, 13.0).reshape(3, 4), torch.arange(12).reshape(3, 4)
    with torch.no_grad():
        found = [tracked(x.clone(), i.clone(), n) for n in (2, 3, 5, 4, 7)]
    assert tracked.skips == [] and found[0] == 1
    assert kind != "symbol" or sum(found) <= 3


@pytest.mark.parametrize(
    "program", ["x * n", "x - n // 3", "i * n", "x * abs(n)", "x[n:]", "(x, -n)", "x.triu(n)"]
)
def test_integers_of_either_sign_and_of_any_size(program):
    tracked = Tracked(eval(f"lambda x, i, n: ({program})"))
    x, i = torch.arange(1.0, 13.0).reshape(3, 4), torch.arange(12).reshape(3, 4)
    with torch.no_grad():
        for n in (1, 0, 5, -2, 1 << 40, -(1 << 62), (1 << 63) - 1, -1):
            tracked(x, i, n)


@pytest.mark.parametrize(
    "program",
    ["torch.eye(n)", "torch.eye(n, 2 * n) * 3", "torch.ones(torch.eye(n + 1).shape)",
        "torch.hann_window(n)",
     "torch.tril_indices(n, n)", "torch.cartesian_prod(torch.arange(n), torch.arange(2))",
     "torch.vander(x, n)", "torch.logspace(0, 1, n)", "torch.fft.fftfreq(n)",
     "torch.combinations(torch.arange(n))", "torch.diag_embed(x, n)", "torch.fft.rfft(x, n).abs()",
     "x.unfold(0, min(n, 3), 1)", "torch.histc(x, n)", "torch.repeat_interleave(x, n)"],
)  # fmt: skip
def test_shapes_that_an_integer_decides(program):
    """Sizes of results are never those of an earlier call."""
    tracked = Tracked(eval(f"lambda x, n: {program}"))
    for n in (2, 3, 5, 4, 7):
        tracked(torch.arange(6.0), n)


def test_a_counter_of_steps():
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = 0

        def forward(self, x: Tensor) -> Tensor:
            self.step += 1
            return x / self.step + (1 - self.step)

    eager, model = Counter(), Counter()
    compiled = ingot.compile(model)
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(3)
            torch.testing.assert_close(compiled(x), eager(x))
            assert model.step == eager.step and type(model.step) is int
        assert len(ingot.explain(compiled)(x).compilations) <= 3


class Past:
    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = list(tensors)


def test_dynamic_sizes_of_what_arguments_hold():
    """Not those of what modules hold, and not of variables from around the function."""
    outside, layer = torch.randn(6), nn.Linear(6, 6)

    def function(x: Tensor, past: Past, options: dict[str, Tensor], layer: nn.Module) -> Tensor:
        return torch.cat([*past.tensors, x]) @ layer.weight + options["bias"].sum(0) + outside

    compiled = ingot.compile(function, dynamic=True)
    with torch.no_grad():
        for a, b, c, d in ((2, 3, 4, 5), (7, 3, 4, 5), (2, 9, 3, 5), (4, 5, 6, 7)):
            args = (
                torch.randn(a, 6),
                Past(torch.randn(b, 6), torch.randn(c, 6)),
                {"bias": torch.randn(d, 6)},
                layer,
            )
            torch.testing.assert_close(compiled(*args), function(*args))
    (compilation,) = Compiler.of(compiled).compilations
    dynamic = {quantity.name for quantity in compilation.captured.guards.symbols.values()}
    assert {name for name in dynamic if name.endswith("shape[0]")} == {
        "x.shape[0]", "past.tensors[0].shape[0]", "past.tensors[1].shape[0]",
        "options['bias'].shape[0]",
    }  # fmt: skip
    assert not any("weight" in name or "outside" in name for name in dynamic)


def test_dynamic_true_also_sees_what_varies():
    """The size of a module's buffer is compiled for, until it is seen to vary."""
    eager, compiled = Cache(), ingot.compile(Cache(), dynamic=True)
    counts = []
    with torch.no_grad():
        for n in (2, 4, 3, 2):
            x = torch.randn(n, 3)
            torch.testing.assert_close(compiled(x), eager(x))
            counts.append(len(Compiler.of(compiled).compilations))
    assert counts == [1, 2, 2, 2]


@pytest.mark.parametrize(
    "draw", [lambda x: nn.functional.dropout(x, 0.3), lambda x: torch.empty_like(x).bernoulli_(0.3)]
)
@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_random_numbers_lie_as_in_eager(draw, order):
    compiled = ingot.compile(draw, fullgraph=True)
    for shape in ((8, 5, 6), (2, 3, 9), (7, 2, 4)):
        x = torch.ones(shape).permute(order)
        results = []
        for function in (compiled, draw):
            torch.manual_seed(0)
            results.append(function(x))
        assert torch.equal(*results) and results[0].stride() == results[1].stride()
    assert len(Compiler.of(compiled).compilations) == 2


@pytest.mark.parametrize("turned", [False, True])
def test_a_computed_size_that_is_1_is_broadcast(turned: bool) -> None:
    def function(x: Tensor) -> Tensor:
        last = torch.tensor_split(x.cumsum(0), 3, 1)[2]
        return last / x if turned else x / last

    compiled = ingot.compile(function, dynamic=True)
    for shape in ((3, 3, 8), (6, 4, 5), (2, 5, 4)):
        x = torch.rand(shape) + 1
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("shape", [(1, 3), (3,)])
def test_no_negative_size_is_served(shape: tuple[int, ...]) -> None:
    def function(x: Tensor, k: int) -> Tensor:
        return x.expand(k, 3).sum(0) * 0 + 1

    tracked = Tracked(function)
    with torch.no_grad():
        for k in (2, 5, 7, 0, 1):
            tracked(torch.ones(shape), k)
        with pytest.raises(RuntimeError):
            tracked.compiled(torch.ones(shape), -2)


def laid_differently(x: Tensor) -> Tensor:
    return x.t().reshape(x.shape)


def joined(x: Tensor) -> Tensor:
    return x.t().reshape(-1)


def test_a_reshape_of_no_elements_is_a_view() -> None:
    def fn(x: Tensor) -> Any:
        part = x[:0, 1::3]
        return part.reshape(2, -1), part.reshape(part.shape), part

    tracked = Tracked(fn, dynamic=True)
    with torch.no_grad():
        for shape in ((8, 6, 17), (3, 9, 4)):
            tracked(x := torch.randn(shape))
            assert {t.untyped_storage().data_ptr() for t in tracked.compiled(x)} == {
                x.untyped_storage().data_ptr()
            }


@pytest.mark.parametrize("function", [laid_differently, joined])
@pytest.mark.parametrize("computed", [False, True])
def test_what_reshapes_to_a_view_where_a_size_is_1(
    function: Callable[[Tensor], Tensor], computed: bool
) -> None:
    """Writes to the result show in the argument in the same calls as in eager."""

    def program(x: Tensor) -> Tensor:
        function(x[: (x.shape[0] + 1) // 2] if computed else x).add_(1)
        return x * 2

    tracked = Tracked(program, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for shape in ((5, 4), (1, 4), (4, 1), (2, 5), (1, 1), (3, 7), (1, 9)):
            tracked(torch.randn(shape))
    assert tracked.count <= 5


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_padding_by_an_integer_of_either_sign(order: tuple[int, ...]) -> None:
    """What only takes away is a copy, which lies as its argument does; what adds lies in order."""
    tracked = Tracked(lambda x, k: F.pad(x, (0, k)), dynamic=True, fullgraph=True)
    with torch.no_grad():
        for shape, k in (
            ((4, 5, 6), 1),
            ((4, 5, 6), -2),
            ((7, 4, 5), 0),
            ((3, 6, 8), 3),
            ((3, 8, 6), -1),
        ):
            tracked(
                torch.randn([shape[d] for d in order]).permute(
                    *sorted(range(3), key=order.__getitem__)
                ),
                k,
            )


def test_pieces_of_symbolic_rows_are_put_together_in_a_thread_s_scratch() -> None:
    """A concatenation that only its own row's sums read needs no memory for all rows."""

    def program(x: Tensor) -> Tensor:
        return F.layer_norm(torch.cat([x.softmax(-1), x.sin()], -1), (2 * x.shape[-1],))

    tracked = Tracked(program, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for shape in ((8, 6), (5, 33), (3, 1), (300, 70)):
            tracked(torch.randn(shape))
        assert ingot.explain(tracked.compiled)(torch.randn(300, 70)).arena_bytes == 0
