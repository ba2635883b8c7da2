"""Small programs that random ones were reduced to, each of which once did something else compiled
than in eager.

The text of each defines `program` and `arguments(other)`, and `reset()` where the module has state:
see tests/random_python.py. What is compared, and after which calls: see
tests/test_random_python.py.
"""

from __future__ import annotations

import pytest

from tests.random_python import RandomPython
from tests.random_python_parts import IMPORTS
from tests.test_random_python import check

ARGUMENTS = """
def arguments(other):
    g = torch.Generator().manual_seed(3 + other)
    return (torch.randn(2 + other, 3, generator=g), torch.randn(3, generator=g)), {}
"""
RESET = "def reset(): pass\n"

FOUND = {
    "a key that is there, and whose value is not used, is a fact": """
TABLE = {}

def program(m, v):
    TABLE.setdefault(v.numel(), m.sum())
    return v + 1

def reset():
    TABLE.clear()
""",
    "a bound method of a C class, on the stack at a break": """
def program(m, v):
    items = []
    items.append(copy.copy(v.sum().item()))
    queue = collections.deque([v])
    queue.append(operator.methodcaller('abs')(v))
    return items, queue, v.tanh()
""",
    "tensors of one name on both sides of a break": """
def program(m, v):
    def scaled(v):
        time.sleep(0)
        return v * 2
    return scaled(v) + scaled(v + 1) + scaled(m)
""",
    "max over what breaks": """
def program(m, v):
    return max([v, v + 1], key=lambda t: t.sum().item()), min(v), max(m[0])
""",
    "a write to an expanded tensor": """
LOG = []

def program(m, v):
    LOG.append('before')
    print('before')
    wide = v.expand(2, 3)
    wide[()] = 0.5
    LOG.append('after')
    return wide

def reset():
    LOG.clear()
""",
    "a write to an expanded tensor, handled": """
def program(m, v):
    try:
        v.expand(2, 3).add_(1)
    except RuntimeError as error:
        print(error)
    return v + 1
""",
    "a generator from before a break, which prints and ends": """
def program(m, v):
    def rows():
        yield operator.methodcaller('sin')
        yield print('printed')
        yield m[0]
        print('last')
    return [row for row in rows()][-1], v * 2
""",
    "a generator that has ended is returned": """
def rows(m):
    yield m[0]
    yield m[1]

def program(m, v):
    it = rows(m)
    return list(it), it
""",
    "a frozenset and a sentinel across a break": """
def program(m, v):
    few, sentinel = frozenset({1, m.shape[0]}), object()
    time.sleep(0)
    found = {1: v, 2: v + 1}.get(9, sentinel)
    return v * len(few), found is sentinel
""",
    "an exception that a callee has handled is not its caller's": """
CACHE = {}

def look(k):
    try:
        return CACHE[k]
    except KeyError:
        time.sleep(0)
        made = 1
    return made

def fails():
    try:
        missing
    except NameError as error:
        print(repr(error.__context__))

def program(m, v):
    look(3)
    eval('1 + 1')
    fails()
    return v + 1
""",
    "an iterator over a list that grew before it": """
ITEMS = []

def program(m, v):
    ITEMS[-1:] = m[:2]
    for row, i in zip(ITEMS, range(3)):
        print(i)
        time.sleep(0)
        m = m + row
    return m

def reset():
    ITEMS.clear()
""",
    "an iterator over a dict that grew before it": """
TABLE = {}

def program(m, v):
    TABLE['a'] = v
    TABLE['b'] = m
    for key in TABLE:
        print(key)
        time.sleep(0)
        m = m + TABLE[key]
    return m

def reset():
    TABLE.clear()
""",
    "a bound C method of an object whose __getattr__ makes tensors": """
class Table(dict):
    def __getattr__(self, name):
        return self['a']

def program(m, v):
    table = Table(a=v)
    table.update(c=v.numpy())
    return table, v + 1
""",
    "a built-in whose iterable breaks, and goes on in eager": """
def stream(v):
    yield v if v.sum() > 9 else v + 1

def program(m, v):
    eval('1 + 1')
    total = sum(stream(v))
    eval('1 + 1')
    return total, max(stream(v)), sorted(stream(v), key=len), sum([1, 2.5], 1)
""",
    "deep copies of tensors, shared and not": """
class Node:
    def __init__(self, t):
        self.t, self.all = t, [t, {'a': t}]

def program(m, v):
    y = v * 2
    copied = copy.deepcopy([v, y, {'v': v, 'all': [v, m]}])
    copied[0].add_(1)
    node = copy.deepcopy(Node(y))
    rows = copy.deepcopy([m[0], m[1]])
    rows[0].zero_()
    return copied, node, node.t is node.all[0], rows, copy.deepcopy(y), copy.deepcopy(m.mT)
""",
    "texts of a defaultdict, and the integer of a truth": """
def program(m, v):
    table = collections.defaultdict(int, a=1)
    print(table, [table], operator.index(True), operator.index(m.shape[0] == 2))
    return f'{table} {table!r}', v + 1
""",
    "a write over what it reads": """
def program(m, v):
    print('before')
    v[1:].add_(v[:-1].clone())
    v.copy_(v[0])
    return v
""",
    "a view of a parameter that was written": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, m, v):
        first, *others = self.scale
        first.view(-1)[0] = 2.0
        return torch.unique(v) + first

