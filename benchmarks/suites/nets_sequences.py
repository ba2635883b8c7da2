"""Networks over text, speech and other sequences that TorchBench has in kind, written here in plain
torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Recurrent(nn.Module):
    """A language model over an LSTM or a GRU: tokens (n, time) -> scores (n, time, words)."""

    def __init__(
        self, kind: type[nn.RNNBase] = nn.LSTM, words: int = 10_000, width: int = 512
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.body = kind(width, width, 2, batch_first=True)
        self.last = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.body(self.words(tokens))[0])


class CellLanguage(nn.Module):
    """A language model whose LSTM is written out as cells, step by step."""

    def __init__(self, words: int = 10_000, width: int = 512) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(words, width), nn.LSTMCell(width, width)
        self.last = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        state, found = None, []
        for x in self.words(tokens).unbind(1):
            state = self.cell(x, state)
            found.append(state[0])
        return self.last(torch.stack(found, 1))


class Seq2Seq(nn.Module):
    """A GRU encoder, and a GRU decoder that attends to it, step by step (Bahdanau et al., 2014).

    Tokens (n, time) and (n, steps) -> scores (n, steps, words).
    """

    def __init__(self, words: int = 8000, width: int = 256) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.cell = nn.GRUCell(3 * width, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(2 * width, width)
        self.score, self.last = nn.Linear(width, 1), nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, final = self.encoder(self.source(source))
        keys, state, found = self.key(states), final[0], []
        for x in self.target(target).unbind(1):
            scores = self.score(torch.tanh(keys + self.query(state).unsqueeze(1)))
            context = (scores.softmax(1) * states).sum(1)
            state = self.cell(torch.cat((x, context), -1), state)
            found.append(state)
        return self.last(torch.stack(found, 1))


# -- transformers ----------------------------------------------------------------------------------


class Bert(nn.Module):
    """Words, places and kinds, an encoder, and the two heads of pretraining: tokens and kinds (n,
    time) -> scores of words (n, time, words), of whether one follows the other (n, 2)."""

    def __init__(self, words: int = 30_522, width: int = 768, layers: int = 6) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.kinds, self.norm = nn.Embedding(2, width), nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, 0.0, "gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.change = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(words))
        self.pool, self.follows = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, tokens: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        places = self.places.weight[: tokens.shape[1]]
        x = self.body(self.norm(self.words(tokens) + places + self.kinds(kinds)))
        scores = F.linear(self.change(x), self.words.weight, self.bias)
        return scores, self.follows(torch.tanh(self.pool(x[:, 0])))


class Pretraining(nn.Module):
    """The loss of `Bert`: tokens, kinds, the words that were hidden, whether one follows."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Bert()

    def forward(self, tokens: Tensor, kinds: Tensor, words: Tensor, follows: Tensor) -> Tensor:
        scores, next_scores = self.network(tokens, kinds)
        hidden = F.cross_entropy(scores.flatten(0, 1), words.flatten())
        return hidden + F.cross_entropy(next_scores, follows)


class Rotary(nn.Module):
    """Causal attention with rotated queries and keys, of which several heads share one."""

    def __init__(self, width: int, heads: int, shared: int) -> None:
        super().__init__()
        self.size, self.heads, self.shared = width // heads, heads, shared
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, shared * self.size, bias=False)
        self.value = nn.Linear(width, shared * self.size, bias=False)
        self.result = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = rotated(self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2), cos, sin)
        k = rotated(self.key(x).unflatten(-1, (self.shared, -1)).transpose(1, 2), cos, sin)
        v = self.value(x).unflatten(-1, (self.shared, -1)).transpose(1, 2)
        times = self.heads // self.shared
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.result(found.transpose(1, 2).flatten(2))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of numbers turned by the angle of their place."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)


