"""K3 behind an OpenAI-compatible endpoint: chat completions over httpx, streamed.

The body is joined from bytes that were serialised once; a reply is taken apart only to be put
together again. Importing this module imports httpx: import it where an endpoint is used.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import json
import logging
import random
import re
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from ... import __version__
from ..events import ReasoningField
from ..http import EventSource, httpx
from . import faults
from .assembly import Assembly, with_ids
from .base import Delta, Notice, ProviderError, Reply, Request, Waiting
from .dialects import EFFORTS, Dialect, check_extra, check_tools, choose_dialect, is_loopback
from .faults import Asked, AttemptError


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what, in seconds, and how often to try."""

    connect: float = 30.0
    send: float = 120.0
    """Without the endpoint taking a byte of the request."""
    idle: float = 900.0
    """Without a byte of the reply. K3 servers can be silent for minutes while a call is written."""
    progress: float = 3600.0
    """With keep-alives only."""
    whole: float = 3600.0
    """Without a byte, for a reply that is not streamed."""
    tail: float = 5.0
    """After the finish reason, for the usage and the end of the stream."""
    drain: float = 0.25
    """After the end of the stream, for the end of the response: the connection is kept then."""
    card: float = 5.0
    """For what the endpoint says of its model, where that is not needed."""
    error_body: float = 10.0
    """For the words of an HTTP error."""
    attempts: int = 10
    first_attempts: int = 3
    """While the endpoint has never been reached: its address may simply be wrong."""
    costly_attempts: int = 4
    """For stalls and for replies that are wrong in themselves: each costs its time and tokens."""
    first_wait: float = 1.0
    longest_wait: float = 60.0
    """Between attempts, where the server does not say."""
    longest_asked: float = 600.0
    """A server that asks for more is not waited for."""
    empty_deltas: int = 20_000
    """In a row. Some servers send one for each token of a call they have not parsed yet."""
    idle_bytes: int = 64 << 20
    """Received without progress."""


@dataclass(frozen=True, slots=True)
class Model:
    """An entry of an endpoint's list of models."""

    id: str
    window: int | None
    """Context window in tokens, where the endpoint says so."""
    owner: str
    keeps_states: bool = False
    """Whether it saves states on disk, as our own servers say."""


