"""What is exported does what eager does, and refuses what it was not exported for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from tests.oracle import assert_same

X = torch.linspace(-2, 2, 24).view(4, 6)
W = torch.linspace(-1, 1, 30).view(6, 5)
N = torch.tensor([5])


def several(x: Tensor, n: int = 2, *, d: Any = None) -> Any:
    part = [x.T * 1, (x + 1,)]
    return {"a": x * n, "b": part, "n": 3, "x": x, "d": d, "again": part}


def nested(p: Any) -> Tensor:
    return p["u"][0] + p["v"]


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def sign(x: Tensor) -> Tensor:
    if x.shape[0] > 3:
        return x + 1
    return x - 1


def scaled(x: Tensor, n: int) -> Tensor:
    return x * n + torch.arange(n).sum()


def doubled(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x + y


def same_object(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if x is y else x + y


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(4, 6))
        self.scale = torch.full((6,), 2.0)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.sum.add_(x)
        return self.sum * self.scale


class Counts(Cache):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Replaces(Cache):
    def forward(self, x: Tensor) -> Tensor:
        self.sum = self.sum + x
        return self.sum


class Box:
    def __init__(self, x: Tensor) -> None:
        self.x = x


def test_nested_arguments_and_results(exported):
    d = {"k": (1, "s", None)}
    artifact = exported(several, (X,), {"d": d})
    result, expected = artifact(X, d=d), several(X, d=d)
    assert result["x"] is X and result["d"] is d and result["again"] is result["b"]
    assert_same(result, expected)
    artifact = exported(lambda x: (x.max(0), x.shape, x[1:]), (X,))
    result = artifact(X)
    assert type(result[0]) is torch.return_types.max and result[1] == X.shape
    assert result[2].data_ptr() == X[1:].data_ptr()


def test_sizes_that_vary(exported):
    dynamic = {"p": {"u": [{0: "n"}], "v": {0: "n"}}}
    artifact = exported(nested, ({"u": [X], "v": X + 1},), dynamic=dynamic)
    for n in (1, 2, 9):
        x = torch.ones(n, 6)
        assert_same(artifact({"u": [x], "v": x}), x + x)
    with pytest.raises(ingot.ArtifactError, match=r"n is 4 in p\['u'\]\[0\].shape\[0\], and 2 in"):
        artifact({"u": [X], "v": X[:2]})


def test_integers_that_vary(exported):
    artifact = exported(scaled, (X, 3), dynamic={"n": "n"})
    for n in (3, 5, 1):
        assert_same(artifact(X, n=n), scaled(X, n))
    with pytest.raises(ingot.ArtifactError, match="'n': expected an int, got 5.0"):
        artifact(X, 5.0)


def test_entries_are_found_by_their_facts(exported):
    artifact = exported(sign, [(X,), (X[:2],)], dynamic={"x": {0: ("rows", 1, 8)}})
    assert len(artifact.signatures) == 2
    for rows in (1, 3, 4, 8):
        x = torch.ones(rows, 6)
        assert_same(artifact(x), sign(x))
    with pytest.raises(ingot.ArtifactError, match="(?s)no entry.*rows <= 8, but rows is 9.*rows"):
        artifact(torch.ones(9, 6))


def test_state_is_kept_by_the_artifact(exported):
    module = Cache()
    artifact = exported(module, (X,))
    again = copy.deepcopy(module)
    for _ in range(3):
        assert_same(artifact(X), again(X))
    assert not module.sum.any() and list(artifact.state_dict()) == ["sum"]
    with pytest.raises(ingot.ArtifactError, match="'sum' and argument 'x' share memory"):
        artifact(artifact.state_dict()["sum"])


def test_batch_norm_in_training(exported):
    module = nn.BatchNorm1d(6).train()
    artifact = exported(module, (X,), dynamic=({0: "batch"},))
    for rows in (5, 6, 7):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(artifact(x), module(x).detach())
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(artifact.state_dict()[name], tensor)


def test_arguments_that_are_written(exported):
    artifact = exported(doubled, (X.clone(), X + 1), dynamic={"x": {0: "n"}, "y": {0: "n"}})
    x = X[:3].clone()
    assert_same(artifact(x, X[:3]), 3 * X[:3])
    assert_same(x, 2 * X[:3])
    with pytest.raises(ingot.ArtifactError, match="share memory that is written"):
        artifact(x, x)


def test_weights_have_their_names(exported):
    tied = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Dropout())
    tied[1].weight = tied[0].weight
    artifact = exported(tied.eval(), (X,))
    assert set(artifact.state_dict()) == set(tied.state_dict())
    assert artifact.state_dict()["0.weight"] is artifact.state_dict()["1.weight"]
    torch.testing.assert_close(artifact(X), tied(X).detach())
    linear = nn.Linear(6, 5)
    artifact = exported(lambda x: linear(x) + x @ W, (X,))
    assert set(artifact.state_dict()) == {"linear.weight", "linear.bias"}
    torch.testing.assert_close(artifact(X), (linear(X) + X @ W).detach())


def test_layouts_of_weights(exported):
    module = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8)
    artifact = exported(module, (x,))
    assert artifact.state_dict()["weight"].stride() == module.weight.stride()
    torch.testing.assert_close(artifact(x), module(x).detach())


def test_random_numbers_are_those_of_the_process(exported):
    artifact = exported(nn.Dropout(0.5).train(), (X,))
    torch.manual_seed(0)
    expected = nn.functional.dropout(X)
    torch.manual_seed(0)
    assert_same(artifact(X), expected)


def test_sizes_that_the_data_decide(exported):
    artifact = exported(lambda x: (x[x > 0], x.nonzero()), (X,))
    assert_same(artifact(-X), ((-X)[X < 0], (-X).nonzero()))


def test_data_that_an_export_is_not_for(exported):
    """What the program assumes of numbers that the data decide is checked when they are there."""

    def first(x: Tensor, n: Tensor) -> Tensor:
        return x[n.item() :] * 2

    artifact = exported(first, (X, torch.tensor(1)))
    assert_same(artifact(X, torch.tensor(3)), X[3:] * 2)
    with pytest.raises(ingot.ArtifactError, match="not for these data"):
        artifact(X, torch.tensor(-1))


def test_modes_are_those_of_the_export(exported):
    with torch.autocast("cpu"):
        artifact = exported(lambda x: x @ W, (X,))
    assert artifact(X).dtype is torch.bfloat16
    artifact = exported(lambda x: x[x > 0] @ torch.ones(12), (X,))
    with torch.autocast("cpu"):
        assert artifact(X).dtype is torch.float32


@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64-v4", "aarch64"])
def test_processors_by_name(tmp_path, cpu):
    path = tmp_path / "it.ingot"
    ingot.export(lambda x: (x @ W).softmax(-1), (X,), path=path, cpu=cpu)
    try:
        artifact = ingot.load(path)
    except ingot.ArtifactError as error:
        assert "which this one lacks" in str(error)
    else:
        torch.testing.assert_close(artifact(X), (X @ W).softmax(-1))


REFUSED_CALLS: dict[str, Any] = {
    "missing": (lambda f: f(), TypeError, "'x' is missing"),
    "unknown": (lambda f: f(X, X, z=1), TypeError, "there is no argument 'z'"),
    "twice": (lambda f: f(X, X, x=X), TypeError, "'x' is given twice"),
    "too many": (lambda f: f(X, X, X), TypeError, "expected 2 arguments by position, got 3"),
    "no tensor": (lambda f: f(X, 3), ingot.ArtifactError, "'y': expected a tensor, got 3"),
    "size": (lambda f: f(X, X[:, :5]), ingot.ArtifactError, r"'y': expected float32\[n, 6\]"),
    "dtype": (lambda f: f(X.double(), X), ingot.ArtifactError, r"got float64\[4, 6\]"),
    "strides": (lambda f: f(torch.ones(6, 4).T, X), ingot.ArtifactError, "contiguous"),
    "gradients": (lambda f: f(nn.Parameter(X), X), ingot.ArtifactError, "computes none"),
    "subclass": (lambda f: f(torch.ones(4, 6).as_subclass(Sub), X), ingot.ArtifactError, "Sub"),
    "transform": (lambda f: torch.vmap(f)(X[None], X[None]), ingot.ArtifactError, "no plain"),
    "empty": (lambda f: f(X[:0], X[:0]), ingot.ArtifactError, "expected n >= 1, but n is 0"),
    "one object": (lambda f: f(X, X), ingot.ArtifactError, "'x' and 'y' are one object"),
}


class Sub(Tensor):
    pass


@pytest.mark.parametrize("name", REFUSED_CALLS)
def test_calls_that_are_refused(exported, name):
    call, error, text = REFUSED_CALLS[name]
    dynamic = {"x": {0: "n"}, "y": {0: "n"}}
    artifact = exported(same_object, (X, X + 1), dynamic=dynamic)
    with pytest.raises(error, match=text):
        call(artifact)
    assert_same(artifact(X, X + 1), X + (X + 1))


def test_calls_that_look_as_one_before(exported):
    """What a call looked like is remembered, and nothing that differs from it is let through."""
    artifact = exported(add, (X, X + 1), dynamic={"x": {0: "n"}, "y": {0: "n"}})
    for _ in range(3):
        for rows in (1, 2, 4):
            assert_same(artifact(X[:rows], X[:rows]), X[:rows] + X[:rows])
        with torch.no_grad():
            parameter = nn.Parameter(X)
            assert_same(artifact(parameter, X), X + X)
        for name, (call, error, text) in REFUSED_CALLS.items():
            if name != "one object":
                with pytest.raises(error, match=text):
                    call(artifact)
        with pytest.raises(ingot.ArtifactError, match="n is 4 in x.shape"):
            artifact(X, X[:1])


def branches(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def of_four(x: Tensor) -> Tensor:
    return x.view(4, 6) + 1


def window(x: Tensor) -> Tensor:
    return x.as_strided((2, 2), (1, 1), 3) + 1


def shared_memory() -> nn.Module:
    module = Cache()
    module.register_buffer("view", module.sum[1:])
    module.forward = lambda x: module.sum.add_(x)[1:] + module.view  # type: ignore[assignment]
    return module


NOTES: list[int] = []


def notes(x: Tensor) -> Tensor:
    NOTES.append(1)
    return x + 1


def on_meta(x: Tensor) -> Any:
    return x + 1, torch.ones(3, device="meta")


def prints(x: Tensor) -> Tensor:
    print("hello")
    return x + 1


REFUSED: dict[str, Any] = {
    "branch": (branches, (X,), {}, r"a branch on the values .*test_exporting.py:\d+ \(hint"),
    "attribute": (Counts(), (X,), {}, r"the call sets self.calls  \(.*test_exporting.py:\d+\),"),
    "buffer": (Replaces(), (X,), {}, r"sets self.sum  \(.*test_exporting.py:\d+\), .*in place"),
    "print": (prints, (X,), {}, r"the call prints  \(.*test_exporting.py:\d+\),"),
    "list": (notes, (X,), {}, r"the call changes NOTES \(extend\)  \(.*test_exporting.py:\d+\),"),
    "object": (lambda b: b.x + 1, (Box(X),), {}, "argument 'b' is a Box"),
    "result": (lambda x: Box(x + 1), (X,), {}, "the call returns a Box"),
    "one tensor": (add, (X, X), {}, "arguments 'x' and 'y' are one tensor"),
    "two names": (add, (X, X + 1), {"x": {0: "a"}, "y": {0: "b"}}, "a and b have to be equal  "),
    "fixed": (of_four, (X,), {"x": {0: "a"}}, r"is always 4  \(.*test_exporting.py:\d+\)"),
    "unknown": (add, (X, X + 1), {"q": {0: "a"}}, "dynamic names 'q'"),
    "dimension": (sign, (X,), {"x": {5: "a"}}, "'x' has no dimension 5"),
    "form": (sign, (X,), {"x": 3}, "dynamic of 'x' must be a dict"),
    "bounds": (sign, (X,), {"x": {0: ("a", 5, 9)}}, "not within the bounds of a"),
    "float": (scaled, (X, 3.0), {"n": "n"}, "'n' is 3.0, which cannot vary"),
    "no work": (lambda x: x, (X,), {}, "no tensor work"),
    "device": (on_meta, (X,), {}, r"computes on meta at .*test_exporting.py:\d+"),
    "as_strided": (window, (X,), {}, r"relies on x.storage_offset\(\) == 0"),
    "listed": (lambda x, t: x * t.tolist()[0], (X, N), {}, r"numbers in a tensor, .*\(t\)\[0\]"),
    "a branch": (lambda x, t: x if t > 4 else -x, (X, N), {}, r"numbers in a tensor, .*\(t\) == 1"),
    "shared state": (shared_memory(), (X,), {}, "overlaps another"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported(tmp_path, name):
    fn, args, dynamic, text = REFUSED[name]
    with pytest.raises(ingot.ExportError, match=text):
        ingot.export(fn, args, path=tmp_path / "it.ingot", dynamic=dynamic)
    assert list(tmp_path.iterdir()) == []


def test_what_export_does_not_take(tmp_path):
    path = tmp_path / "it.ingot"
    with pytest.raises(TypeError, match="a function or a module"):
        ingot.export(nn.Linear, (X,), path=path)
    with pytest.raises(TypeError, match="args must be a tuple"):
        ingot.export(sign, X, path=path)
    with pytest.raises(ValueError, match="cpu must be one of x86-64-v3"):
        ingot.export(sign, (X,), path=path, cpu="z80")
    with pytest.raises(ValueError, match="empty list"):
        ingot.export(sign, [], path=path)


def test_library_calls_are_listed(tmp_path):
    lstm = nn.LSTM(6, 8).eval()
    report = ingot.export(lstm, (X[None],), path=tmp_path / "it.ingot")
    assert len(report.library_calls) == 1 and "mkldnn_rnn_layer" in report.library_calls[0]
    report = ingot.export(sign, (X,), path=tmp_path / "it.ingot")
    assert report.library_calls == () and report.kernels == 1


class Keyed(nn.Module):
    """State, nested arguments, and a dict of results."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any, *, y: Tensor) -> Any:
        self.calls.add_(1)
        return {"out": self.linear(x["x"][0]).relu() + y, "calls": self.calls * 1}


