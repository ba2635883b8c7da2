"""The arguments of a call that is exported: their trees, where capture finds them, and which of
their sizes vary.

In: a function, arguments, and what the user says of their sizes. Out: parameters and leaves, each
leaf with its source, by which the inputs and guards of the captured graph are told apart from
state.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.artifacts.signature import Parameter, why_not_plain, with_usual_strides
from ingot.artifacts.trees import CONSTANTS, TENSORS, Node
from ingot.capture import argument_slots
from ingot.capture.captured import entry
from ingot.capture.guards import Quantity
from ingot.capture.size_marks import Bounds
from ingot.capture.sources import ArgSource, ItemSource, Source
from ingot.errors import ExportError
from ingot.options import shown


class Dim(NamedTuple):
    """A size that varies: what it is called, and its bounds."""

    name: str
    least: int = 1
    most: int | None = None


class Leaf(NamedTuple):
    """A tensor, or an integer that varies. `dims` are the sizes that vary, by dimension; of an
    integer it is at 0."""

    name: str
    value: Any
    source: Source
    dims: dict[int, Dim]


class Arguments:
    """The arguments of one call; sizes named in `ones` do not vary. Raises ExportError for those
    that no artifact can take."""

    def __init__(
        self,
        fn: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        dynamic: Any,
        ones: Container[str] = (),
    ) -> None:
        self.ones = ones
        self.slots = argument_slots(fn, args, kwargs)
        self.parameters: list[Parameter] = []
        self.leaves: list[Leaf] = []
        self.roots: list[Source] = []
        names = _names_of(fn, len(args))
        said = _by_name(dynamic, names, kwargs)
        for name, source, value, by_name in _given(fn, args, kwargs, names):
            by_position = name not in kwargs
            tree = self._tree(value, name, source, said.pop(name, None))
            self.parameters.append(Parameter(name, by_position, by_name, tree))
            self.roots.append(source)
        if said:
            raise ExportError(
                f"ingot.export: dynamic names {next(iter(said))!r}, which is no argument of the "
                f"call; its arguments are {', '.join(p.name for p in self.parameters)}"
            )
        _refuse_twice(self.leaves)

    def _tree(self, value: Any, name: str, source: Source, dims: Any) -> Node:
        """The tree of an argument, whose leaves are noted."""
        kind = type(value)
        if kind in TENSORS:
            problem = why_not_plain(value)
            if problem is not None:
                raise ExportError(f"ingot.export: argument {name!r} {problem}")
            found = {}
            for dim, said in _dims_of(value, name, dims).items():
                if said.name not in self.ones:
                    found[dim] = said
                    _check_bounds(value.shape[dim], f"{name}.shape[{dim}]", said)
            self.leaves.append(Leaf(name, value, source, found))
            return "tensor", len(self.leaves) - 1
        if kind is int and dims is not None:
            said = _dim(dims, name)
            if (said.least, said.most) != (1, None):
                raise ExportError(f"ingot.export: the int {name!r} cannot have bounds")
            self.leaves.append(Leaf(name, value, source, {0: said}))
            return "int", len(self.leaves) - 1
        if kind in CONSTANTS:
            if dims is not None:
                raise ExportError(
                    f"ingot.export: argument {name!r} is {shown(value)}, which cannot vary: sizes "
                    "of tensors and ints can; give another number as a tensor of one element"
                )
            return "constant", value
        if kind in (tuple, list, dict):
            return self._container(value, name, source, dims)
        raise ExportError(
            f"ingot.export: argument {name!r} is a {kind.__name__}: an artifact takes tensors, "
            "numbers, texts, None, and tuples, lists and dicts of these; export a function of "
            "these that makes the object inside"
        )

    def _container(self, value: Any, name: str, source: Source, dims: Any) -> Node:
        is_dict = type(value) is dict
        pairs = list(value.items()) if is_dict else list(enumerate(value))
        if dims is not None and type(dims) not in (tuple, list, dict):
            raise ExportError(f"ingot.export: dynamic of {name!r} must be nested as it is")
        said = dims if isinstance(dims, dict) else dict(enumerate(dims or ()))
        if not said.keys() <= dict(pairs).keys():
            raise ExportError(f"ingot.export: dynamic of {name!r} names what it does not have")
        nodes = []
        for key, item in pairs:
            if type(key) not in (str, int, bool):
                raise ExportError(f"ingot.export: argument {name!r} has the key {shown(key)}")
            part = self._tree(item, f"{name}[{key!r}]", ItemSource(source, key), said.get(key))
            nodes.append(part)
        if is_dict:
            return "dict", tuple(zip(value, nodes))
        return type(value).__name__, tuple(nodes)

    def leaf_of(self, source: Source) -> int | None:
        """The number of the leaf that is found there."""
        for k, leaf in enumerate(self.leaves):
            if leaf.source is source:
                return k
        return None

    def path_of(self, source: Source) -> tuple[Any, ...] | None:
        """The way to an object among the arguments: the number of the parameter, and keys. None
        where no items lead to it."""
        keys: list[Any] = []
        while source not in self.roots:
            if not isinstance(source, ItemSource):
                return None
            keys.append(source.key)
            source = source.base
        return self.roots.index(source), *reversed(keys)

    def is_under(self, source: Source | None) -> bool:
        """Whether a source is an argument or leads through one."""
        if source is None:
            return False
        return source in self.roots or any(owner in self.roots for owner in source.owners())

    def integers(self) -> frozenset[Quantity]:
        """The integers that are to be symbols."""
        found = []
        for leaf in self.leaves:
            if not isinstance(leaf.value, Tensor):
                found.append(Quantity(leaf.source, "value"))
        return frozenset(found)

    def name_of(self, quantity: Quantity) -> str:
        """What users call a number of a leaf."""
        number = self.leaf_of(quantity.source)
        if number is None:
            return quantity.name
        leaf = self.leaves[number]
        if quantity.what != "stride" and quantity.dim in leaf.dims:
            return leaf.dims[quantity.dim].name
        forms = {"size": "{}.shape[{}]", "stride": "{}.stride({})", "value": "{}"}
        return forms[quantity.what].format(leaf.name, quantity.dim)


def _given(
    fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]
) -> list[tuple[str, Source, Any, bool]]:
    """The name of each argument, where capture finds it, its value, and whether it may be given by
    name."""
    function, bound = entry(fn)
    code = function.__code__
    variables, count = code.co_varnames, code.co_argcount
    after = count + code.co_kwonlyargcount
    known = _keywords_of(fn)
    rows: list[tuple[str, Source, Any, bool]] = []
    for k, value in enumerate(args):
        place = len(bound) + k
        if place < count:
            source: Source = ArgSource(place, variables[place])
        else:
            source = ItemSource(ArgSource(after, variables[after]), place - count)
        rows.append((names[k], source, value, names[k] in known))
    takes_args = bool(code.co_flags & inspect.CO_VARARGS)
    for name, value in kwargs.items():
        if name in variables[code.co_posonlyargcount : after]:
            place = variables.index(name)
            source = ArgSource(place, name)
        else:
            place = after + takes_args
            source = ItemSource(ArgSource(place, variables[place]), name)
        rows.append((name, source, value, True))
    return rows


def _parameters_of(fn: Any) -> list[inspect.Parameter]:
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return []


def _keywords_of(fn: Any) -> set[str]:
    """The names of parameters that may be given by name."""
    return {p.name for p in _parameters_of(fn) if p.kind is p.POSITIONAL_OR_KEYWORD}


def _names_of(fn: Any, count: int) -> list[str]:
    """What the first arguments by position are called."""
    names = []
    for parameter in _parameters_of(fn):
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return [*names[:count], *(f"args[{k}]" for k in range(len(names), count))]


def _by_name(dynamic: Any, names: Sequence[str], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of the sizes of each argument."""
    if dynamic is None:
        return {}
    if isinstance(dynamic, (tuple, list)):
        order = [*names, *kwargs]
        if len(dynamic) > len(order):
            raise ExportError(
                f"ingot.export: dynamic has {len(dynamic)} items, the call {len(order)} arguments"
            )
        return {name: said for name, said in zip(order, dynamic) if said is not None}
    if isinstance(dynamic, dict):
        return {name: said for name, said in dynamic.items() if said is not None}
    raise TypeError(
        "ingot.export: dynamic must be a dict by the names of arguments, or a tuple in their "
        f"order, not {shown(dynamic)}"
    )


