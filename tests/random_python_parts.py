"""The classes and functions that random Python programs may use, and what their modules import."""

from __future__ import annotations

IMPORTS = """
import abc, bisect, collections, contextlib, contextvars, copy, dataclasses, enum, functools, gc
import heapq, inspect, io, itertools, json, logging, math, operator, random, sys, time, typing
import warnings, weakref
import ingot
import numpy as np
import torch
import torch.nn.functional as F
"""

# Name -> (text, classes it needs); only those that a program uses are written.
PARTS = {
    "Vec": """
class Vec:
    label = 'vec'

    def __init__(self, data):
        self.data = data
        self.reads = 0

    @classmethod
    def zeros(cls, n):
        return cls(torch.zeros(n))

    @property
    def norm(self):
        self.reads += 1
        return (self.data * self.data).sum()

    @property
    def doubled(self):
        return self.data * 2

    def __add__(self, other):
        return type(self).of(self.data + (other.data if isinstance(other, Vec) else other))

    def __mul__(self, other):
        return Vec(self.data * getattr(other, 'data', other))

    def __neg__(self):
        return Vec(-self.data)

    def __call__(self, v):
        self.reads += 1
        return self.data + v

    def __bool__(self):
        return self.reads < 2

    @staticmethod
    def of(data):
        return Vec(data)
""",
    "Named": """
class Named(Vec):
    def __init__(self, data, name='named'):
        super().__init__(data)
        self.name = name
        self.label = f'{name}!'

    def __call__(self, v):
        return super().__call__(v) * 0.5

    @property
    def doubled(self):
        return super().doubled + 1
""",
    "Stack": """
class Stack:
    def __init__(self, items):
        self.items = list(items)

    @property
    def top(self):
        return len(self.items) - 1

    def push(self, item):
        self.items.append(item)
        return self

    def __getitem__(self, i):
        return self.items[i % len(self.items)]

    def __setitem__(self, i, value):
        self.items[i] = value

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        yield from self.items

    def __contains__(self, n):
        return 0 <= n < len(self)
""",
    "Pair": "Pair = collections.namedtuple('Pair', 't n')",
    "Config": """
@dataclasses.dataclass
class Config:
    scale: float
    shift: int = 1
    parts: list = dataclasses.field(default_factory=list, compare=False)

    def apply(self, v):
        self.shift += 1
        return v * self.scale + self.shift
""",
    "Meter": """
class Meter:
    __slots__ = ('count', 'last', '__dict__')

    def __init__(self, last=None):
        self.count, self.last = 0, last

    def update(self, v):
        self.count += 1
        if self.last is not None:
            v = v + self.last
        self.last = v
        return v

    def __getattr__(self, name):
        if name == 'data':
            raise AttributeError(name)
        return len(name)
""",
    "Tracker": """
class Tracker:
    def __init__(self, log, swallows=()):
        self.log, self.swallows = log, swallows

    def __enter__(self):
        self.log.append('enter')
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append('leave' if kind is None else kind.__name__)
        return kind is not None and issubclass(kind, self.swallows)
""",
    "section": """
@contextlib.contextmanager
def section(log, v):
    log.append('begin')
    try:
        yield v * 2
    finally:
        log.append('end')
""",
    "make_scaler": """
def make_scaler(k):
    calls = 0

    def scaler(v):
        nonlocal calls
        calls += 1
        return v * k + calls

    return scaler
""",
    "vectors": """
def vectors(v, n):
    for i in range(n % 3 + 1):
        v = v * 0.5 + i
        yield v
""",
    "counted": """
def counted(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        counted.calls.append(f.__name__)
        return f(*args, **kwargs)
    return wrapper
counted.calls = []
""",
    "opaque": "opaque = operator.methodcaller('abs')",
}

