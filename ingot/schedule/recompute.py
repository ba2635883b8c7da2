"""Rows of scratch that do not fit a GPU's registers are computed again, if that moves no more bytes
than storing them. Softmax of long rows reads again what its powers are made of, in place of powers
that were stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ingot.loops.expr import Expr
from ingot.loops.ir import BodyBuilder, Instruction
from ingot.schedule.kernel import Kernel, Stage, Store


class _Source(NamedTuple):
    """Where a scratch row is stored."""

    stage: int
    store: Store


def recomputed(kernel: Kernel, lenders: Mapping[str, str]) -> Kernel | None:
    """The kernel without scratch rows; None where they cannot all be computed again, or had better
    be kept. A store to a parameter may overwrite the one that `lenders` names for it."""
    rows = {row.name for row in kernel.rows}
    stages = list(kernel.stages)
    sources: dict[str, _Source] = {}
    # bytes of each element that are not moved
    saved = {}
    for row in kernel.rows:
        saved[row.name] = row.dtype.itemsize
    for k, stage in enumerate(stages):
        loads = []
        for i in stage.body.loads:
            if i.attrs[0] in rows:
                loads.append(i)
        for load in loads:
            source = sources.get(load.attrs[0])
            if source is None:
                return None
            moved = _bytes_read_again(stages, k, load, source, lenders)
            if moved is None:
                return None
            saved[load.attrs[0]] += load.dtype.itemsize - moved
        if loads:
            stages[k] = _with_trees(stages, k, sources)
        for store in stages[k].stores:
            if store.buffer in sources:
                return None
            if store.buffer in rows:
                sources[store.buffer] = _Source(k, store)
    if min(saved.values()) < 0:
        return None
    return replace(kernel, stages=_without_rows(stages, rows), rows=())


def _bytes_read_again(
    stages: Sequence[Stage],
    k: int,
    load: Instruction,
    source: _Source,
    lenders: Mapping[str, str],
) -> int | None:
    """Bytes of each element that stage number k reads to compute a row that it loads now. None
    where it would not find what the row was made of."""
    here, first = stages[k], stages[source.stage]
    if first.loops != here.loops or source.store.index != load.attrs[1] or load.args:
        return None
    body = first.body.instructions
    tree = []
    for n in first.body.needed([source.store.value]):
        tree.append(body[n])
    if any(i.op == "indirect" for i in tree):
        return None
    stores_between = []
    for stage in stages[source.stage : k]:
        for store in stage.stores:
            stores_between.append(store)
    written_between = _written_at(stores_between, lenders)
    written_here = _written_at(here.stores, lenders)
    moved = 0
    for i in {i for i in tree if i.op == "load"}:
        name, index = i.attrs
        # a store to another element is of another point, which may come before
        if name in written_between or written_here.get(name, {index}) != {index}:
            return None
        varies = not index.symbols.isdisjoint(here.loops)
        if varies and i not in here.body.instructions:
            moved += i.dtype.itemsize
    return moved


def _written_at(stores: Iterable[Store], lenders: Mapping[str, str]) -> dict[str, set[Expr]]:
    """By buffer: where stores write it."""
    places: dict[str, set[Expr]] = {}
    for store in stores:
        for name in {store.buffer, lenders.get(store.buffer, store.buffer)}:
            places.setdefault(name, set()).add(store.index)
    return places


def _with_trees(stages: Sequence[Stage], k: int, sources: Mapping[str, _Source]) -> Stage:
    """Stage number k, which computes rows where it loaded them, each as its source does."""

    def visit(builder: BodyBuilder, i: Instruction) -> int:
        source = None
        if i.op == "load":
            source = sources.get(i.attrs[0])
        if source is None:
            return builder.append(i)
        body, value = stages[source.stage].body, source.store.value
        return builder.copy(body, only=body.needed([value]))[value]

    return stages[k].rewrite(visit)


def _without_rows(stages: Sequence[Stage], rows: set[str]) -> tuple[Stage, ...]:
    """The stages that do more than store rows, without that."""
    kept: list[Stage] = []
    for stage in stages:
        stores = tuple([store for store in stage.stores if store.buffer not in rows])
        if stores or stage.reductions or stage.scalars:
            kept.append(replace(stage, stores=stores).without_dead())
    return tuple(kept)
