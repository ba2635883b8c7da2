"""An MLP whose batch size changes from call to call: `python -m examples.mlp` compiles it once for
all of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mlp(nn.Module):
    """Rows (batch, inputs) -> probabilities (batch, classes)."""

    def __init__(
        self, inputs: int = 64, width: int = 256, classes: int = 10, layers: int = 2
    ) -> None:
        super().__init__()
        self.stem = nn.Linear(inputs, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + F.gelu(layer(norm(x)))
        return F.softmax(self.head(x), dim=-1)


def mlp(seed: int = 0) -> Mlp:
    """An MLP in eval mode with seeded random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Mlp().eval()


def rows(batch: int, inputs: int = 64, seed: int = 0) -> Tensor:
    """Random rows (batch, inputs), float32."""
    return torch.randn(batch, inputs, generator=torch.Generator().manual_seed(seed))


def make() -> tuple[Mlp, tuple[Tensor]]:
    """The MLP on a batch of 32."""
    return mlp(), (rows(32),)


@torch.no_grad()
def main() -> None:
    """Run the MLP, compiled once with a symbolic batch, at several batch sizes; print how far each
    is from eager."""
    import ingot

    model = mlp()
    compiled = ingot.compile(model, dynamic=True)
    for batch in (2, 32, 33, 1000):
        x = rows(batch)
        difference = (compiled(x) - model(x)).abs().max().item()
        print(f"batch {batch:4d}: largest difference from eager {difference:.1e}")


if __name__ == "__main__":
    main()
