"""What is C++'s own: the option, the text for people, compilers that are missing, OpenMP."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import ingot
from ingot.codegen.cpp import compile_kernels, module
from ingot.codegen.cpp.function import comment
from ingot.codegen.cpp.names import Names
from ingot.codegen.cpp.prelude import HELPERS, RARE, TRACED, prelude
from ingot.codegen.cpp.types import atom, binary, choice, float_literal, integer_literal, prefix
from ingot.codegen.llvm import objects
from ingot.codegen.llvm.math import FLOAT_ONLY
from ingot.codegen.llvm.special import FLOAT_ONLY as SPECIAL
from ingot.explain.cli import main
from ingot.loops import ops
from ingot.loops.expr import loop_symbol
from ingot.loops.ir import Fault, Origin
from ingot.schedule.kernel import Kernel, Store
from tests.codegen.cpp.conftest import command_of
from tests.codegen.harness import body, flat, launch, parameter, stage
from tests.codegen.test_kernels import softmax

CPP = {"emit": "cpp"}
f32, i64 = torch.float32, torch.int64


@pytest.fixture(autouse=True)
def _with_gcc(monkeypatch):
    monkeypatch.setenv("INGOT_CXX", command_of("g++")[0])
    with torch.no_grad():
        yield


def scale_and_sum(x, weight):
    return (torch.sin(x) * weight).sum(-1)


# -- pieces of text --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (binary("-", atom("a"), binary("-", atom("b"), atom("c"))), "a - (b - c)"),
        (binary("+", atom("a"), binary("+", atom("b"), atom("c"))), "a + (b + c)"),
        (binary("-", binary("-", atom("a"), atom("b")), atom("c")), "a - b - c"),
        (binary("*", binary("+", atom("a"), atom("b")), atom("c")), "(a + b) * c"),
        (binary("/", atom("a"), binary("*", atom("b"), atom("c"))), "a / (b * c)"),
        (binary("&", binary("<", atom("a"), atom("b")), atom("c")), "(a < b) & c"),
        (binary("==", binary("<", atom("a"), atom("b")), atom("c")), "(a < b) == c"),
        (prefix("-", binary("*", atom("a"), atom("b"))), "-(a * b)"),
        (prefix("-", prefix("-", atom("a"))), "-(-a)"),
        (choice(choice(atom("a"), atom("b"), atom("c")), atom("d"), atom("e")),
            "(a ? b : c) ? d : e"),
    ],
)  # fmt: skip
def test_parentheses_are_where_the_meaning_needs_them(code, text):
    assert code.text == text


def test_literals_are_read_as_the_numbers_they_are():
    numbers = np.float32([0.1, 1e-45, 3.4028235e38, -0.0, 16777217.0, 1 / 3])
    for number in numbers:
        text = float_literal(float(number), "float").text
        assert text.endswith("f")
        assert np.float32(text[:-1]).tobytes() == number.tobytes()
    assert float_literal(0.1, "double").text == "0.1"
    assert float_literal(-float("inf"), "float").text == "-INFINITY"
    assert integer_literal(-(2**63), "int64_t").text == "INT64_MIN"
    assert integer_literal(2**64 - 1, "uint64_t").text == "UINT64_C(18446744073709551615)"


def test_names_are_taken_once_and_no_words_of_the_language():
    names = Names()
    found = [names.fresh(name) for name in ("x", "x", "float", "a.b", "1", "x_1")]
    assert found == ["x", "x_1", "float_1", "a_b", "v1", "x_1_1"]


def test_comments_stay_comments():
    """Messages and lines are the program's, and files may have any name."""
    assert comment("a\nb") == "// a?b"
    assert comment("x = 1 + \\") == "// x = 1 +"
    i = loop_symbol("i", 5)
    fault = Fault(IndexError, "return 1; \\")
    program = body(lambda: ops.load("w", ops.indirect(ops.load("t", i, i64), 9, fault), f32))
    declared = (parameter("t", i64), parameter("w"), parameter("out", written=True))
    stages = (stage((), program, (Store("out", i, 0),)),)
    kernel = Kernel("k", Origin(()), (i,), stages, declared, (), 1, i)
    compiled = compile_kernels([kernel], [])
    index, out = torch.tensor([1, 2, 3, 4, 8]), torch.zeros(5)
    assert launch(kernel, [index, torch.arange(9.0), out], [(0, 5)], compiled=compiled) == 0
    assert out.tolist() == [1, 2, 3, 4, 8]
    index[2] = 9
    assert launch(kernel, [index, torch.arange(9.0), out], [(0, 5)], compiled=compiled) == 1


