"""The tools that every session has, in the order in which the model sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .ask_user import AskUser
from .base import Tool
from .edit import Edit
from .finish import Finish
from .git import Git
from .list import List
from .process import Processes
from .propose_plan import ProposePlan
from .read import Read
from .search import Search
from .shell import Shell
from .symbols import Symbols
from .write import Write


def default_tools(processes: Processes | None = None) -> tuple[Tool[Any], ...]:
    """All tools; the order is part of the cached prefix of every request.

    `processes` runs the commands of the session; whoever gives it also closes it.
    """
    return (
        Read(),
        List(),
        Search(),
        Edit(),
        Write(),
        Shell(processes),
        Git(),
        Symbols(),
        AskUser(),
        ProposePlan(),
        Finish(),
    )


def declarations(tools: Sequence[Tool[Any]]) -> list[dict[str, Any]]:
    """The tools as a request declares them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.schema(),
            },
        }
        for tool in tools
    ]
