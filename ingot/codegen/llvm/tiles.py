"""The functions that contractions are made of: one that multiplies a tile, and those that pack an operand for it.

They are LLVM text with every size but the tile's own passed at run time, so that all contractions of a module share
them. All strides are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ingot.codegen.llvm.target import Target
from ingot.codegen.llvm.types import BITS, mangled, vector_type


class Tile(NamedTuple):
    """What is computed at once, in registers: `rows` by `vectors` of `lanes` elements of an LLVM float type."""

    type: str
    lanes: int
    rows: int
    vectors: int

    @property
    def width(self) -> int:
        """Columns."""
        return self.vectors * self.lanes

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return BITS[self.type] // 8

    @property
    def suffix(self) -> str:
        return f"{self.type}_{self.rows}x{self.vectors}x{self.lanes}"


# Rows of a tile by how many vectors wide it is. The accumulators, a row of the packed operand and a repeated element of
# the other one fill the registers; with two multiply-adds begun in each cycle and four cycles until their end, less
# than eight accumulators would leave them idle. Each row has a pointer: of more than eight, some would be in memory.
_ROWS_OF_32 = {3: 8, 4: 6, 2: 8, 1: 8}
_ROWS_OF_16 = {2: 6, 3: 4, 1: 8}


FEWEST_ROWS = 4  # with fewer, reading operands takes longer than multiplying them


def choose_tile(type: str, columns: int, target: Target, rows: int = 0) -> Tile:
    """The tile for blocks of `rows` rows, if that many are known, and `columns` columns, a multiple of 16: its width
    divides that, and the last one of its height leaves few rows empty."""
    lanes = target.vector_bytes * 8 // BITS[type]
    many = target.vector_bytes == 64 or target.triple.startswith("aarch64")
    rows_of = _ROWS_OF_32 if many else _ROWS_OF_16
    vectors = next(v for v in rows_of if columns % (v * lanes) == 0)
    heights = range(rows_of[vectors], min(FEWEST_ROWS, rows_of[vectors]) - 1, -1)
    return Tile(type, lanes, min(heights, key=lambda height: -rows % height), vectors)


class Helper(NamedTuple):
    """A function that kernels of one module share: its name, its definition and the intrinsics it declares."""

    name: str
    text: str
    declarations: frozenset[str]


_MULTIPLIES = (
    "i64 %step, ptr %offsets, ptr %panel, i64 %along, i64 %count, i64 %apart, i64 %taps, ptr %sums, i1 %add"
)


def multiply(tile: Tile) -> Helper:
    """void(ptr row 0, ..., i64 step, ptr offsets, ptr panel, i64 along, i64 count, i64 apart, i64 taps, ptr sums,
    i1 add): sums (+)= rows * panel.

    Each row has `count` elements, `step` apart, at each of the `taps` offsets. The panel has rows of the tile's width,
    `along` apart from one step to the next and `apart` from one tap to the next; `sums` holds the tile row by row.
    """
    name, vector = f"multiply_{tile.suffix}", vector_type(tile.type, tile.lanes)
    fma = f"llvm.fma.{mangled(tile.type, tile.lanes)}"
    bytes_of_vector = tile.lanes * tile.size
    cells = [(r, v) for r in range(tile.rows) for v in range(tile.vectors)]
    rows = "".join(f"ptr %a{r}, " for r in range(tile.rows))

    def lines() -> Iterator[str]:
        yield f"define internal void @{name}({rows}{_MULTIPLIES}) nounwind {{"
        yield "entry:"
        yield "  br label %tap"
        yield "tap:"
        yield "  %tap.number = phi i64 [0, %entry], [%tap.next, %tap.end]"
        for r, v in cells:
            yield f"  %r{r}.{v} = phi {vector} [zeroinitializer, %entry], [%t{r}.{v}, %tap.end]"
        yield "  %offset.place = getelementptr i64, ptr %offsets, i64 %tap.number"
        yield "  %offset = load i64, ptr %offset.place, align 8"
        yield "  %row.place = mul nsw i64 %tap.number, %apart"
        yield "  %row = getelementptr i8, ptr %panel, i64 %row.place"
        yield "  br label %body"
        yield "body:"
        yield "  %i = phi i64 [0, %tap], [%i.next, %body]"
        yield "  %at = phi i64 [%offset, %tap], [%at.next, %body]"
        yield "  %b = phi ptr [%row, %tap], [%b.next, %body]"
        for r, v in cells:
            yield f"  %s{r}.{v} = phi {vector} [%r{r}.{v}, %tap], [%t{r}.{v}, %body]"
        for v in range(tile.vectors):
            yield f"  %p{v} = getelementptr i8, ptr %b, i64 {v * bytes_of_vector}"
            yield f"  %b{v} = load {vector}, ptr %p{v}, align {tile.size}"
        for r in range(tile.rows):
            yield f"  %q{r} = getelementptr i8, ptr %a{r}, i64 %at"
            yield f"  %x{r} = load {tile.type}, ptr %q{r}, align {tile.size}"
            yield f"  %y{r} = insertelement {vector} poison, {tile.type} %x{r}, i64 0"
            yield f"  %z{r} = shufflevector {vector} %y{r}, {vector} poison, <{tile.lanes} x i32> zeroinitializer"
            for v in range(tile.vectors):
                operands = f"{vector} %z{r}, {vector} %b{v}, {vector} %s{r}.{v}"
                yield f"  %t{r}.{v} = call {vector} @{fma}({operands})"
        yield "  %b.next = getelementptr i8, ptr %b, i64 %along"
        yield "  %at.next = add i64 %at, %step"
        yield "  %i.next = add nsw i64 %i, 1"
        yield "  %again = icmp slt i64 %i.next, %count"
        yield "  br i1 %again, label %body, label %tap.end"
        yield "tap.end:"
        yield "  %tap.next = add nsw i64 %tap.number, 1"
        yield "  %more.taps = icmp slt i64 %tap.next, %taps"
        yield "  br i1 %more.taps, label %tap, label %end"
        yield "end:"
        for r, v in cells:
            yield f"  %c{r}.{v} = getelementptr i8, ptr %sums, i64 {(r * tile.vectors + v) * bytes_of_vector}"
        yield "  br i1 %add, label %more, label %first"
        yield "more:"
        for r, v in cells:
            yield f"  %o{r}.{v} = load {vector}, ptr %c{r}.{v}, align {bytes_of_vector}"
            yield f"  %n{r}.{v} = fadd {vector} %o{r}.{v}, %t{r}.{v}"
            yield f"  store {vector} %n{r}.{v}, ptr %c{r}.{v}, align {bytes_of_vector}"
        yield "  ret void"
        yield "first:"
        for r, v in cells:
            yield f"  store {vector} %t{r}.{v}, ptr %c{r}.{v}, align {bytes_of_vector}"
        yield "  ret void"
        yield "}"

    return Helper(name, "\n".join(lines()), frozenset([_declaration(vector, fma, [vector] * 3)]))


def _declaration(result: str, function: str, arguments: Sequence[str]) -> str:
    return f"declare {result} @{function}({', '.join(arguments)})"


_AHEAD = 8  # rows: lines of a page that no row before was on are not fetched by themselves in time
_PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"

# Packing: `count` rows of the tile's width from elements that are `step` apart along a row and `along` apart from row
# to row, both void(ptr from, i64 step, i64 along, i64 count, i64 columns, ptr packed). What lies beyond `columns` is
# undefined: no sum that is used depends on it.
_PACKS = "ptr %from, i64 %step, i64 %along, i64 %count, i64 %columns, ptr %packed"


def pack_any(tile: Tile) -> Helper:
    """One element at a time, for any strides."""
    name = f"pack_any_{tile.type}_{tile.width}"
    text = f"""define internal void @{name}({_PACKS}) nounwind {{
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %row, label %end
row:
  %k = phi i64 [0, %entry], [%k.next, %row.end]
  %to = phi ptr [%packed, %entry], [%to.next, %row.end]
  %line = phi ptr [%from, %entry], [%line.next, %row.end]
  br label %cell
cell:
  %c = phi i64 [0, %row], [%c.next, %cell]
  %source = phi ptr [%line, %row], [%source.next, %cell]
  %value = load {tile.type}, ptr %source, align {tile.size}
  %place = getelementptr {tile.type}, ptr %to, i64 %c
  store {tile.type} %value, ptr %place, align {tile.size}
  %source.next = getelementptr i8, ptr %source, i64 %step
  %c.next = add nsw i64 %c, 1
  %more = icmp slt i64 %c.next, %columns
  br i1 %more, label %cell, label %row.end
row.end:
  %to.next = getelementptr {tile.type}, ptr %to, i64 {tile.width}
  %line.next = getelementptr i8, ptr %line, i64 %along
  %k.next = add nsw i64 %k, 1
  %again = icmp slt i64 %k.next, %count
  br i1 %again, label %row, label %end
end:
  ret void
}}"""
    return Helper(name, text, frozenset())


def pack_rows(tile: Tile) -> Helper:
    """For rows that are adjacent in memory (`step` is an element's size): copied a vector at a time."""
    name, vector = f"pack_rows_{tile.type}_{tile.width}x{tile.lanes}", vector_type(tile.type, tile.lanes)
    size = tile.lanes * tile.size

    def lines() -> Iterator[str]:
        yield f"define internal void @{name}({_PACKS}) nounwind {{"
        yield "entry:"
        yield f"  %whole = icmp sge i64 %columns, {tile.width}"
        yield f"  %ahead = mul i64 %along, {_AHEAD}"
        yield "  br i1 %whole, label %row, label %part"
        yield "row:"
        yield "  %k = phi i64 [0, %entry], [%k.next, %row]"
        yield "  %to = phi ptr [%packed, %entry], [%to.next, %row]"
        yield "  %line = phi ptr [%from, %entry], [%line.next, %row]"
        yield "  %soon = getelementptr i8, ptr %line, i64 %ahead"
        for at in range(0, tile.vectors * size, 64):
            yield f"  %soon{at} = getelementptr i8, ptr %soon, i64 {at}"
            yield f"  call void @llvm.prefetch.p0(ptr %soon{at}, i32 0, i32 3, i32 1)"
        for v in range(tile.vectors):
            yield f"  %p{v} = getelementptr i8, ptr %line, i64 {v * size}"
            yield f"  %x{v} = load {vector}, ptr %p{v}, align {tile.size}"
            yield f"  %q{v} = getelementptr i8, ptr %to, i64 {v * size}"
            yield f"  store {vector} %x{v}, ptr %q{v}, align {size}"
        yield f"  %to.next = getelementptr i8, ptr %to, i64 {tile.vectors * size}"
        yield "  %line.next = getelementptr i8, ptr %line, i64 %along"
        yield "  %k.next = add nsw i64 %k, 1"
        yield "  %again = icmp slt i64 %k.next, %count"
        yield "  br i1 %again, label %row, label %end"
        yield "part:"
        yield f"  call void @{pack_any(tile).name}({_PACKS})"
        yield "  br label %end"
        yield "end:"
        yield "  ret void"
        yield "}"

    return Helper(name, "\n".join(lines()), frozenset([_PREFETCH]))


def copy_rows(tile: Tile) -> Helper:
    """void(ptr from, i64 along, i64 count, i64 rows, i64 apart, ptr to): rows that are adjacent in memory, `count`
    steps of them `along` apart. A tile's rows are copied side by side, step after step, and tiles `apart` from each
    other; rows of the last tile that are not there are zeros."""
    name, vector = f"copy_rows_{tile.type}_{tile.rows}", vector_type(tile.type, tile.rows)
    parameters = "ptr %from, i64 %along, i64 %count, i64 %rows, i64 %apart, ptr %to"
    text = f"""define internal void @{name}({parameters}) nounwind {{
entry:
  %rest = urem i64 %rows, {tile.rows}
  %whole = sub i64 %rows, %rest
  %some = icmp ne i64 %rest, 0
  br label %step
step:
  %k = phi i64 [0, %entry], [%k.next, %step.end]
  %line = phi ptr [%from, %entry], [%line.next, %step.end]
  %first = phi ptr [%to, %entry], [%first.next, %step.end]
  %any = icmp sgt i64 %whole, 0
  br i1 %any, label %tile, label %last
tile:
  %row = phi i64 [0, %step], [%row.next, %tile]
  %place = phi ptr [%first, %step], [%place.next, %tile]
  %source = getelementptr {tile.type}, ptr %line, i64 %row
  %values = load {vector}, ptr %source, align {tile.size}
  store {vector} %values, ptr %place, align {tile.size}
  %place.next = getelementptr i8, ptr %place, i64 %apart
  %row.next = add nsw i64 %row, {tile.rows}
  %more = icmp slt i64 %row.next, %whole
  br i1 %more, label %tile, label %last
last:
  %end = phi ptr [%first, %step], [%place.next, %tile]
  br i1 %some, label %part, label %step.end
part:
  store {vector} zeroinitializer, ptr %end, align {tile.size}
  %left = getelementptr {tile.type}, ptr %line, i64 %whole
  br label %cell
cell:
  %r = phi i64 [0, %part], [%r.next, %cell]
  %from.cell = getelementptr {tile.type}, ptr %left, i64 %r
  %value = load {tile.type}, ptr %from.cell, align {tile.size}
  %to.cell = getelementptr {tile.type}, ptr %end, i64 %r
  store {tile.type} %value, ptr %to.cell, align {tile.size}
  %r.next = add nsw i64 %r, 1
  %more.cells = icmp slt i64 %r.next, %rest
  br i1 %more.cells, label %cell, label %step.end
step.end:
  %line.next = getelementptr i8, ptr %line, i64 %along
  %first.next = getelementptr {tile.type}, ptr %first, i64 {tile.rows}
  %k.next = add nsw i64 %k, 1
  %again = icmp slt i64 %k.next, %count
  br i1 %again, label %step, label %end.all
end.all:
  ret void
}}"""
    return Helper(name, text, frozenset())
