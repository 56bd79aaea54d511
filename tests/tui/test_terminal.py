"""The installed program in a real terminal: tmux, a process, a scripted endpoint over HTTP."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from unabridged.agent.exits import Exit
from unabridged.agent.providers.embedded import missing
from unabridged.agent.providers.scripted import Script
from unabridged.tui.signals import LAST_SECONDS

EDIT = {"name": "edit", "arguments": {"path": "shop/price.py", "old": "def total(net)",
                                      "new": "def gross(net)"}}  # fmt: skip
PLAN = {"name": "propose_plan", "arguments": {"plan": "Rename it.", "paths": ["shop/"]}}
FINISH = {"name": "finish", "arguments": {"status": "done", "summary": "Renamed it."}}
SCRIPT = {
    "order": "history",
    "turns": [{"calls": [PLAN], "reasoning": "A plan first."}, {"calls": [EDIT]},
              {"calls": [FINISH]}],
}  # fmt: skip


GARDEN = Path(__file__).resolve().parents[2] / "examples" / "garden"
NO_KEYRING = "keyring.backends.null.Keyring"
DONE = "✔ count_dry is now thirsty_beds."


class Terminal:
    """A tmux server of its own, with one window."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._opened = 0
        self._env = env

    @property
    def _socket(self) -> str:
        return str(self._folder / f"tmux{self._opened}")

    def tmux(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-S", self._socket, *words], capture_output=True,
                              text=True, env=self._env, check=True, timeout=20)  # fmt: skip
        return done.stdout

    def open(self, *words: str, size: tuple[int, int] = (100, 30), env: str = "") -> None:
        command = f"env {env} {shlex.join([sys.executable, '-m', 'unabridged', *words])}"
        self._opened += 1  # a server that was ended may still be going: never the same one
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]),
                  f"{command}; echo closed with $?; sleep 60")  # fmt: skip

    @property
    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def sees(self, *texts: str, seconds: float = 40) -> None:
        """Wait until all of them are there at once."""
        self._until(lambda screen: all(text in screen for text in texts), texts, seconds)

    def sees_one(self, *texts: str, seconds: float = 40) -> str:
        """Wait for one of them; the first that is there."""
        screen = self._until(lambda screen: any(text in screen for text in texts), texts, seconds)
        return next(text for text in texts if text in screen)

    def _until(self, good: Callable[[str], bool], texts: tuple[str, ...], seconds: float) -> str:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if good(screen := self.screen):
                return screen
            time.sleep(0.1)
        raise AssertionError(f"never came: {texts}\n{self.screen}")

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def write(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)
        self.keys("Enter")

    def answer(self, key: str) -> None:
        """After the grace of a card."""
        time.sleep(0.8)
        self.keys(key)


Opened = Callable[..., Terminal]


@pytest.fixture
def in_tmux(home: Path, tmp_path: Path) -> Iterator[Opened]:
    """`in_tmux(NAME="value")`: a terminal without settings or keys, whose environment has these."""
    bare = {name: value for name, value in os.environ.items()
            if name not in ("COLUMNS", "LINES", "COLORTERM") and "_API_KEY" not in name
            and not name.startswith("UNABRIDGED_")}  # fmt: skip

    def open_(**env: str) -> Terminal:
        return Terminal(tmp_path, {**bare, "HOME": str(home), "TERM": "xterm-256color", **env})

    try:
        yield open_
    finally:
        for socket in tmp_path.glob("tmux*"):
            subprocess.run(["tmux", "-S", str(socket), "kill-server"], check=False,
                           capture_output=True)  # fmt: skip


@pytest.fixture
def terminal(in_tmux: Opened, serve_script: Callable[..., Any]) -> Terminal:
    """One whose model is a script, served over HTTP."""
    server = serve_script(Script.model_validate(SCRIPT))
    return in_tmux(UNABRIDGED_BASE_URL=server.url, UNABRIDGED_MODEL="kimi-k3")


