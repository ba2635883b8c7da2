"""DTensors in captured code: what is asked of them, and the functions that make, redistribute and
take them apart.

In: DTensors from outside and inside, meshes, placements. Out: nodes of the graph that call torch's
own functions, which run for real on fakes. A DTensor from outside is guarded by its mesh, its
placements and its sizes.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.sources import AttrSource, ConstSource, DerivedSource, Source, is_argument
from ingot.capture.values.base import Arguments, Keywords, NotConstant, Value, map_values
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.modes import sets_mode
from ingot.capture.values.sequences import TupleValue
from ingot.capture.values.tensor import TensorValue
from ingot.capture.values.wrap import wrapper_of, wraps
from ingot.capture.values.wrapper_objects import WrapperObject
from ingot.graph.dtensors import handlers_of_ops, is_dtensor_class, settings_of
from ingot.graph.process_modes import set_loss_parallel
from ingot.graph.wrappers import OfDTensors, Place
from ingot.torch_private import DisableTorchFunctionSubclass, Placement

if TYPE_CHECKING:
    from ingot.capture.session import Session

_PUBLIC = "torch.distributed.tensor"
_API = "torch.distributed.tensor._api"

# -- meshes and placements -------------------------------------------------------------------------


class PlacementValue(ConstantValue):
    """How a DTensor lies on one dimension of a mesh: an object that never changes."""

    __slots__ = ()


class MeshValue(ConstantValue):
    """A mesh of devices. What it says of itself stays so as long as its process groups live."""

    __slots__ = ()

    def describe(self) -> str:
        return "a DeviceMesh"

    def get_attribute(self, session: Session, name: str) -> Value:
        if name not in _KNOWN_OF_MESHES:
            raise session.unsupported("tensor-object", f"DeviceMesh.{name}")
        return super().get_attribute(session, name)


_KNOWN_OF_MESHES = frozenset(
    """
    size get_rank get_local_rank get_coordinate get_group get_all_groups ndim shape device_type
    mesh_dim_names __eq__ __hash__ __class__ _is_current_rank_part_of_mesh
    """.split()
)


def _written(placement: Any) -> str:
    return f"{type(placement).__name__}: {placement!r}"


@wraps(Placement)
def _wrap_placement(session: Session, object_: Any, source: Source) -> Value:
    """One that an argument holds is guarded by its value.

    Others, which modules and hooks keep, are guarded by identity, which is cheaper."""
    if is_argument(source):
        session.guard_derived(_written, object_, source)
    else:
        session.guard(source, Kind.IDENTITY, object_)
    return PlacementValue(object_, source)


_MESHES = sys.modules.get("torch.distributed.device_mesh")
if _MESHES is not None:  # torch has distributed packages
    wraps(_MESHES.DeviceMesh, guards=Kind.IDENTITY)(wrapper_of(MeshValue))


@means(Placement, how=How.INSTANCE)
def _make_placement(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    made = session.python_of(cls, args, kwargs)
    return PlacementValue(made, ConstSource(made))


# -- instances -------------------------------------------------------------------------------------


_OF_DEVICES = frozenset(
    """
    is_cuda is_cpu is_meta is_mps is_xpu is_xla is_mkldnn is_mtia is_quantized is_sparse
    is_sparse_csr
    """.split()
)
"""Attributes of tensors that follow from the device and the layout."""


class DTensorObject(WrapperObject):
    """A DTensor, from outside or made inside."""

    __slots__ = ()

    def content(self, session: Session) -> TensorValue:
        _guard_dispatch(session)
        return super().content(session)

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "device_mesh":
            mesh = self._spec(session).mesh
            return MeshValue(mesh, ConstSource(mesh))
        if name == "placements":
            return self._placements(session)
        if name in ("_spec", "_local_tensor"):
            raise session.unsupported("tensor-object", f"DTensor.{name}, which is private")
        return super().get_attribute(session, name)

    def content_attribute(self, session: Session, name: str) -> Value:
        if name in _OF_DEVICES:
            fake = self.content(session).fake
            with DisableTorchFunctionSubclass():
                return session.wrap_constant(getattr(fake, name))
        if name in ("grad", "grad_fn") and self.is_outside_leaf(session):
            if name == "grad_fn":
                return NONE
            written = session.effects.written_slot(self.object, name)
            return written or session.realize(session.wrap_slot(self.object, self.source, name))
        return super().content_attribute(session, name)

    def is_outside_leaf(self, session: Session) -> bool:
        """Whether it is a leaf from outside, such as a parameter."""
        is_leaf = self.source is not None and super().content_attribute(session, "is_leaf")
        return isinstance(is_leaf, ConstantValue) and is_leaf.object

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        """Of an outside leaf, `grad` may be set: to None, or to another DTensor of its size."""
        value = session.realize(value)
        if name != "grad" or not self.is_outside_leaf(session) or not self._fits(session, value):
            return super().set_attribute(session, name, value)
        session.graph.writes = True
        return session.effects.set_gradient(self, self.object, value)

    def _fits(self, session: Session, gradient: Value) -> bool:
        """Whether autograd takes a gradient."""
        if not isinstance(gradient, DTensorObject):
            return gradient.identity() is None
        mine, other = self.content(session).fake, gradient.content(session).fake
        with DisableTorchFunctionSubclass():
            same = mine.dtype is other.dtype and tuple(mine.shape) == tuple(other.shape)
        return same and gradient is not self

    def _spec(self, session: Session) -> Any:
        return self.content(session).fake._spec  # type: ignore[attr-defined]

    def _placements(self, session: Session) -> Value:
        values: list[Value] = []
        for placement in self._spec(session).placements:
            values.append(PlacementValue(placement, ConstSource(placement)))
        return TupleValue(values, tuple)


def refuse_watched_object(session: Session, value: DTensorObject) -> None:
    """Breaks the graph where hooks of the user's see the gradient of a DTensor from outside."""
    assert value.source is not None
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(value.object, name)
        if hooks:
            sentence = f"hooks on the gradient of {value.describe()}"
            raise session.unsupported("inner-gradients", sentence)
        kind = Kind.IS_NONE if hooks is None else Kind.DICT_EMPTY
        session.guard(AttrSource(value.source, name, "slot"), kind, hooks is None)


