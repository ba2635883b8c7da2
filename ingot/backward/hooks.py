"""Hooks in a compiled backward.

A hook and fake gradients go in. The hook is captured, if it is a function of the gradients, and the
gradients come out that it gives in their place; what the capture relied on is a `Condition` of the
program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.autograd.function import FunctionCtx
from torch.utils.hooks import BackwardHook

from ingot.capture import Captured, Request, capture_call, hook_calls
from ingot.capture.guards import Guard
from ingot.capture.sources import ArgSource, Source
from ingot.errors import Unsupported, unsupported
from ingot.graph.aten_tracer import AtenTracer
from ingot.graph.fakes import FakeTensor
from ingot.graph.tracing import run_nodes
from ingot.options import Options
from ingot.reasons import BREAK
from ingot.torch_private import disable_current_modes

Table = Mapping[int, Any]


def of_module(hook: Any) -> BackwardHook | None:
    """What torch keeps of the hooks of one call of a module, of which `hook` is the part at a
    node."""
    if getattr(hook, "__module__", "") != "torch.utils.hooks":
        return None
    for cell in hook.__closure__ or ():
        if isinstance(cell.cell_contents, BackwardHook):
            return cell.cell_contents
    return None


def called_by(hook: Any) -> list[tuple[Any, ...]]:
    """The user's hooks that a hook on a node comes to, each with what it is always given before the
    gradients."""
    module_hooks = of_module(hook)
    if module_hooks is None:
        return [(hook,)]
    users = (*module_hooks.user_pre_hooks, *module_hooks.user_hooks)
    return [(own, module_hooks.module) for own in users]


def kind_of(hook: Any) -> Any:
    """What tells a function of the user's from others at once: its code, as programs make functions
    anew."""
    if isinstance(hook, MethodType):
        hook = hook.__func__
    if isinstance(hook, FunctionType):
        return hook.__code__
    return type(hook)


@dataclass
class Condition:
    """What has to hold of the user's hook at a `position` among those of the graph, and what the
    hook reads besides gradients."""

    position: int
    guards: list[Guard]
    symbols: Any
    reads: list[Source]

    def fails(self, hooks: Sequence[tuple[Any, ...]]) -> bool:
        return any(guard.differences(hooks[self.position], self.symbols) for guard in self.guards)


class Hooks:
    """Runs the hooks of one graph, and the backwards of its `functions` (the positions of these
    steps), on fakes, and keeps what that relied on."""

    def __init__(self, tables: Iterator[Table], functions: Sequence[int]) -> None:
        self.conditions: list[Condition] = []
        self._make_input: Callable[[str, torch.Tensor], FakeTensor]
        # where a hook is among all, by its table and its number there
        self._first: dict[tuple[int, int], int] = {}
        count = 0
        for table in tables:
            for key, hook in table.items():
                self._first[id(table), key] = count
                count += len(called_by(hook))
        self._functions = {step: count + k for k, step in enumerate(functions)}

    def begin(self, make_input: Callable[[str, torch.Tensor], FakeTensor]) -> None:
        """`make_input` gives the fake of a tensor that is to be one more input of the graph."""
        self._make_input = make_input

    # -- by kind -----------------------------------------------------------------------------------

    def on_gradient(self, recorder: AtenTracer, table: Table, gradient: Any) -> Any:
        """What hooks on the gradient of a tensor make of it."""
        for key, hook in table.items():
            if gradient is None:
                raise unsupported("backward-hook", "a hook on a gradient that does not come in")
            result = self._call(recorder, self._first[id(table), key], (hook,), (gradient,))
            if result is not None:
                gradient = _checked(gradient, result)
        return gradient

    def before(
        self, recorder: AtenTracer, table: Table, gradients: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """What hooks on a node make of the gradients that come in."""
        for key, hook in table.items():
            result = self._call(recorder, self._first[id(table), key], (hook,), (gradients,))
            gradients = _gradients_after_hook(gradients, result)
        return gradients

    def behind(
        self,
        recorder: AtenTracer,
        table: Table,
        gradients: tuple[Any, ...],
        incoming: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        """What hooks on a node make of the gradients that it has made of those that came in."""
        for key, hook in table.items():
            first, module_hooks = self._first[id(table), key], of_module(hook)
            if module_hooks is None:
                result = self._call(recorder, first, (hook,), (gradients, incoming))
            else:
                both = gradients, incoming
                result = self._of_module(recorder, first, hook, module_hooks, *both)
            gradients = _gradients_after_hook(gradients, result)
        return gradients

    def _of_module(
        self,
        recorder: AtenTracer,
        first: int,
        hook: Any,
        module_hooks: BackwardHook,
        *gradients: tuple[Any, ...],
    ) -> Any:
        """Runs torch's own part of a module's hooks, with the user's replaced by what they are
        captured as."""
        if module_hooks.input_tensors_index is None:
            raise unsupported(
                "backward-hook", "hooks on a module none of whose arguments requires a gradient"
            )
        before, behind = module_hooks.user_pre_hooks, module_hooks.user_hooks

        def stand_in(position: int, own: Any) -> Callable[..., Any]:
            return lambda module, *arguments: self._call(
                recorder, position, (own, module), arguments
            )

        stand_ins = [stand_in(first + k, own) for k, own in enumerate((*before, *behind))]
        try:
            module_hooks.user_pre_hooks = stand_ins[: len(before)]
            module_hooks.user_hooks = stand_ins[len(before) :]
            return hook(*gradients)
        finally:
            module_hooks.user_pre_hooks, module_hooks.user_hooks = before, behind

    def function(
        self, recorder: AtenTracer, step: int, call: tuple[Any, ...], tangents: tuple[Any, ...]
    ) -> Any:
        """What the backward of a torch.autograd.Function gives, which is the `step` of the
        graph."""
        return self._call(recorder, self._functions[step], call, tangents)

    # -- one hook ----------------------------------------------------------------------------------

    def _call(
        self,
        recorder: AtenTracer,
        position: int,
        fixed: tuple[Any, ...],
        gradients: tuple[Any, ...],
    ) -> Any:
        """What a hook, and what it is always given (`fixed`), makes of gradients."""
        with disable_current_modes():
            captured = _captured(fixed, gradients)
        slots = (*fixed, gradients)
        inputs: list[Any] = []
        reads: list[Source] = []
        for entry in captured.inputs:
            if not isinstance(entry.fake, FakeTensor):
                raise unsupported("backward-hook", "a hook that reads a number which varies")
            value = entry.source.load(slots)
            if not _is_in_slot(entry.source, len(fixed)):
                reads.append(entry.source)
                value = self._make_input(f"read_{len(self.conditions)}_{len(reads)}", value)
            inputs.append(value)
        guards = []
        for guard in captured.guards:
            if not _is_about(guard, len(fixed)):
                guards.append(guard)
        self.conditions.append(Condition(position, guards, captured.guards.symbols, reads))
        where, region = recorder.where, recorder.region
        versions = _versions(recorder, inputs)
        outputs = run_nodes(captured.graph_module, recorder, inputs)
        recorder.where, recorder.region = where, region
        if captured.writes and versions != _versions(recorder, inputs):
            raise unsupported("backward-hook", f"{_name(fixed)} has effects")
        return captured.residual.build(outputs, slots)


def _versions(recorder: AtenTracer, fakes: Sequence[FakeTensor]) -> list[int]:
    """How often each storage was written."""
    results = []
    for fake in fakes:
        results.append(recorder.tracked(fake).storage.version)
    return results


def _captured(fixed: tuple[Any, ...], gradients: tuple[Any, ...]) -> Captured:
    """The graph of a hook. Raises Unsupported where it is no function of the gradients."""
    call = hook_calls.call_of_module if len(fixed) == 2 else hook_calls.call
    name, arguments = _name(fixed), (*fixed, _stand_ins(gradients))
    try:
        captured = capture_call(call, arguments, {}, Request(Options(dynamic=False)))
    except Unsupported as reason:
        sentence = f"{name}: {reason.why.sentence}"
        raise Unsupported(
            replace(reason.why, sentence=sentence, function="", action=BREAK)
        ) from None
    if captured.residual.effects:
        raise unsupported("backward-hook", f"{name} has effects")
    if captured.context.draws:
        raise unsupported("backward-hook", f"{name} draws random numbers")
    return captured


def _name(fixed: tuple[Any, ...]) -> str:
    name: str = getattr(fixed[0], "__qualname__", type(fixed[0]).__name__)
    if isinstance(fixed[-1], FunctionCtx):
        return name
    return f"the hook {name}"


def _stand_ins(value: Any) -> Any:
    """Tensors of the geometry of fakes, in their place; what is in them does not matter."""
    if isinstance(value, tuple):
        return tuple(map(_stand_ins, value))
    if not isinstance(value, FakeTensor):
        return value
    if any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride())):
        raise unsupported(
            "gradient-hook-arguments",
            "a gradient of sizes that vary is given to a hook, or to a torch.autograd.Function",
        )
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _is_in_slot(source: Source, slot: int) -> bool:
    """Whether a value is that of a slot, or a part of it."""
    root = [source, *source.owners()][-1]
    return isinstance(root, ArgSource) and root.index == slot


def _is_about(guard: Guard, slot: int) -> bool:
    """Whether a guard is about what is in a slot, or about no value."""
    if guard.source is None:
        return True
    if isinstance(guard.data, (tuple, list)):
        data = guard.data
    else:
        data = (guard.data,)
    others = []
    for each in data:
        if isinstance(each, Source):
            others.append(each)
    return any(_is_in_slot(source, slot) for source in (guard.source, *others))


def _checked(gradient: Any, result: Any) -> Any:
    """What a hook gives in place of a gradient; eager refuses another shape or type."""
    is_fake = isinstance(result, FakeTensor)
    if not is_fake or result.shape != gradient.shape or result.dtype != gradient.dtype:
        raise unsupported(
            "gradient-hook-arguments",
            "a hook gives something else than a gradient like that which it is given",
        )
    return result


def _gradients_after_hook(gradients: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
    """The gradients after a hook that gives `result`."""
    if result is None:
        return gradients
    if isinstance(result, tuple):
        results = result
    else:
        results = (result,)
    if len(results) != len(gradients):
        raise unsupported(
            "gradient-hook-arguments", "a hook gives another number of gradients than it is given"
        )
    replaced: list[Any] = []
    for old, new in zip(gradients, results):
        if (old is None) != (new is None):
            raise unsupported(
                "backward-hook",
                "a hook gives a gradient where there is none, or none where there is one",
            )
        replaced.append(None if old is None else _checked(old, new))
    return tuple(replaced)
