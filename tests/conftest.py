"""For every test: the loop IR of each compilation goes through its verifier. (That of the ATen graph always runs.)"""

from __future__ import annotations

import pytest

import ingot.pipeline
from ingot.loops.verify import verify


@pytest.fixture(autouse=True)
def verified_loops(monkeypatch):
    lower = ingot.pipeline.lower

    def lower_and_verify(*args, **kwargs):
        loops = lower(*args, **kwargs)
        verify(loops)
        return loops

    monkeypatch.setattr(ingot.pipeline, "lower", lower_and_verify)
