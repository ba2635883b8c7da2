"""Statements of random programs about where elements lie: indexing, scatters, windows, padding,
joining, scans, pooling, resampling, searches and extremes. Importing this adds them to what
`random_programs` writes."""

from __future__ import annotations

from tests import random_programs  # noqa: F401  (the statements)
from tests.random_programs_writer import FLOATS, INTS, _NothingFits, _Writer, kind


def _indices(w: _Writer, extent: int, shape: str | None = None) -> str:
    """A tensor of indices into `extent` elements, negative ones and repetitions among them."""
    rng = w.rng
    if extent == 0:
        raise _NothingFits
    if shape is not None:
        return (
            f"(torch.arange({shape}.numel()).reshape({shape}) * {rng.choice([1, 3, 7])} % {extent})"
        )
    given = [rng.randrange(-extent, extent) for _ in range(rng.choice([1, 2, 3, 3, 5]))]
    forms = [f"torch.tensor({given})", f"torch.tensor([{given}])", f"torch.tensor({given[0]})"]
    forms += [f"torch.arange({extent}).flip(0)", f"torch.tensor({given}, dtype=torch.int32)"]
    forms += [f"torch.arange({2 * extent + 3}) % {extent}"]
    try:
        forms.append(f"({w.integral()}.long() % {extent})")
    except _NothingFits:
        pass
    return rng.choice(forms)


@kind(3)
def indexed_at_several(w: _Writer) -> str:
    v = w.ranked(2)
    sizes = w.shape(v)
    rank = len(sizes)
    parts = [w.rng.choice([":", ":", "1:", "::2", "0", "-1", "..."]) for _ in range(rank)]
    for d in w.rng.sample(range(rank), w.rng.randint(1, min(rank, 3))):
        parts[d] = _indices(w, sizes[d])
    if w.rng.random() < 0.25:
        parts.insert(w.rng.randrange(rank), "None")
    if parts.count("...") > 1 or w.rng.random() < 0.3:
        parts = [p for p in parts if p != "..."]
    place = f"{v}[{', '.join(parts)}]"
    if w.rng.random() < 0.4:
        writes = ["{} = 2", "{} += 1", "{} *= 0.5", "{0} = {0} * 2", "{} = -1.5"]
        return f"{v} = {v}.clone()\n{w.rng.choice(writes).format(place)}"
    return place


@kind(2)
def masked_places(w: _Writer) -> str:
    v = w.ranked(1)
    n = w.shape(v)[0]
    mask = f"torch.tensor({[bool(w.rng.randrange(2)) for _ in range(n)]}, dtype=torch.bool)"
    other = w.like(v, lambda t: t.dtype is w.values[v].dtype)
    forms = [
        f"{v}[{mask}]",
        f"torch.where({mask}, {v}.mT, 1)",
        f"{v}.masked_scatter({v} > 0, {other}.repeat(9, 9, 9))",
    ]
    forms += [
        f"{v}.masked_fill({mask}.unsqueeze(-1), 3)",
        f"{v}.masked_scatter({v} == {v}, {v}.flip(0))",
    ]
    forms += [f"torch.where({v} > 0.1, {v}, {other}.flip(0))"]
    return w.rng.choice(forms)


@kind(3)
def put_at_indices(w: _Writer) -> str:
    v = w.ranked(1)
    n, rank = w.shape(v)[0], len(w.shape(v))
    i = _indices(w, n)
    values = w.rng.choice(
        [f"{v}[{i}]", f"torch.tensor(2).to({v}.dtype)", f"{v}[{i}] * 2", f"{v}[0]"]
    )
    accumulate = w.rng.choice(["True", "False"])
    if accumulate == "False":
        i = f"torch.tensor({w.rng.sample(range(n), w.rng.randint(1, n))})"
        values = f"{v}[{i}] * 2"
    forms = [f"{v}.index_put(({i},), {values}, accumulate={accumulate})"]
    if rank > 1:
        j = _indices(w, w.shape(v)[1])
        forms += [
            f"{v}.index_put(({i}[..., None], {j}), torch.ones((), dtype={v}.dtype), "
            "accumulate=True)"
        ]
        forms += [f"{v}.index_put((None, {j}), {v}[:, {j}], accumulate=True)"] * 2
    text = w.rng.choice(forms)
    if w.rng.random() < 0.3:
        return f"{v} = {v} * 1\n{text.replace('.index_put(', '.index_put_(', 1)}"
    return text


