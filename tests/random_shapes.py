"""Random programs that are about sizes: each is legal at several shapes, and computes with the
sizes themselves.

A program is written as those of `random_programs` are, but every statement is run at all of the
program's shapes, and kept where (nearly) all take it. Sizes of an argument are named by letters;
two letters may have one value at first.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch

from tests import (
    random_programs,  # noqa: F401  (the statements)
    random_programs_indexing,  # noqa: F401  (more statements)
)
from tests.oracle import ignore_warnings
from tests.random_programs_writer import (
    ALIASES,
    FLOATS,
    HELPERS,
    LAYOUTS,
    MOST_ELEMENTS,
    STATEMENTS,
    Given,
    Kind,
    RandomProgram,
    _define,
    _NothingFits,
    _Writer,
    values,
)

SHAPES = 5
FIRST_SIZES = (2, 3, 4, 5, 6, 8, 9, 12, 16, 17)
LATER_SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 10, 13, 16, 19, 24, 32, 33)


@dataclass
class ShapedProgram(RandomProgram):
    """`shapes` are what it is called with, in order: the sizes, and the integer `k`. `leaves`:
    gradients are asked for of the arguments themselves, else of what they are computed from, so
    that they may be written. `marks` are the (argument, dimension) pairs that are marked as
    dynamic; None: all sizes are dynamic; (): what is seen to vary is."""

    shapes: list[tuple[dict[str, int], int]] = field(default_factory=list)
    leaves: bool = True
    marks: tuple[tuple[int, int], ...] | None = None

    @property
    def count(self) -> int:
        """Of leaves, frozen ones too."""
        return sum(g.dtype.is_floating_point and g.earlier is None for g in self.given)

    def arguments_at(
        self, draw: int, sizes: dict[str, int], k: int, frozen: Collection[int] = ()
    ) -> tuple[tuple[Any, ...], list[torch.Tensor]]:
        """Fresh arguments, and the leaves that gradients are taken of, without those `frozen`, by
        their number, which require none; equal `draw`s give equal ones."""
        rng = random.Random(f"{self.seed} {draw}")
        tensors: list[torch.Tensor] = []
        leaves: list[torch.Tensor] = []
        numbers = itertools.count()
        for given in self.given:
            if given.earlier is None:
                fill = functools.partial(_nonzero, dtype=given.dtype, rng=rng)
                made = LAYOUTS[given.layout]([sizes[d] for d in given.dims], fill)
            else:
                made = given.make(sizes, rng, tensors)
            if made.is_floating_point() and given.earlier is None:
                if next(numbers) not in frozen:
                    leaves.append(made.requires_grad_())
                if not self.leaves:
                    made = made * 1
            tensors.append(made)
        return (*tensors, k, self.numbers[1]), leaves

    def __str__(self) -> str:
        given = f"{'leaves' if self.leaves else 'computed'}, marks {self.marks}"
        return f"# seed {self.seed}: {self.shapes}; {given}\n{self.describe()}{self.text}"


def _nonzero(shape: Any, dtype: torch.dtype, rng: random.Random) -> torch.Tensor:
    """Random numbers; floats without zeros, whose signs after a product or a sum are left open."""
    made = values(shape, dtype, rng)
    return made.masked_fill_(made == 0, 0.375) if dtype.is_floating_point else made


def shaped_program(seed: int) -> ShapedProgram:
    return _ShapedWriter(seed).write_shaped()


class _ShapedWriter(_Writer):
    """Writes at the first shape (`values`), and holds each statement against the other shapes
    (`others`; None where an earlier statement raised)."""

    def write_shaped(self) -> ShapedProgram:
        rng = self.rng = random.Random(f"shapes {self.seed}")
        shapes = self._shapes()
        given = self._given()
        numbers = shapes[0][1], rng.random() < 0.5
        program = ShapedProgram(self.seed, "", given, shapes[0][0], shapes[1][0], numbers, {})
        program.namespace = {"__name__": "random_program", "math": math}
        program.shapes, program.leaves = shapes, rng.random() < 0.6
        exec(HELPERS, program.namespace)
        self.names = [f"a{i}" for i in range(len(given))]
        names = [*self.names, "k", "flag"]
        state = torch.get_rng_state()
        environments: list[dict[str, Any] | None] = []
        for sizes, k in shapes:
            arguments, _ = program.arguments_at(0, sizes, k)
            environments.append(program.namespace | dict(zip(names, arguments)))
        assert environments[0] is not None
        self.values, self.others = environments[0], environments[1:]
        for _ in range(rng.randint(3, 11)):
            self._statement()
        torch.set_rng_state(state)
        body = "".join(f"    {line}\n" for text in self.lines for line in text.split("\n"))
        program.text = f"def program({', '.join(names)}):\n{body}    return {self._result()}\n"
        program.marks = self._marks(given)
        _define(program)
        return program

    def _shapes(self) -> list[tuple[dict[str, int], int]]:
        rng = self.rng
        varying = rng.sample("ABC", rng.randint(1, 3))
        first = {name: rng.choice(FIRST_SIZES) for name in "ABC"}
        if rng.random() < 0.3:
            first["B"] = first["A"]
        shapes = [({**first, "1": 1}, rng.randint(1, 4))]
        for _ in range(SHAPES - 1):
            sizes = first | {name: rng.choice(LATER_SIZES) for name in varying}
            shapes.append(({**sizes, "1": 1}, rng.choice([0, 1, 2, 3, 5, -2, shapes[0][1]])))
        if not any(
            size < 2 for sizes, _ in shapes[1:] for name, size in sizes.items() if name in varying
        ):
            shapes[rng.randrange(1, SHAPES)][0][rng.choice(varying)] = rng.randint(0, 1)
        return shapes

    def _given(self) -> list[Given]:
        rng, given = self.rng, []
        main = rng.choice([torch.float32] * 7 + [torch.float64] * 2 + [torch.bfloat16])
        for k in range(rng.randint(1, 3)):
            if k and rng.random() < 0.05:
                given.append(
                    Given(given[-1].dtype, (), rng.choice(list(ALIASES)), rng.randrange(k))
                )
                continue
            kinds = [main] * 8 + [*FLOATS, torch.int64, torch.int32, torch.bool]
            dtype = rng.choice(kinds) if k else main
            dims = tuple(
                rng.choice(
                    ["AB", "AB", "AB", "BA", "BC", "ABC", "ABC", "B", "1B", "A1", "A", "CB", "1ABC"]
                )
            )
            layout = "plain" if rng.random() < 0.7 else rng.choice(list(LAYOUTS))
            given.append(Given(dtype, dims, layout))
        return given

    def _marks(self, given: list[Given]) -> tuple[tuple[int, int], ...] | None:
        rng = self.rng
        places = [
            (i, d) for i, g in enumerate(given) for d, name in enumerate(g.dims) if name != "1"
        ]
        return rng.choice([None, None, (), tuple(p for p in places if rng.random() < 0.6)])

    def _statement(self) -> None:
        kind = self.rng.choices(list(KINDS), list(KINDS.values()))[0]
        try:
            text = kind(self)
        except _NothingFits:
            return
        if "=" not in text.split("(")[0] and not text.startswith(("for", "if", "with")):
            text = f"v{self.fresh} = {text}"
        before = set(self.values)
        done = [
            self._run(text, env) if env is not None else None for env in (self.values, *self.others)
        ]
        refused = [
            k
            for k, env in enumerate(done)
            if env is None and (k == 0 or self.others[k - 1] is not None)
        ]
        if refused and (refused[0] == 0 or len(refused) > 1 or self.rng.random() < 0.85):
            return  # and what it wrote in place stays written, which does not matter
        assert done[0] is not None
        self.values, self.others = done[0], done[1:]
        made = [
            name
            for name in self.values
            if name not in before and name[0] == "v" and name[1:].isdigit()
        ]
        self.lines.append(text)
        self.names += [name for name in made if isinstance(self.values[name], torch.Tensor)]
        self.fresh += len(made)

    def _run(self, text: str, environment: dict[str, Any]) -> dict[str, Any] | None:
        environment = dict(environment)
        try:
            with warnings.catch_warnings():
                ignore_warnings()
                exec(text, environment)
        except Exception:
            return None
        tensors = [
            v for name, v in environment.items() if name[0] == "v" and isinstance(v, torch.Tensor)
        ]
        return environment if all(t.numel() <= MOST_ELEMENTS for t in tensors) else None

    def size(self, depth: int = 0) -> str:
        """An expression of sizes and integers."""
        rng = self.rng
        v = self.pick(lambda t: t.dim() > 0)
        sizes = [f"{v}.shape[{self.dim(v)}]"] * 4 + [
            f"{v}.size({self.dim(v)})",
            f"len({v})",
            f"{v}.numel()",
        ]
        if depth > 1 or rng.random() < 0.5:
            return rng.choice([*sizes, *sizes, "k"])
        a, b, c = self.size(depth + 1), self.size(depth + 1), rng.randint(1, 4)
        forms = [
            f"({a} + {b})",
            f"({a} - {c})",
            f"{a} * {c}",
            f"{a} // {c + 1}",
            f"({a} + {c}) // {c + 1} * {c + 1}",
        ]
        forms += [
            f"{a} % {c + 1}",
            f"max({a}, {c})",
            f"min({a}, {b})",
            f"min({a}, {c})",
            f"({a} - 1) // {c} + 1",
        ]
        forms += [
            f"(-{a} % {c + 2})",
            f"abs({a} - {b})",
            f"({a} * {b})",
            f"({c} if {a} > {c} else {a})",
        ]
        return rng.choice(forms)


# Statements about sizes
# -----------------------------------------------------------------------------------------------

KINDS: dict[Kind, float] = {}
_USUAL = {  # of random_programs, those that name no sizes of the first shape
    "unary": 1.5, "activation": 1.5, "binary": 4, "with_number": 1.5, "selection": 1.5,
    "comparison": 0.7, "cast": 0.7, "permuted": 2, "sliced": 2, "viewed": 1.5, "moved": 1.5,
    "pieces": 1, "in_place": 0.8, "write_to_view": 0.8, "reduction": 3, "paired_reduction": 0.8,
    "normalization": 2, "joined": 2, "product": 2.5, "closure": 0.5,
    "loop": 0.5, "branch": 0.5, "random_numbers": 0.3,
}  # fmt: skip
KINDS.update({kind: _USUAL[kind.__name__] for kind in STATEMENTS if kind.__name__ in _USUAL})
assert len(KINDS) == len(_USUAL)


def kind(
    weight: float,
) -> Callable[[Callable[[_ShapedWriter], str]], Callable[[_ShapedWriter], str]]:
    def register(f: Callable[[_ShapedWriter], str]) -> Callable[[_ShapedWriter], str]:
        KINDS[f] = weight  # type: ignore[index]
        return f

    return register


@kind(3)
def size_in_arithmetic(w: _ShapedWriter) -> str:
    forms = [
        "{0} * {1}",
        "{0} + {1}",
        "{0} / ({1} + 1)",
        "{1} - {0}",
        "{0} * ({1} / 7)",
        "{0} + {1} ** 2",
    ]
    forms += [
        "{0} / math.sqrt({2}.shape[-1])",
        "{0} * {2}.shape[-1] ** -0.5",
        "torch.add({0}, {0}, alpha={1})",
    ]
    forms += [
        "{0} * float({1})",
        "{0}.sum() / max({1}, 1)",
        "{0}.clamp(max={1})",
        "torch.where({0} > {1}, {0}, {1})",
    ]
    v = w.floating()
    return w.rng.choice(forms).format(v, w.size(), w.ranked(1))


@kind(3)
def slice_by_size(w: _ShapedWriter) -> str:
    v, n, m = w.ranked(1), w.size(), w.size()
    d = w.rng.randrange(len(w.shape(v)))
    parts = [f":{n}", f"{n}:", f"{n}:{m}", f"-{n}:", f":-{n}", f"::{n}"]
    parts += [f": {v}.shape[{d}] // 2", f"{v}.shape[{d}] // 3 :"]
    parts += [f"{n} - 1", f"{v}.shape[{d}] - 1", f"{v}.shape[{d}] // 2", f"{v}.shape[{d}] - 2 :"]
    text = w.rng.choice(parts)
    if w.rng.random() < 0.3:
        forms = [f"{v}.narrow({d}, 0, {v}.shape[{d}] // 2)"]
        forms += [f"{v}.narrow({d}, {v}.shape[{d}] // 3, {v}.shape[{d}] // 2)"]
        forms += [
            f"{v}.select({d}, {v}.shape[{d}] // 2)",
            f"{v}.narrow({d}, 0, min({n}, {v}.shape[{d}]))",
        ]
        return w.rng.choice(forms)
    return f"{v}[{':, ' * d}{text}]"


@kind(3)
def reshape_by_size(w: _ShapedWriter) -> str:
    v = w.ranked(1)
    u = w.ranked(1)
    forms = [
        f"{v}.reshape({v}.shape[0], -1)",
        f"{v}.reshape(-1, {v}.shape[-1])",
        f"{v}.reshape({v}.shape[::-1])",
    ]
    forms += [f"{v}.reshape({u}.shape[0], -1)", f"{v}.view(*{v}.shape, 1)"]
    forms += [f"{v}.view(1, *{v}.shape[1:], {v}.shape[0])"]
    forms += [
        f"{v}.reshape(-1)",
        f"{v}.view({v}.numel())",
        f"{v}.unflatten(0, (-1, 1))",
        f"{v}.unflatten(-1, (1, -1))",
    ]
    forms += [
        f"{v}.reshape({v}.numel() // {v}.shape[-1], -1)",
        f"{v}.reshape({v}.shape[0] * {v}.shape[-1], -1)",
    ]
    forms += [
        f"{v}.reshape({u}.shape)",
        f"{v}.view_as({u})",
        f"{v}.flatten(0, 1)",
        f"{v}.flatten(1)",
        f"{v}.t()",
    ]
    forms += [f"{v}.unflatten(0, ({v}.shape[0] // 2, 2))", f"{v}.reshape(2, -1)"]
    forms += [f"{v}.transpose(0, -1).reshape({v}.shape)"]
    return w.rng.choice(forms)


@kind(2.5)
def create_of_size(w: _ShapedWriter) -> str:
    v, n, m = w.ranked(1), w.size(), w.size()
    dtype = w.values[v].dtype
    forms = [
        f"torch.zeros({n})",
        f"torch.arange({n})",
        f"torch.arange({n}, {n} + {m})",
        f"torch.full(({n},), {m})",
    ]
    forms += [
        f"torch.ones({v}.shape[0], {n})",
        f"{v}.new_zeros({v}.shape[-1])",
        f"{v}.new_full(({n}, {m}), 0.5)",
    ]
    forms += [f"torch.eye({n})", f"torch.linspace(0, 1, {n})", f"torch.ones({v}.shape)"]
    forms += [f"torch.zeros_like({v}[:, None])"]
    forms += [
        f"torch.arange({v}.shape[0], dtype={dtype})",
        f"torch.arange(0, {n}, 2)",
        f"torch.tensor({n})",
    ]
    forms += [
        f"torch.empty({n}, {v}.shape[-1]).fill_({m})",
        f"torch.ones({v}.shape[-1], {v}.shape[-1]).tril()",
    ]
    forms += [
        f"torch.scalar_tensor({n})",
        f"torch.tensor([{n}, {m}])",
        f"{v}.new_ones({n}, *{v}.shape[1:])",
    ]
    return w.rng.choice(forms)


@kind(2.5)
def broadcast_by_size(w: _ShapedWriter) -> str:
    v, n = w.ranked(1), w.size()
    forms = [f"{v}[None].expand({n}, *{v}.shape)", f"{v}.unsqueeze(-1).expand(*{v}.shape, {n})"]
    forms += [f"{v}.repeat({n}, *[1] * ({v}.dim() - 1))"]
    forms += [f"{v}[..., None] * torch.arange({n})", f"{v} + torch.arange({v}.shape[-1])"]
    forms += [f"{v}.mT + torch.arange({v}.shape[-2])"]
    forms += [
        f"{v} * torch.ones({v}.shape[0], *[1] * ({v}.dim() - 1))",
        f"{v}.repeat_interleave({n}, 0)",
    ]
    forms += [f"{v}[:, None] - {v}[None]"]
    forms += [f"{v}.sum(0).expand({v}.shape)", f"{v}.expand({n}, *{v}.shape).mean(0)"]
    forms += [f"{v}.mean(-1, keepdim=True).expand_as({v})"]
    return w.rng.choice(forms)


@kind(2)
def join_by_size(w: _ShapedWriter) -> str:
    v, n = w.ranked(1), w.size()
    d = w.dim(v)
    other = w.pick(lambda t: t.dim() == len(w.shape(v)))
    forms = [
        f"torch.cat([{v}, {v}], {d})",
        f"torch.cat([{v}, {v}[: {n}]])",
        f"torch.stack([{v}] * 3, {d})",
    ]
    forms += [f"F.pad({v}, (0, {n}))"]
    forms += [f"F.pad({v}, (0, -{v}.shape[-1] % 4))", f"F.pad({v}, ({n}, 1), value=2)"]
    forms += [f"torch.cat([{v}, {other}], {d})"]
    forms += [
        f"torch.cat([{v}, {v}.new_zeros({n}, *{v}.shape[1:])])",
        f"torch.cat([{v}.flatten(), {other}.flatten()])",
    ]
    forms += [
        f"{v}.roll({n}, {d})",
        f"{v}.roll({v}.shape[{d}] // 2, {d})",
        f"torch.cat([{v}[{n}:], {v}[:{n}]])",
    ]
    return w.rng.choice(forms)


@kind(1.5)
def pieces_by_size(w: _ShapedWriter) -> str:
    v, n = w.ranked(1), w.size()
    d = w.dim(v)
    forms = [
        f"{v}.chunk(2, {d})",
        f"{v}.split(max({v}.shape[{d}] // 2, 1), {d})",
        f"torch.tensor_split({v}, 2, {d})",
    ]
    forms += [f"{v}.split([{v}.shape[{d}] // 2, {v}.shape[{d}] - {v}.shape[{d}] // 2], {d})"]
    forms += [f"{v}.split({n} + 1, {d})"]
    text = w.rng.choice(forms)
    try:
        parts = eval(text, w.values)
    except Exception:
        raise _NothingFits from None
    if not 0 < len(parts) < 5:
        raise _NothingFits
    return f"{w.names_for(len(parts))} = {text}"


@kind(2)
def branch_on_size(w: _ShapedWriter) -> str:
    v, name, n, c = w.pick(), f"v{w.fresh}", w.size(), w.rng.randint(1, 9)
    u = w.ranked(1)
    tests = [
        f"{n} > {c}",
        f"{n} % 2 == 0",
        f"{n} == {w.size()}",
        f"{n} < {w.size()}",
        f"{v}.shape == {w.pick()}.shape",
    ]
    tests += [
        f"{u}.shape[0] >= {c}",
        f"{v}.numel() > {c * 4}",
        f"{n} != {c}",
        f"{u}.shape[-1] in (1, 2, 4, 8)",
        f"{n}",
    ]
    tests += [
        f"{u}.shape[0] % 4 == 0 and {n} > 2",
        f"{c} <= {n} <= {2 * c}",
        f"not {n} > {c}",
        f"{u}.is_contiguous()",
    ]
    other = w.rng.choice(["{0} * 2", "{0}", "{0}.sin()", f"{{0}} * ({n})"]).format(v)
    return f"if {w.rng.choice(tests)}:\n    {name} = {v} + 1\nelse:\n    {name} = {other}"


@kind(1.2)
def loop_over_size(w: _ShapedWriter) -> str:
    v, name = w.ranked(1), f"v{w.fresh}"
    count = w.rng.choice(
        [
            f"min({v}.shape[0], 3)",
            f"{v}.shape[0]",
            "k",
            f"min({w.size()}, 4)",
            f"{v}.shape[-1] // 4",
        ]
    )
    bodies = ["{0} = {0} * 0.5 + i", "{0} = {0} + {1} / (i + 1)", "{0} = {0} + {1}[i : i + 1]"]
    bodies += ["{0} = {0} - i * {1}.mean()"]
    return f"{name} = {v}\nfor i in range({count}):\n    " + w.rng.choice(bodies).format(name, v)


@kind(2)
def index_by_size(w: _ShapedWriter) -> str:
    v, n = w.ranked(1), w.size()
    u = w.ranked(1)
    forms = [
        f"{v}[torch.arange({v}.shape[0]).flip(0)]",
        f"{v}.index_select(-1, torch.arange({v}.shape[-1] // 2))",
    ]
    forms += [
        f"{v}[torch.arange({n}) % {v}.shape[0]]",
        f"{v}.gather(-1, torch.zeros_like({v}, dtype=torch.long))",
    ]
    forms += [
        f"{v}.masked_fill(torch.arange({v}.shape[-1]) > {n}, 0)",
        f"{v}.tril({n})",
        f"{v}.triu(1 - {n})",
    ]
    forms += [
        f"torch.where(torch.arange({v}.shape[0])[:, None] < torch.arange({v}.shape[-1]), 1.0, 0.0)"
    ]
    forms += [f"{v}.flip(-1)"]
    forms += [f"{v}.index_add(0, torch.arange({v}.shape[0]) // 2, {v})"]
    forms += [f"{v}.scatter_add(0, torch.zeros_like({v}, dtype=torch.long), {v})"]
    forms += [
        f"{v}[torch.arange({v}.shape[0]), torch.arange({v}.shape[0]) % {v}.shape[1]]",
        f"{v}.diagonal()",
    ]
    forms += [f"{v}.cumsum(-1)"]
    forms += [
        f"F.embedding(torch.arange({n}) % {v}.shape[0], {v})",
        f"F.one_hot(torch.arange({n}) % 3, 3)",
    ]
    forms += [f"{v}.unfold(-1, 2, 1)"]
    forms += [
        f"{v}.sort(-1, stable=True)[0]",
        f"{v}.topk(min(2, {v}.shape[-1]), -1)[0]",
        f"{v}.argmax(-1)",
    ]
    forms += [f"{u}.sum(0)[..., :{n}]"]
    return w.rng.choice(forms)


@kind(2)
def layer_of_sizes(w: _ShapedWriter) -> str:
    v = w.floating(2)
    dtype = w.values[v].dtype
    weight = f"torch.arange(2.0 * {v}.shape[-1], dtype={dtype}).reshape(2, -1) / 8"
    forms = [
        f"F.layer_norm({v}, {v}.shape[-1:])",
        f"F.softmax({v}, {w.dim(v)})",
        f"F.linear({v}, {weight})",
    ]
    forms += [
        f"F.batch_norm({v}, None, None, training=True)",
        f"F.scaled_dot_product_attention({v}, {v}, {v})",
    ]
    forms += [
        f"{v} @ torch.ones({v}.shape[-1], 3, dtype={dtype})",
        f"{v} @ {v}.mT / {v}.shape[-1]",
        f"F.glu({v}, -1)",
    ]
    forms += [
        f"F.scaled_dot_product_attention({v}, {v} * 2, {v}, is_causal=True)",
        f"F.normalize({v}, dim=0)",
    ]
    forms += [f"F.mse_loss({v}, {v}.detach().flip(0))"]
    forms += [f"F.cross_entropy({v}, torch.zeros({v}.shape[0], dtype=torch.long))"]
    forms += [f"{v}.var(0)", f"{v}.std(-1, keepdim=True)", f"F.group_norm({v}, 1)"]
    forms += [f"F.rms_norm({v}, ({v}.shape[-1],))"]
    if len(w.shape(v)) == 3:
        c = f"{v}.shape[1]"
        kernel = f"torch.arange({c} * 6.0, dtype={dtype}).reshape(2, {c}, 3) / 16"
        forms += [
            f"F.conv1d({v}, {kernel}, padding=1)",
            f"F.avg_pool1d({v}, 2)",
            f"F.max_pool1d({v}, 2)",
        ]
        forms += [f"torch.bmm({v}, {v}.mT)"]
        forms += [f"F.adaptive_avg_pool1d({v}, 1)", f"F.interpolate({v}, scale_factor=2)"]
        forms += [f"F.interpolate({v}, size={w.size()})"]
    return w.rng.choice(forms)
