"""Donated arguments: their memory becomes that of results, or is free for others, and nobody sees
another value in its place."""

from __future__ import annotations

import copy
import inspect
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils import dlpack

import ingot
from ingot.backends import torch_backend
from ingot.codegen.store import store_in
from ingot.compiler import Compiler
from ingot.explain.report import Report
from ingot.kept.programs import FOUND
from ingot.native import _native
from ingot.runtime.donated import Donated

SIDE = 48


def made() -> Tensor:
    return torch.linspace(-2, 2, SIDE * SIDE).reshape(SIDE, SIDE).clone()


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def donating(fn: Any, *names: str, **others: Any) -> Any:
    return ingot.compile(fn, options={"donate": names or ("x",)}, **others)


def is_gone(tensor: Tensor) -> bool:
    return type(tensor) is Donated


def scaled(x: Tensor) -> Tensor:
    return torch.relu(x) * 2 + 1


def reasons(compiled: Any) -> list[str]:
    """What the report says of donated arguments, of calls so far."""
    compilations = Compiler.of(compiled).compilations  # type: ignore[union-attr]
    return Report.from_compilations(compilations).donations


class TestMemory:
    def test_the_result_lies_where_the_argument_lay(self) -> None:
        compiled = donating(scaled)
        for _ in range(3):
            x = made()
            expected, place = scaled(x), x.data_ptr()
            result = compiled(x)
            assert torch.equal(result, expected) and result.data_ptr() == place
            assert is_gone(x)
        assert reasons(compiled) == ["argument 'x' of scaled() is taken"]

    @pytest.mark.parametrize("lend_from", [0, 1 << 30])
    def test_however_small_it_is(self, lend_from: int) -> None:
        before = _native._lend_from(lend_from)
        try:
            x = torch.ones(3)
            place = x.data_ptr()
            assert donating(scaled)(x).data_ptr() == place
        finally:
            _native._lend_from(before)

    def test_planned_bytes(self) -> None:
        """One tensor's, where both were alive; as many fewer where several follow one another."""

        def chain(x: Tensor, w: Tensor) -> Tensor:
            return ((x.sin() @ w).cos() @ w).exp()

        size, w = SIDE * SIDE * 4, made()
        plain, donated = ingot.compile(scaled), donating(scaled)
        assert ingot.explain(plain)(made()).peak_bytes == 2 * size
        assert ingot.explain(donated)(made()).peak_bytes == size
        of_chain = ingot.explain(ingot.compile(chain))(made(), w).peak_bytes
        assert of_chain is not None
        peak = ingot.explain(donating(chain))(made(), w).peak_bytes
        assert peak is not None and peak <= of_chain - size

    def test_memory_is_free_in_the_middle_of_a_program(self) -> None:
        """Of an argument that no result has the shape of."""
        seen = []
        large = torch.ones(4 << 20)
        storage = weakref.ref(large.untyped_storage())

        def watch(total: Tensor) -> Tensor:
            seen.append(storage() is None)
            return total.clone()

        library = torch.library.Library("ingot_donation", "DEF")
        library.define("watch(Tensor total) -> Tensor")
        library.impl("watch", watch, "CPU")
        library.impl("watch", torch.empty_like, "Meta")

        def summed(x: Tensor) -> Tensor:
            return torch.ops.ingot_donation.watch(x.sum()) + 1

        compiled = donating(summed)
        assert compiled(large).item() == (4 << 20) + 1
        assert is_gone(large) and seen == [True]


