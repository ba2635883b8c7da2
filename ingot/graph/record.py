"""Trace: run a captured torch graph on fakes and write down the ATen ops it amounts to, without
side effects.

The result holds no in-place op and no out=: see `functional.py`. Ops with a rule in
`decompositions.py` are recorded as the simpler ops that the rule runs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import torch
import torch.fx

from ingot.errors import CompilerBug, Unsupported, unsupported
from ingot.graph import (  # noqa: F401  (they register rules)
    data_dependent,
    decompositions_backward,
    decompositions_losses,
    decompositions_places,
    geometry,
    meta,
)
from ingot.graph.ambient import preserved
from ingot.graph.aten_graph import AtenGraph, OutputSpec
from ingot.graph.composites import apart
from ingot.graph.decompositions import DECOMPOSITIONS
from ingot.graph.differentiation import differentiates, want_gradients
from ingot.graph.fake_context import FakeContext, Mode
from ingot.graph.fake_ops import NUMBERS, numbers_in_place_of_tensors, run_fake
from ingot.graph.fakes import FakeTensor, fake_like, holds_real, requires_grad, storage_key
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
from ingot.graph.passes import run_passes
from ingot.graph.passes.freeze import freeze
from ingot.graph.repeats import Repeats
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
from ingot.graph.symbolic_views import from_start, slice_from_start
from ingot.graph.symbols import to_expr
from ingot.loops.expr import Expr, Symbol
from ingot.serial import safe_point
from ingot.torch_private import DisableTorchDispatch, OpOverload, aten

BEHIND = -1
"""The region of what a backward pass computes."""

_SELECT = (aten.index.Tensor, aten.masked_select.default)
# of views and scatters: which argument is the index, and how it is counted from the start
_AT_INDEX = {
    aten.select.int: (2, from_start), aten.select_scatter.default: (3, from_start),
    aten.slice.Tensor: (2, slice_from_start), aten.slice_scatter.default: (3, slice_from_start),
}  # fmt: skip
# views whose elements may share memory
_MAY_OVERLAP = (aten.as_strided.default, aten.unfold.default)
_MOST_LISTED = 1 << 18  # elements of two views that are listed to see whether they meet


def _from_start(op: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, with an index that varies counted from the start: no later stage knows its
    sign."""
    position, counted = _AT_INDEX[op]
    if len(args) <= position or not isinstance(args[position], torch.SymInt):
        return args
    index = counted(args[0].shape[args[position - 1]], args[position])
    return *args[:position], index, *args[position + 1 :]


def trace(
    gm: torch.fx.GraphModule,
    fakes: Sequence[Any],
    context: FakeContext,
    frozen: Mapping[int, torch.Tensor] = MappingProxyType({}),
) -> AtenGraph:
    """The functional ATen graph of `gm`, whose placeholders stand for `fakes` in order, after all
    passes; those at the positions in `frozen` always have these values.

    Raises Unsupported, with the user's line, for what cannot be told without side effects or
    depends on data.
    """
    recorder = Recorder(context)
    recording = differentiates(gm)
    with preserved(), nullcontext() if recording else torch.no_grad(), recorder:
        placeholders = (node for node in gm.graph.nodes if node.op == "placeholder")
        inputs = [recorder.input(n.name, fake) for n, fake in zip(placeholders, fakes)]
        if recording:
            want_gradients(inputs, fakes)
        outputs = run_nodes(gm, recorder, inputs)
    aten_graph = recorder.finish(outputs)
    freeze(aten_graph, frozen)
    run_passes(aten_graph)
    return aten_graph


def run_nodes(gm: torch.fx.GraphModule, recorder: Recorder, inputs: Sequence[Any]) -> list[Any]:
    """Run the captured graph node by node on `inputs`, the recorder's own; the flat list of its
    outputs."""
    output = next(iter(reversed(gm.graph.nodes)))
    if output.op != "output":
        raise CompilerBug("trace", "the captured graph has no output")
    values = values_of(gm, recorder, gm.graph.nodes, inputs)
    return list(flat(torch.fx.map_arg(output.args[0], values.__getitem__)))


