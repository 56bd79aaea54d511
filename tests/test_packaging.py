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


def test_the_wheel_and_its_description_are_in_order(wheel: Path) -> None:
    for command in (["twine", "check", "--strict"], ["check_wheel_contents"]):
        done = subprocess.run(
            [sys.executable, "-m", *command, str(wheel)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extras", ["", "[acp,mcp]"])
def test_plain_pip_installs_it_into_an_empty_environment(
    wheel: Path, tmp_path: Path, extras: str
) -> None:
    """With what it depends on, from the index that pip is set up for; nothing heavy comes along."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv/bin/python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", f"unabridged{extras} @ {wheel.as_uri()}"], check=True)
    subprocess.run([*pip, "check"], check=True)
    listed = subprocess.run([*pip, "list", "--format=freeze"], capture_output=True, text=True, check=True)  # fmt: skip
    names = {line.partition("==")[0] for line in listed.stdout.splitlines()}
    assert not names & {"torch", "vllm", "numpy", "ray", "transformers"}
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    program = str(tmp_path / "venv/bin/unabridged")
    for words, code in ((["--version"], 0), (["doctor"], 1), (["config", "check"], 0),
                        (["completion", "bash"], 0), (["policy", "explain", "--", "ls"], 0),
                        (["acp"], 2)):  # fmt: skip
        done = subprocess.run(
            [program, *words], env=env, cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr
