"""Which files hold secrets: told by their name alone, and git's settings by what is in them."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

_SECRET_NAMES = frozenset(
    {
        ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass", ".my.cnf", ".htpasswd",
        ".git-credentials", "credentials", "credentials.json", "credentials.toml",
        "credentials.tfrc.json", "application_default_credentials.json", "service-account.json",
        "service_account.json", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "authorized_keys",
        ".dockercfg", ".dockerconfigjson", "kubeconfig", "terraform.tfstate", ".terraformrc",
        ".vault-token", ".s3cfg", ".boto", ".databrickscfg", "rclone.conf",
    }
)  # fmt: skip
_SECRET_SUFFIXES = frozenset(
    {
        ".pem", ".key", ".p8", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".asc", ".gpg", ".ppk",
        ".ovpn", ".kubeconfig", ".env", ".tfvars", ".tfstate",
    }
)  # fmt: skip
_SECRET_DATA = re.compile(r"(?:client_)?secrets?(?:[._-][\w.-]+)?\.(?:json|ya?ml|toml|ini)")
"""`secrets.prod.yaml`, `client_secret_1.json`; code of that name is none."""
_SECRET_FOLDERS = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", "gcloud"})
_PUBLIC = (".example", ".sample", ".template", ".dist", ".defaults")
_COPY = re.compile(r"(?:~|\.(?:bak|backup|old|orig|save|swp|tmp|\d+))+$")
"""What editors, package managers and people put after the name of a copy."""


def is_secret(name: str) -> bool:
    """Whether a path by its name holds secrets: `.env*`, keys, tokens, cloud credentials."""
    folder, _, base = name.lower().rpartition("/")
    base = _COPY.sub("", base)
    if re.match(r"\.envrc$|\.env(?![a-z0-9])", base):
        return not base.endswith(_PUBLIC)
    stem, dot, suffix = base.rpartition(".")
    return (
        base in _SECRET_NAMES
        or (bool(stem.lstrip(".")) and dot + suffix in _SECRET_SUFFIXES)
        or (_SECRET_DATA.fullmatch(base) is not None and not stem.endswith(_PUBLIC))
        or _is_secret_folder(folder)
    )


@lru_cache(maxsize=65_536)
def _is_secret_folder(folder: str) -> bool:
    return not _SECRET_FOLDERS.isdisjoint(folder.split("/"))


_LARGEST_SETTINGS = 1 << 20
_CREDENTIALS = re.compile(
    r"(?im)://[^\s/@:]*:[^\s/@]+@ | ://[\w.%-]{20,}@ | ^[ \t]*extraheader[ \t]*=", re.VERBOSE
)


def holds_git_credentials(settings: Path) -> bool:
    """Whether a file of git's settings has a password or a token: in an address, or a header."""
    try:
        with settings.open("rb") as file:
            text = file.read(_LARGEST_SETTINGS).decode("utf-8", "replace")
    except OSError:
        return False
    return _CREDENTIALS.search(text) is not None


def is_git_settings(name: str) -> bool:
    """Whether a path is one of git's own settings files."""
    *folders, base = name.split("/")
    return ".git" in folders and base in ("config", "config.worktree")
