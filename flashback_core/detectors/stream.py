"""DetectorStream: the detector online, row by row, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.compiled import kernels
from flashback_core.detectors.row_block import RowBlock, RowView
from flashback_core.detectors.series import Series
from flashback_core.errors import DetectorError
from flashback_core.report.model import (
    DetectionReport,
    Finding,
    finding_dict,
    finding_of,
    strict_json,
)
from flashback_core.table import StepTable

if TYPE_CHECKING:
    from flashback_core.detectors.first_bad_step import FirstBadStepDetector

__all__ = ["BLOCK_ROWS", "DetectorStream"]

_FORMAT = 4
BLOCK_ROWS = 32
"""Rows that the statistics are worked out for at a time."""


class DetectorStream:
    """What `FirstBadStepDetector.stream` returns: findings while the run goes on.

    What is certain (a NaN, weights that changed outside the optimizer, a repeated batch) is told at
    the row where it happens, or as soon as its rule can know. The statistics are worked out every
    `BLOCK_ROWS` rows, and an alarm waits for eight rows after it, which date it; so a statistical
    finding comes at most 40 rows after the row that raised it, and is the one that `predict` makes
    of the whole run.

    Args:
        detector: Whose thresholds hold.

    Examples:
        >>> from flashback_core import FirstBadStepDetector
        >>> from flashback_core.testing import run_with_fault
        >>> stream = FirstBadStepDetector().stream()
        >>> run = run_with_fault(first_bad_step=120).to_pandas().reset_index()
        >>> found = [stream.update(row) for row in run.to_dict("records")]
        >>> next(finding.step for finding in found if finding)
        120
    """

    def __init__(self, detector: FirstBadStepDetector) -> None:
        kernels(is_worth_it=True)  # now, not within a step
        self._detector = detector
        self._names: tuple[str, ...] | None = None
        self._series: dict[int, Series] = {}
        self._blocks: dict[int, RowBlock] = {}
        self._looked: dict[int, int] = {}
        self._events: list[dict[str, Any]] = []
        self._told: list[Finding] = []
        self._first: int | None = None
        self._last: int | None = None
        self.n_rows = 0
        self.findings: list[Finding] = []

    def update(self, row: Mapping[str, float]) -> Finding | None:
        """Take the next row.

        Args:
            row: Metrics and exact fields by column name, with ``step``. The first row says which
                columns there are; what a later row lacks is unknown, what it has more is left out.

        Returns:
            The first finding that is new, None without one. Where a row brings several, the others
            come with the rows after it; `findings` has them all at once.

        Raises:
            DetectorError: If the row has no step, or one that is not after the last.
        """
        step = self._step_of(row.get("step"))
        if self._names is None:
            self._names = tuple(name for name in row if name != "step")
        which = int(row.get("exact:optimizer", 0) or 0)
        series, block = self._of(which)
        block.add(step, row)
        self._advance(which, is_urgent=series.rules.is_urgent(row))
        return self._told.pop(0) if self._told else None

    def begin(self, names: Sequence[str]) -> None:
        """Say which columns the rows have, before the first of them."""
        if self._names is None:
            self._names = tuple(names)

    def push(
        self, step: int, values: npt.NDArray[np.float64], exact: Mapping[str, float]
    ) -> list[Finding]:
        """Take the next row as a recorder has it, after `begin`.

        Args:
            step: Its step.
            values: All metrics, in the order of `begin`.
            exact: Exact fields by name, without ``exact:``.

        Returns:
            All findings that are new.
        """
        self._step_of(step)
        which = int(exact.get("optimizer", 0))
        series, block = self._of(which)
        block.add_values(step, values, exact)
        row = self._view.show(values, exact)
        self._advance(which, is_urgent=series.rules.is_urgent(row))  # type: ignore[arg-type]  # what it asks for is there
        found, self._told = self._told, []
        return found

    def learn(self, table: StepTable) -> None:
        """Take in rows that were judged before, and tell nothing of them."""
        for which in np.unique(table.column("exact:optimizer")).tolist():
            rows = np.asarray(table.column("exact:optimizer")) == which
            series, _ = self._of(max(int(which), 0))
            series.learn(table[rows], self._events)
        self.n_rows += len(table)
        if len(table):
            self._first, self._last = int(table.steps[0]), int(table.steps[-1])

    def _advance(self, which: int, *, is_urgent: bool) -> None:
        """Look at the rows that wait, if it is their time."""
        self.n_rows += 1
        if self._blocks[which].is_full:
            self._flush(which)
        elif is_urgent:
            self._look(which)

    @cached_property
    def _view(self) -> RowView:
        metrics = (n for n in self._names or () if not n.startswith("exact:"))
        return RowView({name: i for i, name in enumerate(metrics)})

    def expect(self, step: int, kind: str) -> None:
        """Declare a change at `step`, at or before it happens; see `Recorder.expect`."""
        self.add_event({"event": "expect", "step": int(step), "kind": str(kind)})

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Take note of an event of the run, as an index keeps them."""
        self._events.append(dict(event))

    def finish(self) -> list[Finding]:
        """Findings that wait for rows which will not come; no row may follow."""
        before = len(self.findings)
        for which, series in self._series.items():
            self._flush(which)
            self._take(series.finish())
        self._told.clear()
        return self.findings[before:]

    def report(self) -> DetectionReport:
        """The report on the rows so far, without the run's table."""
        merged = [f for series in self._series.values() for f in series.findings()]
        judged = any(series.statistics.n_judged for series in self._series.values())
        return self._detector.report(
            merged,
            is_judged=judged or not self.n_rows,
            n_steps=self.n_rows,
            first_step=self._first,
            last_step=self._last,
        )

    # -- going on ----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that later findings depend on: numbers, text and arrays by name, no objects."""
        rows = {
            f"{which}/{key}": value
            for which, series in self._series.items()
            for key, value in {**series.state(), **self._blocks[which].state()}.items()
        }
        plain = {
            "names": self._names,
            "series": list(self._series),
            "looked": {str(which): n for which, n in self._looked.items()},
            "events": self._events,
            "n_told": len(self._told),
            "first": self._first,
            "last": self._last,
            "n_rows": self.n_rows,
            "findings": [finding_dict(f) for f in self.findings],
        }
        return {"format": _FORMAT, "stream": json.dumps(strict_json(plain)), **rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`.

        Raises:
            DetectorError: If it is no state of a stream, or one of another version.
        """
        if int(state.get("format", -1)) != _FORMAT or "stream" not in state:
            msg = (
                f"this is no state of a detector stream of format {_FORMAT}; take what `state` "
                "of this version gave"
            )
            raise DetectorError(msg)
        plain = json.loads(str(state["stream"]))
        self._names = None if plain["names"] is None else tuple(plain["names"])
        self._events, self.n_rows = plain["events"], plain["n_rows"]
        self._first, self._last = plain["first"], plain["last"]
        self.findings = [finding_of(f) for f in plain["findings"]]
        self._told = self.findings[len(self.findings) - plain["n_told"] :]
        for which in plain["series"]:
            series, block = self._of(which)
            mine = {k.partition("/")[2]: v for k, v in state.items() if k.startswith(f"{which}/")}
            series.restore(mine)
            block.restore(mine)
            self._looked[which] = plain["looked"][str(which)]

    def save(self, path: str | Path) -> Path:
        """Write the state as one ``.npz`` file, without pickle; return its path."""
        path = Path(path)
        with path.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **self.state())
        return path

    @classmethod
    def load(cls, path: str | Path, detector: FirstBadStepDetector) -> DetectorStream:
        """The stream that was saved at `path`, with the same detector."""
        stream = cls(detector)
        with np.load(path, allow_pickle=False) as data:
            stream.restore({name: data[name] for name in data.files})
        return stream

    # -- rows --------------------------------------------------------------------------------

    def _step_of(self, step: Any) -> int:
        if step is None or step != step or int(step) != step:
            msg = f"a row has step={step!r}; expected a whole number under the key 'step'"
            raise DetectorError(msg)
        if self._last is not None and step <= self._last:
            msg = (
                f"step {int(step)} came after step {self._last}; rows come in the order of their "
                "steps, each once. After a resume start a stream of its own"
            )
            raise DetectorError(msg)
        if self._first is None:
            self._first = int(step)
        self._last = int(step)
        return int(step)

    def _of(self, which: int) -> tuple[Series, RowBlock]:
        if which not in self._series:
            names = self._names or ()
            self._series[which] = self._detector.series(names)
            self._blocks[which] = RowBlock(names, BLOCK_ROWS)
            self._looked[which] = 0
        return self._series[which], self._blocks[which]

    def _look(self, which: int) -> None:
        """Let the certain rules see the rows that wait."""
        block = self._blocks[which]
        part = block.since(self._looked[which])
        if len(part):
            self._take(self._series[which].look(part, self._events))
            self._looked[which] += len(part)

    def _flush(self, which: int) -> None:
        self._look(which)
        block = self._blocks[which]
        if len(block):
            self._take(self._series[which].measure(block))
            block.clear()
        self._looked[which] = 0

    def _take(self, found: list[Finding]) -> None:
        self.findings += found
        self._told += found
