"""Launches of users' Triton kernels: one op for all, of which each call names its `Launch`.

The op is a foreign one with a schema, so that graphs treat a launch as any custom op that writes
its arguments. A program calls the `Launch` itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.sequences import Args, Kwargs, map_leaves

NAMESPACE = "ingot_triton"

Grid = tuple[Any, ...]
"""The numbers of blocks in each dimension, of which some may be `Operand`s."""


@dataclass(frozen=True)
class Operand:
    """An argument that differs between calls: the number of its place among the operands."""

    number: int


@dataclass(frozen=True)
class Made:
    """An argument that is made anew for each launch, of operands and constants: a tensor's
    descriptor."""

    cls: type
    args: Args


@dataclass(frozen=True)
class Choice:
    """The grid of one configuration of an autotuned kernel, which sets these constants."""

    constants: tuple[tuple[str, Any], ...]
    grid: Grid

    def is_of(self, meta: Mapping[str, Any]) -> bool:
        """Whether a kernel is launched with these constants."""
        for name, constant in self.constants:
            if meta[name] != constant:
                return False
        return True


class Launch:
    """A kernel and what it is always launched with, as a function of its operands.

    First come the tensors that it writes, then those that it reads, then floats in tensors of rank
    0, then integers. `grids` is the grid, or the choice of one by the configuration of an autotuned
    kernel.

    Triton itself finds out which binary belongs to the arguments. The binary is remembered for
    arguments that it would take for the same, and launched as Triton launches it.
    """

    def __init__(
        self,
        kernel: Any,
        args: Args,
        kwargs: Kwargs,
        grids: Grid | tuple[Choice, ...],
        tensors: int,
        floats: int = 0,
    ) -> None:
        self.kernel, self.args, self.kwargs, self.grids = kernel, args, kwargs, grids
        self.tensors = tensors  # where the floats begin ...
        self.integers = tensors + floats  # ... and the integers
        self.__name__ = str(function_of(kernel).__name__)
        self._binaries: dict[Any, _Binary] = {}
        self._numbers = _numbers_given(self)
        self._exact = _tuned_by(self)  # the operands by whose values a configuration is chosen

    def __call__(self, *operands: Any) -> None:
        if self.reads_numbers:
            begin, end = self.tensors, self.integers
            numbers = map(Tensor.item, operands[begin:end])
            operands = (*operands[:begin], *numbers, *operands[end:])
        if self._exact is None:
            self._run(operands)
            return
        triton = _triton()
        device = triton.driver.active.get_current_device()
        key = self._key(device, operands)
        binary = self._binaries.get(key)
        if binary is not None and binary.is_current():
            stream = triton.driver.active.get_current_stream(device)
            binary.launch(operands, stream, triton.hooks)
            return
        noted = _NotedGrid(self.grids, operands)
        compiled = self._run(operands, noted)
        if len(self._binaries) == MOST_BINARIES:
            self._binaries.clear()
        if type(compiled).__name__ == "CompiledKernel":
            self._binaries[key] = _Binary(self, compiled, noted)

    @property
    def reads_numbers(self) -> bool:
        """Whether it asks tensors for the numbers that they hold."""
        return self.tensors < self.integers

    @property
    def is_looked_up(self) -> bool:
        """Whether Triton is asked at each launch, which may call functions of the user's."""
        return self._exact is None

    def _key(self, device: int, operands: Args) -> tuple[Any, ...]:
        """What Triton distinguishes in the operands.

        It is whether a tensor is aligned, and of an integer the type, whether it is 1, and whether
        it is a multiple of 16.
        """
        assert self._exact is not None
        key = [device]
        for tensor in operands[: self.tensors]:
            key.append(not tensor.data_ptr() % ALIGNMENT)
        for position in self._numbers:
            number = operands[position]
            is_long = not -LIMIT <= number < LIMIT
            key.append((not number % ALIGNMENT) + 2 * (number == 1) + 4 * is_long)
        for position in self._exact:
            key.append(operands[position])
        return tuple(key)

    def _run(self, operands: Args, noted: _NotedGrid | None = None) -> Any:
        """Launch as eager does. Gives the binary, but where Triton interprets."""
        args, kwargs = filled((self.args, self.kwargs), operands)
        grid: Any = noted
        if noted is None:
            grid = filled(self.grids, operands)
            if isinstance(self.grids[0], Choice):
                grid = partial(_chosen, grid)
        return self.kernel.run(*args, grid=grid, warmup=False, **kwargs)

    def __str__(self) -> str:
        return self.__name__


