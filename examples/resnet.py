"""A ResNet (He et al., 2015) in plain PyTorch, with random weights, for inference."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Convolution and BatchNorm; the padding keeps the image's size at stride 1."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Block(nn.Module):
    """A residual block: what `body` computes is added to its input, which `shortcut` brings to the
    same shape."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.body = self.make_body(inputs, width, stride)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def make_body(self, inputs: int, width: int, stride: int) -> nn.Sequential:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class BasicBlock(Block):
    """Two 3x3 convolutions."""

    def make_body(self, inputs: int, width: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            convolution(inputs, width, 3, stride), nn.ReLU(), convolution(width, width, 3)
        )


class Bottleneck(Block):
    """1x1, 3x3, 1x1 convolutions; the last widens by four."""

    expansion = 4

    def make_body(self, inputs: int, width: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            convolution(inputs, width, 1),
            nn.ReLU(),
            convolution(width, width, 3, stride),
            nn.ReLU(),
            convolution(width, width * self.expansion, 1),
        )


class ResNet(nn.Module):
    """Images (batch, 3, height, width) -> logits (batch, classes)."""

    def __init__(
        self, block: type[Block], counts: Sequence[int], width: int = 64, classes: int = 1000
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
        )
        stages, inputs = [], width
        for depth, count in enumerate(counts):
            blocks = []
            for number in range(count):
                stride = 2 if depth and not number else 1
                blocks.append(block(inputs, width << depth, stride))
                inputs = (width << depth) * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stages(self.stem(images))
        return self.head(features.mean((2, 3)))


def resnet(
    block: type[Block], counts: Sequence[int], width: int = 64, classes: int = 1000, seed: int = 0
) -> ResNet:
    """A ResNet in eval mode; its BatchNorms hold statistics other than 0 and 1, as a trained
    network's would."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ResNet(block, counts, width, classes)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.normal_(0.0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def images(batch: int = 1, size: int = 224, seed: int = 0) -> Tensor:
    """Random images, float32."""
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))


def make() -> tuple[ResNet, tuple[Tensor]]:
    """ResNet-50 on one image of 224x224."""
    return resnet(Bottleneck, (3, 4, 6, 3)), (images(),)


def make_small() -> tuple[ResNet, tuple[Tensor]]:
    """A narrow ResNet-18 on two images of 64x64."""
    return resnet(BasicBlock, (2, 2, 2, 2), width=16, classes=10), (images(2, 64),)
