"""Builds the one extension module. It is compiled against Python.h alone, so it takes seconds and
fits every torch.

INGOT_SANITIZE=address,undefined builds it with these sanitizers of gcc and with asserts: see
CONTRIBUTING.md.
"""

import os
import sys
from glob import glob

from setuptools import Extension, setup

unix = sys.platform != "win32"
flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"] if unix else ["/std:c11"]
sanitizers = os.environ.get("INGOT_SANITIZE")
sanitize = [f"-fsanitize={sanitizers}"] if sanitizers else []
checks = (
    [*sanitize, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-UNDEBUG"]
    if sanitizers
    else []
)
setup(
    ext_modules=[
        Extension(
            "ingot.native._native",
            sources=sorted(glob("ingot/native/*.c")),
            depends=sorted(glob("ingot/native/*.h")),
            extra_compile_args=flags + checks,
            extra_link_args=sanitize,
            libraries=["dl", "pthread"] if sys.platform == "linux" else [],
        )
    ]
)
