"""Known programs with the inequalities that their entry is to depend on: those that a person would
derive, no more and no fewer. At shapes on both sides of each, what is accepted gives eager's
answer, and the rest is refused."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.capture.guard_set import GuardSet
from ingot.capture.guards import Kind
from ingot.compiler import Compiler
from ingot.errors import RecompileError
from tests.oracle import Close, assert_results

Sizes = dict[str, int]
SHAPES, REFUSED = 60, 8  # how many shapes are tried, and of the refused ones in calls
LARGEST = 9
NEAR = Close(1e-4, 1e-5)


@dataclass(frozen=True)
class Known:
    """`tensors`: their sizes, each a letter for a size that is its own; `first`: the sizes of the
    first call, in the order of the letters; `guards`: what decides of others, above sizes of 1 or
    more."""

    program: Callable[..., Any]
    tensors: str
    first: tuple[int, ...]
    guards: str = ""

    @property
    def letters(self) -> str:
        return "".join(sorted(set(self.tensors) - set(" ,")))

    def made(self, sizes: Sizes) -> list[Tensor]:
        shapes = [
            [sizes[letter] for letter in tensor.strip()] for tensor in self.tensors.split(",")
        ]
        return [torch.randn(shape) for shape in shapes]


def branch(x: Tensor) -> Tensor:
    return x.sin() if x.shape[0] > 4 else x.cos()


def even(x: Tensor) -> Tensor:
    return x.sin() if x.shape[0] % 2 == 0 else x.cos()


def large(x: Tensor) -> Tensor:
    return x * 2 if x.numel() > 10 else x * 3


def square(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] == x.shape[1] else x * 3


def halves(x: Tensor) -> Tensor:
    rows, columns = x.shape
    return x.view(rows, 2, columns // 2).sum(1)


WINDOW, ROWS = torch.randn(2, 3, 3, 3), torch.randn(2, 3, 3)

KNOWN = {
    "pointwise": Known(lambda x: x.sin() * 2, "ab", (6, 4)),
    "sums": Known(lambda x: x.sum(0) + x.mean(), "ab", (6, 4)),
    "softmax": Known(lambda x: torch.softmax(x, -1), "ab", (6, 4)),
    "layer norm": Known(lambda x: F.layer_norm(x, x.shape[-1:]), "ab", (6, 4)),
    "a view of eights": Known(lambda x: x.view(-1, 8), "ab", (6, 4), "a*b % 8 == 0"),
    "two halves": Known(lambda x: x.reshape(2, -1) * 2, "ab", (6, 4), "a*b % 2 == 0"),
    "columns in pairs": Known(halves, "ab", (3, 6), "b % 2 == 0"),
    "thirds of columns": Known(lambda x: x.unflatten(1, (3, -1)) * 2, "ab", (4, 6), "b % 3 == 0"),
    "flattened": Known(lambda x: x.flatten() + 1, "ab", (6, 4)),
    "joined": Known(lambda x, y: torch.cat([x, y]), "ab, cd", (3, 4, 5, 4), "b == d"),
    "joined columns": Known(lambda x, y: torch.cat([x, y], 1), "ab, cd", (3, 4, 3, 5), "a == c"),
    "stacked": Known(lambda x, y: torch.stack([x, y]), "ab, cd", (3, 4, 3, 4), "a == c; b == d"),
    "a part": Known(lambda x: x[:, :4] * 2, "ab", (3, 6), "b > 4"),
    "all of a part": Known(lambda x: x[:, :4] * 2, "ab", (3, 3), "b <= 4"),
    "without the first": Known(lambda x: x[1:] * 2, "ab", (3, 6), "a >= 2"),
    "without the last": Known(lambda x: x[:, :-1] * 2, "ab", (3, 6), "b >= 2"),
    "the last two": Known(lambda x: x[:, -2:] * 2, "ab", (3, 6), "b >= 2"),
    "the third row": Known(lambda x: x[2] * 2, "ab", (3, 6), "a >= 3"),
    "the last row": Known(lambda x: x[-1] * 2, "ab", (3, 6)),
    "narrowed": Known(lambda x: x.narrow(0, 2, 3) * 2, "ab", (7, 3), "a >= 5"),
    "as many columns as rows": Known(lambda x: x.narrow(1, 0, x.shape[0]) * 2, "ab", (3, 7),
        "a <= b"),
    "chunks": Known(lambda x: [p * 2 for p in x.chunk(3)], "ab", (7, 3), "2 * ((a + 2) // 3) < a"),
    "even chunks": Known(lambda x: [p * 2 for p in x.chunk(2)], "ab", (6, 3), "a >= 2"),
    "split": Known(lambda x: [p * 2 for p in x.split(4)], "ab", (7, 3), "a >= 5; a <= 8"),
    "split to its end": Known(lambda x: [p * 2 for p in x.split(4)], "ab", (8, 3),
        "a >= 5; a <= 8"),
    "split in thirds": Known(lambda x: [p * 2 for p in x.tensor_split(3)], "ab", (7, 3),
        "a % 3 == 1; a >= 3"),
    "a product": Known(lambda x, y: x @ y, "ab, cd", (3, 4, 4, 5), "b == c"),
    "a product of squares": Known(lambda x, y: x @ y, "ab, cd", (3, 3, 3, 3), "b == c"),
    "products": Known(lambda x, y: torch.bmm(x, y), "abc, def", (2, 3, 4, 2, 4, 5),
        "a == d; c == e"),
    "a linear layer": Known(lambda x, y: F.linear(x, y), "ab, cd", (3, 4, 5, 4), "b == d"),
    "a sum": Known(lambda x, y: x + y, "ab, cd", (3, 4, 3, 4), "a == c; b == d"),
    "a sum with a row": Known(lambda x, y: x + y, "ab, cd", (3, 4, 1, 4), "c == 1; b == d"),
    "a sum with a bias": Known(lambda x, y: x + y, "ab, c", (3, 4, 4), "b == c"),
    "a sum with its transpose": Known(lambda x: x + x.t(), "ab", (3, 3), "a == b"),
    "chosen": Known(lambda x, y: torch.where(x > 0, x, y), "ab, c", (3, 4, 4), "b == c"),
    "padded": Known(lambda x: F.pad(x, (1, 2)), "ab", (3, 4)),
    "padded by less than nothing": Known(lambda x: F.pad(x, (1, -2)), "ab", (3, 4), "b >= 2"),
    "reflected": Known(lambda x: F.pad(x, (1, 2), mode="reflect"), "abc", (3, 4, 5), "c >= 3"),
    "windows": Known(lambda x: x.unfold(1, 3, 2) * 2, "ab", (3, 7), "b >= 3"),
    "a convolution of rows": Known(lambda x: F.conv1d(x, ROWS), "abc", (2, 3, 7), "b == 3; c >= 3"),
    "a convolution": Known(lambda x: F.conv2d(x, WINDOW), "abcd", (2, 3, 7, 8),
        "b == 3; c >= 3; d >= 3"),
    "in steps": Known(lambda x: F.conv2d(x, WINDOW, stride=2, padding=1), "abcd", (2, 3, 7, 8),
        "b == 3"),
    "max pooling": Known(lambda x: F.max_pool2d(x, 2), "abcd", (2, 3, 7, 8), "c >= 2; d >= 2"),
    "average pooling": Known(lambda x: F.avg_pool2d(x, 3, 2, 1), "abcd", (2, 3, 7, 8)),
    "twice as large": Known(lambda x: F.interpolate(x, scale_factor=2), "abcd", (2, 3, 7, 8)),
    "of a size": Known(lambda x: F.interpolate(x, size=(9, 5), mode="bilinear"), "abcd",
        (2, 3, 7, 8)),
    "a branch": Known(branch, "ab", (6, 4), "a > 4"),
    "its other side": Known(branch, "ab", (3, 4), "a <= 4"),
    "an even size": Known(even, "ab", (6, 4), "a % 2 == 0"),
    "a square": Known(square, "ab", (4, 4), "a == b"),
    "no square": Known(square, "ab", (6, 4), "a != b"),
    "many elements": Known(large, "ab", (6, 4), "a*b > 10"),
    "expanded": Known(lambda x: x.expand(5, -1, -1) * 2, "ab", (3, 4)),
    "expanded to another's rows": Known(lambda x, y: x.expand(y.shape[0], -1) * 2, "ab, c",
        (1, 4, 5), "a == 1"),
    "expanded to what it is": Known(lambda x, y: x.expand_as(y) * 2, "ab, cd", (3, 4, 3, 4),
        "a == c; b == d"),
    "repeated": Known(lambda x: x.repeat(2, 3), "ab", (3, 4)),
    "squeezed": Known(lambda x: x.squeeze(0) * 2, "ab", (3, 4), "a != 1"),
    "a copy of a transpose": Known(lambda x: x.t().contiguous(), "ab", (3, 4), "a != 1; b != 1"),
    "rows of a permutation": Known(lambda x: x.permute(2, 0, 1).reshape(x.shape[2], -1), "abc",
        (3, 4, 5)),
    "the largest": Known(lambda x: x.topk(3)[0], "ab", (3, 4), "b >= 3"),
    "a diagonal": Known(lambda x: x.diagonal() * 2, "ab", (3, 4), "a <= b"),
    "gates": Known(lambda x: F.glu(x, 0), "ab", (6, 4), "a % 2 == 0"),
    "batch norm": Known(lambda x: F.batch_norm(x, None, None, training=True), "ab", (4, 7),
        "a >= 2"),
    "attention": Known(lambda x: F.scaled_dot_product_attention(x, x, x), "abcd", (2, 3, 5, 4)),
    "every other column": Known(lambda x: x[:, ::2] * 2, "ab", (3, 7)),
    "every third row and column": Known(lambda x: x[::3, ::3] * 2, "ab", (7, 7)),
    "every other column, turned round": Known(lambda x: x[:, ::2].t() * 2, "ab", (5, 7)),
    "one mean": Known(lambda x: F.adaptive_avg_pool2d(x, 1), "abcd", (2, 3, 7, 8)),
    "one mean of volumes": Known(lambda x: F.adaptive_avg_pool3d(x, (1, 1, 1)), "abcde",
        (2, 3, 4, 5, 6)),
    "einsum": Known(lambda x, y: torch.einsum("ij,jk->ik", x, y), "ab, cd", (3, 4, 4, 5), "b == c"),
    "einsum of a batch": Known(
        lambda x, y: torch.einsum("bqk,bkd->bqd", x, y), "abc, def", (2, 3, 4, 2, 4, 5),
        "a == d; c == e"
    ),
    "einsum of what lies otherwise for one": Known(
        lambda x, y: torch.einsum("bqhd,bkhd->bhqk", x, y), "abcd, efgh", (2, 3, 4, 5, 2, 6, 4, 5),
        "a == e; c == g; d == h; h != 1",
    ),
    "an outer product": Known(lambda x, y: torch.einsum("i,j->ij", x, y), "a, b", (3, 4)),
}  # fmt: skip


def relations(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def grid(letters: str) -> list[Sizes]:
    """Shapes, in which sizes are often equal."""
    rng = random.Random(letters)
    every = itertools.product(range(LARGEST + 1), repeat=len(letters))
    if (LARGEST + 1) ** len(letters) > 2 * SHAPES:
        chosen = [rng.sample(range(1, LARGEST + 1), rng.randint(1, 3)) for _ in range(SHAPES)]
        every = iter(
            [tuple(rng.choice(few) for _ in letters) for few in chosen] + [(0,) * len(letters)]
        )
    return [dict(zip(letters, sizes, strict=True)) for sizes in every]


def near(known: Known) -> list[Sizes]:
    """And those that differ in one or two places from the first call's, or are equal there."""
    letters, first = known.letters, dict(zip(known.letters, known.first, strict=True))
    found = [first | {a: n} for a in letters for n in range(LARGEST + 1)]
    found += [
        first | {a: n, b: n}
        for a, b in itertools.combinations(letters, 2)
        for n in range(1, LARGEST + 1)
    ]
    return found


