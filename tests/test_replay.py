"""Every word goes back: a long run on a real package, checked against what the server sent.

The model is scripted, everything else is real: the process, HTTP, the package, the tools. What
the server received is compared with what it had sent, without any code of the harness.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pathspec

from unabridged.agent.providers.scripted import Question
from unabridged.agent.providers.scripted_server import ScriptedServer

STEPS = 36
STOP = 17
"""Steps of the first process; a second one goes on."""
ODD = [
    "\u00e4\u4e16\u754c\U0001f600",
    "\u2028\u2029",
    "\r\n",
    "\t",
    "\x00\x1b",
    '\\"}',
    "</think>",
    " \n\n ",
]
EXCEPTIONS = {"elided", "call_dropped", "arguments_quoted", "empty_skipped"}


class Agent:
    """A scripted agent: looks around in a package, edits it, checks that it still compiles."""

    def __init__(self, repo: Path, files: list[str]) -> None:
        self.repo = repo
        self.files = files
        self.sent: list[dict[str, Any]] = []
        """What was sent, turn by turn, as a request has to repeat it."""
        self._random = random.Random(3)
        self._calls = 0

    def __call__(self, question: Question) -> dict[str, Any]:
        """The next turn, by how many replies the request has."""
        number = question.turn
        if number < len(self.sent):
            raise AssertionError("a turn was asked for twice")
        calls = [self._call(*call) for call in self._step(number)]
        turn = {
            "reasoning": self._words(number, 60),
            "content": self._words(number, 4) if number % 3 else "",
            "calls": calls,
            "wire": {"interleave": number, "chunk": self._random.choice([1, 7, 64, 0])},
        }
        self.sent.append(turn)
        return turn

    def _step(self, number: int) -> list[tuple[str, dict[str, Any]]]:
        pick = self._random.choice
        check = "python3 -c 'import ast, pathlib; [ast.parse(p.read_bytes()) for p in pathlib.Path().rglob(\"*.py\")]'"
        if number == STEPS - 1:
            return [
                (
                    "finish",
                    {"status": "done", "summary": "Looked \u00e4round.", "verified": [check]},
                )
            ]
        if number == STEPS - 2:
            return [("shell", {"command": check})]
        match number % 4:
            case 0:
                return [
                    ("read", {"path": pick(self.files), "start": 1 + number, "end": 200 + number})
                    for _ in range(3)
                ]
            case 1:
                words = self._random.sample(
                    ["def", "import", "raise", "class", "return", "self"], 4
                )
                return [
                    *[
                        ("search", {"pattern": rf"\b{word}\b", "limit": 5 + number})
                        for word in words
                    ],
                    ("list", {"path": ".", "depth": 1 + number % 3}),
                ]
            case 2:
                return [
                    self._edit(pick(self.files), number),
                    ("read", {"path": pick(self.files), "end": 99}),
                ]
            case _:
                return [
                    ("shell", {"command": f"wc -c {pick(self.files)}"}),
                    ("shell", {"command": f"printf '%s\\n' step-{number}"}),
                ]

    def _edit(self, path: str, number: int) -> tuple[str, dict[str, Any]]:
        """Adds a comment after a line that occurs once."""
        lines = re.findall(
            r"(?m)^(?:import|from|def|class) [^\n\\(]*[^\n\\(,:]$", (self.repo / path).read_text()
        )
        once = [line for line in lines if (self.repo / path).read_text().count(line) == 1]
        line = self._random.choice(once) if once else "not there \u00e4"
        return "edit", {"path": path, "old": line, "new": f"{line}  # step {number} \u4e16"}

    def _call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """A call whose argument text no serialiser would write that way."""
        self._calls += 1
        styles: list[dict[str, Any]] = [
            {},
            {"ensure_ascii": False},
            {"indent": 1},
            {"separators": (" ,", ":  ")},
        ]
        text = json.dumps(arguments, **self._random.choice(styles))
        return {
            "name": name,
            "arguments": " " * (self._calls % 2) + text,
            "id": f"functions.{name}:{self._calls}",
        }

    def _words(self, number: int, count: int) -> str:
        chosen = [
            self._random.choice([*ODD, "so", "then", "because", "it", "seems"])
            for _ in range(count)
        ]
        return f"{number}: {' '.join(chosen)}"


def run(repo: Path, home: Path, url: str, *words: str) -> dict[str, Any]:
    """One process of the harness; returns its result."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "UNABRIDGED_BASE_URL": url,
    }
    command = [sys.executable, "-m", "unabridged", "run", "--json", "--repo", str(repo)]
    rules = ["--allow", "write", "--allow", "execute", "--sessions-dir", str(home / "sessions")]
    done = subprocess.run(
        [*command, *rules, *words],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def parse_messages(body: bytes) -> tuple[list[bytes], list[dict[str, Any]]]:
    """The messages of a request, as the bytes that were sent and parsed."""
    text = body.decode()
    at = text.index('"messages":[') + len('"messages":[')
    raw: list[bytes] = []
    parsed: list[dict[str, Any]] = []
    while text[at] != "]":
        at += text[at] == ","
        message, end = json.JSONDecoder().raw_decode(text, at)
        raw.append(text[at:end].encode())
        parsed.append(message)
        at = end
    return raw, parsed


def expected_reply(turn: dict[str, Any]) -> dict[str, Any]:
    """How a reply has to come back."""
    return {
        "role": "assistant",
        "content": turn["content"],
        "reasoning_content": turn["reasoning"],
        "tool_calls": [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in turn["calls"]
        ],
    }


def prepare(source: Path, folder: Path) -> tuple[Path, list[str]]:
    """A package as a git repository, and its modules."""
    repo = folder / "package"
    shutil.copytree(source, repo / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "init", "-q"], cwd=repo, check=True)
    subprocess.run(["git", "add", "."], cwd=repo, check=True)
    files = sorted(str(p.relative_to(repo)) for p in repo.rglob("*.py") if p.stat().st_size > 400)
    return repo, files


