"""Programs that draw random numbers as they train: after ten steps the generator is where eager's
is, and so are losses and parameters, with forward, backward and optimizer in one compiled function,
or each by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ingot

STEPS = 10

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    # Where gradients are zero but for rounding, as those of the keys' biases, a small eps makes
    # steps of the rounding.
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, eps=1e-3),
}


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 8), nn.Dropout(0.1)
        )

    def loss(self, x: Tensor) -> Tensor:
        return F.mse_loss(self(x), x)


class Attention(nn.Module):
    """Dropout of attention's weights, and of what comes of it."""

    def __init__(self, fused: bool = True) -> None:
        super().__init__()
        self.fused, self.project, self.out = fused, nn.Linear(8, 24), nn.Linear(8, 8)

    def loss(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x.view(4, 4, 8)).view(4, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if self.training else 0.0)
        else:
            y = F.dropout(torch.softmax(q @ k.mT / 2, -1), 0.2, self.training) @ v
        y = F.dropout(self.out(y.transpose(1, 2).reshape(16, 8)), 0.1, self.training)
        return F.mse_loss(y + x, x.flip(0))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)

    def loss(self, x: Tensor) -> Tensor:
        return self.layer(x.view(4, 4, 8)).square().mean()


class Activations(nn.Module):
    """RReLU, whose slopes are random, and dropout of whole channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rrelu, self.last = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.RReLU(),
            nn.Linear(32, 4),
        )

    def loss(self, x: Tensor) -> Tensor:
        y = F.dropout2d(self.rrelu(self.conv(x.view(16, 1, 2, 4))), 0.2, self.training)
        y = F.alpha_dropout(F.rrelu(y, training=self.training), 0.1, self.training)
        return self.last(y.flatten(1)).square().mean()


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 8), nn.Linear(4, 8)

    def loss(self, x: Tensor) -> Tensor:
        mean, log_var = self.encode(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        divergence = (mean.square() + log_var.exp() - 1 - log_var).sum(1).mean() / 2
        return F.mse_loss(self.decode(z), x) + 0.1 * divergence


class Policy(nn.Module):
    """Actions that are drawn: by multinomial and Bernoulli distributions, and by Gumbel's trick."""

    def __init__(self) -> None:
        super().__init__()
        self.logits, self.stop = nn.Linear(8, 5), nn.Linear(8, 1)

    def loss(self, x: Tensor) -> Tensor:
        logits = self.logits(x)
        action = torch.multinomial(logits.detach().softmax(1), 2)
        stop = torch.bernoulli(torch.sigmoid(self.stop(x)).detach())
        drawn = F.gumbel_softmax(logits, tau=0.7)
        reward = torch.rand(16, 1) + torch.randint(3, (16, 1))
        chosen = logits.log_softmax(1).gather(1, action)
        return (
            -(chosen * reward * stop).mean()
            + (drawn * x[:, :5]).mean()
            + F.softplus(self.stop(x)).mean()
        )


class Distributions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.rate = nn.Linear(8, 4), nn.Linear(8, 4)

    def loss(self, x: Tensor) -> Tensor:
        normal = torch.distributions.Normal(self.mean(x), F.softplus(self.rate(x)) + 0.1)
        sample = normal.rsample()
        wait = torch.distributions.Exponential(F.softplus(self.rate(x)) + 0.1).rsample()
        order = torch.randperm(16)
        return (sample - x[order, :4]).square().mean() + 0.1 * wait.mean() - normal.entropy().mean()


class Recurrent(nn.Module):
    """Dropout between the layers of an LSTM, and noise in each step of a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, num_layers=2, dropout=0.3, batch_first=True)
        self.cell = nn.GRUCell(8, 8)

    def loss(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x.view(4, 4, 8))
        state = torch.zeros(4, 8)
        for k in range(4):
            state = F.dropout(self.cell(y[:, k], state), 0.2, self.training) + 0.01 * torch.randn(
                4, 8
            )
        return state.square().mean()


class Checkpointed(Mlp):
    """The region draws the same numbers again in the backward."""

    def loss(self, x: Tensor) -> Tensor:
        return F.mse_loss(checkpoint(self, x * 1.0, use_reentrant=False), x)


class Broken(Mlp):
    """A graph break between two draws."""

    def loss(self, x: Tensor) -> Tensor:
        y = F.dropout(self[1](self[0](x)), 0.5)
        pause()
        return F.mse_loss(F.dropout(self[3](y), 0.2), x)


@ingot.disable
def pause() -> None:
    torch.rand(1)


MODELS: dict[str, Callable[[], Any]] = {
    "mlp": Mlp, "attention": Attention, "attention written out": lambda: Attention(False),
    "encoder": Encoder, "activations": Activations, "vae": Vae, "policy": Policy,
    "distributions": Distributions, "recurrent": Recurrent,
    "checkpointed": Checkpointed, "broken": Broken,
}  # fmt: skip


def together(wrap: Any, model: Any, optimizer: Any) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model.loss(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return wrap(step)


def apart(wrap: Any, model: Any, optimizer: Any) -> Callable[[Tensor], Tensor]:
    forward, update = wrap(model.loss), wrap(optimizer.step)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = forward(x)
        loss.backward()
        update()
        return loss.detach()

    return step


def eager(function: Any) -> Any:
    return function


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("arrange", [together, apart])
@pytest.mark.parametrize("name", MODELS)
def test_ten_steps_draw_the_numbers_of_eager(name, arrange, optimizer):
    found = []
    for wrap in (eager, ingot.compile):
        torch.manual_seed(0)
        model = MODELS[name]()
        step = arrange(wrap, model, OPTIMIZERS[optimizer](model.parameters()))
        torch.manual_seed(1)
        losses, states = [], []
        for k in range(STEPS):
            if k == 6:
                torch.manual_seed(5)  # seeds count, whatever was compiled before
            losses.append(step(torch.randn(16, 8)))
            states.append(torch.get_rng_state())
        found.append((losses, states, torch.rand(3), [*model.parameters(), *model.buffers()]))
    for mine, its in zip(found[1][1], found[0][1], strict=True):
        assert torch.equal(mine, its)
    assert torch.equal(found[1][2], found[0][2])
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1][3], found[0][3], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("broken", "policy")])
def test_it_is_compiled(name):
    """One graph for forward and backward, so that what is compared is not eager with itself."""
    torch.manual_seed(0)
    model = MODELS[name]()
    report = ingot.explain(model.loss)(torch.randn(16, 8))
    assert report.break_count == 0 and report.graph_count == 1, report


def test_other_seeds_draw_other_numbers():
    """The comparison above can fail: a step depends on what is drawn."""
    torch.manual_seed(0)
    model, x = Mlp(), torch.randn(16, 8)
    compiled = ingot.compile(model.loss)
    torch.manual_seed(3)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), first) and not torch.equal(first, second)


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 4, 5), ()])
def test_rrelu(shape, training, inplace):
    """It draws for what is not positive, in the order of the sizes, however the elements lie."""

    def function(x: Tensor) -> Tensor:
        y = x.transpose(0, -1) * 1.5 if x.dim() else x * 1.5
        return F.rrelu(y, 0.1, 0.4, training, inplace).sin()

    found = []
    for wrap in (eager, lambda f: ingot.compile(f, fullgraph=True)):
        torch.manual_seed(0)
        x = torch.randn(shape, requires_grad=True)
        y = wrap(function)(x)
        found.append((y.detach(), torch.autograd.grad(y.sum(), x), torch.rand(1)))
    torch.testing.assert_close(*found)
