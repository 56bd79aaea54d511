"""This harness as an installed agent of Harbor: for every benchmark that ships as Harbor tasks.

    harbor run -d terminal-bench@2.1 -m kimi-k3 \\
        -a unabridged.evals.adapters.harbor_agent:UnabridgedAgent \\
        --ae UNABRIDGED_API_KEY=... --allow-agent-host api.moonshot.ai

Harbor needs Python 3.12 and is imported by nothing else here. What the harness cannot do, such as
reach its model, is an error of the agent and not a reward of 0.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

# Harbor is an extra of those who have it: without it only this module cannot be imported.
from harbor.agents.capabilities import AgentCapabilities  # pyright: ignore[reportMissingImports]
from harbor.agents.installed.base import (  # pyright: ignore[reportMissingImports]
    BaseInstalledAgent,
)

from ... import __version__

LOGS = "/logs/agent"
_BROKEN = {1: "the harness broke", 2: "bad settings", 7: "the model could not be reached"}
_ALLOWED = ("write", "delete", "execute", "read", "outside_root", "network", "git_destructive")
"""A benchmark's container is there to be worked in: nothing in it needs a person's yes."""


class UnabridgedAgent(BaseInstalledAgent):
    """`unabridged run` in the task's container.

    Agent options (`--ak NAME=VALUE`): `package`, what pip installs (default: this version from the
    index; a wheel's path in the image works too); `max_steps`, `max_minutes`.
    """

    capabilities = AgentCapabilities(atif=True)

    def __init__(self, *args: Any, **options: Any) -> None:
        self._package = str(options.pop("package", f"unabridged=={__version__}"))
        self._steps = int(options.pop("max_steps", 500))
        self._minutes = float(options.pop("max_minutes", 600.0))
        super().__init__(*args, **options)

    @staticmethod
    def name() -> str:
        """Its name in results."""
        return "unabridged"

    def get_version_command(self) -> str | None:
        """How the installed version is asked for."""
        return "/opt/unabridged/bin/unabridged --version"

    async def install(self, environment: Any) -> None:
        """Into an environment of its own, so that the task's Python stays as it is."""
        await self.exec_as_root(
            environment,
            "command -v rg >/dev/null || (apt-get update && apt-get install -y ripgrep git) || true; "
            "python3 -m venv /opt/unabridged && /opt/unabridged/bin/pip install -q "
            + shlex.quote(self._package),
        )

    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        """One headless run; then its record for our verifiers, and the trajectory."""
        words = [
            "/opt/unabridged/bin/unabridged", "run", instruction, "--repo", ".", "--json", "--quiet",
            "--sessions-dir", f"{LOGS}/sessions", "--on-ask", "deny", "--sandbox", "off",
            "--max-steps", str(self._steps), "--max-minutes", str(self._minutes),
            *(word for rule in _ALLOWED for word in ("--allow", rule)),
        ]  # fmt: skip
        if self.model_name:
            words += ["--model", self.model_name.rpartition("/")[2]]
        command = f"{shlex.join(words)} > {LOGS}/result.json 2> {LOGS}/stderr.txt"
        done = await environment.exec(command)
        after = f"/opt/unabridged/bin/python -m unabridged.evals.adapters.inside {LOGS}"
        await environment.exec(after)
        if done.return_code in _BROKEN:
            # Named, so that Harbor's retry and grading rules can tell it from a failed task.
            raise RuntimeError(f"unabridged: {_BROKEN[done.return_code]}, see agent/stderr.txt")

    def populate_context_post_run(self, context: Any) -> None:
        """Tokens and cost from the trajectory that was downloaded with the logs."""
        path = Path(self.logs_dir) / "trajectory.json"
        if not path.is_file():
            return
        total: dict[str, Any] = json.loads(path.read_bytes()).get("final_metrics", {})
        context.n_input_tokens = total.get("total_prompt_tokens")
        context.n_cache_tokens = total.get("total_cached_tokens")
        context.n_output_tokens = total.get("total_completion_tokens")
        context.cost_usd = total.get("total_cost_usd")
