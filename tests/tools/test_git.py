from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unabridged.agent.policy import Rule, decide
from unabridged.tools.base import Context, ToolError
from unabridged.tools.git import MOST_FILES, Git, GitArguments
from unabridged.tools.repository import Repository

Run = Callable[..., str]


@pytest.fixture(autouse=True)
def _author(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_bytes(b"[user]\n\tname = A U\n\temail = a@example.com\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


@pytest.fixture
def repo(bench: Any, git: Run) -> Any:
    """One commit of two files; afterwards one is changed and one is new."""
    bench.put("a.py", b"one\n")
    bench.put("src/b.py", b"two\n")
    git("add", ".")
    git("commit", "-qm", "First")
    bench.put("a.py", b"one\nmore\n")
    bench.put("new.txt", b"new\n")
    return bench


def parsed(arguments: dict[str, Any]) -> GitArguments:
    return GitArguments.model_validate_json(json.dumps(arguments))


async def call(bench: Any, **arguments: Any) -> str:
    """Run it as the harness does: held to the effects that were decided on."""
    tool, args = Git(), parsed(arguments)
    granted = tool.effects(args, bench.facts)
    result = await tool.run(args, Context(bench.facts, "call", bench.files, granted=granted))
    return result.text


async def refused(bench: Any, **arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        await call(bench, **arguments)
    return str(caught.value)


def verdict(bench: Any, *rules: Rule, **arguments: Any) -> str:
    args = parsed(arguments)
    return decide(Git().effects(args, bench.facts), rules).verdict


# --- looking --------------------------------------------------------------------------------------


async def test_status(repo: Any) -> None:
    assert await call(repo, action="status") == "## main\n M a.py\n?? new.txt"
    assert await call(repo, action="status", paths=["src"]) == (
        "## main\n(nothing differs from the last commit)"
    )


async def test_diff_of_the_work_tree_the_index_and_commits(repo: Any, git: Run) -> None:
    assert "+more" in await call(repo, action="diff")
    assert await call(repo, action="diff", staged=True) == "No difference."
    git("add", "a.py")
    assert await call(repo, action="diff") == "No difference."
    assert "+more" in await call(repo, action="diff", staged=True)
    assert "+more" in await call(repo, action="diff", revision="HEAD")
    git("commit", "-qm", "Second")
    between = await call(repo, action="diff", revision="HEAD~1..HEAD")
    assert between == await call(repo, action="diff", revision="HEAD~1...HEAD")
    assert between.startswith("diff --git a/a.py b/a.py")
    assert await call(repo, action="diff", revision="HEAD~1", paths=["src"]) == "No difference."
    counts = await call(repo, action="diff", revision="HEAD~1", summary=True)
    assert "a.py | 1 +" in counts
    assert "more" not in counts


async def test_log_says_when_there_is_more(repo: Any, git: Run) -> None:
    for number in range(5):
        git("commit", "-q", "--allow-empty", "-m", f"Number {number}")
    whole = (await call(repo, action="log")).split("\n")
    assert whole[-1].endswith("First")
    assert len(whole) == 6
    some = (await call(repo, action="log", count=2, skip=1)).split("\n")
    assert some[:2] == whole[1:3]
    assert some[2] == "[2 commits shown; there are older ones: skip=3]"
    assert len((await call(repo, action="log", paths=["src/b.py"])).split("\n")) == 1
    assert len((await call(repo, action="log", revision="HEAD~2..HEAD")).split("\n")) == 2
    assert "src/b.py | 1 +" in await call(repo, action="log", summary=True, skip=5)


async def test_show_a_commit_and_a_file_of_it(repo: Any, git: Run) -> None:
    shown = await call(repo, action="show")
    assert "    First" in shown
    assert "+two" in shown
    assert "b.py" in await call(repo, action="show", summary=True)
    assert "+two" not in await call(repo, action="show", paths=["a.py"])
    assert await call(repo, action="show", file="a.py") == "one"
    git("commit", "-q", "--allow-empty", "-m", "Nothing in it")
    assert (await call(repo, action="show")).endswith("Nothing in it")


async def test_a_merge_is_shown_with_what_it_changed_itself(repo: Any, git: Run) -> None:
    git("commit", "-qam", "Ours")
    git("checkout", "-q", "-b", "side", "HEAD~1")
    repo.put("a.py", b"one\nside\n")
    git("commit", "-qam", "Side")
    git("checkout", "-q", "main")
    with pytest.raises(subprocess.CalledProcessError):
        git("merge", "-q", "side")
    assert "conflict" in await refused(repo, action="commit", paths=["."], message="x")
    repo.put("a.py", b"one\nboth\n")
    git("commit", "-qam", "Merge")
    assert "++both" in await call(repo, action="show")


async def test_a_folder_below_the_top_sees_only_itself(repo: Any) -> None:
    repo.root = repo.root / "src"
    repo.put("b.py", b"two\nthree\n")
    assert await call(repo, action="status") == "## main\n M b.py"
    assert "+++ b/b.py" in await call(repo, action="diff")
    assert "a.py" not in await call(repo, action="show")
    assert await call(repo, action="show", file="b.py") == "two"
    assert verdict(repo, action="diff") == "allow"
    assert ("read", "b.py") in repo.effects(Git(), action="diff")


async def test_long_output_is_cut_for_the_model_and_whole_on_disk(repo: Any) -> None:
    repo.put("a.py", b"".join(b"line %d\n" % n for n in range(20_000)))
    text = await call(repo, action="diff")
    assert len(text) < 40_000
    assert "bytes cut here; the whole output is in" in text
    (kept,) = repo.files.iterdir()
    assert kept.read_bytes().count(b"\n+line") == 20_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "show", "revision": "nope"}, "'nope' names no commit"),
        ({"action": "show", "revision": "--output=x"}, "names no commit"),
        ({"action": "log", "revision": "HEAD~99"}, "names no commit"),
        ({"action": "show", "file": "gone.py"}, "gone.py"),
        ({"action": "commit", "paths": ["src"], "message": "x"}, "Nothing to commit in src"),
        ({"action": "diff", "paths": ["../x"]}, "outside the repository root"),
        ({"action": "diff", "paths": [""]}, "is not a path"),
    ],
)
async def test_errors_say_what_to_do(repo: Any, arguments: dict[str, Any], words: str) -> None:
    assert words in await refused(repo, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"action": "commit", "message": "x"},
        {"action": "commit", "paths": ["a"], "message": "  "},
        {"action": "status", "revision": "HEAD"},
        {"action": "diff", "count": 3},
        {"action": "log", "message": "x"},
        {"action": "push"},
    ],
)
def test_arguments_that_do_not_go_together(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"needs|takes no|Input should be"):
        parsed(arguments)


