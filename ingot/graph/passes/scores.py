"""Attention whose scores are changed in ways of the program's own.

What is recognized is two batched products with a softmax between them, and in a joint graph their
gradients. Between them may be any pointwise ops and views, which go along as steps; nothing of the
size of the scores is then in memory. Where such a value has another use, all stays as it is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from itertools import filterfalse
from typing import Any, NamedTuple, TypeGuard

import torch
from torch.fx import Graph, Node

from ingot.errors import Unsupported
from ingot.graph import geometry
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor, new_fake
from ingot.graph.geometry import at_hand, surely_same
from ingot.graph.nodes import add_call, ancestors, fake_result, only_user, reached_from
from ingot.graph.passes.attention import keeps_last, softmax_input
from ingot.graph.passes.linear import swaps_dims
from ingot.graph.schemas import is_pointwise, is_random
from ingot.graph.symbols import is_decided_by_data, to_expr
from ingot.loops.expr import Expr
from ingot.loops.own_ops import scored_attention, scored_product, scored_square
from ingot.loops.scores import Step, Value, encode
from ingot.sequences import map_leaves
from ingot.torch_private import OpOverload, aten

# their results hold the elements of the argument, in its order where both are contiguous
_VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.unsqueeze.default,
    aten.squeeze.dim, aten.clone.default,
}  # fmt: skip
_TURNS = (aten.transpose.int, aten.permute.default)
_HALVES = (torch.float16, torch.bfloat16)
MOST_STEPS = 64  # a score is computed anew for each block of keys


_SCALES = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)


class Kinds(NamedTuple):
    """Which attention is taken.

    There are dtypes of its operands, a head's elements at most, the ops that its softmax may end
    with, whether other gradients may read those of scores, and whether scores may be the products
    themselves, scaled.
    """

    dtypes: tuple[torch.dtype, ...]
    widest: int
    softmax: tuple[OpOverload, ...]
    others: bool = False
    plain: bool = True


_SAFE = aten._safe_softmax.default
ON_GPU = Kinds(_HALVES, 128, (_SAFE, aten.div.Tensor, aten.mul.Tensor))
ON_CPU = Kinds((*_HALVES, torch.float32), 512, (_SAFE,), others=True)


def recognize_scores(graph: AtenGraph, device: str = "cuda", kinds: Kinds = ON_GPU) -> None:
    """Replace each attention of these kinds with scores in float32. Sizes may be symbols, but for
    those of heads."""
    for node in list(graph.graph.nodes):
        if node.target not in kinds.softmax:
            continue
        value = _tensor(node)
        if value is None or value.device.type != device or value.dtype is not torch.float32:
            continue
        match = _scores(node)
        if match is not None:
            _Attention(graph, node, *match, kinds).replace()


def recognize_scores_on_cpu(graph: AtenGraph, kinds: Kinds = ON_CPU) -> None:
    """The same on a CPU, in graphs of which nothing is on a GPU."""
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor) and value.device.type != "cpu":
            return
    recognize_scores(graph, "cpu", kinds)


def recognize_changed_scores_on_cpu(graph: AtenGraph) -> None:
    """The same without plain attention, for which a CPU has a kernel of its own."""
    recognize_scores_on_cpu(graph, ON_CPU._replace(plain=False))


def _scores(node: Node) -> tuple[Node, bool] | None:
    """(the scores, whether a row of -inf gives zeros) where a node is their softmax."""
    if node.target is aten._safe_softmax.default:
        scores = node.args[0]
        if isinstance(scores, Node) and node.args[1] in (-1, fake_result(node).dim() - 1):
            return scores, True
        return None
    return softmax_input(node)


def _tensor(node: Any) -> FakeTensor | None:
    """The value of a node, if it is a tensor whose geometry the data do not decide."""
    value = None
    if isinstance(node, Node):
        value = node.meta.get("val")
    if not isinstance(value, FakeTensor):
        return None
    if any(map(is_decided_by_data, (*value.shape, *value.stride()))):
        return None
    return value


class _Attention:
    """One softmax, all that is of the size of its scores, and what reads that.

    `squares` are the values of that size: they follow from the product of queries and keys and, in
    a joint graph, from the `tangent`, the product of the result's gradient and the values.
    """

    def __init__(
        self, graph: AtenGraph, softmax: Node, scores: Node, zero_rows: bool, kinds: Kinds
    ) -> None:
        self.kinds, self.graph, self.softmax, self.scores, self.zero_rows = (
            kinds,
            graph,
            softmax,
            scores,
            zero_rows,
        )
        self.tangent: Node | None = None
        self.squares: dict[Node, None] = {}
        self.turned: dict[Node, Node] = {}  # with the last two dimensions swapped: of what
        self.row_sums: list[Node] = []
        self.uses: list[Node] = []  # products that squares are an operand of
        self.others: list[Node] = []  # what else reads squares, in memory
        # what a softmax that is written out consists of, and a sum's logarithm
        self.inside = _between(scores, softmax)
        self.logarithm = _logarithm_of(scores)
        if self.logarithm is not None:
            self.inside |= {*_between(scores, self.logarithm), self.logarithm}

    def replace(self) -> None:
        product = self.first_product()
        if product is None or not self.spread_from(product):
            return
        forward = self.forward_product()
        if forward is None or not self.kinds.plain and self.is_plain(product):
            return
        if self.logarithm is not None and self.logarithm < forward:
            return  # it would be read before it is there
        for total in list(self.row_sums):
            if not self.is_known_sum(total, forward):
                self.row_sums.remove(total)
                self.others.append(total)
        if self.others and not self.may_be_in_memory():
            return
        products = [product, *self.uses, *filter(None, [self.tangent])]
        if not all(map(self.takes_operands, products)):
            return
        try:
            for width in map(self.width, products):
                int(width)  # which becomes a guard: a kernel is for heads of one width
            self.rewrite(product, forward)
        except Unsupported:  # it is too late for a guard
            return
        except TypeError:  # of an argument that steps have no words for
            return

    # -- what there is -----------------------------------------------------------------------------

    def first_product(self) -> Node | None:
        """The batched product that scores follow from."""
        elements = fake_result(self.scores).numel()
        node, seen = self.scores, 0
        waiting, known = [node], {node}
        while waiting and seen < MOST_STEPS:
            node, seen = waiting.pop(), seen + 1
            value = _tensor(node)
            if value is None or not surely_same(value.numel(), elements):
                continue
            if node.target is aten.bmm.default:
                return node
            if _is_elementwise(node) or _keeps_elements(node):
                for source in node.all_input_nodes:
                    if source not in known:
                        known.add(source)
                        waiting.append(source)
        return None

    def is_plain(self, product: Node) -> bool:
        """Whether scores are the product, scaled."""
        node = self.scores
        while node is not product:
            if len(node.all_input_nodes) != 1:
                return False
            if node.target not in _SCALES and not _keeps_elements(node):
                return False
            node = node.all_input_nodes[0]
        return True

    def spread_from(self, product: Node) -> bool:
        """Find all squares and what reads them; False where something else does."""
        shape = fake_result(product).shape
        behind = False
        for node in self.graph.graph.nodes:
            behind |= node is self.softmax
            is_product = node.target is aten.bmm.default
            if node in self.inside:
                continue
            if node is product:
                self.squares[node] = None
            elif node is self.softmax:
                self.squares[node] = None
            elif not any(map(self.is_square, node.all_input_nodes)):
                value = _tensor(node)
                if behind and is_product and value is not None and _same(value.shape, shape):
                    if not self.meets(node):
                        continue
                    if self.tangent is not None:
                        return False
                    self.tangent = node
                    self.squares[node] = None
            elif not self.takes(node):
                return False
        return len(self.squares) <= MOST_STEPS and all(map(self.is_in_rows, self.squares))

    def is_in_rows(self, square: Node) -> bool:
        """Whether a row of a square is that of the scores."""
        shape, rows = fake_result(square).shape, fake_result(self.scores).shape[-2:]
        return not geometry.has_zero(shape) and _same(shape[-2:], rows)

    def meets(self, product: Node) -> bool:
        """Whether what follows from a product meets squares."""
        waiting, known = [product], {product}
        while waiting and len(known) < MOST_STEPS:
            for user in waiting.pop().users:
                is_elementwise = _is_elementwise(user)
                if is_elementwise and not self.squares.keys().isdisjoint(user.all_input_nodes):
                    return True
                if user not in known and (is_elementwise or _keeps_elements(user)):
                    known.add(user)
                    waiting.append(user)
        return False

    def takes(self, node: Node) -> bool:
        """Whether a reader of squares is one that is understood; notes it."""
        value = _tensor(node)
        if value is None:
            return False
        if node.target is aten.bmm.default:
            self.uses.append(node)
            left, right = node.args
            return self.is_square(left) is not self.is_square(right)
        if node.target in _TURNS and _tensor(node) is not None and swaps_dims(node, 3, 1, 2):
            self.turned[node] = node.args[0]  # type: ignore[assignment]
            return node.args[0] in self.squares
        if node.target is aten.sum.dim_IntList:
            self.row_sums.append(node)
            return True
        elements = fake_result(self.scores).numel()
        is_square = surely_same(value.numel(), elements)
        if is_square and (_is_elementwise(node) or _keeps_elements(node)):
            self.squares[node] = None
        else:
            self.others.append(node)
        return True

    def may_be_in_memory(self) -> bool:
        """Whether the squares that others read are gradients of scores."""
        if not self.kinds.others or self.tangent is None:
            return False
        for reader in self.others:
            for square in filter(self.is_square, reader.all_input_nodes):
                if square in self.turned or self.tangent not in self.needed(square):
                    return False
        return True

    def is_square(self, operand: Any) -> bool:
        return operand in self.squares or operand in self.turned

    def forward_product(self) -> Node | None:
        """The product of the weights, rounded and reshaped at most, and the values."""
        results = []
        for node in self.uses:
            square = node.args[0]
            while square in self.squares and square is not self.softmax:
                assert isinstance(square, Node)
                if not (_keeps_elements(square) or square.target is aten._to_copy.default):
                    break
                square = square.args[0]
            if square is self.softmax:
                results.append(node)
        if len(results) == 1:
            return results[0]
        return None

    def is_known_sum(self, node: Node, forward: Node) -> bool:
        """Whether a sum over keys is that of the weights times the tangent, and so that of the
        result times its gradient."""
        terms = node.args[0]
        if not isinstance(terms, Node) or terms.target is not aten.mul.Tensor:
            return False
        if len(node.args) != 3 or node.kwargs or self.tangent is None:
            return False
        if list(node.args[1]) not in ([-1], [fake_result(terms).dim() - 1]):  # type: ignore[arg-type]
            return False
        factors = list(terms.args)
        if self.softmax not in factors or len(terms.users) != 1 or node.args[2] is not True:
            return False
        factors.remove(self.softmax)
        other: Any = factors[0]
        while isinstance(other, Node) and other is not self.tangent:
            if not (_keeps_elements(other) or other.target is aten._to_copy.default):
                return False
            other = other.args[0]
        return other is self.tangent and self.is_tangent_of(forward)

    def is_tangent_of(self, forward: Node) -> bool:
        """Whether the tangent is the product of a gradient and the values of the forward."""
        assert self.tangent is not None
        gradient, turned = self.tangent.args
        values = forward.args[1]
        if not isinstance(turned, Node) or turned.target not in _TURNS:
            return False
        value, result = _tensor(gradient), _tensor(forward)
        if value is None or result is None or not _same(value.shape, result.shape):
            return False
        return turned.args[0] is values

    def takes_operands(self, node: Node) -> bool:
        """Whether the operands of a product, or what they are widened from, are of such dtypes, but
        for squares."""
        for operand in node.args:
            if self.is_square(operand):
                continue
            value = _tensor(operand)
            if value is None or geometry.has_zero(value.shape):
                return False
            width = self.width(node)
            if at_hand(width) > self.kinds.widest or not self.may_be_known(width):
                return False
            source = _tensor(_source(operand)[0])  # type: ignore[arg-type]
            if source is None or source.dtype not in self.kinds.dtypes:
                return False
        return True

    def may_be_known(self, size: int | torch.SymInt) -> bool:
        """Whether a size is a number, or may become one: none that was seen to vary, or is marked
        as dynamic."""
        return to_expr(size).symbols <= self.graph.shapes.speculative

    def width(self, product: Node) -> int | torch.SymInt:
        """How many elements of a head are in a row of a product's operands."""
        left, right = product.args
        if self.is_square(left):
            return fake_result(right).shape[2]  # type: ignore[arg-type]
        return fake_result(left).shape[1 if self.is_square(right) else 2]  # type: ignore[arg-type]

    # -- what becomes of it ------------------------------------------------------------------------

    def rewrite(self, product: Node, forward: Node) -> None:
        nodes, shape = self.graph.graph, fake_result(product).shape
        text, sizes, captured = self.steps(self.scores, [product], None)
        replaced: list[tuple[Node, Node]] = []
        with nodes.inserting_before(forward):
            operands = _narrowed(nodes, [*product.args, forward.args[1]])
            args = (*operands, captured, text, sizes, self.zero_rows)
            result = fake_result(forward)
            rows = new_fake((*shape[:2], 1), result, dtype=torch.float32)
            whole = add_call(nodes, scored_attention, args, forward.meta, val=(result, rows))
            node = add_call(nodes, operator.getitem, (whole, 0), forward.meta)
            replaced.append((forward, node))
            if len(self.uses) > 1 or self.others or self.logarithm is not None:
                logarithms = add_call(nodes, operator.getitem, (whole, 1), forward.meta, val=rows)
                logarithms = self.viewed(logarithms, fake_result(self.softmax))
            if self.logarithm is not None:
                replaced.append((self.logarithm, logarithms))
        for old in self.row_sums:
            with nodes.inserting_before(old):
                replaced.append((old, self.row_sum(old, node)))
        for old, new in replaced:
            old.replace_all_uses_with(new)
        for use in self.uses:
            if use is not forward:
                self.replace_use(use, product, logarithms)
        for reader in self.others:
            for square in filter(self.is_square, reader.all_input_nodes):
                self.replace_square(square, reader, product, logarithms)
        for old, _ in replaced:
            nodes.erase_node(old)

    def viewed(self, rows: Node, like: FakeTensor) -> Node:
        """A number for each row of scores, as the scores lie."""
        shape = (*like.shape[:-1], 1)
        value = new_fake(shape, fake_result(rows), dtype=torch.float32)
        return add_call(
            self.graph.graph, aten.view.default, (rows, _sizes(shape)), rows.meta, val=value
        )

    def row_sum(self, old: Node, result: Node) -> Node:
        """The sums of the result times its gradient."""
        assert self.tangent is not None
        nodes, factors = self.graph.graph, []
        like = fake_result(result)
        wide = new_fake(like.shape, like, dtype=torch.float32)
        for factor in (result, self.tangent.args[0]):
            copy = add_call(nodes, aten._to_copy.default, (factor,), old.meta, val=wide)
            copy.kwargs = {"dtype": torch.float32}
            factors.append(copy)
        terms = add_call(nodes, aten.mul.Tensor, tuple(factors), old.meta, val=wide)
        sums = new_fake((*like.shape[:2], 1), like, dtype=torch.float32)
        total = add_call(nodes, aten.sum.dim_IntList, (terms, [-1], True), old.meta, val=sums)
        return self.viewed(total, fake_result(self.softmax))

    def replace_use(self, use: Node, product: Node, logarithms: Node) -> None:
        """Have a product with squares compute them."""
        nodes, (left, right) = self.graph.graph, use.args
        is_left = self.is_square(left)
        square, other = (left, right) if is_left else (right, left)
        by_keys = square in self.turned
        if by_keys:
            square = self.turned[square]  # type: ignore[index]
        assert isinstance(square, Node) and isinstance(other, Node)
        products = [product]
        if self.tangent is not None and self.tangent in self.needed(square):
            products.append(self.tangent)
        text, sizes, captured = self.steps(square, products, logarithms)
        result = fake_result(use)
        with nodes.inserting_before(use):
            (other,) = _narrowed(nodes, [other])
            operands = []
            for p in products:
                operands += _narrowed(nodes, p.args)
            if not is_left:  # a @ b is the transpose of b.T @ a.T
                other, by_keys = _turned(nodes, other), not by_keys
            shape: tuple[Any, ...] = tuple(result.shape)
            if not is_left:
                shape = (shape[0], shape[2], shape[1])
            wide = new_fake(shape, result, dtype=torch.float32)
            args = (operands, other, captured, text, sizes, by_keys, self.zero_rows)
            node = add_call(nodes, scored_product, args, use.meta, val=wide)
            if not is_left:
                node = _turned(nodes, node)
            if result.dtype is not torch.float32:
                node = add_call(nodes, aten._to_copy.default, (node,), use.meta, val=result)
                node.kwargs = {"dtype": result.dtype}
            elif not is_left:
                node = add_call(nodes, aten.clone.default, (node,), use.meta, val=result)
                node.kwargs = {"memory_format": torch.contiguous_format}
        use.replace_all_uses_with(node)
        nodes.erase_node(use)

    def replace_square(self, square: Node, reader: Node, product: Node, logarithms: Node) -> None:
        """Have a reader read a square that is computed anew."""
        assert self.tangent is not None
        products = [product, self.tangent]
        text, sizes, captured = self.steps(square, products, logarithms)
        result = fake_result(square)
        operands = [*product.args, *self.tangent.args]
        args = (operands, captured, text, sizes, _sizes(result.shape))
        with self.graph.graph.inserting_before(reader):
            node = add_call(self.graph.graph, scored_square, args, square.meta, val=result)
        reader.replace_input_with(square, node)

    @property
    def odd_rows(self) -> list[tuple[float, float]]:
        """Logarithms of infinite sums and, with `zero_rows`, of rows of nothing: what weights are
        made with instead, so that they are NaN and 0."""
        if self.zero_rows:
            return [(math.inf, math.nan), (-math.inf, 0.0)]
        return [(math.inf, math.nan)]

    def needed(self, square: Node) -> list[Node]:
        """The squares that one follows from, itself included, in order."""
        before = {*ancestors([square]), square}
        return list(filter(before.__contains__, self.squares))

    def steps(
        self, square: Node, products: list[Node], logarithms: Node | None
    ) -> tuple[str, list[Any], list[Node]]:
        """The text of what makes a square of products, the sizes in it, and what it captures."""
        ready = {*products}
        if logarithms is None:
            ready.add(self.softmax)
        between = list(filterfalse(ready.__contains__, self.needed(square)))
        captured: dict[Node, None] = {}
        for node in between:
            if node is self.softmax:
                assert logarithms is not None
                captured[logarithms] = None
                continue
            for source in node.all_input_nodes:
                if source not in self.squares and not _is_number(source):
                    captured[source] = None
        numbers: dict[Node, int] = {}
        for node in (*products, *captured):
            numbers[node] = len(numbers)
        steps: list[Step] = []
        count = len(numbers)

        def numbered(leaf: Any) -> Any:
            if not isinstance(leaf, Node):
                return leaf
            if _is_number(leaf):
                return leaf.args[0]
            return Value(numbers[leaf])

        def add(target: Any, args: Any, kwargs: Any, like: Any, dtype: torch.dtype) -> Value:
            args, kwargs = map_leaves(numbered, args), map_leaves(numbered, kwargs)
            shape = tuple(_sizes(fake_result(like).shape))
            steps.append(Step(target, args, _known(kwargs), shape, dtype))
            return Value(count + len(steps) - 1)

        for node in between:
            dtype = fake_result(node).dtype
            if node is self.softmax:
                value: Any = logarithms
                rows = logarithms
                for odd, number in self.odd_rows:
                    is_odd = add(aten.eq.Scalar, (value, odd), {}, rows, torch.bool)
                    value = add(aten.masked_fill.Scalar, (value, is_odd, number), {}, rows, dtype)
                value = add(aten.sub.Tensor, (self.scores, value), {}, node, dtype)
                value = add(aten.exp.default, (value,), {}, node, dtype)
            else:
                value = add(node.target, node.args, dict(node.kwargs), node, dtype)
            numbers[node] = value.number
        return *encode(steps), list(captured)


