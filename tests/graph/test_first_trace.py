"""A fresh process that traces imports nothing of torch.compile's."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, torch, torch.fx
import torch.nn.functional as F
from ingot.graph import FakeContext, trace
from ingot.rules import hand_over

hand_over()  # as the compiler does before it captures

functions = [
    (lambda x: F.gelu(x, approximate="tanh"), [torch.rand(8, 6)]),
    (lambda x, w, b: F.layer_norm(F.relu(F.linear(x, w, b)), (6,)).softmax(-1),
     [torch.rand(8, 6), torch.rand(6, 6), torch.rand(6)]),
    (lambda x, w: F.max_pool2d(F.conv2d(x, w).relu(), 2).flatten(1),
     [torch.rand(1, 3, 8, 8), torch.rand(4, 3, 3, 3)]),
    (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), [torch.rand(1, 2, 4, 8)]),
    (lambda x: x.add_(1)[1:].sum(), [torch.rand(4)]),
    (lambda x: torch.fft.rfft(x).abs(), [torch.rand(4)]),
]
for dynamic in (frozenset(), frozenset({0})):
    for fn, args in functions[: 2 if dynamic else None]:
        context = FakeContext()
        with context:
            dims = [dynamic, *[frozenset()] * (len(args) - 1)]
            fakes = [context.fake(a, d) for a, d in zip(args, dims)]
            fn(*fakes)
        trace(torch.fx.symbolic_trace(fn), fakes, context)
heavy = ["torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "sympy"]
heavy.append("torch.fx.experimental.symbolic_shapes")
print([name for name in heavy if name in sys.modules])
"""


def test_fresh_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr[-2000:]
