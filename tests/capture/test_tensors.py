"""What programs do with tensors beyond computing: their data, their attributes, their identity,
their classes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ingot
from tests.capture.language import Table
from tests.oracle import assert_near
from tests.tracked import Tracked

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken

torch.manual_seed(0)
WEIGHT = nn.Parameter(torch.randn(4, 4))
COUNTS = torch.arange(12).reshape(3, 4)
GENERATOR = torch.Generator()
torch.func.jvp(torch.sin, (torch.ones(1),), (torch.ones(1),))  # the first use warns


# -- data ------------------------------------------------------------------------------------------


@broken("a branch on the number")
def item_in_a_branch(x: Tensor, y: Tensor) -> Any:
    if x.sum().item() > 0:
        return x + y
    return x - y


@whole
def item_returned(x: Tensor, y: Tensor) -> Any:
    return (
        x.sum().item(),
        COUNTS[0, 1].item(),
        (x > 0)[0, 0].item(),
        x[:1, :1].item(),
        float(COUNTS[0, 1]),
        int(COUNTS[1, 1]),
    )


@broken("the value of")
def item_of_a_complex_number(x: Tensor, y: Tensor) -> Any:
    return (x + 0j)[0, 0].item(), complex(x[0, 1]), x + 1


@broken("tolist")
def tolist(x: Tensor, y: Tensor) -> Any:
    total = 0
    for n in COUNTS[1].tolist():
        total += n
    return x * total, y[0].tolist()


@broken("int() of the number")
def conversions(x: Tensor, y: Tensor) -> Any:
    n = int(COUNTS[0, 2])
    f = float(x[0, 0])
    b = bool(x[0, 0] > 0)
    return y * n, f, b, int(x[0, 1] * 10)


@broken("a branch on the values")
def truth(x: Tensor, y: Tensor) -> Any:
    return (
        (x if x.sum() > 0 else y),
        bool(y.sum() > 0),
        not x.any(),
        bool(x.sum() > 0 and y.sum() > 0),
    )


@broken("")
def item_of_many(x: Tensor, y: Tensor) -> Any:
    return x.item()


@broken("")
def truth_of_many(x: Tensor, y: Tensor) -> Any:
    if x:
        return y
    return x


@broken("nonzero")
def nonzero(x: Tensor, y: Tensor) -> Any:
    return (
        torch.nonzero(x > 0),
        (y > 0).nonzero(as_tuple=True),
        torch.where(x > 0),
        torch.argwhere(x > 0),
    )


@broken("")
def boolean_masks(x: Tensor, y: Tensor) -> Any:
    picked = x[y > 0]
    z = x * 2
    z[y > 0] = 0
    return picked.sum(), picked.shape, z, torch.masked_select(x, x > 0), x.unique()


@broken("the value of the number")
def index_by_a_tensor(x: Tensor, y: Tensor) -> Any:
    rows = [x, y]
    return rows[int(COUNTS[0, 1])], range(int(COUNTS[0, 3])), "abcd"[int(COUNTS[0, 2])]


@broken("")
def index_of_a_list_is_a_tensor(x: Tensor, y: Tensor) -> Any:
    return [x, y][COUNTS[0, 1]], list(range(COUNTS[0, 3]))


@broken("the value of")
def text_of_a_tensor(x: Tensor, y: Tensor) -> Any:
    return f"{x.sum():.3f} {x.shape}", str(COUNTS), repr(x[0]), f"{COUNTS[0, 1].item():d}"


@broken("")
def loop_over_data(x: Tensor, y: Tensor) -> Any:
    while x.abs().sum() > 1:
        x = x / 2
    return x


@whole
def numpy_of_a_tensor(x: Tensor, y: Tensor) -> Any:
    a = x.numpy()
    z = torch.from_numpy(a) + 1
    return z, a.shape, a.dtype.name, y.detach().cpu().numpy().max().item()


@broken("")
def memory(x: Tensor, y: Tensor) -> Any:
    view = x[1:]
    return (
        view.data_ptr() - x.data_ptr(),
        view.untyped_storage().nbytes(),
        view.storage_offset(),
        x.is_shared(),
    )


@broken("equal")
def equality(x: Tensor, y: Tensor) -> Any:
    return torch.equal(x, y), torch.equal(x, x.clone()), x.equal(y), torch.allclose(x, x + 1e-9)


@whole
def comparisons_of_identity(x: Tensor, y: Tensor) -> Any:
    z = x
    return x is z, x is y, x in [x], x is not None, (x, y).index(x), [y, x].count(y) if False else 0


# -- attributes ------------------------------------------------------------------------------------


@whole
def properties(x: Tensor, y: Tensor) -> Any:
    z = (x @ y.T).T
    names = (
        "dtype device layout ndim is_leaf requires_grad itemsize nbytes "
        "is_cpu is_cuda is_meta is_sparse is_quantized"
    )
    found = [getattr(z, name) for name in names.split()]
    return (
        found,
        z.size(),
        z.size(0),
        z.stride(),
        z.stride(1),
        z.dim(),
        z.numel(),
        z.is_contiguous(),
        z.element_size(),
    )


@whole
def shapes(x: Tensor, y: Tensor) -> Any:
    shape = x.shape
    rows, columns = shape
    longer, copy_ = shape + (2,), torch.Size(shape)
    return (
        shape, shape[0], shape[-1:], longer, type(longer), type(shape[1:]), shape.numel(),
        rows * columns, len(shape), shape == (3, 4), list(shape), copy_, shape.count(3),
        shape.index(4), torch.Size([2, 3]).numel(), hash(shape), x.new_zeros(shape),
        x.reshape(*shape, 1).shape, max(shape), sum(shape), 3 in shape, tuple(shape), shape * 2,
    )  # fmt: skip


@whole
def gradients_of_plain_tensors(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    return (
        z.grad,
        z.grad_fn,
        x.grad,
        x.grad_fn,
        WEIGHT.grad,
        WEIGHT.grad_fn,
        z.requires_grad,
        WEIGHT.is_leaf,
    )


@whole
def type_names(x: Tensor, y: Tensor) -> Any:
    z = x.double() + 1
    names = x.type(), z.type(), COUNTS.type(), (x > 0).type()
    others = x.type(torch.float16), x.type("torch.IntTensor"), x.type(torch.LongTensor)
    answers = isinstance(x, torch.FloatTensor), isinstance(z, torch.FloatTensor)
    return *names, *others, z.type_as(y), *answers


@whole
def classes(x: Tensor, y: Tensor) -> Any:
    return (
        type(x), type(x + 1), x.__class__, isinstance(x, Tensor), isinstance(WEIGHT, nn.Parameter),
        type(WEIGHT), isinstance(x, nn.Parameter), torch.is_tensor(y),
        torch.is_floating_point(COUNTS), x.is_complex(), type(x.data),
        isinstance(WEIGHT.data, nn.Parameter), hasattr(x, "shape"), hasattr(x, "nothing"),
        getattr(x, "nothing", 5),
        callable(x.sum), torch.numel(x), torch.is_storage(x),
    )  # fmt: skip


@whole
def data_attribute(x: Tensor, y: Tensor) -> Any:
    z = WEIGHT.data * 2
    x.data.add_(1)
    return z, z.requires_grad, x, WEIGHT.detach() + 1


def tagged() -> Any:
    made = torch.ones(3)
    made.tag, made.extra = "outside", torch.zeros(2)  # type: ignore[attr-defined]
    return (made,)


@whole(make=tagged)
def attributes_of_the_users(x: Tensor, y: Tensor, z: Tensor) -> Any:
    return z.tag, z.extra + 1, hasattr(z, "tag"), hasattr(z, "other")  # type: ignore[attr-defined]


@whole(make=tagged, fresh=True)
def attributes_set(x: Tensor, y: Tensor, z: Tensor) -> Any:
    made = x + 1
    made.tag = "inside"  # type: ignore[attr-defined]
    z.tag = "changed"  # type: ignore[attr-defined]
    return made, made.tag, z.tag, hasattr(y, "tag")  # type: ignore[attr-defined]


@whole
def gradients_wanted_by_assignment(x: Tensor, y: Tensor) -> Any:
    z = x[:, None]
    z.requires_grad = True
    y.requires_grad = False
    return z.requires_grad, z.is_leaf, (z.sin() * y[:, None]).detach().sum(), x.requires_grad


@whole(fresh=True)
def gradients_asked_for(x: Tensor, y: Tensor) -> Any:
    z = (x + 1).requires_grad_()
    x.requires_grad_(True)
    return z.requires_grad, x.requires_grad, z.is_leaf, x.sum()


@broken("", fresh=True)
def data_set(x: Tensor, y: Tensor) -> Any:
    z = x * 1
    z.data = y
    x.data = y * 2
    y.add_(1)
    return z + x, z


@broken("", fresh=True)
def geometry_changed_in_place(x: Tensor, y: Tensor) -> Any:
    z = x * 1
    z.unsqueeze_(0)
    x.t_()
    y.transpose_(0, 1).squeeze_()
    z.resize_(2, 3)
    return z.shape, x, y + 1, x.stride(), (x * 1).detach_().swapaxes_(0, 1).shape


@broken("")
def hook_on_a_tensor(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    try:
        z.register_hook(lambda grad: grad)
    except RuntimeError as error:
        return z, str(error)[:20]
    return None


# -- making tensors --------------------------------------------------------------------------------


@whole
def tensors_like_another(x: Tensor, y: Tensor) -> Any:
    return (
        x.new(2, 3).fill_(1),
        x.double().new(y.shape).zero_(),
        x.new().shape,
        x.new(torch.Size([2])).zero_(),
    )


@broken("more than sizes")
def tensors_like_another_with_data(x: Tensor, y: Tensor) -> Any:
    return x.new([1.0, 2.0]), x.new((3, 4))


@whole
def factories(x: Tensor, y: Tensor) -> Any:
    return (
        torch.tensor([1, 2, 3]), torch.tensor(2.5),
        torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor([]),
        torch.as_tensor([1, 2]), torch.as_tensor(x), torch.as_tensor(x) is x, torch.zeros(x.shape),
        torch.ones_like(x), torch.full((2,), 3), torch.arange(0, 1, 0.25), torch.linspace(0, 1, 3),
        torch.eye(2), x.new_tensor([1, 2]), x.new_full((2,), 7), torch.empty(0, 3),
        torch.tensor(True), torch.scalar_tensor(4), torch.asarray([1.5]),
        torch.zeros(2, dtype=torch.long, device=x.device), torch.complex(x, y),
        torch.tensor((1, 2.5)),
    )  # fmt: skip


@whole
def tensor_of_tensors(x: Tensor, y: Tensor) -> Any:
    return torch.tensor([x.sum(), 1.0]), torch.tensor(x[0]), x + 1


@broken("")
def legacy_constructors(x: Tensor, y: Tensor) -> Any:
    return (
        torch.Tensor([1, 2]),
        torch.LongTensor([3]),
        x.new([1.5]),
        torch.FloatTensor(2, 3).shape,
        torch.Tensor(2, 2).shape,
    )


@broken("")
def parameters_made(x: Tensor, y: Tensor) -> Any:
    made = nn.Parameter(x * 2, requires_grad=False)
    return made, isinstance(made, nn.Parameter), made + 1


@whole
def random_numbers(x: Tensor, y: Tensor) -> Any:
    return (
        torch.rand(3),
        torch.randn_like(x),
        torch.randint(0, 5, (4,)),
        torch.randperm(5),
        F.dropout(x, 0.5, True),
        x.clone().normal_(),
    )


@broken("Generator")
def random_numbers_of_a_generator(x: Tensor, y: Tensor) -> Any:
    seed = GENERATOR.manual_seed(3).initial_seed()
    return (
        torch.rand(3, generator=GENERATOR) + 1,
        torch.randn(2, generator=GENERATOR),
        seed,
        x.abs().clamp(0, 1).bernoulli(generator=GENERATOR),
    )


@whole
def one_hot_and_kin(x: Tensor, y: Tensor) -> Any:
    return (
        F.one_hot(COUNTS % 3, 3),
        F.one_hot(COUNTS[0], num_classes=5),
        F.pad(x, (1, 1)),
        F.interpolate(x[None], scale_factor=2),
    )


# -- functions that run a function -----------------------------------------------------------------


def helper(a: Tensor, b: Tensor) -> Tensor:
    return a * b + 1


@whole
def vmapped(x: Tensor, y: Tensor) -> Any:
    z = x + 1
    return (
        torch.vmap(helper)(z, y),
        torch.vmap(lambda a: a.sum())(z) * 2,
        torch.vmap(torch.dot)(x, y),
    )


@whole
def gradients_are_set(x: Tensor, y: Tensor) -> Any:
    a, b, c = x + 1, x + 2, x + 3
    a.grad = a * 2
    a.note = "a note"  # type: ignore[attr-defined]
    b.grad = y
    b.grad.add_(1)
    c.grad = y
    c.grad = None
    return a, a.grad, b, c, c.grad


@whole
def functional_derivatives(x: Tensor, y: Tensor) -> Any:
    def loss(a: Tensor) -> Tensor:
        return helper(a, y).sin().sum()

    with torch.enable_grad():
        gradient = torch.func.grad(loss)(x)
    value, tangent = torch.func.jvp(loss, (x,), (y,))
    return gradient + 1, value, tangent, torch.func.jacrev(lambda a: a**2)(x[0])


@whole
def conditional(x: Tensor, y: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))


@whole
def checkpointed(x: Tensor, y: Tensor) -> Any:
    return checkpoint(helper, x, y, use_reentrant=False) * 2


@whole(fresh=True)
def derivatives(x: Tensor, y: Tensor) -> Any:
    with torch.enable_grad():
        a = x.detach().requires_grad_()
        loss = (a * y).sin().sum()
        (gradient,) = torch.autograd.grad(loss, a)
        b = y.clone().requires_grad_()
        (b * x).sum().backward()
    return gradient * 2, b.grad


# -- subclasses ------------------------------------------------------------------------------------


class Tagged(Tensor):
    """A subclass without any method of its own."""


class Logged(Tensor):
    """A subclass that sees the operations on it."""

    seen: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


@whole(make=lambda: (torch.ones(3, 4).as_subclass(Tagged),))
def subclass(x: Tensor, y: Tensor, z: Tensor) -> Any:
    a = x + 1
    b = (a * z).sum()
    return type(b), b.as_subclass(Tensor), (x + y).as_subclass(Tensor), isinstance(z, Tagged)


@whole(make=lambda: (torch.ones(3, 4).as_subclass(Logged),))
def subclass_with_a_function(x: Tensor, y: Tensor, z: Tensor) -> Any:
    Logged.seen.clear()
    b = torch.add(x * 2, z)
    return type(b), b.as_subclass(Tensor), list(Logged.seen)


test_program = TABLE.test()


# -- guards ----------------------------------------------------------------------------------------


@pytest.fixture
def without_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.usefixtures("without_gradients")
class TestGuards:
    """A fact that was asked for and changes is seen; then nothing more is compiled."""

    def test_gradient_of_a_parameter(self) -> None:
        weight = nn.Parameter(torch.ones(3))
        tracked = Tracked(lambda x: x + (0 if weight.grad is None else weight.grad))
        x = torch.ones(3)
        assert (tracked(x), tracked(x)) == (1, 0)
        weight.grad = torch.full((3,), 5.0)
        assert (tracked(x), tracked(x)) == (1, 0)
        weight.grad.add_(1)
        assert tracked(x) == 0
        weight.grad = None
        assert tracked(x) == 0

    def test_attributes_of_the_users(self) -> None:
        held = torch.ones(3)
        tracked = Tracked(lambda x: x * getattr(held, "scale", 1))
        x = torch.ones(3)
        assert (tracked(x), tracked(x)) == (1, 0)
        held.scale = 3  # type: ignore[attr-defined]
        assert (tracked(x), tracked(x)) == (1, 0)
        held.scale = 4  # type: ignore[attr-defined]
        assert (tracked(x), tracked(x)) == (1, 0)
        del held.scale  # type: ignore[attr-defined]
        assert tracked(x) == 0

    def test_data_swapped(self) -> None:
        weight = nn.Parameter(torch.ones(3))
        tracked = Tracked(lambda x: x * weight.data + weight)
        x = torch.ones(3)
        assert (tracked(x), tracked(x)) == (1, 0)
        weight.data = torch.full((3,), 2.0)
        assert tracked(x) == 0
        weight.data = torch.ones(3, dtype=torch.float64)
        assert (tracked(x), tracked(x)) == (1, 0)

    def test_item_of_another_value(self) -> None:
        def fn(x: Tensor, n: Tensor) -> Tensor:
            return x * 2 if n.item() > 2 else x - 1

        tracked = Tracked(fn)
        x = torch.ones(3)
        for n in (1, 5, 1, 5):
            tracked(x, torch.tensor(n))
        assert tracked.skips == []
        assert tracked(x, torch.tensor(1)) == tracked(x, torch.tensor(5)) == 0


def test_a_transform_around_the_call_is_seen() -> None:
    compiled = ingot.compile(helper)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    with torch.no_grad():
        assert_near(compiled(x, y), helper(x, y))
        assert_near(torch.vmap(compiled)(x, y), helper(x, y))
        assert_near(
            torch.vmap(compiled, in_dims=(0, None))(x, y),
            torch.vmap(helper, in_dims=(0, None))(x, y),
        )
        assert_near(compiled(x, y), helper(x, y))
    gradient = torch.func.grad(lambda a: compiled(a, y).sum())(x)
    assert_near(gradient, y)


def test_modes_of_the_users_see_every_operation() -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Functions(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    compiled = ingot.compile(lambda x: torch.sin(x) * 2)
    x = torch.randn(3)
    with torch.no_grad():
        expected = compiled(x)
        for mode in (Functions, Operations):
            seen: list[str] = []
            with mode():
                torch.sin(x) * 2
            wanted = copy.copy(seen)
            seen.clear()
            with mode():
                result = compiled(x)
            assert seen == wanted
            assert_near(result, expected)
        assert_near(compiled(x), expected)


def test_an_attribute_in_a_methods_place_is_called_instead() -> None:
    def totals(x: Tensor) -> Any:
        return x.sum() * 2, x.mean()

    shadowed = torch.ones(3)
    shadowed.sum = lambda: torch.tensor(7.0)  # type: ignore[method-assign]
    compiled = ingot.compile(totals)
    assert compiled(shadowed) == totals(shadowed) == (14, 1)
