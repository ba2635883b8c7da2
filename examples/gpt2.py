"""GPT-2 in plain PyTorch, with random weights, and greedy generation from real text.

The text is tokenized as bytes: a byte's value is its token, which uses the first 256 of the 50257
rows of the vocabulary. What an untrained model writes makes no sense; that it writes the same under
every compiler is the point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The opening of Lewis Carroll, "Alice's Adventures in Wonderland" (1865), in the public domain.
TEXT = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having "
    "nothing to do: once or twice she had peeped into the book her sister was reading, but it "
    'had no pictures or conversations in it, "and what is the use of a book," thought Alice, '
    '"without pictures or conversations?" So she was considering in her own mind (as well as '
    "she could, for the hot day made her feel very sleepy and stupid), whether the pleasure of "
    "making a daisy-chain would be worth the trouble of getting up and picking the daisies, "
    "when suddenly a White Rabbit with pink eyes ran close by her."
)


@dataclass(frozen=True)
class Config:
    """The shape of a GPT-2; the defaults are the 124M model's."""

    layers: int = 12
    heads: int = 12
    width: int = 768
    positions: int = 1024
    vocabulary: int = 50257


class Attention(nn.Module):
    """Causal self-attention over (batch, time, width)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        query, key, value = (
            part.view(batch, time, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


class Mlp(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Token ids (batch, time) int64 -> logits (batch, time, vocabulary). The head shares the
    embedding's weight."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        time = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(time)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def gpt2(config: Config | None = None, seed: int = 0) -> Gpt:
    """A GPT-2 in eval mode on the CPU with random weights.

    They are drawn as GPT-2's were (normal, std 0.02, the residual branches' scaled down with
    depth), but four times wider inside the blocks, so that what the untrained model writes depends
    on what it reads.
    """
    config = config or Config()
    model = Gpt(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                std = 0.08 if name.startswith("blocks") else 0.02
                residual = name.endswith(("out.weight", "down.weight"))
                parameter.normal_(
                    0.0, std / (2 * config.layers) ** (0.5 * residual), generator=generator
                )
    return model.eval()


def encode(text: str) -> Tensor:
    """The bytes of `text` as token ids, shape (1, number of bytes), int64."""
    return torch.tensor([list(text.encode())])


def decode(tokens: Tensor) -> str:
    """Token ids as text; an id that is no printable ASCII byte is shown as a middle dot."""
    return "".join(chr(token) if 32 <= token < 127 else "·" for token in tokens.flatten().tolist())


@torch.no_grad()
def generate(
    model: Callable[[Tensor], Tensor],
    tokens: Tensor,
    count: int,
    window: int = 128,
    step: Callable[[], object] = lambda: None,
) -> Tensor:
    """Greedy generation: `count` times, append the likeliest token after the last `window` ones;
    returns the new ones.

    There is no key-value cache: every step computes its whole window again. That is slower per
    token, and simple: each step is the same call with the same shapes, so that one compiled program
    serves them all and the comparison with eager is between equals. `tokens` (1, time) must fill
    the window. `step` is called after each token.
    """
    if tokens.shape[1] < window:
        raise ValueError(f"{tokens.shape[1]} tokens do not fill the window of {window}")
    start = tokens.shape[1]
    for _ in range(count):
        likeliest = model(tokens[:, -window:])[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat((tokens, likeliest), dim=1)
        step()
    return tokens[:, start:]


def make() -> tuple[Gpt, tuple[Tensor]]:
    """GPT-2 124M on one window of 128 tokens of real text."""
    return gpt2(), (encode(TEXT)[:, :128],)
