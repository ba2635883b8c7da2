"""For every test: the loop IR of each compilation goes through its verifier. (That of the ATen graph always runs.)

INGOT_VERIFY_GUARDS=1 has every guard shortcut compared with the whole walk as well.
"""

from __future__ import annotations

import os

import pytest

import ingot.pipeline
from ingot.loops.verify import verify
from ingot.native import _native

os.environ["INGOT_CACHE_DIR"] = ""  # nothing is kept from one run to the next

if "INGOT_VERIFY_GUARDS" in os.environ:
    _native._verify_shortcuts(True)


@pytest.fixture(autouse=True)
def verified_loops(monkeypatch):
    lower = ingot.pipeline.lower

    def lower_and_verify(*args, **kwargs):
        loops = lower(*args, **kwargs)
        verify(loops)
        return loops

    monkeypatch.setattr(ingot.pipeline, "lower", lower_and_verify)
