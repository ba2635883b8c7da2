"""What torch's own shape rules say of ops that a CPU cannot try out, at what cost."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from ingot.graph.meta.trials import torchs_own
from ingot.torch_private import aten

OPS: dict[str, tuple[Any, ...]] = {
    "_scaled_dot_product_flash_attention": (),
    "_scaled_dot_product_efficient_attention": (None, True),
    "_scaled_dot_product_cudnn_attention": (None, True),
}


def drawn(transposed: bool) -> Tensor:
    x = torch.empty(2, 64, 4, 32, device="meta", dtype=torch.bfloat16)
    return x.transpose(1, 2) if transposed else x


def look(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    return value


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", OPS)
def test_they_are_asked_as_they_are(name: str, transposed: bool) -> None:
    op, query = getattr(aten, name).default, drawn(transposed)
    expected = op(query, query, query, *OPS[name])
    found = torchs_own(op, (query, query, query, *OPS[name]), {})
    assert tuple(map(look, found)) == tuple(map(look, expected))


WITHOUT_SYMPY = """
import sys, torch, ingot
from ingot.graph.meta.trials import torchs_own
from tests.graph.test_torchs_shape_rules import OPS, aten, drawn
assert "sympy" not in sys.modules
for name, rest in OPS.items():
    torchs_own(getattr(aten, name).default, (drawn(True),) * 3 + rest, {})
print("sympy" in sys.modules)
"""


def test_attention_imports_no_sympy() -> None:
    command = [sys.executable, "-c", WITHOUT_SYMPY]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "False"
