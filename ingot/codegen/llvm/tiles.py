"""The LLVM functions of contractions: one multiplies a tile, the others pack operands for it.

They are LLVM text with every size but the tile's own passed at run time, so that all contractions
of a module share them. All strides are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ingot.codegen.llvm.emitter import Emitter, Value
from ingot.codegen.llvm.target import Target
from ingot.codegen.llvm.types import BITS, mangled, vector_type


class Tile(NamedTuple):
    """What is computed at once, in registers: `rows` by `vectors` of `lanes` elements."""

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


# Rows of a tile by how many vectors wide it is. The accumulators, a row of the packed operand and a
# repeated element of the other one fill the registers; with two multiply-adds begun in each cycle
# and four cycles until their end, less than eight accumulators would leave them idle. Each row has
# a pointer: of more than eight, some would be in memory.
_ROWS_OF_32 = {3: 8, 4: 6, 2: 8, 1: 8}
_ROWS_OF_16 = {2: 6, 3: 4, 1: 8}


FEWEST_ROWS = 4  # with fewer, reading operands takes longer than multiplying them


def clear_entries(e: Emitter, soon: Value, entries: int, address: Value) -> None:
    """Let what is asked for ahead be something that is there anyway, until more is known."""
    with e.loop(e.constant(0, "i64"), e.constant(entries, "i64"), 1, sure=True) as at:
        e.line(f"store ptr {address.text}, ptr {e.pointer(soon, 'ptr', at).text}, align 8")


def choose_tile(type: str, columns: int, target: Target, rows: int = 0, together: int = 0) -> Tile:
    """The tile for blocks of `rows` rows, if that many are known, and `columns` columns.

    Its width divides the columns, a multiple of 16, its height divides `together`, and tiles of
    that height take the fewest instructions for the rows.
    """
    lanes = target.vector_bytes * 8 // BITS[type]
    many = target.vector_bytes == 64 or target.triple.startswith("aarch64")
    rows_of = _ROWS_OF_16
    if many:
        rows_of = _ROWS_OF_32
    vectors = next(v for v in rows_of if columns % (v * lanes) == 0)
    all_heights = range(rows_of[vectors], min(FEWEST_ROWS, rows_of[vectors]) - 1, -1)
    heights = [height for height in all_heights if together % height == 0]

    # of a step of all tiles: multiply-adds, reading both operands, and counting
    def instructions(height: int) -> int:
        return -(-rows // height) * (height * vectors + height + vectors + 3)

    return Tile(type, lanes, min(heights, key=instructions), vectors)


class Helper(NamedTuple):
    """A function that kernels of one module share, and the intrinsics that it declares."""

    name: str
    text: str
    declarations: frozenset[str]


_MULTIPLIES = (
    "i64 %step, ptr %offsets, ptr %panel, i64 %along, i64 %count, i64 %apart, i64 %taps, "
    "ptr %sums, i1 %add, ptr %soon"
)


# Steps at once where rows have a known step: counting each would take as many instructions as
# reading a row.
UNROLL = 4
SOON = 2  # lines that are asked for in these steps


def multiply(tile: Tile, step: int | None) -> Helper:
    """sums (+)= rows * panel, for the rows of a tile.

    Each row has `count` elements, `step` bytes apart (given here if that is known), at each of the
    `taps` offsets. The panel has rows of the tile's width, `along` apart from one step to the next
    and `apart` from one tap to the next; `sums` holds the tile row by row. At `soon` are addresses,
    `SOON` for each `UNROLL` steps of a known step, that will be read or written: they are fetched
    as for reading, since two threads may be about to pack the same memory.
    """
    return _Multiplication(tile, step).helper()


class _Multiplication:
    """Writes `multiply`. Sums are named after the stage and their cell: `%stage.row.vector`."""

    def __init__(self, tile: Tile, step: int | None) -> None:
        self.tile, self.step = tile, step
        self.name = f"multiply_{tile.suffix}" + ("" if step is None else f"_{step}")
        self.vector = vector_type(tile.type, tile.lanes)
        self.fma = f"llvm.fma.{mangled(tile.type, tile.lanes)}"
        self.bytes = tile.lanes * tile.size
        self.cells = [(r, v) for r in range(tile.rows) for v in range(tile.vectors)]
        if step is None:
            self.unroll = 1
        else:
            self.unroll = UNROLL

    def helper(self) -> Helper:
        declared = [
            _declaration(self.vector, self.fma, [self.vector] * 3),
            _declaration("i64", "llvm.expect.i64", ["i64", "i64"]),
            _PREFETCH,
        ]
        lines = [*self.taps(), *self.end()]
        return Helper(self.name, "\n".join(lines), frozenset(declared))

    def one_step(self, before: str, after: str, at: str, b: str) -> Iterator[str]:
        """A step's multiply-adds: `after` are the sums that were `before`."""
        zeros = f"<{self.tile.lanes} x i32> zeroinitializer"
        for v in range(self.tile.vectors):
            yield f"  %p{after}{v} = getelementptr i8, ptr {b}, i64 {v * self.bytes}"
            yield f"  %b{after}{v} = load {self.vector}, ptr %p{after}{v}, align {self.tile.size}"
        for r in range(self.tile.rows):
            x, y, z = (f"%{kind}{after}{r}" for kind in "xyz")
            yield f"  %q{after}{r} = getelementptr i8, ptr %a{r}, i64 {at}"
            yield f"  {x} = load {self.tile.type}, ptr %q{after}{r}, align {self.tile.size}"
            yield f"  {y} = insertelement {self.vector} poison, {self.tile.type} {x}, i64 0"
            yield f"  {z} = shufflevector {self.vector} {y}, {self.vector} poison, {zeros}"
            for v in range(self.tile.vectors):
                operands = (
                    f"{self.vector} {z}, {self.vector} %b{after}{v}, {self.vector} %{before}{r}.{v}"
                )
                yield f"  %{after}{r}.{v} = call {self.vector} @{self.fma}({operands})"

    def prefetches(self, number: str, unroll: int) -> Iterator[str]:
        """Ask for the lines of a round of `unroll` steps."""
        yield f"  %number = mul nuw i64 {number}, {8 * SOON // unroll}"
        for k in range(SOON):
            yield f"  %entry{k} = getelementptr i8, ptr %soon, i64 %number"
            yield f"  %place{k} = getelementptr i8, ptr %entry{k}, i64 {8 * k}"
            yield f"  %line{k} = load ptr, ptr %place{k}, align 8"
            yield f"  call void @llvm.prefetch.p0(ptr %line{k}, i32 0, i32 2, i32 1)"

    def loop(
        self, name: str, entry: str, starts: Sequence[str], sums: str, unroll: int, bound: str,
        exit: str,
    ) -> Iterator[str]:  # fmt: skip
        """Runs on from step, place and row of the panel `starts`, `unroll` steps at a time."""
        last = f"{name}.{unroll - 1}."
        step: int | str = "%step"
        whole_step = step
        if self.step is not None:
            step, whole_step = self.step, str(self.step * unroll)
        yield f"{name}:"
        for value, type, start in zip(("i", "at", "b"), ("i64", "i64", "ptr"), starts):
            again = f"[%{value}.{name}.next, %{name}]"
            yield f"  %{value}.{name} = phi {type} [{start}, %{entry}], {again}"
        for r, v in self.cells:
            first, again = f"[%{sums}{r}.{v}, %{entry}]", f"[%{last}{r}.{v}, %{name}]"
            yield f"  %{name}.s{r}.{v} = phi {self.vector} {first}, {again}"
        at, b, before = f"%at.{name}", f"%b.{name}", f"{name}.s"
        if unroll > 1:  # one number for all rows, instead of a pointer for each
            yield f"  %hidden.{name} = call i64 @llvm.expect.i64(i64 {at}, i64 0)"
            at = f"%hidden.{name}"
            yield from self.prefetches(f"%i.{name}", unroll)
        for k in range(unroll):
            after = f"{name}.{k}."
            yield from self.one_step(before, after, at, b)
            yield f"  %at.{after} = add nsw i64 {at}, {step}"
            yield f"  %b.{after} = getelementptr i8, ptr {b}, i64 %along"
            at, b, before = f"%at.{after}", f"%b.{after}", after
        yield f"  %at.{name}.next = add nsw i64 %at.{name}, {whole_step}"
        yield f"  %b.{name}.next = getelementptr i8, ptr {b}, i64 0"
        yield f"  %i.{name}.next = add nsw i64 %i.{name}, {unroll}"
        yield f"  %again.{name} = icmp slt i64 %i.{name}.next, {bound}"
        yield f"  br i1 %again.{name}, label %{name}, label %{exit}"

    def taps(self) -> Iterator[str]:
        """The sums over all taps: of whole rounds of steps, then single ones."""
        rows = "".join(f"ptr %a{r}, " for r in range(self.tile.rows))
        last = f"%body.{self.unroll - 1}"
        yield f"define internal void @{self.name}({rows}{_MULTIPLIES}) nounwind {{"
        yield "entry:"
        yield f"  %whole = and i64 %count, {-self.unroll}"
        yield "  %many = icmp sgt i64 %whole, 0"
        yield "  br label %tap"
        yield "tap:"
        yield "  %tap.number = phi i64 [0, %entry], [%tap.next, %tap.end]"
        for r, v in self.cells:
            before = f"[%t{r}.{v}, %tap.end]"
            yield f"  %r{r}.{v} = phi {self.vector} [zeroinitializer, %entry], {before}"
        yield "  %offset.place = getelementptr i64, ptr %offsets, i64 %tap.number"
        yield "  %offset = load i64, ptr %offset.place, align 8"
        yield "  %row.place = mul nsw i64 %tap.number, %apart"
        yield "  %row = getelementptr i8, ptr %panel, i64 %row.place"
        yield "  br i1 %many, label %body, label %rest"
        yield from self.loop(
            "body", "tap", ("0", "%offset", "%row"), "r", self.unroll, "%whole", "body.end"
        )
        yield "body.end:"
        yield "  %some = icmp slt i64 %whole, %count"
        yield "  br i1 %some, label %rest, label %tap.end"
        yield "rest:"
        for value, type, start in (
            ("i", "i64", "0"),
            ("at", "i64", "%offset"),
            ("b", "ptr", "%row"),
        ):
            yield f"  %{value}.rest = phi {type} [{start}, %tap], [%{value}.body.next, %body.end]"
        for r, v in self.cells:
            yield f"  %u{r}.{v} = phi {self.vector} [%r{r}.{v}, %tap], [{last}.{r}.{v}, %body.end]"
        yield "  br label %single"
        yield from self.loop(
            "single", "rest", ("%i.rest", "%at.rest", "%b.rest"), "u", 1, "%count", "tap.end"
        )
        yield "tap.end:"
        for r, v in self.cells:
            single = f"[%single.0.{r}.{v}, %single]"
            yield f"  %t{r}.{v} = phi {self.vector} [{last}.{r}.{v}, %body.end], {single}"
        yield "  %tap.next = add nsw i64 %tap.number, 1"
        yield "  %more.taps = icmp slt i64 %tap.next, %taps"
        yield "  br i1 %more.taps, label %tap, label %end"

    def end(self) -> Iterator[str]:
        """The tile's sums replace those in memory, or are added to them."""
        yield "end:"
        for r, v in self.cells:
            place = (r * self.tile.vectors + v) * self.bytes
            yield f"  %c{r}.{v} = getelementptr i8, ptr %sums, i64 {place}"
        yield "  br i1 %add, label %more, label %first"
        yield "more:"
        for r, v in self.cells:
            yield f"  %o{r}.{v} = load {self.vector}, ptr %c{r}.{v}, align {self.bytes}"
            yield f"  %n{r}.{v} = fadd {self.vector} %o{r}.{v}, %t{r}.{v}"
            yield f"  store {self.vector} %n{r}.{v}, ptr %c{r}.{v}, align {self.bytes}"
        yield "  ret void"
        yield "first:"
        for r, v in self.cells:
            yield f"  store {self.vector} %t{r}.{v}, ptr %c{r}.{v}, align {self.bytes}"
        yield "  ret void"
        yield "}"


