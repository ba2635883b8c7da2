"""Each program of a report: the forward of each region, its backwards, and what is inside of
branches and loops.

Compilations go in. Out come `ProgramReport`s, with a record of each kernel, node, block of memory,
and value that is saved for a backward or computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ingot.compilation import Compilation
from ingot.explain.records import (
    INTERNAL,
    BufferReport,
    KernelReport,
    NodeReport,
    ValueReport,
)
from ingot.loops.expr import Symbol
from ingot.loops.ir import Buffer, Origin
from ingot.loops.show import dtype_name, show_node
from ingot.places import module_at
from ingot.sequences import present

if TYPE_CHECKING:
    from ingot.graph.partition import Partition
    from ingot.schedule.plan import KernelStep, LibraryStep, Plan

Sizes = Mapping[Symbol, int]

FORWARD, BACKWARD, INSIDE = "forward", "backward", "inside"


@dataclass
class ProgramReport:
    """A program: `kind` is "forward" (gradients or not), "backward", or "inside" of a branch or a
    loop of the one before it.

    `region` is the number of the part of the function, from its start or a graph break to the next,
    counted from 0. `eager` says why it runs in eager instead. `kept` says whether it was found
    among those that earlier processes kept. `stages` are the seconds of each stage. `peak_bytes`
    counts inputs, outputs and all that is alive between, `arena_bytes` what is allocated at once
    for temporaries; both are as planned, and None where there is no plan.
    """

    name: str
    kind: str
    where: str
    region: int
    eager: str
    kept: str
    kernels: list[KernelReport]
    guards: list[str]
    stages: dict[str, float]
    peak_bytes: int | None
    arena_bytes: int | None
    compilation: Compilation = field(repr=False, metadata=INTERNAL)
    sizes: Sizes = field(repr=False, metadata=INTERNAL)
    cut: Partition | None = field(repr=False, metadata=INTERNAL)

    @staticmethod
    def of(
        c: Compilation, kind: str, region: int, sizes: Sizes, cut: Partition | None = None
    ) -> ProgramReport:
        plan, peak, arena = c.log.plan, None, None
        if plan is not None:
            peak, arena = plan.peak_bytes.evaluate(sizes), plan.arena_bytes.evaluate(sizes)
        eager = ""
        if c.skipped is not None:
            eager = str(c.skipped)
        return ProgramReport(
            name=c.title,
            kind=kind,
            where=c.where,
            region=region,
            eager=eager,
            kept=c.log.kept,
            kernels=kernel_reports(c, sizes),
            guards=c.guards if kind == FORWARD else [],
            stages=dict(c.log.seconds),
            peak_bytes=peak,
            arena_bytes=arena,
            compilation=c,
            sizes=sizes,
            cut=cut,
        )

    @cached_property
    def calls(self) -> list[NodeReport]:
        """The captured graph, of torch calls."""
        captured = self.compilation.captured
        if captured is None or self.kind != FORWARD:
            return []
        return node_reports(captured.graph_module.graph.nodes, _sources(captured))

    @cached_property
    def nodes(self) -> list[NodeReport]:
        """The ATen graph."""
        aten, captured = self.compilation.log.aten, self.compilation.captured
        if aten is None:
            return []
        sources: Sequence[str] = ()
        if captured is not None and self.kind == FORWARD:
            sources = _sources(captured)
        return node_reports(aten.graph.nodes, sources)

    @cached_property
    def buffers(self) -> list[BufferReport]:
        """The memory over one call."""
        plan = self.compilation.log.plan
        if plan is None:
            return []
        return buffer_reports(plan, self.sizes)

    @cached_property
    def saved(self) -> list[ValueReport]:
        """What a forward saves for its backward."""
        if self.kind != FORWARD:
            return []
        return saved_reports(self.compilation)

    @cached_property
    def recomputed(self) -> list[ValueReport]:
        """What a backward computes once more."""
        if self.kind != BACKWARD or self.cut is None:
            return []
        from ingot.graph.cut_reasons import recomputed_values

        log = self.compilation.log
        aten = log.aten
        if aten is None or log.longer:
            aten = self.cut.backward
        return list(map(_value_report, recomputed_values(aten, self.cut.joint.names)))

    @cached_property
    def texts(self) -> dict[str, str]:
        """The artefacts of its stages, by their names."""
        from ingot.explain.stages import STAGES, artefact

        texts = {}
        for name in STAGES:
            text = None
            if name not in ("guards", "assembly", "cpp"):
                text = artefact(self.compilation, name)
            if text is not None:
                texts[name] = text
        return texts


PROPERTIES: Mapping[type, tuple[str, ...]] = {
    ProgramReport: ("calls", "nodes", "buffers", "saved", "recomputed", "texts"),
}


def program_reports(c: Compilation, region: int) -> list[ProgramReport]:
    """The programs of a region: its own, what is inside of that, and its backwards."""
    reports = []
    for program in (c, *shown_backwards(c)):
        kind = FORWARD if program is c else BACKWARD
        for inside in with_inside(program):
            own = kind if inside is program else INSIDE
            cut = c.log.partition if inside is program else None
            reports.append(ProgramReport.of(inside, own, region, c.sizes, cut))
    return reports


def backwards_of(c: Compilation) -> list[Compilation]:
    """The compilations of its gradients."""
    return present((c.backward, *c.partial_backwards))


def shown_backwards(c: Compilation) -> list[Compilation]:
    """Those that were compiled, or tried to; that of all tangents if none was."""
    backwards = backwards_of(c)
    reached = []
    for backward in backwards:
        if backward.log.plan is not None or backward.skipped is not None:
            reached.append(backward)
    return reached or backwards[:1]


def complete(c: Compilation) -> None:
    """Has the artefacts there that no step has made yet, of its gradients as well."""
    c.log.complete()
    for backward in shown_backwards(c):
        backward.log.complete()


def with_inside(c: Compilation) -> Iterator[Compilation]:
    """The compilation, and each program of its branches and loops as one of its own."""
    yield c
    for log in c.log.inside:
        yield from with_inside(replace(c, name=f"{c.name}, inside", log=log))


# -- kernels ---------------------------------------------------------------------------------------


def kernel_reports(c: Compilation, sizes: Sizes) -> list[KernelReport]:
    """One for each step of a plan."""
    if c.log.plan is None:
        return []
    names = _Names(c)
    return [kernel_report(step, c, sizes, names) for step in c.log.plan.steps]


class _Names:
    """What the names of ATen nodes tell: lines, modules, and loop nests. Nothing where a plan was
    made of other graphs than those that are shown."""

    def __init__(self, c: Compilation) -> None:
        log = c.log
        self._nodes: dict[str, Any] = {}
        self._nests: dict[str, list[Any]] = {}
        self.loops = None if log.longer else log.loops
        if log.aten is not None and not log.longer:
            for node in log.aten.graph.nodes:
                self._nodes[node.name] = node.meta
        if self.loops is not None:
            for nest in self.loops.nodes:
                for name in nest.origin.nodes:
                    self._nests.setdefault(name, []).append(nest)

    def of(self, origin: Origin, told: Callable[[str], str]) -> tuple[str, ...]:
        """What is told of the places of the nodes, each once, in order."""
        found: dict[str, None] = {}
        for name in origin.nodes:
            found[told(self._nodes.get(name, {}).get("where", ""))] = None
        found.pop("", None)
        return tuple(found)

    def loops_of(self, origin: Origin) -> str:
        """The text of the loop nests that compute these nodes, and no others."""
        if self.loops is None:
            return ""
        known, nests = set(origin.nodes), {}
        for name in origin.nodes:
            for nest in self._nests.get(name, ()):
                if known.issuperset(nest.origin.nodes):
                    nests[nest.name] = nest
        texts = []
        for nest in self.loops.nodes:
            if nest.name in nests:
                texts.append("\n".join(show_node(nest, self.loops)))
        return "\n\n".join(texts)


def kernel_report(
    step: KernelStep | LibraryStep, c: Compilation, sizes: Sizes, names: _Names
) -> KernelReport:
    from ingot.explain.stages import function_name
    from ingot.explain.traffic import step_bytes
    from ingot.schedule.plan import KernelStep

    assert c.log.plan is not None
    reads, writes = step_bytes(step, c.log.plan.graph, sizes)
    if isinstance(step, KernelStep):
        name, kind, origin = step.kernel.name, "fused", step.kernel.origin
        source = ""
        if c.log.code is not None:
            source = c.log.code.ir(step.kernel)
    else:
        name, kind, origin = function_name(step.node.function), "extern", step.node.origin
        source = str(step.node.function)
    lines = names.of(origin, str)
    if origin.where:
        lines = tuple(dict.fromkeys((origin.where, *lines)))
    read, written = accesses(step)
    return KernelReport(
        name,
        kind,
        origin.ops,
        reads,
        writes,
        source,
        origin.where,
        lines=lines,
        modules=names.of(origin, module_at),
        nodes=origin.nodes,
        buffers_read=read,
        buffers_written=written,
        loops=names.loops_of(origin),
        calls=origin.calls,
    )


def accesses(step: KernelStep | LibraryStep) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The buffers that a step reads, and those that it writes, each once."""
    from ingot.schedule.plan import KernelStep

    if not isinstance(step, KernelStep):
        return tuple(sorted(step.node.reads())), _each_once(step.node.writes())
    read, written = [], []
    for parameter, name in zip(step.parameters, step.arguments):
        if parameter.read:
            read.append(name)
        if parameter.written:
            written.append(name)
    return _each_once(read), _each_once(written)


