"""Instances of wrapper subclasses: tensors whose class dispatches ops to inner tensors.

In: an outside instance, or one that an op or a constructor gave. Out: a node of the graph that
makes it of its inner tensors, which are inputs of the graph or its results. An op with one runs
the dispatch of its class for real, on fakes. What that may read of the instance is guarded: all
that its `__dict__` holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture import torch_calls
from ingot.capture.facts import is_plain_constant
from ingot.capture.guards import MISSING, Kind
from ingot.capture.sources import (
    AttrSource,
    DerivedSource,
    InstanceDictSource,
    ItemSource,
    Source,
)
from ingot.capture.values.base import Arguments, Keywords, NotConstant, Value, map_values
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.objects import ObjectValue, instance_dict
from ingot.capture.values.tensor import TensorValue
from ingot.capture.values.tensor_objects import TensorObject, note_history
from ingot.graph.fakes import FakeTensor
from ingot.graph.symbols import is_decided_by_data
from ingot.graph.tracing import flat
from ingot.graph.wrappers import Construct, Layout, Place, TakeApart, Wrap, below, is_wrapper_class
from ingot.torch_private import DisableTorchFunctionSubclass, disabled_torch_dispatch_impl

if TYPE_CHECKING:
    from ingot.capture.session import Session

_OF_GEOMETRY = frozenset("shape dtype device layout ndim requires_grad itemsize nbytes".split())
_VIEWS = frozenset("T mT H mH real imag".split())
_REFUSED = frozenset(
    """
    backward register_hook register_post_accumulate_grad_hook requires_grad_ __deepcopy__ new
    retain_grad set_ resize_ resize_as_ t_ transpose_ squeeze_ unsqueeze_ swapaxes_ swapdims_
    detach_ as_strided_ share_memory_ pin_memory is_pinned numpy data_ptr storage untyped_storage
    __reduce_ex__ __dlpack__ __array__ map_ map2_ apply_ rename_ align_as align_to refine_names
    tolist item is_shared as_subclass type
    """.split()
)
"""Methods that do something to the object itself, or ask about its memory."""
_MOST = 8  # objects within objects whose state is guarded


def facts_of(wrapper: torch.Tensor) -> tuple[Any, ...]:
    """What an instance is to torch."""
    with DisableTorchFunctionSubclass():
        return (
            wrapper.shape,
            wrapper.stride(),
            wrapper.storage_offset(),
            wrapper.dtype,
            wrapper.device,
            wrapper.layout,
            wrapper.requires_grad,
            wrapper.is_leaf,
        )


def parts_of(wrapper: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The inner tensors of an instance that requires a gradient, with its history."""
    return TakeApart(Layout.of(wrapper))(wrapper)


def dispatches(session: Session, cls: type) -> bool:
    """Whether a class is that of wrappers whose dispatch can be traced: none of torch's own."""
    if not is_wrapper_class(cls):
        return False
    raw = session.class_lookup(cls, "__torch_dispatch__")
    is_torchs = cls.__module__.startswith("torch.") and ".testing." not in cls.__module__
    return raw is not disabled_torch_dispatch_impl and not is_torchs


