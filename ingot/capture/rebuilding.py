"""Functions that a residual calls to build objects as they are in eager.

They run in the program, not during capture.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import CellType
from typing import Any

from ingot.capture import residual
from ingot.capture.residual import Recipe
from ingot.capture.values.keys import custom_hash
from ingot.capture.values.sets import SetValue
from ingot.native import _native

CELL: Any = vars(CellType)["cell_contents"]
FACTORY: Any = vars(defaultdict)["default_factory"]


def stored(
    key: Any, key_recipe: Recipe, item: Recipe
) -> tuple[Callable[..., Any], tuple[Recipe, ...]]:
    """The call that puts a key and its item into a dict. A hash that a `__hash__` of the user's
    gave is not asked for again."""
    known = custom_hash(key)
    if known is None:
        return dict.__setitem__, (key_recipe, item)
    return _native.store_hashed, (residual.Constant(known), key_recipe, item)


def set_of(cls: type, hashes: Sequence[int | None], *members: Any) -> Any:
    """A new set of members, some of whose hashes are known."""
    keys: dict[Any, None] = {}
    for known, member in zip(hashes, members):
        if known is None:
            keys[member] = None
        else:
            _native.store_hashed(keys, known, member, None)
    return cls(keys)  # which takes the hashes from it


def building_order(value: SetValue) -> list[Any]:
    """The keys in an order that makes a set of the same order, where there is one."""
    added, ordered = list(value.entries), list(value.hashed)
    keeps_order = list(set(added)) != ordered and list(set(ordered)) == ordered
    if keeps_order:
        return ordered
    return added


def give_traceback(error: BaseException, raiser: Any) -> None:
    """Lets an exception be raised where the user's code raised it, unless it has been."""
    if error.__traceback__ is not None:
        return
    try:
        raiser(error)
    except BaseException:
        assert error.__traceback__ is not None
        error.__traceback__ = error.__traceback__.tb_next


def traceback_of(error: BaseException, raiser: Any) -> Any:
    """The traceback of an exception, which `raiser` raises if it has not been raised yet."""
    if raiser is not None:
        give_traceback(error, raiser)
    return error.__traceback__


def put_attribute(instance: Any, name: Any, value: Any) -> None:
    """Stores in the `__dict__` what a descriptor of the class would take otherwise."""
    object.__getattribute__(instance, "__dict__")[name] = value


def iterator_of(sequence: Any) -> Any:
    """An iterator over a list or tuple."""
    return (list if isinstance(sequence, list) else tuple).__iter__(sequence)


def set_position(iterator: Any, position: int, ended: bool) -> None:
    """Puts an iterator over a list or tuple where it has given `position` elements already, and
    perhaps said that there are no more."""
    iterator.__setstate__(sys.maxsize if ended else position)  # which is cut to the length
    if ended:
        next(iterator, None)


_NOTHING: tuple[Any, ...] = ()


def finished_generator(name: str, qualname: str) -> Any:
    """A generator that has nothing more to give."""
    generator: Any = (element for element in _NOTHING)
    next(generator, None)
    generator.__name__, generator.__qualname__ = name, qualname
    return generator


def advanced(container: Any, position: int, ended: bool) -> Any:
    """An iterator that has given `position` elements already, and perhaps said that there are no
    more."""
    iterator = iter(container)
    for _ in range(position):
        next(iterator)
    if ended:
        next(iterator, None)
    return iterator
