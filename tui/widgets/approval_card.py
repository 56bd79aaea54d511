"""The card of a call that waits for the user's word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Input

from ...agent.effects import Effect, EffectKind
from ...agent.policy import Rule
from ...agent.remember import rules_for
from ...agent.scope import Scope
from ...agent.session import Pending
from .. import diffs
from ..paint import Painter
from ..text import safe
from .card import Card, close_field
from .choices import Choice, Choices
from .lines import Lines

_NEEDS_PATH = {EffectKind.WRITE, EffectKind.DELETE, EffectKind.READ, EffectKind.OUTSIDE_ROOT}

Say = Literal["once", "task", "always", "no"]


@dataclass(frozen=True)
class Verdict:
    """What the user says to a pending call."""

    say: Say
    reason: str = ""
    rules: tuple[Rule, ...] = ()
    scope: Scope | None = None
    """The edited scope of a plan."""


class ApprovalCard(Card):
    """A call that waits: its effects, what decided that it asks, the exact diff or command."""

    class Said(Message):
        """The user decided."""

        def __init__(self, call_id: str, verdict: Verdict) -> None:
            super().__init__()
            self.call_id = call_id
            self.verdict = verdict

    def __init__(
        self, pending: Pending, asked: Sequence[Effect], place: str, planned: bool
    ) -> None:
        super().__init__(f"{pending.tool} asks{place}", tone="asks")
        self.pending = pending
        self._asked = list(asked)
        self._planned = planned
        self._broad = False

    def compose(self) -> ComposeResult:
        """Effects, preview, choices, a line for the reason."""
        yield Lines(self._effects, widget_id="effects")
        if self.pending.preview:
            yield Lines(self._preview, widget_id="preview")
        yield Choices(self._choices(), widget_id="choices")
        yield Input(
            placeholder="Why not? The model is told. Enter sends, Esc goes back", id="reason"
        )

    def on_mount(self) -> None:
        """The choices have the keys."""
        self.query_one("#reason").display = False
        self.query_one(Choices).focus()
        self.caption("Esc stops the model")

    def on_resize(self) -> None:
        """Another size shows more of the preview, or less."""
        self.call_after_refresh(self._say_more)

    def _effects(self, painter: Painter, width: int) -> list[Strip]:
        p, lines = painter.palette, list[Strip]()
        for effect in self.pending.effects:
            asks = effect in self._asked
            text = Text("! " if asks else "· ", p.warn if asks else p.dim)
            what = " ".join(effect.command) or effect.path or effect.target or "something unknown"
            text.append(f"{effect.kind.value.replace('_', ' ')} ", p.warn if asks else p.dim)
            text.append(safe(what).replace("\n", " "), p.strong if asks else p.text)
            if effect.detail:
                text.append(f"  {safe(effect.detail)}", p.dim)
            lines += painter.strips(text.wrap(painter.console, max(width, 10)))
        why = Text(f"Why: {safe(self._why())}", p.dim)
        return [*lines, *painter.strips(why.wrap(painter.console, max(width, 10)))]

    def _why(self) -> str:
        """The reason, without the effect where that is the only one and stands above."""
        if len(self.pending.effects) != 1:
            return self.pending.reason
        return self.pending.reason.removeprefix(f"{self.pending.effects[0].describe()}: ")

    def _say_more(self) -> None:
        """How much of the preview is out of sight: what is agreed to must not be missed."""
        hidden = sum(
            view.virtual_size.height - view.size.height
            for view in self.query("#preview").results(Lines)
        )
        more = f"PgDn {hidden} more lines · " if hidden > 1 else ""
        self.caption(f"{more}Esc stops the model")

    def _preview(self, painter: Painter, width: int) -> list[Strip]:
        preview = self.pending.preview
        if preview.startswith("--- ") and "\n@@ " in preview:
            return painter.strips(diffs.lines(preview, width, painter.palette))
        mark = "$ " if self.pending.tool in ("shell", "git") else ""
        text = diffs.highlight(safe(preview), "x.sh", painter.palette) if mark else None
        text = text or Text(safe(preview), painter.palette.text)
        shown = Text(mark, painter.palette.accent).append_text(text)
        return painter.strips(shown.wrap(painter.console, max(width, 10), tab_size=4))

    def _choices(self) -> list[Choice]:
        narrow = rules_for(self._asked)
        rules = rules_for(self._asked, broad=self._broad) if narrow else None
        shown = "; ".join(rule.describe().rpartition(" [")[0] for rule in rules or ())
        wider = " (←→ wider)" if not self._broad else " (←→ narrower)"
        can_widen = narrow is not None and rules_for(self._asked, broad=True) != narrow
        always = Choice(
            "always", "a", "Always: add this rule to your settings",
            f"{safe(shown)}{wider if can_widen else ''}",
            "" if rules else "No rule can allow this: it is asked each time.",
        )  # fmt: skip
        fits = all(effect.path is not None or effect.command or effect.kind not in _NEEDS_PATH
                   for effect in self._asked) and narrow is not None  # fmt: skip
        task = "for this plan: widen its scope" if self._planned else "for this task"
        return [
            Choice("once", "y", "Yes, once"),
            Choice("task", "p", f"Yes, and the same {task}",
                   off="" if fits else "Its effects are not known well enough for that."),
            always,
            Choice("no", "n", "No, with a reason to the model"),
        ]  # fmt: skip

    def on_key(self, event: events.Key) -> None:
        """Left and right: how much `always` means. Page keys: through the preview."""
        if any(field.has_focus for field in self.query("#reason")):
            return
        if event.key in ("left", "right"):
            self._broad = event.key == "right"
            self.query_one(Choices).offer(self._choices())
            event.stop()
        elif event.key in ("pageup", "pagedown") and self.pending.preview:
            preview = self.query_one("#preview", Lines)
            (preview.scroll_page_up if event.key == "pageup" else preview.scroll_page_down)()
            event.stop()

    @on(Choices.Chosen)
    def _chosen(self, event: Choices.Chosen) -> None:
        event.stop()
        if event.name == "no":
            reason = self.query_one("#reason", Input)
            reason.display = True
            reason.focus()
            return
        rules = rules_for(self._asked, broad=self._broad) if event.name == "always" else None
        verdict = Verdict(event.name, rules=rules or ())  # pyright: ignore[reportArgumentType] - of the four
        self.post_message(self.Said(self.pending.call_id, verdict))

    @on(Input.Submitted, "#reason")
    def _no(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Said(self.pending.call_id, Verdict("no", event.value.strip())))

    def back(self) -> bool:
        """Leave the line for the reason; whether it was open."""
        return close_field(self, "#reason")
