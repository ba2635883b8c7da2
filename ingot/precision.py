"""How exactly torch is to multiply float32."""

from __future__ import annotations

from ingot.torch_private import get_fp32_precision_getter


def float32_precisions() -> tuple[str, str]:
    """Of matrix products, by CUDA and by oneDNN: "tf32", "bf16", or "ieee", which is also that of
    none.

    `torch.get_float32_matmul_precision` raises an error once the two differ, as after
    `torch.backends.cuda.matmul.fp32_precision = "tf32"`.
    """
    return _precision("cuda"), _precision("mkldnn")


def _precision(backend: str) -> str:
    precision: str = get_fp32_precision_getter(backend, "matmul")
    if precision in ("tf32", "bf16"):
        return precision
    return "ieee"
