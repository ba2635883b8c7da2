"""`ingot.export(..., format="library")`: a shared library for programs that have no Python.

In: programs and their state. Out: a file that any C program loads (see `ingot_artifact.h`): the
kernels' machine code, a driver that LLVM compiles, and the weights. No compiler is used, and of
linkers the system's, or one that a package brings.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ingot.artifacts import cpus
from ingot.artifacts.calls import Program, code_for, library_calls, target_of
from ingot.artifacts.driver import Slot, Weight, text_of
from ingot.artifacts.driver_entry import Part
from ingot.artifacts.elf import write_object
from ingot.artifacts.state import State
from ingot.artifacts.weights import bytes_of
from ingot.codegen.llvm.library import llvm
from ingot.codegen.llvm.objects import object_of
from ingot.codegen.llvm.target import Target
from ingot.errors import ExportError
from ingot.kept.description import packable
from ingot.kept.steps import CONSTANTS

_CPU = torch.device("cpu")
_ALIGNMENT = 64
_SYMBOLS = "{ global: ingot_*; local: *; };\n"


class Image:
    """The bytes of the weights in a library: tensors, each at an offset."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.slots: list[Slot] = []
        self.end = 0

    def add(self, tensor: Tensor, is_here: bool, is_written: bool) -> int:
        """The number of a new slot for a tensor, whose bytes are in the library if it
        `is_here`."""
        count, offset = _bytes(tensor), -1
        if is_here:
            self.tensors.append(tensor)
            offset = self.end
            self.end += count + -count % _ALIGNMENT
        self.slots.append(Slot(offset, count, is_written))
        return len(self.slots) - 1

    def chunks(self) -> Iterator[Any]:
        """The bytes, piece by piece."""
        for tensor in self.tensors:
            yield from bytes_of(_flat(tensor))
            yield bytes(-_bytes(tensor) % _ALIGNMENT)
        yield bytes(_ALIGNMENT)


def write_library(
    path: str, programs: Sequence[Program], state: State, with_weights: bool, cpu: str
) -> None:
    """Writes a shared library. Raises ExportError where a step calls torch, or nothing links."""
    target = target_of(cpu)
    architecture = target.triple.partition("-")[0]
    if architecture == "x86_64":
        if cpus.machine() != architecture:
            raise ExportError("ingot.export: a library for x86-64 is exported on such a machine")
        llvm().initialize_native_asmparser()  # for the instruction that tells its features
    image = Image()
    rows = state.rows()
    for tensor, (*_, is_weight, is_written, _) in zip(state.tensors, rows):
        image.add(tensor, with_weights or not is_weight, is_written)
    parts, objects, kernels = [], [], list[str]()
    for number, program in enumerate(programs):
        _refuse_calls(program)
        code = code_for(program.built, cpu, f"entry{number}_kernel")
        description, _ = packable(program.built.plan, code, _CPU)
        constants = []
        for tensor in description[CONSTANTS]:
            constants.append(image.add(tensor, True, False))
        parts.append(Part(program, description, tuple(constants)))
        objects += code.objects
        kernels += code.names
    weights = []
    for number, (names, dtype, sizes, strides, is_weight, *_) in enumerate(rows):
        if is_weight:
            weights += [Weight(name, number, dtype, sizes, strides) for name in names]
    text = text_of(parts, kernels, image.slots, weights, cpus.NAMED[cpu][3])
    plain = Target(target.triple, cpus.PLAIN[architecture], "", 16)
    objects.append(object_of(text, plain))
    _link(path, objects, image, target)


def _refuse_calls(program: Program) -> None:
    """Raises ExportError for steps other than launches, which a library cannot do."""
    calls = library_calls(program)
    if calls:
        listed = "".join(map("\n  {}".format, calls))
        raise ExportError(
            "ingot.export: these steps call torch, which a library does not have: export an "
            "artifact for ingot.load, or write them in operations that Ingot compiles (recurrent "
            f"layers: torch.backends.mkldnn.flags(enabled=False) around the export){listed}"
        )


def _bytes(tensor: Tensor) -> int:
    """The bytes from a tensor's first to its last element."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size()


# -- linking ---------------------------------------------------------------------------------------


def _link(path: str, objects: Sequence[bytes], image: Image, target: Target) -> None:
    with tempfile.TemporaryDirectory(prefix="ingot") as folder:
        names = []
        for k, content in enumerate(objects):
            names.append(os.path.join(folder, f"{k}.o"))
            Path(names[-1]).write_bytes(content)
        names.append(os.path.join(folder, "weights.o"))
        with open(names[-1], "wb") as file:
            write_object(file, target.triple.partition("-")[0], "weights", image.chunks())
        symbols, made = os.path.join(folder, "symbols"), os.path.join(folder, "made.so")
        Path(symbols).write_text(_SYMBOLS)
        options = ["-shared", "-z", "noexecstack", f"--version-script={symbols}", "-o", made]
        problems = []
        for linker in linkers():
            done = subprocess.run([*linker, *options, *names], capture_output=True, text=True)
            if done.returncode == 0:
                part = f"{path}.part"
                shutil.copyfile(made, part)
                os.replace(part, path)
                return
            problems.append(f"{' '.join(linker)}: {done.stderr.strip().partition(chr(10))[0]}")
    what = "; ".join(problems) or "there is none"
    raise ExportError(
        f"ingot.export: a shared library needs a linker ({what}): install binutils or lld, or the "
        "package ziglang"
    )


def linkers() -> Iterator[list[str]]:
    """The linkers that there are, best first."""
    for name in ("ld.lld", "ld"):
        found = shutil.which(name)
        if found:
            yield [found]
    if find_spec("ziglang") is not None:
        yield [sys.executable, "-m", "ziglang", "ld.lld"]


def _flat(tensor: Tensor) -> Tensor:
    """All memory from a tensor's first to its last element."""
    count = _bytes(tensor) // tensor.element_size()
    return tensor.detach().as_strided((count,), (1,))
