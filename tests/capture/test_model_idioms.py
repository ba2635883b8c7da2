"""What model libraries do in a forward: lists of layers that are sliced, modules made on the fly,
copies of configurations, caches that grow, results that are set from the outside."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from tests.oracle import assert_captured, assert_same


def compiled_same(fn: Any, *args: Any) -> None:
    """Asserts that Ingot's own backend gives eager's result, in one graph."""
    with torch.no_grad():
        expected = fn(*copy.deepcopy(args))
        found = ingot.compile(fn, fullgraph=True)(*args)
    torch.testing.assert_close(found, expected)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True):
        assert a.stride() == b.stride()


# -- tensors ---------------------------------------------------------------------------------------


def grown(keys: torch.Tensor) -> torch.Tensor:
    """A cache that begins as a tensor of one dimension without elements, whatever is joined to
    it."""
    empty = torch.tensor([], dtype=keys.dtype, device=keys.device)
    return torch.cat([empty, keys], dim=-2)


def grown_with_promotion(keys: torch.Tensor) -> torch.Tensor:
    """That tensor still has a say in the dtype."""
    return torch.cat([torch.tensor([], dtype=torch.float64), keys], dim=1)


def pooled(x: torch.Tensor) -> torch.Tensor:
    """torch sets the strides of what this gives when `x` is laid out channels last."""
    return nn.functional.adaptive_avg_pool1d(x, 1)


def pooled_and_used(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    made = nn.functional.adaptive_avg_pool1d(x, 1)
    flat = made.flatten(1)
    made += 1
    return made, flat * 2


CHANNELS_LAST = torch.randn(2, 3, 4).transpose(1, 2)


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (grown, torch.randn(2, 3, 4)),
        (grown_with_promotion, torch.randn(2, 3, 4)),
        (pooled, CHANNELS_LAST),
        (pooled, torch.randn(2, 3, 4)),
        (pooled_and_used, CHANNELS_LAST),
    ],
)
def test_tensors(fn: Any, x: torch.Tensor) -> None:
    assert_captured(fn, x)
    compiled_same(fn, x)


def test_the_strides_of_an_argument_are_not_set() -> None:
    def restrided(x: torch.Tensor) -> torch.Tensor:
        torch.ops.aten.as_strided_(x, (2, 2), (1, 2))
        return x + 1

    x = torch.arange(4.0).view(2, 2)
    with torch.no_grad():
        expected = restrided(x.clone())
        compiled = ingot.compile(restrided)
        for _ in range(2):
            found = x.clone()
            assert_same(compiled(found), expected)
            assert found.stride() == (1, 2)


# -- modules that a forward makes ------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = factor
        self.names: list[str] = []
        self.register_buffer("nothing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(x) * self.factor


class Stack(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
        self.depth = depth - 1


class Sliced(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers[: self.depth]):
            x = layer(x) + i
        return x + len(self.layers[1:])


class MakesModules(Stack):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        made = {"scaled": (Scaled, {"factor": 3.0}), "plain": (Scaled, {})}
        for cls, options in made.values():
            x = cls(**options)(x)
        block = nn.Sequential(nn.ReLU(), self.layers[0], nn.Identity())
        block.extra = Scaled()
        assert hasattr(block, "extra") and not hasattr(block, "missing") and len(block) == 4
        return block(x), [name for name, _ in block.named_children()]


class ReturnsModules(Stack):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, nn.Module]:
        made = Scaled(5.0).eval()
        return made(x), made


class HooksWhatItMakes(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = Scaled()
        made.register_forward_hook(lambda module, args, output: output + module.factor)
        return made(x)


@pytest.mark.parametrize("cls", [Sliced, MakesModules])
def test_modules_are_made(cls: type[nn.Module]) -> None:
    model, x = cls().eval(), torch.randn(2, 4)
    assert_captured(model, x)
    with torch.no_grad():
        found, expected = ingot.compile(model, fullgraph=True)(x), model(x)
    if isinstance(expected, tuple):
        assert found[1:] == expected[1:]
        found, expected = found[0], expected[0]
    torch.testing.assert_close(found, expected)


def test_a_module_that_was_made_is_returned() -> None:
    model, x = ReturnsModules(), torch.randn(2, 4)
    with torch.no_grad():
        (expected, reference), (found, made) = (
            model(x),
            ingot.compile(model, backend="eager", fullgraph=True)(x),
        )
        assert_same(found, expected)
        assert type(made) is Scaled and made.factor == 5.0 and made.training is False
        assert vars(made).keys() == vars(reference).keys() and "nothing" in made._buffers
        assert_same(made(x), expected)


def test_a_module_that_was_made_may_have_hooks() -> None:
    model, x = HooksWhatItMakes(), torch.randn(2, 4)
    with torch.no_grad():
        assert_same(ingot.compile(model, backend="eager")(x), model(x))


def test_a_slice_follows_its_bound() -> None:
    model, x = Sliced(), torch.randn(2, 4)
    compiled = ingot.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        for depth in (2, 1, 0, 3):
            model.depth = depth
            assert_same(compiled(x), model(x))


def test_modules_are_made_after_torch_compile_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import mutation_guard

    for name in ("__init__", "__setstate__"):
        monkeypatch.setattr(nn.Module, name, vars(nn.Module)[name])
    monkeypatch.setattr(nn.Module, "___needs_generation_tag_patch", True, raising=False)
    mutation_guard.install_generation_tagging_init()
    assert nn.Module.__init__.__module__ == mutation_guard.__name__
    model, x = MakesModules(), torch.randn(2, 4)
    with torch.no_grad():
        assert_same(ingot.compile(model, backend="eager", fullgraph=True)(x), model(x))


# -- functions with a forward and a backward of their own ------------------------------------------


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * torch.sigmoid(1.702 * x) * scale

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * 100, None


class TwoResults(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x, (x * y), 3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.count = len(inputs) + len(output)
        assert ctx.needs_input_grad == (False, False)


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.add_(1)


def custom(x: torch.Tensor) -> tuple[Any, ...]:
    a, b, c = TwoResults.apply(Gelu.apply(x, 2.0), x)
    d, _, _ = TwoResults.apply(x, x)
    e = x.clone()
    f = InPlace.apply(e)
    return a, b, c, d, d is x, e, f is e


def test_custom_functions() -> None:
    x = torch.randn(3, 4)
    assert_captured(custom, x)
    compiled_same(lambda x: Gelu.apply(x, 0.5) + 1, x)


def test_custom_functions_keep_their_backward() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return Gelu.apply(x, 1.0).sum()

    x = torch.randn(3, requires_grad=True)
    for backend in ("eager", "ingot"):
        (found,) = torch.autograd.grad(ingot.compile(fn, backend=backend)(x), x)
        assert found.tolist() == [100.0] * 3


# -- functions whose result is a constant ----------------------------------------------------------


def test_a_constant_result_is_assumed() -> None:
    calls = []

    def probe(name: str) -> bool:
        calls.append(name)
        return bool([m for m in __import__("sys").modules if m == name])

    probe._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if probe("torch") and not probe("no_such_module") else x - 1

    compiled, x = ingot.compile(fn, backend="eager", fullgraph=True), torch.randn(3)
    for _ in range(2):
        assert_same(compiled(x), x + 1)
    assert calls == ["torch", "no_such_module"]


# -- vmap ------------------------------------------------------------------------------------------


def per_example(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    def one(row: torch.Tensor, scale: float = 2.0) -> dict[str, torch.Tensor]:
        assert row.shape == (3, 4) and row.dim() == 2
        return {"sum": row.sum(-1) * scale, "product": row @ w}

    out = torch.vmap(one)(x)
    pairs = torch.vmap(lambda a, b: torch.dot(a, b), in_dims=(0, None))(x[:, 0], w[:, 0])
    nested = torch.vmap(torch.vmap(torch.add, in_dims=(0, None)), in_dims=(None, 0), out_dims=1)(
        w[0], w[1]
    )
    return out["sum"], out["product"], pairs, nested


def scanned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    return associative_scan(combine, (x, y), dim=1, combine_mode="generic")[1]


def test_vmap() -> None:
    x, w = torch.randn(5, 3, 4), torch.randn(4, 4)
    assert_captured(per_example, x, w)
    compiled_same(per_example, x, w)


def test_associative_scan() -> None:
    x, y = torch.rand(2, 7, 3), torch.rand(2, 7, 3)
    expected = torch.empty_like(x)
    total = torch.zeros(2, 3)
    for i in range(7):
        total = expected[:, i] = total * x[:, i] + y[:, i]
    compiled = ingot.compile(scanned, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, y), expected)
    compiled_same(scanned, x, y)


def test_no_level_of_vmap_is_left_behind() -> None:
    def fails(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row[index])(x)

    def stops(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row * len(repr(object())) * 0)(x)

    depth = torch._C._functorch.get_dynamic_layer_stack_depth
    x = torch.randn(3, 4)
    with torch.no_grad():
        compiled = ingot.compile(fails, backend="eager")
        assert_same(compiled(x, torch.tensor(1)), x[:, 1])
        with pytest.raises(IndexError):
            compiled(x, torch.tensor(9))
        assert depth() == 0
        assert_same(ingot.compile(stops, backend="eager")(x), x * 0)
        assert depth() == 0


# -- calls of a base class behind a break ----------------------------------------------------------


class Checks(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 1e6:
            raise ValueError("too large")
        return super().forward(x)


class StackOfThree(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class ChecksThree(Checks, StackOfThree):
    pass


def no_parameters() -> str:
    repr(object())
    return super.__name__


def test_super_behind_a_break() -> None:
    model, x = ChecksThree(), torch.randn(2, 4)
    compiled = ingot.compile(model, backend="eager")
    with torch.no_grad():
        for _ in range(2):
            assert_same(compiled(x), model(x))
        with pytest.raises(ValueError, match="too large"):
            compiled(x + 1e7)
    assert ingot.compile(no_parameters, backend="eager")() == "super"


def chosen(scores: torch.Tensor) -> Any:
    found = torch.distributions.Categorical(logits=scores)
    best = scores.argmax(-1)
    return found.log_prob(best), found.entropy(), found.probs


def test_a_distribution_with_lazy_properties() -> None:
    compiled_same(chosen, torch.randn(4, 3))
