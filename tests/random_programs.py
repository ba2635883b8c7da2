"""The statements of random torch programs, which `random_programs_writer` writes.

`kind(weight)` registers one. Each gives an expression, whose value gets a name, or a whole
statement.
"""

from __future__ import annotations

import torch

from tests.random_programs_writer import FLOATS, INTS, _NothingFits, _Writer, kind

UNARY = (
    "sin cos tanh sigmoid exp neg abs relu sqrt square floor round trunc ceil sign erf rsqrt "
    "reciprocal log log1p expm1 "
    "isnan isinf logical_not isfinite bitwise_not positive sinh atan log2 exp2 tan frac signbit"
).split()


@kind(3)
def unary(w: _Writer) -> str:
    return f"torch.{w.rng.choice(UNARY[:9] if w.rng.random() < 0.6 else UNARY)}({w.pick()})"


@kind(1.5)
def activation(w: _Writer) -> str:
    forms = (
        "F.gelu({0}.clamp(-9, 9))|F.gelu({0}, approximate='tanh')|F.silu({0})|F.leaky_relu({0}, "
        "0.1)|F.elu({0})|F.softplus({0})|F.hardtanh({0})|"
        "F.hardswish({0})|F.relu6({0})|F.logsigmoid({0})|F.mish({0})|F.selu({0})|F.softsign({0})|F.tanhshrink({0})|F.hardshrink({0})|"
        "{0}.clamp(-0.5, "
        "0.75)|{0}.clamp(min=0)|{0}.clamp(max=1.5)|{0}.nan_to_num()|{0}.nan_to_num(0.5, 2.0, "
        "-2.0)|F.celu({0})|"
        "F.softshrink({0})|F.threshold({0}, 0.1, 20)|F.glu({0}, "
        "-1)|{0}.logit(1e-3)|F.hardsigmoid({0})"
    ).split("|")
    return w.rng.choice(forms).format(w.floating())


@kind(4)
def binary(w: _Writer) -> str:
    a = w.pick()
    b = w.like(a)
    ops = [
        "{} + {}",
        "{} - {}",
        "{} * {}",
        "{} / {}",
        "torch.maximum({}, {})",
        "torch.minimum({}, {})",
    ]
    ops += [
        "torch.add({}, {}, alpha=2)",
        "torch.sub({}, {}, alpha=0.5)",
        "torch.atan2({}, {})",
        "torch.hypot({}, {})",
    ]
    ops += [
        "torch.lerp({0}, {1}, 0.3)",
        "torch.addcmul({0}, {0}, {1}, value=0.5)",
        "torch.addcdiv({1}, {0}, {0})",
    ]
    ops += [
        "torch.true_divide({}, {})",
        "torch.xlogy({}, {})",
        "torch.copysign({}, {})",
        "torch.rsub({}, {})",
    ]
    return w.rng.choice(ops[:4] if w.rng.random() < 0.6 else ops).format(a, b)


@kind(2)
def with_number(w: _Writer) -> str:
    forms = (
        "{0} + 1|{0} * 0.5|2 - {0}|{0} / 3|1.5 / {0}|{0} ** 2|{0} ** 3|{0} + k|{0} * k|{0} - 0.1|"
        "{0} ** 0.5|2 ** {0}|{0} ** -1"
    )
    return w.rng.choice(forms.split("|")).format(w.pick())


@kind(1.5)
def division(w: _Writer) -> str:
    a = w.integral() if w.rng.random() < 0.7 else w.pick()
    b = w.rng.choice(["2", "-3", "k", w.like(a)])
    forms = (
        "{} // {}|{} % {}|torch.div({}, {}, rounding_mode='trunc')|"
        "torch.div({}, {}, rounding_mode='floor')"
    )
    forms += "|torch.remainder({}, {})|torch.fmod({}, {})|torch.floor_divide({}, {})"
    return w.rng.choice(forms.split("|")).format(a, b)


@kind(1.5)
def bits(w: _Writer) -> str:
    a = w.pick(lambda t: not t.is_floating_point())
    b = w.like(a, lambda t: not t.is_floating_point())
    forms = (
        "{} & {}|{} | {}|{} ^ {}|~{}|torch.logical_and({}, {})|torch.logical_xor({}, {})|"
        "torch.logical_or({}, {})"
    )
    forms = forms.replace("} | {", "} OR {").split("|") + [
        "{} << 1",
        "{} >> 1",
        "{} << 40",
        "torch.gcd({}, {})",
    ]
    return w.rng.choice(forms).replace("OR", "|").format(a, b)