def _dims_of(tensor: Tensor, name: str, dims: Any) -> dict[int, Dim]:
    """The sizes of a tensor that vary."""
    if dims is None:
        return {}
    if isinstance(dims, (tuple, list)):
        if len(dims) != tensor.dim():
            raise ExportError(
                f"ingot.export: dynamic has {len(dims)} items for {name!r}, which has "
                f"{tensor.dim()} dimensions"
            )
        dims = dict(enumerate(dims))
    if not isinstance(dims, dict):
        raise ExportError(
            f"ingot.export: dynamic of {name!r} must be a dict such as {{0: 'batch'}}, or a tuple "
            f"of an item for each dimension, not {shown(dims)}"
        )
    found = {}
    for dim, said in dims.items():
        if type(dim) is not int or not -tensor.dim() <= dim < tensor.dim():
            raise ExportError(f"ingot.export: {name!r} has no dimension {shown(dim)}")
        if said is None:
            continue
        dim %= tensor.dim()
        found[dim] = _dim(said, f"{name}.shape[{dim}]")
    return found


def _check_bounds(size: int, place: str, said: Dim) -> None:
    if size < said.least or (said.most is not None and size > said.most):
        raise ExportError(
            f"ingot.export: {place} is {size} in the call that is exported, which is not within "
            f"the bounds of {said.name}"
        )


