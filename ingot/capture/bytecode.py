"""Instructions as data: every version of CPython's bytecode, translated to one vocabulary. All
version differences live here.

The interpreter's handlers know only the names that `normalize` emits. Superinstructions are split,
fused instructions (BINARY_SLICE, FORMAT_VALUE, RETURN_CONST, ...) are spelled out, a jump's
argument is the index of an instruction, a variable is a slot of `localsplus` (so that a name which
is both a local and a cell needs no special care), and the marker beneath or above a callable is
always pushed by an instruction of its own. The depth of the operand stack stays CPython's own, as
exception tables and continuations count on it.
"""

from __future__ import annotations

import dis
import opcode
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import (
    CO_ASYNC_GENERATOR,
    CO_COROUTINE,
    CO_GENERATOR,
    CO_VARARGS,
    CO_VARKEYWORDS,
)
from types import CodeType
from typing import Any, NamedTuple

VERSION = sys.version_info[:2]


@dataclass(slots=True, eq=False)  # not frozen: thousands are made at the first call
class Instruction:
    """One normalized instruction: `arg` is a constant, a name, a slot, a count or a jump target;
    `line` the user's line."""

    op: str
    arg: Any
    line: int
    offset: int


class Handler(NamedTuple):
    """A row of the exception table: `start <= index < end` goes to `target` with the stack cut to
    `depth`."""

    start: int
    end: int
    target: int
    depth: int
    push_index: bool


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The normalized code of one code object."""

    code: CodeType
    instructions: tuple[Instruction, ...]
    handlers: tuple[Handler, ...]
    names: tuple[str, ...]
    parameters: int
    is_generator: bool

    def handler_at(self, index: int) -> Handler | None:
        """The innermost exception handler that covers an instruction."""
        for handler in self.handlers:
            if handler.start <= index < handler.end:
                return handler
        return None

    def written_handler_at(self, index: int) -> Handler | None:
        """The innermost handler in the program's own text that covers an instruction. An inlined
        comprehension (PEP 709) has one that the compiler adds: it puts a variable back and lets the
        exception go on."""
        handler = self.handler_at(index)
        while handler is not None:
            end = handler.target
            while self.instructions[end].op in _PUTS_BACK:
                end += 1
            if self.instructions[end].op != "RERAISE":
                break
            handler = self.handler_at(end)
        return handler

    def text(self) -> str:
        """One line for each instruction."""
        lines = []
        for i, ins in enumerate(self.instructions):
            lines.append(f"{i:4} {ins.line:5}  {ins.op:24} {ins.arg!r}")
        return "\n".join(lines)


_PUTS_BACK = frozenset({"SWAP", "POP_TOP", "STORE_FAST"})

_programs: dict[CodeType, Program] = {}


def program_of(code: CodeType) -> Program:
    """The normalized code, made once per code object."""
    program = _programs.get(code)
    # code objects compare by value: two files may hold equal code
    if program is None or program.code is not code:
        program = _programs[code] = normalize(code)
    return program


# -- the vocabulary --------------------------------------------------------------------------------

Emitted = list[tuple[str, Any]]

_SAME = frozenset(
    """
    LOAD_FAST STORE_FAST DELETE_FAST LOAD_DEREF STORE_DEREF DELETE_DEREF MAKE_CELL COPY_FREE_VARS
    LOAD_CONST LOAD_NAME STORE_NAME DELETE_NAME STORE_GLOBAL DELETE_GLOBAL LOAD_FAST_AND_CLEAR
    LOAD_CLASSDEREF LOAD_LOCALS LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS
    POP_TOP COPY SWAP NOP PUSH_NULL PUSH_NULL_BELOW
    STORE_ATTR DELETE_ATTR BINARY_SUBSCR STORE_SUBSCR DELETE_SUBSCR
    UNARY_NEGATIVE UNARY_NOT UNARY_INVERT UNARY_POSITIVE TO_BOOL IS_OP CONTAINS_OP
    BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_MAP BUILD_CONST_KEY_MAP BUILD_STRING BUILD_SLICE
    LIST_APPEND SET_ADD MAP_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE LIST_TO_TUPLE
    UNPACK_SEQUENCE GET_ITER GET_LEN MATCH_MAPPING MATCH_SEQUENCE MATCH_KEYS MATCH_CLASS
    JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP FOR_ITER
    CALL CALL_KW CALL_FUNCTION_EX RETURN_VALUE SET_FUNCTION_ATTRIBUTE
    FORMAT_SIMPLE FORMAT_WITH_SPEC CONVERT_VALUE BUILD_INTERPOLATION BUILD_TEMPLATE
    RAISE_VARARGS RERAISE PUSH_EXC_INFO POP_EXCEPT CHECK_EXC_MATCH BEFORE_WITH LOAD_SPECIAL
    YIELD_VALUE GET_YIELD_FROM_ITER SEND CLEANUP_THROW RETURN_GENERATOR STOPITERATION_ERROR
    IMPORT_NAME IMPORT_FROM LOAD_BUILD_CLASS SETUP_ANNOTATIONS
    """.split()
)
"""Instructions that mean the same in every version (and the names of those that others are spelled
out into)."""

_BRANCHES = [f"POP_JUMP_IF_{test}" for test in ("TRUE", "FALSE", "NONE", "NOT_NONE")]
_RENAMED = {
    "LOAD_CLOSURE": "LOAD_FAST",
    "LOAD_FAST_CHECK": "LOAD_FAST",
    "LOAD_FAST_BORROW": "LOAD_FAST",
    "LOAD_SMALL_INT": "LOAD_CONST",
    "POP_ITER": "POP_TOP",
    "ASYNC_GEN_WRAP": "UNSUPPORTED",
    "JUMP_FORWARD": "JUMP",
    "JUMP_BACKWARD": "JUMP",
    "JUMP_BACKWARD_NO_INTERRUPT": "JUMP",
}
for _branch in _BRANCHES:
    for _way in ("FORWARD", "BACKWARD"):
        _RENAMED[_branch.replace("_IF", f"_{_way}_IF")] = _branch

_DROPPED = frozenset(
    {"RESUME", "PRECALL", "CACHE", "EXTENDED_ARG", "RESUME_CHECK", "KW_NAMES", "NOT_TAKEN"}
)

_INPLACE = {
    "+": operator.iadd, "&": operator.iand, "//": operator.ifloordiv, "<<": operator.ilshift,
    "@": operator.imatmul, "*": operator.imul, "%": operator.imod, "|": operator.ior,
    "**": operator.ipow, ">>": operator.irshift,
    "-": operator.isub, "/": operator.itruediv, "^": operator.ixor,
}  # fmt: skip
_BINARY = {
    "+": operator.add, "&": operator.and_, "//": operator.floordiv, "<<": operator.lshift,
    "@": operator.matmul, "*": operator.mul, "%": operator.mod, "|": operator.or_,
    "**": operator.pow, ">>": operator.rshift,
    "-": operator.sub, "/": operator.truediv, "^": operator.xor,
}  # fmt: skip
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip

_INTRINSICS = {3: "STOPITERATION_ERROR", 5: "UNARY_POSITIVE", 6: "LIST_TO_TUPLE"}
_CONVERSIONS: dict[int, Callable[[Any], str]] = {1: str, 2: repr, 3: ascii}
_COMPARE_SHIFT = {(3, 11): 0, (3, 12): 4}.get(VERSION, 5)
_MARKER: Emitted = [("PUSH_NULL_BELOW" if VERSION < (3, 13) else "PUSH_NULL", None)]
"""The marker of a call without self, beneath the callable or above it."""
_COMMON_CONSTANTS: Sequence[Any] = getattr(opcode, "_common_constants", ())
_SPECIAL_METHODS: Sequence[str] = getattr(opcode, "_special_method_names", ())


def _callable(op: str, since: tuple[int, int] = (3, 11)) -> Callable[[dis.Instruction], Emitted]:
    """What pushes a callable, and the marker where the last bit of the argument says so."""

    def emit(ins: dis.Instruction) -> Emitted:
        marked = VERSION >= since and ins.arg & 1  # type: ignore[operator]
        return [(op, ins.argval), *_MARKER * marked]

    return emit


def _binary_op(ins: dis.Instruction) -> Emitted:
    symbol, functions = ins.argrepr, _BINARY
    if symbol == "[]":
        return [("BINARY_SUBSCR", None)]
    if symbol.endswith("="):
        symbol, functions = symbol[:-1], _INPLACE
    return [("BINARY_OP", functions[symbol])]


def _compare(ins: dis.Instruction) -> Emitted:
    test = COMPARISONS[dis.cmp_op[ins.arg >> _COMPARE_SHIFT]]  # type: ignore[operator]
    emitted: Emitted = [("COMPARE_OP", test)]
    if VERSION >= (3, 13) and ins.arg & 16:  # type: ignore[operator]
        emitted.append(("TO_BOOL", None))
    return emitted


def _format_value(ins: dis.Instruction) -> Emitted:
    conversion, has_spec = ins.arg & 3, ins.arg & 4  # type: ignore[operator]
    convert: Emitted = []
    if conversion:
        convert = [("CONVERT_VALUE", _CONVERSIONS[conversion])]
    if not has_spec:
        return [*convert, ("FORMAT_SIMPLE", None)]
    if conversion:
        convert = [("SWAP", 2), *convert, ("SWAP", 2)]
    return [*convert, ("FORMAT_WITH_SPEC", None)]


def _make_function(ins: dis.Instruction) -> Emitted:
    flags = []
    for flag in (8, 4, 2, 1):
        if (ins.arg or 0) & flag:
            flags.append(flag)
    return [("MAKE_FUNCTION", None), *[("SET_FUNCTION_ATTRIBUTE", flag) for flag in flags]]


def _has_keywords(ins: dis.Instruction) -> bool:
    """Whether a place for `**kwargs` is on the stack: since 3.14 always, perhaps with a NULL."""
    return VERSION >= (3, 14) or bool((ins.arg or 0) & 1)


def _two_slots(first: str, second: str) -> Callable[[dis.Instruction], Emitted]:
    return lambda ins: [(first, ins.arg >> 4), (second, ins.arg & 15)]  # type: ignore[operator]


_SPELLED_OUT: dict[str, Callable[[dis.Instruction], Emitted]] = {
    "LOAD_GLOBAL": _callable("LOAD_GLOBAL"),
    "LOAD_ATTR": _callable("LOAD_ATTR", since=(3, 12)),
    "LOAD_METHOD": lambda ins: [("LOAD_ATTR", ins.argval), *_MARKER],
    "LOAD_SUPER_ATTR": _callable("LOAD_SUPER_ATTR"),
    "BINARY_OP": _binary_op,
    "COMPARE_OP": _compare,
    "BINARY_SLICE": lambda ins: [("BUILD_SLICE", 2), ("BINARY_SUBSCR", None)],
    "STORE_SLICE": lambda ins: [("BUILD_SLICE", 2), ("STORE_SUBSCR", None)],
    "FORMAT_VALUE": _format_value,
    "CONVERT_VALUE": lambda ins: [("CONVERT_VALUE", _CONVERSIONS[ins.arg])],  # type: ignore[index]
    "RETURN_CONST": lambda ins: [("LOAD_CONST", ins.argval), ("RETURN_VALUE", None)],
    "LOAD_ASSERTION_ERROR": lambda ins: [("LOAD_CONST", AssertionError)],
    "MAKE_FUNCTION": _make_function,
    "LOAD_COMMON_CONSTANT": lambda ins: [("LOAD_CONST", _COMMON_CONSTANTS[ins.arg or 0])],
    # the method is always bound here: where CPython has a function, `self` stands above it
    "LOAD_SPECIAL": lambda ins: [("LOAD_SPECIAL", _SPECIAL_METHODS[ins.arg or 0]), *_MARKER],
    "WITH_EXCEPT_START": lambda ins: [("WITH_EXCEPT_START", 4 if VERSION < (3, 14) else 5)],
    "LOAD_FAST_LOAD_FAST": _two_slots("LOAD_FAST", "LOAD_FAST"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": _two_slots("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": _two_slots("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": _two_slots("STORE_FAST", "STORE_FAST"),
    "CALL_INTRINSIC_1": lambda ins: [
        (_INTRINSICS.get(ins.arg or 0, "UNSUPPORTED"), f"intrinsic {ins.arg}")
    ],
    "CALL_INTRINSIC_2": lambda ins: [("UNSUPPORTED", f"intrinsic {ins.arg}")],
    "UNPACK_EX": lambda ins: [("UNPACK_EX", ((ins.arg or 0) & 255, (ins.arg or 0) >> 8))],
    "CALL_FUNCTION_EX": lambda ins: [("CALL_FUNCTION_EX", _has_keywords(ins))],
    "END_FOR": lambda ins: [("POP_TOP", None)],  # never reached: FOR_ITER jumps beyond it
    "END_SEND": lambda ins: [],  # SEND leaves the result alone, as in 3.11
}

_BY_ARG = frozenset(
    """
    LOAD_FAST STORE_FAST DELETE_FAST LOAD_DEREF STORE_DEREF DELETE_DEREF MAKE_CELL LOAD_CLOSURE
    LOAD_FAST_CHECK LOAD_FAST_BORROW LOAD_FAST_AND_CLEAR LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF
    IS_OP CONTAINS_OP
    """.split()
)
"""Instructions whose raw argument is wanted, not what dis makes of it."""

JUMPS = frozenset({"JUMP", "JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", "FOR_ITER", "SEND"})
JUMPS |= {*_BRANCHES}


def _translate(ins: dis.Instruction, keywords: Any) -> Emitted:
    """The normalized instructions of one instruction; `keywords` are the names that a KW_NAMES
    before a CALL announced."""
    name = ins.opname
    if name == "CALL" and keywords is not None:
        return [("LOAD_CONST", keywords), ("CALL_KW", ins.arg)]
    if name in _SPELLED_OUT:
        return _SPELLED_OUT[name](ins)
    arg = ins.argval
    if name in _BY_ARG:
        arg = ins.arg
    name = _RENAMED.get(name, name)
    if name in _SAME or name in JUMPS:
        return [(name, arg)]
    return [("UNSUPPORTED", ins.opname)]


def normalize(code: CodeType) -> Program:
    """Translates a code object into the common vocabulary."""
    instructions: list[Instruction] = []
    index_at: dict[int, int] = {}
    keywords = None
    line = code.co_firstlineno
    after_end_for: dict[int, int] = {}
    listing = list(dis.get_instructions(code, show_caches=False))
    for position, ins in enumerate(listing):
        index_at[ins.offset] = len(instructions)
        if ins.positions is not None and ins.positions.lineno is not None:
            line = ins.positions.lineno
        if ins.opname == "KW_NAMES":
            keywords = code.co_consts[ins.arg]  # type: ignore[index]
        if ins.opname in _DROPPED:
            continue
        # an exhausted loop goes on behind END_FOR, and from 3.13 on behind the POP_TOP that follows
        if ins.opname == "END_FOR":
            behind = position + (1 if VERSION < (3, 13) else 2)
            after_end_for[ins.offset] = listing[behind].offset
        for op, arg in _translate(ins, keywords):
            instructions.append(Instruction(op, arg, line, ins.offset))
        if ins.opname in ("CALL", "CALL_KW"):
            keywords = None
    index_at[len(code.co_code)] = len(instructions)
    for instruction in instructions:
        if instruction.op in JUMPS:
            destination = instruction.arg
            if instruction.op == "FOR_ITER":
                destination = after_end_for.get(destination, destination)
            instruction.arg = index_at[destination]
    handlers = []
    for *offsets, depth, push_index in _exception_table(code):
        start, end, target = [_index(index_at, offset) for offset in offsets]
        handlers.append(Handler(start, end, target, depth, push_index))
    names = (  # in the order of co_localsplusnames
        *code.co_varnames,
        *(n for n in code.co_cellvars if n not in code.co_varnames),
        *code.co_freevars,
    )
    starred = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    parameters = code.co_argcount + code.co_kwonlyargcount + starred
    is_generator = bool(code.co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR))
    return Program(code, tuple(instructions), tuple(handlers), names, parameters, is_generator)


def _index(index_at: dict[int, int], offset: int) -> int:
    """The index for an offset, which may point into the caches of the instruction before."""
    while offset not in index_at:
        offset += 2
    return index_at[offset]


def _exception_table(code: CodeType) -> Iterator[tuple[int, int, int, int, bool]]:
    """The rows of `co_exceptiontable` in bytes: start, end, target, stack depth, whether the
    instruction's index is pushed."""
    data = iter(code.co_exceptiontable)

    def number() -> int:
        byte = next(data)
        value = byte & 63
        while byte & 64:
            byte = next(data)
            value = value << 6 | byte & 63
        return value

    while True:
        try:
            start = number() * 2
        except StopIteration:
            return
        length, target, depth_lasti = number() * 2, number() * 2, number()
        yield start, start + length, target, depth_lasti >> 1, bool(depth_lasti & 1)
