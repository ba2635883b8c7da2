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
        lines.append(f"    {_branch(position, len(kernel.members), last)}")
        lines.append(f"        {name}({_arguments(block, parameters, each)})")
        first = last
    name = identifier(kernel.name)
    texts = [text.replace("def _(", f"def {own}(", 1) for text, own in functions.items()]
    head = ["@triton.jit", f"def {name}({', '.join(p.name for p in kernel.parameters)}):"]
    if kernel.origin.where:
        head.append(f"    # {kernel.origin.where}")
    head.append("    block = tl.program_id(0)")
    return TritonKernel(
        name,
        "\n\n".join([*texts, "\n".join([*head, *lines]) + "\n"]),
        kernel.parameters,
        (),
        (),
        first,
        choose_blocks(kernel).warps,
        any(each.asserts for each in written),
        all(each.short for each in written),
        stages=max(each.stages for each in written),
    )


def _function(written: TritonKernel) -> str:
    """The text of a member, as the function `_` of the number of its block."""
    decorator, head, *rest = written.source.splitlines(keepends=True)
    lines = [line for line in rest if not line.startswith("    # ")]
    return decorator + head.replace(f"def {written.name}(", "def _(number, ", 1) + "".join(lines)


def _branch(position: int, count: int, last: Expr) -> str:
    if position == count - 1:
        return "else:"
    return f"{'elif' if position else 'if'} block < {last}:"


def _arguments(block: str, parameters: Sequence[Parameter], written: TritonKernel) -> str:
    names = [p.name for p in parameters]
    return ", ".join([block, *names, *(str(value) for _, value in written.constants)])