class Gated(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Every token through the two experts with the highest scores of a router (Shazeer et al.,
    2017): all experts are computed, and weighted. (n, time, width) to the same."""

    def __init__(self, width: int, experts: int, chosen: int = 2) -> None:
        super().__init__()
        self.router, self.chosen = nn.Linear(width, experts, bias=False), chosen
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / (2 * width) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x).float().softmax(-1)
        best, experts = scores.topk(self.chosen, dim=-1)
        shares = torch.zeros_like(scores).scatter(-1, experts, best)
        shares = shares / shares.sum(-1, keepdim=True)
        hidden = F.silu(torch.einsum("ntw,ewh->enth", x, self.up))
        return torch.einsum("enth,ehw,nte->ntw", hidden, self.down, shares.to(hidden.dtype))


class Llama(nn.Module):
    """RMSNorm, rotary attention and a gated layer, or experts (Touvron et al., 2023): tokens (n,
    time) -> scores (n, time, words)."""

    def __init__(
        self, width: int = 1024, layers: int = 8, words: int = 32_000, experts: int = 0
    ) -> None:
        super().__init__()
        self.words, self.size = nn.Embedding(words, width), 64
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * layers + 1))
        self.attention = nn.ModuleList(
            Rotary(width, width // 64, width // 256) for _ in range(layers)
        )
        self.inner = nn.ModuleList()
        for _ in range(layers):
            self.inner.append(Experts(width, experts) if experts else Gated(width, 8 * width // 3))
        self.last = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        half = self.size // 2
        rates = 10_000.0 ** -(torch.arange(half, device=tokens.device) / half)
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * rates
        x = self.words(tokens)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for number, (attention, inner) in enumerate(zip(self.attention, self.inner)):
            x = x + attention(self.norms[2 * number](x), cos, sin)
            x = x + inner(self.norms[2 * number + 1](x))
        return self.last(self.norms[-1](x))


class Translator(nn.Module):
    """torch's own transformer, with embeddings around it: tokens (n, time) and (n, steps) -> scores
    (n, steps, words)."""

    def __init__(self, words: int = 10_000, width: int = 512, layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(512, width))
        self.body = nn.Transformer(width, 8, layers, layers, 4 * width, 0.0, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        later = torch.ones(
            target.shape[1], target.shape[1], dtype=torch.bool, device=target.device
        ).triu(1)
        given = self.words(source) + self.places[: source.shape[1]]
        wanted = self.words(target) + self.places[: target.shape[1]]
        return F.linear(self.body(given, wanted, tgt_mask=later), self.words.weight)


class Series(nn.Module):
    """A forecast of series (n, channels, time) from patches of them, each channel by itself (Nie et
    al., 2022): (n, channels, ahead)."""

    def __init__(self, time: int = 512, patch: int = 16, ahead: int = 96, width: int = 128) -> None:
        super().__init__()
        self.patch, count = patch, time // patch
        self.first = nn.Linear(patch, width)
        self.places = nn.Parameter(0.02 * torch.randn(count, width))
        layer = nn.TransformerEncoderLayer(
            width, 8, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.last = nn.Linear(count * width, ahead)

    def forward(self, x: Tensor) -> Tensor:
        mean, scale = x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-5
        patches = ((x - mean) / scale).unflatten(-1, (-1, self.patch)).flatten(0, 1)
        found = self.last(self.body(self.first(patches) + self.places).flatten(1))
        return found.view(*x.shape[:2], -1) * scale + mean


# -- speech and sound ------------------------------------------------------------------------------


class SpeechTransformer(nn.Module):
    """Two strided convolutions over spectra (n, time, bands), an encoder, and a decoder of tokens
    (n, steps) (Dong et al., 2018): scores (n, steps, words)."""

    def __init__(self, bands: int = 80, words: int = 4000, width: int = 256) -> None:
        super().__init__()
        self.less = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU()
        )
        self.first, self.words = nn.Linear(8 * bands, width), nn.Embedding(words, width)
        self.body = nn.Transformer(width, 4, 6, 3, 4 * width, 0.0, batch_first=True)
        self.last = nn.Linear(width, words)

    def forward(self, spectra: Tensor, tokens: Tensor) -> Tensor:
        x = self.less(spectra.unsqueeze(1)).transpose(1, 2).flatten(2)
        later = torch.ones(
            tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device
        ).triu(1)
        return self.last(self.body(self.first(x), self.words(tokens), tgt_mask=later))


class Conformer(nn.Module):
    """Half a feed-forward layer, attention, convolution over time, the other half (Gulati et al.,
    2020), over spectra (n, time, bands): scores (n, time, words)."""

    def __init__(
        self, bands: int = 80, words: int = 1000, width: int = 256, layers: int = 6
    ) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(bands, width), nn.Linear(width, words)
        self.blocks = nn.ModuleList(ConformerBlock(width) for _ in range(layers))

    def forward(self, spectra: Tensor) -> Tensor:
        x = self.first(spectra)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class ConformerBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.halves = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(),
                nn.Linear(4 * width, width),
            )
            for _ in range(2)
        )  # fmt: skip
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up = nn.Conv1d(width, 2 * width, 1)
        self.over = nn.Conv1d(width, width, 31, padding=15, groups=width)
        self.norm, self.down = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.halves[0](x)
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = F.glu(self.up(self.norms[1](x).transpose(1, 2)), 1)
        x = x + self.down(F.silu(self.norm(self.over(y)))).transpose(1, 2)
        return self.norms[2](x + 0.5 * self.halves[1](x))


class Tacotron(nn.Module):
    """Letters (n, time) and spectra (n, steps, bands) -> spectra: an encoder of convolutions and an
    LSTM, a decoder of two LSTM cells that attends to places near those before (Shen et al., 2017),
    and convolutions behind it."""

    def __init__(self, letters: int = 148, bands: int = 80, width: int = 512) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.convs = nn.Sequential(*(self.over(width, width, nn.ReLU()) for _ in range(3)))
        self.encoder = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.before = nn.Sequential(
            nn.Linear(bands, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
        )
        self.attending, self.cell = nn.LSTMCell(256 + width, 1024), nn.LSTMCell(1024 + width, 1024)
        self.query, self.key = nn.Linear(1024, 128), nn.Linear(width, 128)
        self.place, self.score = nn.Conv1d(2, 128, 31, padding=15), nn.Linear(128, 1)
        self.frame = nn.Linear(1024 + width, bands)
        self.after = nn.Sequential(
            self.over(bands, width, nn.Tanh()), self.over(width, width, nn.Tanh()),
            nn.Conv1d(width, bands, 5, 1, 2),
        )  # fmt: skip

    @staticmethod
    def over(a: int, b: int, act: nn.Module) -> nn.Sequential:
        return nn.Sequential(nn.Conv1d(a, b, 5, 1, 2), nn.BatchNorm1d(b), act)

    def forward(self, letters: Tensor, spectra: Tensor) -> Tensor:
        memory = self.encoder(self.convs(self.letters(letters).transpose(1, 2)).transpose(1, 2))[0]
        keys, frames = self.key(memory), self.before(spectra)
        context = memory.new_zeros(memory.shape[0], memory.shape[2])
        weights = memory.new_zeros(memory.shape[:2])
        total, first, second, found = weights, None, None, []
        for frame in frames.unbind(1):
            first = self.attending(torch.cat((frame, context), -1), first)
            places = self.place(torch.stack((weights, total), 1)).transpose(1, 2)
            scores = self.score(torch.tanh(keys + places + self.query(first[0]).unsqueeze(1)))
            weights = scores.squeeze(-1).softmax(-1)
            total = total + weights
            context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
            second = self.cell(torch.cat((first[0], context), -1), second)
            found.append(self.frame(torch.cat((second[0], context), -1)))
        rough = torch.stack(found, 1)
        return rough + self.after(rough.transpose(1, 2)).transpose(1, 2)


class WaveNet(nn.Module):
    """Gated convolutions of growing dilation over (n, 1, time) (van den Oord et al., 2016): scores
    (n, time, 256)."""

    def __init__(self, width: int = 64, layers: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 2, dilation=1 << layer) for layer in range(layers)
        )
        self.results = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.last = nn.Sequential(
            nn.ReLU(), nn.Conv1d(width, 256, 1), nn.ReLU(), nn.Conv1d(256, 256, 1)
        )

    def forward(self, sound: Tensor) -> Tensor:
        x = self.first(sound)
        total = torch.zeros_like(x)
        for layer, (gate, result) in enumerate(zip(self.gates, self.results)):
            a, b = gate(F.pad(x, (1 << layer, 0))).chunk(2, 1)
            more, out = result(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            x, total = x + more, total + out
        return self.last(total).transpose(1, 2)


class Demucs(nn.Module):
    """Strided convolutions with gates down, an LSTM, transposed ones up, over (n, 2, time), time a
    multiple of 256 (Défossez et al., 2019): four sources (n, 4, 2, time)."""

    def __init__(self, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        widths = [2, *(width << level for level in range(levels))]
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 8, 4, 2), nn.ReLU(), nn.Conv1d(b, 2 * b, 1), nn.GLU(1))
            for a, b in zip(widths, widths[1:])
        )
        self.body = nn.LSTM(widths[-1], widths[-1], 2, batch_first=True)
        self.up = nn.ModuleList()
        for a, b in zip(reversed(widths[1:]), reversed([8, *widths[1:-1]])):
            gate = nn.Sequential(nn.Conv1d(a, 2 * a, 3, 1, 1), nn.GLU(1))
            self.up.append(nn.Sequential(gate, nn.ConvTranspose1d(a, b, 8, 4, 2)))

    def forward(self, sound: Tensor) -> Tensor:
        x, carried = sound, []
        for down in self.down:
            x = down(x)
            carried.append(x)
        x = self.body(x.transpose(1, 2))[0].transpose(1, 2)
        for number, up in enumerate(self.up):
            x = up(x + carried.pop())
            x = F.relu(x) if number + 1 < len(self.up) else x
        return x.unflatten(1, (4, 2))


class Scan(nn.Module):
    """A selective state space (Gu and Dao, 2023), step by step: (n, time, width) to the same."""

    def __init__(self, width: int = 256, states: int = 16) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.arange(1, states + 1).float().log().repeat(width, 1))
        self.step, self.both = nn.Linear(width, width), nn.Linear(width, 2 * states)
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, width)
        self.result = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        steps = F.softplus(self.step(y).float())
        given, read = self.both(y).float().chunk(2, -1)
        decay = (steps.unsqueeze(-1) * -self.rates.exp()).exp()
        inputs = (steps * y).unsqueeze(-1) * given.unsqueeze(-2)
        state, found = torch.zeros_like(inputs[:, 0]), []
        for kept, more, weights in zip(decay.unbind(1), inputs.unbind(1), read.unbind(1)):
            state = state * kept + more
            found.append((state * weights.unsqueeze(-2)).sum(-1))
        out = torch.stack(found, 1)
        return x + self.result(out.to(x.dtype) * F.silu(self.gate(y)))