def _dim(said: Any, name: str) -> Dim:
    """A size as the user says it.

    That is a name; (name, least) or (name, least, most); True; or an object with a name and bounds,
    such as `torch.export.Dim`."""
    if isinstance(said, Dim):
        return said
    if isinstance(said, str):
        return Dim(said)
    if said is True:
        return Dim(name)
    if isinstance(said, tuple) and 2 <= len(said) <= 3 and isinstance(said[0], str):
        bounds_are_ints = all(type(bound) is int or bound is None for bound in said[1:])
        if bounds_are_ints:
            least = 1 if said[1] is None else said[1]
            return Dim(said[0], max(least, 1), *said[2:])
    known = getattr(said, "__name__", None)
    if isinstance(known, str) and type(getattr(said, "min", None)) is int:
        most = getattr(said, "max", None)
        return Dim(known, max(said.min, 1), most if type(most) is int else None)
    raise ExportError(
        f"ingot.export: a size that varies is a name, or (name, least, most), not {shown(said)}"
    )


def _refuse_twice(leaves: Sequence[Leaf]) -> None:
    """Raises ExportError for a tensor that is two arguments: the program would rely on it."""
    names: dict[int, str] = {}
    for leaf in leaves:
        if isinstance(leaf.value, Tensor):
            other = names.setdefault(id(leaf.value), leaf.name)
            if other != leaf.name:
                raise ExportError(
                    f"ingot.export: arguments {other!r} and {leaf.name!r} are one tensor: export "
                    "with a copy for one of them"
                )


def usual(value: Any) -> Any:
    """An argument whose tensors have usual strides where their size is 1: a row of a matrix, say,
    is a matrix of one row."""
    kind = type(value)
    if kind in TENSORS and why_not_plain(value) is None:
        return _like(value, with_usual_strides(value.detach()))
    if kind in (tuple, list):
        return kind(map(usual, value))
    if kind is dict:
        return {key: usual(item) for key, item in value.items()}
    return value


def _like(value: Tensor, alike: Tensor) -> Tensor:
    """A tensor for an argument; the argument itself where both lie alike."""
    if alike.shape == value.shape and alike.stride() == value.stride():
        return value
    return alike.requires_grad_(value.requires_grad)


def of_size_one(arguments: Arguments, names: Container[str], value: Any) -> Any:
    """An argument whose tensors have the size 1 where the user's name of a size is one of these."""
    kind = type(value)
    if kind in TENSORS:
        narrow = value.detach()
        for leaf in arguments.leaves:
            if leaf.value is value:
                for dim, said in leaf.dims.items():
                    if said.name in names:
                        narrow = narrow.narrow(dim, 0, 1)
        return _like(value, with_usual_strides(narrow))
    if kind in (tuple, list):
        return kind(of_size_one(arguments, names, item) for item in value)
    if kind is dict:
        return {key: of_size_one(arguments, names, item) for key, item in value.items()}
    return value


def bounds_of(leaf: Leaf) -> dict[int, Bounds]:
    """The bounds of the sizes of a tensor that vary."""
    return {dim: Bounds(said.least, said.most) for dim, said in leaf.dims.items()}
