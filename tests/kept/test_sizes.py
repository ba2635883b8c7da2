"""Programs for sizes that vary: those that one process keeps are found by another, for sizes for
which their guards hold, and for no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ingot
from ingot import pipeline
from ingot.codegen.store import store_in
from ingot.compiler import Compiler
from ingot.graph.shape_context import Bounds, ShapeContext
from ingot.graph.symbols import to_expr
from ingot.kept.contracts import told, told_windows, understood, with_windows
from ingot.kept.format import packed, unpacked
from ingot.kept.names import NotKept
from ingot.kept.programs import FOUND, MOST_VARIANTS
from ingot.kept.sizes import Question, Sizes
from ingot.loops.expr import Expr, integer, maximum, minimum, size_symbol
from ingot.loops.training_contract import Layout, OutputWindow, Slot
from ingot.runtime.windows import Windows, WithWindows
from tests.oracle import tensors_in


@pytest.fixture(autouse=True)
def folder(cache: Path) -> Path:
    """A folder for programs, in which there is none yet."""
    return cache / "programs"


def new_process(function: Callable[..., Any], dynamic: bool | None = True) -> Any:
    """A function, compiled as in a new process."""
    ingot.reset()
    return ingot.compile(function, fullgraph=True, dynamic=dynamic)


def kept(function: Any) -> list[str]:
    """What became of each of its compilations."""
    compiler = Compiler.of(function)
    assert compiler is not None
    return [compilation.log.kept for compilation in compiler.compilations]


def guards(function: Any) -> list[str]:
    compiler = Compiler.of(function)
    assert compiler is not None
    return [str(guard) for guards in compiler.guards for guard in guards]


@pytest.fixture
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a graph is compiled")

    return lambda: monkeypatch.setattr(pipeline, "compile_graph", refuse)


def rows(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def alike(found: Any, expected: Any) -> None:
    mine, its = list(tensors_in(found)), list(tensors_in(expected))
    for one, other in zip(mine, its, strict=True):
        torch.testing.assert_close(one, other)
        is_gradient = torch.is_grad_enabled() and one.grad_fn is None
        assert is_gradient or one.stride() == other.stride()


# -- what is told and understood -------------------------------------------------------------------

SHAPES = ShapeContext()
N, M, K = (to_expr(SHAPES.size(hint)) for hint in (12, 5, 3))
NUMBER, _ = SHAPES.integer(-2, "n")
EXPRESSIONS: list[Expr] = [
    N,
    NUMBER,
    integer(7),
    integer(-(1 << 62)),
    N * M - K * 3 + 4,
    N * N * 2,
    (N + 7) // 8,
    N // M,
    (N * M + K) % (M + 1),
    maximum(N, M * 2),
    minimum(N - 1, NUMBER),
    maximum((N // 2) % 3, minimum(M, K)) * 5 - N,
]


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
def test_expressions_come_back(expr: Expr) -> None:
    sizes = Sizes(SHAPES)
    content = unpacked(packed(sizes.told(expr)))
    found = sizes.understood(content)
    assert found == (expr if expr.constant is None else expr.constant)


def test_other_expressions_are_told_otherwise() -> None:
    sizes = Sizes(SHAPES)
    assert len({packed(sizes.told(expr)) for expr in EXPRESSIONS}) == len(EXPRESSIONS)
    assert sizes.told(SHAPES.wrap(N + 1)) == sizes.told(N + 1)
    with pytest.raises(NotKept, match="none of the inputs"):
        sizes.told(size_symbol("another") + 1)
    with pytest.raises(NotKept, match="among its sizes"):
        sizes.told(1.5)
    for damaged in (
        ("other", ()),
        ("size", (("symbol", 99),)),
        ("size", (("add",),)),
        ("size", ()),
    ):
        with pytest.raises((NotKept, IndexError, ValueError)):
            sizes.understood(damaged)


def test_layouts_and_windows_come_back() -> None:
    sizes = Sizes(SHAPES)
    layout = Layout((N, 4), (4, 1), torch.float32, torch.device("cpu"))
    slot, alias = Slot("input", 0), "view"
    window = OutputWindow(1, slot, (N // 2, M), (M, 1), N + 1, torch.float64, True, alias)
    places = {N: (0, "size", 0), M: (0, "stride", 1)}
    for value in (layout, window, places):
        assert understood(unpacked(packed(told(value, sizes))), sizes) == value
    run = WithWindows(len, Windows([window], places), 2)
    found = with_windows(len, unpacked(packed(told_windows(run, sizes))), sizes)
    assert (found.windows.windows, found.windows.places, found.count) == ((window,), places, 2)


def test_guards_are_taken_over() -> None:
    """Those that compiling left in one process, in another one whose capture found out the same."""

    def captured(*hints: int) -> tuple[ShapeContext, list[Expr], Question]:
        shapes = ShapeContext()
        symbols = [to_expr(shapes.size(hint)) for hint in hints]
        shapes.holds(symbols[0], "<", integer(100))
        return shapes, symbols, Question(shapes)

    shapes, (n, m), question = captured(8, 2)
    empty = question.answer()
    shapes.where = "model.py:3"
    assert shapes.holds(n % 4, "==", integer(0)) and not shapes.holds(n, "==", m)
    shapes.keep_in_bounds(n * m * (1 << 20))
    answer = unpacked(packed(question.answer()))
    assert question.answer() == answer != empty and answer[0] == (8, 2)

    other, (n2, m2), asked = captured(16, 3)
    assert asked.is_answered_by(answer) and len(other.guards) == 1
    asked.take(answer)
    assert list(map(str, other.guards)) == list(map(str, shapes.guards))
    assert [guard.where for guard in other.guards] == [guard.where for guard in shapes.guards]
    assert other.limited == [n2 * m2 * (1 << 20)] and list(other.conditions())
    other.closed = True
    assert other.holds(n2 % 4, "==", integer(0)) and other.holds(n2, "!=", m2)
    with asked.asked_again(answer):  # as then, though other sizes are at hand and it is in use
        assert not other.closed and other.hint(n2) == 8 and len(other.guards) == 1
        assert other.holds(n2 % 4, "==", integer(0)) and not other.holds(n2, "==", m2)
        other.keep_in_bounds(n2 * m2 * (1 << 20))
    assert other.closed and other.hint(n2) == 16 and len(other.guards) == len(shapes.guards)
    with pytest.raises(Exception, match="leaves other guards"):
        with asked.asked_again(answer):
            pass
    for refused in ((17, 3), (4, 4), (16, 1 << 50)):
        assert not captured(*refused)[2].is_answered_by(answer)


KNOWN: dict[str, Callable[[ShapeContext, Expr, Expr], Any]] = {
    "nothing": lambda shapes, n, m: None,
    "a relation": lambda shapes, n, m: shapes.holds(n, "<", m),
    "another": lambda shapes, n, m: shapes.holds(n, "<=", m),
    "one that is equal": lambda shapes, n, m: shapes.holds(n * 2, "==", m),
    "a number": lambda shapes, n, m: shapes.holds(n, "==", integer(8)),
    "one that is not 1": lambda shapes, n, m: shapes.holds(n, "==", integer(1)),
    "a remainder": lambda shapes, n, m: shapes.holds(n % 2, "==", integer(0)),
    "a limit": lambda shapes, n, m: shapes.keep_in_bounds(n * m * 1000),
    "a further size": lambda shapes, n, m: shapes.size(3),
    "a bounded size": lambda shapes, n, m: shapes.size(3, bounds=Bounds(2, 9)),
    "a speculative size": lambda shapes, n, m: shapes.speculative.add(n),
}


def test_what_capture_knows_of_sizes_is_told() -> None:
    facts = set()
    for ask in KNOWN.values():
        for _ in range(2):
            shapes = ShapeContext()
            ask(shapes, *(to_expr(shapes.size(hint)) for hint in (8, 16)))
            facts.add(packed(Sizes(shapes).facts()))
    assert len(facts) == len(KNOWN)


# -- programs --------------------------------------------------------------------------------------

MODULE = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).double()
CONVOLUTION = nn.Conv2d(3, 4, 3).double()
Calls = Sequence[tuple[Any, ...]]
PROGRAMS: dict[str, tuple[Callable[..., Any], Calls]] = {
    "pointwise": (lambda x: (x.sin() * x), [(rows(4, 6),), (rows(9, 6),), (rows(5, 7),)]),
    "a sum": (lambda x: x.softmax(-1).sum(0), [(rows(4, 6),), (rows(9, 3),)]),
    "a module": (MODULE, [(rows(4, 6),), (rows(9, 6),)]),
    "a product": (
        lambda x, y: (x @ y).relu(), [(rows(4, 6), rows(6, 3)), (rows(5, 7), rows(7, 8))],
    ),
    "two that are equal": (
        lambda x, y: (x + y).cos(), [(rows(4, 6), rows(4, 6)), (rows(5, 7), rows(5, 7))],
    ),
    "one that is broadcast": (
        lambda x, y: x * y, [(rows(4, 6), rows(6)), (rows(5, 7), rows(7))],
    ),
    "a reshape": (
        lambda x: x.view(-1, x.shape[1] // 2).exp(), [(rows(4, 6),), (rows(5, 8),)],
    ),
    "views of an argument": (
        lambda x: (x.T, x[1:], x.view(-1), x * 2), [(rows(4, 6),), (rows(5, 7),)],
    ),
    "an integer": (lambda x, n: x[n:] * n, [(rows(8, 6), 3), (rows(9, 7), 4)]),
    "sizes as numbers": (lambda x: x.shape[0] * x + x.numel(), [(rows(4, 6),), (rows(5, 7),)]),
    "a concatenation": (
        lambda x, y: torch.cat([x, y, x[1:]]), [(rows(4, 6), rows(3, 6)), (rows(5, 7), rows(9, 7))],
    ),
    "attention": (
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        [(rows(2, 2, 9, 4),), (rows(3, 2, 17, 4),)],
    ),
    "images": (lambda x: CONVOLUTION(x).relu(), [(rows(2, 3, 8, 9),), (rows(3, 3, 12, 13),)]),
    "a transpose": (lambda x: x + 1, [(rows(4, 6).T,), (rows(5, 7).T,)]),
    "a write": (lambda x: (x * 2).add_(1), [(rows(4, 6),), (rows(5, 7),)]),
    "new tensors": (lambda x: x + torch.arange(x.shape[1]), [(rows(4, 6),), (rows(5, 7),)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@torch.no_grad()
def test_found_programs_do_the_same(name: str, nothing_is_compiled: Callable[[], None]) -> None:
    """Also where the first call is one of other sizes than then."""
    function, calls = PROGRAMS[name]
    cold = new_process(function)
    for args in calls:
        alike(cold(*args), function(*args))
    made, guarded = kept(cold), guards(cold)
    assert set(made) == {""}
    nothing_is_compiled()
    for order in (calls, calls[::-1]):
        warm = new_process(function)
        for args in order:
            alike(warm(*args), function(*args))
        assert set(kept(warm)) == {FOUND} and len(kept(warm)) == len(made)
    if len(made) == 1:
        assert guards(warm) == guarded


def step(function: Callable[..., Any], args: Sequence[Any]) -> list[Tensor]:
    """The results and the gradients."""
    args = [a.clone().requires_grad_() if isinstance(a, Tensor) else a for a in args]
    results = list(tensors_in(function(*args)))
    outputs = [t for t in results if t.requires_grad]
    weights = [torch.linspace(1, 2, t.numel(), dtype=t.dtype).view_as(t) for t in outputs]
    wanted = [a for a in args if isinstance(a, Tensor)]
    gradients = torch.autograd.grad(outputs, wanted, weights, allow_unused=True)
    return [*results, *(g for g in gradients if g is not None)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_of_training_are_found(name: str, nothing_is_compiled: Callable[[], None]) -> None:
    function, calls = PROGRAMS[name]
    cold = new_process(function)
    for args in calls:
        alike(step(cold, args), step(function, args))
    assert set(kept(cold)) == {""}
    nothing_is_compiled()
    for order in (calls, calls[::-1]):
        warm = new_process(function)
        for args in order:
            alike(step(warm, args), step(function, args))
        assert set(kept(warm)) == {FOUND}


def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x * y[: x.shape[0]]).sin(), (x.exp() * y[0]).view(-1)[x.shape[1] :].sum()


DEMANDS: dict[str, Callable[[Any, list[Tensor]], Any]] = {
    "a part": lambda function, made: torch.autograd.grad(function(*made)[0].sum(), made),
    "one input": lambda function, made: torch.autograd.grad(function(*made)[1], made[1:]),
    "gradients of gradients": lambda function, made: torch.autograd.grad(
        torch.autograd.grad(function(*made)[1], made, create_graph=True)[0].sum(), made[0]
    ),
    "a batch": lambda function, made: torch.autograd.grad(
        function(*made)[1], made[:1], torch.ones(2).double(), is_grads_batched=True
    ),
}


@pytest.mark.parametrize("name", DEMANDS)
def test_what_was_never_asked_for_is_compiled_as_then(name: str) -> None:
    """A process that finds the forward compiles the graph with the sizes that decided it, though it
    has others at hand."""
    then = [rows(3, 4).requires_grad_(), rows(5, 4).requires_grad_()]
    cold = new_process(two)
    torch.autograd.grad(sum(r.sum() for r in cold(*then)), then)
    demand = DEMANDS[name]
    warm = new_process(two)
    for sizes in ((7, 5, 9), (3, 4, 5), (2, 6, 8)):
        made = [
            rows(sizes[0], sizes[1]).requires_grad_(), rows(sizes[2], sizes[1]).requires_grad_(),
        ]  # fmt: skip
        alike(demand(warm, made), demand(two, made))
    assert set(kept(warm)) == {FOUND}


def test_a_report_of_a_program_that_was_found() -> None:
    texts = []
    for size in (4, 9):
        function = new_process(PROGRAMS["a reshape"][0])
        function(rows(size, 6))
        report = ingot.explain(function)(rows(size, 6))
        texts.append([kernel.source for kernel in report.kernels])
    assert kept(function) == [FOUND] and report.kept == [FOUND]
    assert texts[0] == texts[1] != []


def test_the_second_size_finds_the_program_that_varies() -> None:
    """As without any option: the first call is compiled for its size."""
    for turn in range(2):
        function = new_process(lambda x: x.exp() * 2, None)
        for size in (4, 9, 11):
            alike(function(rows(size, 6)), rows(size, 6).exp() * 2)
        assert kept(function) == [FOUND if turn else ""] * 2


# -- sizes that are not those of the program -------------------------------------------------------


def halves(x: Tensor) -> Tensor:
    if x.shape[0] % 2 == 0:
        return x.view(2, -1) * 2
    return x.view(-1) - 1


def at_most(x: Tensor) -> Tensor:
    return x.sin() if x.shape[0] <= 16 else x.cos()


def same(x: Tensor, y: Tensor) -> Tensor:
    return x + y if x.shape == y.shape else torch.cat([x, y]) * 2


def broadcast(x: Tensor, y: Tensor) -> Tensor:
    return x.exp() + y.exp()


def reshaped(x: Tensor) -> Tensor:
    """Whether it is a view is decided when it is compiled."""
    return x.reshape(-1, 4).sum(0) + x.reshape(4, -1).sum(1)


def wrapped(x: Tensor) -> Tensor:
    return x.unfold(0, 3, 2).sum(1)


def pooled(x: Tensor) -> Tensor:
    return F.avg_pool1d(x[None], 4, stride=3, ceil_mode=True)


def integers(x: Tensor, n: int) -> Tensor:
    return x * n if n > 0 else x - n


OTHERS: dict[str, tuple[Callable[..., Any], Calls]] = {
    "a remainder": (halves, [(rows(8),), (rows(9),), (rows(1),), (rows(0),), (rows(10),)]),
    "a limit": (at_most, [(rows(8),), (rows(16),), (rows(17),), (rows(1),), (rows(0),)]),
    "equal or not": (
        same, [(rows(4), rows(4)), (rows(4), rows(5)), (rows(5), rows(5)), (rows(0), rows(0))],
    ),
    "broadcasting": (
        broadcast,
        [
            (rows(4, 5), rows(4, 5)), (rows(4, 5), rows(1, 5)), (rows(1, 5), rows(4, 5)),
            (rows(4, 1), rows(1, 7)), (rows(0, 5), rows(1, 5)), (rows(5, 5), rows(5, 5)),
            (rows(1, 1), rows(1, 1)),
        ],
    ),
    "a reshape": (reshaped, [(rows(4, 4),), (rows(8, 3),), (rows(2, 2).T,), (rows(6, 4).T,)]),
    "windows": (wrapped, [(rows(7),), (rows(8),), (rows(3),), (rows(4),), (rows(31),)]),
    "pooling": (pooled, [(rows(2, 7),), (rows(2, 8),), (rows(2, 9),), (rows(3, 4),)]),
    "integers": (
        integers, [(rows(4), 3), (rows(4), -3), (rows(5), 0), (rows(5), 1), (rows(5), 1 << 61)],
    ),
    "layouts": (
        lambda x: x.contiguous().view(-1) * 2,
        [(rows(4, 6),), (rows(6, 4).T,), (rows(4, 6)[:, ::2],), (rows(1, 6).T,), (rows(6, 6).T,)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_other_sizes_find_another_program(name: str, training: bool) -> None:
    """Each call is the first one of a process, which finds what all those before it kept."""
    function, calls = OTHERS[name]
    for args in (*calls, *calls[::-1]):
        compiled = new_process(function)
        if training and args[0].numel():
            alike(step(compiled, args), step(function, args))
        else:
            with torch.no_grad():
                alike(compiled(*args), function(*args))
    for args in calls:  # and each process the others behind it
        compiled = new_process(function)
        with torch.no_grad():
            alike(compiled(*args), function(*args))
            for others in calls:
                alike(compiled(*others), function(*others))


def test_guards_of_compiling_are_installed() -> None:
    """A question that only compiling asks: found programs are guarded by its answer as well."""
    compiled = [new_process(broadcast), new_process(broadcast)]
    found = []
    for number, size in enumerate((4, 6)):
        ingot.reset()
        compiled[number](rows(size, 5), rows(size, 5))
        found.append(guards(compiled[number]))
    assert kept(compiled[1]) == [FOUND] and found[0] == found[1]
    x, y = rows(6, 5), rows(1, 5)
    alike(compiled[1](x, y), broadcast(x, y))
    assert kept(compiled[1]) == [FOUND, ""]


@torch.no_grad()
def test_as_many_as_there_may_be(folder: Path) -> None:
    """Of many programs of one graph the last is replaced."""

    def of_blocks(x: Tensor) -> Tensor:
        return x.reshape(-1, 2).sum(1)

    made = store_in("programs").counts
    before = made.made
    for count in range(2 * MOST_VARIANTS):
        compiled = new_process(of_blocks, None)
        x = rows(2 * count + 2, 3 * count + 2)[:, : 3 * count + 1 + count % 2]
        alike(compiled(x), of_blocks(x))
    assert made.made > before and len(list(folder.glob("*.code"))) <= made.made


def test_bounds_of_a_marked_size_are_in_the_key() -> None:
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    for most in (10, 20, 10):
        x = rows(8, 6)
        ingot.mark_dynamic(x, 0, min=2, max=most)
        compiled = new_process(doubled, None)
        compiled(x)
        outside = rows(15, 6)
        alike(compiled(outside), outside * 2)
        assert any(f"<= {most}" in guard for guard in guards(compiled))
