"""The compiled callable: binding, choice of entry, results, life time, threads."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import sys
import threading
import timeit
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ingot.capture.guard_set import GuardSet
from ingot.capture.guards import Kind
from ingot.capture.residual import Collection, Constant, FromSource, Output, Residual
from ingot.capture.sources import ArgSource
from ingot.native import _native

X = ArgSource(0, "x")
LONE, PAIR = Residual(Output(0), 1), Residual(Collection(tuple, (Output(0), Output(1))), 2)


def unreachable(*_: Any) -> Any:
    raise AssertionError("the handler of misses was called")


def slots_of(fn: Callable[..., Any]) -> Any:
    """A dispatcher that returns the slots, args and kwargs that its handler is given."""
    return _native.Dispatcher(fn, lambda slots, args, kwargs: (slots, args, kwargs))


def tree(
    kind: Kind | None = None, data: Any = None, inputs: tuple[Any, ...] = (X,), source: Any = X
) -> Any:
    guards = GuardSet()
    if kind is not None:
        guards.add(source, kind, data)
    return _native.GuardTree(guards.native_spec(inputs))


def identity(x: Any) -> Any:
    """Gives back what it is given."""
    return x


# -- binding ---------------------------------------------------------------------------------------


def positional(a, b, c=3):  # type: ignore[no-untyped-def]
    return a, b, c


def everything(a, /, b, c=3, *args, d, e=5, **kwargs):  # type: ignore[no-untyped-def]
    return a, b, c, d, e, args, kwargs


def variadic(*args, **kwargs):  # type: ignore[no-untyped-def]
    return args, kwargs


def keyword_only(*, a, b=2):  # type: ignore[no-untyped-def]
    return a, b


def nothing():  # type: ignore[no-untyped-def]
    return ()


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (positional, (1, 2), {}),
    (positional, (1, 2, 4), {}),
    (positional, (1,), {"b": 5}),
    (positional, (), {"c": 1, "b": 2, "a": 3}),
    (positional, (1,), {}),
    (positional, (1, 2, 3, 4), {}),
    (positional, (1, 2), {"a": 3}),
    (positional, (1, 2), {"z": 3}),
    (everything, (1, 2), {"d": 4}),
    (everything, (1, 2, 3, 4, 5), {"d": 4, "e": 6, "z": 7}),
    (everything, (1,), {"b": 2, "d": 4, "a": 9}),
    (everything, (), {"a": 1, "b": 2, "d": 4}),
    (everything, (1, 2), {}),
    (variadic, (), {}),
    (variadic, (1, 2), {"a": 3}),
    (keyword_only, (), {"a": 1}),
    (keyword_only, (1,), {}),
    (keyword_only, (), {"b": 1}),
    (nothing, (), {}),
    (nothing, (1,), {}),
]


@pytest.mark.parametrize(("fn", "args", "kwargs"), CALLS)
def test_binds_as_python_does(fn: Any, args: Any, kwargs: Any) -> None:
    compiled = slots_of(fn)
    try:
        fn(*args, **kwargs)
    except TypeError as expected:  # (the signature of 3.13.0 binds what the function does not take)
        with pytest.raises(TypeError) as raised:
            compiled(*args, **kwargs)
        assert str(raised.value) == str(expected)
        return
    bound = inspect.signature(fn).bind(*args, **kwargs)
    bound.apply_defaults()
    slots, got_args, got_kwargs = compiled(*args, **kwargs)
    code = fn.__code__
    count = (
        code.co_argcount
        + code.co_kwonlyargcount
        + bool(code.co_flags & 4)
        + bool(code.co_flags & 8)
    )
    assert dict(zip(code.co_varnames[:count], slots, strict=True)) == bound.arguments
    assert (got_args, got_kwargs) == (args, kwargs)


def test_names_that_are_not_interned() -> None:
    name = "".join(["b", "eta"])

    def fn(beta: int) -> int:
        return beta

    assert slots_of(fn)(**{name: 1})[0] == (1,)
    assert slots_of(variadic)(**{name: 1})[0] == ((), {"beta": 1})


def test_defaults_and_code_are_those_of_the_moment() -> None:
    def fn(a: int, b: int = 2) -> Any:
        return a, b

    compiled = slots_of(fn)
    fn.__defaults__ = (7,)
    assert compiled(1)[0] == (1, 7)
    fn.__code__ = (lambda a, b, c: None).__code__
    assert compiled(1, 2)[0:1] == ((1, 2, 7),)


def test_many_arguments() -> None:
    names = [f"a{i}" for i in range(100)]
    namespace: dict[str, Any] = {}
    exec(f"def fn({', '.join(names)}): pass", namespace)
    assert slots_of(namespace["fn"])(*range(100))[0] == tuple(range(100))


# -- entries ---------------------------------------------------------------------------------------


def test_the_entry_whose_facts_hold_runs() -> None:
    compiled = _native.Dispatcher(identity, lambda slots, args, kwargs: ("miss", slots))
    for value in (1, 2, 3):
        compiled.add_entry(
            tree(Kind.EQUALS, value), lambda x, value=value: (f"entry {value}", x), PAIR
        )
    assert compiled(4) == ("miss", (4,))
    assert [compiled(i) for i in (1, 2, 3, 1)] == [(f"entry {i}", i) for i in (1, 2, 3, 1)]
    assert [entry.hits for entry in compiled.entries()] == [1, 1, 2]  # the newest first
    assert compiled(x=2) == ("entry 2", 2)
    assert [entry.hits for entry in compiled.entries()] == [1, 2, 2]
    compiled.clear()
    assert compiled(1) == ("miss", (1,)) and compiled.entries() == ()


def test_general_entries_are_asked_last() -> None:
    compiled = _native.Dispatcher(identity, unreachable)
    compiled.add_entry(tree(Kind.EQUALS, 1), lambda x: ("special",), LONE)
    compiled.add_entry(tree(Kind.TYPE, int), lambda x: ("general",), LONE, general=True)
    assert [compiled(i) for i in (1, 2, 1)] == ["special", "general", "special"]


def walks(compiled: Any) -> list[int]:
    """How often each entry's facts were checked."""
    return [entry.guards.walks + entry.guards.shortcuts for entry in compiled.entries()]


