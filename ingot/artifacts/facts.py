"""The guards of a captured call become the signature of an entry.

Guards on arguments are checked at each call of an artifact, in another form: trees, the facts of
tensors, and conditions on their sizes. Guards on all else hold for good, as it is frozen.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ingot.artifacts.arguments import Arguments, Leaf
from ingot.artifacts.signature import Condition, Number, Signature, TensorLeaf
from ingot.artifacts.trees import Node
from ingot.capture import Captured
from ingot.capture.facts import TensorFacts
from ingot.capture.guards import Guard, Kind
from ingot.capture.sources import DerivedSource, Source
from ingot.errors import ExportError
from ingot.loops.expr import Expr, Symbol, size_symbol
from ingot.loops.postfix import postfix

_OF_TREES = frozenset(
    {Kind.TYPE, Kind.EQUALS, Kind.LENGTH, Kind.DICT_KEYS, Kind.ABSENT_KEY, Kind.DICT_EMPTY}
    | {Kind.MEMBER, Kind.IS_NONE, Kind.TRUTH, Kind.IDENTITY, Kind.CLASS_ATTRIBUTE}
)
"""What holds of arguments whose tree is that of the call that was exported."""

_OF_MEMORY = frozenset({Kind.SAME_STORAGE, Kind.TENSOR_OFFSET, Kind.TENSOR_MEMORY})
"""Where tensors lie in a storage, which is another one in an artifact, of its state as well."""


def check_guards(captured: Captured, arguments: Arguments) -> None:
    """Raises ExportError where the program relies on a fact of its arguments that is not checked
    when an artifact is called."""
    for guard in captured.guards:
        if guard.kind is Kind.TENSOR or not _concerns(guard, arguments):
            continue
        if guard.kind is Kind.DISTINCT:
            if _leaves_of(guard, arguments) is not None:
                continue
        if guard.kind not in _OF_TREES:
            raise ExportError(
                f"ingot.export: the call relies on {guard.text}, which is not checked when an "
                "artifact is called: change it so that it does not"
            )
        assert guard.source is not None
        if _reads_elements(guard.source, arguments):
            raise ExportError(
                f"ingot.export: the call relies on numbers in a tensor, {guard.text}, which are "
                "not checked when an artifact is called: pass them as numbers"
            )
        number = arguments.leaf_of(guard.source)
        if number is not None and guard.kind is Kind.EQUALS:
            raise ExportError(
                f"ingot.export: dynamic says that {guard.name} varies, and the call relies on "
                f"{guard.text}: leave it out of dynamic"
            )


def _concerns(guard: Guard, arguments: Arguments) -> bool:
    """Whether a guard states a fact of an argument, or of memory. That an argument is no object of
    the state's is no fact to check: nobody outside has those objects."""
    if guard.kind in _OF_MEMORY:
        return True
    if guard.kind is Kind.DISTINCT:
        return arguments.is_under(guard.source) and arguments.is_under(guard.data)
    if guard.kind is Kind.SAME and arguments.is_under(guard.data):
        return True
    return arguments.is_under(guard.source)


def _reads_elements(source: Source, arguments: Arguments) -> bool:
    """Whether a fact is one of what is in a tensor among the arguments."""
    for step in (source, *source.owners()):
        if isinstance(step, DerivedSource):
            number = arguments.leaf_of(step.base)
            if number is not None and isinstance(arguments.leaves[number].value, Tensor):
                return True
    return False


def _leaves_of(guard: Guard, arguments: Arguments) -> tuple[int, int] | None:
    """The leaves that a guard says are two objects."""
    assert guard.source is not None
    first, second = arguments.leaf_of(guard.source), arguments.leaf_of(guard.data)
    if first is None or second is None:
        return None
    return first, second


