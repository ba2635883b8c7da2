"""The comparison behind `python -m tests.transformers_models`, and how models are made small, on
models of its own."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests import transformers_small
from tests.op_outcome import Different
from tests.transformers_models import (
    Outcome,
    Row,
    examine,
    in_process,
    ratio_of_errors,
    results,
    summary,
)
from tests.transformers_small import EagerFails, find_inputs, shrink


class Config(SimpleNamespace):
    """As those of `transformers`, as far as the tools read them."""

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


class Words(nn.Module):
    """Scores of words, a graph break, and a cache."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)

    def forward(
        self, input_ids: torch.Tensor, image_sizes: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        x = self.words(input_ids)
        assert x.sum().item() != 0.5
        layer = SimpleNamespace(keys=x * 2, values=x * 3)
        return {"scores": x, "cache": SimpleNamespace(layers=[layer])}


def compiling() -> bool:
    return torch.compiler.is_compiling()


def made(kind: type[nn.Module]) -> Any:
    torch.manual_seed(0)
    config = Config(vocab_size=20, hidden_size=8)
    model = kind(config).eval()
    return lambda name: (model, *find_inputs(model, config))


def test_a_model_that_is_right(monkeypatch):
    monkeypatch.setattr(transformers_small, "make", made(Words))
    row = examine("words")
    assert (row.outcome, row.failures, row.note) == ("right", [], "words")
    assert row.graphs and len(row.reasons) == 1 and "words right" in " ".join(str(row).split())


def test_a_model_that_is_wrong(monkeypatch):
    class More(Words):
        def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
            found = super().forward(input_ids)
            return found | {"scores": found["scores"] + (1e-3 if compiling() else 0)}

    monkeypatch.setattr(transformers_small, "make", made(More))
    row = examine("words")
    assert row.outcome == "wrong" and "inference" in row.failures[0]


def test_the_process_of_a_model_that_ends(monkeypatch):
    monkeypatch.setattr(transformers_small, "make", lambda name: __import__("os")._exit(3))
    row = in_process("words", 60)
    assert row.outcome == "crashed" and "status 3" in row.note


def test_what_is_compared():
    x = torch.randn(2, 3)
    its = Outcome(results=[x, torch.arange(3)], random=torch.random.get_rng_state())
    exact = copy.deepcopy(its)
    assert ratio_of_errors(copy.deepcopy(its), its, exact) == 0
    for results_, message in (
        ([x], "1 results"),
        ([x, torch.arange(3) + 1], "result 1"),
        ([x.t().contiguous().t(), torch.arange(3)], "result 0"),
        ([x + 1, torch.arange(3)], "from float64"),
    ):
        with pytest.raises(Different, match=message):
            ratio_of_errors(Outcome(results_, random=its.random), its, exact)
    with pytest.raises(Different, match="raises ValueError"):
        ratio_of_errors(Outcome(error=ValueError()), its, exact)


def test_the_results_of_a_cache():
    a, b = torch.ones(1), torch.ones(2)
    cache = SimpleNamespace(layers=[SimpleNamespace(keys=a, values=b, dtype=a.dtype)])
    assert list(map(id, results({"cache": cache, "more": (b, None)}))) == list(map(id, [a, b, b]))


def test_a_config_is_shrunk_with_those_that_it_holds():
    kinds = ["linear"] * 3 + ["full"]
    inner = Config(
        hidden_size=4096,
        num_hidden_layers=4,
        layer_types=kinds,
        use=[1, 2, 3, 4],
        num_attention_heads=32,
    )
    config = Config(
        text_config=inner,
        vocab_size=50000,
        rope_parameters={"mrope_section": [16, 24, 24]},
        head_dim=128,
    )
    shrink(config, transformers_small.CONFIGS["small"])
    assert (inner.hidden_size, inner.num_hidden_layers, config.vocab_size) == (32, 2, 99)
    assert (inner.layer_types, inner.use) == (["linear", "full"], [1, 4])
    assert sum(config.rope_parameters["mrope_section"]) == config.head_dim // 2 == 4


def test_inputs_that_no_model_takes():
    class Refuses(nn.Module):
        def forward(self, input_ids: torch.Tensor) -> None:
            raise ValueError("no")

    with pytest.raises(EagerFails, match="ValueError: no"):
        find_inputs(Refuses(), Config())


def test_as_many_places_as_there_are_features():
    class Asks(nn.Module):
        def forward(self, input_ids: torch.Tensor, pixel_values: Any = None) -> torch.Tensor:
            count = int((input_ids == 39).sum())
            if pixel_values is not None and count != 8:
                raise ValueError(
                    f"Image features and image tokens do not match, tokens: {count}, features: 8"
                )
            return input_ids

    given, which = find_inputs(Asks(), Config(image_token_id=39, vocab_size=40))
    assert which == "images" and given["pixel_values"].dim() == 4


def test_a_model_that_takes_the_sizes_of_images_without_images():
    class Speaks(nn.Module):
        def forward(self, input_ids: torch.Tensor, image_grid_thw: Any = None) -> torch.Tensor:
            return input_ids

    given, which = find_inputs(Speaks(), Config(vocab_size=40))
    assert which == "words" and list(given) == ["input_ids"]


def test_the_summary():
    rows = [
        Row("a", graphs=2, reasons=["break at /x/y.py:3 in f: no rule for g"]),
        Row("b", "wrong", reasons=["break at /x/z.py:9: no rule for g"], first_call=61,
            failures=["x"]),
        Row("c", "crashed", "why"), Row("d", "eager fails"),
    ]  # fmt: skip
    text = summary(rows)
    reason = "2 no rule for g  (a: /x/y.py:3 in f)"
    for line in ("4 models", "1 right", "1 wrong: b", "1 crashed: c", "1 eager fails", reason):
        assert line in text
    assert "1 without a graph: b" in text and "in the first call: b" in text
