"""The house keeps its shape: packages, import arrows, what a bare start imports."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = {".venv", "build", "tests", "benchmarks", "examples", "docs", ".git"}


def sources() -> Iterator[tuple[str, Path]]:
    """Every module of the package with its dotted name inside it."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if SKIPPED.isdisjoint(parts) and not parts[0].startswith("."):
            name = ".".join(parts).removesuffix(".py").removesuffix(".__init__")
            yield ("" if name == "__init__" else name), path


def test_package_list_matches_the_folders() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(("unabridged", *path.parent.relative_to(ROOT).parts))
        for _, path in sources()
        if path.name == "__init__.py"
    }
    assert set(listed) == found
    assert listed == sorted(listed)


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for _, path in sources()}
    assert [f for f in folders if not (f / "__init__.py").is_file()] == []


# --- arrows ------------------------------------------------------------------------------------

TYPES = {"agent.events", "agent.effects", "agent.scope"}


def imports_of(name: str, path: Path) -> Iterator[tuple[str, bool]]:
    """Modules of ours that a module imports, and whether lazily (inside a function)."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    package = [part for part in package if part]
    tree = ast.parse(path.read_bytes())
    lazy_nodes = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    typing_nodes = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_nodes:
            continue
        lazy = id(node) in lazy_nodes
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - (node.level - 1)]
                target = ".".join([*base, *([node.module] if node.module else [])])
            elif node.module and node.module.split(".")[0] == "unabridged":
                target = node.module.removeprefix("unabridged").lstrip(".")
            else:
                continue
            for alias in node.names:
                deeper = f"{target}.{alias.name}".strip(".")
                yield (deeper if is_module(deeper) else target), lazy
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "unabridged":
                    yield alias.name.removeprefix("unabridged").lstrip("."), lazy


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def under(name: str, *folders: str) -> bool:
    return any(name == folder or name.startswith(folder + ".") for folder in folders)


def allowed(source: str, target: str, lazy: bool) -> bool:
    """Whether the arrow source -> target may exist."""
    if target == "" or source in ("", "cli", "__main__"):
        # The root holds only the version; the command line may import anything, lazily.
        return source != "cli" or lazy or target == ""
    if source in TYPES:
        return target in TYPES
    if under(source, "agent.context"):
        return under(target, "agent.context", "model.chat") or target in TYPES
    if under(source, "tools"):
        return under(target, "tools", "agent.context") or target in TYPES
    if under(source, "model"):
        if under(target, "model"):
            return True
        if source == "model.train.renaming":  # which words are made up
            return target == "evals.tasks.names"
        return source == "model.train.data" and under(target, "agent", "tools", "evals.tasks")
    if under(source, "evals.tasks"):
        return under(target, "evals.tasks") or target == "agent.events"
    if under(source, "tui", "evals"):
        own = source.split(".")[0]
        return under(target, own, "agent", "tools") or (under(target, "model") and lazy)
    if under(source, "agent"):
        if source == "agent.providers.embedded" and under(target, "model"):
            return lazy or under(target, "model.chat")
        if source in ("agent.profile", "agent.connect") and target == "model.nano.profile":
            return True
        return under(target, "agent", "tools", "model.chat")
    return False


@pytest.mark.parametrize(("name", "path"), list(sources()), ids=lambda value: str(value)[-40:])
def test_import_arrows(name: str, path: Path) -> None:
    wrong = [
        f"{name or 'unabridged'} -> {target}{' (lazy)' if lazy else ''}"
        for target, lazy in imports_of(name, path)
        if not allowed(name, target, lazy)
    ]
    assert wrong == []


def test_the_arrow_checker_sees_a_wrong_arrow(tmp_path: Path) -> None:
    module = tmp_path / "read.py"
    module.write_text("from ..agent.loop import Loop\n\ndef f():\n    from ..model import k3\n")
    found = dict(imports_of("tools.read", module))
    assert found == {"agent.loop": False, "model.k3": True}
    assert not allowed("tools.read", "agent.loop", False)
    assert not allowed("tools.read", "model.k3", True)
    assert allowed("tools.read", "agent.effects", False)


# --- a bare start ------------------------------------------------------------------------------

HEAVY = {"torch", "vllm", "textual", "git", "httpx", "ray", "numpy", "tiktoken", "pydantic"}


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_a_bare_start_imports_nothing_heavy(argument: str) -> None:
    code = (
        "import sys; from unabridged.cli import main\n"
        f"try:\n    main([{argument!r}])\n"
        "except SystemExit:\n    pass\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "unabridged" in done.stdout


def test_the_session_and_its_provider_never_import_torch() -> None:
    code = (
        "import sys, unabridged; unabridged.Session\n"
        "import unabridged.agent.headless, unabridged.agent.providers.kimi\n"
        "print(sorted({'torch', 'vllm', 'textual', 'git', 'ray', 'keyring'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
