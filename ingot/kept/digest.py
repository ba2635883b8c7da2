"""The key of a captured graph's program: a digest of all that decides it.

Capture has run when it is asked for, so nothing of the program's own source is part of it: only
what was captured, the tensors that it is given, the state of the thread, and the versions of what
compiles it. What the digest cannot tell apart is not kept.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import platform
import sys
from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import llvmlite
import torch
from torch import fx

import ingot
from ingot.capture.facts import read_global_state
from ingot.codegen.installed_triton import package_facts, variables_of_triton
from ingot.codegen.store import store_in
from ingot.graph.aten_tracer import EAGER_SAVES
from ingot.graph.fakes import FakeTensor, storage_key
from ingot.graph.meta import tensors_in
from ingot.kept.contents import FORMAT
from ingot.kept.format import packed
from ingot.kept.names import OF_TORCH, NotKept, name_of
from ingot.places import call_at, module_at
from ingot.torch_private import registered_kernels

if TYPE_CHECKING:
    from ingot.capture import Captured
    from ingot.kept.sizes import Sizes
    from ingot.options import Options

_CPU = torch.device("cpu")
_WITHOUT_EFFECT = frozenset({"INGOT_CACHE_DIR", "INGOT_DEBUG", "INGOT_TRACE"})
"""Variables that decide nothing about a program."""


def key_of(captured: Captured, options: Options, sizes: Sizes) -> str:
    """The key, in hexadecimal. Raises NotKept where there is none."""
    _require_known(captured)
    device = _device_of(captured)
    if options.freeze:
        raise NotKept("weights are frozen in it")
    if options.emit != "llvm":
        raise NotKept("its code is C++")
    facts = (
        FORMAT,
        _versions(),
        _surroundings(),
        _gpu(device),
        (options.mode, options.numerics, options.memory_budget),
        captured.donations.given,
        sizes.facts(),
        tuple(_facts_of_inputs(list(map(attrgetter("fake"), captured.inputs)), sizes)),
        tuple(_facts_of_nodes(captured.graph_module.graph, sizes)),
        repr(sorted(captured.graph_module.meta.items())),
    )
    return hashlib.sha256(packed(facts)).hexdigest()


def _require_known(captured: Captured) -> None:
    context = captured.context
    if context.shapes.unbacked.roots:
        raise NotKept("sizes depend on the data")
    if context.effects:
        raise NotKept("it has effects")


def _device_of(captured: Captured) -> torch.device | None:
    """The GPU of a graph, if there is one. Raises NotKept for other devices than one and the
    CPU."""
    gpu: torch.device | None = None
    values = list(map(attrgetter("fake"), captured.inputs))
    for node in captured.graph_module.graph.nodes:
        values.append(node.meta.get("val"))
    devices = set()
    for value in values:
        for tensor in tensors_in(value):
            devices.add(tensor.device)
    for device in devices - {_CPU}:
        if device.type != "cuda":
            raise NotKept(f"it computes on the device {device.type!r}")
        if gpu is not None:
            raise NotKept("it computes on several GPUs")
        gpu = device
    return gpu


# -- what compiles it ------------------------------------------------------------------------------


@cache
def _versions() -> tuple[str, ...]:
    return (
        ingot.__version__,
        _digest_of_package(),
        str(torch.__version__),
        str(torch.version.git_version),
        torch.__config__.show(),
        llvmlite.__version__,
        sys.version,
        platform.machine(),
        *platform.libc_ver(),
        _processor(),
    )


@cache
def _digest_of_package() -> str:
    """Of Ingot's own files, since a tree that is worked on has no version.

    It is of what they hold, which is the same wherever they are installed. They are read once: the
    digest is kept by their sizes and times.
    """
    root, files = os.path.dirname(ingot.__file__), []
    folders = [root]
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    if entry.name != "__pycache__":
                        folders.append(entry.path)
                elif entry.name.endswith((".py", ".so", ".pyd")):
                    status = entry.stat()
                    files.append((entry.path, status.st_size, status.st_mtime_ns))
    files.sort()
    key, store = hashlib.sha256(repr(files).encode()).hexdigest(), store_in("package")
    content = store.get(key)
    if content is None:
        content = _digest_of_files(root, [path for path, *_ in files])
        store.put(key, content)
    return content.hex()


def _digest_of_files(root: str, paths: list[str]) -> bytes:
    """A digest of the names and contents of files below a folder."""
    whole = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            facts = os.path.relpath(path, root), hashlib.sha256(file.read()).hexdigest()
        whole.update(repr(facts).encode())
    return whole.digest()


@cache
def _processor() -> str:
    """The model and the features of the processor, as the system tells them."""
    lines = []
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith(("model name", "flags", "Features", "CPU part")):
                    lines.append(line)
                elif not line.strip():
                    break
    except OSError:
        lines.append(platform.processor())
    return "".join(lines)


def _surroundings() -> tuple[Any, ...]:
    """The state of the process and the thread that planning asks for."""
    variables = []
    for name, value in sorted(os.environ.items()):
        if name.startswith("INGOT_") and name not in _WITHOUT_EFFECT:
            variables.append((name, value))
    state = read_global_state()
    for mode in state.function_modes:
        if not isinstance(mode, torch.device):
            raise NotKept("a mode sees its operations")
    processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    _require_torchs_kernels()
    libraries = torch.backends.mkldnn.enabled, torch.get_num_threads()
    return tuple(variables), repr(state), *libraries, processors


def _gpu(device: torch.device | None) -> tuple[Any, ...]:
    """The GPU, what compiles for it, and how torch's libraries are to compute on it."""
    if device is None:
        return ()
    facts, cudnn = torch.cuda.get_device_properties(device), torch.backends.cudnn
    chip = facts.name, facts.major, facts.minor, facts.total_memory, facts.multi_processor_count
    convolutions = cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic
    return chip, convolutions, cudnn.version(), package_facts(), variables_of_triton()


