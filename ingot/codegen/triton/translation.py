"""From a kernel's text to a device's image, by the stages of Triton's backend.

Run as a script it is a worker, which translates what it reads. It imports neither torch nor the
rest of Ingot, so that it starts as fast as Triton does.
"""

from __future__ import annotations

import importlib.util
import json
import linecache
import os
import re
import sys
import types
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice

from ingot.codegen.triton import helpers


"""

_files = count()
_ARTEFACTS = {"cuda": ("cubin", "ptx"), "hip": ("hsaco", "amdgcn")}


class Text(NamedTuple):
    """The text of one kernel and all that decides its image. `target` is a backend, an architecture
    and the threads of a warp; `divisible` are the parameters that are multiples of `alignment`."""

    name: str
    source: str
    signature: dict[str, str]
    constants: dict[str, Any]
    divisible: list[int]
    alignment: int
    target: tuple[str, int | str, int]
    options: dict[str, Any]


class Translated(NamedTuple):
    """A loadable image, and what the device's assembler read for it.

    `function` is the name in it, `shared` the shared memory of a block in bytes, `hidden` how many
    pointers Triton added to the parameters.
    """

    image: bytes
    assembly: str
    function: str
    shared: int
    hidden: int


def translate(text: Text) -> Translated:
    """The image of one kernel."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    attributes = {(k,): [["tt.divisibility", text.alignment]] for k in text.divisible}
    signature = text.signature | dict.fromkeys(text.constants, "constexpr")
    function = load(text.name, text.source)
    source = ASTSource(function, signature, constexprs=text.constants, attrs=attributes)
    artefacts, facts = _run_stages(source, GPUTarget(*text.target), text.options)
    backend = text.target[0]
    image, assembly = (artefacts[kind] for kind in _ARTEFACTS[backend])
    hidden = 0
    if backend == "cuda":
        hidden = _parameters(assembly) - len(text.signature)
    return Translated(image, assembly, facts["name"], facts["shared"], hidden)


def load(name: str, source: str) -> Any:
    """The function that Triton compiles. `inspect` and tracebacks find its text."""
    text = HEADER + source
    file = f"<ingot kernel {next(_files)} {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": f"ingot.kernels.{name}"}
    exec(compile(text, file, "exec"), names)
    return names[name]


def _run_stages(
    source: Any, target: Any, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The artefacts of a kernel by the names of the backend's stages, and the facts about it.

    Triton's own `compile` also reads all of its library, several hundred megabytes, for the key of
    its cache.
    """
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    backend = make_backend(target)
    parsed = backend.parse_options(options)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions, modules = backend.get_codegen_implementation(parsed), backend.get_module_map()
    module = source.make_ir(target, parsed, functions, modules, context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, source.language)
    facts: dict[str, Any] = {"target": target, **vars(parsed)}
    artefacts: dict[str, Any] = {}
    for name, stage in stages.items():
        artefacts[name] = module = stage(module, facts)
    return artefacts, facts


def _parameters(ptx: str) -> int:
    """How many parameters the kernel takes, those that Triton adds included."""
    entry = re.search(r"\.entry [^(]*\(([^)]*)\)", ptx)
    if entry:
        return entry.group(1).count(".param")
    return 0


# -- between a worker and who uses it --------------------------------------------------------------


def send(stream: IO[bytes], facts: list[Any], *parts: bytes) -> None:
    """Facts as a line of JSON, and bytes behind it."""
    stream.write(json.dumps([facts, list(map(len, parts))]).encode() + b"\n" + b"".join(parts))
    stream.flush()


def received(stream: IO[bytes]) -> tuple[list[Any], list[bytes]] | None:
    """What the other side sent; None where it has gone."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    facts, lengths = json.loads(line)
    parts = [stream.read(length) for length in lengths]
    if list(map(len, parts)) != lengths:
        return None
    return facts, parts


def _serve() -> None:
    """Translates texts until there are no more. One that fails is answered with nothing: who asked
    finds the error by itself."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a compiler prints is no answer
    _stand_in_for_ingot()
    while (message := received(sys.stdin.buffer)) is not None:
        facts, parts = [], list[bytes]()
        try:
            done = translate(Text(*message[0]))
        except Exception:
            pass
        else:
            facts = [done.function, done.shared, done.hidden]
            parts = [done.image, done.assembly.encode()]
        send(answers, facts, *parts)


def _stand_in_for_ingot() -> None:
    """Lets `HEADER` import the helpers, without the packages that they are in: these import
    torch."""
    here = Path(__file__).parent
    for name in ("ingot", "ingot.codegen", "ingot.codegen.triton"):
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = []
    name = "ingot.codegen.triton.helpers"
    spec = importlib.util.spec_from_file_location(name, here / "helpers.py")
    assert spec is not None and spec.loader is not None
    helpers = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helpers)
    package.helpers = helpers  # type: ignore[attr-defined]


if __name__ == "__main__":
    _serve()
