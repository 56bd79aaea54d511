"""What the user agreed to for this task: paths, kinds of effect, things not to touch."""

from pydantic import BaseModel, ConfigDict

from .effects import EffectKind


class Scope(BaseModel):
    """The part of the world that an approved plan may touch.

    `paths` and `not_touch` are git-ignore style patterns relative to the root. `commands` are
    word lists as in rules: a trailing `"*"` takes the rest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    paths: tuple[str, ...] = ()
    kinds: tuple[EffectKind, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    not_touch: tuple[str, ...] = ()


def joined(scope: Scope | None, more: Scope) -> Scope:
    """What either allows; what either says not to touch stays untouched."""
    if scope is None:
        return more
    both = {
        name: tuple(dict.fromkeys((*getattr(scope, name), *getattr(more, name))))
        for name in Scope.model_fields
    }
    return Scope(**both)
