"""Summing up outcomes: one table of faults, one of healthy steps, and what stands beside them.

All results are plain data (dicts, lists, numbers; nan where a figure is undefined).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from flashback_core.evaluate import average_run_length, false_alarm_rate
from flashback_core.forensics.budgets import budget_rows
from flashback_core.forensics.intervals import binomial_tail, poisson, wilson
from flashback_core.forensics.outcomes import NEAR, RunOutcome
from flashback_core.forensics.slices import (
    BUDGET_SLICES,
    FAULT_SLICES,
    HEALTHY_SLICES,
    Choice,
    Rows,
    chosen,
    is_declared,
    is_fault,
    is_test,
    is_undeclared,
)

__all__ = ["D_PRIME_BINS", "MOST_PER_KIND", "fault_row", "healthy_row", "summarise"]

D_PRIME_BINS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 1024.0, math.inf)
HIT_WITHIN = 50
"""Steps after a placebo within which a finding counts as a hit."""
MOST_PER_KIND = 30.0
"""False alarms per 100 000 steps above which a healthy kind is marked."""
SURE = 0.9
"""Confidence from which a finding must be right nine times in ten."""


def summarise(outcomes: Rows) -> dict[str, Any]:
    """All tables of one detector."""
    return {
        "faults": _groups(outcomes, FAULT_SLICES, fault_row),
        "healthy": _groups(outcomes, HEALTHY_SLICES, healthy_row),
        "by_kind": _by(filter(is_fault, outcomes), lambda o: o.kind, fault_row),
        "by_family": _by(filter(is_fault, outcomes), lambda o: o.family, fault_row),
        "by_optimizer": _by(filter(is_fault, outcomes), lambda o: o.optimizer, fault_row),
        "by_healthy_kind": _by(filter(is_declared, outcomes), lambda o: o.kind, healthy_row),
        "by_undeclared_kind": _by(filter(is_undeclared, outcomes), lambda o: o.kind, healthy_row),
        "budgets": budget_rows(chosen(outcomes, BUDGET_SLICES)),
        "placebo": _placebo(list(_roles(outcomes, "placebo")), outcomes),
        "psychometric": _psychometric(list(filter(is_fault, outcomes))),
        "confidence": _reliability(outcomes),
        "sure": _sure(outcomes),
        "changes": _changes([o for o in outcomes if o.role == "healthy" and not o.has_event]),
        "cpu_us_per_step": _median([o.cpu_us for o in outcomes]),
    }


def _roles(outcomes: Rows, role: str) -> Iterable[RunOutcome]:
    return (o for o in outcomes if o.role == role)


def _groups(
    outcomes: Rows,
    groups: dict[str, tuple[Choice, ...]],
    row: Callable[[str, Rows], dict[str, Any]],
) -> list[dict[str, Any]]:
    return [row(name, found) for name, found in chosen(outcomes, groups).items() if found]


def _by(
    outcomes: Iterable[RunOutcome],
    key: Callable[[RunOutcome], str],
    row: Callable[[str, Rows], dict[str, Any]],
) -> list[dict[str, Any]]:
    found: dict[str, list[RunOutcome]] = {}
    for o in outcomes:
        found.setdefault(key(o), []).append(o)
    return [row(name, found[name]) for name in sorted(found)]


def fault_row(name: str, found: Rows) -> dict[str, Any]:
    """How a detector did on some fault runs."""
    n = len(found)
    verdicts = [o.verdict for o in found]
    exact = verdicts.count("exact")
    within = exact + verdicts.count("within")
    named = [o for o in found if o.found is not None and o.low is not None and o.high is not None]
    covered = sum((o.low or 0) <= (o.first_bad_step or 0) <= (o.high or 0) for o in named)
    claims = [o.is_attributed for o in found if o.is_attributed is not None]
    tops = [o.is_in_top for o in found if o.is_in_top is not None]
    alone = sum(
        o.found_near is not None and abs(o.found_near - (o.first_bad_step or 0)) <= NEAR
        for o in found
    )
    delays = [o.alarm - (o.first_bad_step or 0) for o in found if o.alarm is not None]
    return {
        "name": name,
        "n": n,
        "exact": exact,
        "exact_interval": wilson(exact, n),
        "within": within,
        "within_interval": wilson(within, n),
        "within_from_fault": alone,
        "early": verdicts.count("early"),
        "late": verdicts.count("late"),
        "missed": verdicts.count("missed"),
        "mae": float(np.mean([o.cost for o in found])) if n else math.nan,
        "median_delay": _median(delays),
        "coverage": covered / len(named) if named else math.nan,
        "covered": covered,
        "n_covered_of": len(named),
        "attributed": sum(claims),
        "n_claims": len(claims),
        "in_top": sum(tops),
        "n_ranked": len(tops),
        "n_faults": sum(o.n_bad for o in found),
        "n_faults_found": sum(o.n_bad_found for o in found),
    }


def healthy_row(name: str, found: Rows) -> dict[str, Any]:
    """False alarms over the healthy steps of some runs."""
    steps = sum(o.healthy_steps for o in found)
    alarms = sum(o.false_alarms for o in found)
    low, high = poisson(alarms, steps / 100_000)
    return {
        "name": name,
        "n": len(found),
        "steps": steps,
        "episodes": alarms,
        "rate": false_alarm_rate(alarms, steps),
        "rate_interval": (low, high),
        "arl0": average_run_length(alarms, steps),
        "n_runs_alarmed": sum(o.false_alarms > 0 for o in found),
        "n_kinds": len({o.kind for o in found}),
        "is_above": false_alarm_rate(alarms, steps) > MOST_PER_KIND,
        "is_surely_above": low > MOST_PER_KIND,
    }


def _placebo(found: Rows, outcomes: Rows) -> dict[str, Any]:
    """How often a finding follows an event without effect, beside what chance would give.

    Chance is an episode of false alarms among as many steps of a healthy run, at the rate of all
    healthy runs and twins; ``p`` is the probability of so many hits or more by chance.
    """
    hits = sum(
        o.found_near is not None and 0 <= o.found_near - (o.injected_step or 0) + NEAR <= HIT_WITHIN
        for o in found
    )
    quiet = [o for o in outcomes if o.role in ("healthy", "twin")]
    steps, alarms = sum(o.healthy_steps for o in quiet), sum(o.false_alarms for o in quiet)
    chance = 1.0 - math.exp(-(HIT_WITHIN + 1) * alarms / steps) if steps else math.nan
    return {"n": len(found), "hits": hits, "interval": wilson(hits, len(found)),
            "chance": chance, "p": binomial_tail(hits, len(found), chance)}  # fmt: skip


def _psychometric(found: Rows) -> list[dict[str, Any]]:
    """Share of the faults found within `NEAR`, by d′; monitored from the fault on."""
    out = []
    for low, high in pairwise(D_PRIME_BINS):
        here = [o for o in found if low <= o.visibility < high]
        if not here:
            continue
        hits = sum(
            o.found_near is not None and abs(o.found_near - (o.first_bad_step or 0)) <= NEAR
            for o in here
        )
        middle = float(np.exp(np.mean([np.log(max(o.visibility, 0.1)) for o in here])))
        out.append({"low": low, "high": high, "d_prime": middle, "n": len(here), "found": hits,
                    "interval": wilson(hits, len(here))})  # fmt: skip
    return out


def _reliability(outcomes: Rows) -> list[dict[str, Any]]:
    """Of the findings of a confidence, how many are right within `NEAR`; healthy runs count."""
    named = [o for o in outcomes if o.found is not None and o.role != "placebo"]
    out = []
    for low, high in ((0.0, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 0.97), (0.97, 1.01)):
        here = [o for o in named if low <= o.confidence < high]
        if here:
            right = sum(o.verdict in ("exact", "within") for o in here)
            mean = float(np.mean([o.confidence for o in here]))
            out.append({"low": low, "high": min(high, 1.0), "confidence": mean, "n": len(here),
                        "right": right, "interval": wilson(right, len(here))})  # fmt: skip
    return out


def _sure(outcomes: Rows) -> dict[str, Any]:
    """Of the findings of a confidence of `SURE` or more in the test split, how many are right."""
    here = [
        o
        for o in outcomes
        if o.found is not None and o.role != "placebo" and is_test(o) and o.confidence >= SURE
    ]
    right = sum(o.verdict in ("exact", "within") for o in here)
    return {"n": len(here), "right": right, "interval": wilson(right, len(here))}


def _changes(found: Rows) -> dict[str, Any]:
    steps, n = sum(o.healthy_steps for o in found), sum(o.changes for o in found)
    return {"steps": steps, "n": n, "rate": false_alarm_rate(n, steps),
            "interval": poisson(n, steps / 100_000)}  # fmt: skip


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else math.nan
