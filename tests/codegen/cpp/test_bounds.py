"""Checks of bounds of `tests/codegen/test_bounds.py` through C++."""

from tests.codegen.test_bounds import *  # noqa: F403
from tests.long import long

THROUGH_CPP = True
pytestmark = long

del test_a_wrong_index_of_a_whole_program_is_raised  # noqa: F821  # changes LLVM's emitter
