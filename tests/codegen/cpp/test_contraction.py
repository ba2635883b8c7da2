"""Products of `tests/codegen/test_contraction.py` through C++."""

from tests.codegen.test_contraction import *  # noqa: F403
from tests.long import long

THROUGH_CPP = True
pytestmark = long

# what they say is of LLVM's text
del test_columns_that_are_not_there_are_zero  # noqa: F821
del test_a_right_operand_that_lies_as_it_would_be_packed_is_read_where_it_lies  # noqa: F821
del test_lines_that_a_tile_is_finished_in_are_asked_for_as_it_is_multiplied  # noqa: F821
del test_other_targets  # noqa: F821
del test_kernels_of_one_module_share_their_parts  # noqa: F821
