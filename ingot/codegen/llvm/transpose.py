"""Transposing a block of memory through vector registers, as an LLVM function that the kernels of a module share.

Rows of the source are loaded as vectors, interleaved within their 128-bit parts (one instruction on every target), and
stored part by part. So the one function serves registers of any width.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.codegen.llvm.types import BITS, vector_type

PART_BYTES = 16


def interleaved(count: int, group: int) -> tuple[list[int], list[int]]:
    """Shuffle masks that interleave the lower and the upper halves of each group of `group` elements out of two vectors
    of `count`."""
    half = group // 2
    masks: tuple[list[int], list[int]] = ([], [])
    for start in range(0, count, group):
        for k, mask in enumerate(masks):
            for element in range(start + k * half, start + (k + 1) * half):
                mask += [element, count + element]
    return masks


def mask_text(mask: Sequence[int]) -> str:
    return vector_type("i32", len(mask)) + " <" + ", ".join(f"i32 {k}" for k in mask) + ">"


def transpose(element: str, rows: int, vector_bytes: int) -> tuple[str, str]:
    """(name, text) of the function

        void name(ptr source, i64 stride, ptr target, i64 present, i64 columns)

    that writes element (r, c) of the source, whose rows are `stride` elements apart, to element c * rows + r of the
    target, for `present` of `rows` rows (a power of 2, or a multiple of 4; what the others get is undefined) and any
    number of columns.
    """
    size = BITS[element] // 8
    columns = vector_bytes // size
    group = min(PART_BYTES // size, rows, columns)
    name = f"@ingot.transpose.{element}.{rows}x{columns}"
    wide, part = vector_type(element, columns), vector_type(element, group)
    lines = []
    for r in range(group):
        lines += [
            f"%n{r} = add nuw i64 %g, {r}",
            f"%k{r} = call i64 @llvm.smin.i64(i64 %n{r}, i64 %last)",
            f"%o{r} = mul i64 %k{r}, %stride",
            f"%s{r} = getelementptr {element}, ptr %from, i64 %o{r}",
            f"%v0.{r} = load {wide}, ptr %s{r}, align {size}",
        ]
    masks = [mask_text(mask) for mask in interleaved(columns, group)]
    stages = group.bit_length() - 1
    for stage in range(stages):
        for r in range(group // 2):
            for k in range(2):
                lines.append(
                    f"%v{stage + 1}.{2 * r + k} = shufflevector {wide} %v{stage}.{r}, "
                    f"{wide} %v{stage}.{r + group // 2}, {masks[k]}"
                )
    for r in range(group):
        for start in range(0, columns, group):
            column = start + r
            take = mask_text(range(start, start + group))
            lines += [
                f"%p{column} = shufflevector {wide} %v{stages}.{r}, {wide} poison, {take}",
                f"%t{column} = getelementptr {element}, ptr %to, i64 {column * rows}",
                f"store {part} %p{column}, ptr %t{column}, align {size}",
            ]
    body = "\n  ".join(lines)
    text = f"""define internal void {name}(
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
rest:
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
  ret void
}}"""
    return name, text
