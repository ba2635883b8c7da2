"""An operation that raises for what its tensors hold: eager's error, with all that the program does
before it and, where the program handles it, after it. Readers that look at nothing of what the
operation gives raise as well."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import ingot

# -- what is done around it ------------------------------------------------------------------------


@dataclass
class World:
    """What a program changes beside its results."""

    argument: torch.Tensor
    calls: int = 0
    log: list[str] = field(default_factory=list)


@torch.library.custom_op("ingot_tests::seen_to_happen", mutates_args=())
def seen_to_happen(x: torch.Tensor) -> torch.Tensor:
    HAPPENED.append("op")
    return x.clone()


seen_to_happen.register_fake(torch.empty_like)
HAPPENED: list[str] = []


def _count(world: World) -> None:
    world.calls += 1


DEEDS: dict[str, Callable[[World], Any]] = {
    "nothing": lambda world: None,
    "a draw": lambda world: torch.rand(2),
    "dropout": lambda world: F.dropout(torch.ones(4), 0.5),
    "a write": lambda world: world.argument.add_(1),
    "a count": _count,
    "a print": lambda world: print("here"),
    "an entry": lambda world: world.log.append("here"),
    "an op with effects": lambda world: seen_to_happen(torch.ones(2)),
}

# -- what raises -----------------------------------------------------------------------------------

TABLE = torch.arange(4.0)
RAISING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "index": lambda i: TABLE[i] + 1,
    "gather": lambda i: TABLE.gather(0, i),
    "a scatter": lambda i: TABLE.scatter(0, i, 7.0) * 2,
    "a division": lambda i: torch.ones(1, dtype=torch.int64) // (i - 10),
    "a library's": lambda i: torch.linalg.cholesky((5.0 - i.float()).reshape(1, 1)),
}


def _program(
    raises: str, before: str, after: str, handled: str
) -> Callable[[World, torch.Tensor], Any]:
    def at_once(world: World, i: torch.Tensor) -> Any:
        deed = DEEDS[before](world)
        result = RAISING[raises](i)
        return deed, result, DEEDS[after](world)

    def inside(world: World, i: torch.Tensor) -> Any:
        deed, result = DEEDS[before](world), None
        try:
            result = RAISING[raises](i)
        except (IndexError, RuntimeError) as error:
            return type(error), str(error), DEEDS[after](world)
        return deed, result, DEEDS[after](world)

    def in_the_caller(world: World, i: torch.Tensor) -> Any:
        try:
            return at_once(world, i)
        except (IndexError, RuntimeError) as error:
            return type(error), DEEDS[after](world)

    def at_last(world: World, i: torch.Tensor) -> Any:
        try:
            return at_once(world, i)
        finally:
            DEEDS[after](world)

    return {"not": at_once, "inside": inside, "in the caller": in_the_caller, "at last": at_last}[
        handled
    ]


def _observed(program: Callable[[World, torch.Tensor], Any]) -> Iterator[Any]:
    """Of a call that raises nothing and one that does: what can be seen of it."""
    for place in (2, 10):
        world = World(torch.zeros(3))
        HAPPENED.clear()
        torch.manual_seed(0)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                result = repr(program(world, torch.tensor([place])))
            except (IndexError, RuntimeError) as error:
                result = f"{type(error)} {error}"
        yield result, repr(world), list(HAPPENED), printed.getvalue(), torch.rand(1).item()


HANDLED = ("not", "inside", "in the caller", "at last")


@pytest.mark.parametrize("case", list(product(RAISING, HANDLED)), ids=", handled ".join)
def test_all_that_is_done_around_it(case: tuple[str, str]) -> None:
    raises, handled = case
    for before, after in product(DEEDS, DEEDS):
        program = _program(raises, before, after, handled)
        seen, expected = list(_observed(ingot.compile(program))), list(_observed(program))
        if (
            handled == "not" and before == "an op with effects"
        ):  # which eager would have again: the graph's own error
            seen, expected = _without_places(seen), _without_places(expected)
        assert seen == expected, (before, after)


def _without_places(observed: list[Any]) -> list[Any]:
    """The graph's own error does not say which index it was."""
    return [(result.replace("index 10 is out", "index out"), *rest) for result, *rest in observed]


