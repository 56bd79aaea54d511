"""The sandbox holds a command to what was granted."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from unabridged.agent.effects import Effect, EffectKind
from unabridged.tools import sandbox
from unabridged.tools.output import Output
from unabridged.tools.process import Outcome, Processes, StartError
from unabridged.tools.sandbox import NOTHING, Grant, Sandbox, SandboxError, Scratch

WRITE = Grant(write=True)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home folder that no private folder of the sandbox covers."""
    folder = Path(tempfile.mkdtemp(dir=Path.home(), prefix="test-home-"))
    monkeypatch.setenv("HOME", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def root(home: Path) -> Path:
    folder = home / "repo"
    folder.mkdir()
    return folder


class Box:
    """Runs commands in sandboxes over one repository."""

    def __init__(self, root: Path, processes: Processes, files: Path) -> None:
        self.root = root
        self.processes = processes
        self.files = files
        self.count = 0

    async def run(self, command: str, grant: Grant = NOTHING) -> tuple[Outcome, str]:
        self.count += 1
        running = self.processes.start(
            ["/bin/bash", "-c", command],
            root=self.root,
            env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]},
            output=Output(self.files / f"{self.count}"),
            grant=grant,
        )
        outcome = await running.wait(30)
        return outcome, running.output.excerpt()


@pytest.fixture
async def box(bubblewrap: None, root: Path, home: Path, tmp_path: Path) -> AsyncIterator[Box]:
    protected, hidden = root / "sessions", home / "harness-keys"
    protected.mkdir()
    hidden.mkdir()
    (hidden / "key").write_text("sk-1")
    processes = Processes(Sandbox.detect("required", protected=[protected], hidden=[hidden]))
    yield Box(root, processes, tmp_path)
    await processes.close()


# --- files ---------------------------------------------------------------------------------------


async def test_the_repository_is_writable_only_when_granted(box: Box) -> None:
    (box.root / "a").write_text("a")
    outcome, text = await box.run("cat a; touch b || rm a || echo >> a")
    assert outcome.exit_code != 0
    assert text.count("Read-only file system") == 3
    outcome, _ = await box.run("echo b > b; rm a", WRITE)
    assert outcome.exit_code == 0
    assert [path.name for path in box.root.iterdir() if path.is_file()] == ["b"]


@pytest.mark.parametrize("grant", [NOTHING, WRITE])
async def test_nothing_else_is_writable(box: Box, home: Path, grant: Grant) -> None:
    (home / "notes").write_text("mine")
    places = [home / "notes", home / "new", home.parent / "x", Path("/etc/x"), Path("/usr/x")]
    places += [Path("/x"), Path("/var/x"), Path("/proc/sys/kernel/hostname"), Path("/sys/x")]
    places.append(box.root / "sessions" / "log")
    _, text = await box.run(
        "\n".join(f"(echo x > {place}) 2>/dev/null && echo {place}" for place in places), grant
    )
    assert text == ""
    assert (home / "notes").read_text() == "mine"
    assert not any(place.exists() for place in places[1:7])


async def test_a_granted_path_outside_is_writable_and_no_more(box: Box, home: Path) -> None:
    (home / "other").mkdir()
    (home / "next").mkdir()
    effects = [
        Effect(kind=EffectKind.WRITE, path=str(home / "other" / "new")),
        Effect(kind=EffectKind.OUTSIDE_ROOT, path=str(home / "other" / "new")),
    ]
    grant = Grant.of(effects)
    _, text = await box.run("echo x > ../other/new; echo x > ../next/new; echo x > own", grant)
    assert (home / "other" / "new").read_text() == "x\n"
    assert text.count("Read-only file system") == 2


async def test_no_grant_opens_the_home_or_the_system(box: Box, home: Path) -> None:
    for path in (home / "new", Path("/new"), home.parent / "new"):
        grant = Grant.of([Effect(kind=EffectKind.WRITE, path=str(path))])
        _, text = await box.run(f"echo x > {path}", grant)
        assert "Read-only file system" in text
        assert not path.exists()


