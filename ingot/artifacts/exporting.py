"""`ingot.export`: calls of a function or module, compiled ahead of time into a file.

In: a function, and the arguments of one call or of several. Out: a file that `ingot.load` runs
where neither the function's source nor a compiler is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

import ingot
from ingot.artifacts import container, cpus
from ingot.artifacts.calls import How, Program, code_for, compiled_call, library_calls
from ingot.artifacts.foreign_programs import foreign_call, is_exported_program
from ingot.artifacts.library import write_library
from ingot.artifacts.signature import why_not_plain
from ingot.artifacts.state import State
from ingot.artifacts.weights import dumped, has_name
from ingot.built import Built
from ingot.codegen.llvm.library import llvm
from ingot.errors import ExportError
from ingot.kept.description import packable
from ingot.kept.format import packed
from ingot.kept.names import NotKept
from ingot.kept.steps import CONSTANTS
from ingot.options import shown

FORMATS = ("artifact", "library")
_CPU = torch.device("cpu")


class Exported(NamedTuple):
    """What `ingot.export` has written. `library_calls` are the steps that call torch instead of
    code of the artifact's own, with the user's lines; `kernels` counts its own functions."""

    path: str
    signatures: tuple[str, ...]
    kernels: int
    library_calls: tuple[str, ...]
    cpu: str

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.kernels} kernels for {self.cpu}", *self.signatures]
        lines += map("calls torch: {}".format, self.library_calls)
        return "\n".join(lines)


def export(
    fn: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    path: str | os.PathLike[str],
    dynamic: Any = None,
    weights: bool = True,
    cpu: str | None = None,
    training: bool = False,
    format: str = "artifact",  # noqa: A002 - the field's name for it
) -> Exported:
    """Compiles a call `fn(*args, **kwargs)` ahead of time, and writes it to a file that
    `ingot.load` runs in another process, without the source of `fn`. `fn` is not run.

    `fn` is a function, a method or a module; or an `ExportedProgram` of torch's, whose example
    inputs and varying sizes are taken where you give none. It is compiled for inference, as under
    `torch.no_grad()`, in the mode (train or eval) that its modules are in. All else that decides
    what it does (globals, closures, attributes, modes) is frozen into the file.

    args: a tuple; or a list of tuples, each of which becomes an entry of the artifact. A call of it
        is served by the first entry whose facts hold.
    dynamic: the sizes and ints that vary, as a dict by the names of arguments, or a tuple in their
        order: `{"x": {0: "batch"}}`, or `{"x": ("batch", None)}` with an item for each dimension;
        of an int its name alone. A size is a name, or `(name, least, most)`. Sizes of one name are
        equal.
    weights: whether parameters and buffers are part of the file. Without them
        `Artifact.load_weights` has to be called first.
    cpu: what it is compiled for: None, this machine; or "x86-64-v3", "x86-64-v4" or "aarch64".
    training: have calls of the artifact record gradients, of its weights and of arguments that
        require them in the call that is exported: the backward is part of the file.
    format: "artifact", a file for `ingot.load`; or "library", a shared library for programs in C or
        any other language, without Python (see `ingot_artifact.h`), for the highest of the
        processors above that this machine is, if none is named.

    Raises ExportError, which says the user's line and what to change, for what cannot be put into
    an artifact, TypeError for arguments that `fn` does not take, and OSError where the file cannot
    be written.
    """
    if training and format == "library":
        raise ValueError("ingot.export: a library computes no gradients: leave training out")
    how = How(training, format == "library")
    if is_exported_program(fn):
        fn, args, kwargs, dynamic = foreign_call(fn, args, kwargs, dynamic)
    calls = _checked_calls(fn, args, cpu)
    if format not in FORMATS:
        raise ValueError(f"ingot.export: format must be {' or '.join(FORMATS)}, not {format!r}")
    fn = _plain(fn)
    state, programs = State(fn), list[Program]()
    for each in calls:
        named = dict(kwargs or {})
        programs += compiled_call(fn, each, named, dynamic, state, how)
    try:
        if format == "library":
            cpu = cpu or cpus.baseline()
            write_library(os.fspath(path), programs, state, weights, cpu)
        else:
            _write(os.fspath(path), fn, programs, state, weights, cpu)
    except NotKept as reason:
        raise ExportError(f"ingot.export: {reason}, which cannot be written to a file") from None
    calls_of_torch: dict[str, None] = {}
    for program in programs:
        calls_of_torch |= dict.fromkeys(library_calls(program))
    return Exported(
        os.fspath(path),
        tuple(str(program.signature) for program in programs),
        sum(map(_kernels, programs)),
        tuple(calls_of_torch),
        cpu or "this machine",
    )


def _checked_calls(fn: Any, args: Any, cpu: str | None) -> list[tuple[Any, ...]]:
    """The arguments of each call; TypeError or ValueError for what `export` does not take."""
    if isinstance(fn, type) or not callable(fn):
        raise TypeError(f"ingot.export: expected a function or a module, not {shown(fn)}")
    if cpu is not None and cpu not in cpus.NAMED:
        raise ValueError(f"ingot.export: cpu must be one of {', '.join(cpus.NAMED)}, not {cpu!r}")
    calls = args if isinstance(args, list) else [args]
    for each in calls:
        if not isinstance(each, tuple):
            raise TypeError(
                f"ingot.export: args must be a tuple, or a list of tuples, not {shown(each)}"
            )
    if not calls:
        raise ValueError("ingot.export: args is an empty list: there is no call to export")
    return calls


def _plain(fn: Any) -> Any:
    """What capture is given: a module, or a Python function."""
    from ingot.api import original
    from ingot.compiler import entry_function

    fn = original(fn)
    if isinstance(fn, torch.nn.Module):
        return fn
    return entry_function(fn)


# -- the file --------------------------------------------------------------------------------------


def _write(
    path: str,
    fn: Any,
    programs: Sequence[Program],
    state: State,
    with_weights: bool,
    cpu: str | None,
) -> None:
    constants = state.constants()
    entries = []
    for number, program in enumerate(programs):
        entries.append(_entry(program, cpu, f"constant {number}", constants))
    machine, features = _needed(cpu)
    facts = {
        "name": getattr(fn, "__qualname__", type(fn).__qualname__),
        "ingot": ingot.__version__,
        "torch": str(torch.__version__),
        "cpu": cpu or llvm().get_host_cpu_name(),
    }
    content = packed(
        (machine, features, state.rows(), tuple(entries), state.unused(), tuple(facts.items()))
    )
    sections: dict[str, container.Chunks] = {"programs": [content], "constants": dumped(constants)}
    if with_weights:
        sections["weights"] = dumped(state.weights())
    container.write(path, sections)


def _entry(
    program: Program, cpu: str | None, prefix: str, constants: dict[str, torch.Tensor]
) -> tuple[Any, ...]:
    """An entry as `loading` reads it. Constants go to those of the file."""
    backward = None
    if program.backward is not None:
        built, *rest = program.backward
        backward = (_program(built, cpu, f"{prefix} backward", constants), *rest)
    return (
        program.signature.plain(),
        _program(program.built, cpu, prefix, constants),
        program.inputs,
        program.written,
        backward,
    )


def _program(
    built: Built, cpu: str | None, prefix: str, constants: dict[str, torch.Tensor]
) -> tuple[Any, ...]:
    """A program: its description, the names of its constants, its kernels' names and objects."""
    code = code_for(built, cpu)
    row, (kernels, objects, _) = packable(built.plan, code, _CPU)
    description = list(row)
    names = []
    for k, tensor in enumerate(description[CONSTANTS]):
        if why_not_plain(tensor) or not has_name(tensor.dtype) or not tensor.is_contiguous():
            raise NotKept(f"a constant {tensor.dtype} tensor of unusual layout is part of it")
        names.append(f"{prefix}.{k}")
        constants[names[-1]] = tensor
    description[CONSTANTS] = ()
    return tuple(description), tuple(names), kernels, objects


def _kernels(program: Program) -> int:
    """How many functions a program has."""
    count = code_for(program.built, None).function_count
    if program.backward is not None:
        count += code_for(program.backward.built, None).function_count
    return count


def _needed(cpu: str | None) -> tuple[str, tuple[str, ...]]:
    """The architecture and the features that a processor must have."""
    if cpu is not None:
        triple, _, _, features = cpus.NAMED[cpu]
        return triple.partition("-")[0], tuple(features.split())
    known = llvm().get_host_cpu_features()
    return cpus.machine(), tuple(sorted(filter(known.get, known)))
