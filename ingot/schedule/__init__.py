"""From loop IR to a plan: what is fused, in which order it runs, and where every buffer lives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot.loops.depthwise import DepthwiseGradient
from ingot.loops.ir import (
    Attention,
    AttentionBackward,
    Contraction,
    Library,
    LoopGraph,
    Node,
)
from ingot.loops.target import CPU, Target
from ingot.schedule.attention import attention_step
from ingot.schedule.attention_pairs import paired
from ingot.schedule.attention_tiles import tiling_of_attention
from ingot.schedule.blocks import keeps_rows
from ingot.schedule.build import build_kernel
from ingot.schedule.concurrent import concurrent
from ingot.schedule.contraction import build_contraction
from ingot.schedule.copies import with_copies
from ingot.schedule.cost import work_per_point
from ingot.schedule.dependencies import used_nodes
from ingot.schedule.depthwise import depthwise_kernel
from ingot.schedule.fuse import fuse
from ingot.schedule.groups import Group
from ingot.schedule.horizontal import side_by_side
from ingot.schedule.in_place import without_copies_to_write
from ingot.schedule.inline import inlined
from ingot.schedule.kernel import AnyKernel, Kernel, anonymous
from ingot.schedule.layers import with_all_layers
from ingot.schedule.memory import lenders_of, plan_memory
from ingot.schedule.norms import with_norms_in_products
from ingot.schedule.offsets import begun_at_offsets
from ingot.schedule.placement import without_result_copies
from ingot.schedule.plan import KernelStep, LibraryStep, Plan
from ingot.schedule.recompute import recomputed
from ingot.schedule.reuse import lend_inputs, write_in_place
from ingot.schedule.split import split_reductions
from ingot.schedule.templates import Choose, excerpt, sites, with_templates
from ingot.serial import safe_point

__all__ = ["schedule"]


def schedule(
    graph: LoopGraph,
    note: Callable[[str], None] = lambda text: None,
    frugal: bool = False,
    target: Target = CPU,
    choose: Choose | None = None,
    fuses: bool = True,
) -> Plan:
    """The plan of a loop graph. `note` receives each decision as a line of text. See `Plan` for
    what is `frugal`. `choose` says which products of a GPU's are kernels rather than calls (see
    `templates`). Unless it `fuses`, each loop nest is a kernel, to look for faults."""
    nodes = without_copies_to_write(used_nodes(graph), graph, target)
    nodes, graph = split_reductions(without_result_copies(nodes, graph), graph, target)
    if fuses:
        nodes = inlined(nodes, graph, target)
        nodes, graph = with_norms_in_products(nodes, graph, target)
    nodes = paired(nodes, graph.buffers, graph.required)
    groups = fuse(nodes, graph.buffers, note, target, frugal, merges=fuses)
    if choose is not None:
        chosen = choose(
            sites(groups, graph, target),
            lambda site, choice: _plan(*excerpt(site, choice, groups, graph), target, frugal=True),
        )
        groups, graph = with_templates(groups, graph, chosen)
    return _plan(groups, graph, target, frugal)


def _plan(groups: list[Group], graph: LoopGraph, target: Target, frugal: bool) -> Plan:
    internal = _internal_buffers(groups, graph)
    write_in_place(groups, internal, graph)
    loans = lend_inputs(groups, internal, graph)
    steps = []
    for group, own, lent in zip(groups, internal, loans):
        steps.append(_step(group, graph, own, lent, CPU if group.on_host else target))
    steps, graph = with_all_layers(*with_copies(steps, graph))
    steps = side_by_side(steps, graph, target)
    steps = _with_unique_names(concurrent(steps, graph, target))
    lenders = {}
    if frugal:
        lenders = lenders_of(steps, graph)
    return Plan(graph, steps, *plan_memory(steps, graph, frugal, target, lenders), frugal, lenders)


def _internal_buffers(groups: Sequence[Group], graph: LoopGraph) -> list[set[str]]:
    """For each group, the temporaries that only it touches, and that nobody is given or must see
    computed."""
    users: Counter[str] = Counter()
    for group in groups:
        users.update(group.touches)
    alone = set()
    for name, count in users.items():
        if count == 1 and graph.is_temporary(name):
            alone.add(name)
    alone -= graph.required
    return [group.writes & alone for group in groups]


def _step(
    group: Group, graph: LoopGraph, internal: set[str], loans: dict[str, str], target: Target
) -> KernelStep | LibraryStep:
    safe_point()
    first: Node = group.members[0]
    if isinstance(first, Library):
        return LibraryStep(first)
    if isinstance(first, (Attention, AttentionBackward)):
        return attention_step(first, graph.buffers)
    if isinstance(first, Contraction):
        tiling = group.tiling
        if first.weights is not None and target.has_registers:
            tiling = tiling_of_attention(first, graph.buffers)
        kernel, arguments = build_contraction(
            group.members, internal, graph.buffers, tiling, group.prologues
        )
        return _launch(kernel, arguments, group, target)
    if isinstance(first, DepthwiseGradient):
        return _launch(*depthwise_kernel(first, graph.buffers, target), group, target)
    assert group.overlay is not None
    kernel, arguments = build_kernel(group.overlay, internal, graph.buffers, target)
    if target.has_registers and kernel.rows and not keeps_rows(kernel):
        names = dict(zip(arguments, [p.name for p in kernel.parameters]))
        lenders = {names[borrower]: names[lender] for lender, borrower in loans.items()}
        without_rows = recomputed(kernel, lenders)
        if without_rows is not None:
            kernel = without_rows
        else:
            kernel, arguments = build_kernel(
                group.overlay, internal, graph.buffers, target, with_rows=False
            )
    if loans:
        parameters = list(kernel.parameters)
        for lender, borrower in loans.items():
            at = arguments.index(lender)
            parameters[at] = parameters[at]._replace(lends=arguments.index(borrower))
        kernel = replace(kernel, parameters=tuple(parameters))
    return _launch(kernel, arguments, group, target)


def _launch(kernel: Kernel, arguments: tuple[str, ...], group: Group, target: Target) -> KernelStep:
    work = work_per_point(kernel)
    step = KernelStep(kernel, arguments, kernel.points, work, on_host=group.on_host)
    return begun_at_offsets(step, target)


def _with_unique_names(steps: Sequence[KernelStep | LibraryStep]) -> list[KernelStep | LibraryStep]:
    """Kernels of equal code share a name; different ones of one name are numbered."""
    counts: dict[str, int] = {}
    names: dict[object, str] = {}
    named: dict[int, AnyKernel] = {}  # by id: many steps share a kernel
    result: list[KernelStep | LibraryStep] = []
    for step in steps:
        if isinstance(step, KernelStep):
            kernel = named.get(id(step.kernel))
            if kernel is None:
                kernel, body = step.kernel, anonymous(step.kernel)
                if body not in names:
                    count = counts[kernel.name] = counts.get(kernel.name, 0) + 1
                    if count == 1:
                        names[body] = kernel.name
                    else:
                        names[body] = f"{kernel.name}_{count}"
                kernel = named[id(step.kernel)] = replace(kernel, name=names[body])
            step = replace(step, kernel=kernel)
        result.append(step)
    return result
