"""Fusion and memory as numbers, for whole functions; nothing here depends on the machine."""

from __future__ import annotations

import pytest
import torch

import ingot
from examples import functions
from examples.gpt2 import Config, gpt2


def report(fn, *args, **options):
    with torch.no_grad():
        return ingot.explain(ingot.compile(fn, fullgraph=True, **options))(*args)


def kinds(found):
    return sorted(k.kind for k in found.kernels)


@pytest.mark.parametrize(
    "name",
    [
        "complex_activation",
        "tanh_gelu",
        "layer_norm_gelu",
        "masked_softmax",
        "rms_norm_rotary",
        "eight_elements",
    ],
)
def test_one_fused_kernel(name):
    fn, args = getattr(functions, f"make_{name}")()
    found = report(fn, *args)
    assert kinds(found) == ["fused"]
    assert found.arena_bytes == 0


def test_a_dead_matmul_is_never_launched():
    fn, args = functions.make_mlp_dead_matmul()
    found = report(fn, *args).kernels
    # relu is part of the first
    assert [sum(op == "aten.mm.default" for op in k.ops) for k in found] == [1, 1]
    assert len(found) == 2


def test_activation_needs_exactly_its_input_and_output():
    fn, (x,) = functions.make_complex_activation()
    found = report(fn, x)
    (kernel,) = found.kernels
    assert found.peak_bytes == 2 * x.numel() * 4
    assert (kernel.reads_bytes, kernel.writes_bytes) == (x.numel() * 4, x.numel() * 4)


def fifty_ops(x):
    """25 rounds of a reduction and something with its result; each axis in turn."""
    for k in range(25):
        x = torch.tanh(x - x.mean(k % 2, keepdim=True))
    return x


def eager_peak_bytes(fn, x):
    """The most bytes of tensors alive at once while `fn` runs in eager, its input included: counted
    at each op's result."""
    import weakref

    alive = {x.untyped_storage()._cdata: x.untyped_storage().nbytes()}
    peak = 0

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal peak
            out = func(*args, **(kwargs or {}))
            storage = out.untyped_storage()
            key = storage._cdata
            if key not in alive:
                alive[key] = storage.nbytes()
                weakref.finalize(storage, alive.pop, key, None)
            peak = max(peak, sum(alive.values()))
            return out

    with torch.no_grad(), Count():
        fn(x)
    return peak


def test_a_chain_with_reductions_needs_no_more_memory_than_eager():
    x = torch.randn(256, 256)
    eager = eager_peak_bytes(fifty_ops, x)
    assert eager >= 2 * x.numel() * 4
    assert report(fifty_ops, x).peak_bytes <= eager


def test_layers_of_a_transformer_share_their_kernels():
    model = gpt2(Config(layers=6, heads=2, width=64, positions=32, vocabulary=100))
    found = report(model, torch.randint(0, 100, (1, 16)))
    compiled = found.compilations[-1].log.code
    assert found.graph_count == 1 and found.break_count == 0
    products = [k for k in found.kernels if any("linear" in op for op in k.ops)]
    assert len(products) == 4 * 6 + 1  # biases, GELU and residuals are part of them
    # norms and attention
    assert len([k for k in found.kernels if k.kind == "fused"]) == len(products) + 3 * 6 + 1
    assert compiled.function_count <= 5 + 4


def test_one_compilation_serves_every_batch_when_dynamic():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32),
        torch.nn.GELU(),
        torch.nn.LayerNorm(32),
        torch.nn.Linear(32, 4),
        torch.nn.Softmax(-1),
    ).eval()
    compiled = ingot.compile(model, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for batch in (5, 16, 33, 100):
            x = torch.randn(batch, 8)
            torch.testing.assert_close(compiled(x), model(x))
        found = ingot.explain(compiled)(torch.randn(7, 8))
    assert len(found.compilations) == 1
    assert [k.kind for k in found.kernels].count("fused") >= 2


def test_equal_constants_are_computed_with_once():
    def fn(x):
        halves = [torch.tensor(0.5).exp() for _ in range(3)]
        return [x * half for half in halves], halves

    x = torch.randn(100)
    found = report(fn, x)
    assert sum(kernel.ops.count("aten.mul.Tensor") for kernel in found.kernels) == 1
    (products, halves), (expected, its_halves) = ingot.compile(fn, fullgraph=True)(x), fn(x)
    assert len({t.data_ptr() for t in (*products, *halves)}) == 6  # each a tensor of its own
    torch.testing.assert_close((products, halves), (expected, its_halves))
    halves[0].add_(1)
    torch.testing.assert_close(ingot.compile(fn, fullgraph=True)(x), (expected, its_halves))