def _each_once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


# -- graphs and memory -----------------------------------------------------------------------------


def _sources(captured: Any) -> list[str]:
    """The user's paths to the inputs of a captured graph."""
    return [graph_input.source.name for graph_input in captured.inputs]


def node_reports(nodes: Iterable[Any], sources: Sequence[str]) -> list[NodeReport]:
    """The nodes of an FX graph but for its output; `sources` are of the inputs, in order."""
    reports, inputs = [], 0
    for node in nodes:
        if node.op == "output":
            continue
        op, source = _op_name(node), ""
        if node.op == "placeholder":
            source = sources[inputs] if inputs < len(sources) else ""
            inputs += 1
        where = node.meta.get("where", "")
        operands = _each_once(str(operand) for operand in node.all_input_nodes)
        values = value_texts(node.meta.get("val"))
        reports.append(
            NodeReport(node.name, op, operands, values, str(where), module_at(where), source)
        )
    return reports


def _op_name(node: Any) -> str:
    if node.op == "placeholder":
        return "input"
    if node.op == "get_attr":
        return "constant"
    if isinstance(node.target, str):
        return str(node.target)
    if hasattr(node.target, "_schema"):
        return str(node.target)
    return str(getattr(node.target, "__name__", node.target))


def value_texts(value: Any) -> tuple[str, ...]:
    """The tensors of a node's value."""
    values = value if isinstance(value, (list, tuple)) else (value,)
    return tuple([tensor_text(v) for v in values if isinstance(v, Tensor)])


