"""Tensors and symbolic integers: a fake, which answers questions, and a node of the graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from inspect import isroutine
from types import GetSetDescriptorType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx

from ingot.capture.meanings import How, stated
from ingot.capture.sources import Source
from ingot.capture.values.base import (
    NULL,
    Arguments,
    Constants,
    Keywords,
    Leaf,
    NotConstant,
    Operator,
    UnaryOperator,
    Value,
    in_order,
    map_values,
    positions,
)
from ingot.capture.values.constant import NONE, ConstantValue, as_value
from ingot.capture.values.drawn_branches import truth_of_draw
from ingot.capture.values.held import EnumValue
from ingot.capture.values.objects import find_missing
from ingot.capture.values.operator_methods import BINARY_METHODS, EQUALITIES, in_place_forms
from ingot.capture.values.outside_branches import truth_from_outside
from ingot.capture.values.relations import RELATIONS, RelationValue
from ingot.capture.values.sequences import TupleValue
from ingot.capture.values.subclasses import BuiltinObject, refuse_overrides
from ingot.capture.values.wording import described
from ingot.graph.fakes import data_of
from ingot.graph.geometry import same_sizes
from ingot.graph.symbols import is_decided_by_data, to_expr
from ingot.graph.unbacked import require_relation

if TYPE_CHECKING:
    from ingot.capture.recorder import GraphRecorder
    from ingot.capture.session import Session

_DATA = frozenset("item tolist numpy data_ptr storage untyped_storage".split())
_DATA |= frozenset("__array__ __bool__ __int__ __float__ __index__ __complex__".split())
"""Methods whose result depends on the data."""

_REFUSED = frozenset(
    """
    retain_grad set_ resize_ resize_as_ t_ transpose_ squeeze_ unsqueeze_ swapaxes_ swapdims_
    detach_ as_strided_ share_memory_ pin_memory is_pinned
    __reduce_ex__ __deepcopy__ __dlpack__ map_ map2_ apply_ rename_ align_as align_to refine_names
    to_sparse to_dense is_shared
    """.split()
)
"""Methods that change the tensor object itself, or that have no place in a graph."""

_PROPERTIES = frozenset(
    """
    dtype device layout ndim requires_grad is_leaf itemsize nbytes names is_nested is_quantized
    is_cuda is_cpu is_meta is_mps is_xpu is_xla is_mkldnn is_sparse is_sparse_csr is_mtia
    """.split()
)
"""Attributes whose value follows from what TENSOR guards."""


_METHODS = {
    name: getattr(torch.Tensor, name)
    for name in dir(torch.Tensor)
    if isroutine(getattr(torch.Tensor, name))
}
"""By name: torch's own methods, as they are before anybody replaces them."""

_VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag"})


def is_getter(name: str) -> bool:
    """Whether torch computes an attribute of tensors, which a mode may override."""
    return isinstance(getattr(torch.Tensor, name, None), GetSetDescriptorType)


class GradientQuestions:
    """How often the program has asked whether gradients are recorded."""

    def __init__(self) -> None:
        self.count = 0


def call_by_rule(
    session: Session, name: str, tensor: TensorValue, args: Arguments, kwargs: Keywords
) -> Value | None:
    """What the rule of a Tensor method gives; None where the call is left to the graph."""
    meaning = stated(_METHODS.get(name))
    if meaning is None or meaning.how is not How.METHOD:
        return None
    result: Value | None = meaning.rule(session, tensor, args, kwargs)
    return result


