# ruff: noqa: B009, B010, B023, E501, E721, F403, F405, UP003, UP031, UP032
"""Small programs about tensors, branches, functions and iterators: each a function of (3, 4) float
tensors x and y."""

from __future__ import annotations

from tests.capture.program_parts import *

# -- tensors ---------------------------------------------------------------------------------------


@program
def pointwise(x, y):
    return (x.sin() * y.cos() + 1).relu()


@program
def reflected_operators(x, y):
    return (
        1 - x,
        2 / (y + 10),
        2 ** (x * 0.1),
        -x,
        +y,
        abs(x),
        3 // (y + 10),
        7 % (y + 10),
        ~(x > 0),
    )


@program
def comparisons(x, y):
    return (
        x < y,
        x <= 1,
        0 == x,
        x != y,
        1 > x,
        x >= y,
        (x > 0) & (y > 0),
        (x > 0) | (y > 0),
        (x > 0) ^ (y > 0),
    )


@program
def in_place(x, y):
    z = x.clone()
    z += y
    z *= 2
    z.add_(1).mul_(3)
    z[0] = 5
    z[:, 1] += 1
    return z


@program
def writes_argument(x, y):
    x.add_(y)
    x[0, 0] = 7
    return x.sum()


@program
def returns_argument(x, y):
    return y, x + 1, y


@program
def in_place_is_self(x, y):
    z = x + 1
    w = z.add_(1)
    return w is z, x is y, x is x, x is not None


@program
def indexing(x, y):
    return (
        x[0],
        x[:, 1:3],
        x[..., -1],
        x[None],
        x[x.shape[0] - 1, ::2],
        x[:, [0, 2]],
        x[1:, None, :2],
    )


@program
def tensor_indexing(x, y):
    i = torch.tensor([0, 2])
    return x[i], x[torch.arange(2), i]


@program
def shape_queries(x, y):
    a, b = x.shape
    assert x.dim() == x.ndim == 2 and x.size(0) == 3 and x.size()[1] == 4 and len(x) == 3
    assert (
        x.dtype == torch.float32 and x.device.type == "cpu" and not x.is_cuda and x.is_contiguous()
    )
    assert (
        x.numel() == 12
        and x.stride() == (4, 1)
        and x.dtype.is_floating_point
        and x.is_floating_point()
    )
    return (
        x.view(b, a),
        x.reshape(-1),
        x.view(*x.shape[:-1], 2, -1),
        x.new_zeros(x.shape),
        x.T,
        x.mT,
    )


@program
def size_results(x, y):
    return x.shape, x.size(), x.shape[1:], tuple(x.shape), x.shape.numel(), x.size(-1)


@program
def multiple_results(x, y):
    values, indices = x.max(dim=1)
    top = x.topk(2)
    a, b = x.split(2, dim=1)
    return values, indices, top.values, top.indices, a, b, *x.unbind(0), x.chunk(2, 1)


@program
def struct_result(x, y):
    return x.max(dim=0), torch.sort(y)


@program
def iterates_tensor(x, y):
    total = 0
    for row in x:
        total = total + row
    a, b, c = y
    return total, a + b + c, [r.sum() for r in y], torch.stack([*x])


@program
def factories(x, y):
    return (
        torch.zeros(2, 3), torch.arange(5), torch.full_like(x, 2.0), torch.ones(x.shape[0]),
        torch.eye(3), torch.linspace(0, 1, 4), torch.empty(2, 2).fill_(1),
        torch.zeros_like(x, dtype=torch.int64), x.new_ones(2),
    )  # fmt: skip


@program
def literals(x, y):
    return torch.tensor(3.0) + x, torch.tensor([1, 2, 3, 4]) * y


@program
def random_numbers(x, y):
    return torch.rand(3) + F.dropout(x, 0.5, training=True)[0, :3], torch.randn_like(x)