def _guard_dispatch(session: Session) -> None:
    """States what torch's dispatch of DTensors depends on beside its arguments."""
    handlers = handlers_of_ops()
    _, implicit = settings_of(handlers)
    settings = session.graph.modes.at_start.process.loss_is_parallel, implicit
    session.guard(DerivedSource(ConstSource(handlers), settings_of), Kind.EQUALS, settings)


def wrapper_object(
    cls: type, content: TensorValue | None, source: Source | None = None, object_: Any = None
) -> WrapperObject:
    """The value of an instance of a wrapper subclass."""
    if is_dtensor_class(cls):
        return DTensorObject(cls, content, source, object_)
    return WrapperObject(cls, content, source, object_)


# -- functions about them --------------------------------------------------------------------------


def _call(session: Session, function: Any, args: Arguments, kwargs: Keywords) -> Value:
    """A call as a node: all but tensors is known, and part of the node's target."""
    tensors: list[Value] = []
    place = partial(_place_of, session, tensors)
    known = list(map(place, args))
    named = map_values(place, kwargs)
    return session.call_function(OfDTensors(function, known, named), *tensors)


def _place_of(session: Session, tensors: list[Value], value: Value) -> Any:
    value = session.deep(value)
    if isinstance(value, WrapperObject):
        tensors.append(value.content(session))
        return Place(len(tensors) - 1)

    def of_leaf(leaf: Value) -> Any:
        if isinstance(getattr(leaf, "fake", None), torch.Tensor):
            tensors.append(leaf)
            return Place(len(tensors) - 1)
        return session.known(leaf)

    try:
        return value.argument(of_leaf)
    except NotConstant as unknown:
        sentence = f"a function of DTensors is given {unknown.args[0].describe()}"
        raise session.unsupported("argument-kind", sentence) from None


Refusal = Callable[["Session", Arguments, Keywords], str]


def _operation(module: str, name: str, refusal: Refusal | None = None) -> None:
    """States that a call of a function is a node, unless `refusal` says why it is not."""

    @means(f"{module}.{name}")
    def rule(session: Session, *args: Value, **kwargs: Value) -> Value:
        if refusal is not None and (why := refusal(session, args, kwargs)):
            raise session.unsupported("tensor-object", why)
        function = operator.attrgetter(name)(sys.modules[module])
        return _call(session, function, args, kwargs)


def _checks(session: Session, args: Arguments, kwargs: Keywords) -> str:
    """Why a `from_local` that compares ranks is no node."""
    if "run_check" in kwargs and session.truth(kwargs["run_check"]):
        return "DTensor.from_local with run_check communicates in a way that is not captured"
    return ""


def _scatters(session: Session, args: Arguments, kwargs: Keywords) -> str:
    """The same of a `distribute_tensor` that takes the data of one rank."""
    if "src_data_rank" in kwargs and kwargs["src_data_rank"].identity() is None:
        return ""
    return "distribute_tensor with the data of one rank communicates in a way that is not captured"


_operation(_API, "DTensor.from_local", _checks)
_operation(_API, "DTensor.to_local")
_operation(_API, "DTensor.redistribute")
_operation(_API, "DTensor.full_tensor")
_operation(_PUBLIC, "distribute_tensor", _scatters)
for _name in ("zeros", "ones", "empty", "full"):
    _operation(_PUBLIC, _name)


# -- losses in parallel ----------------------------------------------------------------------------

_LOSSES = f"{_PUBLIC}.parallel.loss"
means(f"{_LOSSES}._enable_custom_loss_ops")(sets_mode(partial(set_loss_parallel, True)))
means(f"{_LOSSES}._disable_custom_loss_ops")(sets_mode(partial(set_loss_parallel, False)))
