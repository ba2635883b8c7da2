"""Selective checkpointing: the forward saves what the program's policy says, and nothing else of a
checkpointed part."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_near
from tests.test_differentiation import EAGER, both

aten = torch.ops.aten
PRODUCTS = [aten.mm.default, aten.addmm.default]
ATTENTION = [aten._scaled_dot_product_flash_attention_for_cpu.default]
SAVE, RECOMPUTE = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.up(x).reshape(1, -1, 2, 16).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        flat = mixed.transpose(1, 2).reshape(-1, 32)
        return x + self.down(F.dropout(F.gelu(flat), 0.2)).tanh()


def of_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return SAVE if op in PRODUCTS else RECOMPUTE


def of_large_results(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    return op in PRODUCTS and args[0].shape[0] > 1 and not ctx.is_recompute


def every_second_product() -> Any:
    """As torchtitan has it: a policy that counts, made anew for each call."""
    counts: dict[Any, int] = defaultdict(int)

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        counts[ctx.is_recompute, op in PRODUCTS] += 1
        if op in PRODUCTS and counts[ctx.is_recompute, True] % 2:
            return SAVE
        return RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


OUTSIDE = partial(create_selective_checkpoint_contexts, of_products)
CONTEXTS: dict[str, Any] = {
    "a list": lambda: partial(create_selective_checkpoint_contexts, PRODUCTS),
    "a policy": lambda: partial(create_selective_checkpoint_contexts, of_products),
    "a policy of sizes": lambda: partial(create_selective_checkpoint_contexts, of_large_results),
    "a partial from outside": lambda: OUTSIDE,
    "a function": lambda: every_second_product,
    "attention": lambda: partial(create_selective_checkpoint_contexts, ATTENTION),
}


def of_contexts(name: str) -> Callable[[Tensor, nn.Module], Tensor]:
    make = CONTEXTS[name]

    def function(x: Tensor, block: nn.Module) -> Tensor:
        first = checkpoint(block, x.sin(), use_reentrant=False, context_fn=make())
        return checkpoint(block, first, use_reentrant=False, context_fn=make()).square().sum()

    return function


@pytest.mark.parametrize("name", CONTEXTS)
def test_gradients(name: str) -> None:
    def program(wrap: Any) -> Any:
        block, x = Block(), torch.linspace(-1, 1, 40).reshape(5, 8).requires_grad_()
        compiled = wrap(of_contexts(name))
        results = []
        for _ in range(2):
            torch.manual_seed(3)
            loss = compiled(x, block)
            loss.backward()
            results.append(loss)
        return [*results, x.grad, *[p.grad for p in block.parameters()]]

    both(program, partial(ingot.compile, fullgraph=True))


def computed_again(context_fn: Any) -> dict[str, int]:
    """How often the backward of a checkpointed block has the ops of its forward."""

    def function(x: Tensor, block: nn.Module) -> Tensor:
        given = {} if context_fn is None else {"context_fn": context_fn}
        return checkpoint(block, x, use_reentrant=False, **given).square().sum()

    compiled = ingot.compile(function, fullgraph=True)
    compiled(torch.randn(5, 8), Block()).backward()
    compiler = Compiler.of(compiled)
    assert compiler is not None
    backward = compiler.compilations[-1].backward
    assert backward is not None and backward.log.aten is not None
    found: dict[str, int] = defaultdict(int)
    for node in backward.log.aten.graph.nodes:
        found[getattr(node.target, "_opname", str(node.target))] += 1
    return found


def test_what_is_saved_is_not_computed_again() -> None:
    product, attention = "linear", "again__scaled_dot_product_flash_attention_for_cpu"
    whole = computed_again(None)
    assert whole[product] == 2 and whole[attention] == 1
    products = computed_again(partial(create_selective_checkpoint_contexts, PRODUCTS))
    assert products[product] == 0 and products[attention] == 1
    rest = computed_again(partial(create_selective_checkpoint_contexts, ATTENTION))
    assert rest[product] == 2 and rest[attention] == 0
    every = computed_again(partial(create_selective_checkpoint_contexts, [*PRODUCTS, *ATTENTION]))
    assert every[product] == every[attention] == 0


def test_without_gradients() -> None:
    block, x = Block().eval(), torch.randn(5, 8)
    function = of_contexts("a policy")
    with torch.no_grad():
        torch.manual_seed(0)
        expected = function(x, block)
        torch.manual_seed(0)
        assert_near(ingot.compile(function, fullgraph=True)(x, block), expected)


def test_contexts_of_another_kind_are_left_to_eager() -> None:
    entered = []

    @contextlib.contextmanager
    def noting(name: str) -> Any:
        entered.append(name)
        yield

    def contexts() -> Any:
        return noting("forward"), noting("again")

    def function(x: Tensor) -> Tensor:
        return checkpoint(torch.exp, x, use_reentrant=False, context_fn=contexts).sum()

    compiled, x = ingot.compile(function), torch.randn(4, requires_grad=True)
    assert "contexts of the program's own" in ingot.explain(compiled)(x).breaks[0].reason
    entered.clear()
    compiled(x).backward()
    assert entered == ["forward", "again"] and x.grad is not None
    assert_near(x.grad, x.detach().exp())


def test_a_policy_that_raises() -> None:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        raise KeyError("no such op")

    def function(x: Tensor) -> Tensor:
        contexts = partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(torch.exp, x, use_reentrant=False, context_fn=contexts).sum()

    for wrap in (EAGER, ingot.compile):
        with pytest.raises(KeyError, match="no such op"):
            wrap(function)(torch.randn(4, requires_grad=True))


def test_another_policy_compiles_anew() -> None:
    def function(x: Tensor, block: nn.Module, policy: Any) -> Tensor:
        contexts = partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(block, x, use_reentrant=False, context_fn=contexts).sum()

    compiled, block, x = ingot.compile(function, fullgraph=True), Block(), torch.randn(5, 8)
    for policy in (of_products, of_large_results, of_products):
        compiled(x, block, policy).backward()
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.entries) == 2
