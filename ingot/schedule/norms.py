"""The norm of a row is computed again by each block of the products that read the row, on a GPU.

A block reads all of it anyway, and the norm alone would be a launch of one block.

That is a chain: sums over the row, numbers made of them, and the row made of these. In its place
each product gets the chain at its own points, and reads the row as it is made. `fuse` puts them
into one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ingot.loops.expr import Expr
from ingot.loops.ir import BodyBuilder, Instruction, LoopGraph, Node, Pointwise, Reduction, Visit
from ingot.loops.spaces import address_of, contiguous_strides, extents_of, points_of
from ingot.loops.target import Target
from ingot.schedule.dependencies import readers_and_writers
from ingot.schedule.inline import MAX_INSTRUCTIONS, computing, inverse_of
from ingot.schedule.nests import canonical, fresh_loops, is_plain_reduction

FEWEST = (
    256  # points of a product: fewer leave multiprocessors idle, which a launch of its own fills
)
LARGEST = 1 << 26  # bytes of a weight: of larger ones, a launch is next to nothing
LONGEST = 1 << 14  # elements of a row that a block keeps in registers


def with_norms_in_products(
    nodes: Sequence[Node], graph: LoopGraph, target: Target
) -> tuple[list[Node], LoopGraph]:
    """The nodes, with norms of a row in the products that read them, and the graph with the buffers
    of their numbers at each point."""
    if not target.has_registers:
        return list(nodes), graph
    walk = _Norms(nodes, graph)
    for k, node in enumerate(nodes):
        if isinstance(node, Pointwise):
            walk.put(k)
    return walk.nodes, walk.graph


@dataclass(frozen=True)
class _Chain:
    """What a row is made by: the `steps` that make numbers, in order, and the node of the row."""

    steps: tuple[int, ...]
    row: Pointwise


class _Norms:
    def __init__(self, nodes: Sequence[Node], graph: LoopGraph) -> None:
        self._all: list[Node | None] = list(nodes)
        self.graph = replace(graph, buffers=dict(graph.buffers))
        self._readers, self._writers = readers_and_writers(nodes)
        self._before: dict[int, list[Node]] = {}

    @property
    def nodes(self) -> list[Node]:
        result: list[Node] = []
        for k, node in enumerate(self._all):
            result += self._before.get(k, [])
            if node is not None:
                result.append(node)
        return result

    def put(self, k: int) -> None:
        """Put node number k, with the sums that it needs, into the products that read it."""
        chain = self._chain(k)
        if chain is None:
            return
        readers = self._readers[chain.row.target]
        products = [self._product(r, chain) for r in readers]
        if not readers or None in products:
            return
        numbers: dict[tuple[Expr, ...], dict[str, str]] = {}
        for r, product in zip(readers, products):
            assert product is not None
            extents = tuple(extents_of(product.loops))
            if extents not in numbers:
                numbers[extents] = self._at_points(chain, product, r)
            self._all[r] = self._reading(product, chain, numbers[extents])
        for step in (*chain.steps, k):
            self._all[step] = None

    # -- the chain ---------------------------------------------------------------------------------

    def _chain(self, k: int) -> _Chain | None:
        """The norm that ends with node number k, if it is one: nobody else needs anything of it."""
        node = self._all[k]
        if not isinstance(node, Pointwise) or not self._is_own(node) or not node.loops:
            return None
        row = canonical(node)
        assert isinstance(row, Pointwise)
        length = points_of(row.loops).constant
        if length is None or not 1 < length <= LONGEST or row.body.lookups:
            return None
        if len(row.body.instructions) > MAX_INSTRUCTIONS:
            return None
        if inverse_of(row, self.graph.buffers[row.target].length) is None:
            return None
        steps: set[int] = set()
        if not self._add_numbers(k, steps):
            return None
        if not any(isinstance(self._all[s], Reduction) for s in steps):
            return None
        own = {k, *steps}
        for s in steps:
            step = self._all[s]
            assert isinstance(step, (Pointwise, Reduction))
            if not own.issuperset(self._readers[step.target]):
                return None
            if isinstance(step, Reduction) and points_of(step.reduced).constant != length:
                return None
        return _Chain(tuple(sorted(steps)), row)

    def _add_numbers(self, k: int, steps: set[int]) -> bool:
        """Add the nodes that make the numbers which node number k reads. False where one is made
        otherwise."""
        node = self._all[k]
        assert isinstance(node, (Pointwise, Reduction))
        for name in node.reads():
            if self.graph.buffers[name].length.constant != 1 or name not in self._writers:
                continue
            (writer, *others) = self._writers[name]
            made = self._all[writer]
            if others or not isinstance(made, (Pointwise, Reduction)) or made.loops:
                return False
            if not self._is_own(made) or made.body.lookups or writer > k:
                return False
            if isinstance(made, Reduction) and not is_plain_reduction(made):
                return False
            if writer not in steps:
                steps.add(writer)
                if not self._add_numbers(writer, steps):
                    return False
        return True

    def _is_own(self, node: Pointwise | Reduction) -> bool:
        """Whether a node alone makes a temporary on the device that nobody must see."""
        name = node.target
        if getattr(node, "scatters", False) or name in self.graph.required:
            return False
        if not self.graph.is_temporary(name) or self.graph.buffers[name].on_host:
            return False
        return len(self._writers[name]) == 1

    # -- products ----------------------------------------------------------------------------------

    def _product(self, r: int, chain: _Chain) -> Reduction | None:
        """Node number r as sums of many products over all of the row, if it is that."""
        node = self._all[r]
        if not isinstance(node, Reduction) or not is_plain_reduction(node) or node.kind != "sum":
            return None
        points, length = points_of(node.loops).constant, points_of(node.reduced).constant
        row = points_of(chain.row.loops).constant
        if points is None or points < FEWEST or length != row:
            return None
        weights = 0
        for load in node.body.loads:
            name, index = load.attrs
            if name == chain.row.target:
                if load.args or not index.symbols.isdisjoint(node.loops):
                    return None
                continue
            if not index.symbols.isdisjoint(node.loops):
                weights += points * (length or 0) * load.dtype.itemsize
        if not 0 < weights <= LARGEST or not self._reads_what_is_there(r, chain):
            return None
        return node

    def _reads_what_is_there(self, r: int, chain: _Chain) -> bool:
        """Whether nothing that the chain reads is written again before node number r."""
        first = min(chain.steps)
        read = set(chain.row.reads())
        for s in chain.steps:
            step = self._all[s]
            assert step is not None
            read |= step.reads()
        for name in read:
            for w in self._writers.get(name, ()):
                if first < w < r and w not in chain.steps:
                    return False
        return True

    def _at_points(self, chain: _Chain, product: Reduction, r: int) -> dict[str, str]:
        """Make the numbers of a chain at each point of a product, before node number r. By buffer:
        that of the numbers at all points."""
        loops = fresh_loops("o", extents_of(product.loops))
        index = address_of(loops, contiguous_strides(tuple(extents_of(loops))))
        names: dict[str, str] = {}
        for s in chain.steps:
            step = self._all[s]
            assert isinstance(step, (Pointwise, Reduction))
            buffer = self.graph.buffers[step.target]
            name = names[step.target] = f"{step.target}_at{r}"
            sizes = (points_of(loops),)
            self.graph.buffers[name] = replace(
                buffer, name=name, sizes=sizes, strides=contiguous_strides(sizes)
            )
            body = step.body.rewrite(_read_at(names, index))
            made = replace(
                step, name=f"{step.name}_at{r}", loops=loops, body=body, target=name, index=index
            )
            self._before.setdefault(r, []).append(made)
        return names

    def _reading(self, product: Reduction, chain: _Chain, names: Mapping[str, str]) -> Reduction:
        """A product that makes the row as it reads it, of the numbers at its points."""
        inverse = inverse_of(chain.row, self.graph.buffers[chain.row.target].length)
        assert inverse is not None
        index = address_of(product.loops, contiguous_strides(tuple(extents_of(product.loops))))
        body = computing(product.body, chain.row, inverse).rewrite(_read_at(names, index))
        origin = chain.row.origin.merged(product.origin)
        return replace(product, body=body, origin=origin)


def _read_at(names: Mapping[str, str], index: Expr) -> Visit:
    """Reads the numbers of these buffers at a point."""

    def visit(builder: BodyBuilder, i: Instruction) -> int:
        if i.op == "load" and i.attrs[0] in names:
            i = i._replace(attrs=(names[i.attrs[0]], index))
        return builder.append(i)

    return visit
