"""Rules of the house: which room may import which, what nobody imports, and how long a file may
grow."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingot.compilation import Log
from ingot.torch_private import ATTRIBUTES, MARKS
from tests.house_counts import (
    Tree,
    branched_functions,
    dense_statements,
    long_first_sentences,
    long_lines,
)
from tests.long import SWEEPS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ingot"

# What each room may import besides itself and COMMON. A room that is a single module is named like
# one.
ROOMS: dict[str, set[str]] = {
    "collection": set(),
    "places": set(),
    "precision": set(),
    "sequences": set(),
    "tables": set(),
    "torch_private": set(),
    "wrapped": set(),
    "reasons": set(),
    "spots": set(),
    "errors": set(),
    "events": set(),
    "options": set(),
    "origins": set(),
    "native": set(),
    "serial": {"native"},
    "failures": set(),
    "loops": set(),
    "graph": {"loops"},
    # What is known of each op; only `rules` imports it, and hands it to the rooms that use it.
    "ops": {"graph", "loops"},
    "rules": {"ops"},
    "schedule": {"loops"},
    "codegen": {"schedule", "loops", "native"},
    "runtime": {"codegen", "schedule", "loops", "native"},
    "capture": {"graph", "loops", "native"},
    # The top of the house, from what one compilation leaves behind to what users call.
    "lockstep": {"graph", "loops"},
    "built": {"codegen", "graph", "lockstep", "loops", "native", "runtime", "schedule"},
    "compilation": {"graph", "loops", "runtime", "schedule"},
    "explain": {
        "codegen",
        "compilation",
        "graph",
        "kept",
        "loops",
        "native",
        "runtime",
        "schedule",
    },
    "stance": {"native"},
    "torch_controls": {"stance"},
    "gradients": {
        "built",
        "capture",
        "compilation",
        "failures",
        "graph",
        "lockstep",
        "loops",
        "runtime",
    },
    # A row for each device: its code, from the folder that makes it.
    "devices": {"codegen", "loops", "runtime", "schedule"},
    "pipeline": {
        "built",
        "capture",
        "codegen",
        "compilation",
        "devices",
        "gradients",
        "graph",
        "loops",
        "runtime",
        "schedule",
    },
    "kept": {
        "built",
        "capture",
        "codegen",
        "compilation",
        "graph",
        "loops",
        "native",
        "runtime",
        "schedule",
    },
    "backward": {
        "capture",
        "compilation",
        "explain",
        "graph",
        "loops",
        "pipeline",
        "rules",
        "runtime",
        "stance",
    },
    # `api` only for the function that torch.compile calls, which imports it when it runs
    "backends": {"api", "graph"},
    "compiler": {
        "backends",
        "built",
        "capture",
        "compilation",
        "debugging",
        "eager_calls",
        "explain",
        "graph",
        "hot_sizes",
        "kept",
        "ladder",
        "lockstep",
        "native",
        "pipeline",
        "rules",
        "runtime",
        "sharing",
        "stance",
        "torch_controls",
    },
    # What a compiler is made of, besides its entries; they name its type alone.
    "eager_calls": {
        "capture",
        "compilation",
        "compiler",
        "debugging",
        "failures",
        "native",
        "stance",
    },
    "ladder": {"capture", "compilation", "failures", "graph", "native"},
    "hot_sizes": {"capture", "compiler", "graph", "ladder", "native", "stance"},
    "sharing": {"capture", "compilation", "compiler"},
    # Works on captured graphs; what compiles parts of them is handed to it.
    "debugging": {
        "capture",
        "codegen",
        "compiler",
        "explain",
        "gradients",
        "graph",
        "loops",
        "native",
        "rules",
        "schedule",
    },
    "modules": {"capture", "compiler"},
    "api": {
        "backends",
        "backward",
        "capture",
        "compiler",
        "explain",
        "modules",
        "native",
        "sharing",
        "torch_controls",
    },
    "specialized": {"api", "capture", "compiler", "explain"},
    "installation": {"api", "backends"},
    # What loads an artifact imports `kept`, `native` and the linker alone, which a test holds.
    "artifacts": {
        "api",
        "built",
        "capture",
        "codegen",
        "compilation",
        "compiler",
        "explain",
        "graph",
        "kept",
        "loops",
        "pipeline",
        "rules",
        "schedule",
    },
    "__init__": {
        "api",
        "artifacts",
        "backends",
        "backward",
        "debugging",
        "explain",
        "installation",
        "kept",
        "specialized",
        "stance",
    },
    "__main__": {"debugging", "explain"},
}
COMMON = {
    "collection",
    "errors",
    "events",
    "options",
    "origins",
    "places",
    "precision",
    "reasons",
    "spots",
    "sequences",
    "serial",
    "tables",
    "torch_private",
    "wrapped",
}

# Nothing of Ingot's own path is another compiler. backends.py may hand a graph to one that the user
# names.
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

MAX_LINES = 700

SOURCES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path, tree: ast.AST) -> Iterator[str]:
    """Absolute names of all modules that a file imports, anywhere in it; names imported from a
    module too."""
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
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    imported_rooms = {imported for imported in map(room_of, names(path)) if imported is not None}
    assert imported_rooms - ROOMS[room] - COMMON <= {room}


def test_rooms_are_all_there_is():
    """A room that is gone leaves no rule behind."""
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in SOURCES}
    assert set(ROOMS) == rooms


def test_no_rule_allows_what_nobody_imports():
    imported_rooms: dict[str, set[str]] = {}
    for path in SOURCES:
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        imported_rooms.setdefault(room, set()).update(filter(None, map(room_of, names(path))))
    unused = {room: ROOMS[room] - imported_rooms[room] for room in ROOMS}
    assert {room: rooms for room, rooms in unused.items() if rooms} == {}


LOG_READERS = {PACKAGE / "compilation.py", *(PACKAGE / "explain").rglob("*.py")}
"""Who may read what the steps of a compilation have written down."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_step_reads_the_log(path):
    if path not in LOG_READERS:
        assert not list(log_reads(ast.parse(path.read_text("utf-8"))))


