"""Programs of libraries on torch, each with ten calls of different sizes.

A program is made anew for each compiler, so that none sees what another left behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

COUNT = 10
"""Sizes of a program."""

Call = tuple[Any, ...]


@dataclass
class Program:
    """What is compiled, and the arguments of its calls."""

    function: Callable[..., Any]
    calls: list[Call]
    with_gradients: bool = False  # whether they are recorded
    caller: Callable[..., Any] | None = None  # of the function, its first argument, by the library

    def called(self, function: Callable[..., Any], call: Call) -> Any:
        """A call of the program's function, or of a compiled one in its place."""
        if self.caller is None:
            return function(*call)
        return self.caller(function, *call)


PROGRAMS: dict[str, tuple[str, Callable[[], Program]]] = {}
"""By name: the package that a program needs, and what makes it."""


def program(package: str) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    def add(make: Callable[[], Program]) -> Callable[[], Program]:
        PROGRAMS[make.__name__] = package, make
        return make

    return add


@program("torch_geometric")
def gcn() -> Program:
    """Two layers over graphs of different sizes, from which loops are removed."""
    from torch_geometric.nn import GCNConv

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(16, 32), GCNConv(32, 8)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            edges = edges[:, edges[0] != edges[1]]
            result: Tensor = self.second(self.first(x, edges).relu(), edges)
            return result

    calls: list[Call] = []
    for k in range(COUNT):
        nodes = 50 + 7 * k
        calls.append((torch.randn(nodes, 16), torch.randint(nodes, (2, 4 * nodes))))
    return Program(Network().eval(), calls)


@program("torch_geometric")
def attention_over_graphs() -> Program:
    from torch_geometric.nn import GATConv

    calls: list[Call] = []
    for k in range(COUNT):
        nodes = 50 + 7 * k
        calls.append((torch.randn(nodes, 16), torch.randint(nodes, (2, 4 * nodes))))
    return Program(GATConv(16, 8, heads=4).eval(), calls)


@program("gpytorch")
def gaussian_process() -> Program:
    """The marginal log likelihood of an exact Gaussian process, as a step of training has it."""
    import gpytorch

    class Process(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, x: Tensor, y: Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    process = Process(torch.randn(8, 2), torch.randn(8), likelihood).train()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, process)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = -marginal(process.forward(x), y)
        return result

    calls = [(torch.randn(20 + k, 2), torch.randn(20 + k)) for k in range(COUNT)]
    return Program(loss, calls, with_gradients=True)


