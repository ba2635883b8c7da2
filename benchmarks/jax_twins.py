"""The small functions again, for JAX. Imported only when JAX is measured."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch


def complex_activation(x: Any) -> Any:
    return jax.nn.relu((jnp.sin(x) * jnp.cos(x) + x) * 0.5)


def tanh_gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + jnp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def mlp_dead_matmul(x: Any, up: Any, down: Any, unused: Any) -> Any:
    hidden = jax.nn.relu(x @ up)
    _ = hidden @ unused
    return hidden @ down


def layer_norm_gelu(x: Any, residual: Any, weight: Any, bias: Any) -> Any:
    total = jax.nn.gelu(x, approximate=False) + residual
    centered = total - total.mean(-1, keepdims=True)
    return (
        centered * jax.lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + 1e-5) * weight
        + bias
    )


def masked_softmax(scores: Any, hidden: Any) -> Any:
    return jax.nn.softmax(jnp.where(hidden, -jnp.inf, scores), axis=-1)


def rms_norm_rotary(x: Any, weight: Any, cos: Any, sin: Any) -> Any:
    normal = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * weight
    first, second = jnp.split(normal, 2, axis=-1)
    return normal * cos + jnp.concatenate((-second, first), axis=-1) * sin


def eight_elements(x: Any, y: Any) -> Any:
    return jax.nn.relu(x * 2.0 + y)


TWINS = {
    twin.__name__: twin
    for twin in (
        complex_activation,
        tanh_gelu,
        mlp_dead_matmul,
        layer_norm_gelu,
        masked_softmax,
        rms_norm_rotary,
        eight_elements,
    )
}


def to_jax(tensor: torch.Tensor) -> Any:
    """The same values in a JAX array on the same kind of device."""
    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    array = jnp.asarray(
        wide.cpu().numpy(), dtype=jnp.bfloat16 if tensor.dtype == torch.bfloat16 else None
    )
    return jax.device_put(array, jax.devices("gpu" if tensor.is_cuda else "cpu")[0])


def to_torch(array: Any) -> torch.Tensor:
    """The values of a JAX array in a tensor on the CPU; bfloat16 as float32, which holds it
    exactly."""
    return torch.from_numpy(
        np.array(array.astype(jnp.float32) if array.dtype == jnp.bfloat16 else array)
    )
