"""`unabridged acp`: an editor drives sessions over the Agent Client Protocol.

The editor speaks JSON-RPC on standard input and output (agentclientprotocol.com). Everything that
counts is in the session's log, as with every other front end; this only shows it and asks.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

import acp
from acp import schema as wire
from acp.exceptions import RequestError

from .. import __version__
from ..tools.sandbox import SandboxError
from .acp_view import AskedCall, Shown, asked_call, replayed
from .config import ConfigError, McpSection
from .context.errors import ContextError
from .events import AnyEvent, Decision, ImagePart, Part, Question, TextPart
from .exits import Exit
from .opening import Opening
from .policy import Mode
from .providers.base import Delta
from .remember import asked, rules_for
from .session import Pending, Session, SessionError
from .store import StoreError
from .view import ReplayError

T = TypeVar("T")
NO_KEY, BAD_REQUEST, FAILED = -32000, -32602, -32603
MODES = {
    "ask": ("Ask", "Reads inside the repository pass; all else is asked."),
    "read-only": ("Read only", "What would ask is denied, and the model is told why."),
}
PROBLEMS = (
    ConfigError, ContextError, ReplayError, SandboxError, SessionError, StoreError,
)  # fmt: skip


async def serve(opening: Opening) -> None:
    """Serve one editor on standard input and output, until it closes them."""
    agent = Agent(opening)
    try:
        await acp.run_agent(cast("acp.Agent", agent), use_unstable_protocol=True)
    finally:
        await agent.close()


class Agent:
    """The agent's side of the protocol, by the names the SDK calls."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._open: dict[str, Conversation] = {}
        self._client: acp.Client | None = None

    def on_connect(self, conn: acp.Client) -> None:
        """The editor is there."""
        self._client = conn

    async def initialize(self, protocol_version: int, **_more: Any) -> wire.InitializeResponse:
        """What we can do."""
        return wire.InitializeResponse(
            protocol_version=min(protocol_version, acp.PROTOCOL_VERSION),
            agent_info=wire.Implementation(
                name="unabridged", title="Unabridged", version=__version__
            ),
            agent_capabilities=wire.AgentCapabilities(
                load_session=True,
                prompt_capabilities=wire.PromptCapabilities(image=True, embedded_context=True),
                mcp_capabilities=wire.McpCapabilities(http=True),
                session_capabilities=wire.SessionCapabilities(
                    list=wire.SessionListCapabilities(),
                    resume=wire.SessionResumeCapabilities(),
                    close=wire.SessionCloseCapabilities(),
                ),
            ),
        )

    async def authenticate(self, method_id: str, **_more: Any) -> None:
        """Keys are the settings' affair."""
        raise RequestError(BAD_REQUEST, f"No method {method_id!r}: use `unabridged auth login`.")

    async def new_session(
        self, cwd: str, mcp_servers: Sequence[Any] | None = None, **_more: Any
    ) -> wire.NewSessionResponse:
        """Load the repository at `cwd`; nothing is sent to the model yet."""
        opening = replace(self._opening, root=_folder(cwd), mcp=servers_of(mcp_servers or ()))
        talk = await self._begin(opening.create)
        return wire.NewSessionResponse(session_id=talk.session.id, modes=talk.modes)

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None = None, **_more: Any
    ) -> wire.LoadSessionResponse:
        """Go on with a session, and show the editor all of it again."""
        talk = await self._again(cwd, session_id, mcp_servers)
        for update in replayed(talk.session.events, talk.session.core.root):
            await talk.tell(update)
        return wire.LoadSessionResponse(modes=talk.modes)

    async def resume_session(
        self, session_id: str, cwd: str, mcp_servers: Sequence[Any] | None = None, **_more: Any
    ) -> wire.ResumeSessionResponse:
        """Go on with a session that the editor still shows."""
        talk = await self._again(cwd, session_id, mcp_servers)
        return wire.ResumeSessionResponse(modes=talk.modes)

    async def list_sessions(
        self, cwd: str | None = None, **_more: Any
    ) -> wire.ListSessionsResponse:
        """The sessions of a folder, or all, the latest first."""
        from .index import entries

        folder = self._opening.sessions
        found = await asyncio.to_thread(entries, folder) if folder.is_dir() else []
        root = None if cwd is None else str(_folder(cwd))
        return wire.ListSessionsResponse(
            sessions=[
                wire.SessionInfo(
                    session_id=entry.session,
                    cwd=entry.repo,
                    title=" ".join(entry.task.split())[:80] or None,
                    updated_at=entry.updated,
                )
                for entry in found
                if entry.problem is None and root in (None, entry.repo)
            ]
        )

    async def set_session_mode(self, session_id: str, mode_id: str, **_more: Any) -> None:
        """From the next decision on."""
        if mode_id not in MODES:
            raise RequestError(BAD_REQUEST, f"No mode {mode_id!r}: choose of {', '.join(MODES)}.")
        self._talk(session_id).session.set_mode(cast("Mode", mode_id))

    async def prompt(
        self, session_id: str, prompt: Sequence[Any], **_more: Any
    ) -> wire.PromptResponse:
        """One turn."""
        talk = self._talk(session_id)
        try:
            return await talk.turn(parts_of(prompt, talk.session.core.root))
        except PROBLEMS as error:
            raise RequestError(FAILED, str(error)) from error

    async def cancel(self, session_id: str, **_more: Any) -> None:
        """Stop the turn."""
        if session_id in self._open:
            self._open[session_id].cancel()

    async def close_session(self, session_id: str, **_more: Any) -> None:
        """Let go of a session; its log stays."""
        await self._talk(session_id).close()
        del self._open[session_id]

    async def close(self) -> None:
        """Let go of every session."""
        for talk in self._open.values():
            await talk.close()
        self._open.clear()

    async def _again(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None
    ) -> Conversation:
        if session_id in self._open:
            await self._open.pop(session_id).close()
        opening = replace(self._opening, root=_folder(cwd), mcp=servers_of(mcp_servers or ()))
        root = opening.root
        talk = await self._begin(lambda: opening.resume(session_id))
        if talk.session.core.root != root:
            where = talk.session.core.root
            await self.close_session(talk.session.id)
            raise RequestError(
                BAD_REQUEST, f"Session {session_id} works in {where}, not in {root}."
            )
        return talk

    async def _begin(self, make: Callable[[], Session]) -> Conversation:
        assert self._client is not None
        try:
            session = await asyncio.to_thread(make)
        except PROBLEMS as error:
            code = NO_KEY if str(error).startswith("no key for") else BAD_REQUEST
            raise RequestError(code, str(error)) from error
        talk = self._open[session.id] = Conversation(session, self._client)
        return talk

    def _talk(self, session_id: str) -> Conversation:
        if session_id not in self._open:
            raise RequestError(BAD_REQUEST, f"No open session {session_id!r}: load it first.")
        return self._open[session_id]


