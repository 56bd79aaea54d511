"""`unabridged policy explain|test`: what a command would do, what decides it, and whether rules hold."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .config import ConfigError, Flags, load_config
from .guarded import guarded
from .policy import Decided, Rule, decide, decide_effect


def add_parser(commands: Any, name: str, line: str) -> None:
    """Define the command."""
    policy: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=line[0].upper() + line[1:] + "."
    )
    inner = policy.add_subparsers(dest="policy_command", required=True, metavar="COMMAND")
    explain = inner.add_parser(
        "explain",
        help="what a shell command would do, and what decides it",
        description="Print the effects of a shell command, the rule that decides each, and the "
        "decision. Without COMMAND, commands are read from standard input, one JSON string a line.",
    )
    explain.add_argument("words", nargs="*", metavar="COMMAND", help="one shell string, after --")
    explain.add_argument("--repo", type=Path, metavar="PATH", help="the repository (default: here)")
    explain.add_argument("--allow", action="append", default=[], metavar="RULE", help="as in run")
    explain.add_argument("--json", action="store_true", help="print one JSON document a command")
    explain.set_defaults(run=guarded(explain_command, ConfigError))
    test = inner.add_parser(
        "test",
        help="run the examples of your rules",
        description="Check every stored rule against its own match and not_match examples.",
    )
    test.add_argument("--repo", type=Path, metavar="PATH", help="the repository (default: here)")
    test.set_defaults(run=guarded(test_command, ConfigError))


def explain_command(args: argparse.Namespace) -> int:
    """Exit 0 whenever it could decide."""
    from .run_cli import allow_rules, find_repo

    root = find_repo(args.repo)
    rules = (*_rules(root), *allow_rules(args.allow))
    for command in _commands(args.words):
        explained = explain(command, root, rules)
        if args.json:
            print(json.dumps(explained), flush=True)
        else:
            print(_text(explained))
    return 0


def test_command(args: argparse.Namespace) -> int:
    """Loading the rules runs their examples; a rule that fails is an error with file and line."""
    from .run_cli import find_repo

    rules = _rules(find_repo(args.repo))
    examples = sum(len(rule.match) + len(rule.not_match) for rule in rules)
    for rule in rules:
        print(f"ok  {rule.describe()}  ({len(rule.match) + len(rule.not_match)} examples)")
    print(f"{len(rules)} rules, {examples} examples, all hold.")
    return 0


def _rules(root: Path) -> tuple[Rule, ...]:
    from .trust import examine

    return load_config(Flags(), project=examine(root).settings).rules


def _commands(words: Sequence[str]) -> Iterable[str]:
    if words:
        yield words[0] if len(words) == 1 else shlex.join(words)
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            command = json.loads(line)
        except ValueError:
            command = None
        if not isinstance(command, str):
            raise ConfigError(f"standard input, line {number}: one JSON string a line is expected.")
        yield command


def explain(command: str, root: Path, rules: Sequence[Rule]) -> dict[str, Any]:
    """The decision on a command and how it comes about, as a JSON object."""
    from ..tools.bash.classify import classify

    effects = classify(command, root=root)
    decided = decide(effects, rules)
    each = [decide_effect(effect, rules, None) for effect in effects]
    return {
        "command": command,
        "decision": decided.verdict,
        "reason": decided.reason,
        "effects": [
            {
                **effect.model_dump(mode="json", exclude_defaults=True),
                "decision": one.verdict,
                "rule": _rule_of(one),
            }
            for effect, one in zip(effects, each, strict=True)
        ],
        "rules": list(dict.fromkeys(_rule_of(one) for one in each)),
    }


def _rule_of(decided: Decided) -> str:
    return decided.rule or f"built-in: {decided.reason.rpartition(': ')[2]}"


def _text(explained: dict[str, Any]) -> str:
    from .headless import printable

    lines = [f"{explained['decision']}: {explained['reason']}"]
    for effect in explained["effects"]:
        what = " ".join(effect.get("command", ())) or effect.get("path") or effect.get("target")
        detail = f" ({effect['detail']})" if effect.get("detail") else ""
        lines.append(
            f"  {effect['decision']:5} {effect['kind']} {what or ''}{detail}  [{effect['rule']}]"
        )
    return printable("\n".join(lines))
