"""An environment for Harbor without containers: tasks run under bubblewrap on this machine.

    PYTHONPATH=... harbor run -p TASKS -a oracle -e unabridged.evals.adapters.harbor_env:Bubblewrap

For tasks that need no image of their own, such as those of this package; Linux only. It shares the
kernel of the host: good for agents and tasks that are trusted, not for hostile ones. Harbor needs
Python 3.12 and is imported by nothing else here.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

# Harbor is an extra of those who have it: without it only this module cannot be imported.
from harbor.environments.base import (  # pyright: ignore[reportMissingImports]
    BaseEnvironment,
    ExecResult,
)
from harbor.environments.capabilities import (  # pyright: ignore[reportMissingImports]
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)

from ..sandbox import confined

_FOLDERS = ("app", "tests", "solution", "logs", "tmp", "installed-agent", "root")
_GIT = ["git", "-c", "user.name=Suite", "-c", "user.email=suite@example.com",
        "-c", "init.defaultBranch=main"]  # fmt: skip


class Bubblewrap(BaseEnvironment):
    """The tree of one environment is a folder of its trial; every command is a sandbox of its own
    over it, so processes in the background end with their command."""

    @staticmethod
    def type() -> str:
        """Its name in results."""
        return "unabridged-bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """It can be cut off from the network, and told so between phases."""
        return EnvironmentCapabilities(disable_internet=True, dynamic_network_policy=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """What a task asks for is noted; nothing is enforced."""
        return EnvironmentResourceCapabilities(
            cpu_limit=True, memory_limit=True, cpu_request=True, memory_request=True
        )

    def _validate_definition(self) -> None:
        pass

    @property
    def _root(self) -> Path:
        return Path(self.trial_paths.trial_dir).resolve() / "sandbox" / self.session_id

    async def start(self, force_build: bool) -> None:
        """Put the tree together: the repository with one commit, as the Dockerfile does it."""
        for name in _FOLDERS:
            (self._root / name).mkdir(parents=True, exist_ok=True)
        for name in ("agent", "verifier", "artifacts"):
            (self._root / "logs" / name).mkdir(exist_ok=True)
        source = Path(self.environment_dir)
        if source.name == "tests":
            shutil.copytree(source, self._root / "tests", dirs_exist_ok=True)
            return
        repo = source / "repo" if (source / "repo").is_dir() else source
        skip = shutil.ignore_patterns("Dockerfile", "setup.sh")
        shutil.copytree(repo, self._root / "app", symlinks=True, dirs_exist_ok=True, ignore=skip)
        if (source / "setup.tar").is_file():  # as such tasks' Dockerfiles unpack it
            with tarfile.open(source / "setup.tar") as archive:
                archive.extractall(self._root / "app", filter="data")
        for words in (
            ["init", "-q"],
            ["add", "-A"],
            ["commit", "-qm", "As it was", "--allow-empty"],
        ):
            await self._made("git", *_GIT[1:], *words)
        if (source / "setup.sh").is_file():
            shutil.copy(source / "setup.sh", self._root / "tmp" / "setup.sh")
            await self._made("sh", "/tmp/setup.sh")  # noqa: S108 - inside

    async def _made(self, *command: str) -> None:
        done = await self._run(list(command), "/app", {}, 120)
        if done.return_code:
            raise RuntimeError(f"{command[0]}: {done.stderr}")

    async def stop(self, delete: bool) -> None:
        """Remove the tree."""
        if delete:
            shutil.rmtree(self._root, ignore_errors=True)

    def _outside(self, path: str) -> Path:
        """Where a path of the environment lies on this machine."""
        return self._root / path.lstrip("/")

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """See Harbor."""
        target = self._outside(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, target)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """See Harbor."""
        shutil.copytree(source_dir, self._outside(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """See Harbor."""
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._outside(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """See Harbor."""
        shutil.copytree(self._outside(source_dir), target_dir, dirs_exist_ok=True)

    async def _apply_network_policy(self, network_policy: Any) -> None:
        pass  # each command looks at the policy of its time

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command in the tree."""
        own = {**self._persistent_env, **(env or {})}
        where = cwd or self.task_env_config.workdir or "/app"
        return await self._run(["bash", "-c", command], where, own, timeout_sec)

    async def _run(
        self, command: list[str], cwd: str, env: dict[str, str], seconds: int | None
    ) -> ExecResult:
        words = confined(
            command,
            cwd=cwd,
            writable={f"/{name}": self._root / name for name in _FOLDERS},
            env={"HOME": "/root", **env},
            network=not self._network_disabled,
            harness=True,
        )
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, env=dict(os.environ),
        )  # fmt: skip
        try:
            out, err = await asyncio.wait_for(process.communicate(), seconds)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        return ExecResult(
            stdout=out.decode("utf-8", "replace"),
            stderr=err.decode("utf-8", "replace"),
            return_code=process.returncode or 0,
        )
