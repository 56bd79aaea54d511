"""Settle the calls of a reply: judge all, get what a person must say, then run.

Nothing of a step runs before every call of it that needs a person has its word. Just before it
runs, each call's effects are worked out again if anything happened since; where they are no longer
those that were decided on, it is decided anew.
"""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..tools.ask_user import AskUserArguments
from ..tools.base import Context, Result, ToolError
from ..tools.finish import FinishArguments
from ..tools.propose_plan import ProposePlanArguments
from ..tools.sandbox import Grant
from .calls import BadCall, Judged, plan_effects, same_effects, understand
from .context.errors import Stop
from .copies import Change
from .core import Core, ended
from .effects import EffectKind
from .events import (
    Approval,
    Call,
    CallDropped,
    Checkpoint,
    Decision,
    Effects,
    Finish,
    ImagePart,
    Interruption,
    Plan,
    Question,
    RunEnded,
    ScopeGranted,
    ToolCall,
    ToolResult,
    ToolStarted,
    Verification,
)
from .exits import Exit
from .policy import CHANGES, decide, outside_scope, readable
from .providers.base import CallOutput
from .scope import Scope
from .undo import AFTER, OUTSIDE

LOOK_SECONDS = 0.2
"""Time to find out what a cancelled command changed."""
KEEP = "Stay within it; what is outside is asked again."
MOST_NAMED = 20
"""Paths named in a note to the model."""
NOBODY = "nobody is there to approve it (headless run)"


T = TypeVar("T")


