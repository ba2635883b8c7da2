"""Python that programs call behind a graph break: many small functions, most without tensors."""

from __future__ import annotations

import argparse
import bisect
import dataclasses
import functools
import importlib.util
import io
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

TENSORS = [torch.ones(2, 3) for _ in range(50)]

# -- callbacks of C functions ----------------------------------------------------------------------

_NUMBER = re.compile(r"\d+")
_TEXT = " ".join(map(str, range(200)))


def _doubled(match: re.Match[str]) -> str:
    return str(int(match.group()) * 2)


def substitute() -> str:
    return _NUMBER.sub(_doubled, _TEXT)


class _Key:
    def __init__(self, value: float) -> None:
        self.value = value

    def __lt__(self, other: _Key) -> bool:
        return self.value < other.value


_KEYS = [_Key(i) for i in range(1000)]
_PROBES = [_Key(i * 7 + 0.5) for i in range(100)]
_ROWS = [(i * 7919 % 1000, str(i)) for i in range(1000)]


def bisections() -> list[int]:
    return [bisect.bisect(_KEYS, probe) for probe in _PROBES]


def sort_by_key() -> Any:
    return sorted(_ROWS, key=lambda row: row[0])[0]


def sort_by_lt() -> float:
    return sorted(reversed(_KEYS))[0].value


# -- functions, classes, generators ----------------------------------------------------------------


def _step(i: int) -> int:
    return i + 1


def _numbers(count: int) -> Iterator[int]:
    for i in range(count):
        yield _step(i)


def generators() -> int:
    return sum(_numbers(1000))


@dataclasses.dataclass
class _Point:
    x: int
    y: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)

    def norm(self) -> int:
        return self.x * self.x + self.y * self.y


def dataclass_instances() -> Any:
    points = [_Point(i, i + 1) for i in range(300)]
    return sum(map(_Point.__eq__, points, points[1:])), sum(point.norm() for point in points)


class _Counter:
    def __init__(self) -> None:
        self._value = 0

    @property
    def value(self) -> int:
        return self._value

    @value.setter
    def value(self, value: int) -> None:
        self._value = value


def properties() -> int:
    counter = _Counter()
    for _ in range(1000):
        counter.value += 1
    return counter.value


def comprehensions() -> int:
    total = 0
    for i in range(200):
        table = {k: [k + j for j in range(5)] for k in range(i % 7)}
        total += len({value for row in table.values() for value in row})
    return total


def _adder(n: int) -> Callable[[int], int]:
    def add(x: int) -> int:
        return x + n

    return add


def closures() -> int:
    return sum(_adder(i)(i) for i in range(300))


def _counted(*args: Any, **kwargs: Any) -> int:
    return len(args) + len(kwargs)


def any_arguments() -> int:
    return sum(_counted(1, 2, a=3, b=i) for i in range(300))


def _refuse(i: int) -> None:
    raise ValueError(i)


def exceptions() -> int:
    caught = 0
    for i in range(300):
        try:
            _refuse(i)
        except ValueError:
            caught += 1
    return caught


def _fibonacci(n: int) -> int:
    return n if n < 2 else _fibonacci(n - 1) + _fibonacci(n - 2)


def recursion() -> int:
    return _fibonacci(16)


def _depth(n: int) -> int:
    return 0 if n == 0 else _depth(n - 1) + 1


def deep_recursion() -> int:
    return sum(_depth(900) for _ in range(3))


def cached_recursion() -> int:
    @functools.lru_cache(None)
    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    return fibonacci(100)


# -- the library's own -----------------------------------------------------------------------------


def arguments() -> Any:
    parser = argparse.ArgumentParser("program")
    for i in range(20):
        parser.add_argument(f"--option{i}", type=int, default=i)
    return parser.parse_args(["--option3", "5"]).option3


_LOG = logging.getLogger("benchmarks.inner_works")
_LOG.propagate = False
_LOG.addHandler(logging.StreamHandler(io.StringIO()))


def log_lines() -> None:
    for i in range(30):
        _LOG.warning("step %d of %d", i, 30)