@kind(1.5)
def comparison(w: _Writer) -> str:
    a = w.pick()
    return (
        f"{a} {w.rng.choice(['<', '<=', '>', '>=', '==', '!='])} "
        f"{w.rng.choice(['0', '0.3', 'k', w.like(a)])}"
    )


@kind(2)
def selection(w: _Writer) -> str:
    a = w.pick()
    b, mask = (
        w.like(a),
        w.rng.choice([f"{a} > 0", f"{a} != 0", ""]) or w.like(a, lambda t: t.dtype is torch.bool),
    )
    forms = [
        "torch.where({1}, {0}, {2})",
        "torch.where({1}, {0}, 0)",
        "{0}.masked_fill({1}, 2)",
        "{0} * ({1})",
    ]
    forms += ["torch.where({1}, 1.0, {0})", "{0}.masked_fill({1}, float('-inf'))"]
    return w.rng.choice(forms).format(a, mask, b)


@kind(2)
def cast(w: _Writer) -> str:
    dtype = w.rng.choice([*FLOATS, *INTS[:3], torch.bool, *FLOATS])
    if not dtype.is_floating_point:  # what is not finite or too large has no defined integer
        low = 0 if dtype is torch.uint8 else -20
        return f"{w.pick()}.nan_to_num(0, 9, -9).clamp({low}, 20).to({dtype})"
    return w.rng.choice(["{}.to({})", "{}.type({})"]).format(w.pick(), dtype)


@kind(3)
def permuted(w: _Writer) -> str:
    v = w.ranked(1)
    rank = len(w.shape(v))
    order = w.rng.sample(range(rank), rank)
    forms = [f"{v}.transpose({w.dim(v)}, {w.dim(v)})", f"{v}.permute({', '.join(map(str, order))})"]
    forms += [f"{v}.movedim({w.dim(v)}, {w.dim(v)})"]
    forms += [f"{v}.t()", f"{v}.T"] if rank == 2 else []
    return w.rng.choice(forms)


@kind(3)
def reshaped(w: _Writer) -> str:
    v = w.pick()
    sizes = list(w.shape(v))
    n = w.values[v].numel()
    factor = w.rng.choice([f for f in (1, 2, 3, 4) if n % f == 0] or [1])
    forms = [
        f"{v}.reshape(-1)",
        f"{v}.reshape({factor}, {n // factor})",
        f"{v}.flatten()",
        f"{v}.view(-1)",
        f"{v}.ravel()",
    ]
    if len(sizes) > 1:
        forms += [
            f"{v}.reshape({v}.shape[1], -1)",
            f"{v}.view({v}.shape[0], -1)",
            f"{v}.flatten(0, 1)",
        ]
        forms += [f"{v}.unflatten(-1, (1, {v}.shape[-1]))"]
    return w.rng.choice(forms)


@kind(3)
def sliced(w: _Writer) -> str:
    v = w.ranked(1)
    rank = len(w.shape(v))
    parts = [
        w.rng.choice([":", "1:", ":-1", "::2", "1::3", ":2", "-2:", ":0", "None, :"])
        for _ in range(rank)
    ]
    if w.rng.random() < 0.4:
        parts[w.rng.randrange(rank)] = w.rng.choice(["0", "-1"])
    parts = parts[: w.rng.randint(1, rank)]
    return f"{v}[{w.rng.choice(['', '..., ']) if len(parts) == rank else ''}{', '.join(parts)}]"