class WrapperObject(TensorObject):
    """An instance of a wrapper subclass."""

    __slots__ = ()

    def content(self, session: Session) -> TensorValue:
        """The node that stands for it."""
        if self._content is None:
            self._content = _made_again(session, self)
        return self._content

    def content_attribute(self, session: Session, name: str) -> Value:
        fake = self.content(session).fake
        with DisableTorchFunctionSubclass():
            if name in _OF_GEOMETRY:
                return session.wrap_constant(getattr(fake, name))
            if name == "is_leaf":
                if self.source is None:
                    return ConstantValue(fake.is_leaf)
                return ConstantValue(facts_of(self.object)[-1])  # which is guarded
        if name in _VIEWS:
            node = self.content(session)
            return session.call_function(below(getattr), node, ConstantValue(name))
        raise session.unsupported("tensor-subclass", f"Tensor.{name} of {self.describe()}")

    def own_attribute(self, session: Session, name: str) -> Value | None:
        if self.source is not None:
            return super().own_attribute(session, name)
        held = vars(self.content(session).fake).get(name, MISSING)
        if held is MISSING:
            return None
        return self._held(session, name, held)

    def _member(self, session: Session, name: str) -> Value:
        if self.source is not None:
            return super()._member(session, name)
        with DisableTorchFunctionSubclass():
            held = getattr(self.content(session).fake, name, MISSING)
        if held is MISSING:
            raise self.attribute_error(session, name)
        return self._held(session, name, held)

    def _held(self, session: Session, name: str, held: Any) -> Value:
        """What an instance that is made inside holds under a name."""
        content = self.content(session)
        if not isinstance(held, torch.Tensor):
            return session.wrap_constant(held)
        known = session.graph.known_value(held)
        return known or session.call_function(below(getattr), content, ConstantValue(name))

    def instance_of(self, session: Session, classes: Any) -> bool | None:
        if isinstance(classes, type(torch.FloatTensor)):
            raise session.unsupported("tensor-subclass", f"{classes} of {self.describe()}")
        return super().instance_of(session, classes)

    def contains(self, session: Session, item: Value) -> bool:
        raise session.unsupported("tensor-subclass", f"a membership test on {self.describe()}")

    def convert(self, session: Session, cls: type) -> Value | None:
        raise session.unsupported("tensor-subclass", f"{cls.__name__}() of {self.describe()}")

    def put(self, session: Session, name: str, value: Value) -> None:
        raise session.unsupported(
            "tensor-side-effect", f"side effect: {name!r} of {self.describe()} is set"
        )

    def drop(self, session: Session, name: str) -> None:
        self.put(session, name, self)


# -- from outside ----------------------------------------------------------------------------------


def _made_again(session: Session, value: WrapperObject) -> TensorValue:
    """The node that makes an outside instance of its inner tensors, all else guarded."""
    wrapper, source = value.object, value.source
    assert source is not None
    facts = session.guard_derived(facts_of, wrapper, source)
    requires_grad = facts[6]
    try:
        layout = Layout.of(wrapper)
    except Exception as error:
        raise session.unsupported(
            "tensor-subclass", f"{value.describe()}, whose __tensor_flatten__ raises {error!r}"
        ) from None
    leaves = list(_leaves(session, value, wrapper, layout, source))
    if requires_grad:
        leaves = list(_tracked_leaves(session, value, leaves))
    made = session.call_function(Wrap(layout, requires_grad), *leaves)
    content = made.content(session)  # type: ignore[attr-defined]
    if facts_of(content.fake)[:-1] != facts[:-1]:
        raise session.unsupported(
            "tensor-subclass", f"{value.describe()}, which __tensor_unflatten__ makes otherwise"
        )
    session.graph.objects[id(content.fake)] = value
    note_history(session, value, content.fake)
    return content


def _leaves(
    session: Session, value: WrapperObject, wrapper: Any, layout: Layout, source: Source
) -> Iterator[Value]:
    """The plain tensors of an instance, as inputs of the graph. The rest of its state is
    guarded."""
    namespace = instance_dict(wrapper)
    if namespace is None or wrapper.layout is not torch.strided:
        raise session.unsupported("tensor-subclass", f"{value.describe()}: a tensor subclass")
    names = set(layout.names)
    session.guard(InstanceDictSource(source), Kind.DICT_KEYS, tuple(namespace))
    for name, held in namespace.items():
        if name in names:
            continue
        if isinstance(held, torch.Tensor):
            raise session.unsupported(
                "tensor-subclass",
                f"{value.describe()}, whose __tensor_flatten__ leaves out {name!r}",
            )
        _guard_state(session, held, AttrSource(source, name), 0)
    for name, inner in zip(layout.names, layout.inner):
        if name not in namespace:
            raise session.unsupported(
                "tensor-subclass", f"{value.describe()}, whose inner tensor {name!r} is computed"
            )
        held, place = namespace[name], AttrSource(source, name)
        if inner is not None:
            session.guard(place, Kind.TYPE, type(held))
            session.guard_derived(facts_of, held, place)
            yield from _leaves(session, value, held, inner, place)
            continue
        leaf = session.realize(session.wrap(held, place))
        if type(leaf) is not TensorValue:
            raise session.unsupported("tensor-subclass", f"{leaf.describe()} in a wrapper")
        yield leaf


