"""Every program of the table, captured and in eager."""

from __future__ import annotations

import pytest
import torch

from tests.capture import programs_code, programs_data
from tests.capture.program_parts import PROGRAMS
from tests.oracle import assert_captured

assert programs_code and programs_data  # which fill the table


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    torch.manual_seed(0)
    assert_captured(PROGRAMS[name], torch.randn(3, 4), torch.randn(3, 4))
