"""The functions that make jagged nested tensors of plain ones. The instances are wrappers as others
are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.capture.meanings import How, means
from ingot.capture.values.base import Arguments, Keywords
from ingot.torch_private import (
    jagged_dummy,
    jagged_from_padded,
    jagged_view,
    jagged_view_of_lengths,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session


@means(jagged_view, jagged_view_of_lengths, jagged_from_padded, how=How.OPERATION)
def _made_of_plain(session: Session, args: Arguments, kwargs: Keywords) -> None:
    """A node: these functions hand torch an instance that stands for its class. It is made when it
    is first asked for, which must not be among fakes."""
    jagged_dummy()
