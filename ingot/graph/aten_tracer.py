"""`AtenTracer`: the dispatch mode that writes down ATen ops as they run on fakes.

Torch calls go in, nodes of an ATen graph come out. The graph is functionalized: it holds no
in-place op and no out=, see `functional.py`. An op with a decomposition is recorded as the ops that
the decomposition runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.fx import Node

from ingot.errors import CompilerBug, unsupported
from ingot.graph import (  # noqa: F401  (they register rules)
    data_dependent,
    geometry,
    meta,
)
from ingot.graph.aten_graph import AtenGraph, OutputSpec
from ingot.graph.backward_lines import BackwardLines
from ingot.graph.decompositions import DECOMPOSITIONS
from ingot.graph.default_dtype import independent
from ingot.graph.dispatch_mode import Mode
from ingot.graph.dtensors import is_awaited_later
from ingot.graph.fake_context import FakeContext
from ingot.graph.fake_ops import NUMBERS, numbers_in_place_of_tensors, run_fake
from ingot.graph.fakes import (
    NUMBERS_OF,
    FakeTensor,
    fake_like,
    fakes_in,
    holds_real,
    numbers_of,
    requires_grad,
    storage_key,
)
from ingot.graph.foreign import writes
from ingot.graph.foreign_writes import record_functional
from ingot.graph.functional import (
    OVERWRITES,
    Storage,
    Tracked,
    View,
    same_strides,
    views_of,
    with_geometry_of,
    written_back,
)
from ingot.graph.nodes import fake_result, results_of
from ingot.graph.overlaps import addresses_differ, bytes_meet, elements_meet, refuse_beyond
from ingot.graph.replay import STATE_BYTES, random_state
from ingot.graph.schemas import (
    bind,
    draws,
    functional_form,
    is_composite,
    is_mutable,
    may_raise,
    name_of,
    node_name,
    run_composite,
    written,
)
from ingot.graph.selective import is_saved
from ingot.graph.symbolic_views import from_start, slice_from_start
from ingot.graph.symbols import to_expr
from ingot.graph.wrappers import dispatched, wrapper_classes
from ingot.loops.expr import Expr, Symbol
from ingot.loops.functional_ops import is_nested
from ingot.loops.side_effects import is_foreign
from ingot.sequences import Args, at, map_leaves
from ingot.serial import safe_point
from ingot.torch_private import DisableTorchDispatch, OpOverload, aten, collectives

BEHIND = -1
"""The region of what a backward pass computes."""

AGAIN, ONCE = -2, -3
"""The regions of sharded parameters that are gathered: a backward that reads them gathers them
again, or finds them saved."""

_SELECT = (aten.index.Tensor, aten.masked_select.default)
# of views and scatters: which argument is the index, and how it is counted from the start
_AT_INDEX = {
    aten.select.int: (2, from_start), aten.select_scatter.default: (3, from_start),
    aten.slice.Tensor: (2, slice_from_start), aten.slice_scatter.default: (3, slice_from_start),
}  # fmt: skip
# views whose elements may share memory
_MAY_OVERLAP = (aten.as_strided.default, aten.unfold.default)


def _from_start(op: OpOverload, args: Args) -> tuple[Any, ...]:
    """The arguments, with an index that varies counted from the start: no later stage knows its
    sign."""
    position, counted = _AT_INDEX[op]
    if len(args) <= position or not isinstance(args[position], torch.SymInt):
        return args
    index = counted(args[0].shape[args[position - 1]], args[position])
    return *args[:position], index, *args[position + 1 :]


EAGER_SAVES = "eager_saves"
"""In a captured node's meta: eager keeps its value for the backward, though what is traced does
not."""


class AtenTracer(Mode):
    """A dispatch mode that runs every ATen op on fakes and records it, functionalized, as nodes of
    `graph`."""

    def __init__(self, context: FakeContext, again: Sequence[Symbol] = ()) -> None:
        super().__init__()
        self.context = context
        self.graph = torch.fx.Graph()
        self.where = ""
        self.backward_lines = BackwardLines()
        self._default_dtype = torch.get_default_dtype()  # that of what runs the graph
        self.region: int | None = None  # the checkpointed region that runs, or BEHIND
        self.policy: Callable[..., Any] | None = None  # of the region: what is saved of it
        self._tracked: dict[int, Tracked] = {}  # by id of the fake, which the Tracked keeps alive
        self._placeholders: list[Node] = []
        self._inputs: list[Tracked] = []
        self._inputs_by_storage: dict[int, list[Tracked]] = {}
        self._literals: dict[int, FakeTensor] = {}
        self.launched_on: set[int] = set()  # the storages that kernels of the user's have written
        # the places that masks select, by id and version of the mask
        self._places: dict[tuple[int, int], list[Tensor]] = {}
        self.constants: dict[str, Tensor] = {}
        self.eager_saves = set[Node]()  # what eager keeps for its backward, as `EAGER_SAVES` says
        context.shapes.unbacked.begin_trace(again)

    # -- what the graph starts from ----------------------------------------------------------------

    def inputs(self, nodes: Iterable[Node], fakes: Sequence[Any]) -> list[Any]:
        """The fakes that stand for `fakes`, the inputs of the placeholders among some nodes."""
        names = []
        for node in nodes:
            if node.op == "placeholder":
                names.append(node.name)
        return list(map(self.input, names, fakes))

    def input(self, name: str, fake: Any) -> Any:
        """The fake that stands for the next input in this trace: same geometry and memory, no
        autograd history."""
        position, node = len(self._placeholders), self.graph.placeholder(name)
        self._placeholders.append(node)
        if not isinstance(fake, FakeTensor):
            node.meta.update(val=fake, where="")
            return fake
        own = fake_like(fake.meta, fake)
        node.meta.update(val=own, where="")
        tracked = Tracked(own, Storage(position), node, 0)
        neighbours = self._inputs_by_storage.setdefault(storage_key(fake), [])
        for other in neighbours:
            if bytes_meet(other.fake, own):
                tracked.storage.overlaps = other.storage.overlaps = True
        neighbours.append(tracked)
        self._inputs.append(tracked)
        self._tracked[id(own)] = tracked
        return own

    def literal(self, tensor: Tensor) -> FakeTensor:
        """The fake of a constant that belongs to the graph: at each call it has its first value
        again."""
        if isinstance(tensor, FakeTensor):
            return tensor
        known = self._literals.get(id(tensor))
        if known is not None:
            return known
        name = f"constant_{len(self.constants)}"
        self.constants[name] = tensor
        fake = self.context.fake(tensor)
        own = fake_like(fake.meta, fake)
        node = self.graph.create_node("get_attr", name, name=name)
        node.meta.update(val=own, where=self.where)
        self._tracked[id(own)] = Tracked(own, Storage(), node, 0)
        self._literals[id(tensor)] = own
        return own

    # -- ops ---------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, op: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if (answer := self.aside(op, args, kwargs)) is not None:
            return answer
        safe_point()
        kwargs = kwargs or {}
        if classes := wrapper_classes(types):
            return dispatched(self, op, classes, args, kwargs)
        if op in NUMBERS_OF:
            return numbers_of(op, args[0])
        if is_composite(op):
            with self:
                return run_composite(op, args, kwargs)
        return self._traced(op, args, kwargs)

    def _traced(self, op: OpOverload, args: Any, kwargs: Any) -> Any:
        """What an op gives that torch does not define by others."""
        if is_foreign(op) and is_awaited_later(op):
            with self:
                return collectives.wait_tensor.default(args[0])
        if op in _SELECT:
            elements = self._selected(op, args)
            if elements is not None:
                return elements
        rule = DECOMPOSITIONS.get(op)
        if rule is not None:
            with self:
                result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return self._as_eager(op, args, kwargs, result)
        if holds_real((args, kwargs)):
            args, kwargs = self._with_literals((args, kwargs))
        if args and type(args[0]) in NUMBERS and not meta.tensors_in((args, kwargs)):
            args = self._with_tensors(op, args)
        if is_mutable(op) and not is_foreign(op):
            return self._write(op, args, kwargs)
        if op in _AT_INDEX:
            args = _from_start(op, args)
        result = self.context.predicted(op, args, kwargs)
        if writes(op) or is_nested(op):
            record_functional(self, op, args, kwargs, result)
            return result
        if torch.get_default_dtype() is not self._default_dtype:
            with self:
                args, kwargs = independent(op, args, kwargs, result)
        if meta.rule_for(op) is meta.native and args and isinstance(args[0], FakeTensor):
            self._record_views(op, args, kwargs, result)
        else:
            self._record(op, args, kwargs, result)
        return result

    def _selected(self, op: OpOverload, args: Any) -> Any:
        """The elements that a mask selects, by an index of its nonzero places. None where there is
        no mask."""
        enabled = self.context.shapes.unbacked.enabled and args[0].device.type == "cpu"
        if not enabled or not data_dependent.selects(op, args):
            return None
        args = self._with_literals(args)
        with self:
            if op is aten.index.Tensor:
                return op(*data_dependent.in_places(args, self._nonzero_places))
            x, mask = args
            sizes = geometry.broadcast(x.shape, mask.shape)
            x, mask = x.expand(sizes), mask.expand(sizes)
            if not sizes:
                x, mask = x.view(1), mask.view(1)
            return aten.index.Tensor(x, [mask])

    def _nonzero_places(self, mask: Tensor) -> list[Tensor]:
        """The places of what is not zero, by dimension; computed once for each value of a mask."""
        tracked = self._tracked[id(mask)]
        key = id(mask), tracked.storage.version
        if key not in self._places:
            self._places[key] = data_dependent.columns(aten.nonzero.default(mask))
        return self._places[key]

    def _as_eager(self, op: OpOverload, args: Any, kwargs: Any, result: Any) -> Any:
        """A decomposition's results, with the strides that the op itself would give them.

        They have memory of their own unless the op makes views: autograd would take an argument
        that comes back for the result of a computation.
        """
        expected = run_fake(op, args, kwargs)
        is_view = any(r.alias_info for r in op._schema.returns)
        is_view |= name_of(op).startswith("aten::unsafe_")
        storages: set[int] = set()
        if not is_view:
            storages.update(map(storage_key, fakes_in(meta.tensors_in((args, kwargs)))))

        def as_expected(e: Tensor | None, r: Tensor | None) -> Tensor | None:
            if e is None or r is None:
                return None
            r = _checked(op, e, r)
            if storage_key(r) in storages:
                r = aten.clone.default(r)
            if not is_view:
                storages.add(storage_key(r))
            return r

        with self:
            if isinstance(result, Tensor):
                return as_expected(expected, result)
            return tuple(map(as_expected, expected, result))

    def _with_tensors(self, op: OpOverload, args: Args) -> tuple[Any, ...]:
        """The arguments of an op that got only numbers where it takes tensors, with tensors of
        them. (vmap so converts numbers beside a tensor without dimensions.) No rule has to know."""
        converted = list(args)
        with self:
            for k, dtype in numbers_in_place_of_tensors(op, args):
                converted[k] = aten.scalar_tensor.default(args[k], dtype=dtype, device="cpu")
        return tuple(converted)

    def _with_literals(self, tree: Any) -> Any:
        return meta.map_tensors(self.literal, tree)

    def _record(self, op: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        args, kwargs = map_leaves(self._as_node, (args, kwargs))
        node = self.call(op, args, kwargs, result)
        if isinstance(result, FakeTensor):
            self._tracked[id(result)] = Tracked(result, Storage(), node, 0)
        elif isinstance(result, (list, tuple)):
            for i, item in enumerate(result):
                if isinstance(item, FakeTensor):
                    element = self.element(node, i)
                    self._tracked[id(item)] = Tracked(item, Storage(), element, 0)

    def _record_views(self, op: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        results = results_of(result)
        parent = self._tracked[id(args[0])]
        if op is aten.as_strided.default:
            parent, args = parent.base, self._from_base(parent.base, *args)
        for item, view in zip(results, views_of(op, args, kwargs, results)):
            self._tracked[id(item)] = Tracked(item, parent.storage, None, -1, parent, view)

    def _from_base(
        self, base: Tracked, fake: FakeTensor, size: Any, stride: Any, offset: Any = None
    ) -> tuple[Any, ...]:
        """The arguments of as_strided in terms of the base: it addresses the whole storage."""
        return base.fake, size, stride, fake.storage_offset() if offset is None else offset

    def _write(self, op: OpOverload, args: Any, kwargs: Any) -> Any:
        """An in-place or out= op: run its functional form, then give the written tensors those
        values."""
        if torch.Tag.inplace_view in op.tags:
            return self._restride(op, *args, **kwargs)
        result = run_fake(op, args, kwargs)
        bound = bind(op, args, kwargs)
        targets = at(bound, written(op))
        for target in targets:
            self._refuse_overlap(target, meta.tensors_in((args, kwargs)))
        with self:
            if op in OVERWRITES:
                values = OVERWRITES[op](*args, **kwargs)
            else:
                values = _call_functional(op, bound, kwargs)
            for target, value in zip(targets, results_of(values)):
                self._assign(target, value)
        return result

    def _restride(self, op: OpOverload, fake: FakeTensor, *args: Any, **kwargs: Any) -> FakeTensor:
        """as_strided_, unsqueeze_ and their kin: the fake becomes a view of its former self."""
        tracked = self._tracked[id(fake)]
        tracked.fake = before = FakeTensor(fake.meta.detach(), fake.device)
        self._tracked[id(before)] = tracked
        for node in self.graph.nodes:  # that of the op that made it, and of its last write
            if fake_result(node) is fake:
                node.meta["val"] = before
        parent, form = tracked, functional_form(op)
        run_fake(op, (fake, *args), kwargs)
        if form is aten.as_strided.default:
            parent, args = tracked.base, self._from_base(tracked.base, fake, *args)[1:]
        self._tracked[id(fake)] = Tracked(
            fake, parent.storage, None, -1, parent, View(form, args, kwargs)
        )
        return fake

    def _refuse_overlap(self, target: FakeTensor, read: Sequence[Any]) -> None:
        """Raise Unsupported where an op reads what it overwrites: eager's result depends on the
        order, and it may refuse."""
        storage = self._tracked[id(target)].storage
        for other in read:
            if other is target or self._tracked[id(other)].storage is not storage:
                continue
            if addresses_differ(target, other) and elements_meet(target, other):
                raise unsupported(
                    "op-writes", "an operation overwrites memory that it reads at other places"
                )

    def _assign(self, target: FakeTensor, value: Tensor) -> None:
        """`target` and all that share its memory see `value` from here on."""
        tracked = self._tracked[id(target)]
        if tracked.storage.overlaps:
            raise unsupported(
                "op-writes", "an input is written whose memory overlaps another input's"
            )
        may_overlap = tracked.view is not None and tracked.view.op in _MAY_OVERLAP
        if may_overlap and geometry.shares_elements(target):
            raise unsupported("op-writes", "a write to a view whose elements share memory")
        if value.dtype != target.dtype:
            value = aten._to_copy(value, dtype=target.dtype)
        whole = value
        base = tracked
        while base.parent is not None:
            view = base.view
            assert view is not None
            if view.op is aten.as_strided.default:
                refuse_beyond(base.parent.fake, base.fake)
                view = View(view.op, self._shifted(self.node_of(base.parent), base))
            whole = written_back(view, base.parent.fake, whole)
            base = base.parent
        is_input = base.storage.position is not None
        if is_input and base.fake.numel() and geometry.shares_elements(base.fake):
            raise unsupported("op-writes", "an input is written whose elements share memory")
        whole = with_geometry_of(base.fake, whole)
        base.node = self.node_of(self._tracked[id(whole)])
        if tracked is not base:
            tracked.node = None
            if same_strides(target, value):
                tracked.node = self.node_of(self._tracked[id(value)])
        base.storage.version += 1
        base.version = tracked.version = base.storage.version

    # -- nodes -------------------------------------------------------------------------------------

    def tracked(self, fake: Tensor) -> Tracked:
        """How a fake of this trace came to be."""
        return self._tracked[id(fake)]

    def is_tracked(self, fake: Tensor) -> bool:
        """Whether it is a fake of this trace."""
        return id(fake) in self._tracked

    def note_saved(self, value: Any) -> None:
        """Note that eager keeps a value for its backward."""
        if isinstance(value, Tensor) and self.is_tracked(value):
            self.eager_saves.add(self.node_of(self.tracked(value)))

    def track(self, fake: FakeTensor, tracked: Tracked) -> None:
        self._tracked[id(fake)] = tracked

    def node_of(self, tracked: Tracked) -> Node:
        """The node that holds the fake's present value; a view whose storage was written is made
        again."""
        is_current = tracked.version == tracked.storage.version or tracked.parent is None
        if tracked.node is not None and is_current:
            return tracked.node
        assert tracked.parent is not None and tracked.view is not None
        source, view = self.node_of(tracked.parent), tracked.view
        if view.op is None:
            tracked.node = source
        else:
            args = view.args
            if view.op is aten.as_strided.default:
                args = self._shifted(source, tracked)
            tracked.node = self.node(view.op, (source, *args), view.kwargs, tracked.fake)
        tracked.version = tracked.storage.version
        return tracked.node

    def _shifted(self, source: Node, tracked: Tracked) -> tuple[Any, ...]:
        """as_strided's offset counts from the storage's start, which differs between the base and
        its present value."""
        base, value = tracked.base.fake, fake_result(source)
        if tracked.storage.version:
            if base.numel() and not geometry.is_dense(base.shape, base.stride()):
                raise unsupported(
                    "op-writes",
                    "as_strided over a written input that has gaps between its elements",
                )
            refuse_beyond(base, tracked.fake)
        assert tracked.view is not None
        size, stride, offset = tracked.view.args
        return size, stride, offset - base.storage_offset() + value.storage_offset()

    def call(self, target: Any, args: Any, kwargs: Any, results: Any) -> Node:
        """The node of a call, which binds the unbacked symbols that are new in its results."""
        node = self.node(target, args, kwargs, results)
        unbacked = self.context.shapes.unbacked
        if unbacked.fresh:
            node.meta["binds"] = data_dependent.bound_by(results, unbacked.fresh)
            unbacked.fresh.clear()
        return node

    def element(self, node: Node, number: int) -> Node:
        """The node of one of several results."""
        return self.node(operator.getitem, (node, number), {}, fake_result(node)[number])

    def node(self, target: Any, args: Any, kwargs: Any, value: Any) -> Node:
        if self.context.shapes.hints:
            args, kwargs = map_leaves(_with_expression, (args, kwargs))
        state = None
        if self.region is not None and self.region != BEHIND and draws(target):
            state = self._random_state()
        node = self.graph.create_node("call_function", target, name=node_name(target))
        node.args = args  # not through create_node, which looks for sizes in them, for long
        if kwargs:
            node.kwargs = kwargs
        node.meta["val"] = value
        node.meta["where"] = self.where or self.backward_lines.now()
        if self.region is not None:
            node.meta["region"] = self.region
            if self.policy is not None and is_saved(self.policy, node):
                node.meta["saved"] = True
        if state is not None:
            node.meta["state"] = state
        if may_raise(target, args, value):
            node.meta["may_raise"] = True
        return node

    def _random_state(self) -> Node:
        """The generator's state, from which the backward draws the same numbers as the next op."""
        node = self.graph.call_function(random_state)
        with DisableTorchDispatch():
            meta_state = torch.empty(STATE_BYTES, dtype=torch.uint8, device="meta")
        node.meta.update(val=FakeTensor(meta_state, torch.device("cpu")), where=self.where)
        return node

    def _as_node(self, leaf: Any) -> Any:
        if isinstance(leaf, FakeTensor):
            return self.node_of(self._tracked[id(leaf)])
        return leaf

    # -- the end -----------------------------------------------------------------------------------

    def finish(self, outputs: list[Any]) -> AtenGraph:
        """Close the graph: its outputs in terms of the storages they live in, and the inputs that
        were written."""
        if self.context.shapes.guards:  # which may have pinned symbols that earlier nodes name
            self._simplify()
        specs = list(map(self.output, self._with_literals(outputs)))
        mutations = []
        for position, t in self.written_inputs():
            mutations.append((position, self.node_of(t)))
        aten_graph = AtenGraph(self.graph, specs, mutations, self.constants, self.context.shapes)
        if mutations:
            aten_graph.uncounted = self._uncounted()
        return aten_graph

    def _simplify(self) -> None:
        """Name no symbol in a node that guards have pinned since."""
        simplified = self.context.shapes.simplified

        def in_terms_of_free(argument: Any) -> Any:
            if isinstance(argument, Expr):
                return simplified(argument)
            return argument

        for node in self.graph.nodes:
            node.args = torch.fx.node.map_aggregate(node.args, in_terms_of_free)

    def _uncounted(self) -> frozenset[int]:
        """The inputs that were written through `data` or by launches alone, of which autograd does
        not know."""
        unnoticed = set(self.launched_on)
        for t in self._tracked.values():
            if t.fake.counts_alone:
                unnoticed.add(id(t.storage))
        positions = set()
        for position, tracked in self.written_inputs():
            fake = tracked.fake
            if id(tracked.storage) in unnoticed:
                if not fake.is_inference() and not fake._version:
                    positions.add(position)
        return frozenset(positions)

    def written_inputs(self) -> list[tuple[int, Tracked]]:
        """The inputs that were written, by their position."""
        return [(t.storage.position, t) for t in self._inputs if t.storage.version]  # type: ignore[misc]

    @property
    def input_versions(self) -> list[int]:
        """How often each input was written so far."""
        return [t.storage.version for t in self._inputs]

    def output(self, value: Any) -> OutputSpec:
        """How an output of the program lies in memory."""
        if not isinstance(value, FakeTensor):
            return OutputSpec(value=value)
        if value.meta.is_conj() or value.meta.is_neg():
            raise unsupported("conjugate-view", "a conjugate or negative view is returned")
        tracked = self._tracked[id(value)]
        base = tracked.base
        position = base.storage.position
        if position is None:
            node = self.node_of(base)
        else:
            node = self._placeholders[position]
        base_offset = base.fake.storage_offset() * base.fake.element_size()
        return OutputSpec(
            node,
            tuple(value.shape),
            value.stride(),
            offset=value.storage_offset() - base_offset // value.element_size(),
            dtype=value.dtype,
            position=position,
            storage=id(base.storage),
            tracked=requires_grad(value),
            alias=_alias_of(tracked),
        )


