"""Hooks on the backward of a module.

torch calls them by a `BackwardHook`, which makes an autograd node before the forward and one behind
it. In a captured graph these are nodes too, which hold the hooks as graphs
(`ingot.graph.module_hooks`).

A hook runs in the backward, so what it reads besides the gradients may have changed since the
forward, and no guard would see it: it is captured if it reads nothing else.
"""

from __future__ import annotations

import dis
import itertools
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch.utils.hooks import BackwardHook

from ingot.capture.meanings import How, means
from ingot.capture.values.autograd_functions import (
    captured_backward,
    choices_of_tangents,
    eager_error,
    gradient_or_none,
    views_of,
    with_tensors,
)
from ingot.capture.values.base import Arguments, Keywords, Raised, Value, positions
from ingot.capture.values.constant import NONE
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.sequences import TupleValue
from ingot.capture.values.tensor import TensorValue, is_none
from ingot.capture.values.tensor_lists import is_tracked, tensors_in
from ingot.errors import EagerRaises
from ingot.graph.ambient import SWITCHES, Modes
from ingot.graph.module_hooks import HookedInputs, HookedOutputs, Link, ModuleHooks
from ingot.origins import is_trusted, trusts_function

if TYPE_CHECKING:
    from ingot.capture.session import Session


class Hooked(NamedTuple):
    """A call whose forward is being captured. `call` stands for it in torch's code, `inputs` are
    the arguments as the forward gets them, `link` is the node that makes its link."""

    call: Value
    inputs: list[Value]
    link: fx.Node
    hooks: ModuleHooks


class _HookedCalls(dict[int, Hooked]):
    """By id of the value that stands for a call of a module with hooks on its backward."""


