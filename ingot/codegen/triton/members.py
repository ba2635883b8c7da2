"""Kernels that share a launch: a function for each, and one that says which block is whose."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.codegen.triton.kernel import TritonKernel, identifier, writer_of
from ingot.loops.expr import ZERO, Expr
from ingot.schedule.blocks import choose_blocks
from ingot.schedule.kernel import Kernel, Parameter


def write_members(kernel: Kernel) -> TritonKernel:
    """The Triton code of a kernel with members. All sizes are known."""
    functions: dict[str, str] = {}  # by what they do: their names
    lines: list[str] = []
    written: list[TritonKernel] = []
    first: Expr = ZERO
    block = "block"
    for position, (member, parameters) in enumerate(kernel.of_members()):
        writer = writer_of(member)
        writer.program = "number"
        each = writer.write()
        written.append(each)
        name = functions.setdefault(_function(each), f"member_{len(functions)}")
        last = first + each.grid
        if position:
            block = f"block - {first}"
        lines.append(f"    if {_range(first, last, position == len(kernel.members) - 1)}:")
        lines.append(f"        {name}({_arguments(block, parameters, each)})")
        first = last
    name = identifier(kernel.name)
    texts = [text.replace("def _(", f"def {own}(", 1) for text, own in functions.items()]
    head = ["@triton.jit", f"def {name}({', '.join(p.name for p in kernel.parameters)}):"]
    if kernel.origin.where:
        head.append(f"    # {kernel.origin.where}")
    head.append("    block = tl.program_id(0)")
    asserts = any(each.asserts for each in written)
    short = all(each.short for each in written)
    stages = max(each.stages for each in written)
    return TritonKernel(
        name,
        "\n\n".join([*texts, "\n".join([*head, *lines]) + "\n"]),
        kernel.parameters,
        (),
        (),
        first,
        choose_blocks(kernel).warps,
        asserts,
        short,
        stages=stages,
    )


def _function(written: TritonKernel) -> str:
    """The text of a member, as the function `_` of the number of its block."""
    decorator, head, *rest = written.source.splitlines(keepends=True)
    lines = [line for line in rest if not line.startswith("    # ")]
    return decorator + head.replace(f"def {written.name}(", "def _(number, ", 1) + "".join(lines)


def _range(first: Expr, last: Expr, is_last: bool) -> str:
    """Whether a block is one of a member's. One branch after the other, rather than one in another:
    so they have the same shared memory."""
    if first is ZERO:
        return f"block < {last}"
    return f"block >= {first}" if is_last else f"(block >= {first}) & (block < {last})"


def _arguments(block: str, parameters: Sequence[Parameter], written: TritonKernel) -> str:
    names = [p.name for p in parameters]
    return ", ".join([block, *names, *(str(value) for _, value in written.constants)])
