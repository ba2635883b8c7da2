"""Graph breaks: what ran before, the instruction for real, what follows; the graphs counted."""

from __future__ import annotations

import ctypes
import gc
import itertools
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import ingot
from ingot.compiler import Compiler
from ingot.graph import fake_ops
from ingot.native import _native
from ingot.native._native import hook_active
from tests.oracle import assert_near
from tests.tracked import Tracked

X = torch.linspace(-2, 2, 8)
pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture
def without_gradients() -> Any:
    with torch.no_grad():
        yield


def broken(fn: Any, *args: Any, graphs: int | None = None) -> Tracked:
    """Calls `fn` compiled, twice, beside eager; the second call compiles nothing, and nothing was
    left to eager."""
    tracked = Tracked(fn, backend="eager")
    assert tracked(*args) > 0
    assert tracked.skips == []
    assert tracked(*args) == 0
    if graphs is not None:
        assert len([c for c in tracked.compiler.compilations if c.captured.ops]) == graphs
    return tracked


def pause() -> None:
    time.sleep(0)


@ingot.disable
def _handled_now() -> str:
    return repr(sys.exc_info()[1])


def test_a_branch_on_a_tensor_has_two_sides_and_two_graphs_each() -> None:
    def fn(a: Tensor, b: Tensor) -> Tensor:
        x = a / (torch.abs(a) + 1)
        if b.sum() < 0:
            b = b * -1
        return x * b

    tracked = broken(fn, X, X + 3, graphs=2)
    tracked(X, -X - 3)
    assert len([c for c in tracked.compiler.compilations if c.captured.ops]) == 3
    assert tracked(X, X + 3) == tracked(X, -X - 3) == 0


def test_what_the_instruction_gives_goes_on() -> None:
    def fn(x: Tensor) -> Any:
        y = x.sin()
        n = gc.is_tracked([y])
        return y.cos() + n

    broken(fn, X, graphs=2)


def test_a_value_of_a_tensor() -> None:
    def fn(x: Tensor) -> Any:
        scale = (x * 2).sum().item()
        return x * scale, scale, [scale] if scale > 100 else []

    broken(fn, X)


def test_break_between_operands() -> None:
    def fn(x: Tensor) -> Any:
        return [x.sin(), x.cos() * gc.is_tracked([]), (x + 1, time.sleep(0), {"k": x - 1})]

    broken(fn, X, graphs=3)


def test_keyword_arguments_and_unpacking() -> None:
    def helper(a: Any, *rest: Any, b: Any, **more: Any) -> Any:
        time.sleep(0)
        return a + b + rest[0] + more["c"]

    def fn(x: Tensor) -> Any:
        return helper(x.sin(), *[x, x], b=gc.is_tracked([]), **{"c": x.cos()})

    broken(fn, X, graphs=3)


def test_loops() -> None:
    def fn(x: Tensor) -> Any:
        for i in range(3):
            x = x + i
            time.sleep(0)
            x = x * 2
        total = 0
        while total < 2:
            x = x.sin()
            total += gc.is_tracked([])
        else:
            x = x.cos()
        return x

    broken(fn, X)


def test_loop_over_a_list_and_zip_and_dict_items() -> None:
    def fn(x: Tensor, items: list[Any]) -> Any:
        out = []
        for a, b in zip(items, range(5)):
            out.append(a + b)
            time.sleep(0)
        for key, value in {"a": x, "b": x + 1}.items():
            out.append(value * len(key))
            time.sleep(0)
        for i, value in enumerate(out):
            time.sleep(0)
            out[i] = value + i
        return out

    broken(fn, X, [X, X + 1])


def test_inside_with() -> None:
    class Log:
        def __init__(self) -> None:
            self.lines: list[Any] = []

        def __enter__(self) -> Log:
            self.lines.append("in")
            return self

        def __exit__(self, *raised: Any) -> bool:
            self.lines.append(raised[0])
            return False

    def fn(x: Tensor) -> Any:
        with Log() as log:
            x = x.sin()
            time.sleep(0)
            x = x.cos()
        return x, log.lines

    broken(fn, X, graphs=2)


def test_inside_no_grad_the_mode_is_really_set() -> None:
    def fn(x: Tensor) -> Any:
        with torch.enable_grad():
            y = x.sin()
            time.sleep(0)
            inside = torch.is_grad_enabled()
            y = y.cos()
        return y, inside, torch.is_grad_enabled()

    broken(fn, X)
    assert not torch.is_grad_enabled()


