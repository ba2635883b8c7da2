"""Ops that do something beside their results run as often as in eager, in eager's order, whatever
passes there are."""

from __future__ import annotations

from types import FunctionType

import pytest
import torch
from torch._library.effects import EffectType

import ingot
from ingot.loops.side_effects import has_effect
from tests.effectful_ops import (
    KEPT,
    LOG,
    composed,
    counted,
    defined,
    kept,
    listed,
    noted,
    pair,
    places,
    raised_by,
    scaled,
    silent,
    turned,
    unfaked,
)


def _unused(x):
    counted(x)
    noted(x * 2)
    pair(x)
    return x + 1


def _equal_calls(x):
    return counted(x) + counted(x) * defined(x) - defined(x)


def _of_constants(x):
    ones = torch.ones(3)
    noted(ones)
    return x * counted(ones).sum() + counted(torch.full((2,), 2.0)).sum()


def _parts_alike(x):
    for k in range(6):
        noted(x[k % 4] + 1)
    return [counted(row) for row in x]


def _of_written(x):
    y = x + 1
    noted(y)
    y.add_(1)
    noted(y)
    y[0] = 5
    counted(y)
    x.mul_(2)
    noted(x)
    return y


def _writing(x):
    y = x + 1
    noted(y)
    raised_by(y, 2.0)
    noted(y)
    return y * 2


def _dead_results(x):
    first, second = pair(x)
    many = listed([x, first], 3.0)
    pair(many[1])
    return second


def _without_gradients(x):
    with torch.no_grad():
        noted(x)
        y = counted(x)
    return x * y


def _with_a_backward(x):
    y = scaled(x, 3.0)
    noted(y)
    return y.sin().sum(1) + scaled(x, 2.0).mean()


def _backward_of_unused(x):
    y, z = scaled(x, 3.0), scaled(x * 2, 2.0)
    return y.sum() + z.detach()


class Logged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        noted(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        noted(ctx.saved_tensors[0])
        noted(gradient)
        return scaled(gradient, 2.0)


def _of_functions(x):
    return Logged.apply(x) * Logged.apply(x.sin())


def _of_another_layout(x):
    return turned(x).reshape(-1) + turned(x.t()).t().flatten(), turned(x)


def _silent_and_composed(x):
    silent(x)
    silent(x)
    return composed(x) + composed(x)


def _of_unknown_results(x):
    y = unfaked(x)
    noted(y)
    return unfaked(y) + 1


def _of_data(x):
    found = places(x)
    noted(found.float())
    return found * 2, places(x)


def _around_prints(x):
    noted(x)
    print("between")
    noted(x + 1)
    print("behind")
    return x * 2


def _raises_by_data(x):
    noted(x)
    y = x[torch.tensor([0, 1]) + (x > 100).long().sum()]
    noted(y)
    return y


def _kept_by_the_op(x):
    y = kept(x * 2)
    z = (y + 1) * 3
    noted(z)
    return kept(z) + kept(z.sin())


def _handled(x):
    try:
        y = counted(x)
        noted(y)
    except ValueError:
        y = x
    finally:
        noted(x)
    return y + 1


def _within_modes(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        noted(x)
        y = counted(x @ x.t())
    return y + 1


def _in_loops(x):
    for k in range(5):
        if k % 2:
            noted(x * k)
        x = counted(x) - x
    return x


PROGRAMS = [
    value
    for name, value in list(globals().items())
    if name.startswith("_") and isinstance(value, FunctionType) and value.__module__ == __name__
]


def _run(function, x, gradients):
    """What a call gives, leaves and logs, and the same of its backward."""
    LOG.clear()
    KEPT.clear()
    x = x.clone().requires_grad_(False)
    given = x.requires_grad_() * 1 if gradients else x
    results = function(given)
    listed_results = list(results) if isinstance(results, (list, tuple)) else [results]
    logs, grads = [list(LOG)], []
    kept_sums = [t.detach().sum() for t in KEPT]
    LOG.clear()
    tracked = [r for r in listed_results if r.requires_grad]
    if gradients and tracked:
        grads = torch.autograd.grad(
            [r.float().sin().sum() for r in tracked], [x], allow_unused=True
        )
        logs.append(list(LOG))
    return listed_results, [g for g in grads if g is not None], logs, kept_sums


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__[1:])
def test_calls_and_their_order_are_eagers(program, gradients, capsys):
    compiled = ingot.compile(program)
    for k in range(3):
        x = torch.linspace(-1 - k, 2, 12).view(4, 3)
        expected = _run(program, x, gradients)
        shown = capsys.readouterr().out
        results = _run(compiled, x, gradients)
        assert results[2] == expected[2]
        assert capsys.readouterr().out == shown
        for found, wanted in zip((results[k] for k in (0, 1, 3)), (expected[k] for k in (0, 1, 3))):
            torch.testing.assert_close(found, wanted)
        for mine, its in zip(results[0], expected[0]):
            # fakes say otherwise
            assert mine.stride() == its.stride() or program in (_of_another_layout, _of_data)


def test_most_programs_are_one_graph():
    broken = {_of_unknown_results, _around_prints, _handled}
    for program in PROGRAMS:
        report = ingot.explain(program)(torch.linspace(-1, 2, 12).view(4, 3))
        assert bool(report.breaks) == (program in broken), program.__name__


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__[1:])
def test_nothing_runs_while_it_is_compiled(program):
    LOG.clear()
    report = ingot.explain(program)(torch.linspace(-1, 2, 12).view(4, 3))
    assert not LOG or report.breaks