@kind(2.5)
def viewed(w: _Writer) -> str:
    v = w.ranked(1)
    d, n = w.dim(v), w.shape(v)
    size = n[d]
    forms = [
        f"{v}.select({d}, {w.rng.choice([0, -1])})",
        f"{v}.narrow({d}, 0, {max(size - 1, 0)})",
        f"{v}.unsqueeze({d})",
    ]
    forms += [
        f"{v}.squeeze()",
        f"{v}.squeeze({d})",
        f"{v}.expand(2, *{v}.shape)",
        f"{v}.unfold({d}, {min(size, 2)}, 1)",
    ]
    forms += [
        f"{v}.expand(*[3 if s == 1 else s for s in {v}.shape])",
        f"torch.broadcast_to({v}, (2, *{v}.shape))",
    ]
    forms += [
        f"{v}.detach()",
        f"{v}.diagonal(0, {d}, {w.dim(v)})",
        f"{v}.view_as({v})",
        f"{v}[...]",
        f"{v}.mT",
        f"{v}.swapaxes(0, -1)",
    ]
    return w.rng.choice(forms)


@kind(1.5)
def moved(w: _Writer) -> str:
    v = w.ranked(1)
    d = w.dim(v)
    forms = [
        f"{v}.flip({d})",
        f"{v}.roll(1, {d})",
        f"{v}.roll(-2)",
        f"{v}.clone()",
        f"{v}.contiguous()",
        f"{v}.repeat_interleave(2, {d})",
    ]
    forms += [
        f"{v}.tril()",
        f"{v}.triu(1)",
        f"{v}.repeat(2, *[1] * ({v}.dim() - 1))",
        f"torch.rot90({v})",
        f"{v}.flip(0, -1)",
    ]
    forms += [
        f"{v}.clone(memory_format=torch.contiguous_format)",
        f"{v}.tile(2)",
        f"torch.diag({v})",
        f"{v}.cumsum({d})",
    ]
    return w.rng.choice(forms)


@kind(2)
def pieces(w: _Writer) -> str:
    v = w.ranked(1)
    d = w.dim(v)
    forms = [
        f"{v}.chunk(2, {d})",
        f"{v}.split(2, {d})",
        f"torch.tensor_split({v}, 3, {d})",
        f"{v}.unbind({d})",
        f"halves({v})",
    ]
    text = w.rng.choice(forms)
    parts = eval(text, w.values)
    if not 0 < len(parts) < 7:
        raise _NothingFits
    return f"{w.names_for(len(parts))} = {text}"


def _target(w: _Writer) -> str:
    """A tensor to write to: an argument now and then."""
    return w.pick() if w.rng.random() < 0.8 else w.rng.choice([n for n in w.names if n[0] == "a"])


@kind(2.5)
def in_place(w: _Writer) -> str:
    v = _target(w)
    other = w.like(v)
    forms = (
        "{0}.add_(1)|{0}.mul_(2)|{0}.clamp_(-1, 1)|{0}.zero_()|{0}.fill_(3)|{0}.copy_({1})|"
        "{0}.add_({1})|{0}.mul_({1})|{0}.neg_()"
    )
    forms += (
        "|{0}.sub_({1}, alpha=2)|{0}.div_(2)|{0}.sigmoid_()|{0}.masked_fill_({0} > 0, 1)|"
        "{0}.lerp_({1}, 0.25)|{0}.floor_()"
    )
    forms += (
        "|F.relu({0}, inplace=True)|F.relu({0}, True)|torch.relu_({0})|{0}.addcmul_({1}, {1})|"
        "{0}.tril_()|{0}.logical_not_()"
    )
    text = w.rng.choice(forms.split("|")).format(v, other)
    if w.rng.random() < 0.25:
        return w.rng.choice(["{0} += {1}", "{0} *= 2", "{0} -= {1}", "{0} /= 2"]).format(v, other)
    return f"_ = {text}" if w.rng.random() < 0.7 else text


@kind(3)
def write_to_view(w: _Writer) -> str:
    v = w.rng.choice([_target(w), w.ranked(1)])
    if not w.shape(v):
        raise _NothingFits
    other = w.pick()
    forms = (
        "{0}[0] = {1}|{0}[..., 1:] = 2|{0}[::2] += 1|{0}[-1].mul_(2)|{0}.T.add_(1)|"
        "{0}.view(-1)[::3] = 0.5|{0}[:, 0] = {1}|"
    )
    forms += (
        "{0}[0:1].copy_({1})|{0}.transpose(0, -1)[0].add_({1})|{0}.unsqueeze(0).mul_(0.5)|"
        "{0}[..., 0].zero_()|{0}[:] = {1}|"
    )
    forms += (
        "{0}[{0} > 0] = 1|{0}.diagonal().fill_(2)|{0}.squeeze().add_(1)|{0}.flatten()[:2].sub_(1)|"
        "{0}[None, 1:].neg_()|"
    )
    forms += (
        "{0}.narrow(-1, 0, 1).add_(k)|{0}[torch.tensor([0, -1])] = 1|{0}.expand_as({0}).add_(1)|"
        "{0}.reshape(-1)[0] = 7"
    )
    text = w.rng.choice(forms.split("|")).format(v, other)
    return text if "=" in text.split("(")[0] or " = " in text else f"_ = {text}"