def _alias_of(tracked: Tracked) -> str:
    """How autograd relates a tensor to the tensor that it shares memory with."""
    cursor: Tracked | None = tracked
    while cursor is not None:
        if cursor.fake.counts_alone:
            if tracked.fake._is_view():
                return "view of data"
            return "data"
        cursor = cursor.parent
    if tracked.fake._is_view():
        return "view"
    return "detached"


def _call_functional(op: OpOverload, bound: dict[str, Any], kwargs: dict[str, Any]) -> Any:
    """Call the functional form of an in-place or out= op, whose defaults may be other ones."""
    form = functional_form(op)
    assert form is not None  # run_fake refuses ops without one
    arguments = form._schema.arguments
    positional, named = [], {}
    for a in arguments:
        if not a.kwarg_only:
            positional.append(bound[a.name])
        elif a.name in kwargs:
            named[a.name] = kwargs[a.name]
    return form(*positional, **named)


def _with_expression(leaf: Any) -> Any:
    """An argument of a node, as an expression where it is a symbolic int."""
    if isinstance(leaf, torch.SymInt):
        return to_expr(leaf)
    return leaf


def _checked(op: OpOverload, expected: Tensor, result: Tensor) -> Tensor:
    if expected.dtype != result.dtype or not geometry.same_sizes(expected.shape, result.shape):
        raise CompilerBug("decomposition", f"{op} gives {result!r}, eager {expected!r}")
    return with_geometry_of(expected, result)