def test_all_that_kernels_may_call_compiles_without_warnings(tmp_path):
    called = []
    for name in TRACED:
        called.append((name, "float"))
        if name not in FLOAT_ONLY | SPECIAL:
            called.append((name, "double"))
    text = prelude([f"ingot::{name}" for name in HELPERS], called)
    command = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fopenmp-simd", "-fsyntax-only"]
    source = tmp_path / "all.cpp"
    source.write_text(text)
    run = subprocess.run(
        [*command_of("g++"), *command, str(source)], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert len(called) > 50 and max(map(len, text.splitlines())) <= 100
    assert {"sin", "cos", "tan", "fmod"} < RARE.keys()


# -- the option ------------------------------------------------------------------------------------


def test_where_values_are_true():
    """The most extreme of truth values is an int: what is compared with it is a bool."""
    x = torch.tensor([[0.0, 2.0, -1.0], [-1.0, 0.0, 0.0]])

    def first_zeros(x):
        return tuple((x == 0).max(1))

    compiled = ingot.compile(first_zeros, options=CPP)
    torch.testing.assert_close(compiled(x), first_zeros(x))
    assert not ingot.explain(compiled)(x).breaks


def test_the_option_has_kernels_written_for_people():
    x, weight = torch.randn(5, 40), torch.randn(40)
    compiled = ingot.compile(scale_and_sum, options=CPP)
    report = ingot.explain(compiled)(x, weight)
    torch.testing.assert_close(compiled(x, weight), scale_and_sum(x, weight))
    text = report.stage("cpp")
    assert 'extern "C" int32_t scale_and_sum_kernel0(' in text
    assert "test_text.py:" in text and "return (torch.sin(x) * weight).sum(-1)" in text
    assert "in1: float32 [40], read, input 1" in text
    assert "ingot::usual_sin(" in text and "scale_and_sum_kernel0_parallel" in text
    assert "all kernels are written as C++" in report.stage("llvm")
    assert "kernel0:" in report.stage("assembly")


def test_without_the_option_nothing_is_written():
    report = ingot.explain(ingot.compile(scale_and_sum))(torch.randn(2, 3), torch.randn(3))
    assert "--emit cpp" in report.stage("cpp")


def test_the_command_line_prints_it(tmp_path, capsys):
    path = tmp_path / "program.py"
    path.write_text(
        "import torch\n\ndef double(x):\n    return x * 2\n\n"
        "def make():\n    return double, (torch.ones(7),)\n"
    )
    argv = ["stages", f"{path}:make", "--emit", "cpp", "--stage", "cpp"]
    assert main(ingot.compile, ingot.explain, argv) == 0
    out = capsys.readouterr().out
    assert "program.py:4: return x * 2" in out and "in0[o0] * 2.0f;" in out


def test_the_log_prints_it(monkeypatch, capsys):
    monkeypatch.setenv("INGOT_DEBUG", "4")
    ingot.compile(lambda x: x * 2, options=CPP)(torch.ones(3))
    assert "in0[o0] * 2.0f;" in capsys.readouterr().err


@pytest.mark.parametrize("queries", [1, 40])
def test_scores_of_the_programs_own(queries):
    def bent(score, batch, head, query, key):
        return torch.where(key <= 33, torch.tanh(score) * 3 + (key - query) * 0.1, -torch.inf)

    def attend(q, k, v):
        return flex_attention(q, k, v, score_mod=bent) * 2

    sizes = (1, 2, queries, 16), (1, 2, 40, 16), (1, 2, 40, 24)
    tensors = list(map(torch.randn, sizes))
    compiled = ingot.compile(attend, options=CPP)
    report = ingot.explain(compiled)(*tensors)
    torch.testing.assert_close(compiled(*tensors), attend(*tensors), rtol=1e-4, atol=1e-5)
    text = report.stage("cpp")
    assert "// softmax" in text and "compiled by LLVM" not in text


def test_kinds_that_are_not_written_are_llvms(monkeypatch):
    """Attention whose accesses are checked."""
    monkeypatch.setenv("INGOT_CHECK_BOUNDS", "1")

    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v) * 2

    tensors = [torch.randn(1, 2, 40, 16) for _ in range(3)]
    compiled = ingot.compile(attend, options=CPP)
    report = ingot.explain(compiled)(*tensors)
    torch.testing.assert_close(compiled(*tensors), attend(*tensors), rtol=1e-4, atol=1e-5)
    assert "it is compiled by LLVM" in report.stage("cpp")
    assert "define " in report.stage("llvm")


