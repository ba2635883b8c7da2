"""torch.vmap: the Python of it is inlined. Its levels are entered for real while capture runs, as
modes are, so that the shapes inside are those of one example; and by the graph, which calls the
same functions of torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ingot.capture.meanings import How, means
from ingot.capture.recorder import fake_of
from ingot.capture.values.base import Arguments, Keywords, Leaf, Rule, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.sequences import TupleValue
from ingot.capture.values.tensor import TensorValue
from ingot.torch_private import (
    add_batch_dim,
    create_batched_inputs,
    flat_vmap,
    get_inplace_requires_grad_allowed,
    grad_and_value_impl,
    grad_decrement_nesting,
    grad_increment_nesting,
    is_batchedtensor,
    jvp_with_argnums,
    lazy_load_decompositions,
    predispatch_add_batch_dim,
    predispatch_remove_batch_dim,
    remove_batch_dim,
    set_inplace_requires_grad_allowed,
    slice_argnums,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
    unwrap_batched,
    unwrap_for_grad,
    vjp_with_argnums,
    vmap_decrement_nesting,
    vmap_increment_nesting,
    wrap_for_grad,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session


class LevelValue(Value):
    """The number of a level of vmap: which one it is depends on the levels around the call."""

    __slots__ = ("fake", "fx_node")

    def __init__(self, level: int, node: fx.Node) -> None:
        super().__init__()
        self.fake, self.fx_node = level, node

    def python_type(self) -> type:
        return int

    def argument(self, leaf: Leaf) -> Any:
        return leaf(self)


def mapped(
    level: Any,
    func: Any,
    batch_size: Any,
    in_dims: Any,
    args: Any,
    spec: Any,
    out_dims: Any,
    kwargs: Any,
) -> Any:
    """Inlined: what torch's `_flat_vmap` does inside a level."""
    batched = create_batched_inputs(in_dims, args, level, spec)
    return unwrap_batched(func(*batched, **kwargs), out_dims, level, batch_size, func)


