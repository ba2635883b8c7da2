"""Object files of kernels in memory: as LLVM loads them, or not at all."""

from __future__ import annotations

import ctypes
import platform
import random
import sys

import pytest

from ingot.codegen.llvm.library import link, llvm
from ingot.native import _native

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="object files are LLVM's to load on other machines",
)

SOURCE = """
declare double @sin(double)
@table = private constant [4 x i64] [i64 3, i64 1, i64 4, i64 1], align 32

define internal i64 @looked_up(i64 %k) noinline nounwind {
  %place = getelementptr [4 x i64], ptr @table, i64 0, i64 %k
  %value = load i64, ptr %place
  ret i64 %value
}
define i64 @digits(i64 %k) nounwind {
  %one = call i64 @looked_up(i64 %k)
  %ten = mul i64 %one, 10
  ret i64 %ten
}
define double @half_of_sine(double %x) nounwind {
  %y = call double @sin(double %x)
  %z = fmul double %y, 0.4375
  ret double %z
}
"""
WRITTEN = "@count = global i64 7\ndefine ptr @digits() nounwind {\n  ret ptr @count\n}"
UNKNOWN = "declare i64 @ingot_no_such(i64)\ndefine i64 @digits(i64 %k) nounwind {\n" + (
    "  %r = call i64 @ingot_no_such(i64 %k)\n  ret i64 %r\n}"
)
NAMES = frozenset({"digits", "half_of_sine"})


def compiled(source: str) -> bytes:
    """The object file of a module in LLVM's language."""
    binding = llvm()
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(reloc="pic", codemodel="small")
    return bytes(machine.emit_object(binding.parse_assembly(source)))


IMAGE = compiled(SOURCE)


def test_functions_do_what_they_do_when_llvm_loads_them() -> None:
    loaded = _native.load_objects((IMAGE,), NAMES)
    assert loaded is not None
    addresses, memory = loaded
    linked = link([IMAGE], NAMES)
    assert addresses.keys() == NAMES
    whole, real = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64), ctypes.c_double
    for where in (addresses, linked):
        assert [whole(where["digits"])(k) for k in range(4)] == [30, 10, 40, 10]
    halves = [ctypes.CFUNCTYPE(real, real)(w["half_of_sine"])(2.5) for w in (addresses, linked)]
    assert halves[0] == halves[1] != 0
    del memory


def test_several_files() -> None:
    other = compiled("define i64 @other(i64 %k) nounwind {\n  ret i64 5\n}")
    loaded = _native.load_objects((IMAGE, other), NAMES | {"other"})
    assert loaded is not None and loaded[0].keys() == NAMES | {"other"}
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(loaded[0]["other"])(1) == 5
    empty = _native.load_objects((), frozenset())
    assert empty is None or empty[0] == {}


def test_what_is_left_to_llvm() -> None:
    """A name that is not there, data that is written, and a function that no library has."""
    assert _native.load_objects((IMAGE,), NAMES | {"looked_up"}) is None
    assert _native.load_objects((IMAGE,), NAMES | {"another"}) is None
    for source in (WRITTEN, UNKNOWN):
        assert _native.load_objects((compiled(source),), frozenset({"digits"})) is None
    unwinding = compiled("define i64 @digits() uwtable {\n  ret i64 1\n}")
    assert _native.load_objects((unwinding,), frozenset({"digits"})) is None
    other_machine = IMAGE[:18] + b"\xb7" + IMAGE[19:]
    for image in (b"", b"\x7fELF", b"MZ" * 500, other_machine):
        assert _native.load_objects((image,), NAMES) is None
    with pytest.raises(TypeError, match="are bytes"):
        _native.load_objects(("text",), NAMES)  # type: ignore[arg-type]


def test_files_that_are_cut_or_changed_do_no_harm() -> None:
    """What is read of them lies in them; nothing of them is run here."""
    for end in range(len(IMAGE)):
        assert _native.load_objects((IMAGE[:end],), NAMES) is None
    numbers, refused = random.Random(0), 0
    for _ in range(20_000):
        changed = bytearray(IMAGE)
        for _ in range(numbers.randint(1, 3)):
            changed[numbers.randrange(len(changed))] = numbers.choice((0, 1, 0x7F, 0x80, 0xFF))
        refused += _native.load_objects((bytes(changed),), NAMES) is None
    assert refused > 1000