def compiled_first(known: Known) -> tuple[Any, GuardSet]:
    compiled = ingot.compile(known.program, dynamic=True, fullgraph=True)
    compiled(*known.made(dict(zip(known.letters, known.first, strict=True))))
    compiler = Compiler.of(compiled)
    assert compiler is not None and not [
        t for t in compiler.compilations[0].fixed_sizes if t.startswith("all sizes")
    ]
    (guards,) = compiler.guards
    return compiled, guards


def inequalities(known: Known, guards: GuardSet) -> list[Callable[[Sizes], bool]]:
    """What a guard set says of sizes beyond that each is 1 or more; where strides are in order, and
    63 bits do."""
    quantities = {
        symbol: quantity for symbol, quantity in guards.symbols.items() if quantity.what == "size"
    }
    places = {
        f"{name}.shape[{dim}]": letter
        for name, tensor in zip("xy", known.tensors.split(","))
        for dim, letter in enumerate(tensor.strip())
    }
    letters = {symbol: places[quantity.name] for symbol, quantity in quantities.items()}
    found = []
    for left, relation, right in (guard.data for guard in guards if guard.kind is Kind.SHAPE):
        is_bound = (
            relation == ">="
            and left in quantities
            and right.constant == 1
            or (right.constant or 0) > 1 << 60
        )
        if not is_bound and left.symbols | right.symbols <= letters.keys():
            used = {s: letters[s] for s in left.symbols | right.symbols}
            text = f"({left}) {relation} ({right})"
            found.append((text, {str(s): letter for s, letter in used.items()}))
    return [
        lambda sizes, text=text, used=used: bool(
            eval(text, {name: sizes[letter] for name, letter in used.items()})
        )
        for text, used in found
    ]


