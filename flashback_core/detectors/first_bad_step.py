"""FirstBadStepDetector: the first step at which a run went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.checked import report_facts
from flashback_core.detectors.declared import Declared, declared
from flashback_core.detectors.explosion import explosion_findings
from flashback_core.detectors.features import features
from flashback_core.detectors.folder import read_config, write_config
from flashback_core.detectors.hard import hard_findings
from flashback_core.detectors.invariants import invariant_findings
from flashback_core.detectors.learning import learning_findings
from flashback_core.detectors.learning_rate import learning_rate
from flashback_core.detectors.merging import SAME, merged, merged_certain, with_learning
from flashback_core.detectors.scores import SCALES, WARM_UP, scores
from flashback_core.detectors.statistics import statistics
from flashback_core.errors import DetectorError, NoBaselineError
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.table import StepTable

__all__ = ["FirstBadStepDetector"]

Floats = npt.NDArray[np.float64]

SHIPPED = Path(__file__).with_name("shipped_v2")
MOST_ODD = 5
"""Odd batches that a report names; they are information."""
_RATE = "false_alarms_per_100k"


class FirstBadStepDetector:
    """The first bad step of a run: hard signals, the learning rate, then statistics (version 2).

    Three kinds of evidence, kept apart in the report:

    * hard signals (`detectors.hard`, `detectors.learning`): non-finite numbers, skipped steps that
      do not end, a group whose update is exactly zero, a loss that never learns; no baseline
      needed;
    * the learning rate against its own schedule (`detectors.learning_rate`);
    * statistics (`detectors.scores`): scale-free metrics by family, over 1, 5, 16 and 48 steps,
      each in units of the run's own noise and of its own largest value so far.

    An alarm is dated by walking back to its onset (`detectors.dating`). No part looks at the length
    of the run, and the score of a step depends on no later step. Declared events (`rec.expect`)
    excuse what they announce. Several optimizers are several series.

    Args:
        thresholds: Threshold by statistic, as `fit` makes them; None takes the shipped ones.
        min_steps: Rows below which a run without a hard signal is `not_enough_data`.
        margin: `fit` puts each threshold this many times over the largest healthy value.
        single_margin: The same for statistics of a single metric, which are the weakest evidence.
        false_alarms_per_100k: Measured false alarms per 100,000 healthy steps, for the report; None
            takes the shipped figure with the shipped thresholds, if there is one.

    Examples:
        >>> from flashback_core.testing import run_with_fault
        >>> FirstBadStepDetector().predict(run_with_fault(first_bad_step=120)).first_bad_step
        120
    """

    version = "2"

    def __init__(
        self,
        *,
        thresholds: Mapping[str, float] | None = None,
        min_steps: int = WARM_UP,
        margin: float = 2.0,
        single_margin: float = 2.5,
        false_alarms_per_100k: float | None = None,
    ) -> None:
        if min(min_steps, margin, single_margin) < 1:
            msg = (
                f"min_steps={min_steps}, margin={margin}, single_margin={single_margin}: each must "
                "be at least 1"
            )
            raise DetectorError(msg)
        if thresholds is None:
            shipped = read_config(SHIPPED)
            thresholds = shipped["thresholds"]
            if false_alarms_per_100k is None:
                false_alarms_per_100k = shipped.get(_RATE)
        self.thresholds = {str(k): float(v) for k, v in thresholds.items()}
        if any(not value > 0 for value in self.thresholds.values()):
            msg = "a threshold is not above 0; fit the detector again"
            raise DetectorError(msg)
        self.min_steps = min_steps
        self.margin = margin
        self.single_margin = single_margin
        self.false_alarms_per_100k = false_alarms_per_100k

    def __repr__(self) -> str:
        """Short: the thresholds are many."""
        return f"{type(self).__name__}(min_steps={self.min_steps}, margin={self.margin})"

    def fit(self, indexes: Sequence[StepTable], first_bad_steps: Sequence[int | None]) -> Self:
        """Set the thresholds over what healthy steps give; return self.

        Args:
            indexes: Runs; of a run with a fault, the steps before it are used.
            first_bad_steps: First bad step of each, None for a healthy run.

        Raises:
            NoBaselineError: If the runs hold no healthy step with a score.
        """
        largest: dict[str, float] = {}
        for table, bad in zip(indexes, first_bad_steps, strict=True):
            for name, value in _largest_healthy(table, bad):
                largest[name] = max(largest.get(name, 0.0), value)
        if not any(value > 0 for value in largest.values()):
            msg = (
                f"the {len(indexes)} runs hold no healthy step with a score; give runs with more "
                f"than {self.min_steps} healthy steps each"
            )
            raise NoBaselineError(msg)
        self.thresholds = {
            name: round(max(self._margin(name) * value, 1.0), 3)
            for name, value in sorted(largest.items())
        }
        self.false_alarms_per_100k = None  # measured with other thresholds
        return self

    def _margin(self, statistic: str) -> float:
        return self.single_margin if statistic.endswith("/largest") else self.margin

    def predict(self, index: StepTable) -> DetectionReport:
        """Report on `index`, which stays as it was."""
        findings = [f for series in _series(index) for f in self._findings(series)]
        findings.sort(key=lambda f: (f.step, f.severity != "bad"))
        bad = any(f.severity == "bad" for f in findings)
        enough = len(index) >= self.min_steps
        if not (bad or enough):
            findings.append(_too_short(index, self.min_steps))
        return DetectionReport(
            status="bad" if bad else "healthy" if enough else "not_enough_data",
            n_steps=len(index),
            first_step=int(index.steps[0]) if len(index) else None,
            last_step=int(index.steps[-1]) if len(index) else None,
            findings=tuple(findings),
            detector={"name": "FirstBadStepDetector", "version": self.version},
            source=index.source,
            facts=report_facts(
                index,
                n_statistics=len(self.thresholds),
                min_steps=self.min_steps,
                false_alarms=self.false_alarms_per_100k,
            ),
        ).with_table(index)

    def score(self, index: StepTable) -> Floats:
        """Largest statistic at each row in units of its threshold; 1.0 is an alarm.

        The score of a row depends on no later row: the score of a prefix is the prefix of the
        score. Rows of several optimizers are scored each in its own series.
        """
        score = np.zeros(len(index))
        for rows, series in _series_rows(index):
            found = _certain(series)
            score[rows] = statistics(series, self.thresholds, found.events, found.relearn).score
        return score

    def _findings(self, table: StepTable) -> list[Finding]:
        """The findings of one series, the certain ones before what may follow from them."""
        known = _certain(table)
        certain = known.findings
        bad = [f.step for f in certain if f.severity == "bad"]
        before = int(np.searchsorted(table.steps, min(bad) + SAME, "right")) if bad else len(table)
        found = statistics(table, self.thresholds, known.events, known.relearn)
        odd: list[Finding] = []
        alarm = None
        for alarm in found.alarms(before):
            if not found.is_odd_batch(alarm):
                break
            odd.append(found.odd_batch(alarm))
            alarm = None
        findings = [*merged(certain, found.finding(alarm) if alarm else None), *odd[:MOST_ODD]]
        slow = [*explosion_findings(table), *learning_findings(table)]
        return with_learning(findings, slow, certain=bool(bad))

    def save(self, folder: str | Path) -> Path:
        """Write the settings into `folder` as ``config.json``; return the folder."""
        settings: dict[str, Any] = {
            "version": self.version,
            "min_steps": self.min_steps,
            "margin": self.margin,
            "single_margin": self.single_margin,
            "thresholds": self.thresholds,
        }
        if self.false_alarms_per_100k is not None:
            settings[_RATE] = self.false_alarms_per_100k
        return write_config(folder, settings)

    @classmethod
    def load(cls, folder: str | Path) -> FirstBadStepDetector:
        """The detector that lies in `folder`, of version 1 (published) or 2.

        Raises:
            DetectorError: If the folder holds no detector that this version can read.
        """
        config = read_config(folder)
        if str(config.get("version")) == "1":
            from flashback_core.detectors.published import PublishedDetector

            return PublishedDetector.load(folder)
        return cls._from_config(config, folder)

    @classmethod
    def _from_config(cls, config: Mapping[str, Any], folder: str | Path) -> FirstBadStepDetector:
        if str(config.get("version")) != "2":
            msg = f"{folder}: detector version {config.get('version')!r}; this flashback reads 1, 2"
            raise DetectorError(msg)
        names = ("thresholds", "min_steps", "margin", "single_margin", _RATE)
        return FirstBadStepDetector(**{name: config[name] for name in names if name in config})


@dataclass(frozen=True, slots=True)
class _Certain:
    """What needs no statistics: declared events, findings, and rows after which to learn anew."""

    events: Declared
    findings: list[Finding]
    relearn: list[int]


def _certain(table: StepTable) -> _Certain:
    events = declared(table)
    lr, hard = learning_rate(table, events), hard_findings(table, events)
    hard += invariant_findings(table, events)
    changes = [table.row_of(f.step) for f in hard if f.severity == "change"]
    return _Certain(events, merged_certain([*hard, *lr.findings]), [*lr.rows, *changes])


def _series_rows(table: StepTable) -> Iterator[tuple[npt.NDArray[np.int64], StepTable]]:
    """Each optimizer's rows and the table of them."""
    rows = np.arange(len(table))
    if "exact:optimizer" not in table or not len(table):
        yield rows, table
        return
    which = np.asarray(table.column("exact:optimizer"))
    if np.all(which == which[0]):
        yield rows, table
        return
    for one in np.unique(which):
        mine = np.flatnonzero(which == one)
        yield mine, _rows_of(table, mine)


