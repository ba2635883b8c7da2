"""Tests that run compiled programs on an NVIDIA GPU: `make test-gpu`. Elsewhere they are
skipped."""

from __future__ import annotations

import pytest
import torch

from ingot.codegen.triton.module import available


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None
    if not torch.cuda.is_available():
        reason = "there is no NVIDIA GPU"
    elif not available():
        reason = "Triton is not installed"
    if reason:
        for item in items:
            if "tests/gpu/" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason=reason))