def says(relation: str) -> Callable[[Sizes], bool]:
    return lambda sizes: bool(eval(relation, dict(sizes)))


def table(relation: Callable[[Sizes], bool], shapes: list[Sizes]) -> tuple[bool, ...]:
    return tuple(relation(sizes) for sizes in shapes)


@pytest.mark.parametrize("name", KNOWN)
def test_the_guards_are_those_that_a_person_would_derive(name: str) -> None:
    known = KNOWN[name]
    with torch.no_grad():
        _, guards = compiled_first(known)
    shapes = [s for s in (*grid(known.letters), *near(known)) if math.prod(s.values())]
    found = sorted(table(relation, shapes) for relation in inequalities(known, guards))
    wanted = relations(known.guards)
    assert found == sorted(table(says(text), shapes) for text in wanted), guards.texts()


@pytest.mark.parametrize("name", KNOWN)
def test_what_the_guards_accept_is_right_and_the_rest_is_refused(name: str) -> None:
    known, refused = KNOWN[name], 0
    with torch.no_grad():
        compiled, _ = compiled_first(known)
        with ingot.set_stance("fail_on_recompile"):
            for sizes in (*near(known), *grid(known.letters)):
                given = known.made(sizes)
                wanted = relations(known.guards)
                if math.prod(sizes.values()) and all(says(text)(sizes) for text in wanted):
                    assert_results(
                        compiled(*given), known.program(*given), NEAR, strides="that matter"
                    )
                elif refused < REFUSED:
                    refused += 1
                    with pytest.raises(RecompileError):
                        compiled(*given)
    assert refused


EXPANDED = [lambda v: v.expand(3, 2), lambda v: v + torch.arange(2.0), lambda v: v * v[:, None]]


@pytest.mark.parametrize("expand", EXPANDED)
@pytest.mark.parametrize("bounded", [False, True])
def test_a_size_that_is_1_for_several_sizes_is_broadcast(
    expand: Callable[[Tensor], Tensor], bounded: bool
) -> None:
    """`s // 2` is 1 of 2 and of 3: what is computed of it is as long as what it is expanded to."""

    def program(x: Tensor) -> Tensor:
        wide = expand(x.narrow(0, x.shape[0] // 3, x.shape[0] // 2))
        return wide.mT @ wide if wide.dim() == 2 else wide.exp()

    compiled = ingot.compile(program, dynamic=None if bounded else True, fullgraph=True)
    for size in (3, 2, 3) if bounded else (3, 2, 4, 5, 3):
        x = torch.randn(size)
        if bounded:
            ingot.mark_dynamic(x, 0, min=2, max=3)
        torch.testing.assert_close(compiled(x), program(x))
