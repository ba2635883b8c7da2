"""`options={"freeze": True}`: parameters are constants of the program; without it they are read at
each call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ingot


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
    ]
    return nn.Sequential(*layers, nn.Conv2d(16, 8, 1), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


X = torch.linspace(-1, 1, 2 * 3 * 36).view(2, 3, 6, 6)


@pytest.mark.parametrize("freeze", [False, True])
def test_the_result_is_eager_s(freeze):
    model = network()
    torch.testing.assert_close(ingot.compile(model, options={"freeze": freeze})(X), model(X))


@pytest.mark.parametrize(
    "name", ["0.weight", "1.weight", "1.running_var", "3.weight", "4.bias", "6.weight"]
)
def test_without_it_a_parameter_written_through_data_shows_in_the_next_call(name):
    model = network()
    compiled = ingot.compile(model)
    before = compiled(X)
    model.state_dict()[name].data.mul_(3)
    after = compiled(X)
    torch.testing.assert_close(after, model(X))
    assert not torch.allclose(before, after)


def constants(fn, *args, freeze):
    (compilation,) = ingot.explain(ingot.compile(fn, options={"freeze": freeze}))(
        *args
    ).compilations
    return len(compilation.log.loops.constants)


def test_what_depends_on_parameters_alone_is_computed_once():
    model = network()

    def kernels(freeze):
        return len(ingot.explain(ingot.compile(model, options={"freeze": freeze}))(X).kernels)

    assert constants(model, X, freeze=False) == 0 < constants(model, X, freeze=True)
    assert kernels(True) < kernels(False)


def test_arguments_are_not_frozen():
    weight = torch.randn(5, 4)
    fn = ingot.compile(lambda x, w: x @ w.t(), options={"freeze": True})
    x = torch.randn(3, 4)
    for _ in range(2):
        torch.testing.assert_close(fn(x, weight), x @ weight.t())
        weight.mul_(2)


def test_a_parameter_that_the_program_writes_is_not_frozen():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            self.count.add_(1)
            return x * self.count + self.weight

    model, expected = Counter(), Counter()
    compiled = ingot.compile(model, options={"freeze": True})
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(3)), expected(torch.ones(3)))
    assert torch.equal(model.count, expected.count)


def test_a_parameter_that_is_returned_is_the_parameter():
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x + self.weight, self.weight, self.weight.view(3, 1)

    model = Returns()
    _, weight, view = ingot.compile(model, options={"freeze": True})(torch.ones(3))
    assert weight is model.weight and view.data_ptr() == model.weight.data_ptr()
