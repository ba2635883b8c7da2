"""Draws from Python's global random generator: eager's numbers, and eager's state afterwards."""

# ruff: noqa: S311, B023  (the programs are written as users may write them)
from __future__ import annotations

import random
from collections.abc import Callable
from random import choice, gauss, randint, uniform
from random import random as draw
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from ingot.graph import python_random
from tests.oracle import assert_same, outcome, tensors_in

X = torch.arange(4.0) + 0.5


def one(x: Tensor) -> Any:
    return x * random.random()


def several(x: Tensor) -> Any:
    a, b = random.random(), draw()
    return x * a - b + draw(), a, [b]


def unused(x: Tensor) -> Any:
    random.random()
    random.randint(1, 10**9)
    return x + 1


def of_floats(x: Tensor) -> Any:
    return (
        x * uniform(1, 3),
        random.uniform(b=2.5, a=-1),
        gauss(0, 1) * x,
        random.gauss(mu=1.0, sigma=2) + random.gauss(),
        random.normalvariate(3, sigma=1) - x,
        random.expovariate(0.5),
    )


def of_integers(x: Tensor) -> Any:
    return (
        x * randint(1, 5),
        random.randint(-3, 3),
        random.randrange(10) + x,
        random.randrange(2, 20, 3) * x,
        random.randrange(5, -5, -1),
        random.getrandbits(7),
        x[random.randint(0, 3)] + 1,
    )


def of_choices(x: Tensor) -> Any:
    return (
        x * random.choice([1, 2, 3]),
        choice((0.5, -1.5)) + x,
        random.choice([True, False]),
        random.choice(range(3)) if False else None,
    )


def seeded(x: Tensor) -> Any:
    random.seed(7)
    a = x * random.random()
    random.seed("text")
    return a + random.random()


def in_a_helper(x: Tensor) -> Any:
    def jitter(t: Tensor, low: float = 0.9, high: float = 1.1) -> Tensor:
        return t * random.uniform(low, high)

    for _ in range(3):
        x = jitter(x)
    return x


def beside_a_print(x: Tensor) -> Any:
    print("drawn")
    return x * random.random()


def in_a_try(x: Tensor) -> Any:
    try:
        y = x * random.random()
        random.choice([])
    except IndexError as error:
        return y, str(error), random.random()
    return y


def around_what_may_fail(x: Tensor) -> Any:
    y = x * random.random()
    assert (x > 0).all(), "not positive"
    return y[torch.arange(2)] + random.random()


def in_a_comprehension(x: Tensor) -> Any:
    return torch.stack([x * random.random() for _ in range(4)])


class Dropped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * random.uniform(0.5, 1.5) + random.gauss(0.0, 0.1)


WHOLE = (
    one,
    several,
    unused,
    of_floats,
    of_integers,
    of_choices,
    seeded,
    in_a_helper,
    beside_a_print,
    in_a_try,
    in_a_comprehension,
    Dropped(),
)


