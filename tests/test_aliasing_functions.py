"""Custom backwards whose results share memory with an argument or with another result: gradients, and what shares
memory with what, are those of eager."""

from __future__ import annotations

import pytest

from tests.aliasing_functions import FORMS, PLACES, differences

PAIRS = [(form, place) for k, form in enumerate(FORMS) for j, place in enumerate(PLACES) if (k + j) % 4 == 0]


@pytest.mark.parametrize("form, place", PAIRS)
def test_eager_is_the_oracle(form: str, place: str) -> None:
    assert differences(FORMS[form], PLACES[place], leaf=form > place) == []
