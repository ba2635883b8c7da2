"""What training is measured on: modules whose result is the loss, with what they are given.

Networks that other files have are taken from there; those of `transformers` are the tiny ones of
`model_zoo`, in training mode. Dropout is off everywhere, as float64 would draw other numbers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks import model_zoo, nets
from examples import gpt2, resnet

Draw = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Subject:
    """`make()` returns a module and what draws its arguments from torch's generator. `steps` of its
    training are compared, at the learning rate `rate`, at which eager's loss falls."""

    name: str
    make: Callable[[], tuple[nn.Module, Draw]]
    steps: int = 20
    rate: float = 1e-2
    needs: str = ""

    @property
    def missing(self) -> str:
        """Why it cannot run here, "" if it can."""
        return (
            f"needs the package {self.needs}"
            if self.needs and not importlib.util.find_spec(self.needs)
            else ""
        )


class Classified(nn.Module):
    """Cross-entropy of a network's scores, whose classes are in the last dimension."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.network(x).flatten(0, -2), target.flatten())


class Squared(nn.Module):
    """The mean squared distance of a network's result from a target."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *args: Tensor) -> Tensor:
        *inputs, target = args
        return F.mse_loss(self.network(*inputs), target)


# -- language --------------------------------------------------------------------------------------


def gpt(
    config: gpt2.Config, batch: int, time: int, network: type[nn.Module] = gpt2.Gpt
) -> tuple[nn.Module, Draw]:
    model = Classified(trained(gpt2.gpt2(config)))
    if network is not gpt2.Gpt:
        model.network.__class__ = network
    return model, lambda: (torch.randint(256, (batch, time)), torch.randint(256, (batch, time)))


def small_gpt(layers: int = 4, network: type[nn.Module] = gpt2.Gpt) -> tuple[nn.Module, Draw]:
    """The GPT of DESIGN section 7, 256 wide, at batch 4 x 128."""
    return gpt(
        gpt2.Config(layers=layers, heads=8, width=256, positions=128, vocabulary=256),
        4,
        128,
        network,
    )


class CheckpointedGpt(gpt2.Gpt):
    """The GPT whose blocks are computed again in the backward."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return F.linear(self.norm(x), self.tokens.weight)


def transformer() -> tuple[nn.Module, Draw]:
    model = nn.Transformer(128, 4, 2, 2, 256, dropout=0.0, batch_first=True)
    return Squared(model), lambda: (
        torch.randn(4, 20, 128),
        torch.randn(4, 16, 128),
        torch.randn(4, 16, 128),
    )


class Mixture(nn.Module):
    """A feed-forward layer of experts; each token goes through the two with the highest scores of a
    router (Shazeer et al., 2017). (n, width) -> (n, width)."""

    def __init__(self, width: int = 64, experts: int = 8, chosen: int = 2) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / (2 * width) ** 0.5)
        self.chosen = chosen

    def forward(self, x: Tensor) -> Tensor:
        scores, experts = self.router(x).softmax(-1).topk(self.chosen, dim=-1)
        shares = torch.zeros(x.shape[0], self.up.shape[0], dtype=x.dtype).scatter(
            1, experts, scores
        )
        hidden = F.silu(torch.einsum("nw,ewh->enh", x, self.up))
        return x + torch.einsum(
            "enh,ehw,ne->nw", hidden, self.down, shares / shares.sum(-1, keepdim=True)
        )


def mixture() -> tuple[nn.Module, Draw]:
    network = nn.Sequential(Mixture(), nn.LayerNorm(64), Mixture(), nn.Linear(64, 10))
    return Classified(network), lambda: (torch.randn(128, 64), torch.randint(10, (128,)))


class Cells(nn.Module):
    """A recurrent cell over (time, batch, width); the last state."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind():
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state


def cells(kind: type[nn.Module]) -> tuple[nn.Module, Draw]:
    """16 steps of a batch of 32, 128 wide."""
    return Squared(Cells(kind(128, 128))), lambda: (torch.randn(16, 32, 128), torch.randn(32, 128))


# -- images ----------------------------------------------------------------------------------------


def resnet50() -> tuple[nn.Module, Draw]:
    model = Classified(trained(resnet.make()[0]))
    return model, lambda: (torch.randn(2, 3, 64, 64), torch.randint(1000, (2,)))


