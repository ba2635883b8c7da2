"""Parts of a program that are alike: which are traced once, and that all of them are computed."""

from __future__ import annotations

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from ingot.graph import components
from ingot.torch_private import get_dynamic_layer_stack_depth


def tensors(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) for size in sizes]


ALIKE = [(40, 3), (50,)] * 6
STEPS = [(1,)] * 12


def given(*lists):
    """Fresh copies of the arguments, so that what is written can be compared."""
    return [[t.clone() for t in xs] if isinstance(xs, list) else xs.clone() for xs in lists]


def copies(fn, *args) -> list[int]:
    """How many copies of each part that is traced there are, where what is computed is what eager
    computes."""
    seen = []
    traced = components._traced
    theirs = given(*args)
    expected = fn(*theirs)
    ours = given(*args)
    try:
        components._traced = lambda *args: seen.append(traced(*args)) or seen[-1]
        compiled = ingot.compile(fn, fullgraph=True)
        for _ in range(2):
            ours = given(*args)
            result = compiled(*ours)
    finally:
        components._traced = traced
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(ours, theirs)
    return [len(one) for one in seen[-1].copies] if seen and seen[-1] is not None else []


def scaled(xs):
    return [x * 2 + 1 for x in xs]


def written(xs, steps):
    for x, step in zip(xs, steps):
        step += 1
        x.mul_(step)
    return [x.sum() for x in xs]


def with_a_rate(xs, rate):
    for x in xs:
        x.sub_(x * rate)


def several_results(xs):
    made = []
    for x in xs:
        y = x.exp()
        made += [y, y[0], x - y]
    return made


def test_parts_are_traced_once():
    assert copies(scaled, tensors(*ALIKE)) == [5, 5]


def test_numbers_of_their_own_are_written():
    assert copies(written, tensors(*ALIKE), tensors(*STEPS)) == [5, 5]


def test_a_number_that_all_read():
    assert copies(with_a_rate, tensors(*ALIKE), torch.tensor(0.25)) == [5, 5]


def test_results_that_share_memory():
    assert copies(several_results, tensors(*ALIKE)) == [5, 5]


def test_calls_of_a_library():
    def fn(xs):
        return [torch.sort(x * 2 + 1).values + 1 for x in xs]

    assert copies(fn, tensors(*ALIKE)) == [5, 5]


def test_parts_that_read_nothing():
    def fn(x):
        return [torch.ones(3) for _ in range(8)] + [x + 1]

    assert copies(fn, torch.ones(2)) == [7, 0]


def test_what_a_new_tensor_is_made_like():
    def fn(xs):
        made = [torch.zeros_like(x) for x in xs]
        for x, new in zip(xs, made):
            new.add_(x)
        return made

    assert copies(fn, tensors(*ALIKE)) == [5, 5]


def test_other_numbers_are_other_parts():
    def fn(xs):
        return [x * (k % 2) + 0.0 for k, x in enumerate(xs)]

    assert copies(fn, tensors(*[(3,)] * 16)) == [7, 7]


def test_layouts_tell_parts_apart():
    def fn(xs):
        return [x * 2 for x in xs]

    xs = tensors(*[(4, 4)] * 16)
    xs = [x.t() if k % 2 else x for k, x in enumerate(xs)]
    expected = fn(xs)
    results = ingot.compile(fn, fullgraph=True)(xs)
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(results, expected))


@pytest.mark.parametrize("count", [1, 3])
def test_few_parts_are_one_program(count):
    assert copies(scaled, tensors(*[(40,)] * count)) == []


def test_what_others_write_is_no_part():
    def fn(xs, rate):
        for x in xs:
            x.mul_(rate)
            rate.mul_(0.5)

    assert copies(fn, tensors(*ALIKE), torch.tensor(2.0)) == []


def test_what_is_read_before_it_is_written():
    def fn(xs, rate):
        made = [x * rate for x in xs]
        rate.add_(1)
        return made

    assert copies(fn, tensors(*ALIKE), torch.tensor(2.0)) == []


def test_views_of_one_memory():
    def fn(flat):
        rows = [flat[k] for k in range(8)]
        for row in rows:
            row.mul_(2)
        return flat.sum()

    assert copies(fn, torch.randn(8, 3)) == []
    memory = torch.arange(24.0).reshape(8, 3)

    def of_rows(*rows):
        for row in rows:
            row.add_(1)

    ingot.compile(of_rows)(*memory)
    assert torch.equal(memory, torch.arange(24.0).reshape(8, 3) + 1)


