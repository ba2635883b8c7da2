"""Steps of scores are what they were after their text was read."""

from __future__ import annotations

import math

import pytest
import torch

from ingot.loops.expr import size_symbol
from ingot.loops.own_ops import scored_attention, scored_product
from ingot.loops.scores import Step, Value, decode, encode, run

aten = torch.ops.aten
STEPS = [
    Step(aten.mul.Tensor, (Value(0), 0.125), {}, (2, 3, 4), torch.float32),
    Step(aten.masked_fill.Scalar, (Value(2), Value(1), -math.inf), {}, (2, 3, 4), torch.float32),
    Step(aten._to_copy.default, (Value(3),), {"dtype": torch.float16}, (2, 3, 4), torch.float16),
    Step(aten.view.default, (Value(4), [1, 2, 3, 4]), {}, (1, 2, 3, 4), torch.float16),
]


def test_texts_and_steps() -> None:
    assert decode(*encode(STEPS)) == STEPS
    assert encode(decode(*encode(STEPS))) == encode(STEPS)
    assert decode(*encode([])) == []


def test_sizes_that_are_symbols() -> None:
    """They go beside the text, which other sizes can be given to."""
    rows, columns = size_symbol("rows"), size_symbol("columns")
    steps = [
        Step(aten.view.default, (Value(0), [1, rows, columns]), {}, (1, rows, columns), torch.int8),
        Step(aten.expand.default, (Value(1), [2, rows, -1]), {}, (2, rows, columns), torch.int8),
    ]
    text, sizes = encode(steps)
    assert sizes == [rows, columns, rows, columns, rows, rows, columns]
    assert decode(text, sizes) == steps
    assert decode(text, [3, 4, 3, 4, 3, 3, 4])[0].sizes == (1, 3, 4)


def test_what_has_no_words() -> None:
    step = Step(aten.mul.Tensor, (Value(0), torch.ones(1)), {}, (1,), torch.float32)
    with pytest.raises(TypeError, match="a Tensor among the arguments"):
        encode([step])


def test_steps_are_run_in_order() -> None:
    product, mask = torch.randn(2, 3, 4), torch.rand(2, 3, 4) > 0.5
    result = run(STEPS, [product, mask], lambda step, args, kwargs: step.op(*args, **kwargs))
    expected = (product * 0.125).masked_fill(mask, -math.inf).half().view(1, 2, 3, 4)
    assert torch.equal(result, expected)
    assert run([], [product, mask], lambda *_: None) is product


@pytest.mark.parametrize("zero_rows", [False, True])
def test_the_ops_in_eager(zero_rows: bool) -> None:
    """What a graph's ops give where no kernel is made for them: the result, the logarithms, and a
    gradient by both sides."""
    q, k, v = (torch.randn(2, 5, 8, dtype=torch.float64).half() for _ in range(3))
    causal = torch.ones(5, 5).tril().bool()
    causal[0, 0] = False
    text, sizes = encode(
        [
            Step(
                aten.masked_fill.Scalar,
                (Value(0), Value(1), -math.inf),
                {},
                (2, 5, 5),
                torch.float32,
            )
        ]
    )
    result, logarithms = scored_attention(q, k.mT, v, [~causal], text, sizes, zero_rows)
    scores = (q.float() @ k.float().mT).masked_fill(~causal, -math.inf)
    weights = torch.softmax(scores, -1)
    if zero_rows:
        weights = weights.nan_to_num(0.0)
    expected = weights @ v.float()
    torch.testing.assert_close(result.float(), expected, atol=2e-3, rtol=2e-3, equal_nan=True)
    rows = scores.logsumexp(-1, keepdim=True)
    torch.testing.assert_close(logarithms, rows)
    ours = scored_product([q, k.mT], v, [~causal], text, sizes, True, zero_rows)
    finite = torch.where(causal, scores, -math.inf)
    torch.testing.assert_close(ours, finite.mT @ v.float(), equal_nan=True)
