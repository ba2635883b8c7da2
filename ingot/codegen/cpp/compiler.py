"""The system's C++ compiler: which one it is, and object files of C++ text.

INGOT_CXX, or else CXX, is its command; without these g++, clang++ and c++ are looked for. What it
made once is kept for later processes.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ingot.codegen.llvm.target import host
from ingot.codegen.store import store_in
from ingot.errors import unsupported

FLAGS = (
    "-std=c++17", "-O3", "-march=native",
    "-ffp-contract=off",  # a product is rounded before it is added to, as in eager
    "-fno-math-errno", "-fno-trapping-math",  # nobody asks for either
    "-fwrapv", "-fno-strict-aliasing",  # integers wrap around; memory is used again for other types
    "-fopenmp-simd", "-fPIC", "-fno-exceptions", "-fno-asynchronous-unwind-tables",
    "-fno-stack-protector", "-w",
)  # fmt: skip
"""No flag among these lets the compiler change a result."""

_WIDE = "-mprefer-vector-width=512"  # where registers have 64 bytes
_CANDIDATES = ("g++", "clang++", "c++")
_FORMAT = 1  # of what is kept


class Compiler(NamedTuple):
    """A command, and what its `--version` says."""

    command: tuple[str, ...]
    version: str

    @property
    def flags(self) -> tuple[str, ...]:
        if host().vector_bytes == 64:
            return (*FLAGS, _WIDE)
        return FLAGS

    def object_of(self, text: str) -> bytes:
        """The object file of a C++ text. Raises Unsupported where the compiler fails.

        That takes long: it is called in a thread that is waited for.
        """
        store, key = store_in("cpp"), self._key(text)
        image = store.get(key)
        if image is None:
            image = self._made(text, "-c")
            store.put(key, image)
        return image

    def _key(self, text: str) -> str:
        target = host()
        facts = _FORMAT, self.command, self.version, self.flags, target.cpu, target.features, text
        return hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()

    def assembly_of(self, text: str) -> str:
        """The assembly of a C++ text."""
        return self._made(text, "-S").decode()

    def _made(self, text: str, what: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="ingot-") as folder:
            source, result = Path(folder, "kernels.cpp"), Path(folder, "kernels.out")
            source.write_text(text, "utf-8")
            run = _run([*self.command, *self.flags, what, str(source), "-o", str(result)])
            if run.returncode or not result.exists():
                name, problem = " ".join(self.command), _problem(run.stderr)
                raise unsupported(
                    "compiler-missing", f"the C++ compiler {name!r} failed: {problem}"
                )
            return result.read_bytes()


def _problem(text: str) -> str:
    """The first line of a compiler's messages that tells of an error."""
    lines = list(filter(None, text.splitlines()))
    for line in lines:
        if "error" in line:
            return line
    return lines[0] if lines else "it made no file"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment,
        errors="replace", check=False,
    )  # fmt: skip


def chosen() -> Compiler:
    """The compiler. Raises Unsupported where there is none."""
    named = os.environ.get("INGOT_CXX") or os.environ.get("CXX")
    if named:
        command = tuple(shlex.split(named))
    else:
        command = tuple(filter(shutil.which, _CANDIDATES))[:1]
    if not command or shutil.which(command[0]) is None:
        missing = "no C++ compiler is found: install g++ or clang++"
        if command:
            missing = f"no C++ compiler is called {command[0]!r}"
        raise unsupported("compiler-missing", f'{missing} (options={{"emit": "cpp"}})')
    return Compiler(command, _version(command))


@cache
def _version(command: tuple[str, ...]) -> str:
    return _run([*command, "--version"]).stdout
