"""Modes inside the captured function: gradients, autocast, inference mode, the default dtype, the
backends of attention, labels for profilers.

torch's context managers and decorators for these are Python, and are inlined as any other. What
they come down to are a few C functions that read or set the mode of the thread: those that set one
are called for real while capture runs, so that the operations behind them are captured under it,
and `ModeTracker` tells the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.profiler import record_function

from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.sources import ConstSource, Source
from ingot.capture.values.base import Arguments, Keywords, Rule, Value, map_values
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.functions import BoundMethod, FunctionValue
from ingot.capture.values.objects import ObjectValue
from ingot.capture.values.sequences import ListValue
from ingot.capture.values.wrap import wraps
from ingot.graph.ambient import AUTOCAST_DEVICES, Modes
from ingot.graph.process_modes import (
    set_attention_flag,
    set_attention_priority,
    set_default_dtype,
)
from ingot.torch_private import (
    DecoratorContextManager,
    InferenceMode,
    NoParamDecoratorContextManager,
    SDPBackend,
    attention_order,
    set_attention_order,
    set_grad_enabled,
    set_sdp_flags,
    set_stack_frame_name,
    set_torchs_default_dtype,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session

# -- what sets a mode ------------------------------------------------------------------------------

_CASTS = frozenset({torch.bfloat16, torch.float16})
"""What autocast can cast to on every device; asked for another type, the context manager disables
itself."""


def sets_mode(function: Callable[..., Any]) -> Rule:
    """The rule of a function that sets a mode: called now, and followed by the graph."""

    def rule(session: Session, *args: Value, **kwargs: Value) -> Value:
        known = list(map(session.known, args))
        result = session.python(function, *known, **map_values(session.known, kwargs))
        _refuse_unknown(session, function, known)
        session.graph.modes.changed()
        return session.wrap_constant(result)

    return rule


def _refuse_unknown(session: Session, function: Callable[..., Any], args: list[Any]) -> None:
    """Raises Unsupported for automatic casting that the graph cannot express."""
    if args and type(args[0]) is str and args[0] not in AUTOCAST_DEVICES:
        raise session.unsupported("mode", f"{function.__name__} for the device {args[0]!r}")
    if any(cast.enabled and cast.dtype not in _CASTS for cast in Modes.now().autocast):
        raise session.unsupported("mode", "autocast to a type other than bfloat16 and float16")


@means(torch.autocast_increment_nesting)
def _enter_autocast(session: Session) -> Value:
    session.graph.modes.depth += 1
    return ConstantValue(torch.autocast_increment_nesting())


@means(torch.autocast_decrement_nesting)
def _leave_autocast(session: Session) -> Value:
    session.graph.modes.depth -= 1
    return ConstantValue(torch.autocast_decrement_nesting())


@means(torch.clear_autocast_cache)
def _clear_cache(session: Session) -> Value:
    session.graph.modes.cleared = True
    torch.clear_autocast_cache()
    return NONE


for _function in (
    set_grad_enabled,
    torch.set_autocast_enabled,
    torch.set_autocast_dtype,
    torch.set_autocast_cache_enabled,
):
    means(_function)(sets_mode(_function))

# -- modes of the process --------------------------------------------------------------------------

means(set_torchs_default_dtype)(sets_mode(set_default_dtype))
means(set_attention_order)(sets_mode(set_attention_priority))
for _place, _setter in enumerate(set_sdp_flags):
    means(_setter)(sets_mode(functools.partial(set_attention_flag, _place)))


@means(attention_order, how=How.STATE)
def _attention_order(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """The backends of attention in their order; GLOBAL_STATE guards it."""
    return ListValue(list(map(session.wrap_constant, attention_order())), list)


@wraps(SDPBackend)
def _wrap_backend(session: Session, object_: Any, source: Source) -> Value:
    """A backend of attention, told from others by its number."""
    session.guard(source, Kind.TYPE, SDPBackend)
    session.guard_derived(int, object_, source)
    return ConstantValue(object_, source)


# -- inference mode --------------------------------------------------------------------------------


class InferenceGuard(Value):
    """What torch.inference_mode enters. Inside inference mode, and where it is not wanted, it comes
    to a mode of gradients."""

    __slots__ = ("enabled", "entered_at", "grad_before", "switches")

    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self.enabled, self.switches, self.grad_before = enabled, False, True
        # the number of the instruction that entered it, while inside
        self.entered_at: int | None = None

    def python_type(self) -> type:
        return InferenceMode

    def method___enter__(self, session: Session) -> Value:
        modes, inside = session.graph.modes, torch.is_inference_mode_enabled()
        if inside and not self.enabled:
            raise session.unsupported("inference-mode", "inference mode is left for a while")
        self.grad_before, self.switches = torch.is_grad_enabled(), self.enabled and not inside
        self.entered_at = session.step_of_outermost
        if self.switches:
            modes.enter_inference(session.graph.graph, session.where, self.entered_at)
        else:
            set_grad_enabled(not self.enabled)
            modes.changed()
        return NONE

    def method___exit__(self, session: Session, *raised: Value) -> Value:
        modes = session.graph.modes
        if self.switches:
            modes.leave_inference(session.graph.graph, session.where)
        set_grad_enabled(self.grad_before)
        modes.changed()
        self.entered_at = None
        return NONE


def refuse_inside(session: Session, step: int | None) -> None:
    """Breaks the graph before inference mode was entered, where it would end inside."""
    if step is not None:
        raise session.unsupported(
            "inference-mode", "_InferenceMode, which a graph would end in, is entered", step=step
        )


@means(InferenceMode, how=How.INSTANCE)
def _make_guard(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    return InferenceGuard(bool(session.known(*args, **kwargs)))


# -- context managers ------------------------------------------------------------------------------


@means(DecoratorContextManager, how=How.INSTANCE)
def _make_context(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    """An instance of one of torch's context managers; given a function, what decorates it."""
    decorates = bool(args) and (
        issubclass(cls, NoParamDecoratorContextManager)
        or cls is torch.inference_mode
        and not isinstance(session.realize(args[0]), ConstantValue)
    )
    if decorates:
        return session.call(_make_context(session, cls, [], {}), args, kwargs)
    context = ObjectValue(cls)
    init = session.class_lookup(cls, "__init__")
    if isinstance(init, FunctionType):
        session.call(BoundMethod(session.wrap_class_member(init), context), args, kwargs)
    return context