@kind(1)
def out_argument(w: _Writer) -> str:
    a = w.floating()
    b = w.like(a)
    target = w.rng.choice(
        [f"torch.empty_like({a})", f"torch.zeros({a}.shape, dtype={a}.dtype)", a, _target(w)]
    )
    forms = (
        "torch.add({0}, {1}, out={2})|torch.sin({0}, out={2})|torch.mul({0}, 2, out={2})|"
        "torch.maximum({0}, {1}, out={2})"
    )
    forms += (
        "|torch.sum({0}, 0, out=torch.empty_like({0}[0]))|"
        "torch.matmul({0}, {0}.mT, out=torch.empty_like({0} @ {0}.mT))|"
        "torch.clamp({0}, 0, 1, out={2})"
    )
    return w.rng.choice(forms.split("|")).format(a, b, target)


@kind(4)
def reduction(w: _Writer) -> str:
    v = w.pick()
    rank = len(w.shape(v))
    dims = sorted(w.rng.sample(range(rank), w.rng.randint(1, rank))) if rank else []
    where = w.rng.choice([f"{dims}", f"{dims}, keepdim=True", ""]) if dims else ""
    single = w.rng.choice([f"{w.dim(v)}", f"{w.dim(v)}, keepdim=True"]) if rank else ""
    forms = [
        f"{v}.sum({where})",
        f"{v}.mean({where})",
        f"{v}.amax({where})",
        f"{v}.amin({where})",
        f"{v}.var({where})",
        f"{v}.std({where})",
    ]
    forms += [
        f"{v}.prod({single})",
        f"{v}.any({single})",
        f"{v}.all({single})",
        f"{v}.argmax({single})",
        f"{v}.argmin({single})",
        f"{v}.logsumexp({where})",
    ]
    forms += [
        f"{v}.max()",
        f"{v}.min()",
        f"{v}.norm()",
        f"{v}.count_nonzero()",
        f"torch.linalg.vector_norm({v}, 2, {dims})",
        f"{v}.nansum()",
    ]
    forms += [
        f"{v}.sum({where or '()'}, dtype=torch.float32)"
        if where
        else f"{v}.sum(dtype=torch.float64)",
        f"{v}.norm(1)",
    ]
    return w.rng.choice(forms[:4] if w.rng.random() < 0.4 else forms)


@kind(1)
def paired_reduction(w: _Writer) -> str:
    v = w.ranked(1)
    d = w.dim(v)
    forms = [
        f"{v}.max({d})",
        f"{v}.min({d}, keepdim=True)",
        f"torch.var_mean({v}.nan_to_num(0, 9, -9), {d})",
        f"torch.aminmax({v})",
        f"{v}.sort({d}, stable=True)",
    ]
    forms += [f"{v}.topk(1, {d})", f"torch.std_mean({v}.nan_to_num(0, 9, -9))", f"{v}.cummax({d})"]
    return f"{w.names_for(2)} = {w.rng.choice(forms)}"


@kind(2.5)
def normalization(w: _Writer) -> str:
    v = w.floating(1)
    d = w.dim(v)
    forms = [
        f"F.softmax({v}, {d})",
        f"F.log_softmax({v}, {d})",
        f"F.layer_norm({v}, {v}.shape[-1:])",
        f"normalized({v})",
    ]
    forms += [
        f"F.softmax({v}, {d}, dtype=torch.float32)",
        f"F.normalize({v}, dim={d})",
        f"F.rms_norm({v}, {v}.shape[-1:])",
    ]
    forms += [
        f"F.layer_norm({v}, {v}.shape[-1:], torch.ones({v}.shape[-1], dtype={v}.dtype), None, 1e-3)"
    ]
    forms += [f"F.group_norm({v}, 1)", f"F.instance_norm({v})", f"{v}.softmax({d})"]
    forms += (
        [f"F.batch_norm({v}, torch.zeros({v}.shape[1]), torch.ones({v}.shape[1]))"]
        if len(w.shape(v)) > 1
        else []
    )
    return w.rng.choice(forms)


