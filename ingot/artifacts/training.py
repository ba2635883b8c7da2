"""A call whose gradients are wanted becomes two programs, the forward and the backward.

In: a captured call under grad mode. Out: the forward, and a `BackwardPart` that goes into the file
beside it. There is one backward, of all tangents: those that do not come in are zeros. What needs
more of autograd than one node with plain tensors is an ExportError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ingot.built import Built
from ingot.capture import Captured
from ingot.compilation import Log
from ingot.errors import ExportError
from ingot.graph.differentiation import forget_histories, new_leaves
from ingot.graph.joint import trace_joint
from ingot.graph.partition import partition
from ingot.loops.expr import Symbol
from ingot.loops.postfix import postfix
from ingot.loops.training_contract import TrainingContract
from ingot.options import Options
from ingot.pipeline import build


class BackwardPart(NamedTuple):
    """The backward of a call. `saved` are positions among the inputs and the results of the
    forward. Behind what is saved, the program takes `tangents`, each (output, sizes, strides,
    dtype) over the numbers at `places` (see `loops/training_contract.py`), and these numbers. Its
    results are the gradients of the inputs at `gradients`. The first `outputs` of the forward are
    the user's, of which the `untracked` have no history."""

    built: Built
    saved: tuple[int, ...]
    places: tuple[tuple[int, str, int], ...]
    tangents: tuple[Any, ...]
    gradients: tuple[int, ...]
    outputs: int
    untracked: tuple[int, ...]


def training_programs(captured: Captured, options: Options) -> tuple[Built, BackwardPart]:
    """The forward and the backward of a captured call.

    Raises Unsupported as compiling does, and ExportError for what an artifact cannot do.
    """
    module, context = captured.graph_module, captured.context
    fakes = [i.fake for i in captured.inputs]
    joint = trace_joint(module, fakes, context)
    forget_histories(module)
    cut = partition(joint)
    context.shapes.unbacked.settle()
    hints = context.shapes.hints
    forward = build(cut.forward, Log(), options, hints, frugal=True)
    contract = cut.contract()
    _refuse(contract, bool(new_leaves(fakes)))
    backward = build(cut.backward, Log(), options, hints, frugal=True)
    return forward, _part_of(backward, contract)


def _refuse(contract: TrainingContract, makes_leaves: bool) -> None:
    """Raises ExportError where a call is more to autograd than one node with plain results."""
    reasons = {
        "it returns views of its arguments, or of other results: return copies": contract.windows,
        "it writes tensors that require gradients": contract.rebased_inputs,
        "a backward through a result of it raises an error": contract.refused_outputs,
        "it makes tensors require gradients": makes_leaves,
        "none of its results depends on what requires gradients": not contract.gradient_inputs,
        "eager's checkpoint computes its gradients": [t for t in contract.tangents if t.reentrant],
    }
    for reason, holds in reasons.items():
        if holds:
            raise ExportError(f"ingot.export: training=True: {reason}")


def _part_of(built: Built, contract: TrainingContract) -> BackwardPart:
    numbers = {symbol: k for k, symbol in enumerate(contract.size_places)}
    tangents = []
    for slot in contract.tangents:
        layout = slot.layout
        sizes, strides = _steps(layout.sizes, numbers), _steps(layout.strides, numbers)
        tangents.append((slot.output, sizes, strides, layout.dtype))
    return BackwardPart(
        built,
        contract.saved_positions,
        tuple(contract.size_places.values()),
        tuple(tangents),
        contract.gradient_inputs,
        contract.user_outputs,
        contract.native.untracked_outputs,
    )


def _steps(numbers: tuple[Any, ...], places: Mapping[Symbol, int]) -> tuple[Any, ...]:
    return tuple([postfix(number, places) for number in numbers])
