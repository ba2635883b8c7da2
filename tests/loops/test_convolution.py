"""Convolutions against eager: which are loops, in which layout, and what surrounds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ingot
from ingot.graph.passes import layouts
from ingot.loops.expr import ONE
from ingot.loops.ir import Contraction, Library, LoopGraph, Pointwise
from tests.loops.test_lowering import assert_lowered, t

Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]


def last(x: torch.Tensor) -> torch.Tensor:
    """The images laid channels-last."""
    return x.to(memory_format=torch.channels_last) if x.dim() == 4 and x.shape[1] > 1 else x


def libraries(graph: LoopGraph) -> list[Library]:
    return [node for node in graph.nodes if isinstance(node, Library)]


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Convolutions enough that what is between them lies channels-last."""
    for _ in range(3):
        x = F.conv2d(x, w)
    return x


DEPTHWISE: dict[str, Case] = {
    "3x3": (lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=4).relu(),
        ((2, 4, 6, 7), (4, 1, 3, 3), (4,))),
    "7x7": (lambda x, w: F.conv2d(x, w, padding=3, groups=4), ((1, 4, 6, 5), (4, 1, 7, 7))),
    "dilated": (lambda x, w: F.conv2d(x, w, dilation=2, groups=4), ((1, 4, 8, 8), (4, 1, 3, 3))),
    "strided": (lambda x, w: F.conv2d(x, w, stride=2, padding=(2, 0), groups=3),
        ((2, 3, 7, 6), (3, 1, 5, 3))),
    "between": (
        lambda x, w: F.conv2d(F.conv2d(x * 2, w, padding=1, groups=4).relu() + x, w, groups=4),
        ((2, 4, 6, 7), (4, 1, 3, 3)),
    ),
    "padded_apart": (
        lambda x, w: F.conv2d(F.pad(x, (0, 1, 0, 1)), w, stride=2, groups=4),
        ((2, 4, 6, 7), (4, 1, 3, 3))
    ),
    "pooled": (
        lambda x, w: F.max_pool2d(F.conv2d(x, w, groups=4), 3, 2, 1).mean((2, 3)),
        ((2, 4, 8, 9), (4, 1, 3, 3))
    ),
    "joined": (lambda x, w: torch.cat([F.conv2d(x, w, padding=1, groups=4), x], 1),
        ((2, 4, 6, 7), (4, 1, 3, 3))),
    "permuted": (
        lambda x, w: F.conv2d(x, w, padding=1, groups=4).flatten(2).transpose(1, 2) + 1,
        ((2, 4, 6, 7), (4, 1, 3, 3))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_convolution_is_loops(name: str) -> None:
    fn, shapes = DEPTHWISE[name]
    assert not libraries(assert_lowered(fn, *[last(t(*shape)) for shape in shapes]))


CONTIGUOUS: dict[str, Case] = {
    "3x3": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=4).relu(),
        ((2, 4, 6, 7), (4, 1, 3, 3), (4,)),
    ),
    "dilated": (lambda x, w: F.conv2d(x, w, dilation=2, groups=4), ((1, 4, 8, 8), (4, 1, 3, 3))),
    "strided_rows": (
        lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=1, groups=3),
        ((1, 3, 7, 6), (3, 1, 3, 3)),
    ),
    "1d": (lambda x, w: F.conv1d(x, w, padding=2, groups=4), ((2, 4, 9), (4, 1, 5))),
}


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_small_depthwise_convolution_of_a_contiguous_image_is_loops(name: str) -> None:
    fn, shapes = CONTIGUOUS[name]
    assert not libraries(assert_lowered(fn, *[t(*shape) for shape in shapes]))


