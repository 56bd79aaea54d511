"""Blocks as lines of cells. What is drawn once is kept, as far as it is near."""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme as RichTheme
from textual.strip import Strip

from . import diffs
from .blocks import Block, Call
from .palette import Palette
from .text import duration, one_line, plain, safe, several

KEPT = 600
"""Drawn blocks, and drawn paragraphs, that are kept."""
LIVE_LINES = 6
"""Last lines of reasoning or output shown while they grow, folded."""
FOLDED_DIFF = 30
"""Lines of a diff shown folded."""
FOLDED_RESULT = 3
TICK = 0.5
"""Seconds after which the time that something takes is said anew."""
WORTH_SAYING = 0.05
"""Seconds from which it is said how long something took."""
MARKDOWN_MOST = 20_000
"""Characters of one paragraph that are read as Markdown; a longer one is shown as it is."""

BLANK = Strip.blank(0)

ICONS = {
    "writing": "✎", "ready": "○", "waiting": "?", "running": "◐", "done": "✓", "failed": "✗",
    "denied": "⊘",
}  # fmt: skip


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar = {f"h{level}": "left" for level in range(1, 7)}


class _Code(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True,
                     background_color="default", padding=(0, 2))  # fmt: skip


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _Code,
        "code_block": _Code,
    }


