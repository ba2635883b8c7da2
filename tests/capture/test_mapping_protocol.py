"""Objects given as mappings: what `dict(obj)`, `update`, `**obj` and their kin ask of them, as
CPython does."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from ingot.capture.values.base import Raised
from tests.capture.pure import interpret

_KEYS = {
    "none": "",
    "method": "def keys(self): LOG.append('keys'); return ['a', 'b']",
    "generator": "def keys(self):\n  for k in 'ab': LOG.append(k); yield k",
    "property": "@property\n def keys(self): LOG.append('property'); return lambda: ['a']",
    "lost property": "@property\n def keys(self): LOG.append('lost'); raise AttributeError('keys')",
    "failing property": "@property\n def keys(self): raise ValueError('no keys')",
    "number": "keys = 3",
    "None": "keys = None",
    "not iterable": "def keys(self): return 7",
    "raises": "def keys(self): raise KeyError('inside')",
    "raises AttributeError": "def keys(self): raise AttributeError('inside')",
    "static": "@staticmethod\n def keys(): return ('a',)",
    "getattr": "def __getattr__(self, name):\n"
    "  if name == 'keys': return lambda: ['b']\n"
    "  raise AttributeError(name)",
    "getattribute": "def __getattribute__(self, name):\n"
    "  return (lambda: ['b']) if name == 'keys' else object.__getattribute__(self, name)",
    "instance": "def __init__(self): self.keys = lambda: ['a', 'b']",
    "instance, number": "def __init__(self): self.keys = 3",
    "slot": "__slots__ = ('keys',)\n def __init__(self): self.keys = lambda: ['a', 'b']",
    "empty slot": "__slots__ = ('keys',)",
    "twice": "def keys(self): return ['a', 'a']",
    "numbers": "def keys(self): return [1, 2]",
    "unhashable": "def keys(self): return ['a', [], 'b']",
}
_ITEMS = {
    "none": "",
    "get": "def __getitem__(self, k):\n"
    "  LOG.append(('get', k))\n"
    "  if k == 5: raise IndexError\n"
    "  return (str(k), 2)",
    "raises": "def __getitem__(self, k): raise LookupError(k)",
    "attribute": "def __getitem__(self, k): raise AttributeError(k)",
    "key": "def __getitem__(self, k): raise KeyError(k)",
    "midway": "def __getitem__(self, k):\n  if k in ('b', 4): raise IndexError(k)\n  return 1",
}
_ITERS = {
    "none": "",
    "pairs": "def __iter__(self): LOG.append('iter'); return iter([('x', 1), ('y', 2)])",
    "None": "__iter__ = None",
    "raises": "def __iter__(self): raise RuntimeError('iter')",
    "items": "def items(self): return [('p', 1)]",
}
_USES = {
    "dict": "d = dict(o)",
    "dict with a name": "d = dict(o, z=1)",
    "update": "d.update(o)",
    "ior": "d |= o",
    "or": "d = d | o",
    "star": "d = {**o}",
    "star behind another": "d = {'q': 1, **o}",
    "call": "d = f(**o)",
    "call with a name": "d = f(a=1, **o)",
    "call of a class": "d = dict(a=1, **o)",
    "OrderedDict": "d = collections.OrderedDict(o)",
    "OrderedDict.update": "d = collections.OrderedDict(d); d.update(o)",
    "defaultdict": "d = collections.defaultdict(int, o)",
    "ChainMap": "d = dict(collections.ChainMap(o))",
    "arguments": "d = f(*o)",
    "list": "d = [*o]",
    "unpacking": "d, *_ = o",
    "format_map": "d = '{a}'.format_map(o)",
}
_PROGRAM = """
LOG = []

class C:
 {}
 {}
 {}
 pass

def program():
    LOG.clear()
    def f(*a, **k): return a, k
    d = {{"a": 0}}
    o = C()
    try:
        {}
    except Exception as error:
        return type(error).__name__, str(error), repr(d), list(LOG)
    return repr(d), list(LOG)
"""
_PART = 9


def _program(keys: str, items: str, iterates: str, use: str) -> Callable[[], Any]:
    parts = (_KEYS[keys], _ITEMS[items], _ITERS[iterates], _USES[use])
    namespace = {"__name__": "mapping_protocol_program", "collections": collections}
    exec(_PROGRAM.format(*parts), namespace)
    return namespace["program"]  # type: ignore[return-value]


def _captured(program: Callable[[], Any]) -> Any:
    try:
        return interpret(program)
    except Raised as raised:
        return raised.value.python_type()


@pytest.mark.parametrize("use", _USES)
def test_mapping_protocol(use: str) -> None:
    objects = list(itertools.product(_KEYS, _ITEMS, _ITERS))
    for parts in objects[list(_USES).index(use) % _PART :: _PART]:
        program = _program(*parts, use)
        assert _captured(program) == program(), parts
