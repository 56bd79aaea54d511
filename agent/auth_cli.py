"""`unabridged auth login|status|logout`: the key of an endpoint."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .config import ConfigError, Flags, load_config, without_secrets


def add_parser(commands: Any, name: str, line: str) -> None:
    """Define the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=line[0].upper() + line[1:] + ".", allow_abbrev=False
    )
    inner = parser.add_subparsers(dest="auth_command", required=True, metavar="COMMAND")
    for command, text, run in (
        ("login", "keep a key for an endpoint: asked for, or read from standard input", _login),
        ("status", "say which key an endpoint would get, and where it is kept", _status),
        ("logout", "forget the key of an endpoint", _logout),
    ):
        one = inner.add_parser(command, help=text, description=text[0].upper() + text[1:] + ".")
        one.add_argument("--base-url", metavar="URL", help="the endpoint (default: your settings')")
        one.set_defaults(run=_guarded(run))


def _guarded(run: Any) -> Any:
    def guarded(args: argparse.Namespace) -> int:
        from .credentials import CredentialError

        try:
            url = load_config(Flags(base_url=args.base_url)).base_url
            return run(url)
        except (ConfigError, CredentialError) as error:
            print(f"unabridged: {error}", file=sys.stderr)
            return 2

    return guarded


def _login(url: str) -> int:
    from .credentials import save

    shown = without_secrets(url)
    if sys.stdin.isatty():
        from getpass import getpass

        try:
            value = getpass(f"Key for {shown} (not shown): ")
        except EOFError:
            value = ""
    else:
        value = sys.stdin.readline()
    if not value.strip():
        raise ConfigError("no key was given; nothing is kept.")
    print(f"The key for {shown} is kept in {_place(save(url, value))}.")
    _status(url)
    return 0


def _status(url: str) -> int:
    from urllib.parse import urlsplit

    from .config import LOCAL
    from .credentials import find
    from .providers.dialects import is_local

    shown = without_secrets(url)
    if url.startswith(LOCAL):
        print(f"{shown} runs in this process and needs no key.")
        return 0
    credential = find(url)
    if credential is not None:
        print(f"{shown} gets the key from {_place(credential.source)}.")
        return 0
    if is_local(urlsplit(url).hostname or ""):
        print(f"{shown} gets no key, and a server of your own needs none.")
        return 0
    print(f"{shown} has no key: `unabridged auth login`, or set UNABRIDGED_API_KEY.")
    return 1


def _logout(url: str) -> int:
    from .credentials import delete, find

    shown = without_secrets(url)
    places = delete(url)
    for place in places:
        print(f"The key for {shown} is no longer in {_place(place)}.")
    if not places:
        print(f"No key was kept for {shown}.")
    if (left := find(url)) is not None:
        print(f"unabridged: {left.source} still gives one.", file=sys.stderr)
    return 0


def _place(source: str) -> str:
    return "the keyring" if source == "keyring" else source
