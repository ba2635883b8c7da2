"""The driver of a shared library: what runs an entry's kernels, as LLVM text.

In: programs and the tensors of their state. Out: the text of one module, with a function for each
entry: it checks the arguments, computes the sizes, places the buffers and launches the kernels, in
straight lines. What is the same for all libraries is in `driver_text.py`; the structures are those
of DLPack, and the functions those of `ingot_artifact.h`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ingot.artifacts import cpus
from ingot.artifacts.driver_entry import WRONG_ARGUMENTS, Entry, Part
from ingot.artifacts.driver_tables import Tables, dtype_number
from ingot.artifacts.driver_text import ANY_PROCESSOR, MESSAGES, TEXT, X86_PROCESSOR
from ingot.artifacts.signature import Signature


class Slot(NamedTuple):
    """A tensor of the state, or a constant.

    Where it begins among the bytes of the library (-1: it is not there), how many bytes it has, and
    whether it is written."""

    offset: int
    size: int
    is_written: bool


class Weight(NamedTuple):
    """A name of a weight, and the facts that a tensor for it must have."""

    name: str
    slot: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


EXACT = ("add", "sub", "mul")
"""Operations on sizes whose results have to fit in 64 bits."""


def text_of(
    parts: Sequence[Part],
    kernels: Sequence[str],
    slots: Sequence[Slot],
    weights: Sequence[Weight],
    features: str,
) -> str:
    """The LLVM text of a driver. `kernels` are the names of the functions that it launches, and
    `features` those that the processor must have."""
    tables = Tables()
    for name, message in MESSAGES.items():
        tables.add(name, message)
    entries = []
    for number, part in enumerate(parts):
        entries.append(Entry(tables, part, number))
    functions = [entry.text() for entry in entries]
    declared = []
    for name in kernels:
        declared.append(f"declare i32 @{name}(ptr, ptr, i64, i64, ptr)")
    counts = [(len(entry.leaves), len(entry.outputs)) for entry in entries]
    tables.add("description", _described(parts, counts, weights))
    rows = [f"%State {{ i64 {s.offset}, i64 {s.size}, i64 {int(s.is_written)} }}" for s in slots]
    names = []
    for weight in weights:
        facts = tables.numbers(weight.sizes), tables.numbers(weight.strides)
        names.append(
            f"%Weight {{ ptr {tables.text(weight.name)}, i64 {weight.slot}, "
            f"i64 {len(weight.sizes)}, i64 {dtype_number(weight.dtype)}, ptr {facts[0]}, "
            f"ptr {facts[1]} }}"
        )
    return "\n".join(
        [
            TEXT,
            "declare i64 @llvm.smax.i64(i64, i64)",
            "declare i64 @llvm.smin.i64(i64, i64)",
            *map("declare {{ i64, i1 }} @llvm.s{}.with.overflow.i64(i64, i64)".format, EXACT),
            *declared,
            "@weights = external hidden constant i8",
            f"@state_count = private constant i64 {len(rows)}",
            f"@weight_count = private constant i64 {len(names)}",
            _array("states", "%State", rows),
            _array("weight_rows", "%Weight", names),
            _processor(tables, features),
            *functions,
            _run(counts),
            *tables.lines,
        ]
    )


def _array(name: str, kind: str, rows: Sequence[str]) -> str:
    listed = ", ".join(f"{kind} {row.removeprefix(kind)}" for row in rows)
    return f"@{name} = private constant [{len(rows)} x {kind}] [{listed}]"


def _processor(tables: Tables, features: str) -> str:
    """The function that says whether the processor has what the kernels need."""
    bits = {cpus.V3: (6, 296), cpus.V4: (230, 3489857832 - (1 << 32))}.get(features)
    if bits is None:
        return ANY_PROCESSOR
    tables.add("no.features", f"the processor lacks one of: {features}")
    return X86_PROCESSOR.replace("XCR0", str(bits[0])).replace("BITS", str(bits[1]))


def _described(
    parts: Sequence[Part], counts: Sequence[tuple[int, int]], weights: Sequence[Weight]
) -> str:
    """What the library is, as JSON."""
    entries = []
    for part, (_, outputs) in zip(parts, counts):
        inputs = []
        for number, leaf in enumerate(part.program.signature.leaves):
            if leaf is None:
                inputs.append({"name": _name_of_int(part.program.signature, number), "int": True})
                continue
            dtype = str(leaf.dtype).removeprefix("torch.")
            inputs.append({"name": leaf.name, "dtype": dtype, "sizes": list(leaf.sizes)})
        entries.append({"inputs": inputs, "outputs": outputs})
    return json.dumps({"entries": entries, "weights": [weight.name for weight in weights]})


def _name_of_int(signature: Signature, leaf: int) -> str:
    for number in signature.numbers:
        if number.leaf == leaf:
            return number.name
    return "int"


def _run(counts: Sequence[tuple[int, int]]) -> str:
    """The function that runs an entry, or tries one after the other: where none takes the
    arguments, the reason is the first one's."""
    lines = [
        "define i32 @ingot_model_run(ptr %model, i32 %entry, ptr %inputs, i32 %given, "
        "ptr %outputs, i32 %wanted) {",
        "  store ptr @no.entry, ptr %model",
        "  %first = alloca ptr",
        "  store ptr null, ptr %first",
        "  br label %entry0",
    ]
    for k, (inputs, outputs) in enumerate(counts):
        lines += [
            f"entry{k}:",
            f"  %is.any{k} = icmp eq i32 %entry, -1",
            f"  %is.it{k} = icmp eq i32 %entry, {k}",
            f"  %chosen{k} = or i1 %is.any{k}, %is.it{k}",
            f"  br i1 %chosen{k}, label %count{k}, label %entry{k + 1}",
            f"count{k}:",
            f"  %all{k} = icmp eq i32 %given, {inputs}",
            f"  %room{k} = icmp eq i32 %wanted, {outputs}",
            f"  %fits{k} = and i1 %all{k}, %room{k}",
            f"  br i1 %fits{k}, label %call{k}, label %wrong{k}",
            f"wrong{k}:",
            "  store ptr @wrong.count, ptr %model",
            f"  br label %entry{k + 1}",
            f"call{k}:",
            f"  %status{k} = call i32 @entry{k}(ptr %model, ptr %inputs, ptr %outputs)",
            f"  %refused{k} = icmp eq i32 %status{k}, {WRONG_ARGUMENTS}",
            f"  br i1 %refused{k}, label %refuse{k}, label %end{k}",
            f"refuse{k}:",
            f"  %known{k} = load ptr, ptr %first",
            f"  %is.first{k} = icmp eq ptr %known{k}, null",
            f"  %from{k} = select i1 %is.first{k}, ptr %model, ptr %first",
            f"  call void @remember(ptr %first, ptr %from{k})",
            f"  br label %entry{k + 1}",
            f"end{k}:",
            f"  ret i32 %status{k}",
        ]
    lines += [
        f"entry{len(counts)}:",
        "  call void @remember(ptr %model, ptr %first)",
        f"  ret i32 {WRONG_ARGUMENTS}",
        "}",
    ]
    return "\n".join(lines)
