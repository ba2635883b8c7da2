"""All models, and the rows that are measured of each; rows.txt has the rows as they were decided.

That file is committed before anything is measured, and no line of it is ever removed: a row that is
not measured any more counts as slower on the page. `--list` adds the new ones.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.suites import timm_models, torchbench, transformers_models
from benchmarks.suites.models import PARTS, Model, Row

DECIDED = Path(__file__).with_name("rows.txt")
REPLAYED, DEFAULT = "reduce-overhead", "default"

VARIANTS = {
    # part: (dtype, whether the card is filled, mode, directions)
    "rest": [("bfloat16", True, REPLAYED, "both")],
    "core": [("bfloat16", True, REPLAYED, "both")],
    "wide": [
        ("bfloat16", True, REPLAYED, "both"),
        ("float32", True, REPLAYED, "both"),
        ("bfloat16", False, REPLAYED, "both"),
        ("bfloat16", True, DEFAULT, "both"),
        ("bfloat16", False, DEFAULT, "inference"),
    ],
}
HALVES = {
    "torchbench/resnet50", "torchbench/unet", "torchbench/llama", "torchbench/nanogpt",
    "torchbench/stable_diffusion_unet", "timm/convnext_tiny", "timm/vit_base_patch16_224",
    "transformers/bert", "transformers/t5", "transformers/whisper",
}  # fmt: skip
"""Models that are also measured in float16, inference alone: training needs scaled losses."""


def named(*suites: list[Model]) -> dict[str, Model]:
    models: dict[str, Model] = {}
    for suite in suites:
        for model in suite:
            name = f"{model.suite}/{model.name}"
            if name in models:
                raise ValueError(f"two models are called {name}")
            models[name] = model
    return models


MODELS = named(torchbench.MODELS, timm_models.MODELS, transformers_models.MODELS)


def runs(model: Model, training: bool) -> bool:
    return bool(model.loss) if training else model.inference


def rows(model: Model) -> list[Row]:
    """What is measured of a model, in order."""
    found, variants = [], list(VARIANTS[model.part])
    if f"{model.suite}/{model.name}" in HALVES:
        variants.append(("float16", True, REPLAYED, "inference"))
    for dtype, full, mode, directions in variants:
        for direction in ("inference", "training"):
            training = direction == "training"
            if not runs(model, training) or (training and directions != "both"):
                continue
            batch = model.train if training else model.batch
            size = batch if full else 1
            found.append(Row(model.suite, model.name, direction, dtype, size, full, mode))
    return found


def in_order(models: list[Model]) -> list[Model]:
    """Models with many rows first, and of those with as many the slowest, so that no core is left
    with a long one at the end."""
    return sorted(models, key=lambda model: (PARTS.index(model.part), -model.seconds))


def all_rows() -> list[Row]:
    found = []
    for model in MODELS.values():
        found += rows(model)
    return found


def decided() -> list[str]:
    """The names of all rows that were ever in the list."""
    return DECIDED.read_text("utf-8").splitlines() if DECIDED.exists() else []


def decide() -> int:
    """Add the rows that are not in the file yet; how many there are."""
    there = decided()
    new = [row.name for row in all_rows() if row.name not in there]
    DECIDED.write_text("\n".join([*there, *new]) + "\n", "utf-8")
    return len(new)
