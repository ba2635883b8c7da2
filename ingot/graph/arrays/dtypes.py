"""The types of elements that NumPy and torch have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

TORCH_DTYPES: dict[Any, torch.dtype] = {
    np.dtype("float16"): torch.float16,
    np.dtype("float32"): torch.float32,
    np.dtype("float64"): torch.float64,
    np.dtype("complex64"): torch.complex64,
    np.dtype("complex128"): torch.complex128,
    np.dtype("bool"): torch.bool,
    np.dtype("uint8"): torch.uint8,
    np.dtype("int8"): torch.int8,
    np.dtype("int16"): torch.int16,
    np.dtype("int32"): torch.int32,
    np.dtype("int64"): torch.int64,
}
NUMPY_DTYPES: dict[torch.dtype, Any] = dict(zip(TORCH_DTYPES.values(), TORCH_DTYPES))
