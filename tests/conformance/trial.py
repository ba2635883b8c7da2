"""What Ingot does with a program, and whether it does what eager does."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

import ingot
from tests.conformance import verdicts
from tests.conformance.program import Function, Program
from tests.oracle import Close, assert_results, called

NUMBERS = Close(rtol=2e-5, atol=1e-5, half=2e-2)

ACCEPTED = {
    "_numpy.flip: gradient: around np.flip(a)": "",
    "_numpy.fliplr: gradient: around np.fliplr(a)": "",
    "_numpy.rot90: gradient: around np.rot90(a)": "",
    "higher_order_ops.cond: edge: branches that differ": "",
    "higher_order_ops.flex_attention: gradient": "",
    "higher_order_ops.flex_attention: gradient: a mask": "",
    "higher_order_ops.flex_attention: gradient: a score": "",
    "higher_order_ops.flex_attention: gradient: of a captured tensor": "",
    "higher_order_ops.associative_scan: edge: pointwise": "",
    "higher_order_ops.foreach_map: gradient": "",
}
"""Programs that eager refuses and Ingot runs."""

_BRANCH = "the data decide which function is called: each is a graph of its own"
_SIZE = "the data decide the size of an array"
REFUSED = {
    "_numpy.histogramdd": _SIZE,
    "compiler.compile": "a function that torch.compile has compiled is called as it is",
    "func.rearrange": "the function that rearranges is made by exec()",
    "higher_order_ops.cond": _BRANCH,
    "higher_order_ops.scan": "dim: what it means differs between versions of torch",
    "higher_order_ops.while_loop": _BRANCH,
}
"""Names of which Ingot refuses programs that torch.compile takes, or makes more graphs, and why."""


def is_refused(program: Program) -> bool:
    """Whether Ingot may break the graph of a program where torch.compile does not."""
    return program.key.partition(":")[0] in REFUSED


def check(program: Program, verdict: str) -> None:
    """Raises an error unless Ingot does what eager does, in no more graphs than torch.compile.

    A program that is refused as one graph raises a GraphBreakError, and is right in parts."""
    expected = verdicts.error_of(program, program.function)
    is_whole = verdict == verdicts.WHOLE and not expected
    compiled = ingot.compile(program.function, fullgraph=is_whole)
    if expected:
        assert verdicts.error_of(program, compiled) in (expected, ACCEPTED.get(program.key))
        return
    with warnings.catch_warnings(action="ignore"):
        wanted = _called(program, program.function)
        assert_results(_called(program, compiled), wanted, NUMBERS, strides="that matter")
        if not is_whole and verdict != verdicts.FAILS:
            graphs = len(ingot.explain(compiled)(*program.arguments()).graphs)
            most = max(int(verdict), 1)
            assert graphs <= most, f"{graphs} graphs, torch.compile makes {verdict}"


def _called(program: Program, function: Function) -> Any:
    """What a call gives, with tensors in place of arrays."""
    results = called(function, program.arguments(), program.has_gradients)
    return tree_map_only((np.ndarray, np.generic), _as_tensor, results)


def _as_tensor(array: Any) -> Any:
    return type(array), torch.from_numpy(np.array(array))
