"""Kinds of faults that random programs found, with CPython as the oracle: a dict that changes
behind a graph break, numbers of a subclass that vary, generators that never return, and subclasses
of containers as text."""

from __future__ import annotations

import collections
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ingot
from ingot.compiler import Compiler

CHANGES = {
    "grows": lambda d, k: d.update({k * 2: 3}),
    "grows by two": lambda d, k: d.update({k * 2: 3, k * 3: 4}),
    "shrinks": lambda d, k: d.pop("c", None),
    "is emptied": lambda d, k: d.clear(),
    "stays": lambda d, k: d.update({k: 9}),
}


@pytest.mark.parametrize("kind", ["keys", "values", "items"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_dict_that_changes_behind_a_break(change: str, kind: str) -> None:
    def program(v: torch.Tensor) -> Any:
        table, notes = {"a": 1, "b": 2, "c": 3}, []
        try:
            for found in getattr(table, kind)():
                notes.append(found)
                if v.sum() > 0:
                    CHANGES[change](table, "a")
        except RuntimeError as error:
            notes.append(str(error))
        return notes, table

    assert ingot.compile(program, backend="eager")(torch.ones(3)) == program(torch.ones(3))


NOTES: list[str] = []


class Telling(int):
    def __eq__(self, other: object) -> bool:
        NOTES.append("==")
        return True

    def __le__(self, other: object) -> bool:
        NOTES.append("<=")
        return True

    def __ge__(self, other: object) -> bool:
        NOTES.append(">=")
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize("number", [0, 1, 3, 2**70])
def test_capture_compares_no_int_of_a_subclass(number: int) -> None:
    def program(v: torch.Tensor, n: int) -> Any:
        return v + 1, n + 1

    NOTES.clear()
    results = ingot.compile(program, backend="eager")(torch.ones(3), Telling(number))
    assert NOTES == []
    assert results[1] == number + 1


class Half(float):
    def __mul__(self, other: object) -> str:
        return "multiplied"


class Whole(int):
    def __mul__(self, other: object) -> str:
        return "multiplied"


USES = """
list(zip(s, s))|sorted(s)|len(s)|s == 1.5|str(s)|hash(s)|math.floor(s)|math.gcd(s, 6)|s + 1|s < 2
s * 2|2 * s|round(s)|int(s)|divmod(s, 2)|torch.full((2,), s).tolist()|[1, 2, 3, 4, 5, 6, 7, 8][s]
range(s)|max(s, 1)|sum([s, s])|reversed(s)|operator.index(s)|set(s)|any(s)|[1, 2] * s
(lambda *a: a)(*s)|s ** 2|bool(s)|bytes(s)|dict(s)|' '.join(s)
"""


@pytest.mark.parametrize("use", USES.strip().replace("\n", "|").split("|"))
@pytest.mark.parametrize("cls", [Half, Whole])
def test_a_subclass_of_a_number_that_varies(cls: type, use: str) -> None:
    space: dict[str, Any] = {"torch": torch, "math": math, "operator": operator, "cls": cls}
    text = f"""
def program(v, number):
    s = cls(number)
    try:
        found = {use}
    except Exception as error:
        found = type(error).__name__, str(error)
    return found, v * 2
"""
    exec(text, space)
    compiled = ingot.compile(space["program"], backend="eager")
    for number in (3, 4, 7):
        given = number + (0.5 if cls is Half else 0)
        assert repr(compiled(torch.ones(2), given)) == repr(space["program"](torch.ones(2), given))
    compiler = Compiler.of(compiled)
    assert compiler is not None
    reasons = [c.skipped.reason for c in compiler.compilations if c.skipped is not None]
    assert not [reason for reason in reasons if reason.startswith("internal error")]


class Index:
    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


class Overridden(int):
    def __index__(self) -> int:
        return 1


@pytest.mark.parametrize("make", [int, Index, Whole, Overridden, bool])
def test_bytes_of_a_number_that_varies(make: Any) -> None:
    def program(v: torch.Tensor, number: int) -> Any:
        try:
            return bytes(make(number)), v
        except (TypeError, ValueError) as error:
            return str(error), v

    compiled = ingot.compile(program, backend="eager")
    for number in (3, 4, 0, -1):
        assert compiled(torch.ones(1), number)[0] == program(torch.ones(1), number)[0]


def failing(number: int) -> Iterator[int]:
    yield number
    raise KeyError(number)


def endless(number: int) -> Iterator[int]:
    while True:
        yield number


def guarded(number: int) -> Iterator[int]:
    try:
        while True:
            yield number
    finally:
        NOTES.append("closed")


def closed_over(number: int) -> Iterator[int]:
    step = [number]

    def advance() -> int:
        step[0] += 1
        return step[0]

    while True:
        try:
            yield advance()
        except ValueError:
            raise KeyError(step[0]) from None


ENDS: dict[str, Callable[[Any], Any]] = {
    "read to its end": lambda g: [*itertools.islice(g, 3)],
    "closed": lambda g: g.close(),
    "closed when read": lambda g: (next(g), g.close()),
    "thrown into": lambda g: (next(g), g.throw(ValueError)),
    "ended by another error": lambda g: (next(g), g.throw(ZeroDivisionError)),
}


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("make", [failing, endless, guarded, closed_over])
def test_a_generator_that_never_returns_is_ended(make: Any, end: str, outside: bool) -> None:
    def program(v: torch.Tensor, given: Any) -> Any:
        generator = given if outside else make(1)
        try:
            found = ENDS[end](generator)
        except (KeyError, ValueError, ZeroDivisionError) as error:
            found = repr(error)
        return found, generator, v * 2

    def outcome(function: Any) -> Any:
        NOTES.clear()
        found, generator, _ = function(torch.ones(1), make(1))
        notes = list(NOTES)
        try:
            left = [*itertools.islice(generator, 2)]
        except KeyError as error:
            left = [error.args]
        generator.close()  # now, not in the course of another test
        return found, notes, left

    assert outcome(ingot.compile(program, backend="eager")) == outcome(program)


CONTAINERS = {
    "set": (set, ([1, 2],)),
    "empty set": (set, ()),
    "frozenset": (frozenset, ([1, 2],)),
    "deque": (collections.deque, ([1, 2],)),
    "empty deque": (collections.deque, ()),
    "deque of at most three": (collections.deque, ([1, 2], 3)),
    "list": (list, ([1, 2],)),
    "tuple": (tuple, ([1, 2],)),
    "dict": (dict, ([(1, 2)],)),
}


def _subclass(base: type, methods: tuple[str, ...]) -> type:
    def elements(self: Any) -> Any:
        NOTES.append("__iter__")
        return iter((7, 8))

    def size(self: Any) -> int:
        NOTES.append("__len__")
        return 1

    all_methods = {"__iter__": elements, "__len__": size, "__length_hint__": size}
    return type("Own", (base,), {name: all_methods[name] for name in methods})


@pytest.mark.parametrize(
    "text", ["str(s)", "repr(s)", "f'{s}'", "'%s' % (s,)", "'{!r}'.format(s)", "[str(s), s][0]"]
)
@pytest.mark.parametrize(
    "methods", [("__iter__",), ("__len__",), ("__iter__", "__len__"), ("__length_hint__",)]
)
@pytest.mark.parametrize("container", CONTAINERS)
def test_the_text_of_a_container_that_says_what_it_holds(
    container: str, methods: Any, text: str
) -> None:
    base, contents = CONTAINERS[container]
    space: dict[str, Any] = {"cls": _subclass(base, methods), "contents": contents}
    exec(f"def program(v):\n    s = cls(*contents)\n    return {text}, v * 2", space)

    def outcome(function: Any) -> Any:
        NOTES.clear()
        return function(torch.ones(1))[0], list(NOTES)

    assert outcome(ingot.compile(space["program"], backend="eager")) == outcome(space["program"])


READS = (
    "list(s)|[*s]|tuple(s)|sorted(s)|[0, *s]|(lambda *a: a)(*s)|[0] + list(s)|found.extend(s) or "
    "found"
)


@pytest.mark.parametrize("read", READS.split("|"))
@pytest.mark.parametrize(
    "methods", [("__length_hint__",), ("__iter__", "__length_hint__"), ("__iter__", "__len__")]
)
@pytest.mark.parametrize("container", CONTAINERS)
def test_the_hint_of_a_length_is_asked_where_there_is_no_length(
    container: str, methods: Any, read: str
) -> None:
    base, contents = CONTAINERS[container]
    space: dict[str, Any] = {"cls": _subclass(base, methods), "contents": contents}
    exec(f"def program(v):\n    s, found = cls(*contents), []\n    return {read}, v * 2", space)

    def outcome(function: Any) -> Any:
        NOTES.clear()
        return function(torch.ones(1))[0], list(NOTES)

    assert outcome(ingot.compile(space["program"], backend="eager")) == outcome(space["program"])


ARITHMETIC = "add sub mul truediv floordiv mod pow lshift rshift and or xor".split()
SIDES: dict[str, Any] = {
    "right": lambda f, inplace, v, c: f(v, c),
    "left": lambda f, inplace, v, c: f(c, v),
    "in place": lambda f, inplace, v, c: inplace(v * 2, c),
    "in its place": lambda f, inplace, v, c: inplace(c, v),
}


def telling_class(base: type, method: str, answer: Any) -> type:
    """A subclass that tells when one of its methods is asked."""

    def asked(self: Any, *others: Any) -> Any:
        NOTES.append(method)
        return answer

    return type(f"{base.__name__}{method}", (base,), {method: asked})


def assert_asked_alike(program: Any, numbers: Iterable[Any]) -> None:
    """As in eager: the result or the kind of error, and which methods are asked."""

    def outcome(function: Any, number: Any) -> tuple[str, list[Any]]:
        NOTES.clear()
        try:
            result = str(function(number))
        except Exception as error:
            result = type(error).__name__
        return result, [*NOTES]

    compiled = ingot.compile(program, backend="eager")
    for number in numbers:
        assert outcome(compiled, number) == outcome(program, number)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("base", [float, int])
def test_a_tensor_beside_a_number_of_a_subclass(base: type, name: str, side: str) -> None:
    function = getattr(operator, f"{name}_" if name in ("and", "or") else name)
    inplace = getattr(operator, f"i{name}")

    def program_of(dtype: torch.dtype, cls: type) -> Any:
        tensor = torch.ones(3, dtype=dtype)
        return lambda number: SIDES[side](function, inplace, tensor, cls(number))

    for method in (f"__{name}__", f"__r{name}__", f"__i{name}__"):
        for dtype in (torch.float32, torch.int64):
            program = program_of(dtype, telling_class(base, method, 24))
            assert_asked_alike(program, map(base, (1, 2, 3)))


TAKE_NUMBERS: dict[str, Any] = {
    "dropout": lambda v, c: F.dropout(v, c, False),
    "alpha_dropout": lambda v, c: F.alpha_dropout(v, c, False),
    "layer_norm": lambda v, c: F.layer_norm(v, (3,), eps=c),
    "group_norm": lambda v, c: F.group_norm(v.view(1, 3), 3, eps=c),
    "normalize": lambda v, c: F.normalize(v, p=c, dim=0),
    "huber_loss": lambda v, c: F.huber_loss(v, v, delta=c),
    "smooth_l1_loss": lambda v, c: F.smooth_l1_loss(v, v + 1, beta=c),
    "cosine_similarity": lambda v, c: F.cosine_similarity(v, v, dim=0, eps=c),
    "nan_to_num": torch.nan_to_num,
    "leaky_relu": F.leaky_relu,
    "full": lambda v, c: torch.full((2,), c),
    "clamp": torch.clamp,
}
ANSWERS = {"__float__": 2.5, "__int__": 3, "__index__": 3, "__bool__": False, "__lt__": 24}
ANSWERS |= {"__gt__": 24, "__eq__": 24, "__ne__": 24}


@pytest.mark.parametrize("name", TAKE_NUMBERS)
@pytest.mark.parametrize("method", ANSWERS)
@pytest.mark.parametrize("base", [float, int])
def test_torch_asks_a_number_of_a_subclass(base: type, method: str, name: str) -> None:
    cls = telling_class(base, method, ANSWERS[method])

    def made(number: Any) -> Any:
        return TAKE_NUMBERS[name](torch.ones(3), cls(number))

    def given(number: Any) -> Any:
        return TAKE_NUMBERS[name](torch.ones(3), number)

    assert_asked_alike(made, map(base, (1, 2)))
    assert_asked_alike(given, map(cls, (1, 2)))
