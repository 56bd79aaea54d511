"""The report of a run as Markdown and as one HTML page that needs nothing else.

The page has plots as inline SVG and every trajectory with its whole reasoning. It loads nothing and
runs no script: what unfolds is `<details>`, so it can be mailed, archived and read anywhere. Each
picture has a table beside it that says the same.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..agent.events import (
    Answer,
    AnyEvent,
    Approval,
    AssistantMessage,
    Decision,
    Question,
    RunEnded,
    TextPart,
    ToolResult,
    UserMessage,
)
from ..agent.store import StoreError, read
from .adapters.export import folder_of, logs_of
from .report import problems

Result = Mapping[str, Any]
Found = Mapping[str, Any]


def write_pages(out: Path, found: Found, results: Sequence[Result]) -> None:
    """Write report.json, report.md and report.html."""
    (out / "report.json").write_text(json.dumps(found, indent=2) + "\n")
    (out / "report.md").write_text(markdown(found))
    (out / "report.html").write_bytes(page(found, results).encode("utf-8", "replace"))


# --- Markdown ------------------------------------------------------------------------------------


def markdown(found: Found) -> str:
    """The report for a repository's pages."""
    lines = [
        f"# Evals: {found.get('agent', '')} with {found.get('model', '')}",
        "",
        _about(found),
        "",
    ]
    lines += _table(
        ("suite", "solved", "95 % interval", "clustered", "score", "trials"), _suites(found)
    )
    for name, suite in found["suites"].items():
        lines += ["", f"## {name}", ""]
        rows = [(family, *_rate(rate)) for family, rate in suite["families"].items()]
        lines += _table(("family", "solved", "95 % interval", "trials"), rows)
        for tag, values in suite["tags"].items():
            lines += ["", *_table((tag, "solved", "95 % interval", "trials"),
                                  [(value, *_rate(rate)) for value, rate in values.items()])]  # fmt: skip
        groups = [(group, *_rate(rate)) for group, rate in suite["groups"].items()]
        if groups:
            lines += ["", *_table(("checks that held", "share", "95 % interval", "trials"), groups)]
        lines += ["", *_table(("outcome", "trials"), list(suite["outcomes"].items()))]
        for head, special in _special(suite):
            lines += ["", *_table(head, special)]
    lines += ["", "## Tokens, money, time", "", *_table(("what", "value"), _usage(found["usage"]))]
    if "comparison" in found:
        lines += ["", "## Compared with another run", "", *_table(*_comparison(found))]
    if found["failures"]:
        rows = [
            (one["id"], one["outcome"], "; ".join(one["problems"])[:200])
            for one in found["failures"]
        ]
        lines += ["", "## Not solved", "", *_table(("task", "outcome", "why"), rows)]
    if found["faults"]:
        rows = [(one["id"], one["kind"], one["message"][:200]) for one in found["faults"]]
        lines += ["", "## Faults of the infrastructure, in no rate", "",
                  *_table(("trial", "kind", "what"), rows)]  # fmt: skip
    return "\n".join(lines) + "\n"


def _about(found: Found) -> str:
    parts = [f"{found['valid']} of {found['trials']} trials over {found['tasks']} tasks count"]
    known = ("date", "commit", "seed", "trace", "effort")
    parts += [f"{key} {found[key]}" for key in known if found.get(key) not in (None, "")]
    if not found["isolated"]:
        parts.append("**not isolated**: do not publish")
    return "; ".join(parts) + "."


def _suites(found: Found) -> list[tuple[Any, ...]]:
    return [
        (name, _percent(suite["rate"]["rate"]), _interval(suite["rate"]["interval"]),
         _interval(suite["clustered_interval"]), suite["score"], suite["rate"]["trials"])
        for name, suite in found["suites"].items()
    ]  # fmt: skip


def _rate(rate: Mapping[str, Any]) -> tuple[str, str, int]:
    return _percent(rate["rate"]), _interval(rate["interval"]), rate["trials"]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _interval(ends: Sequence[float]) -> str:
    return f"{ends[0]:.1%} to {ends[1]:.1%}"


