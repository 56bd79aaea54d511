"""What an action does to the world: the vocabulary of the policy.

A tool call is turned into a list of effects before anything happens. Each effect is decided on
its own, and the strictest decision wins, so a call passes only when *every* effect passes.
"""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class EffectKind(StrEnum):
    """The kinds of effect a rule can name."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    EXECUTE = "execute"
    NETWORK = "network"
    OUTSIDE_ROOT = "outside_root"
    SECRET = "secret"  # noqa: S105 - a kind of effect, not a password
    GIT_DESTRUCTIVE = "git_destructive"
    SPAWN = "spawn"


class Effect(BaseModel):
    """One thing an action would do.

    A command contributes one `execute` effect for each simple command in it (wrappers such as
    `env` or `sudo` give one for the wrapper and one for what they run), plus effects for what the
    commands, redirections and assignments do to files and the network.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: EffectKind
    path: str | None = None
    """Real path: relative to the root with `/` when inside it, absolute when outside. None where
    the effect has no path, or where the path cannot be known (then `outside_root` with None is
    there too)."""
    below: bool = False
    """The path is a folder, and the effect is on all that lies in it."""
    command: tuple[str, ...] = ()
    """The words of the simple command, for `execute`; empty when the words cannot be known."""
    understood: bool = False
    """For `execute`: everything the command does is spelled out by the other effects, so that
    running it adds no doubt of its own."""
    target: str | None = None
    """Host or URL, for `network`."""
    before: str | None = None
    """SHA-256 of the file's bytes when the effect was computed; binds an approval to them."""
    detail: str = ""
    """Why this effect is here, in words for a person."""

    def describe(self) -> str:
        """One line for a person."""
        path = f"{self.path} and all below" if self.below else self.path
        what = " ".join(self.command) or path or self.target or "something unknown"
        line = f"{self.kind.value} {what}"
        return f"{line} ({self.detail})" if self.detail else line
