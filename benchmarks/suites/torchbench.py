"""Programs of the kinds that TorchBench has: networks of `nets_*`, of benchmarks/ and of
torchvision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import nets
from benchmarks.suites import nets_images as images
from benchmarks.suites import nets_others as others
from benchmarks.suites import nets_sequences as sequences
from benchmarks.suites.models import Draw, Model
from benchmarks.training_models import Heat, ViT
from examples import gpt2


def normal(*shape: int) -> Draw:
    return lambda n: (torch.randn(n, *shape),)


def pictures(size: int = 224, channels: int = 3) -> Draw:
    return normal(channels, size, size)


def joined(*draws: Draw) -> Draw:
    """The inputs of several, in order."""
    return lambda n: sum((draw(n) for draw in draws), ())


def numbers(most: int, *shape: int) -> Draw:
    """Integers below `most`."""
    return lambda n: (torch.randint(most, (n, *shape)),)


def recommended(n: int) -> tuple[Tensor, ...]:
    return torch.randn(n, 13), torch.randint(10_000, (26, n, 4))


def sea(n: int) -> tuple[Tensor, ...]:
    """Columns of 4096 places."""
    return 35 * torch.rand(n, 4096), 30 * torch.rand(n, 4096), torch.rand(n, 4096)


def times(n: int) -> tuple[Tensor, ...]:
    return (torch.randint(1000, (n,)),)


class Scanned(nn.Sequential):
    """Two layers of `Scan`."""

    def __init__(self) -> None:
        super().__init__(sequences.Scan(), sequences.Scan())


def model(
    name: str,
    network: Callable[[], nn.Module],
    draw: Draw,
    batch: int,
    train: int,
    loss: str = "classes",
    part: str = "core",
    **more: Any,
) -> Model:
    return Model("torchbench", name, network, draw, batch, train, loss, part=part, **more)


def seen(
    name: str, batch: int, train: int, size: int = 224, part: str = "core", **more: Any
) -> Model:
    """A network of torchvision under its name there."""

    def network() -> nn.Module:
        import torchvision

        options: dict[str, Any] = {"weights": None}
        if name in ("googlenet", "inception_v3"):
            options |= {"aux_logits": False, "init_weights": False}
        return getattr(torchvision.models, name)(**options)

    return model(
        name, network, pictures(size), batch, train, part=part, needs="torchvision", **more
    )


def graphs(name: str, layer: Callable[[int, int], nn.Module], part: str = "core") -> Model:
    return model(name, partial(others.Graph, layer), others.graph, 64, 64, part=part, seconds=25)


MODELS = [
    # recommending
    model("dlrm", nets.Recommender, recommended, 8192, 8192, "squares", "wide", seconds=40),
    model("wide_and_deep", others.WideAndDeep, joined(normal(13), numbers(10_000, 26)), 16384, 8192,
        "squares"),
    model("deepfm", others.DeepFm, numbers(10_000, 26), 16384, 8192, "squares", "wide", seconds=25),
    model("two_towers", others.TwoTowers, joined(*2 * [numbers(20_000, 8)]), 4096, 4096,
        seconds=25),
    model("sasrec", others.SequentialUser, numbers(20_000, 100), 512, 256),
    model("nvidia_deeprecommender", others.Autoencoder, normal(20_000), 2048, 1024, "squares",
        seconds=25),
    # control
    model("soft_actor_critic", others.Actor, joined(normal(17), normal(6)), 16384, 16384, "squares",
        "wide", seconds=20),
    model("critics", others.Critics, joined(normal(17), normal(6)), 16384, 16384, "squares",
        seconds=20),
    model("drq", others.PixelActor, pictures(84, 9), 512, 256, "squares", seconds=25),
    model("dueling_dqn", others.Dueling, pictures(84, 4), 1024, 512, "squares", seconds=25),
    model("maml", others.Maml, joined(*2 * [pictures(28, 1), numbers(5)]), 256, 256, "own",
        inference=False),
    model("learning_to_paint", images.Painter, pictures(128, 9), 128, 96, "squares", "wide"),
    # generators
    model("dcgan", images.dcgan_generator, normal(100, 1, 1), 1024, 512, "squares", "wide",
        seconds=25),
    model("dcgan_critic", images.dcgan_critic, pictures(64), 1024, 512, "squares", seconds=25),
    model("pix2pix", images.Pix2Pix, pictures(256), 64, 32, "squares", "wide"),
    model("cyclegan", images.cyclegan_generator, pictures(256), 16, 8, "squares"),
    model("stargan", images.StarGan, joined(pictures(128), normal(5)), 32, 16, "squares"),
    # from image to image
    model("unet", partial(nets.UNet, 32), pictures(256), 32, 16, "pixels", "wide"),
    model("espcn", images.espcn, pictures(128, 1), 128, 64, "squares", seconds=20),
    model("edsr", images.Edsr, pictures(64), 64, 32, "squares"),
    model("super_slomo", images.SuperSloMo, joined(*2 * [pictures(256)]), 16, 8, "squares"),
    model("background_matting", images.Matting, joined(*2 * [pictures(256)]), 16, 8, "squares"),
    model("deeplab", images.DeepLab, pictures(256), 32, 16, "pixels"),
    # detection
    model("yolov3", images.Yolo, pictures(416), 32, 16, "squares", seconds=80),
    model("retinanet", images.Pyramid, pictures(512), 16, 8, "squares", seconds=70),
    # small images
    model("phlippe_resnet", images.small_resnet, pictures(32), 1024, 512, part="wide", seconds=30),
    model("phlippe_densenet", images.small_densenet, pictures(32), 512, 256, part="wide",
        seconds=70),
    model("dp_cifar", images.dp_cifar, pictures(32), 2048, 1024, seconds=20),
    model("opacus_cifar10", partial(images.small_resnet, images.GroupNorm16), pictures(32), 1024,
        512, seconds=35),
    model("mnist", images.mnist, pictures(28, 1), 4096, 2048, seconds=20),
    model("vit_small", partial(ViT, 224, 16, 384, 8, 1000), pictures(224), 128, 64),
    # torchvision's
    seen("alexnet", 512, 256, part="wide", seconds=25),
    seen("vgg16", 64, 32, seconds=30),
    seen("squeezenet1_1", 256, 128, seconds=35),
    seen("mnasnet1_0", 256, 96),
    seen("shufflenet_v2_x1_0", 512, 192, seconds=50),
    seen("resnet18", 256, 128, part="wide", seconds=30),
    seen("resnet50", 128, 64, part="wide", seconds=50),
    seen("resnet152", 96, 32, seconds=110),
    seen("resnext50_32x4d", 128, 48, seconds=50),
    seen("mobilenet_v2", 256, 96, seconds=50),
    seen("mobilenet_v3_large", 256, 96, part="wide", seconds=60),
    seen("densenet121", 128, 48, seconds=120),
    seen("googlenet", 256, 96, seconds=60, part="rest"),
    seen("wide_resnet50_2", 96, 32, seconds=50, part="rest"),
    seen("efficientnet_v2_s", 96, 32, 256, seconds=110, part="rest"),
    # language
    model("nanogpt", partial(gpt2.gpt2, gpt2.Config()), numbers(50_000, 512), 8, 8, part="wide",
        seconds=60),
    model("bert_pytorch", sequences.Bert, joined(numbers(30_000, 128), numbers(2, 128)), 64, 32,
        "squares"),
    model("bert_pretraining", sequences.Pretraining,
        joined(numbers(30_000, 128), numbers(2, 128), numbers(30_000, 128), numbers(2)), 64, 32,
        "own", "wide"),
    model("llama", sequences.Llama, numbers(32_000, 512), 8, 4, part="wide", seconds=60),
    model("moe", partial(sequences.Llama, 512, 4, experts=8), numbers(32_000, 512), 4, 4,
        part="wide"),
    model("attention_is_all", sequences.Translator,
        joined(numbers(10_000, 64), numbers(10_000, 64)), 64, 32, seconds=70),
    model("transformer_encoder", lambda: nets.transformer_encoder()[0], normal(128, 512), 128, 64,
        "squares"),
    model("lstm_language", sequences.Recurrent, numbers(10_000, 64), 128, 64, seconds=25),
    model("gru_language", partial(sequences.Recurrent, nn.GRU), numbers(10_000, 64), 128, 64,
        part="rest", seconds=25),
    model("lstm_cells_language", sequences.CellLanguage, numbers(10_000, 32), 256, 256,
        part="wide", seconds=60),
    model("seq2seq_attention", sequences.Seq2Seq, joined(numbers(8000, 32), numbers(8000, 16)), 256,
        128, seconds=60),
    model("patch_series", sequences.Series, normal(21, 512), 64, 32, "squares"),
    model("state_space", Scanned, normal(64, 256), 64, 32, "squares", "wide", seconds=60),
    # speech and sound
    model("speech_transformer", sequences.SpeechTransformer,
        joined(normal(512, 80), numbers(4000, 32)), 32, 16, seconds=70),
    model("conformer", sequences.Conformer, normal(256, 80), 64, 32, seconds=60),
    model("tacotron2", sequences.Tacotron, joined(numbers(148, 64), normal(16, 80)), 64, 64,
        "squares", seconds=80),
    model("wavenet", sequences.WaveNet, normal(1, 4096), 32, 16),
    model("demucs", sequences.Demucs, normal(2, 16384), 32, 16, "squares"),
    # graphs and points
    graphs("basic_gnn_gcn", others.Convolved, "wide"),
    graphs("basic_gnn_gin", others.Isomorphic),
    graphs("basic_gnn_sage", others.Sampled),
    graphs("basic_gnn_edgecnn", others.Edges),
    graphs("basic_gnn_gat", others.GraphAttention, "rest"),
    model("pointnet", others.PointNet, normal(3, 1024), 128, 64, seconds=30),
    # diffusion
    model("stable_diffusion_unet", images.Diffusion,
        joined(normal(4, 32, 32), times, normal(77, 768)), 16, 8, "squares", seconds=90),
    model("latent_decoder", images.LatentDecoder, normal(4, 32, 32), 16, 8, "squares"),
    # fields, flows and physics
    model("nerf", others.Radiance, normal(6), 4096, 2048, "squares", seconds=30),
    model("real_nvp", others.Flow, normal(64), 16384, 8192, "squares", "rest", seconds=30),
    model("neural_ode", others.Differential, normal(64), 16384, 8192, "squares", "rest",
        seconds=40),
    model("pinn", Heat, joined(*2 * [lambda n: (torch.rand(n),)]), 65536, 65536, "own", seconds=30,
        inference=False),
    model("pyhpc_equation_of_state", others.Density, sea, 1024, 1024, "squares", "wide",
        seconds=20),
    model("pyhpc_turbulence", others.Advection, normal(256, 256), 128, 64, "squares", "wide",
        seconds=25),
    model("ft_transformer", others.Tabular, normal(32), 2048, 1024, part="rest"),
]  # fmt: skip
