"""The pages keep their word: blocks marked `run` are run, links lead somewhere, files are usable."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from unabridged.cli import COMMANDS, build_parser

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```bash run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = {
    "a.py": "def f():\n    return 1\n",
    "b.py": "from a import f\n\nprint(f())\n",
    "README.md": "# Sample\n",
    "CHANGELOG.md": "# Changes\n",
}


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """The small repository that the pages' commands are run in."""
    root = tmp_path / "repo"
    root.mkdir()
    for name, text in FILES.items():
        (root / name).write_text(text)
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.com"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "start"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


def environment(home: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        "GIT_PAGER": "cat",
        "OMP_NUM_THREADS": "1",
        **{f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "CACHE")},
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, repo: Path, tmp_path: Path) -> None:
    blocks = BLOCK.findall(page.read_text())
    assert blocks, f"{page.name} needs a block marked `bash run`"
    # As a reader would type them: one shell for the page, in order; the first that fails ends it.
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", "\n".join(blocks)],
        cwd=repo, env=environment(tmp_path), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr


# --- links ---------------------------------------------------------------------------------------

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    for found in LINK.finditer(text):
        yield found[1] or found[2]


def anchors(page: Path) -> set[str]:
    """Anchors as they are made of headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", head.replace("`", "").lower()) for head in heads)
    return {word.replace(" ", "-") for word in words}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            assert link.startswith("https://"), link
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_the_checks_of_links_see_a_broken_one(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One Two\n[a](none.md) `[b](c)` [d](#one-two)\n```\n[e](f)\n```\n")
    assert list(links(page)) == ["none.md", "#one-two"]
    assert anchors(page) == {"one-two"}


# --- commands and files --------------------------------------------------------------------------


def test_every_command_is_on_some_page() -> None:
    text = "\n".join(page.read_text() for page in [*PAGES, ROOT / "README.md"])
    assert [name for name in COMMANDS if f"unabridged {name}" not in text] == []


def test_the_workflow_holds_together() -> None:
    workflow = yaml.safe_load((ROOT / "docs/ci/unabridged.yml").read_text())
    (job,) = workflow["jobs"].values()
    scripts = [step["run"] for step in job["steps"] if "run" in step]
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script.encode(), check=True)
        assert "${{" not in script, "an expression in a script is code of whoever wrote its value"
    (line,) = [
        line for script in scripts for line in script.splitlines() if line.startswith("unabridged run")
    ]  # fmt: skip
    words = shlex.split(line.partition(" > ")[0])[1:]
    args = build_parser("run").parse_args(words)
    assert (args.sandbox, args.output, args.max_cost) == ("required", "json", 5.0)
