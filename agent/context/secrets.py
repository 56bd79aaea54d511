"""Which files hold secrets, told by their name alone."""

from __future__ import annotations

import posixpath

_SECRET_NAMES = frozenset(
    {
        ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass", ".my.cnf", ".htpasswd",
        ".git-credentials", "credentials", "credentials.json", "credentials.toml",
        "application_default_credentials.json", "service-account.json", "service_account.json",
        "secrets.json", "secrets.yaml", "secrets.yml", "secrets.toml",
        "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "authorized_keys",
        ".dockercfg", "kubeconfig", "terraform.tfstate", ".vault-token",
    }
)  # fmt: skip
_SECRET_SUFFIXES = frozenset(
    {".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".asc", ".gpg", ".ppk"}
)
_SECRET_FOLDERS = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", "gcloud"})
_PUBLIC_ENV = (".example", ".sample", ".template", ".dist", ".defaults")


def is_secret(name: str) -> bool:
    """Whether a path by its name holds secrets: `.env*`, keys, tokens, cloud credentials."""
    parts = name.lower().split("/")
    base = parts[-1]
    if base == ".env" or base == ".envrc" or base.startswith(".env."):
        return not base.endswith(_PUBLIC_ENV)
    return (
        base in _SECRET_NAMES
        or posixpath.splitext(base)[1] in _SECRET_SUFFIXES
        or not _SECRET_FOLDERS.isdisjoint(parts[:-1])
    )