DENSE: dict[str, Case] = {
    "1x1": (lambda x, w, b: F.conv2d(x, w, b).relu(), ((2, 5, 6, 7), (8, 5, 1, 1), (8,))),
    "strided": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), ((2, 5, 6, 7), (8, 5, 1, 1))),
    "patches": (lambda x, w, b: F.conv2d(x, w, b, stride=4), ((2, 5, 8, 9), (8, 5, 4, 4), (8,))),
    "3x3": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(),
        ((2, 9, 6, 7), (17, 9, 3, 3), (17,)),
    ),
    "5x3": (
        lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=(2, 0)),
        ((1, 20, 9, 7), (8, 20, 5, 3)),
    ),
    "many_channels": (
        lambda x, w: F.conv2d(x, w, padding=1, dilation=(1, 2)),
        ((1, 70, 5, 6), (8, 70, 3, 3)),
    ),
    "patches_of_few_channels": (
        lambda x, w: F.conv2d(x, w, stride=(4, 2)),
        ((2, 3, 8, 9), (8, 3, 4, 2)),
    ),
    "few_channels": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1, dilation=2),
        ((2, 3, 9, 9), (8, 3, 3, 3)),
    ),
    "few_results": (lambda x, w: F.conv2d(x, w, padding=1), ((2, 9, 6, 7), (3, 9, 3, 3))),
    "one_result": (lambda x, w: F.conv2d(x, w), ((2, 9, 6, 7), (1, 9, 1, 1))),
    "transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2).relu(),
        ((2, 5, 6, 7), (5, 8, 2, 2), (8,)),
    ),
    "transposed_oblong": (
        lambda x, w: F.conv_transpose2d(x, w, stride=(3, 1)),
        ((1, 17, 6, 3), (17, 20, 3, 1)),
    ),
    "computed_weight": (
        lambda x, w: F.conv2d(x, w / w.norm(), padding=1),
        ((2, 9, 6, 7), (17, 9, 3, 3)),
    ),
    "residual": (lambda x, w: x + F.conv2d(x.relu(), w), ((2, 5, 6, 7), (5, 5, 1, 1))),
    "tokens": (
        lambda x, w: F.conv2d(x.transpose(1, 2).view(2, 5, 6, 7), w).flatten(2).transpose(1, 2),
        ((2, 42, 5), (8, 5, 1, 1)),
    ),
}


@pytest.mark.parametrize("name", DENSE)
def test_dense_convolution_is_a_contraction(name: str) -> None:
    fn, shapes = DENSE[name]
    graph = assert_lowered(fn, *[last(t(*shape)) for shape in shapes])
    assert not libraries(graph) and any(isinstance(node, Contraction) for node in graph.nodes)


LEFT_TO_THE_LIBRARY: dict[str, Case] = {
    "groups": (lambda x, w: F.conv2d(x, w, groups=2), ((2, 4, 6, 7), (6, 2, 3, 3))),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2), ((2, 4, 6, 7), (4, 3, 3, 3))),
    "transposed_with_gaps": (
        lambda x, w: F.conv_transpose2d(x, w, stride=3),
        ((2, 4, 6, 7), (4, 3, 2, 2)),
    ),
    "transposed_in_groups": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=2),
        ((2, 4, 6, 7), (4, 3, 2, 2)),
    ),
    "transposed_and_more": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1),
        ((2, 4, 6, 7), (4, 3, 2, 2)),
    ),
    "1d": (lambda x, w: F.conv1d(x, w), ((2, 4, 9), (6, 4, 3))),
    "3d": (lambda x, w: F.conv3d(x, w, padding=1), ((1, 2, 4, 5, 6), (3, 2, 3, 3, 3))),
    "unbatched": (lambda x, w: F.conv2d(x, w, groups=2), ((4, 6, 7), (6, 2, 3, 3))),
    "circular": (
        lambda x, w: F.conv1d(F.pad(x, (1, 1), mode="circular"), w),
        ((2, 4, 9), (6, 4, 3)),
    ),
}


@pytest.mark.parametrize("name", LEFT_TO_THE_LIBRARY)
def test_other_convolutions_are_called(name: str) -> None:
    fn, shapes = LEFT_TO_THE_LIBRARY[name]
    assert libraries(assert_lowered(fn, *[t(*shape) for shape in shapes]))