def _rows_of(table: StepTable, rows: npt.NDArray[np.int64]) -> StepTable:
    from flashback_core.table import MemoryTable

    columns = {name: table.column(name)[rows] for name in table}
    return MemoryTable(table.steps[rows], columns, events=table.events, source=table.source)


def _series(table: StepTable) -> Iterator[StepTable]:
    return (series for _, series in _series_rows(table))


def _too_short(table: StepTable, needed: int) -> Finding:
    step = int(table.steps[0]) if len(table) else 0
    text = (
        f"{len(table)} steps are too few for a verdict: the statistics need {needed} to learn what "
        "is normal in this run. Nothing certain was found."
    )
    return Finding(
        step=step, interval=(step, step), kind="not_enough_data", confidence=0.0,
        severity="info", evidence=(text,),
    )  # fmt: skip


def _largest_healthy(table: StepTable, bad: int | None) -> Iterator[tuple[str, float]]:
    """Largest value of each statistic over the healthy rows that no event excuses.

    With the learning rate and, for the runs that come without one, without it.
    """
    stop = len(table) if bad is None else int(np.searchsorted(table.steps, bad))
    for series in _series(table[:stop]):
        known = _certain(series)
        masks = {t: known.events.masked(rows, known.relearn) for t, rows in SCALES.items()}
        for part in (series, series[[name for name in series if name != "lr"]]):
            for name, values in scores(features(part)).items():
                allowed = values[~masks[name.split("/")[1]]]
                yield name, float(allowed.max(initial=0.0))
