"""Generators made in the suspended state, against generators that came there by running."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import types
import weakref

import pytest

from ingot.native import _native

from .frames import NULL, offset_of, slots_of


def numbers(n, *, step=1, **named):
    total = 0
    for i in range(n):
        got = yield i * step + len(named)
        total += got or 0
    return total


def on_the_stack(log):
    for a in (1, 2):
        log.append((a, (yield a), {"b": (yield a + 10)}, [(yield a + 100)]))
    return len(log)


def guarded(log):
    try:
        yield 1
        try:
            raise KeyError("inside")
        except KeyError:
            yield sys.exception()
            log.append(repr(sys.exception()))
            yield 3
    except ValueError as error:
        log.append(repr(error))
        yield repr(error)
    finally:
        log.append("closed")
    log.append(repr(sys.exception()))
    yield 4


def delegating(log):
    log.append((yield from numbers(2, step=10)))
    yield from numbers(2, step=-1)
    return "end"


def with_cells(start):
    count = start

    def add(n):
        nonlocal count
        count += n
        return count

    while True:
        add((yield count))


GENERATORS = [on_the_stack, guarded, delegating]


def advance(fn, steps):
    """(generator after so many steps, its log)"""
    log: list = []
    generator = fn(log)
    for i in range(steps):
        generator.send(i or None)
    return generator, log


def steps_of(fn):
    """How many values it yields."""
    for steps in range(100):
        try:
            advance(fn, steps)
        except StopIteration:
            return steps
    raise AssertionError("it never ends")


def end_of(generator, log, action):
    """What comes of an action on a suspended generator and of running it to the end."""
    try:
        first = action(generator)
    except StopIteration as stop:
        first = ("stop", stop.value)
    except BaseException as error:
        first = repr(error)
    rest = []
    try:
        for _ in range(20):
            rest.append(repr(generator.send(7) if rest else next(generator)))
    except BaseException as error:
        rest.append(repr(error))
    return repr(first), rest, log


ACTIONS = {
    "next": next,
    "send": lambda generator: generator.send(5),
    "throw": lambda generator: generator.throw(ValueError("thrown")),
    "throw another": lambda generator: generator.throw(OSError("thrown")),
    "close": lambda generator: generator.close(),
    "for": list,
}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
@pytest.mark.parametrize("fn", GENERATORS)
def test_goes_on_like_the_one_it_is_made_like(fn, action):
    for steps in range(steps_of(fn)):
        original, log = advance(fn, steps)
        state = _native.generator_state(original)
        made = _native.suspended_generator(*state)
        assert _native.generator_state(made) == state
        assert (made.__name__, made.__qualname__, made.gi_code) == (
            fn.__name__,
            fn.__qualname__,
            fn.__code__,
        )
        if made.gi_yieldfrom is None:  # the two would share what they wait for
            expected, expected_log = advance(fn, steps)
            assert end_of(made, log, action) == end_of(expected, expected_log, action)
        original.close()


def test_a_loop_goes_on():
    offset = offset_of(numbers, "YIELD_VALUE")
    slots = slots_of(numbers, n=NULL, step=10, named={"a": 1}, total=100, i=0)
    iterator = iter([3, 4])
    generator = _native.suspended_generator(numbers, offset, slots, (iterator,))
    assert (
        inspect.getgeneratorstate(generator) == "GEN_SUSPENDED"
        and generator.gi_frame.f_locals["total"] == 100
    )
    assert [generator.send(1), generator.send(20)] == [31, 41]
    with pytest.raises(StopIteration) as stop:
        generator.send(300)
    assert stop.value.value == 100 + 1 + 20 + 300
    assert _native.generator_state(generator) is None


def test_in_a_for_statement_and_in_next_ones_place():
    offset = offset_of(numbers, "YIELD_VALUE")
    slots = slots_of(numbers, n=5, step=1, named={}, total=0, i=1)
    for _ in range(50):  # until `for` is specialized for generators
        generator = _native.suspended_generator(numbers, offset, slots, (iter(range(2, 5)),))
        seen = []
        for value in generator:
            seen.append(value)
        assert seen == [2, 3, 4]


def test_delegation():
    inner = numbers(3)
    next(inner)
    outer = delegating([])
    next(outer)
    function, offset, slots, stack, handled = _native.generator_state(outer)
    assert stack[-1] is outer.gi_yieldfrom
    made = _native.suspended_generator(function, offset, slots, (*stack[:-1], inner), handled)
    assert made.gi_yieldfrom is inner
    assert [made.send(5), made.send(6), made.send(7), next(made)] == [1, 2, 0, -1] and slots[0] == [
        5 + 6 + 7
    ]
    assert inner.gi_frame is None
    made = _native.suspended_generator(function, offset, slots, (*stack[:-1], numbers(1)), handled)
    with pytest.raises(ValueError, match="thrown"):
        made.throw(ValueError("thrown"))


def test_closing_what_is_delegated_to():
    log: list = []
    inner = guarded(log)
    next(inner)
    outer = delegating([])
    next(outer)
    function, offset, slots, stack, handled = _native.generator_state(outer)
    made = _native.suspended_generator(function, offset, slots, (*stack[:-1], inner), handled)
    made.close()
    assert log == ["closed"] and inner.gi_frame is None


def test_one_not_begun():
    original = numbers(2, step=3)
    state = _native.generator_state(original)
    assert state[1] == offset_of(numbers, "RETURN_GENERATOR") and state[3] == ()
    made = _native.suspended_generator(*state)
    assert inspect.getgeneratorstate(made) == "GEN_CREATED"
    with pytest.raises(TypeError, match="just-started"):
        made.send(1)
    assert list(made) == [0, 3] == list(original)


def test_what_it_was_handling():
    original, log = advance(guarded, 2)
    state = _native.generator_state(original)
    assert isinstance(state[4], KeyError)
    other = KeyError("other")
    made = _native.suspended_generator(*state[:4], other)
    try:
        raise OSError("of the caller")
    except OSError as outer:
        assert next(made) == 3
        assert sys.exception() is outer
    assert log == ["KeyError('other')"]


def test_cells():
    original = with_cells(1)
    next(original)
    function, offset, slots, stack, handled = _native.generator_state(original)
    assert any(isinstance(slot, types.CellType) for slot in slots)
    made = _native.suspended_generator(function, offset, slots, stack, handled)
    # they share the cells
    assert [made.send(10), original.send(100), made.send(1000)] == [11, 111, 1111]


def test_coroutines_and_asynchronous_generators():
    async def ticks(n):
        for i in range(n):
            await asyncio.sleep(0)
            yield i

    async def total(n):
        found = 0
        async for i in ticks(n):
            found += i
        return found

    coroutine = total(4)
    slots = _native.generator_state(coroutine)[1:3]
    made = _native.suspended_generator(total, *slots, ())
    assert asyncio.run(made) == 6 == asyncio.run(coroutine)

    async def halfway():
        original = ticks(3)
        await anext(original)
        function, offset, slots, stack, handled = _native.generator_state(original)
        copy = _native.suspended_generator(function, offset, slots, (iter([7]),), handled)
        return [i async for i in copy], [i async for i in original]

    assert asyncio.run(halfway()) == ([7], [1, 2])


@pytest.mark.parametrize(
    "offset, slots, stack, error",
    [
        (offset_of(numbers, "RESUME"), (NULL,) * 6, (), ValueError),
        (offset_of(numbers, "YIELD_VALUE"), (NULL,) * 4, (), ValueError),
        (offset_of(numbers, "YIELD_VALUE"), (NULL,) * 5, (1,) * 50, ValueError),
        (offset_of(numbers, "RETURN_GENERATOR"), (NULL,) * 5, (1,), ValueError),
        (offset_of(numbers, "YIELD_VALUE"), [NULL] * 5, (), TypeError),
    ],
)
def test_what_does_not_fit_is_refused(offset, slots, stack, error):
    with pytest.raises(error):
        _native.suspended_generator(numbers, offset, slots, stack)


def test_only_functions_that_yield():
    with pytest.raises(ValueError):
        _native.suspended_generator(
            offset_of, offset_of_return(), (NULL,) * offset_of.__code__.co_nlocals, ()
        )
    with pytest.raises(ValueError, match="resumed"):
        _native.resume(numbers, offset_of(numbers, "RESUME"), (NULL,) * 6, ())
    with pytest.raises(TypeError):
        _native.generator_state(iter([]))


def offset_of_return():
    return offset_of(offset_of, "RETURN")


def test_running_has_no_state():
    seen = []

    def own():
        seen.append(_native.generator_state(itself[0]))
        yield 1

    itself = [own()]
    assert next(itself[0]) == 1 and seen == [None]


def test_no_reference_is_lost_or_kept():
    value, error = object(), KeyError()
    log: list = []
    offset = offset_of(on_the_stack, "YIELD_VALUE")
    slots, stack = (log, 1), (iter(()), log, value)
    original, _ = advance(guarded, 2)
    state = _native.generator_state(original)[:4] + (error,)

    def once():
        made = _native.suspended_generator(on_the_stack, offset, slots, (value,))
        del made
        with pytest.raises(ValueError):
            _native.suspended_generator(on_the_stack, 1, slots, stack)
        made = _native.suspended_generator(*state)
        assert next(made) == 3
        made.close()
        with pytest.raises(OSError):
            _native.suspended_generator(*state).throw(OSError)
        log.clear()
        error.__context__ = None
        state[2][0].clear()
        assert len(_native.generator_state(original)) == 5

    watched = (
        value,
        error,
        log,
        on_the_stack,
        on_the_stack.__code__,
        guarded,
        guarded.__code__,
        original,
        NULL,
    )
    once()
    gc.collect()
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(300):
        once()
    gc.collect()
    assert [sys.getrefcount(one) for one in watched] == before


def test_it_is_collected():
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    slots = slots_of(numbers, n=thing, step=1, named={}, total=0, i=1)
    thing.generator = _native.suspended_generator(
        numbers, offset_of(numbers, "YIELD_VALUE"), slots, (iter(()),)
    )
    del thing, slots
    gc.collect()
    assert gone() is None
