"""Where eager's kernels are predicted to be faster, held against measured calls; and what is done
about it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import ingot
from ingot.loops.lowering import cost

SIZES = (1 << 8, 1 << 12, 1 << 16, 1 << 20)  # as benchmarks.costs has them
CALLS = {
    vendor: [
        line.split()
        for line in (Path(__file__).parent / f"call_times_{name}.txt").read_text().splitlines()
    ]
    for vendor, name in {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.items()
}
"""A function, a type, and for each size the microseconds of a call, ours / eager's: of
`benchmarks.costs --calls`."""


@pytest.fixture(params=CALLS)
def vendor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the table of one maker's processors."""
    monkeypatch.setattr(cost, "FUNCTIONS", cost.TABLES[request.param])
    return request.param


def kinds(fn, *args) -> list[str]:
    with torch.no_grad():
        compiled = ingot.compile(fn, fullgraph=True)
        for found, expected in zip(compiled(*args), fn(*args), strict=True):
            torch.testing.assert_close(found, expected)
        return [kernel.kind for kernel in ingot.explain(compiled)(*args).kernels]


def test_predictions_agree_with_measured_calls(vendor: str) -> None:
    agree, lost, clear = 0, [], 0
    for name, dtype, *times in CALLS[vendor]:
        for elements, pair in zip(SIZES, times, strict=True):
            ours, eager = map(float, pair.split("/"))
            if max(ours, eager) < cost.MARGIN * min(ours, eager):
                continue  # too near to say
            clear += 1
            chosen = cost.eager_is_faster(name, getattr(torch, dtype), elements)
            agree += chosen == (eager < ours)
            if chosen and eager > ours:
                lost.append((name, dtype, elements))
    assert clear >= 100 and agree >= 0.97 * clear
    assert not lost  # a kernel of Ingot's that wins is never given up


def test_times_of_calls_are_predicted(vendor: str) -> None:
    """From 2^12 elements on, four of five within a half."""
    near, count = 0, 0
    for name, dtype, *times in CALLS[vendor]:
        for elements, pair in list(zip(SIZES, times, strict=True))[1:]:
            predictions = cost.predicted(cost.FUNCTIONS[name, getattr(torch, dtype)], elements)
            for measured, predicted in zip(map(float, pair.split("/")), predictions):
                near += abs(predicted / 1000 - measured) <= measured / 2
                count += 1
    assert near >= 0.8 * count


@pytest.mark.parametrize(("maker", "name", "dtype", "elements"), [
    ("AuthenticAMD", "gelu", torch.bfloat16, 1 << 20),
    ("GenuineIntel", "sqrt", torch.float64, 1 << 16),
    ("GenuineIntel", "erfc", torch.float32, 1 << 16),
    ("GenuineIntel", "erf", torch.float64, 1 << 16),
])  # fmt: skip
def test_a_kernel_that_loses_is_eagers_and_one_that_does_more_is_not(
    maker, name, dtype, elements, monkeypatch
) -> None:
    monkeypatch.setattr(cost, "FUNCTIONS", cost.TABLES[maker])
    function = getattr(torch, name, None) or getattr(F, name)
    x = torch.rand(elements, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert kinds(lambda x: (function(x),), x) == ["extern"]
    # where calls cost more than elements
    assert kinds(lambda x: (function(x[:100]),), x) == ["fused"]
    assert kinds(lambda x: (function(x) + 1,), x) == ["fused"]
    assert kinds(lambda x: (function(x + 1 - 1),), x) == ["fused"]
    assert kinds(lambda x: (function(x.to(torch.float16)),), x) == ["fused"]


def test_the_table_is_the_makers() -> None:
    assert cost.FUNCTIONS is cost.TABLES.get(cost.vendor(), cost.TABLES["AuthenticAMD"])
    assert cost.TABLES["GenuineIntel"].keys() >= cost.TABLES["AuthenticAMD"].keys()


def test_what_writes_its_input_is_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "FUNCTIONS", cost.TABLES["GenuineIntel"])
    x = torch.rand(1 << 16).double()
    expected = torch.sqrt(x)
    compiled = ingot.compile(lambda x: x.sqrt_(), fullgraph=True)
    with torch.no_grad():
        assert [kernel.kind for kernel in ingot.explain(compiled)(x.clone()).kernels] == ["fused"]
        compiled(x)
    torch.testing.assert_close(x, expected)
