"""The benchmark of decoding: what it measures is right, and what it prints."""

from __future__ import annotations

import pytest
import torch

from benchmarks import decode


def test_the_command_line(capsys):
    given = ["decoder-32", "attention-masked-repeated", "head-1", "--device", "cpu", "--tiny"]
    assert decode.main([*given, "--rounds", "1", "--without-compile", "--kernels"]) == 0
    out = capsys.readouterr().out
    assert "a copy moves" in out and "steps of the plan" in out
    lines = [line for line in out.splitlines() if line.startswith("decoder-32  Ingot")]
    (fields,) = [line.split() for line in lines]
    assert fields[-1] == "4/4" and float(fields[-2]) < 1e-5


@pytest.mark.parametrize("grouped", [False, True])
def test_a_step_attends_to_what_was_written_before(grouped):
    """The last token of a sequence that is decoded step by step is that of attention to all."""
    torch.manual_seed(0)
    sizes = decode.TINY._replace(cache=5)
    with torch.no_grad():
        module = decode.Decoder(sizes, 2, grouped)
        tokens = torch.randint(sizes.words, (2, 5))
        for place in range(5):
            found = module(tokens[:, place, None], torch.tensor([place]))
        x = module.words(tokens)
        cos, sin = decode.angles(torch.arange(5), sizes, x.dtype)
        mask = torch.ones(5, 5, dtype=torch.bool).tril()
        for layer in module.layers:
            x = layer(x, cos, sin, mask, torch.arange(5))
        assert torch.equal(module.head(x), found)


def test_an_unknown_row_is_an_error():
    with pytest.raises(SystemExit):
        decode.main(["no-such-row"])