@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate"])
def test_padding_modes(mode: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return chain(
            F.conv2d(F.pad(x, (1, 2, 1, 0), mode=mode), w, groups=4),
            w[:, :, :1, :1].repeat(1, 4, 1, 1),
        )

    x, w = t(2, 4, 6, 7), t(4, 1, 3, 3)
    with torch.no_grad():
        torch.testing.assert_close(ingot.compile(program)(x, w), program(x, w))


def test_a_channels_last_input_gives_a_channels_last_output() -> None:
    x = t(2, 4, 6, 7).to(memory_format=torch.channels_last)
    assert_lowered(
        lambda x, w, v: F.conv2d(F.conv2d(x, w, groups=4), v), x, t(4, 1, 3, 3), t(8, 4, 1, 1)
    )


def strides(graph: LoopGraph) -> list[list[int | None]]:
    """Of the four-dimensional temporaries that have several channels."""
    images = [b for b in graph.buffers.values() if b.role == "temporary" and len(b.sizes) == 4]
    return [[s.constant for s in b.strides] for b in images if b.sizes[1] is not ONE]


def test_images_between_convolutions_lie_channels_last_and_results_as_in_eager() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = F.conv2d(torch.sigmoid(F.conv2d(x, w)), v, groups=8)
        return x

    found = strides(assert_lowered(fn, t(2, 8, 6, 7), t(8, 8, 1, 1), t(8, 1, 1, 1)))
    assert (
        found.count([8 * 42, 42, 7, 1]) == 1
        and found.count([8 * 42, 1, 56, 8]) == len(found) - 1 > 3
    )


@pytest.mark.parametrize("has_tiles", [False, True])
def test_brain_floats_lie_as_the_library_multiplies_them(
    has_tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels-last where it has instructions for tiles, as in eager where it has none."""

    def fn(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = F.conv2d(F.conv2d(x, w, padding=1).relu() + x, v)
        return x

    monkeypatch.setattr(layouts, "_multiplies_tiles", lambda: has_tiles)
    args = [t(*sizes, dtype=torch.bfloat16) for sizes in ((2, 8, 6, 7), (8, 8, 3, 3), (8, 8, 1, 1))]
    graph = assert_lowered(fn, *args, tolerance=4e-3)
    calls = libraries(graph)
    assert [call.function for call in calls] == [torch.ops.aten.convolution.default] * 6
    lies_last = [call.args[0].strides[1] is ONE for call in calls]
    assert lies_last == [has_tiles] * 6


def test_rows_of_channels_from_an_image_lie_one_after_the_other() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x.transpose(1, 2).view(2, 8, 6, 7), w, padding=1, groups=8)
        return torch.linalg.vector_norm(F.gelu(y.flatten(2).transpose(1, 2)) @ v, dim=1, ord=3)

    graph = assert_lowered(fn, t(2, 42, 8), t(8, 1, 3, 3), t(8, 5))
    rows = [
        b
        for b in graph.buffers.values()
        if [s.constant for s in b.sizes] == [2, 42, 8] and b.role == "temporary"
    ]
    assert rows and all([s.constant for s in b.strides] == [42 * 8, 8, 1] for b in rows)


def test_a_convolution_between_contiguous_images_is_left_to_the_library() -> None:
    assert libraries(
        assert_lowered(lambda x, w: F.conv2d(x, w).relu(), t(2, 8, 6, 7), t(8, 8, 3, 3))
    )


def test_groups_between_other_convolutions_convert_too_often() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = F.conv2d(F.conv2d(F.conv2d(x, w), v, groups=2), w)
        return x

    assert (
        len(
            libraries(
                assert_lowered(fn, t(2, 8, 6, 7), t(8, 8, 1, 1), t(8, 4, 1, 1), tolerance=2e-6)
            )
        )
        == 9
    )


def test_zeros_around_an_image_are_written_apart() -> None:
    """The image itself is computed straight into its place."""
    graph = assert_lowered(
        lambda x, w: F.conv2d(x.sin(), w, padding=1, groups=4), last(t(2, 4, 6, 7)), t(4, 1, 3, 3)
    )
    written = [
        n
        for n in graph.nodes
        if isinstance(n, Pointwise) and any(i.op == "sin" for i in n.body.instructions)
    ]
    assert len(written) == 1 and not any(i.op == "where" for i in written[0].body.instructions)


def test_explicit_padding_is_written_apart_as_well() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.pad(x.sin(), (0, 1, 2, 3), value=1.5), w, groups=4)

    graph = assert_lowered(fn, last(t(2, 4, 6, 7)), t(4, 1, 3, 3))
    assert not any(
        i.op == "where"
        for n in graph.nodes
        if isinstance(n, Pointwise)
        for i in n.body.instructions
    )
    assert_lowered(
        lambda x, w: F.conv2d(F.pad(x, (1, 1), value=2.0), w, padding=1),
        last(t(2, 9, 6, 7)),
        t(8, 9, 3, 3),
    )
    assert_lowered(
        lambda x, w: F.conv2d(F.pad(x, (1, 0, 0, 2)), w, padding=1),
        last(t(2, 9, 6, 7)),
        t(8, 9, 3, 3),
    )
    assert_lowered(
        lambda x, w: F.conv2d(F.pad(x, (-1, 0, 0, 2)), w, padding=1),
        last(t(2, 9, 6, 7)),
        t(8, 9, 3, 3),
    )


def test_joined_images_are_written_into_their_places_within_zeros() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(torch.cat([x.sin(), x.cos()], 1), w, padding=1)

    graph = assert_lowered(fn, last(t(2, 9, 6, 7)), t(8, 18, 3, 3))
    assert not any(
        i.op == "where"
        for n in graph.nodes
        if isinstance(n, Pointwise)
        for i in n.body.instructions
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    x, w = t(2, 4, 6, 7).to(dtype), t(4, 1, 3, 3).to(dtype)
    assert_lowered(lambda x, w: F.conv2d(x, w, groups=4), x, w, tolerance=1e-2)


def test_no_images_and_sizes_that_vary() -> None:
    def program(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(chain(F.conv2d(x, w, padding=1, groups=8), v), 2)

    fn = ingot.compile(program, dynamic=True)
    with torch.no_grad():
        for n, h in ((2, 6), (3, 9), (1, 7), (0, 6)):
            x, w, v = t(n, 8, h, 7), t(8, 1, 3, 3), t(8, 8, 1, 1)
            expected, found = program(x, w, v), fn(x, w, v)
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected)


def test_a_library_call_is_given_the_layout_of_eager() -> None:
    graph = assert_lowered(
        lambda x, w: F.conv_transpose2d(chain(x, w), w, stride=3), t(2, 8, 9, 9), t(8, 8, 1, 1)
    )
    (call,) = libraries(graph)
    assert [stride.constant for stride in call.args[0].strides] == [8 * 81, 81, 9, 1]


def test_batch_norm_in_inference_costs_one_multiplication_and_one_addition() -> None:
    bn = torch.nn.BatchNorm2d(4).eval()
    bn.running_mean, bn.running_var = torch.randn(4), torch.rand(4) + 0.5

    def fn(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.relu6(F.batch_norm(F.conv2d(x, w, groups=4), m, v, eps=1e-3))

    graph = assert_lowered(fn, last(t(2, 4, 6, 7)), t(4, 1, 3, 3), bn.running_mean, bn.running_var)
    images = [n for n in graph.nodes if isinstance(n, Pointwise) and len(n.body.loads) >= 9]
    assert len(images) == 1 and not any(i.op == "rsqrt" for i in images[0].body.instructions)


def test_a_transposed_convolution_writes_its_half_of_joined_images() -> None:
    """Upwards in a U-Net: bias, activation, the joining and the zeros around it cost no pass over
    memory."""

    def program(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            low = F.max_pool2d(F.conv2d(x, v[:, :16], padding=1), 2)
            x = F.conv2d(
                torch.cat([x, F.conv_transpose2d(low, w, b, stride=2).relu()], 1), v, padding=1
            )
        return x

    x, w, v, b = t(2, 16, 12, 8), t(16, 16, 2, 2) / 4, t(16, 32, 3, 3) / 16, t(16)
    assert_lowered(program, x, w, v, b, tolerance=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(
            ingot.compile(program)(x, w, v, b), program(x, w, v, b), rtol=1e-4, atol=1e-4
        )
        (compilation,) = ingot.explain(ingot.compile(program))(x, w, v, b).compilations
    assert compilation.log.plan is not None
    kernels = [step.kernel for step in compilation.log.plan.steps]  # type: ignore[union-attr]
    assert sum(kernel.product is not None for kernel in kernels) == 6
    assert not any("relu" in kernel.name for kernel in kernels if kernel.product is None)


def test_what_follows_a_convolution_is_computed_on_its_tiles() -> None:
    """BatchNorm, the activation and the zeros around the next image's place cost no pass over
    memory."""

    def program(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = F.conv2d(F.relu(F.conv2d(x, v) * 2 + 1), w, padding=1)
        return x

    args = last(t(1, 16, 9, 9)), t(16, 16, 3, 3), t(16, 16, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(
            ingot.compile(program)(*args), program(*args), rtol=1e-4, atol=1e-4
        )
        (compilation,) = ingot.explain(ingot.compile(program))(*args).compilations
    assert compilation.log.plan is not None
    kernels = [step.kernel for step in compilation.log.plan.steps]  # type: ignore[union-attr]
    assert sum(kernel.product is not None for kernel in kernels) == 6
    assert not any("relu" in kernel.name for kernel in kernels if kernel.product is None)
