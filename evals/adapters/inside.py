"""Run in a task's container after the harness: `python -m unabridged.evals.adapters.inside DIR`.

DIR holds `sessions/`. Writes `record.json`, which verifiers of this package read, and
`trajectory.json`, the session in ATIF.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ...agent.atif import trajectory
from ...agent.store import SUFFIX, StoreError, find, read
from ..observe import record


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 where there is no session."""
    folder = Path(arguments[0])
    try:
        log = find(folder / "sessions", "last")
        events = read(log)
        document = trajectory(log.name.removesuffix(SUFFIX), events)
    except (StoreError, ValueError) as error:
        sys.stderr.write(f"inside: {error}\n")
        return 1
    (folder / "record.json").write_text(json.dumps(record(events)))
    (folder / "trajectory.json").write_text(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
