"""nn.Module instances: attributes in the order of Module.__getattr__, calls by way of forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from ingot.capture.guards import MISSING, Kind
from ingot.capture.marks import is_sharded_class
from ingot.capture.meanings import How, means
from ingot.capture.sources import AttrSource, ConstSource, GlobalSource, ItemSource, Source
from ingot.capture.values.base import NULL, Arguments, Callee, Keywords, LazyValue, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.containers import DictValue
from ingot.capture.values.functions import BoundMethod, FunctionValue
from ingot.capture.values.gathered import forwarded
from ingot.capture.values.objects import ObjectValue, bind_member, instance_dict
from ingot.capture.values.wrap import wraps
from ingot.torch_private import call_impl, rnn_weights_have_changed, wrapped_call_impl

if TYPE_CHECKING:
    from ingot.capture.session import Session

_TABLES = ("_parameters", "_buffers", "_modules")
_GETATTR: Any = nn.Module.__getattr__  # as it is before anybody replaces it
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class ModuleValue(ObjectValue):
    """A module: one that existed before the call, or one that the program makes (a list of layers
    that is sliced)."""

    __slots__ = ()

    def describe(self) -> str:
        if self.source:
            return f"module {self.source.name}"
        return f"a {self.cls.__name__}"

    def as_bool(self, session: Session) -> Value:
        return ConstantValue(not hasattr(self.cls, "__len__") or self.length(session) > 0)

    def own_attribute(self, session: Session, name: str) -> Value | None:
        """What the instance `__dict__` holds, or else, as Module.__getattr__ would, the tables of
        parameters, buffers and modules."""
        if session.class_lookup(self.cls, name) is not MISSING or not self._has_plain_getattr(
            session
        ):
            return super().own_attribute(session, name)
        if self.source is None:
            return self.attributes.get(name) or self.member(session, name)
        namespace = instance_dict(self.object) or {}
        written = session.effects.written(namespace, name)
        if written is not None and written is not NULL:
            return written
        if written is None and name in namespace:
            return session.effects.lazy_value(namespace[name], AttrSource(self.source, name))
        if written is None:
            session.guard_absent(self.source, name)
        return self.member(session, name)

    def _has_plain_getattr(self, session: Session) -> bool:
        return session.class_lookup(self.cls, "__getattr__") is _GETATTR

    def member(self, session: Session, name: str) -> Value | None:
        """The parameter, buffer or submodule of this name; None if there is none (guarded)."""
        if self.source is None:
            value: Value | None = None
            for table in _TABLES:
                table_value = session.realize(self.attributes.get(table, NULL))
                if isinstance(table_value, DictValue) and name in table_value.entries:
                    value = value or table_value.entries[name]
            return value
        namespace = instance_dict(self.object) or {}
        tables = []
        for table in _TABLES:
            entries = namespace.get(table, {})
            written = session.effects.written(entries, name)
            if written is not None and written is not NULL:
                return written
            if written is None and name in entries:
                return session.effects.lazy_value(
                    entries[name], ItemSource(AttrSource(self.source, table), name)
                )
            if written is None:
                tables.append(table)
        for table in tables:
            session.guard(AttrSource(self.source, table), Kind.ABSENT_KEY, name)
        return None

    def missing_attribute(self, session: Session, name: str) -> Value:
        if self._has_plain_getattr(session):
            raise session.raised(
                AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'"
            )
        return super().missing_attribute(session, name)

    # -- calls -------------------------------------------------------------------------------------

    def _called(self, session: Session) -> Value:
        """Its `__call__`, bound to it. A compiled module in another one is inlined."""
        cls = type(self.object)
        members = vars(cls)
        if is_stand_in(cls) and "__call__" in members and "__ingot_dispatcher__" not in members:
            raw = members["__call__"]
        else:
            raw = session.class_lookup(self.cls, "__call__")
        return bind_member(session, raw, self, self.cls, "__call__")

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        return self._called(session).callee(session, args, kwargs)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return session.call(self._called(session), args, kwargs)


# -- calls of modules ------------------------------------------------------------------------------

Forwarded = tuple[Value, Arguments, Keywords]


class _HookedCall(FunctionValue):
    """torch's own `Module._call_impl`, to be inlined for a module that has hooks."""

    __slots__ = ()

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        return self, args, kwargs

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return session.inline(self, args, kwargs)


class _CallInOnePiece(_HookedCall):
    """The same where there are hooks on the backward: what breaks the graph inside breaks it at the
    call."""

    __slots__ = ()

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        if session.frames:
            return None
        session.graph.in_one_piece = True  # the module that is compiled itself
        return super().callee(session, args, kwargs)


_CALL_IMPL: Any = call_impl