class TestArguments:
    def test_by_keyword(self) -> None:
        def both(*, x: Tensor, y: Tensor) -> Tensor:
            return (x + y).sin()

        x, y = made(), made()
        expected = both(x=x, y=y)
        torch.testing.assert_close(donating(both, "y")(x=x, y=y), expected)
        assert is_gone(y) and not is_gone(x)

    def test_all_leaves_of_a_container(self) -> None:
        def each(state: dict[str, Any], rate: float) -> list[Tensor]:
            return [t * rate + 1 for t in (*state["a"], state["b"][0])]

        state = {"a": [made(), made()], "b": (made(),), "n": 3}
        leaves = [*state["a"], state["b"][0]]
        expected, places = each(state, 0.5), [t.data_ptr() for t in leaves]
        results = donating(each, "state")(state, 0.5)
        assert all(map(torch.equal, results, expected)) and all(map(is_gone, leaves))
        assert [t.data_ptr() for t in results] == places

    def test_rest_and_further(self) -> None:
        def both(*args: Tensor, **kwargs: Tensor) -> Tensor:
            return args[0] * 2 + args[1] + kwargs["z"]

        x, y, z = made(), made(), made()
        donating(both, "args")(x, y, z=z)
        assert is_gone(x) and is_gone(y) and not is_gone(z)
        donating(both, "kwargs")(made(), made(), z=z)
        assert is_gone(z)

    def test_those_of_a_modules_forward(self) -> None:
        class Cell(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(SIDE, SIDE)

            def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
                return torch.tanh(self.linear(x) + h)

        cell = Cell()
        compiled = donating(cell, "h")
        for call in (lambda x, h: compiled(x, h), lambda x, h: compiled(h=h, x=x)):
            x, h = made(), made()
            expected = cell(x, h)
            torch.testing.assert_close(call(x, h), expected)
            assert is_gone(h) and not is_gone(x)
        with pytest.raises(ingot.DonationError, match=r"argument 'h' of .*Cell\(\) was donated"):
            h.sum()
        with pytest.raises(ValueError, match="no parameter 'z'; one of x, h"):
            donating(cell, "z")

    def test_names_that_are_none(self) -> None:
        with pytest.raises(ValueError, match="did you mean 'x'.*one of x"):
            donating(scaled, "xx")
        with pytest.raises(ValueError, match=r"'args\[0\]': what an argument holds .* one of args"):
            donating(lambda *args: args, "args[0]")
        with pytest.raises(ValueError, match="donate may not be 'x'; a tuple of names"):
            ingot.compile(scaled, options={"donate": "x"})

    @pytest.mark.parametrize("other", [{"verify": 1}, {"specialize": True}])
    def test_options_that_read_arguments_once_more(self, other: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=f"donate does not go with {next(iter(other))}"):
            ingot.compile(scaled, options={"donate": ("x",), **other})

    def test_sizes_that_vary_and_recompilation(self) -> None:
        compiled = donating(scaled)
        for dtype in (torch.float32, torch.float64):
            for rows in (5, 9, 33, 7):
                x = made()[:rows].to(dtype).clone()
                expected, place = scaled(x), x.data_ptr()
                result = compiled(x)
                assert torch.equal(result, expected) and result.data_ptr() == place

    def test_a_training_step_inside_the_graph(self) -> None:
        def step(weights: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
            def loss(weights: dict[str, Tensor]) -> Tensor:
                return torch.tanh(x @ weights["a"] + weights["b"]).square().mean()

            gradients = torch.func.grad(loss)(weights)
            return {name: weights[name] - 0.1 * gradients[name] for name in weights}

        weights, x = {"a": made(), "b": made()[0].clone()}, made()
        expected = step(weights, x)
        compiled = donating(step, "weights")
        report, plain = ingot.explain(compiled)(weights, x), ingot.explain(step)(weights, x)
        assert None not in (report.peak_bytes, plain.peak_bytes)
        assert report.peak_bytes < plain.peak_bytes  # type: ignore[operator]
        for name, result in compiled(weights, x).items():
            torch.testing.assert_close(result, expected[name])
            assert is_gone(weights[name])
        with pytest.raises(ingot.DonationError, match=r"argument 'weights'\['a'\] of"):
            weights["a"].sum()


USES: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda x: x + 1,
    "reversed": lambda x: 1 - x,
    "a function of torch": lambda x: torch.cat([made(), x]),
    "an operator": torch.ops.aten.sin.default,
    "address": lambda x: x.data_ptr(),
    "view": lambda x: x[0],
    "alias": lambda x: x.detach(),
    "data": lambda x: x.data,
    "print": str,
    "format": lambda x: f"{x}",
    "item": lambda x: x.tolist(),
    "branch": bool,
    "array": lambda x: x.numpy(),
    "array of numpy": numpy.asarray,
    "storage": lambda x: x.untyped_storage(),
    "write": lambda x: x.zero_(),
    "written by": lambda x: made().copy_(x),
    "pickle": pickle.dumps,
    "copy": copy.deepcopy,
    "clone": lambda x: x.clone(),
    "parameter": nn.Parameter,
    "from_dlpack": torch.from_dlpack,
    "the same compiled function": lambda x: donating(scaled)(x),
    "another compiled function": lambda x: ingot.compile(lambda xs: xs[0].sin())([x]),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_use_afterwards_names_the_argument_and_the_call(use: Callable[[Tensor], Any]) -> None:
    compiled = donating(scaled)
    compiled(made())
    x = made()
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    compiled(x)
    for _ in range(2):
        with pytest.raises(ingot.DonationError) as error:
            use(x)
        assert f"argument 'x' of scaled() was donated at {__file__}:{line}:" in str(error.value)


@pytest.mark.parametrize(
    "use",
    [
        torch.tensor,
        dlpack.to_dlpack,
        lambda x: made().set_(x).sum(),
        lambda x: setattr(y := made(), "data", x) or y.sum(),
    ],
)
@pytest.mark.filterwarnings("ignore:To copy construct")
def test_what_does_not_ask_the_class_is_refused_by_torch(use: Callable[[Tensor], Any]) -> None:
    x = made()
    donating(scaled)(x)
    with pytest.raises(RuntimeError):
        use(x)


def test_beneath_torch_functions() -> None:
    x = made()
    donating(scaled)(x)
    with torch._C.DisableTorchFunctionSubclass():
        for use in (lambda: x + 1, lambda: x.sum(), lambda: x.data_ptr(), lambda: x.clone()):
            with pytest.raises(RuntimeError, match="Cannot access data pointer"):
                use()


def test_what_a_tensor_without_values_still_tells() -> None:
    x = made()
    donating(scaled)(x)
    assert x.shape == (SIDE, SIDE) and x.dtype == torch.float32 and x.device.type == "cpu"
    assert isinstance(x, Tensor) and len(x) == SIDE and x in {x} and x.stride() == (SIDE, 1)


def returned(x: Tensor) -> Any:
    return x, x + 1


def viewed(x: Tensor) -> Any:
    return x[0], x + 1


def written(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


KEPT: list[Tensor] = []


def stored(x: Tensor) -> Tensor:
    KEPT[:] = [x]
    return x * 2


def read_behind_a_break(x: Tensor) -> Tensor:
    y = x * 2
    if y.sum() > 1e9:
        return y
    return y + x


PLANNED = {
    returned: "the call returns or keeps it",
    viewed: "a result shares its memory",
    written: "the program writes it in place",
    stored: "the call returns or keeps it",
    read_behind_a_break: "what follows the graph break may read it",
}


@pytest.mark.parametrize("fn", PLANNED, ids=lambda fn: fn.__name__)
def test_what_the_program_needs_stays(fn: Any) -> None:
    compiled = donating(fn)
    for _ in range(2):
        x = made()
        expected, result = fn(made()), compiled(x)
        assert all(map(torch.equal, *map(_leaves, (result, expected))))
        assert not is_gone(x) and x.sum().isfinite()
    assert any(PLANNED[fn] in line for line in reasons(compiled)), reasons(compiled)


def _leaves(tree: Any) -> list[Tensor]:
    return [tree] if isinstance(tree, Tensor) else list(tree)


def test_before_a_break_that_does_not_need_it() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x * 2
        if y.sum() > 1e9:
            return y
        return y + 1

    x = made()
    assert torch.equal(donating(broken)(x), made() * 2 + 1) and is_gone(x)


def test_the_same_tensor_twice() -> None:
    compiled = donating(lambda x, y: x * 2 + y)
    x = made()
    assert torch.equal(compiled(x, x), made() * 3) and not is_gone(x)
    assert any("twice, as x and y" in line for line in reasons(compiled))


def test_arguments_that_hold_themselves() -> None:
    items: list[Any] = [made()]
    items.append(items)
    compiled = donating(lambda xs: xs[0] * 2, "xs")
    assert torch.equal(compiled(items), made() * 2) and is_gone(items[0])
    with pytest.raises(ingot.DonationError):
        compiled(items)


class Plain(Tensor):
    pass


def _with_view() -> Any:
    x = made()
    return x, x[1:]


def _with_array() -> Any:
    x = made()
    return x, x.numpy()


def _with_dlpack() -> Any:
    x = made()
    return x, dlpack.to_dlpack(x)


def _with_storage() -> Any:
    x = made()
    return x, x.untyped_storage()


def _saved() -> Any:
    with torch.enable_grad():
        x, weight = made(), made().requires_grad_()
        return x, (x * weight).sum()


def _saved_result() -> Any:
    with torch.enable_grad():
        x = made().requires_grad_().exp()
    return x, None


FOUND_IN_A_CALL: dict[str, tuple[Callable[[], Any], str]] = {
    "a view of it": (_with_view, "something else holds it"),
    "an array of it": (_with_array, "something else holds it"),
    "a capsule of it": (_with_dlpack, "something else holds it"),
    "its storage": (_with_storage, "something else holds it"),
    "saved for a backward": (_saved, "something else holds it"),
    "a result that is saved": (_saved_result, "something else holds it"),
    "a part": (lambda: (torch.ones(SIDE, SIDE + 1)[:, :SIDE], None), "a part of a larger storage"),
    "numpy's memory": (
        lambda: (torch.from_numpy(numpy.ones((SIDE, SIDE), "f")), None),
        "not torch's own",
    ),
    "shared memory": (lambda: (made().share_memory_(), None), "not torch's own"),
    "a parameter": (lambda: (nn.Parameter(made()), None), "a parameter"),
    "a leaf": (lambda: (made().requires_grad_(), None), "a leaf that requires a gradient"),
}


@pytest.mark.parametrize(("make", "why"), FOUND_IN_A_CALL.values(), ids=FOUND_IN_A_CALL)
def test_what_somebody_else_needs_stays(make: Callable[[], Any], why: str) -> None:
    compiled = donating(scaled)
    x, _other = make()
    expected = scaled(x)
    for _ in range(2):
        assert torch.equal(compiled(x), expected) and type(x) is not Donated
        assert torch.equal(scaled(x), expected)
    assert any(why in line for line in reasons(compiled)), reasons(compiled)


def test_an_object_of_the_storage_that_nobody_holds_does_not_count() -> None:
    x = made()
    x.untyped_storage()
    place, result = x.data_ptr(), donating(scaled)(x)
    assert is_gone(x) and result.data_ptr() == place


def test_a_subclass_stays() -> None:
    x = made().as_subclass(Plain)
    donating(scaled)(x)
    assert type(x) is Plain


def test_calls_that_record_gradients_take_nothing() -> None:
    weight = nn.Parameter(made())
    compiled = donating(lambda x, w: (x.cos() * w).sum())
    with torch.enable_grad():
        x = made()
        compiled(x, weight).backward()
    torch.testing.assert_close(weight.grad, made().cos())
    assert not is_gone(x) and any("records gradients" in line for line in reasons(compiled))


class TestErrors:
    """Of what tensors hold."""

    @staticmethod
    def picked(x: Tensor, i: Tensor) -> Tensor:
        return (x * 2)[i].sum() + x.sum()

    def test_an_argument_comes_back_where_nothing_was_written(self) -> None:
        compiled, good, bad = donating(self.picked), torch.tensor([1]), torch.tensor([SIDE])
        compiled(made(), good)
        x = made()
        with pytest.raises(IndexError, match=f"index {SIDE} is out of bounds"):
            compiled(x, bad)
        assert torch.equal(x, made()) and not is_gone(x)
        compiled(x, good)
        assert is_gone(x)

    def test_an_argument_whose_memory_was_written_is_gone(self) -> None:
        compiled = donating(lambda x, i: (x.sin(), x.sin().view(-1)[i]))
        compiled(made(), torch.tensor([1]))
        x = made()
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([SIDE * SIDE]))
        if is_gone(x):
            with pytest.raises(ingot.DonationError):
                x.sum()
        else:
            assert torch.equal(x, made())

    def test_a_program_that_handles_the_error_has_its_argument(self) -> None:
        def handled(x: Tensor, i: Tensor) -> Tensor:
            try:
                return x.sin().view(-1)[i] + x.sin().sum()
            except IndexError:
                return x + 1

        compiled = donating(handled)
        for index in (1, SIDE * SIDE, 2):
            x, i = made(), torch.tensor([index])
            torch.testing.assert_close(compiled(x, i), handled(made(), i), rtol=1e-4, atol=1e-4)


def test_a_later_process_finds_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    store_in.cache_clear()
    for known in (False, True):
        ingot.reset()
        plain, compiled = ingot.compile(scaled), donating(scaled)
        x, y = made(), made()
        place, result = x.data_ptr(), compiled(x)
        plain(y)
        assert is_gone(x) and not is_gone(y) and result.data_ptr() == place
        for each in (plain, compiled):
            log = Compiler.of(each).compilations[0].log  # type: ignore[union-attr]
            assert (log.kept == FOUND) == known
        assert ingot.explain(compiled)(made()).donations == ["argument 'x' of scaled() is taken"]
    store_in.cache_clear()


def test_artifacts_take_nothing(tmp_path: Path) -> None:
    ingot.export(donating(scaled), (made(),), path=tmp_path / "scaled.ingot")
    x = made()
    assert torch.equal(ingot.load(tmp_path / "scaled.ingot")(x), scaled(x)) and not is_gone(x)


def test_torch_compile_has_no_such_option() -> None:
    graph = torch.fx.symbolic_trace(scaled)
    with pytest.raises(ValueError, match="takes no option donate"):
        torch_backend(graph, [made()], options={"donate": ("x",)})


def test_the_screen_says_what_is_taken() -> None:
    text = str(ingot.explain(donating(returned))(made()))
    assert "argument 'x' of returned() stays: the call returns or keeps it" in text