class KimiProvider:
    """K3 behind `base_url`.

    Args:
        base_url: with or without `/chat/completions`; may hold basic-auth credentials or a query.
        model: the endpoint's name for K3.
        api_key: sent as a bearer token; never shown anywhere.
        dialect: by default chosen by host.
        window: context window in tokens; by default the dialect's.
        extra: more fields for each request, such as a gateway's routing.
        jitter: gives numbers in [0, 1) that spread the retries.

    Raises ValueError, one line, for a URL, key or extra field that cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        dialect: Dialect | None = None,
        window: int | None = None,
        extra: Mapping[str, Any] | None = None,
        patience: Patience | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        place = _Place.read(base_url, api_key)
        check_extra(extra or {})
        self.endpoint = place.shown
        self.model = model
        self.dialect = dialect or choose_dialect(place.url)
        self.window = window or self.dialect.window
        self._place = place
        self._extra = dict(extra or {})
        self._patience = patience or Patience()
        self._jitter = jitter
        self._client: httpx.AsyncClient | None = None
        self._reached = False
        self._streaming = True
        self._field: ReasoningField = self.dialect.reasoning_field
        self._refused: set[bytes] = set()
        self._notices = [*place.notices]
        self._checked: Sequence[bytes] = ()
        self._checked_tools = b"[]"

    # --- Provider -------------------------------------------------------------------------------

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply]:
        """See `Provider.stream`. A `Waiting` counts the attempt to come."""
        self._check(request)
        failures: list[AttemptError] = []
        while True:
            while self._notices:
                yield Notice(self._notices.pop(0))
            try:
                async with aclosing(self._attempt(request)) as items:
                    async for item in items:
                        yield item
                return
            except AttemptError as error:
                failure = replace(error, message=self._redact(error.message))
            if failure.unsupported and self._learn(failure.unsupported):
                continue
            if failure.kind == "context_overflow":
                self._learn_window(failure, request)
            if failure.kind == "not_found" and failure.status in {400, 404}:
                failure.message += await self._suggestion(request.model)
            failures.append(failure)
            seconds = self._next_wait(failures)
            if self._streaming and sum(f.stream_broken for f in failures) >= 2:
                self._streaming = False
                self._notices.append(
                    "The endpoint's streaming failed twice: replies are now requested whole, and "
                    "show when they are complete."
                )
            yield Waiting(len(failures) + 1, self._limit(failures), seconds, failure.message)
            await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Release connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    # --- what else an endpoint can be asked ------------------------------------------------------

    async def models(self) -> tuple[Model, ...]:
        """The endpoint's list of models. Raises ProviderError."""
        asked = self._asked(self.model, 0)
        try:
            async with self._exchange("GET", "/models", None, self._patience.connect) as response:
                body = await _read(response, 16 << 20)
                if response.status_code != 200:
                    raise faults.from_response(
                        response.status_code, response.headers, body, asked, time.time()
                    )
                try:
                    entries: Any = json.loads(body)["data"]
                    return tuple(_model(entry) for entry in entries)
                except (ValueError, KeyError, TypeError) as error:
                    kind = response.headers.get("content-type", "")
                    raise faults.not_an_api(kind, body, asked) from error
        except AttemptError as failure:
            raise self._error(failure) from None

    async def keeps_states(self, model: str) -> bool:
        """See `KeepsStates`. A known service is not asked."""
        if self.dialect.service:
            return False
        try:
            async with asyncio.timeout(self._patience.card):
                return any(one.keeps_states for one in await self.models() if one.id == model)
        except (TimeoutError, ProviderError):
            return False

    # --- one attempt -----------------------------------------------------------------------------

    async def _attempt(self, request: Request) -> AsyncGenerator[Delta | Reply]:
        body = self.body(request)
        asked = self._asked(request.model, len(body))
        limit = self._patience.idle if self._streaming else self._patience.whole
        async with self._exchange("POST", "/chat/completions", body, limit) as response:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if response.status_code != 200:
                data = await _read_soon(response, self._patience.error_body)
                raise faults.from_response(
                    response.status_code, response.headers, data, asked, time.time()
                )
            assembly = Assembly(self._field)
            if "json" in kind or "html" in kind or not self._streaming:
                data = await _read(response, self._patience.idle_bytes)
                for delta in self._whole(data, kind, assembly, asked):
                    yield delta
            else:
                async with aclosing(self._events(response, assembly, request, asked)) as deltas:
                    async for delta in deltas:
                        yield delta
        reply = assembly.reply()
        faults.check_reply(reply, asked)
        self._field = reply.reasoning_field
        yield with_ids(reply, request.messages)

    def _whole(self, data: bytes, kind: str, assembly: Assembly, asked: Asked) -> list[Delta]:
        """Take in a reply that came in one piece."""
        try:
            value: Any = json.loads(data)
        except ValueError:
            raise faults.not_an_api(kind, data, asked) from None
        chunk = cast(dict[str, Any], value) if isinstance(value, dict) else {}
        _raise_error(chunk, asked)
        if not chunk.get("choices"):
            raise faults.not_an_api(kind, data, asked)
        return [*assembly.add(chunk)[0]]

    async def _events(
        self, response: httpx.Response, assembly: Assembly, request: Request, asked: Asked
    ) -> AsyncGenerator[Delta]:
        """Take in a streamed reply; return when it is complete."""
        patience, where = self._patience, self.endpoint
        watch = _Watch(response, patience, where)
        most = 256 * request.max_completion_tokens + 65536
        done = False
        async with aclosing(EventSource(response).aiter_sse()) as events:
            while True:
                finished = assembly.finish_reason is not None
                wait = patience.tail if finished else patience.progress
                try:
                    async with asyncio.timeout(patience.drain if done else wait):
                        event = await anext(events, None)
                except (TimeoutError, httpx.TransportError, AttemptError) as error:
                    if finished or done:  # the reply is complete, only its end is missing
                        break
                    if isinstance(error, TimeoutError):
                        raise AttemptError(
                            "timeout",
                            f"{where} sent nothing but keep-alives for {_time(patience.progress)}.",
                            retry=True,
                        ) from None
                    raise
                if event is None:
                    break
                done = done or event.data == "[DONE]"
                if done or not event.data:
                    continue
                chunk = _chunk(event.data, where)
                _raise_error(chunk, asked, event.event)
                deltas, moved = assembly.add(chunk)
                for delta in deltas:
                    yield delta
                watch.progress(moved)
                if assembly.size > most:
                    raise AttemptError(
                        "protocol",
                        f"{where} sends far more than the {request.max_completion_tokens:,} "
                        "tokens that were allowed: it ignores the limit of the request.",
                    )
        if assembly.finish_reason is None and not (done and assembly.size):
            raise AttemptError(
                "connection", f"{where} ended the reply before it was complete.", retry=True
            )

    @asynccontextmanager
    async def _exchange(
        self, method: str, path: str, body: bytes | None, idle: float
    ) -> AsyncGenerator[httpx.Response]:
        """A request and its response, closed on leaving; transport faults as AttemptError."""
        patience = self._patience
        if self._client is None:
            try:
                self._client = self._place.client()
            except (ImportError, ValueError, OSError) as error:  # proxy or certificate settings
                said = faults.one_line(str(error), 120)
                raise AttemptError(
                    "connection", f"{self.endpoint} cannot be reached: {said}."
                ) from error
        try:
            request = self._client.build_request(
                method,
                self._place.url_for(path),
                content=body,
                headers=self._place.headers(body is not None),
                timeout=httpx.Timeout(idle, connect=patience.connect, write=patience.send),
            )
            response = await self._client.send(request, stream=True)
            self._reached = True
            try:
                yield response
            finally:
                await response.aclose()
        except (httpx.HTTPError, OSError) as error:
            if not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
                self._reached = True
            raise _transport_failure(error, self.endpoint, idle, self._reached) from error

    # --- the request -----------------------------------------------------------------------------

    def body(self, request: Request) -> bytes:
        """The body of the request. Messages go last, so that it only grows at its end."""
        dialect = self.dialect
        head: dict[str, Any] = {"model": request.model}
        if request.effort:
            head |= dialect.effort(request.effort)
        head.update(self._extra)
        head["stream"] = self._streaming
        if self._streaming and dialect.stream_options:
            head["stream_options"] = {"include_usage": True}
        parts = [json.dumps(head, separators=(",", ":")).encode()[:-1]]
        if request.tools != b"[]":
            parts += [b',"tools":', request.tools]
        parts += [b',"messages":[', b",".join(request.messages)]
        parts.append(b'],"%s":%d}' % (dialect.length_field.encode(), request.max_completion_tokens))
        return b"".join(parts)

    def _check(self, request: Request) -> None:
        """Refuse here what an endpoint would refuse late, or take without saying."""
        problem = ""
        if request.effort not in ("", *EFFORTS):
            problem = f"effort is {request.effort!r} and K3 takes only {', '.join(EFFORTS)}."
        elif not request.messages:
            problem = "there is no message to send."
        elif request.max_completion_tokens < 1:
            problem = "the window has no room left for a reply."
        elif request.messages[-1].startswith(_ASSISTANT):
            problem = "K3 does not continue a reply that it is given the start of."
        elif request.tools != self._checked_tools:
            try:
                tools: list[dict[str, Any]] = json.loads(request.tools)
                names = [str(tool["function"]["name"]) for tool in tools]
                check_tools(names)
            except (json.JSONDecodeError, KeyError, TypeError):
                problem = "the tools are not a JSON array of function declarations."
            except ValueError as error:
                problem = str(error)
            self._checked_tools = request.tools
        if problem:
            self._checked_tools = b"[]"
            raise ProviderError("bad_request", problem)
        known = len(self._checked)
        for position, message in enumerate(request.messages):
            if position < known and message is self._checked[position]:
                continue
            if message.startswith(_ASSISTANT) and not any(f in message for f in _REASONING):
                raise ProviderError(
                    "bad_request", f"message {position} goes back without its reasoning field."
                )
        self._checked = request.messages
        if self._refused and _digest(request) in self._refused:
            raise ProviderError(
                "context_overflow",
                f"{self.endpoint} has refused this very request as too large: it is not sent again.",
            )

    def _asked(self, model: str, size: int) -> Asked:
        return Asked(self.endpoint, model, size, key=self._place.key is not None)

    # --- after a failure -------------------------------------------------------------------------

    def _limit(self, failures: Sequence[AttemptError]) -> int:
        """Attempts allowed in all, given what has failed so far."""
        patience = self._patience
        if not self._reached:
            return min(patience.attempts, patience.first_attempts)
        if costly := sum(failure.kind in {"protocol", "timeout"} for failure in failures):
            return min(patience.attempts, len(failures) - costly + patience.costly_attempts)
        return patience.attempts

    def _next_wait(self, failures: Sequence[AttemptError]) -> float:
        """Seconds before the next attempt. Raises ProviderError when there is none."""
        failure, patience = failures[-1], self._patience
        if not failure.retry:
            raise self._error(failure)
        if len(failures) >= self._limit(failures):
            if len(failures) > 1:
                failure.message += f" Given up after {len(failures)} attempts."
            raise self._error(failure)
        if failure.after is not None:
            if failure.after > patience.longest_asked:
                failure.message += f" It asks to wait {_time(failure.after)}: try again then."
                raise self._error(failure)
            return failure.after
        wait = min(patience.longest_wait, patience.first_wait * 2 ** (len(failures) - 1))
        return wait * (0.5 + 0.5 * self._jitter())

    def _learn(self, field: str) -> bool:
        """Send a field the endpoint does not know another way, if there is one left."""
        if field == "stream_options" and self.dialect.stream_options:
            self.dialect = replace(self.dialect, stream_options=False)
            self._notices.append(
                "The endpoint does not know stream_options: token counts may be missing."
            )
            return True
        if field == "max_completion_tokens" and self.dialect.length_field == field:
            self.dialect = replace(self.dialect, length_field="max_tokens")
            self._notices.append(
                "The endpoint does not know max_completion_tokens: max_tokens is sent instead."
            )
            return True
        return False

    def _learn_window(self, failure: AttemptError, request: Request) -> None:
        self._refused.add(_digest(request))
        if failure.window is not None:
            self.window = min(self.window, failure.window)

    async def _suggestion(self, model: str) -> str:
        """What the endpoint does have, where it says so soon."""
        try:
            async with asyncio.timeout(3):
                names = [entry.id for entry in await self.models()]
        except (TimeoutError, ProviderError):
            return ""
        near = get_close_matches(model, names, n=3, cutoff=0.4) or names[:3]
        return f" It has {faults.one_line(', '.join(near), 120)}." if near else ""

    def _redact(self, text: str) -> str:
        return faults.redact(text, self._place.secrets)

    def _error(self, failure: AttemptError) -> ProviderError:
        return ProviderError(failure.kind, self._redact(failure.message), status=failure.status)


