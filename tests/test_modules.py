"""A compiled module is still itself."""

from __future__ import annotations

import copy
import io
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import ingot

from .oracle import assert_near

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
    assert_near(compiled(X), module(X))
    return module, compiled


def test_is_what_it_was(pair):
    module, compiled = pair
    assert isinstance(compiled, Net) and isinstance(compiled, nn.Module)
    assert repr(compiled) == repr(module) and type(compiled).__name__ == "Net"
    assert (
        list(compiled.state_dict())
        == list(module.state_dict())
        == ["bias", "linear.weight", "linear.bias"]
    )
    assert all(a is b for a, b in zip(compiled.parameters(), module.parameters(), strict=True))
    assert_near(compiled.extra(X), module.extra(X))


def test_shares_all_state(pair):
    module, compiled = pair
    compiled.eval()
    assert not module.training and not module.linear.training
    compiled.new = 3
    module.linear.weight.mul_(2)
    assert module.new == 3
    assert_near(compiled(X), module(X))
    module.load_state_dict({k: torch.randn_like(v) for k, v in compiled.state_dict().items()})
    assert_near(compiled(X), module(X))
    module.linear = nn.Linear(8, 3)
    module.bias = torch.zeros(3)
    assert_near(compiled(X), module(X))
    compiled.double()
    assert_near(compiled(X.double()), module(X.double()))


def test_data_swapped_under_a_parameter_is_seen(pair):
    module, compiled = pair
    version = module.linear.weight._version
    module.linear.weight.data.add_(1)
    assert module.linear.weight._version == version
    assert_near(compiled(X), module(X))
    module.linear.weight.data = torch.randn(8, 8)
    assert_near(compiled(X), module(X))


def test_hooks_are_seen_and_forgotten(pair):
    module, compiled = pair
    handle = compiled.register_forward_hook(lambda m, i, o: o + 100)
    assert compiled(X).min() > 50
    assert_near(compiled(X), module(X))
    handle.remove()
    assert_near(compiled(X), module(X))


def test_a_forward_of_its_own_is_seen(pair):
    module, compiled = pair
    module.forward = lambda x: x * 0 + 5
    assert_near(compiled(X), module(X))


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
    assert_near(other(X), module(X))
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
    assert_near(other(X), compiled(X))


def test_compiled_parts_of_a_compiled_whole():
    whole = nn.Sequential(
        ingot.compile(nn.Linear(8, 8)), nn.ReLU(), ingot.compile(ingot.compile(nn.Linear(8, 2)))
    )
    expected = whole(X)
    compiled = ingot.compile(whole, fullgraph=True)
    assert_near(compiled(X), expected)
    assert ingot.explain(compiled)(X).graph_count == 1


def test_compiled_again_with_other_options(pair):
    module, compiled = pair
    again = ingot.compile(compiled, fullgraph=True, dynamic=True)
    for n in (2, 3, 4):
        assert_near(again(torch.ones(n, 8)), module(torch.ones(n, 8)))
    assert len(ingot.explain(again)(X).compilations) == 1


def test_what_is_made_from_its_class_is_not_compiled():
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    compiled = ingot.compile(module)
    assert_near(compiled(X), module(X))
    assert_near(compiled[:1](X), module[:1](X))
    assert compiled.__class__ is nn.Sequential and type(compiled[:2]) is nn.Sequential
    assert_near((compiled + nn.Sequential(nn.Tanh()))(X), module(X).tanh())


@pytest.mark.parametrize("through", ["module", "compiled"])
def test_parametrizations_change_its_class(pair, through):
    module, compiled = pair
    target = {"module": module, "compiled": compiled}[through]
    parametrize.register_parametrization(target, "bias", Doubled())
    assert_near(compiled(X), module(X))
    assert_near(compiled.bias, torch.ones(8))
    assert parametrize.is_parametrized(compiled, "bias") and isinstance(compiled, type(module))
    assert compiled.__class__ is type(module) is not Net
    assert type(compiled).__name__ == "ParametrizedNet"
    assert list(compiled.state_dict()) == list(module.state_dict())
    assert "parametrizations.bias.original" in compiled.state_dict()
    compiled.bias = torch.full((8,), 8.0)
    assert_near(module.parametrizations.bias.original, torch.full((8,), 4.0))
    assert_near(compiled(X), module(X))
    parametrize.remove_parametrizations(target, "bias")
    assert_near(compiled(X), module(X))
    assert_near(compiled.bias, torch.full((8,), 8.0))
    assert compiled.__class__ is type(module) is Net and isinstance(compiled, Net)


class Doubled(nn.Module):
    def forward(self, x):
        return x * 2

    def right_inverse(self, x):
        return x / 2


