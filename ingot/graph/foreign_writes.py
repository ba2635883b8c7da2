"""Foreign ops that write their arguments, as nodes that give new values.

The node is given the tensors whose memory is written as a whole, its bases, and gives what they are
afterwards. Each argument in that memory is passed by its place in a base. So the op sees the
strides, and the arguments that overlap, of eager, and nothing else of the graph is in memory that
it writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ingot.errors import unsupported
from ingot.graph import geometry
from ingot.graph.fakes import FakeTensor, new_fake
from ingot.graph.foreign import written_by
from ingot.graph.functional import Storage, Tracked
from ingot.graph.meta import tensors_in
from ingot.graph.overlaps import refuse_beyond
from ingot.loops.functional_ops import Placed, Window, flattened, functional_form_of
from ingot.loops.launches import launch
from ingot.sequences import Args, Kwargs, map_leaves
from ingot.torch_private import DisableTorchDispatch, OpOverload, aten

if TYPE_CHECKING:
    from ingot.graph.aten_tracer import AtenTracer


def record_functional(
    tracer: AtenTracer, op: OpOverload, args: Args, kwargs: Kwargs, result: Any
) -> None:
    """Record a call by the op's functional form: what it gave is `result`."""
    bases = _written_bases(tracer, op, args, kwargs)
    shown = []
    if op is launch:
        shown = _viewed_bases(tracer, args, bases)
        for base in bases:
            tracer.launched_on.add(id(base.storage))
    numbers = {}
    for number, base in enumerate((*bases, *shown)):
        numbers[id(base)] = number
    windows: list[Placed] = []

    def argument(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        tracked = tracer.tracked(leaf)
        if id(tracked.base) not in numbers:
            return tracer.node_of(tracked)
        windows.append((numbers[id(tracked.base)], *_place(tracked)))
        return Window(len(windows) - 1)

    args, kwargs = map_leaves(argument, (tuple(args), dict(kwargs)))
    nodes, shown_nodes = tuple(map(tracer.node_of, bases)), tuple(map(tracer.node_of, shown))
    results: list[Any] = []
    for item in flattened(result):
        is_argument = isinstance(item, FakeTensor) and tracer.is_tracked(item)
        results.append(None if is_argument else item)
    values = list(map(_new_value, bases))
    form = functional_form_of(op)
    arguments = (nodes, shown_nodes, tuple(windows), args, kwargs)
    node = tracer.call(form, arguments, {}, (*results, *values))
    for k, item in enumerate(results):
        if item is not None:
            tracer.track(item, Tracked(item, Storage(), tracer.element(node, k), 0))
    for k, base in enumerate(bases, start=len(results)):
        base.node = tracer.element(node, k)
        base.storage.version += 1
        base.version = base.storage.version


def _written_bases(tracer: AtenTracer, op: OpOverload, args: Args, kwargs: Kwargs) -> list[Tracked]:
    """The tensors that own the memory which a call writes. Raises Unsupported where it may be that
    of others too."""
    bases: dict[int, Tracked] = {}
    for target in written_by(op, args, kwargs):
        base = tracer.tracked(target).base
        if base.storage.overlaps:
            raise unsupported(
                "op-writes", "an input is written whose memory overlaps another input's"
            )
        is_input = base.storage.position is not None
        if is_input and base.fake.numel() and geometry.shares_elements(base.fake):
            raise unsupported("op-writes", "an input is written whose elements share memory")
        bases[id(base)] = base
    return list(bases.values())


def _viewed_bases(tracer: AtenTracer, args: Args, written: Sequence[Tracked]) -> list[Tracked]:
    """The tensors, not written ones, of which the arguments are views.

    A kernel is given an address and strides: it may rely on what lies around a view.
    """
    bases: dict[int, Tracked] = {}
    for tensor in tensors_in(args):
        tracked = tracer.tracked(tensor)
        if tracked.parent is not None:
            bases[id(tracked.base)] = tracked.base
    for base in written:
        bases.pop(id(base), None)
    return list(bases.values())


def _place(tracked: Tracked) -> tuple[Any, ...]:
    """Where a tensor lies in its base: sizes, strides, the first element, and the dtype."""
    base, fake = tracked.base.fake, tracked.fake
    if fake.is_conj() or fake.is_neg():
        raise unsupported("conjugate-view", "an op writes a conjugate or negative view")
    start = fake.storage_offset() - base.storage_offset() * base.itemsize // fake.itemsize
    cursor: Tracked | None = tracked
    while cursor is not None:
        if cursor.view is not None and cursor.view.op is aten.as_strided.default:
            refuse_beyond(base, cursor.fake)
        cursor = cursor.parent
    return tuple(fake.shape), fake.stride(), start, fake.dtype


def _new_value(base: Tracked) -> FakeTensor:
    with DisableTorchDispatch():
        return new_fake(base.fake.shape, base.fake, strides=base.fake.stride())