# -- what looks at nothing of what it is given -----------------------------------------------------

READERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "argmin": lambda v: v.argmin(),
    "the place of the largest": lambda v: v.max(0)[1],
    "like it": torch.ones_like,
    "filled": lambda v: v.fill_(3),
    "copied over": lambda v: v.copy_(torch.ones(1)),
    "to the power of 0": lambda v: v**0,
    "or true": lambda v: v.bool() | True,
    "and false": lambda v: v.bool() & False,
    "an integer that is nan": lambda v: v.long().isnan(),
    "an integer that is infinite": lambda v: v.long().isinf(),
    "dropped": lambda v: F.dropout(v, 1.0),
    "masked": lambda v: v.masked_fill(torch.tensor([True]), 1),
    "not chosen": lambda v: torch.where(torch.tensor([False]), v, 1.0),
    "no element": lambda v: v[1:],
    "no element of several": lambda v: torch.cat([v, v])[:0],
    "overwritten": lambda v: v.scatter(0, torch.tensor([0]), 2.0),
    "its size": lambda v: v.shape[0],
    "nothing": lambda v: 0,
}
ONE = torch.ones(1)
LOOKUPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index": lambda a, i: a[i],
    "index_select": lambda a, i: a.index_select(0, i),
    "gather": lambda a, i: a.gather(0, i),
    "take": lambda a, i: a.take(i),
    "embedding": lambda a, i: F.embedding(i, a[:, None])[:, 0],
    "index_put": lambda a, i: a.index_put((i,), ONE),
    "scatter": lambda a, i: a.scatter(0, i, 1.0),
    "index_fill": lambda a, i: a.index_fill(0, i, 1.0),
    "index_add": lambda a, i: a.index_add(0, i, ONE),
    "index_copy": lambda a, i: a.index_copy(0, i, ONE),
}


@pytest.mark.parametrize("case", list(product(READERS, LOOKUPS)), ids=" of ".join)
def test_readers_that_look_at_nothing(case: tuple[str, str]) -> None:
    reader, lookup = case

    def program(a: torch.Tensor, i: torch.Tensor) -> Any:
        return READERS[reader](LOOKUPS[lookup](a, i))

    compiled = ingot.compile(program)
    for size in (17, 4, 12, 5):  # the sizes are numbers, then a symbol
        results = [_outcome(f, torch.ones(size), torch.tensor([10])) for f in (compiled, program)]
        assert results[0] == results[1], size


def _outcome(f: Callable[..., Any], *args: Any) -> str:
    try:
        return repr(f(*args))
    except (IndexError, RuntimeError) as error:
        return f"{type(error)} {error}"


# -- where there is no element to be an error ------------------------------------------------------

DIVISIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "%": lambda x: x % 0,
    "//": lambda x: x // 0,
    "fmod": lambda x: x.fmod(0),
    "floor": lambda x: torch.div(x, 0, rounding_mode="floor"),
    "trunc": lambda x: torch.div(x, 0, rounding_mode="trunc"),
    "in place": lambda x: x.clone().remainder_(0),
    "beneath": lambda x: torch.remainder(5, x),
    "take_along_dim": lambda x: torch.take_along_dim(
        x, torch.zeros((0,) * x.dim(), dtype=torch.int64)
    ),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32])
@pytest.mark.parametrize("division", DIVISIONS)
def test_nothing_divided_by_zero(division: str, dtype: torch.dtype) -> None:
    program = DIVISIONS[division]
    for shape in ((0,), (3,), (0, 2)):
        x = torch.zeros(shape, dtype=dtype)
        expected = _outcome(program, x)
        assert _outcome(ingot.compile(program), x) == expected
        if "Error" not in expected:
            assert not ingot.explain(program)(x).breaks
