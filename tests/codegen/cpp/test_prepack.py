"""Products with packed weights of `tests/codegen/test_prepack.py` through C++."""

from tests.codegen.test_prepack import *  # noqa: F403
from tests.codegen.test_prepack import _no_gradients
from tests.long import long

THROUGH_CPP = True
pytestmark = long
__all__ = ["_no_gradients"]  # the fixture of each test
