"""A device that no maker has: it shows what a new one takes. This folder makes its code, and
`launcher.py` runs it; two rows of two tables name them, and no file of Ingot's changes. Its memory
is the CPU's."""