def test_programs_that_torch_has_exported(exported):
    """An ExportedProgram is read, with its arguments, the sizes that vary and their bounds."""
    module, batch = Keyed(), torch.export.Dim("batch", min=2, max=64)
    args, kwargs = ({"x": [X]},), {"y": X[:, 1:].contiguous()}
    shapes = {"x": {"x": [{0: batch}]}, "y": {0: batch}}
    program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes)
    artifact = exported(program, ())
    assert set(artifact.state_dict()) == set(module.state_dict())
    for rows in (2, 9):
        x, y = torch.randn(rows, 6), torch.randn(rows, 5)
        with torch.no_grad():
            expected = module({"x": [x]}, y=y)
        result = artifact({"x": [x]}, y=y)
        torch.testing.assert_close(result, expected)
    with pytest.raises(ingot.ArtifactError, match="<= 64"):
        artifact({"x": [torch.ones(65, 6)]}, y=torch.ones(65, 5))
    with pytest.raises(ingot.ArtifactError, match="is 3 in"):
        artifact({"x": [torch.ones(3, 6)]}, y=torch.ones(4, 5))


def test_dims_of_torch(exported):
    artifact = exported(sign, (X,), dynamic={"x": {0: torch.export.Dim("rows", min=4, max=8)}})
    assert artifact.signature == "(x: float32[rows, 6] on cpu)"
    with pytest.raises(ingot.ArtifactError, match="expected rows <= 8"):
        artifact(torch.ones(9, 6))
