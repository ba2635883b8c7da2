"""The scalar ops and conversions of `tests/codegen/test_scalar.py` through C++."""

from tests.codegen.test_scalar import *  # noqa: F403
from tests.long import long

THROUGH_CPP = True
pytestmark = long
