"""What is built from a checkout: the package and nothing else, and it runs where it is put."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
PACKAGES = ("agent", "evals", "model", "tools", "tui")
OFFLINE = ["--no-deps", "--no-build-isolation", "--no-index"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git tracks, as a clone would have it, so that no build litters this tree."""
    copy = tmp_path_factory.mktemp("checkout") / "some-folder-name"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([*PIP, "wheel", *OFFLINE, "-w", str(folder), str(checkout)], check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path, checkout: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    inside = {name for name in names if name.startswith("unabridged/")}
    assert {name.partition("/")[0].partition("-")[0] for name in names - inside} == {"unabridged"}
    assert all(".dist-info/" in name for name in names - inside)
    folders = {name.split("/")[1] for name in inside if name.count("/") > 1}
    assert folders == set(PACKAGES)
    packages = [checkout / name for name in PACKAGES]
    modules = {p for package in packages for p in package.rglob("*.py")} | set(
        checkout.glob("*.py")
    )
    assert {n for n in inside if n.endswith(".py")} == {
        f"unabridged/{module.relative_to(checkout)}" for module in modules
    }
    # Every tracked file of the package that is no module is data, and is there too.
    others = {
        p for package in packages for p in package.rglob("*") if p.suffix not in {".py", ".pyc"}
    }
    data = {f"unabridged/{p.relative_to(checkout)}" for p in others if p.is_file()}
    assert {n for n in inside if not n.endswith(".py")} == data | {"unabridged/py.typed"}


def test_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    folder = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    lines = archive.read(folder).decode().splitlines()
    version = archive.read("unabridged/__init__.py").decode()
    assert f'"{wheel.name.split("-")[1]}"' in version
    assert "License-Expression: Apache-2.0" in lines
    extras = {line.removeprefix("Provides-Extra: ") for line in lines if "Provides-Extra" in line}
    assert extras == {"model", "serve", "evals", "acp", "mcp", "dev"}
    base = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    heavy = ("torch", "vllm", "numpy", "transformers", "openai")
    assert not [line for line in base if line.split()[1].startswith(heavy)]
    assert not [line for line in lines if "vllm" in line and line.startswith("Requires-Dist")]
    entry = ConfigParser()
    entry.read_string(archive.read(folder.replace("METADATA", "entry_points.txt")).decode())
    assert dict(entry["console_scripts"]) == {"unabridged": "unabridged.cli:main"}


def test_it_runs_from_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    install = ["install", *OFFLINE, "--target", str(target), str(wheel)]
    subprocess.run([*PIP, *install], check=True)
    env = {**os.environ, "PYTHONPATH": str(target), "HOME": str(tmp_path)}
    script = target / "bin/unabridged"
    for words in ([sys.executable, "-m", "unabridged"], [sys.executable, str(script)]):
        done = subprocess.run(
            [*words, "--version"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout == f"unabridged {wheel.name.split('-')[1]}\n"
    where = subprocess.run(
        [sys.executable, "-c", "import unabridged; print(unabridged.__file__)"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(where.stdout.strip()).is_relative_to(target)
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/a.txt").write_text("one\n")
    (tmp_path / "s.json").write_text(
        '{"turns": [{"calls": [{"name": "finish", "arguments": {"status": "done", "summary": "ok"}}]}]}'
    )
    run = ["run", "x", "--repo", "repo", "--script", "s.json", "--sessions-dir", "sessions"]
    done = subprocess.run(
        [sys.executable, "-m", "unabridged", *run],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