PARTS |= {
    "Oops": """
class Oops(Exception):
    def __init__(self, code, *details):
        super().__init__(f'oops {code}', *details)
        self.code = code
""",
    "raise_if": """
def raise_if(condition):
    if condition:
        raise Oops(3, 'raised')
""",
    "Mode": """
class Mode(enum.Enum):
    QUIET = 0
    LOUD = 1

    def apply(self, v):
        return v * 2 if self is Mode.LOUD else v

    @property
    def other(self):
        return Mode(1 - self.value)
""",
    "Table": """
class Table(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            return self['a'] if 'a' in self else torch.zeros(1)

    def __setattr__(self, name, value):
        self[name] = value

    def total(self, start):
        return sum(self.values(), start)

    def listed(self):
        return [v for _, v in sorted(self.items())]
""",
    "Items": """
class Items(list):
    tag = ''

    def doubled(self):
        return Items(t * 2 for t in self)
""",
    "Out": """
@dataclasses.dataclass
class Out(collections.OrderedDict):
    last: typing.Any = None
    hidden: typing.Any = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                super().__setitem__(field.name, getattr(self, field.name))

    def __getitem__(self, k):
        return dict(self.items())[k] if isinstance(k, str) else self.to_tuple()[k]

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())
""",
    "Node": """
class Node:
    __slots__ = ('value', 'next')

    def __init__(self, value, next=None):
        self.value, self.next = value, next

    @property
    def depth(self):
        return 1 + (self.next.depth if self.next is not None else 0)

    def total(self):
        return self.value if self.next is None else self.value + self.next.total()

    def values(self):
        yield self.value
        if self.next:
            yield from self.next.values()

    def __iter__(self):
        node = self
        while node is not None:
            yield node
            node = node.next
""",
    "Tower": """
class Base(abc.ABC):
    made = []

    def __init__(self, v):
        self.v = v
        type(self).made.append(type(self).__name__)

    @abc.abstractmethod
    def run(self, v): ...

    def name(self):
        return 'base'


class Named2:
    def name(self):
        return f'mixed {super().name()}'


class Tower(Named2, Base):
    def __init__(self, v, *layers):
        super().__init__(v)
        self.layers = list(layers)

    def run(self, v):
        for layer in self.layers:
            v = layer(v)
        return v + self.v

    @functools.cached_property
    def cached(self):
        return self.v * 3
""",
    "Gauge": """
class Clipped:
    def __set_name__(self, owner, name):
        self.name = '_' + name

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name)

    def __set__(self, instance, value):
        instance.reads += 1
        setattr(instance, self.name, value.clamp(-1, 1))


@functools.total_ordering
class Gauge:
    level = Clipped()

    def __init__(self, level, reads=0):
        self.reads = reads
        self.level = level

    def scaled(self, v):
        return v * self.level

    def __eq__(self, other):
        return isinstance(other, Gauge) and self.reads == other.reads

    def __lt__(self, other):
        return self.reads < other.reads

    def __hash__(self):
        return self.reads

    def __str__(self):
        return f'gauge {self.reads}'
""",
    "Registry": """
class Meta(type):
    def __new__(meta, name, bases, namespace):
        made = super().__new__(meta, name, bases, namespace)
        made.items = []
        return made

    def size(cls):
        return len(cls.items)


class Registry(metaclass=Meta):
    count = 0
""",
    "scaled_by": """
def scaled_by(factor):
    def decorate(f):
        @functools.wraps(f)
        def scaled(*args, **kwargs):
            return f(*args, **kwargs) * factor
        return scaled
    return decorate
""",
    "compose": """
def compose(*functions):
    return lambda v: functools.reduce(lambda acc, f: f(acc), functions, v)
""",
    "pick": """
def pick(k):
    fs = [lambda v, i=i: v + i for i in range(3)]
    late = [lambda v: v * len(fs)]
    return (fs + late)[k % 4]
""",
    "describe": """
@functools.singledispatch
def describe(o):
    return 0

@describe.register
def _(o: int):
    return o % 3

@describe.register(list)
def _(o):
    return len(o)
""",
    "yielding": """
def yielding(v):
    got = yield v
    if got is not None:
        v = v + got
    try:
        yield v * 2
    finally:
        FINALLY.append('closed')
    return v

FINALLY = []
""",
    "delegating": """
def delegating(v, items):
    first = yield from yielding(v)
    yield from items
    yield first
""",
    "sends": """
def sends(n):
    def counting():
        total = 0
        while total < 5:
            total += yield total

    counter = counting()
    yield next(counter)
    yield counter.send(abs(n) % 3 + 1)
    counter.close()
""",
    "zip_first": """
def zip_first(items):
    return (a + b for a, b in zip(items, items[1:]))
""",
    "cached_square": """
@functools.lru_cache(maxsize=None)
def cached_square(n):
    return n * n
""",
    "globals_count": """
def globals_count():
    return len([name for name in ('EXTRA', 'MISSING') if name in globals()])
""",
    "with_hooks": """
def with_hooks(layer):
    layer.register_forward_pre_hook(lambda layer, args: (args[0] + 1,))
    layer.register_forward_hook(lambda layer, args, out: out * 2)
    return layer
""",
    "undisturbed": """
@ingot.disable
def undisturbed(v):
    return v * 2 + 1
""",
    "Runner": """
class Runner:
    def __init__(self, n):
        self.n = n

    def __call__(self, v):
        return self.step(v) - self.n

    def step(self, v, k=1):
        return v * (self.n % 3) + k
""",
    "contextvar": "contextvar = contextvars.ContextVar('v', default=1.0)",
    "logger": "logger = logging.getLogger('random_python')",
}

# How the state of these parts is put back.
RESETS = {
    "Registry": "Registry.items.clear(); Registry.count = 0",
    "Tower": "Base.made.clear()",
    "yielding": "FINALLY.clear()",
    "describe": "describe._clear_cache()",
    "contextvar": "contextvar.set(1.0)",
    "counted": "counted.calls.clear()",
    "EXTRA": "globals().pop('EXTRA', None)",
}