@kind(4)
def scattered(w: _Writer) -> str:
    v = w.ranked(1)
    d, sizes = w.dim(v), w.shape(v)
    smaller = tuple(
        w.rng.randint(1, max(n, 1)) if k != d % len(sizes) else n for k, n in enumerate(sizes)
    )
    at = _indices(w, sizes[d], f"torch.Size({smaller})")
    part = "[" + ", ".join(f":{n}" for n in smaller) + "]"
    mode = w.rng.choice(["sum", "prod", "mean", "amax", "amin"])
    self_ = w.rng.choice(["True", "False"])
    forms = [
        f"{v}.gather({d}, {at})",
        f"{v}.scatter({d}, {at}, 2)",
        f"{v}.scatter_add({d}, {at}, {v}{part})",
    ]
    forms += [f"{v}.scatter_reduce({d}, {at}, {v}{part}, '{mode}', include_self={self_})"] * 2
    forms += [f"{v}.scatter({d}, {at}, {v}{part}, reduce='{w.rng.choice(['add', 'multiply'])}')"]
    forms += [f"{v}.scatter({d}, {at}, 3, reduce='{w.rng.choice(['add', 'multiply'])}')"]
    forms += [
        f"{v}.scatter({d}, {v}.argsort({d}, stable=True), {v})",
        f"{v}.gather({d}, {at}.flip(0))",
    ]
    row = f"{_indices(w, sizes[d])}.flatten()"
    taken = f"{v}.index_select({d}, {row}.abs())"
    forms += [
        taken,
        f"{v}.index_add({d}, {row}.abs(), {taken}, alpha=2)",
        f"{v}.index_fill({d}, {row}, 2)",
    ]
    forms += [f"{v}.index_add({d}, {row}.abs(), {taken})"] * 2
    forms += [f"{v}.index_copy({d}, torch.arange({sizes[d]}).flip(0), {v})"]
    forms += [
        f"{v}.index_reduce({d}, {row}.abs(), {taken}, '{mode.replace('sum', 'mean')}', "
        f"include_self={self_})"
    ]
    forms += [
        f"{v}.take({_indices(w, max(w.values[v].numel(), 1))})",
        f"torch.take_along_dim({v}, {at}, {d})",
    ]
    forms += [
        f"{v}.put({_indices(w, max(w.values[v].numel(), 1))}, {v}.flatten()[:1], accumulate=True)"
    ]
    return w.rng.choice(forms)


@kind(3)
def windows(w: _Writer) -> str:
    v = w.ranked(1)
    d, e, sizes = w.dim(v), w.dim(v), w.shape(v)
    n, rng = sizes[d], w.rng
    k, step = rng.randint(1, max(n, 1)), rng.randint(1, 3)
    forms = [
        f"{v}.unfold({d}, {k}, {step})",
        f"{v}.diagonal({rng.randint(-2, 2)}, {d}, {e})",
        f"{v}.flip({d}, {e})",
    ]
    forms += [f"{v}.roll(({rng.randint(-9, 9)}, 1), ({d}, {e}))", f"{v}.roll({rng.randint(-9, 9)})"]
    forms += [
        f"{v}.rot90({rng.randint(-2, 5)}, ({d}, {e}))",
        f"torch.diag_embed({v}, {rng.randint(-1, 1)})",
    ]
    forms += [
        f"{v}.contiguous().as_strided(({k}, 2), (1, 1))",
        f"{v}.contiguous().as_strided(({k},), ({step},), 1)",
    ]
    forms += [
        f"{v}.as_strided({v}.shape, {v}.stride())",
        f"{v}.movedim({d}, {e})",
        f"{v}.swapaxes({d}, {e})",
    ]
    forms += [f"{v}.narrow({d}, {n // 2}, {n - n // 2})", f"{v}.unflatten({d}, (-1, {step}))"]
    forms += [
        f"{v}[..., {rng.randrange(-n, n + 1)}:{rng.randrange(-n, n + 1)}:{step}]",
        f"{v}.tile({step}, 2)",
    ]
    forms += [
        f"{v}.repeat_interleave({step}, {d})",
        f"{v}.repeat_interleave({step})",
        f"{v}.view({v}.dtype)",
    ]
    forms += [
        f"{v}.select_scatter({v}.select({d}, 0) * 2, {d}, -1)",
        f"{v}.expand(3, *{v}.shape).flip(0)",
    ]
    forms += [
        f"{v}.slice_scatter({v}.narrow({d}, 0, {k}) + 1, {d}, {n - k})",
        f"{v}.tril({rng.randint(-2, 2)})",
    ]
    forms += [f"{v}.slice_scatter({v}[::2] * 2, 0, 0, None, 2)", f"{v}.triu({rng.randint(-2, 2)})"]
    forms += [
        f"{v}.diagonal_scatter({v}.diagonal(0, {d}, {e}) * 2, 0, {d}, {e})",
        f"{v}.mT.contiguous()",
    ]
    return rng.choice(forms)


