"""torch.utils.checkpoint in compiled functions: one graph, whose forward keeps nothing of the
checkpointed parts."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import ingot
from ingot.collection import paused_collection
from ingot.compiler import Compiler
from ingot.explain import measure
from tests.test_differentiation import EAGER, both, whole
from tests.test_training import is_compiled


class Block(nn.Module):
    """What a transformer has between its residual sums."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        h = F.dropout(F.gelu(self.up(self.norm(x))), self.dropout)
        return x + scale * F.dropout(self.down(h), self.dropout)


class Stack(nn.Module):
    def __init__(self, layers: int, width: int, dropout: float, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.blocks = nn.ModuleList([Block(width, dropout) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x.square().mean()


def again(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=False, **kwargs)


def a_block(x: Tensor, block: nn.Module) -> Tensor:
    return again(block, x.sin(), scale=0.5).exp()


def with_numbers_around(x: Tensor, block: nn.Module) -> Tensor:
    h = F.dropout(again(block, F.dropout(x, 0.3)), 0.3)
    return again(block, h) * torch.rand(4) + again(torch.rand_like, x)


def nested(x: Tensor, block: nn.Module) -> Tensor:
    return again(
        lambda x: again(block, x).tanh() * again(lambda y: F.dropout(y, 0.5).sin(), x), x * 2
    )


def in_a_row(x: Tensor, block: nn.Module) -> Tensor:
    return checkpoint_sequential([block, torch.sin, block, torch.tanh], 2, x, use_reentrant=False)


def several_results(x: Tensor, block: nn.Module) -> Tensor:
    def parts(x: Tensor) -> Any:
        h = block(x)
        return {"a": h, "b": [h[1:], h.t().exp(), h.detach()]}

    found = again(parts, x)
    return found["a"].sum() * found["b"][0].sum() + (found["b"][1] @ found["b"][2]).sum()


def looked_up(x: Tensor, block: nn.Module) -> Tensor:
    return again(lambda x: F.embedding(torch.tensor([2, 0, 1]), block(x)).cumsum(0), x)


def without_numbers(x: Tensor, block: nn.Module) -> Tensor:
    return again(
        lambda x: (x @ x.t()).softmax(-1) @ x, x, preserve_rng_state=False, determinism_check="none"
    )


def gradients_inside(x: Tensor, block: nn.Module) -> Tensor:
    y = again(block, x).sum()
    return y + torch.autograd.grad(y, x, create_graph=True)[0].square().sum()


FUNCTIONS = [a_block, with_numbers_around, nested, in_a_row, several_results, looked_up,
    without_numbers,
             gradients_inside]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients(function):
    def program(wrap: Any) -> Any:
        block, x = (
            Block(4, 0.4).double(),
            torch.randn(3, 4, dtype=torch.float64, requires_grad=True),
        )
        compiled = wrap(lambda x: function(x, block))
        for _ in range(3):
            compiled(x).sum().backward()
        return x.grad, [p.grad for p in block.parameters()], torch.rand(2)

    both(program)


@pytest.mark.parametrize("function", [a_block, with_numbers_around, nested])
def test_second_derivatives(function):
    def program(wrap: Any) -> Any:
        block, x = (
            Block(4, 0.4).double(),
            torch.randn(3, 4, dtype=torch.float64, requires_grad=True),
        )
        loss = wrap(lambda x: function(x, block))(x).sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        return first, torch.autograd.grad(
            first.square().sum(), [x, *block.parameters()], allow_unused=True
        )

    both(program)


def test_gradients_of_some_results():
    def program(wrap: Any) -> Any:
        block, x = (
            Block(4, 0.4).double(),
            torch.randn(3, 4, dtype=torch.float64, requires_grad=True),
        )
        first, second = wrap(
            lambda x: (again(block, x), again(lambda x: F.dropout(x, 0.5).exp(), x))
        )(x)
        second.sum().backward()
        return x.grad, [p.grad for p in block.parameters()]

    both(program)


def test_autocast():
    def program(wrap: Any) -> Any:
        block, x = nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)

        def function(x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return again(lambda x: block(x).relu(), x).float()

        wrap(function)(x).sum().backward()
        return x.grad, block.weight.grad

    found = []
    for wrap in (EAGER, whole):
        torch.manual_seed(0)
        found.append(program(wrap))
    torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=2e-2)


def step_of(module: Any, x: Tensor) -> Callable[[], Tensor]:
    def step() -> Tensor:
        torch.manual_seed(3)
        for p in module.parameters():
            p.grad = None
        loss: Tensor = module(x)
        loss.backward()
        return loss.detach()

    return step


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_peak_memory(dropout, reentrant):
    model, x = Stack(5, 32, dropout, reentrant), torch.randn(1024, 32, requires_grad=reentrant)
    compiled = ingot.compile(copy.deepcopy(model), fullgraph=True)
    peaks, gradients = [], []
    for module in (model, compiled):
        step, inputs = step_of(module, x), (x, list(module.parameters()))
        # it finds memory in what eager's checkpoints leave behind, at any time
        with paused_collection():
            peaks.append(measure.peak_bytes(step, inputs, torch.device("cpu"), before=2))
        gradients.append([p.grad for p in module.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
    assert peaks[1] <= 1.1 * peaks[0], peaks
    assert is_compiled(compiled)


def test_nothing_inside_is_kept():
    model, x = Stack(3, 16, 0.2), torch.randn(64, 16)
    compiled = ingot.compile(model, fullgraph=True)
    compiled(x)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    forward = compiler.compilations[-1].log.aten
    kept = [
        spec.sizes
        for spec in forward.outputs
        if spec.node is not None and spec.dtype is torch.float32
    ]
    assert all(sizes in ((), (64, 16)) for sizes in kept)  # not (64, 64), of inside
    assert sum(sizes == (64, 16) for sizes in kept) <= 3


# -- what eager does once more in the backward is left to it ---------------------------------------


def breaks(compiled: Any) -> str:
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return " ".join(str(c.break_) for c in compiler.compilations if c.break_ is not None)


def test_statistics_are_updated_twice():
    def program(wrap: Any) -> Any:
        norm = nn.BatchNorm1d(4).double()
        compiled = wrap(lambda x: again(lambda x: norm(x).sin(), x).exp())
        compiled(torch.randn(5, 4, dtype=torch.float64, requires_grad=True)).sum().backward()
        if wrap is not EAGER:
            assert "again in the backward" in breaks(compiled)
        return [*norm.buffers(), norm.weight.grad]

    both(program, ingot.compile)


def test_effects_happen_twice():
    def program(wrap: Any) -> Any:
        seen: list[str] = []

        def inside(x: Tensor) -> Tensor:
            seen.append("ran")
            return x.sin()

        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        compiled = wrap(lambda x: again(inside, x).exp())
        compiled(x).sum().backward()
        return len(seen), x.grad

    both(program, ingot.compile)


def test_numbers_that_are_not_kept():
    def program(wrap: Any) -> Any:
        x = torch.ones(5, dtype=torch.float64, requires_grad=True)
        compiled = wrap(
            lambda x: again(lambda x: F.dropout(x, 0.5).exp(), x, preserve_rng_state=False).exp()
        )
        compiled(x).sum().backward()
        if wrap is not EAGER:
            assert "other ones in the backward" in breaks(compiled)
        return x.grad, torch.rand(2)

    both(program, ingot.compile)


def test_a_graph_break_inside():
    def program(wrap: Any) -> Any:
        def inside(x: Tensor) -> Tensor:
            return x.sin() * (2 if x.sum() > 0 else 3)

        x = torch.ones(5, dtype=torch.float64, requires_grad=True)
        wrap(lambda x: again(inside, x * 2).exp())(x).sum().backward()
        return x.grad

    both(program, ingot.compile)


# -- use_reentrant=True ----------------------------------------------------------------------------


def reentrant(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=True, **kwargs)


def parts_of(x: Tensor, block: nn.Module) -> Any:
    """All results that may have a gradient require one: also what is detached."""
    return block(x), x > 0, None, x.sin().detach(), x.exp()


def of_parts(x: Tensor, block: nn.Module) -> Tensor:
    first, mask, _, constant, last = reentrant(parts_of, x, block)
    return first.where(mask, 0) * constant * last


REENTRANT = [
    lambda x, block: reentrant(block, x.sin(), 0.5).exp(),
    lambda x, block: reentrant(block, F.dropout(x, 0.3), preserve_rng_state=True) * torch.rand(4),
    lambda x, block: checkpoint_sequential(
        [block, torch.sin, block, torch.tanh], 2, x, use_reentrant=True
    ),
    lambda x, block: reentrant(
        lambda x: again(block, x).tanh() * again(lambda y: F.dropout(y, 0.5), x), x * 2
    ),
    lambda x, block: reentrant(lambda x: (x @ x.t()).softmax(-1) @ x, x, preserve_rng_state=False),
    lambda x, block: reentrant(lambda a, b: block(a) * b, x.cos(), x.detach()),
    lambda x, block: reentrant(lambda y: block(y) * x.sin(), x.cos()),
    lambda x, block: reentrant(block, x.detach()) * x,
    of_parts,
]


@pytest.mark.parametrize("function", REENTRANT)
def test_reentrant(function):
    def program(wrap: Any) -> Any:
        block, x = (
            Block(4, 0.4).double(),
            torch.randn(3, 4, dtype=torch.float64, requires_grad=True),
        )
        compiled = wrap(lambda x: function(x, block))
        for _ in range(3):
            result = compiled(x)
            result.sum().backward()
        return result, x.grad, [p.grad for p in block.parameters()], torch.rand(2)

    both(program)


def test_reentrant_by_default(recwarn):
    def program(wrap: Any) -> Any:
        block, x = (
            nn.Linear(4, 4).double(),
            torch.ones(3, 4, dtype=torch.float64, requires_grad=True),
        )
        wrap(lambda x: checkpoint(block, x.sin()))(x).sum().backward()
        assert "use_reentrant" in str(recwarn.pop(UserWarning).message)
        return x.grad, block.weight.grad

    both(program)


def test_reentrant_without_a_gradient(recwarn):
    def program(wrap: Any) -> Any:
        block, table = nn.Linear(4, 4).double(), nn.Embedding(5, 4).double()
        compiled = wrap(lambda rows: reentrant(lambda rows: block(table(rows)), rows) * table(rows))
        compiled(torch.tensor([1, 3])).sum().backward()
        assert "None of the inputs" in str(recwarn.pop(UserWarning).message)
        return block.weight.grad, table.weight.grad

    both(program)


def test_zeros_for_results_without_a_gradient():
    def program(wrap: Any) -> Any:
        p, q = (nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        found = wrap(lambda x: reentrant(lambda x: (x * p, x * q, x.long(), x.detach()), x))(x)
        found[0].sum().backward()
        return [t.requires_grad for t in found], p.grad, q.grad, x.grad

    both(program)


def test_a_whole_step():
    def program(wrap: Any) -> Any:
        block, x = (
            nn.Linear(4, 4).double(),
            torch.ones(3, 4, dtype=torch.float64, requires_grad=True),
        )
        step = wrap(lambda x: reentrant(block, x.sin()).sum().backward())
        step(x)
        step(x)
        return x.grad, block.weight.grad

    both(program)


@pytest.mark.parametrize(
    "backward",
    [
        lambda y, x: torch.autograd.grad(y, x),
        lambda y, x: y.backward(inputs=[x]),
    ],
)
def test_gradients_of_some_tensors_alone(backward):
    """Which torch refuses, but where they do not come by the checkpoint."""

    def program(wrap: Any) -> Any:
        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        inside, beside = wrap(lambda x: (reentrant(torch.exp, x), x.sin()))(x)
        first = backward(beside.sum(), x), x.grad
        with pytest.raises(RuntimeError, match="incompatible with .grad"):
            backward(inside.sum(), x)
        with pytest.raises(RuntimeError, match="incompatible with .grad"):
            wrap(lambda x: backward(reentrant(torch.exp, x).sum(), x))(x)
        return first

    both(program, ingot.compile)


def tells(x: Tensor) -> Tensor:
    return x.sin() if torch.is_grad_enabled() else x.cos()


def asks(x: Tensor) -> Tensor:
    y = x.sin()
    return y * 2 if y.requires_grad else y * 3


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (tells, "asks for gradients"),
        (asks, "asks for gradients"),
        (lambda x: reentrant(torch.sin, x.exp()), "asks for gradients"),
        (lambda x: {"a": x.sin()}, "gives no tensors"),
        (lambda x: (x.sin(), [x.cos()]), "gives containers"),
        (lambda x: x, "returns what it has not made"),
        (lambda x: x.detach() * 2, "do not depend"),
        (lambda x: F.dropout(x, 0.5), "other ones in the backward"),
    ],
)
def test_reentrant_is_left_to_eager(function, reason):
    def program(wrap: Any) -> Any:
        def outer(x: Tensor) -> Tensor:
            found = reentrant(function, x * 2, preserve_rng_state=False)
            for part in (
                found.values()
                if isinstance(found, dict)
                else found
                if isinstance(found, tuple)
                else [found]
            ):
                x = x + (part if isinstance(part, Tensor) else part[0])
            return x

        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        compiled = wrap(outer)
        result = compiled(x)
        try:
            result.sum().backward()
        except RuntimeError as error:
            assert "none of output has requires_grad=True" in str(error)
        if wrap is not EAGER:
            assert reason in breaks(compiled)
        return result, x.grad

    both(program, ingot.compile)


def test_second_derivatives_of_a_reentrant_one():
    x = torch.ones(3, requires_grad=True)
    loss = ingot.compile(lambda x: reentrant(torch.exp, x).sum(), fullgraph=True)(x)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        loss.backward(create_graph=True)


FIRST_IN_A_PROCESS = """
import torch, ingot
from torch import nn
from torch.utils.checkpoint import checkpoint

block = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
x = torch.randn(6, 8, requires_grad={tracks})
kept, gradients = [], []

def pack(tensor):
    kept[-1] += 1
    return tensor

for function in (block, ingot.compile(block, fullgraph=True, dynamic={dynamic})):
    y = checkpoint(function, x, use_reentrant=False)
    gradients.append(torch.autograd.grad(y.square().sum(), [*block.parameters()]))
torch.testing.assert_close(*gradients)
for _ in range(2):
    kept.append(0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ingot.compile(block)(x)
assert kept[0] == kept[1] > 0, kept
"""


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("tracks", [False, True])
def test_a_first_call_in_a_process_saves_what_later_ones_do(tracks, dynamic):
    """What Ingot finds out once about autograd is nothing that the program saves."""
    text = FIRST_IN_A_PROCESS.format(tracks=tracks, dynamic=dynamic)
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
