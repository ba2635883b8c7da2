"""The dispatch modes of Ingot's own: of one thread."""

from __future__ import annotations

from typing import Any, Self

from ingot.torch_private import (
    FAKE_MODE,
    TorchDispatchMode,
    infra_mode,
    pop_torch_dispatch_stack,
    push_on_torch_dispatch_stack,
)


class Mode(TorchDispatchMode):
    """A dispatch mode of one thread: torch's own way in and out sets flags of the whole process as
    well, for torch.compile."""

    _steps_aside = False  # before the next op
    _torch_dispatches = 0  # how many ops torch is carrying out by its dispatch of DTensors

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the handler so that its first call imports torch._dynamo

    def __enter__(self) -> Self:
        push_on_torch_dispatch_stack(self)
        return self

    def __exit__(self, *raised: Any) -> None:
        pop_torch_dispatch_stack(None)

    def by_torch(self, op: Any, args: Any, kwargs: Any) -> Any:
        """What an op gives by torch's own dispatch of its arguments, whose ops this mode sees."""
        self._torch_dispatches += 1
        try:
            with self:
                self._steps_aside = True
                return op(*args, **kwargs)
        finally:
            self._steps_aside = False
            self._torch_dispatches -= 1

    def aside(self, op: Any, args: Any, kwargs: Any) -> Any:
        """What to give for an op that is none of this mode's; None for all others.

        It is that which `by_torch` has carried out, or one of torch's own fakes, with which torch
        finds out what a result is like."""
        if self._steps_aside:
            self._steps_aside = False
            return NotImplemented
        if self._torch_dispatches and infra_mode(FAKE_MODE) is not None:
            return op(*args, **(kwargs or {}))
        return None