@pytest.mark.needs("tmux")
def test_open_load_plan_approve_diff_undo_resume(
    terminal: Terminal, shop: Path, tmp_path: Path
) -> None:
    sessions = str(tmp_path / "sessions")
    terminal.open(str(shop), "--sessions-dir", sessions)
    terminal.sees("Load plan", "3 files whole", "Enter starts")
    terminal.write("Rename total to gross")
    terminal.sees("A plan to approve", "Rename it.")
    terminal.answer("y")
    terminal.sees("Renamed it.", "+ def gross(net):")
    assert b"gross" in (shop / "shop/price.py").read_bytes()
    terminal.write("/diff")
    terminal.sees("Changes of this session", "shop/price.py")
    terminal.keys("Escape")
    time.sleep(0.5)
    terminal.write("/undo")
    terminal.sees("Undo from step", "+ def total(net):")
    terminal.keys("u")
    terminal.sees("1 put back")
    assert b"def total" in (shop / "shop/price.py").read_bytes()
    terminal.keys("C-q")
    terminal.sees("Go on with `unabridged --resume", "closed with 0")
    terminal.tmux("kill-server")
    terminal.open(str(shop), "--sessions-dir", sessions, "--resume", "last")
    terminal.sees("In scope for this task: shop/", "+ def gross(net):", "Renamed it.")


@pytest.mark.needs("tmux")
def test_a_lost_terminal_leaves_no_process_and_a_saved_session(
    terminal: Terminal, shop: Path, tmp_path: Path
) -> None:
    terminal.open(str(shop), "--sessions-dir", str(tmp_path / "sessions"))
    terminal.sees("Enter starts")
    terminal.write("!sleep 4321")
    terminal.sees("◐ !")
    time.sleep(0.5)
    terminal.tmux("kill-server")
    until = time.monotonic() + 10
    left: list[psutil.Process] = []
    while time.monotonic() < until:
        left = [p for p in psutil.process_iter(["cmdline"])
                if str(shop) in (line := " ".join(p.info["cmdline"] or [])) or "sleep 4321" in line]  # fmt: skip
        if not left:
            return
        time.sleep(0.2)
    raise AssertionError([p.info["cmdline"] for p in left])


@pytest.mark.parametrize("how", ["closed", "terminated"])
def test_a_terminal_that_reads_nothing_keeps_no_process(
    home: Path, shop: Path, tmp_path: Path, how: str
) -> None:
    """What is drawn fills the terminal's buffer, and the program stands still in a write."""
    env = {**os.environ, "HOME": str(home), "TERM": "xterm-256color", "MOONSHOT_API_KEY": "sk-1"}
    command = [sys.executable, "-m", "unabridged", str(shop), "--sessions-dir", str(tmp_path / "s")]
    pid, ours = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, env)
    try:
        assert os.read(ours, 1)  # it has begun to draw
        time.sleep(3)
        if how == "closed":
            os.close(ours)
        else:
            os.kill(pid, signal.SIGTERM)
        psutil.Process(pid).wait(LAST_SECONDS + 8)
    finally:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            psutil.Process(pid).kill()
        with contextlib.suppress(OSError):
            os.close(ours)


def test_a_terminal_that_does_not_control_it_and_goes_away_ends_it(
    home: Path, shop: Path, tmp_path: Path
) -> None:
    """No signal comes then; neither side of the terminal may keep it running."""
    env = {**os.environ, "HOME": str(home), "TERM": "xterm-256color", "MOONSHOT_API_KEY": "sk-1"}
    command = [sys.executable, "-m", "unabridged", str(shop), "--sessions-dir", str(tmp_path / "s")]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        try:
            assert os.read(ours, 1)  # it has begun to draw
            os.close(ours)
            assert process.wait(LAST_SECONDS + 8) == Exit.HANGUP
        finally:
            process.kill()


# --- K3-nano ------------------------------------------------------------------------------------------