def test_large_inputs_in_common_join_parts():
    def fn(xs, shared):
        return [x + shared for x in xs]

    assert copies(fn, tensors(*[(50,)] * 8), torch.randn(50)) == []


def test_random_numbers_keep_their_order():
    def fn(xs):
        return [x + torch.rand_like(x) for x in xs]

    xs = tensors(*ALIKE)
    torch.manual_seed(3)
    expected = fn(xs)
    compiled = ingot.compile(fn, fullgraph=True)
    for _ in range(2):
        torch.manual_seed(3)
        torch.testing.assert_close(compiled(xs), expected, rtol=0, atol=0)


def test_an_error_comes_before_what_follows_it():
    def fn(xs, ks):
        for x, k in zip(xs, ks):
            x.add_(x.gather(0, k))

    xs, ks = tensors(*[(5,)] * 8), [torch.tensor([k]) for k in (0, 1, 2, 9, 0, 1, 2, 3)]
    compiled = ingot.compile(fn)
    assert copies(fn, xs, [k % 5 for k in ks]) == []
    mine = given(xs)[0]
    theirs = given(xs)[0]
    with pytest.raises(RuntimeError):
        fn(theirs, ks)
    compiled(given(xs)[0], [k % 5 for k in ks])
    with pytest.raises(RuntimeError):
        compiled(mine, ks)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_modes_are_of_their_calls():
    def fn(xs):
        made = []
        for k, x in enumerate(xs):
            with torch.set_grad_enabled(k % 2 == 0):
                made.append(x * 2)
        return made

    ingot_made = ingot.compile(fn)(tensors(*ALIKE))
    torch.testing.assert_close(ingot_made, fn(tensors(*ALIKE)))


def test_inference_mode():
    with torch.inference_mode():
        xs = tensors(*ALIKE)
        torch.testing.assert_close(ingot.compile(scaled)(xs), scaled(xs))


def test_sizes_that_change():
    compiled = ingot.compile(scaled, dynamic=True)
    for n in (3, 5, 9):
        xs = tensors(*[(n,)] * 8)
        torch.testing.assert_close(compiled(xs), scaled(xs), rtol=0, atol=0)


def summed(x):
    return (x * x).sum()


def unused(x):
    torch.func.vmap(torch.sin)(x)


LEVELS = {
    "vmap": lambda x: torch.func.vmap(torch.sin)(x),
    "vmap, unused": unused,
    "vmap within vmap": lambda x: torch.func.vmap(torch.func.vmap(torch.sin))(x[:, None]),
    "vmap at another dimension": lambda x: torch.func.vmap(torch.cumsum, (0, None))(x[:, None], 0),
    "grad": lambda x: torch.func.grad(summed)(x),
    "vmap of grad": lambda x: torch.func.vmap(torch.func.grad(summed))(x),
    "no_grad": lambda x: torch.no_grad()(torch.sin)(x),
    "enable_grad": lambda x: torch.enable_grad()(torch.sin)(x),
    "autocast": lambda x: torch.autocast("cpu")(torch.sin)(x),
    "inference mode": lambda x: torch.inference_mode()(torch.sin)(x),
}
"""What is computed within modes and levels."""


@pytest.mark.parametrize("calls", [1, 3, 4, 6, 24])
@pytest.mark.parametrize("level", LEVELS)
def test_levels_and_modes_are_entered_in_their_order(level, calls):
    """On one tensor and on one for each call: what enters and leaves a level reads nothing of what
    is inside."""
    inside = LEVELS[level]

    def on_one(xs):
        return [inside(xs[0]) for _ in range(calls)] + [xs[0] + 1]

    def on_each(xs):
        return [inside(x) for x in xs] + [x + 1 for x in xs]

    xs = tensors(*[(3,)] * calls)
    for fn in (on_one, on_each):
        compiled = ingot.compile(fn)
        with torch.no_grad():
            torch.testing.assert_close(compiled(xs), fn(xs))
        assert [c.skipped for c in Compiler.of(compiled).compilations] == [None]
        assert get_dynamic_layer_stack_depth() == 0