@kind(2)
def padded(w: _Writer) -> str:
    v = w.ranked(1)
    rank = len(w.shape(v))
    amounts = [w.rng.randint(-1, 3) for _ in range(2 * w.rng.randint(1, min(rank, 3)))]
    shape = w.rng.choice(["{0}", "{0}.unsqueeze(0)", "{0}[None, None]", "{0}.mT"])
    mode = w.rng.choice(["constant", "reflect", "replicate", "circular"])
    value = f", value={w.rng.choice([0, 2, -1.5])}" if mode == "constant" else ""
    if mode == "circular":  # where one side is cut eager leaves elements of the other unwritten
        amounts = list(map(abs, amounts))
    return f"F.pad({shape.format(v)}, {amounts}, '{mode}'{value})"


@kind(2.5)
def put_together(w: _Writer) -> str:
    v = w.ranked(1)
    other = w.pick(lambda t: t.shape == w.values[v].shape)
    d = w.dim(v)
    flat = w.pick(lambda t: t.dim() == 1) if w.rng.random() < 0.5 else f"{v}.flatten()[:7]"
    forms = [f"torch.cat([{v}, {other}, {v}[:0]], {d})", f"torch.stack([{v}, {other}, {v}], {d})"]
    forms += [
        f"torch.cat([{v}, torch.tensor([]), {other}], {d})",
        f"torch.cat([{v}.narrow({d}, 0, 1), {other}], {d})",
    ]
    forms += [
        f"torch.cat([{v}.flip({d}), {other}.sin(), {v}], {d})",
        f"torch.dstack([{v}, {other}])",
    ]
    forms += [
        f"torch.column_stack([{v}, {other}])",
        f"torch.block_diag({flat}, {flat})",
        f"torch.diff({v}, dim={d})",
    ]
    forms += [
        f"torch.cat(torch.meshgrid({flat}, {flat}, indexing='ij'))",
        f"torch.kron({flat}, {flat}[:2])",
    ]
    forms += [
        f"torch.trapezoid({v}, dim={d})",
        f"torch.cross({flat}[:3], {flat}[:3].flip(0), dim=0)",
    ]
    forms += [
        f"torch.cumulative_trapezoid({v}, dim={d})",
        f"torch.cartesian_prod({flat}, {flat}[:2])",
    ]
    forms += [f"torch.diff({v}, 2, {d}, {v}.narrow({d}, 0, 1))", f"torch.vander({flat}, 3)"]
    forms += [
        f"torch.cat([{v}.narrow({d}, 1, 1), {v}.narrow({d}, 0, 1)], {d})",
        f"{v}.block_diag({flat})",
    ]
    return w.rng.choice(forms)


