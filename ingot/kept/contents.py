"""What the file of a program holds: facts for people in front, then the program.

The facts in front can be read without the program, and by another version than the one that wrote
them, as long as `FORMAT` is the same. They are no part of the key: programs of two functions that
are captured alike are one, and have the name of the first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from ingot.codegen.store import Store
from ingot.kept.format import packed, unpacked
from ingot.kept.names import NotKept
from ingot.kept.steps import Packed

logger = logging.getLogger("ingot")

FORMAT = 5
"""Of what is kept; another one where the same key stands for something else."""


class Contents(NamedTuple):
    """`function` is the user's, `where` its file and line, `kernels` how many there are, and
    `program` the packed value that `programs.py` makes and reads."""

    format: int
    torch: str
    function: str
    where: str
    kernels: int
    program: bytes

    @property
    def is_ours(self) -> bool:
        """Whether this process may read the program: the names in it are those of its torch."""
        return (self.format, self.torch) == (FORMAT, str(torch.__version__))


def contents_of(function: str, where: str, kernels: int, program: Any) -> bytes:
    """The bytes of a program's file. Raises NotKept for a program that has none."""
    whole = packed(program)
    return packed((FORMAT, str(torch.__version__), function, where, kernels, whole))


def count_of(code: Packed) -> int:
    """How many kernels there are in a program's code."""
    names, _, images = code
    return len(names) + len(images)


def read_contents(content: bytes) -> Contents:
    """What is in the bytes of a program's file. Raises NotKept for bytes that are none."""
    value = unpacked(content)
    kinds = (int, str, str, str, int, bytes)
    if not isinstance(value, tuple) or tuple(map(type, value)) != kinds:
        raise NotKept("it is no file of a program")
    return Contents(*value)


Found = TypeVar("Found")


def found(store: Store, key: str, restore: Callable[[Any], Found]) -> Found | None:
    """What `restore` makes of the program that was kept under a key. Where it is sound and yet of
    no use, it is made again."""
    content = store.get(key)
    if content is None:
        return None
    try:
        return restore(unpacked(read_contents(content).program))
    except Exception as problem:  # of any kind: a program that is kept may fail to be linked
        logger.warning("a program that was kept cannot be used, and is made again: %s", problem)
    return None