class Settler:
    """Settles the open calls of the last reply."""

    def __init__(self, core: Core) -> None:
        self.core = core

    async def settle(self) -> RunEnded | None:
        """Settle as far as can be; returns the end of the run, or None to go on."""
        judged: list[Judged] = []
        touched = set(self.core.state.changed_in_task)
        for call in self.core.view.open_calls:
            judged.append(self._judge(call, touched))
            touched |= {e.path for e in judged[-1].effects if e.kind in CHANGES and e.path}
        for item in judged:
            self._log(item)
        waiting = [item for item in judged if self._needs_approval(item)]
        questions = [item for item in judged if self._needs_answer(item)]
        if waiting or questions:
            return await self._wait(waiting, questions)
        # `finish` comes last, wherever it stands: it must know what became of the others.
        closing = [item for item in judged if isinstance(item.args, FinishArguments)]
        acting = [item for item in judged if not isinstance(item.args, FinishArguments)]
        fresh = True  # nothing happened yet since the calls were judged
        if all(item.quiet for item in acting):
            if not all(await _together([self._run(item, fresh) for item in acting])):
                return None
            fresh = not acting
            acting = []
        for item in (*acting, *closing):
            ran = await self._run(item, fresh)
            fresh = False
            if not ran or isinstance(item.args, ProposePlanArguments):
                break  # the world changed, or what is allowed: decide what is left anew
        return None

    # --- before anything runs ----------------------------------------------------------------

    def _judge(self, call: Call, touched: AbstractSet[str] = frozenset()) -> Judged:
        """What the call would do, and what the policy says.

        `touched`: files changed in this task, or about to be by earlier calls of this step.
        """
        core = self.core
        try:
            tool, args = understand(call, core.tools)
            effects = tool.effects(args, core.facts)
        except (BadCall, ToolError) as error:
            return Judged(call, problem=str(error))
        if isinstance(args, ProposePlanArguments):
            # A plan passes when the rules already allow all of it; else a person reads it.
            wanted = plan_effects(args.paths, args.kinds, args.commands)
            decided = decide(wanted, core.rules, mode=core.mode)
        else:
            gate = touched
            if core.state.planned or core.state.plan_asked_for:
                gate = None
            decided = decide(effects, core.rules, core.state.scope, core.mode,
                             plan_needed_after=gate)  # fmt: skip
        return Judged(call, tool, args, effects, decided)

    def _log(self, item: Judged) -> None:
        """Log what is new about a call since it was last judged."""
        core, call = self.core, item.call
        if call.id not in core.state.calls:
            arguments = (
                item.args.model_dump(mode="json", exclude_defaults=True)
                if item.args is not None
                else {}
            )
            core.append(ToolCall(call_id=call.id, name=call.name, arguments=arguments,
                                 problem=item.problem))  # fmt: skip
            if isinstance(item.args, ProposePlanArguments):
                core.append(Plan(call_id=call.id, text=item.args.plan, scope=_scope(item.args)))
        if item.decided is None:
            return
        logged = core.state.effects.get(call.id)
        if logged is None or not same_effects(item.effects, logged, core.state.seen):
            core.append(Effects(call_id=call.id, effects=item.effects))
        decision = core.state.decisions.get(call.id)
        was, now = decision.decision if decision is not None else None, item.decided.verdict
        # The answer "plan first" stands, though from then on such a call would ask.
        if was != now and (was, now) != ("plan_first", "ask"):
            core.append(
                Decision(
                    call_id=call.id,
                    decision=item.decided.verdict,
                    reason=item.decided.reason,
                    rule=item.decided.rule,
                )
            )

    def _needs_approval(self, item: Judged) -> bool:
        decision = self.core.state.decisions.get(item.call.id)
        asks = item.problem is None and decision is not None and decision.decision == "ask"
        return asks and item.call.id not in self.core.state.approvals

    def _needs_answer(self, item: Judged) -> bool:
        asks = isinstance(item.args, AskUserArguments) and item.problem is None
        return asks and item.call.id not in self.core.state.answers

    async def _wait(
        self, waiting: Sequence[Judged], questions: Sequence[Judged]
    ) -> RunEnded | None:
        """Somebody must say something: wait for it, or end the run."""
        core = self.core
        for item in questions:
            if isinstance(item.args, AskUserArguments) and item.call.id not in core.state.asked:
                core.append(Question(call_id=item.call.id, text=item.args.question,
                                     choices=item.args.choices))  # fmt: skip
        if core.on_ask == "wait":
            core.woken.clear()
            try:
                await core.woken.wait()
            except asyncio.CancelledError:
                core.append(Interruption(during="waiting"))
                raise
            return None
        if waiting and core.on_ask == "deny":
            for item in waiting:
                core.append(Approval(call_id=item.call.id, approved=False, by="headless",
                                     reason=NOBODY))  # fmt: skip
            return None
        if waiting:
            reasons = (core.state.decisions[item.call.id].reason for item in waiting)
            return ended(Exit.NEEDS_APPROVAL, f"needs approval: {'; '.join(reasons)}")
        return ended(Exit.NEEDS_ANSWER, "the model asks the user")

    # --- running -----------------------------------------------------------------------------

    async def _run(self, item: Judged, fresh: bool) -> bool:
        """Run one call and log its result. False when it must be decided on again first.

        `fresh`: no call ran and nobody was waited for since it was judged.
        """
        again = item if fresh else self._judge(item.call)
        if again.problem != item.problem or not same_effects(
            again.effects, item.effects, self.core.state.seen
        ):
            return False
        refusal = self._refusal(item)
        if refusal is not None:
            self._log_result(item, Result(refusal, error=True))
            return True
        # What a person approved must not run a second time, not even after a loss of power.
        approved = item.call.id in self.core.state.approvals
        self.core.append(ToolStarted(call_id=item.call.id), sync=approved)
        began = time.monotonic()
        async with self._watched(again) as watched:
            try:
                result = await self._carry_out(again)
            except ToolError as error:
                result = Result(str(error), error=True)
            except OSError as error:
                reason = error.strerror or type(error).__name__
                result = Result(f"{error.filename or item.call.name}: {reason}.", error=True)
        self._log_result(item, watched.complete(result), time.monotonic() - began)
        await asyncio.sleep(0)  # where a cancel that came meanwhile takes hold
        return True

    @asynccontextmanager
    async def _watched(self, item: Judged) -> AsyncGenerator[Watched]:
        """Copies of what the call touches, before it does; also of what an unknown command did.

        What was touched is logged whatever becomes of the call, so that it can be undone.
        """
        undo, call_id = self.core.undo, item.call.id
        names = [e.path for e in item.effects if e.kind in CHANGES and e.path and e.path[0] != "/"]
        if names:
            copies = await asyncio.to_thread(undo.checkpoint, names)
            self.core.append(Checkpoint(call_id=call_id, files=copies))
            names = [*copies]  # of a folder, also what is in it
        confined = self.core.confined and not Grant.of(item.effects).write
        unknown = not confined and _may_change_anything(item)
        scan = await asyncio.to_thread(undo.scan) if unknown else None
        watched = Watched()
        try:
            yield watched
        finally:

            def look(stop: Stop) -> tuple[dict[str, str], list[Change]]:
                changes = undo.changes(scan, stop) if scan is not None else []
                return undo.after(names), changes

            watched.after, changes = await _to_its_end(look)
            found = {c.name: str(c.before) for c in changes if c.name not in watched.after}
            if found:
                self.core.append(Checkpoint(call_id=call_id, files=found))
            watched.after |= {change.name: str(change.after) for change in changes}
            files = [c for c in changes if "folder" not in (c.before.kind, c.after.kind)]
            watched.changed = tuple(change.name for change in files)
            kinds = {c.name: EffectKind.DELETE if c.after.kind == "absent" else EffectKind.WRITE
                     for c in files}  # fmt: skip
            state = self.core.state
            watched.outside = outside_scope(kinds, item.effects, self.core.rules, state.scope)

    def _refusal(self, item: Judged) -> str | None:
        """Why a call does not run; None when it may."""
        if item.problem is not None:
            return item.problem
        decision = self.core.state.decisions[item.call.id]
        approval = self.core.state.approvals.get(item.call.id)
        if decision.decision == "deny":
            return f"Not allowed: {decision.reason}."
        if decision.decision == "plan_first":
            return decision.reason
        if approval is not None and not approval.approved:
            why = f": {approval.reason}" if approval.reason else ""
            who = "The user said no" if approval.by == "user" else "Denied"
            return f"{who}{why}. It was not run; do not try to reach the same effect another way."
        assert decision.decision == "allow" or approval is not None
        return None

    async def _carry_out(self, item: Judged) -> Result:
        core, call = self.core, item.call
        assert item.tool is not None
        assert item.args is not None
        if isinstance(item.args, FinishArguments) and self._step_failed():
            raise ToolError("Not finished: other calls of this step failed. Read their results.")
        if isinstance(item.args, ProposePlanArguments):
            approval = core.state.approvals.get(call.id)
            edited = approval.scope if approval is not None else None
            by = "user" if approval is not None else "rules"
            core.append(ScopeGranted(scope=edited or _scope(item.args), by=by))
            if edited is not None and edited != _scope(item.args):
                return Result(
                    f"The plan is approved with another scope: {edited.model_dump_json(exclude_defaults=True)}. {KEEP}"
                )
        answer = core.state.answers.get(call.id)
        context = Context(
            facts=core.facts,
            call_id=call.id,
            files=core.store.files,
            progress=lambda text: core.emit(CallOutput(call.id, text)),
            answer=answer.text if answer is not None else "",
            granted=item.effects,
            readable=readable(core.rules, item.effects if call.id in core.state.approvals else ()),
        )
        return await item.tool.run(item.args, context)

    def _step_failed(self) -> bool:
        """Whether a call of this step failed, or was cut by the output limit."""
        reply = self.core.state.reply
        assert reply is not None
        return any(
            isinstance(event, CallDropped) or (isinstance(event, ToolResult) and event.error)
            for event in self.core.store.events[reply.seq + 1 :]
        )

    def _log_result(self, item: Judged, result: Result, seconds: float = 0.0) -> None:
        images = tuple(
            ImagePart(url=f"data:{i.mime};base64,{base64.b64encode(i.data).decode('ascii')}")
            for i in result.images
        )
        self.core.append(
            ToolResult(
                call_id=item.call.id,
                text=result.text,
                error=result.error,
                images=images,
                seen=dict(result.seen),
                diff=result.diff,
                changed=result.changed,
                exit_code=result.exit_code,
                data=dict(result.data),
                seconds=round(seconds, 3),
            )
        )
        if isinstance(item.args, FinishArguments) and not result.error:
            commands = self.core.state.commands
            self.core.append(
                Finish(
                    call_id=item.call.id,
                    status=item.args.status,
                    summary=item.args.summary,
                    verified=tuple(
                        Verification(command=c, exit_code=commands.get(c))
                        for c in item.args.verified
                    ),
                )
            )

    def finished(self) -> RunEnded | None:
        """How the run ends if the last step called `finish`."""
        last = self.core.store.events[-1]
        if not isinstance(last, Finish):
            return None
        if last.status != "done":
            return ended(Exit.UNFINISHED, f"the model finished with status {last.status}")
        failed = [v for v in last.verified if v.exit_code != 0]
        if failed:
            return ended(Exit.UNFINISHED, f"verification did not pass: {_verdict(failed[0])}")
        return ended(Exit.DONE, "done")


