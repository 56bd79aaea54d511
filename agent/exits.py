"""How a run can end: the exit codes, in one place."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit code of a run; its name in lower case is `exit_name` in the result."""

    DONE = 0
    """`finish` with `done`, nothing denied by the headless mode, named verifications passed."""
    INTERNAL = 1
    """Internal or storage error; nothing is half-written."""
    USAGE = 2
    """Bad arguments or settings, session in use, nothing to run on."""
    NEEDS_APPROVAL = 3
    """A call would ask and nobody is there; it is saved and can be approved."""
    NEEDS_ANSWER = 4
    """The model asks the user; the question is saved and can be answered."""
    BUDGET = 5
    """A limit was reached, or the context window is full."""
    STUCK = 6
    """The model repeats itself."""
    PROVIDER = 7
    """The model could not answer, two turns of thinking without an answer included."""
    UNFINISHED = 8
    """No `finish`, or `finish` with `partial`, `blocked` or a failing verification."""
    HANGUP = 129
    INTERRUPTED = 130
    TERMINATED = 143

    @property
    def label(self) -> str:
        """The name in results and logs."""
        return self.name.lower()