class Conversation:
    """One session, shown to the editor turn by turn."""

    def __init__(self, session: Session, client: acp.Client) -> None:
        self.session = session
        self._client = client
        self._stream: AsyncGenerator[AnyEvent | Delta] | None = None
        """The run; it outlives a turn in which the model asked the user."""
        self._busy = False
        self._stopped = asyncio.Event()

    @property
    def modes(self) -> wire.SessionModeState:
        """What the editor may choose of."""
        return wire.SessionModeState(
            current_mode_id=self.session.settings.mode,
            available_modes=[
                wire.SessionMode(id=mode, name=name, description=text)
                for mode, (name, text) in MODES.items()
            ],
        )

    async def tell(self, update: Any) -> None:
        """One update for the editor."""
        await self._client.session_update(session_id=self.session.id, update=update)

    async def turn(self, parts: tuple[Part, ...]) -> wire.PromptResponse:
        """Give the user's words, or the answer to a question, and show what follows."""
        if self._busy:
            raise SessionError("the model is still at work: cancel it, or wait.")
        session, self._busy = self.session, True
        self._stopped.clear()
        try:
            if session.questions and (self._stream is not None or not session.pending):
                session.answer(text_of(parts))
                self._stream = self._stream or session.start()
            else:
                self._stream = session.start(parts)
            return await self._follow(self._stream)
        finally:
            self._busy = False

    async def _follow(self, stream: AsyncGenerator[AnyEvent | Delta]) -> wire.PromptResponse:
        session = self.session
        shown = Shown(session.core.root, session)
        async for item in stream:
            for update in shown.updates(item):
                await self.tell(update)
            if isinstance(item, Decision) and item.decision == "ask":
                await self._ask()
            if isinstance(item, Question):
                return wire.PromptResponse(stop_reason="end_turn")  # the next prompt is the answer
        self._stream = None
        assert session.ended is not None
        match session.ended.exit_code:
            case Exit.DONE | Exit.UNFINISHED:
                return wire.PromptResponse(stop_reason="end_turn")
            case Exit.INTERRUPTED:
                return wire.PromptResponse(stop_reason="cancelled")
            case Exit.BUDGET:
                await self.tell(acp.update_agent_message_text(f"Stopped: {session.ended.reason}."))
                return wire.PromptResponse(stop_reason="max_turn_requests")
            case Exit.STUCK:
                await self.tell(acp.update_agent_message_text(f"Stopped: {session.ended.reason}."))
                return wire.PromptResponse(stop_reason="end_turn")
            case _:
                raise RequestError(FAILED, session.ended.reason)

    async def _ask(self) -> None:
        """Ask the editor's user about every call that waits, in order."""
        for item in self.session.pending:
            call = asked_call(self.session, item)
            option = await self._permission(item, call)
            if self._stopped.is_set():
                return
            if option == "always" and (rules := self._rules(item)):
                self.session.allow(rules)
            if option in ("once", "always"):
                self.session.approve(item.call_id)
            else:
                self.session.deny(item.call_id)

    async def _permission(self, item: Pending, call: AskedCall) -> str | None:
        """The option the user chose; a cancelled request cancels the turn, as a cancel does."""
        verb = "Approve the plan" if item.tool == "propose_plan" else "Allow once"
        options = [wire.PermissionOption(option_id="once", name=verb, kind="allow_once")]
        if rules := self._rules(item):
            what = "; ".join(rule.describe().rpartition(" [")[0] for rule in rules)
            options.append(
                wire.PermissionOption(
                    option_id="always", name=f"For this session: {what}", kind="allow_always"
                )
            )
        options.append(wire.PermissionOption(option_id="no", name="Reject", kind="reject_once"))
        asking = asyncio.ensure_future(
            self._client.request_permission(
                session_id=self.session.id, tool_call=call, options=options
            )
        )
        stopping = asyncio.ensure_future(self._stopped.wait())
        await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not asking.done():
            asking.cancel()
            return None
        outcome = asking.result().outcome
        if isinstance(outcome, wire.AllowedOutcome):
            return outcome.option_id
        self.cancel()
        return None

    def _rules(self, item: Pending) -> Sequence[Any]:
        """Rules that would allow the call for the rest of the session; none for a plan."""
        if item.tool == "propose_plan":
            return ()
        core = self.session.core
        return rules_for(asked(item.effects, core.rules, core.state.scope)) or ()

    def cancel(self) -> None:
        """Stop the turn."""
        self._stopped.set()
        self.session.cancel()

    async def close(self) -> None:
        """Stop what runs, and let go of the log."""
        self.cancel()
        await self.session.close()