@kind(1.5)
def scanned(w: _Writer) -> str:
    v = w.ranked(1)
    d = w.dim(v)
    small = f"{v}.nan_to_num(0, 1, -1).clamp(-1, 1)" if w.values[v].dtype.is_floating_point else v
    forms = [f"{v}.cumsum({d})", f"{small}.cumprod({d})", f"{v}.cumsum({d}, dtype=torch.float64)"]
    forms += [
        f"torch.logcumsumexp({small}, {d})",
        f"{v}.cummin({d})[0]",
        f"{v}.cummax({d})[1]",
        f"{v}.cummin({d})[1]",
    ]
    forms += [f"{v}.flip({d}).cumsum({d}).flip({d})", f"({v} > 0).cumsum({d})"]
    return w.rng.choice(forms)


@kind(3)
def pooled(w: _Writer) -> str:
    v, rng = w.floating(1), w.rng
    rank = rng.randint(1, 3)
    shape = ["(4, 3, 20)", "(2, 3, 8, 5)", "(1, 2, 6, 5, 4)"][rank - 1]
    image = f"{v}.flatten()[:240].repeat(240)[:240].reshape({shape})"
    k, s, p, dilation = rng.randint(1, 3), rng.randint(1, 3), rng.randint(0, 1), rng.randint(1, 2)
    p, ceil = min(p, k // 2), rng.choice(["True", "False"])
    window = f"{k}, stride={s}, padding={p}, ceil_mode={ceil}"
    maxed = f"F.max_pool{rank}d({image}, {window}, dilation={dilation}"
    forms = [f"{maxed})", f"{maxed}, return_indices=True)[1]"]
    forms += [f"F.adaptive_avg_pool{rank}d({image}, {rng.randint(1, 7)})"]
    averaged = (
        f"F.avg_pool{rank}d({image}, {window}, count_include_pad={rng.choice(['True', 'False'])}"
    )
    forms += [
        f"{averaged})",
        f"{averaged})",
        f"F.adaptive_max_pool{rank}d({image}, {rng.randint(1, 5)})",
    ]
    if rank > 1:
        forms.append(f"{averaged}, divisor_override=3)")
        last = "torch.channels_last_3d" if rank == 3 else "torch.channels_last"
        forms.append(f"{maxed}).contiguous(memory_format={last})")
    forms.append(f"F.adaptive_max_pool{rank}d({image}, 2, True)[1]")
    forms.append(f"F.lp_pool{rank}d({image}.abs().clamp(0, 9), 2, {k})")
    if rank == 2:
        forms.append(f"F.max_unpool2d(*F.max_pool2d({image}, 2, return_indices=True), 2)")
    text = rng.choice(forms)
    if rank == 2 and rng.random() < 0.3:
        text = text.replace(image, f"{image}.contiguous(memory_format=torch.channels_last)")
    return text


@kind(2.5)
def resampled(w: _Writer) -> str:
    v, rng = w.floating(1), w.rng
    rank = rng.randint(1, 3)
    shape = ["(2, 3, 20)", "(1, 3, 8, 5)", "(1, 2, 3, 5, 4)"][rank - 1]
    image = f"{v}.flatten()[:120].repeat(120)[:120].reshape({shape})"
    mode = rng.choice([["linear"], ["bilinear", "bilinear", "bicubic"], ["trilinear"]][rank - 1])
    size = rng.choice(
        [f"size={rng.randint(1, 11)}", f"scale_factor={rng.choice([0.5, 1.5, 2, 3, 1])}"]
    )
    corners = rng.choice(["", ", align_corners=True", ", align_corners=False"])
    forms = [
        f"F.interpolate({image}, {size}, mode='{m}')" for m in ("nearest", "nearest-exact", "area")
    ]
    forms += [f"F.interpolate({image}, {size}, mode='{mode}'{corners})"] * 3
    if rank == 2:
        grid = f"torch.linspace(-1.3, 1.2, 24, dtype={v}.dtype).reshape(1, 4, 3, 2)"
        how = (
            f"mode='{rng.choice(['bilinear', 'nearest', 'bicubic'])}', "
            f"align_corners={rng.choice(['True', 'False'])}"
        )
        outside = rng.choice(["zeros", "border", "reflection"])
        forms += [f"F.grid_sample({image}, {grid}, {how}, padding_mode='{outside}')"] * 2
        forms += [
            f"F.affine_grid(torch.ones(1, 2, 3, dtype={v}.dtype), [1, 1, 4, 5], align_corners=True)"
        ]
        forms += [f"F.unfold({image}, {rng.randint(1, 3)}, padding=1, stride={rng.randint(1, 2)})"]
        forms += [
            f"F.fold(F.unfold({image}, 2), (8, 5), 2)",
            f"F.pixel_unshuffle({image}[:, :, :, :4], 2)",
        ]
        forms += [
            f"F.pixel_shuffle({image}.reshape(1, 12, 5, 2), 2)",
            f"F.channel_shuffle({image}, 3)",
        ]
    return rng.choice(forms)


@kind(1.5)
def searched(w: _Writer) -> str:
    v = w.pick()
    edges = w.rng.choice(["torch.tensor([-1.0, 0.0, 0.5, 2.0])", "torch.tensor([-2, 0, 1, 3])"])
    right = w.rng.choice(["True", "False"])
    forms = [
        f"torch.bucketize({v}, {edges}, right={right})",
        f"torch.searchsorted({edges}, {v}, right={right})",
    ]
    forms += [
        f"torch.searchsorted({v}.sort(-1)[0].contiguous(), {v}.contiguous())",
        f"torch.isin({v}, {edges})",
    ]
    forms += [
        f"F.one_hot({v}.long() % 4, 5)",
        f"torch.histc({v}.float().nan_to_num(0, 1, 1), 5, -2, 2)",
    ]
    forms += [
        f"F.embedding_bag(torch.tensor([[0, 1], [1, 1]]), {v}, mode='{m}')"
        for m in ("sum", "mean", "max")
    ]
    forms += [f"F.embedding({_indices(w, w.shape(v)[0]) if w.shape(v) else '0'}.abs(), {v})"]
    return w.rng.choice(forms)


@kind(2)
def extremes(w: _Writer) -> str:
    v = w.pick()
    single = w.rng.choice(["", f"{w.dim(v)}", f"{w.dim(v)}, keepdim=True"]) if w.shape(v) else ""
    dims = f"{w.dim(v)}" if w.shape(v) else "0"
    forms = [
        f"{v}.argmax({single})",
        f"{v}.argmin({single})",
        f"{v}.max({dims})[1]",
        f"{v}.min({dims}, True)[1]",
    ]
    forms += [
        f"{v}.median()",
        f"{v}.median({dims})[0]",
        f"{v}.kthvalue(1, {dims})[0]",
        f"{v}.mode({dims})[0]",
    ]
    forms += [
        f"{v}.sort({dims}, descending=True, stable=True)[1]",
        f"{v}.argsort({dims}, stable=True)",
    ]
    forms += [
        f"{v}.amax({dims})",
        f"{v}.aminmax(dim={dims})[0]",
        f"{v}.any({dims})",
        f"{v}.all()",
        f"{v}.prod({dims})",
    ]
    return w.rng.choice(forms)


@kind(2)
def mixed_types(w: _Writer) -> str:
    a = w.pick()
    b = w.like(a, lambda t: t.dtype is not w.values[a].dtype)
    dtype = w.rng.choice([*FLOATS, *INTS])
    forms = [
        "{0} + {1}",
        "{0} * {1}",
        "torch.where({0} > 0, {0}, {1})",
        "{0} < {1}",
        "torch.maximum({0}, {1})",
    ]
    forms += [
        "{0} + {1}[..., :1].sum()",
        "torch.cat([{0}.flatten(), {1}.flatten()])",
        "{0}.copy_({1})",
    ]
    forms += [
        "torch.stack([{0}.flatten()[:1], {1}.flatten()[:1]])",
        "{0}.add_({1})",
        "{0} * torch.tensor(2.5)",
    ]
    forms += [
        "{0} + torch.tensor(3, dtype={2})",
        "{0}.sum(dtype=torch.float32)",
        "{0} == {1}",
        "({0} > 0) * {1}",
    ]
    forms += [
        "{0} - {0}.to(torch.float32)",
        "torch.clamp({0}, {1}, {1} + 1)",
        "({0} > 0) + ({1} > 0)",
    ]
    text = w.rng.choice(forms).format(a, b, dtype)
    return f"_ = {text}" if "_(" in text else text
