"""Training contracts: what the partition narrows, and what the native recorder reads of one."""

from __future__ import annotations

from typing import Any

import torch

from ingot.loops.expr import Expr, size_symbol
from ingot.loops.training_contract import (
    InputSlot,
    JointContract,
    Layout,
    OutputSlot,
    OutputWindow,
    Slot,
    TangentSlot,
    TrainingContract,
)

ROWS = size_symbol("rows")


class SymbolicNumber:
    """Stands for a torch.SymInt."""

    def __init__(self, expr: Expr) -> None:
        self.expr = expr


def expression(number: Any) -> Expr:
    return number.expr


def contract() -> TrainingContract:
    """Of a program of three tensors and an integer: output 0 has a tangent, output 1 is a window on
    input 1, output 2 stands for input 2, which is written, and output 3 is refused."""
    rows = SymbolicNumber(ROWS)
    layout = Layout((rows, 4), (4, 1), torch.float32, torch.device("cpu"))
    window = OutputWindow(1, Slot("input", 1), (4,), (1,), rows, torch.float32, False, "view")
    joint = JointContract(
        inputs=(
            InputSlot(0, gradient="computed"),
            InputSlot(1, gradient="unreached"),
            InputSlot(2, rebased_as=2, mutated=True, unread=True),
            InputSlot(3, is_tensor=False),
        ),
        outputs=(
            OutputSlot(0, tangent=0),
            OutputSlot(1),
            OutputSlot(2),
            OutputSlot(3, refused=RuntimeError("a second time")),
        ),
        tangents=(TangentSlot(0, 0, layout),),
        windows=(window,),
        groups=(),
        user_outputs=2,
    )
    saved = (Slot("kept", 1), Slot("input", 2), Slot("output", 1))
    places = {ROWS: (0, "size", 0)}
    return TrainingContract.narrowed(joint, saved, places, places, expression)


def test_layouts_and_windows_are_those_of_the_sizes() -> None:
    narrowed = contract()
    (tangent,) = narrowed.tangents
    assert tangent.layout.at({ROWS: 7}).sizes == (7, 4)
    assert [window.at({ROWS: 7}).offset for window in narrowed.views] == [7]
    assert narrowed.windows_in_node == ()


def test_what_the_native_recorder_reads() -> None:
    native = contract().native
    assert (native.inputs, native.tensors, native.outputs) == (4, 3, 4)
    assert native.saved == (4 + 4 + 1, 2, 4 + 1)  # among the inputs and all results
    assert native.untracked_outputs == (1, 2)
    assert native.unread_inputs == (2,)
    assert native.size_places == ((0, "size", 0),)
    assert native.differentiable_outputs == (0,) and native.refused_outputs == (3,)
    assert native.gradient_inputs == (0,)


def test_inputs_by_what_becomes_of_them() -> None:
    narrowed = contract()
    assert narrowed.unreached_inputs == (1,)
    assert narrowed.rebased_inputs == {2: 2} and narrowed.mutated_inputs == (2,)
