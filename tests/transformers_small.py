"""Small models of the package `transformers`: any base model, made small through its config, with
inputs that it takes.

Neither is known beforehand, so both are tried: configs from the smallest to the default one, inputs
by the names of forward's parameters from all that a model takes to words alone, until eager runs.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

WIDTHS = dict.fromkeys((
    "hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "hidden_dim",
    "encoder_hidden_size", "decoder_hidden_size", "word_embed_proj_dim", "fpn_hidden_size",
    "mask_feature_size", "feature_size_out",
), 32) | dict.fromkeys((
    "intermediate_size", "ffn_dim", "n_inner", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim",
    "ffn_hidden_size",
    "dim_feedforward", "encoder_feedforward_dim",
), 48) | dict.fromkeys((
    "num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads",
    "decoder_attention_heads",
    "attention_heads",
), 4) | dict.fromkeys((
    "head_dim", "d_kv", "d_k", "d_v", "attention_head_size", "qk_rope_head_dim", "qk_nope_head_dim",
    "v_head_dim",
), 8) | {
    "num_key_value_heads": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
    "state_size": 8, "time_step_rank": 4, "rotary_dim": 4, "q_lora_rank": 16, "kv_lora_rank": 16,
    "projection_dim": 16,
}  # fmt: skip
DEPTHS = dict.fromkeys((
    "num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers",
    "num_decoder_layers", "n_layers", "num_encoder_layers", "encoder_num_layers",
    "decoder_num_layers", "num_blocks", "depth",
), 2)  # fmt: skip
COUNTS = dict.fromkeys((
    "max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions",
), 64) | dict.fromkeys(("num_experts", "num_local_experts",
"n_routed_experts"), 4) | dict.fromkeys((
    "layerdrop", "encoder_layerdrop", "decoder_layerdrop",
), 0) | {
    "vocab_size": 99, "num_experts_per_tok": 2, "num_labels": 3, "type_vocab_size": 2,
    "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "num_queries": 8,
}  # fmt: skip
IMAGES = {"image_size": 32, "patch_size": 8}
CONFIGS = {
    "small": WIDTHS | DEPTHS | COUNTS | IMAGES | {"num_channels": 3},
    "small, its images": WIDTHS | DEPTHS | COUNTS,
    "its heads": {
        k: v for k, v in (WIDTHS | DEPTHS | COUNTS | IMAGES).items() if v != 8 or k == "patch_size"
    }
    | {"hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1},
    "its widths": DEPTHS | COUNTS | IMAGES,
    "its widths and images": DEPTHS | COUNTS,
}
"""Which numbers of a config are replaced, in the order in which this is tried."""
MOST = 40_000_000
"""Parameters that a model may have."""
BATCH, LENGTH = 2, 12


class NotBuilt(Exception):
    """No small model could be made of a config."""


class EagerFails(Exception):
    """No inputs were found that the model takes."""


def nested(config: Any) -> Iterator[Any]:
    """The config and those that it holds."""
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "to_dict"):
            yield from nested(value)


def find(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these that the config has, or one that it holds."""
    for part in nested(config):
        for name in names:
            if isinstance(found := vars(part).get(name), (int, float, str, list, tuple, dict)):
                return found
    return default


PARTS: dict[str, dict[str, Any]] = {
    "attn_layer_indices": {"attn_layer_indices": [1]},
    "vocabulary_map": {"vocabulary_map": {"<image>": 4}},
    "prediction_length": {"prediction_length": 4, "context_length": 8},
    "mamba_n_heads": {"mamba_n_heads": 8, "mamba_d_head": 8},
    "topk_group": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "use_timm_backbone": {
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone": None,
    },
}
"""What else is replaced, where a config has the first of the names."""


def shrink(config: Any, numbers: dict[str, int]) -> None:
    """Replace these numbers in a config and those that it holds."""
    for part in nested(config):
        without_timm(part)
    for part in nested(config):
        shrink_layers(part, numbers)
        for name, further in PARTS.items():
            if name in vars(part):
                for other, value in further.items():
                    set_quietly(part, other, value)
        for name, value in list(vars(part).items()):
            if name in numbers and isinstance(value, (int, float)) and not isinstance(value, bool):
                set_quietly(part, name, type(value)(numbers[name]))
        # all heads have keys of their own
        if "kv_lora_rank" in vars(part) and "num_key_value_heads" in vars(part):
            set_quietly(part, "num_key_value_heads", vars(part).get("num_attention_heads"))
        sections(part)


