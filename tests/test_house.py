"""Rules of the house: which room may import which, what nobody imports, and how long a file may grow."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ingot"

# What each room may import besides itself and COMMON. A room that is a single module is named like one.
ROOMS: dict[str, set[str]] = {
    "collection": set(),
    "precision": set(),
    "wrapped": set(),
    "reasons": set(),
    "errors": {"reasons"},
    "options": set(),
    "origins": set(),
    "native": set(),
    "serial": {"native"},
    "failures": set(),
    "loops": set(),
    "graph": {"loops"},
    "schedule": {"loops"},
    "codegen": {"schedule", "loops", "native"},
    "runtime": {"codegen", "schedule", "loops", "native"},
    "capture": {"graph", "loops", "native"},
    "backward": {"capture", "explain", "graph", "loops", "native", "pipeline", "runtime", "stance"},
    "gradients": {"capture", "explain", "failures", "graph", "loops", "native", "runtime"},
}
COMMON = {"collection", "errors", "options", "origins", "precision", "serial", "wrapped"}

# Nothing of Ingot's own path is another compiler. backends.py may hand a graph to one that the user names.
FORBIDDEN = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch.aot_autograd",
    "torch.jit",
    "torch.export",
    "torch.fx.experimental.symbolic_shapes",
    "sympy",
)
EXEMPT = {PACKAGE / "backends.py"}

MAX_LINES = 900

SOURCES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path, tree: ast.AST) -> Iterator[str]:
    """Absolute names of all modules that a file imports, anywhere in it; names imported from a module too."""
    package = ["ingot", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def names(path: Path) -> set[str]:
    return set(imported(path, ast.parse(path.read_text(encoding="utf-8"))))


def room_of(module: str) -> str | None:
    """The room of `ingot.room.anything`; None for other packages and for `ingot` itself."""
    parts = module.split(".")
    return parts[1] if parts[0] == "ingot" and len(parts) > 1 else None


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own not in ROOMS:
        return  # api, explain, backends and the package itself may import all
    reached = {room for room in map(room_of, names(path)) if room is not None}
    assert reached - ROOMS[own] - COMMON <= {own}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_compiler_is_imported(path):
    if path not in EXEMPT:
        found = {name for name in names(path) for bad in FORBIDDEN if name == bad or name.startswith(bad + ".")}
        assert not found


def test_files_stay_short():
    files = [*SOURCES, *PACKAGE.rglob("*.[ch]"), *(ROOT / "tests").rglob("*.py")]
    assert not [path.name for path in files if len(path.read_text(encoding="utf-8").splitlines()) > MAX_LINES]


def test_what_the_rules_read():
    tree = ast.parse(
        "import a.b\nfrom ingot.loops import expr\nfrom ..native import _native\ndef f():\n    from . import x"
    )
    found = set(imported(PACKAGE / "runtime" / "program.py", tree))
    assert {"a.b", "ingot.loops.expr", "ingot.native._native", "ingot.runtime.x"} <= found
    assert room_of("ingot.loops.expr") == "loops" and room_of("torch.fx") is None and room_of("ingot") is None
