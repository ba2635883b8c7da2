"""torch.amp.GradScaler: whether a step of the optimizer is taken depends on the gradients. Where
the step does nothing but write tensors, it is taken in any case, and what it wrote is put back on
the device where it was not to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as optimizers

from ingot.capture.meanings import How, means
from ingot.capture.sources import ConstSource
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.functions import FunctionValue
from ingot.torch_private import SCALERS, maybe_opt_step, why_off

if TYPE_CHECKING:
    from ingot.capture.session import Session

_WRITE_TENSORS = frozenset(
    map(
        vars(torch.optim).__getitem__,
        "ASGD Adadelta Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD".split(),
    )
)
"""Optimizers whose step writes parameters, gradients and its state's tensors, and nothing else once
these are there."""

# -- inlined ---------------------------------------------------------------------------------------


def found_inf_by_device(state: Any) -> Any:
    """For each device whether a gradient was not finite, as a tensor."""
    return list(state["found_inf_per_device"].values())


def writes_tensors_alone(optimizer: Any, device: Any) -> bool:
    """Whether the next step of one of these does: all of its state is there, on one device, and
    nobody looks on."""
    if optimizers._global_optimizer_pre_hooks or optimizers._global_optimizer_post_hooks:
        return False
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    is_scheduled = hasattr(optimizer.step, "_wrapped_by_lr_sched")
    if "step" in vars(optimizer) and not is_scheduled:  # the user's own
        return False
    if is_scheduled and not getattr(optimizer, "_opt_called", False):
        return False
    for group in optimizer.param_groups:
        if group.get("differentiable", False):
            return False
        stateless = isinstance(optimizer, torch.optim.SGD) and group["momentum"] == 0
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.layout is not torch.strided or p.device != device or p.grad.device != device:
                return False
            if not stateless and not has_state_on(optimizer, p, device):
                return False
    return True


def has_state_on(optimizer: Any, parameter: Any, device: Any) -> bool:
    """Whether the state of a parameter is there, and on one device."""
    if parameter not in optimizer.state or not optimizer.state[parameter]:
        return False
    for value in optimizer.state[parameter].values():
        if value is None or (isinstance(value, torch.Tensor) and value.device != device):
            return False
    return True


def written_by_step(optimizer: Any) -> Any:
    """The tensors that a step may write."""
    tensors = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                tensors.append(p)
                tensors.append(p.grad)
                if p in optimizer.state:
                    for value in optimizer.state[p].values():
                        if isinstance(value, torch.Tensor):
                            tensors.append(value)
    return tensors


def step_where_finite(optimizer: Any, found_inf: Any) -> Any:
    """A step whose writes are undone where a gradient was not finite."""
    is_skipped = found_inf.reshape(()) != 0
    with torch.no_grad():
        tensors = written_by_step(optimizer)
        before = [t.clone() for t in tensors]
    result = optimizer.step()
    with torch.no_grad():
        for t, old in zip(tensors, before):
            t.copy_(torch.where(is_skipped, old, t))
    return result


# -- calls -----------------------------------------------------------------------------------------


@means(maybe_opt_step, how=How.UNREALIZED)
def _maybe_step(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    function: Any = maybe_opt_step
    if len(args) == 3 and not kwargs and why_off(SCALERS) is None:
        _, optimizer, state = map(session.realize, args)
        found_infs = session.unpacked(session.call_builtin(found_inf_by_device, state))
        if len(found_infs) == 1 and optimizer.python_type() in _WRITE_TENSORS:
            found_inf = session.realize(found_infs[0])
            device = found_inf.get_attribute(session, "device")
            if session.truth(session.call_builtin(writes_tensors_alone, optimizer, device)):
                return session.call_builtin(step_where_finite, optimizer, found_inf)
    return session.inline(
        FunctionValue.outside(session, function, ConstSource(function)), args, kwargs
    )
