"""What a terminal is owed: the mouse, wide characters, few colours, long sessions, jobs in view."""

from __future__ import annotations

from typing import Any

import pytest
from textual import events
from textual.geometry import Offset
from textual.widget import Widget

from unabridged.agent.providers.scripted import ScriptedCall, Turn
from unabridged.tui.blocks import Block
from unabridged.tui.paint import Painter
from unabridged.tui.screens.page import Page
from unabridged.tui.widgets.approval_card import ApprovalCard
from unabridged.tui.widgets.choices import Choices

SHELL = "sleep 54321"
WIDE = "漢字とかな 🎉 é"


def turn(*calls: ScriptedCall, **fields: Any) -> Turn:
    return Turn(calls=calls, **fields)


def row_of(desk: Any, text: str) -> int:
    """The row of the screen that holds a text."""
    return next(y for y, line in enumerate(desk.screen.split("\n")) if text in line)


def text_above(desk: Any) -> list[str]:
    """The lines of the conversation on the screen, without its scroll bar."""
    lines = desk.screen.split("\n")[: desk.app.conversation.size.height]
    return [line[:78].rstrip() for line in lines]


async def wheel(desk: Any, kind: type[events.MouseEvent], times: int = 1) -> None:
    for _ in range(times):
        await desk.pilot._post_mouse_events([kind], desk.app.conversation, offset=(5, 5))


# --- mouse ----------------------------------------------------------------------------------------


async def test_a_click_unfolds_a_thought_and_a_click_folds_it(open_tui: Any) -> None:
    async with open_tui([turn(reasoning="Deep thought.", content="Hello.")]) as desk:
        await desk.say("Hi")
        await desk.idle()
        await desk.sees("▸ Thought")
        assert "Deep thought." not in desk.screen
        await desk.pilot.click(offset=(6, row_of(desk, "▸ Thought")))
        await desk.sees("▾ Thought", "│ Deep thought.")
        await desk.pilot.click(offset=(6, row_of(desk, "▾ Thought")))
        await desk.sees("▸ Thought")
        await desk.until(lambda: "Deep thought." not in desk.screen, "the fold")


async def test_a_click_on_a_card_marks_a_choice_and_makes_none(open_tui: Any) -> None:
    command = ScriptedCall(name="shell", arguments={"command": "touch a"})
    async with open_tui([turn(command)]) as desk:
        await desk.say("Go")
        card = await desk.card(ApprovalCard)
        await desk.pilot.click(offset=(10, row_of(desk, "No, with a reason")))
        choices = card.query_one(Choices)
        await desk.until(lambda: choices.choices[choices.at].name == "no", "the mark")
        await desk.sees("❯ n No, with a reason")
        assert desk.app.card is card
        assert desk.app.session.pending


async def test_the_wheel_takes_the_view_from_the_stream_and_gives_it_back(open_tui: Any) -> None:
    long = turn(content="\n\n".join(f"paragraph {i}" for i in range(60)))
    more = turn(
        content="\n\n".join(f"later {i}" for i in range(80)), wire={"delay": 0.03, "chunk": 8}
    )
    async with open_tui([long, more], size=(80, 24)) as desk:
        await desk.say("one")
        await desk.idle()
        await desk.say("two")
        await desk.sees("later 3")
        await wheel(desk, events.MouseScrollUp, 6)
        conversation = desk.app.conversation
        await desk.until(lambda: not conversation.following, "the hold")
        await desk.pilot.pause(0.4)  # what Textual scrolls smoothly has come to rest
        place, seen = conversation.scroll_offset.y, len(desk.app.transcript.blocks[-1].text)
        shown = text_above(desk)
        await desk.idle()
        assert len(desk.app.transcript.blocks[-1].text) > seen  # more came meanwhile
        assert conversation.scroll_offset.y == place
        assert text_above(desk) == shown
        for _ in range(100):
            if conversation.following:
                break
            await wheel(desk, events.MouseScrollDown, 5)
        await desk.sees("later 79")
        assert conversation.following


# --- wide characters ------------------------------------------------------------------------------


async def test_wide_characters_in_the_prompt_and_the_caret_after_them(open_tui: Any) -> None:
    async with open_tui([turn(content=f"{WIDE} " * 30)], size=(80, 24)) as desk:
        await desk.started()
        for character in "漢字":
            desk.app.prompt.post_message(events.Key(character, character))
        await desk.until(lambda: desk.app.prompt.text == "漢字")
        await desk.pilot.pause()
        prompt = desk.app.prompt
        # Where the terminal's own cursor stands, an input method opens its window.
        assert prompt.cursor_screen_offset == prompt.content_region.offset + Offset(4, 0)
        assert desk.app.cursor_position == prompt.cursor_screen_offset
        prompt.post_message(events.Paste(" 🎉 é"))
        await desk.until(lambda: prompt.text == "漢字 🎉 é")
        await desk.pilot.pause()
        assert prompt.cursor_screen_offset.x == prompt.content_region.x + 9
        await desk.pilot.press("left", "left", "left", "backspace")
        assert prompt.text == "漢字🎉 é"
        prompt.put(WIDE)
        await desk.pilot.press("enter")
        await desk.idle()
        await desk.sees(f"❯ {WIDE}")
        widths = [strip.cell_length for strip in desk.app.screen._compositor.render_strips()]
        assert set(widths) == {80}


