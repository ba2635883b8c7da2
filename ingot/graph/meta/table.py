"""Which meta rule is whose: by the op and its device."""

from __future__ import annotations

from functools import cache

import torch

from ingot.graph.meta.basis import Rule
from ingot.graph.meta.declared import declared
from ingot.graph.meta.families import native, pointwise_meta
from ingot.graph.meta.trials import data_dependent, probe, runs_on_cpu, stand_in, torchs_own
from ingot.graph.meta.untried import KNOWN_TO_CPUS, gradients
from ingot.graph.schemas import is_pointwise
from ingot.loops.side_effects import is_foreign
from ingot.tables import Table
from ingot.torch_private import OpOverload, aten

RULES: Table[Rule] = Table("meta")
RULES_ON_GPUS: Table[Rule] = Table("gpu_meta")
"""Those that are unlike a CPU's."""


@cache
def rule_for(op: OpOverload, device: str = "cpu") -> Rule:
    """The meta rule for a functional op or a view, on a device of this type. It is its record's,
    else by the pointwise tag, else a real run."""
    name = op._schema.name.partition("::")[2]
    if is_foreign(op):
        return declared
    if op.is_view:
        return native
    if torch.Tag.data_dependent_output in op.tags:
        return data_dependent
    if device != "cpu" and op in RULES_ON_GPUS:
        return RULES_ON_GPUS[op]
    known = RULES.get(op)
    if known is None and is_pointwise(op):
        known = pointwise_meta
    if known is not None:
        if device == "cpu":
            return known
        return KNOWN_TO_CPUS.get(known, known)
    # torch 2.11 has no tag there
    if torch.Tag.dynamic_output_shape in op.tags or op is aten._unique.default:
        return data_dependent
    if not runs_on_cpu(op):
        return torchs_own
    if name.endswith("_backward"):
        return gradients
    if device == "cpu":
        return probe
    return stand_in