def named(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def drawn(function: Callable[..., Any], seed: int, *args: Any) -> Any:
    """What it gives with the generator seeded, and the generator's state behind it."""
    random.seed(seed)
    return outcome(function, *args), random.getstate()


@pytest.mark.parametrize("backend", ("ingot", "eager"))
@pytest.mark.parametrize("gradients", (False, True))
@pytest.mark.parametrize("function", WHOLE, ids=named)
def test_one_graph(function: Callable[..., Any], gradients: bool, backend: str) -> None:
    compiled = ingot.compile(function, fullgraph=True, backend=backend)
    for seed in range(4):
        results = []
        for f in (compiled, function):
            x = X.clone().requires_grad_(gradients)
            results.append(drawn(f, seed, x))
        assert_same(*results)


@pytest.mark.parametrize("function", WHOLE, ids=named)
def test_one_compilation_for_all_numbers(function: Callable[..., Any]) -> None:
    compiled = ingot.compile(function)
    for seed in range(6):
        assert_same(drawn(compiled, seed, X), drawn(function, seed, X))
    assert compilations(compiled) == 1


def test_the_backward_draws_nothing() -> None:
    model = Dropped()
    compiled = ingot.compile(model, fullgraph=True)
    for seed in range(3):
        results = []
        for f in (compiled, model):
            model.zero_grad()
            random.seed(seed)
            f(X).sum().backward()
            results.append((model.weight.grad, random.getstate()))
        assert_same(*results)


def compilations(compiled: Any) -> int:
    return len(Compiler.of(compiled).compilations)


# -- what breaks the graph -------------------------------------------------------------------------


def branched(x: Tensor) -> Any:
    if random.random() < 0.5:
        return x * 2
    return x * random.random()


def layers_dropped(x: Tensor) -> Any:
    for k in range(3):
        if random.uniform(0, 1) < 0.5:
            continue
        x = x * (k + 2)
    return x


def shuffled(x: Tensor) -> Any:
    order = [0, 1, 2, 3]
    random.shuffle(order)
    return x[order] * random.random(), order


def sampled(x: Tensor) -> Any:
    return x[random.sample(range(4), 2)] + random.choices([1.0, 2.0], k=1)[0]


def chosen_text(x: Tensor) -> Any:
    return {"a": x + 1, "b": x - 1}[random.choice(["a", "b"])]


def chosen_of_two_types(x: Tensor) -> Any:
    return x * random.choice([1, 2.5])


def chosen_tensor(x: Tensor) -> Any:
    return random.choice([x.sin(), x.cos()]) * 2


def counted(x: Tensor) -> Any:
    for _ in range(random.randint(1, 4)):
        x = x + 1
    return x


def sized(x: Tensor) -> Any:
    return torch.ones(random.randint(1, 3)) + 1, x[: random.randrange(4)] * 2


def crop(x: Tensor) -> Any:
    i = random.randint(0, 2)
    return x[i : i + 2].sin()


def by_a_number_in_a_tensor(x: Tensor) -> Any:
    return x * random.uniform(0, x[1].item()) + random.random()


def state_read(x: Tensor) -> Any:
    state = random.getstate()
    y = x * random.random()
    random.setstate(state)
    return y + random.random()


def more_bits(x: Tensor) -> Any:
    return random.getrandbits(64), random.randint(0, 2**70), x + 1


def infinite(x: Tensor) -> Any:
    return random.uniform(0.0, float("inf")), x + 1


def raising(x: Tensor) -> Any:
    y = x * random.random()
    return y * random.randint(5, 1)


def raising_of_a_type(x: Tensor) -> Any:
    return x * random.random() * random.uniform("a", 1)


def handled(x: Tensor) -> Any:
    try:
        return x * random.randrange(0)
    except ValueError:
        return x * random.random()


def printed(x: Tensor) -> Any:
    print(random.random(), random.randint(1, 9))
    return x


def a_failing_check(x: Tensor) -> Any:
    y = x * random.random()
    if not (x < 1).all():
        raise ValueError(f"{random.random()}")
    return y


def a_check_before(x: Tensor) -> Any:
    if not (x < 1).all():
        raise ValueError(random.random())
    return x * random.random()


def sizes_of_the_data(x: Tensor) -> Any:
    y = x[x > 1] * random.random()
    return y.sum() + random.random(), y


def under_checkpoint(x: Tensor) -> Any:
    def layer(t: Tensor) -> Tensor:
        return t * random.random()

    return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)


def mapped(x: Tensor) -> Any:
    return torch.vmap(lambda row: row * random.random())(x[None])


def differentiated(x: Tensor) -> Any:
    return torch.func.grad(lambda t: (t * random.random()).sum())(x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * random.random()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * random.random()


def of_a_function_of_its_own(x: Tensor) -> Any:
    return Doubled.apply(x) * random.random()


def of_a_hook(x: Tensor) -> Any:
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda g: g * random.random())
    return y * 2