ALIGNMENT, LIMIT = 16, 1 << 31
MOST_BINARIES = 256
"""How many kinds of operands are remembered of one launch."""


def filled(tree: Any, operands: Args) -> Any:
    """A tree with the operands in their places."""

    def argument(leaf: Any) -> Any:
        if isinstance(leaf, Operand):
            return operands[leaf.number]
        if isinstance(leaf, Made):
            return leaf.cls(*filled(leaf.args, operands))
        if isinstance(leaf, Choice):
            return replace(leaf, grid=filled(leaf.grid, operands))
        return leaf

    return map_leaves(argument, tree)


def _chosen(choices: Sequence[Choice], meta: Mapping[str, Any]) -> Grid:
    """The grid for the constants that a kernel is launched with."""
    for choice in choices:
        if choice.is_of(meta):
            return choice.grid
    raise RuntimeError("the configurations of an autotuned kernel have changed")


class _NotedGrid:
    """A grid as the function that Triton calls before a launch, with all arguments by name. Notes
    these, and the grid in terms of operands."""

    def __init__(self, grids: Any, operands: Args) -> None:
        self.grids, self.operands = grids, operands
        self.grid: Grid = ()
        self.arguments: Mapping[str, Any] = {}

    def __call__(self, arguments: Mapping[str, Any]) -> Grid:
        self.grid, self.arguments = self.grids, arguments
        if isinstance(self.grids[0], Choice):
            self.grid = _chosen(self.grids, arguments)
        grid: Grid = filled(self.grid, self.operands)
        return grid


class _Triton(NamedTuple):
    """Triton's driver, and its hooks that are called at each launch."""

    driver: Any
    hooks: Any


@cache
def _triton() -> _Triton:
    from triton import knobs
    from triton.runtime.driver import driver

    return _Triton(driver, knobs.runtime)


def _named(launch: Launch) -> dict[str, Any]:
    """What a launch has for each parameter of its kernel, and for options."""
    return {**dict(zip(launch.kernel.arg_names, launch.args)), **launch.kwargs}


def _is_operand(leaf: Any) -> bool:
    return isinstance(leaf, Operand)


def _holds_others(argument: Any) -> bool:
    return isinstance(argument, (list, tuple, Made))


def _numbers_given(launch: Launch) -> list[int]:
    """The operands that are integers which the kernel is given."""
    positions: list[int] = []

    def note(leaf: Any) -> None:
        if isinstance(leaf, Operand) and leaf.number >= launch.integers:
            positions.append(leaf.number)

    map_leaves(note, (launch.args, launch.kwargs))
    return positions


def _tuned_by(launch: Launch) -> tuple[int, ...] | None:
    """The operands by whose values an autotuned kernel chooses a configuration.

    None where Triton has to be asked at each launch, since it calls functions of the user's then,
    interprets, or is for other GPUs than NVIDIA's.
    """
    kernel = launch.kernel
    named = _named(launch)
    if any(map(_holds_others, named.values())) or len(launch.args) > len(kernel.arg_names):
        return None
    for parameter in inspect.signature(function_of(kernel)).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return None
    positions: list[int] = []
    if type(kernel).__name__ == "Autotuner":
        for config in kernel.configs:
            if config.pre_hook is not None:
                return None
        for name in kernel.keys:
            argument = named.get(name)
            if isinstance(argument, Operand):
                if argument.number < launch.tensors:
                    return None
                positions.append(argument.number)
        kernel = kernel.fn
    if type(kernel).__name__ != "JITFunction" or kernel.pre_run_hooks or torch.version.hip:
        return None
    return tuple(positions)