def test_inside_try() -> None:
    def fn(x: Tensor, fail: bool) -> Any:
        try:
            x = x.sin()
            time.sleep(-1 if fail else 0)
            x = x.cos()
        except ValueError as error:
            x = x * 2
            text = str(error)
        else:
            text = "fine"
        finally:
            x = x + 1
        return x, text

    broken(fn, X, False, graphs=2)
    broken(fn, X, True, graphs=2)


def test_exception_without_a_handler_is_raised_as_in_eager() -> None:
    def inner(x: Tensor) -> Any:
        time.sleep(-1)  # the line
        return x

    def fn(x: Tensor) -> Any:
        return inner(x.sin()) + 1

    compiled = ingot.compile(fn, backend="eager")
    with pytest.raises(ValueError, match="non-negative") as caught:
        compiled(X)
    frames = [
        (f.name, f.line)
        for f in traceback.extract_tb(caught.value.__traceback__)
        if f.filename == __file__
    ]
    assert [name for name, _ in frames[-2:]] == ["fn", "inner"]
    assert "the line" in frames[-1][1]  # type: ignore[operator]


def test_exception_is_handled_by_a_caller() -> None:
    def inner(x: Tensor) -> Any:
        y = x.sin()
        time.sleep(-1)
        return y

    def fn(x: Tensor) -> Any:
        try:
            return inner(x + 1)
        except ValueError as error:
            return x.cos(), type(error), error.args

    broken(fn, X)


def test_inside_except_the_exception_is_being_handled() -> None:
    def fn(x: Tensor) -> Any:
        try:
            raise KeyError("k")
        except KeyError:
            x = x.sin()
            time.sleep(0)
            handled = _handled_now()
            x = x.cos()
        return x, handled

    broken(fn, X)


def test_an_operation_that_raises_is_handled() -> None:
    def fn(x: Tensor, y: Tensor) -> Any:
        try:
            return x.sin() @ y
        except RuntimeError as error:
            return x.cos(), str(error)

    broken(fn, torch.ones(2, 3), torch.ones(2, 3))


def test_inside_inlined_calls_callee_and_callers_go_on() -> None:
    def innermost(x: Tensor) -> Any:
        y = x.sin()
        time.sleep(0)
        return y.cos()

    def middle(x: Tensor, k: int) -> Any:
        z = x * k
        return innermost(z) + z

    def fn(x: Tensor) -> Any:
        total = x.abs()
        for k in (2, 3):
            total = total + middle(x, k)
        return total

    broken(fn, X, graphs=3)


def test_comprehensions() -> None:
    def fn(x: Tensor) -> Any:
        scale = x.sum()
        rows = [scale * i + gc.is_tracked([]) for i in range(3)]
        table = {i: row + len(str(time.sleep(0))) for i, row in enumerate(rows)}
        return rows, table

    broken(fn, X)


def test_generators_are_suspended() -> None:
    def steps(x: Tensor, n: int) -> Any:
        for i in range(n):
            x = x.sin()
            yield x, i

    def fn(x: Tensor) -> Any:
        out = []
        for y, i in steps(x, 3):
            time.sleep(0)
            out.append(y + i)
        return out

    broken(fn, X)


def test_break_inside_a_generator() -> None:
    def steps(x: Tensor) -> Any:
        for i in range(2):
            x = x.sin()
            time.sleep(0)
            yield x * i

    def fn(x: Tensor) -> Any:
        return [y.cos() for y in steps(x)]

    broken(fn, X)


def test_closures_and_cells() -> None:
    def fn(x: Tensor) -> Any:
        count = 0

        def bump(y: Tensor) -> Any:
            nonlocal count
            count += 1
            return y * count

        a = bump(x)
        time.sleep(0)
        b = bump(a)
        return a, b, count

    broken(fn, X)


def test_aliases_stay_aliases() -> None:
    def fn(x: Tensor) -> Any:
        y = x.sin()
        box = [y]
        again = box
        time.sleep(0)
        box.append(y.cos())
        return y, box, again

    tracked = broken(fn, X)
    y, box, again = tracked.compiled(X)
    assert box is again and box[0] is y


def test_tensors_written_before_and_after() -> None:
    def fn(x: Tensor) -> Any:
        view = x[2:]
        x.add_(1)
        time.sleep(0)
        view.mul_(2)
        return view, x.sum()

    broken(fn, X.clone(), graphs=2)


def test_modules() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.linear(x)
            time.sleep(0)
            return torch.relu(x)

    tracked = Tracked(torch.nn.Sequential(Block(), Block()), backend="eager")
    tracked(X)
    assert tracked.skips == [] and tracked(X) == 0
    assert len([c for c in tracked.compiler.compilations if c.captured.ops]) == 3