def conv_norm_relu() -> tuple[nn.Module, Draw]:
    """Convolution, BatchNorm and ReLU at 8 x 64 x 56 x 56."""
    network = nn.Sequential(
        nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()
    )
    return Squared(network), lambda: (torch.randn(8, 64, 56, 56), torch.randn(8, 64, 56, 56))


class ViT(nn.Module):
    """A vision transformer (Dosovitskiy et al., 2020) over images (n, 3, size, size), with
    `classes` scores."""

    def __init__(
        self, size: int = 64, patch: int = 8, width: int = 192, layers: int = 4, classes: int = 10
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 3, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.positions
        return self.head(self.encoder(x)[:, 0])


def vit() -> tuple[nn.Module, Draw]:
    return Classified(ViT()), lambda: (torch.randn(4, 3, 64, 64), torch.randint(10, (4,)))


class VAE(nn.Module):
    """A variational autoencoder of images (n, 1, 28, 28) (Kingma and Welling, 2013): the negative
    evidence bound."""

    def __init__(self, latent: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.moments = nn.Linear(32 * 49, 2 * latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, 32 * 49), nn.Unflatten(1, (32, 7, 7)), nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.moments(self.encoder(x)).chunk(2, -1)
        noise = torch.randn(mean.shape, dtype=torch.float32).to(mean.dtype)
        scores = self.decoder(mean + noise * (log_variance / 2).exp())
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum() / 2
        return (
            F.binary_cross_entropy_with_logits(scores, x, reduction="sum") + divergence
        ) / x.shape[0]


def vae() -> tuple[nn.Module, Draw]:
    return VAE(), lambda: (torch.rand(16, 1, 28, 28),)


class Pixelwise(nn.Module):
    """Cross-entropy at each pixel."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.network(x), target)


def unet() -> tuple[nn.Module, Draw]:
    return Pixelwise(nets.UNet(16)), lambda: (
        torch.randn(2, 3, 64, 64),
        torch.randint(2, (2, 64, 64)),
    )


# -- derivatives inside the loss -------------------------------------------------------------------


class Adversaries(nn.Module):
    """The losses of a generator and of a critic with gradient penalty (Gulrajani et al., 2017),
    added: what each adversary does not minimize is detached."""

    def __init__(self, noise: int = 16, width: int = 32) -> None:
        super().__init__()
        self.generator = nets.perceptron(noise, 64, 64, width)
        self.critic = nn.Sequential(
            nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
        )

    def forward(self, real: Tensor, noise: Tensor, share: Tensor) -> Tensor:
        made = self.generator(noise)
        parameters = {name: p.detach() for name, p in self.critic.named_parameters()}
        fooled = -torch.func.functional_call(self.critic, parameters, (made,)).mean()
        made = made.detach()
        between = (share * real + (1 - share) * made).requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(2, dim=1) - 1).square().mean()
        return fooled + self.critic(made).mean() - self.critic(real).mean() + 10 * penalty


def gan() -> tuple[nn.Module, Draw]:
    return Adversaries(), lambda: (torch.randn(64, 32), torch.randn(64, 16), torch.rand(64, 1))


class Heat(nn.Module):
    """A network that is to fulfil the heat equation at the points (n, 2): u_t = u_xx (Raissi et
    al., 2019)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        t, x = t.detach().requires_grad_(), x.detach().requires_grad_()
        u = self.network(torch.stack((t, x), 1)).squeeze(1)
        u_t, u_x = torch.autograd.grad(u.sum(), (t, x), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        start = self.network(torch.stack((torch.zeros_like(x), x), 1)).squeeze(1)
        return (u_t - u_xx).square().mean() + (start - torch.sin(torch.pi * x)).square().mean()


def pinn() -> tuple[nn.Module, Draw]:
    return Heat(), lambda: (torch.rand(256), torch.rand(256))


class ForceField(nn.Module):
    """The energy of atoms (n, atoms, 3) as a sum over pairs of a network of their distance; forces
    are minus its gradient, and the loss is that of energies and forces."""

    def __init__(self, width: int = 32, reach: float = 4.0) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(0, reach, width))
        self.pair = nn.Sequential(
            nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
        )

    def energy(self, places: Tensor) -> Tensor:
        i, j = torch.triu_indices(places.shape[1], places.shape[1], 1)
        distances = (places[:, i] - places[:, j]).norm(dim=-1)
        features = torch.exp(-(distances.unsqueeze(-1) - self.centres).square())
        return self.pair(features).squeeze(-1).sum(-1)

    def forward(self, places: Tensor, energies: Tensor, forces: Tensor) -> Tensor:
        places = places.detach().requires_grad_()
        energy = self.energy(places)
        (slope,) = torch.autograd.grad(energy.sum(), places, create_graph=True)
        return F.mse_loss(energy, energies) + F.mse_loss(-slope, forces)


def force_field() -> tuple[nn.Module, Draw]:
    return ForceField(), lambda: (2 * torch.randn(8, 12, 3), torch.randn(8), torch.randn(8, 12, 3))


# -- transformers ----------------------------------------------------------------------------------


class Keywords(nn.Module):
    """The loss that a model of transformers computes itself, of tensors given in the order of
    `names`."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *args: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, args, strict=True))).loss


def tiny(name: str) -> tuple[nn.Module, Draw]:
    with torch.random.fork_rng(devices=[]):
        model, inputs = model_zoo.make(name)
    model.config.use_cache = False

    def draw() -> tuple[Any, ...]:
        with torch.random.fork_rng(devices=[]):
            fresh = model_zoo.make(name, seed=int(torch.randint(1 << 30, ())))[1]
        return (*fresh.values(), labels(name, fresh))

    return Keywords(trained(model), [*inputs, "labels"]), draw


def labels(name: str, inputs: dict[str, Any]) -> Tensor:
    if "pixel_values" in inputs:
        return torch.randint(2, (len(inputs["pixel_values"]),))
    if "input_values" in inputs:
        return torch.randint(1, 32, (len(inputs["input_values"]), 6))
    return inputs.get("decoder_input_ids", inputs["input_ids"])


def trained(model: nn.Module) -> nn.Module:
    """The model in training mode, with nothing left to chance."""
    for module in (m for m in model.train().requires_grad_().modules()):
        for name, value in vars(module).items():
            if ("drop" in name or (name == "p" and isinstance(module, nn.Dropout))) and isinstance(
                value, float
            ):
                setattr(module, name, 0.0)
    config = getattr(model, "config", None)
    for name in (
        [n for n in vars(config) if "drop" in n and isinstance(getattr(config, n), float)]
        if config
        else ()
    ):
        setattr(config, name, 0.0)
    if hasattr(config, "apply_spec_augment"):
        config.apply_spec_augment = False
    return model


# name: rate
TINY = dict.fromkeys(("BERT", "GPT-2", "Llama", "T5", "ViT", "Swin"), 1e-2) | {"Wav2Vec2": 1e-4}

SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("gpt2", lambda: gpt(gpt2.Config(), 1, 128)),
        Subject("gpt", small_gpt),
        Subject("conv_norm_relu", conv_norm_relu),
        Subject("resnet50", resnet50, rate=1e-3),
        Subject("vit", vit),
        Subject("lstm_cells", partial(cells, nn.LSTMCell)),
        Subject("gru_cells", partial(cells, nn.GRUCell)),
        Subject("transformer", transformer),
        Subject("vae", vae),
        Subject("unet", unet),
        Subject("gan", gan, steps=5),
        Subject("pinn", pinn),
        Subject("force_field", force_field, rate=1e-4),
        Subject("mixture", mixture, steps=5),
        Subject("gpt_checkpointed", partial(small_gpt, network=CheckpointedGpt)),
        *(
            Subject(f"tiny_{name}", partial(tiny, name), rate=rate, needs="transformers")
            for name, rate in TINY.items()
        ),
        *(Subject(f"gpt_{layers}", partial(small_gpt, layers)) for layers in (8, 16, 32)),
    )
}


def make(name: str) -> tuple[nn.Module, Draw]:
    """The subject's module and what draws its arguments; the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return SUBJECTS[name].make()


def drawn(draw: Draw, seed: int) -> tuple[Any, ...]:
    """The arguments of that seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return draw()
