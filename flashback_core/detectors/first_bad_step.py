"""FirstBadStepDetector: the first step at which a run went wrong."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.attribution import FILE, CauseModel, load_causes
from flashback_core.detectors.calibration import Confidence, Tail
from flashback_core.detectors.checked import report_facts
from flashback_core.detectors.fitting import fitted
from flashback_core.detectors.folder import read_config, write_config
from flashback_core.detectors.model_card import model_card
from flashback_core.detectors.score_stream import WARM_UP
from flashback_core.detectors.series import Series
from flashback_core.detectors.stream import DetectorStream
from flashback_core.errors import DetectorError
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.table import MemoryTable, StepTable

__all__ = ["FirstBadStepDetector"]

Floats = npt.NDArray[np.float64]

SHIPPED = Path(__file__).with_name("shipped_v2")
BUDGET = 3.0
_RATE = "false_alarms_per_100k"


class FirstBadStepDetector:
    """The first bad step of a run: certain rules, the learning rate, then statistics (version 2).

    Three kinds of evidence, kept apart in the report:

    * certain rules (`detectors.rules`): non-finite numbers, skipped steps that do not end, groups
      that stand still, what changed outside the optimizer, batches that come again, a loss that
      never learns; no baseline needed;
    * the learning rate against its scheduler, or against its own past;
    * statistics (`detectors.score_stream`): scale-free metrics by family, over 1, 5, 16 and 48
      steps, each in units of the run's own noise and of its own largest value so far.

    An alarm is dated by walking back to its onset (`detectors.dating`). No part looks at the length
    of the run, and the score of a step depends on no later step. Declared events (`rec.expect`)
    excuse what they announce. Several optimizers are several series.

    Args:
        budget: Nominal false alarms of the statistics per 100,000 healthy steps; it sets all
            thresholds at once. See `detectors.calibration` for what stands behind it.
        thresholds: Threshold by statistic in place of those that the budget gives.
        min_steps: Rows below which a run without a certain finding is `not_enough_data`.
        false_alarms_per_100k: Measured false alarms per 100,000 healthy steps, for the report; None
            takes the shipped figure with the shipped settings, if there is one.

    Attributes:
        causes: What names likely causes of its bad findings; None names none.

    Examples:
        >>> from flashback_core.testing import run_with_fault
        >>> FirstBadStepDetector().predict(run_with_fault(first_bad_step=120)).first_bad_step
        120
    """

    version = "2"

    def __init__(
        self,
        *,
        budget: float = BUDGET,
        thresholds: Mapping[str, float] | None = None,
        min_steps: int = WARM_UP,
        false_alarms_per_100k: float | None = None,
    ) -> None:
        if not (_is_amount(budget) and _is_amount(min_steps) and min_steps >= 1):
            msg = (
                f"budget={budget!r}, min_steps={min_steps!r}: a budget is a number above 0, steps "
                "are at least 1"
            )
            raise DetectorError(msg)
        self.budget, self.min_steps = float(budget), min_steps
        self._tail: Tail | None = None
        self._settle(read_config(SHIPPED), false_alarms_per_100k)
        self.causes: CauseModel | None = load_causes(SHIPPED)
        if thresholds is not None:
            self._levels = {str(k): float(v) for k, v in thresholds.items()}
            self._tail = None
            self.false_alarms_per_100k = false_alarms_per_100k  # the shipped figure is not theirs
        self._check()

    def _settle(self, config: Mapping[str, Any], rate: float | None = None) -> None:
        """Take levels, tail and confidence from a configuration."""
        self._levels = {str(k): float(v) for k, v in config["levels"].items()}
        tail = config.get("tail")
        self._tail = Tail(**tail) if tail else None
        self._confidence = Confidence(**config.get("confidence", {}))
        is_same = self.budget == float(config.get("budget", BUDGET))
        self.false_alarms_per_100k = rate
        if rate is None and is_same and config.get(_RATE) is not None:
            self.false_alarms_per_100k = float(config[_RATE])

    def _check(self) -> None:
        if any(not value > 0 for value in self._levels.values()):
            msg = "a threshold is not above 0; fit the detector again"
            raise DetectorError(msg)

    def __repr__(self) -> str:
        """Short: the thresholds are many."""
        return f"{type(self).__name__}(budget={self.budget:g}, min_steps={self.min_steps})"

    @property
    def thresholds(self) -> dict[str, float]:
        """Threshold of each statistic at this budget."""
        return {name: level * self._ratio for name, level in self._levels.items()}

    @property
    def _ratio(self) -> float:
        return 1.0 if self._tail is None else self._tail.ratio_at(self.budget)

    def at_budget(self, budget: float) -> FirstBadStepDetector:
        """The same detector at another budget of false alarms per 100,000 healthy steps."""
        other = FirstBadStepDetector(budget=budget, min_steps=self.min_steps)
        other._levels, other._tail = self._levels, self._tail
        other._confidence, other.causes = self._confidence, self.causes
        other.false_alarms_per_100k = None if budget != self.budget else self.false_alarms_per_100k
        return other

    def score_ratio_at(self, budget: float) -> float:
        """The score (see `score`) that is an alarm at another budget.

        Raises:
            DetectorError: If the thresholds were given by hand, so that no budget sets them.
        """
        if self._tail is None:
            msg = "the thresholds were given by hand; a budget moves fitted thresholds only"
            raise DetectorError(msg)
        return self._tail.ratio_at(budget) / self._ratio

    def fit(
        self,
        indexes: Sequence[StepTable],
        first_bad_steps: Sequence[int | None],
        *,
        kinds: Sequence[Hashable] | None = None,
    ) -> Self:
        """Set levels, tail and confidence by runs whose first bad step is known; return self.

        Args:
            indexes: Runs; of a run with a fault, the steps before it are healthy.
            first_bad_steps: First bad step of each, None for a healthy run.
            kinds: Kind of each run; the tail is measured on kinds that had no part in the levels.
                None takes each run for a kind of its own.

        Raises:
            NoBaselineError: If the runs hold no healthy step with a score.
            DetectorError: If the lists are not of one length.
        """
        lengths = {len(indexes), len(first_bad_steps), len(kinds or indexes)}
        if len(lengths) > 1:
            msg = (
                f"{len(indexes)} runs, {len(first_bad_steps)} first bad steps, "
                f"{len(kinds or indexes)} kinds; expected one of each for every run"
            )
            raise DetectorError(msg)
        found = fitted(indexes, first_bad_steps, kinds, min_steps=self.min_steps)
        self._levels, self._tail = found.levels, found.tail
        self._confidence = found.confidence
        self.false_alarms_per_100k = None  # measured with other thresholds
        return self

    def predict(self, index: StepTable) -> DetectionReport:
        """Report on `index`, which stays as it was."""
        findings: list[Finding] = []
        judged = 0
        for _, table in series_of(index):
            series = self.series((*table.names, *table.exact_names))
            series.update(table, index.events)
            series.finish()
            findings += series.findings()
            judged = max(judged, series.statistics.n_judged)
        facts = report_facts(
            index,
            n_statistics=judged,
            budget=None if self._tail is None else self.budget,
            min_steps=self.min_steps,
            false_alarms=self.false_alarms_per_100k,
        )
        return self.report(
            findings,
            n_steps=len(index),
            first_step=int(index.steps[0]) if len(index) else None,
            last_step=int(index.steps[-1]) if len(index) else None,
            source=index.source,
            facts=facts,
            is_judged=judged > 0,
        ).with_table(index)

    def stream(self, *, state: Mapping[str, Any] | None = None) -> DetectorStream:
        """The same detector online: rows go in one by one, findings come out.

        Args:
            state: What `DetectorStream.state` gave: go on from there.
        """
        stream = DetectorStream(self)
        if state is not None:
            stream.restore(state)
        return stream

    def series(self, names: Sequence[str]) -> Series:
        """A fresh series of rows with the columns `names`."""
        return Series(
            tuple(names), self._levels, self._confidence, scale=self._ratio, causes=self.causes
        )

    def report(
        self,
        findings: Sequence[Finding],
        *,
        n_steps: int,
        first_step: int | None,
        last_step: int | None,
        source: str = "",
        facts: Mapping[str, Any] | None = None,
        is_judged: bool = True,
    ) -> DetectionReport:
        """The report that says `findings` of a run of `n_steps` rows.

        `is_judged` says whether any column held what a statistic can judge.
        """
        found = sorted(findings, key=lambda f: (f.step, f.severity != "bad"))
        bad = any(f.severity == "bad" for f in found)
        enough = n_steps >= self.min_steps and is_judged
        if not (bad or enough):
            needed = self.min_steps if n_steps < self.min_steps else None
            found.append(_too_little(n_steps, first_step or 0, needed))
        return DetectionReport(
            status="bad" if bad else "healthy" if enough else "not_enough_data",
            n_steps=n_steps,
            first_step=first_step,
            last_step=last_step,
            findings=tuple(found),
            detector={"name": "FirstBadStepDetector", "version": self.version},
            source=source,
            facts=facts or {},
        )

    def score(self, index: StepTable) -> Floats:
        """Largest statistic at each row in units of its threshold; 1.0 is an alarm.

        The score of a row depends on no later row: the score of a prefix is the prefix of the
        score. Rows of several optimizers are scored each in its own series.
        """
        score = np.zeros(len(index))
        for rows, table in series_of(index):
            series = self.series((*table.names, *table.exact_names))
            values = series.values(table, index.events)
            levels = np.array([self._levels.get(n, np.inf) for n in series.statistics.names])
            if len(levels):
                score[rows] = (values / (levels * self._ratio)[:, None]).max(axis=0)
        return score

    def save(self, folder: str | Path) -> Path:
        """Write ``config.json``, ``causes.json`` and a model card into `folder`; return it."""
        settings: dict[str, Any] = {
            "version": self.version,
            "min_steps": self.min_steps,
            "budget": self.budget,
            "levels": self._levels,
            "tail": None if self._tail is None else self._tail.to_dict(),
            "confidence": self._confidence.to_dict(),
        }
        if self.false_alarms_per_100k is not None:
            settings[_RATE] = self.false_alarms_per_100k
        folder = write_config(folder, settings)
        if self.causes is None:
            (folder / FILE).unlink(missing_ok=True)
        else:
            self.causes.save(folder)
        (folder / "README.md").write_text(model_card(settings), encoding="utf-8")
        return folder

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
        if str(config.get("version")) != "2" or "levels" not in config:
            msg = f"{folder}: detector version {config.get('version')!r}; this flashback reads 1, 2"
            raise DetectorError(msg)
        found = FirstBadStepDetector(
            budget=config.get("budget", BUDGET), min_steps=config.get("min_steps", WARM_UP)
        )
        found._settle(config)
        found.causes = load_causes(folder)
        found._check()
        return found


def series_of(table: StepTable) -> Iterator[tuple[npt.NDArray[np.int64], StepTable]]:
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
        columns = {name: table.column(name)[mine] for name in table}
        yield mine, MemoryTable(table.steps[mine], columns, events=table.events)


def _is_amount(value: Any) -> bool:
    """Whether a value is a finite number above 0."""
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    return is_number and bool(0 < value < np.inf)


def _too_little(n_rows: int, step: int, needed: int | None) -> Finding:
    text = (
        f"{n_rows} steps are too few for a verdict: the statistics need {needed} to learn what "
        "is normal in this run. Nothing certain was found."
        if needed
        else "No column holds anything that can be judged: expected a loss, gradient or update "
        "norms with values that are not NaN."
    )
    return Finding(
        step=step, interval=(step, step), kind="not_enough_data", confidence=0.0,
        severity="info", evidence=(text,),
    )  # fmt: skip
