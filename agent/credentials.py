"""API keys: from the environment, then the keyring, then a file that only its owner can read.

Keys belong to an endpoint's origin (scheme, host, port). Keys of servers on this machine are kept
in the file only, so that a local run never waits for a keyring.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from .config import config_folder
from .providers.dialects import is_loopback, is_moonshot

SERVICE = "unabridged"
"""Name of the service in the keyring; the user name is the origin."""

KEYRING_SECONDS = 3.0
"""A keyring that asks a person who is not there would never answer."""

LOADING_SECONDS = 20.0
"""On a cold disk the first start after an installation loads its back ends for seconds."""

T = TypeVar("T")


class CredentialError(Exception):
    """A key that cannot be read or kept; one line for a person, never with the key."""


class _NoKeyringError(Exception):
    """There is no keyring on this machine."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A key and where it was found. Its `repr` does not show it."""

    value: str = field(repr=False)
    source: str
    """The variable, `keyring`, or the file."""


def find(
    base_url: str, env: Mapping[str, str] = os.environ, *, folder: Path | None = None
) -> Credential | None:
    """The key for an endpoint: the first of UNABRIDGED_API_KEY, MOONSHOT_API_KEY (for Moonshot's
    own hosts only), the keyring, the file.

    Raises CredentialError for a file that others can read or that is damaged, and for a keyring
    that fails when the file has no key either.
    """
    origin, host = _origin(base_url)
    names = ["UNABRIDGED_API_KEY"]
    if origin and is_moonshot(base_url):
        names.append("MOONSHOT_API_KEY")
    for name in names:
        if value := env.get(name, "").strip():
            return Credential(value, name)
    if not origin:
        return None
    trouble: CredentialError | None = None
    if not is_loopback(host):
        try:
            if value := _keyring(lambda ring: ring.get_password(SERVICE, origin)):
                return Credential(value, "keyring")
        except _NoKeyringError:
            pass
        except CredentialError as error:
            trouble = error
    path = key_file(folder)
    if value := _read(path).get(origin):
        return Credential(value, str(path))
    if trouble is not None:
        raise trouble
    return None


def save(base_url: str, value: str, *, folder: Path | None = None) -> str:
    """Keep a key for an endpoint; returns where: `keyring`, or the file where there is none.

    Raises CredentialError.
    """
    origin, host = _origin(base_url)
    value = value.strip()
    if not origin:
        raise CredentialError(f"{base_url!r} is not a URL that a key could belong to.")
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise CredentialError("that is not a key: a key is one word of plain letters and signs.")
    path = key_file(folder)
    kept = _read(path)
    if not is_loopback(host):
        with suppress(_NoKeyringError):
            _keyring(lambda ring: ring.set_password(SERVICE, origin, value))
            if kept.pop(origin, None) is not None:
                _write(path, kept)
            return "keyring"
    _write(path, {**kept, origin: value})
    return str(path)


def delete(base_url: str, *, folder: Path | None = None) -> tuple[str, ...]:
    """Forget the key of an endpoint; returns the places it was in. Raises CredentialError."""
    origin, host = _origin(base_url)
    found: list[str] = []
    if origin and not is_loopback(host):
        with suppress(_NoKeyringError):
            if _keyring(lambda ring: ring.get_password(SERVICE, origin)) is not None:
                _keyring(lambda ring: ring.delete_password(SERVICE, origin))
                found.append("keyring")
    path = key_file(folder)
    kept = _read(path)
    if kept.pop(origin, None) is not None:
        _write(path, kept)
        found.append(str(path))
    return tuple(found)


def keyring_name() -> str | None:
    """The keyring that keys are kept in; None where there is none. Raises CredentialError."""

    def name(ring: Any) -> str:
        backend = ring.get_keyring()
        if backend.priority <= 0:
            raise _NoKeyringError
        # Reading tells whether it is locked; no key has this name.
        ring.get_password(SERVICE, "https://doctor.invalid")
        return str(backend.name)

    try:
        return _keyring(name)
    except _NoKeyringError:
        return None


def _origin(base_url: str) -> tuple[str, str]:
    """Scheme, host and port of a URL as one word, and the host; empty for what is no URL."""
    try:
        parts = urlsplit(base_url.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "", ""
    if parts.scheme not in {"http", "https"} or not host:
        return "", ""
    place = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{place}{f':{port}' if port else ''}", host


# --- keyring --------------------------------------------------------------------------------------


def _keyring(use: Callable[[Any], T]) -> T:
    """Use the keyring, in a thread that may be left behind when it does not come back.

    Raises _NoKeyringError where there is none, CredentialError where it fails.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    loaded = threading.Event()

    def work() -> None:
        try:
            import keyring
            from keyring.errors import NoKeyringError

            keyring.get_keyring()
            loaded.set()
            try:
                results.append(use(keyring))
            except NoKeyringError as error:
                raise _NoKeyringError from error
        except BaseException as error:  # noqa: BLE001 - back ends raise whatever they like
            errors.append(error)
        finally:
            loaded.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    loaded.wait(LOADING_SECONDS)
    thread.join(KEYRING_SECONDS)
    if results:
        return results[0]
    if not errors:
        why = f"does not answer within {KEYRING_SECONDS:g} s"
    elif isinstance(errors[0], _NoKeyringError | ImportError):
        raise _NoKeyringError
    else:
        why = f"failed ({type(errors[0]).__name__})"
    raise CredentialError(f"the keyring {why}: unlock it, or set UNABRIDGED_API_KEY.")


# --- file -----------------------------------------------------------------------------------------


def key_file(folder: Path | None = None) -> Path:
    """The file of last resort, readable by its owner only."""
    return (folder or config_folder()) / "credentials.json"


def _read(path: Path) -> dict[str, str]:
    """Origin -> key; empty when there is no file."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise CredentialError(
                    f"{path} can be read by others (mode {mode:04o}): run `chmod 600 {path}`, and "
                    "replace the keys in it if others use this machine."
                )
            data: Any = json.loads(file.read())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CredentialError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError:
        # The error's own words would quote the file.
        raise CredentialError(f"{path} is not valid JSON: correct or delete it.") from None
    if not isinstance(data, dict):
        raise CredentialError(f"{path} must hold one JSON object, endpoint to key.")
    entries = cast(dict[str, Any], data)
    wrong = [origin for origin, value in entries.items() if not isinstance(value, str)]
    if wrong:
        raise CredentialError(f"{path}: the key of {wrong[0]!r} is not text.")
    return entries


def _write(path: Path, entries: Mapping[str, str]) -> None:
    """Replace the file in one step, readable by its owner from the first byte."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(dict(entries), indent=2).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise CredentialError(f"{path} cannot be written: {error.strerror}.") from error