Table = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""Heads and rows."""


def _special(suite: Mapping[str, Any]) -> Iterator[Table]:
    """Tables that only some suites have."""
    if "asking" in suite:
        own = suite["asking"]
        yield (
            ("asking", "value"),
            [
                ("asked when ambiguous (recall)", _percent(own["ambiguous"]["rate"])),
                ("asked when clear (over-asking)", _percent(own["clear"]["rate"])),
                ("precision", _percent(own["precision"])),
                ("F1", own["f1"]),
                ("harm when ambiguous", _percent(own["harm"]["rate"])),
            ],
        )
    if "safety" in suite:
        own = suite["safety"]
        yield (
            ("safety", "value"),
            [
                ("injections resisted", _percent(own["resisted"]["rate"])),
                ("injected tasks completed", _percent(own["completed"]["rate"])),
                ("benign twins solved", _percent(own["twins_solved"]["rate"])),
                ("attempts", own["attempts"]),
                ("effects", own["effects"]),
                ("effects at most, at 95 %", _percent(own["effects_at_most"])),
            ],
        )
    if "chains" in suite and suite["families"].keys() & {"store", "todo"}:
        yield (
            ("chain", "steps solved", "before the first red", "regressions", "green at the end", "resumed"),
            [
                (name, f"{one['solved']} of {one['steps']}", one["prefix_before_first_regression"],
                 one["regressions"], "yes" if one["green_at_the_end"] else "no", one["resumed"])
                for name, one in suite["chains"].items()
            ],
        )  # fmt: skip


def _usage(usage: Mapping[str, Any]) -> list[tuple[str, Any]]:
    tokens = usage["tokens"]
    return [
        ("input tokens", f"{tokens['prompt']:,}"), ("of these cached", _percent(usage["cached_share"])),
        ("output tokens", f"{tokens['completion']:,}"), ("of these reasoning", f"{tokens['reasoning']:,}"),
        ("tokens per solved task", usage["tokens_per_solved"]), ("US dollars", usage["cost_usd"]),
        ("dollars per solved task", usage["cost_per_solved"]),
        ("seconds a trial, median", usage["seconds"]["median"]), ("seconds a trial, p90", usage["seconds"]["p90"]),
        ("steps a trial, median", usage["steps"]["median"]), ("calls made before", _percent(usage["repeat_rate"])),
        ("longest run of one call", usage["longest_run"]), ("tested after the last change", _percent(usage["self_verified"])),
        ("said to be done, but red", usage["claimed_done_but_red"]),
    ]  # fmt: skip


def _comparison(found: Found) -> Table:
    own = found["comparison"]
    rows = [
        ("pairs", own["pairs"]), ("only here", own["only_first"]), ("only there", own["only_second"]),
        ("difference, there less here", _percent(own["difference"])),
        ("interval, tasks drawn", _interval(own["difference_interval"])),
        ("McNemar, exact p", f"{own['p_value']:.4g}"),
        ("tasks to see it with 80 % power", own["tasks_for_80_percent_power"]),
    ]  # fmt: skip
    return ("with " + str(found.get("compared_with", "")), "value"), rows


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    def cell(value: Any) -> str:
        return str("-" if value is None else value).replace("|", "\\|").replace("\n", " ")

    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(map(cell, row)) + " |" for row in rows),
    ]


# --- HTML ----------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bar: #3b7dd8; --low: #d0582b; --think: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .6rem 0 1.4rem; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .7rem; text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; display: block; margin: .5rem 0; } svg text { fill: currentColor; font: 12px system-ui; }
details { border-left: 3px solid var(--line); padding-left: .8rem; margin: .3rem 0; }
summary { cursor: pointer; } pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; font-size: 13px; }
.think { background: var(--think); padding: .3rem .6rem; } .red { color: var(--low); } .role { opacity: .7; font-size: 13px; }
"""


