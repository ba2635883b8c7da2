"""Networks over images that TorchBench has in kind, written here in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv(a: int, b: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size, or halves it, and has no bias."""
    return nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False)


def conv_norm(
    a: int, b: int, size: int = 3, stride: int = 1, act: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    return nn.Sequential(conv(a, b, size, stride), nn.BatchNorm2d(b), act())


# -- generators and critics ------------------------------------------------------------------------


def dcgan_generator(noise: int = 100, width: int = 64) -> nn.Sequential:
    """(n, noise, 1, 1) -> images (n, 3, 64, 64) (Radford et al., 2015)."""
    widths = [noise, 8 * width, 4 * width, 2 * width, width]
    layers: list[nn.Module] = []
    for number, (a, b) in enumerate(zip(widths, widths[1:])):
        step = (4, 2, 1) if number else (4, 1, 0)
        layers += [nn.ConvTranspose2d(a, b, *step, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


def dcgan_critic(width: int = 64) -> nn.Sequential:
    """Images (n, 3, 64, 64) -> (n, 1, 1, 1)."""
    widths = [width, 2 * width, 4 * width, 8 * width]
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4, 1, 0, bias=False))


class Pix2Pix(nn.Module):
    """An encoder and a decoder with each level carried across, InstanceNorm between: images (n, 3,
    h, w) to the same, h and w multiples of 128 (Isola et al., 2016)."""

    def __init__(self, width: int = 64, levels: int = 7) -> None:
        super().__init__()
        widths = [min(width << level, 8 * width) for level in range(levels)]
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b in zip([3, *widths], widths))
        back = [*reversed(widths[:-1]), 3]
        given = [widths[-1], *(2 * w for w in back[:-1])]
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in zip(given, back))
        # one at the innermost level would leave nothing of a single number
        self.norms = nn.ModuleList(nn.InstanceNorm2d(w) for w in widths[1:-1])
        self.up_norms = nn.ModuleList(nn.InstanceNorm2d(w) for w in back[:-1])

    def forward(self, x: Tensor) -> Tensor:
        carried: list[Tensor] = []
        for number, down in enumerate(self.down):
            x = down(x if number == 0 else F.leaky_relu(x, 0.2))
            if 0 < number <= len(self.norms):
                x = self.norms[number - 1](x)
            carried.append(x)
        carried.pop()
        for number, up in enumerate(self.up):
            x = up(F.relu(x))
            if number < len(self.up_norms):
                x = torch.cat((self.up_norms[number](x), carried.pop()), 1)
        return torch.tanh(x)


class Residual(nn.Module):
    """Two 3x3 convolutions with InstanceNorm, added to their input."""

    def __init__(self, width: int, affine: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3),
            nn.InstanceNorm2d(width, affine=affine), nn.ReLU(),
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3),
            nn.InstanceNorm2d(width, affine=affine),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def cyclegan_generator(width: int = 64, blocks: int = 9) -> nn.Sequential:
    """Images (n, 3, h, w) to the same, h and w multiples of 4 (Zhu et al., 2017)."""
    return translator(3, width, blocks, affine=False)


def translator(channels: int, width: int, blocks: int, affine: bool) -> nn.Sequential:
    def norm(w: int) -> nn.Module:
        return nn.InstanceNorm2d(w, affine=affine)

    layers: list[nn.Module] = [
        nn.ReflectionPad2d(3), nn.Conv2d(channels, width, 7), norm(width), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, 2, 1), norm(2 * width), nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, 2, 1), norm(4 * width), nn.ReLU(),
    ]  # fmt: skip
    layers += [Residual(4 * width, affine) for _ in range(blocks)]
    for a in (4 * width, 2 * width):
        layers += [nn.ConvTranspose2d(a, a // 2, 3, 2, 1, 1), norm(a // 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())


class StarGan(nn.Module):
    """Translates images (n, 3, h, w) into domains that (n, domains) marks (Choi et al., 2017)."""

    def __init__(self, domains: int = 5, width: int = 64) -> None:
        super().__init__()
        self.body = translator(3 + domains, width, 6, affine=True)

    def forward(self, images: Tensor, domains: Tensor) -> Tensor:
        planes = domains[:, :, None, None].expand(-1, -1, *images.shape[2:])
        return self.body(torch.cat((images, planes), 1))


# -- super-resolution ------------------------------------------------------------------------------


def espcn(scale: int = 3, width: int = 64) -> nn.Sequential:
    """Luminance (n, 1, h, w) to (n, 1, scale h, scale w) (Shi et al., 2016)."""
    return nn.Sequential(
        nn.Conv2d(1, width, 5, 1, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(),
        nn.Conv2d(width, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, scale**2, 3, 1, 1),
        nn.PixelShuffle(scale),
    )  # fmt: skip


class Edsr(nn.Module):
    """Residual blocks without norms: (n, 3, h, w) to (n, 3, 2 h, 2 w) (Lim et al., 2017)."""

    def __init__(self, width: int = 64, blocks: int = 16, scale: float = 0.1) -> None:
        super().__init__()
        self.first, self.scale = nn.Conv2d(3, width, 3, 1, 1), scale
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1)
            )
            for _ in range(blocks)
        )
        self.last = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, 1, 1), nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, 1, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = first = self.first(x)
        for block in self.blocks:
            x = x + self.scale * block(x)
        return self.last(x + first)


