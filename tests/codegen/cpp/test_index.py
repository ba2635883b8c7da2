"""Index expressions of `tests/codegen/test_index.py` through C++."""

from tests.codegen.test_index import *  # noqa: F403
from tests.long import long

THROUGH_CPP = True
pytestmark = long