async def test_temporary_and_cache_folders_are_private_and_shared_by_the_session(
    box: Box, home: Path
) -> None:
    (home / ".cache").mkdir()
    (home / ".cache" / "mine").write_text("mine")
    await box.run("echo one > /tmp/kept; echo one > ~/.cache/kept; echo one > /var/tmp/kept")
    _, text = await box.run("cat /tmp/kept ~/.cache/kept /var/tmp/kept; ls ~/.cache", WRITE)
    assert text == "one\none\none\nkept\n"
    assert not Path("/tmp/kept").exists()
    assert not Path("/var/tmp/kept").exists()
    assert [path.name for path in (home / ".cache").iterdir()] == ["mine"]


async def test_private_folders_are_gone_afterwards(box: Box) -> None:
    await box.run("true")
    scratch = list(Path(tempfile.gettempdir()).glob("unabridged-scratch-*"))
    assert scratch
    await box.processes.close()
    assert set(Path(tempfile.gettempdir()).glob("unabridged-scratch-*")) < set(scratch)


async def test_credentials_are_seen_only_by_those_they_are_for(box: Box, home: Path) -> None:
    for name in (".ssh/id", ".aws/credentials"):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text("secret\n")
    (home / ".netrc").write_text("secret\n")
    read = "cat ~/.ssh/id ~/.aws/credentials ~/.netrc ~/harness-keys/key 2>/dev/null"
    assert (await box.run(read))[1] == ""
    assert (await box.run(read, Grant(write=True, network=True)))[1] == ""
    push = Grant.of([Effect(kind=EffectKind.EXECUTE, command=("git", "push"))])
    assert (await box.run(read, push))[1] == "secret\n" * 2
    named = Grant.of([Effect(kind=EffectKind.SECRET, path=str(home / ".aws/credentials"))])
    assert (await box.run(read, named))[1] == "secret\n"
    anything = Grant.of([Effect(kind=EffectKind.SECRET)])
    assert (await box.run(read, anything))[1] == "secret\n" * 3, "never the harness's own"


async def test_sockets_of_the_system_are_out_of_reach(box: Box) -> None:
    _, text = await box.run("ls -A /run")
    assert set(text.split()) <= {Path(name).parts[0] for name in sandbox._RUN}


@pytest.mark.parametrize(
    "attempt",
    [
        "mount -o remount,rw /",
        "mount -o remount,rw,bind / /",
        "umount -l /run",
        "unshare -Um sh -c 'mount -o remount,rw,bind /; echo > /etc/escaped'",
        "nsenter -t 1 -m true",
        "chroot /proc/1/root touch /etc/escaped",
        "mknod /tmp/disk b 8 0 && head -c1 /tmp/disk",
        "cat /proc/sys/kernel/core_pattern > /tmp/c; cat /tmp/c > /proc/sys/kernel/core_pattern",
        "echo h > /proc/sysrq-trigger",
        "ln -s /etc/escaped /tmp/l; echo > /tmp/l",
    ],
)
async def test_the_walls_hold(box: Box, attempt: str) -> None:
    outcome, text = await box.run(f"({attempt}) && echo it went through", WRITE)
    assert outcome.exit_code != 0
    assert "it went through" not in text
    assert not Path("/etc/escaped").exists()


async def test_a_repository_made_anew_is_seen(box: Box) -> None:
    (box.root / "old").write_text("old")
    await box.run("ls")
    shutil.rmtree(box.root)
    box.root.mkdir()
    (box.root / "new").write_text("new")
    assert (await box.run("ls"))[1] == "new\n"


# --- network and processes -----------------------------------------------------------------------


