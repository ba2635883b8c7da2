"""Artifacts run in a process that has neither Ingot's capture nor the source of the models."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ingot
from examples import gpt2, resnet

ROOT = Path(__file__).parents[2]


class Words(nn.Module):
    """A recurrent network over tokens (batch, time) -> (batch, 7)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 32, 2, batch_first=True)
        self.head = nn.Linear(32, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])


def calls() -> dict[str, Any]:
    """By name: a module, the call that is exported, sizes that vary, and further calls."""
    torch.manual_seed(0)
    small = gpt2.gpt2(gpt2.Config(1, 4, 32, 64, 300))
    images, _ = resnet.make_small()
    return {
        "gpt": (
            small,
            torch.randint(0, 300, (2, 9)),
            {0: "batch", 1: ("time", 1, 64)},
            [torch.randint(0, 300, sizes) for sizes in ((1, 1), (2, 9), (5, 40))],
        ),
        "resnet": (
            images,
            resnet.images(2, 64),
            {0: "batch"},
            [resnet.images(batch, 64, batch) for batch in (1, 2, 5)],
        ),
        "lstm": (
            Words().eval(),
            torch.randint(0, 50, (3, 6)),
            {0: "batch"},
            [torch.randint(0, 50, (batch, 6)) for batch in (1, 3, 8)],
        ),
    }


PROGRAM = """
    import sys
    import torch
    import ingot

    for name in ("gpt", "resnet", "lstm"):
        artifact = ingot.load(f"{name}.ingot")
        results = [artifact(x) for x in torch.load(f"{name}.inputs")]
        torch.save(results, f"{name}.results")
    compilers = ("ingot.capture", "ingot.graph", "ingot.pipeline", "ingot.compiler", "ingot.ops")
    loaded = [name for name in sys.modules if name.startswith((*compilers, "examples", "tests"))]
    assert loaded == [], loaded
"""


def test_models_in_a_fresh_process(tmp_path):
    examples = calls()
    for name, (module, example, dynamic, inputs) in examples.items():
        ingot.export(module, (example,), path=tmp_path / f"{name}.ingot", dynamic=(dynamic,))
        torch.save(inputs, tmp_path / f"{name}.inputs")
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], cwd=tmp_path, env=variables, check=True
    )
    for name, (module, _, _, inputs) in examples.items():
        results = torch.load(tmp_path / f"{name}.results")
        for x, result in zip(inputs, results, strict=True):
            with torch.no_grad():
                torch.testing.assert_close(result, module(x), rtol=1e-4, atol=1e-5)
