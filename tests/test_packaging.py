"""What is built from a checkout: the package and nothing else, and it runs where it is put."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
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
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=checkout, capture_output=True, check=True
    )
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, as `python -m build` does: what is missing there is missing here."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([*PIP, "wheel", *OFFLINE, "-w", str(folder), str(sdist)], check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_sdist_holds_the_package_and_what_builds_it(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        paths = [Path(member.name) for member in archive.getmembers() if member.isfile()]
    assert {path.parts[0] for path in paths} == {sdist.name.removesuffix(".tar.gz")}
    assert {path.parts[1] for path in paths} == {
        *PACKAGES, "__init__.py", "__main__.py", "cli.py", "py.typed", "pyproject.toml",
        "LICENSE", "MANIFEST.in", "README.md", "PKG-INFO", "setup.cfg", "unabridged.egg-info",
    }  # fmt: skip


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
    assert extras == {"model", "serve", "evals", "ray", "acp", "mcp", "dev"}
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


def test_what_is_built_and_its_description_are_in_order(sdist: Path, wheel: Path) -> None:
    for command in (["twine", "check", "--strict", str(sdist)], ["check_wheel_contents"]):
        done = subprocess.run(
            [sys.executable, "-m", *command, str(wheel)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


# --- installed as a user does ---------------------------------------------------------------------


def interpreter(version: str) -> str:
    """An interpreter of this version: on PATH (and no shim that leads nowhere), or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = (shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python{version}"))
    for python in filter(None, found):
        tried = subprocess.run([python, "-c", "import venv"], capture_output=True, check=False)
        if tried.returncode == 0:
            return str(python)
    pytest.skip(f"needs Python {version}")


@pytest.fixture(scope="module")
def installers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `pipx` and `uv`, from the index that pip is set up for."""
    folder = tmp_path_factory.mktemp("installers")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", "pipx", "uv"], check=True)
    return folder / "bin"


def installed(way: str, python: str, wheel: str, installers: Path, home: Path) -> Path:
    """Install the wheel in one of the ways; the environment that it is in."""
    tools = home / "tools"
    env = {
        **os.environ,
        "HOME": str(home),
        "PIPX_HOME": str(home / "pipx"),
        "PIPX_BIN_DIR": str(tools),
        "UV_TOOL_DIR": str(home / "uv"),
        "UV_TOOL_BIN_DIR": str(tools),
        "UV_PYTHON_DOWNLOADS": "never",
    }
    if way == "pip":
        subprocess.run([python, "-m", "venv", str(home / "venv")], check=True)
        command = [str(home / "venv/bin/python"), "-m", "pip", "-q", "install", wheel]
    elif way == "pipx":
        command = [str(installers / "pipx"), "install", "--python", python, wheel]
    else:
        command = [str(installers / "uv"), "tool", "install", "--python", python, wheel]
    subprocess.run(command, env=env, check=True)
    if way == "pip":
        return home / "venv"
    assert (tools / "unabridged").exists(), "the program is where the installer puts programs"
    return (tools / "unabridged").resolve().parents[1]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("way", "version", "extras"),
    [
        *((way, version, "") for way in ("pip", "pipx", "uv") for version in ("3.11", "3.12", "3.13")),
        ("pip", "3.11", "[acp,mcp]"),
    ],
)  # fmt: skip
def test_it_works_where_a_user_installs_it(
    wheel: Path, installers: Path, tmp_path: Path, way: str, version: str, extras: str
) -> None:
    """Into an empty environment, with what it depends on; nothing heavy comes along."""
    wanted = f"unabridged{extras} @ {wheel.as_uri()}" if extras else str(wheel)
    place = installed(way, interpreter(version), wanted, installers, tmp_path)
    (site,) = place.glob("lib/python*/site-packages")
    assert site.parent.name == f"python{version}"
    names = {path.name.partition("-")[0] for path in site.glob("*.dist-info")}
    assert not names & {"torch", "vllm", "numpy", "ray", "transformers"}

    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/a.txt").write_text("one\n")
    (tmp_path / "s.json").write_text(
        """{"turns": [
            {"calls": [{"name": "edit", "arguments": {"path": "a.txt", "old": "one", "new": "two"}}]},
            {"calls": [{"name": "finish", "arguments": {"status": "done", "summary": "ok"}}]}]}"""
    )
    run = ["run", "x", "--repo", "repo"]
    # No keyring of whoever runs the tests is asked for a key.
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
    }
    for words, code in (
        (["--version"], 0), (["doctor"], 1), (["config", "check"], 0), (["completion", "bash"], 0),
        (["policy", "explain", "--", "ls"], 0), (["acp"], 2), (["serve"], 2),
        (run, 2), ([*run, "--base-url", "local:"], 2),
        ([*run, "--script", "s.json"], 3), ([*run, "--script", "s.json", "--allow", "write:a.txt"], 0),
    ):  # fmt: skip
        done = subprocess.run(
            [str(place / "bin/unabridged"), *words], env=env, cwd=tmp_path, text=True,
            capture_output=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        if code == 2:
            assert done.stderr.count("\n") == 1, (words, done.stderr)
    assert (tmp_path / "repo/a.txt").read_text() == "two\n"