BROKEN = (
    branched,
    layers_dropped,
    shuffled,
    sampled,
    chosen_text,
    chosen_of_two_types,
    chosen_tensor,
    counted,
    sized,
    crop,
    by_a_number_in_a_tensor,
    state_read,
    more_bits,
    infinite,
    raising,
    raising_of_a_type,
    handled,
    printed,
    a_failing_check,
    a_check_before,
    sizes_of_the_data,
    under_checkpoint,
    mapped,
    differentiated,
    of_a_function_of_its_own,
    of_a_hook,
)


@pytest.mark.parametrize("gradients", (False, True))
@pytest.mark.parametrize("function", BROKEN, ids=named)
def test_eagers_numbers_in_any_number_of_graphs(
    function: Callable[..., Any], gradients: bool
) -> None:
    compiled = ingot.compile(function)
    for seed in range(6):
        for scale in (0.1, 1.0):
            results = []
            for f in (compiled, function):
                x = (X * scale).requires_grad_(gradients)
                found, state = drawn(f, seed, x)
                results.append((found, state))
                tensors = [t for t in tensors_in(found.result) if t.requires_grad]
                if tensors:
                    sum(t.sum() for t in tensors).backward()
                results[-1] += (x.grad, random.getstate())
            assert_same(*results)


@pytest.mark.parametrize(
    "function",
    (branched, layers_dropped, counted, shuffled, chosen_of_two_types, more_bits, crop, sized),
    ids=named,
)
def test_what_a_break_compiles(function: Callable[..., Any]) -> None:
    """Behind a break the number is an argument of what follows, which soon is compiled for all."""
    compiled = ingot.compile(function)
    for seed in range(40):
        random.seed(seed)
        compiled(X)
    before = compilations(compiled)
    for seed in range(40, 80):
        random.seed(seed)
        compiled(X)
    assert compilations(compiled) == before


def test_an_error_behind_a_draw() -> None:
    """The graph raises it itself, since eager would draw again; which index it was is not said."""

    def function(x: Tensor) -> Any:
        return x * random.random() + x[x.long() * 9].sum()

    compiled = ingot.compile(function)
    for seed, scale in enumerate((0.1, 1.0, 0.1)):
        (found, state), (expected, its_state) = (
            drawn(f, seed, X * scale) for f in (compiled, function)
        )
        assert type(found.raised) is type(expected.raised)
        assert_same((found.result, state), (expected.result, its_state))


# -- other generators ------------------------------------------------------------------------------


class Halves(random.Random):
    def random(self) -> float:
        return 0.5


OWN = random.Random(3)


def test_generators_of_the_users() -> None:
    def of_a_class(x: Tensor) -> Any:
        return x * Halves(1).uniform(1, 3)

    def of_its_own(x: Tensor, generator: random.Random) -> Any:
        return x * generator.random() + generator.randint(1, 5) + random.random()

    compiled = ingot.compile(of_its_own)
    for seed in range(4):
        results = []
        for f in (compiled, of_its_own):
            generator = random.Random(seed)
            results.append((drawn(f, seed, X, generator), generator.getstate()))
        assert_same(*results)
    compiled = ingot.compile(of_its_own)
    for generator in (python_random.GENERATOR, OWN, Halves(2), python_random.GENERATOR):
        results = []
        for f in (compiled, of_its_own):
            random.seed(3)
            generator.seed(4)
            results.append((f(X, generator), generator.random()))
        assert_same(*results)
    compiled = ingot.compile(of_a_class)
    assert_same(outcome(compiled, X), outcome(of_a_class, X))


def test_what_is_patched() -> None:
    def function(x: Tensor) -> Any:
        return x * random.random() + random.randint(1, 5)

    compiled = ingot.compile(function)
    for _ in range(2):
        assert_same(drawn(compiled, 1, X), drawn(function, 1, X))
        with mock.patch("random.random", lambda: 0.25), mock.patch("random.randint", max):
            assert_same(drawn(compiled, 1, X), drawn(function, 1, X))
