"""PYTEST_DONT_REWRITE. The collections module, and subclasses of built-in classes."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque

from tests.capture.language import Table, errors_of

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


# -- collections -----------------------------------------------------------------------------------


@whole
def counters(x, y):
    c = Counter("abracadabra")
    c.update("ab")
    c["z"] += 1
    d = Counter(a=1, b=5)
    return (
        x + c["a"],
        c,
        c.most_common(2),
        c["missing"],
        c + d,
        c - d,
        c & d,
        c | d,
        list(d.elements()),
        c.total(),
        sorted(c),
        Counter([1, 1]) == Counter({1: 2}),
        dict(d),
        isinstance(d, dict),
        +d,
    )


@whole
def deques(x, y):
    d = deque([1, 2, 3], maxlen=4)
    d.append(4)
    d.append(5)
    d.appendleft(0)
    a, b = d.pop(), d.popleft()
    e = deque("abc")
    e.rotate(1)
    e.extend("de")
    e.extendleft("z")
    e.remove("a")
    first = e[0]
    e[1] = x
    return (
        d,
        a,
        b,
        len(d),
        list(e)[2:],
        first,
        d.maxlen,
        3 in d,
        e.count("b"),
        deque([1, 2]) == deque([1, 2]),
        list(reversed(d)),
        d.index(3),
        bool(deque()),
        e.copy() is e,
        [*d],
        list(d + deque([9])),
    )


@whole
def deque_errors(x, y):
    return x + 1, errors_of(
        (
            lambda: deque().pop(),
            lambda: deque().popleft(),
            lambda: deque([1])[5],
            lambda: deque([1]).remove(2),
            lambda: deque([1]).index(2),
            lambda: deque(3),
        ),
        (IndexError, ValueError, TypeError),
    )


@whole
def default_dicts(x, y):
    d = defaultdict(list)
    d["a"].append(x)
    d["a"].append(1)
    d["b"]
    e = defaultdict(int, {"k": 1})
    for letter in "hello":
        e[letter] += 1
    f = defaultdict(lambda: x)
    g = f["new"]
    n = defaultdict(lambda: defaultdict(int))
    n["a"]["b"] += 2
    return (
        d,
        e,
        g is x,
        len(f),
        d.get("zz"),
        "zz" in d,
        errors_of((lambda: defaultdict()["a"], lambda: defaultdict(3))),
        n["a"]["b"],
        d.default_factory,
        e.copy(),
        isinstance(e, dict),
        dict(e)["h"],
    )


@whole
def ordered_dicts(x, y):
    d = OrderedDict(a=1, b=2, c=x)
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    popped = d.popitem(last=False)
    d["z"] = 5
    e = OrderedDict([("x", 1), ("y", 2)])
    return (
        d,
        popped[0],
        list(d),
        e == OrderedDict([("y", 2), ("x", 1)]),
        e == {"y": 2, "x": 1},
        list(reversed(e)),
        e.popitem(),
        e | {"q": 1},
        type(e.copy()),
        list(e.items()),
        e.pop("x"),
        e.setdefault("w", 3),
        errors_of(
            (lambda: OrderedDict().popitem(), lambda: e.move_to_end("none"), lambda: e["none"])
        ),
    )


@whole
def chain_maps(x, y):
    c = ChainMap({"a": 1}, {"a": 2, "b": x})
    c["new"] = 3
    child = c.new_child({"b": 0})
    return (
        c["a"],
        c["b"] + 1,
        c.maps[0],
        child["b"],
        len(c),
        "b" in c,
        c.get("zz", 5),
        sorted(c),
        child.parents["a"],
        dict(c)["a"],
        errors_of((lambda: c["zz"],)),
    )


class MyDict(UserDict):
    def __setitem__(self, key, value):
        super().__setitem__(key.lower(), value)


@whole
def user_dicts_and_lists(x, y):
    d = MyDict(A=1)
    d["B"] = x
    u = UserList([1, 2])
    u.append(3)
    return (
        d["b"] + 1,
        list(d),
        "a" in d,
        len(d),
        u.data,
        u[0],
        list(u + [4]),
        d.get("zz"),
        d.data["a"],
    )


# -- subclasses of built-in classes ----------------------------------------------------------------


class Stack(list):
    def __init__(self, *items):
        super().__init__(items)
        self.pushed = 0

    def push(self, item):
        self.pushed += 1
        self.append(item)

    def __getitem__(self, key):
        return ("own", super().__getitem__(key))

    @property
    def top(self):
        return self[-1]


class PlainList(list):
    pass


@whole
def list_subclasses(x, y):
    s = Stack(1, 2)
    s.push(x)
    s += [4]
    p = PlainList([3, 1])
    p.sort()
    p.tag = "t"
    return (
        s,
        s.pushed,
        s.top,
        len(s),
        list(s),
        [*p],
        p,
        p + [5],
        type(p + [5]),
        type(p[:]),
        p == [1, 3],
        isinstance(s, list),
        1 in p,
        sum(p),
        s.top[1],
        PlainList("ab"),
        bool(PlainList()),
        p.index(3),
        repr(p),
        [x for x in p],
        p.copy(),
        sorted(p, reverse=True),
        tuple(p),
    )


class Version(tuple):
    def __new__(cls, text):
        return super().__new__(cls, map(int, text.split(".")))

    @property
    def major(self):
        return self[0]

    def __str__(self):
        return ".".join(map(str, self))


class Labelled(tuple):
    pass


@whole
def tuple_subclasses(x, y):
    v = Version("1.2.3")
    t = Labelled([x, 1])
    t.label = "l"
    return (
        v,
        v.major,
        str(v),
        v > (1, 2),
        v[1:],
        type(v[1:]),
        len(v),
        t,
        t.label,
        hash(v) == hash((1, 2, 3)),
        {v: 1}[(1, 2, 3)],
        v == (1, 2, 3),
        a_plus(*v),
        isinstance(v, tuple),
        repr(Labelled([1])),
        v + (4,),
        list(v),
        x * v.major,
    )


def a_plus(a, b, c):
    return a + b + c


class Name(str):
    def shout(self):
        return self.upper() + "!"

    def __eq__(self, other):
        return str.__eq__(self.lower(), other.lower())

    __hash__ = str.__hash__


class Meters(float):
    unit = "m"

    def __add__(self, other):
        return Meters(float(self) + other)


class Id(int):
    def __new__(cls, value, note=""):
        self = super().__new__(cls, value)
        self.note = note
        return self

    def __repr__(self):
        return f"Id({int(self)})"


@whole
def number_and_text_subclasses(x, y):
    n, m, i = Name("bob"), Meters(2.5), Id(7, note="n")
    return (
        x * m,
        x * i,
        n.shout(),
        n == "BOB",
        n + "x",
        len(n),
        m + 1,
        type(m + 1),
        m * 2,
        type(m * 2),
        i + 1,
        i.note,
        i,
        repr(i),
        f"{i} {m} {n}",
        {"bob": 1}[n],
        isinstance(i, int),
        [10, 20][Id(1)],
        i == 7,
        type(i),
        Id(3) < Id(4),
        range(Id(2)),
        n[0],
        n.split("o"),
        m.unit,
        int(m),
        str(n),
        type(str(n)),
        Id(0) or "zero",
        hash(i) == hash(7),
        x[Id(0)],
        list(n),
    )


class Tags(set):
    def add_all(self, *items):
        for item in items:
            self.add(item)
        return self


class Frozen(frozenset):
    pass


@whole
def set_subclasses(x, y):
    t = Tags("ab").add_all("c", "d")
    t.owner = "me"
    return (
        x + len(t),
        t,
        "a" in t,
        sorted(t),
        t | {"z"},
        type(t | {"z"}),
        isinstance(t, set),
        t.owner,
        t == {"a", "b", "c", "d"},
        Frozen([1]),
        Frozen([1]) == {1},
        len(Frozen([1, 1])),
    )


class Attrs(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value

    def __missing__(self, key):
        if key.startswith("auto"):
            return "made"
        raise KeyError(key)


@whole
def dict_subclasses(x, y):
    d = Attrs(a=1)
    d.b = x
    d["c"] = 3
    return (
        d.b + 1,
        d,
        d["auto1"],
        hasattr(d, "zz"),
        list(d.items()),
        len(d),
        "c" in d,
        d.get("zz", 1),
        {**d},
        dict(d),
        d == {"a": 1},
        isinstance(d, dict),
        d.pop("a"),
        d.setdefault("q", 2),
        type(d.copy()),
        [k for k in d],
        d | {"m": 1},
        bool(Attrs()),
        list(d.values())[1:],
        d.keys() & {"b"},
        repr(Attrs(k=1)),
    )


class Output(OrderedDict):
    """As the results of a model library are: items are attributes, and integers index the
    values."""

    def __post_init__(self):
        pass

    def __getitem__(self, key):
        if isinstance(key, str):
            return dict(self.items())[key]
        return self.to_tuple()[key]

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __delitem__(self, *args, **kwargs):
        raise Exception(f"cannot delete from {self.__class__.__name__}")

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())


@whole
def ordered_dict_subclasses(x, y):
    o = Output(logits=x)
    o["hidden"] = y
    o.logits = x + 1
    first, second = o.to_tuple()
    caught = errors_of((lambda: o.pop("zz"), lambda: o.__delitem__("logits")))
    return (
        o,
        o.logits,
        o[0] is first,
        o["hidden"],
        list(o),
        len(o),
        o[:1],
        caught,
        isinstance(o, dict),
        "logits" in o,
        {k: v.shape for k, v in o.items()},
        second,
    )


class MyCounter(Counter):
    def top(self):
        return self.most_common(1)[0][0]


class MyDeque(deque):
    def last(self):
        return self[-1]


@whole
def subclasses_of_collections(x, y):
    return x + 1, MyCounter("aab").top(), MyDeque([1, 2]).last()


@whole
def look_ups_with_wrong_arguments(x, y):
    s, d = {1, 2}, {1: 2}
    found = errors_of(
        (
            lambda: s.remove(1, 2),
            lambda: s.remove(),
            lambda: s.discard(1, 2),
            lambda: s.add(1, 2),
            lambda: d.pop(),
            lambda: d.pop(1, 2, 3),
            lambda: d.setdefault(),
            lambda: d.get(1, 2, 3),
            lambda: s.remove(3),
            lambda: d.pop(3),
            lambda: s.remove([]),
            lambda: d.pop([]),
        )
    )
    return x + 1, found, s, d


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 0
