"""A compiled module is still itself."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import ingot

from .tracked import assert_same

X = torch.randn(5, 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("bias", torch.ones(8))

    def forward(self, x):
        return self.linear(x).relu() + self.bias

    def extra(self, x):
        return self.forward(x) * 2


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def pair():
    """(a module, the same compiled and called once)"""
    module = Net()
    compiled = ingot.compile(module)
    assert_same(compiled(X), module(X))
    return module, compiled


def test_is_what_it_was(pair):
    module, compiled = pair
    assert isinstance(compiled, Net) and isinstance(compiled, nn.Module)
    assert repr(compiled) == repr(module) and type(compiled).__name__ == "Net"
    assert list(compiled.state_dict()) == list(module.state_dict()) == ["bias", "linear.weight", "linear.bias"]
    assert all(a is b for a, b in zip(compiled.parameters(), module.parameters(), strict=True))
    assert_same(compiled.extra(X), module.extra(X))


def test_shares_all_state(pair):
    module, compiled = pair
    compiled.eval()
    assert not module.training and not module.linear.training
    compiled.new = 3
    module.linear.weight.mul_(2)
    assert module.new == 3
    assert_same(compiled(X), module(X))
    module.load_state_dict({k: torch.randn_like(v) for k, v in compiled.state_dict().items()})
    assert_same(compiled(X), module(X))
    module.linear = nn.Linear(8, 3)
    module.bias = torch.zeros(3)
    assert_same(compiled(X), module(X))
    compiled.double()
    assert_same(compiled(X.double()), module(X.double()))


def test_data_swapped_under_a_parameter_is_seen(pair):
    module, compiled = pair
    version = module.linear.weight._version
    module.linear.weight.data.add_(1)
    assert module.linear.weight._version == version
    assert_same(compiled(X), module(X))
    module.linear.weight.data = torch.randn(8, 8)
    assert_same(compiled(X), module(X))


def test_hooks_are_seen_and_forgotten(pair):
    module, compiled = pair
    handle = compiled.register_forward_hook(lambda m, i, o: o + 100)
    assert compiled(X).min() > 50
    assert_same(compiled(X), module(X))
    handle.remove()
    assert_same(compiled(X), module(X))


def test_a_forward_of_its_own_is_seen(pair):
    module, compiled = pair
    module.forward = lambda x: x * 0 + 5
    assert_same(compiled(X), module(X))


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.deepcopy,
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: torch.load(saved(m), weights_only=False),
    ],
    ids=["deepcopy", "pickle", "save"],
)
def test_copies_are_compiled_and_apart(pair, duplicate):
    module, compiled = pair
    other = duplicate(compiled)
    assert isinstance(other, Net)
    assert_same(other(X), module(X))
    assert ingot.explain(other)(X).graph_count == 1
    other.linear.weight.zero_()
    assert not torch.equal(other(X), compiled(X))
    ingot.reset()
    assert len(ingot.explain(other)(X).compilations) == 1


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return file


def test_a_shallow_copy_shares_tensors_only(pair):
    _, compiled = pair
    other = copy.copy(compiled)
    other.new = 1
    assert not hasattr(compiled, "new") and other.linear is compiled.linear
    assert_same(other(X), compiled(X))


def test_compiled_parts_of_a_compiled_whole():
    whole = nn.Sequential(ingot.compile(nn.Linear(8, 8)), nn.ReLU(), ingot.compile(ingot.compile(nn.Linear(8, 2))))
    expected = whole(X)
    compiled = ingot.compile(whole, fullgraph=True)
    assert_same(compiled(X), expected)
    assert ingot.explain(compiled)(X).graph_count == 1


def test_compiled_again_with_other_options(pair):
    module, compiled = pair
    again = ingot.compile(compiled, fullgraph=True, dynamic=True)
    for n in (2, 3, 4):
        assert_same(again(torch.ones(n, 8)), module(torch.ones(n, 8)))
    assert len(ingot.explain(again)(X).compilations) == 1
