"""The instruction at a graph break, carried out for real by a small Python function.

That is compiled under the name, file and line of the user's function, so that tracebacks, warnings
and loggers see what they would see in eager.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, TracebackType
from typing import Any

from ingot.capture.bytecode import Instruction
from ingot.capture.values.base import full_name

END = object()
"""What the step of FOR_ITER gives at the end of the loop."""


@dataclass(frozen=True)
class Step:
    """What an instruction does: `pops` operands are taken from the stack, `body` is Python with
    those operands as `a0`, `a1` ... (bottom first). `peeks` are operands further down, by depth
    below the popped ones, which stay; they follow the popped ones as arguments. It gives one
    result, or `results` of them in a tuple, to be pushed in order. A `branch` gives a truth
    instead, and jumps if it is `jumps_if`; if it `keeps`, its operand stays where it jumps."""

    pops: int
    body: str
    peeks: tuple[int, ...] = ()
    results: int = 1
    branch: bool = False
    jumps_if: bool = False
    keeps: bool = False


def _value(
    pops: int, body: str, peeks: tuple[int, ...] = (), results: int = 1
) -> Callable[[Instruction], Step]:
    """A step in whose body `{}` stands for the instruction's argument."""
    return lambda ins: Step(pops, body.format(ins.arg), peeks, results)


def _statement(pops: int, body: str) -> Callable[[Instruction], Step]:
    return _value(pops, body, results=0)


def _jump(
    jumps_if: bool, keeps: bool = False, body: str = "return bool(a0)"
) -> Callable[[Instruction], Step]:
    return lambda _: Step(1, body, branch=True, jumps_if=jumps_if, keeps=keeps)


def _operands(count: int, first: int = 0) -> str:
    return ", ".join(f"a{i}" for i in range(first, first + count))


def _applied(pops: int) -> Callable[[Instruction], Step]:
    """The instruction's argument is the function to call."""
    return lambda ins: Step(pops, f"return apply({_operands(pops)})")


def _build_map(ins: Instruction) -> Step:
    pairs = ", ".join(f"a{i}: a{i + 1}" for i in range(0, 2 * ins.arg, 2))
    return Step(2 * ins.arg, f"return {{{pairs}}}")


def _unpack_sequence(ins: Instruction) -> Step:
    names = [f"x{i}, " for i in range(ins.arg)]
    targets, results = "".join(names), "".join(reversed(names))
    return Step(1, f"[{targets}] = a0; return ({results})", results=ins.arg)


def _unpack_ex(ins: Instruction) -> Step:
    before, after = ins.arg
    names = []
    for i in range(before + 1 + after):
        names.append(f"x{i}, ")
    targets = "".join([*names[:before], "*", *names[before:]])
    results = "".join(reversed(names))
    return Step(1, f"{targets} = a0; return ({results})", results=len(names))


def _on_container(method: str) -> Callable[[Instruction], Step]:
    """A container under construction takes up the popped operand."""
    return lambda ins: Step(1, f"a1.{method}(a0)", (ins.arg,), results=0)


def _merge(ins: Instruction) -> Step:
    return Step(1, "a1.update((lambda **named: named)(**a1, **a0))", (ins.arg,), results=0)


_ERROR = "type(a0), a0, a0.__traceback__"


def bound_exit_step(step: Step) -> Step:
    """WITH_EXCEPT_START where the `__exit__` is a function, and its `self` is beside it."""
    return Step(0, f"return a1(a2, {_ERROR})", (*step.peeks, 4))


def _interpolation(ins: Instruction) -> Step:
    """A field of a t-string: the value, its text, and perhaps a format."""
    conversion = (None, "s", "r", "a")[ins.arg >> 2]
    if ins.arg & 1:
        return Step(3, f"return interpolation(a0, a1, {conversion!r}, a2)")
    return Step(2, f"return interpolation(a0, a1, {conversion!r})")


_RAISES = {0: (0, "raise"), 1: (1, "raise a0"), 2: (2, "raise a0 from a1")}

