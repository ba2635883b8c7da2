"""Which rule is whose: by the name of the op, and by its device."""

from __future__ import annotations

from functools import cache

import torch

from ingot.graph.meta.basis import BY_LOOK, Rule
from ingot.graph.meta.declared import declared
from ingot.graph.meta.families import (
    angle,
    contiguous_exponent,
    contiguous_self,
    exact_self,
    formatted_copy,
    like_self,
    masked,
    native,
    plain_self,
    pointwise,
    power_of_two,
)
from ingot.graph.meta.rearranged import (
    log_sigmoid,
)
from ingot.graph.meta.trials import data_dependent, probe, runs_on_cpu, stand_in, torchs_own
from ingot.graph.meta.untried import (
    KNOWN_TO_CPUS,
    glu,
    gradients,
)
from ingot.graph.schemas import is_pointwise
from ingot.loops.side_effects import is_foreign
from ingot.torch_private import OpOverload, aten

_FAMILIES: dict[Rule, str] = {
    like_self: """ hardtanh
       """,
    masked: "masked_fill",
    exact_self: "copy",
    formatted_copy: "clone _to_copy",
    glu: "glu",
    log_sigmoid: "log_sigmoid_forward",
    pointwise: "floor_divide hardswish hardsigmoid complex polar _conj_physical rsub",
}
_BY_NAME: dict[str, Rule] = {
    name: rule for rule, names in _FAMILIES.items() for name in names.split()
}
_ON_GPUS: dict[str, Rule] = {  # where these are unlike a CPU's
    **{name: KNOWN_TO_CPUS[rule] for name, rule in _BY_NAME.items() if rule in KNOWN_TO_CPUS},
}
RULES: dict[OpOverload, Rule] = {
    aten.angle.default: angle,
    aten.pow.Scalar: contiguous_exponent,
    aten.ldexp.Tensor: power_of_two,
}
"""The rules of overloads, which `rules.py` hands over."""
RULES_ON_GPUS: dict[OpOverload, Rule] = {}
"""Those that are unlike a CPU's."""
BY_LOOK.update(
    (pointwise, contiguous_exponent, like_self, plain_self, masked, exact_self, contiguous_self, formatted_copy,
     )
)  # fmt: skip


@cache
def rule_for(op: OpOverload, device: str = "cpu") -> Rule:
    """The rule for a functional op or a view, on a device of this type: by family, else the
    pointwise tag, else a real run."""
    namespace, name = op._schema.name.split("::")
    if is_foreign(op):
        return declared
    if op.is_view:
        return native
    if torch.Tag.data_dependent_output in op.tags:
        return data_dependent
    if device != "cpu" and op in RULES_ON_GPUS:
        return RULES_ON_GPUS[op]
    known = RULES.get(op)
    if known is not None:
        return known if device == "cpu" else KNOWN_TO_CPUS.get(known, known)
    if namespace == "aten" and device != "cpu" and name in _ON_GPUS:
        return _ON_GPUS[name]
    if namespace == "aten" and name in _BY_NAME:
        return _BY_NAME[name]
    # torch 2.11 has no tag there
    if torch.Tag.dynamic_output_shape in op.tags or op is aten._unique.default:
        return data_dependent
    if is_pointwise(op):
        return pointwise
    if not runs_on_cpu(op):
        return torchs_own
    if name.endswith("_backward"):
        return gradients
    return probe if device == "cpu" else stand_in
