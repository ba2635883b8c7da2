"""How the arguments of a call become the variables of a Python function, as CPython binds them,
errors included."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from ingot.capture.values.base import NULL, Arguments, Keywords, Value, empty_cells
from ingot.capture.values.functions import is_ingots
from ingot.capture.values.keys import argument_key

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.values.functions import FunctionValue


def bind(
    session: Session, function: FunctionValue, args: Arguments, kwargs: Keywords
) -> list[Value]:
    """The values of a function's parameters, in the order of `co_varnames`."""
    code = function.code
    positional, total = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    if len(args) == total == positional and not kwargs and not code.co_flags & 12:
        return list(args)
    bound: list[Value] = [NULL] * total
    bound[: min(len(args), positional)] = args[:positional]
    rest = _place_keywords(function, bound, kwargs) if kwargs else {}
    if rest is None or len(args) > positional and not code.co_flags & 4:
        raise _refused(session, function, args, kwargs)
    _fill_defaults(function, bound)
    if NULL in bound:
        raise _refused(session, function, args, kwargs)
    if code.co_flags & 4:
        bound.append(session.tuple_of_values(args[positional:]))
    if code.co_flags & 8:
        bound.append(session.dict_of_values(rest))
    return bound


def _place_keywords(
    function: FunctionValue, bound: list[Value], kwargs: Keywords
) -> dict[Any, Value] | None:
    """Puts keyword arguments in their places, and gives those that have none; None where the call
    is wrong."""
    code, rest = function.code, {}
    names = code.co_varnames[: len(bound)]
    for name, value in kwargs.items():
        if name in names[code.co_posonlyargcount :]:
            place = names.index(name, code.co_posonlyargcount)
            if bound[place] is not NULL:
                return None
            bound[place] = value
        elif code.co_flags & 8 and isinstance(name, str):
            rest[argument_key(name)] = value
        else:
            return None
    return rest


def _fill_defaults(function: FunctionValue, bound: list[Value]) -> None:
    positional, names = function.code.co_argcount, function.code.co_varnames
    first_default = positional - len(function.defaults)
    for i in range(max(first_default, 0), positional):
        if bound[i] is NULL:
            bound[i] = function.defaults[i - first_default]
    for i in range(positional, len(bound)):
        if bound[i] is NULL:
            bound[i] = function.keyword_defaults.get(names[i], NULL)


def _refused(
    session: Session, function: FunctionValue, args: Arguments, kwargs: Keywords
) -> Exception:
    """What CPython says of a wrong call, asked of a function that takes the same and does
    nothing."""
    code = function.code
    # the C function says something else
    if is_ingots(function):
        return session.unsupported(
            "wrong-arguments", f"{function.qualname}() is called with wrong arguments"
        )
    nothing = _nothing.__code__
    empty = code.replace(
        co_code=nothing.co_code,
        co_consts=nothing.co_consts,
        co_names=nothing.co_names,
        co_exceptiontable=nothing.co_exceptiontable,
    )
    defaults = (None,) * len(function.defaults)
    model = FunctionType(empty, {}, function.qualname, defaults, empty_cells(code))
    model.__kwdefaults__ = dict.fromkeys(function.keyword_defaults)
    model.__qualname__ = function.qualname
    session.python(lambda: model(*[None] * len(args), **dict.fromkeys(kwargs)))
    return session.unsupported(
        "wrong-arguments", f"{function.qualname}() is called with wrong arguments"
    )


def _nothing() -> None:
    pass
