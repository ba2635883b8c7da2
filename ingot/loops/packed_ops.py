"""Recurrent layers over packed sequences, and their padding, as ops that call torch's own.

How many rows each step has is in a tensor that these look at, and fakes have no data."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.torch_private import OpOverload, pad_packed_sequence

_library = torch.library.Library("ingot", "FRAGMENT")
_library.define(
    "packed_rnn(str name, Tensor data, Tensor batch_sizes, Tensor[] states, Tensor[] weights, "
    "bool has_biases, int layers, float dropout, bool train, bool both) -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "pad_packed(Tensor data, Tensor batch_sizes, bool batch_first, float padding_value, "
    "SymInt total_length) -> (Tensor, Tensor)"
)


def _run(
    name: str, data: Tensor, batch_sizes: Tensor, states: list[Tensor], weights: list[Tensor],
    *settings: object,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The output, and the final states: the second of an LSTM alone."""
    given = states if name == "lstm" else states[0]
    output, *final = getattr(torch, name)(data, batch_sizes, given, weights, *settings)
    hidden, cell = (*final, data.new_empty(0))[:2]
    return output.contiguous(), hidden.contiguous(), cell.contiguous()


_library.impl("packed_rnn", _run, "CompositeExplicitAutograd")
_library.impl("pad_packed", pad_packed_sequence, "CompositeExplicitAutograd")
pad_packed: OpOverload = torch.ops.ingot.pad_packed.default
packed_rnn: OpOverload = torch.ops.ingot.packed_rnn.default
