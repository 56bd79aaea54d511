"""What waits for the user: which card is shown, and what the user's word means to the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..agent.config import ConfigError
from ..agent.events import Plan
from ..agent.remember import asked, remember, scope_for
from ..agent.session import Pending, Session
from .widgets.approval_card import ApprovalCard, Verdict
from .widgets.card import Card
from .widgets.load_card import LoadCard
from .widgets.plan_card import PlanCard
from .widgets.question_card import QuestionCard

if TYPE_CHECKING:
    from .app import UnabridgedApp


class Asking:
    """The cards of calls, plans and questions."""

    def __init__(self, app: UnabridgedApp) -> None:
        self._app = app

    def show(self) -> None:
        """Show the card for what waits first, or none."""
        app, session = self._app, self._app.session
        if session is None or not app.busy:
            if not isinstance(app.card, LoadCard | None):
                self._take_away()
            return
        pending, questions, shown = session.pending, session.questions, app.card
        if pending:
            first = pending[0]
            if isinstance(shown, ApprovalCard | PlanCard) and shown.pending == first:
                return
            place = f" · 1 of {len(pending)}" if len(pending) > 1 else ""
            self._put(self._of_call(session, first, place))
        elif questions:
            if isinstance(shown, QuestionCard) and shown.question == questions[0]:
                return
            self._put(QuestionCard(questions[0]))
        elif shown is not None:
            self._take_away()
            app.conversation.refresh()

    def decide(self, session: Session, call_id: str, verdict: Verdict) -> None:
        """Tell the session what the user says to a call. Raises SessionError."""
        pending = next((p for p in session.pending if p.call_id == call_id), None)
        if pending is None:
            return
        wanted = asked(pending.effects, session.core.rules, session.core.state.scope)
        if verdict.say == "no":
            session.deny(call_id, verdict.reason)
            return
        if verdict.say == "always" and verdict.rules:
            try:
                path = remember(verdict.rules)
                self._app.transcript.note(f"Rule added to {path}", "good")
            except ConfigError as error:
                self._app.notify(str(error), severity="error", timeout=8, markup=False)
            session.allow(verdict.rules)
        session.approve(call_id, scope=verdict.scope)
        if verdict.say == "task":
            session.widen(scope_for(wanted))

    def _of_call(self, session: Session, pending: Pending, place: str) -> Card:
        core = session.core
        if pending.tool == "propose_plan":
            plan = next((e for e in reversed(session.events) if isinstance(e, Plan)), None)
            if plan is not None:
                return PlanCard(pending, plan.text, plan.scope, place)
        wanted = asked(pending.effects, core.rules, core.state.scope)
        return ApprovalCard(pending, wanted or pending.effects, place, core.state.scope is not None)

    def _put(self, card: Card) -> None:
        self._app.put_card(card)
        if not self._app.app_focus:
            self._app.bell()

    def _take_away(self) -> None:
        self._app.put_card(None)
        self._app.prompt.focus()
