"""Instances of wrapper subclasses: tensors whose class dispatches ops to inner tensors.

In: an outside instance, or one that an op or a constructor gave. Out: a node of the graph that
makes it of its inner tensors, which are inputs of the graph or its results. An op with one runs
the dispatch of its class for real, on fakes. What that may read of the instance is guarded: all
that its `__dict__` holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture import torch_calls
from ingot.capture.facts import TensorFacts, is_plain_constant
from ingot.capture.guards import MISSING, Kind
from ingot.capture.histories import PartsOf
from ingot.capture.sources import (
    AttrSource,
    DerivedSource,
    InstanceDictSource,
    ItemSource,
    PartSource,
    Source,
)
from ingot.capture.values.base import (
    Arguments,
    Keywords,
    NotConstant,
    OptionalRule,
    Value,
    map_values,
)
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.node_results import size_value
from ingot.capture.values.objects import ObjectValue, instance_dict
from ingot.capture.values.sequences import TupleValue
from ingot.capture.values.tensor import TensorValue
from ingot.capture.values.tensor_objects import TensorObject, note_history
from ingot.graph.dtensors import (
    Distribution,
    is_dtensor_class,
    unawaited,
)
from ingot.graph.fakes import FakeTensor
from ingot.graph.symbols import is_decided_by_data
from ingot.graph.tracing import flat
from ingot.graph.wrapper_sizes import Outline, facts_of, followers_of
from ingot.graph.wrappers import (
    Construct,
    GradientLayout,
    Layout,
    Place,
    TakeApart,
    Wrap,
    below,
    is_wrapper_class,
    with_overrides,
)
from ingot.native._native import OfTheLast, local_of
from ingot.reasons import STATIC
from ingot.torch_private import (
    NESTED,
    DisableTorchFunctionSubclass,
    JaggedTensor,
    disabled_torch_dispatch_impl,
    jagged_dummy,
    why_off,
)

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
_DISPATCHED = frozenset({torch.strided, torch.jagged})
"""The layouts of tensors whose class dispatches their ops."""
_MOST = 8  # objects within objects whose state is guarded


_parts_of = PartsOf()


def dispatches(session: Session, cls: type) -> bool:
    """Whether a class is that of wrappers whose dispatch can be traced: none of torch's own."""
    if not is_wrapper_class(cls):
        return False
    raw = session.class_lookup(cls, "__torch_dispatch__")
    if raw is disabled_torch_dispatch_impl:
        return False
    if is_dtensor_class(cls):
        return True
    if cls is JaggedTensor and why_off(NESTED) is None:
        jagged_dummy()  # is made when it is first asked for, which must not be among fakes
        return True
    return not cls.__module__.startswith("torch.") or ".testing." in cls.__module__


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
            if name == "shape":
                return _shape(session, self)
            if name in _OF_GEOMETRY:
                return session.wrap_constant(getattr(fake, name))
            if name == "is_leaf":
                if self.source is None:
                    return ConstantValue(fake.is_leaf)
                return ConstantValue(facts_of(self.object)[-1])  # which is guarded
            if name == "is_nested":
                return ConstantValue(fake.is_nested)
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
    try:
        layout = Layout.of(wrapper)
    except Exception as error:
        raise session.unsupported(
            "tensor-subclass", f"{value.describe()}, whose __tensor_flatten__ raises {error!r}"
        ) from None
    with DisableTorchFunctionSubclass():
        tracks = wrapper.requires_grad
    gradients = None
    if is_dtensor_class(layout.cls):
        places: list[Leaf] = [(local_of(wrapper), DerivedSource(source, local_of))]
        gradients = GradientLayout()
    else:
        places = list(_places(session, value, wrapper, layout, source))
    if tracks:
        parts = _parts_of if gradients is None else PartsOf(gradients)
        places = list(_tracked(wrapper, layout, places, DerivedSource(source, parts)))
    leaves = list(starmap(partial(_leaf, session), places))
    made = session.call_function(Wrap(layout, tracks, gradients), *leaves)
    content = made.content(session)  # type: ignore[attr-defined]
    _guard_alike(session, value, (wrapper, content.fake), layout, source)
    session.graph.objects[id(content.fake)] = value
    note_history(session, value, content.fake)
    return content


