"""From settings to a model: which provider, with which key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from .budget import Price
from .config import Config, ConfigError, without_secrets
from .events import Usage
from .providers.base import Provider


def connect(config: Config, env: Mapping[str, str] = os.environ) -> Provider:
    """The provider of the settings. Raises ConfigError when there is no key, or it is unusable."""
    from .credentials import CredentialError, find
    from .providers.dialects import DIALECTS, is_local
    from .providers.kimi import KimiProvider

    dialect = None
    if config.dialect is not None:
        dialect = DIALECTS.get(config.dialect)
        if dialect is None:
            known = ", ".join(DIALECTS)
            raise ConfigError(f"dialect {config.dialect!r} is unknown; choose of {known}.")
    try:
        credential = find(config.base_url, env)
    except CredentialError as error:
        raise ConfigError(str(error)) from error
    url = urlsplit(config.base_url)
    if credential is None and not (url.username or url.query or is_local(url.hostname or "")):
        raise ConfigError(
            f"no key for {without_secrets(config.base_url)}: set UNABRIDGED_API_KEY, or point to "
            "another endpoint with --base-url or UNABRIDGED_BASE_URL."
        )
    key = credential.value if credential is not None else None
    try:
        return KimiProvider(
            config.base_url, config.model, key, dialect=dialect, window=config.window
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def scripted(path: Path) -> Provider:
    """A scripted model in this process. Raises ConfigError when the script cannot be read."""
    from .providers.scripted import ScriptedProvider, load_script

    try:
        return ScriptedProvider(load_script(path), endpoint=f"script {path.name}")
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error


def pricing(config: Config) -> Price:
    """Prices of the configured model; None for each request when they are not known."""
    from .prices import cost

    def price(usage: Usage) -> float | None:
        return cost(config.model, usage, config.prices)

    return price
