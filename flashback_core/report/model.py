"""DetectionReport: what a detector found, as plain data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashback_core.errors import SourceError

if TYPE_CHECKING:
    from flashback_core.table import StepTable

__all__ = [
    "MOST_CAUSES", "REPORT_VERSION", "UNKNOWN", "Cause", "DetectionReport", "Finding",
    "MetricScore", "finding_dict", "finding_of", "strict_json",
]  # fmt: skip

REPORT_VERSION = 1
STATUSES = ("bad", "healthy", "not_enough_data")
SEVERITIES = ("bad", "change", "info")
MOST_CAUSES = 5
"""Causes that a finding names at most."""
UNKNOWN = "unknown"
"""The coarse class where no named cause is likely enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricScore:
    """A metric that moved: its score (robust deviations from the baseline) and the step."""

    metric: str
    score: float
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A likely cause of a finding.

    Attributes:
        name: A fault kind, as in `flashback_core.faults`, e.g. ``opt_lost``.
        probability: How likely it is, in [0, 1].
        family: Its coarse class, e.g. ``state``.
    """

    name: str
    probability: float
    family: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a detector found.

    Attributes:
        step: First bad step, in the run's own numbering.
        interval: Credible interval (first, last) of that step, both included.
        kind: What it looks like, e.g. ``lr_jump``, ``nonfinite``, ``update_shift``.
        confidence: Weight of the evidence in [0, 1].
        severity: ``bad``, ``change`` (a regime change that looks wanted) or ``info``.
        evidence: Sentences for people, the strongest first.
        top_metrics: Metrics in the order in which they moved.
        causes: Likely causes, the likeliest first, at most `MOST_CAUSES`; what their probabilities
            lack to 1 is unknown. Empty where the detector ranks none.
    """

    step: int
    interval: tuple[int, int]
    kind: str
    confidence: float
    severity: str
    evidence: tuple[str, ...] = ()
    top_metrics: tuple[MetricScore, ...] = ()
    causes: tuple[Cause, ...] = ()

    @property
    def families(self) -> dict[str, float]:
        """Summed probability of the causes of each coarse class, the likeliest class first."""
        sums: dict[str, float] = {}
        for cause in self.causes:
            sums[cause.family] = sums.get(cause.family, 0.0) + cause.probability
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    @property
    def family(self) -> str:
        """The coarse class with the largest summed probability.

        ``unknown`` where what no cause accounts for is likelier than that class, or without causes.
        """
        family, most = next(iter(self.families.items()), (UNKNOWN, 0.0))
        return family if most > 1.0 - sum(c.probability for c in self.causes) else UNKNOWN


