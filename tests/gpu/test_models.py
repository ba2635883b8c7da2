"""The tiny models of the model zoo on the device, beside eager: forward, and the gradients of the
parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import ingot
from benchmarks.model_zoo import MODELS, make
from tests.oracle import relative_error, tensors_in

pytest.importorskip("transformers")

SHARE = 1e-4  # of the results' norm that the difference may be


def prepared(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    try:
        model, inputs = make(name)
    except (ImportError, AttributeError) as problem:
        pytest.skip(f"this transformers has none: {problem}")
    return model.cuda(), pytree.tree_map(
        lambda t: t.cuda() if isinstance(t, torch.Tensor) else t, inputs
    )


@pytest.mark.parametrize("name", MODELS)
def test_inference(name: str) -> None:
    model, inputs = prepared(name)
    compiled = ingot.compile(model)
    with torch.no_grad():
        expected = model(**inputs)
        for _ in range(2):
            found = compiled(**inputs)
            assert type(found) is type(expected)
            ours, eagers = tensors_in([found]), tensors_in([expected])
            for a, b in zip(ours, eagers, strict=True):
                assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
            assert relative_error(ours, eagers) <= SHARE


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name: str) -> None:
    model, inputs = prepared(name)
    parameters = [p for p in model.parameters() if p.requires_grad]
    results = []
    for call in (model, ingot.compile(model)):
        outputs = [
            t for t in tensors_in([call(**inputs)]) if t.requires_grad and t.is_floating_point()
        ]
        loss = sum(
            (t.double().square().sum() for t in outputs),
            torch.zeros((), device="cuda", dtype=torch.float64),
        )
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        results.append([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads)])
    assert relative_error(results[1], results[0]) <= 10 * SHARE
