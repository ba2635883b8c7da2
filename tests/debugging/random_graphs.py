"""Random graphs of torch calls as text, for the tools that take them apart. Values stay bounded, so
that what goes wrong in one place is seen at the end."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from ingot.debugging.cases import Case, case_from
from ingot.debugging.repro import Repro

FORMS = (
    "torch.sin({a}) torch.cos({a}) torch.atan({a}) torch.sigmoid({a}) torch.erf({a}) {a}.t() "
    "({a}+{b}) ({a}*{b}) ({a}-{b}) torch.minimum({a},{b}) torch.where({a}>{b},{a},{b}) "
    "torch.softmax({a},-1) {a}.softmax(0) torch.nn.functional.silu({a}) ({a}*0.5) "
    "torch.atan({a}@{b}) {a}.reshape(-1).view({n},{n}).contiguous() {a}.flip(0) "
    "torch.exp(-{a}*{a}) {a}.abs()"
).split()
BOUNDS = ("torch.atan({a})", "torch.sigmoid({a})", "torch.sin({a})", "torch.erf({a})")


def random_graph(
    seed: int,
    length: int,
    form: str = "",
    size: int = 16,
    forms: Sequence[str] = FORMS,
    bound: str = BOUNDS[0],
) -> Repro:
    """A graph of so many ops, with `form` in one place of its middle; "{a}" and "{b}" are values
    before it, "{i}" are indices. All else is of `forms`, and `bound` keeps values small."""
    rng = random.Random(seed)
    lines, names = ["import torch", "def graph(x, y):"], ["x", "y"]
    if "{i}" in form:
        lines[1] = "def graph(x, y, indices):"
    middle = rng.randrange(length // 4, 3 * length // 4)
    used = set[str]()
    for k in range(length):
        a, b = rng.choice(names[-12:]), rng.choice(names[-12:])
        text = form if form and k == middle else rng.choice(forms)
        if k % 7 == 6 and k != middle:
            text = bound
        name = f"v{k}"
        if form and k == middle - 1:  # of both signs
            a, b, text = "x", rng.choice(names[-12:]), "({a}-{b})"
        elif form and k == middle:
            a, b = f"v{middle - 1}", rng.choice(names[-12:-1])
        elif form and k == middle + 1:  # and seen
            a, text = f"v{middle}", bound
        elif form and k == middle + 2:  # of the size of all others
            a, text = f"v{middle + 1}", "({a}*{b})"
        text = text.format(a=a, b=b, n=size, i="indices")
        lines.append(f"    {name} = {text}  # model.py:{k + 1}")
        used.update((a, b))
        if not (form and middle <= k < middle + 2):
            names.append(name)
    results = [name for name in names[2:] if name not in used][-4:] + [names[-1]]
    results.append(f"v{middle + 1}")
    lines.append(f"    return ({', '.join(dict.fromkeys(results))},)")
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(size, size, generator=generator) for _ in range(2)]
    if "{i}" in form:
        inputs.append(torch.randint(0, size, (size, size), generator=generator))
    case: Case = case_from("\n".join(lines))
    return Repro(case, tuple(inputs), title=f"random graph {seed}")
