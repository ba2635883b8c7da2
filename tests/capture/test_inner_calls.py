"""What a broken instruction calls: which functions are looked at, how often, and when no more."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot import compiler as compilers
from ingot.native import _native
from tests.tracked import Tracked

X, SQUARE = torch.linspace(-2, 2, 8), torch.eye(3)
pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture(autouse=True)
def nothing_is_decided() -> None:
    _native.clear_code_entries()


def called_from_c(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, as one whose calls break a graph."""
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, *[ctypes.py_object] * function.__code__.co_argcount)
    return kind(function)


def program_around(work: Callable[[], Any]) -> Callable[[Tensor], Any]:
    """A program with a graph, the work, and a graph."""
    from_c = called_from_c(work)

    def program(x: Tensor) -> Any:
        y = x.sin()
        return from_c(), y.cos()

    return program


def looks(function: Callable[..., Any]) -> int:
    """How often a function was looked at; a code object that always runs as it is counts none."""
    decided = _native.code_looks(function.__code__)
    assert decided is not None
    return decided[0]


def graphs(tracked: Tracked, name: str) -> int:
    """How many graphs a function of this name has."""
    found = [c for c in tracked.compiler.compilations if c.name.endswith(name) and c.has_graph]
    return len(found)


def test_a_function_without_tensors_is_not_captured() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    class Number:
        def __init__(self, value: int) -> None:
            self.value = value

        def __lt__(self, other: Number) -> bool:
            return self.value < other.value

    def work() -> Any:
        ordered = sorted(map(Number, range(100, 0, -1)))
        return sum(add(number.value, 1) for number in ordered)

    tracked = Tracked(program_around(work), backend="eager")
    for _ in range(3):
        tracked(X)
    assert looks(add) == looks(Number.__init__) == looks(Number.__lt__) == looks(work) == 0
    assert tracked.count == 2


def test_a_function_that_ran_no_graph_comes_to_rest() -> None:
    def rank(tensor: Tensor) -> int:
        return tensor.dim()

    def work() -> Any:
        return [rank(X) for _ in range(100)]

    tracked = Tracked(program_around(work), backend="eager")
    assert tracked(X) == 3  # of which one is in vain
    first = looks(rank)
    for _ in range(99):
        assert tracked(X) == 0
    assert first < 10 and looks(rank) < 25


def test_reset_ends_a_rest() -> None:
    def rank(tensor: Tensor) -> int:
        return tensor.dim()

    def work() -> Any:
        return [rank(X) for _ in range(100)]

    tracked = Tracked(program_around(work), backend="eager")
    for _ in range(100):
        tracked(X)
    ingot.reset()
    assert _native.code_looks(rank.__code__) is None
    assert tracked(X) == 3 and looks(rank) > 1


def test_compilations_in_vain_cost_more_than_calls() -> None:
    def name_of(tensors: dict[str, Tensor], name: str) -> Any:
        return name, tensors[name].dim()

    def work() -> Any:
        return [name_of({name: X}, name) for name in names]

    names = [f"name{i}" for i in range(1000)]
    tracked = Tracked(program_around(work), backend="eager")
    assert tracked(X) <= 2 + 4  # each for another name
    assert tracked(X) <= 1


def test_a_function_that_computes_is_looked_at_each_time() -> None:
    def double(tensor: Tensor) -> Tensor:
        return tensor * 2

    def work() -> Any:
        return [double(X).sum().item() for _ in range(50)]

    tracked = Tracked(program_around(work), backend="eager")
    for _ in range(3):
        tracked(X)
    assert looks(double) == 150 and graphs(tracked, "double") == 1


def test_a_function_that_begins_to_compute_is_found_again() -> None:
    def maybe(tensor: Tensor, factor: int) -> Any:
        if factor == 1:
            return None
        return tensor * factor

    def work() -> Any:
        return [maybe(X, factor) for _ in range(64)]

    factor = 1
    tracked = Tracked(program_around(work), backend="eager")
    for _ in range(8):
        tracked(X)
    assert graphs(tracked, "maybe") == 0
    factor = 2
    before = looks(maybe)
    for _ in range(32):  # 2,048 calls; a rest is at most half of that
        tracked(X)
    assert graphs(tracked, "maybe") == 1
    assert looks(maybe) - before > 1000  # no rest any more


class Box:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def mark(self, label: str | None) -> None:
        self.labels, self.label = [label], label
        if label is None:
            self.labels = []

    @property
    def held(self) -> Tensor:
        return self.tensor

    @property
    def turned(self) -> Tensor:
        return self.tensor.T

    @property
    def both(self) -> Any:
        return self.doubled, self.doubled

    @property
    def doubled(self) -> Tensor:
        return self.tensor * 2

    def again(self) -> Tensor:
        return self.doubled


def test_a_function_that_only_moves_objects_is_never_looked_at() -> None:
    def dimensions(tensor: Tensor) -> Any:
        return tensor.shape

    def work() -> Any:
        box = Box(SQUARE)
        box.mark("label")
        return [dimensions(box.held), box.turned, box.both, box.again()]

    tracked = Tracked(program_around(work), backend="eager")
    for _ in range(3):
        tracked(X)
    held, turned, both = (vars(Box)[name].fget for name in ("held", "turned", "both"))
    assert [looks(moving) for moving in (Box.mark, held, dimensions, Box.again)] == [0] * 4
    assert [looks(other) for other in (turned, both)] == [3, 3]
    assert graphs(tracked, "both") == 1  # of both properties
    assert graphs(tracked, "doubled") == 1