def _declaration(result: str, function: str, arguments: Sequence[str]) -> str:
    return f"declare {result} @{function}({', '.join(arguments)})"


_AHEAD = 8  # rows: lines of a page that no row before was on are not fetched by themselves in time
_PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"

# Packing: `count` rows of the tile's width from elements that are `step` apart along a row and
# `along` apart from row to row, both void(ptr from, i64 step, i64 along, i64 count, i64 columns,
# ptr packed). What lies beyond `columns` is undefined: no sum that is used depends on it.
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
    return Helper(name, text, frozenset([_PREFETCH]))


def pack_rows(tile: Tile) -> Helper:
    """A vector at a time, for rows that are adjacent in memory (`step` is an element's size)."""
    name = f"pack_rows_{tile.type}_{tile.width}x{tile.lanes}"
    vector = vector_type(tile.type, tile.lanes)
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


TOGETHER = 24  # rows that are copied at a time, whole tiles of them
_COPIES = "ptr %from, i64 %along, i64 %count, i64 %rows, i64 %apart, ptr %to"


def copy_rows(tile: Tile) -> Helper:
    """The function that packs the left operand of a contraction whose rows lie beside each other.

    It reads `count` steps that are `along` bytes apart, and writes for each tile `rows` elements
    per step, tiles `apart` bytes from each other; rows that the last tile lacks are zeros.
    """
    name = f"copy_rows_{tile.type}_{tile.rows}"
    head = f"define internal void @{name}({_COPIES}) nounwind {{"
    lines = [head, *_copies_of_tiles(tile), *_copies_of_last_tiles(tile), "}"]
    return Helper(name, "\n".join(lines), frozenset([_PREFETCH]))