def log_reads(tree: ast.AST) -> Iterator[str]:
    """Where a field of a `log` is read; to append to one is no reading."""
    fields = {field.name for field in dataclasses.fields(Log)}
    appended = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "append":
            appended.add(node.value)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr not in fields or node in appended:
            continue
        of_log = dotted(node.value).rpartition(".")[2] == "log"
        if of_log and isinstance(node.ctx, ast.Load):
            yield ast.unparse(node)


def test_what_the_rule_of_the_log_sees():
    tree = ast.parse("log.plan = a = log.loops\nc.log.tuned.append(b.log.aten)\nlog.rewrites += x")
    assert sorted(log_reads(tree)) == ["b.log.aten", "log.loops"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_compiler_is_imported(path):
    if path not in EXEMPT:
        found = {
            name
            for name in names(path)
            for bad in FORBIDDEN
            if name == bad or name.startswith(bad + ".")
        }
        assert not found


def test_files_stay_short():
    rooms = ("ingot", "tests", "benchmarks", "examples")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    assert longer_than([*files, *PACKAGE.rglob("*.[ch]")], MAX_LINES) == []


def test_statements_and_functions_stay_plain():
    """At most two comprehensions or conditional expressions in a statement, 20 branches in a
    function, 100 columns in a line, 25 words in the first sentence of a docstring."""
    tree = Tree.read(ROOT)
    assert dense_statements(tree) == []
    assert branched_functions(tree) == []
    assert long_lines(tree) == []
    assert long_first_sentences(tree) == []


def longer_than(paths: list[Path], most: int) -> list[str]:
    return [path.name for path in paths if len(path.read_text("utf-8").splitlines()) > most]


def test_what_the_rules_read():
    tree = ast.parse(
        "import a.b\nfrom ingot.loops import expr\nfrom ..native import _native\ndef f():\n    "
        "from . import x"
    )
    found = set(imported(PACKAGE / "runtime" / "program.py", tree))
    assert {"a.b", "ingot.loops.expr", "ingot.native._native", "ingot.runtime.x"} <= found
    assert (
        room_of("ingot.loops.expr") == "loops"
        and room_of("torch.fx") is None
        and room_of("ingot") is None
    )


# -- private names of torch: see ingot/torch_private.py --------------------------------------------

PRIVATE = PACKAGE / "torch_private.py"
_OF_OTHERS = frozenset(
    "_asdict _fields _replace _getframe _lru_cache_wrapper _CacheInfo _Final _count_elements "
    "_signature_from_callable _compile _module_locks _lock".split()
)
"""Private attributes of the standard library and llvmlite, and those of named tuples, which are not
private."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def dotted(node: ast.AST) -> str:
    """`a.b.c`, or "" for another expression."""
    if isinstance(node, ast.Name):
        return node.id
    base = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else ""


@functools.cache
def own_names() -> set[str]:
    """What Ingot's own files give names to, in any place."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and dotted(node.value) == "self"
            ):
                found.add(node.attr)
    return found