@program
def functional(x, y):
    w = torch.ones(5, 4)
    return (
        F.linear(x, w),
        F.softmax(x, dim=-1),
        F.gelu(y),
        F.layer_norm(x, (4,)),
        F.pad(x, (1, 1)),
        F.normalize(x),
        F.one_hot(torch.tensor([0, 2]), 3),
    )


@program
def torch_functions(x, y):
    return (
        torch.cat([x, y], dim=1),
        torch.stack((x, y)),
        torch.einsum("ij,kj->ik", x, y),
        torch.where(x > 0, x, y),
        torch.clamp(x, -1, 1),
    )


@program
def methods_with_keywords(x, y):
    return (
        x.sum(dim=1, keepdim=True),
        x.mean(-1),
        x.to(torch.float64),
        x.to(dtype=torch.int32),
        x.float(),
        x.type_as(y),
        x.masked_fill(x > 0, 0),
    )


@program
def unbound_methods(x, y):
    return torch.Tensor.add(x, y), torch.Tensor.sum(x, dim=0), torch.ops.aten.mul.Tensor(x, y)


@program
def out_argument(x, y):
    z = torch.empty(3, 4)
    torch.add(x, y, out=z)
    return z


@program
def views_share(x, y):
    z = x.clone()
    v = z.view(-1)
    v[0] = 9
    return z, v


@program
def data_attribute(x, y):
    return x.data + 1, x.detach()


@program
def tensor_types(x, y):
    return (
        isinstance(x, torch.Tensor),
        torch.is_tensor(3),
        type(x) is torch.Tensor,
        hasattr(x, "shape"),
        hasattr(x, "nothing"),
        callable(x),
    )


@program
def tensor_getattr(x, y):
    return x.sin(), getattr(x, "nothing", 3), torch.cos(y)


@program
def scalars_to_tensor(x, y):
    return x * 2 + 1.5, x * True, x**2, x * SCALE, x + math.pi, torch.add(x, y, alpha=2)


@program
def global_tensor(x, y):
    return x + CONSTANT_TENSOR


@program
def infinities(x, y):
    return (
        x.masked_fill(x > 0, float("-inf")),
        x.clamp(max=math.inf),
        torch.finfo(x.dtype).max,
        torch.iinfo(torch.int32).min,
    )


# -- control ---------------------------------------------------------------------------------------


@program
def branches(x, y):
    if x.shape[0] > 2 and not x.requires_grad or False:
        z = x
    elif x.dim() == 1:
        z = y
    else:
        z = x + y
    return z + 1 if y is not None else y


@program
def loops(x, y):
    for i in range(3):
        if i == 1:
            continue
        x = x + i
    else:
        x = x * 2
    n = 5
    while n > 0:
        n -= 1
        if n == 2:
            break
        y = y + n
    return x, y, n


@program
def nested_loops(x, y):
    for i in range(2):
        for j in range(i, 3):
            x = x + i * j
    return x


@program
def ternaries_and_chains(x, y):
    a, b, c = 1, 2, 3
    return x if a < b < c else y, a or b, a and b, None or 0 or c, not a, 0 and a


@program
def walrus(x, y):
    if (n := x.shape[0]) > 2:
        x = x + n
    return x, [m := 3, m**2], n


@program
def matches(x, y):
    results = []
    for subject in (1, "two", (1, 2), [1, 2, 3], {"k": 5, "l": 6}, None, Point(3, 4), 2.5):
        match subject:
            case 1:
                results.append("one")
            case str(s):
                results.append(s)
            case Point(x=a, y=b):
                results.append(a * b)
            case (a, b):
                results.append(a + b)
            case [a, *rest]:
                results.append(rest)
            case {"k": k, **others}:
                results.append((k, others))
            case None:
                results.append(None)
            case _:
                results.append("other")
    return x, results


@program
def asserts(x, y):
    assert x.shape == y.shape, f"shapes {x.shape} and {y.shape} differ"
    return x + y


# -- functions -------------------------------------------------------------------------------------


