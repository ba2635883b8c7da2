"""From a captured torch graph to a functional graph of ATen ops, without data and without side
effects."""

from ingot.graph.aten_graph import AtenGraph, OutputSpec
from ingot.graph.components import trace_alike
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor, storage_key
from ingot.graph.shape_context import ShapeContext
from ingot.graph.shape_guards import ShapeGuard
from ingot.graph.symbols import to_expr
from ingot.graph.tracing import trace

__all__ = [
    "AtenGraph",
    "FakeContext",
    "FakeTensor",
    "OutputSpec",
    "ShapeContext",
    "ShapeGuard",
    "storage_key",
    "to_expr",
    "trace",
    "trace_alike",
]