def test_an_op_without_a_fake_breaks_the_graph_with_advice():
    (found,) = ingot.explain(lambda x: unfaked(x) + 1)(torch.ones(3)).breaks
    assert "unfaked" in str(found) and "register_fake" in str(found)
    with pytest.raises(ingot.GraphBreakError, match="register_fake"):
        ingot.compile(lambda x: unfaked(x) + 1, fullgraph=True)(torch.ones(3))


@pytest.mark.parametrize("backend", ["ingot", "eager"])
@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"options": {"freeze": True}}], ids=str)
def test_options_and_backends(backend, options):
    if backend == "eager" and "options" in options:
        options = {}
    layer = torch.nn.Linear(3, 3)

    def program(x):
        y = counted(layer.weight) @ x.t()
        noted(x)
        noted(layer.bias)
        return counted(layer.weight) + y.sum() + x.shape[0]

    compiled = ingot.compile(program, backend=backend, **options)
    for rows in (4, 5, 6, 4):
        with torch.no_grad():
            x = torch.full((rows, 3), float(rows))
            LOG.clear()
            expected, logged = program(x), list(LOG)
            LOG.clear()
            torch.testing.assert_close(compiled(x), expected)
        assert logged == LOG


class _Refused(Exception):
    pass


@torch.library.custom_op("ingot_tests::refuses", mutates_args=())
def _refuses(x: torch.Tensor, most: float) -> torch.Tensor:
    noted(x)
    if x.max() > most:
        raise _Refused("too large")
    return x.clone()


@_refuses.register_fake
def _(x: torch.Tensor, most: float) -> torch.Tensor:
    return torch.empty_like(x)


class _State:
    """What a program marks while it is at work."""

    def __init__(self):
        self.busy, self.mode, self.failed, self.count = False, None, False, 0

    def begin(self, mode):
        self.busy, self.mode = True, mode
        return None if self.busy else 1

    def end(self, token):
        if self.busy or token is None:
            self.busy, self.mode = False, None
        else:
            self.failed = True


STATE = _State()


def _outcome(function, *args, **state):
    """What a call gives or raises, as text, what was logged, and the state that it leaves."""
    LOG.clear()
    vars(STATE).update(vars(_State()) | state)
    try:
        result = function(*args)
    except (_Refused, IndexError) as error:
        result = type(error)
    return str(result), list(LOG), vars(STATE).copy()


def _refused(x):
    noted(x + 1)
    y = _refuses(x, 2.0)
    noted(y)
    return y


def _refused_and_handled(x):
    noted(x + 1)
    try:
        y = _refuses(x, 2.0)
    except _Refused:
        y = x - 1
    noted(y)
    return y


def _refused_behind(x):
    noted(x)
    y = x[x.long()]
    noted(y)
    return y


# What may be an error for some indices `i` of `x`, [n, 3].
_LOOKUPS = {
    "index": lambda x, i: x[i],
    "index of two": lambda x, i: x[i, i % 3],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "take": lambda x, i: x.take(i),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:1].expand(2, 3)),
    "index_add": lambda x, i: x.index_add(0, i, x[:1].expand(2, 3)),
    "index_put": lambda x, i: x.index_put((i,), x[0, 0]),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x[:2, :1]),
    "nll_loss": lambda x, i: torch.nn.functional.nll_loss(x[:2], i),
    "cross_entropy": lambda x, i: torch.nn.functional.cross_entropy(x[:2], i),
    "one_hot": lambda x, i: torch.nn.functional.one_hot(i, 6),
}

