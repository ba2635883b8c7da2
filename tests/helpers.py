"""Eager is the oracle: run a function captured, run it in eager, and compare values, types,
structure, aliasing and mutation."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ingot.capture import Captured, Request, argument_slots, capture_call
from ingot.options import Options


def ignore_warnings() -> None:
    """Ignores warnings in a `with warnings.catch_warnings()`, but for what says that Ingot was at
    fault."""
    warnings.simplefilter("ignore")
    warnings.filterwarnings("error", "a compiled graph raised", RuntimeWarning)


def run_captured(
    fn: Callable[..., Any], *args: Any, dynamic: bool | None = None, **kwargs: Any
) -> tuple[Any, Captured]:
    """The result of a captured call, by the graph module as it is, and what was captured."""
    # as the compiler does: some of torch's first uses draw random numbers
    with torch.random.fork_rng(devices=()):
        captured = capture_call(fn, args, kwargs, Request(Options(dynamic=dynamic)))
    return rerun(captured, fn, *args, **kwargs), captured


def rerun(captured: Captured, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of another call that the guards admit."""
    slots = argument_slots(fn, args, kwargs)
    failed = captured.guards.check_python(slots)
    assert failed is None, f"guard fails: {failed.text}"
    outputs = captured.graph_module(*[entry.source.load(slots) for entry in captured.inputs])
    return captured.residual.build(outputs, slots)


def same(
    fn: Callable[..., Any], *args: Any, dynamic: bool | None = None, **kwargs: Any
) -> Captured:
    """Asserts that `fn` captured does what it does in eager: its result, and what it leaves in its
    arguments. No gradients."""
    grad_mode = torch.is_grad_enabled()
    eager_fn, eager_args, eager_kwargs = copy.deepcopy((fn, args, kwargs))
    with torch.no_grad():
        state = torch.get_rng_state()
        expected = eager_fn(*eager_args, **eager_kwargs)
        torch.set_rng_state(state)
        result, captured = run_captured(fn, *args, dynamic=dynamic, **kwargs)
    assert_same(result, expected)
    assert_same((args, kwargs), (eager_args, eager_kwargs))
    assert torch.is_grad_enabled() == grad_mode
    return captured


def assert_same(a: Any, b: Any, path: str = "result") -> None:
    """Same type, structure and values; tensors bit for bit, strides too."""
    assert type(a) is type(b), f"{path}: {type(a)} is not {type(b)}"
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (
            b.dtype,
            b.shape,
            b.stride(),
            b.requires_grad,
        ), path
        assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)), f"{path}: values differ"
    elif isinstance(a, dict):
        assert list(a) == list(b), f"{path}: keys {list(a)} and {list(b)}"
        for key in a:
            assert_same(a[key], b[key], f"{path}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), f"{path}: {len(a)} and {len(b)} items"
        for i, (left, right) in enumerate(zip(a, b)):
            assert_same(left, right, f"{path}[{i}]")
    elif hasattr(a, "__dict__") and not isinstance(a, (type, torch.nn.Module)) and not callable(a):
        assert_same(vars(a), vars(b), f"vars({path})")
    elif not isinstance(a, torch.nn.Module):
        assert a == b or a != a, f"{path}: {a!r} is not {b!r}"
