"""PublishedDetector: the algorithm of the published first-bad-step detector (version 1).

The card gives the configuration and the weights, not the code. Where it leaves something open, this
is how it is read here:

* *metrics*: of positive metrics the logarithm is taken (``log=False``: as they are). The card calls
  its features scale-free, and only with logarithms does the rule reach the card's own score.
* *z*: ``mode="diff"`` takes the difference to the step before, then its distance from the median of
  the `win` differences before, over their median absolute deviation (times 1.4826, plus `FLOOR`).
* *threshold*: a metric fires at ``max(k_cal, k_min)``.
* *votes*: a step is a candidate when `min_votes` different metrics fire within `vote_window` steps
  from it on and one of them fires at the step itself. That is the first step of the consensus.
* *confirmation*: the first candidate whose logistic probability reaches `logistic_threshold`.
* *non-finite values*: `LIMIT` deviations, where the metric has been finite before.
* *hard_signal*: 1 where a counter of non-finite entries is above zero.
* *rel_position*: the row over the number of rows, so it looks at the length of the run.

Known limits. It alarms on nearly every healthy run on real text: one odd batch moves most gradient
metrics together, which the votes take for many witnesses. And ``rel_position`` with its weight of
15 is a clock rather than evidence: late in a run any few votes pass, early in it hardly anything
does, and the verdict on a step changes as the run grows. It is here as the baseline to beat.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flashback_core.baseline import fill_forward, robust_z
from flashback_core.detectors.first_bad_step import FirstBadStepDetector
from flashback_core.detectors.folder import read_config, read_json, write_config
from flashback_core.detectors.logistic import fit_logistic, sigmoid
from flashback_core.detectors.stream import DetectorStream
from flashback_core.errors import DetectorError, NoBaselineError
from flashback_core.report.model import DetectionReport, Finding, MetricScore
from flashback_core.table import StepTable

__all__ = ["PUBLISHED", "WEIGHTS", "PublishedDetector"]

Floats = npt.NDArray[np.float64]

PUBLISHED = Path(__file__).with_name("published_v1")
WEIGHTS_FILE = "weights.json"
WEIGHTS = (
    "bias", "log1p_max_z", "log1p_top5_mean_z", "frac_metrics_firing", "hard_signal",
    "log1p_z_grad_norm", "log1p_z_update_max", "log1p_z_loss", "log1p_z_hist_tail", "rel_position",
)  # fmt: skip
"""Names of the bias and of the features, in the card's order."""

FLOOR = 1e-3
LIMIT = 1e6
TAIL = tuple(f"hist_{kind}:{i}" for kind in ("grad", "update") for i in range(12, 16))


