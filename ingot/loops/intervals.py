"""Interval arithmetic on integers: the bounds of an operation from those of its operands.

Bounds are (lowest, highest), both included; None stands for an end that is not known. The divisor
of a division or a remainder is positive.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

Bounds = tuple[int | None, int | None]


def add(a: Bounds, b: Bounds) -> Bounds:
    """Of the sum."""
    if a[0] is None or b[0] is None:
        low = None
    else:
        low = a[0] + b[0]
    if a[1] is None or b[1] is None:
        high = None
    else:
        high = a[1] + b[1]
    return low, high


def multiply(coefficient: int, factors: Iterable[Bounds]) -> Bounds:
    """Of the product of a number and any count of factors."""
    low: float = coefficient
    high: float = coefficient
    for least, most in factors:
        ends = (-inf if least is None else least, inf if most is None else most)
        # zero times infinity is zero: the factor is some number
        corners = []
        for x in (low, high):
            for y in ends:
                corners.append(x * y if x and y else 0)
        low, high = min(corners), max(corners)
    return (None if low == -inf else int(low)), (None if high == inf else int(high))


def floor_divide(a: Bounds, b: Bounds) -> Bounds:
    """Of a // b: a larger divisor brings the quotient nearer to 0, or to -1 from below."""
    (low, high), (least, most) = a, b
    least = max(least or 1, 1)
    if low is not None:
        divisor = most if low >= 0 else least
        if divisor is None:
            low = 0
        else:
            low = low // divisor
    if high is not None:
        divisor = least if high >= 0 else most
        if divisor is None:
            high = -1
        else:
            high = high // divisor
    return low, high


def remainder(a: Bounds, b: Bounds) -> Bounds:
    """Of a % b, which is below b, and no more than an a that is not negative."""
    (low, high), (_, most) = a, b
    largest = None
    if most is not None:
        largest = most - 1
    if low is None or low < 0 or high is None:
        return 0, largest
    return 0, high if largest is None else min(high, largest)


def maximum(a: Bounds, b: Bounds) -> Bounds:
    """Of the larger one: at least what is known of either."""
    lows = []
    for low in (a[0], b[0]):
        if low is not None:
            lows.append(low)
    if a[1] is None or b[1] is None:
        high = None
    else:
        high = max(a[1], b[1])
    return max(lows, default=None), high


def minimum(a: Bounds, b: Bounds) -> Bounds:
    """Of the smaller one: at most what is known of either."""
    highs = []
    for high in (a[1], b[1]):
        if high is not None:
            highs.append(high)
    if a[0] is None or b[0] is None:
        low = None
    else:
        low = min(a[0], b[0])
    return low, min(highs, default=None)