@means(flat_vmap, how=How.UNREALIZED)
def _flat_vmap(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    func, batch_size, in_dims, flat_args, spec, out_dims, randomness = args
    size, randomness = session.deep(batch_size), session.known(randomness)
    level = vmap_increment_nesting(size.argument(fake_of), randomness)
    try:
        size = size.argument(session.graph.node_of)
        node = session.graph.switch(session, vmap_increment_nesting, size, randomness)
        inner = [LevelValue(level, node), func, batch_size, in_dims, flat_args, spec, out_dims]
        return session.call_builtin(mapped, *inner, session.dict_of_values(kwargs))
    finally:
        vmap_decrement_nesting()
        session.graph.switch(session, vmap_decrement_nesting)


@means(lazy_load_decompositions, how=How.UNREALIZED)
def _load_decompositions(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    lazy_load_decompositions()
    return NONE


def _operation(function: Callable[..., Any]) -> Rule:
    def call(session: Session, args: Arguments, kwargs: Keywords) -> Value:
        values = tuple(map(session.deep, args))
        return session.call_function(function, *values, **kwargs)

    return call


@means(is_batchedtensor)
def _is_batched(session: Session, tensor: Value) -> Value:
    return ConstantValue(isinstance(tensor, TensorValue) and is_batchedtensor(tensor.fake))


# -- grad, vjp -------------------------------------------------------------------------------------


def tracked(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of a level as one of the variables."""
    allowed = get_inplace_requires_grad_allowed()
    set_inplace_requires_grad_allowed(True)
    try:
        return tensor.requires_grad_()
    finally:
        set_inplace_requires_grad_allowed(allowed)


for _function in (wrap_for_grad, unwrap_for_grad, tracked):
    means(_function, how=How.UNREALIZED)(_operation(_function))


def _variables(tree: Any) -> None:
    """Inlined."""
    for tensor in tree_leaves(tree):
        tracked(tensor)


def refused() -> None:
    """What torch raises an error for."""


@means(refused)
def _refused(session: Session) -> Value:
    raise session.unsupported("func-transform", "a function that torch.func cannot differentiate")


def _at_level(tree: Any, level: Any) -> Any:
    """Inlined."""
    return tree_map(lambda t: wrap_for_grad(t, level) if isinstance(t, torch.Tensor) else t, tree)


def _below_level(tree: Any, level: Any) -> Any:
    """Inlined."""
    return tree_map(lambda t: unwrap_for_grad(t, level) if isinstance(t, torch.Tensor) else t, tree)


def _with_aux(output: Any, has_aux: Any) -> Any:
    """Inlined: what a function gives, and what it gives besides."""
    if not has_aux:
        return output, None
    if not (isinstance(output, tuple) and len(output) == 2):
        refused()
    return output


def value_and_gradient(
    level: Any, func: Any, argnums: Any, has_aux: Any, args: Any, kwargs: Any
) -> Any:
    """Inlined: what `grad_and_value_impl` does inside a level."""
    with torch.enable_grad():
        args, kwargs = _at_level(args, level), _at_level(kwargs, level)
        variables = slice_argnums(args, argnums, as_tuple=False)
        _variables(variables)
        output, aux = _with_aux(func(*args, **kwargs), has_aux)
        if not isinstance(output, torch.Tensor) or output.dim() != 0:
            refused()
        leaves, spec = tree_flatten(variables)
        gradients = tree_unflatten(gradients_of([output], leaves, None, False, True), spec)
        gradients, output = _below_level(gradients, level), _below_level(output, level)
        return gradients, (output, _below_level(aux, level)) if has_aux else output


def value_and_vjp(level: Any, func: Any, argnums: Any, has_aux: Any, args: Any) -> Any:
    """Inlined: the same for `vjp`."""
    with torch.enable_grad():
        args = _at_level(args, level)
        if argnums is None:
            variables = args
        else:
            variables = slice_argnums(args, argnums, as_tuple=False)
        _variables(variables)
        output, aux = _with_aux(func(*args), has_aux)
        outputs, outputs_spec = tree_flatten(output)
        for tensor in outputs:
            if not isinstance(tensor, torch.Tensor) or not (
                tensor.is_floating_point() or tensor.is_complex()
            ):
                refused()
        if not outputs:
            refused()
        leaves, spec = tree_flatten(variables)
        results = _below_level(output, level)

    def vjp(cotangents: Any, retain_graph: bool = True, create_graph: Any = None) -> Any:
        if create_graph is None:
            create_graph = torch.is_grad_enabled()
        gradients, gradients_spec = tree_flatten(cotangents)
        if gradients_spec != outputs_spec:
            refused()
        return tree_unflatten(
            gradients_of(outputs, leaves, gradients, retain_graph, create_graph), spec
        )

    if has_aux:
        return (results, vjp, _below_level(aux, level))
    return (results, vjp)


def gradients_of(
    outputs: Any, inputs: Any, tangents: Any, retain_graph: Any, create_graph: Any
) -> Any:
    """Inlined: gradients, zeros where there are none."""
    positions = []
    for k, output in enumerate(outputs):
        if output.requires_grad:
            positions.append(k)
    if not positions:
        return [torch.zeros_like(t) for t in inputs]
    heads = [outputs[k] for k in positions]
    if tangents is not None:
        tangents = [tangents[k] for k in positions]
    gradients = torch.autograd.grad(
        heads, inputs, tangents, retain_graph, create_graph, allow_unused=True
    )
    results = []
    for t, g in zip(inputs, gradients):
        results.append(torch.zeros_like(t) if g is None else g)
    return results


def _inside_level(session: Session, function: Any, args: Arguments) -> Value:
    if torch.is_inference_mode_enabled():
        raise session.unsupported("inference-mode", "torch.func in inference mode, which it leaves")
    level = grad_increment_nesting()
    try:
        node = session.graph.switch(session, grad_increment_nesting)
        return session.call_builtin(function, LevelValue(level, node), *args)
    finally:
        grad_decrement_nesting()
        session.graph.switch(session, grad_decrement_nesting)


@means(grad_and_value_impl, how=How.UNREALIZED)
def _grad_and_value(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    return _inside_level(session, value_and_gradient, args)


@means(vjp_with_argnums, how=How.UNREALIZED)
def _vjp(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    func, *primals = args
    arguments = [
        kwargs.get("argnums", NONE),
        kwargs.get("has_aux", ConstantValue(False)),
        TupleValue(primals, tuple),
    ]
    return _inside_level(session, value_and_vjp, [func, *arguments])


def value_and_jvp(
    level: Any, func: Any, argnums: Any, has_aux: Any, primals: Any, tangents: Any
) -> Any:
    """Inlined: the same for `jvp`, in reverse mode twice.

    The gradient is linear in the cotangents. Its own gradient with respect to them is what forward
    mode computes.
    """
    with torch.enable_grad():
        primals = _at_level(primals, level)
        variables = primals if argnums is None else slice_argnums(primals, argnums)
        leaves, spec = tree_flatten(variables)
        directions, directions_spec = tree_flatten(tangents)
        if spec != directions_spec or not leaves:
            refused()
        for leaf, direction in zip(leaves, directions):
            if not is_direction(leaf, direction):
                refused()
            tracked(leaf)
        output, aux = _with_aux(func(*primals), has_aux)
        outputs, outputs_spec = tree_flatten(output)
        cotangents = []
        for tensor in outputs:
            if not isinstance(tensor, torch.Tensor):
                refused()
            cotangents.append(tracked(torch.zeros_like(tensor)))
        if not outputs:
            refused()
        gradients = gradients_of(outputs, leaves, cotangents, True, True)
        pushed = gradients_of(gradients, cotangents, directions, True, True)
        results = _below_level(output, level)
        pushed = _below_level(tree_unflatten(pushed, outputs_spec), level)
    if has_aux:
        return results, pushed, _below_level(aux, level)
    return results, pushed


def is_direction(primal: Any, tangent: Any) -> bool:
    """Inlined: whether a tangent is of a tensor that forward mode takes."""
    for tensor in (primal, tangent):
        if not (isinstance(tensor, torch.Tensor) and tensor.is_floating_point()):
            return False
    return primal.shape == tangent.shape and primal.dtype == tangent.dtype


@means(jvp_with_argnums, how=How.UNREALIZED)
def _jvp(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    func, primals, tangents, *more = args
    if more:
        kwargs = {**kwargs, "argnums": more[0]}
    if session.known(kwargs.get("strict", ConstantValue(False))):
        raise session.unsupported("func-transform", "torch.func.jvp() with strict=True")
    arguments = [
        func,
        kwargs.get("argnums", NONE),
        kwargs.get("has_aux", ConstantValue(False)),
        primals,
        tangents,
    ]
    return _inside_level(session, value_and_jvp, arguments)


means(predispatch_add_batch_dim, how=How.UNREALIZED)(_operation(add_batch_dim))
means(predispatch_remove_batch_dim, how=How.UNREALIZED)(_operation(remove_batch_dim))