def _tracked_leaves(
    session: Session, value: WrapperObject, leaves: Iterable[Value]
) -> Iterator[Value]:
    """The same with the history of the instance."""
    assert value.source is not None
    for leaf in leaves:
        if not leaf.fake.dtype.is_floating_point:  # type: ignore[attr-defined]
            raise session.unsupported(
                "tensor-subclass", f"gradients of {value.describe()} with inner integers"
            )
    source = DerivedSource(value.source, parts_of)
    for k, part in enumerate(parts_of(value.object)):
        yield session.realize(session.wrap(part, ItemSource(source, k)))


def _guard_state(session: Session, object_: Any, source: Source, depth: int) -> None:
    """States that an object is as it is now: by what it holds, or that it is this very object."""
    if is_plain_constant(object_):
        session.guard(source, Kind.EQUALS, object_)
        return
    cls = type(object_)
    namespace = instance_dict(object_)
    if depth > _MOST:
        session.guard(source, Kind.IDENTITY, object_)
    elif cls in (list, tuple):
        session.guard(source, Kind.TYPE, cls)
        session.guard(source, Kind.LENGTH, len(object_))
        for k, item in enumerate(object_):
            _guard_state(session, item, ItemSource(source, k), depth + 1)
    elif cls is dict:
        session.guard(source, Kind.TYPE, cls)
        _guard_entries(session, object_, source, depth)
    elif namespace is None or not _is_record(cls):
        session.guard(source, Kind.IDENTITY, object_)
    else:
        session.guard(source, Kind.TYPE, cls)
        _guard_entries(session, namespace, InstanceDictSource(source), depth)


def _guard_entries(session: Session, entries: dict[Any, Any], source: Source, depth: int) -> None:
    session.guard(source, Kind.DICT_KEYS, tuple(entries))
    for key, item in entries.items():
        _guard_state(session, item, ItemSource(source, key), depth + 1)


def _is_record(cls: type) -> bool:
    """Whether instances hold nothing but their `__dict__`."""
    return cls.__mro__[-2:-1] == (cls,) or all(map(_adds_no_state, cls.__mro__[:-1]))


def _adds_no_state(cls: type) -> bool:
    return bool(cls.__flags__ & (1 << 9)) and not vars(cls).get("__slots__")


# -- made inside -----------------------------------------------------------------------------------