@means(record_function.__init__, how=How.UNREALIZED)
def _make_label(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """record_function.__init__, whose annotations for TorchScript cannot be followed."""
    arguments = dict(zip(("self", "name", "args"), args)) | kwargs
    label = session.realize(arguments.pop("self"))
    for name, value in vars(record_function("")).items():
        label.set_attribute(session, name, arguments.get(name) or ConstantValue(value))
    return NONE


@means(record_function.__enter__, how=How.UNREALIZED)
def _enter_label(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """A label for a profiler, over operations that are compiled into one: there is nothing to
    mark."""
    label = session.realize(args[0])
    label.set_attribute(session, "run_callbacks_on_exit", ConstantValue(False))
    return label


@functools.lru_cache(1024)
def _renamed(code: CodeType, file: str, name: str) -> CodeType:
    # two files may hold equal code
    return code.replace(co_filename=file, co_name=name, co_qualname=name)


@means(set_stack_frame_name, how=How.UNREALIZED)
def _set_frame_name(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """A mode's decorator names what it makes as the mode: by a code object that is the same each
    time."""
    function = None
    if len(args) == 2 and not kwargs:
        function = session.realize(args[0])
    if isinstance(function, FunctionValue) and function.object is None:
        code = function.code
        function.code = _renamed(code, code.co_filename, session.known(args[1]))
        return NONE
    own: Any = set_stack_frame_name
    return session.inline(FunctionValue.outside(session, own, ConstSource(own)), args, kwargs)


def _no_flags(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """Flags of a library that this torch is made without: nothing asks for them."""
    return session.call(session.wrap_constant(nullcontext), [], {})


if not torch.backends.cudnn.is_available():
    means(torch.backends.cudnn.flags, how=How.UNREALIZED)(_no_flags)
