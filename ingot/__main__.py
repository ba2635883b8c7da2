"""`python -m ingot`: try, explain and take apart functions of yours, run programs of yours, look
after the cache."""

from __future__ import annotations

import sys

import ingot
from ingot.debugging.commands import add_debugging
from ingot.explain.cli import main

sys.exit(main(ingot.compile, ingot.explain, install=ingot.install, further=add_debugging))
