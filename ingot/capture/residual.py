"""What is left to do in Python after the graph has run: the return value, rebuilt from graph outputs, sources and
constants.

A recipe is a tree of small nodes; a node that stands at two places is one object in the result as well. `Residual`
turns the tree into one small Python function, readable as `residual.source`, that the dispatcher calls; for a lone
tensor or a flat tuple it needs no Python. """

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, dataclass_transform

from ingot.capture.sources import ArgSource, Source


@dataclass_transform(frozen_default=True, eq_default=False)
def _recipe(cls: type) -> Any:
    return dataclass(frozen=True, eq=False, slots=True)(cls)


class Recipe:
    """How one object of the result is made."""

    __slots__ = ()

    def parts(self) -> Iterable[Recipe]:
        """The recipes it is made from."""
        return ()


@_recipe
class Output(Recipe):
    """An output of the graph."""

    index: int


@_recipe
class FromSource(Recipe):
    """An object that existed before the call."""

    source: Source


@_recipe
class Constant(Recipe):
    """An object that is the same at every call."""

    value: Any


@_recipe
class Collection(Recipe):
    """A new tuple, list, set or frozenset (exactly that type)."""

    kind: type
    items: tuple[Recipe, ...]

    def parts(self) -> Iterable[Recipe]:
        return self.items


@_recipe
class Dict(Recipe):
    """A new dict, in this order."""

    items: tuple[tuple[Recipe, Recipe], ...]

    def parts(self) -> Iterable[Recipe]:
        return [part for item in self.items for part in item]


@_recipe
class Call(Recipe):
    """What a C function or class gives for these arguments: `slice`, `range`, `tuple.__new__` of a namedtuple, ..."""

    function: Callable[..., Any]
    args: tuple[Recipe, ...]
    kwargs: Mapping[str, Recipe] = field(default_factory=dict)

    def parts(self) -> Iterable[Recipe]:
        return [*self.args, *self.kwargs.values()]


@_recipe
class Instance(Recipe):
    """A new instance of a class, made without its `__init__`: the attributes are put in place as they were after it."""

    cls: type
    attributes: Mapping[str, Recipe]
    items: tuple[tuple[Recipe, Recipe], ...] = ()  # of a subclass of dict
    base: type = object  # the built-in class that makes it and stores its items

    def parts(self) -> Iterable[Recipe]:
        return [*self.attributes.values(), *(part for item in self.items for part in item)]


def named_tuple(cls: type, items: Sequence[Recipe]) -> Recipe:
    """A namedtuple of class `cls`; its own `__new__` is not called again."""
    return Call(tuple.__new__, (Constant(cls), Collection(tuple, tuple(items))))


class Residual:
    """Rebuilds the return value. `kind` says what the native core can do alone: "tensor" (the one output), "tuple" (all
    outputs in order) or "general", for which `build(outputs, slots)` is called; `build` works for all three, `source`
    is its text."""

    def __init__(self, result: Recipe, output_count: int) -> None:
        self.result = result
        self.kind = _kind(result, output_count)
        self.source, constants = _Writer().write(result)
        exec(compile(self.source, "<ingot residual>", "exec"), constants)
        self.build: Callable[[Sequence[Any], Sequence[Any]], Any] = constants["residual"]

    def __repr__(self) -> str:
        return self.source


def _kind(result: Recipe, output_count: int) -> Literal["tensor", "tuple", "general"]:
    if isinstance(result, Output) and output_count == 1:
        return "tensor"
    if isinstance(result, Collection) and result.kind is tuple:
        indices = [item.index if isinstance(item, Output) else None for item in result.items]
        if indices == list(range(output_count)):
            return "tuple"
    return "general"


