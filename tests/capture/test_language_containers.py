"""PYTEST_DONT_REWRITE. The methods of lists, dicts, sets, tuples and the like."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import sys

import torch

from tests.capture.language import Table, errors_of

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


# -- containers' own methods -----------------------------------------------------------------------


@whole
def list_methods(x, y):
    a = [3, 1, 2]
    a.append(x)
    a.extend((5, 6))
    a.extend(i for i in "z")
    a.insert(0, "first")
    a.insert(-1, "last")
    a.insert(100, "end")
    popped = a.pop(), a.pop(0), a.pop(-2)
    a.remove(1)
    b = a.copy()
    a.reverse()
    a += [9]
    a *= 2
    c = [0] * 3
    c[:] = "xyz"
    c[len(c) :] = [1]
    d = list(c)
    d.clear()
    return (
        a,
        b,
        c,
        d,
        popped,
        c.index("y"),
        c.count(1),
        [1, 2] + [3],
        2 * [1],
        c == ["x", "y", "z", 1],
        c != c,
        [1] < [2],
        a is b,
        [[]] * 2,
        c.index("z", 1, 3),
        c.__len__(),
        c.__getitem__(0),
        list.append(c, 5),
        [*c, *d],
        list("ab") == ["a", "b"],
    )


@whole
def list_errors(x, y):
    a = [1, 2]
    return x + 1, errors_of(
        (
            lambda: a.remove(9),
            lambda: a.index(9),
            lambda: a.pop(9),
            lambda: [].pop(),
            lambda: a[9],
            lambda: a + (1,),
            lambda: a.extend(3),
            lambda: a.sort(3),
            lambda: a.nothing,
            lambda: a.append(),
            lambda: a.append(1, 2),
            lambda: a.insert("a", 1),
            lambda: a.__setitem__(9, 1),
            lambda: a.sort(key=3),
            lambda: [1, "a"].sort(),
            lambda: list(1),
            lambda: list(1, 2),
            lambda: a.pop("a"),
            lambda: a.index(1, 1),
        )
    )


@whole
def list_repeated_is_shared(x, y):
    rows = [[0]] * 2
    rows[0].append(x)
    a = b = []
    a.append(1)
    c = [a, b]
    c[0].append(2)
    me = [1]
    me.append(me)
    return rows, a, c, me, me[1] is me


@whole
def tuple_methods(x, y):
    t = (1, 2, 1, x)
    return (
        t[:3].count(1),
        t[:3].index(2),
        t + (5,),
        t * 2,
        t[1:],
        len(t),
        1 in t[:2],
        (1, 2) == (1, 2),
        (1,) < (2,),
        tuple("ab"),
        tuple([x]),
        (),
        t[:2] + (3,),
        hash((1, "a")) == hash((1, "a")),
        t.__len__(),
        {(1, 2): "k"}[(1, 2)],
        tuple(t) is t,
        t[:] is t,
    )


@whole
def dict_methods(x, y):
    d = {"a": 1, "b": x}
    d["c"] = 3
    d.update(e=5)
    d.update({"f": 6}, g=7)
    d.update([("h", 8), ["i", 9]])
    got = (
        d.get("a"),
        d.get("z"),
        d.get("z", 0),
        d.pop("c"),
        d.pop("zz", None),
        d.setdefault("new", []),
        d.setdefault("a", 5),
    )
    last = d.popitem()
    copied = d.copy()
    merged = d | {"a": 100}
    copied |= {"m": 1}
    d |= [("pair", 2)]
    made = (
        dict(d, k=1),
        dict([("a", 1)]),
        dict(a=1),
        dict.fromkeys("ab"),
        dict.fromkeys("ab", 0),
        dict(zip("ab", (1, 2))),
        {**d, "z": 1},
    )
    e = dict(d)
    e.clear()
    return (
        d,
        got,
        last,
        merged,
        copied,
        made,
        e,
        list(d),
        "a" in d,
        "zz" in d,
        len(d),
        {"a": 1} == {"a": 1},
        {"a": 1, "b": 2} == {"b": 2, "a": 1},
        list(d.items())[0],
        dict.get(d, "a"),
        d.__contains__("a"),
        d.__getitem__("a"),
        [*d],
        {k: v for k, v in d.items() if k < "c"},
    )


@whole
def dict_views(x, y):
    d = {"a": 1, "b": 2}
    keys, values, items = d.keys(), d.values(), d.items()
    d["c"] = 3
    return (
        x + len(keys),
        keys,
        list(values),
        list(items),
        "c" in keys,
        3 in values,
        ("a", 1) in items,
        ("a", 2) in items,
        keys & {"a", "z"},
        keys | {"z"},
        keys - {"a"},
        keys == {"a", "b", "c"},
        list(reversed(keys)),
        sorted(values),
        keys ^ {"a"},
        keys.isdisjoint({"q"}),
        {"a"} <= keys,
        items & {("a", 1)},
        sum(values),
        max(keys),
        bool(keys),
        len(items),
        repr(keys),
        type(values),
    )


@whole
def dict_errors(x, y):
    d = {"a": 1}
    return x + 1, errors_of(
        (
            lambda: d["z"],
            lambda: d.pop("z"),
            lambda: {}.popitem(),
            lambda: d[[]],
            lambda: dict([1]),
            lambda: dict([(1, 2, 3)]),
            lambda: d.update(3),
            lambda: d.nothing,
            lambda: {[]: 1},
            lambda: dict(1, 2),
            lambda: d | 3,
            lambda: d.get(),
            lambda: d + d,
            lambda: d < d,
            lambda: d.__delitem__("z"),
            lambda: {**3},
            lambda: d.setdefault([]),
            lambda: d.fromkeys(3),
            lambda: d[x.shape, []],
        )
    )


@whole
def dict_keys_of_all_kinds(x, y):
    d = {
        1: "int",
        2.5: "float",
        "s": "str",
        (1, "t"): "tuple",
        None: "none",
        True: "true",
        b"b": "bytes",
        int: "type",
        frozenset([1]): "frozen",
        torch.float32: "dtype",
        range(2): "range",
        ...: "dots",
        x.shape: "size",
        1j: "complex",
    }
    return (
        x + 1,
        d[1.0],
        d[1],
        d[2.5],
        d[(1, "t")],
        d[None],
        d[int],
        d[frozenset([1])],
        d[torch.float32],
        d[range(2)],
        d[...],
        d[(3, 4)],
        d,
        len(d),
        float("nan") in {float("nan"): 1},
        {x: 1}[x],
        {x: 1, y: 2}[y],
    )


@whole
def set_methods(x, y):
    s = {1, 2, 3}
    s.add(4)
    s.add(1)
    s.discard(9)
    s.remove(2)
    t = {3, 4, 5}
    u = set(s)
    u.update([7], (8,))
    u -= {7}
    u |= {9}
    u &= {8, 9, 1}
    u ^= {1}
    v = s.copy()
    v.difference_update({1})
    w = set("ab")
    w.intersection_update("b")
    z = {1, 2}
    z.symmetric_difference_update({2, 3})
    popped = {5}.pop()
    e = {1}
    e.clear()
    return (
        x + len(s),
        s | t,
        s & t,
        s - t,
        s ^ t,
        s <= t,
        {3} < s,
        s >= {1},
        s > {1},
        s == {1, 3, 4},
        s != t,
        s.union(t, [10]),
        s.intersection(t, [3]),
        s.difference(t),
        s.symmetric_difference(t),
        s.issubset(t),
        s.issuperset({1}),
        s.isdisjoint({9}),
        1 in s,
        9 not in s,
        u,
        v,
        w,
        z,
        popped,
        e,
        frozenset(s),
        frozenset([1]) | {2},
        {1} | frozenset([2]),
        sorted(s),
        {i % 3 for i in range(9)},
        set(),
        bool(set()),
        frozenset([1]) == {1},
        hash(frozenset([1])) == hash(frozenset([1])),
        len({1, 1.0, True}),
        {*s, *t},
        set([x, x]) == {x},
        max(s),
        sum(s),
    )


@whole
def set_errors(x, y):
    s = {1}
    return x + 1, errors_of(
        (
            lambda: s.remove(9),
            lambda: set().pop(),
            lambda: s.add([]),
            lambda: {[]},
            lambda: s | [1],
            lambda: s.union(3),
            lambda: s + s,
            lambda: s[0],
            lambda: set(3),
            lambda: frozenset([1]).add(2),
            lambda: s < 3,
            lambda: hash(s),
            lambda: {{1}},
            lambda: set(1, 2),
        )
    )


@whole
def methods_from_types(x, y):
    return (
        x + 1,
        list(map(str.upper, "ab")),
        list(map(len, ["a", "bc"])),
        [*map(int, "123")],
        list(filter(str.isdigit, "a1b2")),
        sorted("bA", key=str.lower),
        dict.keys({"a": 1}) == {"a"},
        int.__add__(1, 2),
        (1).__add__(2),
        "a".__add__("b"),
        [1].__contains__(1),
        {"a": 1}.__len__(),
        list.__len__([1]),
        (5).__lt__(6),
        (1).__add__("a"),
        float.__mul__(2.0, 3),
        int.__mul__(2, 3),
        (2).__pow__(3),
        "a".__mul__(3),
        [].__eq__([]),
        (1).__eq__(1.0),
        str.__len__("ab"),
        object.__repr__ is not None,
        (3).__bool__(),
        (7).__floordiv__(2),
        tuple.__add__((1,), (2,)),
        set.union({1}, {2}),
        dict.get({"a": 1}, "a"),
        (True).__and__(False),
        [3, 1].__getitem__(1),
        "abc".__getitem__(1),
    )


@whole
def bound_builtin_methods(x, y):
    items, table, members = [], {}, set()
    add, put, get, include = items.append, table.__setitem__, table.get, members.add
    for i in range(3):
        add(x * i)
        put(i, i * i)
        include(i % 2)
    join = ",".join
    has = "abc".__contains__
    return (
        items,
        table,
        get(2),
        get(9, "none"),
        members,
        join("ab"),
        has("b"),
        list(map(table.get, [0, 9])),
        items.append == add,
        add.__self__ is items,
        add.__name__,
    )


@whole
def type_questions(x, y):
    values = [
        1,
        "a",
        1.5,
        None,
        True,
        [],
        (),
        {},
        set(),
        b"",
        1j,
        range(1),
        len,
        int,
        type,
        x,
        x.shape,
        ...,
        slice(1),
        lambda: 0,
        zip(),
        iter([]),
        object,
        print,
    ]
    return (
        x + 1,
        [type(v) for v in values],
        [isinstance(v, (int, str)) for v in values],
        type(1)(2.7),
        type([])("ab"),
        type({})(a=1),
        type(()) is tuple,
        type(x) is torch.Tensor,
        isinstance(x, torch.nn.Parameter),
        issubclass(bool, int),
        type(None)(),
        (1).__class__,
        x.__class__,
        type(type(1)),
        int is type(3),
        [].__class__.__name__,
        [t.__name__ for t in (int, str)],
        type(x).__name__,
        int.__name__,
        type(1) == int,
        type(1) in (int, float),
    )


@whole
def id_and_hash(x, y):
    a, b = [], []
    return (
        x + 1,
        id(a) == id(a),
        id(a) == id(b),
        id(x) == id(x),
        id(x) == id(y),
        hash(5),
        hash("a") == hash("a"),
        a is not b,
        hash(None) == hash(None),
    )


@(whole if sys.version_info >= (3, 13) else broken("called with wrong arguments"))
def misuse_of_zip(x, y):
    """Whose signature Python tells from 3.13 on."""
    return x + 1, errors_of((lambda: zip([1], nothing=True),))


@whole
def misuse_of_polyfills(x, y):
    return x + 1, errors_of(
        (lambda: sum(), lambda: sorted(), lambda: max(key=3), lambda: enumerate())
    )


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 1
