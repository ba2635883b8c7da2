"""Gradients of attention of `tests/codegen/test_attention_backward.py` through C++."""

from tests.codegen.test_attention_backward import *  # noqa: F403
from tests.long import long

THROUGH_CPP = True
pytestmark = long

# what they say is of LLVM's code for others
del test_other_targets_compile  # noqa: F821
