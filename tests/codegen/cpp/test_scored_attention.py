"""Attention with scores of the program's own, of `tests/codegen/test_scored_attention.py`, through
C++."""

import pytest

from tests.codegen.test_scored_attention import *  # noqa: F403
from tests.long import long

THROUGH_CPP = WHOLE_PROGRAMS = True
pytestmark = long


@pytest.fixture(autouse=True)
def target() -> None:
    """This machine's vectors alone: which ones compilers use is not chosen here."""