def signature_of(
    captured: Captured,
    arguments: Arguments,
    written: set[int],
    followed: set[int],
    result: tuple[Node, ...],
) -> Signature:
    """The signature of an entry; `written` are the leaves that its program writes, and
    `followed` those that may require gradients.

    Raises ExportError where sizes that have two names have to be equal.
    """
    numbers = _Numbers(captured, arguments)
    conditions, facts, distinct = [], dict[Source | None, TensorFacts](), []
    for guard in captured.guards:
        if guard.kind is Kind.SHAPE:
            conditions.append(numbers.condition(guard))
        elif guard.kind is Kind.TENSOR:
            facts[guard.source] = guard.data
        elif guard.kind is Kind.DISTINCT and _concerns(guard, arguments):
            distinct.append(_leaves_of(guard, arguments))
    leaves: list[TensorLeaf | None] = []
    for k, leaf in enumerate(arguments.leaves):
        if isinstance(leaf.value, Tensor):
            known = facts.get(leaf.source)
            leaves.append(numbers.tensor_leaf(k, leaf, known, k in written, k in followed))
        else:
            leaves.append(None)
    return Signature(
        tuple(arguments.parameters),
        tuple(leaves),
        tuple(numbers.rows),
        tuple(conditions),
        tuple(distinct),  # type: ignore[arg-type]
        result,
    )


class _Numbers:
    """The numbers that conditions are about: those that symbols stand for, and further sizes that
    the user gave a name."""

    def __init__(self, captured: Captured, arguments: Arguments) -> None:
        self.rows: list[Number] = []
        self.places: dict[Symbol, int] = {}
        self.names: dict[Symbol, Expr] = {}
        self.sizes: dict[tuple[int, int], str] = {}
        for symbol, quantity in captured.guards.symbols.items():
            leaf = arguments.leaf_of(quantity.source)
            if leaf is None:
                raise ExportError(
                    f"ingot.export: {quantity.name} varies, which is no size of an argument"
                )
            name = arguments.name_of(quantity)
            self.places[symbol] = len(self.rows)
            self.names[symbol] = size_symbol(name)
            self.rows.append(Number(leaf, quantity.what, quantity.dim, name))
            if quantity.what == "size":
                self.sizes[leaf, quantity.dim] = name
        for k, leaf_ in enumerate(arguments.leaves):
            for dim, said in leaf_.dims.items():
                if isinstance(leaf_.value, Tensor) and (k, dim) not in self.sizes:
                    self.sizes[k, dim] = said.name
                    self.rows.append(Number(k, "size", dim, said.name))

    def condition(self, guard: Guard) -> Condition:
        left, relation, right = guard.data
        if relation == "==" and isinstance(left, Symbol) and isinstance(right, Symbol):
            names = [self.rows[self.places[symbol]].name for symbol in (left, right)]
            whats = {self.rows[self.places[symbol]].what for symbol in (left, right)}
            if names[0] != names[1] and whats == {"size"}:
                place = f"  ({guard.where})" if guard.where else ""
                raise ExportError(
                    f"ingot.export: {names[0]} and {names[1]} have to be equal{place}: give them "
                    "one name in dynamic"
                )
        sides = left.substitute(self.names), right.substitute(self.names)
        text = f"{sides[0]} {relation} {sides[1]}"
        return Condition(postfix(left, self.places), relation, postfix(right, self.places), text)

    def tensor_leaf(
        self,
        k: int,
        leaf: Leaf,
        facts: TensorFacts | None,
        is_written: bool,
        has_gradient: bool,
    ) -> TensorLeaf:
        """The facts of a tensor; one that nobody used may have any strides."""
        tensor: Any = leaf.value
        strides: tuple[int | None, ...] = (None,) * tensor.dim()
        if facts is not None:
            strides = facts.strides
        sizes: list[int | str] = list(tensor.shape)
        for dim in range(tensor.dim()):
            sizes[dim] = self.sizes.get((k, dim), tensor.shape[dim])
        return TensorLeaf(
            leaf.name,
            tensor.dtype,
            tensor.device,
            tuple(sizes),
            strides,
            is_written,
            has_gradient,
        )
