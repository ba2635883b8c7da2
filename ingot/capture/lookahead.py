"""Where a branch leads that the data decide: whether one side does nothing but raise an error.

In: an instruction of a frame that runs, with its operands, and the truth of one value. Out: whether
all ways on end in an error. No code runs, and the frame is left as it is.
"""

from __future__ import annotations

from typing import Any

from ingot.capture.interpreter import InterpreterFrame
from ingot.capture.values.base import Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.functions import CellValue

_LONGEST_WAY = 100  # instructions
_ENDS = frozenset({"RETURN_VALUE", "RERAISE", "FOR_ITER", "SEND", "YIELD_VALUE"})
_UNKNOWN = ConstantValue(object())
"""Stands for every value that the instructions on the way would make."""

_JUMPS: dict[str, tuple[bool, bool]] = {
    "POP_JUMP_IF_TRUE": (True, False),
    "POP_JUMP_IF_FALSE": (False, False),
    "JUMP_IF_TRUE_OR_POP": (True, True),
    "JUMP_IF_FALSE_OR_POP": (False, True),
}
"""By instruction, the truth at which it jumps, and whether the value stays on the stack then."""


def only_raises(
    frame: InterpreterFrame, index: int, stack: list[Value], condition: Value, truth: bool
) -> bool:
    """Whether an instruction, with these operands, leads to an error alone if a value has a truth.

    The error is raised in the frame, or in those that called it once it returns. Other values that
    decide are constants."""
    return _Way(frame, index, stack, condition, truth).raises()


class _Way:
    """The instructions from one on. No code runs: values are moved, and asked for their truth where
    it is known."""

    def __init__(
        self, frame: InterpreterFrame, index: int, stack: list[Value], condition: Value, truth: bool
    ) -> None:
        self.condition, self.truth = condition, truth
        self.callers = list(frame.session.frames)
        while self.callers and self.callers.pop() is not frame:
            pass
        self.enter(frame, index, stack)

    def enter(self, frame: InterpreterFrame, index: int, stack: list[Value]) -> None:
        self.frame, self.index, self.stack = frame, index, list(stack)
        self.slots: dict[int, Value] = {}

    def raises(self) -> bool:
        for _ in range(_LONGEST_WAY):
            instructions = self.frame.program.instructions
            if self.index >= len(instructions):
                return False
            instruction = instructions[self.index]
            self.index += 1
            if instruction.op == "RAISE_VARARGS":
                return True
            if instruction.op == "RETURN_VALUE":
                if not self.returns():
                    return False
            elif instruction.op in _JUMPS:
                if not self.jumps(*_JUMPS[instruction.op], instruction.arg):
                    return False
            elif instruction.op == "JUMP":
                self.index = instruction.arg
            elif not self.moves(instruction.op, instruction.arg):
                return self.raises_straight(self.index - 1)
        return False

    def raises_straight(self, index: int) -> bool:
        """Whether no branch lies before an error, whatever else is done for it."""
        for instruction in self.frame.program.instructions[index : index + _LONGEST_WAY]:
            if instruction.op == "RAISE_VARARGS":
                return True
            if "JUMP" in instruction.op or instruction.op in _ENDS:
                return False
        return False

    def returns(self) -> bool:
        """Goes on in the caller, where its next instruction finds the result."""
        frame, result = self.frame, self.stack[-1]
        if frame.called_at is None or frame.program.is_generator or not self.callers:
            return False
        caller = self.callers.pop()
        self.enter(caller, caller.index, [*caller.stack, result])
        return True

    def jumps(self, jumps_if: bool, keeps: bool, destination: int) -> bool:
        """Takes a branch; False where the data decide this one too."""
        value = self.stack.pop()
        truth = self.truth_of(value)
        if truth is jumps_if:
            self.index = destination
            if keeps:
                self.stack.append(value)
        return truth is not None

    def truth_of(self, value: Value) -> bool | None:
        if value is self.condition:
            return self.truth
        if type(value) is ConstantValue and value is not _UNKNOWN:
            return bool(value.object)
        return getattr(value, "decided", None)

    def moves(self, op: str, arg: Any) -> bool:
        """Carries out an instruction that only moves values; False if it is another."""
        stack = self.stack
        if op == "LOAD_FAST":
            stack.append(self.slots.get(arg, self.frame.slots[arg]))
        elif op == "LOAD_DEREF":
            stack.append(self.content_of(self.frame.slots[arg]))
        elif op == "LOAD_CONST":
            stack.append(ConstantValue(arg))
        elif op == "LOAD_GLOBAL":
            stack.append(_UNKNOWN)
        elif op == "STORE_FAST":
            self.slots[arg] = stack.pop()
        elif op == "POP_TOP":
            stack.pop()
        elif op == "COPY":
            stack.append(stack[-arg])
        elif op == "SWAP":
            stack[-1], stack[-arg] = stack[-arg], stack[-1]
        elif op in ("UNARY_NOT", "TO_BOOL"):
            truth = self.truth_of(stack.pop())
            if truth is None:
                stack.append(_UNKNOWN)
            else:
                stack.append(ConstantValue(truth is not (op == "UNARY_NOT")))
        else:
            return op == "NOP"
        return True

    @staticmethod
    def content_of(cell: Value) -> Value:
        if isinstance(cell, CellValue):
            return cell.content
        return _UNKNOWN