class SuperSloMo(nn.Module):
    """The frame between two (n, 3, h, w): a network finds the flow, and both are warped along it
    (Jiang et al., 2017)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        from benchmarks.nets import UNet

        self.flow = UNet(width)
        self.flow.first[0] = nn.Conv2d(6, width, 3, padding=1, bias=False)
        self.flow.last = nn.Conv2d(width, 5, 1)

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        found = self.flow(torch.cat((before, after), 1))
        share = found[:, 4:].sigmoid()
        return share * warped(before, found[:, :2]) + (1 - share) * warped(after, found[:, 2:4])


def warped(images: Tensor, flow: Tensor) -> Tensor:
    """Images sampled where the flow (n, 2, h, w) points, in half their size."""
    height, width = images.shape[2:]
    y = torch.linspace(-1, 1, height, device=images.device)
    x = torch.linspace(-1, 1, width, device=images.device)
    grid = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], -1)
    places = grid + flow.permute(0, 2, 3, 1).float().tanh() / 8
    return F.grid_sample(images, places, align_corners=True)


# -- detection and segmentation --------------------------------------------------------------------


class Dark(nn.Module):
    """Darknet's residual: 1x1 to half the width and 3x3 back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(width, width // 2, 1, act=nn.LeakyReLU),
            conv_norm(width // 2, width, 3, act=nn.LeakyReLU),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Yolo(nn.Module):
    """Darknet-53's stages and heads at three scales, with boxes decoded (Redmon and Farhadi, 2018).

    Images (n, 3, h, w), h and w multiples of 32 -> (n, boxes, 85).
    """

    def __init__(self, classes: int = 80, blocks: tuple[int, ...] = (1, 2, 8, 8, 4)) -> None:
        super().__init__()
        self.stem = conv_norm(3, 32, act=nn.LeakyReLU)
        self.stages = nn.ModuleList()
        width = 32
        for count in blocks:
            down = conv_norm(width, 2 * width, 3, 2, nn.LeakyReLU)
            width *= 2
            self.stages.append(nn.Sequential(down, *(Dark(width) for _ in range(count))))
        self.necks = nn.ModuleList(
            conv_norm(a, b, 1, act=nn.LeakyReLU) for a, b in ((1024, 256), (768, 128), (384, 128))
        )
        self.heads = nn.ModuleList(
            nn.Sequential(
                conv_norm(w, 2 * w, act=nn.LeakyReLU), nn.Conv2d(2 * w, 3 * (5 + classes), 1)
            )
            for w in (256, 128, 128)
        )

    def forward(self, x: Tensor) -> Tensor:
        x, levels = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        found = []
        for number, (neck, head) in enumerate(zip(self.necks, self.heads)):
            if number:
                x = torch.cat((F.interpolate(x, scale_factor=2.0), levels[-1 - number]), 1)
            x = neck(x)
            found.append(boxes(head(x)))
        return torch.cat(found, 1)


def boxes(scores: Tensor, anchors: int = 3) -> Tensor:
    """(n, anchors * k, h, w) -> (n, anchors * h * w, k) with places and sizes in cells."""
    n, _, h, w = scores.shape
    scores = scores.view(n, anchors, -1, h, w).permute(0, 1, 3, 4, 2).float()
    x = torch.arange(w, device=scores.device)
    y = torch.arange(h, device=scores.device).unsqueeze(1)
    places = torch.stack((scores[..., 0].sigmoid() + x, scores[..., 1].sigmoid() + y), -1)
    sizes = scores[..., 2:4].clamp(max=4.0).exp()
    return torch.cat((places, sizes, scores[..., 4:].sigmoid()), -1).view(n, anchors * h * w, -1)


class Pyramid(nn.Module):
    """A small residual net, a feature pyramid and heads shared by its levels, as in RetinaNet (Lin
    et al., 2017): images (n, 3, h, w) -> scores (n, places, classes), boxes (n, places, 4)."""

    def __init__(self, width: int = 64, classes: int = 80, features: int = 256) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.stem = nn.Sequential(conv_norm(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.stages = nn.ModuleList(
            nn.Sequential(conv_norm(a, b, 3, 1 if a == b else 2), Dark(b), Dark(b))
            for a, b in zip([width, *widths], widths)
        )
        self.across = nn.ModuleList(nn.Conv2d(w, features, 1) for w in widths[1:])
        self.scores = head(features, 9 * classes)
        self.boxes = head(features, 9 * 4)
        self.classes = classes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, levels = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        features = [across(level) for across, level in zip(self.across, levels[1:])]
        for number in (1, 0):
            upper = F.interpolate(features[number + 1], scale_factor=2.0)
            features[number] = features[number] + upper
        scores = [flat(self.scores(level), self.classes) for level in features]
        places = [flat(self.boxes(level), 4) for level in features]
        return torch.cat(scores, 1), torch.cat(places, 1)


def head(width: int, results: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Conv2d(width, width, 3, 1, 1), nn.GroupNorm(32, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, results, 3, 1, 1))


def flat(x: Tensor, last: int) -> Tensor:
    return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, last)


class DeepLab(nn.Module):
    """Dilated convolutions side by side over a residual net, scores scaled up to the image (Chen et
    al., 2017): (n, 3, h, w) -> (n, classes, h, w)."""

    def __init__(self, width: int = 64, classes: int = 21) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(3, width, 7, 2), conv_norm(width, 2 * width, 3, 2), Dark(2 * width),
            conv_norm(2 * width, 4 * width, 3, 2), Dark(4 * width), Dark(4 * width),
        )  # fmt: skip
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(4 * width, 4 * width, 3, padding=rate, dilation=rate, bias=False),
                nn.BatchNorm2d(4 * width),
                nn.ReLU(),
            )
            for rate in (1, 6, 12, 18)
        )
        self.join = conv_norm(16 * width, 4 * width, 1)
        self.last = nn.Conv2d(4 * width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.body(images)
        x = self.last(self.join(torch.cat([branch(x) for branch in self.branches], 1)))
        return F.interpolate(x, images.shape[2:], mode="bilinear", align_corners=False)


class Matting(nn.Module):
    """A refined foreground and its alpha, of an image and its background (n, 3, h, w) (Sengupta et
    al., 2020)."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.both = nn.ModuleList(
            nn.Sequential(conv_norm(3, width, 7), conv_norm(width, 2 * width, 3, 2))
            for _ in range(2)
        )
        self.join = conv_norm(4 * width, 4 * width, 3, 2)
        self.blocks = nn.Sequential(*(Dark(4 * width) for _ in range(5)))
        self.up = nn.ModuleList(conv_norm(a, a // 2) for a in (4 * width, 2 * width))
        self.last = nn.Conv2d(width, 4, 7, 1, 3)

    def forward(self, image: Tensor, behind: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat((self.both[0](image), self.both[1](behind)), 1)
        x = self.blocks(self.join(x))
        for up in self.up:
            x = up(F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False))
        found = self.last(x)
        alpha = found[:, :1].sigmoid()
        return alpha, alpha * found[:, 1:].tanh() + (1 - alpha) * behind


# -- small images ----------------------------------------------------------------------------------


class Basic(nn.Module):
    """A residual block of small images; `norm` makes its norms."""

    def __init__(self, a: int, b: int, norm: type[nn.Module] | None = None) -> None:
        super().__init__()
        make = norm or nn.BatchNorm2d
        stride = 1 if a == b else 2
        self.body = nn.Sequential(conv(a, b, 3, stride), make(b), nn.ReLU(), conv(b, b), make(b))
        self.short: nn.Module = nn.Identity() if a == b else conv(a, b, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


class GroupNorm16(nn.GroupNorm):
    def __init__(self, width: int) -> None:
        super().__init__(16, width)


def small_resnet(norm: type[nn.Module] | None = None, width: int = 16) -> nn.Sequential:
    """Three stages of three blocks over (n, 3, 32, 32): a ResNet-20 (He et al., 2015)."""
    layers: list[nn.Module] = [conv(3, width), nn.BatchNorm2d(width), nn.ReLU()]
    a = width
    for b in (width, 2 * width, 4 * width):
        layers += [Basic(a, b, norm), Basic(b, b, norm), Basic(b, b, norm)]
        a = b
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, 10))


class Dense(nn.Module):
    """A layer of a dense block: what it makes is joined to what it was given."""

    def __init__(self, given: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(given), nn.ReLU(), conv(given, 2 * growth, 1),
            nn.BatchNorm2d(2 * growth), nn.ReLU(), conv(2 * growth, growth),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.body(x)), 1)


def small_densenet(growth: int = 16, layers: int = 6) -> nn.Sequential:
    """Four dense blocks over (n, 3, 32, 32) (Huang et al., 2016)."""
    width, parts = 2 * growth, [conv(3, 2 * growth)]
    for block in range(4):
        for _ in range(layers):
            parts.append(Dense(width, growth))
            width += growth
        if block < 3:
            parts += [
                nn.BatchNorm2d(width), nn.ReLU(), conv(width, width // 2, 1), nn.AvgPool2d(2)
            ]  # fmt: skip
            width //= 2
    parts += [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*parts, nn.Linear(width, 10))


def dp_cifar(width: int = 32) -> nn.Sequential:
    """What is trained with privacy in the examples of such libraries: average pooling, no norms."""
    layers: list[nn.Module] = []
    for a, b in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [nn.Conv2d(a, b, 3, 1, 1), nn.ReLU(), nn.AvgPool2d(2)]
    return nn.Sequential(
        *layers, nn.Conv2d(4 * width, 128, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def mnist() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


class Painter(nn.Module):
    """Five strokes that an actor chooses for a canvas (n, 9, 128, 128), drawn by a renderer (Huang
    et al., 2019): the canvas (n, 3, 128, 128) afterwards."""

    def __init__(self, strokes: int = 5, numbers: int = 10) -> None:
        super().__init__()
        width, self.strokes, self.numbers = 64, strokes, numbers
        self.actor = nn.Sequential(
            conv_norm(9, width, 3, 2), Basic(width, width), Basic(width, 2 * width),
            Basic(2 * width, 4 * width), Basic(4 * width, 8 * width), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(8 * width, strokes * (numbers + 3)), nn.Sigmoid(),
        )  # fmt: skip
        self.grow = nn.Sequential(
            nn.Linear(numbers, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU(),
            nn.Linear(1024, 4096), nn.ReLU(),
        )  # fmt: skip
        self.draw = nn.Sequential(
            nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.PixelShuffle(2),
            nn.Conv2d(8, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1), nn.PixelShuffle(2),
            nn.Conv2d(4, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 4, 3, 1, 1), nn.PixelShuffle(2),
        )  # fmt: skip

    def forward(self, state: Tensor) -> Tensor:
        n = state.shape[0]
        chosen = self.actor(state).view(n * self.strokes, -1)
        shapes = self.grow(chosen[:, : self.numbers]).view(-1, 16, 16, 16)
        strokes = 1 - self.draw(shapes).sigmoid()
        colours = strokes * chosen[:, self.numbers :, None, None]
        strokes = strokes.view(n, self.strokes, 1, 128, 128)
        colours = colours.view(n, self.strokes, 3, 128, 128)
        canvas = state[:, :3]
        for number in range(self.strokes):
            canvas = canvas * (1 - strokes[:, number]) + colours[:, number]
        return canvas


# -- diffusion -------------------------------------------------------------------------------------


class TimedResidual(nn.Module):
    """GroupNorm, SiLU and convolution twice, with the time's embedding added between."""

    def __init__(self, a: int, b: int, times: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, a), nn.SiLU(), nn.Conv2d(a, b, 3, 1, 1))
        self.time = nn.Linear(times, b)
        self.last = nn.Sequential(nn.GroupNorm(32, b), nn.SiLU(), nn.Conv2d(b, b, 3, 1, 1))
        self.short: nn.Module = nn.Identity() if a == b else nn.Conv2d(a, b, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(x) + self.time(F.silu(time))[:, :, None, None]
        return self.short(x) + self.last(y)


class Attended(nn.Module):
    """Attention over places, attention over a text, and a gated layer, each added."""

    def __init__(self, width: int, text: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.before, self.heads = nn.GroupNorm(32, width), heads
        self.queries = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.keys = nn.ModuleList(nn.Linear(w, 2 * width, bias=False) for w in (width, text))
        self.results = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.gate, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def attend(self, x: Tensor, others: Tensor, number: int) -> Tensor:
        parts = [self.queries[number](x), *self.keys[number](others).chunk(2, -1)]
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        found = F.scaled_dot_product_attention(q, k, v)
        return self.results[number](found.transpose(1, 2).flatten(2))

    def forward(self, images: Tensor, text: Tensor) -> Tensor:
        n, width, h, w = images.shape
        x = self.before(images).flatten(2).transpose(1, 2)
        y = self.norms[0](x)
        x = x + self.attend(y, y, 0)
        x = x + self.attend(self.norms[1](x), text, 1)
        value, gate = self.gate(self.norms[2](x)).chunk(2, -1)
        x = x + self.down(value * F.gelu(gate))
        return images + x.transpose(1, 2).reshape(n, width, h, w)


class Diffusion(nn.Module):
    """A denoiser of latents (n, 4, h, w), h and w multiples of 4, at times (n,), given a text (n,
    words, 768), in the manner of Stable Diffusion (Rombach et al., 2021)."""

    def __init__(self, width: int = 160, text: int = 768) -> None:
        super().__init__()
        widths, times = [width, 2 * width, 4 * width], 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, times), nn.SiLU(), nn.Linear(times, times))
        self.first = nn.Conv2d(4, width, 3, 1, 1)
        self.down = nn.ModuleList()
        self.smaller = nn.ModuleList()
        for a, b in zip([width, *widths], widths):
            self.down.append(TimedResidual(a, b, times))
            self.down.append(Attended(b, text, b // 40))
            self.smaller.append(nn.Conv2d(b, b, 3, 2, 1) if b < widths[-1] else nn.Identity())
        self.up = nn.ModuleList()
        for a, b in zip(reversed(widths), [*reversed(widths[:-1]), width]):
            self.up.append(TimedResidual(2 * a, b, times))
            self.up.append(Attended(b, text, b // 40))
        self.last = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 4, 3, 1, 1))

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=x.device) * (-9.2 / half))
        angles = time[:, None].float() * rates
        at = self.time(torch.cat((angles.cos(), angles.sin()), -1).to(x.dtype))
        x, carried = self.first(x), []
        for number, smaller in enumerate(self.smaller):
            x = self.down[2 * number + 1](self.down[2 * number](x, at), text)
            carried.append(x)
            x = smaller(x)
        for number in range(len(self.smaller)):
            if number:
                x = F.interpolate(x, scale_factor=2.0)
            x = self.up[2 * number](torch.cat((x, carried.pop()), 1), at)
            x = self.up[2 * number + 1](x, text)
        return self.last(x)


class LatentDecoder(nn.Module):
    """Latents (n, 4, h, w) to images (n, 3, 8 h, 8 w)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        widths = [8 * width, 4 * width, 2 * width, width]
        self.first = nn.Conv2d(4, widths[0], 3, 1, 1)
        self.blocks = nn.ModuleList(
            TimedResidual(a, b, 8) for a, b in zip([widths[0], *widths], widths)
        )
        self.last = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x, time = self.first(x), x.new_zeros(x.shape[0], 8)
        for number, block in enumerate(self.blocks):
            x = block(x, time)
            if number < 3:
                x = F.interpolate(x, scale_factor=2.0)
        return self.last(x)