@dataclass
class Watched:
    """What a call left behind, by what lies in the repository."""

    after: dict[str, str] = field(default_factory=dict[str, str])
    changed: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    """Of these: what nobody agreed to."""

    def complete(self, result: Result) -> Result:
        """The result with what was found added."""
        if not self.after:
            return result
        changed = (*result.changed, *(n for n in self.changed if n not in result.changed))
        result = replace(result, changed=changed, data={**result.data, AFTER: self.after})
        if not self.outside:
            return result
        some = ", ".join(self.outside[:MOST_NAMED])
        more = len(self.outside) - MOST_NAMED
        named = some if more <= 0 else f"{some} and {more} more"
        note = f"[It changed what nobody agreed to: {named}. The user is told and can undo it.]"
        return replace(
            result,
            text=f"{result.text}\n{note}",
            data={**result.data, OUTSIDE: list(self.outside)},
        )


async def _to_its_end(function: Callable[[Stop], T]) -> T:
    """Run blocking work in a thread, also when the run is cancelled: it is then told to stop soon.

    A cancel that comes meanwhile comes again at the next wait, after what was found is logged.
    """
    task, loop, stop = asyncio.current_task(), asyncio.get_running_loop(), threading.Event()
    assert task is not None
    work = asyncio.create_task(asyncio.to_thread(function, stop.is_set))
    if task.cancelling():
        loop.call_later(LOOK_SECONDS, stop.set)
    cancelled = False
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            cancelled = True
            loop.call_later(LOOK_SECONDS, stop.set)
    if cancelled:
        loop.call_soon(task.cancel)
    return work.result()


async def _together(runs: Sequence[Coroutine[Any, Any, bool]]) -> list[bool]:
    """Run side by side, and see every one to its end also when one of them breaks."""
    if len(runs) == 1:
        return [await runs[0]]
    outcomes = await asyncio.gather(*runs, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome is True for outcome in outcomes]


def _may_change_anything(item: Judged) -> bool:
    """Whether the effects do not say where the call writes."""
    return any(
        (e.kind is EffectKind.EXECUTE and not e.understood)
        or e.kind is EffectKind.GIT_DESTRUCTIVE
        or (e.kind in CHANGES and e.path is None)
        for e in item.effects
    )


def _verdict(verification: Verification) -> str:
    code = verification.exit_code
    outcome = "was never run to its end" if code is None else f"last exited {code}"
    return f"`{verification.command}` {outcome}"


def _scope(args: ProposePlanArguments) -> Scope:
    return Scope(
        paths=args.paths, kinds=args.kinds, commands=args.commands, not_touch=args.not_touch
    )