def test_a_break_storm_is_left_to_eager() -> None:
    def fn(x: Tensor, n: int) -> Any:
        for i in range(n):
            x = x + i
            time.sleep(0)
        return x

    compiled = ingot.compile(fn, backend="eager")
    assert_near(compiled(X, 300), fn(X, 300))
    assert len(Compiler.of(compiled).compilations) < 300  # type: ignore[union-attr]


def test_fullgraph_raises_with_reason_and_place() -> None:
    def fn(x: Tensor) -> Any:
        if x.sum() > 0:
            return x.sin()
        return x.cos()

    with pytest.raises(ingot.GraphBreakError, match="values of") as caught:
        ingot.compile(fn, fullgraph=True)(X)
    assert caught.value.where.startswith(__file__) and caught.value.hint


def test_warnings_point_at_the_users_line() -> None:
    def fn(x: Tensor) -> Any:
        y = x.sin()
        warnings.warn("of a user", stacklevel=1)
        return y.cos()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ingot.compile(fn, backend="eager")(X)
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, fn.__code__.co_firstlineno + 2)]


def test_stale_guards_after_a_break() -> None:
    class Config:
        scale = 2

    config = Config()

    def fn(x: Tensor) -> Any:
        y = x.sin()
        time.sleep(0)
        return y * config.scale

    tracked = broken(fn, X)
    config.scale = 5
    assert tracked(X) == 1
    assert tracked(X.double()) > 0


def test_recursion_through_a_break() -> None:
    def fn(x: Tensor, n: int) -> Any:
        if n == 0:
            return x.sin()
        time.sleep(0)
        return fn(x + 1, n - 1) * 2

    broken(fn, X, 3)


def test_with_the_compiling_backend() -> None:
    def fn(x: Tensor) -> Any:
        y = x.sin() * 2
        if y.sum() > 0:
            return y.cos()
        return (y - 1).cos() + 1

    tracked = Tracked(fn)
    for x in (X + 0.5, X + 1, X - 1):
        tracked(x)
    assert tracked.skips == []


def test_an_index_out_of_range_is_handled_by_the_program() -> None:
    def fn(x: Tensor, i: Tensor) -> Any:
        steps = ["begin"]
        try:
            y = x[i].sin()
            steps.append("end")
        except IndexError as error:
            return x.cos(), str(error), steps
        return y, steps

    for backend in ("eager", "ingot"):
        tracked = Tracked(fn, backend=backend)
        tracked(X, torch.tensor([1]))
        assert tracked(X, torch.tensor([70])) == tracked(X, torch.tensor([-70])) == 0


def test_what_reads_the_variables_of_its_caller_runs_in_eager() -> None:
    def fn(x: Tensor) -> Any:
        y = x.sin()
        scale = 3
        return eval("y * scale"), sorted(locals())

    tracked = Tracked(fn)
    tracked(X)
    tracked(X)


def test_functions_called_by_a_broken_instruction_are_captured() -> None:
    class Meter:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        @property
        def level(self) -> Tensor:
            y = self.x.sin()
            time.sleep(0)
            return y.cos()

    meter = Meter(X)

    def fn(x: Tensor) -> Any:
        return x * 2 + meter.level

    broken(fn, X, graphs=4)  # before the property, its two, and behind it


def test_what_is_called_from_c_is_captured() -> None:
    def square(x: Tensor) -> Tensor:
        return x * x

    from_c = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(square)

    def fn(x: Tensor) -> Any:
        return from_c(x.sin()) + 1

    tracked = broken(fn, X, graphs=3)
    assert {c.name.rpartition(".")[2] for c in tracked.compiler.compilations} == {"fn", "square"}


def test_the_hook_is_off_when_nothing_is_broken() -> None:
    def fn(x: Tensor) -> Any:
        active.append(hook_active())
        return x.sin()

    active: list[bool] = []
    broken(fn, X)
    assert not hook_active() and True in active  # while the call ran for real


def test_a_traceback_shows_each_frame_once() -> None:
    def inner(x: Tensor) -> Any:
        y = x.sin()
        time.sleep(-1)
        return y

    def fn(x: Tensor) -> Any:
        try:
            return inner(x + 1)
        except KeyError:
            return x

    compiled = ingot.compile(fn, backend="eager")
    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            compiled(X)
        frames = [
            f.name
            for f in traceback.extract_tb(caught.value.__traceback__)
            if f.filename == __file__
        ]
        assert frames[-2:] == ["fn", "inner"] and frames.count("inner") == 1


