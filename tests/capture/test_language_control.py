"""PYTEST_DONT_REWRITE. Control flow: loops, match, asserts."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import collections
import dataclasses
import enum

import torch

from tests.capture.language import Table

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken

# -- loops -----------------------------------------------------------------------------------------


@whole
def while_else_runs(x, y):
    n = 0
    while n < 3:
        x = x + n
        n += 1
    else:
        x = x * 10
    return x, n


@whole
def while_else_is_skipped_by_break(x, y):
    n = 0
    while True:
        n += 1
        if n == 2:
            continue
        x = x + y
        if n > 3:
            break
    else:
        x = x * 10
    return x, n


@whole
def for_else(x, y):
    found = []
    for wanted in (2, 9):
        for i in range(5):
            if i == wanted:
                found.append(x * i)
                break
        else:
            found.append(y)
    return found


@whole
def nested_breaks(x, y):
    steps = []
    for i in range(4):
        for j in range(4):
            if j > i:
                break
            if (i + j) % 2:
                continue
            steps.append((i, j))
            x = x + i * j
        else:
            steps.append("else")
    return x, steps, i, j


@whole
def loop_variable_survives(x, y):
    for i, (a, *b) in enumerate([(1, 2, 3), (4,), (5, 6)]):
        pass
    return x * i, a, b


@whole
def loop_over_growing_list(x, y):
    items = [x]
    for item in items:
        if len(items) < 4:
            items.append(item + y)
    return items


@whole
def loop_over_rows(x, y):
    total = torch.zeros(4)
    for row, other in zip(x, y):
        total = total + row * other
    return total


@whole
def loop_over_nothing(x, y):
    for item in []:
        x = x + 1
    else:
        y = y + 1
    for item in ():
        raise ValueError
    return x, y


@whole
def loop_with_try_and_continue(x, y):
    seen = []
    for key in ("a", "b", "c"):
        try:
            if key == "b":
                continue
            seen.append({"a": 1, "b": 2}[key])
        except KeyError as error:
            seen.append(error.args)
            break
        finally:
            seen.append(key)
        x = x + 1
    return x, seen


@whole
def while_with_walrus(x, y):
    pending = [1, 2, 3]
    while (n := len(pending)) and (last := pending.pop()) > 1:
        x = x * last + n
    return x, pending, last


@whole
def countdown_by_floats(x, y):
    step = 1.0
    while step > 0.2:
        x, step = x * step, step / 2
    return x, step


# -- match -----------------------------------------------------------------------------------------


class Kind(enum.Enum):
    ADD = "add"
    MUL = "mul"


@dataclasses.dataclass
class Node:
    op: str
    left: object
    right: object = None


class Pair:
    __match_args__ = ("first", "second")

    def __init__(self, first, second):
        self.first, self.second = first, second


NamedPair = collections.namedtuple("NamedPair", "a b")


class SubDict(dict):
    pass


def evaluate(tree, x):
    match tree:
        case Node("neg", inner):
            return -evaluate(inner, x)
        case Node(op="add", left=left, right=right):
            return evaluate(left, x) + evaluate(right, x)
        case Node("mul", left, right):
            return evaluate(left, x) * evaluate(right, x)
        case "x":
            return x
        case float() | int() as number:
            return number
        case _:
            raise TypeError(tree)


@whole
def match_classes(x, y):
    return evaluate(Node("add", Node("mul", 2, "x"), Node("neg", 0.5)), x)


def describe(subject):
    match subject:
        case None:
            return "none"
        case True | False:
            return "bool"
        case 0 | 1 as small:
            return "small", small
        case int(n) if n > 100:
            return "large", n
        case int():
            return "int"
        case "a" | "b":
            return "letter"
        case str(text):
            return "text", text
        case Kind.ADD:
            return "add"
        case Kind():
            return "kind"
        case []:
            return "empty"
        case [one]:
            return "one", one
        case [first, [second, *_], *rest]:
            return "nested", first, second, rest
        case (1, *middle, 9):
            return "between", middle
        case [_, _, *_]:
            return "many"
        case {"type": "point", "x": px, **others}:
            return "point", px, others
        case {"type": kind}:
            return "typed", kind
        case {}:
            return "mapping"
        case Pair(0, second):
            return "zero", second
        case Pair(first=a, second=Pair(b, c)):
            return "pairs", a, b, c
        case Pair(a, b) if a == b:
            return "equal", a
        case float(value):
            return "float", value
        case set() | frozenset():
            return "set"
        case _:
            return "other"


SUBJECTS = (
    None, True, 0, 1, 5, 500, "a", "zz", Kind.ADD, Kind.MUL, [], [7], (7,), [1, [2, 3], 4, 5],
    (1, (2,)), (1, 5, 6, 9), [1, 2], {"type": "point", "x": 3, "z": 4}, {"type": "line"},
    {"other": 1}, {}, Pair(0, 1), Pair(2, Pair(3, 4)), Pair(5, 5), Pair(5, 6), 2.5, {1},
    frozenset(), b"ab", range(3), NamedPair(1, 9), SubDict(type="sub"), object,
)  # fmt: skip


@whole
def match_everything(x, y):
    return x + 1, [describe(subject) for subject in SUBJECTS]


@whole
def match_tensors(x, y):
    def kind(value):
        match value:
            case torch.Tensor(shape=(rows, columns)):
                return rows * columns
            case torch.Tensor():
                return "tensor"
            case [torch.Tensor() as a, torch.Tensor() as b]:
                return a + b
            case {"x": torch.Tensor() as a}:
                return a * 2

    return kind(x), kind(x[0]), kind((x, y)), kind({"x": x}), kind(3)


@whole
def match_by_length(x, y):
    match x.shape:
        case [rows, columns]:
            return x * rows + columns
    return x


@whole
def match_sequence_kinds(x, y):
    def is_sequence(value):
        match value:
            case [*_]:
                return True
        return False

    values = (
        [],
        (),
        "ab",
        b"",
        range(2),
        {},
        set(),
        x.shape,
        NamedPair(1, 2),
        collections.deque([1]),
        iter([]),
    )
    return x * 1, [is_sequence(v) for v in values]


@whole
def match_captures_survive(x, y):
    match [1, [2, 3]]:
        case [a, [b, 4]]:
            pass
        case [a, [b, c]]:
            pass
    return x * a + b * c


# -- asserts ---------------------------------------------------------------------------------------


@whole
def asserts_that_hold(x, y):
    assert x.shape == (3, 4)
    assert x.dim() == 2, "never seen" + 1
    assert isinstance(x, torch.Tensor) and not isinstance(x, int)
    return x + 1


@whole
def assert_message_is_evaluated(x, y):
    caught = []
    for n in (1, 2):
        try:
            assert n > 1, f"n is {n}"
            assert not n, (n, "tuple")
        except AssertionError as error:
            caught.append(error.args)
    try:
        assert False
    except AssertionError as error:
        caught.append(error.args)
    return x + 1, caught


@whole
def assert_fails(x, y):
    assert x.shape[0] == 99, "rows"
    return x


@whole
def constants_of_all_kinds(x, y):
    return (
        x + 1,
        0xFF,
        1_000,
        1e3,
        2j,
        b"\x00",
        "\N{BULLET}",
        ...,
        -0.0,
        10**30,
        True,
        None,
        1.5e-7,
        "ab",
        (1, (2,)),
    )


@whole
def annotations_of_locals(x, y):
    a: int = 3
    b: "undefined_name"
    c: list[int] = [a]
    (d): int = 4
    return x * a, c, d


@whole
def deep_nesting(x, y):
    for a in range(2):
        while True:
            try:
                with torch.no_grad():
                    if a:
                        for b in (1, 2):
                            match b:
                                case 1:
                                    x = x + b
                                case 2:
                                    x = x * b
                                    break
                    else:
                        y = y - 1
            finally:
                x = x + 0.5
            break
    return x, y, a


@whole
def global_names(x, y):
    global SUBJECTS
    return x * len(SUBJECTS), __name__, Node.__name__


test_program = TABLE.test()


def test_coverage():
    assert TABLE.coverage == (len(TABLE), len(TABLE))