def construct_wrapper(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    """What calling a wrapper subclass gives: the constructor runs for real, on fakes."""
    tensors: list[Value] = []
    place = partial(_place_of, tensors)
    template = []
    for value in (*args, *kwargs.values()):
        template.append(_constructor_argument(session, session.deep(value), place))
    named = dict(zip(kwargs, template[len(args) :]))
    target = Construct(cls, template[: len(args)], named)
    return session.call_function(target, *tensors)


def _place_of(tensors: list[Value], tensor: Value) -> Place:
    tensors.append(tensor)
    return Place(len(tensors) - 1)


def _constructor_argument(session: Session, value: Value, place: Any) -> Any:
    if isinstance(value, WrapperObject):
        value = value.content(session)
    if type(value) is ObjectValue and value.source is not None:
        if session.effects.is_changed(value.object):
            raise session.unsupported("argument-kind", f"{value.describe()}, which is changed")
        _guard_state(session, value.object, value.source, 0)
        return value.object
    try:
        return value.argument(place)
    except NotConstant as unknown:
        raise session.unsupported(
            "argument-kind", f"a wrapper subclass is given {unknown.args[0].describe()}"
        ) from None


def leaves_of(session: Session, value: WrapperObject) -> tuple[Layout, bool, list[Value]]:
    """The layout of an instance made inside, whether it requires a gradient, and its plain
    tensors."""
    content = value.content(session)
    with DisableTorchFunctionSubclass():
        tracks = content.fake.requires_grad
    layout = _with_known_sizes(session, Layout.of(content.fake))
    parts = session.realize(session.call_function(TakeApart(layout), content))
    return layout, tracks, session.unpacked(parts)


def _with_known_sizes(session: Session, layout: Layout) -> Layout:
    """The same layout for the sizes of this call, which become guards."""
    inner: list[Layout | None] = []
    for of_inner in layout.inner:
        inner.append(of_inner and _with_known_sizes(session, of_inner))
    return replace(
        layout,
        inner=tuple(inner),
        context=_known(session, layout.context),
        sizes=_known(session, layout.sizes),
        strides=_known(session, layout.strides),
    )


def _known(session: Session, tree: Any) -> Any:
    """What `__tensor_flatten__` says, with numbers in place of symbols."""
    if isinstance(tree, torch.SymInt):
        if is_decided_by_data(tree):
            raise session.unsupported("tensor-subclass", "a wrapper of a size that data decide")
        return int(tree)
    if type(tree) in (list, tuple, torch.Size):
        return type(tree)(map(partial(_known, session), tree))
    if type(tree) is dict:
        return map_values(partial(_known, session), tree)
    for held in (instance_dict(tree) or {}).values():
        if any(map(_is_symbol, flat(held))):
            raise session.unsupported("tensor-subclass", "a wrapper keeps its size in an object")
    return tree


def _is_symbol(value: Any) -> bool:
    return isinstance(value, torch.SymInt)


# -- ops -------------------------------------------------------------------------------------------


def call_wrapped(session: Session, function: Any, args: Arguments, kwargs: Keywords) -> Value:
    """A call of torch's with wrappers, as one node: the dispatch of their classes runs."""
    name = getattr(function, "__name__", "")
    if name in _REFUSED or not _is_op(function):
        raise session.unsupported("tensor-subclass", f"{name} of a wrapper subclass")
    values = list(map(session.deep, args))
    named = map_values(session.deep, kwargs)
    wrappers: list[torch.Tensor] = []
    for value in (*values, *named.values()):
        value.argument(partial(_note_wrapper, wrappers))
    before = list(map(_state_of, wrappers))
    versions = list(map(_version_of, wrappers))
    try:
        result = session.call_function(below(function), *values, **named)
    except NotConstant as unknown:
        raise session.unsupported(
            "argument-kind", f"{name} is given {unknown.args[0].describe()}"
        ) from None
    if list(map(_state_of, wrappers)) != before:
        raise session.unsupported("tensor-side-effect", f"{name} sets an attribute of a wrapper")
    if list(map(_version_of, wrappers)) != versions:
        session.graph.writes = True
    return result


def _is_op(function: Any) -> bool:
    """Whether it is a function or method of tensors, and no transform of programs."""
    if isinstance(function, FunctionType):
        is_method = getattr(torch.Tensor, function.__name__, None) is function
        return is_method or torch_calls.is_part_of_whole(function)
    return True


def _note_wrapper(wrappers: list[torch.Tensor], leaf: Any) -> None:
    fake = getattr(leaf, "fake", None)
    if isinstance(fake, torch.Tensor) and type(fake) is not FakeTensor:
        wrappers.append(fake)


def _state_of(wrapper: torch.Tensor) -> dict[str, int]:
    """What an instance holds, by identity."""
    return map_values(id, vars(wrapper))


def _version_of(wrapper: torch.Tensor) -> int:
    """How often its inner tensors were written."""
    total = 0
    for leaf in Layout.of(wrapper).leaves(wrapper):
        if not leaf.is_inference():
            total += leaf._version
    return total
