"""A run in a terminal: its metrics with sparklines, single steps, and its parameter groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flashback_core.errors import SchemaError
from flashback_core.report.columns import fitting, folded, name_width
from flashback_core.report.events import event_words, told
from flashback_core.report.facts import coverage
from flashback_core.report.metric_words import split_metric
from flashback_core.report.sparkline import sparkline
from flashback_core.report.text import clean, count, number, plural
from flashback_core.schema import unknown_metric
from flashback_core.table import StepTable

__all__ = ["render_groups", "render_table"]

_ROWS_SHOWN = 60
_HEADS = ("first", "median", "last", "lowest", "highest")
_WIDE = 124
"""Columns of a terminal from which all of `_HEADS` are shown."""
_BARS = 6
"""Columns that a sparkline needs to say something."""
_OVERVIEW = (
    "loss",
    "lr",
    "grad_norm",
    "grad_max",
    "update_norm",
    "update_max",
    "param_norm",
    "nonfinite",
    "step_wall_ms",
)
_GROUP_OVERVIEW = ("grad_norm", "update_norm", "upd_param_ratio")


def render_table(
    table: StepTable,
    *,
    metrics: Sequence[str] | None = None,
    steps: tuple[int, int] | None = None,
    console: Console | None = None,
) -> None:
    """Print an overview of a run, or chosen metrics and steps of it.

    Args:
        table: The run.
        metrics: Names to show; None for an overview of the whole and of each group.
        steps: First and last step to show, both included; None for all. A short stretch is
            printed row by row.
        console: Where to print; standard output when None.

    Raises:
        SchemaError: If a metric is not in the table; close names are given.
    """
    console = console or Console()
    shown = table if steps is None else table.between(*steps)
    names = _names(table, metrics)
    _head(console, table, shown, steps)
    if len(shown) == 0:
        return
    if steps is not None and len(shown) <= _ROWS_SHOWN:
        _rows(console, shown, names[: max(1, (console.width - 12) // 13)])
    else:
        _overview(console, shown, names)
    _hidden(console, table, names, metrics)
    _events(console, shown)


def _names(table: StepTable, metrics: Sequence[str] | None) -> list[str]:
    if metrics:
        known = tuple(table)
        for name in metrics:
            if name not in table:
                raise SchemaError(unknown_metric(name, known))
        return list(metrics)
    whole = [n for n in _OVERVIEW if n in table.names]
    groups = [
        n for n in table.names if n.startswith("group:") and split_metric(n)[1] in _GROUP_OVERVIEW
    ]
    rest = [n for n in table.names if not n.startswith(("group:", "hist_"))]
    return (whole + groups) if groups else [*whole, *(n for n in rest if n not in whole)][:40]


def _head(
    console: Console, table: StepTable, shown: StepTable, steps: tuple[int, int] | None
) -> None:
    console.print(Text(clean(table.source, 200), style="bold"), highlight=False)
    if len(table) == 0:
        console.print(Text("No step was recorded."))
        return
    first, last = count(int(table.steps[0])), count(int(table.steps[-1]))
    words = f"{plural(len(table), 'row')}, steps {first} to {last}"
    cover = coverage(table)
    words += f"; {cover}" if cover else ""
    words += (
        f"; {plural(len(table.names), 'metric')}, {plural(len(table.exact_names), 'exact field')}"
    )
    console.print(Text(words), highlight=False)
    if steps is not None:
        none = "" if len(shown) else ": no row lies there"
        console.print(Text(f"Shown: steps {steps[0]:,} to {steps[1]:,}{none}"), highlight=False)


def _overview(console: Console, shown: StepTable, names: Sequence[str]) -> None:
    """One line for each metric; as many numbers as the terminal is wide."""
    columns = {name: _floats(shown, name) for name in names}
    known = {n: v for n, v in columns.items() if not np.isnan(v).all() or len(names) == 1}
    numbers = [_summary(values) for values in known.values()]
    heads: tuple[str, ...] = _HEADS if console.width >= _WIDE else ("last", "median")
    labels = [clean(name, 60) for name in known]
    cells = [[head, *(n[head] for n in numbers)] for head in heads]
    n, left = fitting(cells, labels, console.width, 2)
    heads = tuple(head for head in _HEADS if head in heads[:n])
    bars = min(40, left) if left >= _BARS else 0
    width = max(min(name_width(labels), console.width - 2), 1)
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    grid.add_column("metric", width=width)
    for head in (*heads, *([""] if bars else [])):
        grid.add_column(head, justify="right" if head else "left", no_wrap=True)
    for label, number_of, values in zip(labels, numbers, known.values(), strict=True):
        row = [folded(label, width), *(number_of[head] for head in heads)]
        grid.add_row(*(Text(c) for c in (*row, *([sparkline(values, bars)] if bars else []))))
    console.print(grid)
    if len(known) < len(names):  # groups that this model does not have, metrics nobody logged
        empty = plural(len(names) - len(known), "metric")
        console.print(Text(f"{empty} without a value not shown", style="dim"))


def _floats(table: StepTable, name: str) -> np.ndarray:
    return np.asarray(table.column(name), np.float64)


def _summary(values: np.ndarray) -> dict[str, str]:
    finite = values[np.isfinite(values)]
    found = {"first": values[0], "last": values[-1]}
    if len(finite):
        found |= {"median": np.median(finite), "lowest": finite.min(), "highest": finite.max()}
    return {head: number(float(found[head])) if head in found else "" for head in _HEADS}


def _rows(console: Console, shown: StepTable, names: Sequence[str]) -> None:
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    grid.add_column("step", justify="right", no_wrap=True)
    columns = [np.asarray(shown.column(n)) for n in names]
    for name in names:
        grid.add_column(Text(clean(name, 40)), justify="right", overflow="fold")
    for i, step in enumerate(shown.steps):
        cells = (_value(n, c[i]) for n, c in zip(names, columns, strict=True))
        grid.add_row(f"{int(step):,}", *(Text(w) for w in cells))
    console.print(grid)


def _value(name: str, value: np.generic) -> str:
    return f"{int(value):016x}" if name.endswith("_hash") else number(float(value))


def _hidden(
    console: Console, table: StepTable, names: Sequence[str], metrics: Sequence[str] | None
) -> None:
    more = len(table.names) - len(set(names) & set(table.names))
    if more and not metrics:
        console.print(
            Text(f"{plural(more, 'more metric')}; choose with --metric NAME", style="dim")
        )


def _events(console: Console, shown: StepTable) -> None:
    first, last = int(shown.steps[0]), int(shown.steps[-1])
    found = [e for e in told(shown.events) if _inside(e.get("step"), first, last)]
    for event in found[:20]:
        console.print(Text(f"  {event_words(event)}"), highlight=False)
    if len(found) > 20:
        console.print(Text(f"  and {plural(len(found) - 20, 'more event')}"))


def _inside(step: object, first: int, last: int) -> bool:
    return not isinstance(step, (int, float)) or first <= step <= last


def render_groups(table: StepTable, console: Console | None = None) -> None:
    """Print which parameter went into which group.

    Args:
        table: The run; its event ``groups`` names the parameters.
        console: Where to print; standard output when None.
    """
    console = console or Console()
    events = [e for e in table.events if e.get("event") == "groups"]
    if not events:
        console.print(
            Text(
                "This run does not say which parameter is in which group; "
                "runs recorded with fb.Recorder do."
            )
        )
        return
    for group, parameters in dict(events[-1].get("groups", {})).items():
        _group(console, str(group), list(parameters))


def _group(console: Console, group: str, parameters: list[dict[str, object]]) -> None:
    total = sum(_numel(p) for p in parameters)
    head = f"{clean(group, 60)}: {plural(len(parameters), 'tensor')}, {plural(total, 'number')}"
    console.print(Text(head, style="bold"), highlight=False)
    for p in parameters:
        shape = " × ".join(str(s) for s in _shape(p)) or "scalar"
        console.print(
            Text(f"  {clean(p.get('name', '?'), 100)}  {clean(shape, 40)}"), highlight=False
        )


def _numel(parameter: dict[str, object]) -> int:
    value = parameter.get("numel", 0)
    return value if isinstance(value, int) else 0


def _shape(parameter: dict[str, object]) -> Iterable[object]:
    shape = parameter.get("shape", ())
    return shape if isinstance(shape, (list, tuple)) else ()
