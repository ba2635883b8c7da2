"""Symbolic numbers: torch.SymInt, SymFloat and SymBool over Ingot's own index expressions.

torch asks a SymInt's `node` to do its arithmetic. `SizeNode`, `FractionNode` and `TruthNode` are
such nodes over `Expr`; sympy and torch's own shape environment are not involved. Arithmetic makes
further nodes. A comparison makes a question, a TruthNode, which is put to the `ShapeContext` when
torch or the program needs a bool, and not before: only then may it leave a guard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ingot.errors import unsupported
from ingot.graph.shape_guards import DECIDE, Relation
from ingot.loops.expr import ONE, Expr, as_expr, integer, maximum, minimum
from ingot.sequences import at
from ingot.torch_private import current_autograd_node

if TYPE_CHECKING:
    from ingot.graph.shape_context import ShapeContext

_ASKS_TWICE = "c10/core/Contiguity.h"
_SUMS_UP = "torch/csrc/autograd/input_metadata.cpp", "ATen/ExpandUtils.h"
"""torch's code that asks with an answer that does in general: see TruthNode._in_general."""

_PRODUCTS = {"MmBackward0": ("self", "mat2"), "AddmmBackward0": ("mat1", "mat2")}
"""By the name of autograd's node: what it calls the matrices."""


def to_expr(value: Any) -> Expr:
    """The expression of an int, an Expr or a SymInt of this module."""
    if not isinstance(value, torch.SymInt):
        return as_expr(value)
    node = value.node
    if not isinstance(node, SizeNode):
        if node.is_nested_int():
            raise unsupported("nested-tensor", "a ragged size is used as a number")
        raise unsupported("symbolic-number", "a symbolic size that is not Ingot's")
    return node.expr


def is_decided_by_data(value: Any) -> bool:
    """Whether a size or integer depends on data."""
    return isinstance(value, torch.SymInt) and value.node.context.unbacked.concerns(to_expr(value))


class _Node:
    """What torch asks of every symbolic node, answered for a plain size or truth value."""

    context: ShapeContext

    def wrap_int(self, value: int) -> SizeNode:
        return SizeNode(integer(value), self.context)

    def wrap_bool(self, value: bool) -> TruthNode:
        return _Constant(self.context, value)

    def _yes(self) -> bool:
        return True

    def _no(self) -> bool:
        return False

    def _none(self) -> Any:
        return None

    is_symbolic = has_hint = _yes
    is_int = is_bool = is_float = is_nested_int = is_constant = _no
    constant_int = constant_bool = nested_int = maybe_as_int = maybe_as_bool = _none

    def clone(self) -> _Node:
        return self


Nodes = list["SizeNode"]


class _Number(_Node):
    """The comparisons of a symbolic number with another of its kind."""

    def _compared(self, relation: Relation, right: Any) -> TruthNode:
        raise NotImplementedError

    def eq(self, other: Any) -> TruthNode:
        return self._compared("==", other)

    def ne(self, other: Any) -> TruthNode:
        return self._compared("!=", other)

    def lt(self, other: Any) -> TruthNode:
        return self._compared("<", other)

    def le(self, other: Any) -> TruthNode:
        return self._compared("<=", other)

    def gt(self, other: Any) -> Any:
        return other.lt(self)

    def ge(self, other: Any) -> Any:
        return other.le(self)


