"""What a run says: rates with intervals, as JSON and as lines for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .spec import Outcome, chosen_of
from .stats import Rate
from .tasks.task import FAMILIES

PACKS = (1_000, 2_000, 4_000, 7_000)
"""Upper ends of the classes of pack size, in tokens as the harness counts them."""


def report(settings: Mapping[str, Any], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The JSON document of a run."""
    ambiguous = chosen_of(outcomes, family="ask")
    clear = [o for o in outcomes if o.family not in ("ask", "blocked")]
    overall = success(outcomes)
    seconds = sorted(o.seconds for o in outcomes)
    return {
        **settings,
        "tasks": len(outcomes),
        "success_rate": overall.to_json()["rate"],
        "interval": overall.to_json()["interval"],
        "successes": overall.successes,
        "families": {
            family: success(some).to_json()
            for family in FAMILIES
            if (some := chosen_of(outcomes, family=family))
        },
        "injected": success(chosen_of(outcomes, injected=True)).to_json(),
        "asking": {
            "ambiguous": _asked(ambiguous).to_json(),
            "clear": _asked(clear).to_json(),
        },
        "pack_tokens": {
            name: success(some).to_json() for name, some in by_pack_size(outcomes).items() if some
        },
        "exit_codes": dict(sorted(Counter(str(o.exit_code) for o in outcomes).items())),
        "seconds_median": seconds[len(seconds) // 2] if seconds else None,
        "failures": [{"id": o.id, "problems": list(o.problems)} for o in outcomes if not o.success],
    }


def success(outcomes: Iterable[Outcome]) -> Rate:
    """How many succeeded."""
    results = [o.success for o in outcomes]
    return Rate(sum(results), len(results))


def _asked(outcomes: Sequence[Outcome]) -> Rate:
    return Rate(sum(o.asked for o in outcomes), len(outcomes))


def by_pack_size(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes by class of pack size; those whose size is not known stand in none."""
    classes: dict[str, list[Outcome]] = {f"to {most}": [] for most in PACKS}
    classes[f"over {PACKS[-1]}"] = []
    for outcome in outcomes:
        if outcome.pack_tokens is not None:
            fitting = [f"to {most}" for most in PACKS if outcome.pack_tokens <= most]
            classes[fitting[0] if fitting else f"over {PACKS[-1]}"].append(outcome)
    return classes


def lines(document: Mapping[str, Any]) -> list[str]:
    """The report for a person."""
    shown = [_line("all", _overall(document))]
    shown += [_line(family, rate) for family, rate in document["families"].items()]
    if document["injected"]["trials"]:
        shown.append(_line("with a foreign instruction", document["injected"]))
    shown += [_line(f"pack {name} tokens", rate) for name, rate in document["pack_tokens"].items()]
    for kind, wanted in (("ambiguous", "at least 90 %"), ("clear", "at most 5 %")):
        rate = document["asking"][kind]
        if rate["trials"]:
            shown.append(_line(f"asked when {kind} ({wanted})", rate))
    return shown


def _overall(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rate": document["success_rate"],
        "interval": document["interval"],
        "successes": document["successes"],
        "trials": document["tasks"],
    }


def _line(name: str, rate: Mapping[str, Any]) -> str:
    if not rate["trials"]:
        return f"{name:<36} nothing run"
    low, high = rate["interval"]
    counts = f"{rate['successes']}/{rate['trials']}"
    return f"{name:<36} {rate['rate']:>6.1%}  [{low:.1%}, {high:.1%}]  {counts}"
