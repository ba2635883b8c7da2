"""The walk over an ATen graph: inputs, nodes by their rules, outputs, and the values written back
into inputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from ingot.errors import CompilerBug, unsupported
from ingot.loops import ops
from ingot.loops.expr import ZERO, Expr, Symbol, as_expr
from ingot.loops.functional_ops import FunctionalForm
from ingot.loops.ir import Library, LoopGraph, Origin, View
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.cost import eager_is_faster
from ingot.loops.lowering.library import call_aten, call_functional, laid_out
from ingot.loops.lowering.pointwise import filled
from ingot.loops.lowering.rules import READS_PART, RULES, NotLowered
from ingot.loops.lowering.values import (
    LoopTensor,
    Spec,
    channels_last_strides,
    dense_strides,
    loops_over,
    numel,
    stored,
    view_of,
)
from ingot.loops.own_ops import scored_attention, scored_product
from ingot.loops.side_effects import UNINITIALIZED, acts, has_effect
from ingot.loops.sides import moves, on_host
from ingot.loops.spaces import address_of, contiguous_strides
from ingot.loops.target import CPU, Target
from ingot.sequences import map_leaves
from ingot.serial import safe_point
from ingot.torch_private import ADDRESSING, OpOverload, aten


def lower(
    aten: Any,
    supported: Callable[[str, torch.dtype], bool] = ops.supported,
    fast_libraries: bool = False,
    target: Target = CPU,
) -> LoopGraph:
    """The loop graph of an `AtenGraph`. `supported(op, dtype)` says which scalar ops can be
    emitted.

    `fast_libraries` allows library kernels that are faster than eager's but round worse.

    Raises Unsupported for what can be neither lowered nor called.
    """
    walk = _Walk(aten, Lowering(supported, fast_libraries, target))
    for node in aten.graph.nodes:
        safe_point()
        walk.visit(node)
    walk.finish()
    return walk.lw.graph


class _Walk:
    def __init__(self, aten: Any, lw: Lowering) -> None:
        self.aten = aten
        self.lw = lw
        self.sides = lw.target, lw.supported
        self.hosts = on_host(aten.graph)
        self.repeated = _repeated(aten.graph)
        self.values: dict[torch.fx.Node, Any] = {}
        self.lw.graph.symbols += [(symbol, *place) for symbol, place in aten.symbols.items()]
        # one value each
        self.forms = {root: aten.shapes.unbacked.forms(root) for root in aten.bindings}
        self.lw.graph.symbols += [
            (form, -1, "bound", 0) for forms in self.forms.values() for form in forms
        ]
        self.lw.graph.checks += aten.checks
        # lazy values whose computation may be an error
        self.unchecked: dict[torch.fx.Node, None] = {}
        self.spreads: set[str] = set()  # buffers of results whose elements lie apart
        self.returned = next(iter(reversed(aten.graph.nodes)))
        self.addressed = {_owner(n.args[0]) for n in aten.graph.nodes if n.target in ADDRESSING}

    # -- nodes -------------------------------------------------------------------------------------

    def visit(self, node: torch.fx.Node) -> None:
        if node.op == "placeholder":
            self.values[node] = self.input(node)
        elif node.op == "get_attr":
            self.values[node] = self.constant(node)
        elif node.op == "call_function":
            self.lw.origin = Origin.of(str(node.target), node.meta.get("where", ""), node.name)
            self.lw.may_raise = node.meta.get("may_raise", False)
            self.stand_beside(node)
            if self.unchecked and acts(node.target):
                self.check_all()
            self.lw.repeats = node in self.repeated
            self.values[node] = self.call(node)
            self.lw.repeats = False
            self.check(node)
            if self.hosts and any(
                (user in self.hosts) != (node in self.hosts) for user in node.users
            ):
                self.settle(self.values[node])
            self.stand_beside(None)

    # -- the CPU beside a GPU ----------------------------------------------------------------------

    def stand_beside(self, node: torch.fx.Node | None) -> None:
        """From now on what is lowered runs where the node's value is; on the graph's device for
        None."""
        self.lw.on_host = node in self.hosts
        if self.lw.on_host:
            self.lw.target, self.lw.supported = (CPU, ops.supported)
        else:
            self.lw.target, self.lw.supported = self.sides

    def settle(self, value: Any) -> None:
        """Put in memory what the other side reads."""
        for tensor in _tensors(value):
            if view_of(tensor) is None:
                self.lw.realize(tensor)

    def as_gpu_operand(self, value: Any) -> Any:
        """A number in a CPU buffer as an operand of GPU code; anything else as it is.

        It has no home, as the kernel is given the number itself. Whoever needs it in memory writes
        it to the GPU's.
        """
        buffer = None
        if isinstance(value, LoopTensor):
            buffer = value.buffer
        if buffer is None or not self.lw.graph.buffers[buffer].on_host:
            return value
        return LoopTensor(value.sizes, value.strides, value.dtype, value.load, cost=1)

    def call(self, node: torch.fx.Node) -> Any:
        args, kwargs = self.value_of(node.args), self.value_of(dict(node.kwargs))
        fake = node.meta["val"]
        if isinstance(node.target, FunctionalForm):
            return self.functional(node, node.target)
        is_moved = moves(node, self.hosts)
        if self.hosts and node not in self.hosts and not is_moved:
            args, kwargs = map_leaves(self.as_gpu_operand, (args, kwargs))
        if fake is None:
            return self.lw.call(node.target, [], args, kwargs)
        if "binds" in node.meta:
            return self.bind(node, args, kwargs)
        if is_moved:
            return self.move(node, args, kwargs)
        if not isinstance(fake, (torch.Tensor, tuple, list)):
            return as_expr(_to_expr(fake))
        if node.target is operator.getitem:
            return self.finished(node, args[0][args[1]])
        outs = _specs(fake, node.meta.get("layout"))
        self.lw.used = _used_results(node, outs)
        self.lw.returned = self.returned in node.users
        result = self.lowered(node, outs, args, kwargs)
        if isinstance(result, tuple):
            return result
        return self.finished(node, result)

    def functional(self, node: torch.fx.Node, form: FunctionalForm) -> Any:
        """A call of a foreign op that writes its arguments: it is given copies of what it writes
        (see `schedule.in_place`)."""
        (bases, shown, *arguments), _ = self.laid_as_in_eager(node, self.value_of(node.args), {})
        outs = _specs(node.meta["val"], None)
        self.lw.used = _used_results(node, outs)
        memory = []
        owners: Any = node.args[0]
        for owner, base, spec in zip(owners, bases, outs[len(outs) - len(bases) :]):
            if owner.target in UNINITIALIZED:
                memory.append(stored(self.lw.new_buffer(spec, spec.strides), spec))
            else:
                memory.append(self.lw.duplicate(base, spec))
        around: list[LoopTensor] = []
        for owner, base in zip(node.args[1], shown):  # type: ignore[arg-type]
            around.append(self.lw.in_memory(base, _spec(owner.meta["val"])))
        return call_functional(self.lw, form, outs, memory, around, arguments, self.bindings(node))

    def bindings(self, node: torch.fx.Node) -> tuple[tuple[Symbol, int, int], ...]:
        """The symbols that a node binds, in each form that they are named by, and where."""
        binds = []
        for b in node.meta.get("binds", ()):
            for form in self.forms[b.symbol]:
                binds.append((form, b.result, b.dim))
        return tuple(binds)

    def move(self, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
        """A call of the library that takes tensors from one side to the other: they are laid out on
        their own."""
        outs = _specs(node.meta["val"], None)
        listed = _listed(outs)
        if node in self.hosts:
            self.stand_beside(None)
            args, kwargs = laid_out(self.lw, args), laid_out(self.lw, kwargs)
            self.stand_beside(node)
        results = self.lw.call(node.target, listed, args, kwargs)
        if listed is outs:
            return tuple(results)
        return self.finished(node, results[0])

    def bind(self, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
        """A call of the library that decides sizes of its results, or gives an integer."""
        fake = node.meta["val"]
        is_tensor = isinstance(fake, (torch.Tensor, tuple, list))
        outs = ()
        if is_tensor:
            outs = _specs(fake, None)
        listed = _listed(outs)
        args, kwargs = self.laid_as_in_eager(node, args, kwargs)
        args, kwargs = laid_out(self.lw, args), laid_out(self.lw, kwargs)
        results = self.lw.call(node.target, listed, args, kwargs, binds=self.bindings(node))
        if not is_tensor:
            return as_expr(_to_expr(fake))
        if listed is outs:
            return tuple(results)
        return self.finished(node, results[0])

    def finished(self, node: torch.fx.Node, value: Any) -> Any:
        if value is None:
            raise CompilerBug(
                "lower", "a result without users is used", str(node), node.meta.get("where", "")
            )
        if self.returned in node.users:  # where it is computed, not at the end
            if value.root is value:
                self.lw.realize(value)
            elif node.target is aten.clone.default and value.root.buffer is not None:
                self.lw.realize(value)
                if not self.fills_buffer(value):
                    value = self.lw.copied(value)
        if node in self.addressed and value.root is not value:
            # as_strided counts from the beginning of the node's own memory
            value = self.lw.copied(value)
        return self.lw.finish(value, sum(not _surrounds(user, node) for user in node.users))

    def check(self, node: torch.fx.Node) -> None:
        """Have all of a value computed whose computation may be an error, where no user does so
        anyway."""
        tensors = _tensors(self.values[node])
        if not node.meta.get("may_raise") and self.unchecked.keys().isdisjoint(
            node.all_input_nodes
        ):
            return
        if all(map(_reads_part, node.users)):
            self.lw.graph.checked.update(self.lw.realize_root(v).buffer or "" for v in tensors)
        elif (
            node.meta.get("may_raise")
            or _owner(node) is not node
            or all(v.buffer is None for v in tensors)
        ):
            self.unchecked[node] = None

    def check_all(self) -> None:
        """Have all computed, here, whose computation may be an error: what follows must not happen
        then."""
        for node in self.unchecked:
            for tensor in _tensors(self.values[node]):
                self.lw.graph.checked.add(self.lw.realize_root(tensor).buffer or "")
        self.unchecked.clear()

    def lowered(
        self, node: torch.fx.Node, outs: Spec | tuple[Spec, ...], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        func = node.target
        rule = RULES.get(func)
        if (
            rule is not None
            and _storable(args, outs)
            and not self.is_eagers(node, outs, args, kwargs)
        ):
            if isinstance(outs, Spec) and ZERO in outs.sizes and not node.meta.get("may_raise"):
                # as good as any, and the rules need not think of it
                return filled(self.lw, outs, 0)
            try:
                return rule(self.lw, outs, *args, **kwargs)
            except NotLowered:
                pass  # this form of the op has no rule
        if not isinstance(func, OpOverload):
            raise unsupported("no-code", f"{func} is not an ATen op", self.lw.origin.where)
        listed = _listed(outs)
        specs = self.lw.with_users(listed)
        if "layout" not in node.meta:
            args, kwargs = self.laid_as_in_eager(node, args, kwargs)
        results = call_aten(self.lw, func, specs, args, kwargs)
        if listed is outs:
            return tuple(results)
        return results[0]

    def is_eagers(self, node: torch.fx.Node, out: Any, args: Any, kwargs: Any) -> bool:
        """Whether eager's kernel is predicted to be faster for a node that would be a kernel alone.

        Such a node is a function of each element of what is in memory.
        """
        if not self.lw.target.measured:
            return False
        if (
            len(args) != 1
            or kwargs
            or not isinstance(out, Spec)
            or not isinstance(args[0], LoopTensor)
        ):
            return False
        elements = numel(out.sizes).constant
        name = getattr(node.target, "name", str)().removeprefix("aten::")
        if (
            elements is None
            or not eager_is_faster(name, out.dtype, elements)
            or args[0].dtype is not out.dtype
        ):
            return False
        buffer = args[0].root.buffer
        graph = self.lw.graph
        called = buffer is not None and any(
            buffer in n.writes() for n in graph.nodes if isinstance(n, Library)
        )
        is_outside = buffer is not None and graph.buffers[buffer].role != "temporary"
        kept = all(user is self.returned for user in node.users) and all(
            node is not n for _, n in self.aten.mutations
        )
        return (called or is_outside) and kept

    def laid_as_in_eager(self, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
        """The arguments with copies of those to which a pass gave another layout: a library's
        result may lie as its argument does."""
        kept = {n: self.values[n] for n in node.all_input_nodes if "layout" in n.meta}
        kept = {n: value for n, value in kept.items() if isinstance(value, LoopTensor)}
        if not kept:
            return args, kwargs
        for n, value in kept.items():
            self.values[n] = self.lw.copied(value, _spec(n.meta["val"]).strides)
        changed = self.value_of(node.args), self.value_of(dict(node.kwargs))
        self.values.update(kept)
        return changed

    def value_of(self, tree: Any) -> Any:
        """Arguments with nodes replaced by their values and symbolic ints by expressions."""

        def value(item: Any) -> Any:
            if isinstance(item, torch.fx.Node):
                return self.values[item]
            if isinstance(item, torch.SymInt):
                return _to_expr(item)
            return item

        return map_leaves(value, tree)

    # -- what the graph starts from ----------------------------------------------------------------

    def input(self, node: torch.fx.Node) -> Any:
        fake = node.meta["val"]
        if not isinstance(fake, torch.Tensor):
            self.lw.graph.integers += 1
            return _to_expr(fake)
        name = f"in{len(self.lw.graph.inputs)}"
        self.lw.graph.inputs.append(name)
        return self.outside_tensor(node, name, "input")

    def constant(self, node: torch.fx.Node) -> LoopTensor:
        name = f"c_{node.target}"
        self.lw.graph.constants[name] = self.aten.constants[node.target]
        return self.outside_tensor(node, name, "constant")

    def outside_tensor(self, node: torch.fx.Node, name: str, role: str) -> LoopTensor:
        spec = _spec(node.meta["val"])
        self.lw.storage_offsets[name] = spec.offset
        return self.lw.declared(name, spec, role, node in self.hosts)

    # -- what it ends with -------------------------------------------------------------------------

    def finish(self) -> None:
        """Outputs first, for they may read what the mutations overwrite."""
        graph = self.lw.graph
        self.lw.origin, self.lw.may_raise = Origin(("output",)), False
        owners: dict[str, Any] = {}
        outputs: dict[int, View | Expr] = {}
        copied = {
            k for copies in self.aten.copies for copy in copies for k in copy.outputs.values()
        }
        for k, spec in enumerate(self.aten.outputs):
            if k not in copied:
                node = getattr(spec, "node", None)
                self.stand_beside(node)
                if node is not None:
                    outputs[k] = self.output(spec, node, owners)
                else:
                    outputs[k] = _to_expr(spec.value)
        for host in (False, True):  # what is on the device may read numbers from the host
            finals = [(k, n) for k, n in self.aten.mutations if (n in self.hosts) is host]
            self.stand_beside(finals[0][1] if finals else None)
            self.write_back([(graph.inputs[k], self.values[node]) for k, node in finals])
        graph.mutated = self.input_names(dict(self.aten.mutations))
        graph.uncounted = self.input_names(self.aten.uncounted)
        graph.lends = self.input_names(self.aten.lends)
        graph.donated = {graph.inputs[k]: what for k, what in self.aten.donated.items()}
        graph.copies = [
            [self.copy(copy, outputs) for copy in copies] for copies in self.aten.copies
        ]
        graph.outputs = [outputs[k] for k in range(len(outputs))]
        graph.layers, graph.is_backward = self.aten.layers, self.aten.is_backward

    def input_names(self, positions: Iterable[int]) -> set[str]:
        result = set()
        for position in positions:
            result.add(self.lw.graph.inputs[position])
        return result

    def copy(self, copy: Any, outputs: dict[int, View | Expr]) -> dict[str, str]:
        """What takes the place of which buffer in a part that is like one in the graph."""
        graph = self.lw.graph
        names = {graph.inputs[old]: graph.inputs[new] for old, new in copy.inputs.items()}
        graph.mutated |= {names[name] for name in graph.mutated & names.keys()}
        graph.uncounted |= {names[name] for name in graph.uncounted & names.keys()}
        for old, new in copy.outputs.items():
            view = outputs[old]
            assert isinstance(view, View)
            if view.buffer not in names:
                names[view.buffer] = self.lw.another(view.buffer)
            outputs[new] = replace(view, buffer=names[view.buffer])
        return names

    def output(self, spec: Any, node: torch.fx.Node, owners: dict[str, Any]) -> View:
        """The window that is returned; a fresh value gets a buffer that nothing else shares."""
        value = self.values[node]
        if node.op != "placeholder":
            if _has_gaps(value):
                value = self.spread(value)
            else:
                value = self.owned(value, spec, owners)
            self.values[node] = value
        sizes, strides = _exprs(spec.sizes), _exprs(spec.strides)
        return View(value.buffer or "", sizes, strides, _to_expr(spec.offset), spec.dtype)

    def spread(self, value: LoopTensor) -> LoopTensor:
        """`value` in memory of the strides that eager gives it, where its elements lie apart."""
        spec = Spec(value.sizes, value.strides, value.dtype)
        name = value.buffer or ""
        if name not in self.spreads:
            name = self.lw.new_buffer(spec, value.strides)
            self.lw.write(value, name, value.strides, ZERO)
            self.spreads.add(name)
        return stored(name, spec)

    def owned(self, value: LoopTensor, spec: Any, owners: dict[str, Any]) -> LoopTensor:
        """`value` filling a temporary buffer that is returned for this storage only, laid out as
        eager lays it out."""
        if (
            value.buffer is None
            and value.root is not value
            and numel(value.root.sizes) is numel(value.sizes)
        ):
            self.lw.realize(value.root)
        self.lw.realize(value)
        name = value.buffer or ""
        storage = getattr(spec, "storage", id(value))
        if not self.fills_buffer(value) or owners.setdefault(name, storage) != storage:
            value = self.lw.copied(value)
            owners[value.buffer or ""] = storage
        return value

    def fills_buffer(self, value: LoopTensor) -> bool:
        """Whether a value in memory is all of a temporary, laid out as eager lays it out."""
        window, buffer = view_of(value), self.lw.graph.buffers[value.buffer or ""]
        return (
            window is not None
            and window.offset is ZERO
            and buffer.is_temporary
            and buffer.dtype is value.dtype
            and _equal_strides(value.sizes, window.strides, value.strides)
            and numel(value.sizes) is numel(buffer.sizes)
        )

    def write_back(self, finals: list[tuple[str, LoopTensor]]) -> None:
        """Store final values into input buffers. A value that reads what a store overwrites is
        completed elsewhere first."""
        written = {name for name, _ in finals}
        values = [
            (name, self.lw.copied(v) if self.reads_others(v, name, written) else v)
            for name, v in finals
        ]
        for name, value in values:
            strides = self.lw.graph.buffers[name].strides
            window = None
            if value.buffer == name:
                window = view_of(value)
            if window is None or not _equal_strides(value.sizes, window.strides, strides):
                self.lw.write(value, name, strides, ZERO)

    def reads_others(self, value: LoopTensor, target: str, written: set[str]) -> bool:
        """Whether computing `value` element by element reads a written input elsewhere than at the
        element written."""
        index = loops_over(value.sizes)
        own = address_of(index, self.lw.graph.buffers[target].strides)
        for load in self.lw.body_of(value, index).loads:
            if load.attrs[0] in written and (load.attrs[0] != target or load.attrs[1] is not own):
                return True
        return False


def _reads_part(node: torch.fx.Node) -> bool:
    """Whether a node may read only some elements of an argument."""
    if node.target is operator.getitem or node.target in READS_PART:
        return True
    return _is_empty(node)


def _tensors(value: Any) -> list[LoopTensor]:
    """The tensors among the results of a node."""
    results = value if isinstance(value, tuple) else (value,)
    return [result for result in results if isinstance(result, LoopTensor)]


def _listed(outs: Any) -> tuple[Spec | None, ...]:
    """What is known of the results of a node, of which there may be one."""
    if isinstance(outs, Spec):
        return (outs,)
    return outs  # type: ignore[no-any-return]


def _owner(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory `node` is, itself or through views."""
    while node.target is aten._unsafe_view.default or getattr(node.target, "is_view", False):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _repeated(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """What only the scores of attention are made of: they compute it wherever they read it."""
    result: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if not node.users or has_effect(node.target):
            continue
        for user in node.users:
            if user not in result and node not in _captured(user):
                break
        else:
            result.add(node)
    return result


def _captured(node: torch.fx.Node) -> Any:
    if node.target is scored_attention:
        return node.args[3]
    if node.target is scored_product:
        return node.args[2]
    return ()


def _surrounds(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Whether a user reads a value with zeros around it alone, in memory.

    The gradients of a transposed convolution read the gradient of its result so.
    """
    if user.target is not aten.convolution_backward.default or user.args[0] is not node:
        return False
    margins, is_transposed = user.args[5], user.args[7]
    assert isinstance(margins, Sequence)
    return bool(is_transposed) and any(margins)


def _is_empty(node: torch.fx.Node) -> bool:
    fake = node.meta.get("val")
    return isinstance(fake, torch.Tensor) and ZERO in _exprs(fake.shape)


def _used_results(node: torch.fx.Node, outs: Any) -> tuple[bool, ...]:
    if isinstance(outs, Spec):
        return (True,)
    used = set()
    for user in node.users:
        if user.target is operator.getitem and user.users:
            used.add(user.args[1])
    return tuple(k in used for k in range(len(outs)))


def _storable(args: Any, outs: Any) -> bool:
    """Whether loops can hold every dtype involved."""
    specs = outs
    if isinstance(outs, Spec):
        specs = [outs]
    return all(s is None or s.dtype in ops.STORED for s in specs) and _all_storable(args)


def _all_storable(tree: Any) -> bool:
    if isinstance(tree, LoopTensor):
        return tree.dtype in ops.STORED
    if isinstance(tree, (tuple, list)):
        return all(_all_storable(item) for item in tree)
    return True


def _to_expr(value: Any) -> Any:
    """A size as an expression: an int, an expression, or a SymInt over one."""
    return as_expr(value.node.expr if isinstance(value, torch.SymInt) else value)


def _exprs(values: Any) -> tuple[Expr, ...]:
    return tuple(_to_expr(v) for v in values)


def _spec(fake: torch.Tensor) -> Spec:
    return Spec(
        _exprs(fake.shape),
        _exprs(fake.stride()),
        fake.dtype,
        fake.device,
        _to_expr(fake.storage_offset()),
    )


def _specs(fake: Any, layout: str | None) -> Any:
    if not isinstance(fake, torch.Tensor):
        return tuple(_specs(f, layout) if isinstance(f, torch.Tensor) else None for f in fake)
    spec = _spec(fake)
    if layout is None:
        return spec
    strides = channels_last_strides if layout == "channels_last" else contiguous_strides
    return spec._replace(strides=strides(spec.sizes))


def _has_gaps(value: LoopTensor) -> bool:
    """Whether the elements of a result lie apart in eager's memory; those of an expanded one lie on
    each other."""
    if ZERO in value.sizes or ZERO in value.strides:
        return False
    return not _equal_strides(value.sizes, value.strides, dense_strides(value.sizes, value.strides))


def _equal_strides(sizes: Any, a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(
        x is y or size.constant in (0, 1) for size, x, y in zip(sizes, a, b)
    )