def test_marks_of_a_function_that_only_moves_objects() -> None:
    def read(box: Box) -> Any:
        return box.doubled

    def work() -> Any:
        return read(Box(X))

    vars(read)["_torchdynamo_disable"] = True
    tracked = Tracked(program_around(work), backend="eager")
    tracked(X)
    assert graphs(tracked, "doubled") == 0
    vars(read).clear()
    tracked(X)
    assert graphs(tracked, "doubled") == 1


def test_what_a_resting_function_calls_is_captured() -> None:
    def scale(tensor: Tensor) -> Tensor:
        return tensor * 3

    def apply(function: Any, tensor: Tensor) -> Any:
        return function(tensor)

    def work() -> Any:
        return [apply(function, X) for _ in range(64)]

    function: Any = Tensor.dim
    tracked = Tracked(program_around(work), backend="eager")
    tracked(X)
    assert _native.code_looks(apply.__code__)[2] > 0  # type: ignore[index]
    function = scale
    tracked(X)
    assert graphs(tracked, "scale") == 1


def test_a_resting_function_that_is_disabled() -> None:
    """Marks are of one function; another of the same code was not disabled."""

    def make(name: str) -> Any:
        def visit(tensor: Tensor) -> Any:
            seen.append(name)
            return inner(tensor) if name == "disabled" else tensor.dim()

        return visit

    @ingot.compile(backend="eager")
    def inner(tensor: Tensor) -> Any:
        seen.append(torch.compiler.is_compiling())
        return tensor * 2

    def work() -> Any:
        return [visits[i % 2](X) for i in range(64)]

    seen: list[Any] = []
    visits = [make("free"), make("disabled")]
    visits[1]._torchdynamo_disable = True
    program = ingot.compile(program_around(work), backend="eager")
    for _ in range(3):
        program(X)
    assert True not in seen and seen.count(False) == 3 * 32
    assert _native.code_looks(visits[0].__code__)[2] > 0  # type: ignore[index]


def test_a_broken_function_is_not_blamed_for_the_graphs_that_it_calls() -> None:
    def double(tensor: Tensor) -> Tensor:
        return tensor * 2

    def outer(tensor: Tensor) -> Any:
        return from_c(tensor)

    def work() -> Any:
        return [outer(X) for _ in range(64)]

    from_c = called_from_c(double)
    tracked = Tracked(program_around(work), backend="eager")
    for _ in range(3):
        tracked(X)
    assert looks(outer) < 20 and looks(double) == 3 * 64
    assert graphs(tracked, "double") == 1


def test_more_functions_than_continuations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "MAX_CONTINUATIONS", 1)

    def double(tensor: Tensor) -> Tensor:
        return tensor * 2

    def work() -> Any:
        return [double(X) for _ in range(64)]

    tracked = Tracked(program_around(work), backend="eager")
    for _ in range(3):
        tracked(X)
    assert graphs(tracked, "double") == 0 and looks(double) < 10


def test_an_error_in_a_function_that_rests() -> None:
    def check(tensor: Tensor, limit: int) -> None:
        if tensor.dim() > limit:
            raise ValueError(f"more than {limit} dimensions")

    def work() -> Any:
        errors = []
        for limit in range(3):
            try:
                check(X, limit)
            except ValueError as error:
                errors.append(str(error))
        return errors

    tracked = Tracked(program_around(work), backend="eager")
    for _ in range(40):
        tracked(X)
    assert looks(check) < 25


def test_threads_share_what_is_decided() -> None:
    def rank(tensor: Tensor) -> int:
        return tensor.dim()

    def double(tensor: Tensor) -> Tensor:
        return tensor * 2

    def work() -> Any:
        return [(rank(X), double(X).tolist()) for _ in range(16)]

    program = program_around(work)
    expected = program(X)[0]
    compiled = ingot.compile(program, backend="eager")
    wrong: list[Any] = []

    def run() -> None:
        with torch.no_grad():
            wrong.extend(result for _ in range(20) if (result := compiled(X)[0]) != expected)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert looks(rank) < 40 and looks(double) == 4 * 20 * 16


def test_a_thread_that_was_started_there_is_not_captured() -> None:
    def double(tensor: Tensor) -> Tensor:
        return tensor * 2

    def work() -> Any:
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(double(X)))
        thread.start()
        thread.join()
        return results

    tracked = Tracked(program_around(work), backend="eager")
    tracked(X)
    assert graphs(tracked, "double") == 0 and _native.code_looks(double.__code__) is None


@pytest.fixture
def deep_recursion() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("deep_recursion")
def test_recursion_goes_as_deep_as_in_eager() -> None:
    """Python's calls of Python take no C stack, of which the frame hook takes some."""

    def depth(n: int) -> int:
        return 0 if n == 0 else depth(n - 1) + 1

    def double(n: int, tensor: Tensor) -> Any:
        return tensor * 2 if n == 0 else [double(n - 1, tensor)][0]

    def work() -> Any:
        return [depth(n) for n in (10, 190, 200, 210, 50_000)], double(20_000, X)

    tracked = Tracked(program_around(work), backend="eager")
    for _ in range(2):
        tracked(X)


def test_too_deep_a_recursion() -> None:
    def endless(n: int) -> int:
        return endless(n + 1)

    def work() -> Any:
        with pytest.raises(RecursionError):
            endless(0)
        return [twice(X) for _ in range(3)]

    def twice(tensor: Tensor) -> Tensor:
        return tensor * 2

    tracked = Tracked(program_around(work), backend="eager")
    for _ in range(2):
        tracked(X)
    assert graphs(tracked, "twice") == 1
