"""Variables: local, cell, global."""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame, handles
from ingot.capture.values.base import NULL, Value
from ingot.capture.values.containers import DictValue
from ingot.capture.values.functions import CellValue
from ingot.capture.values.local_members import ClassNames


def _unbound(frame: InterpreterFrame, slot: int) -> Exception:
    name = frame.program.names[slot]
    return frame.session.raised(
        UnboundLocalError,
        f"cannot access local variable '{name}' where it is not associated with a value",
    )


@handles("LOAD_CONST")
def load_const(frame: InterpreterFrame, value: Any) -> None:
    frame.push(frame.session.wrap_constant(value))


@handles("LOAD_VALUE")
def load_value(frame: InterpreterFrame, value: Value) -> None:
    frame.stack.append(value)


@handles("LOAD_FAST")
def load_fast(frame: InterpreterFrame, slot: int) -> None:
    value = frame.slots[slot]
    if value is NULL:
        raise _unbound(frame, slot)
    frame.stack.append(value)


@handles("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(frame: InterpreterFrame, slot: int) -> None:
    frame.push(frame.slots[slot])
    frame.slots[slot] = NULL


@handles("STORE_FAST")
def store_fast(frame: InterpreterFrame, slot: int) -> None:
    frame.slots[slot] = frame.stack.pop()


@handles("DELETE_FAST")
def delete_fast(frame: InterpreterFrame, slot: int) -> None:
    if frame.slots[slot] is NULL:
        raise _unbound(frame, slot)
    frame.slots[slot] = NULL


@handles("MAKE_CELL")
def make_cell(frame: InterpreterFrame, slot: int) -> None:
    frame.slots[slot] = CellValue(frame.slots[slot])


@handles("COPY_FREE_VARS")
def copy_free_vars(frame: InterpreterFrame, count: int) -> None:
    frame.slots[len(frame.slots) - count :] = frame.function.cells


def _cell(frame: InterpreterFrame, slot: int) -> CellValue:
    cell = frame.slots[slot]
    assert isinstance(cell, CellValue), frame.program.names[slot]
    return cell


@handles("LOAD_DEREF")
def load_deref(frame: InterpreterFrame, slot: int) -> None:
    frame.push(_content(frame, slot))


def _content(frame: InterpreterFrame, slot: int) -> Value:
    cell = _cell(frame, slot)
    if cell.content is not NULL:
        return cell.content
    session, name = frame.session, frame.program.names[slot]
    if cell.source is not None and session.effects.fields(cell.object) is None:
        raise session.unsupported("unbound-name", f"the outer variable {name!r} is not bound yet")
    if name not in frame.program.code.co_freevars:
        raise _unbound(frame, slot)
    message = "where it is not associated with a value in enclosing scope"
    raise session.raised(NameError, f"cannot access free variable '{name}' {message}")


@handles("STORE_DEREF")
def store_deref(frame: InterpreterFrame, slot: int) -> None:
    _set_cell(frame, slot, frame.stack.pop())


@handles("DELETE_DEREF")
def delete_deref(frame: InterpreterFrame, slot: int) -> None:
    _content(frame, slot)  # raises where there is none
    _set_cell(frame, slot, NULL)


def _set_cell(frame: InterpreterFrame, slot: int, content: Value) -> None:
    cell = _cell(frame, slot)
    cell.content = content
    if cell.source is not None:
        frame.session.effects.set_cell(frame.session, cell, content)


@handles("LOAD_NAME")
def load_name(frame: InterpreterFrame, name: str) -> None:
    if frame.names is not None and name in frame.names:
        frame.push(frame.names[name])
    else:
        load_global(frame, name)


@handles("LOAD_CLASSDEREF")
def load_class_deref(frame: InterpreterFrame, slot: int) -> None:
    name = frame.program.names[slot]
    if frame.names is not None and name in frame.names:
        frame.push(frame.names[name])
    else:
        load_deref(frame, slot)


@handles("LOAD_LOCALS")
def load_locals(frame: InterpreterFrame, _: Any) -> None:
    if frame.names is None:
        raise frame.session.unsupported("unbound-name", "the names of a module are asked for")
    frame.push(ClassNames(frame.names))


@handles("LOAD_FROM_DICT_OR_DEREF")
def load_from_dict_or_deref(frame: InterpreterFrame, slot: int) -> None:
    value = _in_namespace(frame, frame.program.names[slot])
    if value is None:
        load_deref(frame, slot)
    else:
        frame.push(value)


@handles("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(frame: InterpreterFrame, name: str) -> None:
    value = _in_namespace(frame, name)
    if value is None:
        load_global(frame, name)
    else:
        frame.push(value)


def _in_namespace(frame: InterpreterFrame, name: str) -> Value | None:
    """What the namespace of a class, which is on the stack, has under a name."""
    names = frame.pop()
    if isinstance(names, ClassNames):
        return names.names.get(name)
    if isinstance(names, DictValue):
        return names.find(frame.session, name)
    raise frame.session.unsupported("unbound-name", f"the name {name!r} in a namespace")


@handles("LOAD_GLOBAL")
def load_global(frame: InterpreterFrame, name: str) -> None:
    session, namespace = frame.session, frame.function.namespace
    value = session.wrap_global(namespace, name) or session.wrap_builtin(namespace, name)
    if value is None:
        raise session.raised(NameError, f"name '{name}' is not defined")
    frame.push(value)


@handles("STORE_GLOBAL")
def store_global(frame: InterpreterFrame, name: str) -> None:
    frame.session.effects.set_name(frame.function.namespace, name, frame.stack.pop())


@handles("DELETE_GLOBAL")
def delete_global(frame: InterpreterFrame, name: str) -> None:
    session, namespace = frame.session, frame.function.namespace
    if session.wrap_global(namespace, name) is None:
        raise session.raised(NameError, f"name '{name}' is not defined")
    session.effects.set_name(namespace, name, NULL)


@handles("STORE_NAME")
def store_name(frame: InterpreterFrame, name: str) -> None:
    _class_names(frame, name)[name] = frame.stack.pop()


@handles("DELETE_NAME")
def delete_name(frame: InterpreterFrame, name: str) -> None:
    if _class_names(frame, name).pop(name, None) is None:
        raise frame.session.raised(NameError, f"name '{name}' is not defined")


@handles("SETUP_ANNOTATIONS")
def setup_annotations(frame: InterpreterFrame, _: Any) -> None:
    if frame.names is not None:
        frame.names.setdefault("__annotations__", DictValue((), dict))


def _class_names(frame: InterpreterFrame, name: str) -> dict[str, Value]:
    """The namespace of the class whose body runs."""
    if frame.names is None:
        raise frame.session.unsupported("unbound-name", f"the name {name!r} of a module is set")
    return frame.names


@handles("IMPORT_NAME")
def import_name(frame: InterpreterFrame, name: str) -> None:
    names, level = frame.pop().constant(), frame.pop().constant()
    frame.push(frame.session.imported(name, level, frame.function.namespace, bool(names)))


@handles("IMPORT_FROM")
def import_from(frame: InterpreterFrame, name: str) -> None:
    session, module = frame.session, frame.peek()
    value = session.optional_attribute(module, name)
    if value is None:
        raise session.unsupported(
            "unbound-name", f"{name!r} is imported from {module.describe()}, which does not have it"
        )
    frame.push(value)