async def test_no_commit_yet(bench: Any, git: Run) -> None:
    assert "No commits yet" in await call(bench, action="status")
    assert "no commit yet" in await refused(bench, action="log")


async def test_without_a_repository_or_without_git(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "not in a git repository" in await refused(bench, action="status")
    monkeypatch.setenv("PATH", str(bench.files))
    assert "git is not installed" in await refused(bench, action="status")


async def test_a_git_inside_the_repository_is_not_taken(
    repo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = repo.put("git", b"#!/bin/sh\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{repo.root}:{os.environ['PATH']}")
    assert "git is not installed" in await refused(repo, action="status")


async def test_a_command_that_is_stopped_ends(repo: Any) -> None:
    os.mkfifo(repo.root / "pipe")  # git waits for somebody to write into it
    repository, stop = Repository.around(repo.root), threading.Event()
    stop.set()
    began = time.monotonic()
    done = repository.run(("hash-object", "pipe"), len, stop=stop.is_set)
    assert done.code != 0
    assert time.monotonic() - began < 2


async def test_cancelled_in_the_middle(repo: Any) -> None:
    os.mkfifo(repo.root / "pipe")
    args = parsed({"action": "status"})
    task = asyncio.create_task(Git().run(args, Context(repo.facts, "c", repo.files)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 2)


# --- what it is decided on ------------------------------------------------------------------------


def test_reads_pass_and_a_commit_asks(repo: Any) -> None:
    for action in ("status", "diff", "log", "show"):
        assert verdict(repo, action=action) == "allow", action
    commit = {"action": "commit", "paths": ["."], "message": "Add"}
    assert verdict(repo, **commit) == "ask"
    allow = Rule(decision="allow", effect="write", path=".git")  # type: ignore[arg-type]  # by its value
    assert verdict(repo, allow, **commit) == "allow"


@pytest.mark.parametrize(
    "arguments",
    [
        {"action": "diff"},
        {"action": "diff", "revision": "HEAD~1"},
        {"action": "diff", "revision": "HEAD~1..HEAD"},
        {"action": "show", "revision": "HEAD"},
        {"action": "show", "file": "private/key.txt"},
        {"action": "show", "paths": ["private"]},
        {"action": "commit", "paths": ["."], "message": "x"},
    ],
)
async def test_no_path_slips_past_a_rule(repo: Any, git: Run, arguments: dict[str, Any]) -> None:
    repo.put("private/key.txt", b"KEY\n")
    git("add", ".")
    git("commit", "-qm", "With a key")
    repo.put("private/key.txt", b"KEY2\n")
    deny = Rule(decision="deny", path="private/")
    assert verdict(repo, deny, **arguments) == "deny"
    rest = {"action": "diff", "revision": "HEAD~1", "paths": ["a.py"]}
    assert verdict(repo, deny, **rest) == "allow"
    names = {**arguments, "summary": True}
    if "file" not in arguments and arguments["action"] != "commit":
        assert verdict(repo, Rule(decision="deny", path="other/"), **names) == "allow"


async def test_only_what_was_decided_on_is_shown(repo: Any) -> None:
    tool, args = Git(), GitArguments(action="diff")
    granted = tool.effects(args, repo.facts)
    repo.put("src/b.py", b"changed meanwhile\n")
    result = await tool.run(args, Context(repo.facts, "call", repo.files, granted=granted))
    assert "+more" in result.text
    assert "meanwhile" not in result.text


def test_secrets_ask(repo: Any, git: Run) -> None:
    repo.put(".env", b"TOKEN=1\n")
    assert verdict(repo, action="commit", paths=[".env"], message="x") == "ask"
    assert ("secret", ".env") in repo.effects(
        Git(), action="commit", paths=["."], message="Everything"
    )
    git("add", ".env")
    git("commit", "-qm", "Oh")
    assert verdict(repo, action="show") == "ask"
    assert verdict(repo, action="show", file=".env") == "ask"
    assert verdict(repo, action="show", summary=True) == "allow"


def test_a_rule_about_the_command_holds(repo: Any) -> None:
    deny = Rule(decision="deny", command=("git", "commit", "*"))
    assert verdict(repo, deny, action="commit", paths=["a.py"], message="x") == "deny"
    assert verdict(repo, deny, action="diff") == "allow"


def test_an_object_that_is_no_commit_cannot_be_shown(repo: Any, git: Run) -> None:
    blob = git("rev-parse", "HEAD:src/b.py").strip()
    with pytest.raises(ToolError, match="names no commit"):
        repo.effects(Git(), action="show", revision=blob)


def test_names_are_taken_as_they_are(repo: Any, git: Run) -> None:
    for odd in (":(top)a.py", "*.py", "new\nline", "-x", "ü"):
        repo.put(odd, b"x\n")
        assert ("read", odd) in repo.effects(Git(), action="commit", paths=[odd], message="m")


def test_too_many_files_are_refused(repo: Any) -> None:
    for number in range(MOST_FILES + 1):
        repo.put(f"many/{number}", b"")
    with pytest.raises(ToolError, match="Narrow it down"):
        repo.effects(Git(), action="commit", paths=["many"], message="x")


def test_data_from_elsewhere_ask(repo: Any, git: Run, tmp_path: Path) -> None:
    linked = tmp_path.resolve() / "linked"
    git("worktree", "add", "-q", str(linked))
    repo.root = linked
    assert verdict(repo, action="log") == "allow"
    for trick in ("file", "link", "common"):
        root = tmp_path.resolve() / trick
        root.mkdir()
        target = tmp_path.resolve() / "repo/.git"
        if trick == "file":
            (root / ".git").write_bytes(f"gitdir: {target}\n".encode())
        elif trick == "link":
            (root / ".git").symlink_to(target)
        else:
            (root / ".git").mkdir()
            (root / ".git/HEAD").write_bytes(b"ref: refs/heads/main\n")
            (root / ".git/commondir").write_bytes(f"{target}\n".encode())
        repo.root = root
        assert verdict(repo, action="log") == "ask", trick


# --- commit ---------------------------------------------------------------------------------------


async def test_a_commit_holds_exactly_the_named_files(repo: Any, git: Run) -> None:
    repo.put("src/b.py", b"staged\n")
    git("add", "src/b.py")
    repo.put("src/b.py", b"staged and more\n")
    said = await call(repo, action="commit", paths=["a.py", "new.txt"], message="Add\n\n# why")
    assert said.startswith("Committed ")
    assert "2 files changed" in said
    assert git("show", "--name-only", "--format=%B", "HEAD").split() == [
        "Add", "#", "why", "a.py", "new.txt",
    ]  # fmt: skip
    assert git("diff", "--cached", "--name-only") == "src/b.py\n"
    assert (repo.root / "src/b.py").read_bytes() == b"staged and more\n"


async def test_deleted_files_are_committed(repo: Any, git: Run) -> None:
    (repo.root / "a.py").unlink()
    git("rm", "-q", "src/b.py")
    await call(repo, action="commit", paths=["a.py", "src/b.py"], message="Remove")
    assert git("ls-tree", "-r", "--name-only", "HEAD") == ""
    assert git("status", "--short") == "?? new.txt\n"


async def test_a_failed_commit_leaves_the_index_as_it_was(repo: Any, git: Run) -> None:
    (Path.home() / ".gitconfig").unlink()
    git("config", "user.useConfigOnly", "true")
    before = git("status", "--short")
    assert "tell me who you are" in await refused(repo, action="commit", paths=["."], message="x")
    assert git("status", "--short") == before
    (Path.home() / ".gitconfig").write_bytes(b"[user]\n\tname = A\n\temail = a@example.com\n")
    (repo.root / ".git/refs/heads/main.lock").touch()
    assert "Nothing was committed" in await refused(repo, action="commit", paths=["."], message="x")
    assert git("status", "--short") == before


def test_the_preview_says_what_is_committed(repo: Any) -> None:
    assert repo.preview(Git(), action="commit", paths=["."], message="Add") == (
        "Add\n\n M a.py\n?? new.txt"
    )


def test_an_approval_is_bound_to_the_content(repo: Any) -> None:
    args = GitArguments(action="commit", paths=("new.txt",), message="x")
    before = Git().effects(args, repo.facts)
    repo.put("new.txt", b"something else\n")
    assert Git().effects(args, repo.facts) != before


# --- hostile repositories -------------------------------------------------------------------------


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A program that leaves a mark, and behaves like a filter."""
    program = tmp_path / "program"
    program.write_bytes(f'#!/bin/sh\necho "$0 $*" >> {tmp_path}/mark\ncat\n'.encode())
    program.chmod(0o755)
    return program


ALL: list[dict[str, Any]] = [
    {"action": "status"},
    {"action": "diff"},
    {"action": "diff", "staged": True},
    {"action": "diff", "revision": "HEAD~1", "summary": True},
    {"action": "diff", "revision": "HEAD~1..HEAD"},
    {"action": "log"},
    {"action": "log", "summary": True},
    {"action": "show"},
    {"action": "show", "file": "a.py"},
    {"action": "commit", "paths": ["a.py", "new.txt"], "message": "Add"},
    {"action": "commit", "paths": ["src"], "message": "Again"},
]

HOOKS = ("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "post-index-change",
         "reference-transaction", "post-rewrite", "pre-auto-gc", "fsmonitor-watchman")  # fmt: skip

# Setting -> value; `{}` is the program, `{folder}` a folder full of it.
SETTINGS: dict[str, dict[str, str]] = {
    "monitor": {"core.fsmonitor": "{}"},
    "hooks elsewhere": {"core.hooksPath": "{folder}"},
    "hooks by setting": {"hook.x.event": "pre-commit", "hook.x.command": "{}"},
    "external diff": {"diff.external": "{}"},
    "diff driver": {"diff.evil.command": "{}"},
    "textconv": {"diff.evil.textconv": "{}"},
    "filter": {"filter.evil.clean": "{}", "filter.evil.smudge": "{}",
               "filter.evil.required": "true"},
    "filter process": {"filter.evil.process": "{}", "filter.evil.required": "true"},
    "filter with an odd name": {"filter.e.v=i.clean": "{}"},
    "aliases": {f"alias.{n}": "!{}" for n in ("status", "diff", "log", "show", "commit", "config")},
    "pagers": {"core.pager": "{}", **{f"pager.{n}": "{}" for n in ("status", "log", "diff", "show")}},
    "editors": {"core.editor": "{}", "sequence.editor": "{}", "commit.verbose": "true"},
    "signing": {"gpg.program": "{}", "gpg.ssh.program": "{}", "commit.gpgSign": "true",
                "log.showSignature": "true", "user.signingKey": "x", "format.pretty": "%G?"},
    "prompts": {"core.askPass": "{}", "credential.helper": "!{}", "core.sshCommand": "{}"},
    "upkeep": {"gc.auto": "1", "maintenance.auto": "true", "gc.recentObjectsHook": "{}"},
    "elsewhere": {"core.worktree": "{folder}"},
}  # fmt: skip


@pytest.mark.parametrize("kind", SETTINGS)
async def test_nothing_the_settings_name_runs(
    repo: Any, git: Run, trap: Path, tmp_path: Path, kind: str
) -> None:
    git("commit", "-q", "--allow-empty", "-m", "Second")
    for hook in HOOKS:
        shutil.copy(trap, tmp_path / hook)
    repo.put(".gitattributes", b"* filter=evil diff=evil\nsrc/** filter=e.v=i\n")
    for key, value in SETTINGS[kind].items():
        git("config", key, value.replace("{folder}", str(tmp_path)).replace("{}", str(trap)))
    await run_everything(repo, tmp_path)


async def run_everything(repo: Any, tmp_path: Path) -> None:
    """Every action, with files that git must look into; none may start anything."""
    for arguments in ALL:
        if arguments["action"] == "commit":
            repo.put("src/b.py", os.urandom(8))
        for name in ("a.py", "src/b.py"):
            os.utime(repo.root / name, (1, 1))
        text = await call(repo, **arguments)
        mark = tmp_path / "mark"
        assert not mark.exists(), (arguments, mark.read_bytes())
        if arguments["action"] == "commit":
            assert text.startswith("Committed ")


def test_the_traps_would_go_off(repo: Any, git: Run, trap: Path, tmp_path: Path) -> None:
    """The same settings run with plain git, so that the tests above mean something."""
    repo.put(".gitattributes", b"* filter=evil diff=evil\n")
    for key in ("core.fsmonitor", "filter.evil.clean", "diff.evil.textconv"):
        git("config", key, str(trap))
        os.utime(repo.root / "a.py", (1, 1))
        subprocess.run(["git", "diff"], cwd=repo.root, capture_output=True, check=False)
        assert (tmp_path / "mark").exists(), key
        (tmp_path / "mark").unlink()
        git("config", "--unset", key)
        (tmp_path / "mark").unlink(missing_ok=True)


async def test_hooks_do_not_run_and_that_is_said(
    repo: Any, git: Run, trap: Path, tmp_path: Path
) -> None:
    git("commit", "-q", "--allow-empty", "-m", "Second")
    for hook in HOOKS:
        shutil.copy(trap, repo.root / ".git/hooks" / hook)
    git("config", "commit.gpgSign", "true")
    await run_everything(repo, tmp_path)
    repo.put("a.py", b"again\n")
    said = await call(repo, action="commit", paths=["a.py"], message="x")
    assert "not run: pre-commit, prepare-commit-msg, commit-msg, post-commit]" in said
    assert "not signed" in said


async def test_settings_from_another_file_are_found(
    repo: Any, git: Run, trap: Path, tmp_path: Path
) -> None:
    git("commit", "-q", "--allow-empty", "-m", "Second")
    repo.put(".gitattributes", b"* filter=evil\n")
    repo.put("settings", f'[filter "evil"]\n\tclean = {trap}\n\trequired\n'.encode())
    git("config", "include.path", "../settings")
    await run_everything(repo, tmp_path)


async def test_a_submodule_of_its_own_mind(repo: Any, git: Run, trap: Path, tmp_path: Path) -> None:
    """Git looks into submodules by running itself there, without what it was told here."""
    other = tmp_path / "other"
    other.mkdir()
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *words], cwd=other, check=True)
    git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "mod")
    git("config", "submodule.mod.ignore", "none")
    git("commit", "-qm", "Second")
    git("config", "diff.submodule", "diff")
    git("config", "status.submoduleSummary", "true")
    git("config", "submodule.recurse", "true")
    module = repo.root / "mod"
    for key in ("core.fsmonitor", "diff.external"):
        subprocess.run(["git", "config", key, str(trap)], cwd=module, check=True)
    (module / "x").write_bytes(b"x\n")
    (tmp_path / "mark").unlink(missing_ok=True)
    await run_everything(repo, tmp_path)


async def test_a_partial_clone_fetches_nothing(
    repo: Any, git: Run, trap: Path, tmp_path: Path
) -> None:
    git("commit", "-q", "--allow-empty", "-m", "Second")
    blob = git("rev-parse", "HEAD:src/b.py").strip()
    (repo.root / ".git/objects" / blob[:2] / blob[2:]).unlink()
    for key, value in {
        "remote.o.url": f"ext::{trap}", "remote.o.promisor": "true", "protocol.ext.allow": "always",
        "extensions.partialClone": "o", "core.repositoryFormatVersion": "1",
        "remote.o.uploadpack": str(trap), "core.alternateRefsCommand": str(trap),
    }.items():  # fmt: skip
        git("config", key, value)
    (tmp_path / "mark").unlink(missing_ok=True)
    assert await refused(repo, action="show", file="src/b.py")
    assert not (tmp_path / "mark").exists()


async def test_a_work_tree_elsewhere_is_not_followed(repo: Any, git: Run, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.py").write_bytes(b"not yours\n")
    git("config", "core.worktree", str(elsewhere))
    assert "not yours" not in await call(repo, action="diff")
    assert "+more" in await call(repo, action="diff")


async def test_variables_of_the_caller_do_not_lead_elsewhere(
    repo: Any, trap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    for name in ("GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_EDITOR", "GIT_ASKPASS"):
        monkeypatch.setenv(name, str(trap))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'core.fsmonitor={trap}'")
    assert "+more" in await call(repo, action="diff")
    assert not (tmp_path / "mark").exists()