class TensorValue(Value):
    """A tensor of the graph."""

    __slots__ = ("attributes", "cls", "fake", "fx_node", "gradient", "leaf_since")
    decides_operators = True
    can_require_truth = True

    def __init__(
        self,
        fake: torch.Tensor,
        node: fx.Node,
        source: Source | None = None,
        cls: type = torch.Tensor,
    ) -> None:
        self.source, self.fake, self.fx_node, self.cls = source, fake, node, cls
        # of one made during capture: those that the user sets
        self.attributes: dict[str, Value] = {}
        self.gradient: Value = NONE  # of a leaf made during capture
        # the number of instructions before the one that made it a leaf
        self.leaf_since: int | None = None

    def python_type(self) -> type:
        return self.cls

    def describe(self) -> str:
        return described("tensor", self.source)

    def argument(self, leaf: Leaf) -> Any:
        return leaf(self)

    def key(self, session: Session) -> Any:
        return session.identity_key(self)

    def truth(self, session: Session) -> bool:
        known = self.known_number(session)
        if known is not None:
            return bool(known)
        truth = truth_from_outside(session, self)
        if truth is None:
            truth = truth_of_draw(session, self)
        if truth is not None:
            return truth
        raise session.unsupported("data-branch", f"a branch on the values of {self.describe()}")

    def known_number(self, session: Session) -> torch.Tensor | None:
        """A tensor of its one element, where capture knows that."""
        known: torch.Tensor | None = session.graph.known.of(self.fake)
        if known is None or known.numel() != 1:
            return None
        return known

    def as_bool(self, session: Session) -> Value:
        """What bool() gives: a number."""
        result = call_by_rule(session, "__bool__", self, [], {})
        assert result is not None
        return result

    def require_truth(self, session: Session, expected: bool) -> bool:
        """Have the graph check that its one element is true, or that it is not, which what follows
        relies on. False where that cannot be."""
        fake, shapes = self.fake, session.graph.context.shapes
        if (
            not shapes.unbacked.enabled
            or fake.device.type != "cpu"
            or tuple(fake.shape) not in ((), (1,))
        ):
            return False
        as_number: Value = self
        for name, arg in (("ne", 0), ("to", torch.uint8))[fake.dtype is torch.bool :]:
            as_number = session.call_method(name, as_number, ConstantValue(arg))
        number = session.call_method("item", as_number)
        session.graph.require(session, require_relation, "==", number, int(expected))
        return True

    def length(self, session: Session) -> Any:
        if self.fake.dim() == 0:
            raise session.raised(TypeError, "len() of a 0-d tensor")
        return self._size(session, 0)

    def _size(self, session: Session, dim: int) -> Any:
        size = self.fake.shape[dim]
        if isinstance(size, torch.SymInt):
            return SymIntValue(size, "call_method", "size", (self, dim))
        return size

    def shape(self, session: Session) -> Value:
        sizes = map(partial(self._size, session), range(self.fake.dim()))
        return TupleValue(map(as_value, sizes), torch.Size)

    def get_attribute(self, session: Session, name: str) -> Value:
        if session.overrides.has_modes and is_getter(name):
            return session.torch_attribute(self, name)
        if name in _METHODS:
            return self._method(session, name)
        if name == "shape":
            return self.shape(session)
        if self.source is None and name in ("requires_grad", "is_leaf", "grad_fn"):
            session.state(GradientQuestions).count += 1
        if name in _PROPERTIES:
            return session.wrap_constant(getattr(self.fake, name))
        if name in _VIEWS:
            return session.call_function(getattr, self, ConstantValue(name))
        if name == "data":
            return session.call_function(data_of, self)
        if name in ("grad", "grad_fn"):
            return self._gradient(session, name)
        if name == "__class__":
            return session.wrap_constant(self.cls)
        if find_missing(torch.Tensor, name):
            return self._own_attribute(session, name)
        if callable(getattr(torch.Tensor, name)):
            return self._method(session, name)
        raise session.unsupported("tensor-object", f"Tensor.{name}")

    def _gradient(self, session: Session, name: str) -> Value:
        """`grad` or `grad_fn`: a leaf has no function, and what needs no gradient has neither."""
        if not self.fake.is_leaf or (
            self.source is not None and not session.graph.inputs.value_of(self).is_leaf
        ):
            raise session.unsupported("tensor-object", f"Tensor.{name} of {self.describe()}")
        if name == "grad_fn":
            return NONE
        if self.source is None:
            return self.gradient
        tensor = session.graph.inputs.value_of(self)
        written = session.effects.written_slot(tensor, name)
        return written or session.realize(session.wrap_slot(tensor, self.source, name))

    def _set_gradient(self, session: Session, value: Value) -> None:
        """Sets `grad`, where autograd would take that."""
        value = session.realize(value)
        fits = is_none(value)
        if isinstance(value, TensorValue) and value is not self:
            kind = operator.attrgetter("dtype", "device", "layout")
            fits = kind(self.fake) == kind(value.fake)
            fits = fits and same_sizes(self.fake.shape, value.fake.shape)
        if not fits:
            raise session.unsupported(
                "tensor-object", f"Tensor.grad of {self.describe()} is set to {value.describe()}"
            )
        if self.source is None:
            self.gradient = value
        else:
            session.graph.writes = True
            session.effects.set_gradient(self, session.graph.inputs.value_of(self), value)

    def instance_of(self, session: Session, classes: Any) -> bool:
        """isinstance(): some classes of torch (FloatTensor, Parameter) look at the tensor
        itself."""
        if self.source is not None:
            return session.python(isinstance, session.graph.inputs.value_of(self), classes)
        example = torch.empty(0, dtype=self.fake.dtype, device="cpu")
        if self.fake.device.type != "cpu":
            example = example.to("meta")
        if self.cls is torch.nn.Parameter:
            example = torch.nn.Parameter(example, requires_grad=False)
        return session.python(isinstance, example, classes)

    def _own_attribute(self, session: Session, name: str) -> Value:
        """An attribute that the user set on a tensor object."""
        value = self._find_own(session, name)
        if value is None:
            raise session.raised(
                AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'"
            )
        return value

    def _method(self, session: Session, name: str) -> Value:
        """The tensor's method, or what the user has set on this one in its place."""
        if self.source is not None and name in vars(session.graph.inputs.value_of(self)):
            return self._own_attribute(session, name)
        return TensorMethod(self, name)

    def _find_own(self, session: Session, name: str) -> Value | None:
        if self.source is None:
            return self.attributes.get(name)
        return session.effects.own(session, self, session.graph.inputs.value_of(self), name)

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        if name == "grad" and self.fake.is_leaf:
            return self._set_gradient(session, value)
        if name == "data":
            stated(torch.Tensor.data).rule(session, self, [value], {})  # type: ignore[union-attr]
            return None
        if name == "requires_grad" and self.fake.is_leaf:
            call_by_rule(session, "requires_grad_", self, [value], {})
            return None
        if not find_missing(torch.Tensor, name):
            raise session.unsupported("tensor-side-effect", f"side effect: Tensor.{name} is set")
        if self.source is None:
            self.attributes[name] = value
        else:
            session.effects.set_own(session, self, session.graph.inputs.value_of(self), name, value)

    def delete_attribute(self, session: Session, name: str) -> None:
        if self._find_own(session, name) is None:
            raise session.raised(
                AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'"
            )
        if self.source is None:
            del self.attributes[name]
        else:
            session.effects.set_own(session, self, session.graph.inputs.value_of(self), name, NULL)

    def get_item(self, session: Session, key: Value) -> Value:
        if session.is_overridden(key):
            return session.torch_method(self, "__getitem__", [key], {})
        result = call_by_rule(session, "__getitem__", self, [key], {})
        if result is not None:
            return result
        refuse_overrides(session, "getitem", [key], {})
        return session.call_function(operator.getitem, self, session.deep(key))

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        if session.is_overridden(key, value):
            session.torch_method(self, "__setitem__", [key, value], {})
            return
        value = session.realize(value)
        value = value.element(session, self.fake.dtype) or value
        if call_by_rule(session, "__setitem__", self, [key, value], {}) is None:
            pair = session.deep(key), session.realize(value)
            refuse_overrides(session, "setitem", pair, {})
            session.call_function(operator.setitem, self, *pair)

    def contains(self, session: Session, item: Value) -> bool:
        raise session.unsupported(
            "data-membership", f"a membership test on the values of {self.describe()}"
        )

    def iterate(self, session: Session) -> Value:
        if self.fake.dim() == 0:
            raise session.raised(TypeError, "iteration over a 0-d tensor")
        return session.iterate(session.call_method("unbind", self, ConstantValue(0)))

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        if session.overrides.has_modes:
            return session.torch_unary(function, self)
        return session.call_function(function, self)

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if session.overrides.has_modes:
            return session.torch_binary(function, self, other, reflected)
        if type(other) is TensorValue:
            return session.call_function(function, *in_order(self, other, reflected))
        if isinstance(other, BuiltinObject):
            if not reflected:
                refuse_overrides(session, function.__name__, [other], {})
            other = other.content
        result = other.with_tensor(session, function, self, reflected)
        if result is not NotImplemented:
            return result
        operand = self._operand(session, function, other, reflected)
        if operand is None:
            return None
        pair = in_order(self, operand, reflected)
        return session.call_function(function, *pair)

    def _operand(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        """What an operator takes in place of a Python object; None where a tensor has no say."""
        other = other.as_operand(session)
        if isinstance(other, EnumValue) and isinstance(other.object, int):
            return ConstantValue(int(other.object))
        if _is_in_graph(other):
            return other
        if not isinstance(other, ConstantValue):
            return None
        if type(other.object) in (int, float, bool, complex):
            return other
        # of None and no comparison, the operator raises an error, as eager's does
        if other.object is None and function not in EQUALITIES:
            return other
        return None

    def convert(self, session: Session, cls: type) -> Value:
        known = self.known_number(session)
        if known is not None:
            return session.wrap_result(cls, known)
        result = call_by_rule(session, f"__{cls.__name__}__", self, [], {})
        if result is None:
            raise session.unsupported(
                "data-conversion", f"{cls.__name__}() depends on the data of {self.describe()}"
            )
        return result

    def call_named(self, session: Session, name: str, args: Arguments, kwargs: Keywords) -> Value:
        """Calls a Tensor method."""
        if session.is_overridden(*args, *kwargs.values()):
            return session.torch_method(self, name, args, kwargs)
        result = call_by_rule(session, name, self, args, kwargs)
        if result is not None:
            return result
        if name == "tolist":
            known = session.graph.known.of(self.fake)
            if known is not None:
                return session.wrap_constant(known.tolist())
        if name in _DATA or name in _REFUSED:
            kind = "acts on the object itself, here"
            if name in _DATA:
                kind = "depends on the data of"
            raise session.unsupported("tensor-object", f"Tensor.{name} {kind} {self.describe()}")
        args, kwargs = list(map(session.deep, args)), map_values(session.deep, kwargs)
        if name == "size" and not kwargs:
            shape = self.shape(session)
            if args:
                return shape.get_item(session, args[0])
            return shape
        if name == "type":
            return self._type(session, args, kwargs)
        if not args and not kwargs:
            if name == "__len__":
                return session.wrap_constant(self.length(session))
            if name == "is_inference":
                return self._is_inference(session)
        refuse_overrides(session, name, args, kwargs)
        if not name.startswith("new_"):  # which look at the type of what they are given
            args = [a.as_operand(session) if _is_double(a) else a for a in args]
        try:
            return session.call_method(name, self, *args, **kwargs)
        except NotConstant as unknown:
            raise session.unsupported(
                "argument-kind", f"Tensor.{name} is given {unknown.args[0].describe()}"
            ) from None

    def _is_inference(self, session: Session) -> Value:
        if self.source is not None:
            return ConstantValue(session.graph.inputs.value_of(self).is_inference())
        if not session.graph.context.in_inference:
            return ConstantValue(self.fake.is_inference())
        raise session.unsupported("tensor-object", f"Tensor.is_inference of {self.describe()}")

    def _type(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        """Tensor.type: the name of the legacy type of its dtype, or a conversion to one."""
        if self.fake.device.type != "cpu":
            raise session.unsupported(
                "tensor-object", f"Tensor.type of a tensor on {self.fake.device}"
            )
        legacy_type = session.known([*args, *kwargs.values(), NONE][0])
        example = torch.empty(0, dtype=self.fake.dtype, device="cpu")
        if legacy_type is None:
            return ConstantValue(example.type())
        dtype = session.python(example.type, legacy_type).dtype
        return session.call_method("to", self, ConstantValue(dtype))


def is_none(value: Value) -> bool:
    return isinstance(value, ConstantValue) and value.object is None


class TensorMethod(Value):
    """A method of a tensor, bound to it."""

    __slots__ = ("name", "tensor")

    def __init__(self, tensor: TensorValue, name: str) -> None:
        self.source, self.tensor, self.name = None, tensor, name

    def python_type(self) -> type:
        return type([].append)

    def describe(self) -> str:
        return f"Tensor.{self.name}"

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return self.tensor.call_named(session, self.name, args, kwargs)


_PLAIN = in_place_forms(BINARY_METHODS.keys() - {operator.matmul})
"""What operators in place do to numbers."""

_OF_SIZES = [
    *RELATIONS, operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod
]  # fmt: skip
_SYMBOLIC = dict(zip(_OF_SIZES, _OF_SIZES)) | in_place_forms(_OF_SIZES)
"""Operators of symbolic integers that give such, or a truth value."""


class SymIntValue(Value):
    """An integer that varies between calls: a torch.SymInt, and how the graph computes it."""

    __slots__ = ("_node", "fake", "recipe")
    is_symbolic = True
    is_ragged = False

    def __init__(self, fake: Any, op: str, target: Any, args: tuple[Any, ...]) -> None:
        super().__init__()
        self.fake, self.recipe = fake, (op, target, args)
        self._node: fx.Node | None = None

    @staticmethod
    def of_node(fake: Any, node: fx.Node) -> SymIntValue:
        """What a node of the graph gives."""
        value = SymIntValue(fake, node.op, node.target, ())
        value._node = node
        return value

    def python_type(self) -> type:
        return int

    def describe(self) -> str:
        if is_decided_by_data(self.fake):
            return "a size which the data decide"
        return "a size that varies"

    def argument(self, leaf: Leaf) -> Any:
        return leaf(self)

    @property
    def current(self) -> Any:
        """The SymInt, or the number that guards say it is."""
        known = to_expr(self.fake).constant
        if known is None:
            return self.fake
        return known

    def node(self, recorder: GraphRecorder) -> fx.Node:
        """Its node, made when it is first used."""
        if self._node is None:
            op, target, args = self.recipe
            recorder.context.shapes.keep_in_bounds(to_expr(self.fake))
            operands = list(args)
            for k in positions(_is_in_graph, args):
                operands[k] = recorder.node_of(args[k])
            self._node = recorder.graph.create_node(op, target, tuple(operands))
            self._node.meta.update(val=self.fake, where="")
        return self._node

    def specialize(self, session: Session) -> int:
        """Its value in this call, which becomes a guard."""
        if is_decided_by_data(self.fake):
            raise session.unsupported("symbolic-size-value", f"the value of {self.describe()}")
        return int(self.fake)

    @property
    def in_graph(self) -> bool:
        """Whether what Python computes of it may be computed before the graph runs."""
        return not is_decided_by_data(self.fake)

    def applied(
        self,
        session: Session,
        function: Callable[..., Any],
        before: Constants = (),
        after: Constants = (),
    ) -> Value | None:
        """What a pure function of Python's gives for it and these constants; None where it is to be
        compiled for."""
        from ingot.capture.values.numbers import of_size  # which are made of tensors

        if self.in_graph:
            return of_size(session, self, function, before, after)
        return None

    def is_speculative(self, session: Session) -> bool:
        """Whether it is made of speculative sizes alone."""
        quantities = set(map(session.guards.symbols.get, to_expr(self.fake).symbols))
        return bool(quantities) and quantities.issubset(session.graph.inputs.speculative)

    def convert(self, session: Session, cls: type) -> Value:
        if cls is int:
            return self
        result = None
        if cls is float:
            result = self.applied(session, float)
        return result or ConstantValue(cls(self.specialize(session)))

    def truth(self, session: Session) -> bool:
        if is_decided_by_data(self.fake):
            return self._asked(operator.ne, (self, 0)).truth(session)
        return bool(self.fake != 0)

    @staticmethod
    def _asked(function: Operator, pair: tuple[Any, Any]) -> Value:
        """The answer to a question about a size which the data decide, where there is one."""
        relation = RelationValue(function, pair)
        if relation.answer is None:
            return relation
        return ConstantValue(relation.answer)

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        if function in (abs, operator.abs):
            if (
                is_decided_by_data(self.fake)
                and not self._asked(operator.ge, (self, 0)).is_constant()
            ):
                raise session.unsupported("symbolic-size-value", f"the sign of {self.describe()}")
            if self.fake < 0:
                return self.unary(session, operator.neg)
            return self
        if function not in (operator.neg, operator.pos):
            result = self.applied(session, function)
            if result is not None:
                return result
            return ConstantValue(self.specialize(session)).unary(session, function)
        return SymIntValue(function(self.fake), "call_function", function, (self,))

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        operand: Any = other
        if isinstance(other, ConstantValue) and type(other.object) in (int, bool, float):
            # torch would take a bool for a question
            if type(other.object) is bool:
                operand = int(other.object)
            else:
                operand = other.object
            other = ConstantValue(operand)
        elif not isinstance(other, SymIntValue) or other.is_ragged:
            return None
        pair = in_order(self, operand, reflected)
        operands = list(in_order(self.fake, getattr(operand, "fake", operand), reflected))
        function = _SYMBOLIC.get(function, function)
        # by what is positive, in the algebra of sizes
        divides = function in (operator.floordiv, operator.mod)
        if divides and is_decided_by_data(operands[1]):
            if not self._asked(operator.gt, (pair[1], 0)).is_constant():
                raise session.unsupported("symbolic-size-value", f"a division by {self.describe()}")
        if function not in _SYMBOLIC or float in map(type, pair) or divides and operands[1] <= 0:
            return self._as_number(session, function, other, reflected, operands)
        if function in RELATIONS and any(map(is_decided_by_data, operands)):
            return self._asked(function, pair)
        result = function(*operands)
        if isinstance(result, torch.SymInt):
            return SymIntValue(result, "call_function", function, pair)
        if isinstance(result, torch.SymBool):
            result = bool(result)
        return ConstantValue(result)

    def _as_number(
        self, session: Session, function: Any, other: Value, reflected: bool, operands: list[Any]
    ) -> Value | None:
        """An operator that symbols do not have: computed before the graph runs, or of numbers that
        guards fix."""
        if isinstance(other, SymIntValue):
            if other.is_speculative(session):
                fixed = ConstantValue(other.specialize(session))
                return self.binary(session, function, fixed, reflected)
            if self.is_speculative(session):
                fixed = ConstantValue(self.specialize(session))
                return other.binary(session, function, fixed, not reflected)
        if isinstance(other, ConstantValue):
            before, after = in_order((), (other.object,), reflected)
            result = self.applied(session, _PLAIN.get(function, function), before, after)
            if result is not None:
                return result
        left, right = map(_fixed, operands)
        return ConstantValue(left).binary(session, function, ConstantValue(right), False)


def _fixed(number: Any) -> Any:
    if isinstance(number, torch.SymInt):
        return int(number)
    return number


def _is_in_graph(operand: Any) -> bool:
    return isinstance(operand, (TensorValue, SymIntValue))


def _is_double(value: Value) -> bool:
    """Whether it is a number of NumPy's that is a float."""
    return isinstance(value, ConstantValue) and isinstance(value.object, np.float64)
