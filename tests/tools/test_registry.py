from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import unabridged
from unabridged.tools.registry import declarations, default_tools

ROOT = Path(unabridged.__file__).parent
SNAPSHOTS = Path(__file__).with_name("snapshots")
UPDATE = "UPDATE_SNAPSHOTS"


@pytest.mark.parametrize("tool", default_tools(), ids=lambda tool: tool.name)
def test_what_the_model_sees_is_frozen(tool: object) -> None:
    (declared,) = declarations([tool])  # type: ignore[list-item]  # parametrize forgets the type
    text = json.dumps(declared, indent=2, ensure_ascii=False) + "\n"
    file = SNAPSHOTS / f"{declared['function']['name']}.json"
    if os.environ.get(UPDATE):
        SNAPSHOTS.mkdir(exist_ok=True)
        file.write_bytes(text.encode())
    assert file.read_bytes().decode() == text, f"set {UPDATE}=1 if this change is meant"


def test_no_snapshot_is_left_over() -> None:
    assert {file.stem for file in SNAPSHOTS.iterdir()} == {tool.name for tool in default_tools()}


def test_k30_few_tools_with_plain_names_in_a_fixed_order() -> None:
    names = [tool.name for tool in default_tools()]
    assert names[:6] == ["read", "list", "search", "edit", "write", "shell"]
    assert names[-3:] == ["ask_user", "propose_plan", "finish"]
    assert len(names) == len(set(names)) <= 12
    assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_-]{2,63}", name) for name in names)


def test_schemas_are_plain() -> None:
    allowed = {
        "type", "properties", "required", "additionalProperties", "items", "enum", "description",
        "default", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    }  # fmt: skip

    def check(schema: dict[str, object], where: str) -> None:
        assert set(schema) <= allowed, where
        properties = schema.get("properties", {})
        assert isinstance(properties, dict)
        for name, inner in properties.items():
            assert "description" in inner, f"{where}.{name} does not say what it is"
            check(inner, f"{where}.{name}")
        if isinstance(schema.get("items"), dict):
            check(schema["items"], f"{where}[]")  # type: ignore[arg-type]  # checked above

    for tool in default_tools():
        check(tool.schema(), tool.name)


def test_declarations_are_the_same_bytes_each_time() -> None:
    assert json.dumps(declarations(default_tools())) == json.dumps(declarations(default_tools()))


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, unabridged.tools.registry as r; r.declarations(r.default_tools());"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "vllm", "textual", "ray", "git", "httpx", "numpy", "charset_normalizer"}
    assert heavy.isdisjoint(done.stdout.split())


# --- C14: files of users are bytes -------------------------------------------------------------


def text_io(source: str) -> list[int]:
    """Lines that open a file as text: `read_text`, `write_text`, `open` without `b`."""
    found: list[int] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in ("read_text", "write_text"):
            found.append(node.lineno)
        if name not in ("open", "fdopen") or _is_os_open(function):
            continue
        position = 1 if isinstance(function, ast.Name) or name == "fdopen" else 0
        modes = [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
        modes += node.args[position : position + 1]
        of_path = isinstance(function, ast.Attribute) and name == "open"
        if of_path and modes and not all(isinstance(mode, ast.Constant) for mode in modes):
            continue  # an `open` of another kind, as of a store by its folder
        if not any(isinstance(m, ast.Constant) and "b" in str(m.value) for m in modes):
            found.append(node.lineno)
    return found


def _is_os_open(function: ast.expr) -> bool:
    """`os.open` deals in descriptors and knows no text mode."""
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "open"
        and isinstance(function.value, ast.Name)
        and function.value.id == "os"
    )


@pytest.mark.parametrize(
    "bad",
    ["p.read_text()", "p.write_text('x')", "open('f')", "open('f', 'w')", "p.open()", "p.open('r')",
     "os.fdopen(3)", "open('f', mode='a')"],
)  # fmt: skip
def test_c14_the_lint_sees_text_mode(bad: str) -> None:
    assert text_io(bad) == [1]


@pytest.mark.parametrize(
    "good",
    ["p.read_bytes()", "open('f', 'rb')", "p.open('ab')", "os.open('f', 0)", "os.fdopen(3, 'wb')",
     "open('f', mode='xb')", "Store.open(folder, name)"],
)  # fmt: skip
def test_c14_the_lint_lets_bytes_pass(good: str) -> None:
    assert text_io(good) == []


def test_c14_no_text_mode_io_where_users_files_are_touched() -> None:
    files = [*(ROOT / "tools").rglob("*.py"), *(ROOT / "agent").rglob("*.py")]
    assert len(files) > 20
    found = {
        f"{file.relative_to(ROOT)}:{line}" for file in files for line in text_io(file.read_text())
    }
    assert not found, "open files as bytes: text mode changes line endings and encodings"