# the graph's own error is that of `gather`: docs/limits.md
_GATHERED = ("nll_loss", "cross_entropy")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("lookup", _LOOKUPS)
def test_what_acts_keeps_its_place_among_lookups(lookup, dynamic):
    """Whatever becomes of the lookup: it is returned, fused with what comes later, or not used at
    all."""
    look_up = _LOOKUPS[lookup]

    def fused(x, i):
        noted(x)
        y = look_up(x, i)
        noted(x)
        return y * 2

    def unused(x, i):
        look_up(x, i)
        noted(x)
        return x + 1

    def several(x, i):
        y = look_up(x, i) + 1
        noted(x)
        z = look_up(x * 2, i - 1)
        noted(y)
        return y, z

    def shared(x, i):
        v = x * 2
        look_up(v, i)
        noted(x)
        return v + 1, torch.arange(4.0)[v.long() % 4 + i.min()]

    def written(x, i):
        noted(x)
        y = look_up(x, i)
        noted(y)
        x.mul_(2)
        return y.sum()

    for program in (fused, unused, several, shared, written):
        compiled = ingot.compile(program, dynamic=dynamic)
        for indices in ([0, 1], [1, 7], [1, 1], [7, 0]):
            outcomes = []
            for function in (program, compiled):
                LOG.clear()
                x = torch.arange(12.0).view(4, 3)
                try:
                    function(x, torch.tensor(indices))
                    raised = ""
                except (IndexError, RuntimeError) as error:
                    raised = type(error).__name__ if lookup not in _GATHERED else "an error"
                outcomes.append((raised, [name for name, _ in LOG], x))
            (raised, logged, before), (also, found, after) = outcomes
            assert (raised, logged) == (also, found), (program.__name__, indices)
            torch.testing.assert_close(after, before)


