"""What has come of a reply when it is broken off; kept in the log, and never sent."""

from __future__ import annotations

from .events import Call, Interruption
from .providers.base import CallDelta, ContentDelta, ReasoningDelta, Waiting


class Partial:
    """What has come of a reply so far."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.content: list[str] = []
        self.calls: dict[int, list[str]] = {}

    def add(self, item: object) -> None:
        """Take in a delta; a retry voids what came before it."""
        match item:
            case ReasoningDelta():
                self.reasoning.append(item.text)
            case ContentDelta():
                self.content.append(item.text)
            case CallDelta():
                call = self.calls.setdefault(item.index, ["", "", ""])
                call[0] += item.id
                call[1] += item.name
                call[2] += item.arguments
            case Waiting():
                self.__init__()
            case _:
                pass

    def interruption(self) -> Interruption:
        """The event that keeps it."""
        return Interruption(
            during="request",
            reasoning="".join(self.reasoning),
            content="".join(self.content),
            calls=tuple(Call(id=i, name=n, arguments=a) for i, n, a in self.calls.values()),
        )
