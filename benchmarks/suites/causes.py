"""Why Ingot is slower in a row: by the row's name, or by "suite/model" for all rows of a model.

The page names the cause of each slower row from here; one that is not here has none known.
"""

from __future__ import annotations

CAUSES: dict[str, str] = {
    "transformers/deberta_v2": "10 graphs: functions of TorchScript, and branches on tensors",
    "torchbench/dlrm": "sums of looked-up rows are ATen's, and taken to be none to record",
}


def cause(row: str) -> str:
    return CAUSES.get(row) or CAUSES.get(row.split()[0]) or "not known yet"
