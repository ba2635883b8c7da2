"""Jagged nested tensors: passed in and out, made inside, and the ops on them, with sizes that vary.
Values, gradients, the offsets they share and errors are as in eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot
from ingot.compiler import Compiler
from ingot.errors import GraphBreakError
from ingot.torch_private import JaggedTensor
from tests.oracle import assert_near

nested = torch.nested
Sizes = Sequence[int]
BATCHES: tuple[Sizes, ...] = ((3, 2, 4), (1, 5, 2), (4, 4, 2), (2, 6, 1), (5, 3))
DIM = 8


def offsets_of(sizes: Sizes) -> Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


def jagged(sizes: Sizes, requires_grad: bool = False) -> Any:
    made = nested.nested_tensor_from_jagged(torch.randn(sum(sizes), DIM), offsets_of(sizes))
    return made.detach().requires_grad_(requires_grad)


def of_list(sizes: Sizes, requires_grad: bool = False) -> Any:
    """One that knows its shortest and its longest row."""
    rows = [torch.randn(n, DIM) for n in sizes]
    return nested.nested_tensor(rows, layout=torch.jagged, requires_grad=requires_grad)


def of_columns(sizes: Sizes, requires_grad: bool = False) -> Any:
    """One whose last dimension is ragged."""
    rows = [torch.randn(DIM, n) for n in sizes]
    return nested.nested_tensor(rows, layout=torch.jagged, requires_grad=requires_grad)


def with_holes(sizes: Sizes, requires_grad: bool = False) -> Any:
    starts = torch.arange(len(sizes))
    padded = torch.randn(len(sizes), 12, DIM)
    made = nested.narrow(padded, 1, starts, torch.tensor(sizes), layout=torch.jagged)
    return made.detach().requires_grad_(requires_grad)


torch.manual_seed(0)
linear, norm, head = nn.Linear(DIM, 5), nn.LayerNorm(DIM), nn.Linear(DIM, DIM)
stack = nn.Sequential(head, nn.ReLU(), norm, linear)


def written_copy(x: Tensor) -> Tensor:
    y = x.clone()
    y.mul_(2)
    return y.add_(1)


def heads(x: Tensor) -> Tensor:
    return x.view(x.size(0), x.size(1), 2, 4).transpose(1, 2) * 2


def inferred_heads(x: Tensor) -> Tensor:
    return x.view(x.shape[0], -1, 2, 4).sin()


def made_again(x: Any) -> Tensor:
    return nested.nested_tensor_from_jagged(x.values() * 2, x.offsets())


def facts(x: Any) -> Any:
    return x * 1, x.dim(), x.numel(), x.is_nested, x.dtype, x.layout, x.shape[2], x.lengths()


def by_ragged_size(x: Tensor) -> Any:
    y = x * 2
    if y.size(1) == x.shape[1] and x.size(1) != 3:
        return y, x.size(1)
    return x, None


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda x: x,
    "arithmetic": lambda x: x * 2 + x / 3 - 1,
    "a row": lambda x: x + torch.arange(8.0),
    "a column of each": lambda x: x + torch.ones(x.size(0), 1, DIM),
    "relu": lambda x: F.relu(x).sin(),
    "gelu": lambda x: F.gelu(x, approximate="tanh") * torch.sigmoid(x),
    "silu": lambda x: F.silu(x).exp(),
    "clamp": lambda x: x.clamp(-1, 1).pow(2),
    "where": lambda x: torch.where(x > 0, x, x * 0.1),
    "comparison": lambda x: (x > 0).values(),
    "linear": linear,
    "matmul": lambda x: x @ torch.ones(8, 3),
    "layer_norm": norm,
    "rms_norm": lambda x: F.rms_norm(x, (DIM,)),
    "a stack of layers": stack,
    "softmax": lambda x: F.softmax(x, -1),
    "values": lambda x: x.values() * 2,
    "offsets": lambda x: (x.offsets() + 1, x * 1),
    "sum of all": lambda x: x.sum(),
    "mean": lambda x: x.mean(-1),
    "mean of values": lambda x: x.values().mean(),
    "amax": lambda x: x.amax(-1),
    "amax over rows": lambda x: x.amax(1),
    "padded": lambda x: x.to_padded_tensor(0.0) * 2,
    "heads": heads,
    "inferred heads": inferred_heads,
    "unflattened": lambda x: x.unflatten(-1, (2, 4)).permute(0, 2, 1, 3) * 2,
    "unsqueezed": lambda x: (x.unsqueeze(-1) * 2).squeeze(-1),
    "expanded": lambda x: x.unsqueeze(-1).expand(-1, -1, -1, 3) * 2,
    "chunks": lambda x: x.chunk(2, -1)[0] * 1,
    "split": lambda x: x.split(4, -1),
    "cat": lambda x: torch.cat([x, x * 2], -1),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach() * 2,
    "contiguous": lambda x: x.contiguous() + 1,
    "another dtype": lambda x: x.double() * 2,
    "zeros_like": lambda x: torch.zeros_like(x) + x,
    "full": lambda x: torch.empty_like(x).fill_(2.0),
    "written copy": written_copy,
    "no dropout": lambda x: F.dropout(x, 0.5, training=False) * 2,
    "made again": made_again,
    "without gradients": torch.no_grad()(lambda x: x * 2),
    "facts": facts,
    "by ragged size": by_ragged_size,
    "shape": lambda x: (x * 2).shape,
}

INFERENCE_ONLY: dict[str, Callable[[Any], Any]] = {
    "sum over rows": lambda x: x.sum(1),
    "sum of rows that stay": lambda x: x.sum(1, keepdim=True),
    "sum": lambda x: x.sum(-1),
    "mean over rows": lambda x: x.mean(1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "an element of each": lambda x: x[..., 0] * 2,
}
"""Eager has no gradients of these."""


def plain_parts(x: Any) -> list[Tensor]:
    if isinstance(x, (tuple, list)):
        return [part for item in x for part in plain_parts(item)]
    if isinstance(x, JaggedTensor):
        return [x._values, x._offsets, *filter(torch.is_tensor, [x._lengths])]
    return [x] if isinstance(x, Tensor) else []


def assert_same(actual: Any, expected: Any, given: Any = None) -> None:
    """That two results are alike, down to whether they share the offsets of what was `given`."""
    assert type(actual) is type(expected)
    if isinstance(expected, (tuple, list)):
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e, given)
    elif isinstance(expected, JaggedTensor):
        assert (actual._ragged_idx, actual.dtype) == (expected._ragged_idx, expected.dtype)
        assert actual.requires_grad is expected.requires_grad
        assert len(actual.shape) == len(expected.shape)
        shares = isinstance(given, JaggedTensor) and expected._offsets is given._offsets
        if shares:
            assert actual._offsets is given._offsets
            assert (actual.shape, actual.stride()) == (expected.shape, expected.stride())
        for a, e in zip(plain_parts(actual), plain_parts(expected), strict=True):
            assert (a.shape, a.stride(), a.dtype) == (e.shape, e.stride(), e.dtype)
            assert_near(a.detach(), e.detach())
    elif isinstance(expected, Tensor):
        assert (actual.shape, actual.stride()) == (expected.shape, expected.stride())
        assert actual.requires_grad is expected.requires_grad
        assert_near(actual, expected)
    else:
        assert actual == expected


def gradient(result: Any, x: Any) -> Any:
    """That of a number that is made of a result; None where nothing depends on x."""
    losses = []
    for tensor in result if isinstance(result, tuple) else (result,):
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            losses.append((tensor.values() if tensor.is_nested else tensor).sin().sum())
    if not losses:
        return None
    return torch.autograd.grad(losses, x)[0]


def compilations(compiled: Any) -> int:
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return len(compiler.compilations)


def check(
    fn: Callable[[Any], Any],
    make: Callable[..., Any] = jagged,
    requires_grad: bool = False,
    batches: Sequence[Sizes] = BATCHES,
    at_most: int = 3,
) -> None:
    compiled = ingot.compile(fn, fullgraph=True)
    for sizes in batches:
        x = make(sizes, requires_grad)
        expected, actual = fn(x), compiled(x)
        assert_same(actual, expected, x)
        if requires_grad:
            assert_same(gradient(actual, x), gradient(expected, x), x)
    assert compilations(compiled) <= at_most


@pytest.mark.parametrize("name", PROGRAMS | INFERENCE_ONLY)
def test_inference(name: str) -> None:
    check((PROGRAMS | INFERENCE_ONLY)[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_training(name: str) -> None:
    check(PROGRAMS[name], requires_grad=True)


@pytest.mark.parametrize("make", [of_list, of_columns, with_holes])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_other_layouts(make: Callable[..., Any], requires_grad: bool) -> None:
    check(lambda x: F.relu(x * 2) + x, make, requires_grad)


@pytest.mark.parametrize("name", ["padded", "softmax", "sum over rows", "a stack of layers"])
def test_known_lengths_of_rows(name: str) -> None:
    check((PROGRAMS | INFERENCE_ONLY)[name], of_list)


EMPTY_ROWS: tuple[Sizes, ...] = ((3, 0, 2), (0, 1, 2), (1,), (0, 0), (2, 0))


@pytest.mark.parametrize("name", ["gelu", "a stack of layers", "padded", "heads", "values", "amax"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_empty_rows(name: str, requires_grad: bool) -> None:
    check(PROGRAMS[name], jagged, requires_grad, EMPTY_ROWS, at_most=len(EMPTY_ROWS))


@pytest.mark.parametrize("name", INFERENCE_ONLY)
def test_gradients_that_eager_lacks(name: str) -> None:
    fn = INFERENCE_ONLY[name]
    compiled, x = ingot.compile(fn), jagged((3, 2, 4), True)
    errors = []
    for run in (fn, compiled):
        with pytest.raises((RuntimeError, ValueError)) as raised:
            gradient(run(x), x)
        errors.append((type(raised.value), str(raised.value)))
    assert errors[0] == errors[1]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.var(-1),
        lambda x: torch.stack([x, x]),
        lambda x: x[1:] * 2,
        lambda x: x + jagged((2, 2, 5)),
    ],
)
def test_errors(fn: Callable[[Any], Any]) -> None:
    compiled, x = ingot.compile(fn), jagged((3, 2, 4))
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        fn(x)
    with pytest.raises(expected.type):
        compiled(x)


# -- attention -------------------------------------------------------------------------------------


def split_heads(x: Tensor) -> Tensor:
    return x.view(x.size(0), -1, 2, 4).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.scale = scale

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        y = x if y is None else y
        q, k, v = split_heads(self.q(x)), split_heads(self.k(y)), split_heads(self.v(y))
        result = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return result.transpose(1, 2).flatten(-2)


@pytest.mark.parametrize("make", [jagged, of_list])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention(make: Callable[..., Any], requires_grad: bool, scale: float | None) -> None:
    torch.manual_seed(0)
    check(Attention(scale), make, requires_grad)


def test_attention_between_two() -> None:
    torch.manual_seed(0)
    model = Attention()
    compiled = ingot.compile(model, fullgraph=True)
    for sizes in (*BATCHES, (3, 0, 2), (0, 1, 2)):
        x, y = jagged(sizes, True), jagged([n + 1 for n in reversed(sizes)], True)
        for given in (x, y):
            actual, expected = compiled(x, y), model(x, y)
            assert_same(actual, expected, x)
            assert_same(gradient(actual, given), gradient(expected, given), given)


def test_attention_that_eager_refuses() -> None:
    def fn(x: Tensor) -> Tensor:
        q = split_heads(x)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    x, errors = jagged((3, 2)), []
    for run in (fn, ingot.compile(fn)):
        with pytest.raises(RuntimeError) as raised:
            run(x)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


# -- made inside -----------------------------------------------------------------------------------


def rows(sizes: Sizes, requires_grad: bool = False) -> list[Tensor]:
    return [torch.randn(n, 4, requires_grad=requires_grad) for n in sizes]


@pytest.mark.parametrize("requires_grad", [False, True])
def test_made_of_values_and_offsets(requires_grad: bool) -> None:
    def fn(values: Tensor, offsets: Tensor) -> Tensor:
        return nested.nested_tensor_from_jagged(values * 2, offsets).sin()

    compiled = ingot.compile(fn, fullgraph=True)
    for sizes in BATCHES:
        values = torch.randn(sum(sizes), 4, requires_grad=requires_grad)
        offsets = offsets_of(sizes)
        actual, expected = compiled(values, offsets), fn(values, offsets)
        assert actual._offsets is offsets
        assert_same(actual, expected, expected)
        if requires_grad:
            assert_same(gradient(actual, values), gradient(expected, values))
    assert compilations(compiled) <= 3


@pytest.mark.parametrize("make", [nested.nested_tensor, nested.as_nested_tensor])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_made_of_a_list(make: Callable[..., Any], requires_grad: bool) -> None:
    def fn(*tensors: Tensor) -> Tensor:
        return make(list(tensors), layout=torch.jagged) * 2

    compiled = ingot.compile(fn, fullgraph=True)
    for sizes in BATCHES:
        tensors = rows(sizes, requires_grad)
        actual, expected = compiled(*tensors), fn(*tensors)
        assert_same(actual, expected)
        if expected.requires_grad:
            assert_same(gradient(actual, tensors[1]), gradient(expected, tensors[1]))


def test_made_of_lengths() -> None:
    def fn(values: Tensor, lengths: Tensor) -> Any:
        x = nested.nested_tensor_from_jagged(values, lengths=lengths, min_seqlen=1, max_seqlen=6)
        return x * 2, (x + 1).to_padded_tensor(0.0)

    compiled = ingot.compile(fn, fullgraph=True)
    for sizes in BATCHES:
        values, lengths = torch.randn(sum(sizes), 4), torch.tensor(sizes)
        assert_same(compiled(values, lengths), fn(values, lengths))
    assert compilations(compiled) <= 3


def test_made_of_a_tensor() -> None:
    def fn(x: Tensor) -> Tensor:
        return nested.as_nested_tensor(x, layout=torch.jagged) * 2

    compiled = ingot.compile(fn, fullgraph=True)
    for n in (2, 3, 4, 5):
        x = torch.randn(n, 4, 3)
        assert_same(compiled(x), fn(x))
    assert compilations(compiled) <= 3


from_jagged = nested.nested_tensor_from_jagged


def of_two_offsets(values: Tensor, offsets: Tensor, others: Tensor) -> Any:
    return from_jagged(values * 3, others), from_jagged(values * 2, offsets)


def of_two_copies(values: Tensor, offsets: Tensor, others: Tensor) -> Any:
    return from_jagged(values * 2, offsets.clone()), from_jagged(values * 3, offsets.clone())


def of_one_copy(values: Tensor, offsets: Tensor, others: Tensor) -> Any:
    copy = offsets.clone()
    return from_jagged(values * 2, copy), from_jagged(values * 3, copy) * 2


def of_constant_offsets(values: Tensor, offsets: Tensor, others: Tensor) -> Any:
    known = torch.tensor([0, 2, 6, 10])
    x, y = from_jagged(values, known), from_jagged(values * 2, known.clone())
    return (x, x + 1) if x.shape[1] != y.shape[1] else (y, x)


def of_computed_offsets(values: Tensor, offsets: Tensor, others: Tensor) -> Any:
    lengths = offsets.diff()
    made = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return (from_jagged(values, made) * from_jagged(values, made)).sin(), from_jagged(values, made)


@pytest.mark.parametrize(
    "fn",
    [of_two_offsets, of_two_copies, of_one_copy, of_constant_offsets, of_computed_offsets],
)
def test_which_results_share_offsets(fn: Callable[..., Any]) -> None:
    compiled = ingot.compile(fn, fullgraph=True)
    first, second = torch.tensor([0, 2, 6, 10]), torch.tensor([0, 1, 4, 10])
    for offsets in ((first, second), (first, first), (second, first)):
        values = torch.randn(10, 5, requires_grad=True)
        actual, expected = compiled(values, *offsets), fn(values, *offsets)
        assert_same(actual, expected)
        shares = [x.shape[1] == y.shape[1] for x, y in (actual, expected)]
        assert shares[0] is shares[1]
        assert_same(gradient(actual, values), gradient(expected, values))


def test_arguments_and_their_parts() -> None:
    def fn(x: Any, values: Tensor, offsets: Tensor) -> Tensor:
        return from_jagged(values * 2, offsets) + x + from_jagged(values, x.offsets())

    compiled = ingot.compile(fn, fullgraph=True)
    for sizes in BATCHES:
        values, offsets = torch.randn(sum(sizes), 5, requires_grad=True), offsets_of(sizes)
        x = from_jagged(values, offsets)
        actual, expected = compiled(x, values, offsets), fn(x, values, offsets)
        assert_same(actual, expected, x)
        assert_same(gradient(actual, values), gradient(expected, values))


VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "of a leaf": lambda b: from_jagged(b, torch.tensor([0, 3, 5, 9])),
    "of a result": lambda b: from_jagged(b * 2, torch.tensor([0, 3, 5, 9])),
    "result": lambda b: from_jagged(b, torch.tensor([0, 3, 5, 9])).sin(),
    "transposed": lambda b: from_jagged(b, torch.tensor([0, 3, 5, 9])).transpose(1, 2),
    "unflattened": lambda b: from_jagged(b, torch.tensor([0, 3, 5, 9])).unflatten(-1, (2, 4)),
    "a chunk": lambda b: from_jagged(b, torch.tensor([0, 3, 5, 9])).chunk(2, -1)[1],
    "of columns": lambda b: from_jagged(b[:, 2:6], torch.tensor([0, 3, 5, 9])),
    "of a list": lambda b: nested.as_nested_tensor([b[:3], b[3:]], layout=torch.jagged),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_arguments_that_are_views(name: str, requires_grad: bool) -> None:
    def fn(x: Any) -> Any:
        return x.sin() * x, (x + 1).values()

    base = torch.randn(9, DIM, requires_grad=requires_grad)
    compiled = ingot.compile(fn, fullgraph=True)
    for _ in range(2):
        x = VIEWS[name](base)
        actual, expected = compiled(x), fn(x)
        assert_same(actual, expected, x)
        if requires_grad:
            actual, expected = compiled(VIEWS[name](base)), fn(VIEWS[name](base))
            assert_same(gradient(actual, base), gradient(expected, base))
    assert compilations(compiled) == 1


# -- guards ----------------------------------------------------------------------------------------


def test_whether_offsets_are_the_same_is_guarded() -> None:
    def fn(x: Tensor, y: Tensor) -> Any:
        return x * 2, x.shape == y.shape, x.size(1) == y.size(1)

    first, second = offsets_of((3, 2, 4)), offsets_of((3, 2, 4))
    a, b, c = (from_jagged(torch.randn(9, 4), o) for o in (first, second, first))
    compiled = ingot.compile(fn, fullgraph=True)
    for pair in ((a, b), (a, c), (b, a), (a, a), (c, a)):
        assert compiled(*pair)[1:] == fn(*pair)[1:]


def test_whether_offsets_are_those_of_an_argument_is_guarded() -> None:
    def fn(x: Any, offsets: Tensor) -> bool:
        return nested.nested_tensor_from_jagged(x.values() * 2, offsets).shape == x.shape

    x, other = jagged((3, 2, 4)), offsets_of((3, 2, 4))
    compiled = ingot.compile(fn, fullgraph=True)
    for offsets in (other, x.offsets(), other, x.offsets()):
        assert compiled(x, offsets) is fn(x, offsets)


def test_two_that_share_offsets() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return x * y + x

    compiled = ingot.compile(fn, fullgraph=True)
    for sizes in BATCHES:
        x = jagged(sizes, True)
        y = nested.nested_tensor_from_jagged(torch.randn(sum(sizes), DIM), x.offsets())
        assert_same(compiled(x, y), fn(x, y), x)
        assert_same(gradient(compiled(x, y), x), gradient(fn(x, y), x), x)
    assert compilations(compiled) <= 3


def test_state_of_another_kind_compiles_anew() -> None:
    def fn(x: Tensor) -> Tensor:
        return x * 2

    compiled = ingot.compile(fn, fullgraph=True)
    sizes = (3, 2, 4)
    for k, make in enumerate((jagged, of_list, of_columns, with_holes)):
        x = make(sizes)
        assert_same(compiled(x), fn(x), x)
        assert compilations(compiled) == k + 1
    x = torch.randn(3, 4)
    assert_same(compiled(x), fn(x))


# -- memory, gradients of leaves, breaks -----------------------------------------------------------


def test_writes_and_views() -> None:
    def written(x: Any) -> Any:
        x.mul_(2)
        x.values().add_(1)
        return x.sin()

    compiled = ingot.compile(written, fullgraph=True)
    for sizes in BATCHES:
        x = jagged(sizes)
        y = nested.nested_tensor_from_jagged(x.values().clone(), x.offsets())
        assert_same(compiled(x), written(y), x)
        assert_same(x.values(), y.values())
    x = jagged((3, 2))
    for view in (lambda x: x.values(), inferred := lambda x: x.view(x.size(0), -1, 2, 4).values()):
        assert ingot.compile(view, fullgraph=True)(x).data_ptr() == x.values().data_ptr()
    assert inferred(x).data_ptr() == x.values().data_ptr()


def test_backward_fills_leaves() -> None:
    def fn(x: Any) -> Tensor:
        return (x * x).values().sum()

    x = jagged((3, 2), True)
    y = x.detach().requires_grad_()
    ingot.compile(fn, fullgraph=True)(x).backward()
    fn(y).backward()
    assert_same(x.grad, y.grad, x)


def test_module_on_ragged_tokens() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.inner = nn.Embedding(50, DIM), nn.Linear(DIM, DIM)
            self.norm, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, 3)

        def forward(self, tokens: Tensor) -> Any:
            x = self.embedding(tokens)
            x = self.norm(x + F.gelu(self.inner(x)))
            return self.out(x).values()

    torch.manual_seed(0)
    model = Model()
    compiled = ingot.compile(model, fullgraph=True)
    for sizes in BATCHES:
        values = torch.randint(0, 50, (sum(sizes),))
        tokens = nested.nested_tensor_from_jagged(values, offsets_of(sizes))
        gradients = []
        for run in (compiled, model):
            loss = run(tokens).pow(2).mean()
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        for actual, expected in zip(*gradients):
            assert_near(actual, expected)
    assert compilations(compiled) <= 3


def test_alive_at_a_break() -> None:
    def fn(x: Any) -> Any:
        y, n = x * 2, x.size(1)
        torch.manual_seed(0)
        z = y + x
        return z, n, z.size(1) == n

    x = jagged((3, 2), True)
    assert_same(ingot.compile(fn)(x), fn(x), x)


def test_unbind_breaks() -> None:
    def fn(x: Tensor) -> Any:
        return [part + 1 for part in (x * 2).unbind()]

    x = jagged((3, 2, 4))
    assert_same(ingot.compile(fn)(x), fn(x))
    with pytest.raises(GraphBreakError):
        ingot.compile(fn, fullgraph=True)(x)


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "its type": lambda n: (isinstance(n, int), isinstance(n, torch.SymInt)),
    "its text": str,
    "a product": lambda n: n * 2,
    "an order": lambda n: (n > 1, n >= 2),
    "equality": lambda n: (n == 3, n != n, n in (1, 2)),
    "as a key": lambda n: {n: 1}[n],
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_about_a_ragged_size(name: str) -> None:
    def fn(x: Any) -> Any:
        return x * 2, QUESTIONS[name](x.size(1))

    compiled = ingot.compile(fn)
    for sizes in BATCHES[:3]:
        x = jagged(sizes)
        assert_same(compiled(x), fn(x), x)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 1, x.shape[1:], x.stride(), str(x.shape)),
        lambda x: (x * 1, x.shape == (x.size(0), x.size(1), DIM), x.shape == (3, 3, DIM)),
        lambda x: (x * 1, x.size(-1), x.size(-2) == x.size(1), len(x)),
        lambda x: (x.is_leaf, x.requires_grad, type(x).__name__, isinstance(x, Tensor)),
        lambda x: x * 2 if (x > 0).values().all() else x * 3,
        lambda x: [t * 2 for t in x],
        lambda x: x[0] * 2,
        lambda x: x.requires_grad_(requires_grad=False),
    ],
)
def test_what_may_break(fn: Callable[[Any], Any]) -> None:
    compiled = ingot.compile(fn)
    for sizes in BATCHES[:3]:
        x = jagged(sizes)
        assert_same(compiled(x), fn(x), x)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes(mode: Any) -> None:
    compiled = ingot.compile(stack, fullgraph=True)
    for sizes in BATCHES:
        with mode():
            x = jagged(sizes)
            assert_same(compiled(x), stack(x), x)


def test_dynamic_from_the_first_call() -> None:
    compiled = ingot.compile(stack, fullgraph=True, dynamic=True)
    for sizes in BATCHES:
        x = jagged(sizes, True)
        assert_same(compiled(x), stack(x), x)
    assert compilations(compiled) == 1