program = Net()
""",
    "the signature of a function made at each call": """
def program(m, v):
    f, g = lambda v, k=2, *, c=1: v * k, lambda v: v
    time.sleep(0)
    print(inspect.signature(f), inspect.signature(g))
    print(inspect.signature(arguments), inspect.signature(make))
    return f(v), g(m)

def make(v: int, w=3) -> None: ...
""",
    "deep copies of containers from the library": """
def program(m, v):
    held = [collections.OrderedDict(b=v, a=[m]), collections.defaultdict(list, k=[v])]
    held += [collections.deque([v, 2], 3)]
    held += [{1, 'a'}, frozenset({2}), collections.deque(), collections.defaultdict(None), v]
    copied = copy.deepcopy(held)
    copied[0]['b'].zero_()
    copied[1]['new'].append(1)
    return held, copied, copy.copy(held[0]), copied[7] is copied[0]['b'], copied[4] is held[4]
""",
    "an exception from before a break is thrown into a generator": """
@contextlib.contextmanager
def section():
    try:
        yield
    finally:
        print('left')

def program(m, v):
    try:
        with section():
            if m:
                pass
    except RuntimeError as error:
        print(error.args)
    return v + 1
""",
    "tensors as keys, fresh ones and the same ones": """
def arguments(other):
    rows = [torch.ones(3) * i for i in range(3)]
    rows = rows + rows[:1] if other else rows + [torch.ones(3)]
    return (rows, {'a': rows[1], 'b': rows[3], 'c': rows[0]}), {}

def program(rows, table):
    first = {row: i for i, row in enumerate(rows)}
    places = [first.get(row) for row in table.values()]
    return list(first.values()), places, len({*table.values()}), rows[0] + 1
""",
    "buffers replaced between calls, gathered by identity": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('state', torch.zeros(3))
        self.register_buffer('other', torch.ones(3))

    def forward(self, m, v):
        return [name for name, _ in self.named_buffers()], sum(self.buffers(), v)

program = Net()

def reset():
    program.state = torch.zeros(3)
""",
    "a written view of a parameter, behind a break": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, m, v):
        for row in (self.scale.view(-1), v, self.scale[1:]):
            time.sleep(0)
            row[0] = 2.0
            v = v + row[-1]
        return v

program = Net()
""",
    "memory shared by way of an array, written behind a break": """
def program(m, v):
    array = v.numpy()
    time.sleep(0)
    v.add_(1)
    same = torch.from_numpy(array)
    time.sleep(0)
    same.mul_(2)
    return same + v, array
""",
    "an index that eager refuses": """
LOG = []

def program(m, v):
    for i in range(2):
        print('before', i)
        m.copy_(m[v])

def reset():
    LOG.clear()
""",
    "what an operation refuses for its dtypes": """
LOG = []

def program(m, v):
    LOG.append('before')
    made = torch.zeros(3).index_add(0, torch.arange(3), v.double())
    m += 1
    return made

def reset():
    LOG.clear()
""",
}


@pytest.mark.parametrize("backend", ["eager", "ingot"])
@pytest.mark.parametrize("name", FOUND)
def test_found(name: str, backend: str) -> None:
    text = FOUND[name]
    text += (RESET if "def reset" not in text else "") + (
        ARGUMENTS if "def arguments" not in text else ""
    )
    assert check(RandomPython(0, IMPORTS + text), backend).restless == ""
