"""All programs, and for each namespace its public names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.conformance import arrays, compiler, functions, higher_order, library
from tests.conformance.program import Program, programs


class Namespace(NamedTuple):
    """The public names of a module, and those of them that have no programs, with the reason."""

    public: list[str]
    without: Mapping[str, str]
    programs: list[Program]


def namespaces() -> dict[str, Namespace]:
    """The namespaces by the name of their table."""
    return {
        "library": _written("library", library, library.OUTSIDE),
        "func": _written("func", functions, {}),
        "compiler": _written("compiler", compiler, compiler.OUTSIDE),
        "higher_order_ops": _written("higher_order_ops", higher_order, higher_order.INTERNAL),
        "_numpy": Namespace(arrays.public(), arrays.without(), arrays.programs()),
    }


def _written(table: str, module: Any, without: Mapping[str, str]) -> Namespace:
    return Namespace(module.PUBLIC, without, list(programs(table, module.PROGRAMS)))


WITHOUT_GRADIENTS = frozenset({"opcheck", "inline_asm_elementwise"})
"""Names of which nothing is differentiated."""


def every_program() -> Iterator[Program]:
    for namespace in namespaces().values():
        yield from namespace.programs
