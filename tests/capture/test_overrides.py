"""Operations on instances of subclasses that override a method do what they do in CPython.

`python -m tests.capture.overrides` runs all of the table, here is a part of it.
"""

from __future__ import annotations

import itertools

import pytest

from tests.capture.overrides import RESULTS, VALUES, tally_of

_PART = 40
"""One operation of this many is run by the suite, others for each override."""


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
@pytest.mark.parametrize("base", VALUES, ids=lambda base: base.__name__)
def test_overridden_methods(base: type, outside: bool) -> None:
    begin = 7 * list(VALUES).index(base) + outside
    firsts = itertools.count(begin)
    tallies = [tally_of(base, name, outside, next(firsts) % _PART, _PART) for name in RESULTS]
    differences = [difference for tally in tallies for difference in tally.differences]
    assert not differences