Leaf = tuple[torch.Tensor, Source]


def _places(
    session: Session, value: WrapperObject, wrapper: Any, layout: Layout, source: Source
) -> Iterator[Leaf]:
    """The plain tensors of an instance, and where they are."""
    namespace = instance_dict(wrapper)
    if namespace is None or wrapper.layout not in _DISPATCHED:
        raise session.unsupported("tensor-subclass", f"{value.describe()}: a tensor subclass")
    session.guard_derived(_state_names, namespace, InstanceDictSource(source))
    for name, inner in zip(layout.names, layout.inner):
        held = getattr(wrapper, name)
        place = _place_in(namespace, held, source)
        if place is None:
            raise session.unsupported(
                "tensor-subclass", f"{value.describe()}, whose inner tensor {name!r} is computed"
            )
        if inner is None:
            yield held, place
        else:
            session.guard(place, Kind.TYPE, type(held))
            yield from _places(session, value, held, inner, place)


def _place_in(namespace: dict[str, Any], tensor: Any, source: Source) -> Source | None:
    """Where the state of an instance holds an inner tensor: in an attribute, or a dict that is
    one."""
    for name, held in namespace.items():
        if held is tensor:
            return AttrSource(source, name)
        if type(held) is dict:
            for key, item in held.items():
                if item is tensor:
                    return ItemSource(AttrSource(source, name), key)
    return None


def _tracked(
    wrapper: Any, layout: Layout, places: Iterable[Leaf], parts: DerivedSource
) -> Iterator[Leaf]:
    """The same, with the history of the instance where they have a part in its gradient."""
    tracked = parts.function(wrapper)
    for k, (leaf, place) in enumerate(places):
        if k not in layout.tracked:
            yield leaf, place
        elif is_dtensor_class(layout.cls) and _is_alike(tracked[k], leaf):
            yield tracked[k], PartSource(parts)
        else:
            yield tracked[k], ItemSource(parts, k)


def _is_alike(part: torch.Tensor, local: torch.Tensor) -> bool:
    """Whether a part is its local tensor but for the history."""
    if type(local) is not torch.Tensor:
        return False
    return PartSource.walked(TensorFacts.of(part)) == TensorFacts.of(local)


def _leaf(session: Session, tensor: torch.Tensor, place: Source) -> Value:
    leaf = session.realize(session.wrap(tensor, place))
    if type(leaf) is not TensorValue:
        raise session.unsupported("tensor-subclass", f"{leaf.describe()} in a wrapper")
    return leaf


def _guard_alike(
    session: Session, value: Value, pair: tuple[Any, Any], layout: Layout, source: Source
) -> None:
    """States that an outside instance, the first of the pair, is what it is in the graph: the
    second, around fakes."""
    wrapper, fake = pair
    state = instance_dict(wrapper) or {}
    names = _state_names(state)
    followers = followers_of(wrapper, fake, names)
    outline: Any = Outline(fake, layout, followers)
    if is_dtensor_class(layout.cls) and not followers:
        outline = OfTheLast(outline)
    facts = session.guard_derived(outline, wrapper, source)
    if facts[0] or facts_of(fake)[:-1] != facts_of(wrapper)[:-1]:
        raise session.unsupported(
            "tensor-subclass", f"{value.describe()}, which __tensor_unflatten__ makes otherwise"
        )
    if is_dtensor_class(layout.cls):
        session.guard_derived(OfTheLast(Distribution(layout)), wrapper, source)
        return
    with DisableTorchFunctionSubclass():
        if any(map(_is_symbol, flat(fake.__tensor_flatten__()[1]))):
            raise session.unsupported(
                "tensor-subclass", "a wrapper keeps its size in an object", action=STATIC
            )
        inner = list(map(partial(getattr, wrapper), layout.names))
        inner_fakes = list(map(partial(getattr, fake), layout.names))
    for name in names:
        held = state[name]
        if name not in followers and not _is_any(held, inner):
            place = AttrSource(source, name)
            if isinstance(held, torch.Tensor):
                raise session.unsupported(
                    "tensor-subclass",
                    f"{value.describe()}, whose __tensor_flatten__ leaves out {name!r}",
                )
            _guard_state(session, held, place, 0, inner)
    for name, of_inner, *both in zip(layout.names, layout.inner, inner, inner_fakes):
        if of_inner is not None:
            _guard_alike(session, value, tuple(both), of_inner, AttrSource(source, name))