_DIVIDED = {
    "//": lambda x, i: torch.arange(2) // i,
    "floor": lambda x, i: torch.div(x.long()[0, :2], i, rounding_mode="floor"),
    "trunc": lambda x, i: torch.div(i, i, rounding_mode="trunc"),
    "%": lambda x, i: 5 % i,
    "fmod": lambda x, i: torch.fmod(x.long()[:2, 0], i),
    "//=": lambda x, i: i.clone().floor_divide_(i),
    "constants": lambda x, i: torch.arange(2) // torch.zeros(2, dtype=torch.long),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("division", _DIVIDED)
def test_divisions_by_zero_keep_their_place_among_effects(division, dynamic):
    divide = _DIVIDED[division]

    def behind(x, i):
        noted(x)
        raised_by(x[..., ::2], 0.5)
        divide(x, i)
        return x + 1

    def between(x, i):
        noted(x)
        y = divide(x, i) + 1
        noted(x * 2)
        return x + 1, y

    def before(x, i):
        y = divide(x, i)
        raised_by(x, 0.5)
        return x + 1, y

    for program in (behind, between, before):
        compiled = ingot.compile(program, dynamic=dynamic)
        for divisors in ([1, 2], [3, 0], [2, 1], [0, 0]):
            outcomes = []
            for function in (program, compiled):
                LOG.clear()
                x = torch.arange(12.0).view(4, 3)
                raised = ""
                try:
                    function(x, torch.tensor(divisors))
                except RuntimeError as error:
                    raised = str(error)
                outcomes.append((raised, [name for name, _ in LOG], x.tolist()))
            assert outcomes[0] == outcomes[1], (program.__name__, divisors)


@pytest.mark.parametrize("program", [_refused, _refused_and_handled, _refused_behind])
def test_errors_come_once_and_at_their_place(program):
    compiled = ingot.compile(program)
    for most in (1.0, 9.0, 1.0, 9.0):
        assert _outcome(program, torch.tensor([0.0, most])) == _outcome(
            compiled, torch.tensor([0.0, most])
        )


def test_a_missing_formula_is_eagers_error():
    @torch.library.custom_op("ingot_tests::without_formula", mutates_args=())
    def without_formula(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    without_formula.register_fake(torch.empty_like)
    x = torch.ones(3, requires_grad=True)
    compiled = ingot.compile(lambda x: (without_formula(x), x * 2), fullgraph=True)
    with pytest.raises(RuntimeError, match="register_autograd"):
        without_formula(x).sum().backward()
    result, other = compiled(x)
    assert result.requires_grad
    with pytest.raises(RuntimeError, match="register_autograd"):
        result.sum().backward()
    other.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def _tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def test_a_backward_that_writes_what_others_see_is_left_to_eager():
    def scaled_in_place(ctx, gradient):
        return gradient.mul_(3)

    def scaled_input(ctx, gradient):
        with torch.no_grad():
            ctx.saved_tensors[0].detach().mul_(2)
        return gradient * 3

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    for backward in (scaled_in_place, scaled_input):
        name = f"ingot_tests::{backward.__name__}"
        op = torch.library.custom_op(
            name, lambda x: x * 3, mutates_args=(), schema="(Tensor x) -> Tensor"
        )
        op.register_fake(torch.empty_like)
        op.register_autograd(backward, setup_context=setup)

        def program(x, op=op):
            return op(x)

        with pytest.raises(ingot.GraphBreakError, match="a backward writes"):
            ingot.compile(program, fullgraph=True)(torch.ones(3, requires_grad=True))
        seen = []
        for function in (program, ingot.compile(program)):
            x, gradient = torch.ones(3, requires_grad=True), torch.ones(3)
            given = x * 1
            found = torch.autograd.grad(function(given), x, gradient)
            seen.append((found, gradient, given.detach()))
        torch.testing.assert_close(seen[0], seen[1])


def test_batches_and_kernels_by_device():
    @torch.library.custom_op("ingot_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("another kernel is for CPUs")

    @doubled.register_kernel("cpu")
    def _(x):
        noted(x)
        return x * 2

    doubled.register_fake(torch.empty_like)
    doubled.register_vmap(lambda info, in_dims, x: (doubled(x), in_dims[0]))

    def program(x):
        return torch.vmap(doubled)(x) + doubled(x)

    x = torch.rand(3, 2)
    compiled = ingot.compile(program)
    for _ in range(2):
        LOG.clear()
        expected, logged = program(x), list(LOG)
        LOG.clear()
        assert torch.equal(compiled(x), expected) and logged == LOG


def test_checkpoints_run_them_twice():
    from torch.utils.checkpoint import checkpoint

    def program(x):
        return checkpoint(lambda x: scaled(x, 2.0).sin(), x, use_reentrant=False).sum()

    logs = []
    for function in (program, ingot.compile(program, fullgraph=True)):
        x = torch.ones(3, requires_grad=True)
        LOG.clear()
        function(x).backward()
        logs.append((list(LOG), x.grad.tolist()))
    assert logs[0] == logs[1]


def test_checkpoints_of_what_eager_would_do_twice():
    from torch.utils.checkpoint import checkpoint

    def noting(x):
        noted(x)
        return x.sin()

    def writing(x):
        raised_by(x, 1.0)
        return x.sin()

    x = torch.ones(3, requires_grad=True)
    for inner in (noting, writing):
        compiled = ingot.compile(
            lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False), fullgraph=True
        )
        with pytest.raises(ingot.GraphBreakError, match="checkpointed"):
            compiled(x * 1)


def test_what_is_registered_as_effectful():
    assert not has_effect(torch.ops.aten.sin.default) and has_effect(torch.ops.aten.rand.default)
    handle = torch.library.Library("aten", "FRAGMENT")
    try:
        torch.library._register_effectful_op("aten::sin", EffectType.ORDERED, lib=handle)
    except (AttributeError, RuntimeError):
        pytest.skip("torch has no such registry")
    assert has_effect(torch.ops.aten.sin.default)
    handle._destroy()
    assert not has_effect(torch.ops.aten.sin.default)


def test_ops_made_of_triton_kernels():
    """Their fake is the function that launches the kernels, which are not launched then."""
    triton = pytest.importorskip("triton")
    kernel = triton.jit(_add_kernel)

    @torch.library.triton_op("ingot_tests::by_triton", mutates_args=("x",))
    def by_triton(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 64),)
        torch.library.wrap_triton(kernel)[grid](x, y, result, x.numel(), 64)
        return result.sin()

    @by_triton.register_kernel("cpu")
    def _(x, y):
        noted(x)
        return x.add_(y).sin()

    def program(x, y):
        z = x * 2
        return by_triton(z, y), z

    if not isinstance(kernel, triton.JITFunction):
        pytest.skip("Triton interprets")
    for dynamic in (None, True):
        compiled = ingot.compile(program, fullgraph=True, dynamic=dynamic)
        for count in (3, 100):
            x, y = torch.rand(count), torch.rand(count)
            LOG.clear()
            torch.testing.assert_close(compiled(x, y), program(x, y))
            assert len(LOG) == 2


def _add_kernel(x, y, result, count, block):
    """Is compiled for GPUs alone."""


def test_an_op_that_reads_a_layout_it_did_not_predict():
    """A fake may be wrong about strides: the next op is given what the fake says."""
    seen = []

    @torch.library.custom_op("ingot_tests::sees_strides", mutates_args=())
    def sees_strides(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.stride())
        return x.clone()

    sees_strides.register_fake(torch.empty_like)

    def program(x):
        return sees_strides(turned(x))

    assert torch.equal(ingot.compile(program)(torch.ones(2, 3)), program(torch.ones(2, 3)))
    assert seen[0] == (3, 1)
