"""Selective checkpointing: what the forward of a checkpointed region saves all the same.

In: the program's policy, and a node of the region. Out: whether its result is saved, where the
backward reads it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils.checkpoint import SelectiveCheckpointContext

from ingot.errors import unsupported


def is_saved(policy: Callable[..., Any], node: Node) -> bool:
    """Whether a policy says so of a node, from its op and its fake tensors. What it would offload
    to a CPU is saved where it is.

    Raises Unsupported where the policy raises an error.
    """
    if node.target is operator.getitem:  # of an op with several results
        return "saved" in node.all_input_nodes[0].meta
    context = SelectiveCheckpointContext(is_recompute=False)
    context.op_output = node.meta["val"]
    args, kwargs = map_arg((node.args, node.kwargs), _fake)
    try:
        decision = policy(context, node.target, *args, **kwargs)
    except Exception as error:
        raise unsupported(
            "checkpoint", f"a policy raises {type(error).__name__}: {error}"
        ) from error
    if isinstance(decision, bool):
        return decision
    return not decision.name.endswith("_RECOMPUTE")


def _fake(node: Node) -> Any:
    return node.meta["val"]