@kind(2.5)
def joined(w: _Writer) -> str:
    v = w.ranked(1)
    same = w.pick(lambda t: t.shape == w.values[v].shape)
    d = w.dim(v)
    forms = [
        f"torch.cat([{v}, {same}], {d})",
        f"torch.stack([{v}, {same}], {d})",
        f"F.pad({v}, (1, 2))",
        f"F.pad({v}, (0, -1), value=2)",
    ]
    forms += [
        f"torch.cat([{v}, {v}[:1], {same}])",
        f"torch.hstack([{v}, {same}])",
        f"torch.vstack([{v}, {same}])",
    ]
    forms += [
        f"F.pad({v}, (1, 1), mode='reflect')",
        f"torch.cat([{v}.flatten(), {w.pick()}.flatten()])",
        f"F.pad({v}, (1, 0, 2, 1))",
    ]
    return w.rng.choice(forms)


@kind(2.5)
def indexed(w: _Writer) -> str:
    v = w.ranked(1)
    d, sizes = w.dim(v), w.shape(v)
    where = w.rng.choice(
        [
            "torch.tensor([0, 0, -1])",
            "torch.tensor([[0], [-1]])",
            f"torch.arange({v}.shape[0])",
            f"torch.arange({v}.shape[0]).flip(0)",
        ]
    )
    index = w.rng.choice(
        [
            f"{v}.argsort({d}, stable=True)",
            f"torch.zeros({sizes}, dtype=torch.long)",
            f"({v} > 0).long()",
        ]
    )
    forms = [
        f"{v}[{where}]",
        f"{v}[..., {where}]",
        f"{v}.index_select({d}, torch.tensor([0, 0]))",
        f"{v}.gather({d}, {index})",
    ]
    forms += [
        f"{v}.scatter({d}, {index}, {v})",
        f"{v}.scatter_add({d}, {index}, {v})",
        f"{v}[:, {where}]",
        f"{v}[{where}, 0]",
    ]
    forms += [
        f"{v}.index_add(0, torch.tensor([0]), {v}[:1])",
        f"torch.take_along_dim({v}, {index}, {d})",
        f"{v}.scatter({d}, {index}, 2)",
    ]
    forms += [
        f"{v}.index_put((torch.tensor([0, 0]),), {v}[0], accumulate=True)",
        f"{v}.index_fill({d}, torch.tensor([0]), 1)",
        f"{v}[{where}, {where}]",
    ]
    return w.rng.choice(forms)


@kind(1)
def looked_up(w: _Writer) -> str:
    table = w.floating(2)
    rows = w.shape(table)[0]
    index = w.rng.choice(
        [
            f"torch.arange({rows})",
            "torch.tensor([[0, 0]])",
            f"({w.integral()}.long() % {max(rows, 1)})",
        ]
    )
    return w.rng.choice(
        [f"F.embedding({index}, {table})", f"{table}[{index}]", f"F.one_hot({index}, {rows + 1})"]
    )


@kind(2.5)
def product(w: _Writer) -> str:
    a = w.floating(2)
    t = w.values[a]
    n = t.shape[-1]
    other = w.pick(lambda u: u.dtype is t.dtype and u.dim() >= 1 and n in (u.shape[-1], u.shape[0]))
    forms = (
        f"{a} @ {a}.mT|{a} @ {other}|F.linear({a}, {other})|"
        f"torch.einsum('...ij,...kj->...ik', {a}, {a})|{a}.mT @ {a}"
    )
    forms += (
        f"|torch.matmul({a}, {other}.T)|F.linear({a}, {other}, {other}[..., 0])|"
        f"torch.addmm({a}, {a}, torch.eye({n}, dtype={t.dtype}))"
    )
    forms += (
        f"|torch.outer({a}.flatten(), {other}.flatten()[:3])|torch.mv({a}, {other})|"
        f"torch.einsum('ij,ij->i', {a}, {a})"
    )
    return w.rng.choice(forms.split("|"))