def test_the_first_call_of_a_lazy_module():
    compiled = ingot.compile(nn.LazyLinear(3))
    assert compiled.has_uninitialized_params()
    result = compiled(X)
    assert_near(compiled(X), result)
    assert (
        isinstance(compiled, nn.Linear)
        and repr(compiled) == "Linear(in_features=8, out_features=3, bias=True)"
    )
    assert not hasattr(compiled, "has_uninitialized_params") and compiled.in_features == 8
    assert [tuple(p.shape) for p in compiled.parameters()] == [(3, 8), (3,)]


def test_references_attributes_and_conversions(pair):
    module, compiled = pair
    assert weakref.ref(compiled)() is compiled and {compiled: 1}[compiled] == 1
    assert (
        compiled.linear is module.linear
        and dict(compiled.named_modules()).keys() == dict(module.named_modules()).keys()
    )
    assert next(iter(dict(compiled.named_modules()).values())) is compiled
    compiled.flag = True
    del compiled.flag
    assert not hasattr(module, "flag")
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'missing'"):
        _ = compiled.missing
    with pytest.raises(TypeError, match="cannot assign"):
        compiled.linear = 3
    compiled.linear = None
    assert module.linear is None
    compiled.linear = nn.Linear(8, 8)
    assert compiled.to(torch.float64) is compiled
    assert_near(compiled(X.double()), module(X.double()))
    assert compiled.half().float().train(False) is compiled and not module.training
    assert_near(compiled(X), module(X))
    assert compiled.requires_grad_(False) is compiled and not any(
        p.requires_grad for p in module.parameters()
    )
    assert compiled.apply(lambda part: None) is compiled and compiled.zero_grad() is None


def test_a_property_and_own_protocols():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.written = nn.Linear(8, 8), []

        def __getattr__(self, name):
            return 42 if name == "answer" else super().__getattr__(name)

        def __setattr__(self, name, value):
            if name == "gain":
                self.written.append(value)
            super().__setattr__(name, value)

        @property
        def size(self):
            return self.linear.in_features

        def __len__(self):
            return 3

        def forward(self, x):
            return self.linear(x) * self.answer + len(self) + self.size + self.gain

    module = Own()
    compiled = ingot.compile(module)
    compiled.gain = 2.0
    assert (
        module.written == [2.0]
        and compiled.answer == 42
        and compiled.size == 8
        and len(compiled) == 3
    )
    assert_near(compiled(X), module(X))
    with pytest.raises(AttributeError):
        compiled.size = 4


def test_state_goes_in_and_out(pair):
    module, compiled = pair
    file = io.BytesIO()
    torch.save(compiled.state_dict(), file)
    file.seek(0)
    other = Net()
    assert str(other.load_state_dict(torch.load(file))) == "<All keys matched successfully>"
    assert_near(other(X), module(X))
    compiled.load_state_dict(Net().state_dict())
    assert_near(compiled(X), module(X))
    assert not torch.equal(compiled(X), other(X))


def test_members_of_a_larger_module(pair):
    module, compiled = pair
    whole = nn.ModuleDict({"a": compiled, "b": nn.ReLU()})
    assert [n for n, _ in whole.named_parameters()] == ["a.linear.weight", "a.linear.bias"]
    assert list(whole.state_dict()) == ["a.bias", "a.linear.weight", "a.linear.bias"]
    duplicate = copy.deepcopy(whole)
    duplicate["a"].linear.weight.zero_()
    assert_near(whole["a"](X), module(X))
    assert isinstance(duplicate["a"], Net) and ingot.explain(duplicate["a"])(X).graph_count == 1


class Equal(Net):
    """Whose objects say themselves what they are equal to."""

    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 7


@pytest.mark.parametrize("stand_in", [ingot.compile, ingot.disable], ids=["compiled", "disabled"])
def test_tables_that_have_a_module_have_it_compiled(stand_in):
    module, other = Net(), Net()
    made, again = stand_in(module), stand_in(module)
    weak = weakref.WeakKeyDictionary({module: 1})
    assert weak[made] == 1 and made in {module} and module in {made} and made in [other, module]
    assert module == made and made == again and hash(made) == hash(module) and not made != module
    assert (
        made != other and made not in {other} and weakref.WeakKeyDictionary({made: 2})[module] == 2
    )
    assert [other, made, module].index(module) == 1 and made != 3
    whole = nn.ModuleList([made, module])
    assert [name for name, _ in whole.named_modules()] == ["", "0", "0.linear"]
    equal = stand_in(Equal())
    assert equal == Equal() and hash(equal) == 7 and Equal() == equal


def test_what_a_program_asks_of_compiled_modules_in_tables():
    module = Net()
    table = {module: 2.0}
    inner = ingot.compile(module)

    def program(x, m):
        return x * table[m] + (m in table) + (m == module) + (m is module)

    compiled = ingot.compile(program)
    for m in (module, inner, module):
        assert_near(compiled(X, m), program(X, m))
