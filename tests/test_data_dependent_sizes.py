"""Sizes that the data decide: one graph, eager's results for none, one and many elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from tests.tracked import Tracked

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
COUNTS = (12, 7, 0, 1, 30, 2)


def mask_of(count: int, *sizes: int) -> Tensor:
    """A mask with so many elements set."""
    mask = torch.zeros(sizes or (6, 5), dtype=torch.bool)
    order = torch.randperm(mask.numel(), generator=torch.Generator().manual_seed(count))
    mask.view(-1)[order[:count]] = True
    return mask


class Counted:
    """`function`, and how often it ran in eager since it was compiled."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.replays: list[int] = []

        def watched(*args: Any) -> Any:
            if not torch.compiler.is_compiling():
                self.replays.append(1)
            return function(*args)

        self.tracked = Tracked(watched, **options)

    def __call__(self, *args: Any) -> tuple[int, int]:
        """Compares with eager. Gives what was compiled, and how often the compiled call went on in
        eager."""
        before = len(self.replays)
        compiled = self.tracked(*args)
        return compiled, len(self.replays) - before - 1


def one_program(function: Callable[..., Any], *calls: tuple[Any, ...], replays: int = 0) -> None:
    """The function is one graph, compiled once for all calls, of which `replays` run in eager."""
    counted = Counted(function, fullgraph=True)
    with torch.no_grad():
        found = [counted(*args) for args in calls]
    assert [compiled for compiled, _ in found] == [1] + [0] * (len(calls) - 1)
    assert sum(again for _, again in found) == replays
    assert counted.tracked.skips == []


def breaks_in(function: Callable[..., Any], *args: Any) -> list[str]:
    """Why the graph is broken; the result is compared with eager."""
    Tracked(function)(*args)
    return [region.reason for region in ingot.explain(function)(*args).breaks]


