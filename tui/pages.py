"""The texts of pages: help, the token tree, costs, what is allowed. Pure over a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.text import Text
from textual.strip import Strip

from ..agent.context.load import Load
from ..agent.context.pack import unpack
from ..agent.events import (
    AnyEvent,
    AssistantMessage,
    FilesChanged,
    PackSegment,
    Plan,
    RepositoryLoaded,
    ScopeGranted,
    SystemMessage,
    ToolResult,
    UserMessage,
)
from ..agent.session import Session
from .blocks import words_of
from .commands import COMMANDS
from .paint import Painter
from .palette import Palette
from .text import count, duration, money, safe, several
from .widgets.lines import Source

BYTES_PER_TOKEN = 3.5
"""Before anything was measured."""

KEYS = (
    ("Enter", "send; while the model works, it is told before its next step"),
    ("Shift+Enter, Ctrl+J", "a new line"),
    ("Esc", "stop the model, at once, whatever it does; close what is open"),
    ("Up, Down", "what you wrote before; what is queued comes back"),
    ("Shift+Tab", "to the conversation and back"),
    ("  there: ↑↓ Enter", "choose a block, unfold it"),
    ("  there: / n N", "search everything, reasoning included"),
    ("  there: y, e", "copy a block; edit one of your messages and send it again"),
    ("Ctrl+O", "unfold or fold all reasoning and calls"),
    ("PgUp, PgDn", "scroll"),
    ("Tab", "change what is loaded, on the load plan"),
    ("@path", "name a file; Tab completes"),
    ("!command", "run a command yourself; its output goes with your next message"),
    ("Ctrl+C", "copy what is selected; clear the prompt; quit"),
    ("Ctrl+Q", "quit; the session is saved"),
)


def _page(lines: Iterator[Text]) -> Source:
    kept = list(lines)

    def draw(painter: Painter, width: int) -> list[Strip]:
        found: list[Strip] = []
        for line in kept:
            found += painter.strips(line.wrap(painter.console, max(width, 20)) or [Text("")])
        return found

    return draw


def help_page(p: Palette) -> Source:
    """Commands and keys."""

    commands = [(f"/{name} {c.arguments}".strip(), c.line) for name, c in COMMANDS.items()]

    def draw(painter: Painter, width: int) -> list[Strip]:
        lines: list[Text] = []
        for title, rows in (("Commands", commands), ("Keys", KEYS)):
            lines.append(Text(title, p.accent))
            for name, what in rows:
                label = f"  {name:24} "
                for part in Text(what, p.text).wrap(painter.console, max(width - len(label), 20)):
                    lines.append(Text().append(label, p.strong).append_text(part))
                    label = " " * len(label)
            lines.append(Text(""))
        return painter.strips(lines)

    return draw


# --- the window -------------------------------------------------------------------------------------


@dataclass
class Node:
    """A part of the window, with its parts."""

    name: str
    size: int = 0
    """Bytes."""
    parts: dict[str, Node] = field(default_factory=dict[str, "Node"])

    def add(self, path: Sequence[str], size: int) -> None:
        """Add a size below a path."""
        self.size += size
        if path:
            self.parts.setdefault(path[0], Node(path[0])).add(path[1:], size)


def window_of(events: Sequence[AnyEvent]) -> Node:
    """What fills the window, by size."""
    whole = Node("window")
    for event in events:
        match event:
            case SystemMessage():
                whole.add(["system"], len(event.text.encode()))
                for tool in event.tools:
                    whole.add(["tools", tool["function"]["name"]], len(str(tool)))
            case PackSegment():
                rest = len(event.text.encode("utf-8", "surrogatepass"))
                for framed in unpack(event.text):
                    size = len(framed.data)
                    rest -= size
                    whole.add(["repository", *framed.name.split("/")], size)
                whole.add(["repository", "(framing, manifest)"], max(rest, 0))
            case FilesChanged():
                whole.add(["changes since"], len(event.text.encode("utf-8", "surrogatepass")))
            case UserMessage():
                who = "your words" if event.origin == "user" else "notes of the harness"
                whole.add(["conversation", who], len(words_of(event.parts).encode()))
            case AssistantMessage():
                whole.add(["reasoning"], len(event.reasoning.encode("utf-8", "surrogatepass")))
                calls = sum(len(call.arguments) for call in event.calls)
                answer = len(event.content.encode("utf-8", "surrogatepass"))
                whole.add(["conversation", "answers"], answer)
                whole.add(["conversation", "calls"], calls)
            case ToolResult():
                whole.add(
                    ["conversation", "results"], len(event.text.encode("utf-8", "surrogatepass"))
                )
            case _:
                pass
    return whole


def context_page(session: Session, p: Palette) -> Source:
    """The token tree of the window."""
    events = session.events
    window, used = session.provider.window, session.core.estimate
    tree = window_of(events)
    per_byte = used / tree.size if tree.size else 1 / BYTES_PER_TOKEN

    def rows(node: Node, depth: int) -> Iterator[Text]:
        for part in sorted(node.parts.values(), key=lambda one: -one.size):
            tokens = part.size * per_byte
            share = tokens / window
            bar = "█" * round(share * 40)
            line = Text(
                f"{count(round(tokens)):>8}  {share:6.1%}  ", p.strong if depth == 0 else p.text
            )
            line.append("  " * depth + safe(part.name), p.accent if depth == 0 else p.text)
            if part.parts and depth:
                line.append("/", p.dim)
            line.append(f"  {bar}", p.good)
            yield line
            small = len(part.parts) > 400 and depth > 1
            if not small:
                yield from rows(part, depth + 1)

    def lines() -> Iterator[Text]:
        yield Text(f"{count(used)} of {count(window)} tokens: {used / window:.1%}, "
                   f"{count(window - used)} free", p.strong)  # fmt: skip
        yield Text(
            "Shares are worked out from bytes, at the rate the endpoint last reported.", p.dim
        )
        yield Text("")
        yield from rows(tree, 0)
        loaded = next((e for e in events if isinstance(e, RepositoryLoaded)), None)
        for title, group in (("As outlines", loaded.outlined if loaded else {}),
                             ("By name only", loaded.skipped if loaded else {})):  # fmt: skip
            if group:
                yield Text("")
                yield Text(f"{title} ({len(group):,})", p.accent)
                for name, reason in sorted(group.items()):
                    yield Text(f"  {safe(name)}  ", p.text).append(safe(reason), p.dim)

    return _page(lines())


# --- money, rules, plan -----------------------------------------------------------------------------


def cost_page(session: Session, p: Palette) -> Source:
    """Every request with what it took."""

    def lines() -> Iterator[Text]:
        spent = session.core.state.spent
        total = money(spent.cost) if spent.cost is not None else "not known for this model"
        yield Text(f"{several(spent.steps, 'request')} · {spent.prompt:,} tokens in, {spent.cached:,} of them "
                   f"cached · {spent.completion:,} out · {total}", p.strong)  # fmt: skip
        following = session.core.estimate
        yield Text(f"The next request has about {following:,} tokens.", p.dim)
        yield Text("")
        yield Text(f"{'step':>5} {'in':>10} {'cached':>10} {'':>6} {'out':>8} {'price':>9} {'time':>9}",
                   p.accent)  # fmt: skip
        for event in session.events:
            if not isinstance(event, AssistantMessage):
                continue
            usage = event.usage
            if usage is None:
                yield Text(f"{event.step:>5} the endpoint did not report its usage", p.dim)
                continue
            share = usage.cached / usage.prompt if usage.prompt else 0.0
            price = money(session.settings.price(usage))
            yield Text(f"{event.step:>5} {usage.prompt:>10,} {usage.cached:>10,} {share:>6.0%} "
                       f"{usage.completion:>8,} {price:>9} {duration(event.seconds):>9}",
                       p.text if share > 0.5 or event.step == 1 else p.warn)  # fmt: skip

    return _page(lines())


def policy_page(session: Session, p: Palette) -> Source:
    """What may happen without a question."""

    def lines() -> Iterator[Text]:
        core = session.core
        yield (
            Text()
            .append(f"Mode: {core.mode}. ", p.strong)
            .append(
                "What no rule and no plan allows is asked; reading inside the repository is not."
                if core.mode == "ask"
                else "What would be asked is denied.",
                p.text,
            )
        )
        sandbox = session.processes.sandbox
        yield (
            Text()
            .append("Sandbox: ", p.strong)
            .append(
                "commands see the repository read-only and have no network, unless granted."
                if sandbox.active
                else "none: a command can do what you can.",
                p.text if sandbox.active else p.warn,
            )
        )
        yield Text("")
        yield Text("Rules, the strictest wins", p.accent)
        for rule in core.rules:
            tone = {"allow": p.good, "ask": p.text, "deny": p.bad}[rule.decision]
            yield Text(f"  {safe(rule.describe())}", tone)
        if not core.rules:
            yield Text("  none", p.dim)
        yield Text("")
        yield Text("Scope of this task", p.accent)
        yield from _scope(session, p)
        yield Text("")
        yield Text("/policy COMMAND says what a command would do and what decides it.", p.dim)

    return _page(lines())


def _scope(session: Session, p: Palette) -> Iterator[Text]:
    scope = session.core.state.scope
    if scope is None:
        yield Text("  none was approved", p.dim)
        return
    for name, value in scope.model_dump(mode="json", exclude_defaults=True).items():
        shown = ", ".join(" ".join(v) if isinstance(v, list) else str(v) for v in value)
        yield Text(f"  {name}: ", p.dim).append(safe(shown), p.text)


def explain_page(command: str, session: Session, p: Palette) -> Source:
    """What one command would do."""
    from ..agent.policy import decide, decide_effect
    from ..tools.bash.classify import classify

    core = session.core
    effects = classify(command, root=core.root)
    decided = decide(effects, core.rules, core.state.scope, core.mode)

    def lines() -> Iterator[Text]:
        yield Text(f"$ {safe(command)}", p.strong)
        yield Text("")
        for effect in effects:
            one = decide_effect(effect, core.rules, core.state.scope)
            tone = {"allow": p.good, "ask": p.warn, "deny": p.bad}.get(one.verdict, p.text)
            yield Text(f"{one.verdict:>6}  ", tone).append(safe(one.reason), p.text)
        yield Text("")
        yield (
            Text()
            .append(f"In all: {decided.verdict}", p.strong)
            .append(f", {safe(decided.reason)}", p.dim)
        )

    return _page(lines())


def plan_page(session: Session, p: Palette) -> Source:
    """The last plan, and the scope in force."""
    plan = next((e for e in reversed(session.events) if isinstance(e, Plan)), None)
    granted = any(isinstance(e, ScopeGranted) for e in session.events)

    def draw(painter: Painter, width: int) -> list[Strip]:
        if plan is None:
            return painter.strips([Text("The model has proposed no plan in this session.", p.dim)])
        found = painter.markdown(plan.text, width)
        title = Text("Scope in force" if granted else "Not approved", p.accent)
        return [*found, Strip.blank(0), *painter.strips([title, *_scope(session, p)])]

    return draw


def load_page(loaded: Load, p: Palette) -> Source:
    """A load plan, file by file."""

    def lines() -> Iterator[Text]:
        yield Text(f"{loaded.files:,} files whole, {loaded.tokens:,} tokens in "
                   f"{len(loaded.segments)} segments", p.strong)  # fmt: skip
        for title, group in (("As outlines", loaded.outlined), ("By name only", loaded.skipped)):
            if group:
                yield Text("")
                yield Text(f"{title} ({len(group):,})", p.accent)
                for left in group:
                    yield Text(f"  {safe(left.name)}  ", p.text).append(safe(left.reason), p.dim)
        yield Text("")
        yield Text("Tokens by file", p.accent)
        for name, tokens in sorted(loaded.costs.items(), key=lambda one: -one[1]):
            yield Text().append(f"{tokens:>9,}  ", p.strong).append(safe(name), p.text)

    return _page(lines())


def jobs_page(session: Session, p: Palette) -> Source:
    """Commands in the background."""

    def lines() -> Iterator[Text]:
        jobs = session.processes.jobs
        if not jobs:
            yield Text("No command runs in the background.", p.dim)
        for job in jobs.values():
            outcome = job.outcome
            state = "runs" if outcome is None else f"ended, exit {outcome.exit_code}"
            yield Text().append(f"{job.id:8} ", p.strong).append(f"{state}  ", p.warn if outcome is None else p.dim
                                                        ).append(safe(job.command), p.text)  # fmt: skip
        if session.processes.live_jobs():
            yield Text("")
            yield Text("/jobs stop JOB stops one.", p.dim)

    return _page(lines())
