"""Which answers of an operation on fake tensors hold for real ones.

In: what an operation gives for fakes. Out: whether real tensors give it as well: tensors do, and
answers that follow from geometry and type. Anything else would be made of the fakes themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ingot.errors import Unsupported
from ingot.graph.fakes import FakeTensor
from ingot.graph.wrappers import is_wrapper_class
from ingot.reasons import reason_of
from ingot.wrapped import is_wrapped

_ABOUT_LOOKS = frozenset(
    """
    __len__
    dim ndimension numel nelement size stride storage_offset element_size dim_order get_device
    is_complex is_floating_point is_signed is_contiguous is_conj is_neg is_inference is_same_size
    is_distributed has_names sparse_dim dense_dim is_non_overlapping_and_dense result_type can_cast
    promote_types _parse_to broadcast_shapes eq ne _has_compatible_shallow_copy_type
    """.split()
)
"""The names of functions and methods that answer such a question; `==` and `!=` of a tensor and
None among them."""
_NUMBERS = frozenset(("item", "__int__", "__index__", "tolist"))
"""Those that may give an integer that the data decide."""


class NoTensors(Unsupported):
    """An operation on fake tensors gives a result that real tensors may not give. A Python
    function may be captured line by line all the same."""


def unbelievable(op: str, name: str, result: Any, where: str) -> NoTensors:
    label = name
    if op == "call_method":
        label = f"Tensor.{name}"
    sentence = (
        f"{label} gives a {type(result).__name__}, which is not known of a tensor during capture"
    )
    return NoTensors(reason_of("no-tensor", sentence, where))


def is_believable(name: str, result: Any, is_given_tensors: Callable[[], bool]) -> bool:
    """Whether what an operation of this name gives for fakes is what it would give for tensors."""
    if isinstance(result, torch.Tensor):
        return type(result) is FakeTensor or is_wrapped(result) or is_wrapper_class(type(result))
    if name in _ABOUT_LOOKS or isinstance(result, torch.SymInt) and name in _NUMBERS:
        return True
    if type(result) in (tuple, list) or isinstance(result, tuple) and result:  # structseqs
        return all(item is None or is_believable(name, item, is_given_tensors) for item in result)
    return not is_given_tensors()