def _folder(cwd: str) -> Path:
    """The repository: where the editor says, not the work tree around it."""
    path = Path(cwd)
    if not path.is_absolute() or not path.is_dir():
        raise RequestError(BAD_REQUEST, f"{cwd}: no such folder; give an absolute path.")
    return path.resolve()


class EditorServer(McpSection):
    """A server from the editor's settings, whose values are as they stand."""

    expands = False


def servers_of(servers: Sequence[Any]) -> dict[str, McpSection]:
    """The MCP servers that an editor brings along: its user's. Raises RequestError."""
    found: dict[str, McpSection] = {}
    for server in servers:
        match server:
            case wire.McpServerStdio():
                env = {variable.name: variable.value for variable in server.env}
                fields = {"command": (server.command, *server.args), "env": env}
            case wire.HttpMcpServer():
                headers = {header.name: header.value for header in server.headers}
                fields = {"url": server.url, "headers": headers}
            case _:
                raise RequestError(
                    BAD_REQUEST, f"MCP server {server.name}: only stdio and streamable HTTP."
                )
        try:
            found[server.name] = EditorServer.model_validate(fields)
        except ValueError as error:
            raise RequestError(BAD_REQUEST, f"MCP server {server.name} cannot be used.") from error
    return found


def parts_of(prompt: Sequence[Any], root: Path) -> tuple[Part, ...]:
    """A prompt of the editor as words and images. Raises RequestError for what cannot be sent."""
    parts: list[Part] = []
    for block in prompt:
        match block:
            case wire.TextContentBlock():
                parts.append(TextPart(text=block.text))
            case wire.ImageContentBlock():
                parts.append(ImagePart(url=_image(block)))
            case wire.ResourceContentBlock():
                parts.append(TextPart(text=_place(block.uri, root)))
            case wire.EmbeddedResourceContentBlock():
                resource = block.resource
                if not isinstance(resource, wire.TextResourceContents):
                    raise RequestError(BAD_REQUEST, f"{resource.uri} is not text.")
                place = _place(resource.uri, root)
                parts.append(TextPart(text=f"{place}, as it is in the editor:\n\n{resource.text}"))
            case _:
                raise RequestError(BAD_REQUEST, f"Kimi K3 cannot be given {block.type}.")
    if not any(not isinstance(part, TextPart) or part.text.strip() for part in parts):
        raise RequestError(BAD_REQUEST, "The prompt is empty.")
    return tuple(parts)


def text_of(parts: Sequence[Part]) -> str:
    """The words of a prompt: the answer to a question is text."""
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _image(block: wire.ImageContentBlock) -> str:
    if block.mime_type not in ("image/png", "image/jpeg", "image/webp"):
        raise RequestError(BAD_REQUEST, f"{block.mime_type}: give PNG, JPEG or WebP.")
    with suppress(ValueError):
        base64.b64decode(block.data, validate=True)
        return f"data:{block.mime_type};base64,{block.data}"
    raise RequestError(BAD_REQUEST, "An image is not valid base64.")


def _place(uri: str, root: Path) -> str:
    """A file's path as the model knows it; another URI as it is."""
    parts = urlsplit(uri)
    if parts.scheme != "file":
        return uri
    path = Path(unquote(parts.path))
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
