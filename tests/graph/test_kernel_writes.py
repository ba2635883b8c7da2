"""Which arguments a Triton kernel writes, as its source says."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.codegen.triton.module import available

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

import triton
import triton.language as tl
from triton.language import store as put

from ingot.graph.kernel_writes import effects_of


def of_python(pointer):
    return pointer


@triton.jit
def inner(target, x):
    tl.store(target, x)


@triton.jit
def passes_on(a, b):
    return a, b + 1


@triton.jit
def itself(a, n):
    if n > 0:
        itself(a, n - 1)


@triton.jit
def plain(a, b):
    tl.store(a, tl.load(b))


@triton.jit
def imported(a, b):
    put(pointer=a, value=tl.load(b))


@triton.jit
def atomic(a, b, c):
    old = tl.atomic_add(a + tl.load(c), 1.0)
    tl.atomic_cas(b, 0, old)


@triton.jit
def in_a_loop(a, b, c):
    pointer = b
    for i in range(4):
        tl.store(pointer, 0)
        pointer = a + i
        while i > 2:
            pointer, _ = c, b


@triton.jit
def chosen(a, b, c, n):
    pointer = a if n > 2 else tl.where(n > 1, b, c)
    tl.store(pointer.to(tl.pointer_type(tl.int8)), 0)


@triton.jit
def by_call(a, b, c):
    inner(x=tl.load(b), target=a)
    first, second = passes_on(c, b)
    inner(second, 0)


@triton.jit
def of_tuples(a, b):
    pair = (a, b)
    tl.store(pair[0], 0)


@triton.jit
def of_lists(pointers, b):
    for k in tl.static_range(2):
        tl.store(pointers[k], tl.load(b))


@triton.jit
def descriptors(a, b, n):
    source = tl.make_tensor_descriptor(b, shape=[n], strides=[1], block_shape=[16])
    tl.make_tensor_descriptor(a, shape=[n], strides=[1], block_shape=[16]).store(
        [0], source.load([0])
    )


@triton.jit
def only_types(a, b):
    tl.store(a, tl.load(b).to(b.dtype.element_ty))


@triton.jit
def assembly(a, b):
    tl.inline_asm_elementwise("", "", [a], dtype=tl.int32, is_pure=False, pack=1)
    tl.load(b)


@triton.jit
def unknown_function(a, b):
    of_python(a)
    tl.load(b)


@triton.jit
def unknown_method(a, b):
    a.frobnicate(1)
    tl.load(b)


@triton.jit
def recursive(a, b):
    itself(a, 3)
    tl.load(b)


WRITTEN: list[tuple[Any, str]] = [
    (plain, "a"), (imported, "a"), (atomic, "a b"), (in_a_loop, "a b c"), (chosen, "a b c"),
    (by_call, "a b c"), (of_tuples, "a b"), (of_lists, "pointers"), (descriptors, "a"),
    (only_types, "a"), (assembly, "a"), (unknown_function, "a"), (unknown_method, "a"),
    (recursive, "a"),
]  # fmt: skip


@pytest.mark.parametrize("kernel, names", WRITTEN)
def test_written(kernel: Any, names: str) -> None:
    effects = effects_of(kernel)
    assert effects.written - {"n"} == set(names.split())
    assert effects.only_follow(frozenset("abc") | {"pointers"})


@triton.jit
def follows_loads(a, b):
    tl.store(tl.load(a).to(tl.pointer_type(tl.float32)), tl.load(b))


@triton.jit
def follows_numbers(a, n):
    tl.store(a, tl.load(n.to(tl.pointer_type(tl.float32))))


@pytest.mark.parametrize("kernel", [follows_loads, follows_numbers])
def test_addresses_that_no_tensor_gave(kernel: Any) -> None:
    assert not effects_of(kernel).only_follow(frozenset("ab"))


def test_without_source_all_is_written() -> None:
    space: dict[str, Any] = {}
    exec("def kernel(a, b):\n    pass", space)
    stand_in = type("InterpretedFunction", (), {"fn": staticmethod(space["kernel"])})
    assert effects_of(stand_in).written == {"a", "b"}
