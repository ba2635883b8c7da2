"""Builds the one extension module, and the README as a package index shows it. The extension is
compiled against Python.h alone, so it takes seconds and fits every torch.

INGOT_SANITIZE=address,undefined builds it with these sanitizers of gcc and with asserts: see
CONTRIBUTING.md.
"""

import os
import re
import sys
import tomllib
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

UNIX = ["-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"]
"""Flags that gcc and clang have alike."""

SANITIZERS = os.environ.get("INGOT_SANITIZE")
SANITIZE = [f"-fsanitize={SANITIZERS}"]
CHECKS = [*SANITIZE, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-UNDEBUG"]

NO_WINDOWS = """Ingot is not built for Windows: its C sources use dlfcn.h, pthread.h and \
builtins of gcc and clang. WSL has what it needs. See docs/versions.md."""

LINK = re.compile(r"!?\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")
"""A link or an image of Markdown whose target is a file of the repository."""


class Build(build_ext):
    """Adds the flags that the compiler at hand understands."""

    def build_extensions(self):
        if sys.platform == "win32":
            sys.exit(NO_WINDOWS)
        for extension in self.extensions:
            extension.extra_compile_args = UNIX
            if SANITIZERS:
                extension.extra_compile_args = UNIX + CHECKS
                extension.extra_link_args = SANITIZE
            if sys.platform == "linux":
                extension.libraries = ["dl", "pthread"]
        super().build_extensions()


def index_page(readme, home):
    """The README for a package index, where links to files lead nowhere: they go to the tree at
    `home`, or only their text remains if there is none."""

    def absolute(link):
        if not home:
            return link[1]
        mark, place = ("!", "raw") if link[0].startswith("!") else ("", "blob")
        return f"{mark}[{link[1]}]({home}/{place}/main/{link[2]})"

    return LINK.sub(absolute, readme)


urls = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"].get("urls", {})
setup(
    cmdclass={"build_ext": Build},
    ext_modules=[
        Extension(
            "ingot.native._native",
            sources=sorted(glob("ingot/native/*.c")),
            depends=sorted(glob("ingot/native/*.h")),
        )
    ],
    long_description=index_page(Path("README.md").read_text("utf-8"), urls.get("Repository")),
    long_description_content_type="text/markdown",
)
