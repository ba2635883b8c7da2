"""Attention of `tests/codegen/test_attention.py` through C++."""

from tests.codegen.test_attention import *  # noqa: F403
from tests.long import long

THROUGH_CPP = True
pytestmark = long

# what they say is of LLVM's code for others
del test_other_targets_compile  # noqa: F821
del test_narrower_vectors_agree  # noqa: F821
