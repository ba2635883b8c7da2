"""The example programs: right against float64, deterministic, and of the shapes they claim."""

from __future__ import annotations

import pytest
import torch

from examples import gpt2, mlp, resnet
from examples.functions import FUNCTIONS
from ingot.explain import measure

SMALL = {
    "complex_activation": (16, 33),
    "tanh_gelu": (16, 33),
    "mlp_dead_matmul": (8, 32),
    "layer_norm_gelu": (8, 40),
    "masked_softmax": (8, 40),
    "rms_norm_rotary": (6, 3, 16),
    "eight_elements": (8,),
}
TINY = gpt2.Config(layers=2, heads=2, width=16, positions=32, vocabulary=300)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_agrees_with_float64(name):
    function, args = FUNCTIONS[name].make(shape=SMALL[name])
    result = function(*args)
    assert result.shape == SMALL[name] and result.isfinite().all()
    assert measure.error(result, measure.reference64(function, args, {})) < 1e-6


def test_functions_are_what_they_say():
    x = torch.tensor([[0.5, -2.0, 3.0]], dtype=torch.float64)
    gelu, _ = FUNCTIONS["tanh_gelu"].make()
    torch.testing.assert_close(gelu(x), torch.nn.functional.gelu(x, approximate="tanh"))
    rotate, _ = FUNCTIONS["rms_norm_rotary"].make()
    plain = rotate(x[:, :2], torch.ones(2), torch.ones(2), torch.zeros(2))
    torch.testing.assert_close(plain, torch.nn.functional.rms_norm(x[:, :2], (2,), eps=1e-6))
    softmax, (scores, hidden) = FUNCTIONS["masked_softmax"].make(shape=(8, 40))
    assert (
        (softmax(scores, hidden)[hidden] == 0).all()
        and hidden.any()
        and not hidden.all(dim=-1).any()
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gpu_sizes_are_named_arguments_of_the_constructor(name):
    small = {"shape": SMALL[name], "device": "cpu"}
    _, args = FUNCTIONS[name].constructor(**{**FUNCTIONS[name].cuda, **small})
    assert args[0].shape == SMALL[name]


def test_gpt2_is_the_124m_model():
    with torch.device("meta"):
        model = gpt2.Gpt(gpt2.Config())
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


def test_gpt2_looks_at_no_later_token():
    model = gpt2.gpt2(TINY)
    tokens = gpt2.encode(gpt2.TEXT)[:, :16]
    changed = tokens.clone()
    changed[0, 10:] = 1
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_generation_is_deterministic_and_greedy():
    tokens = gpt2.encode(gpt2.TEXT)
    first = gpt2.generate(gpt2.gpt2(TINY), tokens, 6, window=16)
    assert first.shape == (1, 6)
    assert torch.equal(first, gpt2.generate(gpt2.gpt2(TINY), tokens, 6, window=16))
    assert not torch.equal(first, gpt2.generate(gpt2.gpt2(TINY, seed=1), tokens, 6, window=16))
    assert first[0, 0] == gpt2.gpt2(TINY)(tokens[:, -16:])[0, -1].argmax()


def test_generation_wants_a_full_window():
    with pytest.raises(ValueError, match="3 tokens do not fill the window of 16"):
        gpt2.generate(gpt2.gpt2(TINY), gpt2.encode("abc"), 1, window=16)


def test_text_survives_as_bytes():
    assert gpt2.decode(gpt2.encode(gpt2.TEXT)) == gpt2.TEXT
    assert gpt2.decode(torch.tensor([65, 40000, 10])) == "A··"


@torch.no_grad()
def test_resnet_and_mlp():
    model, args = resnet.make_small()
    assert model(*args).shape == (2, 10) and not model.training
    wide = resnet.resnet(resnet.Bottleneck, (1, 1, 1, 1), width=8, classes=5)
    assert wide(resnet.images(1, 32)).shape == (1, 5)
    model, args = mlp.make()
    torch.testing.assert_close(model(*args).sum(-1), torch.ones(32))