@kind(1)
def convolution(w: _Writer) -> str:
    v = w.floating(3)
    c = w.shape(v)[-2]
    weight = f"torch.arange({2 * c * 3}., dtype={w.values[v].dtype}).reshape(2, {c}, 3) / 8"
    forms = [
        f"F.conv1d({v}, {weight}, padding=1)",
        f"F.avg_pool1d({v}, 2)",
        f"F.max_pool1d({v}.contiguous(), 2)",
        f"F.adaptive_avg_pool1d({v}, 1)",
    ]
    forms += [
        f"F.conv1d({v}, {weight}, torch.ones(2, dtype={w.values[v].dtype}), stride=2, padding=2)",
        f"F.interpolate({v}, scale_factor=2)",
    ]
    forms += [
        f"F.scaled_dot_product_attention({v}, {v}, {v})",
        f"F.avg_pool2d({v}, 2)",
        f"torch.bmm({v}, {v}.mT)",
    ]
    return w.rng.choice(forms)


@kind(1.5)
def created(w: _Writer) -> str:
    v = w.pick()
    forms = (
        f"torch.zeros_like({v})|torch.ones(2, k)|torch.arange(k, k + 5)|"
        f"torch.full({w.shape(v)}, 0.5)|{v}.new_zeros({v}.shape)"
    )
    forms += (
        "|torch.tensor([1.0, 2.0])|torch.eye(3)|torch.linspace(0, 1, 5)|torch.tensor(k)|"
        "torch.arange(6.0).view(2, 3)|torch.zeros(0, 3)"
    )
    forms += (
        f"|torch.ones_like({v}, dtype=torch.float64)|torch.full_like({v}, k)|"
        f"torch.scalar_tensor(2.0)|torch.empty({w.shape(v)}).fill_(1)"
    )
    return w.rng.choice(forms.split("|"))


@kind(1)
def random_numbers(w: _Writer) -> str:
    v = w.floating()
    forms = (
        f"torch.rand_like({v})|F.dropout({v}, 0.4)|torch.randn({w.shape(v)})|"
        f"torch.bernoulli(torch.full({w.shape(v)}, 0.4))|torch.randint(0, 9, (3, k))"
    )
    forms += (
        f"|F.dropout({v}, 0.5, False)|torch.rand(3, k)|torch.randperm(5)|{v}.clone().uniform_()|"
        f"F.dropout({v}, 0.3, True, True)"
    )
    return w.rng.choice(forms.split("|"))


@kind(1.5)
def loop(w: _Writer) -> str:
    v, name = w.pick(), f"v{w.fresh}"
    count = w.rng.choice(["3", "k", f"min({v}.dim(), 3)"])
    body = w.rng.choice(
        [
            "{0} = {0} * 0.5 + i",
            "{0} = torch.sin({0}) + {1}",
            "{0} = {0}[..., i:]",
            "{0} = {0} + ({0}.sum() if i else 1)",
        ]
    )
    return f"{name} = {v}\nfor i in range({count}):\n    " + body.format(name, v)


@kind(1.5)
def branch(w: _Writer) -> str:
    v, name = w.pick(), f"v{w.fresh}"
    test = w.rng.choice(
        [
            "flag",
            "k > 2",
            f"{v}.dim() > 1",
            f"{v}.numel() % 2 == 0",
            f"{v}.shape == {w.pick()}.shape",
            f"{v}.is_contiguous()",
        ]
    )
    return (
        f"if {test}:\n    {name} = {v} + 1\nelse:\n"
        f"    {name} = {w.rng.choice(['{0} * 2', '{0}', '{0}.clone()']).format(v)}"
    )


@kind(1)
def closure(w: _Writer) -> str:
    v = w.pick()
    forms = (
        "scale_by_3({0})|make_scale(k)({0})|(lambda t: t + k)({0})|normalized({0}, eps=k)|"
        "sum([{0}, {0}, 1])|[t + 1 for t in ({0}, k)][0]"
    )
    forms += (
        "|{'x': {0}}['x']|(lambda *a, **b: a[0] - b['n'])({0}, n=k)|"
        "max([{0}, {0} * 2], key=lambda t: t.dim())"
    )
    return w.rng.choice(forms.split("|")).replace("{0}", v)
