"""The card of a plan and its scope."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.strip import Strip
from textual.widgets import Input, Static

from ...agent.effects import EffectKind
from ...agent.scope import Scope, joined
from ...agent.session import Pending
from ..paint import Painter
from ..text import safe
from .approval_card import ApprovalCard, Verdict
from .card import Card, close_field, listed
from .choices import Choice, Choices
from .lines import Lines


class PlanCard(Card):
    """A plan with its scope, which can be edited before it is approved."""

    FIELDS = (
        ("paths", "Files it may change, separated by commas"),
        ("kinds", "Effects on them"),
        ("commands", "Commands, separated by ;  (a last * takes any further words)"),
        ("not_touch", "Not to be touched"),
    )

    def __init__(self, pending: Pending, text: str, scope: Scope, place: str) -> None:
        super().__init__(f"A plan to approve{place}", tone="asks")
        self.pending = pending
        self._text = text
        self._scope = joined(scope, Scope())  # a model may name a file twice

    def compose(self) -> ComposeResult:
        """The plan, its scope, the choices, the form."""
        yield Lines(self._plan, widget_id="preview")
        yield Lines(self._scope_lines, widget_id="effects")
        with Vertical(id="form"):
            for name, label in self.FIELDS:
                yield Static(label, classes="label", markup=False)
                yield Input(value=self._shown(name), id=name, compact=True)
            yield Static("", id="wrong", markup=False)
        yield Choices(
            [
                Choice("once", "y", "Yes, this plan with this scope"),
                Choice("edit", "e", "Edit the scope first"),
                Choice("no", "n", "No, with a reason to the model"),
            ],
            widget_id="choices",
        )
        yield Input(placeholder="What should be otherwise? Enter sends, Esc goes back", id="reason")

    def on_mount(self) -> None:
        """The choices have the keys."""
        self.query_one("#form").display = self.query_one("#reason").display = False
        self.query_one(Choices).focus()
        self.caption("Within the scope nothing is asked; outside it, each step is")

    def _plan(self, painter: Painter, width: int) -> list[Strip]:
        return painter.markdown(self._text, width)

    def _scope_lines(self, painter: Painter, width: int) -> list[Strip]:
        p, lines = painter.palette, list[Strip]()
        for name, label in (("paths", "may change"), ("kinds", "by"), ("commands", "may run"),
                            ("not_touch", "leaves alone")):  # fmt: skip
            value = self._shown(name)
            if value:
                text = Text(f"{label:>12}  ", p.dim).append(safe(value), p.strong)
                lines += painter.strips(text.wrap(painter.console, max(width, 20)))
        return lines

    def _shown(self, name: str) -> str:
        match name:
            case "kinds":
                return ", ".join(kind.value for kind in self._scope.kinds)
            case "commands":
                return "; ".join(_command(words) for words in self._scope.commands)
            case _:
                return ", ".join(getattr(self._scope, name))

    def _edited(self) -> Scope:
        """The scope as the form has it. Raises ValueError."""
        value = {name: self.query_one(f"#{name}", Input).value for name, _ in self.FIELDS}
        return Scope(
            paths=listed(value["paths"]),
            kinds=tuple(EffectKind(kind) for kind in listed(value["kinds"])),
            commands=tuple(
                tuple(shlex.split(command)) for command in value["commands"].split(";")
                if command.strip()
            ),
            not_touch=listed(value["not_touch"]),
        )  # fmt: skip

    def on_key(self, event: events.Key) -> None:
        """Page keys: through the plan."""
        if event.key in ("pageup", "pagedown"):
            preview = self.query_one("#preview", Lines)
            (preview.scroll_page_up if event.key == "pageup" else preview.scroll_page_down)()
            event.stop()

    @on(Choices.Chosen)
    def _chosen(self, event: Choices.Chosen) -> None:
        event.stop()
        if event.name == "edit":
            self.query_one("#form").display = True
            self.query_one("#paths", Input).focus()
            self.caption("Tab next field · Enter takes it over · Esc goes back")
        elif event.name == "no":
            self.query_one("#reason").display = True
            self.query_one("#reason", Input).focus()
        else:
            verdict = Verdict("once", scope=self._scope)
            self.post_message(ApprovalCard.Said(self.pending.call_id, verdict))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if event.input.id == "reason":
            verdict = Verdict("no", event.value.strip())
            self.post_message(ApprovalCard.Said(self.pending.call_id, verdict))
            return
        try:
            self._scope = self._edited()
        except ValueError as error:
            self.query_one("#wrong", Static).update(Text(f"{error}"))
            return
        self.query_one("#effects", Lines).show(self._scope_lines)
        self.back()

    def back(self) -> bool:
        """Leave what is open; whether something was."""
        self.caption("Within the scope nothing is asked; outside it, each step is")
        return close_field(self, "#form") or close_field(self, "#reason")


def _command(words: Sequence[str]) -> str:
    """Words as a command line; a last `*` stays bare."""
    if words and words[-1] == "*":
        return f"{shlex.join(words[:-1])} *".strip()
    return shlex.join(words)