LOOKS: list[Callable[[int], Any]] = [
    lambda i: torch.zeros(i),
    lambda i: torch.zeros((1,) * i),
    lambda i: [torch.zeros(1)] * (i - 1) + [torch.zeros(2)],
    lambda i: i,
    lambda i: f"text {i}",
    lambda i: (None, i, "a"),
]


@pytest.mark.parametrize("look", LOOKS)
def test_many_entries_are_found_at_once(look: Callable[[int], Any]) -> None:
    """The second call that looks alike checks the facts of the one entry that serves it."""
    compiled = _native.Dispatcher(identity, unreachable)
    values = [look(i) for i in range(1, 9)]
    for i, value in enumerate(values):
        compiled.add_entry(tree(Kind.IDENTITY, value), lambda x, i=i: (i,), LONE)
    assert [compiled(value) for value in values] == list(range(8))
    before = walks(compiled)
    assert [compiled(value) for value in values] == list(range(8))
    assert [after - earlier for after, earlier in zip(walks(compiled), before)] == [1] * 8


def test_a_look_is_only_a_hint() -> None:
    """Objects that look alike have entries of their own, also when the one that is remembered does
    not fit any more."""
    compiled = _native.Dispatcher(identity, lambda slots, args, kwargs: "miss")
    values = [object() for _ in range(4)]
    for i, value in enumerate(values):
        compiled.add_entry(tree(Kind.IDENTITY, value), lambda x, i=i: (i,), LONE)
    for i in (0, 0, 1, 2, 1, 3, 3, 0):
        assert compiled(values[i]) == i
    assert compiled(object()) == "miss"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_calls_that_look_alike_are_reported() -> None:
    """Once they have come so often in a row to a general entry; what the handler raises goes no
    further."""
    compiled = _native.Dispatcher(identity, lambda slots, args, kwargs: "miss")
    compiled.add_entry(tree(Kind.TYPE, int), lambda x: ("general",), LONE, general=True)
    reported: list[object] = []
    compiled.report_hot(3, lambda slots, args, kwargs: reported.append((slots, args, kwargs)))
    for value in (1, 1, 2, 2, 1, 1, 1, 1, 1):
        assert compiled(value) == "general"
    assert reported == [((1,), (1,), {})]
    compiled.add_entry(tree(Kind.EQUALS, 1), lambda x: ("special",), LONE)
    # though the general one is remembered for it
    assert [compiled(1) for _ in range(4)] == ["special"] * 4
    compiled.report_hot(3, lambda slots, args, kwargs: 1 // 0)
    assert [compiled(5) for _ in range(4)] == ["general"] * 4
    compiled.report_hot(0, None)
    assert [compiled(6) for _ in range(4)] == ["general"] * 4 and len(reported) == 1


def test_an_entry_that_ends_while_it_runs() -> None:
    """A call that drops every entry finishes with its own, and what was remembered of them is not
    used again."""
    compiled = _native.Dispatcher(identity, lambda slots, args, kwargs: "miss")
    for value in (1, 2):
        compiled.add_entry(tree(Kind.EQUALS, value), lambda x: (compiled.clear(), x)[1:], LONE)
    assert compiled(1) == 1 and compiled(1) == "miss"
    for value in (1, 2):
        compiled.add_entry(tree(Kind.EQUALS, value), lambda x: (x,), LONE)
    assert [compiled(1), compiled(1)] == [1, 1]
    compiled.clear()
    assert [compiled(1), compiled(1)] == ["miss", "miss"]


def test_a_miss_adds_what_the_next_call_uses() -> None:
    misses = []

    def on_miss(slots: Any, args: Any, kwargs: Any) -> Any:
        misses.append(slots)
        compiled.add_entry(tree(Kind.TYPE, type(slots[0])), lambda x: [x], LONE, record="why")
        return slots[0]

    compiled = _native.Dispatcher(identity, on_miss)
    assert [compiled(1), compiled(2), compiled("a"), compiled(3)] == [1, 2, "a", 3]
    assert misses == [(1,), ("a",)]
    assert compiled.entries()[0].record == "why"


@pytest.mark.parametrize("kind", [tuple, list])
def test_results(kind: type) -> None:
    def results(residual: Any, *outputs: Any) -> Any:
        compiled = _native.Dispatcher(identity, unreachable)
        compiled.add_entry(tree(), lambda x: kind(outputs), residual)
        return compiled("argument")

    assert results(LONE, 5) == 5
    assert results(PAIR, 5, 6) == (5, 6)
    assert results(None, 5, 6) == (5, 6)
    general = Residual(Collection(list, (Output(1), Constant("c"), FromSource(X))), 2)
    assert results(general, 5, 6) == [6, "c", "argument"]
    with pytest.raises(TypeError, match="returned 2"):
        results(LONE, 5, 6)


def test_a_target_must_return_a_tuple_or_list() -> None:
    compiled = _native.Dispatcher(identity, unreachable)
    compiled.add_entry(tree(), lambda x: 3, PAIR)
    with pytest.raises(TypeError, match="tuple or list"):
        compiled(1)


def test_an_eager_entry_runs_the_original_with_its_arguments() -> None:
    compiled = _native.Dispatcher(everything, unreachable)
    compiled.add_entry(tree(inputs=()), None)
    assert compiled(1, 2, d=4, z=9) == everything(1, 2, d=4, z=9)
    assert compiled.entries()[0].hits == 1 and compiled.entries()[0].target is None


def test_many_inputs() -> None:
    sources = tuple(ArgSource(i, f"a{i}") for i in range(100))
    names = ", ".join(source.name for source in sources)
    namespace: dict[str, Any] = {}
    exec(f"def fn({names}): pass", namespace)
    compiled = _native.Dispatcher(namespace["fn"], unreachable)
    compiled.add_entry(tree(inputs=sources), lambda *inputs: inputs)
    assert compiled(*range(100)) == tuple(range(100))


def test_facts_about_slots_that_are_not_there_do_not_hold() -> None:
    compiled = _native.Dispatcher(identity, lambda *_: "miss")
    compiled.add_entry(tree(Kind.IS_NONE, True, source=ArgSource(5, "z")), None)
    assert compiled(1) == "miss"


def test_exceptions_pass_through() -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("mine")

    compiled = _native.Dispatcher(identity, fail)
    with pytest.raises(ZeroDivisionError, match="mine"):
        compiled(1)
    compiled.add_entry(tree(), fail, LONE)
    with pytest.raises(ZeroDivisionError, match="mine"):
        compiled(1)


def test_re_entrance() -> None:
    def count(n: int) -> Any:
        return n if n == 0 else compiled(n - 1)

    compiled = _native.Dispatcher(count, unreachable)
    compiled.add_entry(tree(inputs=()), None)
    assert compiled(50) == 0
    assert compiled.entries()[0].hits == 51


def test_an_entry_lives_while_it_runs() -> None:
    class Target:
        def __call__(self, x: Any) -> Any:
            compiled.clear()
            gc.collect()
            return (self, x)

    compiled = _native.Dispatcher(identity, unreachable)
    compiled.add_entry(tree(), Target(), PAIR)
    assert isinstance(compiled(1)[0], Target)


@pytest.mark.parametrize(
    "args",
    [(), (tree(),), (3, None), (tree(), 3), (tree(), identity, 3), (tree(), identity, Residual)],
)
def test_malformed_entries_are_refused(args: Any) -> None:
    compiled = _native.Dispatcher(identity, unreachable)
    with pytest.raises((TypeError, AttributeError, ValueError)):
        compiled.add_entry(*args)
    assert compiled.entries() == ()


def test_only_python_functions_are_compiled() -> None:
    with pytest.raises(TypeError, match="Python function"):
        _native.Dispatcher(len, unreachable)


# -- it stands where a function stands -------------------------------------------------------------


class Holder:
    @slots_of
    def method(self, a: int, b: int = 2) -> Any:
        """A compiled method."""

    @staticmethod
    @slots_of
    def static(a: int) -> Any: ...

    @classmethod
    @slots_of
    def of_class(cls, a: int) -> Any: ...


def test_as_a_method() -> None:
    holder = Holder()
    assert holder.method(1)[0] == (holder, 1, 2)
    assert holder.method(b=1, a=3)[0] == (holder, 3, 1)
    assert Holder.method(holder, 5)[0] == (holder, 5, 2)
    bound = holder.method
    assert bound.__self__ is holder and bound(1)[0] == (holder, 1, 2)
    assert holder.static(1)[0] == (1,) and Holder.of_class(1)[0] == (Holder, 1)


def test_of_a_bound_method() -> None:
    class Model:
        def forward(self, *args: Any) -> Any:
            return self, args

    model = Model()
    compiled = slots_of(model.forward)
    slots, args, _ = compiled(1, 2)
    assert slots == (model, (1, 2)) and args == (1, 2)
    compiled.add_entry(tree(inputs=()), None)
    assert compiled(3) == (model, (3,))


def test_of_a_module() -> None:
    module = torch.nn.Linear(2, 2)
    compiled = slots_of(type(module).__call__.__get__(module))
    x = torch.ones(2)
    slots = compiled(x)[0]
    assert slots[0] is module and slots[1][0] is x and slots[2] == {}


compiled_identity = _native.Dispatcher(identity, unreachable)


def test_describes_itself_as_the_function() -> None:
    compiled = compiled_identity
    assert compiled.__wrapped__ is identity and compiled.fn is identity
    assert (compiled.__name__, compiled.__qualname__) == ("identity", "identity")
    assert (compiled.__module__, compiled.__doc__) == (__name__, "Gives back what it is given.")
    assert inspect.signature(compiled) == inspect.signature(identity)
    compiled.note = 3
    assert compiled.__dict__["note"] == 3
    assert "identity" in repr(compiled)
    assert weakref.ref(compiled)() is compiled


def test_copies_and_pickles_as_a_function() -> None:
    assert (
        copy.copy(Holder.static) is Holder.static and copy.deepcopy(Holder.static) is Holder.static
    )
    compiled = slots_of(Holder.__dict__["method"].__wrapped__)
    assert pickle.loads(pickle.dumps(compiled.__reduce__())) == "Holder.method"
    assert pickle.loads(pickle.dumps(Holder.method)) is Holder.method


# -- life time and threads -------------------------------------------------------------------------


def test_reference_counts_stay() -> None:
    x, outputs, default = torch.ones(3), (torch.ones(2),), object()

    def fn(x: Any, *args: Any, key: Any = default, **kwargs: Any) -> Any:
        return x

    def target(x: Any) -> Any:
        return outputs

    general = Residual(Collection(list, (Output(0), FromSource(X))), 1)
    guards = GuardSet()
    guards.add_global_state()
    guards.add_tensor(X, x)
    for residual in (LONE, None, general):
        compiled = _native.Dispatcher(fn, lambda slots, args, kwargs: None)
        compiled.add_entry(_native.GuardTree(guards.native_spec([X])), target, residual)
        watched = [
            x,
            outputs,
            outputs[0],
            default,
            fn,
            target,
            compiled,
            compiled.entries()[0],
            general.build,
        ]
        before = [sys.getrefcount(o) for o in watched]
        for _ in range(10_000):
            compiled(x, 1, extra=2)
            compiled(3)
        del _
        assert [sys.getrefcount(o) for o in watched] == before


def test_errors_leak_nothing() -> None:
    x = torch.ones(3)

    def fail(x: Any) -> Any:
        raise ValueError

    compiled = _native.Dispatcher(positional, fail)
    compiled.add_entry(tree(), fail, LONE)
    before = sys.getrefcount(x)
    for args in [(x, 1), (x,), (x, x, x, x)] * 1000:
        with pytest.raises((ValueError, TypeError)):
            compiled(*args)
    del args
    assert sys.getrefcount(x) == before


def make_cycles() -> list[weakref.ref[Any]]:
    """A compiled function that is part of many cycles, of which only weak references are left."""

    class Big:
        def __call__(self, x: Any) -> Any:
            return (x,)

    big = Big()

    def fn(x: Any) -> Any:
        return x

    cycle: list[Any] = []
    compiled = _native.Dispatcher(fn, lambda *_: cycle)  # a cycle through the handler
    cycle.append(compiled)
    compiled.note = compiled  # and one through the dict
    guards = GuardSet()
    guards.add(X, Kind.IDENTITY, compiled)  # and one through a guard
    compiled.add_entry(_native.GuardTree(guards.native_spec([X])), big, LONE, record=compiled)
    alive = [weakref.ref(big), weakref.ref(compiled), weakref.ref(fn)]
    return alive


def test_entries_go_with_their_function() -> None:
    alive = make_cycles()
    gc.collect()
    assert [ref() for ref in alive] == [None, None, None]


def test_threads() -> None:
    lock = threading.Lock()

    def on_miss(slots: Any, args: Any, kwargs: Any) -> Any:
        with lock:
            compiled.add_entry(tree(Kind.EQUALS, slots[0]), lambda x: (x * 2,), LONE)
        return slots[0] * 2

    compiled = _native.Dispatcher(identity, on_miss)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(2000):
            n = (i * seed) % 7
            if compiled(n) != n * 2:
                wrong.append(n)
            if i % 500 == 499:
                compiled.clear()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2, 3, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_call_overhead() -> None:
    """One tensor argument, all facts around the call, a target that does nothing: printed, and must
    only be sane."""
    x = torch.ones(8)
    outputs = (x,)

    def target(x: Any) -> Any:
        return outputs

    guards = GuardSet()
    guards.add_global_state()
    guards.add_tensor(X, x)
    compiled = _native.Dispatcher(identity, unreachable)
    compiled.add_entry(_native.GuardTree(guards.native_spec([X])), target, LONE)

    def nanoseconds(fn: Any) -> float:
        return min(timeit.repeat(lambda: fn(x), number=2000, repeat=15)) / 2000 * 1e9

    overhead = nanoseconds(compiled) - nanoseconds(target)
    print(f"dispatch of one tensor: {overhead:.0f} ns over the target")
    assert overhead < 5000


def test_the_generators_of_a_graph_that_raises_are_put_back() -> None:
    def original(x: Any) -> torch.Tensor:
        return torch.rand(2)

    def graph(x: Any) -> Any:
        torch.rand(1000)
        raise IndexError("the graph's")

    compiled = slots_of(original)
    generators = (torch.default_generator,)
    compiled.add_entry(
        tree(Kind.EQUALS, 1), graph, PAIR, replays=True, handles=True, generators=generators
    )
    compiled.add_entry(tree(Kind.EQUALS, 2), graph, PAIR, replays=True, handles=True)
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    assert torch.equal(compiled(1), expected)
    torch.manual_seed(0)
    assert not torch.equal(compiled(2), expected)


def test_a_generator_without_a_state() -> None:
    compiled = slots_of(identity)
    compiled.add_entry(tree(Kind.EQUALS, 1), lambda x: (x, x), PAIR, generators=(object(),))
    with pytest.raises(AttributeError, match="get_state"):
        compiled(1)
    with pytest.raises(TypeError):
        compiled.add_entry(tree(Kind.EQUALS, 1), lambda x: (x, x), PAIR, generators=[])
