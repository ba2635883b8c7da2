"""A seeded writer of random torch programs: the text of a function, and how to make its arguments.

Every statement is run in eager as it is written, so what it says is legal for the sizes at hand;
other sizes may raise, as they would for any program.
"""

from __future__ import annotations

import linecache
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.uint8, torch.int16, torch.int8)
MOST_ELEMENTS = 3000


# Arguments
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """An argument: a tensor of its own (`dims` name entries of the program's sizes) or made from an
    earlier one."""

    dtype: torch.dtype
    dims: tuple[str, ...] = ()
    layout: str = "plain"
    earlier: int | None = None

    def make(
        self, sizes: dict[str, int], rng: random.Random, made: list[torch.Tensor]
    ) -> torch.Tensor:
        if self.earlier is not None:
            return ALIASES[self.layout](made[self.earlier])
        return LAYOUTS[self.layout](
            [sizes[d] for d in self.dims], lambda shape: values(shape, self.dtype, rng)
        )


def values(shape: Any, dtype: torch.dtype, rng: random.Random) -> torch.Tensor:
    """Random numbers of a dtype, exact in all narrower float types for a third of the calls; now
    and then an infinity or NaN."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.6
    if not dtype.is_floating_point:
        return torch.randint(
            0 if dtype is torch.uint8 else -6, 9, tuple(shape), generator=generator
        ).to(dtype)
    made = torch.randn(shape, generator=generator, dtype=torch.float64)
    if rng.random() < 0.3:
        made = (made * 4).round() / 4
    if rng.random() < 0.08 and made.numel():
        made.view(-1)[rng.randrange(made.numel())] = rng.choice(
            [float("nan"), float("inf"), -float("inf")]
        )
    # whose strides are the same for all draws
    return torch.empty(tuple(shape), dtype=dtype).copy_(made)


Filled = Callable[[Any], torch.Tensor]
LAYOUTS: dict[str, Callable[[list[int], Filled], torch.Tensor]] = {
    "plain": lambda shape, fill: fill(shape),
    "reversed": lambda shape, fill: fill(shape[::-1]).permute([*range(len(shape))][::-1]),
    "every second": lambda shape, fill: (
        fill([*shape[:-1], 2 * shape[-1]])[..., ::2] if shape else fill(shape)
    ),
    "middle": lambda shape, fill: fill([shape[0] + 2, *shape[1:]])[1:-1] if shape else fill([3])[1],
    "expanded": lambda shape, fill: fill([1, *shape[1:]]).expand(shape) if shape else fill(shape),
    "swapped": lambda shape, fill: (
        fill([*shape[:-2], shape[-1], shape[-2]]).mT if len(shape) > 1 else fill(shape)
    ),
}
ALIASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "same": lambda t: t,
    "view": lambda t: t[...],
    "transposed": lambda t: t.mT if t.dim() > 1 else t,
    "tail": lambda t: t[1:] if t.dim() else t,
    "flat": lambda t: t.view(-1) if t.is_contiguous() else t.detach(),
}


# Programs
# --------------------------------------------------------------------------------------------------


@dataclass
class RandomProgram:
    seed: int
    text: str
    given: list[Given]
    sizes: dict[str, int]
    other_sizes: dict[str, int]
    numbers: tuple[int, bool]
    namespace: dict[str, Any]

    @property
    def function(self) -> Callable[..., Any]:
        return self.namespace["program"]

    def arguments(self, draw: int, other: bool = False) -> tuple[Any, ...]:
        """Fresh arguments; equal `draw`s give equal ones. `other` changes sizes and numbers."""
        rng = random.Random(f"{self.seed} {draw}")
        tensors: list[torch.Tensor] = []
        for given in self.given:
            tensors.append(given.make(self.other_sizes if other else self.sizes, rng, tensors))
        k, flag = self.numbers
        return (*tensors, k + other, flag)

    def __str__(self) -> str:
        return (
            f"# seed {self.seed}: {self.sizes}, then {self.other_sizes}; {self.numbers}\n"
            f"{self.describe()}{self.text}"
        )

    def describe(self) -> str:
        return "".join(f"#   a{i}: {g}\n" for i, g in enumerate(self.given))


def random_program(seed: int) -> RandomProgram:
    return _Writer(seed).write()


HELPERS = """
import torch
import torch.nn.functional as F

