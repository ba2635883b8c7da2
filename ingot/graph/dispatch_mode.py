"""The dispatch modes of Ingot's own: of one thread."""

from __future__ import annotations

from typing import Any, Self

from ingot.torch_private import (
    TorchDispatchMode,
    pop_torch_dispatch_stack,
    push_on_torch_dispatch_stack,
)


class Mode(TorchDispatchMode):
    """A dispatch mode of one thread: torch's own way in and out sets flags of the whole process as
    well, for torch.compile."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the handler so that its first call imports torch._dynamo

    def __enter__(self) -> Self:
        push_on_torch_dispatch_stack(self)
        return self

    def __exit__(self, *raised: Any) -> None:
        pop_torch_dispatch_stack(None)
