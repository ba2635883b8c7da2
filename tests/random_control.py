"""Random programs of branches, loops and scans: `python -m tests.random_control COUNT [FIRST]`.

A program is a function of the forms `cond`, `loop`, `scan` and `map`, which are torch's where it is
compiled, and plain Python's in eager. It is float64, so that no branch hangs on a rounding.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_over

import ingot

TORCHS = torch.cond, while_loop, scan, map_over
WIDTH = 3


def python_cond(predicate: Any, taken: Any, other: Any, operands: Any = ()) -> Any:
    if predicate:
        return taken(*operands)
    return other(*operands)


def python_loop(condition: Any, body: Any, state: Any) -> Any:
    while condition(*state):
        state = body(*state)
    return state


def python_scan(body: Any, init: Any, xs: Any, *, reverse: bool = False) -> Any:
    rows, state = [], init
    steps = range(len(xs))
    for k in reversed(steps) if reverse else steps:
        state, row = body(state, xs[k])
        rows.append(row)
    if reverse:
        rows.reverse()
    return state, torch.stack(rows)


def python_map(function: Any, xs: Any, *args: Any) -> Any:
    return torch.stack([function(x, *args) for x in xs])


PYTHONS = python_cond, python_loop, python_scan, python_map


class Writer:
    """Writes one program: lines that define tensors of (rows, WIDTH), and tensors of WIDTH."""

    def __init__(self, seed: int, with_gradients: bool) -> None:
        self.random, self.with_gradients = random.Random(seed), with_gradients
        self.lines: list[str] = []
        self.count, self.depth = 0, 0

    def text(self) -> str:
        self.lines = ["def program(m, v, cond, loop, scan, map):"]
        matrices, vectors = ["m"], ["v"]
        for _ in range(self.random.randint(2, 5)):
            self.statement(matrices, vectors)
        self.line(f"return {', '.join(matrices[1:] + vectors[1:])},")
        return "\n".join(self.lines)

    def line(self, text: str) -> None:
        self.lines.append("    " * (self.depth + 1) + text)

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def value(self, names: list[str], beside: list[str]) -> str:
        """A new tensor of the kind of `names`; those `beside` broadcast, or are summed to it."""
        a, b = self.random.choice(names), self.random.choice(names)
        forms = [
            f"torch.sin({a} + {b})", f"torch.tanh({a} * {b}) * 0.5", f"{a} * 0.5 - {b}.cos()",
            f"torch.where({a} > {b}, {a}, {b}.sin())", f"({a} * 1)",
        ]  # fmt: skip
        if beside:
            c = self.random.choice(beside)
            forms.append(f"torch.tanh({a} + {c})" if "m" in names else f"{a} + {c}.mean(0).sin()")
        return self.random.choice(forms)

    def predicate(self, matrices: list[str], vectors: list[str]) -> str:
        a = self.random.choice(matrices + vectors)
        return self.random.choice([f"{a}.sum() > 0.1", f"{a}.max() < 0.9", f"({a} > 0.3).any()"])

    def function(self, parameters: str, matrices: list[str], vectors: list[str], ends: str) -> str:
        """A function with some statements; `ends` says of what kind its result is."""
        name = self.name()
        self.line(f"def {name}({parameters}):")
        self.depth += 1
        matrices, vectors = list(matrices), list(vectors)
        for _ in range(self.random.randint(0, 2)):
            self.statement(matrices, vectors)
        result = self.value(*((matrices, vectors) if ends == "m" else (vectors, matrices)))
        self.line(f"return {result}")
        self.depth -= 1
        return name

    def statement(self, matrices: list[str], vectors: list[str]) -> None:
        kinds = [self.plain] * 3
        if self.depth < 2:
            kinds += [self.branch, self.branch, self.over_rows, self.mapped]
            if not self.with_gradients:
                kinds += [self.loop]
        self.random.choice(kinds)(matrices, vectors)

    def plain(self, matrices: list[str], vectors: list[str]) -> None:
        name = self.name()
        if self.random.random() < 0.5:
            self.line(f"{name} = {self.value(matrices, vectors)}")
            matrices.append(name)
        else:
            self.line(f"{name} = {self.value(vectors, matrices)}")
            vectors.append(name)

    def branch(self, matrices: list[str], vectors: list[str]) -> None:
        ends = self.random.choice("mv")
        given, closed = self.random.choice(matrices), self.random.random() < 0.5
        parameters, operands = ("", "()") if closed else ("p", f"({given},)")
        inside = matrices if closed else [*matrices, "p"]
        taken = self.function(parameters, inside, vectors, ends)
        other = self.function(parameters, inside, vectors, ends)
        predicate, name = self.predicate(matrices, vectors), self.name()
        self.line(f"{name} = cond({predicate}, {taken}, {other}, {operands})")
        (matrices if ends == "m" else vectors).append(name)

    def loop(self, matrices: list[str], vectors: list[str]) -> None:
        turns, start = self.random.randint(0, 6), self.random.choice(matrices)
        body, name = self.function("p", [*matrices, "p"], vectors, "m"), self.name()
        condition = self.random.choice(["i < n", f"(i < n) & (p.sum() < {turns})"])
        self.line(f"n = ({start}.abs().sum() * 0 + {turns}).long()")
        self.line(
            f"{name} = loop(lambda i, p: {condition}, lambda i, p: (i + 1, {body}(p)), "
            f"(n * 0, {start} * 1))[1]"
        )
        matrices.append(name)

    def over_rows(self, matrices: list[str], vectors: list[str]) -> None:
        over, start = self.random.choice(matrices), self.random.choice(vectors)
        state = self.function("c, r", matrices, [*vectors, "c", "r"], "v")
        row = self.function("c, r", matrices, [*vectors, "c", "r"], "v")
        order = self.random.choice(["", ", reverse=True"])
        last, rows = self.name(), self.name()
        body = f"lambda c, r: ({state}(c, r), {row}(c, r))"
        self.line(f"{last}, {rows} = scan({body}, {start}, {over}{order})")
        vectors.append(last)
        matrices.append(rows)

    def mapped(self, matrices: list[str], vectors: list[str]) -> None:
        function = self.function("r", matrices, [*vectors, "r"], "v")
        name = self.name()
        self.line(f"{name} = map({function}, {self.random.choice(matrices)})")
        matrices.append(name)


def outcome(function: Callable[..., Any], forms: Any, given: list[Tensor], grads: bool) -> Any:
    inputs = [t.clone().requires_grad_(grads) for t in given]
    values = function(*inputs, *forms)
    followed = [v for v in values if v.requires_grad]
    gradients: Any = ()
    if followed:
        total = sum((v * torch.linspace(1, 2, v.numel()).view(v.shape)).sum() for v in followed)
        gradients = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
    return [v.detach() for v in values], list(gradients)


def trial(seed: int) -> str:
    """What differs; "" where nothing does, or where the graph breaks."""
    grads, dynamic = seed % 2 == 1, seed % 3 == 0
    text = Writer(seed, grads).text()
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(text, f"<control {seed}>", "exec"), scope)
    program = scope["program"]
    torch.manual_seed(seed)
    compiled = ingot.compile(program, fullgraph=True, dynamic=dynamic)
    for rows in (4, 70, 5) if dynamic else (random.Random(seed).choice([4, 70]),):
        for sign in (1, -1):
            matrix = sign * torch.randn(rows, WIDTH, dtype=torch.float64)
            given = [matrix, torch.randn(WIDTH, dtype=torch.float64)]
            try:
                found = outcome(compiled, TORCHS, given, grads)
                expected = outcome(program, PYTHONS, given, grads)
                torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
            except Exception as error:
                return f"seed {seed}, {rows} rows: {type(error).__name__}: {error}\n{text}"
    return ""


def main() -> int:
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    failed = []
    for seed in range(first, first + count):
        if why := trial(seed):
            print(why, flush=True)
            failed.append(seed)
    print(f"{count} programs, failed: {failed}")
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
