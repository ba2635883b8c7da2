"""What is left to do in Python after the graph has run: side effects and the return value.

Both are built from graph outputs, sources and constants. A recipe is a tree of small nodes; a node
that stands at two places is one object in the result as well. `Residual` turns recipes into one
small Python function, readable as `residual.source`, that the dispatcher calls; for a lone tensor
or a flat tuple it needs no Python. The function loads all that it needs of the outside before it
changes any of it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, dataclass_transform

from ingot.capture.sources import ArgSource, ConstSource, Source


@dataclass_transform(frozen_default=True, eq_default=False)
def _recipe(cls: type) -> Any:
    return dataclass(frozen=True, eq=False, slots=True)(cls)


class Recipe:
    """How one object of the result is made."""

    __slots__ = ()

    def operands(self) -> Iterable[Recipe]:
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
    items: tuple[Recipe, ...] | list[Recipe]

    def operands(self) -> Iterable[Recipe]:
        return self.items


@_recipe
class Dict(Recipe):
    """A new dict, in this order."""

    items: tuple[tuple[Recipe, Recipe], ...] | list[tuple[Recipe, Recipe]]

    def operands(self) -> Iterable[Recipe]:
        return [operand for item in self.items for operand in item]


@_recipe
class Call(Recipe):
    """What a C function or class gives for these arguments: `slice`, `range`, `tuple.__new__` of a
    namedtuple, ..."""

    function: Callable[..., Any]
    args: tuple[Recipe, ...]

    def operands(self) -> Iterable[Recipe]:
        return self.args


@_recipe
class Reading(Call):
    """A call that reads what its arguments hold, as what makes an iterator does: they are filled
    before."""


@_recipe
class Ending(Recipe):
    """A call of `function` that comes after all effects; its arguments are made before them."""

    function: Callable[..., Any]
    args: tuple[Recipe, ...]

    def operands(self) -> Iterable[Recipe]:
        return self.args


@_recipe
class Filled(Recipe):
    """A new object that is made by a call and then filled by others, each given the object before
    its arguments. What fills it may refer to it; `make` may not."""

    make: Recipe
    steps: list[tuple[Callable[..., Any], tuple[Recipe, ...]]]

    def operands(self) -> Iterable[Recipe]:
        return [self.make, *(operand for _, args in self.steps for operand in args)]


def named_tuple(cls: type, items: Sequence[Recipe]) -> Recipe:
    """A namedtuple of class `cls`; its own `__new__` is not called again."""
    return Call(tuple.__new__, (Constant(cls), Collection(tuple, tuple(items))))


def called(function: Callable[..., Any], args: Sequence[Any]) -> Call:
    """A call with constants."""
    return Call(function, tuple(map(Constant, args)))


class Residual:
    """Carries out `effects` in order and rebuilds the return value. `kind` says what the native
    core can do alone: "tensor" (the one output), "tuple" (all outputs in order) or "general", for
    which `build(outputs, slots)` is called; `build` works for all three, `source` is its text."""

    def __init__(self, result: Recipe, output_count: int, effects: Sequence[Call] = ()) -> None:
        self.result, self.effects = result, effects
        self.output_count = output_count
        self.kind = "general"
        if not effects:
            self.kind = _kind(result, output_count)
        self.source, constants = _Writer().write(result, effects)
        exec(compile(self.source, "<ingot residual>", "exec"), constants)
        self.build: Callable[[Sequence[Any], Sequence[Any]], Any] = constants["residual"]

    def __repr__(self) -> str:
        return self.source


def _kind(result: Recipe, output_count: int) -> Literal["tensor", "tuple", "general"]:
    if isinstance(result, Output) and output_count == 1:
        return "tensor"
    if isinstance(result, Collection) and result.kind is tuple:
        indices = []
        for item in result.items:
            indices.append(item.index if isinstance(item, Output) else None)
        if indices == list(range(output_count)):
            return "tuple"
    return "general"


_DEPTH = 30  # expressions nested deeper than this are split


class _Writer:
    """Writes the function, one expression per recipe. What is used twice gets a variable; what may
    be part of itself is filled after it exists."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self.names: dict[int, str] = {}  # id of a recipe -> its variable
        self.loaded: dict[Source, str] = {}
        self.uses: Counter[int] = Counter()
        self.cyclic: set[int] = set()  # ids of the recipes that are part of themselves
        self.unfilled: deque[tuple[str, Recipe]] = deque()
        self._constant_names: dict[int, str] = {}

    def write(self, result: Recipe, effects: Sequence[Call]) -> tuple[str, dict[str, Any]]:
        """The source of `residual(outputs, slots)`, and the globals that it needs."""
        recipes: list[Recipe] = [*effects, result]
        self._count(recipes)
        if effects:
            self._load_first(recipes)
        statements = []
        for effect in effects:
            statements.append(self._finished(effect))
        value = self._finished(result)
        if effects and isinstance(result, Ending):
            self.lines.append(f"arguments = {self._tuple(result.args)}")
            value = f"{self.constant(result.function, 'function')}(*arguments)"
        elif effects and not isinstance(result, (Output, Constant, FromSource)):
            self.lines.append(f"result = {value}")
            value = "result"
        body = "".join(f"    {line}\n" for line in [*self.lines, *statements, f"return {value}"])
        return f"def residual(outputs, slots):\n{body}", self.constants

    def _count(self, recipes: Sequence[Recipe]) -> None:
        """Counts the uses of each recipe, and finds those that lie on a cycle; without recursion,
        as lists may be long and nested deeply."""
        path: dict[int, None] = {}
        stack: list[tuple[Recipe, bool]] = [(recipe, True) for recipe in reversed(recipes)]
        while stack:
            recipe, entering = stack.pop()
            if not entering:
                del path[id(recipe)]
                continue
            self.uses[id(recipe)] += 1
            if id(recipe) in path:
                on_path = list(path)
                self.cyclic.update(on_path[on_path.index(id(recipe)) :])
            if self.uses[id(recipe)] > 1:
                continue
            path[id(recipe)] = None
            stack.append((recipe, False))
            stack.extend((operand, True) for operand in reversed([*recipe.operands()]))

    def _load_first(self, recipes: Sequence[Recipe]) -> None:
        """Gives each outside object a variable, which is set before anything is changed."""
        visited: set[int] = set()
        stack = list(reversed(recipes))
        while stack:
            recipe = stack.pop()
            if id(recipe) in visited:
                continue
            visited.add(id(recipe))
            if isinstance(recipe, FromSource) and recipe.source not in self.loaded:
                if not isinstance(recipe.source, (ArgSource, ConstSource)):
                    text = self._from_source(recipe)
                    name = self.loaded[recipe.source] = f"outside_{len(self.loaded)}"
                    self.lines.append(f"{name} = {text}")
            stack.extend(reversed([*recipe.operands()]))

    def _finished(self, recipe: Recipe) -> str:
        """The expression of a recipe, all that it refers to filled."""
        self._split(recipe)
        text = self._expression(recipe)
        while self.unfilled:
            self._fill(*self.unfilled.popleft())
        return text

    def _fill(self, name: str, waiting: Recipe) -> None:
        for operand in waiting.operands():
            self._split(operand)
        # one by one: an expression may add lines before its own
        for line in _FILLINGS[_shape(waiting)](self, waiting, name):
            self.lines.append(line)

    def _split(self, recipe: Recipe) -> None:
        """Gives what is nested deeply variables of its own, the innermost first: expressions have a
        limited depth."""
        stack, deep = [(recipe, 1)], []
        while stack:
            recipe, depth = stack.pop()
            if id(recipe) in self.names or self._is_filled_later(recipe):
                continue
            if depth % _DEPTH == 0:
                deep.append(recipe)
            stack.extend((operand, depth + 1) for operand in recipe.operands())
        for recipe in reversed(deep):
            if id(recipe) not in self.names:
                self._variable(recipe, self._expression(recipe))

    def _is_filled_later(self, recipe: Recipe) -> bool:
        return isinstance(recipe, Filled) or (
            id(recipe) in self.cyclic and _shape(recipe) in _FILLINGS
        )

    def _expression(self, recipe: Recipe) -> str:
        if id(recipe) in self.names:
            return self.names[id(recipe)]
        if self._is_filled_later(recipe):
            return self._empty_object(recipe)
        text = _EXPRESSIONS[type(recipe)](self, recipe)
        if (
            self.uses[id(recipe)] == 1
            or isinstance(recipe, (Output, Constant))
            or text.isidentifier()
        ):
            return text
        return self._variable(recipe, text)

    def _variable(self, recipe: Recipe, text: str) -> str:
        name = self.names[id(recipe)] = f"shared_{len(self.names)}"
        self.lines.append(f"{name} = {text}")
        return name

    def _empty_object(self, recipe: Recipe) -> str:
        """A variable for a mutable object, which is filled later."""
        if isinstance(recipe, Filled):
            empty = self._expression(recipe.make)
        else:
            empty = _EMPTY[_shape(recipe)]
        name = self._variable(recipe, empty)
        self.unfilled.append((name, recipe))
        return name

    def constant(self, value: Any, prefix: str = "constant") -> str:
        """A literal, or the name of a global that holds the object."""
        if value is None or value is ... or type(value) in (bool, int, str, bytes):
            return repr(value)
        name = self._constant_names.get(id(value))
        if name is None:
            name = self._constant_names[id(value)] = f"{prefix}_{len(self.constants)}"
            self.constants[name] = value
        return name

    def _from_source(self, recipe: FromSource) -> str:
        source = recipe.source
        if isinstance(source, ArgSource):
            return f"slots[{source.index}]"
        if isinstance(source, ConstSource):
            return self.constant(source.value)
        return self.loaded.get(source) or f"{self.constant(source.load, 'load')}(slots)"

    def _collection(self, recipe: Collection) -> str:
        if recipe.kind is list:
            return f"[{self._listed(recipe.items)}]"
        if recipe.kind is set and recipe.items:
            return f"{{{self._listed(recipe.items)}}}"
        text = self._tuple(recipe.items)
        if recipe.kind is tuple:
            return text
        return f"{recipe.kind.__name__}({text})"

    def _listed(self, recipes: Iterable[Recipe]) -> str:
        return ", ".join(map(self._expression, recipes))

    def _tuple(self, recipes: Sequence[Recipe]) -> str:
        if not recipes:
            return "()"
        return f"({self._listed(recipes)}, )"

    def _dict(self, recipe: Dict) -> str:
        items = []
        for key, value in recipe.items:
            items.append(f"{self._expression(key)}: {self._expression(value)}")
        return f"{{{', '.join(items)}}}"

    def _call(self, recipe: Call | Ending) -> str:
        args = self._listed(recipe.args)
        return f"{self.constant(recipe.function, 'function')}({args})"

    def _reading(self, recipe: Reading) -> str:
        text = self._call(recipe)
        read: list[Recipe] = [*recipe.args]
        while read:
            operand = read.pop()
            name = self.names.get(id(operand))
            if (waiting := (name, operand)) in self.unfilled:
                self.unfilled.remove(waiting)  # type: ignore[arg-type]
                self._fill(*waiting)  # type: ignore[arg-type]
            elif isinstance(operand, Call):
                read.extend(operand.args)
        return text

    def _fill_collection(self, recipe: Collection, name: str) -> Iterable[str]:
        add = "append"
        if recipe.kind is set:
            add = "add"
        for item in recipe.items:
            yield f"{name}.{add}({self._expression(item)})"

    def _fill_dict(self, recipe: Dict, name: str) -> Iterable[str]:
        for key, value in recipe.items:
            yield f"{name}[{self._expression(key)}] = {self._expression(value)}"

    def _fill_object(self, recipe: Filled, name: str) -> Iterable[str]:
        for function, args in recipe.steps:
            texts = ", ".join([name, *map(self._expression, args)])
            yield f"{self.constant(function, 'function')}({texts})"


_EXPRESSIONS: dict[type, Callable[[_Writer, Any], str]] = {
    Output: lambda writer, recipe: f"outputs[{recipe.index}]",
    FromSource: _Writer._from_source,
    Constant: lambda writer, recipe: writer.constant(recipe.value),
    Collection: _Writer._collection,
    Dict: _Writer._dict,
    Call: _Writer._call,
    Reading: _Writer._reading,
    Ending: _Writer._call,
}


def _shape(recipe: Recipe) -> type:
    if isinstance(recipe, Collection):
        return recipe.kind
    return type(recipe)


# What is made empty and filled afterwards, so that a cycle can close.
_FILLINGS: dict[type, Callable[[_Writer, Any, str], Iterable[str]]] = {
    list: _Writer._fill_collection,
    set: _Writer._fill_collection,
    Dict: _Writer._fill_dict,
    Filled: _Writer._fill_object,
}
_EMPTY: dict[type, str] = {list: "[]", set: "set()", Dict: "{}"}
