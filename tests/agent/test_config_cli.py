"""`unabridged config`, `auth`, `completion`: what they print, and what they leave of a file."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import keyring
import keyring.backend
import keyring.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyring.backends.fail import Keyring as NoKeyring

from unabridged.agent import config_schema
from unabridged.agent.config import UserFile
from unabridged.agent.config_edit import checked_key, dotted, known_keys, set_value
from unabridged.cli import main

COMMENTED = b"""\
# mine
[model]   # where
name = "kimi-k3"  # the large one
effort = 'max'

[[rule]]
decision = "allow"   # always
command = ["pytest", "*"]
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's settings file of a home of this test's own."""
    for name in ("UNABRIDGED_API_KEY", "MOONSHOT_API_KEY", "UNABRIDGED_BASE_URL",
                 "UNABRIDGED_MODEL", "UNABRIDGED_EFFORT"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    from unabridged.agent.config import user_file

    user_file().parent.mkdir(parents=True)
    return user_file()


@pytest.fixture
def run(file: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    def command(*words: str) -> Done:
        try:
            code = main(words)
        except SystemExit as error:
            code = int(error.code or 0)
        out, err = capsys.readouterr()
        assert err.count("\n") <= 1, "an error is one line"
        return Done(code, out, err)

    return command


Run = Callable[..., Done]


def test_list_says_where_each_setting_comes_from(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_bytes(COMMENTED + b'[money.prices."a.b"]\ninput = 1\ncached = 0.5\noutput = 2\n')
    monkeypatch.setenv("UNABRIDGED_EFFORT", "low")
    lines = run("config", "list", "--origin").out.splitlines()
    assert 'model.effort = "low"  [environment UNABRIDGED_EFFORT]' in lines
    assert f'model.name = "kimi-k3"  [{file}]' in lines
    assert "money.load_limit = 1.0  [default]" in lines
    assert f'money.prices."a.b".cached = 0.5  [{file}]' in lines
    assert f'rule = "allow command pytest *"  [{file}]' in lines
    rows = json.loads(run("config", "list", "--json").out)
    assert {
        "key": "model.effort",
        "value": "low",
        "origin": "environment UNABRIDGED_EFFORT",
    } in rows


def test_a_trusted_project_that_narrows_is_the_origin(run: Run, file: Path) -> None:
    file.write_bytes(b"[limits]\nsteps = 50\ncost = 2\n")
    theirs = Path.cwd() / ".unabridged/config.toml"
    theirs.parent.mkdir()
    theirs.write_bytes(b"[limits]\nsteps = 10\ncost = 9\n")
    assert f"limits.steps = 50  [{file}]" in run("config", "list", "--origin").out
    assert "not followed: see `unabridged trust`" in run("config", "check").out
    run("trust")
    listed = run("config", "list", "--origin").out
    assert f"limits.steps = 10  [{theirs}]" in listed
    assert f"limits.cost = 2.0  [{file}]" in listed


def test_set_keeps_every_other_byte(run: Run, file: Path) -> None:
    file.write_bytes(COMMENTED)
    file.chmod(0o600)
    assert run("config", "set", "model.effort", "low").out == f'model.effort = "low" in {file}\n'
    assert file.read_bytes() == COMMENTED.replace(b"'max'", b'"low"')
    run("config", "set", "limits.steps", "40")
    kept = file.read_bytes()
    assert kept.startswith(COMMENTED.replace(b"'max'", b'"low"').rstrip())
    assert tomllib.loads(kept.decode())["limits"] == {"steps": 40}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list(file.parent.glob("*.new"))


def test_only_what_was_set_is_in_the_file(run: Run, file: Path) -> None:
    run("config", "set", "model.window", "65536")
    assert tomllib.loads(file.read_text()) == {"model": {"window": 65536}}
    run("config", "set", 'money.prices."a.b"', "{input = 1, cached = 0.5, output = 2}")
    run("config", "set", 'money.prices."a.b".input', "3")
    assert tomllib.loads(file.read_text())["money"]["prices"]["a.b"]["input"] == 3
    assert run("config", "unset", "model.window").code == 0
    assert "window" not in file.read_text()
    assert run("config", "unset", "model.window").code == 1


def test_words_that_look_like_numbers_are_taken_as_the_setting_needs(run: Run, file: Path) -> None:
    run("config", "set", "model.name", "123")
    run("config", "set", "limits.minutes", "2.5")
    assert tomllib.loads(file.read_text()) == {"model": {"name": "123"}, "limits": {"minutes": 2.5}}
    assert run("config", "get", "model.name").out == "123\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "model.efort", "max"), "no setting `model.efort`; did you mean `model.effort`?"),
        (("set", "modle.name", "x"), "did you mean `model.name`?"),
        (("set", "limits", "3"), "no setting `limits`; did you mean `limits.steps` or"),
        (("set", "model.name.x", "3"), "no setting `model.name.x`"),
        (("set", "rule.path", "3"), "rules are tables of their own"),
        (("set", "model..name", "3"), "is no key"),
        (("set", "limits.steps", "many"), "not changed: `limits.steps`: input should be a valid"),
        (("set", "limits.steps", "0"), "not changed: `limits.steps`"),
        (("set", "model.effort", "medium"), "not changed: `model.effort`"),
        (("set", "model.base_url", "kimi.com"), "is no endpoint"),
        (("get", "model.efort"), "did you mean `model.effort`?"),
    ],
)
def test_a_wrong_key_or_value_is_one_line_and_changes_nothing(
    run: Run, file: Path, words: tuple[str, ...], said: str
) -> None:
    file.write_bytes(COMMENTED)
    done = run("config", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert file.read_bytes() == COMMENTED
    assert list(file.parent.iterdir()) == [file]


def test_set_says_what_overrides_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNABRIDGED_MODEL", "theirs")
    assert "here environment UNABRIDGED_MODEL overrides it: theirs." in run(
        "config", "set", "model.name", "mine"
    ).err  # fmt: skip


def test_settings_of_a_newer_version_are_one_line(run: Run, file: Path) -> None:
    file.write_bytes(b"# x\nversion = 2\n[future]\nnew = 1\n")
    done = run("config", "check")
    assert done.code == 2
    assert f"{file}, line 2: these settings are of a newer Unabridged" in done.err
    assert run("config", "set", "model.name", "x").code == 2
    assert b"future" in file.read_bytes()
    file.write_bytes(b"version = 1\n")
    assert run("config", "check").code == 0


def test_get_path_check(run: Run, file: Path) -> None:
    assert run("config", "path").out == f"{file}\n"
    assert run("config", "get", "model.effort").out == "max\n"
    assert run("config", "get", "limits.steps").code == 1
    assert "not there; defaults count" in run("config", "check").out
    file.write_bytes(b"[[rule]]\ndecision='allow'\npath='a'\nmatch=['b']\n")
    assert "does not match its own example" in run("config", "check").err


def test_the_shipped_schema_is_what_reads_the_settings(run: Run) -> None:
    assert config_schema.shipped() == config_schema.generate(), (
        "run `python -m unabridged.agent.config_schema`"
    )
    assert json.loads(run("config", "schema").out)["additionalProperties"] is False
    assert set(json.loads(config_schema.shipped())["properties"]) == set(UserFile.model_fields)


def test_every_known_key_can_be_named() -> None:
    for pattern in known_keys():
        names = tuple("my.model" if name == "*" else name for name in pattern)
        assert checked_key(dotted(names)) == names


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_any_text_set_as_a_name_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("set") / "config.toml"
    value = set_value(path, "model.name", json.dumps(text, ensure_ascii=False))
    assert value == text
    assert tomllib.loads(path.read_bytes().decode()) == {"model": {"name": text}}


# --- keys ----------------------------------------------------------------------------------------


class Locked(keyring.backend.KeyringBackend):
    """A keyring that nobody unlocks."""

    # Below 0 it is never chosen: every backend class there is stands to be.
    priority = -1.0  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride] # a class property there

    def get_password(self, service: str, username: str) -> str | None:
        raise keyring.errors.KeyringLocked(username)

    def set_password(self, service: str, username: str, password: str) -> None:
        raise keyring.errors.KeyringLocked(username)

    def delete_password(self, service: str, username: str) -> None:
        raise keyring.errors.KeyringLocked(username)


@pytest.fixture
def ring(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[keyring.backend.KeyringBackend], None]]:
    before = keyring.get_keyring()
    keyring.set_keyring(NoKeyring())
    monkeypatch.setattr(sys, "stdin", io.StringIO("sk-a-key-of-some-length\n"))
    yield keyring.set_keyring
    keyring.set_keyring(before)


def test_a_key_is_kept_named_and_forgotten_and_never_shown(
    run: Run, file: Path, ring: object
) -> None:
    assert run("auth", "status").code == 1
    done = run("auth", "login")
    assert done.code == 0
    kept = file.with_name("credentials.json")
    assert "https://api.moonshot.ai/v1 gets the key from" in done.out
    assert str(kept) in done.out
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "sk-a" not in done.out + run("auth", "status").out
    assert "no longer in" in run("auth", "logout").out
    assert run("auth", "status").code == 1
    assert "No key was kept" in run("auth", "logout").out


def test_logout_says_that_the_environment_still_gives_one(
    run: Run, ring: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNABRIDGED_API_KEY", "sk-env")
    assert "UNABRIDGED_API_KEY still gives one" in run("auth", "logout").err


def test_without_a_key_nothing_is_kept(
    run: Run, ring: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    done = run("auth", "login")
    assert (done.code, done.err) == (2, "unabridged: no key was given; nothing is kept.\n")
    assert run("auth", "status", "--base-url", "nonsense").code == 2
    assert run("auth", "status", "--base-url", "http://127.0.0.1:1/v1").code == 0
    assert run("auth", "status", "--base-url", "local:").code == 0


def test_a_locked_keyring_is_one_line(
    run: Run, ring: Callable[[keyring.backend.KeyringBackend], None]
) -> None:
    ring(Locked())
    for words in ("status", "login", "logout"):
        done = run("auth", words)
        assert done.code == 2
        assert "keyring failed (KeyringLocked): unlock it, or set UNABRIDGED_API_KEY." in done.err


# --- completion ----------------------------------------------------------------------------------


def completed(line: str, env: dict[str, str]) -> set[str]:
    """What a shell would offer for a line: argcomplete's protocol, on descriptor 8."""
    script = 'exec 8>"$1"; shift; "$@" 2>/dev/null'
    out = Path(env["HOME"]) / "offered"
    subprocess.run(
        ["bash", "-c", script, "bash", str(out), sys.executable, "-m", "unabridged"],
        env={**env, "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line,
             "COMP_POINT": str(len(line)), "_ARGCOMPLETE_SHELL": "bash"},
        check=False, timeout=60,
    )  # fmt: skip
    return {word.strip() for word in out.read_text().splitlines()}


def test_the_shell_completes_commands_options_and_sessions(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    sessions = tmp_path / "unabridged/sessions"
    sessions.mkdir(parents=True)
    (sessions / "20260101-000000-abcdef.jsonl").touch()
    assert {"config", "completion", "context"} <= completed("unabridged co", env)
    assert completed("unabridged run --eff", env) == {"--effort"}
    assert completed("unabridged run --effort ", env) >= {"low", "high", "max"}
    assert {"list", "get", "set"} <= completed("unabridged config ", env)
    assert "20260101-000000-abcdef" in completed("unabridged sessions show 2026", env)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run: Run, shell: str) -> None:
    script = run("completion", shell).out
    assert "_ARGCOMPLETE" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script.encode(), check=True)
