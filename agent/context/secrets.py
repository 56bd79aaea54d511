"""Which files hold secrets, told by their name alone."""

from __future__ import annotations

from functools import lru_cache

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
    folder, _, base = name.lower().rpartition("/")
    if base.startswith(".env") and (base in (".env", ".envrc") or base.startswith(".env.")):
        return not base.endswith(_PUBLIC_ENV)
    stem, dot, suffix = base.rpartition(".")
    return (
        base in _SECRET_NAMES
        or (bool(stem.lstrip(".")) and dot + suffix in _SECRET_SUFFIXES)
        or _is_secret_folder(folder)
    )


@lru_cache(maxsize=65_536)
def _is_secret_folder(folder: str) -> bool:
    return not _SECRET_FOLDERS.isdisjoint(folder.split("/"))