class _Writer:
    """Writes the function, one expression per recipe; what is used twice gets a variable, and is filled after it
    exists."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self.names: dict[int, str] = {}  # id of a recipe used twice -> its variable
        self.uses: Counter[int] = Counter()

    def write(self, result: Recipe) -> tuple[str, dict[str, Any]]:
        """The source of `residual(outputs, slots)`, and the globals that it needs."""
        self._count(result)
        value = self._expression(result)
        body = "".join(f"    {line}\n" for line in [*self.lines, f"return {value}"])
        return f"def residual(outputs, slots):\n{body}", self.constants

    def _count(self, recipe: Recipe) -> None:
        self.uses[id(recipe)] += 1
        if self.uses[id(recipe)] == 1:
            for part in recipe.parts():
                self._count(part)

    def _expression(self, recipe: Recipe) -> str:
        if id(recipe) in self.names:
            return self.names[id(recipe)]
        if self.uses[id(recipe)] == 1 or isinstance(recipe, (Output, Constant)):
            return _EXPRESSIONS[type(recipe)](self, recipe)
        return self._shared(recipe)

    def _shared(self, recipe: Recipe) -> str:
        """A variable for it. A mutable one exists before its parts are made, which may refer to it."""
        filling = _FILLINGS.get(recipe.kind if isinstance(recipe, Collection) else type(recipe))
        value = None if filling is not None else _EXPRESSIONS[type(recipe)](self, recipe)
        name = self.names[id(recipe)] = f"shared_{len(self.names)}"
        if filling is not None:
            filling(self, recipe, name)
        else:
            self.lines.append(f"{name} = {value}")
        return name

    def constant(self, value: Any, prefix: str = "constant") -> str:
        """A literal, or the name of a global that holds the object."""
        if value is None or value is ... or type(value) in (bool, int, str, bytes):
            return repr(value)
        name = f"{prefix}_{len(self.constants)}"
        self.constants[name] = value
        return name

    def _from_source(self, recipe: FromSource) -> str:
        source = recipe.source
        if isinstance(source, ArgSource):
            return f"slots[{source.index}]"
        return f"{self.constant(source.load, 'load')}(slots)"

    def _collection(self, recipe: Collection) -> str:
        items = "".join(f"{self._expression(item)}, " for item in recipe.items)
        if recipe.kind is frozenset or (recipe.kind is set and not items):
            return f"{recipe.kind.__name__}(({items}))"
        if recipe.kind is tuple:
            return f"({items})"
        items = items.removesuffix(", ")
        return f"[{items}]" if recipe.kind is list else f"{{{items}}}"

    def _dict(self, recipe: Dict) -> str:
        items = [f"{self._expression(key)}: {self._expression(value)}" for key, value in recipe.items]
        return f"{{{', '.join(items)}}}"

    def _call(self, recipe: Call) -> str:
        args = [self._expression(arg) for arg in recipe.args]
        args += [f"{name}={self._expression(arg)}" for name, arg in recipe.kwargs.items()]
        return f"{self.constant(recipe.function, 'function')}({', '.join(args)})"

    def _instance(self, recipe: Instance) -> str:
        return self._shared(recipe)

    def _fill_list(self, recipe: Collection, name: str) -> None:
        self.lines.append(f"{name} = []")
        for item in recipe.items:
            self.lines.append(f"{name}.append({self._expression(item)})")

    def _fill_dict(self, recipe: Dict, name: str) -> None:
        self.lines.append(f"{name} = {{}}")
        for key, value in recipe.items:
            self.lines.append(f"{name}[{self._expression(key)}] = {self._expression(value)}")

    def _fill_instance(self, recipe: Instance, name: str) -> None:
        self.constants["put"] = object.__setattr__
        self.lines.append(f"{name} = {self.constant(recipe.base.__new__, 'new')}({self.constant(recipe.cls, 'cls')})")
        for where, item in recipe.items:
            store = self.constant(vars(recipe.base)["__setitem__"], "store")
            self.lines.append(f"{store}({name}, {self._expression(where)}, {self._expression(item)})")
        for key, value in recipe.attributes.items():
            self.lines.append(f"put({name}, {key!r}, {self._expression(value)})")


_EXPRESSIONS: dict[type, Callable[[_Writer, Any], str]] = {
    Output: lambda writer, recipe: f"outputs[{recipe.index}]",
    FromSource: _Writer._from_source,
    Constant: lambda writer, recipe: writer.constant(recipe.value),
    Collection: _Writer._collection,
    Dict: _Writer._dict,
    Call: _Writer._call,
    Instance: _Writer._instance,
}

# What is made empty and filled afterwards, so that a cycle can close.
_FILLINGS: dict[type, Callable[[_Writer, Any, str], None]] = {
    list: _Writer._fill_list,
    Dict: _Writer._fill_dict,
    Instance: _Writer._fill_instance,
}
