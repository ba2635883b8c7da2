"""Architectures of transformers, built from their configs with random weights: default or base
sizes, cut in the number of layers.

Experts, caches and dropout aside, what a call does is as the library has it by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.suites.models import Called, Draw, Model

SPEECH = 32_000  # samples: two seconds


def tokens(length: int) -> Draw:
    return lambda n: (torch.randint(5, 1000, (n, length)),)


def pairs(source: int, target: int) -> Draw:
    return lambda n: (*tokens(source)(n), *tokens(target)(n))


def pixels(size: int) -> Draw:
    return lambda n: (torch.randn(n, 3, size, size),)


def described(size: int, length: int) -> Draw:
    """Texts, each with an image."""
    return lambda n: (*tokens(length)(n), *pixels(size)(n))


def sound(n: int) -> tuple[Tensor]:
    return (torch.randn(n, SPEECH),)


def spectra(bands: int, time: int, length: int) -> Draw:
    return lambda n: (torch.randn(n, bands, time), *tokens(length)(n))


def frames(time: int, bands: int) -> Draw:
    return lambda n: (torch.randn(n, time, bands),)


KINDS: Mapping[str, tuple[Draw, tuple[str, ...]]] = {
    # what is drawn, and the keywords that it is given to
    "text": (tokens(128), ("input_ids",)),
    "long": (tokens(512), ("input_ids",)),
    "chunk": (tokens(256), ("input_ids",)),
    "translation": (pairs(128, 64), ("input_ids", "decoder_input_ids")),
    "image": (pixels(224), ("pixel_values",)),
    "image256": (pixels(256), ("pixel_values",)),
    "image384": (pixels(384), ("pixel_values",)),
    "image512": (pixels(512), ("pixel_values",)),
    "captions": (described(224, 32), ("input_ids", "pixel_values")),
    "questions": (described(384, 32), ("input_ids", "pixel_values")),
    "captions256": (described(256, 32), ("input_ids", "pixel_values")),
    "descriptions": (described(768, 16), ("input_ids", "pixel_values")),
    "descriptions352": (described(352, 32), ("input_ids", "pixel_values")),
    "sound": (sound, ("input_values",)),
    "spectrogram": (frames(1024, 128), ("input_values",)),
    "whisper": (spectra(80, 3000, 64), ("input_features", "decoder_input_ids")),
    "recorded": (
        lambda n: (torch.randn(n, 512, 80), *tokens(64)(n)),
        ("input_features", "decoder_input_ids"),
    ),
}

MARKS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA = MARKS | {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32_000,
    "max_position_embeddings": 2048,
}  # fmt: skip
SMALL = LLAMA | {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4,
    "num_attention_heads": 8,
}  # fmt: skip
SIX = {"num_hidden_layers": 6}
BOTH = {"encoder_layers": 4, "decoder_layers": 4}
RESNET = {"backbone_config": "resnet", "use_timm_backbone": False, "backbone": None}


def built(head: str, config: str, options: Mapping[str, Any]) -> nn.Module:
    """The class of that name, of a config of the other."""
    import transformers

    options = dict(options)
    if options.get("backbone_config") == "resnet":
        options["backbone_config"] = transformers.ResNetConfig(out_features=["stage4"])
        options["use_pretrained_backbone"] = False
    made = getattr(transformers, config)(**options)
    for part in (made, getattr(made, "text_config", None), getattr(made, "decoder", None)):
        if hasattr(part, "use_cache"):
            part.use_cache = False
    return getattr(transformers, head)(made)


def model(
    name: str,
    head: str,
    kind: str,
    batch: int,
    train: int,
    options: Mapping[str, Any] | None = None,
    *,
    results: tuple[str, ...] = ("logits",),
    loss: str = "classes",
    config: str = "",
    part: str = "core",
    seconds: float = 60.0,
) -> Model:
    """`config` is the config's class, if it is not the head's with another ending."""
    draw, names = KINDS[kind]
    given = config or head.rsplit("For", 1)[0].replace("LMHeadModel", "").replace("MTModel", "")
    given = given.removesuffix("Model") if not config else given
    given = given if given.endswith("Config") else f"{given}Config"

    def network() -> nn.Module:
        return Called(built(head, given, options or {}), names, results)

    return Model(
        "transformers", name, network, draw, batch, train, loss, "transformers", part, seconds
    )


CLIP = {"results": ("logits_per_image",), "config": "CLIPConfig"}

MODELS = [
    # encoders of text
    model("bert", "BertForMaskedLM", "text", 64, 32, SIX, part="wide"),
    model("roberta", "RobertaForMaskedLM", "text", 64, 32, SIX),
    model("distilbert", "DistilBertForMaskedLM", "text", 64, 32, part="wide"),
    model("albert", "AlbertForMaskedLM", "text", 64, 32,
        SIX | {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    model("electra", "ElectraForMaskedLM", "text", 128, 64, SIX),
    model("deberta", "DebertaForMaskedLM", "text", 32, 16,
        SIX | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, seconds=80),
    model("deberta_v2", "DebertaV2ForMaskedLM", "text", 32, 16,
        SIX | {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072,
               "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, part="wide",
        seconds=80),
    model("mobilebert", "MobileBertForMaskedLM", "text", 64, 32, {"num_hidden_layers": 8},
        seconds=90),
    model("megatron_bert", "MegatronBertForMaskedLM", "text", 32, 16, SIX),
    model("squeezebert", "SqueezeBertForMaskedLM", "text", 64, 32, SIX),
    model("mpnet", "MPNetForMaskedLM", "text", 64, 32, SIX),
    model("xlnet", "XLNetLMHeadModel", "text", 32, 16, {"n_layer": 4}, config="XLNetConfig",
        seconds=80),
    model("roformer", "RoFormerForMaskedLM", "text", 64, 32, SIX),
    model("convbert", "ConvBertForMaskedLM", "text", 32, 16, SIX, part="rest", seconds=80),
    model("modernbert", "ModernBertForMaskedLM", "text", 64, 32,
        {"num_hidden_layers": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
         "cls_token_id": 1, "sep_token_id": 2}),
    model("layoutlm", "LayoutLMForMaskedLM", "text", 64, 32, SIX, config="LayoutLMConfig"),
    model("rembert", "RemBertForMaskedLM", "text", 32, 16,
        {"num_hidden_layers": 4, "vocab_size": 50_000}, part="rest"),
    model("big_bird", "BigBirdForMaskedLM", "long", 16, 8,
        SIX | {"attention_type": "original_full"}, part="rest"),
    model("esm", "EsmForMaskedLM", "long", 16, 8,
        SIX | {"vocab_size": 1000, "pad_token_id": 1, "mask_token_id": 2,
               "position_embedding_type": "rotary", "token_dropout": False}, part="rest"),
    # decoders of text
    model("gpt2", "GPT2LMHeadModel", "long", 8, 4, MARKS | {"n_layer": 6}, part="wide"),
    model("gpt_neo", "GPTNeoForCausalLM", "long", 8, 4,
        MARKS | {"hidden_size": 768, "num_layers": 6, "num_heads": 12,
                 "attention_types": [[["global", "local"], 3]]}),
    model("gpt_neox", "GPTNeoXForCausalLM", "long", 8, 4,
        MARKS | {"hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16,
                 "intermediate_size": 4096}),
    model("gptj", "GPTJForCausalLM", "long", 8, 4,
        MARKS | {"n_embd": 1024, "n_layer": 6, "n_head": 16, "rotary_dim": 64}),
    model("opt", "OPTForCausalLM", "long", 8, 4, SIX),
    model("bloom", "BloomForCausalLM", "long", 4, 2,
        {"hidden_size": 1024, "n_layer": 6, "n_head": 16, "vocab_size": 50_000}),
    model("xglm", "XGLMForCausalLM", "long", 4, 2,
        {"num_layers": 6, "vocab_size": 50_000, "d_model": 1024}),
    model("llama", "LlamaForCausalLM", "long", 8, 4, LLAMA, part="wide"),
    model("mistral", "MistralForCausalLM", "long", 8, 4, LLAMA),
    model("mixtral", "MixtralForCausalLM", "chunk", 4, 2, SMALL | {"num_local_experts": 8},
        seconds=80),
    model("qwen2", "Qwen2ForCausalLM", "long", 8, 4, LLAMA),
    model("qwen3", "Qwen3ForCausalLM", "long", 8, 4, LLAMA | {"head_dim": 64}),
    model("gemma", "GemmaForCausalLM", "long", 8, 4, LLAMA | {"head_dim": 64}, part="rest"),
    model("gemma2", "Gemma2ForCausalLM", "long", 8, 4, LLAMA | {"head_dim": 64}),
    model("gemma3", "Gemma3ForCausalLM", "long", 8, 4, LLAMA | {"head_dim": 64},
        config="Gemma3TextConfig", part="rest"),
    model("phi", "PhiForCausalLM", "long", 8, 4, LLAMA | {"num_key_value_heads": 16}),
    model("phi3", "Phi3ForCausalLM", "long", 8, 4, LLAMA),
    model("falcon", "FalconForCausalLM", "long", 8, 4,
        MARKS | {"hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16,
                 "vocab_size": 32_000}),
    model("stablelm", "StableLmForCausalLM", "long", 8, 4, LLAMA, part="rest"),
    model("olmo2", "Olmo2ForCausalLM", "long", 8, 4, LLAMA, part="rest"),
    model("granite", "GraniteForCausalLM", "long", 8, 4, LLAMA, part="rest"),
    model("mamba", "MambaForCausalLM", "text", 8, 4,
        {"hidden_size": 512, "num_hidden_layers": 2, "vocab_size": 32_000}, seconds=120),
    # from text to text
    model("t5", "T5ForConditionalGeneration", "translation", 64, 32, part="wide"),
    model("mt5", "MT5ForConditionalGeneration", "translation", 32, 16,
        {"num_layers": 4, "vocab_size": 50_000}),
    model("bart", "BartForConditionalGeneration", "translation", 32, 16, BOTH),
    model("mbart", "MBartForConditionalGeneration", "translation", 32, 16, BOTH, part="rest"),
    model("pegasus", "PegasusForConditionalGeneration", "translation", 32, 16, BOTH),
    model("marian", "MarianMTModel", "translation", 32, 16,
        BOTH | {"d_model": 512, "decoder_start_token_id": 0}),
    model("m2m_100", "M2M100ForConditionalGeneration", "translation", 32, 16,
        BOTH | {"vocab_size": 50_000}),
    # images
    model("vit", "ViTForImageClassification", "image", 128, 48, SIX, part="wide"),
    model("deit", "DeiTForImageClassification", "image", 128, 48, SIX),
    model("beit", "BeitForImageClassification", "image", 96, 32,
        SIX | {"use_relative_position_bias": True}),
    model("dinov2", "Dinov2ForImageClassification", "image", 96, 32, SIX | {"image_size": 224}),
    model("swin", "SwinForImageClassification", "image", 96, 32, {"depths": [2, 2, 4, 2]},
        seconds=70),
    model("swinv2", "Swinv2ForImageClassification", "image256", 64, 24,
        {"image_size": 256, "window_size": 8, "depths": [2, 2, 4, 2]}, seconds=80, part="rest"),
    model("convnext", "ConvNextForImageClassification", "image", 96, 48),
    model("regnet", "RegNetForImageClassification", "image", 96, 32,
        {"hidden_sizes": [64, 128, 256, 512], "groups_width": 32, "depths": [2, 4, 8, 2]}),
    model("mobilevit", "MobileViTForImageClassification", "image256", 128, 48, seconds=70),
    model("poolformer", "PoolFormerForImageClassification", "image", 128, 64, part="rest"),
    model("pvt", "PvtForImageClassification", "image", 128, 48),
    model("segformer", "SegformerForSemanticSegmentation", "image512", 16, 8, loss="pixels",
        part="wide", seconds=70),
    model("dpt", "DPTForDepthEstimation", "image384", 16, 8, {"num_hidden_layers": 12},
        results=("predicted_depth",), loss="squares", config="DPTConfig", seconds=70),
    model("detr", "DetrForObjectDetection", "image512", 8, 4, RESNET,
        results=("logits", "pred_boxes"), loss="squares", seconds=90),
    model("yolos", "YolosForObjectDetection", "image512", 8, 4, SIX | {"image_size": [512, 512]},
        results=("logits", "pred_boxes"), loss="squares"),
    # speech
    model("wav2vec2", "Wav2Vec2ForCTC", "sound", 16, 8, SIX, seconds=70),
    model("hubert", "HubertForCTC", "sound", 16, 8, SIX, part="rest", seconds=70),
    model("wavlm", "WavLMForCTC", "sound", 16, 8, SIX, seconds=80),
    model("sew", "SEWForCTC", "sound", 16, 8, SIX, part="rest", seconds=70),
    model("whisper", "WhisperForConditionalGeneration", "whisper", 8, 4, part="wide"),
    model("speech_to_text", "Speech2TextForConditionalGeneration", "recorded", 32, 16,
        BOTH | {"vocab_size": 10_000}),
    model("ast", "ASTForAudioClassification", "spectrogram", 16, 8, SIX),
    # images and text
    model("clip", "CLIPModel", "captions", 64, 32, results=("logits_per_image",), seconds=90),
    model("siglip", "SiglipModel", "captions", 32, 16, results=("logits_per_image",), seconds=90),
    model("vilt", "ViltModel", "questions", 16, 8, SIX, results=("last_hidden_state",),
        loss="squares", config="ViltConfig"),
    model("blip", "BlipForImageTextRetrieval", "questions", 8, 4, results=("itm_score",),
        config="BlipConfig", part="rest", seconds=100),
    model("clipseg", "CLIPSegForImageSegmentation", "descriptions352", 8, 4, loss="squares",
        config="CLIPSegConfig", part="rest", seconds=90),
    model("owlvit", "OwlViTForObjectDetection", "descriptions", 4, 2,
        results=("logits", "pred_boxes"), loss="squares", seconds=90),
    model("git", "GitForCausalLM", "captions", 16, 8, SIX, part="rest", seconds=80),
]  # fmt: skip
