"""Measurements: errors, intervals, peak memory, turns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ingot.explain import measure, trial

CPU = torch.device("cpu")
INF, NAN = float("inf"), float("nan")


def test_error_is_relative_over_all_tensors_together():
    reference = {"a": torch.tensor([3.0]), "b": [torch.tensor([4.0]), "text", torch.tensor([1, 2])]}
    result = {"a": torch.tensor([3.0]), "b": [torch.tensor([4.5]), "text", torch.tensor([1, 2])]}
    assert measure.error(result, reference) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("result", "expected", "error"),
    [
        ([NAN, INF, 1.0], [NAN, INF, 1.0], 0.0),
        ([NAN, 1.0], [2.0, 1.0], INF),
        ([INF, 1.0], [2.0, 1.0], INF),
        ([-INF, 1.0], [INF, 1.0], INF),
        ([0.0], [0.0], 0.0),
        ([1.0], [0.0], INF),
    ],
)
def test_error_of_special_values(result, expected, error):
    assert measure.error(torch.tensor(result), torch.tensor(expected)) == error


def test_error_of_integers_and_of_shapes_that_differ():
    assert measure.error(torch.tensor([1, 2]), torch.tensor([1, 3])) == INF
    with pytest.raises(ValueError, match=r"shape \(2,\) where \(1,\)"):
        measure.error(torch.ones(2), torch.ones(1))


def test_ratio_interval_holds_the_ratio():
    noise = np.random.default_rng(1).normal(1, 0.05, (2, 200))
    low, middle, high = measure.ratio_interval(2 * noise[0], noise[1])
    assert low < middle < high and low < 2 < high and high - low < 0.1


def test_peers_take_turns_and_a_different_one_begins():
    order = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    rounds = []
    seconds = measure.interleave(calls, 4, CPU, lambda: rounds.append(len(order)))
    assert seconds["a"].shape == (4,) and (seconds["a"] > 0).all() and len(rounds) == 4
    turns = [order[start] for start in [0, *rounds[:-1]]][1:]
    assert turns == ["b", "a", "b"]


def test_reference_is_float64_and_leaves_the_module_alone():
    model = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4)
    reference = measure.reference64(model, (x,), {})
    assert reference.dtype == torch.float64 and model.weight.dtype == torch.float32
    torch.testing.assert_close(reference.float(), model(x))
    assert measure.reference64(lambda x: x.float(), (x,), {}) is None
    assert measure.reference64(lambda x: x @ model.weight, (x,), {}) is None


def test_peak_counts_inputs_and_temporaries():
    x = torch.randn(1024, 256)
    size = x.numel() * 4
    assert measure.peak_bytes(lambda: x.sin(), (x, x), CPU) == 2 * size
    assert measure.peak_bytes(lambda: x.sin() + x.cos(), (x,), CPU) == 4 * size


def test_a_float64_result_with_other_random_numbers_is_no_reference():
    eager = torch.rand(100)
    assert trial.errors(eager, eager, torch.rand(100, dtype=torch.float64)) == (0.0, None)
    assert trial.errors(eager, eager, eager.double() + 1e-9)[1] is not None