# -- tensors near at hand, and nothing computed ----------------------------------------------------


class _Fields:
    """A small tensordict."""

    def __init__(self, source: dict[str, Any], size: tuple[int, ...]) -> None:
        self.size = size
        self._fields: dict[str, Any] = {}
        for key, value in source.items():
            self.set(key, value)

    def _checked(self, key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return _Fields(value, self.size)
        if tuple(value.shape[: len(self.size)]) != self.size:
            raise ValueError(key)
        return value

    def set(self, key: str, value: Any) -> _Fields:
        self._fields[key] = self._checked(key, value)
        return self

    def get(self, key: str) -> Any:
        return self._fields[key]

    def flat(self, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for key in self._fields:
            value = self.get(key)
            if isinstance(value, _Fields):
                yield from value.flat((*prefix, key))
            else:
                yield (*prefix, key)


_NAMED = {f"k{i}": torch.ones(3, 4) for i in range(10)}
_NESTED = {"a": dict(_NAMED), "b": {"c": dict(_NAMED)}, **_NAMED}


def tensor_fields() -> list[Any]:
    return [*_Fields(_NESTED, (3,)).flat()]


class _Node:
    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name, self.tensor, self.children = name, tensor, list[_Node]()

    def add(self, child: _Node) -> _Node:
        self.children.append(child)
        return child

    def count(self) -> int:
        return 1 + sum(child.count() for child in self.children)


def tensor_tree() -> int:
    root = _Node("root", TENSORS[0])
    for i in range(20):
        child = root.add(_Node(str(i), TENSORS[i]))
        for j in range(5):
            child.add(_Node(str(j), TENSORS[j]))
    return root.count()


def _rank(tensor: Tensor) -> int:
    return tensor.ndim


def ranks() -> int:
    return sum(map(_rank, TENSORS))


def _sources(count: int) -> dict[str, Any]:
    """Many small functions and classes, as a library has them."""
    lines = []
    for i in range(count):
        lines += [f"def size{i}(tensor, n={i}):", "    sizes = tensor.shape"]
        lines += ["    return n if n > len(sizes) else sizes[0] + n"]
        lines += [f"class Box{i}:", "    def __init__(self, tensor): self.tensor = tensor"]
        lines += [f"    def rank(self): return self.tensor.dim() + {i}"]
    names: dict[str, Any] = {"__name__": "library"}
    exec(compile("\n".join(lines), "library.py", "exec"), names)
    return names


_LIBRARY = _sources(60)


def hundreds_of_functions() -> int:
    total = 0
    for i in range(60):
        total += _LIBRARY[f"size{i}"](TENSORS[0]) + _LIBRARY[f"Box{i}"](TENSORS[0]).rank()
    return total


# -- tensordict itself -----------------------------------------------------------------------------


def build_tensordict() -> list[str]:
    from tensordict import TensorDict

    return sorted(map(str, TensorDict(_NESTED, batch_size=[3]).keys(True)))


def set_in_tensordict() -> int:
    from tensordict import TensorDict

    fields = TensorDict(_NAMED, batch_size=[3])
    for i in range(10):
        fields.set(f"n{i}", fields.get(f"k{i}"))
    return len(fields.keys())


WORKS: dict[str, Callable[[], Any]] = {
    "re.sub": substitute,
    "bisect": bisections,
    "sorted, key": sort_by_key,
    "sorted, __lt__": sort_by_lt,
    "generators": generators,
    "dataclasses": dataclass_instances,
    "properties": properties,
    "comprehensions": comprehensions,
    "closures": closures,
    "*args, **kwargs": any_arguments,
    "exceptions": exceptions,
    "recursion": recursion,
    "deep recursion": deep_recursion,
    "lru_cache": cached_recursion,
    "argparse": arguments,
    "logging": log_lines,
    "fields of tensors": tensor_fields,
    "a tree of tensors": tensor_tree,
    "ranks of tensors": ranks,
    "180 functions": hundreds_of_functions,
}
if importlib.util.find_spec("tensordict") is not None:
    WORKS |= {"tensordict": build_tensordict, "tensordict, set": set_in_tensordict}
