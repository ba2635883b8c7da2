"""Imports the modules that nobody asks for by name: they add rows to tables of instructions, values and functions."""

from ingot.capture import handlers  # noqa: F401
from ingot.capture.values import (  # noqa: F401
    arrays,
    autograd_functions,
    backward_hooks,
    cached,
    checkpoints,
    contexts,
    copies,
    deferred,
    differentiation,
    foreach,
    generators,
    iterators,
    library,
    marked,
    modes,
    module,
    optimizers,
    outside_iterators,
    selected,
    size_checks,
    slots,
    tensor_hooks,
    torch_functions,
    transforms,
)
