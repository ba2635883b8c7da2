"""torch.cond and its kin: what they give is what eager gives; what depends on Python numbers alone,
and the loops of map and scan, are one graph."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import (
    InvokeQuant,
    foreach_map,
    hints_wrapper,
    out_dtype,
    scan,
    strict_mode,
    while_loop,
)
from torch._higher_order_ops import print as print_op
from torch._higher_order_ops.map import map as map_over

import ingot

X = torch.arange(4.0) + 0.5
hops: Any = torch.ops.higher_order

WHOLE: dict[str, Callable[[Tensor], Any]] = {
    "cond on a size": lambda x: torch.cond(
        x.shape[0] > 2, lambda x: x + 1, lambda x: x - 1, (x,)
    ),
    "while_loop": lambda x: while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)
    ),
    "while_loop that never runs": lambda x: while_loop(
        lambda i, x: i < -1, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)
    ),
    "scan": lambda x: scan(lambda c, x: (c + x, c * x), torch.zeros(()), x),
    "scan, reversed": lambda x: scan(
        lambda c, x: (c + x, c * x), torch.zeros(4), x.repeat(4, 1).tril(), reverse=True
    ),
    "scan of trees": lambda x: scan(
        lambda c, x: ({"sum": c["sum"] + x["u"]}, [c["sum"] * x["u"]]),
        {"sum": torch.zeros(())},
        {"u": x},
    ),
    "map": lambda x: map_over(lambda row: row * 2, x[:, None]),
    "map of trees": lambda x: map_over(
        lambda rows, k: (rows[0] * 2 + k, rows[1] * 1),
        [x[:, None].clone(), x.clone()],
        x[0].clone(),
    ),
    "foreach_map": lambda x: foreach_map(lambda a, b: a * b + 1, [x, x + 1], [x, x]),
    "foreach_map, a list and a number": lambda x: foreach_map(torch.add, [x, x + 1], 2),
    "strict_mode": lambda x: strict_mode(lambda a, b: (a + b, a * 1), (x, x * 2)),
    "hints_wrapper": lambda x: hints_wrapper(lambda a: a.sin(), (x,), {}, hints={"a": 1}),
    "out_dtype": lambda x: out_dtype(
        torch.ops.aten.mul.Tensor, torch.int32, x.to(torch.int8), x.to(torch.int8) * 100
    ),
    "out_dtype, a product": lambda x: out_dtype(
        torch.ops.aten.mm.default, torch.int32, x[:, None].to(torch.int8), x[None].to(torch.int8)
    ),
    "wrap": lambda x: hops.wrap(lambda a, b: (a + b, x * 2), x, b=x + 1),
    "wrap_with_set_grad_enabled": lambda x: hops.wrap_with_set_grad_enabled(
        False, lambda a: a.sin() + torch.is_grad_enabled(), x
    ),
    "wrap_with_autocast": lambda x: hops.wrap_with_autocast(
        "cpu", torch.bfloat16, True, None, lambda a: a[:, None] @ a[None], x
    ),
    "dynamo_bypassing_wrapper": lambda x: hops.dynamo_bypassing_wrapper(
        lambda function: lambda a: function(a) + 1, torch.sin, x
    ),
    "map_impl": lambda x: hops.map_impl(lambda a, b, c: (a * c, b * 1), [x, x + 1], [x]),
    "cond operator": lambda x: hops.cond(x.shape[0] > 2, torch.sin, torch.cos, (x,)),
    "InvokeQuant": lambda x: InvokeQuant()(lambda a, b: a * b, x, x, scheme="int4"),
}  # fmt: skip


def test_hints_that_are_refused() -> None:
    for given in ((X, [1]), (X, "text")):
        compiled = ingot.compile(lambda *args: hints_wrapper(torch.mul, args, {}, hints={"a": 1}))
        with pytest.raises(RuntimeError, match="args must be a tuple"):
            compiled(*given)


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(x: Tensor) -> Tensor:
        y = x + 1
        print_op("{} of {size}", "a tensor", size=x.shape[0])
        return y

    assert torch.equal(ingot.compile(shown, fullgraph=True)(X), X + 1)
    assert capsys.readouterr().out == "a tensor of 4\n"


@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name: str) -> None:
    torch.testing.assert_close(ingot.compile(WHOLE[name], fullgraph=True)(X), WHOLE[name](X))


ALONG: dict[str, Callable[[Tensor], Any]] = {
    "columns": lambda x: scan(lambda c, x: (c + x, c * x), x[:, 0, 0] * 0, x[:, :, 0], dim=1),
    "the last": lambda x: scan(lambda c, x: (c + x, c * x), x[:, :, 0] * 0, x, dim=-1),
    "reversed": lambda x: scan(
        lambda c, x: (c + x, c * x), x[:, 0] * 0, x, dim=1, reverse=True
    ),
    "of trees": lambda x: scan(
        lambda c, x: (c + x[0], {"a": c * x[1], "b": c.sum()}), x[:, 0] * 0, [x, x * 2], dim=1
    ),
    "many": lambda x: scan(
        lambda c, x: (c * 0.9 + x, c * x), x[:, 0] * 0, x.repeat(1, 30, 1), dim=1
    ),
}  # fmt: skip
OUTSIDE: dict[str, Callable[[Tensor], Any]] = {
    "no such dimension": lambda x: scan(lambda c, x: (c + x, c), x[0] * 0, x, dim=3),
    "of no rank": lambda x: scan(lambda c, x: (c + x[0], c), x[0] * 0, [x, x[0, 0, 0]], dim=1),
}


@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("name", ALONG)
def test_scans_along_other_dimensions(name: str, with_gradients: bool) -> None:
    cube, function = torch.linspace(-1, 1, 24).view(2, 3, 4), ALONG[name]
    compiled = ingot.compile(function, fullgraph=torch.__version__ >= "2.13")
    for x in (cube, cube * 3):
        found = outcome(compiled, x, with_gradients)
        torch.testing.assert_close(found, outcome(function, x, with_gradients))


@pytest.mark.parametrize("name", OUTSIDE)
def test_errors_of_scans_are_eagers(name: str) -> None:
    x, errors = torch.ones(2, 3, 4), []
    for function in (OUTSIDE[name], ingot.compile(OUTSIDE[name])):
        with pytest.raises(Exception) as raised:
            function(x)
        errors.append((raised.type, str(raised.value)))
    assert errors[0] == errors[1]


# -- where data decide -----------------------------------------------------------------------------


def python_cond(predicate: Any, taken: Any, other: Any, operands: Any = ()) -> Any:
    return taken(*operands) if predicate else other(*operands)


def python_loop(condition: Any, body: Any, state: Any) -> Any:
    while condition(*state):
        state = body(*state)
    return state


class Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: Tensor, cond: Any) -> Any:
        return cond(x.sum() > 0, lambda x: self.first(x), lambda x: self.second(x).relu(), (x,))


MODULE = Branches()
WEIGHT = torch.linspace(-1, 1, 4)


def shared_before_and_behind(x: Tensor, cond: Any, loop: Any) -> Any:
    y = x.t()
    chosen = cond(x.sum() > 0, lambda: (y * y).sum(1) * y.shape[0], lambda: y.sum(1) + y.shape[1])
    return chosen, (y * y).sum(1) * y.shape[0]


def written_inside(x: Tensor, cond: Any, loop: Any) -> Any:
    def written(x: Tensor) -> Tensor:
        y = x.clone()
        y.add_(1)
        y[0] = 3
        return y

    return cond(x.sum() > 0, written, lambda x: x - 1, (x,))


def one_in_another(x: Tensor, cond: Any, loop: Any) -> Any:
    def inner(x: Tensor) -> Any:
        return cond(x.max() > 1, lambda x: x * 2, lambda x: x * 3, (x,))

    return cond(x.sum() > 0, inner, lambda x: x.exp(), (x,))


def under_autocast(x: Tensor, cond: Any, loop: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return cond(x.sum() > 0, lambda x: x @ x.t(), lambda x: (x - 1) @ x.t(), (x,)).float()


def without_gradients(x: Tensor, cond: Any, loop: Any) -> Any:
    with torch.no_grad():
        y = cond(x.sum() > 0, lambda x: x * x, lambda x: x - 1, (x,))
    return y * x


def again_and_again(x: Tensor, cond: Any, loop: Any) -> Any:
    for _ in range(3):
        x = cond(x.sum() > 0, lambda x: x - 2, lambda x: x * 2 + 1, (x,))
    return x


def differentiated_inside(x: Tensor, cond: Any, loop: Any) -> Any:
    def slope(x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: (x**3).sum())(x)

    return cond(x.sum() > 0, slope, lambda x: x * 2, (x,))


BRANCHES: dict[str, Callable[..., Any]] = {
    "two": lambda x, c, w: c(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)),
    "closed over": lambda x, c, w: c(x.sum() > 0, lambda: x + 1, lambda: x * x) * 2,
    "trees": lambda x, c, w: c(
        x.sum() > 0,
        lambda p: {"a": p["x"] + 1, "b": [p["x"] * 2, (p["x"].sum(),)]},
        lambda p: {"a": p["x"] - 1, "b": [p["x"] * 3, (p["x"].mean(),)]},
        ({"x": x},),
    ),
    "a number": lambda x, c, w: c(x.sum(), lambda x: x + 1, lambda x: x - 1, (x,)),
    "one element": lambda x, c, w: c(
        (x > 2).any().view(1), lambda x: x + 1, lambda x: x - 1, (x,)
    ),
    "integers": lambda x, c, w: c(x.sum() > 0, lambda x: x.argmax(1), lambda x: x.argmin(1), (x,)),
    "of another layout": lambda x, c, w: c(
        x.sum() > 0, lambda x: (x + 1).t(), lambda x: (x - 1).t(), (x,)
    ),
    "without a gradient in one": lambda x, c, w: c(
        x.sum() > 0, lambda x: x.detach() * 2, lambda x: x * 3, (x,)
    ),
    "of no operand": lambda x, c, w: x * c(
        x.sum() > 0, lambda: torch.ones(4), lambda: torch.zeros(4)
    ),
    "of a module": lambda x, c, w: MODULE(x, c),
    "of a global": lambda x, c, w: c(x.sum() > 0, lambda: x * WEIGHT, lambda: x + WEIGHT),
    "not read": lambda x, c, w: (c(x.sum() > 0, lambda: x + 1, lambda: x - 1), x * 2)[1],
    "shared": shared_before_and_behind,
    "written inside": written_inside,
    "one in another": one_in_another,
    "under autocast": under_autocast,
    "without gradients": without_gradients,
    "again and again": again_and_again,
    "differentiated inside": differentiated_inside,
    "a loop in a branch": lambda x, c, w: c(
        x.sum() > 0,
        lambda x: w(lambda y: y.abs().sum() > 1, lambda y: (y * 0.5,), (x.detach(),))[0] * 1,
        lambda x: x * 2,
        (x,),
    ),
}  # fmt: skip


def newton(x: Tensor, cond: Any, loop: Any) -> Any:
    a = x.abs() + 0.5

    def body(y: Tensor, i: Tensor) -> Any:
        return (y + a / y) / 2, i + 1

    return loop(lambda y, i: (y * y - a).abs().max() > 1e-3, body, (a + 1, torch.tensor(0)))


LOOPS: dict[str, Callable[..., Any]] = {
    "until a value": lambda x, c, w: w(
        lambda x: x.sum() < 99, lambda x: (x * 2 + 1,), (x.abs(),)
    ),
    "Newton": newton,
    "of known length": lambda x, c, w: w(
        lambda i, x: i < 100, lambda i, x: (i + 1, x * 0.9 + 0.1), (torch.tensor(0), x)
    ),
    "swapped": lambda x, c, w: w(
        lambda i, a, b: i.sum() < 9,
        lambda i, a, b: (i + 1, b * 1, a * 2),
        (x.new_zeros(()), x * 1, x + 1),
    ),
    "trees": lambda x, c, w: w(
        lambda p: p["i"] < x.abs().max(),
        lambda p: ({"i": p["i"] + 1, "x": [p["x"][0] * 2]},),
        ({"i": torch.tensor(0), "x": [x * 1]},),
    ),
    "a branch in a loop": lambda x, c, w: w(
        lambda i, y: i < x.abs().max() + 3,
        lambda i, y: (i + 1, c(y.sum() > 0, lambda y: y - 1, lambda y: y + 2, (y,))),
        (torch.tensor(0), x * 1),
    ),
    "one in another": lambda x, c, w: w(
        lambda y: y.sum() < 99,
        lambda y: (w(lambda z: z.sum() < y.sum() + 9, lambda z: (z + 1,), (y * 1,))[0],),
        (x.abs(),),
    ),
    "sizes": lambda x, c, w: w(
        lambda y: y.sum() < 9 * x.shape[0], lambda y: (y + x.shape[0] / x.shape[1],), (x.abs(),)
    ),
}  # fmt: skip

ROWS = torch.linspace(-1, 2, 12).view(3, 4)
INPUTS = (ROWS, -ROWS, ROWS.repeat(2, 1) + 1, -ROWS.repeat(2, 1))


def outcome(function: Callable[..., Any], x: Tensor, with_gradients: bool, *forms: Any) -> Any:
    """Values, strides and gradients."""
    given = x.clone().requires_grad_(with_gradients)
    values = torch.utils._pytree.tree_leaves(function(given, *forms))
    weighted = [(v * torch.linspace(1, 2, v.numel()).view(v.shape)).sum() for v in values]
    followed = [w for w in weighted if w.requires_grad]
    inputs = [t for t in (given, *MODULE.parameters()) if t.requires_grad]
    gradients: Any = [torch.zeros_like(t) for t in inputs]
    if followed:
        gradients = torch.autograd.grad(
            sum(followed), inputs, allow_unused=True, materialize_grads=True
        )
    return values, [v.stride() for v in values], list(gradients)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("name", BRANCHES)
def test_branches_are_in_the_graph(name: str, with_gradients: bool, dynamic: bool) -> None:
    compiled = ingot.compile(BRANCHES[name], fullgraph=True, dynamic=dynamic)
    for x in INPUTS:
        found = outcome(compiled, x, with_gradients, torch.cond, while_loop)
        expected = outcome(BRANCHES[name], x, with_gradients, python_cond, python_loop)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_in_the_graph(name: str, dynamic: bool) -> None:
    compiled = ingot.compile(LOOPS[name], fullgraph=True, dynamic=dynamic)
    for x in INPUTS:
        found = outcome(compiled, x, False, torch.cond, while_loop)
        expected = outcome(LOOPS[name], x, False, python_cond, python_loop)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_loop_that_never_runs_copies_its_state() -> None:
    compiled = ingot.compile(
        lambda x: while_loop(lambda x: x.sum() > 99, lambda x: (x * 2,), (x,)), fullgraph=True
    )
    (result,) = compiled(X)
    assert torch.equal(result, X) and result.data_ptr() != X.data_ptr()


@torch.inference_mode()
def test_inference_mode() -> None:
    compiled = ingot.compile(BRANCHES["two"], fullgraph=True)
    for x in (ROWS.clone(), -ROWS):
        found = compiled(x, torch.cond, while_loop)
        torch.testing.assert_close(found, BRANCHES["two"](x, python_cond, python_loop))
        assert found.is_inference()
    written = lambda x: torch.cond(x.sum() > 0, lambda: x.clone().add_(1), lambda: x * 2)  # noqa: E731
    with pytest.raises(ingot.GraphBreakError, match="writes tensors of inference mode"):
        ingot.compile(written, fullgraph=True)(ROWS.clone())


def test_second_derivatives() -> None:
    def chosen(x: Tensor, cond: Any) -> Tensor:
        result: Tensor = cond(x.sum() > 0, lambda x: x.sin() * x, lambda x: x.exp(), (x,))
        return result

    compiled = ingot.compile(chosen, fullgraph=True)
    for x in (X, -X):
        found = []
        for function, cond in ((compiled, torch.cond), (chosen, python_cond)):
            given = x.clone().requires_grad_()
            (first,) = torch.autograd.grad(function(given, cond).sum(), given, create_graph=True)
            found.append(torch.autograd.grad((first * X).sum(), given))
        torch.testing.assert_close(*found)


def test_an_error_is_that_of_the_branch_that_is_taken() -> None:
    place = torch.tensor(7)

    def element(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda: x[place] * 1, lambda: x[0] * 1)

    compiled = ingot.compile(element, fullgraph=True)
    assert torch.equal(compiled(-X), -X[0])
    with pytest.raises(Exception, match="out of bounds") as eagers:
        element(X)  # of torch.compile's own class in torch 2.11
    with pytest.raises(eagers.type, match="out of bounds"):
        compiled(X)


def _note(frames: list[str], frame: Any, event: str, _: Any) -> None:
    frames.append(event)


def test_the_numbers_of_frames_do_not_follow_those_of_turns() -> None:
    compiled = ingot.compile(
        lambda x, n: while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 1.1), (n * 0, x)),
        fullgraph=True,
    )
    counts = []
    for turns in (5, 5, 500):
        frames: list[str] = []
        note, end = partial(_note, frames), torch.tensor(turns)
        sys.setprofile(note)
        try:
            compiled(X, end)
        finally:
            sys.setprofile(None)
        counts.append(frames.count("call"))
    assert counts[1] == counts[2]


def test_a_report_has_the_kernels_of_branches() -> None:
    report = ingot.explain(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))(X)
    assert [kernel.kind for kernel in report.kernels] == ["fused", "extern", "fused", "fused"]
    assert [kernel.name for kernel in report.kernels[2:]] == ["sin", "cos"]
    report.measure(lambda: None)
    assert str(report)


class Counter:
    turns = 0


def counts_in_a_list(x: Tensor) -> Any:
    turns: list[int] = []
    return torch.cond(x.sum() > 0, lambda: (turns.append(1), x + 1)[1], lambda: x - 1), len(turns)


def counts_in_a_variable(x: Tensor) -> Any:
    turns = 0

    def counted() -> Tensor:
        nonlocal turns
        turns += 1
        return x + 1

    return torch.cond(x.sum() > 0, counted, lambda: x - 1), turns


def counts_in_an_object(x: Tensor) -> Any:
    counter = Counter()

    def counted() -> Tensor:
        counter.turns += 1
        return x + 1

    return torch.cond(x.sum() > 0, counted, lambda: x - 1), counter.turns


def counts_in_a_class(x: Tensor) -> Any:
    def counted() -> Tensor:
        Counter.turns += 1
        return x + 1

    return torch.cond(x.sum() > 0, counted, lambda: x - 1)


def counts_in_a_dict_of_an_object(x: Tensor) -> Any:
    counter = Counter()
    counter.found = {}  # type: ignore[attr-defined]

    def counted() -> Tensor:
        counter.found["turns"] = 1  # type: ignore[attr-defined]
        return x + 1

    return torch.cond(x.sum() > 0, counted, lambda: x - 1), len(counter.found)  # type: ignore[attr-defined]


def takes_of_an_iterator(x: Tensor) -> Any:
    numbers = iter([1, 2])
    return torch.cond(x.sum() > 0, lambda: x + next(numbers), lambda: x - 1), next(numbers)


def takes_of_a_generator(x: Tensor) -> Any:
    numbers = (n for n in (1, 2))
    return torch.cond(x.sum() > 0, lambda: x + next(numbers), lambda: x - 1), next(numbers)


def sets_an_attribute_of_a_tensor(x: Tensor) -> Any:
    y = x * 2

    def marked() -> Tensor:
        y.mark = 1  # type: ignore[attr-defined]
        return x + 1

    return torch.cond(x.sum() > 0, marked, lambda: x - 1), hasattr(y, "mark")


def writes_a_view(x: Tensor) -> Any:
    y = x * 2
    row = y[:2]
    return torch.cond(x.sum() > 0, lambda: (row.add_(1), x + 1)[1], lambda: x - 1), y


def sets_a_mode(x: Tensor) -> Any:
    def switched() -> Tensor:
        torch.set_grad_enabled(False)
        return x + 1

    return torch.cond(x.sum() > 0, switched, lambda: x - 1)


def raises(x: Tensor) -> Any:
    def refuse() -> Tensor:
        raise ValueError("no")

    return torch.cond(x.sum() > 0, refuse, lambda: x - 1)


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a list": (counts_in_a_list, "changes an object"),
    "a variable": (counts_in_a_variable, "changes an object"),
    "an object": (counts_in_an_object, "changes an object"),
    "a class": (counts_in_a_class, "has effects|side effect"),
    "a dict of an object": (counts_in_a_dict_of_an_object, "changes an object"),
    "an iterator": (takes_of_an_iterator, "changes an object"),
    "a generator": (takes_of_a_generator, "a generator"),
    "an attribute of a tensor": (sets_an_attribute_of_a_tensor, "changes an object"),
    "a view": (writes_a_view, "writes what was there"),
    "a mode": (sets_a_mode, "has effects|sets a mode"),
    "an error": (raises, "raises an error"),
    "a print": (
        lambda x: torch.cond(x.sum() > 0, lambda: (print("taken"), x + 1)[1], lambda: x - 1),
        "has effects",
    ),
    "random numbers": (
        lambda x: torch.cond(x.sum() > 0, lambda: torch.rand_like(x), lambda: x - 1),
        "draws random numbers",
    ),
    "what was given": (
        lambda x: torch.cond(x.sum() > 0, lambda: x, lambda: x - 1),
        "gives back",
    ),
    "a view of what was given": (
        lambda x: torch.cond(x.sum() > 0, lambda: x[1:], lambda: x[1:] * 2),
        "gives back",
    ),
    "one result twice": (
        lambda x: torch.cond(x.sum() > 0, lambda: [x + 1] * 2, lambda: [x + 1, x - 1]),
        "gives back",
    ),
    "other sizes": (
        lambda x: torch.cond(x.sum() > 0, lambda: x[1:] + 1, lambda: x - 1),
        "another kind",
    ),
    "other types": (
        lambda x: torch.cond(x.sum() > 0, lambda: x.double(), lambda: x - 1),
        "another kind",
    ),
    "no tensor": (lambda x: torch.cond(x.sum() > 0, lambda: 1, lambda: 2), "gives"),
    "several elements": (
        lambda x: torch.cond(x > 0, lambda: x + 1, lambda: x - 1),
        "several elements",
    ),
    "a loop with gradients": (
        lambda x: while_loop(lambda x: x.sum() < 9, lambda x: (x * 2 + 1,), (x,)),
        "requires gradients",
    ),
    "a loop that gives back": (
        lambda x: while_loop(lambda i, x: i.sum() < 9, lambda i, x: (i + 1, x), (X, X)),
        "gives back",
    ),
    "a loop without a state": (
        lambda x: while_loop(lambda: x.sum() < 9, lambda: (), ()),
        "no state",
    ),
    "a loop that grows": (
        lambda x: while_loop(lambda x: x.sum() < 9, lambda x: (torch.cat([x, x]),), (X * x.sum(),)),
        "other sizes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_more_than_to_compute_breaks_the_graph(name: str) -> None:
    function, reason = REFUSED[name]
    with pytest.raises(ingot.GraphBreakError, match=reason):
        ingot.compile(function, fullgraph=True)(X.clone().requires_grad_())


def test_an_object_that_an_outside_one_was_given_is_looked_at() -> None:
    holder = Counter()

    def counted(x: Tensor) -> Any:
        holder.found = []  # type: ignore[attr-defined]
        append = holder.found.append  # type: ignore[attr-defined]
        return torch.cond(x.sum() > 0, lambda: (append(1), x + 1)[1], lambda: x - 1)

    with pytest.raises(ingot.GraphBreakError, match="changes an object|has effects"):
        ingot.compile(counted, fullgraph=True)(X)


def test_a_loop_does_not_write_what_it_is_given() -> None:
    with pytest.raises(ingot.GraphBreakError, match="writes what was there"):
        ingot.compile(
            lambda x: while_loop(lambda x: x.sum() < 99, lambda x: (x.add_(1) * 2,), (x,)),
            fullgraph=True,
        )(X)
