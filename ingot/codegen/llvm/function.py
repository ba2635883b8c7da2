"""The text around a kernel's body: a function of the kernel ABI, which calls it with its buffers.

`runtime/description.py` describes the ABI.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from ingot.codegen.llvm.emitter import Emitter
from ingot.loops.expr import Expr
from ingot.loops.ir import Fault


class Function(NamedTuple):
    """LLVM text in which the function is called `@KERNEL`, and what its caller must know.

    `declarations` are those of the functions that it calls. `unit` points are computed at a time:
    of a smaller share of the points, lanes would be masked out.
    """

    text: str
    declarations: frozenset[str]
    errors: tuple[Fault, ...]
    scratch_bytes: Expr
    unit: int


def function_of(
    e: Emitter,
    parameters: int,
    errors: Sequence[Fault],
    scratch_bytes: Expr,
    shared: Container[int] = (),
    first: str = "",
    skip: str = "",
    unit: int = 1,
) -> Function:
    """The function whose body the emitter has written.

    The buffers of `shared` parameters may be the same. `first` stands before the body, `skip`
    before the call of it.
    """
    arguments = loads = passed = ""
    for k in range(parameters):
        if k in shared:
            arguments += f"ptr %p{k}, "
        else:
            arguments += f"ptr noalias %p{k}, "
        loads += f"  %a{k} = getelementptr ptr, ptr %buffers, i64 {k}\n"
        loads += f"  %p{k} = load ptr, ptr %a{k}\n"
        passed += f"ptr %p{k}, "
    fails = "".join(f"fail{k}:\n  ret i32 {k + 1}\n" for k in range(len(errors)))
    lines = "\n  ".join(e.entry + e.scopes[0].lines)
    text = (
        f"define internal i32 @KERNEL.body({arguments}ptr noalias %sizes, i64 %begin, i64 %end, "
        f"ptr noalias %scratch) nounwind {{\n{first}  {lines}\n  ret i32 0\n{fails}}}\n"
        "define i32 @KERNEL(ptr %buffers, ptr %sizes, i64 %begin, i64 %end, ptr %scratch) "
        "nounwind {\n"
        "  %some = icmp slt i64 %begin, %end\n  br i1 %some, label %work, label %done\nwork:\n"
        f"{loads}{skip}  %status = call i32 @KERNEL.body({passed}ptr %sizes, i64 %begin, "
        "i64 %end, ptr %scratch)\n  ret i32 %status\ndone:\n  ret i32 0\n}\n"
    )
    return Function(text, frozenset(e.declarations), tuple(errors), scratch_bytes, unit)