class PublishedDetector(FirstBadStepDetector):
    """The published detector; settings under the names of its ``config.json``.

    Args:
        win: Rows of the reference window.
        gap: Distance of the window's last row from the row judged.
        mode: ``diff`` for differences between steps, ``level`` for the metrics themselves.
        k_cal: Calibrated threshold of a vote.
        k_min: Smallest threshold of a vote.
        min_votes: Metrics that must fire.
        vote_window: Steps within which they must.
        exclude: Metrics without a vote.
        use_logistic: Whether a candidate needs the logistic confirmation.
        logistic_threshold: Probability that confirms.
        weights: Weight by name in `WEIGHTS`; None takes the published ones.
        log: Take the logarithm of positive metrics (see the top of this file).

    Raises:
        DetectorError: If a setting is out of range or a weight is missing.
    """

    version = "1"

    def __init__(
        self,
        *,
        win: int = 32,
        gap: int = 1,
        mode: str = "diff",
        k_cal: float = 8.0,
        k_min: float = 8.0,
        min_votes: int = 3,
        vote_window: int = 2,
        exclude: Sequence[str] = ("lr", "step_wall_ms", "batch_id_mean", "batch_uniq_frac"),
        use_logistic: bool = True,
        logistic_threshold: float = 0.5,
        weights: Mapping[str, float] | None = None,
        log: bool = True,
    ) -> None:
        if mode not in ("diff", "level") or win < 4 or min(gap, min_votes, vote_window) < 1:
            msg = (
                f"mode={mode!r}, win={win}, gap={gap}, min_votes={min_votes}, vote_window="
                f"{vote_window}: mode is 'diff' or 'level', win at least 4, the others at least 1"
            )
            raise DetectorError(msg)
        self.win, self.gap, self.mode = win, gap, mode
        self.k_cal, self.k_min = k_cal, k_min
        self.min_votes, self.vote_window = min_votes, vote_window
        self.exclude = tuple(exclude)
        self.use_logistic, self.logistic_threshold = use_logistic, logistic_threshold
        weights = read_json(PUBLISHED / WEIGHTS_FILE) if weights is None else weights
        missing = [name for name in WEIGHTS if name not in weights]
        if missing:
            msg = f"the weights lack {', '.join(missing)}; expected {', '.join(WEIGHTS)}"
            raise DetectorError(msg)
        self.weights = {name: float(weights[name]) for name in WEIGHTS}
        self.log = log
        self.min_steps = win + gap + 2

    def __repr__(self) -> str:
        """Short: version and the settings that are fitted."""
        return f"PublishedDetector(win={self.win}, k_cal={self.k_cal}, min_votes={self.min_votes})"

    def predict(self, index: StepTable) -> DetectionReport:
        """Report on `index`, which stays as it was."""
        z, names = self._z(index)
        alarms = self._alarms(z, names, index)
        findings = (self._finding(index, z, names, int(alarms[0])),) if len(alarms) else ()
        enough = len(index) >= self.min_steps
        return DetectionReport(
            status="bad" if findings else "healthy" if enough else "not_enough_data",
            n_steps=len(index),
            first_step=int(index.steps[0]) if len(index) else None,
            last_step=int(index.steps[-1]) if len(index) else None,
            findings=findings,
            detector={"name": "FirstBadStepDetector", "version": self.version},
            source=index.source,
        ).with_table(index)

    def score(self, index: StepTable) -> Floats:
        """Logistic probability of each row; it depends on the length of the run."""
        z, names = self._z(index)
        return self._probability(self._design(z, names, index))

    def fit(
        self,
        indexes: Sequence[StepTable],
        first_bad_steps: Sequence[int | None],
        *,
        kinds: Sequence[Hashable] | None = None,
    ) -> Self:
        """Choose `win`, `k_cal` and `min_votes`, then fit the weights; return self.

        Raises:
            NoBaselineError: If no run is longer than the reference window.
        """
        if not any(len(table) >= self.min_steps for table in indexes):
            msg = f"none of the {len(indexes)} runs has {self.min_steps} steps; give longer runs"
            raise NoBaselineError(msg)
        costs = {}
        for win in (16, 32, 64):
            self._set(win, self.k_cal, self.min_votes)
            z = [self._z(table)[0] for table in indexes]
            for k_cal, votes in product((6.0, 8.0, 12.0, 16.0), (2, 3, 5)):
                self._set(win, k_cal, votes)
                costs[win, k_cal, votes] = self._cost(z, indexes, first_bad_steps)
        self._set(*min(costs, key=lambda setting: costs[setting]))
        self.weights = dict(zip(WEIGHTS, self._fitted(indexes, first_bad_steps), strict=True))
        return self

    def at_budget(self, budget: float) -> FirstBadStepDetector:
        """No budget sets the thresholds of this version.

        Raises:
            DetectorError: Always.
        """
        msg = f"the published detector knows no budget of false alarms (got {budget:g}); take v2"
        raise DetectorError(msg)

    def score_ratio_at(self, budget: float) -> float:
        """No budget sets the thresholds of this version; raises like `at_budget`."""
        self.at_budget(budget)
        return 1.0

    def stream(self, *, state: Mapping[str, Any] | None = None) -> DetectorStream:
        """This version looks at the length of the run, which no stream knows.

        Raises:
            DetectorError: Always.
        """
        msg = "the published detector looks at the whole run; take a detector of version 2"
        raise DetectorError(msg)

    def _set(self, win: int, k_cal: float, min_votes: int) -> None:
        self.win, self.k_cal, self.min_votes = win, k_cal, min_votes
        self.min_steps = win + self.gap + 2

    def _cost(
        self, z: Sequence[Floats], indexes: Sequence[StepTable], bad: Sequence[int | None]
    ) -> float:
        """Mean error of the votes in steps; a miss and an alarm on a healthy run count 100."""
        errors = []
        for one, table, true in zip(z, indexes, bad, strict=True):
            at = np.flatnonzero(self._candidates(one))
            found = int(table.steps[at[0]]) if len(at) else None
            if found is None or true is None:
                errors.append(0.0 if found is true else 100.0)
            else:
                errors.append(min(abs(found - true), 100.0))
        return float(np.mean(errors))

    def _fitted(self, indexes: Sequence[StepTable], bad: Sequence[int | None]) -> Floats:
        """Logistic weights on the candidates; the bad ones are those at the onset or one later."""
        rows, labels = [], []
        for table, true in zip(indexes, bad, strict=True):
            z, names = self._z(table)
            at = np.flatnonzero(self._candidates(z))
            rows.append(self._design(z, names, table)[at])
            steps = table.steps[at]
            labels.append(np.zeros(len(at)) if true is None else (steps - true).clip(-1, 2) % 3 < 2)
        x, y = np.concatenate(rows), np.concatenate(labels).astype(np.float64)
        if y.min(initial=1.0) == y.max(initial=0.0):
            return np.array([self.weights[name] for name in WEIGHTS])
        return fit_logistic(x, y)

    def _z(self, index: StepTable) -> tuple[Floats, tuple[str, ...]]:
        """Absolute z of every metric with a vote, of shape (metrics, rows)."""
        names = tuple(name for name in index.names if name not in self.exclude)
        if not names or len(index) < self.min_steps:
            return np.zeros((len(names), len(index))), names
        x = np.stack([self._level(index.column(name)) for name in names])
        if self.mode == "diff":
            x = np.diff(x, axis=1, prepend=x[:, :1])
        z = np.abs(robust_z(x, window=self.win, gap=self.gap, floor=FLOOR))
        z[self._lost(index, names)] = LIMIT
        z[:, : self.win + self.gap] = 0.0
        return np.minimum(z, LIMIT), names

    def _lost(self, index: StepTable, names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        """Where a metric that has been finite is not."""
        finite = np.stack([np.isfinite(np.asarray(index.column(n), np.float64)) for n in names])
        return np.asarray(~finite & (np.cumsum(finite, axis=1) > 0))

    def _level(self, column: npt.ArrayLike) -> Floats:
        x = fill_forward(column)
        if self.log and x.min(initial=0.0) >= 0.0:
            tiny = x[x > 0].min(initial=1.0)
            return np.asarray(np.log(np.maximum(x, tiny)))
        return np.clip(x, -1e30, 1e30)

    def _fires(self, z: Floats) -> npt.NDArray[np.bool_]:
        """Whether each metric fires at a row or within the vote window from it on."""
        fires = z >= max(self.k_cal, self.k_min)
        within = fires.copy()
        for later in range(1, self.vote_window):
            within[:, :-later] |= fires[:, later:]
        return within

    def _candidates(self, z: Floats) -> npt.NDArray[np.bool_]:
        now = (z >= max(self.k_cal, self.k_min)).any(axis=0)
        return np.asarray((self._fires(z).sum(axis=0) >= self.min_votes) & now)

    def _alarms(self, z: Floats, names: tuple[str, ...], index: StepTable) -> npt.NDArray[np.int64]:
        if not len(names):
            return np.empty(0, np.int64)
        good = self._candidates(z)
        if self.use_logistic:
            good &= self._probability(self._design(z, names, index)) >= self.logistic_threshold
        return np.flatnonzero(good)

    def _design(self, z: Floats, names: tuple[str, ...], index: StepTable) -> Floats:
        """The features of every row in the order of `WEIGHTS`, the bias first."""
        n = len(index)
        if not len(names):
            return np.zeros((n, len(WEIGHTS)))
        ordered = np.sort(z, axis=0)[::-1]
        parts = (
            np.ones(n),
            np.log1p(ordered[0]),
            np.log1p(ordered[:5].mean(axis=0)),
            self._fires(z).mean(axis=0),
            _hard(index),
            *(
                np.log1p(_largest(z, names, (name,)))
                for name in ("grad_norm", "update_max", "loss")
            ),
            np.log1p(_largest(z, names, TAIL)),
            np.arange(n) / max(n, 1),
        )
        return np.stack(parts, axis=1)

    def _probability(self, design: Floats) -> Floats:
        weights = np.array([self.weights[name] for name in WEIGHTS])
        return sigmoid(design @ weights)

    def _finding(self, index: StepTable, z: Floats, names: tuple[str, ...], row: int) -> Finding:
        step = int(index.steps[row])
        recent = z[:, row : row + self.vote_window].max(axis=1)
        order = [int(j) for j in np.argsort(-recent, kind="stable")]
        firing = int(self._fires(z)[:, row].sum())
        certainty = float(self._probability(self._design(z, names, index))[row])
        text = (
            f"{firing} of {len(names)} metrics moved by {max(self.k_cal, self.k_min):g} robust "
            f"deviations or more within {self.vote_window} steps of step {step}."
        )
        return Finding(
            step=step,
            interval=(step, step + self.vote_window - 1),
            kind="consensus",
            confidence=certainty if self.use_logistic else 0.5,
            severity="bad",
            evidence=(text,),
            top_metrics=tuple(
                MetricScore(metric=names[j], score=round(float(recent[j]), 2), step=step)
                for j in order[:8]
                if recent[j] >= self.k_min
            ),
        )

    def save(self, folder: str | Path) -> Path:
        """Write ``config.json`` (the card's keys) and ``weights.json`` into `folder`."""
        names = (
            "win", "gap", "mode", "k_cal", "k_min", "min_votes", "vote_window", "exclude",
            "use_logistic", "logistic_threshold", "version",
        )  # fmt: skip
        config: dict[str, Any] = {name: getattr(self, name) for name in names}
        config["exclude"] = list(self.exclude)
        if not self.log:
            config["log"] = False
        write_config(folder, self.weights, WEIGHTS_FILE)
        return write_config(folder, config)

    @classmethod
    def load(cls, folder: str | Path) -> PublishedDetector:
        """The version 1 detector in `folder`.

        Raises:
            DetectorError: If a file is missing or a key is not one of the card's.
        """
        config = read_config(folder)
        version = config.pop("version", None)
        if str(version) != "1":
            msg = f"{folder}: detector version {version!r}, expected '1'"
            raise DetectorError(msg)
        try:
            return cls(**config, weights=read_json(Path(folder) / WEIGHTS_FILE))
        except TypeError as error:
            msg = f"{folder}: {error}; expected the keys of the published config.json"
            raise DetectorError(msg) from error


def _largest(z: Floats, names: tuple[str, ...], wanted: Sequence[str]) -> Floats:
    rows = [names.index(name) for name in wanted if name in names]
    return z[rows].max(axis=0) if rows else np.zeros(z.shape[1])


def _hard(index: StepTable) -> Floats:
    hard = np.zeros(len(index))
    for name in index.names:
        if name.split(":")[-1] in ("nonfinite", "update_nonfinite"):
            hard = np.maximum(hard, np.asarray(index.column(name), np.float64) > 0)
    return hard
