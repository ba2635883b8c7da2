"""Networks that are measured and that no library at hand has: a transformer encoder, a U-Net, a
DLRM-like model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def transformer_encoder() -> tuple[nn.Module, tuple[Tensor]]:
    """torch's own encoder, 6 layers of width 512, over 4 x 128 embedded tokens."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return model, (torch.randn(4, 128, 512),)


class Twice(nn.Sequential):
    """Two 3x3 convolutions, each with BatchNorm and ReLU."""

    def __init__(self, channels: int, width: int) -> None:
        parts: list[nn.Module] = []
        for inner in (channels, width):
            parts += [
                nn.Conv2d(inner, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ]
        super().__init__(*parts)


class UNet(nn.Module):
    """Four levels down by pooling and up by transposed convolutions, each level's features carried
    across (Ronneberger et al., 2015). Images are (n, 3, h, w) with h and w multiples of 16; the
    result is (n, 2, h, w)."""

    def __init__(self, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.first = Twice(3, width)
        self.down = nn.ModuleList(Twice(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.widen = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(Twice(2 * w, w) for w in reversed(widths[:-1]))
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        carried = [self.first(x)]
        for down in self.down:
            carried.append(down(F.max_pool2d(carried[-1], 2)))
        x = carried.pop()
        for widen, up in zip(self.widen, self.up, strict=True):
            x = up(torch.cat((carried.pop(), widen(x)), 1))
        return self.last(x)


class Recommender(nn.Module):
    """Dense features through an MLP, categories through embedding bags, the inner products of all
    pairs through another MLP (Naumov et al., 2019). `dense` is (n, 13), `categories` (tables, n,
    bag); the result is (n,)."""

    def __init__(self, tables: int = 26, rows: int = 10_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = perceptron(13, 512, 256, width)
        pairs = (tables + 1) * tables // 2
        self.top = perceptron(width + pairs, 512, 256, 1)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        x = self.bottom(dense)
        features = torch.stack(
            [x, *(table(ids) for table, ids in zip(self.tables, categories, strict=True))], 1
        )
        products = features @ features.transpose(1, 2)
        i, j = self.pairs
        return torch.sigmoid(self.top(torch.cat((x, products[:, i, j]), 1))).squeeze(1)


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    parts: list[nn.Module] = []
    for a, b in zip(widths, widths[1:], strict=False):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def unet() -> tuple[nn.Module, tuple[Tensor]]:
    """One image of 256 x 256."""
    return UNet(), (torch.randn(1, 3, 256, 256),)


def recommender() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """256 requests with 26 categorical features, 4 values each."""
    return Recommender(), (torch.randn(256, 13), torch.randint(10_000, (26, 256, 4)))


NETS = {"transformer_encoder": transformer_encoder, "unet": unet, "recommender": recommender}


def make(name: str, device: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model, ready for inference, and its arguments; the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, args = NETS[name]()
    return model.eval().to(device), tuple(arg.to(device) for arg in args)
