"""The comparison behind `python -m tests.op_database`, and a part of the database in a process of
its own: torch's test utilities import much that nothing else here is to see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ingot
from tests.long import long
from tests.op_database import LAYOUTS, category, variants
from tests.op_outcome import Different, Ran, compare, made

ROOT = Path(__file__).parent.parent
X = torch.arange(6.0).view(2, 3)


def compared(compiled, eager, *args):
    call = (args[0], args[1:], {})
    compare(Ran.of(compiled, call), Ran.of(eager, call), eager, call)


def in_place(x, args, kwargs):
    return x.add_(1)


def raising(x, args, kwargs):
    raise ValueError("no")


DIFFERENT = {
    "value": (lambda x, a, k: x * 2, lambda x, a, k: x * 3),
    "nan": (lambda x, a, k: x / x, lambda x, a, k: x / (x + 1)),
    "sign of zero": (lambda x, a, k: x * -0.0, lambda x, a, k: x * 0.0),
    "rounding": (lambda x, a, k: x * (1 + 1e-5), lambda x, a, k: x * 1),
    "integer": (lambda x, a, k: x.long(), lambda x, a, k: x.long() + 1),
    "dtype": (lambda x, a, k: x.double(), lambda x, a, k: x * 1),
    "shape": (lambda x, a, k: x.sum(0), lambda x, a, k: x.sum(0, True)),
    "stride": (lambda x, a, k: x + 1, lambda x, a, k: (x + 1).t().contiguous().t()),
    "alias": (lambda x, a, k: x, lambda x, a, k: x.clone()),
    "window": (lambda x, a, k: x[0], lambda x, a, k: x[1] * 0 + x[1]),
    "write": (in_place, lambda x, a, k: x + 1),
    "error": (raising, lambda x, a, k: x),
    "random": (lambda x, a, k: torch.rand(2), lambda x, a, k: torch.rand(3)[:2].clone()),
    "type": (lambda x, a, k: [x], lambda x, a, k: (x,)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_differences_are_found(name):
    with pytest.raises(Different):
        compared(*DIFFERENT[name], X)
    for function in DIFFERENT[name]:
        compared(function, function, X)


def test_rounding_is_judged_by_float64():
    x = torch.rand(1 << 16)
    compared(lambda x, a, k: x.flip(0).cumsum(0)[-1], lambda x, a, k: x.sum(), x)


def test_eager_may_have_two_answers():
    """Its code for scalars and its code for vectors differ where a quotient overflows; nothing else
    passes for one."""
    x = torch.full((70,), 3e38)
    call = (x, (torch.full((70,), 0.75),), {})

    def eager(x, args, kwargs):
        return torch.fmod(x, *args)

    exact = Ran.of(eager, call)
    exact.leaves = [torch.fmod(x.double(), 0.75).float()]
    compare(exact, Ran.of(eager, call), eager, call, elementwise=True)
    exact.leaves = [exact.leaves[0] + 0.25]
    with pytest.raises(Different):
        compare(exact, Ran.of(eager, call), eager, call, elementwise=True)


def test_layouts_keep_the_values():
    call = (torch.rand(2, 3, 4, 5), (X,), {})
    found = dict(variants([call], "pointwise"))
    assert set(found) == {
        "sample 0",
        *(f"sample 0, {name}" for name in (*LAYOUTS, "empty", "0-d", "edges")),
    }
    for name in LAYOUTS:
        relaid = found[f"sample 0, {name}"][0]
        assert torch.equal(relaid, call[0]) and relaid.stride() != call[0].stride()


def test_what_was_made_is_told_from_the_program():
    functions = [lambda x: x + 1, lambda x: x.sort()[0], lambda x: x.tolist() and x]
    kinds = []
    for function in functions:
        compiled = ingot.compile(function)
        compiled(X)
        kinds.append(made(compiled).kind)
    assert kinds == ["native", "ATen", "eager"]


def test_categories():
    class ReductionOpInfo:
        pass

    assert category("sum", ReductionOpInfo()) == "reduction" and category("cat", object()) == "view"


@pytest.mark.parametrize(
    "ops",
    [
        "add sum cat nn.functional.batch_norm hypot quantile native_group_norm linalg.cond conj "
        "unsafe_split",
        "constant_pad_nd angle atan2 sinc nextafter fmax nan_to_num round.decimals_3 "
        "linalg.vector_norm nansum",
        "aminmax __rsub__ masked.sum lgamma digamma erfinv i0 unsafe_chunk special.i1 "
        "nn.functional.hardtanh",
    ],
)
def test_a_part_of_the_database(ops):
    command = [sys.executable, "-m", "tests.op_database", "--samples", "1", "--ops", *ops.split()]
    command += ["--dtypes", "float32", "bfloat16", "int64", "bool", "complex64"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@long
def test_gradients_of_a_part_of_the_database():
    command = [
        sys.executable,
        "-m",
        "tests.op_gradients",
        "--samples",
        "1",
        "--ops",
        "abs",
        "mul",
        "matmul",
        "complex",
    ]
    command += [
        "nn.functional.layer_norm",
        "index_select",
        "cumsum",
        "fft.hfft2",
        "view_as_complex",
        "sum",
    ]
    command += ["linalg.eig"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "11 ops" in ran.stdout
