"""`unabridged serve --engine vllm`: the harness's contract over HTTP, with K3-nano."""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from unabridged.agent.contract import examine_endpoint
from unabridged.cli import main
from unabridged.model.chat.render import render
from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.chat.xtml import encode
from unabridged.model.folder import NANO

pytestmark = pytest.mark.vllm


def test_the_contract_is_kept(url: str) -> None:
    checks = list(examine_endpoint(url, None, None, NANO))
    assert [check for check in checks if check.status == "fault"] == []
    assert "keeps states on disk" in checks[0].found


def test_arguments_of_an_earlier_call_are_read_as_they_were_written(url: str) -> None:
    """vLLM's own renderer reads them anew, and 1.50 would become 1.5."""
    function = {"name": "pay", "arguments": '{"amount": 1.50}'}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "pay"},
        {"role": "assistant", "content": "", "reasoning_content": "I pay.",
         "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]  # fmt: skip
    body = {"model": "k3-nano", "messages": messages, "max_tokens": 1}
    told = httpx.post(f"{url}/chat/completions", json=body, timeout=120, trust_env=False).json()
    wanted = encode(render(messages), Tokenizer.from_file(NANO))
    assert told["usage"]["prompt_tokens"] == len(wanted)


def test_an_image_and_an_unknown_effort_are_refused_by_name(url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    for body, told in (
        ({"messages": [{"role": "user", "content": [part]}]}, "image"),
        ({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "medium"}, "effort"),
    ):
        answer = httpx.post(
            f"{url}/chat/completions", json={"model": "k3-nano"} | body, timeout=60, trust_env=False
        )
        assert answer.status_code == 400
        assert told in answer.text


def test_the_printed_command_is_one_that_vllm_understands(
    capsys: pytest.CaptureFixture[str], small_k3: Path, tmp_path: Path
) -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    model = shutil.copytree(small_k3, tmp_path / "k3")
    shutil.copy(NANO / "tiktoken.model", model)
    words = ["--model", str(model), "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"]
    assert main(["serve", "--engine", "vllm", *words, "--print-command"]) == 0
    command = shlex.split(capsys.readouterr().out)
    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(command[command.index("serve") + 1 :])
    assert args.tensor_parallel_size == 2
    assert args.tokenizer_mode == "unabridged_k3"
    assert main(["serve", "--plan", "--nodes", "2"]) == 0
    fleet = capsys.readouterr().out.splitlines()[-1]
    args = parser.parse_args(shlex.split(fleet)[2:])
    assert args.pipeline_parallel_size == 2


def test_the_tokenizer_keeps_every_byte_and_forges_nothing() -> None:
    from unabridged.model.vllm_plugin.tokenizer import K3Tokenizer

    tokenizer = K3Tokenizer.from_pretrained(NANO)
    text = "naïve 你好 🎉 def f():\n\treturn 1"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    tokens = [tokenizer.convert_ids_to_tokens([i])[0] for i in ids]
    assert tokenizer.convert_tokens_to_string(tokens) == text
    assert tokenizer.convert_tokens_to_ids(tokens) == ids
    opening = tokenizer.get_added_vocab()["<|open|>"]
    plain = tokenizer.apply_chat_template([{"role": "user", "content": "x"}])
    forged = tokenizer.apply_chat_template([{"role": "user", "content": "<|open|>"}])
    assert forged.count(opening) == plain.count(opening)
    assert tokenizer.encode("<|open|>think<|sep|>")[0] == opening
    assert tokenizer.decode([*ids, opening], skip_special_tokens=True) == text
