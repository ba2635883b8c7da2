"""The kernel suite through C++: tests of `tests/codegen` are imported here, and what compiles their
kernels is replaced."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from ingot import pipeline
from ingot.codegen import cpp
from ingot.codegen.llvm.target import host
from tests.codegen import harness
from tests.long import long


def clang() -> list[str] | None:
    """The command of a Clang, if there is one: INGOT_TEST_CLANG, clang++, or that of ziglang."""
    if os.environ.get("INGOT_TEST_CLANG"):
        return shlex.split(os.environ["INGOT_TEST_CLANG"])
    if shutil.which("clang++"):
        return ["clang++"]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    return None


def command_of(name: str) -> list[str]:
    """The command of "g++" or "clang++"; the test is skipped where there is none."""
    if name == "clang++":
        command = clang()
    else:
        command = [name] if shutil.which(name) else None
    if command is None:
        pytest.skip(f"there is no {name} here")
    return command


class Batch:
    """Compiles the kernels of many tests at once: a compiler takes longer to begin than for one.

    The tests run twice. The first time nothing is computed, and their kernels are taken note of.
    """

    def __init__(self) -> None:
        self.wanted: dict[Any, dict[Any, None]] = {}
        self.compiled: dict[Any, Any] = {}

    def note(
        self, kernels: Sequence[Any], symbols: Sequence[Any], target: Any = None,
        load: bool = True, check_bounds: bool | None = None,
    ) -> Any:  # fmt: skip
        key = tuple(symbols), bool(check_bounds)
        self.wanted.setdefault(key, {}).update(dict.fromkeys(kernels))
        return None

    def launched(
        self, kernel: Any, tensors: Any, ranges: Any, sizes: Any = None, compiled: Any = None
    ) -> int:
        """In place of the harness's `launch`: says that all went well."""
        if compiled is None:
            self.note([kernel], list(sizes or {}))
        return 0

    def collect(self, runs: list[Callable[[], None]]) -> None:
        for run in runs:
            with contextlib.suppress(Exception):  # nothing is computed
                run()
        for (symbols, checked), kernels in self.wanted.items():
            with contextlib.suppress(Exception):  # each test will say it
                compiled = cpp.compile_kernels(list(kernels), symbols, checked)
                for kernel in kernels:
                    self.compiled[kernel, symbols, checked] = compiled

    def answer(
        self, kernels: Sequence[Any], symbols: Sequence[Any], target: Any = None,
        load: bool = True, check_bounds: bool | None = None,
    ) -> Any:  # fmt: skip
        for kernel in kernels[:1]:
            known = self.compiled.get((kernel, tuple(symbols), bool(check_bounds)))
            if len(kernels) == 1 and known is not None:
                return known
        return cpp.compile_kernels(kernels, symbols, check_bounds)


COMPILERS = [
    pytest.param("g++", id="gcc"),
    pytest.param("clang++", id="clang", marks=long),
]


EVERY = 5
"""One of so many cases of a test is left to the ordinary suite."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Compilers are slow: most cases are `long`."""
    seen: Counter[str] = Counter()
    for item in items:
        if getattr(item.module, "THROUGH_CPP", False):
            seen[item.originalname] += 1
            if seen[item.originalname] % EVERY != 1:
                item.add_marker(long)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of a module that imports those of LLVM's kernels run with each compiler."""
    if getattr(metafunc.module, "THROUGH_CPP", False):
        metafunc.fixturenames.append("made_by")
        metafunc.parametrize("made_by", COMPILERS, indirect=True, scope="module")


@pytest.fixture(autouse=True)
def through_cpp(request: pytest.FixtureRequest) -> None:
    if getattr(request.module, "THROUGH_CPP", False):
        request.getfixturevalue("made_by")


@pytest.fixture(scope="module")
def made_by(request: pytest.FixtureRequest) -> Iterator[Batch]:
    """The kernels of the module's tests, compiled by one of the compilers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGOT_CXX", shlex.join(command_of(request.param)))
        result = Batch()
        runs, scopes = [], {}
        for item in request.session.items:
            if item.module is request.module and item.callspec.params["made_by"] == request.param:
                if getattr(item.module, "WHOLE_PROGRAMS", False):
                    continue  # they cannot run without their kernels
                arguments = {**item.callspec.params}
                del arguments["made_by"]
                runs.append(functools.partial(item.obj, **arguments))
                scopes[id(item.obj.__globals__)] = item.obj.__globals__
        scopes[0] = vars(harness)
        with pytest.MonkeyPatch.context() as noting:
            replace(noting, scopes.values(), {**OWN, "compile_kernels": result.note})
            replace(noting, scopes.values(), {"launch": result.launched})
            noting.setattr(harness, "_check_on", lambda *_: None)
            result.collect(runs)
        scopes[1] = vars(pipeline)
        replace(patch, scopes.values(), {**OWN, "compile_kernels": result.answer})
        yield result


OWN = {"runnable_targets": lambda: [host()]}


def replace(
    patch: pytest.MonkeyPatch, scopes: Iterable[dict[str, Any]], by: dict[str, Any]
) -> None:
    """Replace what functions find under some names."""
    for scope in scopes:
        for name in by:
            if name in scope:
                patch.setitem(scope, name, by[name])
