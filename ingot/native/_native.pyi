"""Types of the extension module; see the C sources for what each does."""

from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

class Program:
    description: tuple[Any, ...]
    layout_mismatches: int
    def __new__(cls, description: tuple[Any, ...], /) -> Program: ...
    def __call__(self, *inputs: Any) -> tuple[Any, ...]: ...

Continue: Any
Dispatcher: Any
Entry: Any
GuardTree: Any
global_state_is_readable: Callable[[], bool]
tensor_facts_are_slow: Callable[[], bool]
_force_slow_tensor_facts: Callable[[bool], None]

NULL: Any

def resume(
    function: FunctionType,
    offset: int,
    slots: tuple[Any, ...],
    stack: tuple[Any, ...],
    exception: BaseException | None = None,
    handled: BaseException | None = ...,
) -> Any: ...
def suspended_generator(
    function: FunctionType,
    offset: int,
    slots: tuple[Any, ...],
    stack: tuple[Any, ...],
    handled: BaseException | None = None,
) -> Any: ...
def generator_state(
    generator: Any, /
) -> tuple[FunctionType, int, tuple[Any, ...], tuple[Any, ...], BaseException | None] | None: ...
def _frame_values(frame: FrameType, depth: int, /) -> tuple[tuple[Any, ...], tuple[Any, ...]]: ...
def set_eager(eager: bool, /) -> None: ...
def call_eager(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
def runs_eager() -> bool: ...
def threads_wanted(extent: int, unit: int, nanoseconds: float, /) -> int: ...
def _force_slow_allocation(slow: bool, /) -> None: ...