def check_run(
    repo: Path, files: list[str], home: Path, serve: Callable[..., ScriptedServer]
) -> dict[str, Any]:
    """Run on a repository in two processes and hold every request to what was sent before it."""
    home.mkdir()
    agent = Agent(repo, files)
    server = serve(agent)
    first = run(repo, home, server.url, "Look around", "--max-steps", str(STOP))
    assert (first["exit_code"], first["steps"]) == (5, STOP)
    result = run(repo, home, server.url, "--resume", "last", "--max-steps", "99")
    assert server.failures == []
    assert (result["exit_code"], result["verified"], result["steps"]) == (0, True, STEPS), result
    assert len(result["files_changed"]) > 1

    bodies = [request.body for request in server.requests]
    assert len(bodies) == STEPS
    sent = [parse_messages(body) for body in bodies]
    for number, (raw, messages) in enumerate(sent):
        # What the request says of each earlier turn is what the server had said.
        replies = [message for message in messages if message["role"] == "assistant"]
        assert replies == [expected_reply(turn) for turn in agent.sent[:number]]
        # Each call has its one result, in the order of the calls.
        for position, message in enumerate(messages):
            if message["role"] == "assistant":
                ids = [call["id"] for call in message["tool_calls"]]
                after = messages[position + 1 : position + 1 + len(ids)]
                assert [m["tool_call_id"] for m in after] == ids
        # Each request extends the one before it, byte for byte.
        if number:
            before = sent[number - 1][0]
            assert raw[: len(before)] == before
            start = bodies[number - 1].index(b'"messages":[')
            length = start + len(b'"messages":[') + len(b",".join(before))
            assert bodies[number][:length] == bodies[number - 1][:length]
        other = {k: v for k, v in json.loads(bodies[number]).items() if k not in
                 ("messages", "max_completion_tokens")}  # fmt: skip
        assert other == {k: v for k, v in json.loads(bodies[0]).items() if k in other}

    (log,) = (home / "sessions").glob("*.jsonl")
    events = [json.loads(line) for line in log.read_bytes().splitlines()]
    assert not [event for event in events if event["type"] in EXCEPTIONS]
    # The log's chain of hashes is that of the bytes on the wire.
    hashes = [event["prefix_hash"] for event in events if event["type"] == "request_sent"]
    assert hashes == [
        hashlib.sha256(b"".join(message + b"\n" for message in raw)).hexdigest() for raw, _ in sent
    ]
    replies = [event for event in events if event["type"] == "assistant_message"]
    links = [reply.get("previous", "") for reply in replies]
    assert links == ["", *[reply["hash"] for reply in replies[:-1]]]
    return result


def test_every_request_of_a_long_run_repeats_what_was_received(
    tmp_path: Path, serve_script: Callable[..., ScriptedServer]
) -> None:
    repo, files = prepare(Path(pathspec.__file__).parent, tmp_path)
    result = check_run(repo, files, tmp_path / "home", serve_script)
    assert result["tokens"]["cached"] > result["tokens"]["uncached"]
