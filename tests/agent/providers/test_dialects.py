from __future__ import annotations

import pytest

from unabridged.agent.providers.dialects import (
    DIALECTS,
    check_tools,
    choose_dialect,
    is_loopback,
    is_moonshot,
)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.moonshot.ai/v1", "moonshot"),
        ("https://API.MOONSHOT.CN/v1", "moonshot"),
        ("https://api.kimi.com/coding/v1", "kimi-code"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://api.together.xyz/v1", "openai"),
        ("https://moonshot.ai.evil.example/v1", "openai"),
        ("http://localhost:8000/v1", "vllm"),
        ("http://127.0.0.1:8000/v1", "vllm"),
        ("http://[::1]:8000/v1", "vllm"),
        ("http://10.0.0.7:8000/v1", "vllm"),
        ("http://192.168.1.2/v1", "vllm"),
        ("http://gpu-box:30000/v1", "vllm"),
        ("http://gpu.internal/v1", "vllm"),
        ("http://8.8.8.8/v1", "openai"),
    ],
)
def test_dialect_by_host(url: str, name: str) -> None:
    assert choose_dialect(url) is DIALECTS[name]


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("https://api.moonshot.ai/v1", True),
        ("https://api.moonshot.cn/v1", True),
        ("https://api.kimi.com/coding/v1", True),
        ("http://api.moonshot.ai/v1", False),
        ("https://api.moonshot.ai.evil.example/v1", False),
        ("https://evil.example/api.moonshot.ai", False),
        ("https://api.moonshot.ai@evil.example/v1", False),
        ("https://openrouter.ai/api/v1", False),
    ],
)
def test_hosts_that_may_get_moonshots_key(url: str, own: bool) -> None:
    assert is_moonshot(url) == own


def test_loopback() -> None:
    assert [h for h in ("localhost", "a.localhost", "127.9.9.9", "::1") if not is_loopback(h)] == []
    assert [h for h in ("10.0.0.1", "localhost.example", "") if is_loopback(h)] == []


def test_k27_limits_of_tools() -> None:
    check_tools([f"tool_{i}" for i in range(128)])
    check_tools(["git", "ask_user", "_ab", "a-b", "a" * 64])
    with pytest.raises(ValueError, match="leave out tool_128"):
        check_tools([f"tool_{i}" for i in range(129)])
    for bad in ("ab", "1abc", "-abc", "a b c", "a" * 65, "ünder", "abc\n", ""):
        with pytest.raises(ValueError, match="3 to 64 letters"):
            check_tools([bad])
    with pytest.raises(ValueError, match="twice: read"):
        check_tools(["read", "list", "read"])