def private_names(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """The private names of torch in a file. Operators are named by `aten` alone."""
    of_torch = {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                a.name for a in node.names if a.name.startswith("torch.") and "._" in a.name
            )
            of_torch.update(a.asname for a in node.names if a.name.startswith("torch") and a.asname)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            paths = [f"{node.module}.{a.name}" for a in node.names]
            yield from (path for path in paths if any(map(is_private, path.split("."))))
            of_torch.update(a.asname or a.name for a in node.names)
    known = {name for _, _, names in ATTRIBUTES.values() for name in names} | MARKS | _OF_OTHERS
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not is_private(node.attr) or node.attr in known:
            continue
        base = dotted(node.value)
        if base == "aten":
            continue
        if base.partition(".")[0] in of_torch or node.attr not in own:
            yield ast.unparse(node)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_private_names_of_torch_live_in_one_file(path):
    if path != PRIVATE and path not in EXEMPT and "triton" not in path.parts:
        assert not list(private_names(ast.parse(path.read_text()), own_names()))


def test_native_code_names_nothing_private_of_torch():
    """But for attributes that are listed, and C++ symbols; and the module that torch's own library
    is found by."""
    known = {name for _, _, names in ATTRIBUTES.values() for name in names} | MARKS
    of_python = {"_at_fork_reinit", "_is_owned", "_signal"}
    allowed = known | of_python | {"_C", "_dynamo", "_frame_values", "_native"}
    for path in [*PACKAGE.rglob("*.c")]:
        for text in re.findall(r'"((?:[^"\\]|\\.)*)"', path.read_text()):
            if text.startswith(("_Z", "__")) or not re.fullmatch(r"[\w.]+", text):
                continue
            found = {part for part in text.split(".") if is_private(part)}
            assert found - allowed - own_methods(path) == set(), (path.name, text)


def own_methods(path: Path) -> set[str]:
    """The names of the functions that a C file defines for Python."""
    return set(re.findall(r'\{"(\w+)", \w+, METH_', path.read_text()))


def test_what_the_rule_of_private_names_sees():
    tree = ast.parse(
        "import torch, torch._a\nfrom torch._b import c\nfrom torch.d import _e, f\nfrom torch "
        "import nn\n"
        "torch._g\ntorch.h._i.j\nnn._k()\nx._l\nx._own\naten._m\nx._version\nx.__dict__"
    )
    found = ["torch._a", "torch._b.c", "torch.d._e", "torch._g", "torch.h._i", "nn._k", "x._l"]
    assert sorted(private_names(tree, {"_own"})) == sorted(found)


@pytest.mark.parametrize("file", SWEEPS)
def test_sweeps_are_there(file: str) -> None:
    """Each test of which `make test` runs a part."""
    text = (ROOT / "tests" / f"{file}.py").read_text()
    found = {n.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)}
    assert {f"test_{name}" for name in SWEEPS[file]} <= found
