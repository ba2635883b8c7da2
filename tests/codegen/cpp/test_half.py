"""Halves of `tests/codegen/test_half.py` through C++."""

from tests.codegen.test_half import *  # noqa: F403
from tests.long import long

THROUGH_CPP = True
pytestmark = long
