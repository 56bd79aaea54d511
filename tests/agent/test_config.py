"""Settings: order of layers, origin of each value, errors with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from unabridged.agent.config import Config, ConfigError, Flags, load_config, load_rules

FULL = """\
[model]
base_url = "http://127.0.0.1:8000/v1"
name = "mine"
effort = "high"
window = 65536

[money]
load_limit = 2.5
[money.prices."mine"]
input = 1.0
cached = 0.1
output = 2.0

[limits]
steps = 50

[[rule]]
decision = "allow"
effect = "write"
path = "src/**"
match = ["src/a.py"]

[[rule]]
decision = "deny"
command = ["git", "push", "*"]
not_match = ["git status"]
"""


def load(tmp_path: Path, user: str = "", project: str | None = None, *, env: dict[str, str] | None = None,
         flags: Flags | None = None) -> Config:  # fmt: skip
    mine = tmp_path / "config.toml"
    mine.write_bytes(user.encode())
    theirs = None
    if project is not None:
        theirs = tmp_path / "project.toml"
        theirs.write_bytes(project.encode())
    return load_config(flags or Flags(), user=mine, project=theirs, env=env or {})


def test_without_any_settings_the_defaults_count(tmp_path: Path) -> None:
    config = load_config(Flags(), user=tmp_path / "none.toml", env={})
    assert config.model == "kimi-k3"
    assert config.effort == "max"
    assert config.origin["model.name"] == "default"


def test_c71_flag_beats_environment_beats_user_beats_default(tmp_path: Path) -> None:
    env = {"UNABRIDGED_MODEL": "env", "UNABRIDGED_EFFORT": "low"}
    config = load(tmp_path, FULL, env=env, flags=Flags(model="flag", steps=7))
    assert (config.model, config.effort, config.window) == ("flag", "low", 65536)
    assert config.limits.steps == 7
    assert config.origin["model.name"] == "flag"
    assert config.origin["model.effort"] == "environment UNABRIDGED_EFFORT"
    assert config.origin["model.window"].endswith("config.toml")
    assert config.prices["mine"].cached == 0.1
    assert (tmp_path / "config.toml").read_bytes() == FULL.encode(), "nothing is written back"


def test_rules_carry_their_origin(tmp_path: Path) -> None:
    config = load(tmp_path, FULL, '[[rule]]\ndecision = "deny"\npath = "vendor/**"\n')
    assert [Path(rule.origin).name for rule in config.rules] == [
        "config.toml", "config.toml", "project.toml",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[model]\nname = 'x'\nefort = 'max'\n", 3, "unknown key `model.efort`, did you mean `effort`"),
        ("\n\n[modle]\nname = 'x'\n", 3, "unknown key `modle`, did you mean `model`"),
        ("[model]\neffort = 'medium'\n", 2, "`model.effort`"),
        ("[model]\nwindow = 'big'\n", 2, "`model.window`"),
        ("[limits]\nsteps = 0\n", 2, "`limits.steps`"),
        ("[model\nname = 1\n", 1, "fix it or move it away"),
        ("[[rule]]\ndecision='ask'\neffect='write'\n\n[[rule]]\ndecision = 'sure'\neffect = 'read'\n", 6,
         "`rule.decision`"),
        ("[[rule]]\ndecision='allow'\ncommand=['*']\n", 3, "name the program"),
        ("[[rule]]\ndecision='allow'\npath='a'\nmatch=['b']\n", 1, "does not match its own example"),
    ],
)  # fmt: skip
def test_a_broken_file_is_one_line_with_file_and_line(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    error = str(caught.value)
    assert message in error
    assert f"line {line}" in error
    assert str(tmp_path / "config.toml") in error
    assert "\n" not in error


def test_a_file_that_is_not_utf_8_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"[model]\nname = '\xff'\n")
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        load_config(Flags(), user=tmp_path / "c.toml", env={})


@pytest.mark.parametrize(
    "text", ["[model]\nbase_url = 'http://evil/v1'\n", "[money]\nload_limit = 9\n"]
)
def test_c32_a_project_can_never_set_the_endpoint_or_money(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"project\.toml, line 1: a project can never set"):
        load(tmp_path, "", text)


def test_a_project_only_narrows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a project can only narrow"):
        load(tmp_path, "", '[[rule]]\ndecision = "allow"\neffect = "write"\n')
    assert load(tmp_path, FULL, "[limits]\nsteps = 10\n").limits.steps == 10
    assert load(tmp_path, FULL, "[limits]\nsteps = 90\n").limits.steps == 50
    assert load(tmp_path, FULL, "[limits]\nsteps = 10\n", flags=Flags(steps=99)).limits.steps == 10


@pytest.mark.parametrize("url", ["kimi.com", "ftp://x/v1", "http://", ""])
def test_a_wrong_url_says_where_it_came_from(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"\(flag\) is no endpoint"):
        load(tmp_path, flags=Flags(base_url=url))


def test_an_effort_that_endpoints_would_ignore_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"environment UNABRIDGED_EFFORT.*low, high or max"):
        load(tmp_path, env={"UNABRIDGED_EFFORT": "medium"})


def test_rules_files(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_bytes(b'[[rule]]\ndecision = "allow"\neffect = "delete"\n')
    assert load_rules(path)[0].describe() == f"allow delete [{path}]"
    with pytest.raises(ConfigError, match="no such file of rules"):
        load_rules(tmp_path / "none.toml")