def _sizes(shape: Sequence[int | torch.SymInt]) -> list[int | Expr]:
    """Sizes as arguments of a node."""
    sizes = list[int | Expr]()
    for size in shape:
        sizes.append(size if isinstance(size, int) else to_expr(size))
    return sizes


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether shapes or strides are equal, whatever symbols stand for."""
    return len(a) == len(b) and all(map(surely_same, a, b))


def _lies_alike(a: FakeTensor, b: FakeTensor) -> bool:
    return _same(a.stride(), b.stride())


def _between(first: Node, last: Node) -> set[Node]:
    """What the last node is computed by from the first."""
    return reached_from([first]).intersection(ancestors([last])) - {first, last}


def _logarithm_of(scores: Node) -> Node | None:
    """The logarithm of the sums of the exponentials of scores, as `logsumexp` is decomposed, if
    nothing else reads what it is computed by."""
    for shifted in scores.users:
        node: Node | None = shifted
        for target in (aten.exp.default, aten.sum.dim_IntList, aten.log.default, aten.add.Tensor):
            node = node and only_user(node)
            if node is None or node.target is not target:
                break
            if target is aten.sum.dim_IntList and not keeps_last(node):
                break
        else:
            assert node is not None
            shifts = shifted.args[1:], node.args[1:]
            is_sum = shifted.target is aten.sub.Tensor and shifts[0] == shifts[1]
            if is_sum and _is_finite_maximum(shifts[0][0], scores) and _is_closed(scores, node):
                return node
    return None


def _is_finite_maximum(node: Any, scores: Node) -> bool:
    """Whether a node is the largest of each row of scores, or 0 where that is infinite."""
    if not isinstance(node, Node) or node.target is not aten.where.self:
        return False
    is_infinite, zero, largest = node.args
    if not _calls(largest, aten.amax.default, scores) or not keeps_last(largest):
        return False
    if not _calls(is_infinite, aten.eq.Scalar) or is_infinite.args[1] != math.inf:
        return False
    if not _calls(is_infinite.args[0], aten.abs.default, largest):
        return False
    return isinstance(zero, Node) and _is_number(zero) and zero.args == (0.0,)


def _calls(node: Any, target: OpOverload, first: Node | None = None) -> TypeGuard[Node]:
    """Whether a node calls an op, with this first argument."""
    if not isinstance(node, Node) or node.target is not target:
        return False
    return first is None or node.args[0] is first


def _is_closed(first: Node, last: Node) -> bool:
    """Whether nothing else reads what is between two nodes."""
    inside = _between(first, last)
    readers = {last}
    for node in inside:
        readers.update(node.users)
    return readers <= inside | {last}


def _is_number(node: Node) -> bool:
    """Whether a value is a number of the program's, as it takes part in ops on scores."""
    if node.target is not aten.scalar_tensor.default or not isinstance(node.args[0], float):
        return False
    return fake_result(node).dtype is torch.float32


