"""The commands of the prompt: their names, arguments and one line each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """One command."""

    line: str
    arguments: str = ""
    running: bool = True
    """Whether it can be given while the model works."""


COMMANDS: dict[str, Command] = {
    "help": Command("commands and keys"),
    "undo": Command("put back what the last turn changed, or all from a step on", "[STEP]", False),
    "diff": Command("all changes of the session; revert a file"),
    "context": Command("what fills the window, token by token"),
    "cost": Command("what each request took"),
    "policy": Command("what may happen unasked; or what a command would do", "[COMMAND]"),
    "plan": Command("the plan and the scope in force"),
    "jobs": Command("commands that run in the background; stop one", "[stop JOB]"),
    "resume": Command("go on with another session", "[ID]", False),
    "fork": Command("go on in a copy of this session", "", False),
    "handover": Command("go on in a fresh session, with your words, plan and scope", "", False),
    "new": Command("start afresh in this repository", "", False),
    "model": Command("another model, or another endpoint", "[NAME] [URL]", False),
    "effort": Command("how much the model thinks", "[low|high|max]", False),
    "export": Command("write the session out, reasoning whole", "[FILE]"),
    "trust": Command("follow this repository's AGENTS.md and settings as they are now", "", False),
    "theme": Command("colours", "[NAME]"),
    "quit": Command("leave; the session is saved"),
}
