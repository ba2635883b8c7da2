"""How the arguments of a call become the variables of a Python function, as CPython binds them, errors included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.capture.bytecode import VERSION
from ingot.capture.values.base import NULL, Arguments, Keywords, Value

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.values.functions import FunctionValue


def bind(session: Session, function: FunctionValue, args: Arguments, kwargs: Keywords) -> list[Value]:
    """The values of a function's parameters, in the order of `co_varnames`."""
    code = function.code
    positional, total = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    if len(args) == total == positional and not kwargs and not code.co_flags & 12:
        return list(args)
    bound: list[Value] = [NULL] * total
    bound[: min(len(args), positional)] = args[:positional]
    rest = _place_keywords(session, function, bound, kwargs) if kwargs else {}
    if len(args) > positional and not code.co_flags & 4:
        raise _refused(session, function, _too_many(function, bound, len(args)))
    _fill_defaults(session, function, bound)
    if code.co_flags & 4:
        bound.append(session.tuple_of_values(args[positional:]))
    if code.co_flags & 8:
        bound.append(session.dict_of_values(rest))
    return bound


def _place_keywords(
    session: Session, function: FunctionValue, bound: list[Value], kwargs: Keywords
) -> dict[str, Value]:
    """Puts keyword arguments in their places, and gives those that have none."""
    code, rest = function.code, {}
    names = code.co_varnames[: len(bound)]
    for name, value in kwargs.items():
        if type(name) is not str:
            raise session.raised(TypeError, "keywords must be strings")
        place = names.index(name, code.co_posonlyargcount) if name in names[code.co_posonlyargcount :] else -1
        if place >= 0:
            if bound[place] is not NULL:
                raise _refused(session, function, f"got multiple values for argument '{name}'")
            bound[place] = value
        elif code.co_flags & 8:
            rest[name] = value
        else:
            raise _unexpected(session, function, name, kwargs)
    return rest


def _refused(session: Session, function: FunctionValue, message: str) -> Exception:
    """TypeError; what a Python version of a C function says is not what the C function says."""
    if function.namespace.get("__name__", "").startswith("ingot.capture."):
        return session.unsupported(f"{function.qualname}() is called with wrong arguments")
    return session.raised(TypeError, f"{function.qualname}() {message}")


def _unexpected(session: Session, function: FunctionValue, name: str, kwargs: Keywords) -> Exception:
    code = function.code
    wrong = [n for n in code.co_varnames[: code.co_posonlyargcount] if n in kwargs]
    if wrong:
        message = "got some positional-only arguments passed as keyword arguments"
        return _refused(session, function, f"{message}: '{', '.join(wrong)}'")
    if VERSION >= (3, 13):  # which may suggest another name
        return session.unsupported(f"{function.qualname}() gets an unexpected keyword argument '{name}'")
    return _refused(session, function, f"got an unexpected keyword argument '{name}'")


def _too_many(function: FunctionValue, bound: list[Value], given: int) -> str:
    positional, defaults = function.code.co_argcount, len(function.defaults)
    named = sum(value is not NULL for value in bound[positional:])
    takes = f"from {positional - defaults} to {positional}" if defaults else str(positional)
    plural = "s" if defaults or positional != 1 else ""
    also = f" positional argument{_s(given)} (and {named} keyword-only argument{_s(named)})" if named else ""
    were = "was" if given == 1 and not named else "were"
    return f"takes {takes} positional argument{plural} but {given}{also} {were} given"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _fill_defaults(session: Session, function: FunctionValue, bound: list[Value]) -> None:
    code = function.code
    positional, names = code.co_argcount, code.co_varnames
    first_default = positional - len(function.defaults)
    missing = [names[i] for i in range(first_default) if bound[i] is NULL]
    if missing:
        raise _refused(session, function, _missing(missing, "positional"))
    for i in range(max(first_default, 0), positional):
        if bound[i] is NULL:
            bound[i] = function.defaults[i - first_default]
    for i in range(positional, len(bound)):
        if bound[i] is NULL:
            bound[i] = function.keyword_defaults.get(names[i], NULL)
    missing = [names[i] for i in range(positional, len(bound)) if bound[i] is NULL]
    if missing:
        raise _refused(session, function, _missing(missing, "keyword-only"))


def _missing(names: list[str], kind: str) -> str:
    quoted = [f"'{name}'" for name in names]
    if len(quoted) > 2:
        quoted = [", ".join(quoted[:-1]) + ",", quoted[-1]]
    return f"missing {len(names)} required {kind} argument{_s(len(names))}: {' and '.join(quoted)}"
