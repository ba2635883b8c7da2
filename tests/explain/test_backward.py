"""The backward in reports: its kernels, what is saved for it and computed again, and why."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu
from torch.utils.checkpoint import checkpoint

import ingot
from ingot.codegen.store import store_in
from ingot.explain.report import Report

HERE = "test_backward.py"
X = torch.linspace(-1, 1, 64 * 64).reshape(64, 64)


def leaf() -> torch.Tensor:
    return X.clone().requires_grad_()


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + gelu(self.linear(self.norm(x)))


def by_name(report: Report) -> dict:
    return {value.name: value for value in report.saved}


def product(x, w):
    hidden = torch.tanh(x @ w)
    return (hidden * x).sum()


def test_the_backward_is_compiled_for_the_report_and_not_run():
    x, w = leaf(), leaf()
    report = ingot.explain(product)(x, w)
    assert report.backward_kernels and x.grad is None
    assert [program.kind for program in report.programs] == ["forward", "backward"]
    assert report.backward_peak_bytes > 3 * 64 * 64 * 4
    assert set(report.backward_stages) >= {"lower", "schedule", "codegen", "load"}
    assert report.kernels == report.programs[0].kernels  # the forward's alone


def test_each_kernel_of_the_backward_names_the_users_lines():
    first = product.__code__.co_firstlineno
    report = ingot.explain(product)(leaf(), leaf())
    lines = set()
    for kernel in report.backward_kernels:
        assert kernel.lines and kernel.where == kernel.lines[0], kernel.name
        lines.update(kernel.lines)
    assert lines == {f"{__file__}:{first + 1}", f"{__file__}:{first + 2}"}
    assert str(report).count(HERE) > len(report.kernels) + len(report.backward_kernels)


def test_without_gradients_there_is_none():
    with torch.no_grad():
        report = ingot.explain(product)(leaf(), leaf())
    assert report.backward_kernels == [] and report.saved == [] and report.recomputed == []
    assert "\nbackward" not in str(report) and "saved for" not in str(report)
    assert "# no gradients are recorded here" in report.stage("joint")


def test_what_is_saved_and_why():
    saved = by_name(ingot.explain(product)(leaf(), leaf()))
    assert {name: value.kind for name, value in saved.items()} == {
        "x": "input",
        "w": "input",
        "tanh_default": "kept",
    }
    assert saved["x"].bytes == 64 * 64 * 4 and saved["x"].value == "float32[64, 64]"
    assert saved["x"].why == "it is an argument, which is there anyway"
    assert saved["tanh_default"].op == "aten.tanh.default"
    assert saved["tanh_default"].where.endswith(f"{HERE}:{product.__code__.co_firstlineno + 1}")


REASONS = {
    "product": (
        lambda x, w: gelu(x @ w).sum(),
        "it is a product, which takes long to compute again",
    ),
    "random": (
        lambda x, w: torch.nn.functional.dropout(x, 0.5).sum(),
        "it is made of random numbers, which are drawn once",
    ),
    "output": (lambda x, w: x.exp(), "it is an output, which is there anyway"),
    "reduction": (
        lambda x, w: (x * x.cumsum(0)).sum(),
        "it takes long to compute again",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_reasons_to_save(name):
    function, why = REASONS[name]
    report = ingot.explain(function)(leaf(), leaf())
    assert why in [value.why for value in report.saved]
    assert why in report.stage("partition")


def test_what_is_computed_again_and_why():
    report = ingot.explain(lambda x, w: (gelu(x.sin() @ w) * x.sin()).sum())(leaf(), leaf())
    again = {value.op: value.why for value in report.recomputed}
    assert again["aten.sin.default"] == "that costs less than to write and read it"
    assert "aten.cos.default" not in again  # the forward does not compute it
    inside = ingot.explain(
        lambda x, w: checkpoint(lambda y: (y @ w).tanh() @ w, x, use_reentrant=False).sum()
    )(leaf(), leaf())
    assert "it is inside of a checkpoint" in [value.why for value in inside.recomputed]


def test_a_budget_is_a_reason():
    frugal = ingot.compile(lambda x, w: gelu(gelu(x @ w) @ w).sum(), options={"memory_budget": 0.0})
    why = [value.why for value in ingot.explain(frugal)(leaf(), leaf()).recomputed]
    assert "the memory budget asks for it" in why


def test_the_parts_of_modules():
    block = Block()
    report = ingot.explain(block)(torch.randn(8, 16))
    modules = set()
    for kernel in report.backward_kernels:
        modules.update(kernel.modules)
    assert modules == {"self", "self.norm", "self.linear"}
    calls = {call.name: call.module for call in report.programs[0].calls if call.module}
    assert calls["layer_norm"] == "self.norm" and calls["gelu"] == "self"
    inputs = [node.source for node in report.programs[0].nodes if node.op == "input"]
    assert "self.linear.weight" in inputs


def test_what_was_asked_for_is_shown():
    """A backward of one of the outputs alone, which is what has been compiled."""
    compiled = ingot.compile(lambda x: (x.sin(), x.exp()))
    x = leaf()
    compiled(x)[0].sum().backward()
    report = ingot.explain(compiled)(x)
    assert [program.name for program in report.backwards] == [
        "<lambda>, backward of outputs 0"
    ] or ("backward" in report.backwards[0].name)
    assert len(report.backwards) == 1


def test_layers_that_are_alike_are_counted():
    def layers(count: int) -> nn.Sequential:
        parts = []
        for _ in range(count):
            parts += [nn.Linear(16, 16), nn.GELU()]
        return nn.Sequential(*parts)

    counts = []
    for count in (4, 12):
        report = ingot.explain(layers(count))(torch.randn(8, 16))
        saved = sum(value.count for value in report.saved if "weight" in value.name)
        again = sum(value.count for value in report.recomputed if "gelu" in value.op)
        counts.append((saved, again))
    assert report.compilations[0].log.whole is not None  # of the twelve a few are compiled
    # the input of the first layer needs no gradient, and nothing reads the last one's result
    assert counts == [(3, 3), (11, 11)]


def test_sizes_that_vary():
    report = ingot.explain(ingot.compile(product, dynamic=True))(leaf(), leaf())
    assert by_name(report)["x"].bytes == 64 * 64 * 4
    assert report.backward_peak_bytes > 3 * 64 * 64 * 4


def test_a_backward_that_runs_in_eager_says_why(monkeypatch):
    from ingot.gradients.backwards import Backwards

    def fail(self, aten, compilation):
        raise ingot.Unsupported("a backward that is too hard", f"{__file__}:3")

    monkeypatch.setattr(Backwards, "_compiled", fail)
    report = ingot.explain(lambda x: x.sin().sum())(leaf())
    assert "too hard" in report.backwards[0].eager and "too hard" in str(report)


def test_measured_kernels_of_both():
    compiled = ingot.compile(product)
    x, w = leaf(), leaf()
    report = ingot.explain(compiled)(x, w)
    report.measure(lambda: compiled(x, w).backward(), rounds=3)
    assert all(kernel.seconds > 0 for kernel in report.kernels + report.backward_kernels)
    assert " ms  ops" in str(report)


def test_a_backward_that_is_not_called_is_not_measured():
    compiled = ingot.compile(product)
    x, w = leaf(), leaf()
    report = ingot.explain(compiled)(x, w)
    report.measure(lambda: compiled(x, w), rounds=2)
    assert report.kernels[0].seconds is not None
    assert report.backward_kernels[0].seconds is None


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of a cache in which there is nothing yet."""
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    for moment in ("before", "behind"):
        store_in.cache_clear()
        ingot.reset()
        if moment == "before":
            yield tmp_path


@pytest.mark.usefixtures("cache")
def test_a_program_that_was_found():
    """What an earlier process kept runs, and is measured; the report makes the graphs anew."""
    x, w = leaf(), leaf()
    ingot.compile(product)(x, w).backward()
    ingot.reset()
    compiled = ingot.compile(product)
    compiled(x, w).backward()
    report = ingot.explain(compiled)(x, w)
    assert report.history[0].outcome == "found" and by_name(report).keys() >= {"x", "w"}
    report.measure(lambda: compiled(x, w).backward(), rounds=2)
    assert all(kernel.seconds > 0 for kernel in report.kernels + report.backward_kernels)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_one_screen_stays_one_screen(width):
    report = ingot.explain(nn.Sequential(*[Block() for _ in range(3)]))(torch.randn(8, 16))
    lines = report.text(width).splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= width
    headings = ("backward ", "saved for the backward", "computed again in the backward", "guards")
    for heading in headings:
        assert any(line.startswith(heading) for line in lines), heading