async def test_wide_characters_are_completed_searched_and_copied(open_tui: Any, shop: Any) -> None:
    (shop / "漢字.py").write_text("x = 1\n")
    async with open_tui([turn(content=f"See {WIDE}.")]) as desk:
        await desk.started()
        for character in "@漢":
            desk.app.prompt.post_message(events.Key(character, character))
        await desk.sees("@漢字.py")
        await desk.pilot.press("tab")
        await desk.until(lambda: desk.app.prompt.text == "@漢字.py ")
        await desk.pilot.press("enter")
        await desk.idle()
        await desk.pilot.press("shift+tab", "up", "down", "y")
        await desk.until(lambda: desk.app.clipboard == f"See {WIDE}.", "the copy")


# --- colours --------------------------------------------------------------------------------------


def colours(desk: Any) -> set[str]:
    """All colours on the screen."""
    styles = (segment.style for strip in desk.app.screen._compositor.render_strips()
              for segment in strip if segment.style)  # fmt: skip
    return {c.name for style in styles for c in (style.color, style.bgcolor) if c is not None}


async def test_sixteen_colours_are_the_terminals_own(open_tui: Any) -> None:
    edit = ScriptedCall(name="edit", arguments={"path": "shop/price.py", "old": "def total(net)",
                                                "new": "def gross(net)"})  # fmt: skip
    answer = "`code`\n\n```python\ndef f(): return 1\n```"
    async with open_tui([turn(edit, content=answer, reasoning="Hm.")], theme="ansi-dark") as desk:
        await desk.say("Go")
        await desk.card(ApprovalCard)
        await desk.sees("+ def gross(net):")
        used = colours(desk)
        assert "color(2)" in used  # green, of the diff
        assert [name for name in used if name.startswith("#")] == []


# --- long sessions --------------------------------------------------------------------------------


async def test_5000_messages_scroll_and_only_what_is_seen_is_drawn(
    open_tui: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    draw = Painter._draw

    def counted(self: Painter, block: Block, width: int) -> Any:
        drawn.append(block.number)
        return draw(self, block, width)

    async with open_tui(size=(100, 32)) as desk:
        await desk.started()
        conversation, transcript = desk.app.conversation, desk.app.transcript
        monkeypatch.setattr(Painter, "_draw", counted)
        first = len(transcript.blocks)
        for number in range(2500):
            transcript.append(Block("user", f"question {number}"))
            transcript.append(Block("answer", f"answer {number}\n\n- one\n- two"))
        conversation.show(transcript)
        await desk.sees("answer 2499")
        assert len(drawn) < 200
        conversation.focus()
        await desk.pilot.press("home")
        await desk.sees("question 0", "answer 0")
        for _ in range(20):
            desk.app.action_page(1)
            await desk.pilot.pause()
        top = conversation._at(conversation.scroll_offset.y)[0]
        assert first + 60 < top < first + 600
        shown = desk.screen
        number = (top - first + 2) // 2
        assert f"question {number}" in shown
        assert f"answer {number}" in shown
        await desk.pilot.press("end")
        await desk.sees("answer 2499")
        assert len(set(drawn)) < 600
        assert sum(1 for _ in desk.app.screen.walk_children(Widget)) < 60


# --- jobs -----------------------------------------------------------------------------------------


async def test_jobs_are_listed_counted_and_stopped(open_tui: Any) -> None:
    start = ScriptedCall(name="shell", arguments={"command": SHELL, "background": True})
    async with open_tui([turn(start), turn(content="It runs.")]) as desk:
        await desk.say("Go")
        await desk.idle()
        await desk.sees("It runs.", "1 job")
        await desk.say("/jobs")
        await desk.until(lambda: isinstance(desk.app.screen, Page))
        await desk.sees("runs", SHELL, "/jobs stop JOB")
        await desk.pilot.press("escape")
        (job,) = desk.app.session.processes.jobs
        await desk.say("/jobs stop nothing")
        await desk.until(
            lambda: "No job 'nothing'" in str([n.message for n in desk.app._notifications])
        )
        await desk.say(f"/jobs stop {job}")
        await desk.until(lambda: not desk.app.session.processes.live_jobs(), "the end of the job")
        await desk.until(lambda: "1 job" not in desk.screen, "the footer")
        await desk.say("/jobs")
        await desk.until(lambda: isinstance(desk.app.screen, Page))
        await desk.sees("ended", SHELL)
        assert "/jobs stop JOB" not in desk.screen
