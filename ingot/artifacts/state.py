"""The state of an artifact: the tensors that its programs read and that are no arguments.

Parameters and persistent buffers of modules are weights, by their names in a state dict. Other
tensors (of closures, globals and attributes) are constants of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ingot.artifacts.signature import why_not_plain
from ingot.artifacts.weights import has_name
from ingot.capture.sources import Source
from ingot.errors import ExportError


class State:
    """Collects tensors as programs ask for them; one that several ask for is there once."""

    def __init__(self, fn: Any) -> None:
        self._root = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
        self._names: dict[int, list[str]] = {}  # of the weights, by id
        self._numbers: dict[int, int] = {}  # by id of tensors, which `tensors` keeps alive
        self.tensors: list[Tensor] = []
        self._called: list[tuple[tuple[str, ...], bool]] = []  # names, and whether it is a weight
        self._written: set[int] = set()
        self._wanted: set[int] = set()
        self._modules: dict[int, nn.Module] = {}
        if isinstance(self._root, nn.Module):
            self._add_module(self._root, "")

    def _add_module(self, module: nn.Module, prefix: str) -> None:
        if id(module) in self._modules:
            return
        self._modules[id(module)] = module
        for name, tensor in module.state_dict(keep_vars=True).items():
            if isinstance(tensor, Tensor):
                self._names.setdefault(id(tensor), []).append(prefix + name)

    def number_of(self, source: Source, slots: Sequence[Any], is_written: bool) -> int:
        """The number of the tensor at a source. Raises ExportError for one that is not plain."""
        tensor = source.load(slots)
        number = self._numbers.get(id(tensor))
        if number is None:
            number = self._numbers[id(tensor)] = self._added(tensor, source, slots)
        if is_written:
            self._written.add(number)
        return number

    def want_gradient(self, number: int) -> None:
        """Says that a gradient of a tensor is computed."""
        self._wanted.add(number)

    def _added(self, tensor: Any, source: Source, slots: Sequence[Any]) -> int:
        if not isinstance(tensor, Tensor):
            raise ExportError(f"ingot.export: {source.name} varies, and is no argument")
        problem = why_not_plain(tensor)
        if problem is None and not has_name(tensor.dtype):
            problem = f"is of {tensor.dtype}"
        if problem is None and 0 in tensor.stride() and tensor.numel() > 1:
            problem = "has elements that share memory"
        if problem is not None:
            raise ExportError(
                f"ingot.export: {source.name} {problem}, which an artifact cannot hold"
            )
        self._adopt_owner(source, slots)
        names = tuple(self._names.get(id(tensor), ()))
        self.tensors.append(tensor)
        self._called.append((names or (self._constant_name(source),), bool(names)))
        return len(self.tensors) - 1

    def _adopt_owner(self, source: Source, slots: Sequence[Any]) -> None:
        """Knows the outermost module on the way to a tensor, of whatever name it has there."""
        for owner in reversed(list(source.owners())):
            module = owner.load(slots)
            if isinstance(module, nn.Module):
                if not isinstance(self._root, nn.Module) or id(module) not in self._modules:
                    prefix = "" if module is self._root else f"{owner.name}."
                    self._add_module(module, prefix)
                return

    def _constant_name(self, source: Source) -> str:
        known = {name for names, _ in self._called for name in names}
        name, k = source.name, 1
        while name in known:
            k += 1
            name = f"{source.name} ({k})"
        return name

    # -- what is written ---------------------------------------------------------------------------

    def rows(self) -> tuple[Any, ...]:
        """What is known of each tensor, as `loading.StateTensor` has it."""
        rows = []
        for k, (tensor, (names, is_weight)) in enumerate(zip(self.tensors, self._called)):
            sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
            flags = is_weight, k in self._written, k in self._wanted
            rows.append((names, tensor.dtype, sizes, strides, *flags))
        return tuple(rows)

    def weights(self) -> dict[str, Tensor]:
        """The weights by the first of their names."""
        return self._by_name(True)

    def constants(self) -> dict[str, Tensor]:
        """The other tensors."""
        return self._by_name(False)

    def _by_name(self, are_weights: bool) -> dict[str, Tensor]:
        tensors = {}
        for tensor, (names, is_weight) in zip(self.tensors, self._called):
            if is_weight is are_weights:
                tensors[names[0]] = tensor
        return tensors

    def unused(self) -> tuple[str, ...]:
        """The names of weights that no program reads."""
        names = []
        for identity, its_names in self._names.items():
            if identity not in self._numbers:
                names += its_names
        return tuple(sorted(names))