def _copies_of_tiles(tile: Tile) -> Iterator[str]:
    """`TOGETHER` rows at a time.

    A row is copied as a vector of a power of two. The next step overwrites what that has beyond
    the tile's rows; that of the last step lies between two tiles.
    """
    count = TOGETHER // tile.rows
    wide = vector_type(tile.type, 1 << (tile.rows - 1).bit_length())
    exact = vector_type(tile.type, tile.rows)
    yield "entry:"
    yield f"  %ahead = mul i64 %along, {_AHEAD}"
    yield f"  %rest = urem i64 %rows, {TOGETHER}"
    yield "  %whole = sub i64 %rows, %rest"
    yield "  %any = icmp sgt i64 %whole, 0"
    yield "  br i1 %any, label %several, label %last"
    yield "several:"
    yield "  %row = phi i64 [0, %entry], [%row.next, %several.end]"
    yield "  %first = phi ptr [%to, %entry], [%first.next, %several.end]"
    yield f"  %start = getelementptr {tile.type}, ptr %from, i64 %row"
    for t in range(count):
        yield f"  %apart{t} = mul i64 %apart, {t}"
        yield f"  %to{t} = getelementptr i8, ptr %first, i64 %apart{t}"
    yield "  br label %step"
    yield "step:"
    yield "  %k = phi i64 [0, %several], [%k.next, %step]"
    yield "  %line = phi ptr [%start, %several], [%line.next, %step]"
    yield f"  %at = mul nuw i64 %k, {tile.rows * tile.size}"
    yield "  %soon = getelementptr i8, ptr %line, i64 %ahead"
    yield "  call void @llvm.prefetch.p0(ptr %soon, i32 0, i32 2, i32 1)"
    for t in range(count):
        vector = exact
        if t + 1 < count:
            vector = wide
        yield f"  %from{t} = getelementptr {tile.type}, ptr %line, i64 {t * tile.rows}"
        yield f"  %x{t} = load {vector}, ptr %from{t}, align {tile.size}"
        yield f"  %place{t} = getelementptr i8, ptr %to{t}, i64 %at"
        yield f"  store {vector} %x{t}, ptr %place{t}, align {tile.size}"
    yield "  %line.next = getelementptr i8, ptr %line, i64 %along"
    yield "  %k.next = add nsw i64 %k, 1"
    yield "  %again = icmp slt i64 %k.next, %count"
    yield "  br i1 %again, label %step, label %several.end"
    yield "several.end:"
    yield f"  %row.next = add nsw i64 %row, {TOGETHER}"
    yield f"  %apart.all = mul i64 %apart, {count}"
    yield "  %first.next = getelementptr i8, ptr %first, i64 %apart.all"
    yield "  %more = icmp slt i64 %row.next, %whole"
    yield "  br i1 %more, label %several, label %last"


