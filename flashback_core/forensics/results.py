"""Writing the result of `score` into a folder, and showing it in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashback_core.forensics.curves import psychometric_svg, reliability_svg
from flashback_core.forensics.tables_md import (
    SHORT_COLUMNS,
    long_markdown,
    short_markdown,
    short_rows,
)
from flashback_core.report.model import strict_json

__all__ = ["show", "write"]

_CURVES = 4
"""Detectors in a picture."""


def write(result: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Write ``score.{json,md}``, ``short.md``, ``outcomes.jsonl`` and two pictures; the paths."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    tables = {k: v for k, v in result.items() if k != "outcomes"}
    lines = (json.dumps(strict_json(row), allow_nan=False) for row in result["outcomes"])
    first = dict(list(result["detectors"].items())[:_CURVES])
    texts = {
        "score.json": json.dumps(strict_json(tables), allow_nan=False) + "\n",
        "score.md": long_markdown(result),
        "short.md": short_markdown(result) + "\n",
        "outcomes.jsonl": "\n".join(lines) + "\n",
        "psychometric.svg": psychometric_svg({n: t["psychometric"] for n, t in first.items()}),
        "reliability.svg": reliability_svg(
            {n: t["confidence"] for n, t in first.items() if t["confidence"]}
        ),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return [out / name for name in texts]


def show(result: Mapping[str, Any]) -> None:
    """Print the short table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    data = result["data"]
    title = f"Test split of {data['n_runs']} runs, {data['n_steps']:,} steps"
    table = Table(title=title, box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for i, column in enumerate(_NARROW.values()):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    wanted = [SHORT_COLUMNS.index(name) for name in _NARROW]
    for row in short_rows(result):
        table.add_row(*(row[i].partition(" (")[0] for i in wanted))
    console = Console()
    console.print(table)
    console.print(_LEGEND, highlight=False, markup=False)
    for note in result["notes"]:
        console.print(f"Note: {note}", markup=False)


_NARROW = {
    "detector": "detector", "six kinds: exact": "six\nexact", "within 2": "six\n≤ 2",
    "missed": "six\nmissed", "hard set: within 2": "hard\n≤ 2",
    "false alarms / 100k steps": "false alarms", "µs CPU / step": "µs",
}  # fmt: skip
_LEGEND = """\
six: the kinds of the card; ≤ 2: within two steps; false alarms: episodes per
100 000 healthy steps [95 %]; µs: CPU per step. --out writes all tables."""
