"""The text around a kernel: the head of its function, and one that runs all of it by OpenMP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ingot.loops.expr import Expr
from ingot.loops.ir import Fault


class Function(NamedTuple):
    """C++ text in which the function is called KERNEL, and what its caller must know.

    `functions` are the elementary ones that it calls, by name and type. `driver` is the text of a
    function that runs all of it by OpenMP's threads. `unit` points are computed at a time.
    """

    text: str
    driver: str
    functions: frozenset[tuple[str, str]]
    errors: tuple[Fault, ...]
    scratch_bytes: Expr
    unit: int = 1


_DRIVER = """\
#ifdef _OPENMP
// all of it, by OpenMP's threads
extern "C" int32_t KERNEL_parallel(void *const *buffers, const int64_t *sizes) {
SIZES
  const int64_t points = POINTS;
  int32_t status = 0;
#pragma omp parallel reduction(max : status)
  {
    const int64_t share = (points + omp_get_num_threads() - 1) / omp_get_num_threads();
    const int64_t begin = ingot::smaller(omp_get_thread_num() * share, points);
    const int64_t end = ingot::smaller(begin + share, points);
    void *scratch = std::aligned_alloc(64, (SCRATCH) + 64);
    status = KERNEL(buffers, sizes, begin, end, scratch);
    std::free(scratch);
  }
  return status;
}
#endif
"""


def comment(text: str) -> str:
    """A comment of one line, whatever the text has: of it nothing becomes code, and no backslash
    joins the next line to it."""
    letters = []
    for letter in text:
        letters.append(letter if letter.isprintable() else "?")
    return f"// {''.join(letters)}".rstrip(" \\")


def head_of() -> str:
    """The first lines of a kernel's function."""
    return (
        'extern "C" int32_t KERNEL(\n'
        "    void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end, "
        "void *scratch) {"
    )


def driver_of(sizes: Sequence[str], points: str, scratch: str) -> str:
    """A function that runs a kernel of so many points by OpenMP's threads, each with so many bytes
    of scratch memory. `sizes` are the lines that read those that the two texts mention."""
    text = _DRIVER.replace("SIZES\n", "".join([f"{line}\n" for line in sizes]))
    return text.replace("POINTS", points).replace("SCRATCH", scratch)