@means(BackwardHook.setup_input_hook, how=How.UNREALIZED)
def _setup_input(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """Before the forward."""
    call, arguments = map(session.realize, args)
    inputs = session.realized_items(arguments)
    if not torch.is_grad_enabled():
        return arguments
    module = session.realize(call.get_attribute(session, "module"))
    what = f"hooks on the backward of {module.describe()}"
    if session.graph.autograd:
        raise session.unsupported("module-hook", what)
    if not any(map(is_tracked, inputs)):  # torch warns of it, in the backward
        raise session.unsupported(
            "module-hook", f"{what}, none of whose arguments requires a gradient"
        )
    for name, count in (("user_hooks", 3), ("user_pre_hooks", 2)):
        for hook in session.unpacked(call.get_attribute(session, name)):
            if not _reads_gradients_alone(session, session.realize(hook), count):
                raise session.unsupported(
                    "module-hook", f"{what} that may read more than the gradients"
                )
    link = session.graph.switch(session, Link)
    link.meta["val"] = Link()
    hooks = ModuleHooks(module.describe(), session.truth(call.get_attribute(session, "user_hooks")))
    views = _with_history(session, HookedInputs, inputs, link, hooks)
    session.state(_HookedCalls)[id(call)] = Hooked(call, views, link, hooks)
    return TupleValue(views, tuple)


@means(BackwardHook.setup_output_hook, how=How.UNREALIZED)
def _setup_output(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """Behind the forward."""
    call, result = map(session.realize, args)
    hooked = session.state(_HookedCalls).get(id(call))
    if hooked is None or not torch.is_grad_enabled():
        return result
    alone = isinstance(result, TensorValue)
    if not alone and result.python_type() is not tuple:
        raise session.unsupported(
            "module-hook", f"hooks on the backward of a module that gives {result.describe()}"
        )
    if alone:
        results = [result]
    else:
        results = session.realized_items(result)
    if not any(map(is_tracked, results)):
        return result
    views = _with_history(session, HookedOutputs, results, hooked.link, hooked.hooks)
    tensors, constant = tensors_in(views), _untracked(tensors_in(results))
    what = f"a hook on the backward of {hooked.hooks.name}"
    for present in choices_of_tangents(session, what, tensors, constant):
        try:
            chosen = list(itertools.compress(tensors, present))
            hooked.hooks.graphs[present] = _graphs_of_hooks(session, what, hooked, views, chosen)
        except (Raised, EagerRaises) as error:
            hooked.hooks.graphs[present] = eager_error(error)
    if alone:
        return views[0]
    return TupleValue(views, tuple)


def _untracked(tensors: list[TensorValue]) -> frozenset[int]:
    return frozenset(range(len(tensors))).difference(positions(is_tracked, tensors))


def _with_history(
    session: Session, kind: Any, values: list[Value], link: fx.Node, hooks: ModuleHooks
) -> list[Value]:
    """The values with views in place of the tensors, which have a node of autograd's behind
    them."""
    tensors = tensors_in(values)
    views = session.unpacked(session.call_builtin(views_of, TupleValue(tensors, tuple)))
    node = kind(hooks, _untracked(tensors))
    session.graph.give_history(session, node, tensors, views, [link])
    return with_tensors(values, views)


# -- what the hooks do -----------------------------------------------------------------------------


def _graphs_of_hooks(
    session: Session, what: str, hooked: Hooked, outputs: list[Value], present: list[TensorValue]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The graphs of the hooks where the gradients of the outputs `present` are there: of those
    that see these alone, and of the others."""
    output_gradients: list[Value] = []

    def of_outputs(tangents: dict[int, TensorValue]) -> list[TensorValue | None]:
        gradients = _gradients_or_none(tangents, outputs)
        output_gradients[:] = _gradients_after(session, hooked.call, "user_pre_hooks", gradients)
        return _gradients(session, what, outputs, output_gradients)

    def of_inputs(tangents: dict[int, TensorValue]) -> list[TensorValue | None]:
        gradients = _gradients_or_none(tangents, hooked.inputs)
        behind = TupleValue([tangents.get(id(value), value) for value in output_gradients], tuple)
        input_gradients = _gradients_after(session, hooked.call, "user_hooks", gradients, behind)
        return _gradients(session, what, hooked.inputs, input_gradients)

    modes = Modes.now()._replace(grad=False)
    first, reads = captured_backward(session, what, present, of_outputs, modes)
    values = [*hooked.inputs, *filter(None, _gradients(session, what, outputs, output_gradients))]
    second, more_reads = captured_backward(session, what, tensors_in(values), of_inputs, modes)
    if reads or more_reads or sets_mode(first) or sets_mode(second):
        raise session.unsupported(
            "module-hook", f"{what} reads more than the gradients, or sets a mode"
        )
    return first, second


def sets_mode(graph: fx.GraphModule) -> bool:
    return any(node.target in SWITCHES for node in graph.graph.nodes)


def _gradients_or_none(tangents: dict[int, TensorValue], values: list[Value]) -> list[Value]:
    return [tangents.get(id(value), NONE) for value in values]


def _gradients_after(
    session: Session, call: Value, name: str, gradients: list[Value], *behind: Value
) -> list[Value]:
    """What the hooks of a kind make of gradients, one after the other."""
    module = call.get_attribute(session, "module")
    for hook in session.unpacked(call.get_attribute(session, name)):
        answer = session.realize(
            session.call(hook, [module, TupleValue(gradients, tuple), *behind], {})
        )
        if is_none(answer):
            continue
        new_gradients = session.realized_items(answer)
        if len(new_gradients) != len(gradients):
            raise session.unsupported(
                "gradient-hook-arguments",
                f"{hook.describe()} returns another number of gradients than it is given",
            )
        gradients = new_gradients
    return gradients


def _gradients(
    session: Session, what: str, values: list[Value], gradients: list[Value]
) -> list[TensorValue | None]:
    """The gradients of the tensors among some values."""
    of_tensors: list[TensorValue | None] = []
    for value, gradient in zip(values, gradients):
        if not isinstance(value, TensorValue):
            continue
        if not isinstance(gradient, TensorValue) and not is_none(gradient):
            raise session.unsupported(
                "module-hook", f"{what} gives {gradient.describe()} in place of a gradient"
            )
        of_tensors.append(gradient_or_none(gradient))
    return of_tensors


def _reads_gradients_alone(session: Session, hook: Value, count: int) -> bool:
    """Whether a hook of `count` arguments reads the gradients and nothing else that may change.

    It may read no enclosing variables, and no globals besides torch's and the standard
    library's."""
    function = None
    if isinstance(hook, FunctionValue):
        function = hook.object
    if function is None or function.__closure__ or function.__defaults__:
        return False
    code = function.__code__
    # *args, **kwargs
    if code.co_argcount != count or code.co_kwonlyargcount or code.co_flags & 0x0C:
        return False
    return not any(
        name == code.co_varnames[0] or is_global and not stays(session, function.__globals__, name)
        for name, is_global in names_of(code)
    )


def names_of(code: CodeType) -> Iterator[tuple[str, bool]]:
    """The variables that a function and those within it read or write, and whether they are
    global."""
    for instruction in dis.get_instructions(code):
        if instruction.opcode not in _VARIABLES:
            continue
        is_global = "GLOBAL" in instruction.opname or "NAME" in instruction.opname
        names = instruction.argval
        for name in names if isinstance(names, tuple) else (names,):
            yield name, is_global
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_of(constant)


_VARIABLES = {
    number
    for name, number in dis.opmap.items()
    if name.endswith(("_GLOBAL", "_NAME")) or "_FAST" in name
}
_VARIABLES |= {*dis.hasfree, *dis.haslocal}


def stays(session: Session, namespace: dict[str, Any], name: str) -> bool:
    """Whether nobody is expected to change a variable of a module: a module, function or class of
    torch's or Python's own."""
    if name not in namespace:
        return True  # a built-in
    value = namespace[name]
    if isinstance(value, ModuleType):
        return is_trusted(value.__name__)
    return isinstance(value, (type, FunctionType, BuiltinFunctionType)) and trusts_function(value)
