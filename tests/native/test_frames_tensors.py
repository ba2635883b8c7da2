"""Whether tensors are near at hand, and the entry that is called where they are."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ingot.capture import inner_calls
from ingot.native import _native

from .leaks import blocks_kept

NULL = _native.NULL
T = torch.ones(1)


class Plain:
    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)


class Slotted:
    __slots__ = ("held",)


class Items(list): ...


class Fields(dict): ...


class Number(int): ...


class Bound(functools.partial): ...


class Layer(torch.nn.Linear): ...


class Hostile:
    """None of its methods may be called."""

    def _fail(self, *args: Any) -> Any:
        raise AssertionError("code of the user's has run")

    __class__ = property(_fail)  # type: ignore[assignment]
    __getattr__ = __iter__ = __len__ = __eq__ = __hash__ = _fail  # type: ignore[assignment]


def named(values: list[Any]) -> dict[str, Any]:
    return {f"k{i}": value for i, value in enumerate(values)}


def near(*arguments: Any) -> bool:
    return _native.tensors_are_near(Plain.__init__, arguments)


def test_tensors_and_modules() -> None:
    for value in (T, torch.nn.Parameter(T), torch.nn.Linear(1, 1), Layer(1, 1)):
        assert near(value) and near(1, value)
    for value in (None, 1, 2.5, "text", torch, torch.Tensor, torch.nn.Linear, T.dtype, T.device):
        assert not near(value)
    assert not near()


def test_one_level_of_what_holds_them() -> None:
    number = Number(3)
    assert not near(number)
    number.held = T  # type: ignore[attr-defined]
    keywords: dict[str, Any] = {"x": T}
    for holder in (
        [T],
        (1, T),
        {"a": T},
        Items([T]),
        Fields(a=T),
        Plain(a=1, b=T),
        number,
        functools.partial(print, T),
        functools.partial(print, x=T),
        Bound(print, 1, **keywords),
        types.SimpleNamespace(a=T),
    ):
        assert near(holder) and not near([holder])
    slotted = Slotted()
    slotted.held = T
    assert not near(slotted, {T: 1}, {1, 2}, iter([T]))


def test_the_first_sixteen() -> None:
    for make in (
        list,
        tuple,
        lambda items: dict(enumerate(items)),
        lambda items: functools.partial(print, *items),
        lambda items: functools.partial(
            print, items[0], **{f"k{i}": v for i, v in enumerate(items[1:])}
        ),
        lambda items: Plain(**named(items)),
    ):
        assert near(make([1] * 15 + [T])) and not near(make([1] * 16 + [T]))


def test_attributes_in_the_order_in_which_they_were_set() -> None:
    class Other(Plain): ...

    first = Other(**named([0] * 20))
    assert not near(first)
    late = Other(k19=T, **named([0] * 15))
    assert near(late) and not near(Other(**named([0] * 16), k19=T))
    del late.k19  # type: ignore[attr-defined]
    assert not near(late)


def test_instances_keep_their_attributes_as_they_were() -> None:
    def dicts(instance: Any) -> int:
        return sum(isinstance(held, dict) for held in gc.get_referents(instance))

    instance = Plain(a=1, b=T)
    assert dicts(instance) == 0
    assert near(instance) and dicts(instance) == 0
    vars(instance)["c"] = 2
    assert near(instance)
    vars(instance).clear()
    assert not near(instance)
    instance.__dict__ = {"other": T}
    assert near(instance)
    assert not near(Plain()) and not near(Plain)


def test_the_closure() -> None:
    def make() -> Any:
        def function() -> Any:
            return held

        assert not _native.tensors_are_near(function, ())  # the cell is empty
        held = [T]
        assert _native.tensors_are_near(function, ())
        held = []
        return function

    assert not _native.tensors_are_near(make(), ())


def test_no_code_of_the_users_runs() -> None:
    assert not near(Hostile(), [Hostile()], {"a": Hostile()}, Plain(a=Hostile()))


def test_looking_keeps_nothing() -> None:
    values = ([T], Plain(a=1), functools.partial(print, 1, x=2), {"a": 1}, Number(1))

    def once() -> None:
        for value in values:
            near(value)

    assert blocks_kept(once, times=10_000) < 100


# -- the tensor entry ------------------------------------------------------------------------------


def scaled(x: Any, factor: Any = 2, *rest: Any, **named: Any) -> Any:
    return "as it is"


@pytest.fixture
def entry() -> Iterator[list[Any]]:
    """What the tensor entry was called with; it is that of `scaled`."""
    seen: list[Any] = []

    def entry(capturer: Any, function: Any, *parameters: Any) -> Any:
        seen.append((capturer, function, *parameters))
        return NULL if capturer is None else "entry"

    handler = _native.set_frame_handler(None)
    _native.set_tensor_entry(entry, (torch.Tensor,), "mark")
    _native.set_code_entry(scaled.__code__, entry)
    yield seen
    inner_calls.set_entry()
    _native.set_frame_handler(handler)
    _native.clear_code_entries()
    vars(scaled).clear()


def hooked(*args: Any, capturer: Any = None) -> Any:
    return _native.call_hooked(scaled, args, capturer)


def test_the_entry_is_for_frames_with_tensors(entry: list[Any]) -> None:
    capturer: dict[int, Any] = {}
    assert hooked(1, capturer=capturer) == "as it is" and entry == []
    assert hooked(T, capturer=capturer) == "entry"
    assert hooked(1, 2, T, capturer=capturer) == "entry"
    assert entry[0][0] is capturer and entry[0][1:] == (scaled, T, 2, (), {})
    assert entry[1][1:] == (scaled, 1, 2, (T,), {})
    assert scaled(T) == hooked(T) == "as it is"  # nobody captures
    assert len(entry) == 2


def test_an_entry_that_the_capturer_has(entry: list[Any]) -> None:
    capturer = {id(scaled.__code__): lambda function, x, factor, rest, named: (x, factor)}
    assert hooked(T, 3, capturer=capturer) == (T, 3) and hooked(1, capturer=capturer) == "as it is"
    scaled.mark = True  # type: ignore[attr-defined]
    assert hooked(T, capturer=capturer) == "entry" and len(entry) == 1


def test_marks_are_looked_for_at_each_call(entry: list[Any]) -> None:
    scaled.other = True  # type: ignore[attr-defined]
    assert hooked(1, capturer={}) == "as it is" and entry == []
    scaled.mark = True  # type: ignore[attr-defined]
    assert hooked(1, capturer={}) == "as it is" and entry == [(None, scaled, 1, 2, (), {})]


def test_who_captures(entry: list[Any]) -> None:
    first: dict[int, Any] = {}
    second: dict[int, Any] = {}

    def inside() -> Any:
        results = [scaled(T), hooked(T, capturer=second), hooked(T), scaled(T)]
        _native.hook_pause()
        results.append(scaled(T))
        _native.hook_unpause()
        return [*results, scaled(T)]

    results = _native.call_hooked(inside, (), first)
    assert results == ["entry", "entry", "as it is", "entry", "as it is", "entry"]
    assert [seen[0] is first for seen in entry] == [True, False, True, True]
    for wrong in (1, "text", [1]):
        with pytest.raises(TypeError):
            hooked(T, capturer=wrong)


def test_the_capturer_is_back_after_an_error(entry: list[Any]) -> None:
    def fails(*args: Any) -> Any:
        assert scaled(T) == "as it is"  # within an entry nobody captures
        raise KeyError

    def inside() -> Any:
        with pytest.raises(KeyError):
            scaled(T)
        capturer.clear()
        return scaled(T)

    capturer = {id(scaled.__code__): fails}
    assert _native.call_hooked(inside, (), capturer) == "entry"


def test_no_reference_is_kept(entry: list[Any]) -> None:
    capturers: list[dict[int, Any]] = [{}, {id(scaled.__code__): lambda *_: 1}]

    def once() -> None:
        for capturer in capturers:
            hooked(T, capturer=capturer)
        entry.clear()

    assert blocks_kept(once, times=10_000) < 100


def test_what_is_wrong_with_an_entry() -> None:
    for arguments in ((1, (torch.Tensor,), "mark"), (print, (int,), "mark"), (print, (1,), "mark")):
        with pytest.raises(TypeError):
            _native.set_tensor_entry(*arguments)
