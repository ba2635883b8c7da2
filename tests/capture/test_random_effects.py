"""Random programs that change a small world of containers and objects, with aliases, exceptions,
output and graph breaks: compiled, they leave the world as eager does, and the same objects stay the
same."""

from __future__ import annotations

import random
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_same, outcome

PROGRAMS = 150


class Box:
    pass


class Slots:
    __slots__ = ("p", "q")


def pause() -> None:
    """Something that ends a graph."""
    time.time()


def world(seed: int) -> tuple[Any, ...]:
    """Objects to be changed; which of them are the same depends on the seed."""
    chance, w = random.Random(seed), Box()
    w.x, w.l1 = torch.arange(3.0), [1, 2, 3]
    w.l2, w.d1, w.d2 = [w.x, 5], {"a": 1, "b": w.l1}, {}
    w.o, w.s, w.st, w.dq = Box(), Slots(), {"a", "b"}, deque([1, 2], maxlen=4)
    w.od, w.dd, w.o.v, w.s.p = OrderedDict(a=1, b=2), defaultdict(list), 1, 2
    if chance.random() < 0.4:
        w.l2 = w.l1
    if chance.random() < 0.3:
        w.d2 = w.d1
    if chance.random() < 0.3:
        w.o.w = w
    if chance.random() < 0.3:
        w.d1["self"] = w.d1
    counter, total = Box(), 0
    counter.n = seed % 3

    def add(n):
        nonlocal total
        total += n
        return total

    return w, counter, add


VALUES = """1 's' w.x w.x+1 w.l1 w.o w.d1 [1,w.x] {'k':w.l2} len(w.l1) w.d1.get('a') w.o.v (w.l1,2)
None t w.s w.st w.dq list(w.l1) dict(w.d1) w""".split()
NAMES = {
    "V": VALUES,
    "L": ["w.l1", "w.l2", "t2"],
    "D": ["w.d1", "w.d2", "w.od", "t3"],
    "O": ["w", "w.o", "t4"],
    "K": ["'a'", "'b'", "'c'", "1"],
    "A": ["v", "u", "z"],
}
"""What each capital letter between braces in a statement may stand for."""

STATEMENTS = """
{L}.append({V})
{L}[0] = {V}
{L}.insert(1, {V})
{L}.pop()
{L}.extend([{V}, {V}])
del {L}[-1]
{L}.reverse()
{L}[:] = [{V}]
{L}[1:2] = [{V}, {V}]
{L}.clear()
{D}[{K}] = {V}
{D}.pop({K}, None)
{D}.update(z={V})
{D}.setdefault({K}, {V})
{D}.clear()
del {D}[{K}]
w.od.move_to_end('a')
{D}.popitem()
{O}.{A} = {V}
delattr({O}, '{A}')
{O}.v = getattr({O}, 'u', 0)
w.l1, w.l2 = w.l2, w.l1
w.d1, w.d2 = w.d2, w.d1
w.o = t4
t2 = w.l1
t3 = w.d1
t4 = w.o
t2 = []
t3 = {{}}
t4 = Box()
w.s.q = {V}
w.s.p += 1
del w.s.q
w.st.add('q')
w.st.discard('a')
w.dq.append({V})
w.dq.popleft()
w.dd[len(w.l1)].append(t)
out.append((list(w.d1), len(w.l2), 'a' in w.st))
out.append(list(vars(w.o)))
out.append([type(i).__name__ for i in w.l1])
print(len(w.l1), list(w.d2))
print(f'{{t.sum():.1f}}', w.s.p)
pause()
t = t + 1
t = w.x * 2
w.x = t
w.x.add_(1)
counter.n += 1
add(1)
out.append(add(2))
it = iter(w.l1)
out.append(next(it, None))
""".strip().splitlines()


def statement(chance: random.Random) -> str:
    template = chance.choice(STATEMENTS)
    for letter, choices in NAMES.items():
        while f"{{{letter}}}" in template:
            template = template.replace(
                f"{{{letter}}}", chance.choice(choices).replace("{", "{{").replace("}", "}}"), 1
            )
    return template.replace("{{", "{").replace("}}", "}")


def program(seed: int) -> tuple[str, Callable[..., Any]]:
    """A random function of a world, and its text."""
    chance = random.Random(seed)
    lines = [
        "def fn(w, counter, add):",
        "    out, t, t2, t3, t4, it = [], w.x + 1, w.l1, w.d2, w.o, iter([])",
    ]
    for _ in range(chance.randint(3, 14)):
        made = statement(chance)
        if chance.random() < 0.75:
            caught = "(KeyError, IndexError, AttributeError, TypeError, ValueError, RuntimeError)"
            lines += [
                "    try:",
                f"        {made}",
                f"    except {caught} as e:",
                "        out.append(type(e).__name__)",
            ]
        else:
            lines.append(f"    {made}")
    source = "\n".join([*lines, "    return out, t, t2, t3, t4", ""])
    namespace: dict[str, Any] = {"Box": Box, "pause": pause}
    exec(source, namespace)
    return source, namespace["fn"]


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_program(seed: int) -> None:
    source, fn = program(seed)
    compiled = ingot.compile(fn, backend="eager")
    # both worlds twice: what was compiled for one must not be taken for the other
    for turn in range(4):
        ours, theirs = world(seed + turn % 2), world(seed + turn % 2)
        for _ in range(2):
            with torch.no_grad():
                expected, actual = outcome(fn, *theirs), outcome(compiled, *ours)
            try:
                assert_same(actual, expected)
            except AssertionError as difference:
                raise AssertionError(f"seed {seed}: {difference}\n{source}") from None
    reasons = {
        c.skipped.reason for c in Compiler.of(compiled).compilations if c.skipped is not None
    }
    assert all("the program raises" in reason for reason in reasons), (source, reasons)
