"""Cards between the conversation and the prompt: what is loaded, what waits for the user's word."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Input, Static

from ...agent.context.load import Load
from ...agent.effects import Effect, EffectKind
from ...agent.events import Question
from ...agent.policy import Rule
from ...agent.remember import rules_for
from ...agent.scope import Scope
from ...agent.session import Pending
from .. import diffs
from ..paint import Painter
from ..text import count, money, safe
from .choices import GRACE, Choice, Choices
from .lines import Lines

Say = Literal["once", "task", "always", "no"]


@dataclass(frozen=True)
class Verdict:
    """What the user says to a pending call."""

    say: Say
    reason: str = ""
    rules: tuple[Rule, ...] = ()
    scope: Scope | None = None
    """The edited scope of a plan."""


class Card(Vertical):
    """A framed card with a title."""

    def __init__(self, title: str, *, tone: str = "") -> None:
        super().__init__(classes=f"card {tone}".strip())
        self.border_title = Text(title)  # pyright: ignore[reportAttributeAccessIssue] - any text

    def caption(self, text: str) -> None:
        """The words in the lower edge."""
        self.border_subtitle = Text(text)  # pyright: ignore[reportAttributeAccessIssue] - any text


# --- a call that asks -------------------------------------------------------------------------------


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
        why = Text(f"Asked because: {safe(self.pending.reason)}", p.dim)
        return [*lines, *painter.strips(why.wrap(painter.console, max(width, 10)))]

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
        return _close(self, "#reason")


_NEEDS_PATH = {EffectKind.WRITE, EffectKind.DELETE, EffectKind.READ, EffectKind.OUTSIDE_ROOT}


def _close(card: Card, selector: str) -> bool:
    for field in card.query(selector):
        if field.display:
            field.display = False
            card.query_one(Choices).focus()
            return True
    return False


# --- a plan -----------------------------------------------------------------------------------------


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
        self._scope = scope

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
            paths=_listed(value["paths"]),
            kinds=tuple(EffectKind(kind) for kind in _listed(value["kinds"])),
            commands=tuple(
                tuple(shlex.split(command)) for command in value["commands"].split(";")
                if command.strip()
            ),
            not_touch=_listed(value["not_touch"]),
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
        return _close(self, "#form") or _close(self, "#reason")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _command(words: Sequence[str]) -> str:
    """Words as a command line; a last `*` stays bare."""
    if words and words[-1] == "*":
        return f"{shlex.join(words[:-1])} *".strip()
    return shlex.join(words)


# --- a question -------------------------------------------------------------------------------------


class QuestionCard(Card):
    """A question of the model: its choices, or an answer in own words."""

    class Answered(Message):
        """The user's answer."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, question: Question) -> None:
        super().__init__("The model asks", tone="asks")
        self.question = question
        self._since = time.monotonic()

    def compose(self) -> ComposeResult:
        """The question, its choices, a line for other words."""
        yield Lines(self._words, widget_id="preview")
        if self.question.choices:
            choices = [
                Choice(str(i), str(i), safe(choice).replace("\n", " "))
                for i, choice in enumerate(self.question.choices, 1)
            ]
            other = Choice("other", "o", "Something else: in your own words")
            yield Choices([*choices, other], widget_id="choices")
        yield Input(placeholder="Your answer. Enter sends", id="answer")

    def on_mount(self) -> None:
        """The choices have the keys, or the line where there are none."""
        self._since = time.monotonic()
        if self.question.choices:
            self.query_one("#answer").display = False
            self.query_one(Choices).focus()
        else:
            self.query_one(Input).focus()
        self.caption("Esc stops the model")

    def _words(self, painter: Painter, width: int) -> list[Strip]:
        return painter.markdown(self.question.text, width)

    @on(Choices.Chosen)
    def _chosen(self, event: Choices.Chosen) -> None:
        event.stop()
        if event.name == "other":
            self.query_one("#answer").display = True
            self.query_one(Input).focus()
        else:
            self.post_message(self.Answered(self.question.choices[int(event.name) - 1]))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value.strip() and time.monotonic() - self._since >= GRACE:
            self.post_message(self.Answered(event.value.strip()))

    def back(self) -> bool:
        """Leave the line; whether it was open beside choices."""
        return bool(self.question.choices) and _close(self, "#answer")