def values_of(
    gm: torch.fx.GraphModule, recorder: Recorder, nodes: Iterable[Any], inputs: Sequence[Any]
) -> dict[torch.fx.Node, Any]:
    """What becomes of some nodes of the captured graph, run on the recorder's inputs."""
    values: dict[torch.fx.Node, Any] = {}
    remaining = iter(inputs)
    repeats = Repeats(recorder)

    def value_of(node: torch.fx.Node) -> Any:
        return values[node]

    for node in nodes:
        safe_point()
        recorder.where = recorder.context.shapes.where = node.meta.get("where", "")
        recorder.region = node.meta.get("region")
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value_of)
        try:
            if node.op == "placeholder":
                values[node] = next(remaining)
            elif node.op == "get_attr":
                values[node] = recorder.literal(operator.attrgetter(node.target)(gm))
            elif node.op == "call_function":
                values[node] = repeats.run(node.target, apart(node.target), args, kwargs)
            elif node.op == "call_method":
                values[node] = repeats.run(
                    node.target, apart(getattr(type(args[0]), node.target)), args, kwargs
                )
            elif node.op == "call_module":
                values[node] = gm.get_submodule(node.target)(*args, **kwargs)
        except Unsupported as reason:
            reason.why = reason.why.at(recorder.where)
            raise
    return values


def flat(tree: Any) -> Iterable[Any]:
    """What nested lists and tuples hold."""
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from flat(item)
    else:
        yield tree


