"""The check of an entry's calls, and what calls looked like in which all facts held.

Arguments that look as those of a call before are not checked fact by fact again.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ingot.artifacts.signature import Signature
from ingot.artifacts.trees import TENSORS
from ingot.torch_private import dispatch_keys

MOST = 256
"""Looks that are remembered."""


class KnownCalls:
    """Checks the calls of an entry. Only those whose arguments are tensors, all by position, are
    remembered."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        trees = [parameter.tree for parameter in signature.parameters]
        is_plain = all(parameter.by_position for parameter in signature.parameters)
        is_plain = is_plain and trees == [("tensor", k) for k in range(len(trees))]
        self._is_plain = is_plain and not signature.distinct
        self._known: set[Any] = set()

    def bound(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """What `Signature.bound` gives. Raises what it does."""
        if kwargs or not self._is_plain:
            return self.signature.bound(args, kwargs)
        look = torch.is_grad_enabled(), *map(_look, args)
        if look in self._known:
            return args, args
        given, leaves = self.signature.bound(args, kwargs)
        if all(map(operator.is_, given, leaves)):
            if len(self._known) >= MOST:
                self._known.clear()
            self._known.add(look)
        return given, leaves


def _look(value: Any) -> Any:
    """All of a tensor that the facts of a signature may be about; of others the type."""
    if type(value) not in TENSORS or value.layout is not torch.strided:
        return type(value)
    keys = dispatch_keys(value).raw_repr()
    return value.dtype, value.shape, value.stride(), value.requires_grad, keys
