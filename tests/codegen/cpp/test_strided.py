"""Loads and stores with strides of `tests/codegen/test_strided.py` through C++."""

from tests.codegen.test_strided import *  # noqa: F403
from tests.long import long

THROUGH_CPP = True
pytestmark = long

del test_nothing_is_gathered_or_scattered  # noqa: F821  # of LLVM's text
