"""torch.func."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, func, nn
from torch.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

from tests.conformance.program import Table

PUBLIC = func.__all__


def wave(x: Tensor) -> Tensor:
    return (x.sin() * x).sum()


def layer() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


LAYER = layer()
NORMALIZED = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
STACKED = stack_module_state([layer(), layer()])


def written(x: Tensor) -> Tensor:
    y = x * 2
    y[0] = 1
    return y.mul_(x).sum()


def squared_error(parameters: Any, x: Tensor) -> Tensor:
    return functional_call(LAYER, parameters, (x,)).square().sum()


def per_sample(x: Tensor) -> Any:
    parameters = dict(LAYER.named_parameters())
    return vmap(grad(squared_error), in_dims=(None, 0))(parameters, x)


def inner_loop(x: Tensor) -> Tensor:
    """A step of gradient descent inside, and the loss after it."""
    parameters = dict(LAYER.named_parameters())
    steps = grad(squared_error)(parameters, x)
    moved = {}
    for name, value in parameters.items():
        moved[name] = value - 0.1 * steps[name]
    return squared_error(moved, x)


def ensemble(x: Tensor) -> Tensor:
    parameters, buffers = STACKED

    def call(p: Any, b: Any, x: Tensor) -> Tensor:
        return functional_call(LAYER, (p, b), (x,))  # type: ignore[no-any-return]

    return vmap(call, in_dims=(0, 0, None))(parameters, buffers, x)  # type: ignore[no-any-return]


def pulled_back(x: Tensor, y: Tensor) -> Any:
    value, pull = vjp(lambda x, y: {"a": x * y, "b": [x.sin()]}, x, y)
    return value, pull({"a": y, "b": [x]})


def pulled_back_twice(x: Tensor) -> Any:
    value, pull = vjp(torch.sin, x)
    return value, pull(x), pull(value)


def second_pullback(x: Tensor, y: Tensor) -> Any:
    return vjp(lambda t: vjp(torch.sin, t)[1](y)[0], x)[1](y)


def linear_part(x: Tensor, y: Tensor) -> Any:
    value, push = linearize(torch.sin, x)
    return value, push(y), push(y * 2)


def linear_part_of_two(x: Tensor, y: Tensor) -> Any:
    value, push = linearize(lambda a, b: (a * b, a.sum()), x, y)
    return value, push(y, x)


def functional_write(x: Tensor) -> Any:
    return functionalize(written)(x), functionalize(written, remove="mutations_and_views")(x)


def without_statistics(x: Tensor) -> Tensor:
    module = func.replace_all_batch_norm_modules_(NORMALIZED)
    return module(x)  # type: ignore[no-any-return]


def tied(x: Tensor) -> Tensor:
    first = nn.Linear(4, 4)
    first.requires_grad_(False)
    state = {"weight": x[:1].expand(4, 4), "bias": x[1]}
    return functional_call(first, state, (x,), tie_weights=False)  # type: ignore[no-any-return]


def random_rows(x: Tensor) -> Tensor:
    return vmap(lambda row: row * 0 + torch.randn(4), randomness="different")(x)


def same_random_rows(x: Tensor) -> Tensor:
    return vmap(lambda row: F.dropout(row, 0.5), randomness="same")(x)


def conditional_rows(x: Tensor) -> Tensor:
    return vmap(lambda row: torch.where(row > 0, row.exp(), -row))(x)


PROGRAMS: Table = {
    "grad": {
        "value": lambda x, y: grad(wave)(x) * y,
        "edge: two arguments": lambda x, y: grad(lambda x, y: (x * y.exp()).sum(), (0, 1))(x, y),
        "edge: no dependence": lambda x, y: grad(lambda x: y.sum())(x),
        "edge: no elements": lambda empty: grad(wave)(empty),
        "edge: writes inside": lambda x: grad(written)(x),
        "edge: something beside": lambda x: grad(lambda x: (wave(x), x.exp()), has_aux=True)(x),
        "edge: an integer argument": lambda x, k: grad(lambda x, k: (x**k).sum())(x, k),
        "edge: keyword arguments": lambda x, f: grad(lambda x, *, f: (x * f).sum())(x, f=f),
        "edge: not a number": lambda x: grad(torch.sin)(x),
        "edge: trees": lambda x, y: grad(lambda p: (p["a"] * p["b"][0]).sum())({"a": x, "b": [y]}),
        "gradient": lambda x, y: grad(wave)(x) * y,
        "gradient: thrice": lambda t: grad(grad(grad(lambda t: t**4)))(t),
        "gradient: of what is closed over": lambda x, y: grad(lambda x: (x * y * y).sum())(x),
        "gradient: inner loop": inner_loop,
    },
    "grad_and_value": {
        "value": lambda x: grad_and_value(wave)(x),
        "edge: something beside": lambda x: grad_and_value(lambda x: (wave(x), [x + 1]), 0, True)(
            x
        ),
        "edge: the second argument": lambda x, y: grad_and_value(lambda a, b: (a * b).sum(), 1)(
            x, y
        ),
        "edge: strides": lambda wide: grad_and_value(wave)(wide),
        "gradient": lambda x: grad_and_value(wave)(x),
        "gradient: in vmap": lambda x: vmap(grad_and_value(wave))(x),
    },
    "vmap": {
        "value": lambda x, v: vmap(torch.dot, in_dims=(0, None))(x, v),
        "edge: other dimensions": lambda x, y: vmap(torch.add, in_dims=(1, 1), out_dims=1)(x, y),
        "edge: negative dimension": lambda x: vmap(torch.cumsum, (-1, None))(x, 0),
        "edge: nested": lambda b: vmap(vmap(torch.sum))(b),
        "edge: chunks": lambda x: vmap(torch.sin, chunk_size=2)(x),
        "edge: one row": lambda one: vmap(torch.sum)(one),
        "edge: dicts": lambda x, y: vmap(lambda p: {"c": p["a"] @ p["b"]})({"a": x, "b": y}),
        "edge: dicts of dimensions": lambda x, v: vmap(
            lambda p: p["a"] * p["b"], in_dims=({"a": 0, "b": None},)
        )({"a": x, "b": v}),
        "edge: indices": lambda x, i: vmap(lambda j: x[j])(i),
        "edge: sizes differ": lambda x, v: vmap(torch.add)(x, v),
        "edge: no elements": lambda empty: vmap(torch.sum)(empty),
        "edge: random": random_rows,
        "edge: a layer": lambda b: vmap(F.softmax, in_dims=(0, None))(b, -1),
        "edge: chosen": conditional_rows,
        "edge: a value": lambda x: vmap(lambda row: row.sum().item())(x),
        "edge: writes": lambda x: vmap(lambda row: row.clone().fill_(2.0))(x),
        "gradient": lambda x, v: vmap(torch.dot, in_dims=(0, None))(x, v),
        "gradient: of each sample": per_sample,
        "gradient: nested": lambda b: vmap(vmap(grad(wave)))(b),
        "gradient: the same dropout": same_random_rows,
    },
    "jvp": {
        "value": lambda x, y: jvp(torch.sin, (x,), (y,)),
        "edge: two arguments": lambda x, y: jvp(lambda a, b: (a * b, [a.sum()]), (x, y), (y, x)),
        "edge: something beside": lambda x, y: jvp(
            lambda a: (a.exp(), a + 1), (x,), (y,), has_aux=True
        ),
        "edge: twice": lambda x, y: jvp(lambda a: jvp(torch.sin, (a,), (y,))[1], (x,), (y,)),
        "edge: other sizes": lambda x, v: jvp(torch.sin, (x,), (v,)),
        "edge: in vmap": lambda x, y: vmap(lambda a, b: jvp(torch.exp, (a,), (b,)))(x, y),
        "edge: of a layer": lambda x, y: jvp(LAYER, (x,), (y,)),
        "gradient": lambda x, y: jvp(torch.sin, (x,), (y,)),
        "gradient: of a grad": lambda x, y: jvp(grad(wave), (x,), (y,))[1],
    },
    "vjp": {
        "value": pulled_back,
        "edge: pulled twice": pulled_back_twice,
        "edge: something beside": lambda x: vjp(lambda x: (x.sin(), x + 1), x, has_aux=True)[2],
        "edge: twice": second_pullback,
        "edge: a number": lambda t: vjp(torch.exp, t)[1](t),
        "edge: other sizes": lambda x, v: vjp(torch.sin, x)[1](v),
        "gradient": pulled_back,
        "gradient: in vmap": lambda x, y: vmap(lambda a, b: vjp(torch.exp, a)[1](b))(x, y),
    },
    "jacrev": {
        "value": lambda v: jacrev(lambda v: v.sin() * v.sum())(v),
        "edge: two arguments": lambda v, w: jacrev(lambda a, b: a * b.sum(), argnums=(0, 1))(v, w),
        "edge: something beside": lambda v: jacrev(lambda a: (a.exp(), a + 1), has_aux=True)(v),
        "edge: chunks": lambda v: jacrev(torch.sin, chunk_size=2)(v),
        "edge: one row at a time": lambda v: jacrev(torch.sin, chunk_size=1)(v),
        "edge: trees": lambda v: jacrev(lambda a: {"a": a * 2, "b": [a.sum()]})(v),
        "edge: a number": lambda t: jacrev(torch.sin)(t),
        "gradient": lambda v: jacrev(lambda v: v.sin() * v.sum())(v),
        "gradient: of each sample": lambda x: vmap(jacrev(lambda v: v.sin() * v.sum()))(x),
    },
    "jacfwd": {
        "value": lambda v: jacfwd(lambda v: v.sin() * v.sum())(v),
        "edge: two arguments": lambda v, w: jacfwd(lambda a, b: a * b.sum(), argnums=(0, 1))(v, w),
        "edge: something beside": lambda v: jacfwd(lambda a: (a.exp(), a + 1), has_aux=True)(v),
        "edge: trees": lambda v: jacfwd(lambda a: {"a": a * 2, "b": [a.sum()]})(v),
        "edge: of a layer": lambda v: jacfwd(LAYER)(v),
        "edge: random": lambda v: jacfwd(lambda a: a * torch.rand(4), randomness="same")(v),
        "gradient": lambda v: jacfwd(lambda v: v.sin() * v.sum())(v),
        "gradient: of a jacrev": lambda v: jacfwd(jacrev(wave))(v),
    },
    "hessian": {
        "value": lambda v: hessian(wave)(v),
        "edge: two arguments": lambda v, w: hessian(lambda a, b: (a * b * a).sum(), (0, 1))(v, w),
        "edge: a number": lambda t: hessian(torch.exp)(t),
        "edge: of each sample": lambda x: vmap(hessian(wave))(x),
        "edge: of a layer": lambda v: hessian(lambda v: LAYER(v).sum())(v),
        "edge: no elements": lambda empty: hessian(wave)(empty[0:0, 0]),
        "gradient": lambda v: hessian(wave)(v).diagonal(),
        "gradient: a trace": lambda x: vmap(lambda v: hessian(wave)(v).trace())(x),
    },
    "linearize": {
        "value": linear_part,
        "edge: two arguments": linear_part_of_two,
        "edge: a number": lambda t: linearize(torch.exp, t)[1](t),
        "gradient": linear_part,
    },
    "functionalize": {
        "value": functional_write,
        "edge: a view": lambda x: functionalize(lambda x: x.clone().view(-1).add_(1))(x),
        "edge: an argument": lambda x: functionalize(lambda x: x.add_(1))(x),
        "gradient": lambda x: functionalize(written)(x),
        "gradient: in grad": lambda x: grad(functionalize(written))(x),
    },
    "functional_call": {
        "value": lambda x: functional_call(LAYER, dict(LAYER.named_parameters()), (x,)),
        "edge: a part": lambda x: functional_call(LAYER, {"0.bias": torch.zeros(5)}, x),
        "edge: two dicts": lambda x: functional_call(
            NORMALIZED, (dict(NORMALIZED.named_parameters()), dict(NORMALIZED.named_buffers())), x
        ),
        "edge: strict": lambda x: functional_call(
            LAYER, {"0.bias": torch.zeros(5)}, x, strict=True
        ),
        "edge: keywords": lambda x: functional_call(LAYER, {}, (), {"input": x}),
        "gradient": lambda x: functional_call(LAYER, dict(LAYER.named_parameters()), (x,)),
        "gradient: of weights that are made": tied,
        "gradient: in vmap": lambda b: vmap(lambda x: functional_call(LAYER, {}, (x,)))(b),
    },
    "stack_module_state": {
        "value": ensemble,
        "edge: stacked inside": lambda x: stack_module_state([LAYER, LAYER])[0]["0.bias"] + x[0, 0],
        "edge: nothing": lambda x: stack_module_state([]),
        "gradient": ensemble,
    },
    "replace_all_batch_norm_modules_": {
        "value": without_statistics,
        "edge: a single row": lambda one: func.replace_all_batch_norm_modules_(LAYER)(one),
        "gradient": without_statistics,
    },
    "rearrange": {
        "value": lambda x: func.rearrange(x, "a b -> b a"),
        "edge: joined": lambda b: func.rearrange(b, "a b c -> a (b c)"),
        "edge: an ellipsis": lambda b: func.rearrange(b, "... c -> c ..."),
        "edge: a new dimension": lambda v: func.rearrange(v, "a -> a 1"),
        "edge: a wrong pattern": lambda x: func.rearrange(x, "a -> a"),
        "gradient": lambda x: func.rearrange(x.exp(), "a b -> b a"),
    },
    "debug_unwrap": {
        "value": lambda x: func.debug_unwrap(x) + 1,
        "edge: inside of grad": lambda x: grad(lambda a: (a * func.debug_unwrap(a)).sum())(x),
        "gradient": lambda x: vmap(lambda row: row * func.debug_unwrap(row).sum())(x),
    },
}
