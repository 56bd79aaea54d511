"""A model in this process: by `--base-url local:FOLDER`, or K3-nano where nothing is set."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keyring
import pytest
from keyring.backends.null import Keyring as Null

from unabridged.agent import connect as connecting
from unabridged.agent.config import ConfigError, Flags, load_config
from unabridged.agent.connect import connect, pricing, with_model
from unabridged.agent.events import RunStarted, Usage
from unabridged.agent.opening import endpoint_of
from unabridged.agent.providers import embedded


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which weights are shipped."""
    folder = tmp_path / "nano"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr(connecting, "nano_folder", lambda: folder)
    return folder


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings and no keys of whoever runs the tests."""
    before = keyring.get_keyring()
    keyring.set_keyring(Null())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    for name in list(os.environ):
        if name.startswith(("UNABRIDGED_", "MOONSHOT_")):
            monkeypatch.delenv(name)
    yield
    keyring.set_keyring(before)


def settled(flags: Flags | None = None, env: dict[str, str] | None = None) -> tuple[str, str]:
    config = with_model(load_config(flags or Flags(), env=env or {}), env or {})
    return config.base_url, config.model


@pytest.mark.usefixtures("shipped")
def test_without_settings_it_is_k3_nano() -> None:
    assert settled() == ("local:", "k3-nano")


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize(
    ("flags", "env"),
    [
        (Flags(), {"UNABRIDGED_API_KEY": "sk-1"}),
        (Flags(), {"MOONSHOT_API_KEY": "sk-1"}),
        (Flags(), {"UNABRIDGED_BASE_URL": "http://127.0.0.1:8000/v1"}),
        (Flags(base_url="https://api.moonshot.ai/v1"), {}),
        (Flags(), {"UNABRIDGED_MODEL": "kimi-k3"}),
        (Flags(model="kimi-k3"), {}),
    ],
)
def test_whoever_names_a_model_or_has_a_key_gets_that(flags: Flags, env: dict[str, str]) -> None:
    url, model = settled(flags, env)
    assert url != "local:"
    assert model == "kimi-k3"


def test_without_weights_it_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "nano_folder", lambda: tmp_path)
    assert settled() == ("https://api.moonshot.ai/v1", "kimi-k3")


def test_it_costs_nothing() -> None:
    price = pricing(load_config(Flags(base_url="local:"), env={}))
    assert price(Usage(prompt=10**6, cached=0, completion=10**6)) == 0.0


# --- what goes wrong -----------------------------------------------------------------------------


def failure(folder: str) -> str:
    with pytest.raises(ConfigError) as error:
        connect(load_config(Flags(base_url=f"local:{folder}", model="k3-nano"), env={}), {})
    assert "\n" not in str(error.value)
    return str(error.value)


def test_without_torch_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None if name == "torch" else name)
    said = failure(str(tmp_path))
    assert "pip install 'unabridged[model]'" in said
    assert "--base-url" in said


def test_no_folder_and_no_checkpoint_are_named(tmp_path: Path) -> None:
    assert "nowhere: no such folder" in failure(str(tmp_path / "nowhere"))
    assert "config.json" in failure(str(tmp_path))


def test_altered_weights_are_named_with_their_hash(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other")
    wanted = hashlib.sha256(b"trained").hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{wanted}  model.safetensors\n")
    said = failure(str(tmp_path))
    assert f"{tmp_path}/model.safetensors was altered" in said
    assert wanted in said
    assert hashlib.sha256(b"other").hexdigest() in said
    (tmp_path / "model.safetensors").unlink()
    assert "model.safetensors: No such file" in failure(str(tmp_path))


def test_a_user_s_home_may_be_written_short(tmp_path: Path) -> None:
    assert str(tmp_path / "weights") in failure("~/weights")


# --- a whole run ---------------------------------------------------------------------------------


def run(repo: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "unabridged", "run", "Rename x to y.", "--repo", str(repo)]
    return subprocess.run(
        [*command, "--sessions-dir", str(repo.parent / "sessions"), *words],
        capture_output=True, text=True, check=False, env={**os.environ, **env},
    )  # fmt: skip


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    made = tmp_path / "repo"
    made.mkdir()
    (made / "a.py").write_bytes(b"x = 1\n")
    return made


def test_a_model_that_talks_nonsense_ends_with_a_clear_result(repo: Path, tmp_path: Path) -> None:
    """A small random K3 of the real architecture, from its checkpoint to the result."""
    import torch

    from unabridged.model.chat.tokenizer import write_ranks
    from unabridged.model.checkpoint import save_model
    from unabridged.model.config import K3Config
    from unabridged.model.k3 import K3

    folder = tmp_path / "weights"
    folder.mkdir()
    base = Path(K3Config.from_pretrained.__code__.co_filename).parent / "k3_config.json"
    document: dict[str, Any] = json.loads(base.read_bytes())
    text = document["text_config"]
    text |= {
        "vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 64, "moe_intermediate_size": 32,
        "routed_expert_hidden_size": 32, "num_experts": 4, "num_experts_per_token": 2,
        "num_shared_experts": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 16, "max_position_embeddings": 6000,
        "attn_res_block_size": 2,
    }  # fmt: skip
    text["linear_attn_config"] |= {
        "num_heads": 2, "head_dim": 16, "kda_layers": [1, 2, 3], "full_attn_layers": [4],
    }  # fmt: skip
    document |= {"bos_token_id": 256, "eos_token_id": 258, "dtype": "float32"}
    document.pop("vision_config", None)
    document.pop("quantization_config", None)
    text.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(document))
    write_ranks([bytes((byte,)) for byte in range(256)], folder / "tiktoken.model")
    torch.manual_seed(0)
    save_model(K3(K3Config.from_pretrained(folder), torch.float32), folder)
    done = run(repo, "--base-url", f"local:{folder}", "--json", "--max-minutes", "1")
    assert "Traceback" not in done.stderr
    result = json.loads(done.stdout)
    assert result["exit_code"] == done.returncode
    assert result["exit_code"] in (5, 6, 7, 8), result
    assert result["endpoint"] == f"local:{folder}"
    assert result["cost_usd"] == 0
    assert (repo / "a.py").read_bytes() == b"x = 1\n"


def test_what_cannot_be_opened_exits_2_with_one_line(repo: Path) -> None:
    done = run(repo, "--base-url", "local:/nowhere")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not (repo.parent / "sessions").exists()


def test_the_log_s_endpoint_opens_the_same_folder_again() -> None:
    config = load_config(Flags(base_url="local:/weights", model="k3-nano"), env={})
    ran = RunStarted(
        model="k3-nano",
        endpoint="local:/weights",
        effort="max",
        mode="ask",
        on_ask="stop",
        window=16384,
    )
    assert endpoint_of(ran) == config.base_url == "local:/weights"
