"""Programs in files: what `ingot.export` writes, and `ingot.load` runs without a compiler."""
