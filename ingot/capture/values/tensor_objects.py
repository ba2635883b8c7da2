"""Instances of subclasses of torch.Tensor: attributes, and the tensor that each of them is.

In: an outside object, or a tensor that `as_subclass` or `__torch_function__` makes one. Out: the
plain tensor of the graph behind it. Torch's functions come to that tensor once `__torch_function__`
was asked, see `function_overrides`.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import (
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.guards import MISSING
from ingot.capture.meanings import How, means
from ingot.capture.sources import DerivedSource, Source
from ingot.capture.values.base import (
    Arguments,
    Keywords,
    Leaf,
    NotConstant,
    Operator,
    UnaryOperator,
    Value,
    find_owner,
)
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.objects import ObjectValue
from ingot.capture.values.operator_methods import BINARY_METHODS, INPLACE_METHODS, UNARY_METHODS
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.capture.values.wording import described
from ingot.graph.wrappers import is_wrapper_class
from ingot.reasons import SKIP
from ingot.torch_private import (
    DisableTorchFunctionSubclass,
    TensorBase,
    aten,
    disabled_torch_dispatch_impl,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session

OF_TORCH = (torch.Tensor, torch.nn.Parameter, TensorBase, object)
"""The classes whose members every tensor has."""

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""The classes whose instances are tensors and no more."""

_ASKED_OF_CONTENT = frozenset(
    """
    shape dtype device layout ndim requires_grad itemsize nbytes is_nested is_quantized
    is_cuda is_cpu is_meta is_mps is_xpu is_xla is_mkldnn is_sparse is_sparse_csr is_mtia
    T mT H mH real imag data
    """.split()
)
"""Attributes of tensors that follow from what the tensor behind an object is."""

_OF_THE_OBJECT = frozenset(
    """
    backward register_hook register_post_accumulate_grad_hook requires_grad_ __deepcopy__ new
    """.split()
)
"""Methods that do something to the object itself, which a tensor behind it is not."""


_MARKS: dict[Any, str] = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}
"""The attribute by which an instance of another class passes for one of these."""

_as_subclass: Any = torch.Tensor.as_subclass
"""Which asks no `__torch_function__`."""


def is_subclass_object(object_: Any) -> bool:
    """Whether it is an instance of a subclass of torch.Tensor."""
    return issubclass(type(object_), torch.Tensor) and type(object_) not in PLAIN