def _state_names(state: dict[str, Any]) -> tuple[str, ...]:
    """The names that an instance holds something under, without what torch keeps there."""
    names = []
    for name in state:
        if not name.startswith(("_sym_sizes_capsule", "_sym_strides_capsule", "_dynamo_")):
            names.append(name)
    return tuple(names)


def _is_any(object_: Any, others: Iterable[Any]) -> bool:
    return any(object_ is other for other in others)


def _guard_state(
    session: Session, object_: Any, source: Source, depth: int, inner: Sequence[Any] = ()
) -> None:
    """States that an object is as it is now: by what it holds, or that it is this very object.
    `inner` are tensors that are guarded otherwise."""
    if is_plain_constant(object_):
        session.guard(source, Kind.EQUALS, object_)
        return
    if _is_any(object_, inner):
        return
    cls = type(object_)
    namespace = instance_dict(object_)
    if depth > _MOST:
        session.guard(source, Kind.IDENTITY, object_)
    elif cls in (list, tuple):
        session.guard(source, Kind.TYPE, cls)
        session.guard(source, Kind.LENGTH, len(object_))
        for k, item in enumerate(object_):
            _guard_state(session, item, ItemSource(source, k), depth + 1, inner)
    elif cls is dict:
        session.guard(source, Kind.TYPE, cls)
        _guard_entries(session, object_, source, depth, inner)
    elif cls is set and all(map(is_plain_constant, object_)):
        session.guard(source, Kind.TYPE, cls)
        session.guard_derived(_in_some_order, object_, source)
    elif namespace is None or not _is_record(cls):
        session.guard(source, Kind.IDENTITY, object_)
    else:
        session.guard(source, Kind.TYPE, cls)
        _guard_entries(session, namespace, InstanceDictSource(source), depth, inner)


def _in_some_order(elements: set[Any]) -> tuple[Any, ...]:
    """The elements of a set, equal sets in the same order."""
    return tuple(sorted(elements, key=repr))


def _guard_entries(
    session: Session, entries: dict[Any, Any], source: Source, depth: int, inner: Sequence[Any]
) -> None:
    session.guard(source, Kind.DICT_KEYS, tuple(entries))
    for key, item in entries.items():
        _guard_state(session, item, ItemSource(source, key), depth + 1, inner)


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
    """The same layout for the sizes of this call that do not follow from inner tensors; they become
    guards."""
    inner: list[Layout | None] = []
    for of_inner in layout.inner:
        inner.append(of_inner and _with_known_sizes(session, of_inner))
    geometry = layout.geometry._replace(
        sizes=_known(session, layout.geometry.sizes),
        strides=_known(session, layout.geometry.strides),
    )
    context = _known(session, layout.context)
    return replace(layout, inner=tuple(inner), context=context, geometry=geometry)


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


