"""Figures: the short list of goals, each with what was measured, on how much, and its interval.

A figure is met by its point estimate; its interval says how much that means. Figures of which the
data hold nothing, or of which the detector says nothing, are left open.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flashback_core.forensics.intervals import wilson
from flashback_core.forensics.summary import MOST_PER_KIND

__all__ = ["figures"]

Row = Mapping[str, Any]
Figure = dict[str, Any]
Tables = Mapping[str, Any]

SIX = "six kinds of the card"


def figures(
    ours: Tables, without_lr: Tables | None = None, without_exact: Tables | None = None
) -> list[Figure]:
    """The figures of a detector.

    Args:
        ours: Its tables, see `summary.summarise`.
        without_lr: Those without the column of the learning rate.
        without_exact: Those without the exact fields.

    Returns:
        One dict per figure: ``name``, ``goal``, ``n`` (what it rests on), ``unit`` (``share``,
        ``rate``, ``ratio``, ``count`` or ``number``), ``value``, ``interval`` (or None),
        ``is_met`` (None where it is open or where there is no goal).
    """
    parts = [_six(ours), _healthy(ours), _hard(ours), _beside(ours)]
    if without_lr is not None:
        parts.insert(1, _six_without_lr(without_lr))
    if without_exact is not None:
        parts.insert(-2, _blind(without_exact))
    return [figure for part in parts for figure in part]


def _figure(
    name: str, goal: str, n: str, unit: str, value: float, interval: Any, *, is_met: bool | None
) -> Figure:
    is_open = math.isnan(value)
    return {
        "name": name, "goal": goal, "n": n, "unit": unit, "value": value,
        "interval": None if interval is None or is_open else tuple(interval),
        "is_met": None if is_open else is_met,
    }  # fmt: skip


def _share(name: str, hits: int, n: int, least: float, what: str = "runs") -> Figure:
    value = hits / n if n else math.nan
    return _figure(name, f"≥ {least:.0%}", f"{hits} of {n} {what}", "share", value,
                   wilson(hits, n), is_met=value >= least)  # fmt: skip


def _of(rows: Sequence[Row], name: str) -> Row:
    """The row of a name; one of nothing where no run is in it."""
    empty = {"name": name, "n": 0, "exact": 0, "within": 0, "missed": 0, "mae": math.nan,
             "covered": 0, "n_covered_of": 0, "attributed": 0, "in_top": 0, "n_ranked": 0,
             "steps": 0, "episodes": 0, "rate": math.nan, "rate_interval": (math.nan, math.nan),
             "n_kinds": 0}  # fmt: skip
    return next((row for row in rows if row["name"] == name), empty)


def _rate(name: str, row: Row, most: float) -> Figure:
    n = f"{row['episodes']} in {row['steps']:,} steps, {row['n']} runs, {row['n_kinds']} kinds"
    return _figure(name, f"≤ {most:g} per 100k", n, "rate", row["rate"], row["rate_interval"],
                   is_met=row["rate"] <= most)  # fmt: skip


def _six(tables: Tables) -> Iterator[Figure]:
    rows = tables["faults"]
    six = _of(rows, SIX)
    n = six["n"]
    yield _share("six kinds: exact", six["exact"], n, 0.98)
    yield _figure("six kinds: missed", "0", f"{six['missed']} of {n} runs", "share",
                  six["missed"] / n if n else math.nan, wilson(six["missed"], n),
                  is_met=six["missed"] == 0)  # fmt: skip
    yield _figure("six kinds: mean error in steps, a miss counts 100", "≤ 0.05",
                  f"{n} runs", "number", six["mae"], None, is_met=six["mae"] <= 0.05)  # fmt: skip
    for part in ("natural text", "made-up smooth text"):
        row = _of(rows, f"six kinds, {part}")
        yield _share(f"six kinds, {part}: exact", row["exact"], row["n"], 0.98)
    young = _of(rows, "six kinds, fault in steps 60–250")
    yield _share("six kinds, fault in steps 60–250: within 2", young["within"], young["n"],
                 0.90)  # fmt: skip


def _six_without_lr(tables: Tables) -> Iterator[Figure]:
    rows = tables["faults"]
    six, young = _of(rows, SIX), _of(rows, "six kinds, fault in steps 60–250")
    yield _share("six kinds, lr withheld: exact", six["exact"], six["n"], 0.90)
    yield _share("six kinds, fault in steps 60–250, lr withheld: within 2", young["within"],
                 young["n"], 0.90)  # fmt: skip


def _healthy(tables: Tables) -> Iterator[Figure]:
    rows = tables["healthy"]
    yield _rate("healthy, declared events: false alarms",
                _of(rows, "healthy, declared or without events"), 5)  # fmt: skip
    kinds = tables["by_healthy_kind"]
    above = [row["name"] for row in kinds if row["is_above"]]
    sure = sum(row["is_surely_above"] for row in kinds)
    yield _figure(
        f"healthy kinds above {MOST_PER_KIND:g} false alarms per 100k", "none",
        f"{len(above)} of {len(kinds)} kinds, {sure} of them with a lower bound above it",
        "count", float(len(above)) if kinds else math.nan, None, is_met=not above,
    )  # fmt: skip
    yield _rate("healthy, undeclared events: false alarms",
                _of(rows, "healthy, undeclared events"), 10)  # fmt: skip
    changes = tables["changes"]
    yield _figure(
        "`change` findings on runs without events", "≤ 20 per 100k",
        f"{changes['n']} in {changes['steps']:,} steps", "rate", changes["rate"],
        changes["interval"], is_met=changes["rate"] <= 20,
    )  # fmt: skip
    for row in tables["budgets"]:
        if row["name"] == "held-out kinds":
            yield _figure(
                f"measured ÷ nominal at {row['budget']:g} per 100k, held-out kinds", "1/3 … 3",
                f"{row['episodes']} in {row['steps']:,} steps", "ratio", row["ratio"],
                row["ratio_interval"], is_met=1 / 3 <= row["ratio"] <= 3,
            )  # fmt: skip


def _hard(tables: Tables) -> Iterator[Figure]:
    rows = tables["faults"]
    hard, others = _of(rows, "hard set"), _of(rows, "other families, visible")
    yield _share("hard set, with invariants: exact", hard["exact"], hard["n"], 0.84)
    yield _share("hard set, with invariants: within 2", hard["within"], hard["n"], 0.86)
    yield _share("other families, visible faults: within 2", others["within"], others["n"], 0.90)


def _blind(tables: Tables) -> Iterator[Figure]:
    hard, seen = (_of(tables["faults"], n) for n in ("hard set", "hard set, visible"))
    yield _share("hard set, 128 metrics only: within 2", hard["within"], hard["n"], 0.65)
    yield _share("hard set, visible, 128 metrics only: within 2", seen["within"], seen["n"], 0.90)
    yield _rate("128 metrics only: false alarms, declared events",
                _of(tables["healthy"], "healthy, declared or without events"), 10)  # fmt: skip


def _beside(tables: Tables) -> Iterator[Figure]:
    placebo, sure = tables["placebo"], tables["sure"]
    hits, n = placebo["hits"], placebo["n"]
    yield _figure(
        "placebos: followed by a finding", _chance(placebo["chance"]),
        f"{hits} of {n} runs, p = {placebo['p']:.2f}", "share", hits / n if n else math.nan,
        placebo["interval"], is_met=None if math.isnan(placebo["p"]) else placebo["p"] > 0.05,
    )  # fmt: skip
    every = _of(tables["faults"], "all faults")
    yield _share("attribution: right family, of faults found within 2", every["attributed"],
                 every["within"], 0.90, "faults")  # fmt: skip
    yield _share("attribution: kind among the first three, of ranked ones", every["in_top"],
                 every["n_ranked"], 0.90, "faults")  # fmt: skip
    covered, named = every["covered"], every["n_covered_of"]
    yield _share("credible intervals that hold the true step", covered, named, 0.90, "findings")
    yield _share("findings of confidence ≥ 0.9: right within 2", sure["right"], sure["n"], 0.90,
                 "findings")  # fmt: skip
    seconds = tables["cpu_us_per_step"] / 10.0
    yield _figure("offline, 100 000 steps: seconds of one core", "≤ 5", "median over the runs",
                  "number", seconds, None, is_met=seconds <= 5)  # fmt: skip


def _chance(share: float) -> str:
    return "chance" if math.isnan(share) else f"chance: {share:.1%}"
