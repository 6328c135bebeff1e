"""The result of `score` as Markdown: a short form for a README and the long form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["SHORT_COLUMNS", "long_markdown", "short_markdown", "short_rows"]

Result = Mapping[str, Any]
Row = Mapping[str, Any]

SHORT_COLUMNS = (
    "detector", "six kinds: exact", "within 2", "early", "missed", "hard set: within 2",
    "all visible: within 2", "false alarms / 100k steps", "µs CPU / step",
)  # fmt: skip


def share(hits: int, n: int) -> str:
    """``hits/n (percent)``."""
    return f"{hits}/{n} ({hits / n:.0%})" if n else "–"


def number(value: float, digits: int = 1) -> str:
    """A number for a table, large ones without decimals; a dash where it is undefined."""
    places = 0 if abs(value) >= 100 else digits
    return f"{value:,.{places}f}" if math.isfinite(value) else "–"


def rate(row: Row) -> str:
    """A rate with its interval."""
    low, high = row["rate_interval"]
    return f"{number(row['rate'])} [{number(low)}, {number(high)}]"


def _row(rows: Sequence[Row], name: str) -> Row | None:
    return next((row for row in rows if row["name"] == name), None)


def short_rows(result: Result) -> list[tuple[str, ...]]:
    """One row per detector, in the columns of `SHORT_COLUMNS`; the test split."""
    return [_short(name, tables) for name, tables in result["detectors"].items()]


def _short(name: str, tables: Row) -> tuple[str, ...]:
    six = _row(tables["faults"], "six kinds of the card")
    cells = [_of(six, key) for key in ("exact", "within", "early", "missed")]
    hard = _of(_row(tables["faults"], "hard set"), "within")
    visible = _of(_row(tables["faults"], "all faults, visible"), "within")
    healthy = _row(tables["healthy"], "healthy, declared or without events")
    alarms = "–" if healthy is None else rate(healthy)
    return name, *cells, hard, visible, alarms, number(tables["cpu_us_per_step"], 0)


def _of(row: Row | None, key: str) -> str:
    return "–" if row is None else share(row[key], row["n"])


def short_markdown(result: Result) -> str:
    """The table for a README, with what it rests on."""
    data = result["data"]
    n_six = next((_row(t["faults"], "six kinds of the card") for t in result["detectors"].values()),
                 None)  # fmt: skip
    healthy = _first_row(result, "healthy", "healthy, declared or without events")
    lines = [
        _table(SHORT_COLUMNS, short_rows(result)),
        "",
        f"Test split of {data['n_runs']} runs ({data['n_steps']:,} steps; data "
        f"`{data['fingerprint']}`): {0 if n_six is None else n_six['n']} runs of the six kinds, "
        f"{0 if healthy is None else healthy['steps']:,} healthy steps with declared events. "
        "Intervals are 95 %.",
    ]
    return "\n".join(lines)


def _first_row(result: Result, table: str, name: str) -> Row | None:
    return next((_row(t[table], name) for t in result["detectors"].values()), None)


def long_markdown(result: Result) -> str:
    """Everything, detector by detector."""
    data, versions = result["data"], result["versions"]
    parts = [
        "# Detectors on runs broken on purpose",
        f"`{result['command']}`, {result['date']}; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ".",
        f"Data `{data['fingerprint']}`: {data['n_runs']} runs ({data['n_faults']} with a fault, "
        f"{data['n_placebos']} placebos, {data['n_healthy']} healthy), {data['n_twins']} healthy "
        f"twins, {data['n_steps']:,} steps without the twins; {data['n_test']} runs are in the "
        "test split.",
        *_figures(result["figures"]),
        *(f"Note: {note}." for note in result["notes"]),
        _TERMS,
        "## All detectors, test split",
        _table(SHORT_COLUMNS, short_rows(result)),
        _docs(result),
    ]
    for name, tables in result["detectors"].items():
        is_peer = 0 < len(result["docs"].get(name, "")) < _LONGEST_RULE
        parts += [f"## {name}", *_sections(tables, is_short=is_peer)]
    return "\n\n".join(part for part in parts if part) + "\n"


_TERMS = """\
*Exact*: the first bad step of the report is the true one. *Within 2*: at most two steps off.
*Early*: more than two steps before the fault, a false alarm that hides it. *Missed*: nothing was
said. *MAE*: mean error in steps, a miss counted as 100. *From the fault*: within 2 had the
monitoring begun at the fault. *Delay*: median steps from the fault to the first alarm. *Interval*:
share of credible intervals that hold the true step. *Visible*: d′ ≥ 8 against the same-seed healthy
twin. False alarms are episodes (more than 50 steps apart) per 100 000 healthy steps."""


_FIGURES = """\
Goals and what was measured on the test split, with the thresholds that the detector came with and
95 % intervals of Wilson (shares) or Poisson (rates). *Yes* and *no* are about the point estimate;
where the interval holds the goal, more runs may change the word. A dash: these data hold nothing of
it, or the detector says nothing of it."""


def _figures(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    columns = ("figure", "goal", "measured", "95 %", "of", "met")
    return ["## Figures", _FIGURES, _table(columns, [_figure(row) for row in rows])]


def _figure(row: Row) -> tuple[str, ...]:
    met = {None: "–", True: "yes", False: "**no**"}[row["is_met"]]
    low, high = row["interval"] or (math.nan, math.nan)
    shown = [_quantity(value, row["unit"]) for value in (row["value"], low, high)]
    interval = "–" if math.isnan(low) else f"{shown[1]} – {shown[2]}"
    return row["name"], row["goal"], shown[0], interval, row["n"], met


def _quantity(value: float, unit: str) -> str:
    if math.isnan(value):
        return "–"
    if unit == "share":
        return f"{value:.1%}"
    return number(value, {"count": 0, "rate": 1}.get(unit, 2))


_LONGEST_RULE = 200
"""Characters of a peer's rule; other detectors have no rule in a line."""


