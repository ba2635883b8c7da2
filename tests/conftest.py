"""For every test: small tensors lend their memory as large ones do. INGOT_VERIFY_GUARDS=1 has every guard shortcut
compared with the whole walk."""

from __future__ import annotations

import os

from ingot.native import _native

os.environ["INGOT_CACHE_DIR"] = ""  # nothing is kept from one run to the next

_native._lend_from(0)

if "INGOT_VERIFY_GUARDS" in os.environ:
    _native._verify_shortcuts(True)
