"""Conformance: what programs of each public name of torch's newer namespaces do, beside eager.

A table per namespace has the programs of each of its names: a plain one, edge cases, and cases with
gradients. `python -m tests.conformance` counts them; with `--record` it asks torch.compile first.
"""
