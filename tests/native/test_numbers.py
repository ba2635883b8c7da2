"""Floats as tensors: those of other numbers keep what is in them as long as somebody holds them."""

import math
import random

import pytest
import torch

import ingot
from ingot.native import _native
from ingot.native._native import tensor_of

MANY = 1_000  # more than are kept


@pytest.fixture(params=["native", "slow"])
def _facts(request):
    if request.param == "slow":
        _native._force_slow_tensor_facts(True)
    yield
    _native._force_slow_tensor_facts(False)


def numbers(seed):
    chooser = random.Random(seed)
    return [chooser.uniform(-1, 1) * 10 ** chooser.randint(-300, 300) for _ in range(MANY)]


@pytest.mark.usefixtures("_facts")
def test_each_number_is_in_its_tensor():
    for number in [*numbers(0), *numbers(0), 0.0, -0.0, math.inf, -math.inf]:
        made = tensor_of(number)
        assert type(made) is torch.Tensor and made.shape == () and made.dtype is torch.float64
        assert made.item() == number and math.copysign(1, made.item()) == math.copysign(1, number)
        assert not made.requires_grad and not made.is_inference()
        del made
    assert math.isnan(tensor_of(math.nan).item())


@pytest.mark.usefixtures("_facts")
@pytest.mark.parametrize(
    "hold", [lambda t: t, torch.Tensor.numpy, torch.Tensor.detach, torch.Tensor.untyped_storage]
)
def test_what_is_held_stays(hold):
    held = [(number, hold(tensor_of(number))) for number in numbers(1)]
    for number in numbers(2):
        tensor_of(number)
    for number, holder in held:
        if type(holder) is torch.UntypedStorage:
            holder = torch.tensor(holder, dtype=torch.uint8).view(torch.float64)
        assert holder.item() == number


def test_what_autograd_keeps_stays():
    kept = []
    for number in numbers(3):
        x = torch.ones((), dtype=torch.float64, requires_grad=True)
        kept.append((number, x, x * tensor_of(number)))
    for number, x, product in kept:
        product.backward()
        assert x.grad.item() == number


def test_a_number_is_one_tensor_lately():
    assert tensor_of(0.123) is tensor_of(0.123)
    assert tensor_of(0.0) is not tensor_of(-0.0)


def test_inference_mode_does_not_matter():
    with torch.inference_mode():
        made = [tensor_of(number) for number in numbers(4)]
    assert not any(t.is_inference() for t in made)


@pytest.mark.parametrize("what", [1, True, "1", None, torch.ones(())])
def test_nothing_else_is_a_number(what):
    with pytest.raises(TypeError):
        tensor_of(what)


def test_gradients_of_earlier_calls_have_their_numbers():
    @ingot.compile
    def scaled(x, a):
        return torch.sin(x * a) * a

    x = torch.linspace(-1, 1, 7, dtype=torch.float64, requires_grad=True)
    made = [(a, scaled(x, a)) for a in [k / 7 for k in range(1, 400)]]
    for a, y in reversed(made):
        expected = torch.autograd.grad((torch.sin(x * a) * a).sum(), x)[0]
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected)