def places(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    index = mask.nonzero()
    return x[index[:, 0]].sin() * 2, index


def two_masked(x: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    selected = x[mask]
    return selected + (x * 2)[mask], selected.shape[0]


def normalized(x: Tensor, mask: Tensor) -> Tensor:
    selected = x[mask]
    return (selected - selected.mean()) / (selected.sum() + 1)


def put_back(x: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros_like(x).index_put((mask,), x[mask].exp())


def made(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    count = x[mask].shape[0]
    return torch.ones(count, 3) * x[0, 0], torch.arange(count)


def joined(x: Tensor, mask: Tensor) -> Tensor:
    selected = x[mask]
    return torch.cat([selected, selected * 2, x[0]])


def viewed(x: Tensor, mask: Tensor) -> Tensor:
    rows = x[mask[:, 0]]
    return rows.view(-1) * 2 + rows.reshape(rows.shape[0] * 5)


first_piece_is_known: list[Callable[[Tensor, Tensor], Any]] = [
    lambda x, mask: torch.cat([(a := x.exp()).view(-1), a[a > 1.5]]),
    lambda x, mask: torch.cat([(a := x.exp().cumsum(1)).view(-1), a[mask]]),
    lambda x, mask: torch.cat([x.view(-1), (x * 2).exp()[x * 2 > 0.5]]),
    lambda x, mask: torch.stack([(a := x.exp()).sum().expand((b := a[a > 1.5]).shape), b], 1),
    lambda x, mask: torch.cat([(a := x.exp()), a[a[:, 0] > 1.2]]).sin(),
    lambda x, mask: F.pad((a := x.exp())[a > 1.5], (2, 3), value=7.0),
    lambda x, mask: (
        torch.zeros_like(a := x.exp()) + a.sum(),
        a.new_full((a[a > 1.5].shape[0],), 2.0),
    ),
]
"""What is written into a buffer of such a size before the size is known, in a kernel with what the
size comes of."""


@pytest.mark.parametrize(
    "function",
    [
        places, two_masked, normalized, made, joined, put_back,
        lambda x, mask: x[mask],
        lambda x, mask: x[mask].sum(),
        lambda x, mask: x[mask].sum(0, keepdim=True),
        lambda x, mask: x[mask[:, 0]].sum(0),
        lambda x, mask: x[mask[:, 0]].sum(1),
        lambda x, mask: x[mask[:, 0]] + x[0],
        lambda x, mask: x[mask[:, 0]].t() * 2,
        lambda x, mask: torch.masked_select(x, mask).exp().prod(),
        lambda x, mask: torch.masked_select(x[0], mask),
        lambda x, mask: torch.where(mask),
        lambda x, mask: mask.nonzero(as_tuple=True)[1].float().mean(),
        lambda x, mask: x[x > 0.5].unsqueeze(1) + x[0],
        lambda x, mask: x[mask].to(torch.float64).any(),
        lambda x, mask: x[mask].clone().numel() * 2 + 1,
        lambda x, mask: F.relu(x[mask]).unsqueeze(0).expand(3, -1).sum(0),
        lambda x, mask: x[mask] * x[mask].shape[0],
        *first_piece_is_known,
    ],
)  # fmt: skip
def test_what_a_mask_selects(function):
    one_program(function, *[(X, mask_of(count)) for count in COUNTS])


@pytest.mark.parametrize(
    "function",
    [
        # whose strides are others where nothing is selected
        lambda x, mask: x.repeat(1, 6)[:, mask.view(-1)] * 2,
        lambda x, mask: torch.argwhere(mask) + 1,
        lambda x, mask: x[mask].max(),  # which is an error of nothing
        lambda x, mask: torch.softmax(x[mask[:, 0]], 0),
        lambda x, mask: x[mask[:, 0]] @ x.t(),
        lambda x, mask: x[mask[:, 0]].var(1),
        lambda x, mask: x[mask][0],
        viewed,
    ],
)  # fmt: skip
def test_what_is_compiled_for_some_elements(function):
    """Of none, or one, eager computes."""
    calls = [(X, mask_of(count)) for count in (12, 7, 30, 20)]
    counted = Counted(function, fullgraph=True)
    with torch.no_grad():
        assert [counted(*args) for args in calls] == [(1, 0), (0, 0), (0, 0), (0, 0)]
        for count in (1, 0):
            args = X, mask_of(count)
            try:
                function(*args)
            except (RuntimeError, IndexError) as error:
                with pytest.raises(type(error)):
                    counted.tracked.compiled(*args)
            else:
                assert counted(*args)[0] == 0


def test_symbolic_sizes_of_the_arguments_beside():
    counted = Counted(
        lambda x, mask: (x[mask].exp() * x.shape[0]).sum() + x[mask].shape[0], fullgraph=True
    )
    calls = [
        (torch.randn(n, 5), mask_of(k, n, 5))
        for n, k in ((4, 3), (7, 9), (8, 0), (9, 1), (300, 700))
    ]
    with torch.no_grad():
        assert [counted(*args) for args in calls] == [(1, 0), (1, 0), (0, 0), (0, 0), (0, 0)]


def test_sizes_that_meet_are_checked():
    """Eager takes other sizes where one is 1, and refuses the rest."""

    def function(x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        return x[mask] * y

    counted = Counted(function, fullgraph=True)
    with torch.no_grad():
        assert counted(X, mask_of(5), torch.randn(5)) == (1, 0)
        assert counted(X, mask_of(5), torch.randn(5)) == (0, 0)
        assert counted(X, mask_of(1), torch.randn(5)) == (0, 1)
        with pytest.raises(RuntimeError, match="must match the size"):
            counted.tracked.compiled(X, mask_of(4), torch.randn(5))


def test_a_mask_of_other_sizes_is_eagers_error():
    with pytest.raises(IndexError, match="mask"):
        ingot.compile(lambda x, mask: x[mask])(X, mask_of(3, 4, 5))


def test_what_seems_to_be_refused_may_not_be():
    """One element, which broadcasts, is not what is taken to be usual."""

    def few(x: Tensor, v: Tensor) -> Tensor:
        return torch.clamp(x, v[torch.tensor([True, False])], None)

    tracked = Tracked(few)
    with torch.no_grad():
        assert [tracked(row, row[:2]) for row in X[:2]] == [2, 0]  # up to the break, and behind it
    assert tracked.skips == []


def test_branches_on_such_a_size_break_the_graph():
    def function(x: Tensor, mask: Tensor) -> Tensor:
        selected = x[mask]
        if selected.shape[0] > 3:
            return selected * 2
        return selected + 1

    for count in COUNTS:
        (reason,) = breaks_in(function, X, mask_of(count))
        assert "a branch on" in reason and "which the data decide" in reason


def test_what_is_known_of_a_size_is_no_branch():
    def function(x: Tensor, mask: Tensor) -> Tensor:
        count = x[mask].shape[0]
        assert count >= 0
        return x + 1 if count < 31 else x

    one_program(function, *[(X, mask_of(count)) for count in COUNTS])


def test_checks_of_the_program():
    def function(x: Tensor, mask: Tensor) -> Tensor:
        selected = x[mask]
        torch._check(selected.shape[0] > 3, lambda: "too few")
        return selected * 2 if selected.shape[0] > 2 else selected

    counted = Counted(function, fullgraph=True)
    with torch.no_grad():
        assert [counted(X, mask_of(count)) for count in (12, 4, 30)] == [(1, 0), (0, 0), (0, 0)]
        with pytest.raises(RuntimeError, match="too few"):
            counted.tracked.compiled(X, mask_of(3))
    assert len(counted.replays) == 4  # three beside compiled calls, and the one that failed


def test_random_numbers_beside_a_check():
    """Where the check fails, the generator is put back before the call goes on in eager."""

    def function(x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        return x[mask] * y + torch.rand(5)

    y = torch.randn(5)
    compiled = ingot.compile(function)
    for count in (5, 1, 5):
        torch.manual_seed(3)
        expected = function(X, mask_of(count), y)
        torch.manual_seed(3)
        torch.testing.assert_close(compiled(X, mask_of(count), y), expected)


def test_inputs_are_written():
    def function(x: Tensor, mask: Tensor) -> Tensor:
        x += 1
        x[mask] = x[mask] * 2
        return x[mask].sum()

    tracked = Tracked(function)
    with torch.no_grad():
        for count in COUNTS:
            tracked(X.clone(), mask_of(count))
    assert tracked.skips == []


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("op", [torch.unique, torch.unique_consecutive])
def test_what_is_unique_along_a_dimension_lies_as_in_eager(op, dim):
    x = torch.randint(0, 2, (5, 4, 3))
    Tracked(lambda x: op(x, dim=dim))(x)


ASSERTION = """
def an_assertion(x):
    assert (x < 1.5).all(), f"{x.shape} too large"
    return x * 2
"""
SPACE: dict[str, Any] = {}
exec(ASSERTION, SPACE)  # since pytest writes assertions of a test anew


def an_error(x: Tensor) -> Tensor:
    y = x.sin()
    if not torch._is_all_true(y < 0.99):
        raise ValueError(f"found {y.max().item()}")
    if y.sum() > 100.0:
        raise ValueError
    return y.cos()


def a_check_of_torchs(x: Tensor) -> Tensor:
    torch._check_tensor_all(x < 1.5)
    return x * 2


def the_argument_of_a_distribution(x: Tensor) -> Tensor:
    # torch.compile turns it off
    return torch.distributions.Normal(x, (1.5 - x), validate_args=True).log_prob(x + 1)


CHECKED = (SPACE["an_assertion"], an_error, a_check_of_torchs, the_argument_of_a_distribution)


@pytest.mark.parametrize("gradients", (False, True))
@pytest.mark.parametrize("function", CHECKED, ids=lambda f: f.__name__)
def test_errors_of_the_data_are_checked_in_the_graph(
    function: Callable[[Tensor], Tensor], gradients: bool
) -> None:
    counted = Counted(function, fullgraph=True)
    small, large = (torch.full((5,), v, requires_grad=gradients) for v in (1.0, 1.55))
    assert [counted(small), counted(small)] == [(1, 0), (0, 0)]
    with pytest.raises(Exception) as expected:
        function(large)
    with pytest.raises(expected.type) as found:
        counted.tracked.compiled(large)
    assert str(found.value) == str(expected.value)
    assert counted(small) == (0, 0)


def test_errors_of_the_data_behind_random_numbers_and_writes_break_the_graph() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        noise = torch.rand(5)
        x.add_(1)
        if (x > 2.5).any():
            raise ValueError
        return x * noise + y

    tracked = Tracked(function)
    with torch.no_grad():
        for value in (1.0, 1.2):
            assert_drawn(tracked.compiled, function, torch.full((5,), value))
        x = torch.full((5,), 2.0)
        with pytest.raises(ValueError):
            tracked.compiled(x, x)
        assert x[0] == 3


def test_errors_of_the_data_behind_random_numbers() -> None:
    def function(x: Tensor) -> Tensor:
        noise = torch.rand(5)
        if (x + noise > 2.6).any():
            raise ValueError(f"{noise.sum().item()}")
        return x * noise + torch.rand(5)

    compiled = ingot.compile(function, fullgraph=True)
    for gradients in (False, True):
        for value in (1.0, 1.2, 2.0, 1.0):
            ran: list[Any] = []
            for f in (compiled, function):
                torch.manual_seed(0)
                try:
                    ran.append(f(torch.full((5,), value, requires_grad=gradients)))
                except ValueError as error:
                    ran.append(str(error))
                ran.append(torch.rand(1))
            assert isinstance(ran[0], str) is (value == 2.0)
            assert ran[0] == ran[2] if isinstance(ran[0], str) else torch.allclose(ran[0], ran[2])
            assert torch.equal(ran[1], ran[3])


def assert_drawn(
    compiled: Callable[..., Tensor], function: Callable[..., Tensor], x: Tensor
) -> None:
    """Both draw the same, and write the same."""
    ran = []
    for f in (compiled, function):
        given = x.clone()
        torch.manual_seed(0)
        ran.append((f(given, x), given, torch.rand(1)))
    torch.testing.assert_close(*ran)


def test_what_takes_no_symbols_breaks_the_graph() -> None:
    def function(x: Tensor, sizes: Tensor) -> Tensor:
        height, width = sizes
        return F.interpolate(x.sin(), size=(height, width), mode="bilinear").cos()

    tracked = Tracked(function)
    with torch.no_grad():
        for size in (5, 7):
            tracked(torch.randn(1, 2, 4, 4), torch.tensor([size, 6]))
    assert tracked.skips == []


MASKED = {
    "masked_fill": lambda x, y, m: x.masked_fill(m, -1.0),
    "mse_loss": lambda x, y, m: F.mse_loss(x, y),
    "smooth_l1_loss": lambda x, y, m: F.smooth_l1_loss(x, y, reduction="none"),
    "cosine_similarity": lambda x, y, m: F.cosine_similarity(x, y),
}


@pytest.mark.parametrize("name", MASKED)
def test_what_one_mask_selects_is_as_many(name):
    """Of several tensors: functions that compare the sizes, as losses do, break no graph."""

    def function(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        kept = mask.any(0)
        return MASKED[name](x[:, kept], y[:, kept], mask[:, kept])

    one_program(function, *[(X, X.cos(), mask_of(count)) for count in (30, 20, 9)])


def test_a_mask_that_is_written_selects_another_number():
    def function(x: Tensor, mask: Tensor, other: Tensor) -> Tensor:
        mask = mask.clone()
        before = x[mask]
        mask.data.logical_and_(other)
        return F.mse_loss(before, x[mask])

    fewer = mask_of(9)
    fewer.view(-1)[fewer.view(-1).nonzero()[0]] = False
    tracked = Tracked(function)
    with torch.no_grad():
        for _ in range(2):
            tracked(X, mask_of(9), mask_of(30))
        with (
            pytest.warns(UserWarning, match="size"),
            pytest.raises(RuntimeError, match="must match"),
        ):
            tracked.compiled(X, mask_of(9), fewer)


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("length", [0, 1])
def test_narrow_from_where_the_data_say(length: int, dim: int):
    """From before the first place to behind the last one: what eager gives, or the error that it
    raises."""

    def function(x: Tensor, start: Tensor) -> Any:
        part = x.narrow(dim, start, length)
        return part, part.sum()

    def outcome(call: Any, start: int) -> Any:
        try:
            return [
                result.tolist()
                for result in call(torch.arange(25.0).view(5, 5), torch.tensor(start))
            ]
        except (IndexError, RuntimeError) as error:
            return type(error), str(error)

    compiled = ingot.compile(function)
    for start in (0, 5, -1, 3, 6, -6, -5, 4):
        assert outcome(compiled, start) == outcome(function, start)
    reasons = [
        c.skipped.reason for c in Compiler.of(compiled).compilations if c.skipped is not None
    ]
    assert not any("AttributeError" in reason for reason in reasons)


@pytest.mark.parametrize("write", [True, False])
def test_a_size_that_is_checked_behind_a_write(write):
    """Where it is another one than was supposed, eager cannot begin anew: it has the call from the
    start."""

    def program(x, y):
        if write:
            y.add_(1)
        kept = torch.unique((x > 0).long())[:1] + (y.nonzero().sum() + torch.arange(x.shape[0]))
        y.mul_(2)
        return torch.unique(y)[:2] + kept[:2]

    compiled = ingot.compile(program)
    for values in ([1.0, -1.0, 2.0], [1.0, 2.0, 3.0], [1.0, -1.0, 1.0], [-1.0, -1.0, -1.0]):
        results = []
        for function in (compiled, program):
            x, y = torch.tensor(values), torch.tensor(values).flip(0)
            try:
                results.append((function(x, y), y))
            except RuntimeError as error:
                results.append((str(error), y))
        (actual, y1), (expected, y2) = results
        assert torch.equal(y1, y2) and type(actual) is type(expected)
        assert actual == expected if isinstance(expected, str) else torch.equal(actual, expected)


def test_sums_of_sizes_of_arguments_and_of_the_data() -> None:
    """The loops of a graph are taken out, and each node gets one: as many edges as the data say."""

    def function(edges: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        kept = edges[:, edges[0] != edges[1]]
        own = torch.arange(len(nodes))
        kept = torch.cat([kept, torch.stack([own, own])], 1)
        weights = torch.ones(kept.size(1))
        return weights.cumsum(0), torch.zeros(len(nodes)).scatter_add_(0, kept[1], weights)

    tracked, compiled = Tracked(function, fullgraph=True), []
    for nodes, count in ((5, 12), (7, 30), (9, 17), (4, 3), (6, 2)):
        edges = torch.randint(nodes, (2, count), generator=torch.Generator().manual_seed(count))
        compiled.append(tracked(edges, torch.ones(nodes)))
    assert sum(compiled[3:]) <= 1 and sum(compiled[:3]) == 2
    assert tracked.skips == []