async def test_network_only_when_granted(box: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f": > /dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        assert (await box.run(connect))[0].exit_code != 0
        assert (await box.run(connect, Grant(network=True)))[0].exit_code == 0


async def test_other_processes_cannot_be_seen_or_ended(box: Box) -> None:
    with subprocess.Popen(["sleep", "60"]) as victim:
        _, text = await box.run(f"ls /proc; kill -9 {victim.pid} -1 2>/dev/null; true")
        assert victim.poll() is None
        seen = [word for word in text.split() if word.isdigit()]
        assert len(seen) < 10
        victim.kill()
    assert (await box.run("echo still here"))[1] == "still here\n"


async def test_supervisors_keep_no_secret_of_the_harness(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONSHOT_API_KEY", "sk-secret")
    _, text = await box.run("cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
    assert "sk-secret" not in text
    assert "PATH=" in text


# --- whether there is one ------------------------------------------------------------------------


@pytest.mark.needs("bwrap")
def test_the_state_is_stated() -> None:
    assert Sandbox.detect("auto").describe().startswith("sandbox on (bubblewrap)")
    assert Sandbox.detect("off").describe().startswith("sandbox off: switched off")


@pytest.fixture
def fresh() -> Iterator[None]:
    sandbox._bubblewrap.cache_clear()
    yield
    sandbox._bubblewrap.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_without_bubblewrap_required_refuses_and_auto_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="bubblewrap is not installed") as caught:
        Sandbox.detect("required")
    assert "\n" not in str(caught.value)
    found = Sandbox.detect("auto")
    assert not found.active
    assert "bubblewrap is not installed" in found.describe()


@pytest.mark.usefixtures("fresh")
def test_a_bubblewrap_that_does_not_work_is_no_sandbox(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bwrap").write_text(
        "#!/bin/sh\necho 'bwrap: setting up uid map: denied' >&2; exit 1\n"
    )
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match="does not work here: bwrap: setting up uid map: denied"):
        Sandbox.detect("required")


async def test_a_sandbox_that_fails_later_runs_nothing(root: Path, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: no more namespaces' >&2; exit 1\n")
    broken.chmod(0o755)
    processes = Processes(Sandbox(str(broken)))
    output = Output(tmp_path / "out")
    command = ["/bin/bash", "-c", f"touch {root}/ran"]

    async def attempt() -> None:
        """Fails at the start or later, depending on which process is faster."""
        running = processes.start(command, root=root, env={}, output=output, grant=WRITE)
        raise StartError((await running.wait(10)).error)

    try:
        with pytest.raises(StartError, match="no more namespaces"):
            await attempt()
    finally:
        await processes.close()
    assert not (root / "ran").exists()


@pytest.mark.needs("bwrap")
def test_it_works_without_privileges(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = 65534
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "repo")
        root.mkdir()
        scratch = Scratch()
        as_nobody = {}
        if os.getuid() == 0:
            for name in ("tmp", "var-tmp", "cache"):
                os.chown(scratch.folder(name), nobody, nobody)
            for path in (folder, root, scratch.path):
                os.chown(path, nobody, nobody)
            monkeypatch.setattr(os, "getuid", lambda: nobody)
            monkeypatch.setenv("HOME", "/nonexistent")
            monkeypatch.setattr(sandbox, "_needed", list)  # this Python may be root's own
            as_nobody = {"user": nobody, "group": nobody, "extra_groups": []}

        def run(grant: Grant) -> str:
            argv = ["/bin/sh", "-c", "touch a; echo ok > /tmp/x; cat /tmp/x; ls; touch /etc/x"]
            box = Sandbox.detect("required")
            line = box.command(argv, root=root, grant=grant, scratch=scratch)
            done = subprocess.run(line, capture_output=True, cwd="/", **as_nobody)
            assert not done.stderr.startswith(b"bwrap")
            return done.stdout.decode()

        assert run(NOTHING) == "ok\n"
        assert run(WRITE) == "ok\na\n"
        scratch.close()


# --- grants and scratch --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effects", "grant"),
    [
        ([("execute", None)], NOTHING),
        ([("read", "a"), ("execute", None)], NOTHING),
        ([("write", "a")], WRITE),
        ([("delete", None), ("outside_root", None)], WRITE),
        ([("git_destructive", None)], WRITE),
        ([("network", None)], Grant(network=True)),
        ([("secret", ".env")], NOTHING),
        ([("write", "/etc/hosts")], Grant(outside=(Path("/etc/hosts"),))),
        ([("write", "/etc/no/such/file")], Grant(outside=(Path("/etc"),))),
        ([("delete", "/etc/hosts")], Grant(outside=(Path("/etc"),))),
    ],
)
def test_a_grant_is_what_the_effects_say(
    effects: list[tuple[str, str | None]], grant: Grant
) -> None:
    found = Grant.of(Effect(kind=EffectKind(kind), path=path) for kind, path in effects)
    assert found == grant


def test_what_a_killed_harness_left_is_removed_and_what_is_in_use_is_not() -> None:
    live, dead = Scratch(), Scratch()
    (dead.folder("tmp") / "x").write_text("x")
    os.close(dead._lock)  # as the kernel does for a killed process
    last = Scratch()
    assert live.path.exists()
    assert not dead.path.exists()
    live.close()
    last.close()
    assert not live.path.exists()