@dataclass(frozen=True, kw_only=True)
class DetectionReport:
    """What a detector found in one run.

    Attributes:
        status: ``bad``, ``healthy`` or ``not_enough_data``.
        n_steps: Rows that were looked at.
        first_step: Step of the first row, None for an empty run.
        last_step: Step of the last row.
        findings: Everything found, first step first; `changes` are among them.
        detector: Name and version of the detector, e.g. ``{"name": …, "version": "2"}``.
        source: Where the run lies, for people; not part of equality.
        facts: Facts of the run for the page (plain JSON values); not part of equality.
        table: The run, so that pages can draw it; not part of equality and never written.
    """

    status: str
    n_steps: int
    first_step: int | None
    last_step: int | None
    findings: tuple[Finding, ...] = ()
    detector: Mapping[str, str] = field(default_factory=dict)
    source: str = field(default="", compare=False)
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)
    table: StepTable | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check the status, so that a typing error cannot reach a tracker."""
        if self.status not in STATUSES:
            msg = f"status {self.status!r} is none of {', '.join(STATUSES)}"
            raise ValueError(msg)

    @property
    def bad(self) -> Finding | None:
        """The first finding of severity ``bad``."""
        return next((f for f in self.findings if f.severity == "bad"), None)

    @property
    def changes(self) -> tuple[Finding, ...]:
        """Undeclared regime changes that look wanted."""
        return tuple(f for f in self.findings if f.severity == "change")

    @property
    def first_bad_step(self) -> int | None:
        """The first bad step, or None."""
        return self.bad.step if self.bad else None

    @property
    def interval(self) -> tuple[int, int] | None:
        """Credible interval of the first bad step, or None."""
        return self.bad.interval if self.bad else None

    @property
    def confidence(self) -> float:
        """Confidence of the first bad step; 0.0 where there is none."""
        return self.bad.confidence if self.bad else 0.0

    @property
    def kind(self) -> str | None:
        """What the first bad step looks like, or None."""
        return self.bad.kind if self.bad else None

    @property
    def top_metrics(self) -> tuple[MetricScore, ...]:
        """Metrics in the order in which they moved."""
        return self.bad.top_metrics if self.bad else ()

    @property
    def evidence(self) -> tuple[str, ...]:
        """Sentences for people, the strongest first."""
        return self.bad.evidence if self.bad else ()

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values (strict: no NaN, no infinity)."""
        top = {
            "report_version": REPORT_VERSION,
            "status": self.status,
            "first_bad_step": self.first_bad_step,
            "interval": list(self.interval) if self.interval else None,
            "confidence": self.confidence,
            "kind": self.kind,
            "n_steps": self.n_steps,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "top_metrics": [asdict(m) for m in self.top_metrics],
            "evidence": list(self.evidence),
            "findings": [asdict(f) for f in self.findings],
            "detector": dict(self.detector),
            "source": self.source,
            "facts": dict(self.facts),
        }
        strict: dict[str, Any] = strict_json(top)
        return strict

    def to_json(self, *, indent: int | None = 2) -> str:
        """The report as strict JSON; see `to_dict`."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> DetectionReport:
        """The report that `to_json` wrote, without its table.

        Raises:
            SourceError: If the text is not a report of this version.
        """
        try:
            data = json.loads(text)
            version = data["report_version"]
            findings = tuple(finding_of(f) for f in data["findings"])
        except (ValueError, KeyError, TypeError) as error:
            msg = f"this is not a flashback report in JSON ({error}); expected report.json"
            raise SourceError(msg) from error
        if version != REPORT_VERSION:
            msg = f"report version {version}; this flashback reads {REPORT_VERSION}; upgrade it"
            raise SourceError(msg)
        return cls(
            status=data["status"],
            n_steps=data["n_steps"],
            first_step=data["first_step"],
            last_step=data["last_step"],
            findings=findings,
            detector=data["detector"],
            source=data["source"],
            facts=data["facts"],
        )

    def to_markdown(self) -> str:
        """The report as Markdown for GitHub, MLflow notes and chats."""
        from flashback_core.report.markdown import to_markdown

        return to_markdown(self)

    def to_html(self) -> str:
        """The report as one self-contained HTML page; needs no network."""
        from flashback_core.report.html import to_html

        return to_html(self)

    def write(self, folder: str | Path) -> dict[str, Path]:
        """Write ``report.json``, ``report.md`` and ``report.html`` into `folder`.

        Returns:
            The three paths by suffix.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        texts = {"json": self.to_json(), "md": self.to_markdown(), "html": self.to_html()}
        paths = {suffix: folder / f"report.{suffix}" for suffix in texts}
        for suffix, text in texts.items():
            paths[suffix].write_text(text, encoding="utf-8", errors="replace")
        return paths

    def with_table(self, table: StepTable) -> DetectionReport:
        """The same report with the run attached, so that pages can draw it."""
        return replace(self, table=table)

    def _repr_html_(self) -> str:
        """How Jupyter shows the report: the page in a frame of its own."""
        import html

        page = html.escape(self.to_html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:640px;border:0"></iframe>'


def finding_dict(finding: Finding) -> dict[str, Any]:
    """A finding as plain JSON values."""
    return asdict(finding)


def finding_of(data: Mapping[str, Any]) -> Finding:
    """The finding that `finding_dict` made plain."""
    scores = tuple(MetricScore(**m) for m in data["top_metrics"])
    causes = tuple(Cause(**c) for c in data.get("causes", ()))  # older reports have none
    made = {"top_metrics", "interval", "evidence", "causes"}
    rest = {k: v for k, v in data.items() if k not in made}
    first, last = data["interval"]
    return Finding(
        **rest, interval=(first, last), evidence=tuple(data["evidence"]), top_metrics=scores,
        causes=causes,
    )  # fmt: skip


def strict_json(value: Any) -> Any:
    """`value` with numpy scalars unwrapped and non-finite numbers as strings."""
    if isinstance(value, Mapping):
        return {str(k): strict_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict_json(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
