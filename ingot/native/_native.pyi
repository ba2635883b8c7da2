"""Types of the extension module; see the C sources for what each does."""

from collections.abc import Callable
from typing import Any

class Program:
    description: tuple[Any, ...]
    layout_mismatches: int
    def __new__(cls, description: tuple[Any, ...], /) -> Program: ...
    def __call__(self, *inputs: Any) -> tuple[Any, ...]: ...

Dispatcher: Any
Entry: Any
GuardTree: Any
global_state_is_readable: Callable[[], bool]
tensor_facts_are_slow: Callable[[], bool]
_force_slow_tensor_facts: Callable[[bool], None]

def threads_wanted(extent: int, unit: int, nanoseconds: float, /) -> int: ...
def _force_slow_allocation(slow: bool, /) -> None: ...
