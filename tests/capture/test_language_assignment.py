"""PYTEST_DONT_REWRITE. Assignment, deletion, unpacking, slices."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import collections

from tests.capture.language import Table
from tests.capture.test_language_control import Kind

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


# -- assignment, deletion, unpacking, slices -------------------------------------------------------


@whole
def chained_assignment(x, y):
    a = b = c = [x]
    b.append(y)
    d, *e = f = (1, 2, 3)
    return a is c, a, d, e, f


@whole
def swaps(x, y):
    x, y = y, x
    a, b, c = 1, 2, 3
    a, b, c = c, a, b
    items = [0, 1, 2]
    items[0], items[2] = items[2], items[0]
    i, items[i] = 1, "set"
    return x, y, a, b, c, items


@whole
def star_unpacking(x, y):
    first, *middle, last = range(6)
    *init, end = "abc"
    (a, b), [c, *d] = (1, 2), [3, 4, 5]
    [*everything] = {"k": 1, "l": 2}
    *nothing, only = (x,)
    return x, first, middle, last, init, end, a, b, c, d, everything, nothing, only


@whole
def unpack_too_few(x, y):
    caught = []
    for make in (lambda: (1,), lambda: (1, 2, 3), lambda: "a", lambda: {}, lambda: iter([1])):
        try:
            a, b = make()
        except ValueError as error:
            caught.append(str(error))
    try:
        a, b, *c = (1,)
    except ValueError as error:
        caught.append(str(error))
    try:
        a, b = 3
    except TypeError as error:
        caught.append(str(error))
    try:
        [*a] = None
    except TypeError as error:
        caught.append(str(error))
    return x + 1, caught


@whole
def unpacks_tensor(x, y):
    a, b, c = x
    first, *others = y
    (p, q), r = x.shape, 5
    return a + b * c, first, others, p, q, r


@whole
def deletion(x, y):
    a, b = x, y
    del a
    items = [0, 1, 2, 3, 4, 5]
    del items[0], items[-1]
    del items[1:3]
    table = {"k": 1, "l": 2}
    del table["k"]
    try:
        a
    except UnboundLocalError as error:
        message = str(error)
    try:
        del table["gone"]
    except KeyError as error:
        key = error.args
    try:
        del items[10]
    except IndexError as error:
        index = str(error)
    return b, items, table, message, key, index


@whole
def deleted_exception_name(x, y):
    error = 1
    try:
        raise ValueError("v")
    except ValueError as error:
        x = x + len(str(error))
    try:
        error
    except UnboundLocalError as unbound:
        return x, str(unbound)


@whole
def unbound_names(x, y):
    messages = []
    try:
        never
    except NameError as error:
        messages.append((type(error), str(error)))
    try:
        if len(messages) > 5:
            later = 1
        later
    except UnboundLocalError as error:
        messages.append((type(error), str(error)))

    def inner():
        return outer_later

    try:
        inner()
    except NameError as error:
        messages.append((type(error), str(error)))
    outer_later = 1
    return x * inner(), messages


@whole
def augmented_targets(x, y):
    items, table = [1, [2]], {"n": 1, "l": []}
    items[0] += 10
    items[1] += [3]
    items[-1][0] *= 5
    table["n"] -= 4
    table["l"] += (x, y)
    z = x.clone()
    z[0] += 1
    z[:, 1] *= 2
    n = 7
    n //= 2
    n **= 3
    n %= 10
    n <<= 2
    n |= 1
    n ^= 3
    n &= 0xFF
    n >>= 1
    return items, table, z, n


@whole
def augmented_assignment_keeps_the_object(x, y):
    a = b = [x]
    a += [1]
    a *= 2
    c = d = {1}
    c |= {2}
    e = f = (1,)
    e += (2,)
    g = h = {"k": 1}
    g |= {"l": 2}
    return a is b, b, c is d, d, e is f, f, g is h, h


@whole
def tuple_item_augmented(x, y):
    held = ([1],)
    try:
        held[0] += [2]
    except TypeError as error:
        return x + 1, str(error), held


@whole
def slices_of_lists(x, y):
    items = list(range(10))
    a, b, c = items[2:5], items[::-2], items[-3:]
    items[1:3] = ["a", "b", "c"]
    items[::4] = [0, 0, 0]
    items[5:5] = [x]
    del items[-2:]
    s = slice(1, None, 2)
    return a, b, c, items, items[s], s.indices(7), s.start, s.stop, s.step


@whole
def slice_errors(x, y):
    caught = []
    items = [1, 2, 3]
    for act in (
        lambda: items[::0],
        lambda: items["a"],
        lambda: items[5],
        lambda: (1, 2)[1.0],
        lambda: "abc"[9],
        lambda: items.__setitem__(slice(0, 3, 2), [1]),
        lambda: {}[[]],
        lambda: None[0],
        lambda: items[None],
    ):
        try:
            act()
        except Exception as error:
            caught.append((type(error), str(error)))
    return x + 1, caught


@whole
def tensor_slices(x, y):
    rows = slice(0, 2)
    return (
        x[rows],
        x[..., slice(None, None, 2)],
        x[1:, -2:],
        x[[0, 2]],
        x[(0, 1)],
        x[..., None],
        x[True],
    )


@whole
def chained_comparisons(x, y):
    n, calls = 5, []

    def tell(value):
        calls.append(value)
        return value

    a = 1 < tell(3) < tell(9) < tell(4) < tell(100)
    b = 1 < n <= 5 != 6
    c = 3 > 2 in [2]
    d = None is not n is not None
    e = (x is x) == (y is not x) != False
    return x + 1, a, b, c, d, e, calls


@whole
def short_circuits(x, y):
    def fail():
        raise AssertionError

    a = 0 or [] or "last"
    b = 1 and [2] and (3,)
    c = None and fail()
    d = True or fail()
    e = not [] and not {}
    f = x if a else fail()
    return a, b, c, d, e, f, (1 if () else 2 if {0} else 3)


@whole
def walrus_everywhere(x, y):
    if (n := len(x)) > 2:
        x = x * n
    squares = [s for v in range(5) if (s := v * v) % 2 == 0]
    total = sum(last := v for v in (1, 2, 3))
    pair = (a := 1, b := a + 1)
    return x, squares, s, total, last, pair, f"{(c := 3)}", c


@whole
def comprehension_scopes(x, y):
    i = "outer"
    rows = [[(i, j) for j in range(i)] for i in range(4)]
    table = {k: v for k, v in zip("abc", range(3)) if v}
    members = {c for c in "aab"}
    lazily = (x * i for i in range(3))
    functions = [lambda: i for i in range(3)]
    kept = [lambda i=i: i for i in range(3)]
    return (
        i,
        rows,
        table,
        sorted(members),
        list(lazily),
        [f() for f in functions],
        [f() for f in kept],
    )


@whole
def comprehension_with_conditions(x, y):
    a = [i if i % 2 else -i for i in range(10) if i > 2 if i < 8]
    b = [t.sum() for t in (x, y) for _ in range(2)]
    c = {(i, j): x * i for i in range(2) for j in range(2) if i != j}
    return a, b, c


@whole
def conditional_lambdas(x, y):
    f = (lambda v: v + 1) if x.dim() == 2 else (lambda v: v - 1)
    g = [lambda v: v * 2, lambda v: v / 2][x.shape[0] > 5]
    return f(x), g(y), (lambda *a, k=3, **kw: (a, k, kw))(1, k=2, z=3)


@whole
def conditions_on_everything(x, y):
    values = (
        0,
        1,
        -1,
        0.0,
        0.5,
        "",
        "a",
        b"",
        None,
        [],
        [0],
        (),
        (0,),
        {},
        {0: 0},
        set(),
        range(0),
        range(1),
        0j,
        1j,
    )
    values += (
        ...,
        NotImplemented is None,
        print,
        int,
        collections,
        object,
        Kind.ADD,
        x.shape,
        slice(0),
    )
    return (
        x + 1,
        [True if v else False for v in values],
        [not v for v in values],
        [bool(v) for v in values],
    )


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 0