class Painter:
    """Draws blocks in one palette."""

    def __init__(self, palette: Palette) -> None:
        self.palette = palette
        p = palette
        styles = {
            "markdown.code": p.accent + Style(bold=False),
            "markdown.link": p.accent,
            "markdown.link_url": p.dim,
            "markdown.item.bullet": p.accent,
            "markdown.item.number": p.accent,
            "markdown.block_quote": p.thought,
            "markdown.hr": p.dim,
            "markdown.table.border": p.dim,
            "markdown.table.header": p.strong,
            **{f"markdown.h{level}": p.strong for level in range(1, 7)},
            "markdown.h1": p.accent,
            "markdown.h2": p.accent,
        }
        self.console = Console(
            file=StringIO(), force_terminal=True, color_system="truecolor", width=200,
            theme=RichTheme(styles), markup=False, highlight=False, emoji=False, legacy_windows=False,
        )  # fmt: skip
        self._blocks: OrderedDict[tuple[int, int], tuple[int, float, list[Strip]]] = OrderedDict()
        self._paragraphs: OrderedDict[tuple[object, ...], list[Strip]] = OrderedDict()

    # --- blocks ----------------------------------------------------------------------------------

    def block(self, block: Block, width: int) -> list[Strip]:
        """The lines of a block, and a blank one where the next block does not belong to it."""
        key = (block.number, width)
        ticking = block.live and block.kind in ("call", "reasoning")
        version, drawn, found = self._blocks.get(key, (-1, 0.0, []))
        now = time.monotonic()
        if version != block.version or (ticking and now - drawn >= TICK):
            found = [*self._draw(block, max(width, 10))]
            if not _leads(block):
                found.append(BLANK)
            self._blocks[key] = block.version, now, found
            if len(self._blocks) > KEPT:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(key)
        return found

    def estimate(self, block: Block, width: int) -> int:
        """About how many lines a block has; a block that was drawn is asked itself."""
        version, _, found = self._blocks.get((block.number, width), (-1, 0.0, []))
        if version == block.version:
            return len(found)
        match block.kind:
            case "reasoning" if not block.open:
                return 1 if _leads(block) else 2
            case "call" if not block.open:
                assert block.call is not None
                return 3 + min(block.call.diff.count("\n"), FOLDED_DIFF)
            case _:
                room = max(width - 4, 8)
                return 1 + sum(1 + len(line) // room for line in block.searched.split("\n"))

    def _draw(self, block: Block, width: int) -> Iterable[Strip]:
        p = self.palette
        match block.kind:
            case "user":
                return self._user(block, width)
            case "harness":
                return self._wrap(Text(safe(block.text), p.dim), width, "» ", "  ", p.dim)
            case "reasoning":
                return self._reasoning(block, width)
            case "answer":
                return self._marked("● ", p.strong, self.markdown(block.text, width - 2, "  "))
            case "call":
                return self._call(block, width)
            case "note":
                tone = {"plain": p.dim, "good": p.good, "warn": p.warn, "bad": p.bad}[block.tone]
                mark = {"plain": "· ", "good": "✓ ", "warn": "! ", "bad": "✗ "}[block.tone]
                return self._wrap(Text(safe(block.text), tone), width, mark, "  ", tone)
            case "finish":
                tone = p.good if block.tone == "good" else p.warn
                mark = "✔ " if block.tone == "good" else "! "
                return self._marked(mark, tone, self.markdown(block.text, width - 2, "  "))

    def _user(self, block: Block, width: int) -> Iterator[Strip]:
        p = self.palette
        text = Text(safe(block.text), p.strong)
        if block.images:
            text.append(f"\n[{block.images} image{'s' * (block.images > 1)}]", p.dim)
        for line in self._wrap(text, width - 1, "❯ ", "  ", p.accent):
            filled = line.extend_cell_length(width)
            yield Strip(Segment.apply_style(filled, p.user), width)

    def _reasoning(self, block: Block, width: int) -> Iterator[Strip]:
        p = self.palette
        if block.live:
            label = f"Thinking · {duration(time.monotonic() - block.began)}"
            words = block.text.count(" ") + block.text.count("\n") + 1  # about, and at once
        else:
            took = f" for {duration(block.seconds)}" if block.seconds >= WORTH_SAYING else ""
            label = f"Thought{took}"
            words = len(block.text.split())
        fold = "▾" if block.open else "▸"
        yield self._line(Text(f"{fold} {label} · {several(words, 'word')}", p.dim))
        if block.open:
            yield from self.paragraphs(safe(block.text), width, p.thought, "│ ", p.dim)
        elif block.live:
            tail = safe(block.text[-(width * LIVE_LINES) :])
            lines = list(self.paragraphs(tail, width, p.thought, "│ ", p.dim))
            yield from lines[-LIVE_LINES:]

    def _call(self, block: Block, width: int) -> Iterator[Strip]:
        p, call = self.palette, block.call
        assert call is not None
        style = {"done": p.good, "failed": p.bad, "denied": p.warn, "waiting": p.warn,
                 "running": p.accent}.get(call.state, p.dim)  # fmt: skip
        title = Text(f"{ICONS[call.state]} ", style).append(safe(call.name) or "…", p.strong)
        status = _status(block)
        if call.state == "writing":
            title.append(f"  {len(call.raw):,} characters", p.dim)
        else:
            room = max(width - len(title.plain) - len(status) - 4, 8)
            if block.open or "\n" not in call.about:
                title.append(f"  {one_line(call.about, room)}", p.text)
            else:
                title.append(f"  {one_line(call.about.strip().splitlines()[0], room)}", p.text)
        if status:
            title.append(f"  {status}", p.dim)
        yield self._line(title)
        if call.why:
            tone = p.warn if call.state in ("waiting", "denied", "failed") else p.dim
            yield from self._wrap(Text(safe(call.why), tone), width - 2, "  ", "  ", tone)
        if block.open:
            yield from self._opened(call, width)
        else:
            yield from self._folded(call, width)

    def _opened(self, call: Call, width: int) -> Iterator[Strip]:
        """All of it: the arguments, the diff, the result."""
        p = self.palette
        arguments = json.dumps(call.arguments, indent=1, ensure_ascii=False)
        if call.name == "shell":
            arguments = f"$ {call.about}"
        if call.name != "edit" or not call.diff:
            shown = "\n".join(f"{line}" for line in safe(arguments).split("\n"))
            yield from self.paragraphs(shown.replace("\\n", "\n"), width, p.text, "  ", p.dim)
        if call.diff:
            yield from self._diff(call.diff, width)
        text = plain(call.output or call.result)
        if text.strip():
            yield from self.paragraphs(text, width, p.dim, "  │ ", p.dim)

    def _folded(self, call: Call, width: int) -> Iterator[Strip]:
        p = self.palette
        if call.diff:
            lines = self._diff(call.diff, width)
            yield from lines[:FOLDED_DIFF]
            if len(lines) > FOLDED_DIFF:
                yield self._line(Text(f"  … {len(lines) - FOLDED_DIFF} more lines", p.dim))
        elif call.state == "running" or call.output:
            text = plain(call.output[-width * LIVE_LINES * 2 :]).rstrip("\n")
            lines = list(self.paragraphs(text, width, p.dim, "  │ ", p.dim)) if text else []
            yield from lines[-LIVE_LINES:]
        elif call.name in ("!", "shell", "git") or call.state == "failed":
            lines = [line for line in plain(call.result).split("\n") if line.strip()]
            left = len(lines) - FOLDED_RESULT
            left = left if left > 1 else 0  # one line takes no more room than its count
            if left:
                yield self._line(Text(f"  … {left:,} lines before", p.dim))
            for line in lines[left:]:
                yield self._line(Text(f"  │ {one_line(line, width - 5)}", p.dim))

    def _diff(self, diff: str, width: int) -> list[Strip]:
        def draw() -> list[Strip]:
            found = diffs.lines(diff, width - 2, self.palette)
            return [self._line(Text("  ").append_text(line)) for line in found]

        return self._kept(("diff", diff, width), draw)

    # --- pieces ----------------------------------------------------------------------------------

    def markdown(self, text: str, width: int, gutter: str = "") -> list[Strip]:
        """Markdown as lines. Only the last paragraph is drawn anew when the text grows."""
        found: list[Strip] = []
        for chunk in chunks(safe(text)):
            if found:
                found.append(BLANK)
            key = ("md", chunk, width, gutter)
            found += self._kept(key, lambda chunk=chunk: self._mark(chunk, width, gutter))
        return found

    def _mark(self, chunk: str, width: int, gutter: str) -> list[Strip]:
        if len(chunk) > MARKDOWN_MOST:
            style = self.palette.text
            return list(self.paragraphs(chunk, width + len(gutter), style, gutter, style))
        document = _Markdown(chunk, code_theme=self.palette.code_theme, hyperlinks=False,
                             style=self.palette.text)  # fmt: skip
        lines = self.console.render_lines(
            document, self.console.options.update(width=max(width, 10)), pad=False
        )
        strips = [Strip(map(_on_page, line)).simplify() for line in lines]
        while strips and not strips[-1].text.strip():
            strips.pop()
        while strips and not strips[0].text.strip():
            strips.pop(0)
        if gutter:
            strips = [Strip([Segment(gutter), *line], len(gutter) + line.cell_length)
                      for line in strips]  # fmt: skip
        return strips

    def paragraphs(
        self, text: str, width: int, style: Style, gutter: str, gutter_style: Style
    ) -> Iterator[Strip]:
        """Plain text, wrapped line by line; lines drawn before are kept."""
        for line in text.split("\n"):
            if len(line) <= width - len(gutter) and line.isascii():
                mark = Segment(gutter, gutter_style)
                yield Strip([mark, Segment(line, style)], len(gutter) + len(line))
                continue
            yield from self._kept(
                ("line", line, width, gutter, style),
                lambda line=line: list(
                    self._wrap(Text(line, style), width, gutter, gutter, gutter_style)
                ),
            )

    def _wrap(self, text: Text, width: int, first: str, rest: str, style: Style) -> Iterator[Strip]:
        room = max(width - len(first), 4)
        for number, line in enumerate(text.wrap(self.console, room, tab_size=4)):
            line.rstrip()
            yield self._line(Text(rest if number else first, style).append_text(line))

    def _marked(self, mark: str, style: Style, lines: Iterable[Strip]) -> Iterator[Strip]:
        """Lines with a gutter, in which a mark stands before the first."""
        for number, line in enumerate(lines):
            if number:
                yield line
            else:
                yield Strip([Segment(mark, style), *list(line)[1:]], line.cell_length)

    def _line(self, text: Text) -> Strip:
        segments = text.render(self.console)
        if text.style and not text.spans:  # such a text is rendered without its own style
            segments = Segment.apply_style(segments, self.console.get_style(text.style))
        return Strip(segments)

    def strips(self, texts: Iterable[Text]) -> list[Strip]:
        """Texts as lines."""
        return [self._line(text) for text in texts]

    def _kept(self, key: tuple[object, ...], draw: Callable[[], list[Strip]]) -> list[Strip]:
        found = self._paragraphs.get(key)
        if found is None:
            found = self._paragraphs[key] = draw()
            if len(self._paragraphs) > KEPT:
                self._paragraphs.popitem(last=False)
        else:
            self._paragraphs.move_to_end(key)
        return found


def _leads(block: Block) -> bool:
    """Whether it is a folded thought: one line, which belongs to what follows from it."""
    return block.kind == "reasoning" and not block.open and not block.live


def _status(block: Block) -> str:
    call = block.call
    assert call is not None
    words: list[str] = []
    if call.state == "waiting":
        words.append("waits for you")
    if call.state == "running":
        words.append(duration(time.monotonic() - block.began))
    elif block.seconds >= WORTH_SAYING:
        words.append(duration(block.seconds))
    if call.exit_code not in (None, 0):
        words.append(f"exit {call.exit_code}")
    if call.state == "denied":
        words.append("not run")
    return " · ".join(words)


def _on_page(segment: Segment) -> Segment:
    """A segment whose background, where it is the terminal's own, is that of the page."""
    style = segment.style
    if style is None or style.bgcolor is None or not style.bgcolor.is_default:
        return segment
    return Segment(segment.text, diffs.without_back(style), segment.control)


_FENCE = re.compile(r" {0,3}(```+|~~~+)")


def chunks(text: str) -> list[str]:
    """Markdown cut at blank lines where a new paragraph begins, never within a fence or a list.

    Growing text leaves all pieces but the last as they are.
    """
    found: list[list[str]] = [[]]
    fence = ""
    for line in text.split("\n"):
        opening = _FENCE.match(line)
        if fence:
            if opening and opening[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif opening:
            fence = opening[1]
        begins = line.strip() and not line.startswith((" ", "\t")) and not fence
        if (begins or (opening and fence)) and found[-1] and not found[-1][-1].strip():
            found.append([])
        found[-1].append(line)
    pieces = ["\n".join(lines).strip("\n") for lines in found]
    return [piece for piece in pieces if piece.strip()]
