"""Ingot with a torch that lacks some of its private names.

    python -m tests.private_names < groups    each line is "compiled" or "eager",
    and paths of names that are hidden
    python -m tests.private_names --each      all names, one at a time

Each group is tried in a process of its own, which is forked from one that has imported torch and
not Ingot. A name is hidden from `ingot.torch_private` alone: it would be no use to hide it from
torch, which needs it as well.
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
# of the package that is tested, which may be an installed one; it is not imported here
SOURCE = Path(importlib.util.find_spec("ingot").origin).with_name("torch_private.py")


def paths() -> dict[str, tuple[str, str]]:
    """By name in `ingot.torch_private`: the path in torch, and the feature that is off without."""
    found, features = {}, {"": ""}
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name, value = node.targets[0].id, node.value
        if isinstance(value, ast.Constant):
            features[name] = str(value.value)
        elif (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Name)
            and value.func.id == "find"
        ):
            path, feature = [
                ast.literal_eval(value.args[0]),
                *map(ast.unparse, value.args[1:]),
                "",
            ][:2]
            found[name] = (path, features[feature])
    return found


def optional() -> set[str]:
    """The paths of names that some torches are known not to have."""
    calls = [node for node in ast.walk(ast.parse(SOURCE.read_text())) if isinstance(node, ast.Call)]
    return {
        ast.literal_eval(call.args[0])
        for call in calls
        for k in call.keywords
        if k.arg == "optional"
    }


def operators() -> list[str]:
    """The private operators that Ingot's tables name."""
    found = set()
    for file in SOURCE.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "aten"
            ):
                found.add(node.attr)
    return sorted(name for name in found if name.startswith("_"))


class _Hides:
    """Loads `ingot.torch_private` with functions in place of `getattr` and `importlib` that do not
    find some names."""

    def __init__(self, hidden: set[str]) -> None:
        self.hidden = hidden
        self.attributes = {path.rpartition(".")[2] for path in hidden}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "ingot.torch_private":
            return None
        return importlib.util.spec_from_loader(name, self, origin=str(SOURCE))  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(
            getattr=self.getattr, importlib=SimpleNamespace(import_module=self.import_module)
        )
        source = SOURCE.read_text().replace("\nimport importlib\n", "\n")
        exec(compile(source, str(SOURCE), "exec"), vars(module))

    def getattr(self, owner: Any, name: str, *default: Any) -> Any:
        if default:  # of an object, which has no path
            hides = name in self.attributes and not name.startswith("__")
            return default[0] if hides else builtins.getattr(owner, name, *default)
        path = f"{self._path(owner)}.{name}"
        if path in self.hidden:
            raise AttributeError(path)
        return builtins.getattr(owner, name)

    def import_module(self, path: str) -> Any:
        if path in self.hidden:
            raise ImportError(path)
        return importlib.import_module(path)

    @staticmethod
    def _path(owner: Any) -> str:
        if owner is torch.ops.aten:
            return "torch.ops.aten"
        if isinstance(owner, type):
            return _PATHS.get(owner, f"{owner.__module__}.{owner.__qualname__}")
        return _PATHS.get(id(owner), builtins.getattr(owner, "__name__", ""))


_PATHS: dict[Any, str] = {}


def _note_paths() -> None:
    """The paths by which `ingot.torch_private` comes to classes and modules, which these may not
    know themselves."""
    for path, _ in paths().values():
        owner: Any = torch
        walked = "torch"
        for part in path.split(".")[1:-1]:
            walked = f"{walked}.{part}"
            try:
                owner = builtins.getattr(owner, part)
            except AttributeError:
                owner = importlib.import_module(walked)
            _PATHS[owner if isinstance(owner, type) else id(owner)] = walked


def try_without(hidden: set[str], compiled: bool) -> None:
    """Raises where something is not right."""
    sys.meta_path.insert(0, _Hides(hidden))  # type: ignore[arg-type]
    import ingot
    from ingot import torch_private

    lacking = set(torch_private.MISSING)
    expected = {path for path in hidden if not path.startswith("torch.ops.")} - optional()
    assert expected <= lacking, f"not missed: {expected - lacking}"
    _try_programs(ingot)
    graphs = ingot.explain(lambda x: (x.sin() * 2).sum())(torch.ones(8)).graph_count
    assert graphs == compiled, f"{graphs} graphs"


def _try_programs(ingot: Any) -> None:
    def plain(x: Any, y: Any) -> Any:
        scattered = torch.zeros(3).scatter_add_(0, x.long()[0], x[0])
        return torch.softmax(x @ y.t(), -1).sum(0), x.mul(2).add_(y[0]), scattered

    def step(x: Any, y: Any) -> Any:
        weight = y.clone().requires_grad_()
        (torch.nn.functional.layer_norm(x * weight, (3,)).exp().sum() * 0.1).backward()
        with torch.no_grad():
            weight -= weight.grad
        return weight, weight.grad

    def transformed(x: Any, y: Any) -> Any:
        return torch.vmap(lambda a: a.sin() * 2)(x), torch.func.grad(lambda a: a.cos().sum())(y)

    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.GELU())

    def modules(x: Any, y: Any) -> Any:
        return module.eval()(x)

    def modes(x: Any, y: Any) -> Any:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ y.t()).float().relu()

    def wanted(x: Any, y: Any) -> Any:
        x = x.clone().requires_grad_()
        result = ingot.compile(plain)(x, y)[0].sum() if f is wanted else plain(x, y)[0].sum()
        with ingot.compiled_backward():
            result.backward()
        return x.grad

    x, y = torch.linspace(0, 1, 6).reshape(2, 3), torch.linspace(-1, 2, 6).reshape(2, 3)
    for f in (plain, step, transformed, modules, modes, wanted):
        expected = f(x.clone(), y.clone())
        found = (f if f is wanted else ingot.compile(f))(x.clone(), y.clone())
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _try_in_child(what: str, hidden: list[str]) -> bool:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    status = 1
    try:
        try_without(set(hidden), what == "compiled")
        status = 0
    except BaseException:
        print(f"{what} without {hidden}:\n{traceback.format_exc()}", flush=True)
    os._exit(status)


def main() -> None:
    if "--each" in sys.argv:
        listing = (
            "from tests.test_torch_private import groups\n"
            "for what, names in groups(): print(what, *names, sep='|')"
        )
        done = subprocess.run(
            [sys.executable, "-c", listing], capture_output=True, text=True, check=True, cwd=ROOT
        )
        # but for those of all names at once
        rows = [line.split("|") for line in done.stdout.splitlines()[:-2]]
        groups = [(what, [name]) for what, *names in rows for name in names]
    else:
        groups = [
            (what, [n.replace("~", " ") for n in names])
            for what, *names in map(str.split, sys.stdin)
        ]
    _note_paths()
    right = sum([_try_in_child(what, hidden) for what, hidden in groups])
    print(f"{right} of {len(groups)} are right")
    sys.exit(right < len(groups))


if __name__ == "__main__":
    main()