class Recorder(Mode):
    """A dispatch mode that runs every ATen op on fakes and records it, functionalized, as nodes of
    `graph`."""

    def __init__(self, context: FakeContext, again: Sequence[Symbol] = ()) -> None:
        super().__init__()
        self.context = context
        self.graph = torch.fx.Graph()
        self.where = ""
        self.region: int | None = None  # the checkpointed part of the program that runs, or BEHIND
        self._tracked: dict[int, Tracked] = {}  # by id of the fake, which the Tracked keeps alive
        self._placeholders: list[torch.fx.Node] = []
        self._inputs: list[Tracked] = []
        self._inputs_by_storage: dict[int, list[Tracked]] = {}
        self._literals: dict[int, FakeTensor] = {}
        # places, by id and version of the mask
        self._found: dict[tuple[int, int], list[torch.Tensor]] = {}
        self.constants: dict[str, torch.Tensor] = {}
        context.shapes.unbacked.begin_trace(again)

    # -- what the graph starts from ----------------------------------------------------------------

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
            if _bytes_meet(other.fake, own):
                tracked.storage.overlaps = other.storage.overlaps = True
        neighbours.append(tracked)
        self._inputs.append(tracked)
        self._tracked[id(own)] = tracked
        return own

    def literal(self, tensor: torch.Tensor) -> FakeTensor:
        """The fake of a constant that belongs to the graph: at each call it has its first value
        again."""
        if isinstance(tensor, FakeTensor):
            return tensor
        known = self._literals.get(id(tensor))
        if known is not None:
            return known
        name = f"constant_{len(self.constants)}"
        self.constants[name] = tensor
        made = self.context.fake(tensor)
        own = fake_like(made.meta, made)
        node = self.graph.create_node("get_attr", name, name=name)
        node.meta.update(val=own, where=self.where)
        self._tracked[id(own)] = Tracked(own, Storage(), node, 0)
        self._literals[id(tensor)] = own
        return own

    # -- ops ---------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, op: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        safe_point()
        kwargs = kwargs or {}
        if is_composite(op):
            with self:
                return run_composite(op, args, kwargs)
        if op in _SELECT and (made := self._selected(op, args)) is not None:
            return made
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
        if is_mutable(op):
            return self._write(op, args, kwargs)
        if op in _AT_INDEX:
            args = _from_start(op, args)
        result = self.context.predicted(op, args, kwargs)
        if meta.rule_for(op) is meta.native and args and isinstance(args[0], FakeTensor):
            self._record_views(op, args, kwargs, result)
        else:
            self._record(op, args, kwargs, result)
        return result

    def _selected(self, op: OpOverload, args: Any) -> Any:
        """What a mask selects: an index by the places of what is not zero. None where there is no
        mask."""
        enabled = self.context.shapes.unbacked.enabled and args[0].device.type == "cpu"
        if not enabled or not data_dependent.selects(op, args):
            return None
        args = self._with_literals(args)
        with self:
            if op is aten.masked_select.default:
                sizes = geometry.broadcast(*[t.shape for t in args])
                x, mask = [t.expand(sizes) for t in args]
                return (
                    aten.index.Tensor(x, [mask])
                    if sizes
                    else aten.index.Tensor(x.view(1), [mask.view(1)])
                )
            return aten.index.Tensor(*data_dependent.in_places(args, self._places))

    def _places(self, mask: torch.Tensor) -> list[torch.Tensor]:
        """The places of what is not zero, by dimension; found once for each value of a mask."""
        tracked = self._tracked[id(mask)]
        key = id(mask), tracked.storage.version
        if key not in self._found:
            self._found[key] = data_dependent.columns(aten.nonzero.default(mask))
        return self._found[key]

    def _as_eager(self, op: OpOverload, args: Any, kwargs: Any, result: Any) -> Any:
        """A decomposition's results with the strides that the op itself would give them, and memory
        of their own where it gives that: autograd would take an argument that comes back for what
        was computed of it."""
        expected = run_fake(op, args, kwargs)
        views = name_of(op).startswith("aten::unsafe_") or any(
            r.alias_info for r in op._schema.returns
        )
        taken = {
            storage_key(t)
            for t in meta.tensors_in((args, kwargs))
            if isinstance(t, FakeTensor) and not views
        }

        def one(e: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
            r = _checked(op, e, r)
            if storage_key(r) in taken:
                r = aten.clone.default(r)
            if not views:
                taken.add(storage_key(r))
            return r

        with self:
            if isinstance(result, torch.Tensor):
                return one(expected, result)
            return tuple(
                None if e is None or r is None else one(e, r) for e, r in zip(expected, result)
            )

    def _with_tensors(self, op: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of an op that is given nothing but numbers where it takes tensors, as vmap
        converts those beside a tensor without dimensions: no rule has to know of it."""
        made = list(args)
        with self:
            for k, dtype in numbers_in_place_of_tensors(op, args):
                made[k] = aten.scalar_tensor.default(args[k], dtype=dtype, device="cpu")
        return tuple(made)

    def _with_literals(self, tree: Any) -> Any:
        if isinstance(tree, torch.Tensor):
            return self.literal(tree)
        if isinstance(tree, (list, tuple)):
            return type(tree)(self._with_literals(item) for item in tree)
        if isinstance(tree, dict):
            return {k: self._with_literals(v) for k, v in tree.items()}
        return tree

    def _record(self, op: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        node = self._node(op, self._as_nodes(args), self._as_nodes(kwargs), result)
        unbacked = self.context.shapes.unbacked
        if unbacked.fresh:
            node.meta["binds"] = data_dependent.bound_by(result, unbacked.fresh)
            unbacked.fresh.clear()
        if isinstance(result, FakeTensor):
            self._tracked[id(result)] = Tracked(result, Storage(), node, 0)
        if not isinstance(result, (list, tuple)):
            return
        for i, item in enumerate(result):
            if isinstance(item, FakeTensor):
                part = self._node(operator.getitem, (node, i), {}, item)
                self._tracked[id(item)] = Tracked(item, Storage(), part, 0)

    def _record_views(self, op: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        results = [result] if isinstance(result, FakeTensor) else list(result)
        parent = self._tracked[id(args[0])]
        if op is aten.as_strided.default:
            parent, args = parent.base, self._from_base(parent.base, *args)
        for item, view in zip(results, views_of(op, args, kwargs, results)):
            self._tracked[id(item)] = Tracked(item, parent.storage, None, -1, parent, view)

    def _from_base(
        self, base: Tracked, fake: FakeTensor, size: Any, stride: Any, offset: Any = None
    ) -> tuple[Any, ...]:
        """as_strided addresses the whole storage: tell it of the base."""
        return base.fake, size, stride, fake.storage_offset() if offset is None else offset

    def _write(self, op: OpOverload, args: Any, kwargs: Any) -> Any:
        """An in-place or out= op: run its functional form, then give the written tensors those
        values."""
        if torch.Tag.inplace_view in op.tags:
            return self._restride(op, *args, **kwargs)
        result = run_fake(op, args, kwargs)
        names = [name for _, name in written(op)]
        bound = bind(op, args, kwargs)
        for name in names:
            self._refuse_overlap(bound[name], meta.tensors_in((args, kwargs)))
        with self:
            values = (
                OVERWRITES[op](*args, **kwargs)
                if op in OVERWRITES
                else _call_functional(op, bound, kwargs)
            )
            for name, value in zip(names, values if isinstance(values, tuple) else (values,)):
                self._assign(bound[name], value)
        return result

    def _restride(self, op: OpOverload, fake: FakeTensor, *args: Any, **kwargs: Any) -> FakeTensor:
        """as_strided_, unsqueeze_ and their kin: the fake becomes a view of what it was before."""
        tracked = self._tracked[id(fake)]
        tracked.fake = before = FakeTensor(fake.meta.detach(), fake.device)
        self._tracked[id(before)] = tracked
        for node in self.graph.nodes:  # the one that made it, and the one that wrote it last
            if node.meta["val"] is fake:
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
        """In what order an op that reads what it overwrites does so is eager's affair, and it may
        refuse."""
        for other in read:
            if (
                other is target
                or self._tracked[id(other)].storage is not self._tracked[id(target)].storage
            ):
                continue
            if _addresses_differ(target, other) and _elements_meet(target, other):
                raise unsupported(
                    "op-writes", "an operation overwrites memory that it reads at other places"
                )

    def _assign(self, target: FakeTensor, value: torch.Tensor) -> None:
        """`target` and all that share its memory see `value` from here on."""
        tracked = self._tracked[id(target)]
        if tracked.storage.overlaps:
            raise unsupported(
                "op-writes", "an input is written whose memory overlaps another input's"
            )
        if (
            tracked.view is not None
            and tracked.view.op in _MAY_OVERLAP
            and geometry.shares_elements(target)
        ):
            raise unsupported("op-writes", "a write to a view whose elements share memory")
        if value.dtype != target.dtype:
            value = aten._to_copy(value, dtype=target.dtype)
        whole, cursor = value, tracked
        while cursor.parent is not None:
            view = cursor.view
            assert view is not None
            if view.op is aten.as_strided.default:
                _refuse_beyond(cursor.parent.fake, cursor)
                view = View(view.op, self._shifted(self.node_of(cursor.parent), cursor))
            whole = written_back(view, cursor.parent.fake, whole)
            cursor = cursor.parent
        if (
            cursor.storage.position is not None
            and cursor.fake.numel()
            and geometry.shares_elements(cursor.fake)
        ):
            raise unsupported("op-writes", "an input is written whose elements share memory")
        whole = with_geometry_of(cursor.fake, whole)
        cursor.node = self.node_of(self._tracked[id(whole)])
        if tracked is not cursor:
            tracked.node = (
                self.node_of(self._tracked[id(value)]) if same_strides(target, value) else None
            )
        cursor.storage.version += 1
        cursor.version = tracked.version = cursor.storage.version

    # -- nodes -------------------------------------------------------------------------------------

    def tracked(self, fake: torch.Tensor) -> Tracked:
        """How a fake of this trace came to be."""
        return self._tracked[id(fake)]

    def track(self, fake: FakeTensor, tracked: Tracked) -> None:
        self._tracked[id(fake)] = tracked

    def node_of(self, tracked: Tracked) -> torch.fx.Node:
        """The node that holds the fake's present value; a view whose storage was written is made
        again."""
        if tracked.node is not None and (
            tracked.version == tracked.storage.version or tracked.parent is None
        ):
            return tracked.node
        assert tracked.parent is not None and tracked.view is not None
        source, view = self.node_of(tracked.parent), tracked.view
        if view.op is None:
            tracked.node = source
        else:
            args = (
                self._shifted(source, tracked) if view.op is aten.as_strided.default else view.args
            )
            tracked.node = self._node(view.op, (source, *args), view.kwargs, tracked.fake)
        tracked.version = tracked.storage.version
        return tracked.node

    def _shifted(self, source: torch.fx.Node, tracked: Tracked) -> tuple[Any, ...]:
        """as_strided's offset counts from the storage's start, which differs between the base and
        its present value."""
        base, value = tracked.base.fake, source.meta["val"]
        if (
            tracked.storage.version
            and base.numel()
            and not geometry.is_dense(base.shape, base.stride())
        ):
            raise unsupported(
                "op-writes", "as_strided over a written input that has gaps between its elements"
            )
        if tracked.storage.version:
            _refuse_beyond(base, tracked)
        assert tracked.view is not None
        size, stride, offset = tracked.view.args
        return size, stride, offset - base.storage_offset() + value.storage_offset()

    def _node(self, target: Any, args: Any, kwargs: Any, value: Any) -> torch.fx.Node:
        if self.context.shapes.hints:
            args, kwargs = _with_expressions(args), _with_expressions(kwargs)
        state = (
            self._random_state()
            if self.region is not None and self.region != BEHIND and draws(target)
            else None
        )
        node = self.graph.create_node("call_function", target, name=node_name(target))
        node.args = args  # not through create_node, which looks for sizes in them, for long
        if kwargs:
            node.kwargs = kwargs
        node.meta["val"] = value
        node.meta["where"] = self.where
        if self.region is not None:
            node.meta["region"] = self.region
        if state is not None:
            node.meta["state"] = state
        if may_raise(target, args, value):
            node.meta["may_raise"] = True
        return node

    def _random_state(self) -> torch.fx.Node:
        """The generator's state, from which the backward is to draw again what is drawn next."""
        node = self.graph.call_function(random_state)
        with DisableTorchDispatch():
            meta_state = torch.empty(STATE_BYTES, dtype=torch.uint8, device="meta")
        node.meta.update(val=FakeTensor(meta_state, torch.device("cpu")), where=self.where)
        return node

    def _as_nodes(self, tree: Any) -> Any:
        if isinstance(tree, FakeTensor):
            return self.node_of(self._tracked[id(tree)])
        if isinstance(tree, (list, tuple)):
            return type(tree)([self._as_nodes(item) for item in tree])
        if isinstance(tree, dict):
            return {k: self._as_nodes(v) for k, v in tree.items()}
        return tree

    # -- the end -----------------------------------------------------------------------------------

    def finish(self, outputs: list[Any]) -> AtenGraph:
        """Close the graph: its outputs in terms of the storages they live in, and the inputs that
        were written."""
        simplified = self.context.shapes.simplified
        if self.context.shapes.guards:  # which may have pinned symbols that earlier nodes name
            for node in self.graph.nodes:
                node.args = torch.fx.node.map_aggregate(
                    node.args, lambda a: simplified(a) if isinstance(a, Expr) else a
                )
        outputs = [self.literal(o) if isinstance(o, torch.Tensor) else o for o in outputs]
        specs = [self.output(o) for o in outputs]
        mutations = [(position, self.node_of(t)) for position, t in self.written_inputs()]
        made = AtenGraph(self.graph, specs, mutations, self.constants, self.context.shapes)
        if mutations:
            made.uncounted = self._uncounted()
        return made

    def _uncounted(self) -> frozenset[int]:
        """The inputs that were written by way of `data` alone, of which autograd does not know."""
        written = {
            id(t.storage): t
            for t in self._tracked.values()
            if t.fake.counts_alone and t.storage.version
        }
        inputs = [t for t in self._inputs if id(t.storage) in written and not t.fake.is_inference()]
        return frozenset(t.storage.position for t in inputs if not t.fake._version)  # type: ignore[misc]

    def written_inputs(self) -> list[tuple[int, Tracked]]:
        """The inputs that were written, by their position."""
        return [(t.storage.position, t) for t in self._inputs if t.storage.version]  # type: ignore[misc]

    def output(self, value: Any) -> OutputSpec:
        """How an output of the program lies in memory."""
        if not isinstance(value, FakeTensor):
            return OutputSpec(value=value)
        if value.meta.is_conj() or value.meta.is_neg():
            raise unsupported("conjugate-view", "a conjugate or negative view is returned")
        tracked = self._tracked[id(value)]
        base = tracked.base
        position = base.storage.position
        node = self.node_of(base) if position is None else self._placeholders[position]
        offset = (
            value.storage_offset()
            - base.fake.storage_offset() * base.fake.element_size() // value.element_size()
        )
        return OutputSpec(
            node,
            tuple(value.shape),
            value.stride(),
            offset,
            value.dtype,
            None,
            position,
            id(base.storage),
            requires_grad(value),
            _alias_of(tracked),
        )


def _alias_of(tracked: Tracked) -> str:
    """What a tensor is, to autograd, of what it shares memory with."""
    cursor: Tracked | None = tracked
    while cursor is not None:
        if cursor.fake.counts_alone:
            return "view of data" if tracked.fake._is_view() else "data"
        cursor = cursor.parent
    return "view" if tracked.fake._is_view() else "detached"


def _refuse_beyond(base: FakeTensor, tracked: Tracked) -> None:
    """Of memory that is written, what is known is the elements of the base."""
    assert tracked.view is not None
    size, stride, offset = tracked.view.args
    first = offset - base.storage_offset()
    last = first + sum((n - 1) * s for n, s in zip(size, stride))
    end = sum((n - 1) * s for n, s in zip(base.shape, base.stride()))
    if tracked.fake.numel() and (first < 0 or last > end):
        raise unsupported(
            "op-writes",
            "as_strided reaches beyond a written tensor, into memory that is not its own",
        )


def _call_functional(op: OpOverload, bound: dict[str, Any], kwargs: dict[str, Any]) -> Any:
    """Call the functional form of an in-place or out= op; it need not have the same defaults."""
    form = functional_form(op)
    assert form is not None  # run_fake refuses ops without one
    arguments = form._schema.arguments
    named = {a.name: kwargs[a.name] for a in arguments if a.kwarg_only and a.name in kwargs}
    return form(*[bound[a.name] for a in arguments if not a.kwarg_only], **named)


def _with_expressions(tree: Any) -> Any:
    """Arguments of a node with symbolic ints as expressions."""
    if isinstance(tree, torch.SymInt):
        return to_expr(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)([_with_expressions(item) for item in tree])
    if isinstance(tree, dict):
        return {k: _with_expressions(v) for k, v in tree.items()}
    return tree


def _checked(op: OpOverload, expected: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if expected.dtype != result.dtype or not geometry.same_sizes(expected.shape, result.shape):
        raise CompilerBug("decomposition", f"{op} gives {result!r}, eager {expected!r}")
    return with_geometry_of(expected, result)


def _addresses_differ(a: torch.Tensor, b: torch.Tensor) -> bool:
    same = a.dtype == b.dtype and geometry.same_sizes(a.shape, b.shape)
    # eager minds the strides of single elements too
    same = same and geometry.same_sizes(a.stride(), b.stride())
    return not (same and a.storage_offset() == b.storage_offset())


def _elements_meet(a: FakeTensor, b: FakeTensor) -> bool:
    """Whether two views of one storage may have an element in common."""
    if not _bytes_meet(a, b):
        return False
    numbers = [n for t in (a, b) for n in (*t.shape, *t.stride(), t.storage_offset())]
    if (
        a.dtype != b.dtype
        or not all(isinstance(n, int) for n in numbers)
        or a.numel() + b.numel() > _MOST_LISTED
    ):
        return True
    return not _elements(a).isdisjoint(_elements(b))


def _elements(t: FakeTensor) -> set[Any]:
    """The element numbers of a tensor in its storage."""
    found: set[Any] = {t.storage_offset()}
    for size, stride in zip(t.shape, t.stride()):
        found = {e + k * stride for e in found for k in range(size)}
    return found


def _bytes_meet(a: FakeTensor, b: FakeTensor) -> bool:
    """Whether the byte ranges of two fakes on one storage meet."""
    (start_a, end_a), (start_b, end_b) = _bytes(a), _bytes(b)
    return start_a < end_b and start_b < end_a


def _bytes(t: torch.Tensor) -> tuple[Any, Any]:
    first = t.storage_offset()
    last = (
        first + sum((s - 1) * stride for s, stride in zip(t.shape, t.stride()))
        if t.numel()
        else first - 1
    )
    return first * t.element_size(), (last + 1) * t.element_size()