@pytest.mark.needs("tmux")
@pytest.mark.skipif(missing(), reason="a model in this process needs torch")
def test_a_newcomer_sees_k3_nano_refactor(in_tmux: Opened, tmp_path: Path) -> None:
    """Nothing is set: no key, no endpoint, no model. The sample is that of `make run`."""
    repo = tmp_path / "garden"
    shutil.copytree(GARDEN, repo, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-c", "user.name=T", "-c", "user.email=t@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "start"]):
        subprocess.run([*git, *words], cwd=repo, check=True)
    terminal = in_tmux(PYTHONDONTWRITEBYTECODE="1", PYTHON_KEYRING_BACKEND=NO_KEYRING)
    terminal.open(str(repo), "--sessions-dir", str(tmp_path / "sessions"), size=(80, 24))
    terminal.sees("K3-nano does the work", "Try: Rename old_name to new_name.", seconds=60)
    terminal.sees(
        "4 files whole", "Free: the model runs in this process", "Enter starts", seconds=60
    )
    terminal.write("Rename count_dry to thirsty_beds.")
    terminal.sees("A plan to approve", "may run  python3 -m unittest -q")
    # Yes to the plan, and to each file that this small model leaves out of its scope.
    while terminal.sees_one(DONE, "waiting for you") != DONE:
        terminal.answer("y")
    terminal.sees(DONE, "python3 -m unittest -q: exit 0", "free")
    texts = {path.name: path.read_text() for path in repo.glob("*.py")}
    assert [name for name, text in texts.items() if "count_dry" in text] == []
    assert "def thirsty_beds" in texts["beds.py"]
    check = [sys.executable, "-m", "unittest", "-q"]
    assert subprocess.run(check, cwd=repo, capture_output=True, check=False).returncode == 0
    terminal.keys("C-q")
    terminal.sees("Go on with `unabridged --resume", "closed with 0")


# --- what terminals can show --------------------------------------------------------------------------

_SGR = re.compile(r"\x1b\[([0-9;]*)m")


def colour_codes(screen: str) -> set[str]:
    """The attributes on a screen that are colours: 16 of them, or of 256, or any."""
    found: set[str] = set()
    for codes in _SGR.findall(screen):
        rest = codes.split(";")
        while rest:
            code = rest.pop(0)
            if code in ("38", "48"):
                found.add(f"{code};{rest[0]}")
                rest = rest[2:] if rest[0] == "5" else rest[4:]
            elif code not in ("39", "49") and re.fullmatch(r"(3|4|9|10)[0-7]", code):
                found.add(code)
    return found


@pytest.mark.needs("tmux")
@pytest.mark.parametrize(
    ("words", "few", "none"),
    [
        ("TERM=xterm-256color", False, False),
        ("TERM=screen", True, False),
        ("TERM=linux", True, False),
        ("TERM=xterm-256color NO_COLOR=1", True, True),
        ("TERM=screen NO_COLOR=1", True, True),
    ],
)
def test_a_terminal_gets_the_colours_it_has(
    terminal: Terminal, shop: Path, tmp_path: Path, words: str, few: bool, none: bool
) -> None:
    terminal.open(str(shop), "--sessions-dir", str(tmp_path / "sessions"), env=words)
    terminal.sees("Load plan", "3 files whole", "Enter starts")
    terminal.write("Rename total to gross")
    terminal.sees("A plan to approve", "❯ y Yes, this plan")
    terminal.answer("y")
    terminal.sees("Renamed it.", "+ def gross(net):")
    terminal.write("/theme")
    terminal.sees("Type to narrow", "ansi-dark")
    screen = terminal.tmux("capture-pane", "-p", "-e")
    used = colour_codes(screen)
    assert bool(used) is not none
    assert any(";" in code for code in used) is not few
    if none:
        chosen = next(line for line in screen.split("\n") if "unabridged-dark" in line)
        assert re.search(r"\x1b\[(\d+;)*4(;\d+)*m[^\x1b]*unabridged-dark", chosen), repr(chosen)