def test_an_audit_hook_written_in_python() -> None:
    """Reading a function's `__code__` calls it, also where the frame hook looks at a frame."""
    program = """
import ctypes, sys, torch, ingot
def audit(event, arguments): seen.append(event)
seen = []
sys.addaudithook(audit)
def square(x): return x * x
from_c = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(square)
fn = ingot.compile(lambda x: from_c(x) + 1)
with torch.no_grad():
    assert [fn(torch.ones(2)).tolist() for _ in range(2)] == [[2.0, 2.0]] * 2
assert "object.__getattr__" in seen
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_variable_that_is_not_read_again_keeps_its_object() -> None:
    def fn(x: Tensor) -> Any:
        y = x.sin()
        seen = weakref.ref(y)
        time.sleep(0)
        return seen() is not None, x.cos()

    tracked = Tracked(fn, backend="eager")
    tracked(X)
    tracked(X)


def test_count_from_a_bool_gives_integers() -> None:
    def fn(x: Tensor, start: Any) -> Any:
        plain, by_two = itertools.count(start), itertools.count(start, 2)
        return x + 1, [next(plain), next(plain)], [next(by_two), next(by_two)]

    tracked = Tracked(fn, backend="eager")
    for start in (False, True, 3):
        tracked(X, start)
        assert [type(n) for n in tracked.compiled(X, start)[1]] == [int, int]


def test_a_callee_may_watch_its_callers_variable() -> None:
    def watch(tensor: Tensor) -> Any:
        return weakref.ref(tensor)

    def fn(x: Tensor) -> Any:
        y = x.sin()
        seen = watch(y)
        time.sleep(0)
        time.sleep(0)
        return seen() is not None, x.cos()

    tracked = Tracked(fn, backend="eager")
    tracked(X)
    tracked(X)


def test_looking_for_tensors_calls_no_code_of_the_users() -> None:
    class Sly:
        @property
        def __class__(self) -> type:
            raise AssertionError("it was asked for its class")

    def helper(held: object) -> None: ...

    assert not _native.tensors_are_near(helper, (Sly(), [Sly()]))
    assert _native.tensors_are_near(helper, (Sly(), [Sly(), torch.ones(1)]))


def test_globals_that_are_called_as_builtins_are() -> None:
    """In torch's own code `bool` is a dtype: a step has builtins of its own."""
    source = """
def fn(x):
    if (x.sum() > 0) | True:
        x = x.sin()
    for y in x if x.sum() else ():
        x = x + y
    return x, f"{x.sum().item():.3f}", bool
"""
    space = {"bool": torch.bool, "iter": None, "next": None, "format": None, "type": None}
    exec(source, space)
    broken(space["fn"], X)


def test_an_error_that_eager_does_not_raise_is_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture takes it for the program's own; eager is asked, and from the next call on the graph
    is broken there."""

    def refuses(op: Any, args: Any, kwargs: Any) -> None:
        if op is torch.ops.aten.sinh.default:
            raise RuntimeError("no sinh")

    monkeypatch.setattr(fake_ops, "check", refuses)

    def fn(x: Tensor) -> Tensor:
        return (x.exp().sinh() * 2).cos()

    tracked = Tracked(fn)
    assert tracked(X) == 1
    assert tracked.skips == ["sinh refuses these arguments: no sinh"]
    assert tracked(X) > 0
    assert tracked(X) == 0
    assert len(tracked.skips) == 1


@pytest.mark.parametrize("gradients", [False, True])
def test_packed_sequences_break_the_graph_where_gradients_are_wanted(gradients: bool) -> None:
    lstm = torch.nn.LSTM(4, 5, batch_first=True)

    def fn(x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x * 2, lengths, batch_first=True)
        outputs, (hidden, _) = lstm(packed)
        padded, lengths = pad_packed_sequence(outputs, batch_first=True)
        return padded.relu() * 2, hidden.sin(), lengths

    tracked = Tracked(fn)
    with torch.set_grad_enabled(gradients):
        for lengths in ([6, 4, 2], [5, 3, 3]):
            tracked(torch.randn(3, 6, 4), torch.tensor(lengths))
    assert tracked.skips == []
    graphs = 0
    for compilation in tracked.compiler.compilations:
        graphs += compilation.captured is not None and compilation.captured.ops > 0
    assert graphs >= 2 if gradients else graphs == 1


def test_operations_under_a_manager_written_in_c_do_not_break_the_graph() -> None:
    """It breaks where the manager is entered and left, and not to ask whether it handles an
    error."""
    lock = threading.Lock()

    def fn(x: Tensor) -> Tensor:
        with lock:
            y = x + 1
        return y.sin()

    tracked = Tracked(fn, backend="eager")
    tracked(X)
    breaks = [str(c.break_) for c in tracked.compiler.compilations if c.break_ is not None]
    assert "'__enter__'" in breaks[-2] and "'__exit__'" in breaks[-1]
    # from 3.14 on the methods are found by instructions of their own, before they are called
    assert len(breaks) == (2 if sys.version_info < (3, 14) else 4)
