"""What programs do beside their tensor work, whole: each in a small one, as in torch.compile."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import ingot
from ingot.errors import GraphBreakError
from tests.oracle import Close, assert_results

X = torch.linspace(-1, 1, 12).reshape(3, 4)
PLACES = torch.arange(4)
LINEAR = nn.Linear(4, 4)
NEAR = Close(rtol=1e-5, atol=1e-6)


class PerThread(threading.local):
    shift = 2

    def __init__(self, scale: int) -> None:
        self.scale = scale


THREAD, PLAIN_THREAD = PerThread(4), threading.local()
PLAIN_THREAD.a = 3


@sdpa_kernel(SDPBackend.MATH)
def attend(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x[None], x[None], x[None])


def attention_backends(x: Tensor) -> Any:
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        first = F.scaled_dot_product_attention(x[None], x[None], x[None])
    asked = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    second = F.scaled_dot_product_attention(x[None], x[None], x[None])
    torch.backends.cuda.enable_flash_sdp(asked)
    return first, second, attend(x), asked


def random_numbers_of_python(x: Tensor) -> Any:
    y = x * random.random() + random.uniform(1, 2) - random.randint(1, 3)
    return y * random.choice([1, 2])


def random_numbers_of_torch(x: Tensor) -> Any:
    drawn = torch.randn_like(x) + torch.randint(0, 4, (4,)) + torch.randperm(4)
    return drawn + torch.bernoulli(torch.full((4,), 0.5)) * torch.rand(4)


def thread_locals(x: Tensor) -> Any:
    PLAIN_THREAD.b = PLAIN_THREAD.a + 1
    stack = getattr(THREAD, "stack", None)
    if stack is None:
        stack = THREAD.stack = []
    stack.append(1)
    y = x * len(stack) * THREAD.scale + THREAD.shift
    stack.pop()
    return y * PLAIN_THREAD.b


@record_function("labelled")
def labelled(x: Tensor) -> Tensor:
    return x.cos()


def profiler_labels(x: Tensor) -> Any:
    with torch.profiler.record_function("first"), record_function("second", "arguments") as label:
        y = x.sin()
    return labelled(y), label is not None, torch.autograd.profiler._is_profiler_enabled


def default_dtypes(x: Tensor) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return x * torch.ones(4), torch.tensor(1.5).dtype
    finally:
        torch.set_default_dtype(before)


def copies(x: Tensor) -> Any:
    inner = copy.deepcopy({"a": x, "b": [x, 1]})
    return inner["b"][0] + 1, copy.copy([x])[0] * inner["b"][1]


def legacy_constructors(x: Tensor) -> Any:
    filled = torch.FloatTensor(4).fill_(2)
    chosen = x[torch.LongTensor([0, 2])], x[torch.BoolTensor([True, False, True])]
    return *chosen, x * torch.FloatTensor([1, 2, 3, 4]), torch.Tensor([1, 2, 3, 4]) * filled


def chosen_tensors(x: Tensor) -> Any:
    largest, least = max(x[0, 0], x[0, 1]), min([x[0, 0], x[0, 1], x[1, 1]])
    return largest * x, least * x, x / max(x.abs().max(), 1e-5), max(x.sum(), x.mean()) + x


def membership(x: Tensor) -> Any:
    return x * (3 in PLACES), 1 in [x[0, 0]], x[0, 0] in (x[0, 0], x[0, 1]), PLACES[1] in PLACES


def asserts(x: Tensor) -> Any:
    """As the statement does, which pytest rewrites."""
    if not x[0, 0] == -1:
        raise AssertionError
    if not (x < 2).all():
        raise AssertionError(f"too large: {x.shape}")
    if torch.isnan(x).any():
        raise AssertionError
    if not x[0, 0].item() < 1:
        raise AssertionError
    return x * 2


def histograms(x: Tensor) -> Any:
    counted = torch.bincount(PLACES, minlength=6), torch.bincount(PLACES, weights=x[0])
    return torch.histc(x, 4, -1, 1), torch.histc(x, 4), torch.histogram(x, 4)[0], *counted


def padded_sequences(x: Tensor) -> Any:
    padded = nn.utils.rnn.pad_sequence([x[0], x[1, :2]], batch_first=True)
    lengths = torch.tensor([3, 2, 4])
    return padded, nn.utils.rnn.unpad_sequence(x, lengths, batch_first=True)[0]


PROGRAMS = [
    *(attention_backends, random_numbers_of_python, random_numbers_of_torch, thread_locals),
    *(profiler_labels, default_dtypes, copies, legacy_constructors, chosen_tensors, membership),
    *(asserts, histograms, padded_sequences),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_is_whole(program: Callable[[Tensor], Any]) -> None:
    compiled = ingot.compile(program, fullgraph=True)
    for _ in range(2):
        results = []
        for fn in (program, compiled):
            torch.manual_seed(3)
            random.seed(3)
            with torch.no_grad():
                results.append(fn(X.clone()))
        assert_results(results[1], results[0], NEAR)


def test_a_profiler_around_sees_a_compiled_call() -> None:
    compiled = ingot.compile(lambda x: LINEAR(x).sin(), fullgraph=True)
    for _ in range(2):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            with record_function("the call"):
                result = compiled(X)
            result.sum().backward()
        names = {event.key for event in profile.key_averages()}
        assert "the call" in names and "aten::sum" in names
        torch.testing.assert_close(result, LINEAR(X).sin())
    assert ingot.explain(compiled)(X).graph_count == 1


def test_a_profiler_inside_sees_what_runs() -> None:
    def program(x: Tensor) -> Any:
        y = x + 1
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            with record_function("within"):
                y = y.sin()
            z = torch.linalg.det(y[:, :3])
        return z, "within" in {event.key for event in profile.key_averages()}

    (expected, _), (got, _) = program(X), ingot.compile(program)(X)
    torch.testing.assert_close(got, expected)
    with pytest.raises(GraphBreakError, match="watches or compiles programs"):
        ingot.compile(program, fullgraph=True)(X)
