"""Artifacts that record gradients: what eager computes, in a process without capture."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from examples import gpt2

ROOT = Path(__file__).parents[2]
X = torch.linspace(-2, 2, 24).view(4, 6)


class Net(nn.Module):
    """With statistics that are updated, a frozen weight and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.first.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        y = self.norm(self.first(x)).relu()
        return {"out": self.last(y), "sums": y.sum(1), "rows": x.shape[0], "big": y.argmax(1)}


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def gradients(artifact: Any) -> dict[str, Tensor | None]:
    found = {}
    for name, tensor in artifact.state_dict().items():
        found[name] = tensor.grad
    return found


def close_gradients(artifact: Any, module: nn.Module) -> None:
    names = dict(module.named_parameters())
    for name, gradient in gradients(artifact).items():
        expected = names[name].grad if name in names else None
        if expected is None:
            assert gradient is None or not gradient.any()
        else:
            torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_steps_of_an_optimizer(exported):
    module = net()
    artifact = exported(module, (X,), dynamic={"x": {0: "batch"}}, training=True)
    mine = torch.optim.SGD(artifact.parameters(), lr=0.1, momentum=0.9)
    its = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    assert len(artifact.parameters()) == 5
    for batch in (4, 2, 7):
        x = torch.randn(batch, 6)
        for run, optimizer in ((artifact, mine), (module, its)):
            optimizer.zero_grad()
            result = run(x)
            (result["out"].square().mean() + result["sums"].mean()).backward()
        close_gradients(artifact, module)
        mine.step()
        its.step()
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(artifact.state_dict()[name].detach(), tensor)
    result = artifact(X)
    assert not result["big"].requires_grad and result["rows"] == 4
    with torch.no_grad():
        assert not artifact(X)["out"].requires_grad


def test_only_some_results_get_a_gradient(exported):
    module = net()
    artifact = exported(module, (X,), training=True)
    for run in (artifact, module):
        run(X)["sums"].sum().backward()
    close_gradients(artifact, module)


def test_gradients_of_arguments(exported):
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sin().sum(0)

    x = X.clone().requires_grad_()
    artifact = exported(f, (x, X + 1), dynamic=({0: "n"}, {0: "n"}), training=True)
    for n in (3, 5):
        x, y = torch.randn(n, 6, requires_grad=True), torch.randn(n, 6)
        tangent = torch.randn(2, 6).t().contiguous().t()[0]
        (mine,) = torch.autograd.grad(artifact(x, y), x, tangent)
        (its,) = torch.autograd.grad(f(x, y), x, tangent)
        torch.testing.assert_close(mine, its)
    with pytest.raises(ingot.ArtifactError, match="'y' requires gradients"):
        artifact(x, y.requires_grad_())
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (first,) = torch.autograd.grad(
            artifact(x, y.detach()), x, tangent.requires_grad_(), create_graph=True
        )
        first.sum().backward()


def test_arguments_that_no_result_depends_on(exported):
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    artifact = exported(lambda x, y: (x.sin(), y.detach() * 2), (x, y), training=True)
    first, second = artifact(x, y)
    assert first.requires_grad and not second.requires_grad
    gradients = torch.autograd.grad(first.sum(), (x, y), allow_unused=True)
    torch.testing.assert_close(gradients[0], x.detach().cos())
    assert gradients[1] is None


def test_saved_tensors_are_checked(exported):
    artifact = exported(net(), (X,), training=True)
    result = artifact(X)["out"].sum()
    with torch.no_grad():
        for parameter in artifact.parameters():
            parameter.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
    expected = net()
    expected(X)["out"].sum().backward()
    for pack in (lambda t: t.clone(), lambda t: t.t().contiguous().t() if t.dim() == 2 else t):
        artifact = exported(net(), (X,), training=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            result = artifact(X)["out"].sum()
        result.backward()
        close_gradients(artifact, expected)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t[:1]):
        result = artifact(X)["out"].sum()
    with pytest.raises(ingot.ArtifactError, match="a hook on saved tensors"):
        result.backward()


def two_views(x: Tensor) -> Any:
    y = x * 2
    return y, y[1:]


def written(x: Tensor) -> Tensor:
    y = x * 1
    x.mul_(2)
    return y


REFUSED: dict[str, Any] = {
    "views": (two_views, "returns views"),
    "of an argument": (lambda x: x.view(-1), "no tensor work|returns views"),
    "nothing": (lambda x: x.detach() * 2, "none of its results depends"),
    "written": (lambda x: written(x.view(-1)), "a leaf|writes tensors that require gradients"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(tmp_path, name):
    fn, text = REFUSED[name]
    path = tmp_path / "it.ingot"
    with pytest.raises(ingot.ExportError, match=text):
        ingot.export(fn, (X.clone().requires_grad_(),), path=path, training=True)
    with pytest.raises(ValueError, match="a library computes no gradients"):
        ingot.export(fn, (X,), path=path, training=True, format="library")
    assert not path.exists()


PROGRAM = """
    import sys
    import torch
    import ingot

    artifact = ingot.load("gpt.ingot")
    optimizer = torch.optim.SGD(artifact.parameters(), lr=0.5)
    losses = []
    for tokens in torch.load("tokens.pt"):
        optimizer.zero_grad()
        loss = artifact(tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.save(losses, "losses.pt")
    loaded = [name for name in sys.modules if name.startswith(("ingot.capture", "ingot.graph"))]
    assert loaded == [], loaded
"""


class Loss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        scores = self.model(tokens[:, :-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def test_training_in_a_fresh_process(tmp_path):
    module = Loss(gpt2.gpt2(gpt2.Config(1, 2, 16, 16, 50)))
    tokens = [torch.randint(0, 50, (batch, 9)) for batch in (3, 2, 5, 3)]
    ingot.export(
        module, (tokens[0],), path=tmp_path / "gpt.ingot", dynamic=({0: "batch"},), training=True
    )
    torch.save(tokens, tmp_path / "tokens.pt")
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    subprocess.run(command, cwd=tmp_path, env=variables, check=True)
    again = copy.deepcopy(module)
    optimizer = torch.optim.SGD(again.parameters(), lr=0.5)
    for batch, loss in zip(tokens, torch.load(tmp_path / "losses.pt"), strict=True):
        optimizer.zero_grad()
        expected = again(batch)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