def _copies_of_last_tiles(tile: Tile) -> Iterator[str]:
    """The rows that are left, element by element."""
    exact = vector_type(tile.type, tile.rows)
    yield "last:"
    yield "  %left = phi ptr [%to, %entry], [%first.next, %several.end]"
    yield f"  %row.left = getelementptr {tile.type}, ptr %from, i64 %whole"
    yield "  %some = icmp sgt i64 %rest, 0"
    yield "  br i1 %some, label %part, label %end"
    yield "part:"
    yield "  %m = phi i64 [0, %last], [%m.next, %part.end]"
    yield "  %place = phi ptr [%left, %last], [%place.next, %part.end]"
    yield f"  %here = getelementptr {tile.type}, ptr %row.left, i64 %m"
    yield "  %there = sub i64 %rest, %m"
    yield "  br label %one"
    yield "one:"
    yield "  %n = phi i64 [0, %part], [%n.next, %one.end]"
    yield "  %source = phi ptr [%here, %part], [%source.next, %one.end]"
    yield "  %target = phi ptr [%place, %part], [%target.next, %one.end]"
    yield f"  store {exact} zeroinitializer, ptr %target, align {tile.size}"
    yield "  br label %cell"
    yield "cell:"
    yield "  %r = phi i64 [0, %one], [%r.next, %cell]"
    yield f"  %cell.from = getelementptr {tile.type}, ptr %source, i64 %r"
    yield f"  %value = load {tile.type}, ptr %cell.from, align {tile.size}"
    yield f"  %cell.to = getelementptr {tile.type}, ptr %target, i64 %r"
    yield f"  store {tile.type} %value, ptr %cell.to, align {tile.size}"
    yield "  %r.next = add nsw i64 %r, 1"
    yield "  %inside = icmp slt i64 %r.next, %there"
    yield f"  %narrow = icmp slt i64 %r.next, {tile.rows}"
    yield "  %cells = and i1 %inside, %narrow"
    yield "  br i1 %cells, label %cell, label %one.end"
    yield "one.end:"
    yield "  %source.next = getelementptr i8, ptr %source, i64 %along"
    yield f"  %target.next = getelementptr {tile.type}, ptr %target, i64 {tile.rows}"
    yield "  %n.next = add nsw i64 %n, 1"
    yield "  %n.more = icmp slt i64 %n.next, %count"
    yield "  br i1 %n.more, label %one, label %part.end"
    yield "part.end:"
    yield f"  %m.next = add nsw i64 %m, {tile.rows}"
    yield "  %place.next = getelementptr i8, ptr %place, i64 %apart"
    yield "  %m.more = icmp slt i64 %m.next, %rest"
    yield "  br i1 %m.more, label %part, label %end"
    yield "end:"
    yield "  ret void"
