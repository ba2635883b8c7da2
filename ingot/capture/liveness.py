"""Which variables of a frame may still be read: only these are carried over a graph break."""

from __future__ import annotations

from ingot.capture.bytecode import JUMPS, Program

_READS = frozenset({"LOAD_FAST", "LOAD_FAST_AND_CLEAR", "DELETE_FAST", "MAKE_CELL"})
_WRITES = frozenset({"STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"})
_ENDS = frozenset({"RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "JUMP"})
_FRAME_READERS = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"})
"""Names by which a function may read its variables without naming them."""

_WATCHERS = frozenset(
    {"weakref", "ref", "proxy", "finalize", "WeakKeyDictionary", "WeakValueDictionary", "WeakSet"}
)
"""Names by which a function may see that one of its variables holds an object no more."""

_live: dict[Program, tuple[frozenset[int], ...]] = {}


def live_variables(program: Program, index: int) -> frozenset[int]:
    """The slots of local variables that an instruction, or one that can run after it, may read
    before it is written. Cells are not among them: whoever holds the cell may read it."""
    live = _live.get(program)
    if live is None:
        live = _live[program] = _analyze(program)
    return live[index]


def may_watch(program: Program) -> bool:
    """Whether a function may make weak references."""
    return not _WATCHERS.isdisjoint(program.code.co_names)


def _analyze(program: Program) -> tuple[frozenset[int], ...]:
    """Backward data flow to a fixed point, over jumps and exception handlers alike."""
    instructions = program.instructions
    if not (_FRAME_READERS | _WATCHERS).isdisjoint(program.code.co_names):
        return (frozenset(range(len(program.names))),) * (len(instructions) + 1)
    handlers = list(map(program.handler_at, range(len(instructions))))
    live: list[frozenset[int]] = [frozenset()] * (len(instructions) + 1)
    changed = True
    while changed:
        changed = False
        for i in reversed(range(len(instructions))):
            instruction, handler = instructions[i], handlers[i]
            behind = frozenset[int]()
            if instruction.op not in _ENDS:
                behind = live[i + 1]
            if instruction.op in JUMPS:
                behind |= live[instruction.arg]
            if instruction.op in _WRITES:
                behind -= {instruction.arg}
            if instruction.op in _READS:
                behind |= {instruction.arg}
            loads_super = instruction.op == "LOAD_GLOBAL" and instruction.arg == "super"
            if loads_super and program.parameters:
                behind |= {0}  # called without arguments, it reads the first parameter
            if handler is not None:
                behind |= live[handler.target]
            if behind != live[i]:
                live[i], changed = behind, True
    return tuple(live)