def _require_torchs_kernels() -> None:
    """Raises NotKept where an operator of torch's may be computed by the program."""
    if not isinstance(registered_kernels, set):
        raise NotKept("this torch does not tell which kernels are registered")
    for name in registered_kernels:
        namespace, _, rest = name.partition("/")
        if namespace in OF_TORCH and rest.rpartition("/")[2] in _ASKED:
            raise NotKept(f"the program has a kernel for {name}")


_ASKED = frozenset(
    """
    CPU CompositeExplicitAutograd CompositeExplicitAutogradNonFunctional CompositeImplicitAutograd
    Autograd AutogradCPU AutogradCUDA AutogradOther ADInplaceOrView AutocastCPU AutocastCUDA
    BackendSelect Conjugate Negative ZeroTensor Dense Functionalize Python PythonDispatcher
    Undefined
    """.split()
)
"""Dispatch keys whose kernels a call may come to while a program is planned. For others torch
registers some in Python, for vmap as late as it is used; those of a GPU run when the program
does."""


# -- what it is given ------------------------------------------------------------------------------

_KNOWN = frozenset(
    "meta is_outside required_grad is_followed origin look memory counts_alone "
    "shown_in_inference".split()
)
"""Attributes of fakes that are told below, or say nothing that the others do not."""


def _facts_of_inputs(fakes: list[Any], sizes: Sizes) -> Iterator[tuple[Any, ...]]:
    storages: dict[int, int] = {}
    numbers = dict(zip(map(id, fakes), itertools.count()))
    for fake in fakes:
        if isinstance(fake, torch.SymInt):
            yield "integer", sizes.told(fake)
            continue
        if type(fake) is not FakeTensor or not vars(fake).keys() <= _KNOWN:
            raise NotKept(f"it is given a {type(fake).__name__} that is no plain tensor")
        if fake.requires_grad and fake.is_leaf and not fake.required_grad:
            raise NotKept("it makes a leaf of what it is given")
        base = fake._base
        yield (
            tuple(map(sizes.told, fake.shape)),
            tuple(map(sizes.told, fake.stride())),
            sizes.told(fake.storage_offset()),
            fake.dtype,
            fake.device,
            fake.layout,
            (fake.requires_grad, fake.is_leaf, fake.required_grad, fake.is_followed),
            (fake.is_inference(), fake.is_conj(), fake.is_neg(), fake.is_outside),
            (fake.counts_alone, fake.shown_in_inference, fake.origin is None),
            storages.setdefault(storage_key(fake), len(storages)),
            sizes.told(fake.meta.untyped_storage().nbytes()),
            None if fake.is_inference() else fake._version,  # those of inference mode have none
            numbers.get(id(base)),
        )


# -- what was captured -----------------------------------------------------------------------------


def _facts_of_nodes(graph: fx.Graph, sizes: Sizes) -> Iterator[tuple[Any, ...]]:
    numbers: dict[fx.Node, int] = {}
    told = functools.partial(_told, numbers, sizes)
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            raise NotKept("it has tensors in it")
        target = node.target
        if node.op == "call_function":
            target = name_of(target)
        arguments = told(node.args), told(node.kwargs)
        yield node.op, node.name, target, arguments, tuple(_facts_of_meta(node.meta))
        numbers[node] = len(numbers)


def _facts_of_meta(meta: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What capture noted beside a node: where it is, and what gradients ask for."""
    for name, value in sorted(meta.items()):
        if name == "where":  # with what profilers are told
            yield name, (str(value), call_at(value), module_at(value))
        elif name in _NOTED:
            yield name, value
        elif name not in _FOLLOWING:
            raise NotKept(f"it has a node with a {name}")


_NOTED = frozenset({"region", EAGER_SAVES})
_FOLLOWING = frozenset({"val"})
"""What follows from the nodes before and the inputs."""


def _told(numbers: dict[fx.Node, int], sizes: Sizes, argument: Any) -> Any:
    """An argument, of what can be packed; each kind of container has its own word."""
    if type(argument) in _CONSTANTS:
        return "constant", argument
    if isinstance(argument, fx.Node):
        return "node", numbers[argument]
    told = functools.partial(_told, numbers, sizes)
    if isinstance(argument, slice):
        return "slice", told((argument.start, argument.stop, argument.step))
    if isinstance(argument, dict):
        items = []
        for name, item in argument.items():
            items.append((name, told(item)))
        return "dict", tuple(items)
    if isinstance(argument, (tuple, list)):
        return type(argument).__name__, tuple(map(told, argument))
    if isinstance(argument, torch.SymInt):
        return "symbolic", sizes.told(argument)
    if argument is Ellipsis:
        return ("ellipsis",)
    return "constant", argument


_CONSTANTS = frozenset({type(None), bool, int, float, str})
"""The usual types of arguments that are no nodes."""
