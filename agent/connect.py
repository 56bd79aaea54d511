"""From settings to a model: which provider, with which key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from ..model.nano import profile as nano
from .budget import Price
from .config import LOCAL, Config, ConfigError, without_secrets
from .events import Usage
from .providers.base import Provider

NANO = (
    "no endpoint and no key are set, so K3-nano does the work: a small model in this program that "
    "knows a few refactorings of small Python repositories, and does about three of five. For Kimi "
    "K3 set UNABRIDGED_API_KEY, or point to a server with --base-url."
)


def with_model(config: Config, env: Mapping[str, str] = os.environ) -> Config:
    """The settings, on the K3-nano that is shipped where they name no model and there is no key.

    Raises ConfigError for a key that cannot be read.
    """
    from .credentials import CredentialError, find

    named = {config.origin.get("model.base_url"), config.origin.get("model.name")} != {"default"}
    if named or not any(nano_folder().glob("*.safetensors")):
        return config
    try:
        found = find(config.base_url, env)
    except CredentialError as error:
        raise ConfigError(str(error)) from error
    return config if found is not None else replace(config, base_url=LOCAL, model=nano.MODEL)


def nano_folder() -> Path:
    """Where K3-nano is shipped."""
    return Path(nano.__file__).parent


def connect(config: Config, env: Mapping[str, str] = os.environ) -> Provider:
    """The provider of the settings. Raises ConfigError when there is no key, or it is unusable."""
    if config.base_url.startswith(LOCAL):
        return _local(config)
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


def _local(config: Config) -> Provider:
    """A model in this process, from a folder with its checkpoint."""
    from .providers.embedded import MISSING, CheckpointProblem, missing, open_checkpoint

    if missing():
        raise ConfigError(
            f"{MISSING}. Or point to an endpoint with --base-url or UNABRIDGED_BASE_URL, and its key "
            "in UNABRIDGED_API_KEY."
        )
    named = config.base_url.removeprefix(LOCAL)
    folder = Path(named).expanduser() if named else nano_folder()
    try:
        return open_checkpoint(folder, config.model, endpoint=config.base_url)
    except CheckpointProblem as error:
        raise ConfigError(str(error)) from error


def scripted(path: Path, window: int | None = None) -> Provider:
    """A scripted model in this process; `window` replaces the script's. Raises ConfigError when the script cannot be read."""
    from .providers.scripted import ScriptedProvider, load_script

    try:
        return ScriptedProvider(load_script(path), window=window, endpoint=f"script {path.name}")
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error


def pricing(config: Config) -> Price:
    """Prices of the configured model; None for each request when they are not known."""
    from .prices import cost

    def price(usage: Usage) -> float | None:
        if config.base_url.startswith(LOCAL):
            return 0.0
        return cost(config.model, usage, config.prices)

    return price
