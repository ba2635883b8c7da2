"""What the tests of tensor subclasses have in common: classes, and the comparison with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import ingot
from ingot.compiler import Compiler
from ingot.torch_private import DisableTorchFunctionSubclass
from tests.oracle import assert_near

Make = Callable[[], tuple[Any, ...]]


class Plain(Tensor):
    """A subclass without any method of its own."""


class Derived(Plain):
    pass


class Logged(Tensor):
    """A subclass that sees the operations on it."""

    seen: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Logged.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def described(tree: Any) -> Any:
    """Tensors as plain ones, with what they are beside their elements."""
    if isinstance(tree, Tensor):
        with DisableTorchFunctionSubclass():
            return _described(tree)
    if isinstance(tree, (list, tuple)):
        return [type(tree).__name__, *map(described, tree)]
    if isinstance(tree, dict):
        return [(key, described(value)) for key, value in tree.items()]
    return tree


def _described(tensor: Tensor) -> Any:
    attributes = [(k, described(v)) for k, v in sorted(vars(tensor).items())]
    facts = type(tensor), tensor.requires_grad, tensor.is_leaf, tensor.dtype, tensor.stride()
    gradient = described(tensor.grad) if tensor.is_leaf else None
    if hasattr(type(tensor), "__tensor_flatten__"):
        return [facts, tuple(tensor.shape), attributes, gradient]
    return [facts, tensor.detach().as_subclass(Tensor), attributes, gradient]


def _run(fn: Callable[..., Any], make: Make) -> Any:
    torch.manual_seed(0)
    args = make()
    Logged.seen.clear()
    result = fn(*args)
    seen = list(Logged.seen)
    with DisableTorchFunctionSubclass():
        for t in tree_leaves(result):
            if isinstance(t, Tensor) and t.requires_grad and not t.is_leaf:
                t.sum().backward(retain_graph=True)
    return described((result, args)), seen


def assert_alike(fn: Callable[..., Any], make: Make) -> None:
    """One graph does what eager does: results and arguments have the same classes, attributes and
    elements; the second call compiles nothing."""
    expected = _run(fn, make)
    compiled = ingot.compile(fn, fullgraph=True)
    for _ in range(2):
        actual = _run(compiled, make)
        assert _atoms(actual) == _atoms(expected)
        for a, e in zip(_tensors(actual), _tensors(expected), strict=True):
            assert_near(a, e)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    assert len(compiler.compilations) == 1, [c.recompiled for c in compiler.compilations]


def assert_described_alike(actual: Any, expected: Any) -> None:
    """That two results have the same classes, attributes and elements."""
    actual, expected = described(actual), described(expected)
    assert _atoms(actual) == _atoms(expected)
    for a, e in zip(_tensors(actual), _tensors(expected), strict=True):
        assert_near(a, e)


def _atoms(tree: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(tree) if not isinstance(leaf, Tensor)]


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
