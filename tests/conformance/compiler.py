"""torch.compiler: what is called inside of compiled functions, or decorates what they call.

tests/test_torch_compiler.py has what is called outside, and each name's plain case.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.conformance.program import Table

C = torch.compiler
PUBLIC = C.__all__

OUTSIDE = {
    "config": "settings of torch.compile's own caches",
    "list_backends": "is called outside",
    "set_default_backend": "the same",
    "get_default_backend": "the same",
    "set_enable_guard_collectives": "of torch.compile's guards",
    "load_compiled_function": "of torch.compile's files",
    "save_cache_artifacts": "the same",
    "load_cache_artifacts": "the same",
    "precompile": "the same",
    "PrecompileError": "the same",
    "cudagraph_mark_warmup_incomplete": "of torch.compile's CUDA graphs",
    "keep_portable_guards_unsafe": "a filter of guards",
    "keep_tensor_guards_unsafe": "the same",
    "skip_all_guards_unsafe": "the same",
    "skip_guard_on_all_nn_modules_unsafe": "the same",
    "skip_guard_on_globals_unsafe": "the same",
    "skip_guard_on_inbuilt_nn_modules_unsafe": "the same",
    "reset": "is called outside",
    "set_stance": "the same",
}
"""Names that no program calls inside of compiled functions, and why."""

double = C.allow_in_graph(lambda x: x.sin() * 2)
in_parts = C.allow_in_graph(lambda x, y: (x + y, {"d": x - y}))
LAYER = nn.Linear(4, 4)


@C.disable
def opaque(x: Tensor) -> Tensor:
    return x.sin()


@C.disable(recursive=False)
def opaque_frame(x: Tensor) -> Tensor:
    return x.cos()


@C.nested_compile_region
def region(x: Tensor) -> Tensor:
    return x.sin() * x


@C.nested_compile_region
def region_of_a_layer(x: Tensor, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    return LAYER(x) * scale, x.exp()


@C.assume_constant_result
def count() -> int:
    return 3


@C.assume_constant_result
def constant_tensor() -> Tensor:
    return torch.ones(4)


@C.wrap_numpy
def of_arrays(a: Any) -> Any:
    return a * 2 + 1


@torch.compile(backend="eager")
def compiled_inside(x: Tensor) -> Tensor:
    return x.cos() + 1


def regions(x: Tensor) -> Tensor:
    for _ in range(3):
        x = region(x)
    return x


def stepped(x: Tensor) -> Tensor:
    C.cudagraph_mark_step_begin()
    return x.sin()


def compiled_by_the_function(x: Tensor) -> Any:
    return C.compile(lambda x: x + 1, backend="eager")(x)


def branch_on_compilation(x: Tensor) -> Tensor:
    if C.is_exporting():
        return x * 2
    return x.sin()


PROGRAMS: Table = {
    "allow_in_graph": {
        "value": lambda x: double(x) + 1,
        "edge: trees": lambda x, y: in_parts(x, y)[1]["d"],
        "edge: no elements": lambda empty: double(empty),
        "gradient": lambda x: double(x) + 1,
        "gradient: trees": lambda x, y: in_parts(x, y)[1]["d"] * x,
    },
    "disable": {
        "value": lambda x: opaque(x + 1) * 2,
        "edge: not what it calls": lambda x: opaque_frame(x) + 1,
        "edge: twice": lambda x: opaque(opaque(x) + 1),
        "gradient": lambda x: opaque(x + 1) * 2,
        "gradient: not what it calls": lambda x: opaque_frame(x * 2) + 1,
    },
    "nested_compile_region": {
        "value": regions,
        "edge: two results": lambda x: region_of_a_layer(x),
        "edge: another number": lambda x, f: region_of_a_layer(x, f),
        "edge: other sizes": lambda x, v: (region(x), region(v)),
        "edge: no elements": lambda empty: region(empty),
        "gradient": regions,
        "gradient: two results": lambda x: region_of_a_layer(region(x)),
    },
    "assume_constant_result": {
        "value": lambda x: x * count(),
        "edge: a size": lambda x: x.repeat(count(), 1),
        "edge: a tensor": lambda x: x + constant_tensor(),
        "gradient": lambda x: x * count(),
    },
    "wrap_numpy": {
        "value": lambda x: of_arrays(x),
        "edge: no elements": lambda empty: of_arrays(empty),
        "gradient: of what stands beside": lambda x: of_arrays(x.detach()) * x,
    },
    "compile": {
        "value": lambda x: compiled_inside(x) * 2,
        "edge: called by the function": compiled_by_the_function,
        "gradient": lambda x: compiled_inside(x) * 2,
    },
    "is_compiling": {
        "value": lambda x: x.sin() if C.is_compiling() else x.sin() * 1,
        "gradient": lambda x: x.sin() if C.is_compiling() else x.sin() * 1,
    },
    "is_dynamo_compiling": {
        "value": lambda x: x.sin() if C.is_dynamo_compiling() else x.sin() * 1,
        "gradient": lambda x: x.sin() if C.is_dynamo_compiling() else x.sin() * 1,
    },
    "is_exporting": {"value": branch_on_compilation, "gradient": branch_on_compilation},
    "cudagraph_mark_step_begin": {"value": stepped, "gradient": stepped},
    "substitute_in_graph": {
        "value": lambda x: x * len(list(map(str, range(3)))),
        "gradient": lambda x: x * sum(filter(None, [1, 0, 2])),
    },
}
