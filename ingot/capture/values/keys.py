"""The keys of captured dicts and the members of captured sets, as `Value.key` makes them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ingot.capture.bytecode import VERSION
from ingot.capture.facts import is_plain_constant
from ingot.capture.values.base import Keywords, Raised, Value, full_name
from ingot.capture.values.exceptions import ExceptionValue
from ingot.capture.values.objects import ContentKey, HashedKey, IdentityKey, ObjectValue
from ingot.capture.values.sequences import TupleValue

if TYPE_CHECKING:
    from ingot.capture.session import Session


def ordered_key_error(session: Session, key: Value) -> Exception:
    """What the methods of OrderedDict raise: a tuple gives all arguments of the error, None is
    none."""
    if isinstance(key, TupleValue):
        return session.raising(ExceptionValue(KeyError, key.items))
    if key.identity() is None:
        return session.raising(ExceptionValue(KeyError, []))
    return session.raising(ExceptionValue(KeyError, [key]))


_PLAIN_KEYS = frozenset({str, int, bool, float, bytes, type(None)})


def dict_key(session: Session, value: Value) -> Any:
    """What stands for a value as a key of a dict."""
    return _usable_key(session, value, "a dict key")


def member_key(session: Session, value: Value) -> Any:
    """What stands for a value as a member of a set."""
    return _usable_key(session, value, "a set element")


def _usable_key(session: Session, value: Value, purpose: str) -> Any:
    """Its key. Since 3.14 Python tells what was to be done with an object that has no hash."""
    try:
        return value.key(session)
    except Raised as raised:
        if VERSION < (3, 14) or raised.value.python_type() is not TypeError:
            raise
        reason = session.text_of(raised.value, str)
        kind = full_name(value.python_type())
        raise session.raised(TypeError, f"cannot use '{kind}' as {purpose} ({reason})") from None


def is_plain_key(key: Any) -> bool:
    """Whether a key is looked up by value, without code of the user's."""
    return type(key) in _PLAIN_KEYS or is_plain_constant(key)


def is_guarded_alone(key: Any) -> bool:
    """Whether a guard can look a key up in a container, which it then says nothing else of."""
    return is_plain_key(key) or type(key) is type


def custom_hash(key: Any) -> int | None:
    """The hash of a key that a `__hash__` of the user's gave. None where none was asked, and where
    a tuple also holds an object that hashes by its identity, which may not be made yet."""
    if isinstance(key, HashedKey):
        return key.number
    if type(key) is not tuple:
        return None
    has_custom = False
    for element in key:
        if custom_hash(element) is not None:
            has_custom = True
        # NaN hashes by its identity, too
        elif type(element) not in _PLAIN_KEYS or element != element:
            return None
    if not has_custom:
        return None
    return hash(key)


def plain_key(key: Any) -> Any:
    """The key of what an instance of a subclass holds in place of that of the instance."""
    if isinstance(key, ContentKey):
        return plain_key(key.content)
    if type(key) is tuple:
        return tuple(map(plain_key, key))
    return key


class ArgumentName(str):
    """The name of an argument that a call gives as an instance of a subclass of str. Where the
    arguments make a dict, this has its `key`."""

    key: IdentityKey


def argument_key(name: str) -> Any:
    """The key of an argument in the dict that a function takes the arguments in which it does not
    name."""
    if isinstance(name, ArgumentName):
        return name.key
    return name


def require_plain_names(session: Session, kwargs: Keywords) -> None:
    """Refuses arguments that are kept under their names, where one of these is more than its
    text."""
    if ArgumentName in map(type, kwargs):
        raise session.unsupported(
            "builtin-subclass", "an argument named by an instance of a subclass of str"
        )


def outside_key(session: Session, key: Any) -> Any:
    """What a container that existed before the call holds in the place of a key."""
    if isinstance(key, IdentityKey):
        return key.outside(session)
    if type(key) is tuple:
        return tuple(map(partial(outside_key, session), key))
    return key


def matching_key(session: Session, key: Any, keys: Iterable[Any]) -> Any:
    """The key that may stand for one which is not among `keys`. A number and the id() of an object
    compare only where the object is from outside."""
    if isinstance(key, IdentityKey) and key.is_number:
        if int in map(type, keys):
            return key.outside(session)
        return key
    if (
        type(key) is int
        and key > _LEAST_ID
        and any(isinstance(k, IdentityKey) and k.is_number for k in keys)
    ):
        raise session.unsupported("identity", "a number is looked for among those of id()")
    return key


_LEAST_ID = 1 << 16  # no object lies below it


def guarded_key(session: Session, key: Any) -> Any:
    """The key in `DictValue.entries` of a key that a guard holds."""
    if type(key) in _PLAIN_KEYS:
        return key
    value = session.wrap_constant(key)
    if type(value) is ObjectValue:
        return session.identity_key(value)
    return value.key(session)