@program("lightning")
def trained_by_lightning() -> Program:
    """A module that is fitted to batches of different sizes, from the same weights each time."""
    from lightning import LightningModule, Trainer
    from torch.utils.data import DataLoader

    class Regression(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.net(x)
            return result

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            x, y = batch
            return F.mse_loss(self(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    module = Regression()
    start = [p.detach().clone() for p in module.parameters()]

    def fit(function: Any, x: Tensor, y: Tensor) -> list[Tensor]:
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), start):
                parameter.copy_(value)
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        batches = DataLoader(list(zip(x, y)), len(x) // 8, shuffle=False)
        trainer.fit(function, batches)
        return [p.detach().clone() for p in module.parameters()]

    calls: list[Call] = []
    for k in range(COUNT):
        count = 8 * (32 + k)
        calls.append((torch.randn(count, 64), torch.randn(count, 1)))
    return Program(module, calls, with_gradients=True, caller=fit)


@program("torchmetrics")
def f1_score() -> Program:
    """A metric that is updated and computed, with a state that is reset."""
    from torchmetrics.classification import MulticlassF1Score

    metric = MulticlassF1Score(num_classes=5)

    def score(logits: Tensor, labels: Tensor) -> Tensor:
        metric.reset()
        metric.update(logits, labels)
        result: Tensor = metric.compute()
        return result

    calls: list[Call] = []
    for k in range(COUNT):
        calls.append((torch.randn(32 + k, 5), torch.randint(5, (32 + k,))))
    return Program(score, calls)


@program("torchmetrics")
def mean_squared_error() -> Program:
    from torchmetrics.functional import mean_squared_error

    calls: list[Call] = []
    for k in range(COUNT):
        calls.append((torch.randn(32 + k, 5), torch.randn(32 + k, 5)))
    return Program(mean_squared_error, calls)


@program("torchrl")
def advantages() -> Program:
    """The generalized advantage estimate of batches of trajectories."""
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    def estimate(values: Tensor, after: Tensor, rewards: Tensor, done: Tensor) -> Any:
        return generalized_advantage_estimate(0.99, 0.95, values, after, rewards, done, done)

    calls: list[Call] = []
    for k in range(COUNT):
        shape = 4 + k, 16, 1
        numbers = [torch.randn(shape) for _ in range(3)]
        calls.append((*numbers, torch.rand(shape) > 0.9))
    return Program(estimate, calls)


@program("tensordict")
def dictionaries() -> Program:
    """A dictionary of tensors is made, changed, stacked and indexed."""
    from tensordict import TensorDict

    def build(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first = TensorDict({"x": x, "in": {"y": y}}, batch_size=[x.shape[0]])
        second = first.apply(torch.sin).set("x", x * 2)
        both = torch.stack([first, second], 0)
        return both["x"].sum(0), both[:, 1:]["in", "y"] + 1

    calls: list[Call] = []
    for k in range(COUNT):
        calls.append((torch.randn(5 + k, 3), torch.randn(5 + k)))
    return Program(build, calls)


@program("tensordict")
def dictionary_module() -> Program:
    """A module that reads and writes entries."""
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    first = TensorDictModule(nn.Linear(3, 8), in_keys=["x"], out_keys=["h"])
    second = TensorDictModule(nn.Linear(8, 2), in_keys=["h"], out_keys=["y"])
    both = TensorDictSequential(first, second)

    def run(x: Tensor) -> Tensor:
        result: Tensor = both(TensorDict({"x": x}, batch_size=[x.shape[0]]))["y"]
        return result

    return Program(run, [(torch.randn(5 + k, 3),) for k in range(COUNT)])


@program("diffusers")
def ddim_step() -> Program:
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler()
    scheduler.set_timesteps(10)

    def step(noise: Tensor, sample: Tensor) -> Tensor:
        for timestep in scheduler.timesteps[:3]:
            sample = scheduler.step(noise, timestep, sample).prev_sample
        return sample

    return Program(step, [_images(k, 2) for k in range(COUNT)])


@program("diffusers")
def euler_step() -> Program:
    from diffusers import EulerDiscreteScheduler

    scheduler = EulerDiscreteScheduler()

    def step(noise: Tensor, sample: Tensor) -> Tensor:
        scheduler.set_timesteps(10)
        for timestep in scheduler.timesteps[:3]:
            sample = scheduler.scale_model_input(sample, timestep)
            sample = scheduler.step(noise, timestep, sample).prev_sample
        return sample

    return Program(step, [_images(k, 2) for k in range(COUNT)])


@program("torchdiffeq")
def ode() -> Program:
    """A solver of fixed steps."""
    from torchdiffeq import odeint

    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
    times = torch.linspace(0, 1, 6)

    def solve(x: Tensor) -> Tensor:
        result: Tensor = odeint(lambda t, y: network(y), x, times, method="rk4")
        return result

    return Program(solve, [(torch.randn(8 + k, 4),) for k in range(COUNT)])


@program("einops")
def rearranged() -> Program:
    from einops import rearrange, reduce

    def patches(x: Tensor) -> Tensor:
        y: Tensor = rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
        result: Tensor = reduce(y, "b n d -> b d", "mean")
        return result

    return Program(patches, [(torch.randn(2 + k, 3, 16, 16),) for k in range(COUNT)])


@program("kornia")
def augmented() -> Program:
    """Images are blurred and turned to gray."""
    import kornia

    def change(x: Tensor) -> Tensor:
        blurred = kornia.filters.gaussian_blur2d(x, (3, 3), (1.5, 1.5))
        result: Tensor = kornia.color.rgb_to_grayscale(blurred)
        return result

    return Program(change, [(torch.rand(2 + k, 3, 16, 16),) for k in range(COUNT)])


@program("transformers")
def mixture_of_experts() -> Program:
    """A tiny Mixtral over lengths that vary."""
    from transformers import MixtralConfig, MixtralModel

    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    model = MixtralModel(config).eval()

    def run(tokens: Tensor) -> Tensor:
        result: Tensor = model(tokens, use_cache=False).last_hidden_state
        return result

    return Program(run, [(torch.randint(64, (2, 8 + k)),) for k in range(COUNT)])


@program("torchvision")
def detector() -> Program:
    """What a detector does behind its network: boxes are decoded, clipped and chosen."""
    from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image

    def choose(boxes: Tensor, scores: Tensor, labels: Tensor) -> Any:
        boxes = clip_boxes_to_image(boxes, (64, 64))
        kept = batched_nms(boxes, scores, labels, 0.5)
        return boxes[kept], scores[kept], box_iou(boxes, boxes).sum()

    calls: list[Call] = []
    for k in range(COUNT):
        count = 20 + k
        corners = torch.rand(count, 2) * 40
        boxes = torch.cat([corners, corners + 5 + torch.rand(count, 2) * 20], 1)
        calls.append((boxes, torch.rand(count), torch.randint(3, (count,))))
    return Program(choose, calls)


@program("torch")
def packed_sequences() -> Program:
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    gru = nn.GRU(8, 16, batch_first=True)

    def run(x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        result: Tensor = pad_packed_sequence(gru(packed)[0], batch_first=True)[0]
        return result

    calls: list[Call] = []
    for k in range(COUNT):
        lengths = torch.randint(1, 9, (4 + k,))
        lengths[0] = 8
        calls.append((torch.randn(4 + k, 8, 8), lengths))
    return Program(run, calls)


def _images(k: int, count: int) -> Call:
    return tuple(torch.randn(1 + k, 3, 8, 8) for _ in range(count))
