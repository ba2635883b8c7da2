"""nn.Module instances: attributes in the order of Module.__getattr__, calls by way of forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ingot.capture.guards import MISSING, Kind
from ingot.capture.session import SPECIAL_FUNCTIONS
from ingot.capture.sources import AttrSource, GlobalSource, ItemSource, Source
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.builtins import CONSTRUCTORS
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.objects import ObjectValue, bind_member, instance_dict
from ingot.capture.values.wrap import wraps

if TYPE_CHECKING:
    from ingot.capture.session import Session

_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)


class ModuleValue(ObjectValue):
    """A module that existed before the call."""

    __slots__ = ()

    def describe(self) -> str:
        return f"module {self.source.name}" if self.source else f"a {self.cls.__name__}"

    def truth(self, session: Session) -> bool:
        return self.length(session) > 0 if hasattr(self.cls, "__len__") else True

    def own_attribute(self, session: Session, name: str) -> Value | None:
        """What the instance `__dict__` holds, or else, as Module.__getattr__ would, the tables of parameters,
        buffers and modules."""
        assert self.source is not None
        namespace = instance_dict(self.object) or {}
        if name in namespace:
            return session.wrap(namespace[name], AttrSource(self.source, name))
        if session.class_lookup(self.cls, name) is not MISSING:
            session.guard_absent(self.source, name)
            return None
        for table in _TABLES:
            if name in namespace.get(table, ()):
                return session.wrap(namespace[table][name], ItemSource(AttrSource(self.source, table), name))
        for table in _TABLES:
            session.guard(AttrSource(self.source, table), Kind.ABSENT_KEY, name)
        session.guard_absent(self.source, name)
        return None

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        Value.set_attribute(self, session, name, value)

    def delete_attribute(self, session: Session, name: str) -> None:
        Value.delete_attribute(self, session, name)

    def missing_attribute(self, session: Session, name: str) -> Value:
        if session.class_lookup(self.cls, "__getattr__") is nn.Module.__getattr__:
            raise session.raised(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")
        return super().missing_attribute(session, name)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        raw = session.class_lookup(self.cls, "__call__")
        if raw is nn.Module.__call__:
            return call_forward(session, self, args, kwargs)
        dispatcher = getattr(
            self.cls, "__ingot_dispatcher__", None
        )  # a compiled module inside a compiled one is inlined
        if dispatcher is not None:
            return call_forward(session, self, args, kwargs)
        return session.call(bind_member(session, raw, self, self.cls, "__call__"), args, kwargs)


def call_forward(session: Session, module: Value, args: Arguments, kwargs: Keywords) -> Value:
    """What calling a module comes to when it has no hooks: its forward."""
    module = session.realize(module)
    if not isinstance(module, ModuleValue) or module.source is None:
        raise session.unsupported(f"a call of {module.describe()}")
    namespace = instance_dict(module.object) or {}
    if namespace.get("_compiled_call_impl") is not None:
        raise session.unsupported(f"{module.describe()} was compiled in place")
    for name in _HOOKS:
        _without_hooks(session, AttrSource(module.source, name), namespace.get(name, {}))
    table = vars(torch.nn.modules.module)
    for name in _GLOBAL_HOOKS:
        _without_hooks(session, GlobalSource(table, name), table[name])
    return session.call(module.get_attribute(session, "forward"), args, kwargs)


def _without_hooks(session: Session, source: Source, hooks: Any) -> None:
    if not hooks:
        session.guard(source, Kind.DICT_EMPTY)
    else:
        session.guard(source, Kind.DICT_KEYS, tuple(hooks))  # what is refused holds as long as these hooks stay
        raise session.unsupported(f"{source.name} has hooks", hint="remove the hooks, or call the module outside")


@wraps(nn.Module)
def wrap_nn_module(session: Session, object_: Any, source: Source) -> Value:
    session.guard(source, Kind.TYPE, type(object_))
    return ModuleValue(type(object_), source, object_)


def _construct_module(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    raise session.unsupported(f"a module {cls.__name__} is made", hint="make modules outside the compiled function")


def _call_impl(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    return call_forward(session, args[0], args[1:], kwargs)


def _weights_have_changed(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """What an LSTM asks through weak references: whether its list of weights still holds its parameters."""
    module = session.realize(args[0])
    names = session.known(module.get_attribute(session, "_flat_weights_names"))
    for name, weight in zip(names, session.unpacked(module.get_attribute(session, "_flat_weights"))):
        if not session.same(module.get_attribute(session, name), weight):
            raise session.unsupported(f"the weights of {module.describe()} have changed")
    return ConstantValue(False)


SPECIAL_FUNCTIONS[nn.RNNBase._weights_have_changed] = _weights_have_changed  # type: ignore[index]
SPECIAL_FUNCTIONS[nn.Module._wrapped_call_impl] = _call_impl  # type: ignore[index]
SPECIAL_FUNCTIONS[nn.Module._call_impl] = _call_impl  # type: ignore[index]
CONSTRUCTORS[nn.Module] = _construct_module
