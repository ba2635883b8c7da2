"""Which rule is whose: by the name of the op, and by its device."""

from __future__ import annotations

from functools import cache

import torch

from ingot.graph.meta.basis import BY_LOOK, Rule
from ingot.graph.meta.declared import declared
from ingot.graph.meta.families import (
    angle,
    batch_norm,
    contiguous_exponent,
    contiguous_self,
    dropout,
    exact_self,
    factory,
    formatted_copy,
    group_norm,
    layer_norm,
    like_self,
    masked,
    native,
    plain_self,
    pointwise,
    power_of_two,
    reduction,
)
from ingot.graph.meta.gpus import (
    cudnn_batch_norm,
    cudnn_batch_norm_backward,
    rms_norm,
    rms_norm_backward,
    with_wide_statistics,
)
from ingot.graph.meta.rearranged import (
    log_sigmoid,
)
from ingot.graph.meta.trials import data_dependent, probe, runs_on_cpu, stand_in, torchs_own
from ingot.graph.meta.untried import (
    KNOWN_TO_CPUS,
    batch_norm_backward,
    glu,
    gradients,
    gradients_of,
    layer_norm_backward,
    softmax_backward,
)
from ingot.graph.schemas import is_pointwise
from ingot.loops.side_effects import is_foreign
from ingot.torch_private import OpOverload, aten

_FAMILIES: dict[Rule, str] = {
    like_self: """ hardtanh uniform normal_functional random
        exponential cauchy geometric log_normal""",
    plain_self: " bernoulli",
    masked: "masked_fill",
    exact_self: "copy",
    contiguous_self: " _softmax _log_softmax _safe_softmax",
    formatted_copy: "clone _to_copy rand_like randn_like randint_like",
    reduction: """sum mean prod amax amin any all argmax argmin var std var_mean std_mean logsumexp max min nansum
        linalg_vector_norm norm aminmax count_nonzero""",
    layer_norm: "native_layer_norm",
    batch_norm: "native_batch_norm _native_batch_norm_legit_no_training",
    group_norm: "native_group_norm",
    factory: " rand randn randint",
    gradients_of("input", "C", "C"): "native_group_norm_backward",
    softmax_backward: "_softmax_backward_data _log_softmax_backward_data",
    layer_norm_backward: "native_layer_norm_backward",
    batch_norm_backward: "native_batch_norm_backward",
    glu: "glu",
    log_sigmoid: "log_sigmoid_forward",
    dropout: "native_dropout",
    pointwise: "floor_divide hardswish hardsigmoid complex polar _conj_physical rsub",
}
_BY_NAME: dict[str, Rule] = {
    name: rule for rule, names in _FAMILIES.items() for name in names.split()
}
_ON_GPUS: dict[str, Rule] = {  # where these are unlike a CPU's
    "native_layer_norm": with_wide_statistics(layer_norm),
    "native_batch_norm": with_wide_statistics(batch_norm),
    "cudnn_batch_norm": cudnn_batch_norm,
    "cudnn_batch_norm_backward": cudnn_batch_norm_backward,
    "_fused_rms_norm": rms_norm,
    "_fused_rms_norm_backward": rms_norm_backward,
    **{name: KNOWN_TO_CPUS[rule] for name, rule in _BY_NAME.items() if rule in KNOWN_TO_CPUS},
}
RULES: dict[OpOverload, Rule] = {
    aten.angle.default: angle,
    **dict.fromkeys((aten.max.other, aten.min.other), pointwise),
    aten.pow.Scalar: contiguous_exponent,
    aten.ldexp.Tensor: power_of_two,
    aten.bernoulli.Tensor: like_self,
}
"""The rules of overloads, which `rules.py` hands over."""
RULES_ON_GPUS: dict[OpOverload, Rule] = {}
"""Those that are unlike a CPU's."""
BY_LOOK.update(
    (pointwise, contiguous_exponent, like_self, plain_self, masked, exact_self, contiguous_self, formatted_copy,
     reduction,
     softmax_backward)
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
