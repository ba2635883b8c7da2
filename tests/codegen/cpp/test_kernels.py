"""The kernels of `tests/codegen/test_kernels.py` through C++."""

from tests.codegen.test_kernels import *  # noqa: F403

THROUGH_CPP = True

# what they say is of LLVM's text, and of its scratch memory
del test_index_vectors_are_as_narrow_as_sizes_allow  # noqa: F821
del test_rows_of_which_nothing_is_reduced_are_computed_one_at_a_time  # noqa: F821
del test_short_rows_are_computed_two_at_a_time  # noqa: F821
del test_rows_of_symbolic_length_give_the_same_bits_two_at_a_time  # noqa: F821
del test_what_is_left_of_rows_of_symbolic_length_is_no_loop  # noqa: F821
del test_products_have_few_accumulators  # noqa: F821
del test_what_threads_share_is_whole_vectors  # noqa: F821
del test_long_integers_are_divided_as_floats  # noqa: F821
