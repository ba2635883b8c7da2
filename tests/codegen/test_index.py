"""Index expressions in compiled code."""

from __future__ import annotations

import pytest

from tests.codegen.check_index import check


@pytest.mark.parametrize("seed", range(3))
def test_compiled_index_expressions(seed: int) -> None:
    assert check(seed) > 12