def make_scale(n):
    def scale(t):
        return t * n
    return scale

scale_by_3 = make_scale(3)

def normalized(t, eps=1e-3):
    t = t.float() if t.dtype.itemsize < 4 or not t.is_floating_point() else t
    return (t - t.mean(-1, keepdim=True)) / (t.std(-1, keepdim=True, unbiased=False) + eps)

def halves(t):
    n = t.shape[0] // 2
    return t[:n], t[n:]
"""


@dataclass
class _Writer:
    seed: int
    rng: random.Random = field(init=False)
    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    fresh: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def write(self) -> RandomProgram:
        rng = self.rng
        pool = [1, 2, 3, 4, 5, 6, 7, 8] if rng.random() < 0.75 else [0, 1, 3, 17, 33]
        sizes = {name: rng.choice(pool) for name in "ABC"} | {"1": 1}
        other = dict(sizes)
        for name in rng.sample("ABC", rng.randint(1, 3)):
            other[name] = rng.choice([0, 1, 2, 4, 6, 9, 20])
        given = self._given()
        numbers = rng.randint(1, 4), rng.random() < 0.5
        program = RandomProgram(
            self.seed, "", given, sizes, other, numbers, {"__name__": "random_program"}
        )
        exec(HELPERS, program.namespace)
        arguments = program.arguments(0)
        self.names = [f"a{i}" for i in range(len(given))]
        self.values = program.namespace | dict(zip([*self.names, "k", "flag"], arguments))
        state = torch.get_rng_state()
        for _ in range(rng.randint(3, 14)):
            self._statement()
        if rng.random() < 0.04:
            self.lines.append(rng.choice(FAULTS).format(rng.choice(self.names)))
        torch.set_rng_state(state)
        result = self._result()
        parameters = ", ".join([f"a{i}" for i in range(len(given))] + ["k", "flag"])
        body = "".join(f"    {line}\n" for text in self.lines for line in text.split("\n"))
        program.text = f"def program({parameters}):\n{body}    return {result}\n"
        _define(program)
        return program

    def _given(self) -> list[Given]:
        rng, given = self.rng, []
        main = rng.choice(
            [torch.float32] * 6 + [torch.bfloat16] * 2 + [torch.float64, torch.float16, torch.int64]
        )
        for k in range(rng.randint(1, 4)):
            if k and rng.random() < 0.15:
                given.append(
                    Given(given[-1].dtype, (), rng.choice(list(ALIASES)), rng.randrange(k))
                )
                continue
            dtype = (
                main
                if rng.random() < 0.65
                else rng.choice([*FLOATS, *INTS, torch.bool, torch.bool])
            )
            dims = tuple(
                rng.choice(["AB", "AB", "BC", "ABC", "ABC", "B", "1B", "A1", "A", "", "CB", "1ABC"])
            )
            layout = "plain" if rng.random() < 0.6 else rng.choice(list(LAYOUTS))
            given.append(Given(dtype, dims, layout))
        return given

    # -- what statements ask for -------------------------------------------------------------------

    def pick(self, want: Callable[[torch.Tensor], bool] = lambda t: True) -> str:
        """The name of a tensor; recent ones are likelier."""
        fitting = [
            n
            for n in self.names
            if isinstance(self.values[n], torch.Tensor) and want(self.values[n])
        ]
        if not fitting:
            raise _NothingFits
        return fitting[-1] if self.rng.random() < 0.45 else self.rng.choice(fitting)

    def floating(self, rank: int = 0) -> str:
        return self.pick(lambda t: t.is_floating_point() and t.dim() >= rank)

    def ranked(self, rank: int) -> str:
        return self.pick(lambda t: t.dim() >= rank)

    def integral(self) -> str:
        return self.pick(lambda t: not t.is_floating_point() and t.dtype is not torch.bool)

    def like(self, name: str, want: Callable[[torch.Tensor], bool] = lambda t: True) -> str:
        """A tensor that broadcasts with `name`."""
        t = self.values[name]
        return self.pick(lambda u: want(u) and _broadcast(t.shape, u.shape))

    def dim(self, name: str) -> int:
        rank = self.values[name].dim()
        return self.rng.randint(-rank, rank - 1)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.values[name].shape)

    # -- writing -----------------------------------------------------------------------------------

    def _statement(self) -> None:
        kind = self.rng.choices(list(STATEMENTS), list(STATEMENTS.values()))[0]
        try:
            text = kind(self)
        except _NothingFits:
            return
        if "=" not in text.split("(")[0] and not text.startswith(("for", "if", "with")):
            target = f"v{self.fresh}"
            text = f"{target} = {text}"
        before = {n: v for n, v in self.values.items() if n[0] == "v" and n[1:].isdigit()}
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(text, self.values)
        except Exception:
            for name in [n for n in self.values if n[0] == "v" and n[1:].isdigit()]:
                del self.values[name]
            self.values.update(before)
            return
        made = [n for n in self.values if n[0] == "v" and n[1:].isdigit() and n not in before]
        if not all(
            isinstance(self.values[n], torch.Tensor) and self.values[n].numel() <= MOST_ELEMENTS
            for n in made
        ):
            for n in made:
                del self.values[n]
            return
        self.lines.append(text)
        self.names += made
        self.fresh += len(made)

    def names_for(self, count: int) -> str:
        return ", ".join(f"v{self.fresh + i}" for i in range(count)) + ("," if count == 1 else "")

    def _result(self) -> str:
        rng = self.rng
        recent = [n for n in self.names if n in self.values][-5:]
        items = [
            rng.choice(recent if rng.random() < 0.7 else self.names)
            for _ in range(rng.randint(1, 4))
        ]
        for i in range(len(items)):
            t = self.values[items[i]]
            if rng.random() < 0.15 and t.dim():
                items[i] += rng.choice(
                    ["[0:1]", ".unsqueeze(0)", "[...]", ".detach()", "[-1:]", ".view_as({0})"]
                ).format(items[i])
            elif rng.random() < 0.08:
                items[i] = rng.choice(
                    ["k", "None", "flag", f"{items[i]}.shape", f"{items[i]}.dtype", "k * 2.5"]
                )
        if len(items) == 1:
            return items[0]
        pair = ", ".join(items)
        nested = f"{{'first': {items[0]}, 'rest': [{', '.join(items[1:])}]}}"
        return rng.choice(
            [f"({pair})", f"({pair})", f"[{pair}]", nested, f"(({items[0]},), {nested})"]
        )


class _NothingFits(Exception):
    pass


def _broadcast(a: torch.Size, b: torch.Size) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b)))


def _define(program: RandomProgram) -> None:
    """Compile the text, with its lines known to tracebacks."""
    file = f"<random program {program.seed}>"
    linecache.cache[file] = (len(program.text), None, program.text.splitlines(True), file)
    exec(compile(program.text, file, "exec"), program.namespace)


FAULTS = [
    "{0} = {0} + torch.ones(2, 3, 5, 11)",
    "{0} = {0}.reshape(7, 13, 5)",
    "{0} = F.embedding(torch.tensor([0, 9]), torch.ones(4, 2))",
    "{0} = torch.ones(3)[torch.tensor([1, 5])]",
    "{0} = torch.arange(4) // torch.zeros(4, dtype=torch.long)",
    "{0} = k // 0",
    "{0} = [1, 2][k + 5]",
    "raise ValueError('a fault of the program')",
    "{0} = torch.arange(3).gather(0, torch.tensor([7]))",
]

# Statements: kind -> weight. Each gives an expression, whose value gets a name, or a whole
# statement.

Kind = Callable[[_Writer], str]
STATEMENTS: dict[Kind, float] = {}


def kind(weight: float) -> Callable[[Kind], Kind]:
    def register(f: Kind) -> Kind:
        STATEMENTS[f] = weight
        return f

    return register
