"""What an op of a library's gives that has a kernel for meta tensors, or for all devices.

It is believed, and no other kernel of the op runs during capture."""

from __future__ import annotations

from functools import partial
from typing import Any

from ingot.errors import unsupported
from ingot.graph.meta.basis import first_line
from ingot.torch_private import OpOverload, dispatch_has_kernel_for_dispatch_key

_OF_ALL_DEVICES = ("Meta", "CompositeExplicitAutograd")

HINT = "register a fake for it: torch.library.register_fake"


def returned_types(op: OpOverload) -> list[str]:
    """The types of an op's results. Raises Unsupported where one is no tensor."""
    returns = []
    for result in op._schema.returns:
        returns.append(str(result.type))
    for kind in returns:
        if "Tensor" not in kind:
            raise unsupported(
                "effectful-op", f"{op} gives what is no tensor, which depends on what it does"
            )
    return returns


def declared(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not any(map(partial(dispatch_has_kernel_for_dispatch_key, op.name()), _OF_ALL_DEVICES)):
        raise unsupported("custom-op-fake", f"{op} has no fake: what it gives is not known")
    returned_types(op)
    try:
        return op(*args, **kwargs)
    except Exception as error:
        raise unsupported(
            "custom-op-fake", f"the fake of {op} raises {type(error).__name__}: {first_line(error)}"
        ) from error
