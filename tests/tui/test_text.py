"""Text is data: whatever it holds, nothing of it acts on a terminal, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from unabridged.agent.events import AssistantMessage, ToolCall, ToolResult
from unabridged.agent.providers.base import CallDelta, ContentDelta, ReasoningDelta, Waiting
from unabridged.tools.diff import whole_diff
from unabridged.tools.text import UTF8
from unabridged.tui import diffs
from unabridged.tui.blocks import Block, Call, Transcript
from unabridged.tui.paint import Painter, chunks
from unabridged.tui.palette import palette_of
from unabridged.tui.text import count, duration, money, one_line, plain, safe
from unabridged.tui.themes import DARK, LIGHT, usual_theme

PALETTE = palette_of(DARK)
TUI = Path(__file__).resolve().parents[2] / "tui"
HOSTILE = "\x1b]0;title\x07\x1b[2J[red]x[/red]\x9b31m\u202e\x00\r\x08[link=x]"


@given(st.text())
def test_nothing_that_a_terminal_obeys_passes(text: str) -> None:
    for shown in (safe(text), plain(text)):
        assert all(c in "\n\u200d" or c.isprintable() for c in shown)


def test_escapes_are_spelled_out_and_colours_of_commands_are_dropped() -> None:
    assert safe("a\x1b[31mb\u202ec") == "a\\x1b[31mb\\u202ec"
    assert plain("\x1b[31mred\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x07\x07") == "red link\\x07"
    assert plain("10%\r50%\r100%\ndone\r\n") == "100%\ndone\n"


@given(st.text(), st.integers(1, 60))
def test_one_line_fits(text: str, width: int) -> None:
    line = one_line(text, width)
    assert "\n" not in line
    assert cell_len(line) <= max(width, 2)


def test_numbers_for_people() -> None:
    assert [count(n) for n in (7, 12_340, 1_048_576)] == ["7", "12.3k", "1.05M"]
    assert [duration(s) for s in (0.44, 12, 185, 7300)] == [
        "0.4 s",
        "12 s",
        "3 min 5 s",
        "2 h 1 min",
    ]
    assert [money(m) for m in (None, 0.0123, 1.5)] == ["no price", "$0.0123", "$1.50"]


def test_the_theme_follows_the_terminal() -> None:
    assert usual_theme(False, {"COLORFGBG": "0;15"}) == LIGHT.name
    assert usual_theme(False, {}) == DARK.name
    assert usual_theme(True, {}) == "ansi-dark"
    assert usual_theme(True, {"COLORFGBG": "0;15"}) == "ansi-light"


# --- drawing --------------------------------------------------------------------------------------


def drawn(block: Block, width: int = 60) -> list[str]:
    return [strip.text.rstrip() for strip in Painter(PALETTE).block(block, width)]


@given(st.sampled_from(["user", "harness", "reasoning", "answer", "note", "finish"]), st.text())
def test_blocks_fit_their_width_and_hold_no_control_characters(kind: str, text: str) -> None:
    block = Block(kind, text + HOSTILE, open=True)  # pyright: ignore[reportArgumentType]
    for strip in Painter(PALETTE).block(block, 40):
        assert strip.cell_length <= 40
        assert strip.text.isprintable() or "\u200d" in strip.text


def test_markup_is_shown_as_it_stands() -> None:
    assert "[red]x[/red]" in "\n".join(drawn(Block("reasoning", "[red]x[/red]", open=True)))
    call = Call(
        "shell", arguments={"command": "[b]ls"}, result="[i]out", state="failed", exit_code=1
    )
    assert "[b]ls" in (text := "\n".join(drawn(Block("call", call=call))))
    assert "[i]out" in text


def test_a_line_of_one_style_keeps_it() -> None:
    (strip,) = Painter(PALETTE).strips([Text("dim", PALETTE.dim)])
    assert [segment.style for segment in strip] == [PALETTE.dim]


def test_reasoning_is_whole_when_unfolded() -> None:
    words = [f"word{i}" for i in range(30_000)]
    block = Block("reasoning", " ".join(words), open=True)
    text = " ".join(line.removeprefix("│ ") for line in drawn(block))
    assert text.split()[-30_000:] == words
    block.open, block.version = False, 1
    assert drawn(block) == ["▸ Thought · 30,000 words"]


def test_wide_characters_keep_the_width() -> None:
    for strip in Painter(PALETTE).block(
        Block("answer", "漢字とかな交じり文。" * 20 + "🎉👩‍💻é"), 33
    ):
        assert strip.cell_length <= 33


@given(st.lists(st.sampled_from(["a", "", "- b", "  c", "```", "~~~", "1. d", "# e", "    f"])))
def test_markdown_grows_at_its_end_only(lines: list[str]) -> None:
    before: list[str] = []
    for end in range(len(lines) + 1):
        now = chunks("\n".join(lines[:end]))
        if len(before) > 1:
            assert now[: len(before) - 1] == before[:-1]
        before = now
    assert [x for c in before for x in c.split("\n") if x.strip()] == [
        x for x in lines if x.strip()
    ]


# --- diffs ----------------------------------------------------------------------------------------

OLD = b"def f(x):\n    return x\n\n\nclass A:\n    y = 1\n"
NEW = b"def g(x):\n    return x + 1\n\n\nclass A:\n    y = 1\n    z = '--- not a header'\n"
DIFF = whole_diff("a.py", OLD, NEW, UTF8, UTF8)


def test_a_diff_is_read_with_its_line_numbers() -> None:
    (file,) = diffs.parse(DIFF)
    rows = [row for hunk in file.hunks for row in hunk.rows]
    assert file.name == "a.py"
    assert [(r.kind, r.old, r.new) for r in rows if r.kind != " "][:4] == [
        ("-", 1, 0), ("-", 2, 0), ("+", 0, 1), ("+", 0, 2),
    ]  # fmt: skip
    assert rows[-1].text == "    z = '--- not a header'"


def test_removed_lines_that_look_like_headers_are_lines() -> None:
    diff = whole_diff("x.sql", b"-- one\n-- two\nkeep\n", b"keep\n", UTF8, UTF8)
    (file,) = diffs.parse(diff)
    assert [row.text for row in file.hunks[0].rows if row.kind == "-"] == ["-- one", "-- two"]


def test_unified_where_narrow_and_side_by_side_where_wide() -> None:
    narrow = [line.plain for line in diffs.lines(DIFF, 60, PALETTE)]
    assert any("- def f(x):" in line for line in narrow)
    assert not any("│" in line for line in narrow)
    wide = [line.plain for line in diffs.lines(DIFF, 140, PALETTE)]
    row = next(line for line in wide if "def f(x):" in line)
    assert "def g(x):" in row
    for lines in (narrow[1:], wide[1:]):
        assert all(cell_len(line) <= 140 for line in lines)


def test_code_has_colours_in_both_themes_and_none_without_a_lexer() -> None:
    for theme in (DARK, LIGHT):
        lines = diffs.lines(DIFF, 60, palette_of(theme))
        coloured = next(line for line in lines if "def g(x):" in line.plain)
        assert len({str(span.style) for span in coloured.spans}) > 2
    assert diffs.highlight("x", "no.such-kind", PALETTE) is None


# --- blocks ---------------------------------------------------------------------------------------


def test_what_streams_is_replaced_by_what_is_stored() -> None:
    t = Transcript()
    for item in (ReasoningDelta("Hm"), ReasoningDelta("m."), ContentDelta("Ye"),
                 CallDelta(0, "c1", "read", '{"path"')):  # fmt: skip
        t.add(item)
    assert [b.kind for b in t.blocks] == ["reasoning", "answer", "call"]
    assert t.blocks[2].call is not None
    assert t.blocks[2].call.state == "writing"
    call = {"id": "c1", "name": "read", "arguments": '{"path": "a"}'}
    t.add(AssistantMessage.model_validate(
        {"step": 1, "reasoning": "Hmm.", "content": "Yes", "calls": (call,)}
    ))  # fmt: skip
    t.add(ToolCall(call_id="c1", name="read", arguments={"path": "a"}))
    t.add(ToolResult(call_id="c1", text="text"))
    assert [b.text for b in t.blocks[:2]] == ["Hmm.", "Yes"]
    assert len(t.blocks) == 3
    assert t.blocks[2].call.state == "done"


def test_a_retry_voids_what_streamed() -> None:
    t = Transcript()
    t.add(ContentDelta("half"))
    t.add(Waiting(attempt=1, attempts=5, seconds=2, reason="the server is busy"))
    assert [b.kind for b in t.blocks] == ["note"]
    t.add(ContentDelta("whole"))
    assert t.blocks[-1].text == "whole"


# --- the house ------------------------------------------------------------------------------------


def test_no_universal_selector_and_no_markup() -> None:
    for sheet in TUI.rglob("*.tcss"):
        for line in sheet.read_text().splitlines():
            if line.rstrip().endswith("{"):
                assert "*" not in line, line
    for module in TUI.rglob("*.py"):
        source = module.read_text()
        assert "from_markup" not in source
        for piece in source.split("Static(")[1:]:
            head = piece[:160]
            assert "markup=False" in head or head.startswith(("Text(", "\n", '"", ')), head