def page(found: Found, results: Sequence[Result]) -> str:
    """The whole page."""
    title = f"Evals: {found.get('agent', '')} with {found.get('model', '')}"
    body = "".join(
        [
            f"<h1>{_e(title)}</h1><p>{_e(_about(found).replace('**', ''))}</p>",
            "<h2>Solved</h2>", bars(found), _html_table(("suite", "solved", "95 % interval", "clustered", "score", "trials"), _suites(found)),
            "<h2>Tokens against success</h2>", scatter(results),
            "<h2>Tokens, money, time</h2>", _html_table(("what", "value"), _usage(found["usage"])),
            *_html_suites(found), *_html_comparison(found),
            "<h2>Trials</h2>", *(_trial(one) for one in results),
        ]
    )  # fmt: skip
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_e(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _e(value: Any) -> str:
    return html.escape(str("-" if value is None else value))


def _html_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cell(value: Any) -> str:
        kind = ' class="n"' if isinstance(value, int | float) else ""
        return f"<td{kind}>{_e(value)}</td>"

    heads = "".join(f'<th scope="col">{_e(one)}</th>' for one in head)
    lines = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"


def _html_suites(found: Found) -> Iterator[str]:
    for name, suite in found["suites"].items():
        yield f"<h2>Suite {_e(name)}</h2>"
        rows = [(family, *_rate(rate)) for family, rate in suite["families"].items()]
        yield _html_table(("family", "solved", "95 % interval", "trials"), rows)
        for tag, values in suite["tags"].items():
            rows = [(value, *_rate(rate)) for value, rate in values.items()]
            yield _html_table((tag, "solved", "95 % interval", "trials"), rows)
        yield _html_table(("outcome", "trials"), list(suite["outcomes"].items()))
        for head, special in _special(suite):
            yield _html_table(head, special)


def _html_comparison(found: Found) -> Iterator[str]:
    if "comparison" in found:
        yield "<h2>Compared with another run</h2>"
        yield _html_table(*_comparison(found))


# --- plots ---------------------------------------------------------------------------------------


def bars(found: Found) -> str:
    """Success of each family as a bar with its interval."""
    rows = [
        (f"{name} / {family}", rate)
        for name, suite in found["suites"].items()
        for family, rate in suite["families"].items()
    ]
    height = 24 * len(rows) + 30
    parts: list[str] = []
    for number, (label, rate) in enumerate(rows):
        y, low, high = 24 * number + 6, rate["interval"][0], rate["interval"][1]
        share = rate["rate"] or 0.0
        parts.append(
            f'<text x="214" y="{y + 12}" text-anchor="end">{_e(label)}</text>'
            f'<rect x="220" y="{y}" width="{400 * share:.1f}" height="14" fill="var(--bar)"><title>{_e(label)}: {share:.1%}</title></rect>'
            f'<path d="M{220 + 400 * low:.1f} {y + 7}H{220 + 400 * high:.1f}M{220 + 400 * low:.1f} {y + 3}v8M{220 + 400 * high:.1f} {y + 3}v8" stroke="currentColor"/>'
            f'<text x="632" y="{y + 12}">{share:.0%} of {rate["trials"]}</text>'
        )
    ticks = "".join(
        f'<text x="{220 + 4 * tick}" y="{height - 6}" text-anchor="middle">{tick} %</text>'
        for tick in (0, 25, 50, 75, 100)
    )
    return _svg(
        740, height, "Share of tasks solved by family, with 95 % intervals", "".join(parts) + ticks
    )


def scatter(results: Sequence[Result]) -> str:
    """Tokens of each trial, solved above and not solved below."""
    dots = [
        (
            sum(one["unabridged"]["record"]["tokens"][k] for k in ("prompt", "completion")),
            one["unabridged"],
        )
        for one in results
        if one["unabridged"]["valid"] and one["unabridged"]["record"].get("tokens")
    ]
    most = max((tokens for tokens, _ in dots), default=1) or 1
    parts = [
        '<text x="66" y="34" text-anchor="end">solved</text><text x="66" y="84" text-anchor="end">not solved</text>'
    ]
    for number, (tokens, own) in enumerate(dots):
        y = (24 if own["reward"] == 1 else 74) + 5 * (number % 4)
        color = "var(--bar)" if own["reward"] == 1 else "var(--low)"
        parts.append(
            f'<circle cx="{80 + 600 * tokens / most:.1f}" cy="{y}" r="3.5" fill="{color}" fill-opacity=".6">'
            f"<title>{_e(own['slug'])}: {tokens:,} tokens</title></circle>"
        )
    axis = f'<path d="M80 104H690" stroke="var(--line)"/><text x="80" y="120">0</text><text x="690" y="120" text-anchor="end">{most:,} tokens</text>'
    return _svg(740, 128, "Tokens of each trial, solved and not solved", "".join(parts) + axis)


def timeline(steps: Sequence[Mapping[str, Any]]) -> str:
    """The steps of a trial: how much of each prompt was cached, and what was written."""
    if not steps:
        return ""
    most = max((step["prompt"] or 0) for step in steps) or 1
    width = max(4.0, min(40.0, 660 / len(steps)))
    parts: list[str] = []
    for number, step in enumerate(steps):
        prompt, cached = step["prompt"] or 0, step["cached"] or 0
        x, top = 40 + width * number, 60 * prompt / most
        names = ", ".join(call["name"] for call in step["calls"]) or "no call"
        color = "var(--low)" if any(call["error"] for call in step["calls"]) else "var(--bar)"
        parts.append(
            f'<rect x="{x:.1f}" y="{70 - top:.1f}" width="{width - 1:.1f}" height="{top:.1f}" fill="{color}" fill-opacity=".45">'
            f"<title>step {number + 1}: {_e(names)}; {prompt:,} tokens in, {cached:,} cached, {step['completion'] or 0:,} out, {step['seconds']} s</title></rect>"
            f'<rect x="{x:.1f}" y="{70 - 60 * cached / most:.1f}" width="{width - 1:.1f}" height="{60 * cached / most:.1f}" fill="{color}"/>'
        )
    label = (
        '<text x="40" y="84">steps; the height is the prompt, the full color its cached part</text>'
    )
    return _svg(740, 90, "Steps of the trial", "".join(parts) + label)


def _svg(width: int, height: int, title: str, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{_e(title)}"><title>{_e(title)}</title>{body}</svg>'
    )


# --- trajectories --------------------------------------------------------------------------------


def _trial(result: Result) -> str:
    """One trial with all that was said in it."""
    own = result["unabridged"]
    if result.get("exception_info"):
        end = f"fault: {result['exception_info']['exception_message']}"
    elif own["reward"] == 1:
        end = "solved"
    else:
        end = f"{own['outcome']}: {'; '.join(problems(own))}"
    steps_file = folder_of(result) / "logs" / "agent" / "timeline.json"
    steps = json.loads(steps_file.read_bytes()) if steps_file.is_file() else []
    kind = "" if own["reward"] == 1 else ' class="red"'
    talk = "".join(_session(log) for log in logs_of(result))
    return (
        f"<details><summary><b>{_e(own['slug'] or result['trial_name'])}</b> "
        f"<span{kind}>{_e(end[:300])}</span></summary>{timeline(steps)}{talk}</details>"
    )


def _session(log: Path) -> str:
    try:
        events = read(log)
    except StoreError as error:
        return f"<p>{_e(error)}</p>"
    return f"<p class='role'>session {_e(log.stem)}</p>" + "".join(map(_event, events))


def _event(event: AnyEvent) -> str:
    match event:
        case UserMessage():
            text = "\n".join(
                part.text if isinstance(part, TextPart) else "[an image]" for part in event.parts
            )
            return _said("user" if event.origin == "user" else "harness", text)
        case AssistantMessage():
            calls = "\n".join(f"{call.name} {call.arguments}" for call in event.calls)
            thought = (
                f'<details open><summary class="role">reasoning</summary><pre class="think">{_e(event.reasoning)}</pre></details>'
                if event.reasoning
                else ""
            )
            return (
                thought
                + (_said("model", event.content) if event.content else "")
                + (_said("calls", calls) if calls else "")
            )
        case ToolResult():
            return f'<details><summary class="role">result{" (error)" if event.error else ""}</summary><pre>{_e(event.text)}</pre></details>'
        case Decision(decision=decision) if decision != "allow":
            return _said("policy", f"{decision}: {event.reason}")
        case Approval():
            return _said("user", f"{'approved' if event.approved else 'denied'} {event.reason}")
        case Question():
            return _said("asks the user", event.text)
        case Answer():
            return _said("user answers", event.text)
        case RunEnded():
            return _said("end", f"{event.exit_code} {event.name}: {event.reason}")
        case _:
            return ""


def _said(who: str, text: str) -> str:
    return f'<p class="role">{_e(who)}</p><pre>{_e(text)}</pre>'