def _docs(result: Result) -> str:
    known = [(name, doc) for name, doc in result["docs"].items() if 0 < len(doc) < _LONGEST_RULE]
    return _table(("peer", "rule"), known) if known else ""


def _sections(tables: Row, *, is_short: bool) -> list[str]:
    parts = [_faults(tables["faults"]), _healthy(tables["healthy"])]
    placebo, changes = tables["placebo"], tables["changes"]
    parts.append(_budgets(tables["budgets"]))
    parts.append(
        f"Placebos followed by a finding within 50 steps: {share(placebo['hits'], placebo['n'])}; "
        f"by chance {_quantity(placebo['chance'], 'share')} (p = {number(placebo['p'], 2)}). "
        f"`change` findings in event-free healthy runs: {number(changes['rate'])} per 100 000 "
        f"steps ({changes['n']} in {changes['steps']:,}). CPU: "
        f"{number(tables['cpu_us_per_step'], 0)} µs per step."
    )
    if is_short:
        return parts
    parts += [_psychometric(tables["psychometric"]), _confidence(tables["confidence"])]
    for key, title in (("by_kind", "kind"), ("by_family", "family"), ("by_optimizer", "optimizer")):
        parts += [f"### By {title}, all splits", _faults(tables[key], title)]
    kinds, undeclared = tables["by_healthy_kind"], tables["by_undeclared_kind"]
    parts += ["### False alarms by healthy kind, declared or without events, all splits", _MARKS,
              _healthy(kinds, "healthy kind")]  # fmt: skip
    if undeclared:
        parts += ["### False alarms by healthy kind, undeclared events, all splits",
                  _healthy(undeclared, "healthy kind")]  # fmt: skip
    return [part for part in parts if part]


_MARKS = "▲: above 30 per 100 000 steps; ▲▲: its whole interval is."


def _budgets(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    columns = ("nominal against measured budget", "nominal / 100k", "runs", "steps", "episodes",
               "measured / 100k [95 %]", "measured ÷ nominal [95 %]", "ARL0")  # fmt: skip
    return _table(columns, [
        (row["name"], f"{row['budget']:g}", str(row["n"]), f"{row['steps']:,}",
         str(row["episodes"]), rate(row),
         "{:.2g} [{:.2g}, {:.2g}]".format(row["ratio"], *row["ratio_interval"]),
         number(row["arl0"], 0))
        for row in rows
    ])  # fmt: skip


def _faults(rows: Sequence[Row], title: str = "runs") -> str:
    columns = (title, "n", "exact", "within 2", "95 %", "from the fault", "early", "late", "missed",
               "MAE", "delay", "interval", "cause right")  # fmt: skip
    return _table(columns, [_fault(row) for row in rows])


def _fault(row: Row) -> tuple[str, ...]:
    low, high = row["within_interval"]
    return (
        row["name"], str(row["n"]), share(row["exact"], row["n"]), share(row["within"], row["n"]),
        f"{low:.0%}–{high:.0%}", str(row["within_from_fault"]), str(row["early"]),
        str(row["late"]), str(row["missed"]), number(row["mae"]), number(row["median_delay"], 0),
        "–" if math.isnan(row["coverage"]) else f"{row['coverage']:.0%}",
        f"{row['attributed']}/{row['n_claims']}",
    )  # fmt: skip


def _healthy(rows: Sequence[Row], title: str = "steps") -> str:
    columns = (title, "runs", "steps", "episodes", "per 100k [95 %]", "ARL0", "runs that alarm")
    return _table(columns, [
        (row["name"], str(row["n"]), f"{row['steps']:,}", str(row["episodes"]),
         rate(row) + _mark(row, title), number(row["arl0"], 0),
         f"{row['n_runs_alarmed']}/{row['n']}")
        for row in rows
    ])  # fmt: skip


def _mark(row: Row, title: str) -> str:
    """Kinds that alarm too often."""
    if title != "healthy kind" or not row["is_above"]:
        return ""
    return " ▲▲" if row["is_surely_above"] else " ▲"


def _psychometric(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    found = [
        (f"{row['low']:g} – {row['high']:g}", str(row["n"]), share(row["found"], row["n"]),
         "{:.0%}–{:.0%}".format(*row["interval"]))
        for row in rows
    ]  # fmt: skip
    return _table(("d′", "n", "found within 2, from the fault", "95 %"), found)


def _confidence(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    found = [
        (f"{row['low']:g} – {row['high']:g}", number(row["confidence"], 2), str(row["n"]),
         share(row["right"], row["n"]), "{:.0%}–{:.0%}".format(*row["interval"]))
        for row in rows
    ]  # fmt: skip
    return _table(("confidence", "mean", "findings", "right within 2", "95 %"), found)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
