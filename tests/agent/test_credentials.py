"""Keys: where they are looked for, in what order, and that they stay hidden."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import keyring
import keyring.backend
import keyring.errors
import pytest

from unabridged.agent import credentials
from unabridged.agent.credentials import CredentialError, delete, find, save

MOONSHOT = "https://api.moonshot.ai/v1"
OTHER = "https://gate.example/v1"
LOCAL = "http://127.0.0.1:8000/v1"
KEY = "sk-very-secret-1"


class Ring(keyring.backend.KeyringBackend):
    """A keyring in memory, which can be made to fail."""

    priority = 1.0  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride] # a class property there

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}
        self.trouble: Exception | None = None
        self.delay = 0.0
        self.asked = 0

    def _use(self) -> None:
        self.asked += 1
        time.sleep(self.delay)
        if self.trouble is not None:
            raise self.trouble

    def get_password(self, service: str, username: str) -> str | None:
        self._use()
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._use()
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._use()
        del self.kept[service, username]


@pytest.fixture
def ring() -> Iterator[Ring]:
    before = keyring.get_keyring()
    ring = Ring()
    keyring.set_keyring(ring)
    yield ring
    keyring.set_keyring(before)


@pytest.fixture
def no_ring(ring: Ring) -> Ring:
    ring.trouble = keyring.errors.NoKeyringError("none")
    return ring


def test_environment_first(ring: Ring, tmp_path: Path) -> None:
    save(MOONSHOT, "sk-kept", folder=tmp_path)
    env = {"UNABRIDGED_API_KEY": f" {KEY}\n", "MOONSHOT_API_KEY": "sk-m"}
    found = find(MOONSHOT, env, folder=tmp_path)
    assert found is not None
    assert (found.value, found.source) == (KEY, "UNABRIDGED_API_KEY")
    found = find(MOONSHOT, {"MOONSHOT_API_KEY": "sk-m", "UNABRIDGED_API_KEY": ""}, folder=tmp_path)
    assert found is not None
    assert found.source == "MOONSHOT_API_KEY"


@pytest.mark.parametrize(
    "url",
    [OTHER, LOCAL, "http://api.moonshot.ai/v1", "https://api.moonshot.ai@evil.example/v1"],
)
def test_moonshots_key_goes_to_moonshots_hosts_only(
    no_ring: Ring, tmp_path: Path, url: str
) -> None:
    assert find(url, {"MOONSHOT_API_KEY": "sk-m"}, folder=tmp_path) is None


def test_keyring_then_file(ring: Ring, tmp_path: Path) -> None:
    assert save(OTHER, KEY, folder=tmp_path) == "keyring"
    assert list(tmp_path.iterdir()) == []
    found = find(OTHER, {}, folder=tmp_path)
    assert found is not None
    assert (found.value, found.source) == (KEY, "keyring")
    assert find("https://gate.example:444/v1", {}, folder=tmp_path) is None
    assert find(MOONSHOT, {}, folder=tmp_path) is None


def test_file_where_there_is_no_keyring(no_ring: Ring, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    where = save(OTHER, f"{KEY}\n", folder=folder)
    assert where == str(folder / "credentials.json")
    assert Path(where).stat().st_mode & 0o777 == 0o600
    assert [p.name for p in folder.iterdir()] == ["credentials.json"]
    found = find(f"{OTHER}/", {}, folder=folder)
    assert found is not None
    assert (found.value, found.source) == (KEY, where)


def test_a_key_moves_from_the_file_to_the_keyring(no_ring: Ring, tmp_path: Path) -> None:
    save(OTHER, "sk-old", folder=tmp_path)
    no_ring.trouble = None
    save(OTHER, KEY, folder=tmp_path)
    assert b"sk-old" not in (tmp_path / "credentials.json").read_bytes()


def test_keys_of_this_machine_never_wait_for_a_keyring(ring: Ring, tmp_path: Path) -> None:
    save(LOCAL, KEY, folder=tmp_path)
    found = find(LOCAL, {}, folder=tmp_path)
    assert found is not None
    assert found.value == KEY
    assert delete(LOCAL, folder=tmp_path) == (str(tmp_path / "credentials.json"),)
    assert ring.asked == 0


def test_delete(ring: Ring, tmp_path: Path) -> None:
    save(OTHER, KEY, folder=tmp_path)
    assert delete(OTHER, folder=tmp_path) == ("keyring",)
    assert delete(OTHER, folder=tmp_path) == ()
    assert find(OTHER, {}, folder=tmp_path) is None


def test_locked_keyring_is_one_clear_line(ring: Ring, tmp_path: Path) -> None:
    ring.trouble = keyring.errors.KeyringLocked(f"cannot unlock {KEY}")
    with pytest.raises(CredentialError, match="unlock it, or set UNABRIDGED_API_KEY") as raised:
        find(OTHER, {}, folder=tmp_path)
    assert KEY not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_locked_keyring_does_not_hide_the_file(no_ring: Ring, tmp_path: Path) -> None:
    save(OTHER, KEY, folder=tmp_path)
    no_ring.trouble = keyring.errors.KeyringLocked()
    found = find(OTHER, {}, folder=tmp_path)
    assert found is not None
    assert found.value == KEY


def test_keyring_that_hangs_is_left(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "KEYRING_SECONDS", 0.05)
    ring.delay = 3.0
    began = time.monotonic()
    with pytest.raises(CredentialError, match="does not answer"):
        find(OTHER, {}, folder=tmp_path)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_file_that_others_can_read_is_refused(no_ring: Ring, tmp_path: Path, mode: int) -> None:
    save(OTHER, KEY, folder=tmp_path)
    (tmp_path / "credentials.json").chmod(mode)
    with pytest.raises(CredentialError, match="chmod 600") as raised:
        find(OTHER, {}, folder=tmp_path)
    assert KEY not in str(raised.value)
    with pytest.raises(CredentialError, match="chmod 600"):
        save(OTHER, "sk-new", folder=tmp_path)


@pytest.mark.parametrize(
    "text", [f'{{"x": "{KEY}"', f'["{KEY}"]', f'{{"{OTHER}": ["{KEY}"]}}', "", "\xff"]
)
def test_damaged_file_is_named_and_not_quoted(no_ring: Ring, tmp_path: Path, text: str) -> None:
    path = tmp_path / "credentials.json"
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)
    with pytest.raises(CredentialError) as raised:
        find(OTHER, {}, folder=tmp_path)
    assert str(path) in str(raised.value)
    assert KEY not in str(raised.value)
    assert raised.value.__cause__ is None


def test_full_disk_leaves_the_old_file(
    no_ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    save(OTHER, KEY, folder=tmp_path)
    before = (tmp_path / "credentials.json").read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CredentialError, match="cannot be written: No space left"):
        save(OTHER, "sk-new", folder=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["credentials.json"]
    assert (tmp_path / "credentials.json").read_bytes() == before


def test_file_in_place_of_the_folder(no_ring: Ring, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("")
    with pytest.raises(CredentialError, match="cannot be"):
        save(OTHER, KEY, folder=tmp_path / "config")


@pytest.mark.parametrize("value", ["", " ", "sk a", "sk-é", "sk\x00"])
def test_what_is_no_key_is_not_kept(ring: Ring, tmp_path: Path, value: str) -> None:
    with pytest.raises(CredentialError):
        save(OTHER, value, folder=tmp_path)


def test_what_is_no_url_has_no_key(ring: Ring, tmp_path: Path) -> None:
    for url in ("", "gate.example", "http://[", "file:///x"):
        assert find(url, {}, folder=tmp_path) is None
        with pytest.raises(CredentialError):
            save(url, KEY, folder=tmp_path)


def test_the_key_is_not_in_the_repr(tmp_path: Path) -> None:
    found = find(OTHER, {"UNABRIDGED_API_KEY": KEY}, folder=tmp_path)
    assert KEY not in repr(found)
    assert KEY not in f"{found}"


def test_by_default_the_file_is_in_the_users_configuration(
    no_ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Path(save(OTHER, KEY)).is_relative_to(tmp_path)
    found = find(OTHER, {})
    assert found is not None
    assert found.value == KEY


def test_a_keyring_that_is_slow_to_load_is_not_one_that_hangs(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(OTHER, KEY, folder=tmp_path)

    def slow() -> Ring:
        time.sleep(0.4)
        return ring

    monkeypatch.setattr(credentials, "KEYRING_SECONDS", 0.1)
    monkeypatch.setattr(keyring, "get_keyring", slow)
    found = find(OTHER, {}, folder=tmp_path)
    assert found is not None
    assert found.source == "keyring"
