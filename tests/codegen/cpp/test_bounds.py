"""Checks of bounds of `tests/codegen/test_bounds.py` through C++."""

from tests.codegen.test_bounds import *  # noqa: F403
from tests.long import long

THROUGH_CPP = True
pytestmark = long