@pytest.mark.parametrize("name", ["sin", "cos", "tan", "remainder", "fmod"])
def test_what_the_c_library_repairs_is_eagers(name):
    """Most are usual, and some are not."""
    x = torch.cat([torch.randn(600), torch.tensor([1e30, torch.inf, torch.nan, 0.0, -0.0])])
    args = [x, x.flip(0) * 1e-20][: 1 + (name in ("remainder", "fmod"))]
    function = getattr(torch, name)
    found = ingot.compile(lambda *args: function(*args) + 1, options=CPP)(*args)
    torch.testing.assert_close(found, function(*args) + 1, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_floats_are_rounded_to_halves_as_in_eager():
    """By way of floats alone: patterns of bits, and those around the largest and the least."""
    around = [0x477FEFFF, 0x477FF000, 0x47800000, 0x387FE000, 0x38800000, 0x33000000, 0x33000001]
    bits = torch.tensor([*range(-(1 << 31), 1 << 31, 200_003), *around, 0x7F800001])
    x = bits.to(torch.int32).view(torch.float32)

    def round_trips(x):
        half = x.to(torch.float16)
        return half.float(), half, (half * 1.5).float()

    compiled = ingot.compile(round_trips, options=CPP)
    text = ingot.explain(compiled)(x).stage("cpp")
    assert "inline float as_half" in text
    for found, expected in zip(compiled(x), round_trips(x)):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize("width", [512, 500, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_are_spread_over_vectors(width, dtype):
    """Where all rounds are whole; those of 4,096 are added up in blocks besides."""
    x = torch.randn(3, width, dtype=dtype)
    compiled = ingot.compile(lambda x: ((x * 2).sum(-1), x.var(-1)), options=CPP)
    text = ingot.explain(compiled)(x).stage("cpp")
    assert ("ingot::sum_of<" in text) == (width != 500)
    for found, expected in zip(compiled(x), ((x.double() * 2).sum(-1), x.double().var(-1))):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def test_errors_of_data_are_raised():
    table, index = torch.randn(10, 3), torch.tensor([1, 2, 10])
    compiled = ingot.compile(lambda table, index: table[index] + 1, options=CPP)
    with pytest.raises(IndexError, match="out of range|out of bounds"):
        compiled(table, index)
    torch.testing.assert_close(compiled(table, index - 1), table[index - 1] + 1)


# -- compilers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("no-such-compiler", "no C++ compiler is called 'no-such-compiler'"),
        ("false", "the C++ compiler 'false' failed"),
    ],
)
def test_a_compiler_that_is_missing_or_fails_is_named(command, says, monkeypatch):
    monkeypatch.setenv("INGOT_CXX", command)
    x = torch.randn(9)
    compiled = ingot.compile(lambda x: x * 3, options=CPP)
    torch.testing.assert_close(compiled(x), x * 3)
    [found] = ingot.explain(compiled)(x).breaks
    assert says in found.reason
    with pytest.raises(ingot.GraphBreakError, match="C\\+\\+ compiler"):
        ingot.compile(lambda x: x * 3, options=CPP, fullgraph=True)(x)


def test_openmps_threads_run_the_file_alone(tmp_path):
    kernel = softmax(30, 50, False)
    text = compile_kernels([kernel], []).source({kernel: ("softmax", ["rows"], ("x", "out"))})
    source, library = tmp_path / "softmax.cpp", tmp_path / "softmax.so"
    source.write_text(text)
    flags = ["-std=c++17", "-O1", "-fopenmp", "-fPIC", "-shared", "-ffp-contract=off", "-fwrapv"]
    build = [*command_of("g++"), *flags, str(source), "-o", str(library)]
    subprocess.run(build, check=True, capture_output=True)
    x, out = torch.randn(30, 50), torch.zeros(30, 50)
    buffers = (ctypes.c_void_p * 2)(x.data_ptr(), out.data_ptr())
    assert ctypes.CDLL(str(library)).softmax_parallel(buffers, None) == 0
    torch.testing.assert_close(out, x.softmax(-1))


def test_long_texts_are_compiled_in_several_files(monkeypatch):
    """Each has the functions that its kernels call, and so some are in several object files."""
    monkeypatch.setattr(module, "LONG", 1)
    monkeypatch.setattr(objects, "_processors", lambda: 2)
    gcd = flat(70, [i64, i64], i64, lambda a, b: ops.apply("gcd", a, b))
    lcm = flat(
        70,
        [i64, i64],
        i64,
        lambda a, b: ops.apply("mul", a, ops.apply("truncdiv", b, ops.apply("gcd", a, b))),
    )
    compiled = compile_kernels([gcd, lcm], [])
    assert len(compiled.objects) == 2
    a, b, out = torch.arange(1, 71), torch.arange(70) * 6 + 2, torch.zeros(70, dtype=i64)
    for kernel, function in ((gcd, torch.gcd), (lcm, torch.lcm)):
        assert launch(kernel, [a, b, out], [(0, 70)], compiled=compiled) == 0
        assert torch.equal(out, function(a, b))