@program
def calls_with_all_kinds(x, y):
    extra = {"e": 5, "f": 6}
    return (
        keywords(x, 3, 1, 1, c=2, **extra),
        keywords(x, c=1),
        keywords(*(x, 2, 3), c=y),
        positional_only(x, y, c=2),
    )


@program
def closures(x, y):
    k = 3

    def inner(z):
        nonlocal k
        k += 1
        return z * k

    first = inner(x)
    return first, inner(y), k


@program
def late_binding(x, y):
    functions = [lambda z: z * i for i in range(3)]
    bound = [lambda z, i=i: z * i for i in range(3)]
    return [f(x) for f in functions], [f(x) for f in bound]


@program
def recursion(x, y):
    def power(z, n):
        return z if n == 1 else z * power(z, n - 1)

    return power(x, 4)


@program
def decorators(x, y):
    return decorated(x, k=5), scaled(y), without_grad(x)


@program
def partials(x, y):
    f = functools.partial(keywords, x, c=2)
    g = functools.partial(torch.add, y, alpha=3)
    return f(3, d=1), g(x)


@program
def lambdas_and_higher_order(x, y):
    return (
        list(map(lambda a, b: a * b, [x, y], [2, 3])),
        functools.reduce(operator.add, [x, y, 1]),
        list(filter(None, [0, 1, 2])),
    )


@program
def bound_methods(x, y):
    f, g = x.add, [].append
    g(3)
    return f(y), OBJECT.apply(x)


@program
def function_attributes(x, y):
    def inner():
        return 1

    inner.tag = 5
    return inner.tag, inner.__name__, decorated.__name__, x


@program
def star_expressions(x, y):
    first, *middle, last = [1, 2, 3, 4]
    (a, b), c = (x, y), 3
    return [first, *middle, last], {**{"a": 1}, "b": 2}, (*"ab", 1), a + b + c


# -- generators and iterators ----------------------------------------------------------------------


@program
def generators(x, y):
    return (
        [x + i for i in numbers(3)],
        list(numbers_and_more(2)),
        sum(i for i in numbers(4)),
        any(i > 3 for i in numbers(4)),
    )


@program
def generator_by_hand(x, y):
    g = numbers(3)
    first = next(g)
    rest = list(g)
    return first, rest, next(g, "empty"), x


@program
def generator_send(x, y):
    def accumulate():
        total = 0
        while True:
            got = yield total
            total = total + got

    g = accumulate()
    next(g)
    g.send(x)
    return g.send(y)


@program
def iterators(x, y):
    it = iter([1, 2, 3])
    pairs = list(zip([x, y], range(2), "ab"))
    return (
        next(it),
        list(it),
        [(i, n) for i, (_, n, _) in enumerate(pairs, 5)],
        list(reversed([1, 2])),
        pairs,
    )


@program
def zip_strict(x, y):
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError:
        return x
    return y


@program
def itertools_functions(x, y):
    return (
        list(itertools.chain([1], [2, 3])), list(itertools.product([1, 2], "ab")),
        list(itertools.islice(range(10), 2, 8, 3)), list(itertools.accumulate([1, 2, 3])),
        list(itertools.repeat(x, 2)), list(itertools.pairwise([1, 2, 3])),
        list(itertools.combinations(range(4), 2)), list(itertools.zip_longest([1, 2], [3])),
        list(itertools.chain.from_iterable([[1], [2]])), list(zip(itertools.count(2), "ab")),
        list(itertools.takewhile(lambda i: i < 2, range(5))),
        list(itertools.starmap(pow, [(2, 3)])),
    )  # fmt: skip


@program
def own_iterator(x, y):
    return [x + i for i in Counter(3)], list(Derived(1, 2)), 2 in Derived(1, 2)


@program
def unpack_generator(x, y):
    a, b, c = numbers(3)
    return a, b, c, [*numbers(2)], {*numbers(2)}, max(numbers(4)), sorted(numbers(3), reverse=True)
