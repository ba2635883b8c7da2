"""Transposed blocks of `tests/codegen/test_transposes.py` through C++."""

from tests.codegen.test_transposes import *  # noqa: F403
from tests.long import long

THROUGH_CPP = True
pytestmark = long

del test_no_element_is_gathered  # noqa: F821  # of LLVM's text