@means(_CALL_IMPL, how=How.FORWARD)
def _forwarded(session: Session, args: Arguments, kwargs: Keywords) -> Forwarded:
    """What `Module._call_impl` comes to: the module's forward, where there are no hooks."""
    module = session.realize(args[0])
    if not isinstance(module, ModuleValue):
        raise session.unsupported("call", f"a call of {module.describe()}")
    _refuse_lazy(session, module)
    names = []
    for name, table in _OF_ALL_MODULES.items():
        if _has_hooks(session, session.wrap(_TORCH[table.key], table)):
            names.append(name)
    if is_sharded_class(module.cls):
        return forwarded(session, module, args, kwargs, bool(names))
    for name in _HOOKS:
        if _has_hooks(session, module.get_attribute(session, name)):
            names.append(name)
    if names:
        of_backward = not {"_backward_hooks", "_backward_pre_hooks"}.isdisjoint(names)
        kind = _HookedCall
        if of_backward and torch.is_grad_enabled():
            kind = _CallInOnePiece
        return kind.outside(session, _CALL_IMPL, ConstSource(_CALL_IMPL)), args, kwargs
    return session.realize(module.get_attribute(session, "forward")), args[1:], kwargs


@means(wrapped_call_impl, how=How.FORWARD)
def _wrapped_call(session: Session, args: Arguments, kwargs: Keywords) -> Forwarded:
    """What `Module.__call__` comes to. One that torch.compile has compiled in place is called as if
    it were not."""
    module = session.realize(args[0])
    is_replaced = isinstance(module, ModuleValue) and module.own_attribute(session, "_call_impl")
    if not is_replaced and session.class_lookup(module.python_type(), "_call_impl") is _CALL_IMPL:
        return _forwarded(session, args, kwargs)
    return session.realize(module.get_attribute(session, "_call_impl")), args[1:], kwargs


def _has_hooks(session: Session, hooks: Value) -> bool:
    """Whether a table of hooks has any. All that is asked of an empty one is that it stays
    empty."""
    if (
        isinstance(hooks, LazyValue)
        and not hooks.object
        and hooks.source
        and not session.is_realized(hooks.source)
    ):
        session.guard(hooks.source, Kind.DICT_EMPTY)
        return False
    return session.truth(hooks)


def hears_of_errors(session: Session, module: Value) -> bool:
    """Whether a hook of a module is called for errors of its forward as well, which is all that
    torch does about these."""
    if not isinstance(module, ModuleValue):
        return True
    if _has_hooks(session, module.get_attribute(session, _FOR_ERRORS)):
        return True
    return _has_hooks(session, session.wrap(_TORCH[_FOR_ALL_ERRORS.key], _FOR_ALL_ERRORS))


def _refuse_lazy(session: Session, module: ModuleValue) -> None:
    """The first call of a lazy module makes its parameters and may change its class."""
    if isinstance(module.object, LazyModuleMixin) and "_initialize_hook" in (
        instance_dict(module.object) or {}
    ):
        hooks: Any = (instance_dict(module.object) or {})["_forward_pre_hooks"]
        session.guard(AttrSource(module.source, "_forward_pre_hooks"), Kind.DICT_KEYS, tuple(hooks))  # type: ignore[arg-type]
        raise session.unsupported(
            "lazy-module", f"{module.describe()} has not got its parameters yet"
        )


_TORCH: dict[str, Any] = vars(torch.nn.modules.module)
_OF_ALL_MODULES = {name: GlobalSource(_TORCH, f"_global{name}") for name in _HOOKS}
"""By name of a module's own table of hooks: that of the hooks of all modules."""

_FOR_ERRORS = "_forward_hooks_always_called"
_FOR_ALL_ERRORS = GlobalSource(_TORCH, f"_global{_FOR_ERRORS}")


def is_stand_in(cls: type) -> bool:
    """Whether a class was made for one compiled or disabled module, as a subclass of the module's
    own."""
    return "__ingot_stands_for__" in vars(cls)


@wraps(nn.Module, guards=Kind.TYPE)
def wrap_nn_module(session: Session, object_: Any, source: Source) -> Value:
    cls = type(object_)
    if is_stand_in(cls):
        cls = object_.__class__
    return ModuleValue(cls, source, object_)


@means(nn.Module, how=How.INSTANCE)
def _construct_module(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    """A module that the program makes: a new object, and its `__init__` inlined."""
    if (
        type(cls).__call__ is not type.__call__
        or session.class_lookup(cls, "__new__") is not object.__new__
    ):
        raise session.unsupported(
            "module-construction", f"a module {cls.__name__} is made: its class defines how"
        )
    module, init = ModuleValue(cls), session.class_lookup(cls, "__init__")
    session.call(BoundMethod(session.wrap_class_member(init), module), args, kwargs)
    return module


@means(nn.Module.__getattr__, how=How.UNREALIZED)
def _getattr(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """Module.__getattr__, called by name: for instance by an override of it."""
    module, name = session.realize(args[0]), session.known(args[1])
    assert isinstance(module, ModuleValue)
    value = module.member(session, name)
    if value is None:
        raise session.raised(
            AttributeError, f"'{module.cls.__name__}' object has no attribute '{name}'"
        )
    return value


# -- methods with a meaning of their own -----------------------------------------------------------


@means(rnn_weights_have_changed, how=How.UNREALIZED)
def _weights_have_changed(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """What an LSTM asks through weak references: whether its list of weights still holds its
    parameters."""
    module = session.realize(args[0])
    names = session.known(module.get_attribute(session, "_flat_weights_names"))
    for name, weight in zip(
        names, session.unpacked(module.get_attribute(session, "_flat_weights"))
    ):
        if not session.same(module.get_attribute(session, name), weight):
            raise session.unsupported(
                "module-state", f"the weights of {module.describe()} have changed"
            )
    return ConstantValue(False)