class _Binary:
    """A compiled kernel, its arguments and its grid, of which some are operands."""

    def __init__(self, launch: Launch, compiled: Any, noted: _NotedGrid) -> None:
        self.compiled, self.grid = compiled, (*noted.grid, 1, 1)[:3]
        self.grid_varies = any(map(_is_operand, noted.grid))
        self.kernel, self.jit, self.config = launch.kernel, launch.kernel, None
        if hasattr(self.kernel, "best_config"):
            self.jit, self.config = self.kernel.fn, self.kernel.best_config
        self.arguments = list(noted.arguments.values())
        self.places: list[tuple[int, int]] = []
        named = _named(launch)
        for place, name in enumerate(noted.arguments):
            argument = named.get(name)
            if isinstance(argument, Operand):
                self.places.append((place, argument.number))
                self.arguments[place] = None  # no tensor is kept alive

    def is_current(self) -> bool:
        """Whether the globals that the kernel was compiled for are as they were, and no hook is to
        be called with its arguments."""
        for (name, _), (value, namespace) in self.jit.used_global_vals.items():
            if namespace.get(name, self) is not value and namespace.get(name, self) != value:
                return False
        return not self.jit.pre_run_hooks

    def launch(self, operands: Args, stream: int, hooks: Any) -> None:
        arguments, compiled = self.arguments.copy(), self.compiled
        for place, number in self.places:
            arguments[place] = operands[number]
        grid = self.grid
        if self.grid_varies:
            grid = filled(grid, operands)
        enter, leave, metadata = hooks.launch_enter_hook, hooks.launch_exit_hook, None
        if getattr(enter, "calls", True) or getattr(leave, "calls", True):
            metadata = compiled.launch_metadata(grid, stream, *arguments)
        if self.config is not None:
            self.kernel.best_config = self.config
        compiled.run(
            *grid, stream, compiled.function, compiled.packed_metadata, metadata, enter, leave,
            *arguments,
        )  # fmt: skip


def function_of(kernel: Any) -> Callable[..., Any]:
    """The Python function of a kernel, behind what tunes it."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    function: Callable[..., Any] = kernel
    return function


# -- the op ----------------------------------------------------------------------------------------

_LAUNCHES: list[Launch] = []
_numbers: dict[Any, int] = {}


def number_of(launch: Launch) -> int:
    """The number by which the op knows a launch; that of an equal one where there is one."""
    try:
        key = _key(launch)
        number = _numbers.setdefault(key, len(_LAUNCHES))
    except TypeError:  # a constant cannot be hashed
        number = len(_LAUNCHES)
    if number == len(_LAUNCHES):
        _LAUNCHES.append(launch)
    return number


def launch_of(number: int) -> Launch:
    return _LAUNCHES[number]


def _key(launch: Launch) -> Any:
    """What equal launches have in common; 1, 1.0 and True are different."""

    def typed(leaf: Any) -> Any:
        if isinstance(leaf, float):
            return float, repr(leaf)
        if isinstance(leaf, Made):
            return leaf.cls, map_leaves(typed, leaf.args)
        return type(leaf), leaf

    arguments = map_leaves(typed, (launch.args, tuple(launch.kwargs.items()), launch.grids))
    return id(launch.kernel), arguments


def _run(
    number: int,
    written: list[Tensor],
    read: list[Tensor],
    floats: list[Tensor],
    sizes: list[int],
) -> None:
    launch_of(number)(*written, *read, *floats, *sizes)


def _fake(*_: Any) -> None:
    pass


_library = torch.library.Library(NAMESPACE, "DEF")
_library.define(
    "launch(int number, Tensor(a!)[] written, Tensor[] read, Tensor[] floats, SymInt[] sizes) -> ()"
)
_library.impl("launch", _run, "CompositeExplicitAutograd")
# for backends that trace the captured graph with fake tensors of torch's
torch.library.register_fake(f"{NAMESPACE}::launch", _fake, lib=_library)
# autograd knows nothing of what a kernel does, as in eager
_library.impl("launch", torch.library.fallthrough_kernel, "Autograd")

launch = torch.ops.ingot_triton.launch.default