# --- what is loaded ----------------------------------------------------------------------------------


class LoadCard(Card):
    """What is loaded of the repository, and what it costs; nothing was sent yet."""

    class Changed(Message):
        """The user wants something else to be loaded."""

        def __init__(self, include: str, exclude: str, outline: str) -> None:
            super().__init__()
            self.patterns = {
                "include": _listed(include), "exclude": _listed(exclude),
                "outline": _listed(outline),
            }  # fmt: skip

    FIELDS = (
        ("exclude", "Leave out (patterns as in .gitignore, separated by commas)"),
        ("outline", "As outlines only"),
        ("include", "Load although it is ignored, generated or vendored"),
    )

    def __init__(self, root: str, patterns: dict[str, list[str]]) -> None:
        super().__init__(f"Load plan · {root}")
        self._patterns = patterns
        self._words: list[tuple[str, str]] = [("Reading the repository …", "dim")]

    def compose(self) -> ComposeResult:
        """The plan and its form."""
        yield Lines(self._draw, widget_id="plan")
        with Vertical(id="form"):
            for name, label in self.FIELDS:
                yield Static(label, classes="label", markup=False)
                yield Input(value=", ".join(self._patterns.get(name, ())), id=name, compact=True)

    def on_mount(self) -> None:
        """The form is closed. The card may be gone again before its parts are there."""
        for form in self.query("#form"):
            form.display = False
        for plan in self.query("#plan"):
            plan.can_focus = False

    def _draw(self, painter: Painter, width: int) -> list[Strip]:
        p = painter.palette
        styles = {"dim": p.dim, "text": p.text, "strong": p.strong, "warn": p.warn, "bad": p.bad,
                  "good": p.good}  # fmt: skip
        lines: list[Strip] = []
        for words, tone in self._words:
            text = Text(safe(words), styles[tone])
            lines += painter.strips(text.wrap(painter.console, max(width, 20)))
        return lines

    def say(self, words: list[tuple[str, str]], caption: str) -> None:
        """Lines as (words, tone)."""
        self._words = words
        for lines in self.query(Lines):
            lines.show(self._draw)
        self.caption(caption)

    def edit(self) -> None:
        """Open the form."""
        self.query_one("#form").display = True
        self.query_one("#exclude", Input).focus()
        self.caption("Tab next field · Enter plans anew · Esc goes back")

    def back(self) -> bool:
        """Close the form; whether it was open."""
        for form in self.query("#form"):
            if form.display:
                form.display = False
                return True
        return False

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        value = {name: self.query_one(f"#{name}", Input).value for name, _ in self.FIELDS}
        self.back()
        self.post_message(self.Changed(**value))


def plan_words(
    loaded: Load, window: int, cold: float | None, warm: float | None
) -> list[tuple[str, str]]:
    """A load plan in a few lines."""
    share = loaded.tokens / window if window else 0.0
    exact = "" if loaded.exact else "about "
    filled = min(round(share * 30), 30)
    lines = [
        (f"{loaded.files:,} files whole · {exact}{loaded.tokens:,} tokens", "strong"),
        (f"{'█' * filled}{'░' * (30 - filled)} {share:.0%} of {count(window)}", "text"),
    ]
    if cold is None:
        lines.append(("The price of this model is not known.", "dim"))
    else:
        lines.append((f"First request {money(cold)}, or {money(warm)} where it is cached", "text"))
    stored, total = loaded.stored, len(loaded.segments)
    if stored:
        lines.append((f"{stored} of {total} segments as last time", "good"))
    else:
        lines.append((f"{total} segments, all new", "dim"))
    left = [
        f"{len(group):,} {what}"
        for group, what in ((loaded.outlined, "as outlines"), (loaded.skipped, "by name only"))
        if group
    ]
    if left:
        lines.append((f"{', '.join(left)}: see /context", "dim"))
    return lines
