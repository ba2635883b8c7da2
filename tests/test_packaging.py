"""What a package index and pip get: metadata, the version, the README, the files of the sdist; and
a wheel that runs where there is no compiler."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tomllib
from email.message import Message
from pathlib import Path

import pytest

import ingot
from tests.long import long
from tests.wheels import check_contents, supported_versions, try_wheel

pytest.importorskip("setuptools", minversion="77")

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)]*)\)")


def described(folder: Path, source: Path = ROOT) -> Path:
    """The metadata that setuptools writes for a source tree, which itself stays as it is."""
    command = [sys.executable, "setup.py", "-q", "egg_info", "-e", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "ingot.egg-info"


def message(folder: Path) -> Message:
    return email.message_from_string((folder / "PKG-INFO").read_text("utf-8"))


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return described(tmp_path_factory.mktemp("metadata"))


def test_the_version_is_written_once(metadata: Path) -> None:
    assert message(metadata)["Version"] == ingot.__version__
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert "version" in tomllib.loads(text)["project"]["dynamic"]
    assert f'"{ingot.__version__}"' not in text


def test_the_changelog_begins_with_this_version() -> None:
    headings = re.findall(r"^## (\S+), (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0][0] == ingot.__version__
    for _, date in headings:
        assert date == "unreleased" or re.fullmatch(r"\d{4}-\d{2}-\d{2}", date)


def test_the_metadata_is_complete(metadata: Path) -> None:
    found = message(metadata)
    for name in ("Name", "Summary", "License-Expression", "License-File", "Keywords"):
        assert found[name], name
    assert found["Description-Content-Type"] == "text/markdown"
    classifiers = found.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers and len(set(classifiers)) == len(classifiers)


def test_the_classifiers_are_the_pythons_that_are_known(metadata: Path) -> None:
    """Others are accepted as well: all runs in eager there."""
    (oldest,) = re.findall(r"^>=3\.(\d+)$", message(metadata)["Requires-Python"])
    header = (ROOT / "ingot" / "native" / "frames_known.h").read_text("utf-8")
    (beyond,) = re.findall(r"PY_VERSION_HEX < 0x03([0-9a-f]{2})0000", header)
    known = [f"3.{minor}" for minor in range(int(oldest), int(beyond, 16))]
    assert supported_versions() == known
    wheels = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["cibuildwheel"]
    for version in known:
        assert f"cp{version.replace('.', '')}-*" in wheels["build"]


def test_the_readme_has_no_link_to_a_file(metadata: Path) -> None:
    page = message(metadata).get_payload()
    assert isinstance(page, str) and page.startswith("# Ingot")
    for target in LINK.findall(page):
        assert target.startswith(("https://", "#")), target


def test_links_go_to_the_repository_that_the_metadata_name(tmp_path: Path) -> None:
    shutil.copytree(ROOT, tmp_path / "tree", ignore=shutil.ignore_patterns(".*", "build", "tests"))
    project = tmp_path / "tree" / "pyproject.toml"
    text = project.read_text("utf-8") + '\n[project.urls]\nRepository = "https://a.example/b"\n'
    project.write_text(text, "utf-8")
    readme = tmp_path / "tree" / "README.md"
    readme.write_text("# Ingot\n[one](docs/cpu.md) ![two](docs/cpu.svg) [three](https://c.example)")
    page = message(described(tmp_path, tmp_path / "tree")).get_payload()
    assert isinstance(page, str)
    assert "[one](https://a.example/b/blob/main/docs/cpu.md)" in page
    assert "![two](https://a.example/b/raw/main/docs/cpu.svg)" in page
    assert "[three](https://c.example)" in page


def test_the_sdist_has_all_that_is_tracked(metadata: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout")
    listed = set((metadata / "SOURCES.txt").read_text("utf-8").splitlines())
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = {name for name in done.stdout.splitlines() if (ROOT / name).exists()}
    missing = {name for name in tracked - listed if not name.startswith(".git")}
    assert not missing
    built = {name for name in listed if name.endswith((".pyc", ".so"))}
    assert not built


WINDOWS = """
import runpy, sys, setuptools.command.build_ext
sys.platform, sys.argv[:] = "win32", ["setup.py", "-q", "build_ext"]
runpy.run_path("setup.py")
"""


def test_windows_is_refused_with_the_reason() -> None:
    done = subprocess.run([sys.executable, "-c", WINDOWS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "not built for Windows" in done.stderr


@long
def test_a_wheel_runs_where_there_is_no_compiler(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "wheel", "--no-deps"]
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", "build", "*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    flags = ["--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*pip, *flags, str(source)], check=True)
    (wheel,) = tmp_path.glob("ingot-*.whl")
    check_contents(wheel)
    try_wheel(wheel, sys.executable, tmp_path)