def _known(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keywords without those that say where and how a tensor lies, as it lies nowhere."""
    result = {}
    for k, v in kwargs.items():
        if k not in ("layout", "device"):
            result[k] = v
    return result


def _turned(nodes: Graph, node: Node) -> Node:
    value = fake_result(node)
    (count, rows, columns), (step, down, across) = value.shape, value.stride()
    turned = new_fake((count, columns, rows), value, strides=(step, across, down))
    return add_call(nodes, aten.transpose.int, (node, 1, 2), node.meta, val=turned)


def _source(operand: Node) -> tuple[Node, list[Node]]:
    """What an operand was widened from, and the views that made the operand of that. The operand
    itself where it was not."""
    node, views = operand, list[Node]()
    while node.args and isinstance(source := node.args[0], Node):
        if _only_casts(node):
            a, b = _tensor(source), _tensor(node)
            if a is not None and b is not None and _is_half(source) and _lies_alike(a, b):
                return source, views[::-1]
            break
        if not getattr(node.target, "is_view", False):
            break
        views.append(node)
        node = source
    return operand, []


def _narrowed(graph: Graph, operands: Sequence[Any]) -> list[Node]:
    """Operands as they were before they were widened."""
    results = []
    for operand in operands:
        results.append(_narrow(graph, *_source(operand)))
    return results


def _narrow(graph: Graph, node: Node, views: Sequence[Node]) -> Node:
    """New views of a node, like those of a wider copy of it."""
    for view in views:
        like = fake_result(view)
        value = new_fake(like.shape, like, strides=like.stride(), dtype=fake_result(node).dtype)
        args = (node, *view.args[1:])
        node = add_call(graph, view.target, args, view.meta, val=value)  # type: ignore[arg-type]
    return node


def _is_half(node: Any) -> bool:
    value = _tensor(node)
    return value is not None and value.dtype in _HALVES


def _only_casts(node: Node) -> bool:
    if node.target is not aten._to_copy.default or "dtype" not in node.kwargs:
        return False
    return node.kwargs.keys() <= {"dtype", "layout", "device"}


def _is_elementwise(node: Node) -> bool:
    target: Any = node.target
    if node.op != "call_function" or not hasattr(target, "_schema"):
        return False
    if _only_casts(node):
        return True
    return is_pointwise(target) and not target._schema.is_mutable and not is_random(target)


def _keeps_elements(node: Node) -> bool:
    """Whether a node holds all elements of its argument, in their order."""
    if node.target not in _VIEWS or not isinstance(source := node.args[0], Node):
        return False
    a, b = _tensor(source), _tensor(node)
    if a is None or b is None or node.kwargs:
        return False
    return surely_same(a.numel(), b.numel()) and all(map(geometry.surely_contiguous, (a, b)))
