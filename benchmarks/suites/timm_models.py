"""Architectures of timm, under their names there, as it builds them: random weights, no dropout."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.suites.models import Model

WIDE, CORE, REST = "wide", "core", "rest"

# name: (size of the images, batch in inference, in training, part, seconds of a row)
TABLE: dict[str, tuple[int, int, int, str, float]] = {
    # residual convolutions
    "resnet50": (224, 128, 64, CORE, 50),
    "ecaresnet50t": (224, 128, 48, CORE, 60),
    "resnest14d": (224, 128, 64, CORE, 50),
    "res2net50_14w_8s": (224, 128, 48, CORE, 110),
    "res2next50": (224, 128, 48, CORE, 80),
    "dla60": (224, 128, 48, CORE, 60),
    "dpn68": (224, 128, 48, CORE, 90),
    "gernet_l": (256, 128, 64, CORE, 50),
    "selecsls42b": (224, 256, 128, CORE, 45),
    "ese_vovnet19b_dw": (224, 256, 96, CORE, 40),
    "cspdarknet53": (256, 96, 32, CORE, 70),
    "regnety_002": (224, 512, 192, WIDE, 60),
    "repvgg_a0": (224, 256, 128, CORE, 60),
    "nfnet_l0": (224, 96, 32, CORE, 70),
    "hrnet_w18": (224, 64, 32, CORE, 200),
    "inception_v3": (299, 96, 48, CORE, 90),
    # light convolutions
    "efficientnet_b0": (224, 192, 64, WIDE, 70),
    "efficientnetv2_rw_t": (224, 96, 48, REST, 100),
    "mobilenetv3_large_100": (224, 256, 96, CORE, 60),
    "mobilenetv4_conv_small": (224, 512, 192, REST, 50),
    "fbnetc_100": (224, 256, 96, CORE, 60),
    "fbnetv3_b": (224, 128, 48, CORE, 100),
    "spnasnet_100": (224, 256, 96, CORE, 60),
    "mixnet_s": (224, 192, 64, CORE, 90),
    "tinynet_a": (192, 256, 96, CORE, 70),
    "lcnet_050": (224, 1024, 512, WIDE, 35),
    "rexnet_100": (224, 192, 64, CORE, 80),
    "ghostnet_100": (224, 256, 96, CORE, 80),
    # convolutions in the manner of transformers
    "convnext_tiny": (224, 96, 48, WIDE, 50),
    "convnextv2_nano": (224, 128, 64, CORE, 50),
    "convmixer_768_32": (224, 32, 16, CORE, 50),
    "inception_next_tiny": (224, 96, 48, REST, 60),
    "focalnet_tiny_srf": (224, 96, 48, REST, 70),
    "repvit_m1": (224, 128, 64, REST, 80),
    "edgenext_small": (256, 128, 48, CORE, 70),
    # perceptrons
    "mixer_b16_224": (224, 128, 64, WIDE, 40),
    "gmixer_24_224": (224, 128, 48, CORE, 50),
    "gmlp_s16_224": (224, 128, 48, CORE, 50),
    "resmlp_12_224": (224, 256, 96, CORE, 40),
    "poolformer_s12": (224, 128, 64, WIDE, 40),
    # attention
    "vit_tiny_patch16_224": (224, 256, 128, CORE, 40),
    "vit_base_patch16_224": (224, 96, 32, WIDE, 50),
    "deit_base_distilled_patch16_224": (224, 96, 32, CORE, 50),
    "beit_base_patch16_224": (224, 64, 32, CORE, 60),
    "eva02_tiny_patch14_224": (224, 192, 64, REST, 60),
    "cait_xxs24_224": (224, 96, 32, CORE, 80),
    "pit_s_224": (224, 192, 64, CORE, 50),
    "levit_128": (224, 512, 192, CORE, 60),
    "tnt_s_patch16_224": (224, 96, 32, CORE, 70),
    "twins_svt_small": (224, 128, 48, CORE, 60),
    "volo_d1_224": (224, 64, 24, CORE, 80),
    "xcit_tiny_12_p8_224": (224, 64, 24, CORE, 80),
    "swin_tiny_patch4_window7_224": (224, 96, 48, WIDE, 70),
    "swinv2_tiny_window8_256": (256, 64, 32, REST, 80),
    "crossvit_9_240": (240, 128, 64, CORE, 60),
    "convit_tiny": (224, 128, 48, CORE, 60),
    "nest_tiny": (224, 96, 32, CORE, 60),
    "pvt_v2_b1": (224, 128, 48, CORE, 60),
    "davit_tiny": (224, 96, 32, REST, 70),
    "mvitv2_tiny": (224, 64, 32, REST, 80),
    "tiny_vit_5m_224": (224, 128, 64, REST, 60),
    "sequencer2d_s": (224, 48, 24, REST, 60),
    # both
    "visformer_small": (224, 128, 64, CORE, 50),
    "coat_lite_mini": (224, 128, 48, CORE, 60),
    "coatnet_0_rw_224": (224, 64, 32, REST, 80),
    "mobilevit_s": (256, 128, 48, WIDE, 70),
    "botnet26t_256": (256, 128, 48, CORE, 50),
    "eca_botnext26ts_256": (256, 128, 48, CORE, 50),
    "eca_halonext26ts": (256, 128, 48, CORE, 50),
    "efficientformer_l1": (224, 192, 64, CORE, 60),
    "efficientvit_b1": (224, 192, 64, REST, 70),
    "fastvit_t8": (256, 128, 64, REST, 70),
}


def model(name: str) -> Model:
    size, batch, train, part, seconds = TABLE[name]

    def network() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False)

    def draw(n: int) -> tuple[torch.Tensor]:
        return (torch.randn(n, 3, size, size),)

    return Model(
        "timm", name, network, draw, batch, train, needs="timm", part=part, seconds=seconds
    )


MODELS = [model(name) for name in TABLE]
