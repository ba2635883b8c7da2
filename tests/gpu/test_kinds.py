"""Each kind of kernel on the device, beside eager on the CPU."""

from __future__ import annotations

import pytest

from tests.gpu.kinds import KINDS
from tests.gpu.sanitize import right


@pytest.mark.parametrize("name", KINDS)
def test_kinds(name: str) -> None:
    assert right(name, "cuda")
