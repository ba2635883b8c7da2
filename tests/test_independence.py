"""Ingot is the compiler: a process that compiles and runs a model has loaded nothing of
torch.compile's."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, torch, ingot
from examples.gpt2 import Config, gpt2
model = gpt2(Config(layers=2, heads=2, width=32, positions=32, vocabulary=64))
compiled = ingot.compile(model, fullgraph=True)
tokens = torch.randint(0, 64, (1, 8))
with torch.no_grad():
    assert torch.allclose(compiled(tokens), model(tokens), atol=1e-5)
    print(ingot.explain(compiled)(tokens).graph_count)
loss = torch.nn.functional.cross_entropy
step = ingot.compile(lambda tokens: loss(model(tokens)[0, :-1], tokens[0, 1:]), fullgraph=True)
step(tokens).backward()
heavy = "torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "sympy"
print([name for name in heavy if name in sys.modules])
"""


def test_compiling_running_and_training_gpt2_loads_no_other_compiler():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["1", "[]"], done.stdout + done.stderr[-2000:]
