"""The page's picture: each model a point, Ingot's speed over torch.compile's, both as times
eager's. Written as SVG, by hand, so that no package is needed and a name shows under the
pointer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

COLOURS = {"torchbench": "#1c7ed6", "timm": "#2f9e44", "transformers": "#d9480f"}
SIZE, LEFT, TOP, GAP = 380, 55, 48, 75
TICKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)

Point = tuple[str, str, float, float]
"""Of a model: suite, name, torch.compile's speed and Ingot's, both as times eager's."""


def svg(panels: Mapping[str, Sequence[Point]]) -> str:
    """One panel for each title, side by side; both axes are logarithmic and alike in all."""
    speeds = [1.0]
    for points in panels.values():
        for _, _, theirs, mine in points:
            speeds += [theirs, mine]
    low, high = math.log2(min(speeds)) - 0.2, math.log2(max(speeds)) + 0.2
    width = LEFT + len(panels) * (SIZE + GAP)
    height = TOP + SIZE + 45
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *legend(),
    ]
    for number, (title, points) in enumerate(panels.items()):
        parts += panel(title, points, LEFT + number * (SIZE + GAP), low, high)
    return "\n".join([*parts, "</svg>"]) + "\n"


def legend() -> list[str]:
    parts = []
    for number, (suite, colour) in enumerate(COLOURS.items()):
        x = LEFT + 110 * number
        parts.append(f'<circle cx="{x}" cy="14" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 9}" y="18">{suite}</text>')
    return parts


def panel(title: str, points: Sequence[Point], left: float, low: float, high: float) -> list[str]:
    def place(speed: float) -> float:
        return (math.log2(speed) - low) / (high - low) * SIZE

    bottom = TOP + SIZE
    parts = [
        f'<text x="{left}" y="{TOP - 8}" font-weight="bold">{escape(title)}</text>',
        f'<rect x="{left}" y="{TOP}" width="{SIZE}" height="{SIZE}" fill="none" stroke="#868e96"/>',
        # above this line Ingot is faster
        f'<line x1="{left}" y1="{bottom}" x2="{left + SIZE}" y2="{TOP}" stroke="#868e96"/>',
    ]
    for tick in TICKS:
        if low <= math.log2(tick) <= high:
            x, y = left + place(tick), bottom - place(tick)
            parts += [
                f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#dee2e6"/>',
                f'<line x1="{left}" y1="{y:.1f}" x2="{left + SIZE}" y2="{y:.1f}" '
                'stroke="#dee2e6"/>',
                f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{tick:g}</text>',
                f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>',
            ]
    middle = TOP + SIZE / 2
    parts += [
        f'<text x="{left + SIZE / 2}" y="{bottom + 32}" text-anchor="middle">'
        "torch.compile, times eager's speed</text>",
        f'<text x="{left - 32}" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 {left - 32} {middle})">Ingot, times eager\'s speed</text>',
    ]
    for suite, name, theirs, mine in points:
        text = escape(f"{name}: Ingot {mine:.2f}, torch.compile {theirs:.2f} x eager")
        parts.append(
            f'<circle cx="{left + place(theirs):.1f}" cy="{bottom - place(mine):.1f}" r="3.5" '
            f'fill="{COLOURS[suite]}" fill-opacity="0.7"><title>{text}</title></circle>'
        )
    return parts
