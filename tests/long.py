"""Tests that `make test` leaves to `make test-long`: fuzzers, many ranks, other compilers, and most
cases of the sweeps that take longest. `pytest -m ""` runs all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest

long = pytest.mark.long

SWEEPS: dict[str, dict[str, int]] = {
    "capture/test_asked_classes": {"given": 4, "made": 4},
    "capture/test_exception_attributes": {"exceptions": 5},
    "capture/test_exception_contexts": {"contexts": 3},
    "capture/test_foreach": {"of_one_list": 3, "of_two": 3},
    "capture/test_iterables": {
        "iterators_that_are_made_again": 3,
        "of_what_the_program_makes": 20,
        "of_what_was_there_before": 3,
    },
    "capture/test_mapping_protocol": {"mapping_protocol": 3},
    "capture/test_method_calls": {"methods": 5, "operators": 5},
    "capture/test_nested_tensors": {
        "arguments_that_are_views": 3,
        "attention": 3,
        "empty_rows": 5,
        "inference": 4,
        "training": 4,
    },
    "capture/test_numbers": {"gradients_at_bounds_that_vary": 5},
    "capture/test_numpy_names": {
        "a_name_means_what_it_means_in_numpy": 6,
        "a_universal_function_is_numpys": 6,
    },
    "capture/test_outside_iterators": {"an_iterator_over_text_that_is_given": 4},
    "capture/test_overrides": {"overridden_methods": 5},
    "capture/test_partials": {"partials": 3},
    "capture/test_random_effects": {"program": 3},
    "capture/test_sorting": {"the_same_comparisons_in_the_same_order": 4},
    "capture/test_tensor_attributes": {"attributes_are_eagers": 5},
    "codegen/test_attention": {
        "against_the_oracle": 11,
        "logarithms_of_the_sums": 6,
        "of_symbolic_sizes": 7,
    },
    "codegen/test_attention_backward": {"against_the_oracle": 5, "of_symbolic_sizes": 2},
    "codegen/test_bounds": {"each_kind_of_load_and_store_is_checked": 4},
    "codegen/test_contraction": {
        "other_targets": 4,
        "rows_whose_steps_lie_far_apart_are_copied": 4,
        "short_sums_around_which_a_loop_runs": 3,
        "sizes_and_layouts": 8,
    },
    "codegen/test_half": {"chains_round_where_eager_does": 2},
    "codegen/test_kernels": {
        "flat_in_every_dtype": 3,
        "reductions": 6,
        "rows": 3,
        "scans_over_several_loops": 4,
    },
    "codegen/test_math": {"functions_are_as_accurate_as_eagers": 4},
    "codegen/test_prepack": {"the_bits_are_those_without": 7},
    "codegen/test_scalar": {"accuracy": 4, "division_by_zero_is_reported": 4, "exact": 4},
    "codegen/test_scored_attention": {
        "halves": 10,
        "lengths_that_vary": 10,
        "logarithms_are_the_kernels": 6,
        "results_and_gradients": 14,
    },
    "codegen/test_strided": {"loads": 7, "loads_side_by_side": 4, "stores": 14},
    "codegen/test_transposes": {"transposes_of_every_dtype": 17},
    "codegen/triton/test_images": {"windows_of_channels": 4},
    "codegen/triton/test_models": {"networks_compile": 2},
    "codegen/triton/test_module": {"both_forms_compile": 2},
    "codegen/triton/test_products": {"interpreted_sums_in_parts": 2, "products_compile": 2},
    "conformance/test_conformance": {"programs": 9},
    "debugging/test_minimizing": {"a_planted_fault_is_brought_to_few_ops": 11},
    "debugging/test_planted": {"the_op_and_its_line_are_named": 10},
    "debugging/test_verifying": {"the_op_is_named": 4},
    "explain/test_trial": {"right_programs": 4},
    "graph/test_components": {"levels_and_modes_are_entered_in_their_order": 9},
    "graph/test_einsum": {"sizes_that_vary": 6},
    "graph/test_higher_order": {"a_backend_of_torchs_takes_branches": 2},
    "graph/test_layouts": {"strides_where_dtypes_are_mixed": 4},
    "graph/test_matmul": {"sizes_that_vary": 4},
    "graph/test_relations": {"the_same_sizes_fulfil_them": 2},
    "loops/test_convolution_backward": {"what_is_kept_lies_as_it_is_read": 2},
    "loops/test_index_checks": {
        "an_error_is_handled_behind_a_write": 10,
        "an_index_out_of_range": 20,
    },
    "loops/test_sampling": {"sampled": 11},
    "loops/test_scans": {"scans": 7, "scans_in_one_kernel_with_what_goes_by_other_rows": 4},
    "native/test_recorder": {"gradients_that_come_in": 3},
    "native/test_shortcuts": {"random_changes_against_the_oracle": 6},
    "ops/test_moments": {"equal_numbers_do_not_vary": 4, "extreme_numbers": 4},
    "runtime/test_memory_budget": {"gradients_are_eagers_and_fewer_bytes_are_saved": 4},
    "runtime/test_training_memory": {"a_step_holds_no_more_than_eagers": 2},
    "schedule/test_layers": {"random_programs": 4, "random_programs_are_trained": 10},
    "schedule/test_offsets": {"values": 3},
    "test_aliasing_functions": {"eager_is_the_oracle": 18, "several_arguments": 8},
    "test_aliasing_hooks": {"eager_is_the_oracle": 9},
    "test_attention": {
        "an_encoder_is_taken_apart": 2,
        "masks_of_written_out_forms": 3,
        "padding_is_what_it_is_in_eager": 2,
        "what_only_resembles_attention": 2,
    },
    "test_autograd_functions": {"gradients": 2},
    "test_compiled_backward_sizes": {"formulas": 8, "one_and_none": 2},
    "test_contractions": {"layouts": 4, "pointwise_consumers_run_on_the_finished_tile": 3},
    "test_control_flow": {"branches_are_in_the_graph": 5, "loops_are_in_the_graph": 3},
    "test_conversions": {"conversions": 2},
    "test_corpus": {"the_code_is_what_it_was": 6},
    "test_disabled_by_itself": {"what_is_compiled_is_what_torch_compile_compiles": 2},
    "test_dynamic_gradients": {
        "gradients_of_what_libraries_have_kernels_for": 8,
        "with_gradients": 5,
    },
    "test_dynamic_shapes": {"programs_of_an_integer": 4},
    "test_effectful_ops": {"what_acts_keeps_its_place_among_lookups": 4},
    "test_endurance": {"four_threads_of_a_thousand_shapes_each": 4},
    "test_errors_of_data": {"all_that_is_done_around_it": 12, "readers_that_look_at_nothing": 7},
    "test_failures": {"good_variants_stay_and_the_like_is_tried_again": 4},
    "test_flex_attention": {"results_and_gradients": 3},
    "test_found_op_calls": {
        "layout_of_roll": 4,
        "scaled_by_a_power_of_two": 4,
        "seen_as_another_type": 2,
    },
    "test_func_transforms": {
        "an_interrupted_trace_leaves_the_levels": 2,
        "values_and_gradients": 6,
    },
    "test_hostile_names": {"files": 3, "functions": 4, "names_of_what_is_given": 12},
    "test_integers_that_vary": {
        "a_truth_value_beside_an_integer_that_varies": 10,
        "integers_of_both_signs_and_out_of_range": 4,
    },
    "test_interruptions": {
        "right_behind_the_acquisition_of_llvmlites_lock": 2,
        "what_a_handler_raises_reaches_the_program": 8,
        "what_is_stuck_is_interrupted_in_the_end": 2,
    },
    "test_kernel_launches": {"programs_launch_what_eager_launches": 2},
    "test_long_scans": {"long_scans_are_one_node": 5},
    "test_mapped_functions": {"under_transforms_that_differentiate": 3, "under_vmap": 10},
    "test_op_database": {"a_part_of_the_database": 3},
    "test_optimizers": {
        "fused_steps_are_as_exact_as_eagers": 3,
        "fused_steps_of_scaled_gradients": 2,
        "no_break_and_few_kernels": 5,
        "steps_are_as_exact_as_eagers": 6,
    },
    "test_random_control": {"a_program": 10},
    "test_random_effectful_programs": {"random_effectful_programs": 2},
    "test_random_functions": {"eager_is_the_oracle": 6},
    "test_random_programs": {
        "random_programs": 24,
        "random_programs_touch_nothing_outside_of_their_buffers": 2,
    },
    "test_random_python": {"random_python": 24, "random_python_compiled": 6},
    "test_random_shapes": {"random_programs_at_several_shapes": 24},
    "test_reached_inputs": {"a_backward_goes_where_eagers_does": 17},
    "test_recomputed_values": {
        "choices_in_a_checkpoint": 5,
        "functions_in_kernels_of_many_shapes": 10,
    },
    "test_reduction_errors": {"halves": 7, "sums_of_every_shape": 3},
    "test_refused_shapes": {"eagers_error_for_symbolic_sizes": 3},
    "test_shape_guards": {
        "the_guards_are_those_that_a_person_would_derive": 2,
        "what_the_guards_accept_is_right_and_the_rest_is_refused": 3,
    },
    "test_stale": {"stale": 3},
    "test_symbolic_rules": {
        "gradients_of_products_of_sizes_that_may_be_1": 2,
        "sizes_that_vary": 3,
    },
    "test_torch_compiler": {"what_works": 2},
    "test_torch_compiles": {"torch_compile_sees_nothing_of_ingots": 5},
    "test_training": {"models": 3},
    "test_training_checkpoints": {"gradients": 3, "peak_memory": 2, "reentrant": 2},
    "test_training_hooks": {"second_derivatives": 3, "several_arguments_and_results": 3},
    "test_training_kernels": {"gradients_of_attention_go_no_further_from_float64_than_eagers": 3},
    "test_training_parts": {
        "each_choice_of_inputs": 5,
        "each_choice_of_outputs": 5,
        "one_after_the_other": 2,
        "what_the_gradients_keep_is_told_by_its_value": 7,
    },
    "test_training_random": {"ten_steps_draw_the_numbers_of_eager": 15},
    "test_training_step": {
        "a_scaler_of_gradients": 4,
        "a_step_is_one_graph": 5,
        "a_step_that_is_not_taken": 4,
    },
    "test_training_written": {"an_input_becomes_a_result": 7},
    "test_truth_of_data": {"an_answer_that_only_leads_to_an_error": 4, "uses": 6},
    "test_vmap_numbers": {
        "levels_within_levels": 4,
        "numbers_beside_tensors_without_dimensions": 15,
    },
    "test_windows_on_storage": {"windows": 120},
    "test_writes_to_data": {"eager_is_the_oracle": 5},
    "test_writing_ops": {"writes_are_eagers": 10},
    "test_written_results": {"results_may_be_written": 2},
    "test_zoo_training": {"models_of_the_zoo": 2},
}
"""By file and test, without `tests/` and `test_`: `make test` runs the first of so many cases.
Chosen by the time that they take (`pytest --durations 0`)."""

PRODUCTS: dict[str, tuple[str, ...]] = {
    "benchmarks/test_suites": ("a_row_has_figures",),
    "capture/test_argument_names": ("names",),
    "capture/test_array_counts": ("sets",),
    "capture/test_asked_keys": ("a_dict_that_says_how_to_iterate_is_read_by_its_methods",),
    "capture/test_chosen": ("one_graph",),
    "capture/test_found_by_random_programs": (
        "a_tensor_beside_a_number_of_a_subclass",
        "the_hint_of_a_length_is_asked_where_there_is_no_length",
        "the_text_of_a_container_that_says_what_it_holds",
        "torch_asks_a_number_of_a_subclass",
    ),
    "capture/test_local_classes": ("one_graph",),
    "capture/test_module_copies": ("eagers_meaning", "one_graph"),
    "capture/test_random_numbers": ("eagers_numbers_in_any_number_of_graphs",),
    "capture/test_rearranging": ("patterns",),
    "capture/test_receivers": ("what_receivers_write_is_read",),
    "capture/test_tensor_types": ("checks_of_data",),
    "codegen/test_half": ("every_half",),
    "codegen/test_scored_attention": ("few_queries", "gradients_of_what_scores_read", "one_kernel"),
    "graph/test_decompositions_backward": ("pointwise",),
    "graph/test_default_dtype": ("ops",),
    "graph/test_higher_order": ("branches", "scans"),
    "graph/test_recurrent": ("training",),
    "graph/test_repeats": ("what_is_repeated_is_as_eager_has_it",),
    "schedule/test_layers": (
        "any_number_of_layers",
        "forward_and_backward_are_those_of_all_layers",
    ),
    "schedule/test_split": ("one_result",),
    "test_attention": ("masks_of_a_layer_are_no_break", "masks_of_encoders"),
    "test_backend_graphs": ("programs",),
    "test_compiled_backward_functions": ("several_results",),
    "test_contractions": ("factors_by_which_nan_and_infinity_count_or_not", "scaled_products"),
    "test_control_flow": ("scans_along_other_dimensions",),
    "test_effectful_ops": (
        "calls_and_their_order_are_eagers",
        "divisions_by_zero_keep_their_place_among_effects",
    ),
    "test_found_op_calls": ("arange_of_broken_numbers",),
    "test_found_programs": ("found",),
    "test_func_transforms": ("a_tensor_that_leaves_its_transform",),
    "test_origins": (
        "a_file_called_as_one_of_the_standard_library",
        "a_function_that_wraps_one_of_torchs",
    ),
    "test_reduction_errors": (
        "a_sum_begins_at_zero",
        "what_is_computed_along_a_dimension",
        "what_is_made_of_sums",
    ),
    "test_symbolic_rules": ("gradients_of_a_batch_of_one_that_lies_in_columns_lie_as_in_eager",),
}
"""By file, tests of several parameters: `make test` runs as many cases as it takes for each value
of each parameter to be there, and of three parameters and more for each pair of values. Chosen
likewise."""


def leave_sweeps(items: Iterable[pytest.Item]) -> None:
    """Marks most cases of the sweeps among collected tests as long."""
    seen: Counter[tuple[str, str]] = Counter()
    products: dict[tuple[str, str], list[pytest.Function]] = {}
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("long") is not None:
            continue
        file = item.nodeid.partition("::")[0].removeprefix("tests/").removesuffix(".py")
        name = item.originalname.removeprefix("test_")
        every = SWEEPS.get(file, {}).get(name, 1)
        if seen[file, name] % every:
            item.add_marker(long)
        seen[file, name] += 1
        if name in PRODUCTS.get(file, ()):
            products.setdefault((file, name), []).append(item)
    for cases in products.values():
        for k in needless([set(_parts(case)) for case in cases]):
            cases[k].add_marker(long)


def needless(cases: Sequence[set[Any]]) -> list[int]:
    """The numbers of the cases that have nothing which is in none before. One of which all is new
    comes before one of which some is, so that of two parameters as many cases are needed as the
    longer one has values."""
    left, seen = dict(enumerate(cases)), set[Any]()
    for least in range(max(map(len, cases)), 0, -1):
        for k in list(left):
            if len(left[k] - seen) >= least:
                seen |= left.pop(k)
    return list(left)


def _parts(case: pytest.Function) -> Iterator[Any]:
    """The values of a case, or pairs of three and more: those that one mark gives together are one
    value. The cases of a product have the same objects."""
    given, values = dict(case.callspec.params), []
    for number, mark in enumerate(case.iter_markers("parametrize")):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        if isinstance(names, str):
            names = [name.strip() for name in names.split(",")]
        values.append((number, *(id(given.pop(name, None)) for name in names)))
    values += [(name, id(value)) for name, value in given.items()]
    return combinations(values, 2 if len(values) > 2 else 1)
