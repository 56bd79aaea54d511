"""The card of a question that the model asks."""

from __future__ import annotations

import time

from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Input

from ...agent.events import Question
from ..paint import Painter
from ..text import safe
from .card import Card, close_field
from .choices import GRACE, Choice, Choices
from .lines import Lines


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
        return bool(self.question.choices) and close_field(self, "#answer")
