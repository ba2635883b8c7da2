"""Effects on objects that existed before the call: what they are afterwards, and what is the same
as what."""

from __future__ import annotations

import types
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from tests.capture.worlds import compilations, same_world

X = torch.arange(6.0).reshape(2, 3)


class Box:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a: Any) -> None:
        self.a = a


class Record(dict):
    """A dict whose own __setitem__ is counted."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__("stores", self.get("stores", 0) + 1)
        super().__setitem__(key, value)


class Ordered(OrderedDict):
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(str(key), value)


class SlottedDict(dict):
    __slots__ = ("a", "b")


@dataclass
class State:
    step: int = 0
    seen: list = field(default_factory=list)


# -- programs: each is called three times on the same arguments ------------------------------------

PROGRAMS: dict[str, tuple[Any, Any]] = {}


def program(make: Any) -> Any:
    def register(fn: Any) -> Any:
        PROGRAMS[fn.__name__] = (fn, make)
        return fn

    return register


def boxed(**attributes: Any) -> Any:
    return lambda: (X.clone(), Box(**{k: v() if callable(v) else v for k, v in attributes.items()}))


@program(boxed(items=list))
def list_append(x, box):
    box.items.append(x + 1)
    return x


@program(boxed(items=list))
def list_append_and_read(x, box):
    box.items.append(x.sum())
    box.items.append(len(box.items))
    return box.items[-1], box.items[0]


@program(boxed(items=lambda: [3, 1, 2]))
def list_methods(x, box):
    items = box.items
    items.insert(1, x)
    items.extend([7, 8])
    items += (9,)
    del items[0]
    items[0] = 5
    popped = items.pop()
    items.remove(7)
    items.reverse()
    return popped, x * len(items)


@program(boxed(items=lambda: [3, 1, 2]))
def list_sort_and_slices(x, box):
    box.items.sort()
    box.items[1:2] = [4, 5]
    box.items.sort(key=lambda v: -v)
    box.items[:] = box.items[:3]
    return x, box.items


@program(boxed(items=lambda: [1, 2]))
def list_cleared(x, box):
    box.items.clear()
    box.items.append(x)
    return box.items


@program(boxed(items=lambda: [0] * 4))
def list_items_set_often(x, box):
    for i in range(12):
        box.items[i % 4] = x * i
    return box.items[1]


@program(boxed(items=list))
def list_in_itself(x, box):
    box.items.append(box.items)
    box.items.append([box.items])
    return x


@program(boxed(table=dict))
def dict_store(x, box):
    box.table["x"] = x * 2
    box.table["x"] = box.table["x"] + 1
    box.table["n"] = len(box.table)
    return box.table["x"]


@program(boxed(table=lambda: {"a": 1, "b": 2, "c": 3}))
def dict_methods(x, box):
    table = box.table
    b = table.pop("b", None)
    table.setdefault("d", [x])
    table.setdefault("a", 9)
    table.update({"e": 5}, f=6)
    table |= {"g": 7}
    a = table["a"]
    del table["a"]
    table["a"] = a + 1
    last = table.popitem()
    return b, last, table.get("z"), list(table)


@program(boxed(table=lambda: {"a": 1, "b": 2}))
def dict_cleared(x, box):
    box.table.clear()
    box.table["c"] = x
    return "a" in box.table, len(box.table)


@program(boxed(table=lambda: {"a": 1, "b": 2}))
def dict_deleted_and_set_again(x, box):
    del box.table["a"]
    box.table["a"] = x
    return list(box.table.items())


@program(boxed(table=lambda: {"a": 1}))
def dict_missing(x, box):
    try:
        del box.table["nothing"]
    except KeyError as error:
        box.table["error"] = type(error).__name__
    return x


@program(boxed(table=lambda: defaultdict(list)))
def default_dict(x, box):
    box.table["x"].append(x)
    box.table["y"].append(1)
    return len(box.table["x"])


@program(boxed(table=lambda: OrderedDict(a=1, b=2, c=3)))
def ordered_dict(x, box):
    box.table.move_to_end("a")
    box.table.move_to_end("c", last=False)
    box.table["d"] = x
    c = box.table.popitem(last=False)
    box.table.update([c])
    return list(box.table)


@program(boxed(table=Record))
def dict_subclass(x, box):
    box.table["x"] = x
    box.table["y"] = x + 1
    return box.table["stores"]


@program(boxed(table=Ordered))
def ordered_dict_subclass(x, box):
    box.table[1] = x
    box.table.note = "attribute"
    del box.table["1"]
    box.table[2] = x
    return x


@program(boxed(names=set))
def set_add(x, box):
    box.names.add("a")
    box.names.add(str(len(box.names)))
    box.names.discard("nothing")
    return "a" in box.names, "z" in box.names, x


@program(boxed(names=lambda: {5, 1, 16, 3}))
def set_methods(x, box):
    names = box.names
    order = list(names)
    names |= {7, 8}
    names -= {1}
    names.update([32], (40,))
    names.intersection_update(set(range(60)))
    names.symmetric_difference_update({5, 64})
    made = {1, 9, 17}
    return order, made.pop(), made, len(names), names == {7, 8}, names & {3, 7}, x


@program(boxed(names=lambda: {"a"}))
def set_cleared(x, box):
    box.names.clear()
    box.names.add("b")
    try:
        box.names.remove("a")
    except KeyError as error:
        return type(error).__name__, sorted(box.names), x


@program(boxed(kinds=lambda: {int, float}, frozen=lambda: frozenset({"a", "b"})))
def set_of_classes(x, box):
    box.kinds.add(str)
    box.kinds.discard(int)
    return int in box.kinds, str in box.kinds, "a" in box.frozen, box.frozen, len(box.kinds), x


@program(boxed(queue=lambda: deque(maxlen=3)))
def deque_append(x, box):
    box.queue.append(x + 1)
    return x


@program(boxed(queue=lambda: deque([1, 2, 3], maxlen=4)))
def deque_methods(x, box):
    queue = box.queue
    queue.appendleft(x)
    queue.extend([5, 6])
    queue.rotate(1)
    queue.append(7)
    first, last = queue.popleft(), queue.pop()
    queue.extendleft([8])
    queue[0] = 9
    del queue[1]
    queue.insert(1, 4)
    queue.reverse()
    queue.remove(9)
    return (
        first,
        last,
        list(queue),
        len(queue),
        queue.maxlen,
        4 in queue,
        [*reversed(queue)],
        queue == deque([1]),
    )


@program(boxed(counts=Counter))
def counter_update(x, box):
    box.counts["x"] += 1
    box.counts.update("hello")
    box.counts.subtract(["l"])
    return box.counts["l"], box.counts["none"], x


@program(boxed(table=dict))
def keys_of_several_kinds(x, box):
    table = box.table
    table[1], table[(2, "b")], table[None], table[torch.float32], table[2.5] = 1, 2, 3, 4, x
    table[True] = 5
    return table[1], (2, "b") in table, (2, "c") in table, table.get(torch.float64), len(table)


@program(lambda: (X.clone(), Box(table={}), Box()))
def keys_by_identity(x, box, key):
    box.table[key] = box.table.get(key, 0) + 1
    box.table[x] = "tensor"
    return box.table[key], x in box.table


@program(boxed(count=0))
def attribute(x, box):
    box.count += 1
    box.last = x * box.count
    return box.last


@program(boxed(a=1, b=2))
def attribute_deleted(x, box):
    if hasattr(box, "a"):
        del box.a
    box.made = 3
    del box.made
    box.b = x
    return hasattr(box, "a"), hasattr(box, "made")


@program(boxed(a=1))
def attribute_order(x, box):
    a = box.a
    del box.a
    box.z, box.a = x, a
    return list(vars(box))


@program(lambda: (X.clone(), Slots(1)))
def slots(x, box):
    box.a += 1
    box.b = x * box.a
    return box.b


@program(lambda: (X.clone(), Slots(1)))
def slots_deleted(x, box):
    value = getattr(box, "a", 5)
    if value == 1:
        del box.a
    return x * value, getattr(box, "a", None)


@program(boxed(table=SlottedDict))
def keys_and_members_of_one_name(x, box):
    table = box.table
    table["a"] = x
    table.a = 1
    table.b = getattr(table, "b", 0) + 1
    table["c"] = len(table)
    return table["a"], table.a, "b" in table, table.b, list(table)


@program(boxed(a=1))
def instance_dict(x, box):
    box.__dict__["b"] = x
    box.__dict__.update(c=2, a=3)
    vars(box).pop("c")
    return box.a, box.b, list(box.__dict__)


@program(lambda: (X.clone(), State()))
def dataclass_state(x, state):
    state.step += 1
    state.seen.append(state.step)
    return x * state.step


@program(lambda: (X.clone(), Box(a=Box(n=1)), None))
def aliases(x, box, _):
    other = box.a
    box.b = other
    box.b.n = 2
    box.a.m = x
    return other.n, box.b.m


@program(lambda: (X.clone(), Box()))
def made_objects_are_shared(x, box):
    made = [x + 1]
    box.a, box.b = made, {"made": made}
    made.append(made)
    return made, box.b


@program(lambda: (X.clone(), Box(a=1)))
def cycles(x, box):
    made = Box(owner=box)
    box.made = made
    made.me = made
    return x


@program(lambda: (X.clone(), Box(a=X.clone())))
def loads_come_before_writes(x, box):
    before = box.a
    box.a = x + 1
    box.kept = before
    return before, box.a


@program(lambda: (X.clone(), Box(a=1, b=2)))
def swap(x, box):
    box.a, box.b = box.b, box.a
    return x


@program(lambda: (X.clone(), Box(a=[1], b=[2])))
def swapped_lists(x, box):
    box.a, box.b = box.b, box.a
    box.a.append(3)
    return box.b[0], x


@program(lambda: (X.clone(), X.clone()))
def tensor_attribute(x, y):
    y.note = "seen"
    y.count = getattr(y, "count", 0) + 1
    return x, y.count


@program(lambda: (X.clone(), Box(fn=types.FunctionType(cycles.__code__, globals()))))
def function_attribute(x, box):
    box.fn.calls = getattr(box.fn, "calls", 0) + 1
    return x * box.fn.calls


def counter() -> Any:
    count, total = 0, None

    def step(x):
        nonlocal count, total
        count += 1
        total = x if total is None else total + x
        return total

    def read():
        return count, total

    return step, read


@program(lambda: (X.clone(), *counter()))
def closure_cells(x, step, read):
    before = read()
    step(x)
    step(x)
    return before, read()


def unbinding() -> Any:
    value = 1

    def drop():
        nonlocal value
        del value

    def put(new):
        nonlocal value
        value = new

    def get():
        return value

    return drop, put, get


@program(lambda: (X.clone(), *unbinding()))
def cells_are_unbound(x, drop, put, get):
    drop()
    try:
        get()
    except NameError as error:
        message = str(error)
    put(x)
    return message, get()


@program(lambda: (X.clone(), *unbinding()))
def cell_left_unbound(x, drop, put, get):
    put(x)
    drop()
    put(2)
    return get()


@program(boxed(items=list))
def generator_writes(x, box):
    def numbers():
        for i in range(3):
            box.items.append(i)
            yield x + i

    return sum(numbers())


@program(boxed(items=list, depth=0))
def context_manager(x, box):
    class_ = Depth(box)
    with class_ as depth:
        box.items.append(depth)
        x = x * depth
    return x


class Depth:
    def __init__(self, box):
        self.box = box

    def __enter__(self):
        self.box.depth += 1
        return self.box.depth

    def __exit__(self, *raised):
        self.box.depth -= 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    fn, make = PROGRAMS[name]
    compiler = same_world(fn, make)
    assert all(c.skipped is None for c in compiler.compilations)


# -- what is not asked for is not guarded ----------------------------------------------------------


def test_a_list_that_is_appended_to_is_compiled_once() -> None:
    assert compilations(same_world(list_append, PROGRAMS["list_append"][1], calls=6)) == 1


def test_a_deque_that_is_appended_to_is_compiled_once() -> None:
    assert compilations(same_world(deque_append, PROGRAMS["deque_append"][1], calls=6)) == 1


def test_a_set_that_is_asked_for_one_member_may_grow() -> None:
    def fn(x, names):
        names.add("last")
        return x + 1 if "flag" in names else x

    compiled, names = ingot.compile(fn, fullgraph=True, backend="eager"), {"first"}
    for i in range(4):
        assert torch.equal(compiled(X, names), X)
        names.add(f"other{i}")
    assert compilations(Compiler.of(compiled)) == 1
    names.add("flag")
    assert torch.equal(compiled(X, names), X + 1)
    names.discard("flag")
    assert torch.equal(compiled(X, names), X) and compilations(Compiler.of(compiled)) == 2


def test_a_dict_that_is_asked_for_one_key_may_grow() -> None:
    def fn(x, table):
        table["last"] = x + 1
        return x

    compiled = ingot.compile(fn, fullgraph=True)
    table: dict[str, Any] = {}
    with torch.no_grad():
        for i in range(5):
            compiled(X, table)
            table[f"other{i}"] = i
    assert compilations(Compiler.of(compiled)) == 1 and list(table)[0] == "last"


def test_an_attribute_that_is_only_set_is_compiled_once() -> None:
    def fn(x, box):
        box.last = x + 1
        return x

    assert compilations(same_world(fn, lambda: (X.clone(), Box()), calls=4)) == 1


def test_a_flag_that_is_put_back_leaves_nothing_to_do() -> None:
    def fn(x, box):
        before, box.flag = box.flag, True
        x = x + 1 if box.flag else x
        box.flag = before
        return x

    compiler = same_world(fn, lambda: (X.clone(), Box(flag=False)))
    assert compilations(compiler) == 1
    captured = compiler.compilations[0].captured
    assert captured is not None and captured.residual.kind == "tensor"


def test_a_flag_that_others_see_is_put_back(capsys: Any) -> None:
    class Loud:
        def __init__(self, name: str) -> None:
            self.name = name

    def fn(x, box):
        before, box.flag = box.flag, Loud("during")
        print("now")
        box.flag = before
        return x

    same_world(fn, lambda: (X.clone(), Box(flag=Loud("before"))), calls=2)
    assert capsys.readouterr().out == "now\n" * 4
