"""Small kernels in LLVM text, compiled in process, to run programs without the compiler's other
stages."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import llvmlite.binding as llvm

from ingot.loops.expr import Expr, Symbol, integer
from ingot.loops.ir import Fault, Origin
from ingot.schedule.kernel import Kernel

_LOOP = """
define i32 @{name}(ptr %buffers, ptr %sizes, i64 %begin, i64 %end, ptr %scratch) {{
entry:
  %p0 = load ptr, ptr %buffers
  %slot1 = getelementptr ptr, ptr %buffers, i64 1
  %p1 = load ptr, ptr %slot1
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %source = getelementptr float, ptr %p0, i64 %i
  %target = getelementptr float, ptr %p1, i64 %i
  %x = load float, ptr %source
  {body}
  store float %y, ptr %target
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret i32 {status}
}}
"""

_BODIES = {
    "add_one": ("%y = fadd float %x, 1.0", 0),
    "double": ("%y = fmul float %x, 2.0", 0),
    "fail_first": ("%y = fadd float %x, 1.0", 1),
    "fail_second": ("%y = fadd float %x, 1.0", 2),
    "add_size": (
        "%n = load i64, ptr %sizes\n  %f = sitofp i64 %n to float\n  %y = fadd float %x, %f",
        0,
    ),
    # where this share of the range begins
    "where_begun": ("%y = sitofp i64 %begin to float", 0),
    # goes through the thread's scratch memory
    "by_scratch": (
        "store float %x, ptr %scratch\n  %z = load float, ptr %scratch\n  %y = fadd float %z, 1.0",
        0,
    ),
}

# Waits until buffer 0 holds something else than 0, but no longer than a few seconds: then it
# returns 1.
_WAIT = """
define i32 @wait(ptr %buffers, ptr %sizes, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %p0 = load ptr, ptr %buffers
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %more ]
  %x = load volatile i32, ptr %p0
  %set = icmp ne i32 %x, 0
  br i1 %set, label %done, label %more
more:
  %next = add i64 %i, 1
  %late = icmp sgt i64 %next, 4000000000
  br i1 %late, label %failed, label %loop
done:
  ret i32 0
failed:
  ret i32 1
}
"""

# Writes 1 to the elements of buffer 0; who begins with the first one waits until number 31 is
# written.
_WAIT_FOR_OTHERS = """
define i32 @wait_for_others(ptr %buffers, ptr %sizes, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %p0 = load ptr, ptr %buffers
  %place = getelementptr float, ptr %p0, i64 31
  %first = icmp eq i64 %begin, 0
  br i1 %first, label %loop, label %write
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %more ]
  %x = load volatile i32, ptr %place
  %set = icmp ne i32 %x, 0
  br i1 %set, label %write, label %more
more:
  %next = add i64 %i, 1
  %late = icmp sgt i64 %next, 4000000000
  br i1 %late, label %failed, label %loop
write:
  %k = phi i64 [ %begin, %entry ], [ %begin, %loop ], [ %k.next, %write ]
  %to = getelementptr float, ptr %p0, i64 %k
  store volatile float 1.0, ptr %to
  %k.next = add i64 %k, 1
  %again = icmp slt i64 %k.next, %end
  br i1 %again, label %write, label %done
done:
  ret i32 0
failed:
  ret i32 1
}
"""


@functools.cache
def _engine() -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = "".join(
        _LOOP.format(name=name, body=body, status=status)
        for name, (body, status) in _BODIES.items()
    )
    module = llvm.parse_assembly(text + _WAIT + _WAIT_FOR_OTHERS)
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def address(name: str) -> int:
    """The kernel `name` reads buffer 0 and writes buffer 1, both float32, element by element."""
    return _engine().get_function_address(name)


def kernel(name: str, *loops: Symbol) -> Kernel:
    """A kernel of the loop IR that stands for one of the above; its stages are not looked at by the
    run time."""
    return Kernel(name, Origin((name,)), loops, (), (), vector=loops[-1] if loops else None)


@dataclass
class HandMade:
    """Machine code for the kernels above, in the form that code generation hands over."""

    scratch: dict[str, Expr] = field(default_factory=dict)
    messages: dict[str, tuple[str, ...]] = field(default_factory=dict)
    units: dict[str, int] = field(default_factory=dict)

    def address(self, kernel: Kernel) -> int:
        return address(kernel.name)

    def unit(self, kernel: Kernel) -> int:
        return self.units.get(kernel.name, 1)

    def scratch_bytes(self, kernel: Kernel) -> Expr:
        return self.scratch.get(kernel.name, integer(0))

    def errors(self, kernel: Kernel) -> tuple[Fault, ...]:
        return self.messages.get(kernel.name, ())
