"""The normalized instructions, in whatever Python runs this."""

from __future__ import annotations

import dis
import types

import pytest

from tests.capture.pure import stand_in_for_torch

stand_in_for_torch()

from ingot.capture.bytecode import normalize, program_of  # noqa: E402
from ingot.capture.interpreter import HANDLERS  # noqa: E402


def simple(a, b=1):
    return a + b


def everything(n, *args, k=2, **kwargs):
    cell = 0

    def inner(x: int, y=1, *, z=3) -> int:
        nonlocal cell
        cell += x
        return cell + y + z

    try:
        with n as _entered:
            items = [i for i in range(3) if i] + [*args]
            x, *rest = items
            del x
    except (KeyError, ValueError) as error:
        raise RuntimeError(f"{error!r:>10} {n} {k:.2f} {k}") from error
    finally:
        print(items[1:2], {**kwargs}, {1, 2}, not k, k is None, k in args)
    items[0:1] = [5]
    match items:
        case [1, *_]:
            return inner(1, y=2, **kwargs)
        case {"a": _}:
            return super(int, k).real
    while k < 3 and k:
        k -= 1
        if k == 1:
            continue
        yield from (lambda: (yield))()
    return {a: b for a, b in kwargs.items()}, {a for a in args}, lambda: k


def code_objects(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


@pytest.mark.parametrize(
    "code", list(code_objects(everything.__code__)), ids=lambda code: code.co_name
)
def test_every_instruction_is_known(code):
    import ingot.capture.handlers  # noqa: F401

    program = normalize(code)
    assert [i for i in program.instructions if i.op not in HANDLERS] == []
    assert [
        i.arg for i in program.instructions if i.op == "UNSUPPORTED" and i.arg != "CLEANUP_THROW"
    ] == []


def test_lines_and_jumps():
    program = normalize(everything.__code__)
    first = everything.__code__.co_firstlineno
    assert {first + 11, first + 23} <= {i.line for i in program.instructions}
    targets = [
        i.arg for i in program.instructions if "JUMP" in i.op or i.op in ("FOR_ITER", "SEND")
    ]
    assert targets and all(0 <= target < len(program.instructions) for target in targets)
    assert all(
        0 <= h.start <= h.end <= len(program.instructions) > h.target for h in program.handlers
    )


def test_simple_function():
    ops = [i.op for i in normalize(simple.__code__).instructions]
    assert ops == ["LOAD_FAST", "LOAD_FAST", "BINARY_OP", "RETURN_VALUE"]


def test_stack_stays_cpythons():
    """The depth after each straight stretch agrees with the stack effect that dis knows for the
    real instructions."""
    code = compile("f(a.b(1), k=2)[1:2]", "<t>", "eval")
    real = sum(dis.stack_effect(i.opcode, i.arg) for i in dis.get_instructions(code))
    assert real in (-1, 0, 1)  # 3.14 counts what RETURN_VALUE leaves
    assert sum(i.op.startswith("PUSH_NULL") for i in normalize(code).instructions) == 2


def test_programs_are_shared():
    assert program_of(simple.__code__) is program_of(simple.__code__)
    assert "BINARY_OP" in program_of(simple.__code__).text()
