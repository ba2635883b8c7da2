"""benchmarks.training: subjects are the same each time, columns find what they say, bounds are
marked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks import training
from benchmarks.training_models import SUBJECTS, drawn, make


@pytest.mark.parametrize(
    "name", ["gpt_checkpointed", "gru_cells", "vae", "gan", "pinn", "force_field", "mixture"]
)
def test_subjects_are_the_same_each_time_and_all_parameters_learn(name: str) -> None:
    found = []
    for _ in range(2):
        model, draw = make(name)
        torch.manual_seed(0)
        loss = training.step(model, model, drawn(draw, 3))
        # that of a critic's last bias cancels out
        assert sum(not g.any() for g in training.gradients(model)) <= 1
        found.append((loss, training.gradients(model)))
    torch.testing.assert_close(found[0], found[1])


def test_columns() -> None:
    found = training.error("gru_cells", 1)
    assert found["graphs"] == 1 and not found["reasons"]
    assert (
        0
        < found["ingot"]
        <= max(training.FACTOR * found["eager"], training.FLOOR * torch.finfo(torch.float32).eps)
    )
    assert training.speed("gru_cells", 2, peers=("eager", "ingot"))["ingot"] > 0


@pytest.mark.parametrize("name", ["vae", "gru_cells", "gan"])
def test_a_step_holds_no_more_memory_than_in_eager(name: str) -> None:
    found = training.memory(name, 1)
    assert found["ingot"] <= found["eager"]


def test_losses_are_those_of_a_training_and_of_several_where_one_misses_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = training.loss("gan", 1)
    assert (
        found == training.losses("gan", [0])
        and training.within(found)
        and found["last"] != found["first"]
    )
    missed = {"ingot": 1.0, "eager": 0.1}
    monkeypatch.setattr(training, "losses", lambda name, turns: {**missed, "turns": [*turns]})
    assert training.loss("gan", 1)["turns"] == list(range(training.DRAWS))


def test_what_misses_its_bound_is_marked() -> None:
    def shown(**found: Any) -> list[str]:
        columns: dict[str, dict[str, Any]] = {column: {} for column in training.COLUMNS}
        return [cell for cell in training.cells(columns | found) if cell.endswith("!")]

    assert shown(error={"ingot": 1.1e-6, "eager": 1e-6, "graphs": 1, "reasons": []}) == []
    means, medians = {"ingot": 1.3e-6, "eager": 1e-6}, {"ingot median": 9e-7, "eager median": 6e-7}
    assert shown(error={**means, **medians, "graphs": 2, "reasons": ["a break"]}) == [
        "1.3e-06!",
        "2!",
    ]
    assert shown(error={**means, **dict.fromkeys(medians, 9e-7)}) == []  # by chance
    assert shown(loss={"ingot": float("nan"), "eager": float("nan")}) == ["nan!"]
    assert shown(loss={"ingot": 3e-6, "eager": 1e-6}, memory={"ingot": 2e6, "eager": 1e6}) == [
        "3.0e-06!",
        "2.00!",
    ]


def test_unknown_models_and_columns_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        training.main(["nothing"])
    assert "nothing" in capsys.readouterr().err
    assert len(SUBJECTS) > 20
