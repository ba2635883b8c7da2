"""Sums of products that read a large array once: what comes next is fetched before it is used.

A processor fetches ahead by itself, but not across the end of a page, and late where each element
takes several instructions: what it can look ahead then is little memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.memory import Memory, split_constant
from ingot.codegen.llvm.transpose import PREFETCH
from ingot.codegen.llvm.types import REPRESENTATIONS
from ingot.loops.expr import Expr, Symbol
from ingot.loops.ir import Body
from ingot.schedule.kernel import Kernel, Stage

LINE = 64
AHEAD = 2048  # bytes of each row that are fetched before they are used
FEWEST_BYTES = 1 << 20  # of an array: of a smaller one, the cache has the rest of the line
MOST_LINES = 16  # of a row that are fetched at once


def product_terms(body: Body, position: int) -> list[tuple[int, int]]:
    """The factors of a value that is a sum of products, from the first to the last.

    It is a chain of multiply-adds that begins with the constant 0. Empty for any other value.
    """
    terms = []
    instruction = body.instructions[position]
    while instruction.op == "fma":
        left, right, rest = instruction.args
        terms.append((left, right))
        instruction = body.instructions[rest]
    if instruction.op == "constant" and instruction.attrs[0] == 0:
        return terms[::-1]
    return []


def most_terms(stage: Stage) -> int:
    """How many additions to one accumulator an evaluation of the body has, at most."""
    return max([1, *(len(product_terms(stage.body, r.value)) for r in stage.reductions)])


class Stream(NamedTuple):
    """An access that reads row after row of an array, one at each outer point.

    `inner` is the place within a row, which has `row` elements; rows are `stride` elements apart.
    """

    buffer: str
    place: Expr
    inner: Expr
    row: int
    stride: int


def streams(kernel: Kernel, stage: Stage) -> list[Stream]:
    """What a stage streams through: nothing unless it sums products at each outer point."""
    sums = any(product_terms(stage.body, r.value) for r in stage.reductions)
    if not sums or kernel.vector is not None or kernel.parallel != len(kernel.loops):
        return []
    dtypes = {p.name: p.dtype for p in kernel.parameters if not p.written}
    found: dict[tuple[str, Expr], Stream] = {}
    for load in stage.body.loads:
        buffer, index = load.attrs
        if load.args or buffer not in dtypes:
            continue
        stream = _stream(buffer, index, kernel.loops, stage.loops)
        if stream is None:
            continue
        points = kernel.points.constant
        size = stream.row * dtypes[buffer].itemsize * (points or FEWEST_BYTES)
        if size >= FEWEST_BYTES:
            found.setdefault((buffer, split_constant(index)[0]), stream)
    return list(found.values())


def _stream(
    buffer: str, index: Expr, outer: Sequence[Symbol], loops: Sequence[Symbol]
) -> Stream | None:
    linear = index.linear((*outer, *loops))
    if linear is None or not outer:
        return None
    coefficients = linear[1]
    stride = coefficients.get(outer[-1])
    if stride is None or not stride.constant:
        return None
    inner, row = index - index, 1
    for loop in reversed(loops):
        coefficient = coefficients.get(loop)
        if coefficient is None:
            continue
        if coefficient.constant != row or loop.extent.constant is None:
            return None
        inner, row = inner + loop * row, row * loop.extent.constant
    return Stream(buffer, index, inner, row, stride.constant)


def fetch_vector(memory: Memory, stream: Stream, rows: int) -> None:
    """Fetch what is behind the present vector of a stream, of which `rows` are read at a time."""
    e, dtype = memory.emitter, memory.dtypes[stream.buffer]
    size = dtype.itemsize
    if memory.shift * size % LINE:
        return  # a line of the cache is fetched once
    pointer, adjacent = memory.address(stream.buffer, stream.place)
    if not adjacent:
        return
    _fetch(memory, e.pointer(pointer, REPRESENTATIONS[dtype].memory, _ahead(memory, stream, rows)))


def _ahead(memory: Memory, stream: Stream, rows: int) -> Value:
    """How many elements are between the present one and the one that is fetched.

    Behind the end of its row, that is in the row that is read next in its place.
    """
    e, size = memory.emitter, memory.dtypes[stream.buffer].itemsize
    ahead, next_row = min(AHEAD // size, stream.row), rows * stream.stride - stream.row
    if next_row == 0 or ahead == stream.row:
        return e.constant(ahead + next_row, "i64")
    vector, memory.vector = memory.vector, None
    place = memory.index(stream.inner) + (memory.shift + ahead)
    memory.vector = vector
    within = e.compare("slt", place, stream.row)
    return e.select(within, e.constant(ahead, "i64"), e.constant(ahead + next_row, "i64"))


def fetch_row(memory: Memory, stream: Stream, rows: int) -> None:
    """Fetch all of the row that is read next, of a stream that has few elements of each."""
    e, dtype = memory.emitter, memory.dtypes[stream.buffer]
    type, size = REPRESENTATIONS[dtype].memory, dtype.itemsize
    linear = stream.place.linear(stream.inner.symbols)
    assert linear is not None
    start = e.pointer(memory.base[stream.buffer], type, memory.index(linear[0]))
    start = e.pointer(start, type, rows * stream.stride)
    for line in range(min(MOST_LINES, -(-stream.row * size // LINE))):
        _fetch(memory, e.pointer(start, "i8", line * LINE))


def _fetch(memory: Memory, pointer: Value) -> None:
    memory.emitter.declare("void", PREFETCH, "ptr, i32, i32, i32")
    memory.emitter.line(f"call void @{PREFETCH}(ptr {pointer.text}, i32 0, i32 3, i32 1)")
