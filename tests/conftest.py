"""For every test: small tensors lend their memory as large ones do, and the garbage collector walks
what the test's own module made. INGOT_VERIFY_GUARDS=1 has every guard shortcut compared with the
whole walk."""

from __future__ import annotations

import gc
import os

import pytest

from ingot.native import _native
from ingot.rules import hand_over
from tests.long import leave_sweeps

os.environ["INGOT_CACHE_DIR"] = ""  # nothing is kept from one run to the next

_native._lend_from(0)
hand_over()  # some tests trace or lower without a compiler

if "INGOT_VERIFY_GUARDS" in os.environ:
    _native._verify_shortcuts(True)


@pytest.fixture(autouse=True, scope="module")
def nothing_older_is_walked():
    """A worker of pytest holds millions of objects, and the tests of lifetimes collect thousands of
    times."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_sweeps(items)
