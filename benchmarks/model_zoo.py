"""Tiny models of `transformers`, with random weights: one of each architecture that the table of
docs/models.md has.

Nothing is downloaded. Every configuration is its architecture's own with small sizes; what a call
does (caches, masks, dropout off in eval mode) is as the library has it by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Model = tuple[torch.nn.Module, dict[str, Any]]
"""A model in eval mode, and the keyword arguments of a call of it."""

MODELS: dict[str, Callable[[], Model]] = {}
"""By the name in the table: what builds it."""

_DECODER = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_MARKS = {"bos_token_id": 1, "eos_token_id": 2}
_LLAMA = {
    **_DECODER, **_MARKS, "max_position_embeddings": 96, "intermediate_size": 48,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}  # fmt: skip
_SEQ2SEQ = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 64,
}
_ENCODER = {**_DECODER, "intermediate_size": 37}
_VISION = {
    "image_size": 30,
    "patch_size": 5,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
}


def builds(name: str) -> Callable[[Callable[[], Model]], Callable[[], Model]]:
    def register(build: Callable[[], Model]) -> Callable[[], Model]:
        MODELS[name] = build
        return build

    return register


def make(name: str, seed: int = 0) -> Model:
    """The model of that name; its weights and inputs are drawn from the seed."""
    torch.manual_seed(seed)
    model, inputs = MODELS[name]()
    return model.eval(), inputs


def _tokens(batch: int = 2, length: int = 7, vocabulary: int = 99) -> torch.Tensor:
    """Token numbers that are none of the special ones."""
    return torch.randint(5, vocabulary, (batch, length))


def _text(masked: bool = True) -> dict[str, Any]:
    """Token numbers and a mask that hides the end of the second row."""
    inputs = {"input_ids": _tokens()}
    if masked:
        inputs["attention_mask"] = torch.ones(2, 7, dtype=torch.long)
        inputs["attention_mask"][1, 5:] = 0
    return inputs


def _pixels(size: int = 30, batch: int = 2) -> dict[str, Any]:
    return {"pixel_values": torch.rand(batch, 3, size, size)}


def _language_model(
    family: str, head: str = "ForCausalLM", masked: bool = True, **sizes: Any
) -> Callable[[], Model]:
    """Builds `{family}{head}` from a small `{family}Config`."""

    def build() -> Model:
        import transformers

        config = getattr(transformers, f"{family}Config")(**sizes)
        return getattr(transformers, f"{family}{head}")(config), _text(masked)

    return build


MODELS["GPT-2"] = _language_model(
    "GPT2", "LMHeadModel", vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=96, **_MARKS
)
MODELS["Llama"] = _language_model("Llama", **_LLAMA)
MODELS["Mistral"] = _language_model("Mistral", **_LLAMA)
MODELS["Qwen2"] = _language_model("Qwen2", **_LLAMA)
MODELS["Qwen3"] = _language_model("Qwen3", **_LLAMA, head_dim=8)
MODELS["Gemma2"] = _language_model("Gemma2", **_LLAMA, head_dim=8)
MODELS["Phi3"] = _language_model("Phi3", **_LLAMA)
MODELS["Mixtral"] = _language_model("Mixtral", **_LLAMA, num_local_experts=4)
MODELS["Bloom"] = _language_model("Bloom", vocab_size=99, hidden_size=32, n_layer=2, n_head=4)
MODELS["OPT"] = _language_model("OPT", **_DECODER, ffn_dim=37, word_embed_proj_dim=32)
MODELS["Mamba"] = _language_model(
    "Mamba",
    masked=False,
    vocab_size=99,
    hidden_size=32,
    state_size=8,
    num_hidden_layers=2,
    time_step_rank=4,
)
MODELS["BERT"] = _language_model("Bert", "ForMaskedLM", **_ENCODER)
MODELS["RoBERTa"] = _language_model("Roberta", "ForMaskedLM", **_ENCODER)
MODELS["DistilBERT"] = _language_model(
    "DistilBert",
    "ForMaskedLM",
    vocab_size=99,
    dim=32,
    n_layers=2,
    n_heads=4,
    hidden_dim=37,
    max_position_embeddings=64,
)
MODELS["ALBERT"] = _language_model("Albert", "ForMaskedLM", **_ENCODER, embedding_size=16)
MODELS["DeBERTa-v2"] = _language_model(
    "DebertaV2",
    "ForMaskedLM",
    **_ENCODER,
    relative_attention=True,
    position_biased_input=False,
    pos_att_type=["p2c", "c2p"],
)
MODELS["ModernBERT"] = _language_model(
    "ModernBert",
    "ForMaskedLM",
    **_ENCODER,
    **_MARKS,
    pad_token_id=0,
    cls_token_id=1,
    sep_token_id=2,
)


@builds("T5")
def _t5() -> Model:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=99,
        d_model=32,
        d_kv=8,
        d_ff=37,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config), {**_text(), "decoder_input_ids": _tokens(length=5)}


@builds("BART")
def _bart() -> Model:
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(BartConfig(**_SEQ2SEQ)), {
        **_text(),
        "decoder_input_ids": _tokens(length=5),
    }


@builds("Marian")
def _marian() -> Model:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(**_SEQ2SEQ, pad_token_id=0, decoder_start_token_id=0)
    return MarianMTModel(config), {**_text(), "decoder_input_ids": _tokens(length=5)}


@builds("ViT")
def _vit() -> Model:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(**_VISION)), _pixels()


@builds("BEiT")
def _beit() -> Model:
    from transformers import BeitConfig, BeitForImageClassification

    return BeitForImageClassification(
        BeitConfig(**_VISION, use_relative_position_bias=True)
    ), _pixels()


def _swin_config(**more: Any) -> Any:
    from transformers import SwinConfig

    return SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[1, 2, 1],
        num_heads=[2, 2, 4],
        window_size=2,
        **more,
    )


@builds("Swin")
def _swin() -> Model:
    from transformers import SwinForImageClassification

    return SwinForImageClassification(_swin_config()), _pixels(32)


@builds("ConvNeXT")
def _convnext() -> Model:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[10, 20, 30, 40], depths=[2, 2, 3, 2])
    return ConvNextForImageClassification(config), _pixels(32)


def _resnet_config(**more: Any) -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=10, hidden_sizes=[10, 20, 30, 40], depths=[1, 1, 2, 1], **more
    )


@builds("ResNet")
def _resnet() -> Model:
    from transformers import ResNetForImageClassification

    return ResNetForImageClassification(_resnet_config()), _pixels(32)


@builds("MobileNetV2")
def _mobilenet() -> Model:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    return MobileNetV2ForImageClassification(
        MobileNetV2Config(image_size=32, depth_multiplier=0.25)
    ), _pixels(32)


@builds("Segformer")
def _segformer() -> Model:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16], decoder_hidden_size=16
    )
    return SegformerForSemanticSegmentation(config), _pixels(64)


def _detr_config(config: type, **more: Any) -> Any:
    """A DETR whose backbone is the library's own ResNet."""
    return config(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=_resnet_config(out_features=["stage4"]),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=37,
        decoder_ffn_dim=37,
        num_queries=6,
        **more,
    )


