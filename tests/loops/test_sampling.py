"""Images read at places that a grid names, of each mode, and at places that are none; the reference
runs them too."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import ingot
from ingot.codegen.reference import run_graph
from ingot.loops.ir import Reduction
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.loops.verify import verify
from tests.loops.test_lowering import assert_lowered, counts, lowered, traced
from tests.oracle import copies

MODES = list(
    itertools.product(("bilinear", "nearest"), ("zeros", "border", "reflection"), (False, True))
)
nan, inf = float("nan"), float("inf")


def image(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(
        dtype
    )


def places(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Most of them inside, and those between two elements, at corners, far away and nowhere."""
    found = image(*shape, 2, dtype=dtype) * 0.8
    special = torch.tensor(
        [-1, 1, 0, 0.5, -0.5, 0.25, 1.0001, 3, -7.5, 1e9, -1e30, inf, -inf, nan], dtype=dtype
    )
    pairs = torch.cartesian_prod(special, special)
    count = min(len(pairs), found.numel() // 4)
    found.view(-1, 2)[:count] = pairs[
        torch.randperm(len(pairs), generator=torch.Generator().manual_seed(1))[:count]
    ]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("channels", [1, 5])
@pytest.mark.parametrize(("mode", "padding", "corners"), MODES)
def test_sampled(mode: str, padding: str, corners: bool, channels: int, dtype: torch.dtype) -> None:
    """The nearest neighbours are eager's, and weighted sums as near to those of doubles as
    eager's."""

    def sampled(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, mode, padding, align_corners=corners)

    compiled = ingot.compile(sampled, fullgraph=True)
    grid = places(2, 19, 23, dtype=dtype)
    for height, width in ((8, 8), (1, 1), (1, 9), (13, 2)):
        x = image(2, channels, height, width, dtype=dtype)
        turned = x.transpose(2, 3).contiguous().transpose(2, 3)
        for given in (x, x.contiguous(memory_format=torch.channels_last), turned):
            ours, theirs = compiled(given, grid), sampled(given, grid)
            assert ours.stride() == theirs.stride()
            if mode == "nearest":
                assert torch.equal(ours, theirs)
            else:
                tolerance = 8 * torch.finfo(dtype).eps
                torch.testing.assert_close(
                    ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True
                )


@pytest.mark.parametrize(("mode", "padding", "corners"), MODES[::3])
def test_reference_samples_too(mode: str, padding: str, corners: bool) -> None:
    x, grid = image(2, 3, 5, 7), places(2, 4, 6)
    graph = assert_lowered(
        lambda x, grid: F.grid_sample(x, grid, mode, padding, align_corners=corners), x, grid
    )
    assert counts(graph)[2] == 0


def test_what_makes_the_grid_is_fused() -> None:
    """And so is what reads the samples."""

    def turned(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
        return F.relu(F.grid_sample(x, torch.tanh(grid), align_corners=False)) + 1

    x, matrix = image(2, 3, 16, 16), image(2, 2, 3)
    compiled = ingot.compile(turned, fullgraph=True)
    torch.testing.assert_close(compiled(x, matrix), turned(x, matrix), rtol=2e-5, atol=2e-5)


def test_sizes_that_vary() -> None:
    compiled = ingot.compile(
        lambda x, grid: F.grid_sample(x, grid, align_corners=True), dynamic=True
    )
    for size in (5, 9, 17):
        x, grid = image(2, 3, size, size + 1), places(2, size, 8)
        expected = F.grid_sample(x, grid, align_corners=True)
        torch.testing.assert_close(
            compiled(x, grid), expected, rtol=1e-6, atol=1e-6, equal_nan=True
        )


def test_gradients() -> None:
    x, grid = image(2, 3, 8, 8).requires_grad_(), (image(2, 5, 5, 2) * 0.5).requires_grad_()

    def loss(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, align_corners=False).square().sum()

    ours, theirs = (torch.autograd.grad(f(x, grid), (x, grid)) for f in (ingot.compile(loss), loss))
    torch.testing.assert_close(ours, theirs)


def test_what_is_left_to_eager() -> None:
    x, grid = image(1, 2, 4, 4), places(1, 3, 3)
    assert (
        counts(lowered(lambda x, g: F.grid_sample(x, g, "bicubic", align_corners=False), x, grid))[
            2
        ]
        == 1
    )
    volume, deep = image(1, 2, 3, 4, 5), image(1, 2, 2, 2, 3)
    assert (
        counts(lowered(lambda x, g: F.grid_sample(x, g, align_corners=False), volume, deep))[2] == 1
    )


def sums_of_samples(*values: torch.Tensor) -> torch.Tensor:
    """Sums of what is sampled of images of three sizes, whose channels lie side by side, by head,
    channel and query."""
    *images, grid, weights = values
    found = []
    for k, x in enumerate(images):
        side = int(x.shape[1] ** 0.5)
        by_head = x.flatten(2).transpose(1, 2).reshape(2, 8, side, side)
        found.append(F.grid_sample(by_head, grid[:, :, k].transpose(0, 1), align_corners=False))
    return (torch.stack(found, -2).flatten(-2) * weights).sum(-1)


def test_sums_of_samples_lie_as_the_images_do() -> None:
    """Heads and channels are innermost, so that neighbours load neighbours, and a linear layer
    reads the sums as they are. The grid, of which channels load the same, does not count."""
    images = [image(1, side * side, 2, 8) for side in (2, 3, 4)]
    args = (*images, image(5, 2, 3, 4, 2), image(2, 1, 5, 12))

    def fn(*values: torch.Tensor) -> torch.Tensor:
        return sums_of_samples(*values).view(16, 5).t() + 1

    graph = lower(traced(fn, *args), target=GPU)
    verify(graph)
    strides = {
        tuple(s.constant for s in b.strides)
        for b in graph.buffers.values()
        if b.role == "temporary"
    }
    assert {(8, 1, 192, 64, 16), (8, 1, 16)} <= strides
    assert any(isinstance(node, Reduction) for node in graph.nodes)
    (found,) = run_graph(graph, copies(args))
    expected = fn(*args)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_returned_sums_of_samples_lie_as_in_eager() -> None:
    images = [image(1, side * side, 2, 8) for side in (2, 3, 4)]
    args = (*images, image(5, 2, 3, 4, 2), image(2, 1, 5, 12))
    graph = lower(traced(sums_of_samples, *args), target=GPU)
    (found,), expected = run_graph(graph, copies(args)), sums_of_samples(*args)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)