class SizeNode(_Number):
    """The node of a SymInt."""

    def __init__(self, expr: Expr, context: ShapeContext) -> None:
        self._expr = self._simplified = expr
        self.context = context
        self._generation = 0  # of what the context knew when it was simplified

    @property
    def expr(self) -> Expr:
        if self._generation != self.context.generation:
            self._simplified = self.context.simplified(self._expr)
            self._generation = self.context.generation
        return self._simplified

    @property
    def first(self) -> Expr:
        """What it was when it was made, whatever has become known since."""
        return self._expr

    is_int = _Node._yes

    @property
    def hint(self) -> int:
        return self.context.hint(self.expr)

    def str(self) -> str:
        return str(self.expr)

    __repr__ = __str__ = _graph_repr = str

    def maybe_as_int(self) -> int | None:
        return self.expr.constant

    constant_int = maybe_as_int

    def wrap_float(self, value: float) -> Any:
        raise unsupported("symbolic-number", "arithmetic between a symbolic size and a float")

    def int_(self) -> int:
        return self.context.specialize(self.expr)

    def guard_int(self, file: Any, line: Any) -> int:
        return self.int_()

    def bool_(self) -> bool:
        return self.context.holds(self.expr, "!=", integer(0))

    def sym_float(self) -> FractionNode:
        return FractionNode(self.expr, ONE, self.context)

    def _as_float(self, *_: Any) -> Any:
        raise unsupported("symbolic-number", "a symbolic size is used as a float")

    truediv = float_truediv = int_truediv = pow = float_pow = sym_sqrt = _as_float

    # -- arithmetic --------------------------------------------------------------------------------

    def _node(self, e: Expr) -> SizeNode:
        return SizeNode(e, self.context)

    def add(self, other: SizeNode) -> SizeNode:
        return self._node(self.expr + other.expr)

    def sub(self, other: SizeNode) -> SizeNode:
        return self._node(self.expr - other.expr)

    def mul(self, other: Any) -> Any:
        if other.is_nested_int():
            return other.mul(self)
        return self._node(self.expr * other.expr)

    def floordiv(self, other: SizeNode) -> SizeNode:
        return self._node(self.expr // other._divisor())

    int_floordiv = floordiv

    def mod(self, other: SizeNode) -> SizeNode:
        return self._node(self.expr % other._divisor())

    def _divisor(self) -> Expr:
        """Expr divides by positive expressions only."""
        if not self.context.holds(integer(0), "<", self.expr):
            raise unsupported(
                "symbolic-size-value", "a size is divided by one that is not positive"
            )
        return self.expr

    def neg(self) -> SizeNode:
        return self._node(-self.expr)

    def pos(self) -> SizeNode:
        return self

    floor = ceil = trunc = round = sym_int = pos

    def sym_max(self, other: SizeNode) -> SizeNode:
        return self._node(maximum(self.expr, other.expr))

    def sym_min(self, other: SizeNode) -> SizeNode:
        return self._node(minimum(self.expr, other.expr))

    def sym_sum(self, terms: Sequence[SizeNode]) -> SizeNode:
        total = integer(0)
        for term in terms:
            total = total + term.expr
        return self._node(total)

    def pow_by_natural(self, other: SizeNode) -> SizeNode:
        result = integer(1)
        for _ in range(other.int_()):
            result = result * self.expr
        return self._node(result)

    # -- questions ---------------------------------------------------------------------------------

    def _compared(self, relation: Relation, right: SizeNode) -> TruthNode:
        if right.is_nested_int():  # which equals no number
            if relation not in ("==", "!="):
                raise unsupported("nested-tensor", "whether a size is less than a ragged one")
            return self.wrap_bool(relation == "!=")
        return _SizeComparison(self.context, self.expr, relation, right.expr)

    # -- memory layout: torch asks the first symbolic size of a tensor about the whole tensor ------

    def is_contiguous(self, sizes: Nodes, strides: Nodes) -> TruthNode:
        return _DenseInOrder(self.context, sizes, strides, range(len(sizes) - 1, -1, -1))

    def is_channels_last_contiguous_2d(self, sizes: Nodes, strides: Nodes) -> TruthNode:
        return self._is_channels_last(sizes, strides, (1, 3, 2, 0))

    def is_channels_last_contiguous_3d(self, sizes: Nodes, strides: Nodes) -> TruthNode:
        return self._is_channels_last(sizes, strides, (1, 4, 3, 2, 0))

    def _is_channels_last(
        self, sizes: Nodes, strides: Nodes, fastest_first: Sequence[int]
    ) -> TruthNode:
        if len(sizes) != len(fastest_first):
            return self.wrap_bool(False)
        return _DenseInOrder(self.context, sizes, strides, fastest_first)

    def is_channels_last_strides_2d(self, sizes: Nodes, strides: Nodes) -> TruthNode:
        return self._unless_plain(self.is_channels_last_contiguous_2d, sizes, strides)

    def is_channels_last_strides_3d(self, sizes: Nodes, strides: Nodes) -> TruthNode:
        return self._unless_plain(self.is_channels_last_contiguous_3d, sizes, strides)

    def _unless_plain(
        self, question: Callable[..., TruthNode], sizes: Nodes, strides: Nodes
    ) -> TruthNode:
        """A contiguous tensor suggests no other format, though sizes of 1 allow to read one into
        it."""
        step = integer(1)
        for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
            if stride.expr is not step:
                return question(sizes, strides)
            step = step * size.expr
        return self.wrap_bool(False)

    def is_non_overlapping_and_dense(self, sizes: Nodes, strides: Nodes) -> TruthNode:
        order = sorted(range(len(sizes)), key=lambda d: strides[d].hint)
        return _DenseInOrder(self.context, sizes, strides, order)

    is_non_overlapping_and_dense_indicator = is_non_overlapping_and_dense


class FractionNode(_Number):
    """The node of a SymFloat, as a quotient of a number or an expression by an expression. It
    stands for a factor of one of torch's formulas, such as 2 / (n - 1)."""

    def __init__(self, numerator: Expr | float, denominator: Expr, context: ShapeContext) -> None:
        self.numerator, self.denominator, self.context = numerator, denominator, context

    is_float = _Node._yes

    def str(self) -> str:
        return f"({self.numerator}) / ({self.denominator})"

    __repr__ = __str__ = _graph_repr = str

    def maybe_as_float(self) -> float | None:
        if isinstance(self.numerator, float) and self.denominator is ONE:
            return self.numerator
        return None

    def _number(self) -> float:
        """The value in this call, on which the compiled code then depends."""
        numerator = self.numerator
        if isinstance(numerator, Expr):
            numerator = self.context.specialize(numerator)
        return numerator / self.context.specialize(self.denominator)

    def quotient(self) -> tuple[Any, Any]:
        """Numerator and denominator: numbers or symbolic integers."""
        numerator: Any = self.numerator
        if isinstance(numerator, Expr):
            numerator = self.context.wrap(numerator)
        return numerator, self.context.wrap(self.denominator)

    def wrap_float(self, value: float) -> FractionNode:
        return self._over_one(integer(int(value)) if value.is_integer() else value)

    def _whole(self) -> Expr:
        """The value, where it is an expression."""
        if self.denominator is not ONE or not isinstance(self.numerator, Expr):
            raise unsupported("symbolic-number", "a symbolic size is used as a float")
        return self.numerator

    def guard_float(self, file: Any, line: Any) -> float:
        number = self.maybe_as_float()
        if number is None:
            return float(self.context.specialize(self._whole()))
        return number

    def _over_one(self, value: Expr | float) -> FractionNode:
        return FractionNode(value, ONE, self.context)

    def float_pow(self, other: FractionNode) -> FractionNode:
        return self._over_one(self._number() ** other._number())

    pow = float_pow

    def sym_sqrt(self) -> FractionNode:
        return self._over_one(math.sqrt(self._number()))

    def add(self, other: FractionNode) -> FractionNode:
        return self._over_one(self._whole() + other._whole())

    def sub(self, other: FractionNode) -> FractionNode:
        return self._over_one(self._whole() - other._whole())

    def mul(self, other: FractionNode) -> FractionNode:
        return self._over_one(self._number() * other._number())

    def float_truediv(self, other: FractionNode) -> FractionNode:
        if other.maybe_as_float() is not None:
            return self._over_one(self._number() / other._number())
        if self.denominator is not ONE:
            raise unsupported("symbolic-number", "a symbolic size is used as a float")
        return FractionNode(self.numerator, other._whole(), self.context)

    truediv = float_truediv

    def _compared(self, relation: Relation, right: FractionNode) -> TruthNode:
        return _Comparison(self.context, self._whole(), relation, right._whole())


class TruthNode(_Node):
    """The node of a SymBool: a question, which is decided when a bool is asked for."""

    def __init__(self, context: ShapeContext) -> None:
        self.context = context

    def decide(self) -> bool:
        raise NotImplementedError

    def expect(self) -> bool:
        """Decide a question where eager raises an error unless the answer is yes."""
        return self.decide()

    def unless(self, default: bool) -> bool:
        """Decide a question where either answer is right: the default does for unbacked symbols."""
        return self.decide()

    def proved(self) -> bool | None:
        """The answer where it follows from algebra, else None."""
        return None

    @property
    def hint(self) -> bool | None:
        """The answer in the present call, where it is one relation."""
        return None

    is_bool = _Node._yes

    def __str__(self) -> str:
        return self.str()

    __repr__ = _graph_repr = __str__

    def str(self) -> str:
        raise NotImplementedError

    def bool_(self) -> bool:
        return self.decide()

    def guard_bool(self, file: Any = "", line: int = 0) -> bool:
        return self.decide()

    guard_size_oblivious = guard_bool

    def guard_or_false(self, file: Any = "", line: int = 0) -> bool:
        return self._in_general(False, file)

    statically_known_true = guard_or_false

    def guard_or_true(self, file: Any = "", line: int = 0) -> bool:
        return self._in_general(True, file)

    def _in_general(self, default: bool, file: Any) -> bool:
        """torch asks whether a tensor is contiguous twice: for what is certain, and if that is not
        enough, all of it as one question. The first asks of each size whether it is 1, which does
        not matter where strides are as they should be. Of a gradient's size it asks whether it is 1
        before it compares it with its input's: one that is the input's is not summed up, and one of
        an input of size 1 is, whether it is 1 or not."""
        path = f"{file}"
        if not path.endswith((_ASKS_TWICE, *_SUMS_UP)):
            return self.unless(default)
        answer = self.proved()
        if answer is not None:
            return answer
        if path.endswith(_SUMS_UP) and self.hint is not default:
            return self.unless(default)
        return default

    def expect_true(self, file: Any = "", line: int = 0) -> bool:
        return self.expect()

    expect_size = expect_true

    def sym_not(self) -> TruthNode:
        return _Not(self)

    def sym_and(self, other: TruthNode) -> TruthNode:
        return _And(self, other)

    def sym_or(self, other: TruthNode) -> TruthNode:
        return _Or(self, other)

    and_ = sym_and
    or_ = sym_or

    def sym_ite(self, yes: Any, no: Any) -> Any:
        return yes if self.decide() else no


class _Constant(TruthNode):
    def __init__(self, context: ShapeContext, value: bool) -> None:
        super().__init__(context)
        self.value = value

    def str(self) -> str:
        return f"{self.value}"

    def decide(self) -> bool:
        return self.value

    proved = decide


class _Comparison(TruthNode):
    """A relation of two expressions."""

    def __init__(self, context: ShapeContext, left: Expr, relation: Relation, right: Expr) -> None:
        super().__init__(context)
        self.left, self.relation, self.right = left, relation, right

    def str(self) -> str:
        return f"{self.left} {self.relation} {self.right}"

    def decide(self) -> bool:
        return self.context.holds(self.left, self.relation, self.right)


class _SizeComparison(_Comparison):
    """A relation of two sizes."""

    def decide(self, likely: bool | None = None) -> bool:
        asks_for_one = self.relation == "==" and self.right is ONE
        if asks_for_one and self.left.constant is None and _decides_no_order(self.left):
            return False
        return self.context.holds(self.left, self.relation, self.right, likely)

    def expect(self) -> bool:
        return self.decide(True)

    def unless(self, default: bool) -> bool:
        if not self.context.unbacked.concerns(self.left, self.right):
            return self.decide()
        answer = self.proved()
        if answer is None:
            return default
        return answer

    def proved(self) -> bool | None:
        return self.context.proved(self.left, self.relation, self.right)

    @property
    def hint(self) -> bool:
        hint = self.context.hint
        return DECIDE[self.relation](hint(self.left), hint(self.right))


def _decides_no_order(step: Expr) -> bool:
    """Whether either answer is right to autograd's question if a matrix has a row stride of 1.

    It asks to lay the gradient of a product out as the matrix is. Where the stride within a row is
    1, only a matrix of one row lies in columns.
    """
    node = current_autograd_node()
    names = None
    if node is not None:
        names = _PRODUCTS.get(node.name())
    if names is None:
        return False
    result = False
    for name in names:
        strides = getattr(node, f"_saved_{name}_sym_strides")  # none of what wants no gradient
        if strides and to_expr(strides[0]) is step:
            if to_expr(strides[1]) is not ONE:
                return False
            result = True
    return result


class _DenseInOrder(TruthNode):
    """Whether a tensor has no gaps, its dimensions being ordered as said."""

    def __init__(
        self,
        context: ShapeContext,
        sizes: Sequence[SizeNode],
        strides: Sequence[SizeNode],
        fastest_first: Sequence[int],
    ) -> None:
        super().__init__(context)
        self.dims = list(zip(at(sizes, fastest_first), at(strides, fastest_first)))

    def str(self) -> str:
        return "is laid out in order"

    def decide(self) -> bool:
        if self._is_plain():
            return True
        context, step = self.context, ONE
        for size, stride in self.dims:
            if not context.proved(stride.expr, "==", step):  # else its size does not matter
                if context.holds(size.expr, "==", ONE):
                    continue
                if not context.holds(stride.expr, "==", step, False):
                    return False
            step = step * size.expr
        return True

    def _is_plain(self) -> bool:
        """Whether it is for all values of the symbols, 0 and 1 included."""
        step = ONE
        for size, stride in self.dims:
            if size.expr.constant != 1:
                if stride.expr is not step:
                    return False
                step = step * size.expr
        return True


class _Not(TruthNode):
    def __init__(self, question: TruthNode) -> None:
        super().__init__(question.context)
        self.question = question

    def str(self) -> str:
        return f"not ({self.question})"

    def decide(self) -> bool:
        return not self.question.decide()

    def unless(self, default: bool) -> bool:
        return not self.question.unless(not default)

    def proved(self) -> bool | None:
        answer = self.question.proved()
        if answer is None:
            return None
        return not answer


class _And(TruthNode):
    def __init__(self, left: TruthNode, right: TruthNode) -> None:
        super().__init__(left.context)
        self.left, self.right = left, right

    def str(self) -> str:
        return f"({self.left}) and ({self.right})"

    def decide(self) -> bool:
        return self.proved() is not False and self.left.decide() and self.right.decide()

    def expect(self) -> bool:
        return self.left.expect() and self.right.expect()

    def unless(self, default: bool) -> bool:
        return self.left.unless(default) and self.right.unless(default)

    def proved(self) -> bool | None:
        answers = self.left.proved(), self.right.proved()
        if False in answers:
            return False
        if None in answers:
            return None
        return True


class _Or(_Not):
    """By De Morgan's law: neither answer is no."""

    def __init__(self, left: TruthNode, right: TruthNode) -> None:
        super().__init__(_And(_Not(left), _Not(right)))
        self.left, self.right = left, right

    def str(self) -> str:
        return f"({self.left}) or ({self.right})"