@builds("DETR")
def _detr() -> Model:
    from transformers import DetrConfig, DetrForObjectDetection

    return DetrForObjectDetection(_detr_config(DetrConfig)), _pixels(64)


@builds("Conditional-DETR")
def _conditional_detr() -> Model:
    from transformers import ConditionalDetrConfig, ConditionalDetrForObjectDetection

    return ConditionalDetrForObjectDetection(_detr_config(ConditionalDetrConfig)), _pixels(64)


def _four_stages() -> Any:
    from transformers import SwinConfig

    return SwinConfig(
        image_size=64,
        patch_size=4,
        embed_dim=16,
        depths=[1, 1, 1, 1],
        num_heads=[2, 2, 4, 4],
        window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )


@builds("MaskFormer")
def _maskformer() -> Model:
    from transformers import DetrConfig, MaskFormerConfig, MaskFormerForInstanceSegmentation

    config = MaskFormerConfig(
        backbone_config=_four_stages(),
        decoder_config=_detr_config(DetrConfig),
        fpn_feature_size=32,
        mask_feature_size=32,
    )
    return MaskFormerForInstanceSegmentation(config), _pixels(64)


@builds("Mask2Former")
def _mask2former() -> Model:
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation

    config = Mask2FormerConfig(
        backbone_config=_four_stages(),
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=64,
        encoder_layers=2,
        decoder_layers=2,
        num_attention_heads=4,
        dim_feedforward=64,
        num_queries=6,
    )
    return Mask2FormerForUniversalSegmentation(config), _pixels(64)


_TEXT_TOWER = {
    **_ENCODER,
    "max_position_embeddings": 16,
    "eos_token_id": 98,
    "bos_token_id": 1,
    "pad_token_id": 0,
}


@builds("OwlViT")
def _owlvit() -> Model:
    from transformers import OwlViTConfig, OwlViTForObjectDetection

    config = OwlViTConfig(text_config=_TEXT_TOWER, vision_config=_VISION, projection_dim=32)
    return OwlViTForObjectDetection(config), {**_text(), **_pixels(batch=2)}


@builds("CLIP")
def _clip() -> Model:
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(text_config=_TEXT_TOWER, vision_config=_VISION, projection_dim=32)
    return CLIPModel(config), {**_text(), **_pixels()}


@builds("Whisper")
def _whisper() -> Model:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=99,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=37,
        decoder_ffn_dim=37,
        num_mel_bins=8,
        max_source_positions=30,
        max_target_positions=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        begin_suppress_tokens=None,
        suppress_tokens=None,
    )
    inputs = {"input_features": torch.randn(2, 8, 60), "decoder_input_ids": _tokens(length=5)}
    return WhisperForConditionalGeneration(config), inputs


@builds("Wav2Vec2")
def _wav2vec2() -> Model:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        conv_dim=(16, 16, 16),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 3),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
    )
    return Wav2Vec2ForCTC(config), {"input_values": torch.randn(2, 1600)}
