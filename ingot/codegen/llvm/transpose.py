"""Transposing a block of memory through vector registers, as an LLVM function of a module's own.

Vectors are interleaved within their 128-bit parts (one instruction on every target), so one way
serves registers of any width. Where there are rows for whole vectors of a column, parts of rows are
loaded, to lie one after the other in a vector: its columns are stored at once. Else rows are loaded
as vectors and stored part by part.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.codegen.llvm.types import BITS, vector_type

GROUP_BYTES = 16

PREFETCH = "llvm.prefetch.p0"


def interleaved(count: int, group: int) -> tuple[list[int], list[int]]:
    """Shuffle masks that interleave the halves of each group of elements of two vectors.

    The first mask is of the lower halves. A vector has `count` elements, in groups of `group`.
    """
    half = group // 2
    masks: tuple[list[int], list[int]] = ([], [])
    for start in range(0, count, group):
        for k, mask in enumerate(masks):
            for element in range(start + k * half, start + (k + 1) * half):
                mask += [element, count + element]
    return masks


def mask_text(mask: Sequence[int]) -> str:
    return vector_type("i32", len(mask)) + " <" + ", ".join(f"i32 {k}" for k in mask) + ">"


def transpose(element: str, rows: int, vector_bytes: int, ahead: int = 0) -> tuple[str, str]:
    """(name, text) of a function that transposes a block.

        void name(ptr source, i64 stride, ptr target, i64 present, i64 columns)

    writes element (r, c) of the source to element c * rows + r of the target, for `present` of
    `rows` rows and any number of columns. The source's rows are `stride` elements apart; `rows`
    is a power of 2, or a multiple of 4, and those that are not present become undefined. The
    memory `ahead` elements behind may be prefetched.
    """
    size = BITS[element] // 8
    columns = vector_bytes // size
    group = min(GROUP_BYTES // size, rows, columns)
    name = f"@ingot.transpose.{element}.{rows}x{columns}"
    if rows % columns == 0 and columns > group and size >= 4:
        name += f".{ahead}" if ahead else ""
        return name, _by_columns(name, element, rows, columns, group, ahead)
    return name, _by_rows(name, element, rows, columns, group)


def _by_columns(name: str, element: str, rows: int, columns: int, group: int, ahead: int) -> str:
    """The function that makes whole vectors of a column, from groups of as many rows."""
    size = BITS[element] // 8
    wide, group_type = vector_type(element, columns), vector_type(element, group)
    pointers = []
    for r in range(columns):
        pointers += _row_pointer(r, element, "%source")
    lines = [f"%first = mul i64 %c, {rows}", "%at = add i64 %first, %g"]
    if ahead:
        lines.append(f"%c.ahead = add i64 %c, {ahead}")
        for r in range(columns):
            lines += [
                f"%f{r} = getelementptr {element}, ptr %s{r}, i64 %c.ahead",
                f"call void @{PREFETCH}(ptr %f{r}, i32 0, i32 2, i32 1)",
            ]
    for start in range(0, columns, group):
        lines.append(f"%c{start} = add nuw i64 %c, {start}")
        for r in range(columns):
            lines += [
                f"%p{start}.{r} = getelementptr {element}, ptr %s{r}, i64 %c{start}",
                f"%x{start}.{r} = load {group_type}, ptr %p{start}.{r}, align {size}",
            ]
        for r in range(group):
            vectors = []
            for k in range(r, columns, group):
                vectors.append(f"%x{start}.{k}")
            lines += _joined(vectors, f"%v{start}.0.{r}", element, group)
        lines += _interleaving(f"%v{start}.", wide, columns, group)
        stages = group.bit_length() - 1
        for r in range(group):
            lines += [
                f"%q{start}.{r} = add i64 %at, {(start + r) * rows}",
                f"%t{start}.{r} = getelementptr {element}, ptr %target, i64 %q{start}.{r}",
                f"store {wide} %v{start}.{stages}.{r}, ptr %t{start}.{r}, align {size}",
            ]
    newline = "\n  "
    return f"""define internal void {name}(
  ptr noalias %source, i64 %stride, ptr noalias %target, i64 %present, i64 %columns) nounwind {{
  %last = sub i64 %present, 1
  %end = sub i64 %columns, {columns}
  %some = icmp sge i64 %end, 0
  %whole = select i1 %some, i64 %columns, i64 0
  br i1 %some, label %rows, label %rest
rows:
  %g = phi i64 [0, %0], [%g.next, %rows.end]
  {newline.join(pointers)}
  br label %block
block:
  %c = phi i64 [0, %rows], [%c.next, %block]
  {newline.join(lines)}
  %c.after = add i64 %c, {columns}
  %c.next = call i64 @llvm.smin.i64(i64 %c.after, i64 %end)
  %c.more = icmp slt i64 %c, %end
  br i1 %c.more, label %block, label %rows.end
rows.end:
  %g.next = add i64 %g, {columns}
  %g.more = icmp slt i64 %g.next, %present
  br i1 %g.more, label %rows, label %rest
{_rest(element, rows)}
}}"""


def _row_pointer(number: int, element: str, start: str) -> list[str]:
    """The lines that compute where a row begins; the last one stands for those behind it."""
    return [
        f"%n{number} = add nuw i64 %g, {number}",
        f"%k{number} = call i64 @llvm.smin.i64(i64 %n{number}, i64 %last)",
        f"%o{number} = mul i64 %k{number}, %stride",
        f"%s{number} = getelementptr {element}, ptr {start}, i64 %o{number}",
    ]


def _joined(vectors: list[str], name: str, element: str, length: int) -> list[str]:
    """Vectors of `length` elements one after the other, as the vector `name`."""
    lines = []
    while len(vectors) > 1:
        type, mask = vector_type(element, length), mask_text(range(2 * length))
        pairs = list(zip(vectors[::2], vectors[1::2]))
        if len(pairs) > 1:
            vectors = []
            for k in range(len(pairs)):
                vectors.append(f"{name}.{length}.{k}")
        else:
            vectors = [name]
        for joined, (a, b) in zip(vectors, pairs):
            lines.append(f"{joined} = shufflevector {type} {a}, {type} {b}, {mask}")
        length *= 2
    return lines


def _interleaving(prefix: str, wide: str, columns: int, group: int) -> list[str]:
    """The steps that transpose each part of `group` vectors: from `prefix`0.r to the last
    stage's."""
    masks = list(map(mask_text, interleaved(columns, group)))
    lines = []
    for stage in range(group.bit_length() - 1):
        for r in range(group // 2):
            for k in range(2):
                lines.append(
                    f"{prefix}{stage + 1}.{2 * r + k} = shufflevector {wide} {prefix}{stage}.{r}, "
                    f"{wide} {prefix}{stage}.{r + group // 2}, {masks[k]}"
                )
    return lines


def _by_rows(name: str, element: str, rows: int, columns: int, group: int) -> str:
    """The function that stores vectors of rows group by group."""
    size = BITS[element] // 8
    wide, group_type = vector_type(element, columns), vector_type(element, group)
    lines = []
    for r in range(group):
        lines += _row_pointer(r, element, "%from")
        lines.append(f"%v0.{r} = load {wide}, ptr %s{r}, align {size}")
    lines += _interleaving("%v", wide, columns, group)
    stages = group.bit_length() - 1
    for r in range(group):
        for start in range(0, columns, group):
            column = start + r
            take = mask_text(range(start, start + group))
            lines += [
                f"%p{column} = shufflevector {wide} %v{stages}.{r}, {wide} poison, {take}",
                f"%t{column} = getelementptr {element}, ptr %to, i64 {column * rows}",
                f"store {group_type} %p{column}, ptr %t{column}, align {size}",
            ]
    body = "\n  ".join(lines)
    return f"""define internal void {name}(
  ptr noalias %source, i64 %stride, ptr noalias %target, i64 %present, i64 %columns) nounwind {{
  %last = sub i64 %present, 1
  %whole = and i64 %columns, -{columns}
  %some = icmp sgt i64 %whole, 0
  br i1 %some, label %block, label %rest
block:
  %c = phi i64 [0, %0], [%c.next, %block.end]
  %from = getelementptr {element}, ptr %source, i64 %c
  %first = mul i64 %c, {rows}
  br label %rows
rows:
  %g = phi i64 [0, %block], [%g.next, %rows]
  %at = add i64 %first, %g
  %to = getelementptr {element}, ptr %target, i64 %at
  {body}
  %g.next = add i64 %g, {group}
  %g.more = icmp slt i64 %g.next, %present
  br i1 %g.more, label %rows, label %block.end
block.end:
  %c.next = add i64 %c, {columns}
  %c.more = icmp slt i64 %c.next, %whole
  br i1 %c.more, label %block, label %rest
{_rest(element, rows)}
}}"""


def _rest(element: str, rows: int) -> str:
    """Columns that do not fill a vector, element by element."""
    size = BITS[element] // 8
    return f"""rest:
  %left = icmp slt i64 %whole, %columns
  br i1 %left, label %column, label %done
column:
  %d = phi i64 [%whole, %rest], [%d.next, %column.end]
  %d.from = getelementptr {element}, ptr %source, i64 %d
  %d.first = mul i64 %d, {rows}
  %d.to = getelementptr {element}, ptr %target, i64 %d.first
  br label %one
one:
  %r = phi i64 [0, %column], [%r.next, %one]
  %r.offset = mul i64 %r, %stride
  %r.from = getelementptr {element}, ptr %d.from, i64 %r.offset
  %r.to = getelementptr {element}, ptr %d.to, i64 %r
  %r.value = load {element}, ptr %r.from, align {size}
  store {element} %r.value, ptr %r.to, align {size}
  %r.next = add i64 %r, 1
  %r.more = icmp slt i64 %r.next, %present
  br i1 %r.more, label %one, label %column.end
column.end:
  %d.next = add i64 %d, 1
  %d.more = icmp slt i64 %d.next, %columns
  br i1 %d.more, label %column, label %done
done:
  ret void"""
