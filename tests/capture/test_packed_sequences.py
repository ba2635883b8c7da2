"""Packed sequences of torch.nn.utils.rnn, and recurrent layers over them, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
)

import ingot
from tests.compiled import breaks, compilations
from tests.oracle import assert_same, outcome


def lengths_of(batch: int, longest: int, is_sorted: bool) -> Tensor:
    lengths = torch.randint(1, longest + 1, (batch,))
    lengths[0] = longest
    return lengths.sort(descending=True).values if is_sorted else lengths


LAYERS: dict[str, tuple[Callable[[], nn.Module], bool, bool]] = {
    "GRU": (lambda: nn.GRU(3, 4, batch_first=True), True, False),
    "LSTM": (lambda: nn.LSTM(3, 4, batch_first=True), True, True),
    "RNN": (lambda: nn.RNN(3, 4), False, False),
    "relu": (lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False), False, True),
    "both directions": (lambda: nn.GRU(3, 4, 2, bidirectional=True), False, False),
    "projected": (lambda: nn.LSTM(3, 4, 2, proj_size=2, batch_first=True), True, False),
    "dropout": (lambda: nn.GRU(3, 4, 2, dropout=0.5).eval(), False, True),
}
"""A layer, whether batches come first, and whether sequences are sorted."""


@pytest.mark.parametrize("name", LAYERS)
def test_layers_over_lengths_that_vary(name: str) -> None:
    make, batch_first, is_sorted = LAYERS[name]
    torch.manual_seed(0)
    layer = make()

    def fn(x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first, is_sorted)
        output, final = layer(packed)
        padded, counts = pad_packed_sequence(output, batch_first)
        return padded * 2, counts, final

    compiled = ingot.compile(fn)
    with torch.no_grad():
        for batch, longest in ((4, 6), (4, 5), (6, 7), (3, 8), (1, 3), (5, 1)):
            x = torch.randn((batch, longest, 3) if batch_first else (longest, batch, 3))
            lengths = lengths_of(batch, longest, is_sorted)
            assert_same(compiled(x, lengths), fn(x, lengths))
    assert breaks(compiled) == 0 and len(compilations(compiled)) <= 4


def test_packed_sequences_from_outside_and_given_away() -> None:
    layer = nn.LSTM(3, 4)

    def fn(packed: PackedSequence, state: Any) -> Any:
        output, final = layer(packed, state)
        return output, final, pad_packed_sequence(output, padding_value=-1.5, total_length=9)

    compiled = ingot.compile(fn)
    with torch.no_grad():
        for batch, longest in ((4, 6), (3, 5), (4, 6)):
            sequences = [torch.randn(longest - k, 3) for k in range(batch)]
            packed = pack_sequence(sequences)
            state = torch.randn(1, batch, 4), torch.randn(1, batch, 4)
            for given in (None, state):
                assert_same(compiled(packed, given), fn(packed, given))


def test_what_is_written_between() -> None:
    def fn(x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        packed.data.mul_(2)
        first = packed.batch_sizes[0] + 1
        packed.batch_sizes[0] -= 1
        return packed.data, first, torch.zeros(3, packed.batch_sizes[0]), packed.batch_sizes

    compiled = ingot.compile(fn)
    for batch in (3, 4, 5):
        x, lengths = torch.randn(6, batch, 2), lengths_of(batch, 6, False)
        assert_same(compiled(x.clone(), lengths), fn(x.clone(), lengths))


@pytest.mark.parametrize("lengths", [[3, 0], [2, 3], [4, 3], [3], [3, 1]], ids=str)
def test_errors_are_eagers(lengths: list[int]) -> None:
    def fn(x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths)
        return packed.data + 1, packed.batch_sizes

    x, compiled = torch.randn(3, 2, 4), ingot.compile(fn)
    for _ in range(2):
        given = torch.tensor(lengths)
        assert_same(outcome(compiled, x, given), outcome(fn, x, given))


@pytest.mark.parametrize("name", ["GRU", "LSTM", "both directions"])
def test_gradients(name: str) -> None:
    make, batch_first, is_sorted = LAYERS[name]
    layer = make()

    def fn(x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x.sin(), lengths, batch_first, is_sorted)
        padded, _ = pad_packed_sequence(layer(packed)[0], batch_first)
        return padded.square().sum()

    compiled = ingot.compile(fn)
    parameters = list(layer.parameters())
    for batch, longest in ((4, 6), (3, 5), (6, 7)):
        shape = (batch, longest, 3) if batch_first else (longest, batch, 3)
        x, lengths = torch.randn(shape, requires_grad=True), lengths_of(batch, longest, is_sorted)
        expected = torch.autograd.grad(fn(x, lengths), [x, *parameters])
        found = torch.autograd.grad(compiled(x, lengths), [x, *parameters])
        for a, b in zip(found, expected):
            torch.testing.assert_close(a, b)
