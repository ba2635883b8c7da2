"""Functions of integers that take as many steps as their values ask for: powers and divisors.

Each is a loop in an LLVM function that the kernels of a module share; it runs until the last lane
is done.
"""

from __future__ import annotations

from ingot.codegen.llvm.emitter import Emitter, Value
from ingot.codegen.llvm.types import BITS, mangled, vector_type

EXACT = 53  # bits of the integers that doubles hold


def _splat(type: str, lanes: int, value: str) -> str:
    if lanes == 1:
        return value
    return f"splat ({type} {value})"


def _any_lane(emitter: Emitter, lanes: int, condition: str) -> str:
    """The text of whether a lane of `condition` is set."""
    if lanes == 1:
        return f"or i1 {condition}, false"
    emitter.declare("i1", f"llvm.vector.reduce.or.v{lanes}i1", vector_type("i1", lanes))
    return f"call i1 @llvm.vector.reduce.or.v{lanes}i1({vector_type('i1', lanes)} {condition})"


def _call(name: str, text: str, a: Value, b: Value, lanes: int) -> str:
    """A call of the function, whose body is `text`."""
    e, vector = a.emitter, vector_type(a.type, lanes)
    e.declarations.add(
        f"define internal {vector} {name}({vector} %a, {vector} %b) nounwind {{\n{text}}}"
    )
    return f"call {vector} {name}({vector} {e.argument(a, lanes)}, {vector} {e.argument(b, lanes)})"


def power(signed: bool, a: Value, b: Value) -> Value:
    """a to the power of b, which wraps around; to a negative one 0, unless a is 1 or -1."""
    e, type, lanes, exponent = a.emitter, a.type, max(a.lanes, b.lanes), b
    if signed:  # of a negative exponent the last bit is enough, for 1 and -1
        exponent = e.select(e.compare("slt", b, 0), b & 1, b)
    v, bits = vector_type(type, lanes), vector_type("i1", lanes)
    one, zero = _splat(type, lanes, "1"), "zeroinitializer"
    body = (
        "entry:\n  br label %loop\nloop:\n"
        f"  %base = phi {v} [%a, %entry], [%square, %loop]\n"
        f"  %left = phi {v} [%b, %entry], [%rest, %loop]\n"
        f"  %result = phi {v} [{one}, %entry], [%next, %loop]\n"
        f"  %odd = trunc {v} %left to {bits}\n"
        f"  %times = mul {v} %result, %base\n"
        f"  %next = select {bits} %odd, {v} %times, {v} %result\n"
        f"  %square = mul {v} %base, %base\n"
        f"  %rest = lshr {v} %left, {one}\n"
        f"  %more = icmp ne {v} %rest, {zero}\n"
        f"  %again = {_any_lane(e, lanes, '%more')}\n"
        f"  br i1 %again, label %loop, label %done\ndone:\n  ret {v} %next\n"
    )
    call = _call(f"@ingot.power.{mangled(type, lanes)}", body, a, exponent, lanes)
    result = e.place(call, type, lanes, max(a.depth, exponent.depth))
    if not signed:
        return result
    vanishes = e.compare("slt", b, 0) & e.compare("ne", a, 1) & e.compare("ne", a, -1)
    return e.select(vanishes, 0, result)


def greatest_common_divisor(signed: bool, a: Value, b: Value) -> Value:
    """By Euclid's algorithm.

    The least integer is its own absolute value: the sign of its result follows from the remainders.
    """
    e, type, lanes = a.emitter, a.type, max(a.lanes, b.lanes)
    kind = "u"
    if signed:
        a, b = (e.select(e.compare("slt", x, 0), -x, x) for x in (a, b))
        kind = "s"
    name = f"@ingot.gcd.{kind}.{mangled(type, lanes)}"
    call = _call(name, _euclid(e, type, lanes, kind), a, b, lanes)
    return e.place(call, type, lanes, max(a.depth, b.depth))


