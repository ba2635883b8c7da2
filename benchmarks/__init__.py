"""Ingot against its peers: `python -m benchmarks`.

Every (workload, compiler) pair makes its first call in fresh processes of its own with empty
caches; then the compilers that could take turns in one process, so that the ratios of their medians
are fair.
"""
