"""The comparison behind `python -m tests.zoo_training`, on small models of its own, and on two of
the zoo where `transformers` is installed."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from benchmarks import model_zoo
from tests import zoo_training
from tests.op_outcome import Different
from tests.zoo_training import Trial, check_each, examine


class Head(nn.Linear):
    """Scores, with a running mean of what they are made of."""

    def __init__(self) -> None:
        super().__init__(16, 20)
        self.register_buffer("mean", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(x.detach().mean(), alpha=0.1)
        return super().forward(x)


class Text(nn.Module):
    """Words (batch, length), of which some are masked, that look at each other; with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.norm = nn.LayerNorm(16)
        self.head = Head()

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.words(words)
        hidden = x + F.dropout(
            F.scaled_dot_product_attention(x, x, x, mask.bool()[:, None]), 0.1, self.training
        )
        hidden = self.norm(hidden)
        return {"scores": self.head(hidden), "hidden": hidden}


class Images(nn.Module):
    """Convolutions with dropout and batch norm, which refuses a single image."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 4, 4), nn.SiLU(), nn.Dropout2d(0.2), nn.Conv2d(8, 8, 2),
            nn.BatchNorm2d(8), nn.Flatten(),
        )  # fmt: skip

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.layers(pixels)


SMALL = {
    "Text": lambda: (
        Text(),
        {
            "words": torch.randint(20, (2, 5)),
            "mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
        },
    ),
    "Images": lambda: (Images(), {"pixels": torch.randn(2, 3, 8, 8)}),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, build in SMALL.items():
        monkeypatch.setitem(model_zoo.MODELS, name, build)


@pytest.mark.parametrize(
    ("name", "optimizer", "compile"), [("Text", "AdamW", "step"), ("Images", "SGD", "module")]
)
def test_small_models(name: str, optimizer: str, compile: str) -> None:
    row = examine(name, optimizer, compile)
    assert not row.failures and not row.reasons[1:], row
    assert (
        row.steps == len(zoo_training.CALLS)
        and row.refused == (name == "Images")
        and row.graphs >= 2
    )
    assert 0 < row.worst <= 1 and "equal" in str(row)


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
@pytest.mark.parametrize("name", ["BERT", "ViT"])
def test_models_of_the_zoo(name: str) -> None:
    assert not examine(name).failures


def other(**changes: Any) -> Any:
    """What compiles into something that differs."""

    def compile(step: Any) -> Any:
        def wrong(inputs: Any) -> torch.Tensor:
            loss = step(inputs)
            peer = step.__self__
            parameter = peer.model.head.bias
            if "gradient" in changes:
                parameter.grad *= changes["gradient"]
            if "buffer" in changes:
                peer.model.head.mean *= changes["buffer"]
            if "update" in changes:
                parameter.data += changes["update"]
            if "draws" in changes:
                torch.rand(changes["draws"])
            if "raises" in changes:
                raise changes["raises"]
            if "none" in changes:
                parameter.grad = None
            return loss

        return wrong

    return compile


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gradient": 1.1}, "head.bias is updated"),
        ({"buffer": 1.1}, "head.mean is .* from float64's"),
        ({"update": 1e-5}, "head.bias is updated"),
        ({"draws": 1}, "random numbers"),
        ({"raises": KeyError("no")}, "raises KeyError: 'no', eager nothing"),
        ({"none": True}, "head.bias"),
    ],
)
def test_what_differs_is_found(
    changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingot, "compile", other(**changes))
    trial = Trial(*model_zoo.make("Text"))
    row = zoo_training.Row("Text")
    with pytest.raises(Different, match=said):
        trial._compare(row, trial.inputs, 0)
    trial.run(row)
    assert len(row.failures) == row.steps and "WRONG" in str(row)


def test_a_tensor_by_itself() -> None:
    exact = {
        "a": torch.ones(4, dtype=torch.float64),
        "b": torch.full((2,), 1e-3, dtype=torch.float64),
    }
    eager = {name: t.float() for name, t in exact.items()}
    check_each(eager, eager, exact)
    check_each({**eager, "b": eager["b"] + 1e-7}, eager, exact)
    for wrong in (
        eager["b"] * 1.01,
        eager["b"].double(),
        eager["b"][:1],
        eager["b"] * float("nan"),
    ):
        with pytest.raises(Different, match="b "):
            check_each({**eager, "b": wrong}, eager, exact)


def test_a_model_that_differs_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def in_process(name: str, options: Any) -> tuple[str, bool]:
        return f"{name}\n", name != "ViT"

    monkeypatch.setattr(zoo_training, "in_process", in_process)
    assert zoo_training.main(["BERT", "ViT"]) == 1 and zoo_training.main(["BERT"]) == 0
    assert capsys.readouterr().out == "BERT\nViT\nBERT\n"
    with pytest.raises(SystemExit):
        zoo_training.main(["no such model"])