STEPS: dict[str, Callable[[Instruction], Step]] = {
    "BINARY_OP": _applied(2),
    "COMPARE_OP": _applied(2),
    "UNARY_NEGATIVE": _value(1, "return -a0"),
    "UNARY_POSITIVE": _value(1, "return +a0"),
    "UNARY_INVERT": _value(1, "return ~a0"),
    "UNARY_NOT": _value(1, "return not a0"),
    "TO_BOOL": _value(1, "return bool(a0)"),
    "CONTAINS_OP": lambda ins: Step(2, f"return a0 {'not ' * ins.arg}in a1"),
    "BINARY_SUBSCR": _value(2, "return a0[a1]"),
    "STORE_SUBSCR": _statement(3, "a1[a2] = a0"),
    "DELETE_SUBSCR": _statement(2, "del a0[a1]"),
    "LOAD_ATTR": _value(1, "return a0.{}"),
    "LOAD_SUPER_ATTR": _value(3, "return a0(a1, a2).{}"),
    "STORE_ATTR": _statement(2, "a1.{} = a0"),
    "DELETE_ATTR": _statement(1, "del a0.{}"),
    "LOAD_GLOBAL": _value(0, "return {}"),
    "STORE_GLOBAL": _statement(1, "global {0}; {0} = a0"),
    "DELETE_GLOBAL": _statement(0, "global {0}; del {0}"),
    "LOAD_BUILD_CLASS": _value(0, "return __build_class__"),
    "IMPORT_NAME": _value(2, "return __import__({!r}, globals(), None, a1, a0)"),
    "IMPORT_FROM": _value(0, "return import_from(a0, {!r})", (1,)),
    "GET_ITER": _value(1, "return iter(a0)"),
    "FOR_ITER": lambda _: Step(0, "return next(a0, END)", (1,), branch=True, jumps_if=False),
    "UNPACK_SEQUENCE": _unpack_sequence,
    "UNPACK_EX": _unpack_ex,
    "BUILD_SET": lambda ins: Step(ins.arg, f"return {{{_operands(ins.arg)}}}"),
    "BUILD_MAP": _build_map,
    "LIST_TO_TUPLE": _value(1, "return (*a0,)"),
    "LIST_EXTEND": _on_container("extend"),
    "SET_UPDATE": _on_container("update"),
    "SET_ADD": _on_container("add"),
    "DICT_UPDATE": _on_container("update"),
    "DICT_MERGE": _merge,
    "MAP_ADD": lambda ins: Step(2, "a2[a0] = a1", (ins.arg,), results=0),
    "FORMAT_SIMPLE": _value(1, "return format(a0)"),
    "FORMAT_WITH_SPEC": _value(2, "return format(a0, a1)"),
    "CONVERT_VALUE": _applied(1),
    "BUILD_STRING": lambda ins: Step(ins.arg, f"return ''.join([{_operands(ins.arg)}])"),
    "BEFORE_WITH": _value(1, "return enter(a0)", results=2),
    "LOAD_SPECIAL": _value(1, "return special(a0, {!r})"),
    "WITH_EXCEPT_START": lambda ins: Step(0, f"return a1({_ERROR})", (1, ins.arg)),
    "BUILD_INTERPOLATION": _interpolation,
    "BUILD_TEMPLATE": _value(2, "return template(a0, a1)"),
    "CHECK_EXC_MATCH": _value(1, "return matches(a1, a0)", (1,)),
    "RAISE_VARARGS": lambda ins: Step(*_RAISES[ins.arg], results=0),
    "POP_JUMP_IF_TRUE": _jump(True),
    "POP_JUMP_IF_FALSE": _jump(False),
    "POP_JUMP_IF_NONE": _jump(True, body="return a0 is None"),
    "POP_JUMP_IF_NOT_NONE": _jump(False, body="return a0 is None"),
    "IS_OP": lambda ins: Step(2, f"return a0 is {'not ' * ins.arg}a1"),
    "JUMP_IF_TRUE_OR_POP": _jump(True, keeps=True),
    "JUMP_IF_FALSE_OR_POP": _jump(False, keeps=True),
}
"""Instructions that can be carried out apart from their frame. Calls are made by `call_step`."""


def call_step(positional: int, names: Sequence[str]) -> Step:
    """A call of operand 0 with `positional` arguments and then one for each keyword."""
    args = _operands(positional, 1)
    for i, name in enumerate(names, 1 + positional):
        args += f", {name}=a{i}"
    return Step(1 + positional + len(names), f"return a0({args.removeprefix(', ')})")


def spread_call_step(bound: int, has_keywords: bool) -> Step:
    """A call of operand 0 with `bound` arguments, then `*args`, then `**kwargs`."""
    args = f"{_operands(bound, 1)}, *a{1 + bound}"
    if has_keywords:
        args += f", **a{2 + bound}"
    return Step(2 + bound + has_keywords, f"return a0({args.removeprefix(', ')})")


def _enter(manager: Any) -> tuple[Any, Any]:
    """What `with` does first: its bound `__exit__`, and what `__enter__` gave."""
    cls = type(manager)
    for name in ("__enter__", "__exit__"):
        if not hasattr(cls, name):
            message = f"'{cls.__name__}' object does not support the context manager protocol"
            if name == "__exit__":
                message += " (missed __exit__ method)"
            raise TypeError(message)
    leave = cls.__exit__
    if hasattr(leave, "__get__"):
        leave = leave.__get__(manager, cls)
    return leave, cls.__enter__(manager)


