"""Kernels that are in the memory of a GPU, each once."""

from __future__ import annotations

from typing import Any, NamedTuple

from ingot.native import _native


class Image(NamedTuple):
    """A `function` of a loadable `image`: what a GPU is given of a kernel's binary.

    `shared` is the shared memory of a block in bytes, `threads` the number of its threads, and
    `hidden` how many null pointers follow its arguments.
    """

    image: bytes
    function: str
    shared: int
    threads: int
    hidden: int


Loaded = dict[tuple[bytes, str, int], Any]
"""Kernels by image, function and the number of the GPU."""

LASTING: Loaded = {}
"""Those that stay. A user's CUDA graph may launch a kernel when its program is long gone; and while
one is recorded, nothing may be unloaded."""


def load_kernel(image: Image, device: int, loaded: Loaded) -> tuple[Any, int, int, int]:
    """(kernel, threads, shared, hidden) of a description; the kernel is loaded into a GPU, and kept
    there as long as `loaded` lives."""
    key = image.image, image.function, device
    if key not in loaded:
        loaded[key] = _native.load_cuda(image.image, image.function, image.shared, device)
    return loaded[key], image.threads, image.shared, image.hidden
