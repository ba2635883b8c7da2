"""Hooks on the gradient of a tensor that the function makes. In the graph a hook is a node, with
what it does as a graph (`ingot.graph.tensor_hooks`).

It runs in the backward, so it is captured if all that it reads is the gradient, and variables of
functions that run now which nothing changes until the graph ends: no guard would see a change
behind that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NoReturn

import torch
from torch import fx
from torch.utils.hooks import RemovableHandle

from ingot.capture.meanings import How, means
from ingot.capture.values.autograd_functions import captured_backward
from ingot.capture.values.backward_hooks import names_of, sets_mode, stays
from ingot.capture.values.base import NULL, Arguments, Keywords, Raised, Value
from ingot.capture.values.chosen import refuse_watched
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.functions import CellValue, FunctionValue
from ingot.capture.values.input_hooks import register_outside
from ingot.capture.values.numbers import OutsideNumber
from ingot.capture.values.partials import PartialValue
from ingot.capture.values.tensor import GradientQuestions, TensorValue, is_none
from ingot.capture.values.torch_functions import TorchFunction
from ingot.errors import EagerRaises
from ingot.graph.ambient import Modes
from ingot.graph.tensor_hooks import TensorHook, take_off
from ingot.wrapped import is_transformed

if TYPE_CHECKING:
    from ingot.capture.session import Session


class ReadByHook(NamedTuple):
    """A variable that a hook reads, what is in it, and the number of the instruction that
    registered the hook."""

    cell: CellValue
    content: Value
    step: int


class _Hooks:
    """The hooks of a capture: the variables that they read, and fakes with their handles."""

    def __init__(self) -> None:
        self.reads: list[ReadByHook] = []
        self.tensors: list[tuple[torch.Tensor, HookHandle]] = []


class HookHandle(Value):
    """What registering gives. `node` is that of the hook, None once it is taken off, or where it
    does nothing."""

    __slots__ = ("node", "step")

    def __init__(self, node: fx.Node | None, step: int) -> None:
        super().__init__()
        self.node, self.step = node, step

    def python_type(self) -> type:
        return RemovableHandle

    def method_remove(self, session: Session) -> Value:
        if self.node is not None:
            session.graph.modes.reach(session.graph.graph, session.where)
            take_off(self.node.meta["val"])
            session.graph.switch(session, take_off, self.node)
            self.node = None
        return NONE

    def refuse(self, session: Session) -> NoReturn:
        """Breaks the graph where the hook is registered."""
        _break_at(
            session, self.step, "a hook on a tensor whose handle is alive at the end of a graph"
        )


def _break_at(session: Session, step: int, reason: str) -> NoReturn:
    raise session.unsupported("tensor-hook", reason, step=step)


@means(torch.Tensor.register_hook, how=How.METHOD)
def _register(session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords) -> Value:
    """Tensor.register_hook."""
    (hook,) = (*args, *kwargs.values())
    refuse_watched(session, tensor)
    if tensor.source is not None:
        return register_outside(session, torch.Tensor.register_hook, tensor, hook)
    hook = session.realize(hook)
    what = f"a hook on {tensor.describe()}"
    if session.graph.autograd or tensor.leaf_since is not None or is_transformed():
        raise session.unsupported("tensor-hook", f"{what}, which is registered")
    if not tensor.fake.requires_grad:
        raise session.raised(
            RuntimeError, "cannot register a hook on a tensor that doesn't require gradient"
        )
    recorder, cells = session.graph, list[CellValue]()
    if not _is_function_of_gradient(session, hook, cells):
        raise session.unsupported("tensor-hook", f"{what} that may read more than the gradient")
    questions = session.state(GradientQuestions)
    count, effects = questions.count, (recorder.context.draws, recorder.context.effects)

    def run(tangents: dict[int, TensorValue]) -> list[TensorValue | None]:
        gradient = tangents[id(tensor)]
        written = gradient.fake._version
        answer = session.realize(session.call(hook, [gradient], {}))
        if gradient.fake._version != written:  # others may read the same memory
            raise session.unsupported("tensor-hook", f"{what} that writes the gradient")
        if is_none(answer):
            return [None]
        if not isinstance(answer, TensorValue):
            raise session.unsupported(
                "tensor-hook", f"{what} gives {answer.describe()} in place of a gradient"
            )
        return [answer]

    try:
        graph, read = captured_backward(
            session, what, [tensor], run, Modes.now()._replace(grad=False)
        )
    except (Raised, EagerRaises):
        raise session.unsupported("tensor-hook", f"{what}, which raises an error") from None
    if (
        sets_mode(graph)
        or questions.count != count
        or (recorder.context.draws, recorder.context.effects) != effects
    ):
        raise session.unsupported(
            "tensor-hook",
            f"{what} that depends on modes, draws random numbers, or may have an effect",
        )
    step = session.step_of_outermost
    session.state(_Hooks).reads += [ReadByHook(cell, cell.content, step) for cell in cells]
    if not graph.graph.output_node().all_input_nodes:
        return HookHandle(None, step)
    recorder.modes.reach(recorder.graph, session.where)
    node = recorder.switch(session, TensorHook(graph), tensor.fx_node, read)
    node.meta["val"] = node.target(tensor.fake, [n.meta["val"] for n in read])  # type: ignore[operator]
    handle = HookHandle(node, step)
    session.state(_Hooks).tensors.append((tensor.fake, handle))
    return handle


def refuse_result(session: Session, tensor: TensorValue) -> None:
    """Breaks the graph where a hook is registered on what becomes a result: hooks from outside come
    behind it."""
    for fake, handle in session.state(_Hooks).tensors:
        if fake is tensor.fake and handle.node is not None:
            _break_at(
                session, handle.step, "a hook on a tensor that is alive at the end of a graph"
            )


def refuse_changed(session: Session) -> None:
    """Breaks the graph where a hook is registered that reads a variable which was set since."""
    for cell, content, step in session.state(_Hooks).reads:
        if cell.content is not content:
            _break_at(
                session, step, "a hook on a tensor that reads a variable which is set behind it"
            )


def refuse_alive(session: Session, cell: CellValue) -> None:
    """The same where the variable may be set behind the graph."""
    for read in session.state(_Hooks).reads:
        if read.cell is cell:
            _break_at(
                session,
                read.step,
                "a hook on a tensor that reads a variable which may be set behind the graph",
            )


# -- what a hook reads -----------------------------------------------------------------------------


def _is_function_of_gradient(session: Session, hook: Value, cells: list[CellValue]) -> bool:
    """Whether a hook reads nothing but the gradient, what torch and Python have, and variables that
    no one else knows, which are added to `cells`."""
    if isinstance(hook, TorchFunction):
        return True
    if isinstance(hook, PartialValue):
        bound = list(map(session.realize, (*hook.args, *hook.kwargs.values())))
        is_plain = hook.source is None and not hook.attributes and all(map(_is_fixed, bound))
        return is_plain and _is_function_of_gradient(session, session.realize(hook.function), cells)
    if not isinstance(hook, FunctionValue) or hook.attributes:
        return False
    defaults = list(map(session.realize, (*hook.defaults, *hook.keyword_defaults.values())))
    if hook.object is not None and (defaults or hook.object.__closure__):
        return False
    for cell in hook.cells:
        if (
            cell.source is not None
            or cell.content is NULL
            or not _is_fixed(session.realize(cell.content))
        ):
            return False
        cells.append(cell)
    names = names_of(hook.code)
    return all(map(_is_fixed, defaults)) and all(
        not g or stays(session, hook.namespace, name) for name, g in names
    )


def _is_fixed(value: Value) -> bool:
    """Whether a value is no object that may change, apart from tensors, of which autograd knows
    when they are written."""
    if isinstance(value, (TensorValue, OutsideNumber)):
        return True
    return isinstance(value, ConstantValue) and isinstance(value.object, _FIXED)


_FIXED = (int, float, bool, str, type(None), torch.dtype, torch.device)
