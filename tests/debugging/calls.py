"""Calls of torch to plant faults in, by the last name of what is called.

Each is of a matrix `{a}`, sometimes of `{b}` and of indices `{i}` beside it. Its result is a matrix
of the same size, or may be broadcast to one.
"""

from __future__ import annotations

_F = "torch.nn.functional"
_IMAGE = "{a}.view(1, 1, {n}, {n})"
_CORNER = f"{_IMAGE}[:, :, :8, :8]"
_KERNEL = "{b}.view(1, 1, {n}, {n})[:, :, :3, :3]"
_HEADS = "*[{a}[None, None]] * 3"

_FUNCTIONS = (
    "expm1 sinh erfc asinh sinc digamma exp2 tan neg sign floor ceil trunc round frac "
    "nan_to_num isnan square positive deg2rad"
).split()
_OF_POSITIVES = "log log2 log10 log1p sqrt rsqrt reciprocal lgamma acosh".split()
_ACTIVATIONS = (
    "relu silu mish softplus logsigmoid hardtanh hardswish hardsigmoid leaky_relu elu celu "
    "softshrink hardshrink relu6 selu tanhshrink softsign"
).split()
_OF_TWO = (
    "atan2 hypot copysign fmod remainder floor_divide maximum minimum fmax fmin logaddexp "
    "logaddexp2 heaviside nextafter div"
).split()
_REDUCTIONS = "sum mean amax amin var std logsumexp prod norm nansum".split()
_SCANS = "cumsum cumprod logcumsumexp".split()
_LOSSES = "mse_loss smooth_l1_loss huber_loss soft_margin_loss l1_loss".split()


def _calls() -> dict[str, str]:
    calls = {name: f"torch.{name}({{a}})" for name in _FUNCTIONS}
    calls |= {name: f"torch.{name}({{a}}.abs() + 1.5)" for name in _OF_POSITIVES}
    calls |= {name: f"{_F}.{name}({{a}})" for name in _ACTIVATIONS}
    calls |= {name: f"torch.{name}({{a}}, {{b}})" for name in _OF_TWO}
    calls |= {name: f"torch.{name}({{a}}, -1, keepdim=True)" for name in _REDUCTIONS}
    calls |= {name: f"torch.{name}({{a}}, 0)" for name in _SCANS}
    calls |= {name: f"{_F}.{name}({{a}}, {{b}}, reduction='none')" for name in _LOSSES}
    return calls | _OTHERS


_OTHERS = {
    "gelu": f"{_F}.gelu({{a}}, approximate='tanh')",
    "threshold": f"{_F}.threshold({{a}}, 0.1, 0.3)",
    "glu": f"{_F}.glu({{a}}, 0)[:1]",
    "prelu": f"{_F}.prelu({{a}}, {{b}}[0, :1])",
    "logit": "torch.logit({a}, 0.3)",
    "erfinv": "torch.erfinv({a} * 0.3)",
    "xlogy": "torch.xlogy({a}, {b}.abs() + 0.5)",
    "lerp": "torch.lerp({a}, {b}, 0.3)",
    "addcmul": "torch.addcmul({a}, {a}, {b}, value=0.5)",
    "addcdiv": "torch.addcdiv({a}, {a}, {b}.abs() + 1.0, value=0.5)",
    "clamp": "{a}.clamp(-0.5, 0.5)",
    "pow": "torch.pow({a}.abs() + 0.5, 1.7)",
    "masked_fill": "{a}.masked_fill({b} > 0, 0.5)",
    "logical_and": "torch.logical_and({a} > 0, {b} > 0)",
    "max": "torch.max({a}, 0)[0]",
    "argmax": "torch.argmax({a}, -1)",
    "any": "torch.any({a} > 0.9, -1)",
    "cummax": "torch.cummax({a}, 0)[0]",
    "layer_norm": f"{_F}.layer_norm({{a}}, ({{n}},), {{b}}[0], {{b}}[1])",
    "rms_norm": f"{_F}.rms_norm({{a}}, ({{n}},), {{b}}[0])",
    "group_norm": f"{_F}.group_norm({{a}}.view(2, 8, -1), 4).view({{n}}, {{n}})",
    "batch_norm": f"{_F}.batch_norm({{a}}, None, None, training=True)",
    "softmax": "torch.softmax({a}, -1)",
    "log_softmax": "torch.log_softmax({a}, 0)",
    "cross_entropy": f"{_F}.cross_entropy({{a}}, {{i}}[0], reduction='none')",
    "kl_div": f"{_F}.kl_div({{a}}, {{b}}.abs() + 0.1, reduction='none')",
    "roll": "{a}.roll(3, 0)",
    "flip": "{a}.flip(1)",
    "rot90": "torch.rot90({a})",
    "t": "{a}.t()",
    "tril": "{a}.tril()",
    "triu": "{a}.triu(1)",
    "gather": "{a}.gather(1, {i})",
    "index_select": "{a}.index_select(0, {i}[0])",
    "take_along_dim": "torch.take_along_dim({a}, {i}, 0)",
    "embedding": f"{_F}.embedding({{i}}[0], {{a}})",
    "index_add": "{a}.index_add(0, {i}[0], {b})",
    "scatter": "{a}.scatter(1, {i}, 0.5)",
    "scatter_add": "{a}.scatter_add(1, {i}, {b})",
    "pad": f"{_F}.pad({{a}}[None, 2:-2, 2:-2], (2, 2, 2, 2), 'reflect')[0]",
    "cat": "torch.cat([{a}[8:], {b}[:8]])",
    "diag_embed": "torch.diag_embed({a}[0])",
    "diagonal": "{a}.diagonal()",
    "repeat": "{a}[:, :4].repeat(1, 4)",
    "unfold": "{a}[0].unfold(0, 4, 4).view(1, {n})",
    "avg_pool2d": f"{_F}.avg_pool2d({_IMAGE}, 3, 1, 1)[0, 0]",
    "max_pool2d": f"{_F}.max_pool2d({_IMAGE}, 3, 1, 1)[0, 0]",
    "adaptive_avg_pool2d": f"{_F}.adaptive_avg_pool2d({_IMAGE}, (1, {{n}}))[0, 0]",
    "conv2d": f"{_F}.conv2d({_IMAGE}, {_KERNEL}, None, 1, 1)[0, 0]",
    "upsample_bilinear2d": f"{_F}.interpolate({_CORNER}, scale_factor=2, mode='bilinear')[0, 0]",
    "upsample_bicubic2d": f"{_F}.interpolate({_CORNER}, scale_factor=2, mode='bicubic')[0, 0]",
    "pixel_shuffle": f"{_F}.pixel_shuffle({{a}}.view(1, 4, 8, 8), 2)[0, 0]",
    "pixel_unshuffle": f"{_F}.pixel_unshuffle({_IMAGE}, 2).view({{n}}, {{n}})",
    "scaled_dot_product_attention": f"{_F}.scaled_dot_product_attention({_HEADS})[0, 0]",
    "linear": f"{_F}.linear({{a}}, {{b}}, {{b}}[0])",
    "bmm": "torch.bmm({a}[None], {b}[None])[0]",
    "addmm": "torch.addmm({a}, {a}, {b})",
    "cross": "torch.linalg.cross({a}[:3].t(), {b}[:3].t())[:, :1]",
    "where": "torch.where({a} > 0.2, {a}, {b})",
}

CALLS = _calls()