def tensor_text(value: Tensor | Buffer) -> str:
    """ "float32[4, 8]"."""
    sizes = value.sizes if isinstance(value, Buffer) else value.shape
    return f"{dtype_name(value.dtype)}[{', '.join(map(str, sizes))}]"


def buffer_reports(plan: Plan, sizes: Sizes) -> list[BufferReport]:
    """The blocks of memory that some step uses, in the order in which they are first used."""
    from ingot.schedule.memory import buffer_bytes, lives

    end = max(len(plan.steps) - 1, 0)
    reports = []
    for name, life in lives(plan.steps, plan.graph).items():
        buffer, place = plan.graph.buffers[name], plan.places.get(name)
        if place is None:  # which only exists in registers
            continue
        offset = None
        if place.offset is not None and place.kind in ("arena", "small"):
            offset = place.offset.evaluate(sizes)
        size = buffer_bytes(buffer).evaluate(sizes)
        last = min(life.last, end)
        text = tensor_text(buffer)
        reports.append(BufferReport(name, text, size, place.kind, offset, life.first, last))
    return sorted(reports, key=lambda buffer: (buffer.first, buffer.last))


# -- what is saved, and computed again -------------------------------------------------------------


def saved_reports(c: Compilation) -> list[ValueReport]:
    """What a forward saves for its backward, in the order in which that takes it."""
    cut, whole = c.log.partition, c.log.whole
    if cut is None:
        return []
    from ingot.graph.cut_reasons import saved_values

    copies: Sequence[int] = ()
    if whole is not None:
        copies = whole.copies
    reports = []
    for fact in saved_values(cut, copies):
        name, position = "", fact.argument
        if position is not None:
            if whole is not None:
                position = whole.forward.inputs[position]
            name = c.captured.inputs[position].source.name
        elif fact.role == "output":
            name = f"output {fact.position}"
        reports.append(_value_report(fact, name))
    return reports


def _value_report(fact: Any, name: str = "") -> ValueReport:
    return ValueReport(
        name=name or fact.name,
        kind=fact.role,
        op=fact.op,
        value=tensor_text(fact.value),
        bytes=fact.size,
        count=fact.alike,
        where=fact.where,
        module=fact.module,
        why=fact.why,
    )
