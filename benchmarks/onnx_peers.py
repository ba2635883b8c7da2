"""ONNX Runtime and OpenVINO: engines for a graph in a file, which torch.onnx.export writes in the
measuring process.

Both run on as many threads as torch, in float32. Parameters of modules are constants of the file,
so the engines fold and prepack them once: what Ingot does with `freeze` only. Arguments are passed
without copies.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

OPSET = 20
_exported: dict[int, tuple[Any, Path]] = {}


class _Function(nn.Module):
    """A function as the module that the exporter wants."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def exported(function: Callable[..., Any], args: tuple[Any, ...]) -> Path:
    """The ONNX file of `function` for arguments like these, written once in a process; raises as
    the exporter does."""
    if id(function) not in _exported:
        folder = Path(tempfile.mkdtemp(prefix="ingot-onnx-"))
        module = function if isinstance(function, nn.Module) else _Function(function)
        file = folder / "model.onnx"
        torch.onnx.export(
            module.eval(), args, file, dynamo=True, opset_version=OPSET, verbose=False
        )
        # the function is kept, for its number not to be given again
        _exported[id(function)] = function, file
    return _exported[id(function)][1]


def arrays(args: tuple[Any, ...]) -> list[np.ndarray]:
    """The arguments' own memory as NumPy arrays. Raises TypeError for types that NumPy has not."""
    return [arg.contiguous().numpy() for arg in args]


def onnxruntime(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], list[Any]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        exported(function, args), options, providers=["CPUExecutionProvider"]
    )
    feeds = dict(zip((i.name for i in session.get_inputs()), arrays(args), strict=True))
    return lambda: session.run(None, feeds)


def openvino(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], list[Any]]:
    """Results lie in memory of the engine's, which the next call overwrites."""
    import openvino
    from openvino import properties

    settings = {
        properties.hint.performance_mode: properties.hint.PerformanceMode.LATENCY,
        properties.hint.inference_precision: openvino.Type.f32,
        properties.inference_num_threads: torch.get_num_threads(),
    }
    core = openvino.Core()
    request = core.compile_model(
        core.read_model(exported(function, args)), "CPU", settings
    ).create_infer_request()
    feeds = dict(enumerate(arrays(args)))
    return lambda: list(request.infer(feeds, share_inputs=True, share_outputs=True).values())


def to_torch(results: list[Any]) -> list[Tensor]:
    """The results in tensors that nothing overwrites."""
    return [torch.from_numpy(np.array(result)) for result in results]
