"""A smoke of Ingot on each supported Python and torch: its wheel is built, installed and imported
beside torch, and a chosen part of the tests runs against what the wheel has installed.

    python -m tests.matrix                               all of ENVIRONMENTS, made where missing
    python -m tests.matrix python3.12:torch==2.11.0 /some/bin/python
                                                         others; an interpreter is taken as it is
    python -m tests.matrix --tests tests/test_api.py -- -x
                                                         other tests, and arguments of pytest's

Environments are kept in `.matrix`. An interpreter that is given needs torch, what Ingot depends on,
pytest and triton.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".matrix"

ENVIRONMENTS = (
    "python3.11:torch==2.11.0",
    "python3.11:torch==2.13.0",
    "python3.11:torch==2.14.1",
    "python3.11:torch==2.15.0",
    "python3.12:torch==2.13.0",
    "python3.13:torch==2.13.0",
    "python3.14:torch==2.13.0",
)

TESTS = (
    "tests/test_torch_private.py",
    "tests/test_independence.py",
    "tests/test_autograd_functions.py",
    "tests/test_func_transforms.py",
    "tests/test_training_written.py",
    "tests/test_optimizers.py",
    "tests/capture/test_inference_tensors.py",
    "tests/capture/test_integers_of_data.py",
    "tests/capture/test_modes.py",
    "tests/capture/test_numbers.py",
    "tests/capture/test_bytecode.py",
    "tests/capture/test_language_exceptions.py",
    "tests/graph/test_matmul.py",
    "tests/native/test_recorder.py",
    "tests/codegen/triton/test_module.py",
    "tests/codegen/triton/test_interpreted.py",
)
"""Those that a new Python or torch is the first to break; three minutes or so on two cores."""

IMPORTED = """
import pathlib, sys, torch, ingot
assert pathlib.Path(ingot.__file__).is_relative_to(sys.argv[1]), ingot.__file__
f = ingot.compile(lambda x: (x.sin() * 2).sum(), fullgraph=True)
x = torch.ones(8, requires_grad=True)
f(x).backward()
assert torch.allclose(x.grad, 2 * x.detach().cos())
print(sys.version.split()[0], torch.__version__)
"""

TOOLS = ("hypothesis", "pytest", "sympy")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("environments", nargs="*", default=ENVIRONMENTS)
    parser.add_argument("--tests", nargs="+", default=TESTS)
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    chosen = parser.parse_args(arguments[:cut])
    failed = [
        name
        for name in chosen.environments
        if not tried(name, [*chosen.tests, *arguments[cut + 1 :]])
    ]
    print(
        f"{len(chosen.environments) - len(failed)} of {len(chosen.environments)} environments pass",
        *failed,
    )
    return bool(failed)


def tried(environment: str, tests: list[str]) -> bool:
    """Whether all is well in an environment."""
    start = time.perf_counter()
    print(f"-- {environment}", flush=True)
    try:
        python = made(environment) if ":" in environment else environment
        with tempfile.TemporaryDirectory() as folder:
            site = installed(python, Path(folder))
            command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
            run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(site)})
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        print(f"-- {environment}: {error}")
        return False
    print(f"-- {environment}: {time.perf_counter() - start:.0f} s", flush=True)
    return True


def installed(python: str, folder: Path) -> Path:
    """Builds the wheel and installs it, beside what the tests need of the checkout and nothing else
    of it."""
    source, site = folder / "source", folder / "site"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(".*", "build", "*.so", "*.egg-info", "__pycache__"),
    )
    pip = [python, "-m", "pip", "-q", "--disable-pip-version-check"]
    run([*pip, "wheel", "--no-deps", "-w", str(folder), str(source)])
    (wheel,) = folder.glob("ingot-*.whl")
    run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)])
    for name in ("tests", "examples", "docs", "benchmarks", "pyproject.toml", "README.md"):
        shutil.move(source / name, folder / name)
    run(
        [python, "-c", IMPORTED, str(site)], cwd=folder, env={**os.environ, "PYTHONPATH": str(site)}
    )
    return site


def made(environment: str) -> str:
    """The interpreter of an environment that is kept: made if there is none."""
    base, _, torch = environment.partition(":")
    folder = KEPT / environment.replace(":", "-").replace("==", "-")
    python, stamp = str(folder / "bin" / "python"), folder / "complete"
    if not stamp.exists():
        run([base, "-m", "venv", "--clear", str(folder)])
        limits = folder / "constraints.txt"
        pins = (ROOT / "constraints.txt").read_text().splitlines()
        limits.write_text(
            "\n".join(pin for pin in pins if not pin.startswith(("torch==", "triton==")))
        )
        pip = [python, "-m", "pip", "install", "-q", "-c", str(limits)]
        run([*pip, torch])
        # torch has chosen the triton, if it needs one
        run([*pip, "llvmlite", "numpy", "rich", "triton", *TOOLS])
        stamp.touch()
    return python


def run(command: list[str], **settings: object) -> None:
    subprocess.run(command, check=True, **settings)  # type: ignore[call-overload]


if __name__ == "__main__":
    sys.exit(main())