def plain_of(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor behind an instance of a subclass, in the same memory and with its
    gradients."""
    if torch.is_grad_enabled():
        return _as_subclass(tensor, torch.Tensor)
    with torch.enable_grad():
        return _as_subclass(tensor, torch.Tensor)


def _is_leaf(tensor: torch.Tensor) -> bool:
    with DisableTorchFunctionSubclass():
        return tensor.is_leaf


class TensorObject(ObjectValue):
    """An instance of a subclass of torch.Tensor whose class leaves the dispatch of ops alone."""

    __slots__ = ("_content",)

    def __init__(
        self,
        cls: type,
        content: TensorValue | None = None,
        source: Source | None = None,
        object: Any = None,
    ) -> None:
        super().__init__(cls, source, object)
        self._content = content

    def content(self, session: Session) -> TensorValue:
        """The tensor behind it."""
        if self._content is None:
            assert self.source is not None
            source = DerivedSource(self.source, plain_of)
            self._content = session.graph.inputs.tensor(session, plain_of(self.object), source)
            note_history(session, self, self._content.fake)
        return self._content

    def describe(self) -> str:
        return described(self.cls.__name__, self.source)

    def argument(self, leaf: Leaf) -> Any:
        raise NotConstant(self)

    def key(self, session: Session) -> Any:
        if self._is_torchs(session, "__hash__"):
            return session.identity_key(self)
        return super().key(session)

    def instance_of(self, session: Session, classes: Any) -> bool | None:
        if isinstance(classes, type(torch.FloatTensor)):  # which asks for the dtype
            return self.content(session).instance_of(session, classes)
        if classes not in _MARKS or issubclass(self.cls, classes):
            return None
        mark = self.own_attribute(session, _MARKS[classes])
        return mark is not None and session.truth(mark)

    # -- attributes --------------------------------------------------------------------------------

    def bind(self, session: Session, raw: Any, name: str) -> Value:
        if not _has_member(name, raw):
            return super().bind(session, raw, name)
        if name == "__class__":
            return session.wrap_constant(self.cls)
        if isinstance(raw, (MethodDescriptorType, WrapperDescriptorType, FunctionType)):
            return TensorObjectMethod(self, name)
        if isinstance(raw, GetSetDescriptorType):
            return session.torch_attribute(self, name)
        return super().bind(session, raw, name)

    def content_attribute(self, session: Session, name: str) -> Value:
        """An attribute of the tensor behind it."""
        if name == "is_leaf" and self.source is not None:
            return ConstantValue(session.guard_derived(_is_leaf, self.object, self.source))
        if name in _ASKED_OF_CONTENT or self.source is None:
            return self.content(session).get_attribute(session, name)
        raise session.unsupported("tensor-subclass", f"Tensor.{name} of {self.describe()}")

    def method(self, session: Session, name: str, *args: Value, **kwargs: Value) -> Value:
        """Calls a method that torch gives it."""
        return TensorObjectMethod(self, name).call(session, args, kwargs)

    # -- what Python asks of it --------------------------------------------------------------------

    def _is_torchs(self, session: Session, name: str) -> bool:
        """Whether a special method is torch's own."""
        raw = session.class_lookup(self.cls, name)
        return raw is not MISSING and find_owner(self.cls, name) in OF_TORCH

    def special(self, session: Session, name: str, *args: Value) -> Value | None:
        if self._is_torchs(session, name):
            return self.method(session, name, *args)
        return super().special(session, name, *args)

    def as_bool(self, session: Session) -> Value:
        if not self._is_torchs(session, "__bool__"):
            return super().as_bool(session)
        return session.torch_method(self, "__bool__", [], {})

    def length(self, session: Session) -> Any:
        if not self._is_torchs(session, "__len__"):
            return super().length(session)
        answer = session.torch_method(self, "__len__", [], {})
        if isinstance(answer, SymIntValue):
            return answer
        return session.known(answer)

    def iterate(self, session: Session) -> Value:
        if not self._is_torchs(session, "__iter__"):
            return super().iterate(session)
        if session.known(self.method(session, "dim")) == 0:
            raise session.raised(TypeError, "iteration over a 0-d tensor")
        return session.iterate(self.method(session, "unbind", ConstantValue(0)))

    def get_item(self, session: Session, key: Value) -> Value:
        return self.special(session, "__getitem__", key) or super().get_item(session, key)

    def contains(self, session: Session, item: Value) -> bool:
        if not self._is_torchs(session, "__contains__"):
            return super().contains(session, item)
        return self.content(session).contains(session, item)

    def convert(self, session: Session, cls: type) -> Value | None:
        if not self._is_torchs(session, f"__{cls.__name__}__"):
            return None
        return self.content(session).convert(session, cls)

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        if not self._is_torchs(session, UNARY_METHODS[function]):
            return super().unary(session, function)
        return session.torch_unary(function, self)

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if function in INPLACE_METHODS and not reflected:
            name = INPLACE_METHODS[function][0]
            if session.class_lookup(self.cls, name) is MISSING:
                return None
        else:
            _, plain = INPLACE_METHODS.get(function, ("", function))
            name = BINARY_METHODS[plain][reflected]
        if not self._is_torchs(session, name):
            return super().binary(session, function, other, reflected)
        if not is_operand(other):
            return None
        return session.torch_binary(function, self, other, reflected)


class _Histories(list[tuple[TensorObject, torch.Tensor, Any]]):
    """The outside instances that require gradients, what stands for them, and the autograd nodes of
    these."""


def note_history(session: Session, value: TensorObject, fake: torch.Tensor) -> None:
    """Before a graph takes what stands for an outside instance."""
    with DisableTorchFunctionSubclass():
        if fake.requires_grad:
            session.state(_Histories).append((value, fake, fake.grad_fn))


def recorded_objects(session: Session) -> Iterator[tuple[TensorObject, Any]]:
    """The outside instances that require gradients, and the autograd nodes of what stands for
    them."""
    for value, _, node in session.state(_Histories):
        yield value, node


def refuse_rebased(session: Session) -> None:
    """Leaves to eager what writes an instance that gradients are recorded of: its history would
    change."""
    for value, fake, node in session.state(_Histories):
        with DisableTorchFunctionSubclass():
            is_rebased = fake.grad_fn is not node
        if is_rebased:
            sentence = f"{value.describe()}, which requires a gradient, is written"
            raise session.unsupported("tensor-subclass", sentence, action=SKIP)


def is_operand(value: Value) -> bool:
    """Whether a tensor's operators take it."""
    if isinstance(value, (TensorValue, TensorObject)) or value.decides_operators:
        return True
    if value.is_symbolic:
        return True
    return isinstance(value, ConstantValue) and isinstance(value.object, (int, float, complex))


def _has_member(name: str, raw: Any) -> bool:
    """Whether all tensors have this very member."""
    for cls in OF_TORCH:
        if vars(cls).get(name) is raw:
            return True
    return False


class TensorObjectMethod(Value):
    """A method that torch gives an instance of a subclass, bound to it."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: TensorObject, name: str) -> None:
        super().__init__()
        self.owner, self.name = owner, name

    def python_type(self) -> type:
        return type([].append)

    def describe(self) -> str:
        return f"Tensor.{self.name}"

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        owner = self.owner
        if self.name == "as_subclass":
            return shown_as(session, owner.content(session), _asked_for(session, args, kwargs))
        if owner.source is not None and self.name in _OF_THE_OBJECT:
            raise session.unsupported(
                "tensor-subclass", f"Tensor.{self.name} of {owner.describe()}"
            )
        return session.torch_method(owner, self.name, args, kwargs)


# -- as_subclass -----------------------------------------------------------------------------------


@means(torch.Tensor.as_subclass, how=How.METHOD)
def _as_subclass_of(
    session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
) -> Value:
    return shown_as(session, tensor, _asked_for(session, args, kwargs))


def _asked_for(session: Session, args: Arguments, kwargs: Keywords) -> Any:
    """The class that `as_subclass` is given."""
    values = [*args, *kwargs.values()]
    if len(values) != 1:
        raise session.unsupported("wrong-arguments", "as_subclass is called with wrong arguments")
    return session.known(values[0])


def shown_as(session: Session, tensor: TensorValue, cls: Any, is_new: bool = False) -> Value:
    """What `as_subclass` gives: a view of a tensor, unless that `is_new` and nobody has it."""
    if not (isinstance(cls, type) and issubclass(cls, torch.Tensor)):
        raise session.unsupported("tensor-subclass", f"as_subclass is given {cls!r}")
    if is_wrapper_class(type(tensor.fake)):
        raise session.unsupported("tensor-subclass", f"as_subclass of a {type(tensor.fake)}")
    if not is_new:
        tensor = session.call_function(aten.alias.default, tensor)  # type: ignore[assignment]
    if cls is torch.Tensor:
        return tensor
    refuse_class(session, cls, "a tensor")
    return TensorObject(cls, tensor)


def refuse_class(session: Session, cls: type, what: str) -> None:
    """Breaks the graph where a class does more than to override torch's functions."""
    if session.class_lookup(
        cls, "__torch_dispatch__"
    ) is not disabled_torch_dispatch_impl or cls.__module__.startswith("torch."):
        raise session.unsupported("tensor-subclass", f"{what}, a {cls.__name__}: a tensor subclass")
