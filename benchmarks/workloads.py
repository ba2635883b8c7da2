"""What is measured. A workload makes a function or module and its arguments, for a device, at that
device's sizes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import nets
from examples import gpt2, resnet
from examples.functions import FUNCTIONS

Made = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Workload:
    """`make(device)` returns (function or module, arguments). `needs` names an optional package
    that it imports.

    `twin` says that `jax_twins` holds the same function for JAX.
    """

    name: str
    make: Callable[[str], Made]
    needs: str = ""
    twin: bool = False

    @property
    def missing(self) -> str:
        """Why it cannot run here, "" if it can."""
        return (
            f"needs the package {self.needs}"
            if self.needs and not importlib.util.find_spec(self.needs)
            else ""
        )


def on_cuda(device: str) -> bool:
    return torch.device(device).type == "cuda"


def make_gpt(device: str, layers: int = 4) -> Made:
    """A GPT, 256 wide, over bytes: batch 4 x 128."""
    config = gpt2.Config(layers=layers, heads=8, width=256, positions=128, vocabulary=256)
    tokens = gpt2.encode(gpt2.TEXT)[:, :512].view(4, 128)
    return gpt2.gpt2(config).to(device), (tokens.to(device),)


def make_gpt2(device: str) -> Made:
    """GPT-2 124M: 1 x 128 in float32 on a CPU, 8 x 1024 in bfloat16 on a GPU."""
    model, (tokens,) = gpt2.make()
    if not on_cuda(device):
        return model, (tokens,)
    tokens = torch.randint(256, (8, 1024), generator=torch.Generator().manual_seed(0))
    return model.to(device, torch.bfloat16), (tokens.to(device),)


def make_resnet50(device: str) -> Made:
    model, (images,) = resnet.make()
    return model.to(device), (images.to(device),)


class First(nn.Module):
    """A transformers model that returns the first of its outputs, a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, return_dict=False)[0]


def make_transformer(name: str, size: int, device: str) -> Made:
    """`name`'s model in transformers with its default configuration and random weights, on one
    image of `size`."""
    images = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    return transformers_model(name, device), (images.to(device),)


def make_bert(device: str) -> Made:
    """BERT on 1 x 128 tokens: 4 layers on a CPU, 12 on a GPU."""
    tokens = torch.randint(30000, (1, 128), generator=torch.Generator().manual_seed(0))
    return transformers_model("Bert", device, num_hidden_layers=12 if on_cuda(device) else 4), (
        tokens.to(device),
    )


def transformers_model(name: str, device: str, **config: Any) -> nn.Module:
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{name}Model")(
            getattr(transformers, f"{name}Config")(**config)
        )
    return First(model).eval().to(device)


IMAGE_MODELS = {
    # name: (its name in transformers, image size)
    "vit": ("ViT", 224),
    "mobilenet_v2": ("MobileNetV2", 224),
    "convnext": ("ConvNext", 224),
    "beit": ("Beit", 224),
    "segformer": ("Segformer", 512),
}

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        *(Workload(name, example.make, twin=True) for name, example in FUNCTIONS.items()),
        Workload("gpt", make_gpt),
        Workload("gpt2", make_gpt2),
        Workload("resnet50", make_resnet50),
        *(
            Workload(name, partial(make_transformer, theirs, size), needs="transformers")
            for name, (theirs, size) in IMAGE_MODELS.items()
        ),
        Workload("bert", make_bert, needs="transformers"),
        *(Workload(name, partial(nets.make, name)) for name in nets.NETS),
    )
}

DEPTHS: dict[str, Workload] = {
    f"gpt_{layers}": Workload(f"gpt_{layers}", partial(make_gpt, layers=layers))
    for layers in (12, 96)
}
"""The GPT at two depths: what is asked of them is how the first call grows."""

ALL = WORKLOADS | DEPTHS
