"""Builds the one extension module. It is compiled against Python.h alone, so it takes seconds and fits every torch."""

import sys
from glob import glob

from setuptools import Extension, setup

unix = sys.platform != "win32"
setup(
    ext_modules=[
        Extension(
            "ingot.native._native",
            sources=sorted(glob("ingot/native/*.c")),
            depends=sorted(glob("ingot/native/*.h")),
            extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"] if unix else ["/std:c11"],
            libraries=["dl", "pthread"] if sys.platform == "linux" else [],
        )
    ]
)
