"""`capture_call`: one call of a function becomes a graph, the guards under which it holds, and what is left to do in
Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import fx

from ingot.capture import handlers
from ingot.capture.guards import GuardSet
from ingot.capture.recorder import GraphInput, GraphRecorder
from ingot.capture.residual import Residual
from ingot.capture.results import Results
from ingot.capture.session import Session
from ingot.capture.sources import ArgSource, ConstSource
from ingot.capture.values import module, torch_functions
from ingot.capture.values.base import NotConstant, Raised, Value
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.objects import ExceptionValue
from ingot.errors import EagerRaises, Unsupported
from ingot.graph.fakes import FakeContext
from ingot.options import Options

_TABLES = (handlers, module, torch_functions)  # imported for the rows that they add


@dataclass
class Captured:
    """What capture found out about one call. The graph's inputs are loaded from `inputs[i].source`; its outputs and
    the arguments of
    the call make the result through `residual`."""

    graph_module: fx.GraphModule
    inputs: list[GraphInput]
    guards: GuardSet
    residual: Residual
    context: FakeContext
    ops: int

    def collect_shape_guards(self) -> None:
        """Takes over the relations between sizes that later stages relied on: to be called when the graph is compiled,
        before the guards are used."""
        for left, relation, right, where in self.context.shapes.guards:
            self.guards.add_shape(left, relation, right, where)


def entry(fn: Any) -> tuple[FunctionType, tuple[Any, ...]]:
    """The Python function that a call of `fn` runs, and the arguments it is bound to: for a module, `(__call__,
    (module,))`."""
    if isinstance(fn, torch.nn.Module):
        fn = type(fn).__call__.__get__(fn)
    if isinstance(fn, MethodType) and isinstance(fn.__func__, FunctionType):
        return fn.__func__, (fn.__self__,)
    if isinstance(fn, FunctionType):
        return fn, ()
    call = vars(type(fn)).get("__call__")
    if isinstance(call, FunctionType):
        return call, (fn,)
    raise Unsupported(f"{type(fn).__name__} is not a Python function, method or module")


def argument_slots(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The slots that ArgSource counts: parameters in the order of `co_varnames` (a bound self first), *args a tuple,
    **kwargs a dict.

    Raises TypeError as the call itself would.
    """
    function, bound = entry(fn)
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    args = (*bound, *args)
    given = dict(zip(names[: code.co_argcount], args))
    extra = {}
    for name, value in kwargs.items():
        if name not in names[code.co_posonlyargcount :]:
            extra[name] = value
        elif name in given:
            raise TypeError(f"{function.__qualname__}() got multiple values for argument '{name}'")
        else:
            given[name] = value
    defaults = function.__defaults__ or ()
    given = {
        **dict(zip(names[code.co_argcount - len(defaults) : code.co_argcount], defaults)),
        **(function.__kwdefaults__ or {}),
        **given,
    }
    surplus = args[code.co_argcount :]
    if len(given) < len(names) or (surplus and not code.co_flags & 4) or (extra and not code.co_flags & 8):
        raise TypeError(f"{function.__qualname__}() is called with the wrong arguments")
    slots = [given[name] for name in names]
    slots += [tuple(surplus)] if code.co_flags & 4 else []
    slots += [extra] if code.co_flags & 8 else []
    return tuple(slots)


def capture_call(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options) -> Captured:
    """Captures the call `fn(*args, **kwargs)` without running it.

    Raises Unsupported, with the user's line and the guards gathered so far (`error.guards`), for what cannot be
    captured.
    """
    guards = GuardSet()
    guards.add_global_state()
    context = FakeContext()
    session = Session(guards, GraphRecorder(context, bool(options.dynamic)))
    modes = torch.is_grad_enabled()
    try:
        function, _ = entry(fn)
        return _capture(session, function, argument_slots(fn, args, kwargs))
    except Raised as raised:
        assert isinstance(raised.value, ExceptionValue)
        reason: Unsupported = EagerRaises(f"the program raises {raised.value.message()}", raised.where)
        reason.guards = guards
        raise reason from None
    except NotConstant as unknown:
        reason = session.unsupported(f"the value of {unknown.args[0].describe()} is not known during capture")
        reason.guards = guards
        raise reason from None
    except Unsupported as reason:
        reason.guards = guards
        raise
    finally:
        torch._C._set_grad_enabled(modes)


def _capture(session: Session, function: FunctionType, slots: tuple[Any, ...]) -> Captured:
    root = FunctionValue.outside(session, function, ConstSource(function))
    code = function.__code__
    values: list[Value] = [session.wrap(value, ArgSource(i, code.co_varnames[i])) for i, value in enumerate(slots)]
    result = session.run_root(root, values)
    session.writes.check(session)
    results = Results(session)
    recipe = results.recipe(result)
    recorder: GraphRecorder = session.graph
    recorder.guard_memory(session)
    graph_module, inputs = recorder.finish(results.outputs)
    recorder.context.release()
    captured = Captured(
        graph_module, inputs, session.guards, Residual(recipe, len(results.outputs)), recorder.context, recorder.steps
    )
    captured.collect_shape_guards()
    return captured
