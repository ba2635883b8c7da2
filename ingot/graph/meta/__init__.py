"""What each ATen op's result looks like: functions from meta tensors to meta tensors, one per
family of ops.

torch's own meta functions written in Python import the machinery of torch.compile when first used,
so only the C++ ones (views, factories) are called. Dtypes are eager's by construction: an op is run
once on one-element tensors of the same dtypes and ranks and the answer is kept. An op of no known
family runs once on real tensors of the real sizes (`trials.py`), where these are known numbers.

Sizes may be SymInts in every rule but the probe.
"""

from ingot.graph.meta.basis import BY_LOOK, first_line, map_tensors, tensors_in
from ingot.graph.meta.declared import returned_types
from ingot.graph.meta.families import native
from ingot.graph.meta.table import RULES, RULES_ON_GPUS, rule_for

__all__ = [
    "BY_LOOK",
    "RULES",
    "RULES_ON_GPUS",
    "first_line",
    "map_tensors",
    "native",
    "returned_types",
    "rule_for",
    "tensors_in",
]
