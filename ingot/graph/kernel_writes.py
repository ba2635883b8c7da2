"""Which arguments a Triton kernel writes, from its source.

The source is read as a whole, without regard to the order of statements or to constants. A name may
hold a pointer into any parameter that flows into it. What is loaded holds none. Where a call is not
understood, it writes all that it is given.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

Names = frozenset[str]
_NONE: Names = frozenset()
_UNKNOWN = object()


@dataclass(frozen=True)
class Effects:
    """What a function of Triton's does: of each store and each load the parameters into which its
    pointer may point. `given` are those that its result may point into."""

    stores: frozenset[Names]
    loads: frozenset[Names]
    given: Names

    @property
    def written(self) -> Names:
        """The parameters that may be written."""
        return _NONE.union(*self.stores)

    def only_follow(self, pointers: Names) -> bool:
        """Whether each access is behind one of these parameters. One that is behind none uses an
        address which was loaded, or passed as an integer."""
        return not any(map(pointers.isdisjoint, self.stores | self.loads))


_known: WeakKeyDictionary[Any, Effects] = WeakKeyDictionary()
_under_way: set[Any] = set()


def effects_of(kernel: Any) -> Effects:
    """What a `JITFunction`, or an `InterpretedFunction`, does."""
    function = kernel.fn
    known = _known.get(function)
    if known is not None:
        return known
    if function in _under_way:  # it calls itself
        return _anything(function)
    _under_way.add(function)
    try:
        effects = _read(kernel, function)
    finally:
        _under_way.discard(function)
    _known[function] = effects
    return effects


def _anything(function: Any) -> Effects:
    """The effects of a function that nothing is known of."""
    names = frozenset(inspect.signature(function).parameters)
    return Effects(frozenset((names,)), frozenset((names,)), names)


def _read(kernel: Any, function: FunctionType) -> Effects:
    try:
        source = getattr(kernel, "src", None) or textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(source).body[0]
    except (OSError, SyntaxError, TypeError):
        return _anything(function)
    if not isinstance(tree, ast.FunctionDef):
        return _anything(function)
    return _Reader(function, tree).effects()


# -- what a name in a kernel stands for ------------------------------------------------------------


def _is_function_of_triton(object_: Any) -> bool:
    """Whether it is a function that is written for Triton."""
    names = set()
    for cls in type(object_).__mro__:
        names.add(cls.__name__)
    is_jit = not names.isdisjoint(("JITFunction", "InterpretedFunction"))
    return is_jit and isinstance(getattr(object_, "fn", None), FunctionType)


def _module_of(object_: Any) -> str:
    module = getattr(object_, "__module__", None)
    if isinstance(module, str):
        return module
    return ""


def _outer_names(function: FunctionType) -> dict[str, Any]:
    """What a function's free variables and globals hold."""
    names = {**vars(builtins), **function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # it is empty still
            names[name] = _UNKNOWN
    return names


def _assigned_in(tree: ast.AST) -> set[str]:
    """The names that a function binds."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


# -- reading ---------------------------------------------------------------------------------------

_POINTERLESS = frozenset({"dtype", "type", "shape", "element_ty"})
"""Attributes that hold no pointer."""

_LOADS = frozenset({"load", "load_tensor_descriptor", "_experimental_descriptor_load"})
_CALLS_CODE = frozenset({"inline_asm_elementwise", "extern_elementwise", "dispatch"})
"""Functions of Triton's that run code which is not Triton's."""

_PLAIN = frozenset({"range", "min", "max", "len", "abs", "int", "float", "bool", "print", "tuple"})
_PLAIN |= frozenset(
    {"isinstance", "getattr", "hasattr", "type", "zip", "enumerate", "sum", "round"}
)
"""Built-in functions that a kernel may call."""


def _is_store(name: str) -> bool:
    return "store" in name or name == "scatter" or name.startswith("atomic_")


class _Reader(ast.NodeVisitor):
    """Reads one function. Visiting an expression gives the parameters that it may point into."""

    def __init__(self, function: FunctionType, tree: ast.FunctionDef) -> None:
        self.tree, self.outer = tree, _outer_names(function)
        self.own = _assigned_in(tree)
        self.holds: dict[str, Names] = {}
        for name in inspect.signature(function).parameters:
            self.holds[name] = frozenset((name,))
        self.stores: set[Names] = set()
        self.loads: set[Names] = set()
        self.given = _NONE

    def effects(self) -> Effects:
        before: Any = None
        while before != self.holds:
            before = dict(self.holds)
            for statement in self.tree.body:
                self.visit(statement)
        return Effects(frozenset(self.stores), frozenset(self.loads), self.given)

    # -- statements and names --

    def generic_visit(self, node: ast.AST) -> Names:
        return self.any_of(ast.iter_child_nodes(node))

    def any_of(self, nodes: Iterable[ast.AST]) -> Names:
        return _NONE.union(*map(self.visit, nodes))

    def visit_Name(self, node: ast.Name) -> Names:
        return self.holds.get(node.id, _NONE)

    def visit_Attribute(self, node: ast.Attribute) -> Names:
        inside = self.visit(node.value)
        if node.attr in _POINTERLESS:
            return _NONE
        return inside

    def visit_Assign(self, node: ast.Assign) -> Names:
        for target in node.targets:
            self.assign(target, node.value)
        return _NONE

    def visit_AugAssign(self, node: ast.AugAssign) -> Names:
        self.bind(node.target, self.visit(node.value))
        return _NONE

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Names:
        if node.value is not None:
            self.assign(node.target, node.value)
        return _NONE

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Names:
        self.assign(node.target, node.value)
        return self.visit(node.value)

    def visit_For(self, node: ast.For) -> Names:
        self.bind(node.target, self.visit(node.iter))
        return self.any_of((*node.body, *node.orelse))

    def visit_comprehension(self, node: ast.comprehension) -> Names:
        self.bind(node.target, self.visit(node.iter))
        return self.any_of(node.ifs)

    def visit_withitem(self, node: ast.withitem) -> Names:
        held = self.visit(node.context_expr)
        if node.optional_vars is not None:
            self.bind(node.optional_vars, held)
        return held

    def visit_Return(self, node: ast.Return) -> Names:
        if node.value is not None:
            self.given |= self.visit(node.value)
        return _NONE

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        if (
            isinstance(target, ast.Tuple)
            and isinstance(value, ast.Tuple)
            and len(target.elts) == len(value.elts)
        ):
            for left, right in zip(target.elts, value.elts):
                self.assign(left, right)
            return
        self.bind(target, self.visit(value))

    def bind(self, target: ast.AST, held: Names) -> None:
        """Whatever is named in a target may hold what is assigned to it."""
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.holds[node.id] = self.holds.get(node.id, _NONE) | held

    # -- calls --

    def visit_Call(self, node: ast.Call) -> Names:
        arguments = [*node.args, *node.keywords]
        callee = self.object_of(node.func)
        if callee is _UNKNOWN and isinstance(node.func, ast.Attribute):
            return self.method(node.func, arguments)
        if _is_function_of_triton(callee) and not _module_of(callee.fn).startswith("triton."):
            return self.inner(callee, node)
        name = getattr(callee, "__name__", "")
        if _module_of(callee).startswith("triton.language"):
            return self.of_triton(name, arguments)
        if _module_of(callee).startswith("triton.") and "experimental" not in _module_of(callee):
            return self.any_of(arguments)
        if getattr(builtins, name, None) is callee and name in _PLAIN:
            return self.any_of(arguments)
        return self.unknown(arguments)

    def of_triton(self, name: str, arguments: Sequence[ast.AST]) -> Names:
        """A call of one of Triton's own functions, whose pointer comes first."""
        held = list(map(self.visit, arguments))
        if name in _LOADS or _is_store(name):
            return self.access(name, self.pointer_of(arguments))
        if name in _CALLS_CODE:
            return self.wrote(_NONE.union(*held))
        return _NONE.union(*held)

    def pointer_of(self, arguments: Sequence[ast.AST]) -> Names:
        for argument in arguments:
            if isinstance(argument, ast.keyword) and argument.arg in ("pointer", "desc"):
                return self.visit(argument)
        if arguments and isinstance(arguments[0], ast.Starred | ast.keyword):
            return self.any_of(arguments)
        return self.any_of(arguments[:1])

    def method(self, function: ast.Attribute, arguments: Sequence[ast.AST]) -> Names:
        """A call of a method of a value."""
        owner, name = self.visit(function.value), function.attr
        held = self.any_of(arguments)
        if name in _LOADS or _is_store(name):
            return self.access(name, owner)
        if hasattr(_tensor_class(), name) or name == "gather":
            return owner | held
        return self.wrote(owner | held)

    def access(self, name: str, pointer: Names) -> Names:
        """A load from a pointer, or a store or atomic operation; what was loaded is no pointer."""
        if _is_store(name):
            self.stores.add(pointer)
        else:
            self.loads.add(pointer)
        return _NONE

    def inner(self, callee: Any, node: ast.Call) -> Names:
        """A call of another function that is written for Triton."""
        effects = effects_of(callee)
        parameters = inspect.signature(callee.fn).parameters
        given: dict[str, Names] = dict.fromkeys(parameters, _NONE)
        starred = _NONE
        for name, argument in zip(parameters, node.args):
            given[name] = self.visit(argument)
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                starred = self.any_of(node.args)
        for keyword in node.keywords:
            if keyword.arg is None:
                starred |= self.visit(keyword)
            else:
                given[keyword.arg] = self.visit(keyword)
        for variadic in parameters.values():
            if variadic.kind is variadic.VAR_POSITIONAL:
                starred |= self.any_of(node.args)

        def behind(names: Names) -> Names:
            return starred.union(*map(given.__getitem__, names))

        self.stores.update(map(behind, effects.stores))
        self.loads.update(map(behind, effects.loads))
        return behind(effects.given)

    def unknown(self, arguments: Sequence[ast.AST]) -> Names:
        """A call of what is not known, which may write."""
        return self.wrote(self.any_of(arguments))

    def wrote(self, pointers: Names) -> Names:
        if pointers:
            self.stores.add(pointers)
        return pointers

    def object_of(self, node: ast.expr) -> Any:
        """The object that an expression names, or _UNKNOWN."""
        object_: Any = _UNKNOWN
        if isinstance(node, ast.Name) and node.id not in self.own:
            object_ = self.outer.get(node.id, _UNKNOWN)
        elif isinstance(node, ast.Attribute):
            owner = self.object_of(node.value)
            if owner is not _UNKNOWN:
                object_ = getattr(owner, node.attr, _UNKNOWN)
        if type(object_).__name__ == "constexpr":
            return object_.value
        return object_


def _tensor_class() -> type:
    """The class of values in a kernel."""
    from triton.language import tensor

    cls: type = tensor
    return cls