# httpx logs each URL, with a query that may hold a key.
logging.getLogger("httpx").setLevel(logging.WARNING)

_HOST = re.compile(r"[\w.:%-]+")
_ASSISTANT = b'{"role":"assistant"'
_REASONING = (b'"reasoning_content":', b'"reasoning":', b'"reasoning_details":')


def _digest(request: Request) -> bytes:
    digest = hashlib.sha256()
    digest.update(f"{request.model} {request.max_completion_tokens}".encode())
    for part in (request.tools, *request.messages):
        digest.update(part)
        digest.update(b"\n")
    return digest.digest()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where requests go and with what credentials."""

    url: str
    """Without credentials, query and trailing slash."""
    shown: str
    query: str
    key: str | None
    auth: tuple[str, str] | None
    secrets: tuple[str, ...]
    notices: tuple[str, ...]

    @classmethod
    def read(cls, base_url: str, api_key: str | None) -> _Place:
        """Take a base URL and a key apart. Raises ValueError, one line without secrets."""
        try:
            parts = urlsplit(base_url.strip())
            host, port = parts.hostname or "", parts.port
        except ValueError:
            parts, host, port = urlsplit(""), "", None
        if parts.scheme not in {"http", "https"} or not _HOST.fullmatch(host):
            shown = faults.redact(faults.one_line(base_url, 80), [api_key or ""])
            raise ValueError(
                f"the base URL {shown!r} is not one: it looks like https://api.moonshot.ai/v1."
            )
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("the API key holds characters that no key has: copy it again.")
        if api_key is not None and parts.username is not None:
            raise ValueError(
                "the base URL holds a user name and there is an API key too: leave one out."
            )
        netloc = f"[{host}]" if ":" in host else host
        netloc += f":{port}" if port is not None else ""
        path = parts.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
        url = urlunsplit((parts.scheme, netloc, path, "", ""))
        try:
            httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(f"the base URL {url!r} is not one: {error}.") from None
        auth = None
        if parts.username is not None:
            auth = (unquote(parts.username), unquote(parts.password or ""))
        notices: tuple[str, ...] = ()
        if parts.scheme == "http" and (api_key or auth) and not is_loopback(host):
            notices = (f"The key travels to {host} unencrypted: use https where you can.",)
        values = [value for _, value in parse_qsl(parts.query)]
        secrets = (api_key or "", *(auth or ()), *values)
        return cls(url, url, parts.query, api_key, auth, tuple(filter(None, secrets)), notices)

    def url_for(self, path: str) -> str:
        return f"{self.url}{path}?{self.query}" if self.query else f"{self.url}{path}"

    def headers(self, body: bool) -> dict[str, str]:
        headers = {"accept": "text/event-stream, application/json", "accept-encoding": "identity"}
        if body:
            headers["content-type"] = "application/json"
        if self.key is not None:
            headers["authorization"] = f"Bearer {self.key}"
        return headers

    def client(self) -> httpx.AsyncClient:
        """A client for this place. Proxies come from the environment, but not for this machine."""
        host = httpx.URL(self.url).host
        direct = {f"all://{host}": None} if is_loopback(host) and ":" not in host else None
        return httpx.AsyncClient(
            auth=self.auth,
            mounts=direct,
            # Loading the certificates takes a while, and http has no use for them.
            verify=self.url.startswith("https:"),
            follow_redirects=False,
            limits=httpx.Limits(keepalive_expiry=60.0),
            headers={"user-agent": f"unabridged/{__version__}"},
        )


class _Watch(httpx.AsyncByteStream):
    """Stands before a response's bytes: strict UTF-8, and not too much without progress."""

    def __init__(self, response: httpx.Response, patience: Patience, where: str) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._inner = response.stream
        self._patience = patience
        self._where = where
        self._bytes = 0
        self._empty = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        response.stream = self
        # Event streams are UTF-8, whatever the header says or leaves out.
        response.headers["content-type"] = "text/event-stream; charset=utf-8"

    def progress(self, moved: bool) -> None:
        """Note a chunk that brought the reply forward, or did not."""
        self._bytes = 0 if moved else self._bytes
        self._empty = 0 if moved else self._empty + 1
        if self._empty > self._patience.empty_deltas:
            raise AttemptError(
                "protocol",
                f"{self._where} sent {self._empty:,} empty pieces of a reply in a row.",
                retry=True,
                stream_broken=True,
            )

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        async for data in self._inner:
            self._bytes += len(data)
            if self._bytes > self._patience.idle_bytes:
                raise AttemptError(
                    "timeout",
                    f"{self._where} sent {self._bytes / 1e6:.1f} MB that brought the reply no "
                    "further.",
                    retry=True,
                    stream_broken=True,
                )
            try:
                self._decoder.decode(data)
            except UnicodeDecodeError:
                raise AttemptError(
                    "protocol", f"{self._where} sent bytes that are not UTF-8.", retry=True
                ) from None
            yield data

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _read(response: httpx.Response, most: int) -> bytes:
    """A body, or its first `most` bytes."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size >= most:
            break
    return b"".join(parts)[:most]


async def _read_soon(response: httpx.Response, seconds: float) -> bytes:
    """The start of a body, or nothing where it does not come: the status alone says enough."""
    try:
        async with asyncio.timeout(seconds):
            return await _read(response, 1 << 16)
    except (TimeoutError, httpx.TransportError):
        return b""


def _chunk(data: str, where: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise AttemptError(
            "protocol",
            f"{where} sent a piece of a reply that is not a JSON object: "
            f"{faults.one_line(data, 60)!r}.",
            retry=True,
        )
    return cast(dict[str, Any], value)


def _raise_error(chunk: Mapping[str, Any], asked: Asked, event: str = "") -> None:
    """Raise the error that a stream or a body with status 200 carries, if it does."""
    error: Any = chunk.get("error") or (chunk if event == "error" else None)
    if not error:
        return
    details = cast(dict[str, Any], error) if isinstance(error, dict) else {"message": str(error)}
    code = details.get("code")
    try:
        status = int(code) if isinstance(code, int | str) else 500
    except ValueError:
        status = 500
    raise faults.from_error(details, asked, status if 400 <= status < 600 else 500)


def _model(entry: Any) -> Model:
    windows = (entry.get(name) for name in ("context_length", "max_model_len", "context_window"))
    window = next((w for w in windows if isinstance(w, int) and w > 0), None)
    ours = entry.get("unabridged")
    kept = isinstance(ours, dict) and cast(dict[str, Any], ours).get("state_store") is True
    return Model(str(entry["id"]), window, str(entry.get("owned_by") or ""), kept)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _transport_failure(error: Exception, where: str, idle: float, reached: bool) -> AttemptError:
    """What a fault of the transport means."""
    causes = _causes(error)
    said = faults.one_line(str(error) or type(error).__name__, 120)
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return AttemptError(
                "connection",
                f"the certificate of {where} is not trusted ({cause.verify_message}): set "
                "SSL_CERT_FILE to the certificates of your network, or correct the base URL.",
            )
    if isinstance(error, httpx.ProxyError):
        return AttemptError(
            "connection",
            f"the proxy refused the way to {where} ({said}): check HTTPS_PROXY and NO_PROXY.",
        )
    if isinstance(error, httpx.ConnectTimeout):
        return AttemptError("connection", f"{where} cannot be reached: no answer.", retry=True)
    if isinstance(error, httpx.ReadTimeout):
        return AttemptError("timeout", f"{where} sent nothing for {_time(idle)}.", retry=True)
    if isinstance(error, httpx.WriteTimeout):
        return AttemptError("timeout", f"{where} does not take the request.", retry=True)
    for cause in causes:
        if isinstance(cause, socket.gaierror):
            return AttemptError(
                "connection",
                f"{where} cannot be reached: its host name is not known. Check the base URL and "
                "the network.",
                retry=reached or cause.errno == socket.EAI_AGAIN,
            )
        if isinstance(cause, ssl.SSLError):
            return AttemptError(
                "connection",
                f"{where} does not speak TLS ({cause.reason or said}): check whether the base "
                "URL should start with http://.",
                retry=reached,
            )
        if isinstance(cause, ConnectionRefusedError):
            return AttemptError(
                "connection",
                f"{where} cannot be reached: nothing listens there. Check the base URL, and that "
                "the server runs.",
                retry=True,
            )
    return AttemptError("connection", f"the connection to {where} broke ({said}).", retry=True)


def _causes(error: BaseException) -> list[BaseException]:
    """The error and all that led to it, the members of groups included."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop(0)
        if one is None or one in found:
            continue
        found.append(one)
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += [*cast("BaseExceptionGroup[BaseException]", one).exceptions]
    return found
