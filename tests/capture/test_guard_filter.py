"""`guard_filter_fn`: what it is told of each guard, and what is no longer checked."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ingot

FACTOR = 2
X = torch.linspace(-1, 1, 8).reshape(2, 4)


def scaled(x, k, table):
    return x * FACTOR + k + table["shift"]


class Scaled(nn.Module):
    """Has a number and a module of torch's, which has one too."""

    def __init__(self):
        super().__init__()
        self.by = 3.0
        self.norm = nn.LayerNorm(4, eps=1e-3)

    def forward(self, x):
        return self.norm(x) * self.by


@pytest.fixture(autouse=True)
def _restore():
    yield
    globals()["FACTOR"] = 2
    torch._dynamo.reset()


def keep(*wanted):
    """A filter that keeps the guards of these names and of no others."""
    return lambda entries: [entry.name in wanted for entry in entries]


def compilers(choose):
    """`scaled` by Ingot and by torch.compile, of which each has a filter."""
    options = {"guard_filter_fn": choose}
    yield ingot.compile(scaled, fullgraph=True, options=dict(options))
    yield torch.compile(scaled, fullgraph=True, backend="eager", options=dict(options))


FILTERS = {
    "all": (torch.compiler.skip_all_guards_unsafe, "global argument table"),
    "globals": (torch.compiler.skip_guard_on_globals_unsafe, "global"),
    "but tensors": (torch.compiler.keep_tensor_guards_unsafe, "global argument table"),
    "none": (lambda entries: [True] * len(entries), ""),
}


@pytest.mark.parametrize(("choose", "dropped"), FILTERS.values(), ids=FILTERS)
def test_what_is_dropped_is_not_checked(choose, dropped) -> None:
    for compiled in compilers(choose):
        globals()["FACTOR"] = 2
        table = {"shift": 1.0}
        assert torch.allclose(compiled(X, 1, table), X * 2 + 2)
        globals()["FACTOR"] = 4
        factor = 2 if "global" in dropped else 4
        assert torch.allclose(compiled(X, 1, table), X * factor + 2)
        if "argument" in dropped:
            assert torch.allclose(compiled(X, 5, table), X * factor + 2)
        else:
            assert torch.allclose(compiled(X, 5, table), X * 4 + 6)  # compiled anew


@pytest.mark.parametrize("choose", [f for f, _ in FILTERS.values()], ids=FILTERS)
def test_what_the_graph_reads_is_always_checked(choose) -> None:
    compiled = ingot.compile(torch.nn.functional.gelu, options={"guard_filter_fn": choose})
    for x in (X, X[:, :3], torch.ones(64, 64), X.double(), X.t()):
        expected = torch.nn.functional.gelu(x)
        got = compiled(x)
        assert torch.allclose(got, expected) and got.stride() == expected.stride()


def test_a_size_that_is_a_symbol_serves_others_without_guards() -> None:
    options = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    compiled = ingot.compile(lambda x: x.softmax(-1), options=options)
    x = torch.randn(8, 16)
    ingot.mark_dynamic(x, 0)
    assert torch.allclose(compiled(x), x.softmax(-1))
    for rows in (3, 100):
        x = torch.randn(rows, 16)
        assert torch.allclose(compiled(x), x.softmax(-1))
    assert ingot.explain(compiled)(x).graph_count == 1


@pytest.mark.parametrize(
    ("choose", "of_norm", "of_own"),
    [
        (torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe, False, True),
        (torch.compiler.skip_guard_on_all_nn_modules_unsafe, False, False),
    ],
)
def test_modules_of_torch_and_of_the_program(choose, of_norm, of_own) -> None:
    module = Scaled()
    compiled = ingot.compile(module, options={"guard_filter_fn": choose})
    with torch.no_grad():
        before = module(X)
        assert torch.allclose(compiled(X), before, atol=1e-6)
        module.norm.eps = 100.0
        assert torch.allclose(compiled(X), module(X), atol=1e-6) == of_norm
        module.norm.eps = 1e-3
        module.by = 6.0
        assert torch.allclose(compiled(X), before * (2 if of_own else 1), atol=1e-6)
        module.norm.weight.copy_(torch.arange(4.0))  # an input as ever
        assert torch.allclose(compiled(X)[:, 0], torch.zeros(2), atol=1e-6)


