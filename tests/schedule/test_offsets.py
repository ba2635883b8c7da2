"""Launches that begin at offsets in their buffers: what shares code, and that it is right where an
index goes backwards or begins before the buffer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ingot
from ingot.codegen.reference import run_plan
from ingot.explain.stages import show_schedule


def steps(x, w):
    """A recurrence: each step reads another part of `x`."""
    state = torch.zeros(x.shape[1:])
    for part in x.unbind():
        state = torch.tanh(part @ w + state @ w)
    return state


def pieces(x, w):
    """The results lie in parts of one buffer."""
    return torch.cat([torch.softmax(part @ w, -1) for part in x.unbind()])


def backwards(x, w):
    return torch.cat([part.flip(-1).cumsum(-1) for part in x.unbind()]), x[2:].flip(0) @ w


def padded(x, w):
    return torch.cat([F.pad(part, (3, 2)).sum(-1) for part in x[1:].unbind()]), F.pad(
        x[1], (0, 0, 2, 1)
    ) @ w


def both_ends(x, w):
    """One buffer is read at two places, of which neither is its beginning."""
    return x[3] - x[1] @ w


PROGRAMS = {fn.__name__: fn for fn in (steps, pieces, backwards, padded, both_ends)}


def arguments():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 7, 20, generator=generator), torch.randn(20, 20, generator=generator)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("check", ["0", "1"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, check, dynamic, monkeypatch):
    monkeypatch.setenv("INGOT_CHECK_BOUNDS", check)
    x, w = arguments()
    compiled = ingot.compile(PROGRAMS[name], fullgraph=True, dynamic=dynamic)
    for given in (x, x[:, :5].clone()):
        torch.testing.assert_close(compiled(given, w), PROGRAMS[name](given, w))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_oracle_begins_there_as_well(name):
    (compilation,) = ingot.explain(ingot.compile(PROGRAMS[name]))(*arguments()).compilations
    expected = PROGRAMS[name](*arguments())
    found = run_plan(compilation.log.plan, list(arguments()))
    torch.testing.assert_close(found, list(expected) if isinstance(expected, tuple) else [expected])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [steps, pieces])
def test_the_parts_of_a_buffer_share_code(fn, dynamic):
    def functions(count: int) -> int:
        x, w = arguments()
        (compilation,) = ingot.explain(ingot.compile(fn, dynamic=dynamic))(
            x[:count].clone(), w
        ).compilations
        return compilation.log.code.function_count

    assert functions(5) == functions(4)


def test_the_report_says_where_a_launch_begins():
    (compilation,) = ingot.explain(ingot.compile(both_ends))(*arguments()).compilations
    assert [[o.constant for o in step.offsets] for step in compilation.log.kernel_steps] == [
        [140, 0, 0]
    ]
    assert "in0+140" in show_schedule(compilation)