def _special(manager: Any, name: str) -> Any:
    """A method that `with` calls, as Python 3.14 asks for it."""
    cls = type(manager)
    method: Any = END
    for base in reversed(cls.__mro__):
        method = vars(base).get(name, method)
    if method is END:
        message = f"'{full_name(cls)}' object does not support the context manager protocol"
        hint = ""
        if hasattr(cls, "__aenter__") and hasattr(cls, "__aexit__"):
            hint = (
                " but it supports the asynchronous context manager protocol."
                " Did you mean to use 'async with'?"
            )
        raise TypeError(f"{message} (missed {name} method){hint}")
    if hasattr(type(method), "__get__"):
        return method.__get__(manager, cls)
    return method


def _interpolated(*parts: Any) -> Any:
    from string.templatelib import Interpolation  # type: ignore[import-not-found] # since 3.14

    return Interpolation(*parts)


def _template(texts: tuple[str, ...], fields: tuple[Any, ...]) -> Any:
    from string.templatelib import Template  # type: ignore[import-not-found] # since 3.14

    parts = [texts[0]]
    for field, text in zip(fields, texts[1:]):
        parts += field, text
    return Template(*parts)


def _import_from(module: Any, name: str) -> Any:
    """`from module import name`: an attribute, or else a submodule that is loaded."""
    try:
        return getattr(module, name)
    except AttributeError:
        origin = getattr(module, "__name__", "<unknown module name>")
        submodule = f"{origin}.{name}"
        if submodule in sys.modules:
            return sys.modules[submodule]
        where = getattr(module, "__file__", None) or "unknown location"
        raise ImportError(
            f"cannot import name {name!r} from {origin!r} ({where})", name=name, path=where
        ) from None


def _matches(raised: BaseException, classes: Any) -> bool:
    """Whether an except clause takes an exception."""
    if not isinstance(classes, tuple):
        classes = (classes,)
    if not all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes):
        raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    return issubclass(type(raised), classes)


_SEEMING = object()
"""The last constant of the code of such functions. The code itself says what it is: a set of codes
would not do, as codes compare by value, and a weak set forgets both of two equal ones when the
first of them dies."""


def is_step(code: CodeType) -> bool:
    """Whether it is the code of a function that only seems to be the user's."""
    constants = code.co_consts
    return bool(constants) and constants[-1] is _SEEMING


def behind_steps(traceback: TracebackType | None) -> TracebackType | None:
    """The part of a traceback behind the calls of Ingot's own and of the steps: what the
    instruction itself called."""
    behind = traceback
    while traceback is not None:
        code, traceback = traceback.tb_frame.f_code, traceback.tb_next
        if is_step(code):
            behind = traceback
    return behind


# which the user's globals may call something else
_BUILTINS = ("bool", "format", "globals", "iter", "next", "type")
_HELPERS = {"END": END, "enter": _enter, "import_from": _import_from, "matches": _matches}
_HELPERS |= {"special": _special, "interpolation": _interpolated, "template": _template}
_HELPERS |= {name: getattr(builtins, name) for name in _BUILTINS}


def user_function(
    code: CodeType,
    line: int,
    body: str,
    parameters: str,
    namespace: dict[str, Any],
    helpers: dict[str, Any],
) -> FunctionType:
    """A function of one line that seems to be the user's: file, name and line of `code`, and its
    globals. The names in `helpers` are bound in the function alone. Recursion aside, its body sees
    nothing of ours."""
    header = f"def make_step({', '.join(helpers)}):\n"
    # The outer function only binds the helpers, as closure variables.
    source = header + f" def step({parameters}): {body}\n return step"
    scope: dict[str, Any] = {}
    exec(compile(source, "<ingot step>", "exec"), scope)
    step: FunctionType = scope["make_step"](*helpers.values())
    step_code = step.__code__.replace(
        co_consts=(*step.__code__.co_consts, _SEEMING),
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_filename=code.co_filename,  # which no file may be called: compile() would refuse it
        co_firstlineno=line,
    )
    return FunctionType(step_code, namespace, code.co_name, None, step.__closure__)


def caller_function(
    callee: Callable[..., Any], code: CodeType, line: int, namespace: dict[str, Any]
) -> FunctionType:
    """A function that seems to be the user's and calls `callee`."""
    return user_function(code, line, "return callee(*args)", "*args", namespace, {"callee": callee})


def step_function(
    step: Step, instruction: Instruction, code: CodeType, namespace: dict[str, Any]
) -> FunctionType:
    """The Python function of a step."""
    helpers = {}
    for name, helper in _HELPERS.items():
        if f"{name}(" in step.body or f"{name})" in step.body:
            helpers[name] = helper
    if "apply(" in step.body:
        helpers["apply"] = instruction.arg
    if "__build_class__" in step.body:
        helpers["__build_class__"] = builtins.__build_class__
    parameters = _operands(step.pops + len(step.peeks))
    return user_function(code, instruction.line, step.body, parameters, namespace, helpers)
