"""Rows of scratch that do not fit a GPU's registers are computed again where that reads no more
than memory would take to keep them: softmax of long rows reads what its powers are made of again,
in place of powers that were stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ingot.loops.expr import Expr
from ingot.loops.ir import BodyBuilder, Instruction
from ingot.schedule.kernel import Kernel, Stage, Store


def recomputed(kernel: Kernel, lenders: Mapping[str, str]) -> Kernel | None:
    """The kernel without scratch rows; None where they cannot all be computed again, or had better
    be kept. A store to a parameter may overwrite the one that `lenders` names for it."""
    rows = {row.name: row for row in kernel.rows}
    stages = list(kernel.stages)
    made: dict[str, tuple[int, Store]] = {}
    # bytes of each element that are not moved
    gained = {name: row.dtype.itemsize for name, row in rows.items()}
    for k, stage in enumerate(stages):
        read = [i for i in stage.body.loads if i.attrs[0] in rows]
        for load in read:
            if load.attrs[0] not in made:
                return None
            first, store = made[load.attrs[0]]
            before = _overwritten([s for other in stages[first:k] for s in other.stores], lenders)
            here = _overwritten(stage.stores, lenders)
            if stages[first].loops != stage.loops or store.index != load.attrs[1] or load.args:
                return None
            body = stages[first].body.instructions
            tree = stages[first].body.needed([store.value])
            loads = {body[n] for n in tree if body[n].op == "load"}
            wide = [i for i in loads if not i.attrs[1].symbols.isdisjoint(stage.loops)]
            if any(body[n].op == "indirect" for n in tree) or before.keys() & {
                i.attrs[0] for i in loads
            }:
                return None
            # not by its own point alone
            if any(here.get(i.attrs[0], {i.attrs[1]}) != {i.attrs[1]} for i in loads):
                return None
            fresh = [i for i in wide if i not in stage.body.instructions]
            gained[load.attrs[0]] += load.dtype.itemsize - sum(i.dtype.itemsize for i in fresh)
        if read:
            stages[k] = _with_trees(
                stage, {name: (stages[at], store.value) for name, (at, store) in made.items()}
            )
        for store in stage.stores:
            if store.buffer in rows:
                if store.buffer in made:
                    return None
                made[store.buffer] = (
                    k,
                    next(s for s in stages[k].stores if s.buffer == store.buffer),
                )
    if min(gained.values()) < 0:
        return None
    kept = [
        replace(s, stores=tuple(t for t in s.stores if t.buffer not in rows)).without_dead()
        for s in stages
    ]
    kept = [s for s in kept if s.stores or s.reductions or s.scalars]
    return replace(kernel, stages=tuple(kept), rows=())


def _overwritten(stores: Iterable[Store], lenders: Mapping[str, str]) -> dict[str, set[Expr]]:
    """By buffer: where stores write it."""
    found: dict[str, set[Expr]] = {}
    for store in stores:
        for name in {store.buffer, lenders.get(store.buffer, store.buffer)}:
            found.setdefault(name, set()).add(store.index)
    return found


def _with_trees(stage: Stage, rows: Mapping[str, tuple[Stage, int]]) -> Stage:
    """The stage that computes rows where it loaded them, each as a stage's value."""

    def visit(builder: BodyBuilder, i: Instruction) -> int:
        if i.op != "load" or i.attrs[0] not in rows:
            return builder.append(i)
        other, value = rows[i.attrs[0]]
        return builder.copy(other.body, only=other.body.needed([value]))[value]

    return stage.rewrite(visit)