def _euclid(e: Emitter, type: str, lanes: int, kind: str) -> str:
    """The body of the function: remainders of floats that hold the integers.

    Integers of more than `EXACT` bits are first divided as they are, `kind`s or unsigned.
    """
    wide = "double"
    if BITS[type] < 32:
        wide = "float"
    v, f, some = vector_type(type, lanes), vector_type(wide, lanes), vector_type("i1", lanes)
    zero = "zeroinitializer"
    suffix = mangled(wide, lanes)
    e.declare(f, f"llvm.trunc.{suffix}", f)
    e.declare(f, f"llvm.fma.{suffix}", f"{f}, {f}, {f}")
    if BITS[type] > EXACT:
        x, y, result = "%x", "%known", "%all"
        integers = _integer_remainders(e, type, lanes, kind)
        known = f"  %known = select {some} %unfinished, {v} %y, {v} {zero}\n"
        remainder = "%near"
        correction = (  # the quotient may have been rounded up
            f"  %below = fcmp olt {f} %near, {zero}\n"
            f"  %above = fadd {f} %near, %p\n"
            f"  %rest = select {some} %below, {f} %above, {f} %near\n"
        )
        end = f"  %all = select {some} %unfinished, {v} %result, {v} %y\n"
    else:
        x, y, result, remainder = "%a", "%b", "%result", "%rest"
        integers = "entry:\n  br label %floats\n"
        known = correction = end = ""
    return (
        f"{integers}floats:\n{known}"
        f"  %first = {kind}itofp {v} {x} to {f}\n"
        f"  %second = {kind}itofp {v} {y} to {f}\n"
        "  br label %loop\nloop:\n"
        f"  %p = phi {f} [%first, %floats], [%p.next, %loop]\n"
        f"  %q = phi {f} [%second, %floats], [%q.next, %loop]\n"
        f"  %none = fcmp oeq {f} %p, {zero}\n"
        f"  %ratio = fdiv {f} %q, %p\n"
        f"  %quotient = call {f} @llvm.trunc.{suffix}({f} %ratio)\n"
        f"  %minus = fneg {f} %quotient\n"
        f"  {remainder} = call {f} @llvm.fma.{suffix}({f} %minus, {f} %p, {f} %q)\n{correction}"
        f"  %p.next = select {some} %none, {f} {zero}, {f} %rest\n"
        f"  %q.next = select {some} %none, {f} %q, {f} %p\n"
        f"  %more.left = fcmp une {f} %p.next, {zero}\n"
        f"  %again.left = {_any_lane(e, lanes, '%more.left')}\n"
        "  br i1 %again.left, label %loop, label %done\ndone:\n"
        f"  %result = fpto{kind}i {f} %q.next to {v}\n{end}"
        f"  ret {v} {result}\n"
    )


def _integer_remainders(e: Emitter, type: str, lanes: int, kind: str) -> str:
    """Remainders of the integers until floats hold them.

    The least integer is never divided by -1: all begin as absolute values.
    """
    v, some, zero = vector_type(type, lanes), vector_type("i1", lanes), "zeroinitializer"
    return (
        "entry:\n  br label %test\n"
        "test:\n"
        f"  %x = phi {v} [%a, %entry], [%x.next, %step]\n"
        f"  %y = phi {v} [%b, %entry], [%y.next, %step]\n"
        f"  %either = or {v} %x, %y\n"
        f"  %long = icmp uge {v} %either, {_splat(type, lanes, str(1 << EXACT))}\n"
        f"  %unfinished = icmp ne {v} %x, {zero}\n"
        f"  %more = and {some} %long, %unfinished\n"
        f"  %again = {_any_lane(e, lanes, '%more')}\n"
        "  br i1 %again, label %step, label %floats\n"
        "step:\n"
        f"  %divisor = select {some} %unfinished, {v} %x, {v} {_splat(type, lanes, '1')}\n"
        f"  %remainder = {kind}rem {v} %y, %divisor\n"
        f"  %x.next = select {some} %more, {v} %remainder, {v} %x\n"
        f"  %y.next = select {some} %more, {v} %x, {v} %y\n"
        "  br label %test\n"
    )
