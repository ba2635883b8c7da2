"""How exactly torch is to multiply float32."""

from __future__ import annotations

import torch


def float32_precisions() -> tuple[str, str]:
    """Of matrix products, by CUDA and by oneDNN: "tf32", "bf16", or another word where they are exact.

    `torch.get_float32_matmul_precision` raises an error once the two differ, as after
    `torch.backends.cuda.matmul.fp32_precision = "tf32"`.
    """
    precision = torch._C._get_fp32_precision_getter
    return precision("cuda", "matmul"), precision("mkldnn", "matmul")
