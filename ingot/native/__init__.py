"""The C extension: guard walk, dispatch and the program runner."""

from ingot.native._native import Dispatcher, Entry, GuardTree, Program

__all__ = ["Dispatcher", "Entry", "GuardTree", "Program"]
