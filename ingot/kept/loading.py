"""A native program of a description that another process packed, and of its machine code.

Nothing here plans or generates code, so a process that only loads programs imports none of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ingot.codegen.loaded_kernels import LASTING, Image, load_kernel
from ingot.codegen.perf_map import add_code, name_code
from ingot.kept.names import NotKept
from ingot.kept.steps import (
    BUFFERS,
    CONSTANTS,
    DEVICE,
    NAMES,
    OWNER,
    STEPS,
    Code,
    Packed,
    Row,
    with_addresses,
)
from ingot.native import _native

if TYPE_CHECKING:
    from ingot.built import Built


def form_of(built: Callable[[], Built]) -> Callable[[int, int], Row]:
    """Loads forms of the kernels of a program that is compiled once more: see `Code`."""

    def form(step: int, number: int) -> Row:
        from ingot.runtime.gpu_description import load_form

        program = built()
        kernels: Any = program.code  # those of a GPU, which alone have forms
        launched: Any = program.plan.steps[step]
        forms = kernels.forms(launched.kernel)
        return load_form(forms[number], program.program.device.index, LASTING)

    return form


def _no_form(step: int, form: int) -> Row:
    raise NotKept(f"there is no form {form} of step {step}")


def native_program(
    description: Sequence[Any],
    code: Packed,
    form: Callable[[int, int], Row] = _no_form,
) -> _native.Program:
    """The program of a description and of its code, as `packable` gives them. Object files are
    linked and images loaded, and nothing is generated; other forms of kernels for a GPU are loaded
    by `form` (see `Code`)."""
    names, objects, images = code
    parts, device = list(description), description[DEVICE]
    addresses, parts[OWNER] = _linked(names, objects)
    launched = []
    for image in images:
        launched.append(load_kernel(Image(*image), device.index, LASTING))
    meant, steps = Code(addresses, launched, form), []
    for step in description[STEPS]:
        steps.append(with_addresses(step, meant))
    parts[STEPS] = tuple(steps)
    name_code(steps, description[NAMES])
    if device.type != "cpu":
        parts[CONSTANTS] = _on_device(description)
    return _native.Program(tuple(parts))


def _on_device(description: Sequence[Any]) -> tuple[Any, ...]:
    """The constants of a program on a GPU, which are there but for those in the CPU's memory."""
    constants, device = list(description[CONSTANTS]), description[DEVICE]
    for kind, _, _, _, position, _, on_host in description[BUFFERS]:
        if kind == "constant" and not on_host:
            constants[position] = constants[position].to(device)
    return tuple(constants)


def _linked(names: Sequence[str], objects: Sequence[bytes]) -> tuple[Any, Any]:
    """The addresses of functions in object files, by name, and what holds their memory."""
    if not names:
        return {}, None
    loaded = _native.load_objects(tuple(objects), frozenset(names))
    if loaded is not None:
        add_code(loaded[0], objects)
        return loaded
    from ingot.codegen.llvm.library import link

    linked = link(objects, names)
    return linked, linked