def test_what_a_filter_is_told() -> None:
    seen = []

    def choose(entries):
        seen.extend(entries)
        return [True] * len(entries)

    ingot.compile(scaled, options={"guard_filter_fn": choose})(X, 1, {"shift": 1.0})
    by_name = {}
    for entry in seen:
        by_name.setdefault(entry.name, entry)
    tensor, number, factor = by_name["x"], by_name["k"], by_name["G['FACTOR']"]
    assert (tensor.guard_type, tensor.is_global) == ("TENSOR_MATCH", False)
    assert tensor.has_value and tensor.value is X
    assert (number.guard_type, number.value) == ("CONSTANT_MATCH", 1)
    assert number.derived_guard_types == ("EQUALS_MATCH",)
    assert factor.is_global and factor.value == 2
    assert "FACTOR == 2" in factor.orig_guard.text
    assert not factor.orig_guard.source.is_unspecialized_nn_module()
    [state] = [entry for entry in seen if entry.guard_type == "GLOBAL_STATE"]
    assert state.name == "" and not state.has_value


def test_some_names_are_kept() -> None:
    options = {"guard_filter_fn": keep("k")}
    compiled = ingot.compile(scaled, options=options)
    assert torch.allclose(compiled(X, 1, {"shift": 1.0}), X * 2 + 2)
    assert torch.allclose(compiled(X, 3, {"shift": 1.0}), X * 2 + 4)
    globals()["FACTOR"] = 7
    assert torch.allclose(compiled(X, 3, {"shift": 1.0}), X * 2 + 4)


def test_what_is_behind_a_graph_break_is_filtered_too() -> None:
    def broken(x, k):
        y = x * k
        torch._dynamo.graph_break()
        return y * FACTOR

    options = {"guard_filter_fn": torch.compiler.skip_guard_on_globals_unsafe}
    compiled = ingot.compile(broken, options=options)
    assert torch.allclose(compiled(X, 3), X * 6)
    globals()["FACTOR"] = 5
    assert torch.allclose(compiled(X, 3), X * 6)
    assert torch.allclose(compiled(X, 4), X * 4 * 2)  # goes on where the first call did


def test_functions_of_one_code_do_not_share_what_is_not_guarded() -> None:
    def times(k):
        options = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        return ingot.compile(lambda x: x * k, options=options)

    for k in (2, 3):
        assert torch.allclose(times(k)(X), X * k)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda entries: [True], "bools, one for each guard"),
        (lambda entries: [1] * len(entries), "bools, one for each guard"),
        (lambda entries: entries[0].no_such_field, "no_such_field"),
        (lambda entries: None, "raised TypeError"),
    ],
)
def test_a_filter_that_fails_is_an_error(answer, says) -> None:
    compiled = ingot.compile(scaled, options={"guard_filter_fn": answer})
    with pytest.raises(ingot.BackendError, match=says):
        compiled(X, 1, {"shift": 1.0})


def test_a_mistake_is_named() -> None:
    with pytest.raises(ValueError, match="guard_filter_fn may not be 3; a function of a list"):
        ingot.compile(scaled, options={"guard_filter_fn": 3})
    with pytest.raises(ValueError, match="guard_filter_fn may not be 3"):
        ingot.compile(scaled, backend=lambda gm, inputs: gm, options={"guard_filter_fn": 3})
    assert torch.allclose(
        ingot.compile(scaled, options={"guard_filter_fn": None})(X, 1, {"shift": 0.0}), X * 2 + 1
    )


def test_other_backends_and_torch_compile_by_ingot() -> None:
    options = {"guard_filter_fn": torch.compiler.skip_guard_on_globals_unsafe}
    ingot.install()
    try:
        functions = [
            torch.compile(scaled, options=options),
            torch.compile(scaled, backend=lambda gm, inputs: gm.forward, options=options),
        ]
    finally:
        ingot.uninstall()
    for compiled in functions:
        globals()["FACTOR"] = 2
        assert torch.allclose(compiled(X, 1, {"shift": 1.0}), X * 2 + 2)
        globals()["FACTOR"] = 5
        assert torch.allclose(compiled(X, 1, {"shift": 1.0}), X * 2 + 2)
    assert "guard_filter_fn" in options  # the program's own dict stays as it was