def without_timm(config: Any) -> None:
    """A backbone of transformers' own instead of the package timm's."""
    for name, value in list(vars(config).items()):
        if type(value).__name__ == "TimmBackboneConfig":
            from transformers import ResNetConfig

            stages = [f"stage{k}" for k in range(1, 5)]
            sizes = {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
            features = stages[-len(getattr(value, "out_indices", None) or (1,)) :]
            set_quietly(config, name, ResNetConfig(out_features=features, **sizes))


def shrink_layers(config: Any, numbers: dict[str, int]) -> None:
    """Leave one layer of each type, two at least, in the config's lists with an item for each
    layer."""
    count = vars(config).get("num_hidden_layers")
    kinds = vars(config).get("layer_types")
    if "num_hidden_layers" not in numbers or not isinstance(kinds, list) or not kinds:
        return
    kept = sorted({kinds.index(kind) for kind in kinds})
    kept = kept if len(kept) > 1 else [0, len(kinds) - 1]
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == len(kinds):
            set_quietly(config, name, [value[k] for k in kept])
    if isinstance(count, int):
        set_quietly(config, "num_hidden_layers", len(kept))


def sections(config: Any) -> None:
    """Rotary embeddings of several axes: their parts together are half of a head."""
    heads = vars(config).get("num_attention_heads") or 1
    width = vars(config).get("head_dim") or (vars(config).get("hidden_size") or 0) // heads
    for name in ("rope_parameters", "rope_scaling"):
        given = vars(config).get(name)
        if not isinstance(given, dict) or not width:
            continue
        # which is in the model's code, where the config has none
        parts = given.get("mrope_section") or [2, 1, 1]
        half = int(width * given.get("partial_rotary_factor", 1)) // 2
        if sum(parts) != half and half >= len(parts):
            others = [max(1, half * part // sum(parts)) for part in parts[1:]]
            given["mrope_section"] = [half - sum(others), *others]


def set_quietly(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except Exception:  # one that is computed, or that the config refuses
        pass


def names() -> list[str]:
    """Those of all base models."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    return [name for name in CONFIG_MAPPING if CONFIG_MAPPING[name] in MODEL_MAPPING]


def make(name: str) -> tuple[nn.Module, dict[str, Any], str]:
    """A model in inference mode, its inputs, and what was tried to get there.

    Raises NotBuilt or EagerFails with the reason that the first config was refused for."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    try:
        kind: Any = MODEL_MAPPING[CONFIG_MAPPING[name]]
    except ValueError as error:  # the package has no such class
        raise NotBuilt(str(error).strip()[:150]) from None
    kind = kind[0] if isinstance(kind, (tuple, list)) else kind
    problems: dict[type[Exception], str] = {}
    for how, numbers in CONFIGS.items():
        try:
            config = CONFIG_MAPPING[name]()
            shrink(config, numbers)
            model = build(kind, config, "widths" not in how)
        except ImportError as error:
            raise NotBuilt(str(error).strip()[:150]) from None
        except Exception as error:
            problems.setdefault(NotBuilt, f"{type(error).__name__}: {str(error).strip()[:150]}")
            continue
        try:
            found, inputs = find_inputs(model, config)
        except EagerFails as error:
            problems.setdefault(EagerFails, str(error))
            continue
        return model, found, f"{how}, {inputs}"
    for outcome in (EagerFails, NotBuilt):
        if outcome in problems:
            raise outcome(problems[outcome])
    raise AssertionError


def build(kind: Any, config: Any, is_small: bool = True) -> nn.Module:
    """The model, unless it is too large."""
    try:
        with torch.device("meta"):
            size = sum(p.numel() for p in kind(copy.deepcopy(config)).parameters())
    except Exception:  # it computes with numbers as it is made
        size = 0 if is_small else MOST + 1
    if size <= MOST:
        torch.manual_seed(0)
        model = kind(config).eval()
        size = sum(p.numel() for p in model.parameters())
    if size > MOST:
        raise ValueError(
            f"{size / 1e6:.0f} million parameters" if is_small else "its size cannot be told"
        )
    return model


# -- inputs ----------------------------------------------------------------------------------------


class Inputs:
    """Arguments by the names of forward's parameters. `images`, `audio`: how these are shaped."""

    def __init__(self, model: nn.Module, config: Any, seed: int = 0) -> None:
        self.config = config
        self.names = inspect.signature(model.forward).parameters
        self.random = torch.Generator().manual_seed(seed)

    def words(self, length: int = LENGTH) -> torch.Tensor:
        most = min(90, find(self.config, "vocab_size", default=90))
        return torch.randint(3, max(most, 4), (BATCH, length), generator=self.random)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=self.random)

    def size(self) -> tuple[int, int]:
        size = find(self.config, "image_size", "img_size", "input_size", default=32)
        if isinstance(size, dict):
            size = [size.get("height", 32), size.get("width", 32)]
        return (
            (int(size), int(size))
            if isinstance(size, (int, float))
            else (int(size[0]), int(size[-1]))
        )

    def channels(self) -> int:
        return int(find(self.config, "num_channels", "in_channels", "in_chans", default=3))

    def patches(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Two images of 4 times 4 patches, and their (time, height, width) in patches."""
        patch = int(find(self.config, "patch_size", default=8))
        times = int(find(self.config, "temporal_patch_size", default=1))
        grid = torch.tensor([[1, 4, 4]] * BATCH)
        return self.normal(BATCH * 16, self.channels() * times * patch * patch), grid

    def common(self) -> dict[str, Any]:
        """What does not come in variants."""
        width = find(self.config, "hidden_size", "d_model", default=32)
        frames = int(find(self.config, "num_frames", "frames_per_clip", default=2))
        boxes = torch.tensor([1, 2, 9, 12]).expand(BATCH, LENGTH, 4).clone()
        made = {
            "input_ids": self.words, "decoder_input_ids": lambda: self.words(6),
            "bbox": lambda: boxes,
            "visual_feats": lambda: self.normal(BATCH, 4,
                find(self.config, "visual_feat_dim", default=2048)),
            "visual_pos": lambda: self.normal(BATCH, 4, 4),
            "pixel_values_videos": lambda: self.normal(BATCH, frames, self.channels(),
                *self.size()),
            "qformer_input_ids": self.words,
            "query_embeds": lambda: self.normal(BATCH, 8, width),
            "past_values": lambda: self.series(),
            "past_time_features": lambda: self.past(self.features()),
            "past_observed_mask": lambda: self.past(),
            "future_values": lambda: self.normal(BATCH,
                find(self.config, "prediction_length", default=4)),
            "future_time_features": lambda: self.normal(
                BATCH, find(self.config, "prediction_length", default=4), self.features()
            ),
            "action_embeds": lambda: self.normal(BATCH, 4, width),
            "noise_embeds": lambda: self.normal(BATCH, 4, width),
            "context_hidden_states": lambda: self.normal(BATCH, 4, width),
            "prompt_pixel_values": lambda: self.normal(BATCH, 3, *self.size()),
            "prompt_masks": lambda: self.normal(BATCH, 3, *self.size()),
            "input": self.words, "task_inputs": self.words,
            "inputs": self.words, "latents": lambda: self.normal(BATCH, width, 12),
            "freq": lambda: torch.zeros(BATCH, 1, dtype=torch.long),
            "past_values_padding": lambda: torch.zeros(BATCH,
                find(self.config, "context_length", default=64)),
        }  # fmt: skip
        wanted = ("input_ids", "decoder_input_ids", "bbox", "visual_feats", "visual_pos")
        if "input_ids" not in self.names:
            wanted += ("pixel_values_videos",)
        return {
            name: made[name]() for name, p in self.names.items()
            if name in made and (name in wanted or p.default is inspect.Parameter.empty)
        }  # fmt: skip

    def features(self) -> int:
        return int(find(self.config, "num_time_features", default=0))

    def past(self, *further: int) -> torch.Tensor:
        length = find(self.config, "context_length", default=64)
        lags = (
            find(self.config, "lags_sequence", default=[0])
            if "past_time_features" in self.names
            else [0]
        )
        return torch.ones(BATCH, length + max(lags), *further)

    def series(self) -> torch.Tensor:
        if "past_time_features" in self.names:
            return self.past() * self.normal(*self.past().shape)
        channels = find(self.config, "num_input_channels")
        shape = (BATCH, find(self.config, "context_length", default=64))
        return self.normal(*shape, channels) if channels else self.normal(*shape)

    def images(self) -> Iterator[tuple[str, dict[str, Any]]]:
        names, size = self.names, self.size()
        if "grid_thw" in names or "image_grid_thw" in names:
            pixels, grid = self.patches()
            for first in [
                n for n in ("hidden_states", "pixel_values", "input_features") if n in names
            ][:1]:
                yield (
                    "patches",
                    {first: pixels, "grid_thw" if "grid_thw" in names else "image_grid_thw": grid},
                )
        if "spatial_shapes" in names:
            patch = int(find(self.config, "patch_size", default=8))
            pixels = self.normal(BATCH, 16, self.channels() * patch * patch)
            mask = {"pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.long)}
            mask = {name: value for name, value in mask.items() if name in names}
            yield (
                "patches",
                {"pixel_values": pixels, "spatial_shapes": torch.tensor([[4, 4]] * BATCH)} | mask,
            )
        for name in ("pixel_values", "image_pixel_values", "image", "images"):
            if name in names:
                yield "images", {name: self.normal(BATCH, self.channels(), *size)}
                yield "lists of images", {name: self.normal(BATCH, 1, self.channels(), *size)}

    def audio(self) -> Iterator[tuple[str, dict[str, Any]]]:
        names = self.names
        bins = int(find(
            self.config, "num_mel_bins", "feature_size", "n_mels", "mel_bins", "num_mels",
            "input_feat_size", "input_dim", "input_channels", "feature_projection_input_dim",
            "model_in_dim", default=80,
        ))  # fmt: skip
        masks = [
            name
            for name in ("input_features_mask", "attention_mask", "audio_mel_mask")
            if name in names
        ]
        masks = [name for name in masks if names[name].default is inspect.Parameter.empty]
        for name in ("input_features", "spectrogram", "audio_mel"):
            if name not in names:
                continue
            for length in (128, 256, 3000):
                mask = {given: torch.ones(BATCH, length, dtype=torch.long) for given in masks}
                yield f"{length} frames", {name: self.normal(BATCH, bins, length)} | mask
                yield (
                    f"{length} frames of features",
                    {name: self.normal(BATCH, length, bins)} | mask,
                )
        for name in ("input_values", "audio_values"):
            if name in names:
                yield "sound", {name: self.normal(BATCH, 2000)}
                yield "channels of sound", {name: self.normal(BATCH, 1, 2000)}
                length = int(find(self.config, "max_length", default=1024))
                yield (
                    "frames",
                    {
                        name: self.normal(
                            BATCH, length, int(find(self.config, "num_mel_bins", default=128))
                        )
                    },
                )

    def variants(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What to try, with as many kinds of input as there are first."""
        common = self.common()
        pictures, sounds = list(self.images()), list(self.audio())
        for picture, pixels in pictures:
            for sound, heard in sounds:
                yield f"{picture}, {sound}", common | pixels | heard
        for which, given in [*pictures, *sounds]:
            yield which, common | given
        yield "words" if "input_ids" in common else "others", common
        if len(common) > 1:
            yield "words", {name: common[name] for name in common if name.endswith("input_ids")}


def find_inputs(model: nn.Module, config: Any) -> tuple[dict[str, Any], str]:
    """The inputs that eager runs with, and what they are."""
    problems = []
    for which, given in Inputs(model, config).variants():
        if not given:
            continue
        given, error = with_places(model, config, given)
        if error is None:
            return given, which
        problems.append(f"{which}: {error}")
    raise EagerFails(problems[-1] if problems else "nothing is known that it takes")


def with_places(
    model: nn.Module, config: Any, given: dict[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """The inputs with as many places for images or sounds among the words as the model asks for,
    and its error."""
    error = run(model, given)
    for _ in range(2):
        asked = re.search(r"tokens\D{0,20}(\d+)\D+features\D{0,20}(\d+)", error or "")
        place = find(
            config, "image_token_id", "image_token_index", "audio_token_id", "audio_token_index"
        )
        if not asked or not isinstance(place, int) or "input_ids" not in given:
            break
        count, features = int(asked[2]), find(config, "hidden_size", default=32)
        for number in (count, count // features):
            if number and number % BATCH == 0 and number <= 2000:
                if place >= find(config, "vocab_size", default=99):
                    place = 98
                    for part in nested(config):
                        for name in (
                            "image_token_id",
                            "image_token_index",
                            "audio_token_id",
                            "audio_token_index",
                        ):
                            if name in vars(part):
                                set_quietly(part, name, place)
                places = torch.full((BATCH, number // BATCH), place)
                words = given["input_ids"].masked_fill(given["input_ids"] == place, 3)
                tried = given | {"input_ids": torch.cat((words, places), 1)}
                error = run(model, tried)
                if error is None:
                    return tried, None
    return given, error


def run(model: nn.Module, given: dict[str, Any]) -> str | None:
    """Why eager does not run, if it does not."""
    try:
        with torch.no_grad():
            model(**given)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip()[:150]}"
    return None
