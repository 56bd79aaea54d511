"""What the commands of the prompt do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from ..agent.changes import changed_diffs
from ..agent.config import ConfigError
from ..agent.events import AssistantMessage, UserMessage
from ..agent.export import markdown, stream_json
from ..agent.index import entries
from ..agent.session import Session
from . import pages
from .commands import COMMANDS
from .palette import Palette, palette_of
from .screens.changes import Changes, Entry
from .screens.page import Page
from .screens.picker import Item, Picker
from .text import one_line, several
from .widgets.lines import Source

if TYPE_CHECKING:
    from .app import UnabridgedApp


class Actions:
    """The commands, over the application."""

    def __init__(self, app: UnabridgedApp) -> None:
        self._app = app

    @property
    def _palette(self) -> Palette:
        return palette_of(self._app.current_theme)

    async def run(self, line: str) -> None:
        """Carry out one command line, without its slash."""
        name, _, rest = line.partition(" ")
        if self._app.busy and not COMMANDS[name].running:
            self._say(f"/{name} waits until the model has stopped: Esc stops it.", "warning")
            return
        await getattr(self, f"do_{name}")(rest.strip())

    def _say(self, text: str, severity: str = "information") -> None:
        self._app.notify(text, severity=severity, timeout=6, markup=False)  # pyright: ignore[reportArgumentType] - one of Textual's

    def _needs_session(self) -> Session | None:
        session = self._app.session
        if session is None:
            self._say("There is no session yet: it begins with your first words.", "warning")
        return session

    def _show(self, title: str, source: Source) -> None:
        self._app.push_screen(Page(title, source))

    # --- looking ---------------------------------------------------------------------------------

    async def do_help(self, _rest: str) -> None:
        """Commands and keys."""
        self._show("Help", pages.help_page(self._palette))

    async def do_context(self, _rest: str) -> None:
        """The token tree."""
        if self._app.session is None and self._app.desk.loaded is not None:
            self._show("Context", pages.load_page(self._app.desk.loaded, self._palette))
        elif session := self._needs_session():
            self._show("Context", pages.context_page(session, self._palette))

    async def do_cost(self, _rest: str) -> None:
        """Requests and prices."""
        if session := self._needs_session():
            self._show("Cost", pages.cost_page(session, self._palette))

    async def do_policy(self, rest: str) -> None:
        """Rules, or what decides a command."""
        if session := self._needs_session():
            if rest:
                source = await asyncio.to_thread(pages.explain_page, rest, session, self._palette)
            else:
                source = pages.policy_page(session, self._palette)
            self._show("Policy", source)

    async def do_plan(self, _rest: str) -> None:
        """The last plan."""
        if session := self._needs_session():
            self._show("Plan", pages.plan_page(session, self._palette))

    async def do_jobs(self, rest: str) -> None:
        """Background commands."""
        if session := self._needs_session():
            word, _, job = rest.partition(" ")
            if word == "stop":
                found = session.processes.jobs.get(job.strip())
                if found is None:
                    self._say(f"No job {job.strip()!r}.", "warning")
                else:
                    found.running.stop()
                return
            self._show("Jobs", pages.jobs_page(session, self._palette))

    # --- files -----------------------------------------------------------------------------------

    async def do_diff(self, _rest: str) -> None:
        """All changes; revert by file."""
        if not (session := self._needs_session()):
            return
        undo, root, events = session.core.undo, session.core.root, list(session.events)
        planned = await asyncio.to_thread(undo.plan, events)
        shown = await asyncio.to_thread(changed_diffs, root, events, undo.read)
        refused = {item.name: item.refusal for item in planned}
        listed = [Entry(name, diff, refused.get(name, "")) for name, diff in shown.items()]
        if not listed:
            self._say("The session changed no file.")
            return
        names = await self._pick_files(Changes(f"Changes of this session: {several(len(listed), 'file')}",
                                               listed, undo=False))  # fmt: skip
        if names:
            await self._restore(session, names, 0)

    async def do_undo(self, rest: str) -> None:
        """Put back what the last turn changed, or all since a step."""
        if not (session := self._needs_session()):
            return
        if rest and not rest.isdecimal():
            self._say(f"/undo {rest}: give the number of a step.", "warning")
            return
        since = int(rest) if rest else first_step_of_turn(session)
        undo = session.core.undo
        planned = await asyncio.to_thread(undo.plan, list(session.events), since)
        if not planned:
            self._say("Nothing to undo there: the files are as they were. /undo 1 goes back to the start."
                      if since > 1 else "Nothing to undo: the files are as they were.")  # fmt: skip
            return
        listed = [
            Entry(item.name, "" if item.refusal else await asyncio.to_thread(undo.diff, item),
                  item.refusal) for item in planned
        ]  # fmt: skip
        names = await self._pick_files(Changes(f"Undo from step {since} on: {several(len(listed), 'file')}",
                                               listed, undo=True))  # fmt: skip
        if names:
            await self._restore(session, names, since)

    async def _pick_files(self, screen: Changes) -> list[str] | None:
        future: asyncio.Future[list[str] | None] = asyncio.get_running_loop().create_future()
        self._app.push_screen(screen, future.set_result)
        return await future

    async def _restore(self, session: Session, names: list[str], since: int) -> None:
        undo = session.core.undo
        planned = await asyncio.to_thread(undo.plan, list(session.events), since)
        chosen = [item for item in planned if item.name in names and not item.refusal]
        outcomes = await asyncio.to_thread(undo.restore, chosen)
        left = [item for item in outcomes if item.refusal]
        self._app.transcript.note(
            f"{len(outcomes) - len(left)} put back: "
            f"{', '.join(item.name for item in outcomes if not item.refusal)}", "good",
        )  # fmt: skip
        for item in left:
            self._app.transcript.note(f"Left alone: {item.name}, {item.refusal}", "warn")

    async def do_export(self, rest: str) -> None:
        """The session as a file: Markdown, or stream-JSON for `.jsonl`."""
        if not (session := self._needs_session()):
            return
        path = Path(rest or f"unabridged-{session.id}.md").expanduser()
        if not path.is_absolute():
            path = Path.cwd() / path
        if path.suffix == ".jsonl":
            data = b"".join(stream_json(session.id, session.events))
        else:
            data = markdown(session.id, session.events).encode("utf-8", "backslashreplace")
        try:
            with path.open("xb") as file:
                file.write(data)
        except FileExistsError:
            self._say(f"{path} is there already: give another name.", "warning")
        except OSError as error:
            self._say(f"{path}: {error.strerror}.", "error")
        else:
            self._app.transcript.note(f"Written to {path}: {len(data):,} bytes", "good")

    # --- sessions --------------------------------------------------------------------------------

    async def do_resume(self, rest: str) -> None:
        """Another session."""
        app = self._app
        if not rest:
            folder = app.desk.start.sessions
            found = await asyncio.to_thread(entries, folder) if folder.is_dir() else []
            here = app.session.id if app.session is not None else ""
            mine = [e for e in found if e.repo == str(app.desk.root) and e.session != here]
            others = [e for e in found if e.repo != str(app.desk.root)]
            if not mine and not others:
                self._say("There is no other session.")
                return
            items = [
                Item(e.session, one_line(e.task or e.problem or "(no task)", 100),
                     f"{e.updated[:16].replace('T', ' ')} · {several(e.steps, 'step')} · "
                     f"{e.exit_name or 'running or killed'} · {e.model} · {e.repo}")
                for e in (*mine, *others)
            ]  # fmt: skip
            future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
            app.push_screen(Picker("Sessions, this repository's first", items), future.set_result)
            rest = await future or ""
        if rest:
            await app.opening.enter(lambda: app.desk.resume(rest))

    async def do_fork(self, _rest: str) -> None:
        """A copy."""
        if (session := self._needs_session()) and await self._app.opening.enter(
            self._app.desk.fork
        ):
            self._app.transcript.note(f"You are in a fork of {session.id}.", "good")

    async def do_handover(self, _rest: str) -> None:
        """A fresh session that knows the words, the plan and the scope."""
        if (session := self._needs_session()) and await self._app.opening.enter(
            self._app.desk.hand_over
        ):
            self._app.transcript.note(
                f"Goes on from {session.id}. Write what is to be done next.", "good"
            )

    async def do_new(self, _rest: str) -> None:
        """Start afresh."""
        app = self._app
        await app.desk.let_go()
        await asyncio.to_thread(app.desk.connect)
        app.opening.begin_anew()

    # --- settings --------------------------------------------------------------------------------

    async def do_model(self, rest: str) -> None:
        """Another model or endpoint."""
        words = rest.split()
        desk = self._app.desk
        if not words:
            self._say(f"{desk.model} at {desk.endpoint}. /model NAME [URL] changes it.")
            return
        url = next((word for word in words if "://" in word), None)
        name = next((word for word in words if "://" not in word), None)
        await self._choose(name, url, None)

    async def do_effort(self, rest: str) -> None:
        """How much the model thinks."""
        if not rest:
            items = [Item("low", "low", "quick"), Item("high", "high", "thorough"),
                     Item("max", "max", "as long as it takes; the default of K3")]  # fmt: skip
            future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
            self._app.push_screen(Picker("Effort", items), future.set_result)
            rest = await future or ""
        if rest:
            await self._choose(None, None, rest)

    async def _choose(self, name: str | None, url: str | None, effort: str | None) -> None:
        desk, app = self._app.desk, self._app
        try:
            await desk.choose(name, url, effort)
        except ConfigError as error:
            self._say(str(error), "error")
            return
        what = (
            f"{desk.model} at {desk.endpoint}, effort {desk.config.effort if desk.config else ''}"
        )
        steps = app.session is not None and app.session.core.state.spent.steps
        cold = " The next request is not cached." if steps else ""
        app.transcript.note(f"From now on {what}.{cold}", "warn" if steps else "plain")
        if app.session is None and (name or url):
            app.opening.plan()
        app.show_standing()

    async def do_trust(self, _rest: str) -> None:
        """Trust the repository."""
        self.trust()

    def trust(self) -> None:
        """Trust the repository's AGENTS.md and settings as they are now."""
        app = self._app
        try:
            names = app.desk.trust()
        except (ConfigError, OSError) as error:
            self._say(str(error), "error")
            return
        if not names:
            self._say(
                "Nothing here needs trust: there is no AGENTS.md and no .unabridged/config.toml."
            )
            return
        later = " It counts from the next session on: /new." if app.session is not None else ""
        app.transcript.note(f"Trusted as they are now: {', '.join(names)}.{later}", "good")
        if app.session is None:
            app.opening.plan()

    async def do_theme(self, rest: str) -> None:
        """Colours."""
        app = self._app
        if not rest:
            names = sorted(
                app.available_themes, key=lambda name: (not name.startswith("unabr"), name)
            )
            items = [Item(name, name) for name in names]
            future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
            app.push_screen(Picker("Theme", items), future.set_result)
            rest = await future or ""
        if rest in app.available_themes:
            app.theme = app.memory.theme = rest
            app.memory.write()
        elif rest:
            self._say(f"No theme {rest!r}.", "warning")

    async def do_quit(self, _rest: str) -> None:
        """Leave."""
        await self._app.action_leave()


def first_step_of_turn(session: Session) -> int:
    """The first step after the user's last words."""
    events = session.events
    said = max(
        (e.seq for e in events if isinstance(e, UserMessage) and e.origin == "user"), default=0
    )
    later = (e.step for e in events[said:] if isinstance(e, AssistantMessage))
    return next(later, 1)
