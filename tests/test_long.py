"""What `make test` runs of the products of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import pytest

from tests.long import needless


@pytest.mark.parametrize(
    "sizes, order, most",
    [((3, 5), 1, 5), ((4, 4), 1, 4), ((3, 4, 5), 2, 25), ((2, 2, 2, 7), 2, 16)],
)
def test_all_values_and_pairs_are_in_few_cases(sizes: Sequence[int], order: int, most: int) -> None:
    cases = []
    for values in product(*map(range, sizes)):
        cases.append(set(combinations(enumerate(values), order)))
    left = set(needless(cases))
    kept = [case for k, case in enumerate(cases) if k not in left]
    assert set().union(*kept) == set().union(*cases)
    assert max(sizes) <= len(kept) <= most


def test_what_is_there_once_stays() -> None:
    assert needless([{"a", "x"}, {"b", "x"}, {"b", "y"}, {"c", "y"}]) == [1]
    assert needless([{"a"}, {"b"}]) == []