def _shape(session: Session, value: WrapperObject) -> Value:
    content = value.content(session)
    with DisableTorchFunctionSubclass():
        sizes: list[Value] = []
        for dim, size in enumerate(content.fake.shape):
            if isinstance(size, torch.SymInt):
                place = content, dim
                sizes.append(size_value(size, "call_function", below(torch.Tensor.size), place))
            else:
                sizes.append(ConstantValue(size))
    return TupleValue(sizes, torch.Size)


def _size(session: Session, content: Value, *dims: Value) -> Value:
    """What `Tensor.size` gives."""
    shape = _shape(session, session.graph.objects[id(content.fake)])  # type: ignore[attr-defined]
    return session.get_item(shape, *dims) if dims else shape


def ragged_size_of(tensor: torch.Tensor, dim: int) -> Any:
    """A size of an instance, as it is."""
    with DisableTorchFunctionSubclass():
        return tensor.shape[dim]


# -- ops -------------------------------------------------------------------------------------------


RULES: dict[Any, OptionalRule] = {}
"""By function of torch's: what captures a call with wrappers in another way, or gives None. The
arguments are the nodes that stand for them."""


NUMBER_RULES: list[Callable[[Session, str, Arguments, Keywords], Value | None]] = []
"""What captures calls with numbers that only the running program knows, by a function's name."""


def call_wrapped(session: Session, function: Any, args: Arguments, kwargs: Keywords) -> Value:
    """A call of torch's with wrappers, as one node: the dispatch of their classes runs."""
    name = getattr(function, "__name__", "")
    rule = RULES.get(function)
    answer = rule(session, args, kwargs) if rule is not None else None
    if answer is not None:
        return answer
    if name == "requires_grad_" and not kwargs and _has_it_so(*args):
        return args[0]
    if name in _REFUSED or not _is_op(function):
        raise session.unsupported("tensor-subclass", f"{name} of a wrapper subclass")
    values = list(map(session.deep, args))
    named = map_values(session.deep, kwargs)
    if name == "size" and not named:
        return _size(session, *values)
    for number_rule in NUMBER_RULES:
        answer = number_rule(session, name, values, named)
        if answer is not None:
            return answer
    wrappers: list[torch.Tensor] = []
    for value in (*values, *named.values()):
        value.argument(partial(_note_wrapper, wrappers))
    before = list(map(_state_of, wrappers))
    versions = list(map(_version_of, wrappers))
    try:
        result = session.call_function(_target_of(function, wrappers), *values, **named)
    except NotConstant as unknown:
        raise session.unsupported(
            "argument-kind", f"{name} is given {unknown.args[0].describe()}"
        ) from None
    if list(map(_state_of, wrappers)) != before:
        raise session.unsupported("tensor-side-effect", f"{name} sets an attribute of a wrapper")
    if list(map(_version_of, wrappers)) != versions:
        session.graph.writes = True
    return result


def is_asked_inside(cls: type) -> bool:
    """Whether `__torch_function__` of a class runs within the nodes of a graph: it is torch's."""
    return cls is JaggedTensor


def _target_of(function: Any, wrappers: Iterable[torch.Tensor]) -> Callable[..., Any]:
    if any(map(is_asked_inside, map(type, wrappers))):
        return with_overrides(function)
    return below(function)


_TRUE = ConstantValue(True)


def _has_it_so(content: Any, requires_grad: Value = _TRUE) -> bool:
    """Whether `requires_grad_` changes nothing."""
    with DisableTorchFunctionSubclass():
        known = requires_grad.is_constant() and requires_grad.constant()
        return known is content.fake.requires_grad


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
    state = vars(wrapper)
    identities = {name: id(state[name]) for name in _state_names(state)}
    if is_dtensor_class(type(wrapper)):
        identities["_spec"] = id(wrapper._spec)  # type: ignore[attr-defined]
    return identities


def _version_of(wrapper: torch.Tensor) -> int:
    """How often its inner tensors were written."""
    total = 0
    for leaf in Layout.of(wrapper).leaves(wrapper, unawaited):
        if not leaf.is_inference():
            total += leaf._version
    return total
