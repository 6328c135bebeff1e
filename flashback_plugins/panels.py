"""What trackers show of a run, as plain data: names, a choice of live scalars, tables, alerts.

Nothing here imports a tracker. A metric keeps its own name (``group:attn_qkv:max_abs``) in the
index and everywhere in flashback; only on the way into a tracker does it become a path with
slashes, which W&B and MLflow use to sort charts into sections, and which both accept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flashback_core.errors import SchemaError
from flashback_core.report.causes import causes_line
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.schema import N_BINS

__all__ = [
    "LIVE_SCALARS",
    "LOG2_EDGES",
    "PREFIX",
    "TITLE_LENGTH",
    "Table",
    "alert_level",
    "alert_text",
    "alert_title",
    "findings_table",
    "live_scalars",
    "metric_name",
    "same_finding",
    "summary",
    "tracker_name",
]

PREFIX = "flashback/"
"""Stands before every name that flashback gives to a tracker."""

LOG2_EDGES = tuple(range(1 - 2 * N_BINS, 2, 2))
"""The 17 edges of the histogram bins as powers of two: bin b of 1 … 14 lies in
[2b - 31, 2b - 29). The outer two, open by definition, are drawn as wide as the others."""

LIVE_SCALARS = (
    "health", "loss", "grad_norm", "update_norm", "nonfinite", "lr", "update_max", "grad_max",
    "param_norm", "step_wall_ms",
)  # fmt: skip
"""Scalars worth a live chart, the most telling first."""

_NEVER_LIVE = {"batch_id_mean", "batch_uniq_frac"}  # what is known of sample ids stays local
_LONGEST = 250 - len(PREFIX)  # MLflow's limit for a whole name
TITLE_LENGTH = 63
"""Longest title of an alert: W&B takes less than 64 characters."""
_CONFIRMED = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A small table: plain values, one list per row."""

    columns: tuple[str, ...]
    rows: list[list[Any]]


def tracker_name(name: str) -> str:
    """The name of a metric as a path that every tracker accepts, without `PREFIX`.

    Colons become slashes. Any other character outside ``A-Z a-z 0-9 _ . -`` and space is written
    as ``-x2f-`` (its code point in hexadecimal). A name too long for MLflow (250 characters with
    `PREFIX`) is cut and ends in a digest.

    Args:
        name: A metric as the index has it; any text.

    Returns:
        A name from which `metric_name` gets the metric back.

    Examples:
        >>> tracker_name("group:attn_qkv:max_abs")
        'group/attn_qkv/max_abs'
        >>> tracker_name("group:router/0:var")
        'group/router-x2f-0/var'
    """
    path = "/".join(_quote(part) for part in name.split(":"))
    if len(path) < _LONGEST:
        return path
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    # a cut inside an escape is harmless: shortened names are looked up, never decoded
    head = path[: _LONGEST - len(digest) - 2].rstrip("/. ")
    return f"{head}-h{digest}".ljust(_LONGEST, "_")


def metric_name(path: str, names: Iterable[str] = ()) -> str:
    """The metric behind the tracker name `path`: the inverse of `tracker_name`.

    Args:
        path: A name in a tracker, with or without `PREFIX`.
        names: Metrics of the run, needed for names so long that they were shortened.

    Raises:
        SchemaError: If a shortened name is none of `names`.

    Examples:
        >>> metric_name("flashback/group/attn_qkv/max_abs")
        'group:attn_qkv:max_abs'
    """
    path = path.removeprefix(PREFIX)
    if len(path) < _LONGEST:
        return ":".join(_unquote(part) for part in path.split("/"))
    for name in names:
        if tracker_name(name) == path:
            return name
    msg = f"{path!r} is a shortened name and none of the metrics given; pass names=index.names"
    raise SchemaError(msg)


def _quote(part: str) -> str:
    if not part or part in {".", ".."}:  # trackers take names for paths, where these vanish
        return "-x-" + part.replace(".", "-x2e-")
    return re.sub(r"-(?=x)|[^A-Za-z0-9_. -]", lambda m: f"-x{ord(m[0]):x}-", part)


def _unquote(part: str) -> str:
    return re.sub(r"-x([0-9a-f]*)-", lambda m: chr(int(m[1], 16)) if m[1] else "", part)


def live_scalars(values: Mapping[str, float], limit: int = 12) -> dict[str, float]:
    """The scalars of one step that are worth sending while the run goes on.

    Args:
        values: Metrics by name, as few or as many as there are.
        limit: How many to take at most.

    Returns:
        Those of `LIVE_SCALARS` that are there, in that order, then others in their own order.
        Histogram bins and what is known of sample ids are never among them.
    """
    first = [name for name in LIVE_SCALARS if name in values]
    rest = [name for name in values if name not in first and _may_go_live(name)]
    return {name: float(values[name]) for name in (first + rest)[:limit]}


def _may_go_live(name: str) -> bool:
    return name not in _NEVER_LIVE and not name.startswith(("hist_", "exact:"))


def summary(report: DetectionReport) -> dict[str, Any]:
    """The verdict of `report` in a few plain values, for summaries, tags and metadata."""
    return {
        "status": report.status,
        "first_bad_step": report.first_bad_step,
        "confidence": round(report.confidence, 6),
        "kind": report.kind,
        "n_steps": report.n_steps,
    }


def findings_table(report: DetectionReport, limit: int = 50) -> Table:
    """The findings of `report`, one row each, first step first."""
    # MLflow's page shows the first four of them at once
    columns = (
        "step", "kind", "confidence", "moved first", "severity", "from", "to", "evidence",
    )  # fmt: skip
    return Table(columns=columns, rows=[_finding_row(f) for f in report.findings[:limit]])


def _finding_row(finding: Finding) -> list[Any]:
    moved = ", ".join(score.metric for score in finding.top_metrics[:3])
    return [
        int(finding.step),
        finding.kind,
        round(float(finding.confidence), 4),
        moved,
        finding.severity,
        int(finding.interval[0]),
        int(finding.interval[1]),
        " ".join(finding.evidence[:2]),
    ]


def alert_level(finding: Finding) -> str:
    """``ERROR`` for a bad step that is as good as sure, ``WARN`` for a suspect, else ``INFO``."""
    if finding.severity != "bad":
        return "INFO"
    return "ERROR" if finding.confidence >= _CONFIRMED else "WARN"


def alert_title(finding: Finding) -> str:
    """One line of at most `TITLE_LENGTH` characters."""
    what = "first bad step" if finding.severity == "bad" else "change at step"
    title = f"flashback: {what} {finding.step} ({finding.kind})"
    return title if len(title) <= TITLE_LENGTH else title[: TITLE_LENGTH - 1] + "…"


def alert_text(finding: Finding) -> str:
    """A few lines for people: where, how sure, likely causes, evidence, what moved first."""
    first, last = finding.interval
    between = "" if first == last else f" (between {first} and {last})"
    lines = [
        f"Step {finding.step}{between}, {finding.kind}, confidence {finding.confidence:.2f}.",
        *finding.evidence[:5],
    ]
    causes = causes_line(finding)
    if causes:
        lines.insert(1, causes)
    if finding.top_metrics:
        moved = ", ".join(f"{m.metric} (step {m.step})" for m in finding.top_metrics[:5])
        lines.append(f"Moved first: {moved}.")
    return "\n".join(lines)


def same_finding(one: Finding, other: Finding) -> bool:
    """Whether two findings are one event: same kind and severity, and their intervals meet."""
    if (one.kind, one.severity) != (other.kind, other.severity):
        return False
    return one.interval[0] <= other.interval[1] and other.interval[0] <= one.interval[1]
